"""DDP's check that all ranks have the same parameters: the same calls to the network as torch's own, with less effort.

torch's check makes a tensor for each pair of ranks, a million of them on 1,024 ranks. Here each rank gets the answers
in one tensor, and all of it is bookkeeping that costs the virtual GPU nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ...recording.torch_private import set_ddp_verification
from .rank import World

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13


def patch_ddp(world: World) -> None:
    def verify(group: dist.ProcessGroup, parameters: list[torch.Tensor], logger: Any = None) -> None:
        with world.scheduler.bookkeeping():
            check(group, parameters)

    set_ddp_verification(verify)


def check(group: dist.ProcessGroup, parameters: list[torch.Tensor]) -> None:
    """Raises RuntimeError, in torch's words, on a rank whose parameters differ from those of the group's first rank."""
    rank, count = dist.get_rank(group), torch.tensor([len(parameters)])
    counts = torch.empty(dist.get_world_size(group), dtype=torch.int64)
    all_gather(counts, count, group=group, async_op=True).wait()  # asynchronous, as in torch's own check
    for other, theirs in enumerate(counts.tolist()):
        if theirs != len(parameters):
            raise RuntimeError(
                f"DDP expects same model across all ranks, but Rank {rank} has {len(parameters)} params, while rank "
                f"{other} has inconsistent {theirs} params."
            )
    mine = torch.tensor([number for p in parameters for number in (*p.shape, *p.stride())], dtype=torch.int64)
    first = mine.clone()
    work = dist.broadcast(first, group=group, group_src=0, async_op=True)
    assert work is not None
    work.wait()
    for place, parameter in enumerate(parameters):
        begin = sum(2 * other.dim() for other in parameters[:place])
        here = slice(begin, begin + 2 * parameter.dim())
        if not torch.equal(mine[here], first[here]):
            raise RuntimeError(
                f"DDP expects same model across all ranks: params[{place}] in this process with sizes "
                f"{list(parameter.shape)} appears not to match sizes of the same param in process 0."
            )
