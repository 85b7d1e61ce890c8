"""Four collectives as functions that return a new tensor, leave their input unchanged and are invisible to autograd.

    y = all_reduce(y_partial, tp_group)                  the sum over the group, on every rank
    x = all_gather(x_local, tp_group, dim=-1)            all ranks' shards, concatenated along `dim`
    x_local = reduce_scatter(x_partial, tp_group, dim=1) this rank's chunk of the sum, along `dim`
    mine = all_to_all(rows, [2, 0], [1, 3], tp_group)    2 rows to the first rank, none to the second; 1 and 3 arrive

`group` is a process group of P ranks; None means all ranks. Inputs need not be contiguous, but must have the same shape
on every rank, except the rows of all_to_all.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def all_reduce(
    x: Tensor, group: dist.ProcessGroup | None = None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> Tensor:
    """x: any shape. op: as in torch.distributed, such as dist.ReduceOp.MAX. Returns a tensor of x's shape."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=op, group=group)
    return total


@torch.no_grad()
def all_gather(x_local: Tensor, group: dist.ProcessGroup | None = None, dim: int = -1) -> Tensor:
    """x_local: (..., n, ...) with n along `dim`. Returns (..., P * n, ...), rank 0's shard first."""
    mine = x_local.contiguous()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, mine, group=group)
    return torch.cat(parts, dim)


@torch.no_grad()
def reduce_scatter(x_partial: Tensor, group: dist.ProcessGroup | None = None, dim: int = 0) -> Tensor:
    """x_partial: (..., P * n, ...) with P * n along `dim`. Returns (..., n, ...), this rank's chunk of the sum.

    Raises ValueError if P does not divide that dimension.
    """
    world_size = dist.get_world_size(group)
    if x_partial.shape[dim] % world_size:
        raise ValueError(
            f"{world_size} ranks can't split dimension {dim} of shape {tuple(x_partial.shape)} into equal parts"
        )
    chunks = [chunk.contiguous() for chunk in x_partial.chunk(world_size, dim)]
    mine = torch.empty_like(chunks[0])
    dist.reduce_scatter(mine, chunks, group=group)
    return mine


@torch.no_grad()
def all_to_all(rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup | None = None) -> Tensor:
    """rows: (sum(send), ...), those for rank 0 first. Returns (sum(receive), ...), those from rank 0 first.

    send, receive: how many rows go to each rank of the group, and how many come from it; 0 is allowed.
    """
    arrived = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
    return arrived
