"""recording/gradients.py: whose gradient a rank reduces, also where other weights have no memory just then."""

import torch
import torch.distributed as dist

from utils import spawn


def reduce_beside_a_freed_weight(rank, world_size):
    used, freed = (torch.full((8,), float(rank + 1), requires_grad=True) for _ in range(2))
    freed.untyped_storage().resize_(0)  # as FSDP does between its uses
    used.square().sum().backward()
    dist.all_reduce(used.grad)
    return used.grad[0].item()


def test_a_weight_without_memory_is_passed_over():
    assert spawn(reduce_beside_a_freed_weight, 2, backend="gloo").results == [6.0, 6.0]


def free_after_a_reduction(rank, world_size):
    weight = torch.full((8,), float(rank + 1), requires_grad=True)
    weight.square().sum().backward()
    dist.all_reduce(weight.grad)
    weight.untyped_storage().resize_(0)
    return weight.untyped_storage().nbytes()


def test_a_weight_can_be_freed_after_its_gradient_was_looked_up():
    assert spawn(free_after_a_reduction, 2, backend="gloo").results == [0, 0]
