"""What a check can judge of an answer, and what each kind of check needs. `judges="traffic"` names one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .answer import Answer, Place


def nothing(_: Answer) -> Mapping[Place, Any]:
    return {}


def calls(answer: Answer) -> Mapping[Place, Any]:
    by_rank = defaultdict[Place, list[tuple[str, int]]](list)
    for event in answer.events:
        by_rank[event.rank, ""].append((event.op, event.bytes))
    return by_rank


def elapsed(answer: Answer) -> Mapping[Place, Any]:
    return {(0, ""): answer.run.elapsed}


@dataclass(frozen=True)
class Kind:
    """One kind of check; a lesson may have others, which need nothing.

    of_values  it judges what the function returned
    on_clock   it runs on the clock of its case, a virtual cluster, if there is one
    is_timed   it judges when something happens: its run has a timeline to look at
    is_score   it measures, and compares with par
    seen       {place: what it judges there besides what the function returned}, where that tells mistakes apart
    """

    name: str
    of_values: bool = False
    on_clock: bool = False
    is_timed: bool = False
    is_score: bool = False
    seen: Callable[[Answer], Mapping[Place, Any]] = nothing


KINDS = {
    kind.name: kind
    for kind in (
        Kind("values", of_values=True),
        Kind("reading", of_values=True),
        Kind("traffic", seen=calls),
        Kind("time", on_clock=True, is_timed=True, seen=elapsed),
        Kind("memory", on_clock=True),
        Kind("score", on_clock=True, is_timed=True, is_score=True),
    )
}


def kind_of(judges: str) -> Kind:
    return KINDS.get(judges, Kind(judges))
