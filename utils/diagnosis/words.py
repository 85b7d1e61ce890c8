"""Calls, ranks, tensors and groups as text, for reports."""

from __future__ import annotations

from collections.abc import Sequence

from ..events.event import Event
from ..events.rank_state import RankState
from ..text.rank_sets import format_ranks

OBJECTS = ("_object", "_object_list")  # how torch's functions end that pickle objects, and send lengths and bytes


def op_text(event: Event) -> str:
    """ "all_reduce"; for a call that a function for objects made, that function: "all_gather_object"."""
    return event.wrapper if event.wrapper.endswith(OBJECTS) else event.op


def spoken(event: Event) -> str:
    """The same, with the thread that made it, unless it was the rank's main one."""
    return op_text(event) + f" (in thread `{event.thread}`)" * bool(event.thread)


def call_text(event: Event) -> str:
    """A call in brief: `recv from 1`, `broadcast (root 0)`, `all_reduce`, `new_group [0, 1]`."""
    if event.op == "send":
        return f"send to {event.peer}"
    if event.op == "recv":
        return "recv from anybody" if event.peer is None else f"recv from {event.peer}"
    if event.op == "new_group":
        return f"new_group {list(event.members)}"
    return op_text(event) if event.peer is None else f"{op_text(event)} (root {event.peer})"


def ranks_text(numbers: Sequence[int]) -> str:
    """ "Rank 2", "Ranks 0 and 3", "Ranks 0, 1 and 3"; for more than eight, "Ranks 0-62, 64"."""
    if len(numbers) > 8:
        return f"Ranks {format_ranks(list(numbers))}"
    *first, last = [str(number) for number in numbers]
    return f"Ranks {', '.join(first)} and {last}" if first else f"Rank {last}"


def tensor_text(event: Event) -> str:
    """ "float32 [2, 3]"."""
    return f"{event.dtype} {list(event.shape)}"


def group_text(event: Event, state: RankState) -> str:
    """ "the whole world", "the group of ranks 0 and 1", or "the 2nd group of ..." if several have the same ranks."""
    if event.group.startswith("world"):
        return "the whole world"
    same = [made.group for made in state.groups_made if made.members == event.members]
    number = f"{ordinal(same.index(event.group) + 1)} " if len(same) > 1 and event.group in same else ""
    return f"the {number}group of {ranks_text(event.members).lower()}"


def ordinal(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
