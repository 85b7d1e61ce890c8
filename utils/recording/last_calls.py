"""The record of a rank that may run for weeks: its last calls, and how many of each kind came before them.

What has been forgotten is still counted, for each group and each channel: the calls that are left meet the partners
that they had (see events/matching.py). So ranks may have forgotten different numbers of calls.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy
import torch

from ..events.collectives import POINT_TO_POINT
from ..events.event import Event
from ..events.failure import Failure, Frame
from ..events.matching import channel_of
from ..events.rank_state import RankState
from .call_table import COLUMNS, END, HEADER, KIND, START, WAITED, Table
from .notes import (
    BY_NAME,
    CallFailed,
    CallKind,
    GradientOf,
    GroupBegun,
    GroupMade,
    GroupMembers,
    MessageLost,
    MessageSource,
    Note,
    ParametersAre,
    WaitLine,
)
from .reader import read_state
from .recorder import Mark, Recorder

LAST = 2000  # calls that are kept
MOST = 4 * LAST  # kinds of calls, and channels with forgotten messages, that are kept
SIZE = COLUMNS * LAST
GET, SET, EMPTY = array.__getitem__, array.__setitem__, array("d", bytes(8 * COLUMNS))
OF_A_CALL = CallFailed | MessageLost | MessageSource | GradientOf
KEPT = CallKind | WaitLine | GroupMembers | GroupBegun | GroupMade | ParametersAre
Counted = tuple[Any, ...]  # (group, members) of a collective, (sender, receiver, group, tag) of a message


class Ring(array):  # type: ignore[type-arg]  # not generic when the program runs
    """The cells of a table of which only the last rows exist, by the numbers that they have in the whole table.

    `forget` is called with the index of each row that goes, and its kind.
    """

    def __new__(cls, forget: Callable[[int, int], None]) -> Ring:
        return super().__new__(cls, "d", bytes(8 * (HEADER + SIZE)))  # type: ignore[return-value]

    def __init__(self, forget: Callable[[int, int], None]) -> None:
        self.forget, self.begun, self.lock = forget, 0, threading.RLock()

    def __len__(self) -> int:
        return sys.maxsize  # so that nobody makes room

    def __getitem__(self, cell: Any) -> Any:
        return GET(self, cell and HEADER + (cell - HEADER) % SIZE)

    def __setitem__(self, cell: Any, value: Any) -> None:
        if cell:
            row = (cell - HEADER) // COLUMNS
            if row >= self.begun:
                self.begin(row)
            elif row < self.begun - LAST:
                return
            cell = HEADER + (cell - HEADER) % SIZE
        SET(self, cell, value)

    def begin(self, row: int) -> None:
        """Make place for this row, and for those before it that other threads are about to write."""
        with self.lock:
            for index in range(self.begun, row + 1):
                first = HEADER + COLUMNS * (index % LAST)
                if kind := GET(self, first + KIND):
                    self.forget(index - LAST, int(kind))
                SET(self, slice(first, first + COLUMNS), EMPTY)
            self.begun = max(self.begun, row + 1)

    def snapshot(self) -> tuple[int, Any]:
        """The index of the first row that is left, and all rows from it on, as an array [row, column]."""
        with self.lock:
            begun, data = self.begun, self.tobytes()
        rows = numpy.frombuffer(data)[HEADER:].reshape(LAST, COLUMNS)
        if begun <= LAST:
            return 0, rows[:begun]
        return begun - LAST, numpy.roll(rows, -(begun % LAST), axis=0)


class LastCalls(Recorder):
    """A recorder whose memory doesn't grow with the number of calls."""

    def __init__(self, zero: float) -> None:
        table = Table()
        self.ring = table.cells = Ring(self.forget)
        self.kept: list[Note] = []
        self.kinds: dict[int, CallKind] = {}
        self.keys: dict[int, tuple[Counted, tuple[str, str, str]]] = {}  # the count of each kind of call
        self.of_calls: dict[int, list[Any]] = defaultdict(list)
        self.counted: Counter[Counted] = Counter()
        self.lines: Counter[tuple[str, str, str]] = Counter()
        self.is_exact = True  # whether `counted` has everything
        self.on_gpu: dict[int, torch.cuda.Event] = {}  # calls that the GPU may not have carried out yet
        super().__init__(self.take, zero, table=table)
        self.gradients.searches_left = 3  # each takes up to a tenth of a second

    def take(self, note: Note) -> None:
        """Keep a note, if it says something about who waits for whom."""
        if isinstance(note, CallKind):
            if len(self.kinds) >= MOST:
                self.forget_kinds()
            self.kinds[note.number] = note
            is_message = note.op in POINT_TO_POINT
            counted: Counted = (note.op, note.peer, note.group, note.tag) if is_message else (note.group,)
            self.keys[note.number] = counted, (note.where, note.op, note.wrapper)
        elif isinstance(note, KEPT):
            self.kept.append(note)
        elif isinstance(note, OF_A_CALL) and note.call >= self.ring.begun - LAST:
            self.of_calls[note.call].append(note)

    def forget_kinds(self) -> None:
        """Of kinds such as a length that never comes again, keep those of the calls that are left."""
        used = set(self.ring.snapshot()[1][:, KIND].tolist())
        self.kinds = {number: kind for number, kind in self.kinds.items() if number in used}
        self.keys = {number: keys for number, keys in self.keys.items() if number in used}
        lines = {note.number for note in self.kept if isinstance(note, WaitLine)}
        self.numbers = {key: n for key, n in self.numbers.items() if n in self.kinds or n in lines}

    def forget(self, index: int, number: int) -> None:
        """A row goes: its call is only counted from now on."""
        notes = self.of_calls.pop(index, None) if self.of_calls else None
        if self.unused_handles:
            self.unused_handles.pop(index, None)
        if (keys := self.keys.get(number)) is None:
            self.is_exact = False
            return
        counted, line = keys
        source = next((note.rank for note in notes or () if isinstance(note, MessageSource)), None)
        self.counted[counted if source is None else (counted[0], source, *counted[2:])] += 1
        self.lines[line] += 1
        if len(self.counted) > MOST:  # a tag for each message, say
            self.counted.clear()
            self.is_exact = False

    # --- on a GPU, calls return before they are carried out; their times are of no use here

    def mark(self) -> Mark:
        return self.now()

    def span(self, kind: Literal["region", "device"], key: str | int, begin: Mark, end: Mark) -> None:
        if kind == "device" and isinstance(key, int) and torch.cuda.is_initialized():
            event = torch.cuda.Event()
            event.record()
            self.on_gpu[key] = event

    def left_to_the_gpu(self) -> list[int]:
        """Indices of the calls that the GPU has not carried out, oldest first. Asks the oldest first, and only those
        behind one that is done."""
        for index, event in list(self.on_gpu.items()):
            if not event.query():
                break
            del self.on_gpu[index]
        return list(self.on_gpu)

    # --- what others are told

    def progress(self) -> tuple[int, float, int]:
        """Something that changes with every call."""
        return self.ring.begun, self.ring[0], len(self.kept)

    def waiting(self) -> tuple[str, float] | None:
        """(group, since when) of the call that the rank waits in, in seconds since `zero`; None if it is in none."""
        made = {note.number for note in self.kept if isinstance(note, GroupMade)}
        for note in self.kept:
            if isinstance(note, GroupBegun) and note.number not in made:
                return note.group, note.start
        _, rows = self.ring.snapshot()
        for row in rows[(rows[:, KIND] > 0) & (rows[:, END] == 0)][::-1]:
            kind = self.kinds.get(int(row[KIND]))
            if kind is not None and (not kind.is_async or row[WAITED]):
                return kind.group, float(row[WAITED] or row[START])
        first = next(iter(self.left_to_the_gpu()), -1)
        kind = self.kinds.get(int(self.ring[HEADER + COLUMNS * first + KIND])) if first >= 0 else None
        return (kind.group, float(self.ring[HEADER + COLUMNS * first + START])) if kind is not None else None

    def record(self) -> dict[str, Any]:
        """All of this as plain data, which `states_of` understands after JSON as well. Calls count from 0."""
        first, rows = self.ring.snapshot()
        kinds = {int(number): kind for number, kind in self.kinds.items()}
        known = [row if int(row[KIND]) in kinds else [0.0] * COLUMNS for row in rows.round(6).tolist()]
        used = {int(row[KIND]) for row in known}
        of_calls = [n._replace(call=n.call - first) for notes in list(self.of_calls.values()) for n in list(notes)]
        notes = [*list(self.kept), *(kind for number, kind in kinds.items() if number in used)]
        return {
            "rows": known,
            "notes": [(type(note).__name__, *note) for note in (*notes, *of_calls) if getattr(note, "call", 0) >= 0],
            "counted": [[*key, number] for key, number in list(self.counted.items())],
            "lines": [[*key, number] for key, number in list(self.lines.items())],
            "on_gpu": [index - first for index in self.left_to_the_gpu() if index >= first],
            "is_exact": self.is_exact,
            "now": self.now(),
        }


def states_of(records: Mapping[int, Mapping[str, Any]]) -> dict[int, RankState]:
    """The state of each rank from its record, with the times of all moved to that of the one that began first.

    records   {rank: what `record` gave, with "finished" and "failure"}
    """
    latest = max(record["now"] for record in records.values())
    states = {rank: state_of(rank, record, latest - record["now"]) for rank, record in records.items()}
    before = {rank: counts_of(rank, record, states[rank]) for rank, record in records.items()}
    first: dict[Counted, int] = defaultdict(int)  # the first call of each group and channel that all still know
    for counts in before.values():
        for key, number in counts.items():
            first[key] = max(first[key], number)
    for rank, state in states.items():
        forget_before(first, before[rank], state)
    return states


def state_of(rank: int, record: Mapping[str, Any], later: float) -> RankState:
    notes = [as_note(later, *note) for note in record["notes"]]
    table = array("d", [0.0, *(cell for row in record["rows"] for cell in moved(row, later))]).tobytes()
    state = read_state(rank, notes, table, bool(record.get("finished")))
    state.forgotten = Counter({(where, op, wrapper): n for where, op, wrapper, n in record["lines"]})
    if on_gpu := list(record["on_gpu"]):
        state.events = [left_to_the_gpu(event, on_gpu) for event in state.events]
    if failure := record.get("failure"):
        kind, message, frames, time = failure
        state.failure = Failure(kind, message, tuple(Frame(*frame) for frame in frames), time + later)
    return state


def as_note(later: float, name: str, *fields: Any) -> Note:
    note: Any = BY_NAME[name](*(tuple(field) if isinstance(field, list) else field for field in fields))
    return note._replace(start=note.start + later) if isinstance(note, GroupBegun) else note


def moved(row: Sequence[float], later: float) -> list[float]:
    """A row with its times moved by so many seconds; 0 still means "not yet"."""
    kind, start, end, waited, line = row
    return [kind, start + later, end and end + later, waited and waited + later, line]


def left_to_the_gpu(event: Event, on_gpu: list[int]) -> Event:
    """A call as it is on the GPU: the rank waits for the first that isn't done, and the others come after it."""
    if event.index not in on_gpu:
        return event
    return replace(event, end=None, is_async=event.index != on_gpu[0])


def counts_of(rank: int, record: Mapping[str, Any], state: RankState) -> dict[Counted, int]:
    """How many calls of each group and channel the rank has forgotten."""
    members = {note[1]: tuple(note[2]) for note in record["notes"] if note[0] == GroupMembers.__name__}
    counts: dict[Counted, int] = {}
    for *key, number in record["counted"]:
        if len(key) == 1:
            counts[key[0], members[key[0]]] = number
        else:
            op, peer, group, tag = key
            counts[(rank, peer, group, tag) if op == "send" else (peer, rank, group, tag)] = number
    return counts


def forget_before(first: Mapping[Counted, int], before: Mapping[Counted, int], state: RankState) -> None:
    """Take away what the partners of a call may have forgotten."""
    seen: Counter[Counted] = Counter(before)
    left = []
    for event in state.events:
        key: Counted = channel_of(event) if event.op in POINT_TO_POINT else (event.group, event.members)
        place = seen[key]
        seen[key] += 1
        if place >= first.get(key, 0):
            left.append(event)
        else:
            state.forgotten[event.where, event.op, event.wrapper] += 1
    state.events = left
