"""A rank as the hub knows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from grader.inside.codec import DTYPES, Breach
from grader.judging.rank_connection import RankConnection
from utils.events.event import Event, Region
from utils.events.failure import Failure
from utils.events.rank_state import RankState
from utils.kit.slow_memory import SlowMemory
from utils.worlds.virtual.engine import event_fields
from utils.worlds.virtual.network import VirtualCall

MOST_BYTES = 1 << 30  # that the ranks of one run may send and receive, together
MOST_CALLS, MOST_NOTES = 50_000, 100_000  # of one rank in one run


class Rank:
    """A rank as the hub knows it.

    waits_for   calls; it goes on when one of them has come. None when it waits for nothing of the kind
    answer      what it is told when its turn has come
    """

    def __init__(self, number: int, line: RankConnection):
        self.number, self.line = number, line
        self.clock = 0.0
        self.calls: list[VirtualCall] = []
        self.groups: set[tuple] = set()
        self.groups_made: list[Event] = []
        self.regions: list[Region] = []
        self.marks: set[float] = set()
        self.strides: dict[int, tuple] = {}
        self.unasked: dict[int, str] = {}
        self.lost: set[int] = set()
        self.untold: list[int] = []  # calls of which it does not know that they have come
        self.outputs: dict[int, list[torch.Tensor]] = {}
        self.waits_for: list[VirtualCall] | None = None
        self.answer: Callable[[], dict] | None = None
        self.notes = 0
        self.done: dict | None = None
        self.failure: Failure | None = None
        self.breach = ""
        self.over = False  # it will say no more

    def on_completed(self, call: VirtualCall) -> None:
        """The network says when the result of a call, for which it waits, is there."""
        self.clock = max(self.clock, call.end)
        for other in self.waits_for or ():
            other.waiter = None

    def how_it_went(self) -> str:
        return f"was stopped, for it sent the grader {self.breach}" if self.breach else "ended without a result"

    @property
    def state(self) -> RankState:
        return RankState(
            self.number,
            events=[Event(*event_fields(call)) for call in self.calls],
            groups_made=self.groups_made,
            waits={call.event.index: call.waited_at for call in self.calls if call.waited is not None},
            lost=self.lost,
            strides=self.strides,
            dropped=self.unasked if self.done else {},
            regions=self.regions,
            finished=self.done is not None,
        )


class Known:
    """What ranks mean that they can't send: room to receive into, or a memory that lies here.

    What all that they hand over takes here has an end.
    """

    def __init__(self, memories: list[SlowMemory]):
        self.memories, self.bytes_left = memories, MOST_BYTES

    def __call__(self, stands: Any) -> Any:
        if type(stands) is dict and "room" in stands:
            name, shape = stands["room"]
            self.take(math.prod(shape) * DTYPES[name].itemsize)
            return torch.zeros(shape, dtype=DTYPES[name])
        return self.memories[stands["memory"]]

    def take(self, nbytes: int) -> None:
        self.bytes_left -= nbytes
        if self.bytes_left < 0 or nbytes < 0:
            raise Breach(f"the ranks send and receive more than {MOST_BYTES >> 20} MB")
