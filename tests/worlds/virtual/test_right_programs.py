"""Programs that are right on real ranks give the same on virtual ones: values, errors, and what is recorded."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

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


def every_output(rank, world_size, layout):
    """What each collective writes into outputs of a layout, from inputs of the same one and from plain ones."""
    make, got = LAYOUTS[layout], []
    for source in (make, lambda rows: torch.zeros(rows, 3)):
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_of_any_layout_hold_what_gloo_writes(layout):
    """A transposed output held zeros, in silence; one with gaps broke the virtual cluster itself."""
    for real, ours in zip(spawn(every_output, 2, layout).results, virtual(every_output, 2, layout).results, strict=True):
        for one, other in zip(real, ours, strict=True):
            assert torch.equal(one, other)


@both
@pytest.mark.parametrize("op", ["all_gather_into_tensor", "recv", "all_to_all_single"])
def test_a_tensor_whose_layout_is_refused_raises(world, op):
    def program(rank, world_size, op):
        try:
            if op == "recv":
                dist.recv(torch.zeros(3, 2)[:, 0], 1 - rank)
            elif op == "all_to_all_single":
                dist.all_to_all_single(torch.zeros(2, 3), torch.zeros(3, 2).t())
            else:
                dist.all_gather_into_tensor(torch.zeros(1, 3).expand(4, 3), torch.zeros(2, 3))
        except (RuntimeError, ValueError) as error:
            return str(error)

    wanted = "contiguous" if op != "all_gather_into_tensor" else "more than one element of the"
    assert all(wanted in result for result in world(program, 2, op).results)


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


@pytest.mark.parametrize("name", OPERATORS)
def test_a_collective_that_is_an_operator_is_none_the_cheaper(name):
    with_values, sizes = virtual(operator, 2, name), simulate(operator, 2, name)
    for ours, shape, wanted in zip(with_values.results, sizes.results, expected_of(name), strict=True):
        assert torch.equal(ours, wanted)
        assert shape.shape == wanted.shape
    assert calls_of(sizes) == calls_of(with_values)
    assert [op for op, _ in calls_of(sizes)] == [OPERATORS[name]]
    assert sizes.elapsed == with_values.elapsed > 0


@pytest.mark.parametrize("launch", [virtual, simulate])
def test_an_operator_that_reads_other_gpus_memory_is_refused_rather_than_free(launch):
    def program(rank, world_size):
        import torch.distributed._symmetric_memory  # defines operators

        torch.ops.symm_mem.nvshmem_broadcast(torch.ones(2), 0, dist.group.WORLD.group_name)

    with pytest.raises(RankFailed, match="memory of other GPUs"):
        launch(program, 2)
