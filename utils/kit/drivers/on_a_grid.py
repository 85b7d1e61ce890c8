"""What a rank runs where a check judges the process groups of a rank grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist


def use_groups(
    function: Callable[..., Any], members: Mapping[str, Sequence[list[int]]], rank: int, world_size: int
) -> dict[str, Any]:
    """{name: (ranks of the group that `function` returned, the sum of these ranks by an all_reduce in it)}.

    The sum is -1 where any rank has returned something else than one of the wanted groups that it is in: then none is
    used.
    """
    returned = function(members, rank=rank)
    mine = {name: returned.get(name) if isinstance(returned, dict) else None for name in members}
    ranks = {
        name: dist.get_process_group_ranks(group) if isinstance(group, dist.ProcessGroup) else []
        for name, group in mine.items()
    }
    usable = torch.tensor(int(all(rank in ranks[name] and ranks[name] in groups for name, groups in members.items())))
    dist.all_reduce(usable, op=dist.ReduceOp.MIN)
    found = {}
    for name, group in mine.items():
        ranks_added = torch.tensor(rank)
        if usable:
            dist.all_reduce(ranks_added, group=group)
        found[name] = (ranks[name], int(ranks_added) if usable else -1)
    return found
