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

    The ranks are [-1] of a group that this rank isn't in, and [] of none. Where any rank has returned something else
    than one of the wanted groups that it is in, none is used, and the sum of what isn't one is -1.
    """
    returned = function(members, rank=rank)
    mine = {name: returned.get(name) if isinstance(returned, dict) else None for name in members}
    ranks = {name: ranks_of(group) for name, group in mine.items()}
    good = {name: rank in ranks[name] and ranks[name] in groups for name, groups in members.items()}
    usable = torch.tensor(int(all(good.values())))
    dist.all_reduce(usable, op=dist.ReduceOp.MIN)
    found = {}
    for name, group in mine.items():
        ranks_added = torch.tensor(rank)
        if usable:
            dist.all_reduce(ranks_added, group=group)
        found[name] = (ranks[name], int(ranks_added) if usable else sum(ranks[name]) if good[name] else -1)
    return found


def ranks_of(group: Any) -> list[int]:
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return [-1]
    return dist.get_process_group_ranks(group) if isinstance(group, dist.ProcessGroup) else []
