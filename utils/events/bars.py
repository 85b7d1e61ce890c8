"""Events and Regions as bars in lanes, for `run.timeline()` and `run.save_trace()`: which bars nest or overlap.

All times are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from heapq import heappop, heappush
from typing import TypeVar

from .event import Event, Region

Bar = TypeVar("Bar", Event, Region)


def by_rank(things: list[Bar], size: int, runs_as: Sequence[int] | None = None) -> list[list[Bar]]:
    """One list per rank: its own, or that of the one that ran in its place (see Run.runs_as)."""
    lists: list[list[Bar]] = [[] for _ in range(size)]
    for thing in things:
        lists[thing.rank].append(thing)
    return lists if runs_as is None else [lists[rank] for rank in runs_as]


def first_moment(events: list[Event], regions: list[Region]) -> float:
    return min([*(r.start for r in regions), *(e.start for e in events)], default=0.0)


def last_moment(events: list[Event], regions: list[Region]) -> float:
    """When the last bar ends. A call without an end counts with its start."""
    return max([r.end for r in regions] + [e.start if e.end is None else e.end for e in events], default=0.0)


def depths(regions: list[Region]) -> list[tuple[Region, int]]:
    """One rank's regions, outer ones first, each with the number of regions it lies inside."""
    nested: list[tuple[Region, int]] = []
    open_until: list[float] = []
    for region in sorted(regions, key=lambda r: (r.start, -r.end)):
        open_until = [end for end in open_until if end > region.start]
        nested.append((region, len(open_until)))
        open_until.append(region.end)
    return nested


def rows(events: list[Event], last: float) -> list[tuple[Event, int]]:
    """One rank's calls, each with the first row that is free: calls in flight at the same time get different rows.

    A call without an end takes its row until `last`.
    """
    placed: list[tuple[Event, int]] = []
    taken: list[tuple[float, int]] = []  # heap of (until when, row)
    free: list[int] = []  # heap of rows
    for event in sorted(events, key=lambda e: (e.start, e.index)):
        while taken and taken[0][0] <= event.start:
            heappush(free, heappop(taken)[1])
        row = heappop(free) if free else len(taken)
        heappush(taken, (last if event.end is None else event.end, row))
        placed.append((event, row))
    return placed


def busy(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of `spans`, as spans that don't touch."""
    union: list[list[float]] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1][1] = max(union[-1][1], end)
        else:
            union.append([start, end])
    return [(start, end) for start, end in union]


def waiting(events: list[Event]) -> list[tuple[float, float]]:
    """When one rank waited for a call: from the call itself if it is a blocking one, else from its `wait()`."""
    begins = [(e.waited if e.is_async else e.start, e.end) for e in events]
    return [(begin, end) for begin, end in begins if begin is not None and end is not None and begin < end]


def bubbles(regions: list[Region], start: float, end: float) -> list[tuple[float, float]]:
    """When a rank that has regions is in none of them, between the first region of any rank and the last.

    `regions` are one rank's; the first region of any rank starts at `start`, and the last one ends at `end`.
    """
    if not regions:
        return []
    spans = busy([(r.start, r.end) for r in regions])
    edges = [start, *(edge for span in spans for edge in span), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


@cache
def stem(name: str) -> str:
    """The name of a region without its numbers: "forward 3" and "forward 4" are of the same kind."""
    return re.sub(r"[\s_#]*\d+", "", name).strip() or name
