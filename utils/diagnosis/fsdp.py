"""What ranks do differently that wait inside FSDP, which communicates for each module that it wraps."""

from __future__ import annotations

from ..events.event import Event
from ..events.matching import Matching

EQUALLY_OFTEN = (
    "FSDP communicates each time a module that it wraps is called, so every rank must call each of them equally often. "
    "If a rank has nothing for a module to do, an expert without tokens, say, let it call the module with an empty "
    "batch, and add the result to the loss."
)


def skipped_module(blocked: dict[int, Event], matching: Matching) -> str:
    """Sentences about a module that one rank has called and another has not; "" if that is not what they wait for."""
    calls = [event for event in blocked.values() if event.part and event.wrapper.startswith("FSDP")]
    for mine in calls:
        for its in calls:
            if mine.rank == its.rank or mine.members != its.members:
                continue
            if mine.part != its.part and times(mine, mine.rank, matching) > times(mine, its.rank, matching):
                return (
                    f"Rank {mine.rank} {does(mine)} {named(mine)}, and rank {its.rank} has gone on without it: it "
                    f"{does(its)} {named(its)}. {EQUALLY_OFTEN}"
                )
    for mine in calls:
        for its in calls:
            if (mine.op, its.op) == ("all_gather", "reduce_scatter") and mine.part == its.part:
                return (
                    f"Rank {its.rank} reduces the gradients of {named(its)} at the end of a backward pass, where "
                    f"rank {mine.rank} goes on to the next pass without. set_requires_gradient_sync(False) must be in "
                    "force in the same steps on all ranks, and each must call backward() after the same forward passes."
                )
    return ""


def does(event: Event) -> str:
    return "gathers the parameters of" if event.op == "all_gather" else "reduces the gradients of"


def named(event: Event) -> str:
    return event.part if " " in event.part else f"`{event.part}`"


def times(event: Event, rank: int, matching: Matching) -> int:
    """How often a rank has made this call for the same module."""
    same = event.op, event.part, event.wrapper
    return sum((e.op, e.part, e.wrapper) == same for e in matching.states[rank].events)
