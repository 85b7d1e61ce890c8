"""How the process of a rank, or of a virtual cluster, can end: the classes that are pickled into its outcome file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from ...events.failure import Failure


@dataclass
class Result:
    """What a rank program returned."""

    value: Any


@dataclass
class Refused:
    """Why the ranks could not be started at all."""

    reason: str


@dataclass
class VirtualOutcome:
    """Everything that the process of a virtual cluster knows when its ranks have come to an end."""

    ranks: bytes  # list[RankRecord], written by marshal: much quicker than pickle for a thousand ranks
    results: list[bytes | None]  # per rank: a pickled Result, None if it returned nothing
    failures: dict[int, Failure]
    algorithms: list[tuple[Any, ...]]  # see Run.algorithms


class RankRecord(TypedDict):
    """What one virtual rank did, in plain types that marshal can write."""

    finished: bool
    clock: float  # virtual seconds
    events: list[tuple[Any, ...]]  # the fields of its Events
    waits: dict[int, str]
    groups_made: list[tuple[Any, ...]]
    strides: dict[int, tuple[Any, ...]]
    dropped: dict[int, str]
    regions: list[tuple[Any, ...]]  # the fields of its Regions
    busy: tuple[tuple[float, float], ...]  # when its GPU was computing: (start, end)
    memory: tuple[Any, ...]


Outcome = Result | Failure | VirtualOutcome | Refused
