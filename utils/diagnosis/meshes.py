"""Device meshes whose dimensions ranks name in different orders: one rank's "dp" is another's "tp"."""

from __future__ import annotations

from collections.abc import Iterable

from ..events.event import Event
from ..events.matching import GroupKey, group_key
from ..events.rank_state import RankState
from .words import ranks_text

MESH = "mesh_"  # first letters of the descriptions of a device mesh's groups


def dimensions_swapped(states: Iterable[RankState]) -> tuple[list[Event], str]:
    """Where two members make a group for different dimensions, and a sentence about it; ([], "") if none do."""
    made: dict[GroupKey, Event] = {}
    for state in states:
        for event in state.groups_made:
            if event.rank not in event.members or not event.wrapper.startswith(MESH):
                continue
            first = made.setdefault(group_key(event), event)
            mine, its = first.wrapper.removeprefix(MESH), event.wrapper.removeprefix(MESH)
            if mine != its:
                return [first, event], (
                    f"Rank {first.rank} made the group of {ranks_text(event.members).lower()} for the dimension "
                    f'"{mine}" of its mesh, rank {event.rank} for "{its}". Every rank must name the dimensions in the '
                    "same order."
                )
    return [], ""
