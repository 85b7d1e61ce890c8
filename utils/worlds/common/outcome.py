"""How the process of a rank, or of a virtual cluster, can end: the classes that are pickled into its outcome file."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from ...events.failure import Failure

if TYPE_CHECKING:
    from ...cluster.collective_costs import Cost, Layout
    from ...events.memory_samples import Sample


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
    algorithms: list[tuple[str, int, Layout, int, Cost]]  # see Run.algorithms
    lines: dict[int, str]  # {rank: its line}, if one rank holds up the others
    held_up: list[int]  # the rank that waits for a lock which nobody will release, if there is one


class RankRecord(TypedDict):
    """What one virtual rank did, in types that marshal can write. Times are in seconds of the rank's clock.

    events, groups_made   the fields of each Event, in order; regions: those of each Region
    waits                 {index: where the rank began to wait} of asynchronous calls
    strides               {index: (shape, strides)} of a tensor with gaps where Gloo expects none
    unused_handles        {index: where} of asynchronous calls whose handle was never used
    samplers              the fields of each SamplerUse
    stack                 of a rank that has not finished: the fields of each StackFrame
    left                  where it has destroyed the default group; ""
    skipped               (function, where) of calls for groups that the rank is not in
    unreduced             (where, unused parameters) of a first step before DDP had reduced
    frozen                (name, fingerprint) of parameters that are not trained, beside a DDP model
    moved                 {index: (fingerprint, name)} of broadcasts of parameters
    busy                  (start, end) of each stretch of computing
    computed              the fields of its Computed
    """

    finished: bool
    clock: float
    events: list[tuple[Any, ...]]
    waits: dict[int, str]
    groups_made: list[tuple[Any, ...]]
    strides: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
    unused_handles: dict[int, str]
    skipped: list[tuple[str, str]]
    unreduced: tuple[str, list[str]] | None
    frozen: list[tuple[str, int]]
    moved: dict[int, tuple[int, str]]
    left: str
    samplers: list[tuple[Any, ...]]
    stack: list[tuple[Any, ...]]
    regions: list[tuple[Any, ...]]
    busy: tuple[tuple[float, float], ...]
    memory: tuple[Sample, ...]
    computed: tuple[Any, ...]


Outcome = Result | Failure | VirtualOutcome | Refused


def read_outcome(path: str, seconds: float) -> Outcome:
    """The outcome in this file; a Failure, with this time, if it can't be read. seconds: since the world began."""
    with open(path, "rb") as file:
        try:
            outcome: Outcome = pickle.load(file)
            return outcome
        except (Exception, SystemExit) as error:
            message = f"what it returned can't be read here: {type(error).__name__}: {error}"
            return Failure("CannotReturn", message, (), seconds)
