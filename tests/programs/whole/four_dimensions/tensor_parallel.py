"""Linear layers split over the tensor-parallel group."""

import torch
import torch.distributed as dist

from . import manager as pgm


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient, group=pgm.process_group_manager.tp_group)
        return gradient


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x, group=pgm.process_group_manager.tp_group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def part_of(weight, dim):
    return torch.nn.Parameter(
        weight.chunk(pgm.process_group_manager.tp_size, dim)[pgm.process_group_manager.tp_rank].clone()
    )


class MLP(torch.nn.Module):
    """Columns, then rows."""

    def __init__(self, width):
        super().__init__()
        self.up = part_of(torch.randn(2 * width, width) / width**0.5, 0)
        self.down = part_of(torch.randn(width, 2 * width) / width**0.5, 1)

    def forward(self, x):
        hidden = torch.nn.functional.gelu(Copy.apply(x) @ self.up.T)
        return Reduce.apply(hidden @ self.down.T)
