"""How the launcher reads what a rank records, while the rank still writes."""

from __future__ import annotations

import marshal
import os
import struct

from ..events.event import Event, Region
from .call_table import _SIZE, COLUMNS

_ROW = struct.Struct(f"={COLUMNS}d")
_HEADER = struct.Struct("=d")


def unpack_notes(data: bytes) -> tuple[list[tuple], bytes]:
    """The whole notes at the beginning of `data`, and the bytes of one that has only begun."""
    notes, at = [], 0
    while len(data) >= at + _SIZE.size and len(data) >= (end := at + _SIZE.size + _SIZE.unpack_from(data, at)[0]):
        notes.append(marshal.loads(data[at + _SIZE.size : end]))
        at = end
    return notes, data[at:]


class RecordReader:
    """The launcher's view of what one rank has recorded so far."""

    def __init__(self, rank: int, calls: str, notes: str):
        """calls, notes: the paths of the two files that the rank writes."""
        self.rank = rank
        self.notes: list[tuple] = []
        self.begun = b""  # a note of which only a part is there
        self.calls_file = open(calls, "rb", buffering=0)
        self.notes_file = open(notes, "rb", buffering=0)

    def close(self) -> None:
        self.calls_file.close()
        self.notes_file.close()

    def news(self) -> tuple:
        """Take in new notes. Returns something that is never the same again once the rank has written any more."""
        notes, self.begun = unpack_notes(self.begun + self.notes_file.read())
        self.notes += notes
        return len(self.notes), os.pread(self.calls_file.fileno(), _HEADER.size, 0)

    def state(self) -> dict[str, object]:
        """The fields of a RankState that come from the record."""
        file = self.calls_file.fileno()
        table = os.pread(file, os.fstat(file).st_size, 0)
        self.news()  # only now: what the rows refer to is noted before them
        return read_events(self.rank, self.notes, table)


def read_events(rank: int, notes: list[tuple], table: bytes) -> dict[str, object]:
    """What a recorder wrote (its notes are listed there), as the fields of a RankState."""
    tables: dict[str, dict] = {}
    regions = []
    for kind, key, value in notes:
        if kind == "region":
            regions.append(Region(rank, key, *value))
        elif kind != "memory":  # see read_memory
            tables.setdefault(kind, {}).setdefault(key, value)
    members, lines, sources = (tables.get(kind, {}) for kind in ("group", "line", "source"))
    made, on_device = (tables.get(kind, {}) for kind in ("made", "device"))
    kinds = {
        number: {**fields, "members": tuple(members[fields["group"]]), "shape": tuple(fields["shape"])}
        for number, fields in tables.get("call", {}).items()
    }
    events, waits = [], {}
    for index, (kind, start, end, waited, line) in enumerate(rows(table)):
        if not kind:
            continue
        fields = kinds[kind]
        if index in sources:
            fields = {**fields, "peer": sources[index]}
        if index in on_device:
            start, end = on_device[index]
        if line:
            waits[index] = lines[line]
        events.append(Event(rank=rank, index=index, start=start, end=end or None, waited=waited or None, **fields))
    return {
        "events": events,
        "groups_made": [
            making(rank, number, end=made.get(number), **fields) for number, fields in tables.get("make", {}).items()
        ],
        "waits": waits,
        "failed": set(tables.get("failed", ())),
        "lost": set(tables.get("lost", ())),
        "strides": tables.get("strides", {}),
        "dropped": tables.get("dropped", {}),
        "regions": regions,
    }


def rows(table: bytes):
    """(kind, start, end, waited, line) of each row."""
    whole = (len(table) - _HEADER.size) // _ROW.size * _ROW.size
    return _ROW.iter_unpack(memoryview(table)[_HEADER.size : _HEADER.size + whole])


def making(rank: int, number: int, group: str, members, start: float, end: float | None, where: str) -> Event:
    """That a rank makes a group, in the form of an Event: it may have to wait for others in it. Not one of a Run's."""
    return Event(rank, number, "new_group", group, tuple(members), None, 0, 0, "", (), "", False, start, end, where)


def read_memory(notes: list[tuple]) -> list[tuple[str, list, int]]:
    """From what a recorder wrote: (device, samples, peak) of each stretch in which the rank's memory was tracked."""
    return [(device, *value) for kind, device, value in notes if kind == "memory"]
