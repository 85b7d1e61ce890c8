"""One rank of a graded run as the hub sees it, and the values that ranks name without sending them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from grader.inside.codec import DTYPES, Breach
from grader.judging.rank_connection import RankConnection
from grader.judging.untrusted import index_into
from utils.events.event import Event, Region
from utils.events.failure import Failure
from utils.events.rank_state import RankState, TensorLayout
from utils.kit.slow_memory import SlowMemory
from utils.kit.witness import Witness
from utils.worlds.virtual.calls import VirtualCall
from utils.worlds.virtual.simulated_world import event_fields

Stays = SlowMemory | Witness  # objects that a check hands to its ranks and the hub keeps: they get stand-ins
Kept = TypeVar("Kept", SlowMemory, Witness)
NAMES: dict[type, str] = {SlowMemory: "memory", Witness: "witness"}
MAX_BYTES = 1 << 29  # sent and received by all ranks of one run together
MAX_CALLS, MAX_OTHER_MESSAGES = 50_000, 100_000  # per rank and run
MAX_CLAIMS = 500_000  # spans of computing, or samples of memory; in CPU_SECONDS no rank can make so many


class RankResult(NamedTuple):
    """What a rank's call of the student's function came to.

    result        what it returned
    inputs_after  its inputs after the call, as `state_of` in inside/rank.py describes them
    shared        whether the result shares memory with an input
    """

    result: Any
    inputs_after: list[Any]
    shared: bool


class Finished(NamedTuple):
    """The last message of a rank whose program returned."""

    result: RankResult
    busy: list[Region]
    memory: list[tuple[float, str, int]]
    printed: str


class RankOfHub:
    """A rank as the hub sees it.

    waits_for   the calls that it waits for: it continues when the first of them is done. None when it waits for no call
    reply       makes the answer that it gets when its turn comes; None when it expects none
    """

    def __init__(self, number: int, connection: RankConnection):
        self.number, self.connection = number, connection
        self.clock = 0.0
        self.calls: list[VirtualCall] = []
        self.groups: set[tuple[str, tuple[int, ...]]] = set()
        self.groups_made: list[Event] = []
        self.regions: list[Region] = []
        self.marks: list[float] = []  # when its regions began and ended
        self.shared: list[Event] = []  # its uses of what ranks share besides messages: see hub_storage.py
        self.strides: dict[int, TensorLayout] = {}
        self.unused_handles: dict[int, str] = {}
        self.lost: set[int] = set()
        self.tiles: dict[tuple[int, int], torch.Tensor] = {}  # (memory, number of the load) -> on the chip
        self.unreported: list[int] = []  # calls whose completion it has not been told yet
        self.outputs: dict[int, Sequence[torch.Tensor]] = {}
        self.waits_for: list[VirtualCall] | None = None
        self.reply: Callable[[], dict[str, Any]] | None = None
        self.messages = 0
        self.finished: Finished | None = None
        self.failure: Failure | None = None
        self.breach = ""
        self.over = False  # it sends nothing more

    def on_completed(self, call: VirtualCall) -> None:
        """The network calls this when a call that the rank waits for is done."""
        self.clock = max(self.clock, call.end or 0.0)
        for other in self.waits_for or ():
            other.waiter = None

    def how_it_ended(self) -> str:
        return f"was stopped because it sent the grader {self.breach}" if self.breach else "ended without a result"

    def answer(self, **answer: Any) -> None:
        self.connection.answer(answer)

    @property
    def state(self) -> RankState:
        return RankState(
            self.number,
            events=[Event(*event_fields(call)) for call in self.calls],
            groups_made=self.groups_made,
            waits={call.event.index: call.waited_at for call in self.calls if call.waited is not None},
            lost=self.lost,
            strides=self.strides,
            unused_handles=self.unused_handles if self.finished else {},
            regions=self.regions,
            finished=self.finished is not None,
        )


class Placeholders:
    """Resolves the placeholders in messages: a buffer to receive into, or a SlowMemory that lives here.

    It also counts all bytes that arrive, and ends the run once they exceed MAX_BYTES.
    """

    def __init__(self, stays: Sequence[Stays]):
        self.stays, self.bytes_left = stays, MAX_BYTES

    def resolve(self, placeholder: Any) -> Any:
        if type(placeholder) is dict and "buffer" in placeholder:
            name, shape = placeholder["buffer"]
            self.count(math.prod(shape) * DTYPES[name].itemsize)
            return torch.zeros(shape, dtype=DTYPES[name])
        if "memory" in placeholder:
            return stay_of(SlowMemory, self.stays, placeholder["memory"])
        return stay_of(Witness, self.stays, placeholder["witness"])

    def count(self, nbytes: int) -> None:
        self.bytes_left -= nbytes
        if self.bytes_left < 0 or nbytes < 0:
            raise Breach(f"more than {MAX_BYTES >> 20} MB, counting what all ranks send and receive")


def stay_of(kind: type[Kept], stays: Sequence[Stays], number: Any) -> Kept:
    """The object of this kind that a rank names by its number. Raises Breach."""
    found = stays[index_into(stays, number)]
    if not isinstance(found, kind):
        raise Breach(f"the number of something that is not a {NAMES[kind]}")
    return found
