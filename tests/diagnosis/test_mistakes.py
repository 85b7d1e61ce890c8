"""Each kind of mistake on real ranks is reported, word for word, within two seconds. Correct programs are not accused.

The first table holds worlds that hang or crash, the second those that finish as if all were well.
"""

import contextlib
import os
import socket
import tempfile
import time
from datetime import timedelta

import hypothesis
import pytest
import torch
import torch.distributed as dist

from utils import RankCrashed, RankError, RankFailed, SilentMistake, WorldStuck, spawn

from .random_programs import RANKS, programs, run_program

LOUD, SILENT = [], []


def row(table, world_size, says, error):
    """Add a rank program to a table: on `world_size` ranks it raises an `error` that ends with `says`."""

    def put(program):
        table.append(pytest.param(program, world_size, says, error, id=program.__name__))
        return program

    return put


def loud(world_size, says, error=WorldStuck):
    return row(LOUD, world_size, says, error)


def silent(world_size, says):
    return row(SILENT, world_size, says, SilentMistake)


FLOAT32 = " A new tensor, such as torch.zeros(3), is float32 unless you say otherwise."


@pytest.fixture(scope="module", autouse=True)
def a_call_before():
    spawn(lambda rank, n: None, 4)


# --- collectives


@loud(
    3,
    "rank 0 called all_reduce, rank 1 called broadcast, rank 2 called broadcast. "
    "Every rank of a group must call the same collectives in the same order.",
)
def another_order(rank, world_size):
    x, y = torch.ones(2), torch.ones(2)
    if rank == 0:
        dist.all_reduce(x)
        dist.broadcast(y, src=1)
    else:
        dist.broadcast(y, src=1)
        dist.all_reduce(x)


@loud(
    2,
    "rank 0 called all_reduce, rank 1 called barrier. Every rank of a group must call the same collectives in the "
    "same order. The all_reduce is inside `if rank == 0`.",
)
def one_rank_makes_a_call_of_its_own(rank, world_size):
    x = torch.ones(2)
    if rank == 0:
        x += 1
        dist.all_reduce(x)
    dist.barrier()


@loud(2, "rank 0 named root 0, rank 1 named root 1. All ranks must name the same root.")
def another_root(rank, world_size):
    dist.broadcast(torch.ones(2), src=rank)


@loud(
    3,
    "rank 0 brought float32 [5], rank 1 brought float32 [5], rank 2 brought float32 [2]. "
    "all_reduce needs the same shape and dtype on every rank.",
)
def another_shape(rank, world_size):
    dist.all_reduce(torch.ones(2 if rank == 2 else 5))


@loud(
    2,
    "rank 0 brought float64 [1000], rank 1 brought float32 [1000]. "
    f"all_reduce needs the same shape and dtype on every rank.{FLOAT32}",
    RankCrashed,
)
def another_dtype(rank, world_size):
    dist.all_reduce(torch.ones(1000, dtype=torch.float32 if rank else torch.float64))


@loud(
    3,
    "Ranks 1 and 2 never called this all_reduce and have finished. A collective returns only when every rank of its "
    "group has called it: take it out of the `if rank == 0`.",
)
def only_rank_0(rank, world_size):
    x = torch.ones(2)
    if rank == 0:
        dist.all_reduce(x)


@loud(
    3,
    "Rank 2 never called this barrier and has finished. A collective returns only when every rank of its "
    "group has called it: look for an early return, or an `if` around it.",
)
def left_early(rank, world_size):
    if rank == 2:
        return
    dist.barrier()


@loud(
    3,
    "Ranks 0, 1 and 2 must all call all_reduce, but rank 2 is in recv from 0. "
    "Rank 2 waits for a message from rank 0, which is in all_reduce and could send it only afterwards, if at all: is a "
    "call missing, or are two in the wrong order?",
)
def skipped_one(rank, world_size):
    x = torch.ones(2)
    if rank != 2:
        pass
    else:
        dist.recv(x, src=0)
    dist.all_reduce(x)
    if rank == 0:
        dist.send(x, dst=2)


@loud(3, "(Ranks 0 and 2 were waiting in barrier.)", RankFailed)
def raised(rank, world_size):
    if rank == 1:
        raise ValueError("no luck")
    dist.barrier()


@loud(3, "(Ranks 0 and 2 were waiting in barrier.)", RankFailed)
def raised_and_hung_up(rank, world_size):
    """The others lose their connections before anybody has ended them."""
    if rank == 1:
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as line:
                if line.family != socket.AF_UNIX and line.getpeername():
                    line.shutdown(socket.SHUT_RDWR)
        raise ValueError("no luck")
    dist.barrier()


# --- messages


@loud(
    2,
    "Rank 1 waits for a message from rank 0, which has finished without sending it. "
    "Count the sends and receives of each pair: they must match one to one, including their tags.",
)
def receive_without_send(rank, world_size):
    if rank == 1:
        dist.recv(torch.ones(1), src=0)


@loud(
    2,
    "Rank 0 sends a message to rank 1, which has finished without receiving it. "
    "Count the sends and receives of each pair: they must match one to one, including their tags.",
)
def send_without_receive(rank, world_size):
    if rank == 0:
        dist.send(torch.ones(1), dst=1)


@loud(
    3,
    "Everyone sends first, and waits for the next: 0 → 1 → 2 → 0. "
    "Let one rank of each pair receive first, or use isend and wait after the receive.",
)
def everyone_sends_first(rank, world_size):
    x = torch.ones(1)
    dist.send(x, dst=(rank + 1) % world_size)
    dist.recv(x, src=(rank - 1) % world_size)


@loud(
    2,
    "Everyone receives first, and waits for the next: 0 → 1 → 0. "
    "A message must be sent before it can arrive: let one rank send first.",
)
def everyone_receives_first(rank, world_size):
    x = torch.ones(1)
    dist.recv(x, src=1 - rank)
    dist.send(x, dst=1 - rank)


@loud(
    2,
    "Rank 1 waits for a message with tag 1 from rank 0, which sends with tag 0. "
    "A send and its recv must use the same tag.",
)
def wrong_tag(rank, world_size):
    x = torch.ones(1)
    dist.send(x, dst=1, tag=rank) if rank == 0 else dist.recv(x, src=0, tag=rank)


@loud(
    3,
    "Rank 2 waits for a message from rank 0, which has finished without sending it. Count the sends and receives "
    "of each pair: they must match one to one, including their tags. Rank 2 waits for rank 0, but it is rank 1 "
    "that sends to rank 2: is a src or a dst wrong?",
)
def wrong_source(rank, world_size):
    x = torch.ones(1)
    if rank == 1:
        dist.send(x, dst=2)
    if rank == 2:
        dist.recv(x, src=0)


@loud(
    3,
    "No send matches a receive: nobody has sent what these ranks wait for. "
    "Rank 0 waits for rank 1, but it is rank 2 that sends to rank 0: is a src or a dst wrong?",
)
def wrong_neighbour(rank, world_size):
    x, y = torch.ones(1), torch.ones(1)
    sending = dist.isend(x, dst=(rank + 1) % world_size)
    dist.recv(y, src=(rank + 1) % world_size)
    sending.wait()


@loud(
    2,
    "Rank 1 waits for a message from rank 0 on the whole world, which sends on the group of ranks 0 and 1. "
    "A send and its recv must use the same group.",
)
def wrong_group(rank, world_size):
    group = dist.new_group([0, 1])
    x = torch.ones(1)
    dist.send(x, dst=1, group=group) if rank == 0 else dist.recv(x, src=0)


@loud(
    2,
    "Rank 0 sent float32 [6] to rank 1, whose recv only has room for float32 [4]. "
    "A send and its recv need the same shape and dtype.",
    RankCrashed,
)
def too_long_a_message(rank, world_size):
    dist.send(torch.ones(6), dst=1) if rank == 0 else dist.recv(torch.ones(4), src=0)


LOST = (
    "Rank {} has thrown away the handle of its {}. The message may never arrive, "
    "and everything after it gets stuck too: keep each handle, and call its wait()."
)


@loud(2, LOST.format(1, "isend to 0"))
def never_waited_for_a_send(rank, world_size):
    x = torch.ones(1)
    if rank == 1:
        dist.isend(x, dst=0)
    dist.barrier()
    if rank == 0:
        dist.recv(x, src=1)
    dist.barrier()


@loud(2, LOST.format(1, "irecv from 0"))
def never_waited_for_a_message(rank, world_size):
    x = torch.ones(2)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        dist.irecv(x, src=0)
        store.set("thrown away", "")  # the message is sent only now: one that is already there would be received
    else:
        store.wait(["thrown away"])
        dist.send(x, dst=1)
    dist.barrier()


@loud(2, LOST.format(0, "irecv from 1"))
def messages_behind_one_that_was_never_waited_for(rank, world_size):
    x = torch.ones(2)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.irecv(torch.empty(2), src=1)
        store.set("thrown away", "")
        dist.send(x, dst=1)
    else:
        store.wait(["thrown away"])
        dist.send(x, dst=0)
        dist.recv(x, src=0)  # the two agree, but what comes from rank 0 is held up behind what it never took


# --- groups


@loud(
    3,
    "Rank 1 never made the group of ranks 0 and 1. "
    "Every rank must call new_group for every group in the same order, even for groups that it is not in.",
)
def a_group_that_one_member_never_makes(rank, world_size):
    if rank != 1:
        dist.new_group([0, 1])


@loud(
    3,
    "Rank 2 skipped the group of ranks 0 and 1, which it is not in. "
    "Every rank must call new_group for every group in the same order, even for groups that it is not in.",
)
def a_group_that_an_outsider_skips(rank, world_size):
    if rank < 2:
        dist.new_group([0, 1])
    pair = dist.new_group([1, 2])
    if rank > 0:
        dist.all_reduce(torch.ones(1), group=pair)


@loud(
    3,
    "The 1st group that rank 0 makes is that of ranks 0, 1 and 2; on rank 1 it is that of ranks 0 and 1. "
    "Every rank must make all groups in the same order.",
)
def groups_in_another_order(rank, world_size):
    for members in [[0, 1, 2], [0, 1]] if rank == 0 else [[0, 1], [0, 1, 2]]:
        dist.new_group(members)


@loud(
    2,
    "Rank 0 uses the 1st group of ranks 0 and 1 first, rank 1 uses the 2nd group of ranks 0 and 1 first: each waits "
    "for the other. Ranks that share several groups must use them in the same order.",
)
def groups_used_in_another_order(rank, world_size):
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (one, two) if rank == 0 else (two, one):
        dist.all_reduce(torch.ones(1), group=group)


@loud(
    4,
    "Rank 0 uses the group of ranks 0 and 1 first, rank 1 uses the whole world first: each waits for the other. "
    "Ranks that share several groups must use them in the same order.",
)
def a_mesh_and_the_world_in_another_order(rank, world_size):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for group in (mesh.get_group("tp"), None) if rank == 0 else (None, mesh.get_group("tp")):
        dist.all_reduce(torch.ones(1), group=group)


# --- silent


@silent(
    2,
    "Rank 0's `dist.all_reduce(a)` met rank 1's `dist.all_reduce(b)`: both ranks make both calls, but in "
    "different orders. Every rank of a group must call the same collectives in the same order.",
)
def same_sizes_in_another_order(rank, world_size):
    a, b = torch.ones(2), torch.ones(2)
    if rank == 0:
        dist.all_reduce(a)
        dist.all_reduce(b)
    else:
        dist.all_reduce(b)
        dist.all_reduce(a)


@silent(
    2,
    "Rank 0's all_reduce (sum) of float32 [2, 3] met rank 1's all_reduce (sum) of float32 [6]: both ranks make both "
    "calls, but in different orders. Every rank of a group must call the same collectives in the same order.",
)
def as_many_numbers_in_another_order(rank, world_size):
    a, b = torch.ones(2, 3), torch.ones(6)
    for x in (a, b) if rank == 0 else (b, a):
        dist.all_reduce(x)


@silent(2, "rank 0 asked for sum, rank 1 asked for max. all_reduce needs the same reduce op on every rank.")
def another_reduce_op(rank, world_size):
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


@silent(
    2,
    "rank 0 brought float32 [2], rank 1 brought int32 [2]. all_reduce needs the same shape and dtype on every rank."
    + FLOAT32,
)
def another_dtype_of_the_same_size(rank, world_size):
    dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank else torch.float32))


@silent(
    2,
    "rank 0 brought float32 [2], rank 1 brought float32 [3]. broadcast needs the same shape and dtype on every rank.",
)
def a_short_broadcast(rank, world_size):
    dist.broadcast(torch.ones(3 if rank else 2), src=0)


@silent(
    2,
    "Rank 0 sent float32 [2] to rank 1, which received it into float32 [4]: the rest of that tensor stays as it was. "
    "A send and its recv need the same shape and dtype.",
)
def too_short_a_message(rank, world_size):
    dist.send(torch.ones(2), dst=1) if rank == 0 else dist.recv(torch.ones(4), src=0)


@silent(
    2,
    "Rank 0 sent float64 [2] to rank 1, which received it into float32 [4], where the same bytes mean different "
    f"numbers. A send and its recv need the same shape and dtype.{FLOAT32}",
)
def a_message_of_another_dtype(rank, world_size):
    dist.send(torch.ones(2, dtype=torch.float64), dst=1) if rank == 0 else dist.recv(torch.ones(4), src=0)


GAPS = (
    "Rank 0 handed {} a view with gaps (shape [2], strides [2]), but Gloo works on consecutive memory, so it used "
    "the wrong numbers. Hand in x.contiguous(), and copy the result back into the view."
)


@silent(2, GAPS.format("all_reduce"))
def a_view_with_gaps(rank, world_size):
    dist.all_reduce(torch.ones(4)[::2])


@silent(2, GAPS.format("scatter"))
def a_view_with_gaps_to_scatter_into(rank, world_size):
    dist.scatter(torch.ones(4)[::2], [torch.ones(2)] * 2 if rank == 0 else None, src=0)


@silent(
    2,
    "Rank 1's tensor is laid out differently in memory from rank 0's (is one a transpose?), and broadcast goes by the "
    "order in memory. Hand in x.contiguous() on every rank.",
)
def a_transpose(rank, world_size):
    x = torch.ones(2, 3) if rank == 0 else torch.ones(3, 2).T
    dist.broadcast(x, src=0)


NEVER_WAITED = (
    "Rank {} started an asynchronous {} and never waited for it: its result may not be there yet when you use it. "
    "Keep the handle, and call its wait() before you use the tensor."
)


@silent(2, NEVER_WAITED.format(0, "all_reduce"))
def never_waited_for_a_sum(rank, world_size):
    x = torch.ones(2)
    dist.all_reduce(x, async_op=True)
    return x


@silent(2, NEVER_WAITED.format(1, "recv"))
def never_waited_for_a_message_that_came(rank, world_size):
    x = torch.ones(2)
    handle = dist.irecv(x, src=0) if rank else dist.isend(x, dst=1)
    dist.barrier()
    return x, str(handle)


@pytest.mark.parametrize("program, world_size, says, error", LOUD + SILENT)
def test_the_report_of_a_mistake(program, world_size, says, error):
    def seconds_until_it_is_reported() -> float:
        began = time.monotonic()
        with pytest.raises(error) as caught:
            spawn(program, world_size)
        assert type(caught.value) is error
        assert str(caught.value).split("\n\n")[0 if error is RankCrashed else -1] == says
        return time.monotonic() - began

    assert any(seconds_until_it_is_reported() < 2 for _ in range(3))  # the machine may be busy with something else


def test_a_silent_mistake_keeps_the_results_and_shows_both_lines():
    with pytest.raises(SilentMistake) as caught:
        spawn(as_many_numbers_in_another_order, 2)
    report = str(caught.value)
    assert report.startswith("every rank finished, but the values can't be trusted.\n  rank 0  all_reduce")
    assert report.count("dist.all_reduce(x)") == 2
    assert caught.value.results == [None, None] and len(caught.value.events) == 4


# --- correct programs


CORRECT = []


def correct(world_size):
    return lambda program: CORRECT.append(pytest.param(program, world_size, id=program.__name__))


@correct(3)
def ranks_take_turns(rank, world_size):
    mine, nothing, theirs = torch.ones(2), torch.zeros(2), torch.zeros(2)
    for turn in range(world_size):
        if turn == rank:
            dist.broadcast(mine, src=turn)
        else:
            dist.broadcast(theirs, src=turn)
        if turn == rank:
            dist.all_reduce(mine)
        else:
            dist.all_reduce(nothing)


@correct(3)
def from_anybody(rank, world_size):
    x = torch.ones(rank + 1)
    if rank:
        dist.send(x, dst=0)
        dist.send(x, dst=0)
    else:
        y = torch.ones(2)
        first = dist.irecv(y, src=1)
        dist.recv(torch.ones(3), src=2)
        first.wait()
        sizes = {1: 2, 2: 3}
        dist.recv(torch.ones(sizes[1]), src=1)
        dist.recv(torch.ones(3))


@correct(2)
def a_send_that_arrives_without_a_wait(rank, world_size):
    x, y = torch.ones(2), torch.zeros(2)
    sending = dist.isend(x, dst=1 - rank)  # kept, but never waited for
    dist.recv(y, src=1 - rank)
    dist.barrier()
    return str(sending)


@correct(2)
def handles_that_are_used_without_wait(rank, world_size):
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    dist.all_reduce(x, async_op=True).get_future().wait()
    dist.barrier(async_op=True)


@correct(2)
def uneven_shares(rank, world_size):
    splits = [1, 3] if rank == 0 else [3, 2]
    received = torch.empty(4 if rank == 0 else 5)
    dist.all_to_all_single(received, torch.ones(4 if rank == 0 else 5), splits, splits)
    everyone = [None] * world_size
    dist.all_gather_object(everyone, "x" * (1 + 100 * rank))
    dist.gather_object(rank, everyone if rank == 0 else None)
    dist.broadcast_object_list(everyone, src=1)
    dist.send_object_list(["a" * 50], dst=1) if rank == 0 else dist.recv_object_list([None], src=0)
    dist.scatter_object_list([None], everyone if rank == 0 else None)
    dist.monitored_barrier()


@correct(2)
def rows_there_and_back(rank, world_size):
    """Rank 0 hands in 2 rows and then 5, rank 1 first 5 and then 2: all-to-alls in the same order on both."""
    send, receive = ([1, 1], [1, 4]) if rank == 0 else ([4, 1], [1, 1])
    there, back = torch.empty(sum(receive), 3), torch.empty(sum(send), 3)
    dist.all_to_all_single(there, torch.ones(sum(send), 3), receive, send)
    dist.all_to_all_single(back, there, send, receive)


@correct(2)
def shapes_that_hold_as_many_numbers(rank, world_size):
    dist.all_reduce(torch.ones(2, 3) if rank else torch.ones(6))
    dist.all_reduce(torch.ones(2, 3) if rank else torch.ones(2, 3).T)
    dist.send(torch.ones(4), dst=1) if rank == 0 else dist.recv(torch.ones(2, 2), src=0)
    dist.send(torch.ones(4).view(torch.uint8), dst=1) if rank == 0 else dist.recv(torch.ones(2, 2), src=0)


@correct(2)
def views_that_give_the_right_values(rank, world_size):
    dist.all_reduce(torch.ones(2, 3).T)
    gathered = [torch.ones(4)[::2] for _ in range(world_size)]
    dist.all_gather(gathered, torch.ones(4)[::2])
    dist.all_reduce(torch.ones(2)[::2])


@correct(3)
def a_call_that_raised_and_was_caught(rank, world_size):
    if rank == 0:
        with pytest.raises(RuntimeError):
            dist.irecv(torch.ones(1), src=1).wait(timedelta(milliseconds=50))
        with pytest.raises(RuntimeError):
            dist.all_gather([torch.ones(1)] * 3, torch.ones(2))


@correct(3)
def a_group_that_only_its_members_make(rank, world_size):
    if rank < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(torch.ones(1), group=group)
    other = dist.new_group([1, 2])
    if rank:
        dist.all_reduce(torch.ones(1), group=other)


@correct(4)
def wrappers(rank, world_size):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def model():
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))

    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.ones(3, 6)
    for wrapped in (
        torch.nn.parallel.DistributedDataParallel(model()),
        torch.nn.parallel.DistributedDataParallel(model(), find_unused_parameters=True, bucket_cap_mb=1e-6),
        fully_shard(
            parallelize_module(model(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()}), mesh=mesh["dp"]
        ),
    ):
        for _ in range(3):
            wrapped(x).sum().backward()
    whole = torch.arange(30.0).reshape(6, 5)
    sharded = distribute_tensor(whole.T, mesh, [Shard(0), Shard(1)])
    assert torch.equal(sharded.redistribute(placements=[Shard(1), Shard(0)]).full_tensor(), whole.T)


@correct(2)
def a_pipeline(rank, world_size):
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    stages = [
        PipelineStage(torch.nn.Linear(4, 4), rank + 2 * chunk, 2 * world_size, torch.device("cpu")) for chunk in (0, 1)
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    for _ in range(2):
        schedule.step(torch.ones(8, 4)) if rank == 0 else schedule.step(target=torch.ones(8, 4))


@correct(3)
def coalesced(rank, world_size):
    from torch.distributed.nn.functional import all_reduce

    tensors = [torch.ones(size) for size in (1, 2, 3)]
    dist.all_reduce_coalesced(tensors)
    all_reduce(torch.ones(2, requires_grad=True)).sum().backward()
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % world_size),
            dist.P2POp(dist.irecv, torch.ones(2), (rank - 1) % world_size),
        ]
    ):
        work.wait()


@correct(2)
def started_again_with_other_groups(rank, world_size):
    """torch numbers its groups from 1 again, so both of its groups "1" have their own members."""
    dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    alone, both = dist.new_group([0]), dist.new_group([1, 0])
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=alone)
    dist.broadcast(torch.ones(1), src=1, group=both)


@correct(3)
def started_again_in_different_company(rank, world_size):
    """First all, then ranks 2 and 1, who are 0 and 1 there, while rank 0 is alone."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    for teams in ([[0, 1, 2]], [[2, 1], [0]]):
        dist.destroy_process_group()
        [team] = [team for team in teams if rank in team]
        store = dist.FileStore(os.path.join(folder[0], f"{teams}{team}"), len(team))
        dist.init_process_group("gloo", store=store, rank=team.index(rank), world_size=len(team))
        dist.all_reduce(torch.ones(len(team)))


@correct(2)
def the_same_order_in_memory(rank, world_size):
    """The strides differ only where there is a single element."""
    dist.all_reduce(torch.ones(3, 2, 1).permute(2, 1, 0) if rank == 0 else torch.ones(1, 3, 2).transpose(1, 2))


@correct(2)
def counts_that_equal_gradients(rank, world_size):
    a, b = torch.tensor([1.0], requires_grad=True), torch.tensor([2.0], requires_grad=True)
    (a + 3 * b if rank == 0 else 3 * a + b).backward()
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.tensor([1.0, 3.0]))


@correct(2)
def weights_updated_behind_the_back_of_autograd(rank, world_size):
    """Through `data`, which leaves their versions as they were. Rank 0 keeps the memory of one gradient."""
    w, v = torch.full((3,), 1.0, requires_grad=True), torch.full((3,), 5.0, requires_grad=True)
    former = []
    for _ in range(3):
        (w * v).sum().backward()
        for p in (w, v):
            dist.all_reduce(p.grad)
        for p in (w, v):
            p.data -= 0.1 * p.grad
            if rank == 0 and p is w:
                p.grad.zero_()
            else:
                former.append(p.grad)
                p.grad = None


@pytest.mark.parametrize("program, world_size", CORRECT)
def test_a_correct_program_is_not_accused(program, world_size):
    spawn(program, world_size)


@hypothesis.settings(max_examples=12, deadline=None, derandomize=True)
@hypothesis.given(program=programs())
def test_random_correct_programs_are_not_accused(program):
    try:
        spawn(run_program, RANKS, program)
    except RankError as error:
        raise AssertionError(f"{program}: {error}") from None
