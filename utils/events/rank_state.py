"""What is known about one rank, while it runs or after it has finished."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from .event import Event, Region
from .failure import Failure


class TensorLayout(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Gradient(NamedTuple):
    """The parameter with these values, whose gradient a call reduces, or which it sends itself."""

    fingerprint: int
    name: str  # the parameter's name in its model; "" if it is in none


class StackFrame(NamedTuple):
    """One of the student's frames of a rank that waits.

    values    what the function's conditions read, as text: {"bar.n": "3"}
    handles   the signal, if the function is its handler; else ""
    caught    the exception that its `except` or `finally` is in the middle of, and the line that raised it; or two ""
    """

    file: str
    line: int
    function: str
    values: dict[str, str]
    handles: str
    caught: tuple[str, str] = ("", "")


class SamplerUse(NamedTuple):
    """That a rank begins to go through a DistributedSampler.

    samples, replicas, part   how many samples it gives, how many parts there are, and which of them it gives
    order                     its seed and epoch, added up; -1 if it doesn't shuffle
    """

    where: str
    samples: int
    replicas: int
    part: int
    order: int


class ReplicaPrints(NamedTuple):
    """(name, fingerprint) of the parameters and buffers that a rank holds after a step of an optimizer."""

    step: int
    where: str
    fingerprints: list[tuple[str, int]]


class Splits(NamedTuple):
    """What an all-to-all receives from each rank of its group, and sends to each: rows of `row` elements."""

    received: tuple[int, ...]
    sent: tuple[int, ...]
    row: int


@dataclass
class RankState:
    """What one rank has recorded (see recording/reader.py), and whether it has finished. Calls go by their index."""

    rank: int
    events: list[Event] = field(default_factory=list)
    groups_made: list[Event] = field(default_factory=list)  # one per call of new_group, also those by a device mesh
    waits: dict[int, str] = field(default_factory=dict)  # asynchronous calls the rank has begun to wait for -> where
    failed: set[int] = field(default_factory=set)  # calls that raised
    lost: set[int] = field(default_factory=set)  # messages whose handle was thrown away before they were done
    strides: dict[int, TensorLayout] = field(default_factory=dict)  # calls with a tensor that is not contiguous
    splits: dict[int, Splits] = field(default_factory=dict)  # all-to-alls alone, as far as they are recorded
    skipped: list[tuple[str, str]] = field(default_factory=list)  # (function, where) of calls for others' groups
    unused_handles: dict[int, str] = field(default_factory=dict)  # asynchronous call -> where; nothing asked for it
    gradients: dict[int, list[Gradient]] = field(default_factory=dict)  # calls that reduce some, as far as is known
    parameters: set[int] = field(default_factory=set)  # fingerprints of the parameters that the rank has or has had
    regions: list[Region] = field(default_factory=list)
    left: str = ""  # where it called destroy_process_group, if it has no group any more
    moved: dict[int, Gradient] = field(default_factory=dict)  # broadcasts and the like of parameters themselves
    samplers: list[SamplerUse] = field(default_factory=list)
    replicas: list[ReplicaPrints] = field(default_factory=list)
    frozen: list[tuple[str, int]] = field(default_factory=list)  # (name, fingerprint) of untrained parameters
    unreduced: tuple[str, list[str]] | None = None  # (where, unused parameters) of a step before DDP had reduced
    stack: list[StackFrame] = field(default_factory=list)  # innermost first; looked at once it is known to be stuck
    forgotten: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # calls missing in `events`, by where, op
    #   and wrapper: the record of a long run holds the last ones (recording/last_calls.py)
    finished: bool = False
    failure: Failure | None = None  # the exception it raised, if known before all have ended

    def blocked_in(self) -> Event | None:
        """The call this rank is inside, if any."""
        if self.finished:
            return None
        if self.groups_made and self.groups_made[-1].end is None:
            return self.groups_made[-1]
        for event in reversed(self.events):
            if event.end is None and (not event.is_async or event.index in self.waits):
                return event
        return None

    def last_raised(self) -> Event | None:
        """The rank's last call, if it raised: because another rank had gone away, say."""
        return self.events[-1] if self.events and self.events[-1].index in self.failed else None

    def in_flight(self) -> list[Event]:
        """The collectives it has started that have not ended."""
        return [event for event in self.events if event.end is None and event.op not in ("send", "recv")]

    def has_dropped(self, event: Event) -> bool:
        """Whether the rank started this call and let go of it: its tensor is gone, and the message may be too."""
        return (self.finished or event.index in self.lost) and event.is_async and event.index not in self.waits
