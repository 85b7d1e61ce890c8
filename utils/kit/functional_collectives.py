"""Three collectives as verbs: each returns a new tensor, leaves its input as it was, and is unseen by autograd.

    y = all_reduce(y_partial, tp_group)                  the sum over the group's ranks, on each of them
    x = all_gather(x_local, tp_group, dim=-1)            the shards of all ranks, side by side along `dim`
    x_local = reduce_scatter(x_partial, tp_group, dim=1) the sum, of which each rank keeps its chunk along `dim`

`group` is a process group, None for all ranks. Inputs need not be contiguous; they have the same shape on every rank.
"""

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def all_reduce(x: Tensor, group=None, op=dist.ReduceOp.SUM) -> Tensor:
    """x: any shape; `op` as in torch, such as dist.ReduceOp.MAX. Returns that shape."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=op, group=group)
    return total


@torch.no_grad()
def all_gather(x_local: Tensor, group=None, dim: int = -1) -> Tensor:
    """x_local: (..., n, ...) with n along `dim`. Returns (..., P * n, ...), rank 0's part first."""
    mine = x_local.contiguous()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, mine, group=group)
    return torch.cat(parts, dim)


@torch.no_grad()
def reduce_scatter(x_partial: Tensor, group=None, dim: int = 0) -> Tensor:
    """x_partial: (..., P * n, ...) with P * n along `dim`. Returns (..., n, ...): this rank's chunk of the sum.

    Raises ValueError if P does not divide that dimension.
    """
    tp_size = dist.get_world_size(group)
    if x_partial.shape[dim] % tp_size:
        raise ValueError(f"{tp_size} ranks can't share dimension {dim} of {tuple(x_partial.shape)} equally")
    chunks = [chunk.contiguous() for chunk in x_partial.chunk(tp_size, dim)]
    mine = torch.empty_like(chunks[0])
    dist.reduce_scatter(mine, chunks, group=group)
    return mine
