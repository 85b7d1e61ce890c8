"""What each rank did until none could move: where it waits, at which line, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..diagnosis.words import call_text
from ..events import bars
from ..events.collectives import POINT_TO_POINT
from ..events.event import Event
from ..events.matching import Matching
from ..text.source_lines import place
from .living import STUCK, Look, Timeline
from .timelines import timeline

if TYPE_CHECKING:
    from ..report.run import Run

FOREVER = 0.25  # the part of the time until then that a picture shows of calls that never return
LINE = 20  # pixels for the line of code below a rank's bars
NEVER = Look("waits", STUCK, order=3)
NO_CALLS = {"store": "waits for the store", "idle": "waits for something else"}


def deadlock(run: Run, waiting: Mapping[int, Event], title: str = "") -> Timeline:
    """The timeline of a run that got stuck. The calls in which ranks wait forever last until its end, and are striped.

    waiting   {rank: the call that it is inside}, as in RankError.waiting
    """
    whom = {rank: awaited(event, waiting, run) for rank, event in waiting.items()}
    ends = [bars.last_moment(run.events, run.regions), *(since(event) for event in waiting.values())]
    first, last = bars.first_moment([*run.events, *waiting.values()], run.regions), max(ends)
    end = last + (FOREVER * (last - first) or 1e-6)
    events = {(event.rank, event.index, event.op): event for event in run.events}
    for event in waiting.values():
        events[event.rank, event.index, event.op] = replace(event, end=end)
    title = title or f"{run.world_size} ranks, until none could move"
    picture = timeline(replace(run, events=[*events.values()], elapsed=end), title=title)
    for bar in picture.bars:
        if bar.look.kind in ("waits", "blocked") and bar.end >= picture.span:
            bar.look = NEVER
    picture.legend["never returns"] = NEVER
    lane_of = {rank: at for at, lane in enumerate(picture.lanes) for rank in lane.ranks}
    for rank, at in lane_of.items():
        lane = picture.lanes[at]
        lane.line = lane.line or line_of(rank, waiting.get(rank))
    for lane in picture.lanes:
        lane.below = LINE
    arrows = {(lane_of[rank], lane_of[other]) for rank, others in whom.items() for other in others[:1]}
    picture.arrows = sorted((a, b) for a, b in arrows if a != b) if len(picture.lanes) <= 16 else []
    return picture


def since(event: Event) -> float:
    return event.start if event.waited is None else event.waited


def line_of(rank: int, event: Event | None) -> str:
    if event is None:
        return "has finished"
    return " · ".join(filter(None, (NO_CALLS.get(event.op, f"waits in {call_text(event)}"), place(event.where))))


def awaited(event: Event, waiting: Mapping[int, Event], run: Run) -> list[int]:
    """The ranks that a rank waits for, as far as that is known."""
    if event.op in NO_CALLS:
        return []
    if event.op in POINT_TO_POINT:
        return [] if event.peer is None else [event.peer]
    if event.op == "new_group":
        there = {rank for rank, other in waiting.items() if (other.op, other.members) == (event.op, event.members)}
        return [rank for rank in event.members if rank not in there]
    partners = Matching.of(run.events).partners(event)
    return [rank for rank, call in partners.items() if call is None]
