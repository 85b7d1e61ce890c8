"""`simulate(..., alike=...)`: with one rank of each kind, a run is what it is with all of them."""

import json
import random
import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.bench.virtual_speed import ddp, fsdp2, grid
from utils import RankFailed, WorldStuck, region, simulate
from utils.cluster import Cluster, Gpu, Jitter, Link
from utils.worlds.virtual import kinds

NODES_OF_8 = {"gpu": Gpu({"bf16": 1e15, "fp32": 1e14}, 80e9, 3e12, 4e-6), "intra": Link(2e-6, 4e11)}


def small_cluster(gpus_per_node, **options):
    return Cluster("small", nodes=16, gpus_per_node=gpus_per_node, inter=Link(5e-6, 5e10), **NODES_OF_8, **options)


def all_gather(x, group):
    dist.all_gather_into_tensor(torch.empty(x.numel() * dist.get_world_size(group)), x.flatten(), group=group)


def reduce_scatter(x, group):
    dist.reduce_scatter_tensor(torch.empty(x.numel() // dist.get_world_size(group)), x.flatten(), group=group)


def all_to_all(x, group):
    dist.all_to_all_single(torch.empty_like(x), x, group=group)


def integers(x, group):
    """With device="meta", those that a program makes itself have values."""
    counts, mine = torch.zeros(dist.get_world_size(group), dtype=torch.int64), torch.tensor([len(x) + 7])
    dist.all_gather_into_tensor(counts, mine, group=group)
    dist.all_reduce(mine, group=group)
    return counts.tolist(), mine.item()


def objects(x, group):
    said = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, {"rows": len(x)}, group=group)
    return said


CALLS = [
    all_gather,
    reduce_scatter,
    all_to_all,
    integers,
    objects,
    lambda x, group: dist.all_reduce(x, group=group),
    lambda x, group: dist.all_reduce(torch.empty(len(x)), group=group, async_op=True),
    lambda x, group: dist.broadcast(x, group_src=0, group=group),
    lambda x, group: dist.barrier(group=group),
]


def random_grid(rank, world_size, seed, tensor, pipeline):
    """A pipeline whose stages call collectives of all kinds along the other two axes, in an order drawn from `seed`."""
    chance, data = random.Random(seed), world_size // (tensor * pipeline)
    mesh = init_device_mesh("cpu", (pipeline, data, tensor), mesh_dim_names=("pp", "dp", "tp"))
    stage, distance, learned, handles = rank // (data * tensor), data * tensor, [], []
    for _ in range(6):
        x = torch.empty(chance.choice([1, 64, 4096]) * data * tensor, 4)
        if stage:
            dist.recv(x, rank - distance)
        with region("compute"):
            for _ in range(chance.randrange(3)):
                x = torch.nn.functional.gelu(x * 2)
        said = chance.choice(CALLS)(x, mesh.get_group(chance.choice(["dp", "tp"])))
        if isinstance(said, dist.Work):
            handles.append(said)
        else:
            learned.append(said)
        if stage < pipeline - 1:
            handles.append(dist.isend(x, rank + distance))
    for handle in handles:
        handle.wait()
    return learned


def wrapped(rank, world_size):
    """torch's DDP, with an optimizer."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512),) * 3))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.empty(16, 512)).sum().backward()
        optimizer.step()


def hybrid(rank, world_size):
    """FSDP2 inside a node, replicas between nodes."""
    mesh = init_device_mesh("cpu", (world_size // 8, 8), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(torch.nn.Linear(512, 512), mesh=mesh)
    model(torch.empty(16, 512)).sum().backward()


def by_stage(stages, world_size):
    return lambda rank: rank // (world_size // stages)


def assert_equal_runs(whole, some):
    """All that `some`, a run of one rank of each kind, says of a rank or of the whole is what `whole` says."""
    ran = set(some.runs_as)
    assert some.elapsed == whole.elapsed
    assert some.events == [event for event in whole.events if event.rank in ran]
    assert some.regions == [span for span in whole.regions if span.rank in ran]
    assert some.results == whole.results
    assert some.computed == whole.computed
    assert all(some.memory().samples[rank] == whole.memory().samples[rank] for rank in ran)
    assert sorted(map(repr, some.costs().charges)) == sorted(map(repr, whole.costs().charges))
    mine, its = some.breakdown(), whole.breakdown()
    assert (mine.parts, mine.mean, mine.hfu) == (its.parts, its.mean, its.hfu)
    assert repr(mine) == repr(its)


@pytest.mark.parametrize("rates", ["datasheet", "achieved"])
@pytest.mark.parametrize(
    ("program", "size", "args", "stages"),
    [(ddp, 32, (), 1), (wrapped, 16, (), 1), (fsdp2, 16, (), 1), (hybrid, 16, (), 1), (grid, 32, (4, 4, 6), 4)],
)
def test_a_run_of_one_rank_of_each_kind_is_that_of_all(program, size, args, stages, rates):
    whole = simulate(program, size, *args, rates=rates)
    some = simulate(program, size, *args, rates=rates, alike=by_stage(stages, size))
    assert len(set(some.runs_as)) == stages
    assert_equal_runs(whole, some)


@pytest.mark.parametrize("rates", ["datasheet", "achieved"])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 60))])
def test_so_is_that_of_any_program(seed, rates):
    chance = random.Random(seed)
    tensor, pipeline, data = chance.choice([2, 4, 8]), chance.choice([1, 2, 3]), chance.choice([2, 4])
    size, args = tensor * pipeline * data, (seed, tensor, pipeline)
    whole = simulate(random_grid, size, *args, rates=rates)
    assert_equal_runs(whole, simulate(random_grid, size, *args, rates=rates, alike=by_stage(pipeline, size)))
    finer = simulate(random_grid, size, *args, rates=rates, alike=lambda rank: rank // (size // pipeline // 2))
    assert_equal_runs(whole, finer)


def talkative(rank, world_size, program, *args):
    """`program`, after which a remark is always worth its line."""
    kinds.WORTH_A_REMARK = 0
    return program(rank, world_size, *args)


def suggested(capsys):
    """The function of a rank that the remark names, as text; None if there was no remark."""
    found = re.search(r"With alike=(lambda rank: .*), simulate", capsys.readouterr().out)
    return found and found[1]


def uneven(rank, world_size, slow):
    """A reduction among all, for which some compute longer."""
    x = torch.empty(1000 + 10**6 * slow(rank))
    x.add_(1)
    dist.all_reduce(x[:1000])


@pytest.mark.parametrize(
    ("program", "size", "args", "kind"),
    [
        (ddp, 16, (), "0"),
        (fsdp2, 8, (), "0"),
        (grid, 64, (4, 4, 6), "rank // 16"),
        (uneven, 32, (lambda rank: rank % 4,), "rank % 4"),
        (uneven, 48, (lambda rank: rank // 4 % 3,), "rank // 4 % 3"),
        (uneven, 64, (lambda rank: (rank % 2) * (rank // 16),), "(rank // 16, rank % 2)"),
        (uneven, 64, (lambda rank: rank == 40,), None),
        (uneven, 64, (lambda rank: (rank * rank) % 7,), None),
    ],
)
def test_after_a_run_of_all_ranks_a_remark_says_which_are_alike(capsys, program, size, args, kind):
    whole = simulate(talkative, size, program, *args)
    text = suggested(capsys)
    assert text == (kind and f"lambda rank: {kind}")
    if text:
        assert_equal_runs(whole, simulate(talkative, size, program, *args, alike=eval(text)))
        assert suggested(capsys) is None


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(4, 60))]
)
def test_what_the_remark_says_is_true_of_any_program(capsys, seed):
    chance = random.Random(seed)
    tensor, pipeline, data = chance.choice([2, 4, 8]), chance.choice([1, 2, 3]), chance.choice([2, 4])
    size, args = tensor * pipeline * data, (random_grid, seed, tensor, pipeline)
    whole = simulate(talkative, size, *args)
    if text := suggested(capsys):
        assert_equal_runs(whole, simulate(talkative, size, *args, alike=eval(text)))


def test_a_small_run_earns_no_remark(capsys):
    simulate(ddp, 16)
    assert suggested(capsys) is None


def test_its_pictures_and_its_trace_show_whom_each_lane_stands_for(tmp_path):
    run = simulate(grid, 256, 8, 4, 4, alike=by_stage(4, 256))
    assert repr(run).startswith("Run(256 ranks, of which 4 ran, virtual, ")
    assert [lane.name for lane in run.timeline().lanes] == [
        "ranks 0-63",
        "ranks 64-127",
        "ranks 128-191",
        "ranks 192-255",
    ]
    run.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {entry["pid"] for entry in trace} == {0, 64, 128, 192}
    with pytest.raises(ValueError, match="to whom the others would have sent"):
        run.traffic()


def test_thousands_of_gpus_are_a_matter_of_seconds():
    run = simulate(grid, 4096, 8, 16, 4, alike=by_stage(16, 4096))
    assert run.world_size == len(run.results) == len(run.breakdown().parts) == 4096
    assert sum(charge.times for charge in run.costs().charges if charge.layout.size == 8) == 512 * 4 * 2 - 32 * 4


# ---- refusals


def send_around(rank, world_size):
    dist.isend(torch.empty(4), (rank + 1) % world_size)
    dist.recv(torch.empty(4), (rank - 1) % world_size)


def pairs(rank, world_size):
    groups = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)]
    dist.all_reduce(torch.empty(4), group=groups[rank // 2])


def threes(rank, world_size):
    groups = [dist.new_group(list(range(first, first + 3))) for first in range(0, world_size, 3)]
    dist.all_reduce(torch.empty(4), group=groups[rank // 3])


def from_another_root(rank, world_size):
    dist.broadcast(torch.empty(4), src=1)


def stop_one(rank, world_size):
    if rank < world_size // 2:
        dist.all_reduce(torch.empty(4))


def two_kinds_of_calls(rank, world_size):
    if rank < world_size // 2:
        dist.all_reduce(torch.empty(4))
    else:
        dist.all_reduce(torch.empty(4), op=dist.ReduceOp.MAX)


def uneven(rank, world_size):
    """All-to-all in which each rank sends more to ranks of higher numbers: no two ranks do the same."""
    rows = [1 + other for other in range(world_size)]
    dist.all_to_all_single(torch.empty(world_size * (1 + rank)), torch.empty(sum(rows)), [1 + rank] * world_size, rows)


def start_again(rank, world_size):
    dist.destroy_process_group()
    dist.init_process_group("gloo")


@pytest.mark.parametrize(
    ("program", "size", "kind", "words"),
    [
        (send_around, 4, lambda rank: 0, "rank 0 sends to rank 1, which doesn't run: `alike` says it does what rank 0"),
        (from_another_root, 4, lambda rank: 0, "rank 1, the root of broadcast, doesn't run"),
        (pairs, 6, lambda rank: rank in (2, 4), "A rank that doesn't run needs one of its kind"),
        (pairs, 8, lambda rank: rank in (1, 4, 6), "there are not as many groups of one as of the other"),
        (
            threes,
            12,
            lambda rank: 0,
            "would do the same, but the first is on 1 node with 3 ranks each, the second on 2",
        ),
        (uneven, 4, lambda rank: 0, "rank 0 sends 2 elements to rank 0, which expects 1 from it"),
        (start_again, 4, lambda rank: 0, "can't make another default group"),
    ],
)
def test_ranks_for_which_nobody_can_stand_are_named(program, size, kind, words):
    with pytest.raises(RankFailed) as failed:
        simulate(program, size, alike=kind, cluster=small_cluster(4))
    assert words in str(failed.value)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"alike": 3}, TypeError, "alike is 3; it must be a function of a rank"),
        ({"alike": lambda rank: [rank]}, TypeError, "must take a rank and return a number"),
        ({"alike": lambda: 0}, TypeError, "must take a rank and return a number"),
        ({"device": "cpu"}, ValueError, 'alike= needs device="meta"'),
        ({"jitter": Jitter(1, launch=1e-6)}, ValueError, "exclude each other"),
    ],
)
def test_what_does_not_go_together_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        simulate(ddp, 8, **({"alike": lambda rank: 0} | options))


def neighbours(rank, world_size):
    if rank in (0, 4):
        (dist.send if rank == 0 else dist.recv)(torch.empty(4), 4 - rank)


def test_ranks_that_share_a_network_card_can_stand_for_others_only_within_their_group():
    shared = small_cluster(4, nics=2)
    for program in (ddp, wrapped):
        whole = simulate(program, 16, cluster=shared)
        assert_equal_runs(whole, simulate(program, 16, cluster=shared, alike=lambda rank: 0))
    for program, kind in ((grid, lambda rank: rank // 4), (neighbours, lambda rank: rank if rank in (0, 4) else -1)):
        with pytest.raises(RankFailed, match="shares a network card with rank .*, which isn't in the same group"):
            simulate(program, 16, *((2, 4, 4) if program is grid else ()), cluster=shared, alike=kind)


def test_reports_name_only_ranks_that_run():
    with pytest.raises(WorldStuck) as stuck:
        simulate(stop_one, 8, alike=by_stage(2, 8))
    assert "rank 4  has finished" in str(stuck.value)
    assert "rank 0  waits in all_reduce" in str(stuck.value)
    assert "1" not in str(stuck.value).replace("line 1", "")
    with pytest.raises(WorldStuck, match="rank 0 asked for sum, rank 4 asked for max"):
        simulate(two_kinds_of_calls, 8, alike=by_stage(2, 8))
