"""Correct programs are not accused: neither unusual ones, nor slow ones, nor random ones."""

import inspect
import os
import re
import tempfile
from datetime import timedelta

import hypothesis
import pytest
import torch
import torch.distributed as dist

from utils import RankError, spawn

from .random_programs import RANKS, programs, run_program
from .slow import SLOW

pytestmark = pytest.mark.long

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


@pytest.mark.parametrize("program, world_size", SLOW)
def test_a_slow_program_is_not_accused(program, world_size):
    run = spawn(program, world_size, timeout=30)
    assert run.results == ["right"] * world_size


def test_there_are_enough_slow_ones_and_each_names_its_source():
    programs = [slow.values[0] for slow in SLOW]
    assert len(programs) >= 10 and len({program.__name__ for program in programs}) == len(programs)
    assert all(re.search(r"https?://\w", inspect.getdoc(program)) for program in programs)


@hypothesis.settings(max_examples=12, deadline=None, derandomize=True)
@hypothesis.given(program=programs())
def test_random_correct_programs_are_not_accused(program):
    try:
        spawn(run_program, RANKS, program)
    except RankError as error:
        raise AssertionError(f"{program}: {error}") from None
