"""Programs that are right on real ranks give the same on virtual ones: values, errors, and what is recorded."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from utils import simulate, spawn

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
