"""torch's own wrappers on a virtual cluster: the same calls and gradients as on real ranks, in a GPU's time."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from tests.bench import parallelisms
from utils import RankFailed, region, simulate, spawn
from utils.cluster import Cluster, Gpu, Link

pytestmark = pytest.mark.long

WIDTH = 64


def mlp(layers=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))


def train(model, rank, steps=2, optimizer=torch.optim.SGD):
    """Different data on every rank; returns the gradients of the last step."""
    optimizer = optimizer(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().sum().backward()
        optimizer.step()
    return gradients(model)


def gradients(model):
    return [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]


def ddp(rank, world_size):
    small_buckets = {"bucket_cap_mb": WIDTH * WIDTH * 4 / 2**20}

    def data_parallel(**more):
        return DistributedDataParallel(mlp(seed=rank), **small_buckets, **more)

    got = [
        train(data_parallel(**more), rank) for more in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True})
    ]
    hooked = data_parallel()
    hooked.register_comm_hook(None, fp16_compress_hook)
    got.append(train(hooked, rank))

    accumulating = data_parallel()
    x = torch.full((2, WIDTH), float(rank))
    with accumulating.no_sync():
        accumulating(x).sum().backward()
    accumulating(x).sum().backward()
    got.append(gradients(accumulating))

    class OneOfTwo(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = mlp(2)

        def forward(self, x):
            return self.two[rank % 2](x)

    partly_used = DistributedDataParallel(OneOfTwo(), find_unused_parameters=True)
    got.append(train(partly_used, rank))

    uneven = data_parallel()
    if torch.empty(1).is_meta:  # join needs to know how many ranks are left
        return got
    with uneven.join():
        for _ in range(1 + rank % 2):
            uneven(x).sum().backward()
    return [*got, gradients(uneven)]


def zero_optimizer(rank, world_size):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # it warns about its own imports

    model = DistributedDataParallel(mlp())
    train(
        model, rank, optimizer=lambda *args, **kw: ZeroRedundancyOptimizer(*args, torch.optim.SGD, momentum=0.9, **kw)
    )
    return [p.detach() for p in model.parameters()]


def fsdp(rank, world_size):
    flat = init_device_mesh("cpu", (world_size,))
    two_dimensional = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))

    def sharded(mesh=flat, **policy):
        model = mlp()
        for layer in model:
            fully_shard(layer, mesh=mesh, **policy)
        return fully_shard(model, mesh=mesh, **policy)

    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    got = [train(sharded(), rank), train(sharded(two_dimensional), rank), train(sharded(mp_policy=mixed), rank)]
    clipped = sharded(reshard_after_forward=False)
    clipped(torch.ones(2, WIDTH)).sum().backward()
    nn.utils.clip_grad_norm_(clipped.parameters(), 1.0)
    return [*got, gradients(clipped), [p.full_tensor().detach() for p in clipped.parameters()]]


def tensor_parallel(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    x, labels = torch.ones(8, WIDTH).cumsum(0).div(WIDTH), torch.arange(8)

    columns_then_rows = mlp(2)
    parallelize_module(columns_then_rows, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    columns_then_rows(x).square().sum().backward()

    sequence = nn.Sequential(nn.LayerNorm(WIDTH), *mlp(2))
    layers = [SequenceParallel(sequence_dim=0), ColwiseParallel(input_layouts=Shard(0))]
    layers.append(RowwiseParallel(output_layouts=Shard(0)))
    parallelize_module(sequence, mesh, dict(zip("012", layers, strict=True)))
    sequence(distribute_tensor(x, mesh, [Shard(0)])).square().sum().backward()

    head = mlp(1)
    parallelize_module(head, mesh, {"0": ColwiseParallel(use_local_output=False)})
    with loss_parallel():
        nn.functional.cross_entropy(head(x), labels).backward()

    words = nn.Embedding(WIDTH, 16, _weight=torch.ones(WIDTH, 16))
    parallelize_module(words, mesh, RowwiseParallel(input_layouts=Replicate()))
    words(labels).sum().backward()

    total = DTensor.from_local(x * rank, mesh, [Partial()])
    rows = total.redistribute(mesh, [Shard(0)])
    tensors = [rows, rows.redistribute(mesh, [Shard(1)]), total.redistribute(mesh, [Replicate()])]
    models = (columns_then_rows, sequence, head, words)
    return [gradients(model) for model in models], [tensor.to_local() for tensor in tensors]


def pipelines(rank, world_size):
    def run(kind, stages_each=1):
        numbers = range(rank, stages_each * world_size, world_size)
        modules = [mlp(1, seed=number) for number in numbers]
        stages = [
            pipelining.PipelineStage(module, number, stages_each * world_size, torch.device("cpu"))
            for module, number in zip(modules, numbers, strict=True)
        ]
        schedule = kind(stages if stages_each > 1 else stages[0], n_microbatches=4, loss_fn=nn.functional.mse_loss)
        x = torch.ones(8, WIDTH).cumsum(0).div(WIDTH)
        for _ in range(2):
            schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == world_size - 1 else {}))
        return [gradients(module) for module in modules]

    return [
        run(pipelining.ScheduleGPipe),
        run(pipelining.Schedule1F1B),
        run(pipelining.ScheduleInterleaved1F1B, stages_each=2),
    ]


def groups_and_objects(rank, world_size):
    half, last = world_size // 2, world_size - 1
    grid = init_device_mesh("cpu", (2, half), mesh_dim_names=("rows", "columns"))
    pair, _ = dist.new_subgroups(2)
    reversed_ranks = dist.new_group(list(range(world_size))[::-1])
    got = [grid.get_coordinate(), dist.get_rank(pair), dist.get_rank(reversed_ranks)]
    for group in (grid["rows"].get_group(), grid["columns"].get_group(), pair, reversed_ranks):
        x = torch.full((3,), float(rank))
        dist.all_reduce(x, group=group)
        got.append(x)
    shares = [torch.empty(1) for _ in range(world_size)]
    dist.all_gather(shares, torch.tensor([float(rank)]), group=reversed_ranks)

    words = ["from 0", {"a": 1}] if rank == 0 else [None, None]
    dist.broadcast_object_list(words, src=0)
    objects = [None] * world_size
    dist.all_gather_object(objects, "x" * rank)
    gathered = [None] * world_size if rank == last else None
    dist.gather_object(rank, gathered, dst=last)

    rows = torch.arange(2.0 * world_size).view(world_size, 2) + rank
    uneven = torch.empty(world_size * (rank + 1), 2)
    sizes = [1 + other for other in range(world_size)]
    dist.all_to_all_single(uneven, rows.repeat_interleave(torch.tensor(sizes), 0), [rank + 1] * world_size, sizes)
    one, other = torch.ones(2) * rank, torch.ones(3) * rank
    with dist._coalescing_manager():
        dist.all_reduce(one)
        dist.all_reduce(other)
    gather_rows = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor  # torch 2.13's names
    scatter_rows = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor
    new = [functional.all_reduce(rows, "sum", grid["rows"]), gather_rows(rows, 0, grid["columns"])]
    new.append(scatter_rows(rows, "avg", 0, dist.group.WORLD))
    dist.monitored_barrier()
    return [*got, *shares, words, objects, gathered, uneven, one, other, *(tensor + 0 for tensor in new)]


def what(event):
    """What a call has in common on real and virtual ranks: everything but times and torch's names of groups."""
    group = "world" if event.group == "world" else "a group"
    call = event.op, group, event.members, event.peer, event.tag, event.reduce_op, event.is_async, event.where
    return event.rank, event.index, *call, event.bytes, event.dtype, event.shape


def assert_alike(got, expected, exactly):
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(ours, torch.Tensor):
            same = torch.equal(ours, theirs) if exactly else torch.allclose(ours, theirs, rtol=1e-2, atol=2e-3)
            assert same, (ours, theirs)
        else:
            assert ours == theirs


@pytest.mark.parametrize("program", [ddp, fsdp, tensor_parallel, pipelines, groups_and_objects, zero_optimizer])
def test_wrappers_make_the_same_calls_and_gradients_as_on_real_ranks(program):
    """Gloo adds in a different order from ours, which shows with more than two numbers."""
    for world_size in (2,) if program is zero_optimizer else (2, 4):
        real, virtual = spawn(program, world_size), simulate(program, world_size, device="cpu")
        assert [what(event) for event in virtual.events] == [what(event) for event in real.events]
        assert_alike(tree_leaves(virtual.results), tree_leaves(real.results), exactly=world_size == 2)
    sizes_only = [what(event) for event in simulate(program, world_size).events]
    expected = [what(event) for event in real.events]
    if program is ddp:  # join, which comes last, needs values
        done = len(sizes_only) // world_size
        expected = [row for row in expected if row[1] < done]
    assert sizes_only == expected


# --- their time and memory, exactly: a matrix product takes one second, and nothing else takes any

ROWS = 8
GPU = Gpu(flops={"fp32": 2 * ROWS * WIDTH * WIDTH}, memory=math.inf, bandwidth=math.inf, launch=0.0)


def cluster(bandwidth):
    return Cluster("exact", 1, 4, GPU, Link(0.0, bandwidth), Link(0.0, bandwidth))


def took(run, name):
    spans = [r for r in run.regions if r.name == name]
    return max(r.end for r in spans) - min(r.start for r in spans)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_ddp_reduces_a_bucket_while_it_computes_the_gradients_of_the_next(device):
    nbytes = WIDTH * WIDTH * 4

    def program(rank, world_size):
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
        model = DistributedDataParallel(layers, bucket_cap_mb=nbytes / 2**20)
        for step in ("all in one bucket", "makes the buckets", "a bucket each"):
            with region(step):
                model(torch.ones(ROWS, WIDTH)).sum().backward()

    ring = 2 * 3 / 4 * nbytes
    run = simulate(program, 4, cluster=cluster(ring / 3), device=device)  # reducing a layer's gradients takes 3 s
    assert took(run, "all in one bucket") == pytest.approx(3 + 5 + 3 * 3)  # the first layer's input has no gradient
    assert took(run, "a bucket each") == pytest.approx(3 + 2 + 3 * 3)  # the first is ready after 2 s, then one by one
    start = run.regions[2].start + 3
    last = [(e.start - start, e.waited - start, e.end - start) for e in run.events if e.rank == 0][-3:]
    assert last == [pytest.approx(row) for row in [(2, 5, 5), (4, 5, 8), (5, 8, 11)]]


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_torchs_pipelines_have_the_bubble_of_the_textbooks(schedule):
    microbatches, stages = 8, 4

    def program(rank, world_size):
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)))
        stage = pipelining.PipelineStage(module, rank, world_size, torch.device("cpu"))
        steps = getattr(pipelining, schedule)(stage, microbatches, loss_fn=lambda y, target: y.sum())
        x = torch.ones(ROWS * microbatches, WIDTH)
        for step in ("learns the shapes", "step"):
            dist.barrier()
            with region(step):
                steps.step(*([x] if rank == 0 else []), **({"target": x} if rank == world_size - 1 else {}))

    run = simulate(program, stages, cluster=cluster(math.inf))
    forward, backward, backward_of_the_first_stage = 2, 4, 3
    slots = microbatches + stages - 1
    assert took(run, "step") == pytest.approx(slots * forward + (slots - 1) * backward + backward_of_the_first_stage)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fsdp_holds_the_shards_of_all_layers_and_one_whole_layer(device):
    def program(rank, world_size, layers, reshard):
        model = mlp(layers)
        for layer in model:
            fully_shard(layer, mesh=init_device_mesh("cpu", (world_size,)), reshard_after_forward=reshard)
        before = torch.ones(ROWS, WIDTH)
        with torch.no_grad(), region("forward"):
            model(before)

    def most(layers, reshard):
        run = simulate(program, 4, layers, reshard, cluster=cluster(math.inf), device=device)
        return max(live for seconds, live in run.memory().at[0] if seconds > 0)  # the first layer has computed

    layer = (WIDTH * WIDTH + WIDTH) * 4  # bytes
    assert most(6, reshard=True) - most(3, reshard=True) == pytest.approx(3 * layer / 4, rel=0.01)
    assert most(6, reshard=False) - most(3, reshard=False) == pytest.approx(3 * layer / 4 + 3 * layer, rel=0.01)


# --- what can't work


def join_without_values(rank, world_size):
    model = DistributedDataParallel(mlp(1))
    with model.join():
        model(torch.ones(1, WIDTH)).sum().backward()


def loss_in_a_sentence(rank, world_size):
    print(f"loss {mlp(1)(torch.ones(1, WIDTH)).mean():.2f}")


def too_short_a_list(rank, world_size):
    dist.all_gather([torch.empty(1)], torch.ones(1))


def too_small_an_output(rank, world_size):
    all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    all_gather_single(torch.empty(3), torch.ones(2))


def an_output_of_another_dtype(rank, world_size):
    all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    all_gather_single(torch.empty(4, dtype=torch.float64), torch.ones(2))


def bits_of_floats(rank, world_size):
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)


def more_than_expected(rank, world_size):
    sizes = [2, 2] if rank == 0 else [1, 3]
    dist.all_to_all_single(torch.empty(4), torch.ones(4), [1, 3] if rank == 0 else [2, 2], sizes)


def nobody_sets_it(rank, world_size):
    dist.distributed_c10d._get_default_store().get(f"key of {1 - rank}")


@pytest.mark.parametrize(
    "program, words",
    [
        (join_without_values, r"\.item\(\) needs the values of a tensor, and on device='meta' tensors have sizes only"),
        (loss_in_a_sentence, r"It needs the values of a tensor"),
        (too_short_a_list, r"all_gather on 2 ranks needs a list of 2 tensors, one per rank; it got 1"),
        (too_small_an_output, r"shapes \[3\] and \[2\]: the one for all ranks must have 2 times as many elements"),
        (
            an_output_of_another_dtype,
            "invalid tensor type: .* all ranks is torch.float64, .* single rank is torch.float32",
        ),
        (bits_of_floats, r"all_reduce can't take the BAND of float32"),
        (more_than_expected, r"rank 0 sends 2 elements to rank 0, which expects 1 from it"),
        (nobody_sets_it, r"rank 0 waits for \['key of 1'\] in the store, and no rank sets them"),
    ],
)
def test_what_cannot_work_is_explained(program, words):
    with pytest.raises(RankFailed, match=words):
        simulate(program, 2)


def test_models_that_differ_are_refused_in_torchs_words():
    def differ(rank, world_size):
        DistributedDataParallel(nn.Linear(4, 4 + rank))

    def more(rank, world_size):
        DistributedDataParallel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(1 + rank))))

    with pytest.raises(RuntimeError, match=r"params\[0\] in this process with sizes \[5, 4\] appears not to match"):
        simulate(differ, 2)
    with pytest.raises(RuntimeError, match="Rank 0 has 2 params, while rank 1 has inconsistent 4 params"):
        simulate(more, 2)


@pytest.mark.parametrize("kind, world_size", [("ddp", 64), ("fsdp2", 64), ("tensor_parallel", 16), ("pipelining", 64)])
def test_many_ranks(kind, world_size):
    run = simulate(getattr(parallelisms, kind), world_size)
    assert {event.rank for event in run.events} == set(range(world_size))


def test_a_reduction_called_on_the_group_itself_without_options_is_a_sum():
    def total(rank, world_size):
        x = torch.full((2,), 1.0 + rank)
        dist.group.WORLD.allreduce([x]).wait()
        return x

    assert simulate(total, 2, device="cpu").results[0].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_checkpoint_of_another_dtype_is_loaded(device, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(4, 2).bfloat16().state_dict(), path)

    def program(rank, world_size):
        copied, taken = nn.Linear(4, 2), nn.Linear(4, 2)
        copied.load_state_dict(torch.load(path, map_location="cpu"))
        taken.load_state_dict(torch.load(path), assign=True)
        return [(str(linear.weight.dtype), linear.weight.device.type) for linear in (copied, taken)]

    results = simulate(program, 2, device=device).results
    assert results == [[("torch.float32", device), ("torch.bfloat16", device)]] * 2
