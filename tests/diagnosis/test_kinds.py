"""One program for each kind of mistake that public issues report, written afresh: what the report must say of it.

Those in mistakes.py are compared in more ways; these are about words that name the first parting, the decision, the
module, the thread, or values that are wrong without an error.
"""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from utils import RankError, simulate, spawn
from utils.diagnosis.deadlock import describe_ranks, what_idle_ranks_wait_for
from utils.events.rank_state import RankState
from utils.text.decisions import place_of

KINDS = []


def kind(*words, world_size=2, worlds=(spawn, simulate)):
    def put(program):
        KINDS.extend(pytest.param(program, world_size, w, words, id=f"{program.__name__}-{w.__name__}") for w in worlds)
        return program

    return put


REAL = (spawn,)


def report_of(program, world_size, world, **options):
    if world is simulate:
        options["device"] = "cpu"
    with pytest.raises(RankError) as caught:
        world(program, world_size, **options)
    return str(caught.value)


@pytest.mark.parametrize("program, world_size, world, words", KINDS)
def test_a_kind_is_explained(program, world_size, world, words):
    report = report_of(program, world_size, world)
    assert not [said for said in words if said not in report], report


# --- where they parted, and what decided


def average(value):
    dist.all_reduce(value)
    return value


def log_training(value):
    return average(value)


def log_evaluation(value):
    return average(value)


@kind("The ranks parted earlier, at the 3rd collective", "log_evaluation(torch.ones(1))", "inside `if step == when`")
def one_average_more_on_rank_0(rank, world_size):
    when = 1 if rank == 0 else 9
    for step in range(4):
        log_training(torch.ones(1))
        if step == when:
            log_evaluation(torch.ones(1))


class Bar:
    def __init__(self, disable):
        self.n, self.disable = 0, disable

    def update(self):
        self.n += not self.disable


@kind("inside `if bar.n == 2`", "`bar.n` is 2 on rank 0 and 0 on rank 1", "rank 0 came there from")
def a_bar_that_is_off_decides(rank, world_size):
    bar = Bar(disable=rank != 0)
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
        bar.update()
        if bar.n == 2:
            evaluate()


def evaluate():
    dist.barrier()


def gather(metrics):
    if not metrics:
        return []
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, metrics)
    return found


@kind("all_gather_object is not reached `if not metrics`: `gather` leaves before it")
def an_early_return(rank, world_size):
    gather({} if rank == 1 else {"loss": 1.0})
    dist.barrier()


@kind("is in the loop `for step in range(5)`", "The loop may end early, by `if step == 2 + rank`")
def a_loop_that_one_rank_leaves(rank, world_size):
    for step in range(5):
        average(torch.ones(2))
        if step == 2 + rank:
            break
    dist.barrier()


@kind(
    "is in the loop `for name in logged`",
    "rank 0 is in its 2nd all_gather there, and rank 1 has made 1.",
    "`logged` is a dict of 'format', 'loss' on rank 0",
)
def a_gather_for_each_name_that_a_rank_has(rank, world_size):
    for step in range(2):
        average(torch.ones(5))
        gather_each({"format": [1.0], "loss": [2.0]} if rank == 0 and step == 0 else {"loss": [2.0]})


@kind("Rank 0 has finished after 1 call of this all_reduce", "does `for name, value in logged.items()` (line")
def a_metric_that_one_rank_has(rank, world_size):
    logged = {"loss": 1.0, "recall": 0.5} if rank else {"loss": 1.0}
    for _ in range(1):
        for name, value in logged.items():
            logged[name] = average(torch.tensor(value))


@kind(
    "rank 0 brought a list of 2 objects, rank 1 brought a list of 1 object", "a list of the same length on every rank"
)
def lists_of_different_lengths(rank, world_size):
    if rank == 0:
        dist.broadcast_object_list(["run", 7])
    else:
        dist.broadcast_object_list([None])


@kind(
    "rank 0 named root 1 (tests/",
    "these calls don't belong together",
    "`consolidate` leaves before it",
    "must call them",
)
def a_state_consolidated_on_one_rank(rank, world_size):
    model = DDP(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        consolidate(optimizer, rank)


def consolidate(optimizer, rank):
    if rank != 0:
        return
    optimizer.consolidate_state_dict(to=0)


@kind(
    "rank 0 brought float32 [2, 2] (tests/",
    "rank 1 brought float32 [] (tests/",
    "in the loop `for x in batches`",
    worlds=REAL,
)
def a_batch_meets_validation(rank, world_size):
    for _ in range(2):
        batches = torch.ones(2 - rank, 2, 2)
        for x in batches:
            dist.all_reduce(x)
        dist.all_reduce(torch.ones(()))


def gather_each(logged):
    for name in logged:
        dist.all_gather([torch.zeros(()) for _ in range(dist.get_world_size())], torch.tensor(logged[name]).mean())


@kind("Rank 1 came there because of KeyError('label') (", 'return batch["label"]', "`finally`")
def an_exception_that_a_barrier_keeps_back(rank, world_size):
    try:
        for batch in [{"label": 1}, {} if rank == 1 else {"label": 2}]:
            average(torch.ones(3) * label_of(batch))
    finally:
        dist.barrier()


def label_of(batch):
    return batch["label"]


@kind(
    "rank 0 sends to rank 2, rank 2 receives from rank 1, rank 1 receives from rank 0",
    "isend",
    world_size=3,
)
def targets_sent_ahead_of_activations(rank, world_size):
    x = torch.ones(2)
    if rank == 0:
        dist.send(x, dst=2)
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=rank - 1)
        dist.send(x, dst=2) if rank == 1 else dist.recv(x, src=0)


@kind("The all_reduce is inside the `try` of line", "whose `except ValueError` goes on: a rank on which an exception")
def an_exception_that_is_swallowed(rank, world_size):
    for _ in range(2):
        try:
            average(torch.ones(len(f"{int('x' if rank == 1 else 2)}")))
        except ValueError as error:
            if "invalid literal" in str(error):
                continue
            raise
    dist.barrier()


@kind("No rank may skip a batch", "Look at `if batch is None` (line", "which leaves before it")
def a_batch_that_one_rank_skips(rank, world_size):
    replica = DDP(nn.Linear(2, 2))
    for batch in [torch.ones(1, 2), None if rank == 1 else torch.ones(1, 2), torch.ones(1, 2)]:
        if batch is None:
            continue
        replica(batch).sum().backward()


@kind("Rank 1 is in its handler of SIGTERM", worlds=REAL)
def a_signal_on_one_rank(rank, world_size):
    signal.signal(signal.SIGTERM, lambda *_: dist.barrier())
    for step in range(3):
        if rank == 1 and step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        dist.all_reduce(torch.ones(1))


# --- who, in which group, in which module


@kind("rank 0 called all_gather_object, rank 1 called all_gather", "how long the pickled object is")
def objects_meet_tensors(rank, world_size):
    if rank == 0:
        dist.all_gather_object([None] * world_size, "step 1")
    else:
        dist.all_gather([torch.zeros(1, dtype=torch.long)] * 2, torch.tensor([1 << 60]))


@kind("Rank 1 called it as well, but for a group that it is not in", world_size=4)
def the_wrong_entry_of_a_list(rank, world_size):
    _, groups = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    dist.all_reduce(torch.ones(1), group=groups[rank % 2])


@kind("<the process group of ranks [2, 3]>", "group_src=0 is its first", world_size=4)
def a_src_that_is_not_in_the_group(rank, world_size):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.broadcast(torch.ones(1), src=0, group=groups[rank // 2])


@kind("Rank 1 called destroy_process_group before")
def the_group_destroyed_first(rank, world_size):
    if rank == 1:
        dist.destroy_process_group()
    else:
        dist.barrier()


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x, chosen):
        return sum(self.experts[i](x) for i in chosen)


@kind("Rank 0 gathers the parameters of `experts.1`, and rank 1 has gone on without it", "an expert without tokens")
def an_expert_without_tokens(rank, world_size):
    model = Experts()
    for expert in model.experts:
        fully_shard(expert)
    fully_shard(model)
    model(torch.ones(2, 4), [0, 1] if rank == 0 else [0]).sum().backward()


@kind("set_requires_gradient_sync(False) must be in force in the same steps on all ranks")
def accumulation_that_ends_in_other_steps(rank, world_size):
    model = fully_shard(nn.Linear(4, 2))
    for step in range(3):
        model.set_requires_gradient_sync(step == 1 + rank)
        model(torch.ones(2, 4)).sum().backward()


# --- values that are wrong without an error


@kind("Rank 0 sends 1 row to rank 1, which expects 2 from it", worlds=REAL)
def splits_that_do_not_fit(rank, world_size):
    sent, received = ([3, 1], [3, 2]) if rank == 0 else ([2, 2], [2, 2])
    dist.all_to_all_single(torch.empty(sum(received), 2), torch.ones(4, 2), received, sent)


@kind("torch.ops leaves the waiting to you")
def an_operator_without_its_wait(rank, world_size):
    torch.ops._c10d_functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD.group_name)


@kind("in different orders, so their values are mixed up")
def parameters_broadcast_in_another_order(rank, world_size):
    parameters = [nn.Parameter(torch.full((2, 2), float(i))) for i in range(3)]
    for parameter in parameters if rank == 0 else parameters[::-1]:
        dist.broadcast(parameter.data, src=0)


@kind('for the dimension "dp" of its mesh, rank 3 for "tp"', world_size=4)
def a_mesh_with_its_dimensions_swapped(rank, world_size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp") if rank == 3 else ("dp", "tp"))
    dist.all_reduce(torch.ones(1), group=mesh.get_group("dp"))


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x):
        return self.used(x)


@kind("DDP has not all-reduced any gradient", "did not reach `spare.weight`")
def a_step_with_the_gradients_of_one_rank(rank, world_size):
    model = DDP(Half())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 2) * rank).sum().backward()
    optimizer.step()


def a_frozen_part_of_each_rank(rank, world_size):
    torch.manual_seed(rank)
    model, frozen = DDP(nn.Linear(2, 2)), nn.Linear(2, 2).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        (model(torch.ones(1, 2)) - frozen(torch.ones(1, 2))).sum().backward()
        optimizer.step()


def test_replicas_are_compared_on_request():
    report = report_of(a_frozen_part_of_each_rank, 2, spawn, check_replicas=2)
    assert "After optimizer step 2" in report and "`Linear.weight`" in report
    assert "differs between rank 0 and rank 1" in report


@pytest.mark.parametrize("world, options", [(spawn, {}), (simulate, {"device": "cpu"})])
def test_a_frozen_part_that_differs_is_remarked_upon(world, options, capsys):
    world(a_frozen_part_of_each_rank, 2, **options)
    assert "The frozen parameter `Linear.weight` differs between rank 0 and rank 1" in capsys.readouterr().out


def test_replicas_that_are_alike_are_not_remarked_upon(capsys):
    def with_batch_norm(rank, world_size):
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(3, 2) + rank).sum().backward()
            optimizer.step()

    spawn(with_batch_norm, 2, check_replicas=1)
    simulate(with_batch_norm, 2, device="cpu")
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="a number of steps"):
        spawn(with_batch_norm, 2, check_replicas=-1)


@pytest.mark.parametrize(
    "own, remark",
    [
        (lambda rank: {"seed": rank}, "Ranks 0 and 1 shuffle the data differently"),
        (lambda rank: {"rank": 0}, "Ranks 0 and 1 read the same part of the data"),
        (lambda rank: {"seed": 7, "rank": rank}, ""),
    ],
)
def test_samplers_that_overlap_are_remarked_upon(own, remark, capsys):
    def reads(rank, world_size):
        data = TensorDataset(torch.arange(8.0))
        sampler = DistributedSampler(data, num_replicas=world_size, **({"rank": rank} | own(rank)))
        for _ in DataLoader(data, sampler=sampler):
            pass

    for world, options in ((spawn, {}), (simulate, {"device": "cpu"})):
        world(reads, 2, **options)
        said = capsys.readouterr().out
        assert remark in said if remark else said == ""


# --- crashes, time-outs, threads and workers


@kind("rank 2 was killed by SIGKILL", "  rank 0  ", "  rank 1  ", "dist.all_reduce(x)", world_size=3, worlds=REAL)
def a_rank_that_is_killed(rank, world_size):
    x = torch.ones(1)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)


def prepare(done):
    while not os.path.exists(done):
        time.sleep(0.1)


def test_a_groups_own_timeout_names_the_slow_rank_and_its_line(tmp_path):
    def slow(rank, world_size):
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank == 1:
            prepare(tmp_path / "never")
        dist.all_reduce(torch.ones(1), group=group)

    report = report_of(slow, 2, spawn)
    assert "Rank 0 waited in all_reduce for 1 s, the time-out of the group of ranks 0 and 1" in report
    assert "Rank 1 had not called it: rank 1 was at" in report and "in prepare" not in report.split("\n")[0]


@kind("rank 0 called barrier (in thread `saver`)", "Two threads of a rank come in any order", worlds=REAL)
def a_thread_that_communicates(rank, world_size):
    if rank == 0:
        thread = threading.Thread(target=lambda: dist.barrier(async_op=True), name="saver")
        thread.start()
        thread.join()
    dist.all_reduce(torch.ones(1))


class Communicates(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return average(torch.ones(1))


@kind("worker 0 of this rank's DataLoader called all_reduce", worlds=REAL)
def a_worker_that_communicates(rank, world_size):
    for _ in DataLoader(Communicates(), num_workers=1):
        pass


# --- what must not be said


def test_the_branches_of_one_if_are_no_parting():
    def taking_turns(rank, world_size):
        for turn in range(4):
            if turn % 2 == rank:
                dist.broadcast(torch.ones(1), src=turn % 2)
            else:
                dist.broadcast(torch.zeros(1), src=turn % 2)
        if rank == 0:
            dist.barrier()

    for world in (spawn, simulate):
        assert "parted" not in report_of(taking_turns, 2, world)


def test_what_holds_up_a_rank_that_is_in_no_call(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("while path in saved:\n    path = other(path)\nstore.wait([key])\n")
    states = [RankState(0), RankState(1)]
    runs, _ = describe_ranks(states, {0: f"{file}:2", 1: f"{file}:3"}, idle=[1])
    assert runs.endswith("path = other(path)  (in the loop `while path in saved` of line 1)")
    assert "the store that nobody has set" in what_idle_ranks_wait_for(states, [1], {1: f"{file}:3"})


def test_a_parameter_without_memory_is_no_obstacle():
    def deferred(rank, world_size):
        with torch.device("meta"):
            model = nn.Linear(2, 2)
        dist.all_reduce(torch.ones(2))
        return model.weight.is_meta

    assert spawn(deferred, 2).results == [True, True]


def test_what_surrounds_a_line(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        "def f(xs, rank):\n"
        "    if not xs:\n"
        "        return\n"
        "    for x in xs:\n"
        "        try:\n"
        "            g(x)\n"
        "        except OSError:\n"
        "            if rank == 0:\n"
        "                a()\n"
        "            else:\n"
        "                b()\n"
    )
    place = place_of(f"{file}:11")
    assert (place.function, [d.kind for d in place.decisions]) == ("f", ["exit", "loop", "except", "else"])
    assert [d.text for d in place.decisions] == ["if not xs", "for x in xs", "except OSError", "if rank == 0"]
    assert place.decisions[0].names == ("xs",) and place.decisions[3].is_about_rank
    assert place_of("").decisions == place_of("/nowhere.py:3").decisions == ()
