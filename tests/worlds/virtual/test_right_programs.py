"""Programs that are right on real ranks give the same on virtual ones: values, errors, and what is recorded."""

import itertools
import math
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from utils import RankFailed, simulate, spawn

virtual = partial(simulate, device="cpu")
both = pytest.mark.parametrize("world", [spawn, virtual], ids=["spawn", "simulate"])


def sharded_step(rank, world_size, twice=False):
    """A sharded optimizer's: each rank changes its rows of a parameter in place, then all gather them."""
    weight = nn.Parameter(torch.arange(8.0).view(4, 2))
    (weight * weight).sum().backward()
    with torch.no_grad():
        mine = weight[2 * rank : 2 * rank + 2]
        rows = mine.view(-1)
        mine.mul_(0.5)
        mine.add_(1.0)
        rows.clamp_(max=3.0)
        dist.all_reduce(weight.grad)  # its recorder looks at all tensors of the process, also at such views
        mine.sub_(weight.grad[2 * rank : 2 * rank + 2], alpha=0.1)
        dist.all_gather_into_tensor(weight, mine)
    (weight @ weight.t()).sum().backward()  # it still is a parameter
    return weight.detach().clone(), weight.grad.clone()


def test_a_view_of_a_parameter_may_be_changed_in_place_again_and_again():
    for real, ours in zip(spawn(sharded_step, 2).results, virtual(sharded_step, 2).results, strict=True):
        for one, other in zip(real, ours, strict=True):
            assert torch.equal(one, other)


def test_a_view_of_a_parameter_without_values_may_be_changed_in_place():
    def program(rank, world_size):
        weight = nn.Parameter(torch.ones(4, 2))
        with torch.no_grad():
            half = weight[:2]
            half.mul_(0.9)
            half.add_(1.0)
        weight.sum().backward()
        return tuple(weight.grad.shape)

    run = simulate(program, 2)
    assert run.results == [(4, 2)] * 2


LAYOUTS = {
    "transposed": lambda rows: torch.zeros(3, rows).t(),
    "with gaps": lambda rows: torch.zeros(rows, 6)[:, ::2],
    "columns": lambda rows: torch.zeros(rows, 5)[:, 1:4],
}


def numbers(make, rows, rank):
    tensor = make(rows)
    return tensor.copy_(torch.arange(3.0 * rows).view(rows, 3) + 100 * rank)


def plain(rows):
    return torch.zeros(rows, 3)


def every_output(rank, world_size):
    """What each collective writes into outputs of each layout, from inputs of the same one and from plain ones."""
    got = []
    for make in LAYOUTS.values():
        for source in (make, plain):
            whole, part = make(2 * world_size), make(2)
            dist.all_gather_into_tensor(whole, numbers(source, 2, rank))
            dist.reduce_scatter_tensor(part, numbers(source, 2 * world_size, rank))
            parts = [make(2) for _ in range(world_size)]
            dist.all_gather(parts, numbers(source, 2, rank))
            got += [whole.clone(), part.clone(), *(one.clone() for one in parts)]
            dist.all_to_all(parts, [numbers(source, 2, 10 * rank + to) for to in range(world_size)])
            got += [one.clone() for one in parts]
            if rank == 0:
                dist.gather(numbers(source, 2, rank), parts)
            else:
                dist.gather(numbers(source, 2, rank))
            got += [one.clone() for one in parts]
            wholes = [make(2 * world_size), make(world_size)]
            with dist.distributed_c10d._coalescing_manager():
                for into in wholes:
                    dist.all_gather_into_tensor(into, numbers(source, len(into) // world_size, rank))
            got += [one.clone() for one in wholes]
    return got


def test_outputs_of_any_layout_hold_what_gloo_writes():
    """A transposed output held zeros, in silence; one with gaps broke the virtual cluster itself."""
    for real, ours in zip(spawn(every_output, 2).results, virtual(every_output, 2).results, strict=True):
        for one, other in zip(real, ours, strict=True):
            assert torch.equal(one, other)


@both
def test_a_tensor_whose_layout_is_refused_raises(world):
    def program(rank, world_size):
        refused = {
            "contiguous": [
                lambda: dist.recv(torch.zeros(3, 2)[:, 0], 1 - rank),
                lambda: dist.all_to_all_single(torch.zeros(2, 3), torch.zeros(3, 2).t()),
            ],
            "more than one element of the": [
                lambda: dist.all_gather_into_tensor(torch.zeros(1, 3).expand(4, 3), torch.zeros(2, 3))
            ],
        }
        for words, calls in refused.items():
            for call in calls:
                with pytest.raises((RuntimeError, ValueError), match=words):
                    call()

    world(program, 2)


def exchanged(rank, world_size, device):
    mesh = init_device_mesh(device, (world_size,))
    rows = DTensor.from_local(torch.arange(16.0).view(2, 8) + 100 * rank, mesh, [Shard(0)])
    return rows.redistribute(placements=[Shard(1)]).to_local()


def calls_of(run):
    return [(event.op, event.bytes) for event in run.events if event.rank == 0 and event.op != "barrier"]


def test_dtensors_all_to_all_is_recorded_and_takes_time_without_values_too():
    with_values, sizes = virtual(exchanged, 4, "cuda"), simulate(exchanged, 4, "cuda")
    assert calls_of(with_values) == calls_of(sizes) == [("all_to_all", 64)]
    assert sizes.elapsed == with_values.elapsed > 0
    for real, ours in zip(spawn(exchanged, 4, "cpu").results, with_values.results, strict=True):
        assert torch.equal(real, ours)
    assert sizes.traffic().remark == ""


@both
def test_the_traffic_says_where_dtensor_gathers_instead_of_an_all_to_all(world):
    traffic = world(exchanged, 4, "cpu").traffic()
    assert "4 of these all-gathers (" in traffic.remark and "4 times the bytes" in traffic.remark
    assert traffic.remark in repr(traffic)


OPERATORS = {  # name: what it calls on the network
    "_dtensor.shard_dim_alltoall": "all_to_all",
    "_c10d_functional_autograd.all_gather_into_tensor": "all_gather",
    "_c10d_functional.all_gather_into_tensor_out": "all_gather",
    "_c10d_functional.broadcast": "broadcast",
    "c10d_functional.all_reduce": "all_reduce",
    "symm_mem.fused_all_gather_matmul": "all_gather",
    "symm_mem.fused_matmul_reduce_scatter": "reduce_scatter",
    "symm_mem.one_shot_all_reduce": "all_reduce",
    "symm_mem.two_shot_all_reduce_": "all_reduce",
    "symm_mem.multimem_all_gather_out": "all_gather",
    "symm_mem._low_contention_reduce_scatter": "reduce_scatter",
}


def operator(rank, world_size, name):
    import torch.distributed._symmetric_memory  # defines operators

    x, group = torch.arange(16.0).view(4, 4) + 100 * rank, dist.group.WORLD.group_name
    namespace, name = name.split(".")
    call = getattr(getattr(torch.ops, namespace), name)
    wait, whole = torch.ops._c10d_functional.wait_tensor, torch.empty(4 * world_size, 4)
    match name:
        case "shard_dim_alltoall":
            return call(x, 0, 1, group)
        case "all_gather_into_tensor":
            return wait(call(x, world_size, group))
        case "all_gather_into_tensor_out":
            return wait(call(x, world_size, group, out=whole))
        case "broadcast":
            return wait(call(x, 0, group))
        case "all_reduce":
            return wait(call(x, "sum", "", [*range(world_size)], world_size))
        case "fused_all_gather_matmul":
            return call(x, [torch.ones(4, 2)], 0, group)[1][0]
        case "fused_matmul_reduce_scatter":
            return call(x, torch.ones(4, 2), "sum", 0, group)
        case "multimem_all_gather_out":
            return call(x, group, whole)
    return call(x, "sum", group)


def expected_of(name, ranks=2):
    every = [torch.arange(16.0).view(4, 4) + 100 * rank for rank in range(ranks)]
    whole, total = torch.cat(every), sum(every)
    match name.split(".")[1]:
        case "shard_dim_alltoall":
            return [*whole.chunk(ranks, 1)]
        case "broadcast":
            return [every[0]] * ranks
        case "fused_all_gather_matmul":
            return [whole @ torch.ones(4, 2)] * ranks
        case "fused_matmul_reduce_scatter":
            return [*(total @ torch.ones(4, 2)).chunk(ranks)]
        case "_low_contention_reduce_scatter":
            return [*total.chunk(ranks)]
    return [whole if OPERATORS[name] == "all_gather" else total] * ranks


def test_a_collective_that_is_an_operator_is_none_the_cheaper():
    def program(rank, world_size):
        return {name: operator(rank, world_size, name) for name in OPERATORS}

    with_values, sizes = virtual(program, 2), simulate(program, 2)
    for name in OPERATORS:
        for ours, shapes, wanted in zip(with_values.results, sizes.results, expected_of(name), strict=True):
            assert torch.equal(ours[name], wanted), name
            assert shapes[name].shape == wanted.shape, name
    assert calls_of(sizes) == calls_of(with_values)
    assert [op for op, _ in calls_of(sizes)] == [*OPERATORS.values()]
    times = [(event.start, event.end) for event in with_values.events]
    assert [(event.start, event.end) for event in sizes.events] == times and all(end > start for start, end in times)
    assert sizes.elapsed == with_values.elapsed > 0


@pytest.mark.parametrize("launch", [virtual, simulate])
def test_an_operator_that_reads_other_gpus_memory_is_refused_rather_than_free(launch):
    def program(rank, world_size):
        import torch.distributed._symmetric_memory  # defines operators

        torch.ops.symm_mem.nvshmem_broadcast(torch.ones(2), 0, dist.group.WORLD.group_name)

    with pytest.raises(RankFailed, match="memory of other GPUs"):
        launch(program, 2)


# --- torch.compile


@torch.compile(backend="eager", fullgraph=True, dynamic=False)
def doubled(x):
    return 2 * x


halved = torch.compile(nn.Linear(2, 1, bias=False), backend="eager")


@both
def test_what_a_module_has_compiled_can_be_sent(world):
    def program(rank, world_size):
        with torch.no_grad():
            halved.weight.fill_(0.5)
        return doubled(torch.ones(1) + rank).item(), halved(torch.ones(2)).item()

    assert world(program, 2).results == [(2.0, 1.0), (4.0, 1.0)]


def test_a_compiled_function_is_sent_with_what_was_asked_for():
    from utils.worlds.common.compiled import reduce_compiled

    for wanted in ({"backend": "eager", "dynamic": True}, {"options": {"max_autotune": True}, "fullgraph": True}, {}):
        _, (function, asked) = reduce_compiled(torch.compile(expected_of, **wanted))
        assert function is expected_of
        assert {name: value for name, value in asked.items() if value} == wanted


@both
def test_a_compiled_ddp_model_trains(world):
    def program(rank, world_size):
        torch.manual_seed(0)
        model = torch.compile(DistributedDataParallel(nn.Linear(4, 1)), backend="eager")
        for _ in range(2):
            model(torch.ones(2, 4) * (rank + 1)).sum().backward()
        return [parameter.grad.tolist() for parameter in model.parameters()]

    run = world(program, 2)
    assert run.results == [[[[6.0] * 4], [4.0]]] * 2
    assert sum(event.op == "all_reduce" for event in run.events if event.rank == 0) >= 2


# --- what torch keeps once per process


def conversions(rank, world_size, shape, mesh_shape, device):
    """The values of a DTensor that doesn't divide evenly, converted between all pairs of placements."""
    mesh = init_device_mesh(device, mesh_shape)
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    shards = [Replicate(), *(Shard(dim) for dim in range(len(shape)))]
    got = {}
    for source in itertools.product([*shards, Partial()], repeat=len(mesh_shape)):
        if Partial() in source:
            plain = [Replicate() if isinstance(place, Partial) else place for place in source]
            local = distribute_tensor(whole, mesh, plain).to_local()
            tensor = DTensor.from_local(local, mesh, source, shape=whole.shape, stride=whole.stride())
        else:
            tensor = distribute_tensor(whole, mesh, source)
        for wanted in itertools.product(shards, repeat=len(mesh_shape)):
            got[source, wanted] = tensor.redistribute(placements=wanted).to_local()
    return got


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "mesh"),
    [
        *(((7,), (2, 2)), ((5, 7), (2, 3)), ((3, 2), (4,))),
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in (((7, 10), (2, 2)), ((5,), (2, 2, 2)))),
    ],
)
def test_a_dtensor_that_does_not_divide_evenly_is_converted_as_on_real_ranks(shape, mesh):
    """torch keeps the plans of conversions per process, with the shapes of the rank that made them."""
    size = math.prod(mesh)
    real = spawn(conversions, size, shape, mesh, "cpu", timeout=200).results
    for device in ("cpu", "cuda"):
        for one, other in zip(real, virtual(conversions, size, shape, mesh, device).results, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[pair], other[pair]) for pair in one)


def two_dimensional(rank, world_size):
    """Tensor parallelism inside FSDP2, of layers whose sizes don't divide evenly, and so _StridedShard."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 5) * (step + 1 + rank // 2)).square().sum().backward()
        optimizer.step()
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


@pytest.mark.long
def test_tensor_parallelism_inside_fsdp_of_uneven_layers_trains_as_on_real_ranks():
    for one, other in zip(spawn(two_dimensional, 4).results, virtual(two_dimensional, 4).results, strict=True):
        assert all(map(torch.allclose, one, other))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fsdp_on_a_mesh_of_gpus_runs_with_values_and_without(device):
    def program(rank, world_size):
        model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))
        fully_shard(model, mesh=init_device_mesh("cuda", (world_size,)))
        model(torch.ones(3, 5)).sum().backward()
        return [tuple(parameter.grad.to_local().shape) for parameter in model.parameters()]

    assert simulate(program, 2, device=device).results[0] == [(3, 5), (3,), (2, 6), (2,)]


def on_gpus(rank, world_size):
    """Tensor and sequence parallelism inside FSDP2, on a mesh of GPUs."""
    mesh = init_device_mesh("cuda", (world_size // 2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.RMSNorm(4), nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False))
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(output_layouts=Shard(0)),
    }
    fully_shard(parallelize_module(model, mesh["tensor"], plan), mesh=mesh["data"])
    model(torch.ones(3, 4) + rank).sum().backward()
    return [parameter.grad.full_tensor() for parameter in model.parameters()]


def test_results_of_dtensors_are_on_the_gpu_of_the_rank_that_asks():
    """torch keeps what it has found out about fake tensors per process, with the number of a GPU."""
    first, *others = simulate(on_gpus, 4, device="cpu").results
    assert all(all(map(torch.equal, first, other)) for other in others)
    assert [grad.shape for grad in simulate(on_gpus, 4).results[3]] == [grad.shape for grad in first]


@both
def test_a_switch_of_torchs_holds_for_the_rank_that_set_it(world):
    def program(rank, world_size):
        from torch.distributed.tensor import _redistribute

        with _redistribute.use_min_cost_redistribution_plan(rank == 0):
            dist.barrier()
            inside = _redistribute._FORCE_MIN_COST_REDISTRIBUTION_PLAN
            if rank:
                dist.barrier()
        if not rank:
            dist.barrier()
        return inside, _redistribute._FORCE_MIN_COST_REDISTRIBUTION_PLAN

    assert world(program, 2).results == [(True, None), (False, None)]


@both
def test_plans_of_checkpoints_are_each_ranks_own(world, tmp_path):
    """With cached plans, DefaultSavePlanner keeps them in its class, by the class's name."""

    def program(rank, world_size, folder):
        from torch.distributed import checkpoint

        mesh = init_device_mesh("cpu", (world_size,))
        for step in range(3):
            tensor = distribute_tensor(torch.arange(7.0) + 100 * step, mesh, [Shard(0)])
            planner = checkpoint.DefaultSavePlanner(enable_plan_caching=True)
            checkpoint.save({"x": tensor}, checkpoint_id=f"{folder}/{step}", planner=planner)
        loaded = {"x": distribute_tensor(torch.zeros(7), mesh, [Shard(0)])}
        checkpoint.load(loaded, checkpoint_id=f"{folder}/2")
        return loaded["x"].full_tensor().tolist()

    wanted = [200.0 + number for number in range(7)]
    assert world(program, 3, str(tmp_path)).results == [wanted] * 3
