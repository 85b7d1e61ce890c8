"""What a rank notes in addition to its table of calls: one class for each kind of note, some of them in events/.

They hold only what marshal, Python's fastest way to pack, can pack: numbers, text, and tuples or lists of them. `call`
is the index of a call, which is its row in the table.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from ..events.event import Event
from ..events.memory_samples import MemoryNote
from ..events.rank_state import ReplicaPrints, SamplerUse

SIZE = struct.Struct("=I")  # the length of a packed note, in front of it


class CallKind(NamedTuple):
    """What all calls whose row has this number as its KIND share: fields of Event."""

    number: int
    op: str
    group: str
    peer: int | None
    tag: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    reduce_op: str
    is_async: bool
    where: str
    wrapper: str
    callers: tuple[str, ...]
    part: str
    thread: str

    @classmethod
    def of(cls, event: Event, number: int) -> CallKind:
        return cls(number, *(getattr(event, name) for name in cls._fields[1:]))

    def fields(self) -> dict[str, Any]:
        """{field of Event: value}."""
        return dict(zip(self._fields[1:], self[1:], strict=True))


class WaitLine(NamedTuple):
    """What this number means as the LINE of a row."""

    number: int
    where: str


class GroupMembers(NamedTuple):
    """Written before the first call on a group."""

    group: str
    members: tuple[int, ...]


class CallFailed(NamedTuple):
    """A call raised."""

    call: int
    time: float


class MessageLost(NamedTuple):
    """The handle of a message was thrown away before anything had waited for it."""

    call: int
    time: float


class MessageSource(NamedTuple):
    """Which rank sent what a receive from any source has received."""

    call: int
    rank: int


class CallLayout(NamedTuple):
    """A call has a tensor that is not contiguous."""

    call: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class CallSplits(NamedTuple):
    """How many rows an all-to-all is to receive from each rank of its group, and to send to each."""

    call: int
    received: tuple[int, ...]
    sent: tuple[int, ...]
    row: int


class CallSkipped(NamedTuple):
    """torch has skipped a call, since the rank is not in the group that it is for."""

    function: str
    where: str
    time: float


class WorldLeft(NamedTuple):
    """The rank has called destroy_process_group."""

    where: str
    time: float


class GroupBegun(NamedTuple):
    """The rank begins to make a group (new_group, or a device mesh)."""

    number: int
    group: str
    members: tuple[int, ...]
    start: float
    where: str
    description: str


class GroupMade(NamedTuple):
    """The group of this number is there, or making it has raised."""

    number: int
    end: float


class GradientOf(NamedTuple):
    """A call reduces the gradient of a parameter with this fingerprint of its values, and this name in its model.

    Several of one call follow one another in its tensor.
    """

    call: int
    fingerprint: int
    name: str


class ParameterIn(NamedTuple):
    """A call sends or fills a parameter itself, which had this fingerprint when it was first seen."""

    call: int
    fingerprint: int
    name: str


class FrozenParameters(NamedTuple):
    """(name, fingerprint) of the parameters that are not trained, when the first step is taken beside a DDP model."""

    fingerprints: list[tuple[str, int]]


class StepWithoutReduction(NamedTuple):
    """An optimizer has taken a step with gradients that DDP has not reduced; unused: parameters that have none."""

    where: str
    unused: list[str]


class ParametersAre(NamedTuple):
    """Fingerprints of all parameters that the rank has."""

    fingerprints: list[int]


class HandleNeverUsed(NamedTuple):
    """The program is over and never asked this handle for its result."""

    call: int
    where: str


class RegionEnded(NamedTuple):
    """A stretch of compute with a name is over."""

    name: str
    start: float
    end: float


class DeviceTime(NamedTuple):
    """When the GPU worked on a call; known once the program is over."""

    call: int
    start: float
    end: float


Note = (
    CallKind
    | WaitLine
    | GroupMembers
    | CallFailed
    | MessageLost
    | MessageSource
    | CallLayout
    | CallSplits
    | CallSkipped
    | WorldLeft
    | GroupBegun
    | GroupMade
    | GradientOf
    | ParametersAre
    | ParameterIn
    | ReplicaPrints
    | StepWithoutReduction
    | FrozenParameters
    | SamplerUse
    | HandleNeverUsed
    | RegionEnded
    | DeviceTime
    | MemoryNote
)
BY_NAME: dict[str, Callable[..., Note]] = {kind.__name__: kind for kind in get_args(Note)}


def pack_note(note: Note) -> bytes:
    packed = marshal.dumps((type(note).__name__, *note))  # marshal refuses subclasses of tuple
    return SIZE.pack(len(packed)) + packed


def unpack_notes(data: bytes) -> tuple[list[Note], bytes]:
    """The whole notes at the beginning of `data`, and the bytes after them: part of a note that is still written."""
    notes, at = [], 0
    while len(data) >= at + SIZE.size and len(data) >= (end := at + SIZE.size + SIZE.unpack_from(data, at)[0]):
        name, *fields = marshal.loads(data[at + SIZE.size : end])
        notes.append(BY_NAME[name](*fields))
        at = end
    return notes, data[at:]
