"""DDP's check that all ranks have the same parameters: asks the network as torch's own does, and makes less of it.

torch's makes a tensor for each pair of ranks, a million on 1,024 of them. Here the answers come in one tensor a rank,
and all of it is bookkeeping that costs the virtual GPU nothing.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ...recording.torch_private import set_ddp_verification

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # torch 2.13 has renamed it


def take_over(world) -> None:
    def verify(group, parameters, logger=None) -> None:
        with world.turns.own_work():
            check(group, parameters)

    set_ddp_verification(verify)


def check(group, parameters: list[torch.Tensor]) -> None:
    """Raises RuntimeError, in torch's words, on a rank whose parameters are not those of the group's first."""
    rank, count = dist.get_rank(group), torch.tensor([len(parameters)])
    counts = torch.empty(dist.get_world_size(group), dtype=torch.int64)
    all_gather(counts, count, group=group, async_op=True).wait()  # asynchronous, as torch's own calls it
    for other, theirs in enumerate(counts.tolist()):
        if theirs != len(parameters):
            raise RuntimeError(
                f"DDP expects same model across all ranks, but Rank {rank} has {len(parameters)} params, while rank "
                f"{other} has inconsistent {theirs} params."
            )
    mine = torch.tensor([number for p in parameters for number in (*p.shape, *p.stride())], dtype=torch.int64)
    first = mine.clone()
    dist.broadcast(first, group=group, group_src=0, async_op=True).wait()
    for place, parameter in enumerate(parameters):
        begin = sum(2 * other.dim() for other in parameters[:place])
        here = slice(begin, begin + 2 * parameter.dim())
        if not torch.equal(mine[here], first[here]):
            raise RuntimeError(
                f"DDP expects same model across all ranks: params[{place}] in this process with sizes "
                f"{list(parameter.shape)} appears not to match sizes of the same param in process 0."
            )
