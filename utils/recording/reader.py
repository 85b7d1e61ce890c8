"""How the launcher reads a rank's record while the rank is still writing it."""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from ..events.event import Event, Region
from ..events.memory_samples import MemoryNote
from ..events.rank_state import Gradient, RankState, ReplicaPrints, SamplerUse, Splits, TensorLayout
from .call_table import COLUMNS
from .notes import (
    CallFailed,
    CallKind,
    CallLayout,
    CallSkipped,
    CallSplits,
    DeviceTime,
    FrozenParameters,
    GradientOf,
    GroupBegun,
    GroupMade,
    GroupMembers,
    HandleNeverUsed,
    MessageLost,
    MessageSource,
    Note,
    ParameterIn,
    ParametersAre,
    RegionEnded,
    StepWithoutReduction,
    WaitLine,
    WorldLeft,
    unpack_notes,
)

_ROW = struct.Struct(f"={COLUMNS}d")
_HEADER = struct.Struct("=d")
Kind = TypeVar("Kind")


class RecordReader:
    """The launcher's view of what one rank has recorded so far."""

    def __init__(self, rank: int, calls: str, notes: str) -> None:
        """calls, notes: paths of the two files that the rank writes."""
        self.rank = rank
        self.notes: list[Note] = []
        self.partial_note = b""  # the beginning of a note that is still being written
        self.calls_file = open(calls, "rb", buffering=0)
        self.notes_file = open(notes, "rb", buffering=0)

    def close(self) -> None:
        self.calls_file.close()
        self.notes_file.close()

    def news(self) -> tuple[int, bytes]:
        """Read new notes. Returns something that changes whenever the rank writes, and is never the same again."""
        notes, self.partial_note = unpack_notes(self.partial_note + self.notes_file.read())
        self.notes += notes
        return len(self.notes), os.pread(self.calls_file.fileno(), _HEADER.size, 0)

    def state(self, finished: bool) -> RankState:
        """The rank as its record describes it; whether it has `finished`, the record does not say."""
        file = self.calls_file.fileno()
        table = os.pread(file, os.fstat(file).st_size, 0)
        self.news()  # after the table: what its rows refer to is noted before they are written
        return read_state(self.rank, self.notes, table, finished)


def read_state(rank: int, notes: Iterable[Note], table: bytes, finished: bool) -> RankState:
    """What a recorder wrote, as a RankState."""
    by_kind: dict[type, list[Any]] = defaultdict(list)
    for note in notes:
        by_kind[type(note)].append(note)

    def of(kind: type[Kind]) -> list[Kind]:
        return by_kind[kind]

    kinds = {kind.number: kind.fields() for kind in of(CallKind)}
    members = {group.group: group.members for group in of(GroupMembers)}
    lines = {line.number: line.where for line in of(WaitLine)}
    sources = {note.call: note.rank for note in of(MessageSource)}
    on_device = {note.call: note for note in of(DeviceTime)}
    ends = {group.number: group.end for group in of(GroupMade)}
    gradients: dict[int, list[Gradient]] = {}
    for part in of(GradientOf):
        gradients.setdefault(part.call, []).append(Gradient(part.fingerprint, part.name))
    state = RankState(
        rank,
        splits={note.call: Splits(note.received, note.sent, note.row) for note in of(CallSplits)},
        skipped=[(note.function, note.where) for note in of(CallSkipped)],
        left=next((note.where for note in reversed(of(WorldLeft))), ""),
        moved={note.call: Gradient(note.fingerprint, note.name) for note in of(ParameterIn)},
        samplers=of(SamplerUse),
        replicas=of(ReplicaPrints),
        frozen=next((note.fingerprints for note in of(FrozenParameters)), []),
        unreduced=next(((note.where, note.unused) for note in of(StepWithoutReduction)), None),
        groups_made=[
            making(
                rank, new.number, new.group, new.members, new.start, ends.get(new.number), new.where, new.description
            )
            for new in of(GroupBegun)
        ],
        failed={note.call for note in of(CallFailed)},
        lost={note.call for note in of(MessageLost)},
        unused_handles={note.call: note.where for note in of(HandleNeverUsed)},
        gradients=gradients,
        parameters={number for note in of(ParametersAre) for number in note.fingerprints},
        regions=[Region(rank, region.name, region.start, region.end) for region in of(RegionEnded)],
        finished=finished,
    )
    for layout in of(CallLayout):
        state.strides.setdefault(layout.call, TensorLayout(layout.shape, layout.strides))
    for index, (number, start, end, waited, line) in enumerate(rows(table)):
        if not number:
            continue
        kind = kinds[int(number)]
        if index in on_device:
            _, start, end = on_device[index]
        if index in sources:
            kind = kind | {"peer": sources[index]}
        if line:
            state.waits[index] = lines[int(line)]
        shared = {**kind, "members": members[kind["group"]]}
        state.events.append(Event(rank, index, start=start, end=end or None, waited=waited or None, **shared))
    return state


def rows(table: bytes) -> Iterator[tuple[float, ...]]:
    """(kind, start, end, waited, line) of each row."""
    whole = (len(table) - _HEADER.size) // _ROW.size * _ROW.size
    return _ROW.iter_unpack(memoryview(table)[_HEADER.size : _HEADER.size + whole])


def making(
    rank: int,
    number: int,
    group: str,
    members: Iterable[int],
    start: float,
    end: float | None,
    where: str,
    description: str = "",
) -> Event:
    """That a rank makes a group, in the form of an Event: it may have to wait for others in it. No Run contains it.

    description   what its maker calls it, as NewGroup has it; it takes the place of the wrapper
    """
    members = tuple(members)
    return Event(
        rank, number, "new_group", group, members, None, 0, 0, "", (), "", False, start, end, where, None, description
    )


def read_memory(notes: Iterable[Note]) -> list[MemoryNote]:
    """One MemoryNote for each stretch in which the rank's memory was tracked."""
    return [note for note in notes if isinstance(note, MemoryNote)]
