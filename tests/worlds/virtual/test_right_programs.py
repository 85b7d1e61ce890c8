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
