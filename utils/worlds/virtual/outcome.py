"""What the process of a virtual cluster sends back to the launcher: engine.py writes it, world.py reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from ...cluster.collective_costs import Cost, Layout
    from ...events.failure import Failure
    from ...events.memory_samples import Sample


class RankRecord(TypedDict):
    """One rank, in what marshal can write. Times in seconds of the rank's clock.

    events, groups_made   the fields of each Event, in order; regions: those of each Region
    waits                 {index: where the rank began to wait} of asynchronous calls
    strides               {index: (shape, strides)} of a tensor with gaps where Gloo expects none
    dropped               {index: where} of asynchronous calls whose handle was never used
    busy                  (start, end) of each stretch of computing
    """

    finished: bool
    clock: float
    events: list[tuple[Any, ...]]
    waits: dict[int, str]
    groups_made: list[tuple[Any, ...]]
    strides: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
    dropped: dict[int, str]
    regions: list[tuple[Any, ...]]
    busy: tuple[tuple[float, float], ...]
    memory: tuple[Sample, ...]


class WorldOutcome(TypedDict):
    """All ranks at the end.

    ranks        a list of RankRecords, in marshal's format
    results      what pickle_result made of each rank's result; None if it has none
    failures     {rank: what ended it}
    algorithms   (operation, bytes, layout of the group, how often, Cost) of each kind of collective
    """

    ranks: bytes
    results: list[bytes | None]
    failures: dict[int, Failure]
    algorithms: list[tuple[str, int, Layout, int, Cost]]


class Refusal(TypedDict):
    """Why the ranks could not be started."""

    refused: str
