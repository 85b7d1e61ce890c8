"""What a rank records, and how the launcher reads it while the rank still writes. Imports nothing heavy.

Two files for each rank, in the folder of the world. `notes-R` holds notes: what is said in words, once. `calls-R` is a
table of numbers with a row for each call to the network, of which there may be hundreds of thousands: the rank has that
file mapped into its memory, so that to write a number is no system call, and stays when the rank is killed right after.
"""

from __future__ import annotations

import errno
import marshal
import mmap
import os
import struct
import threading
from array import array

from utils.protocol import path_in
from utils.run import Event, Region

# The columns of a call's row, all floats. Times are in seconds since the world began; 0 says "not yet".
#   KIND   the number of the note ("call", number, fields) that says what is called; 0 where there is no call
#   LINE   the number of the note ("line", number, where) that says where the rank waits for it
COLUMNS = 5
KIND, START, END, WAITED, LINE = range(COLUMNS)
HEADER = 1  # in front of the rows: when the rank last wrote anything
_ROW = struct.Struct(f"={COLUMNS}d")
_HEADER = struct.Struct("=d")
_SIZE = struct.Struct("=I")
_PIECE = 8192  # floats by which a table grows; its bytes are a whole number of pages on every machine


class Table:
    """Calls as rows, in memory. `cells` is all of it: a call's row begins at HEADER + COLUMNS * index."""

    def __init__(self):
        self.cells = array("d", bytes(8 * _PIECE))

    def make_room(self, cells: int):
        """Have at least so many cells, and return all."""
        while len(self.cells) < cells:
            self.cells.extend(array("d", bytes(8 * _PIECE)))
        return self.cells


class SharedTable(Table):
    """The same in a file, for somebody who reads it at the same time."""

    def __init__(self, path: str):
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.lock = threading.Lock()
        self.cells = memoryview(b"").cast("d")
        self.make_room(HEADER)

    def make_room(self, cells: int):
        with self.lock:
            while len(self.cells) < cells:
                size = 8 * len(self.cells)
                # Written, not only made longer: then a full disk raises here. At an access it would kill the process.
                if os.pwrite(self.file, bytes(8 * _PIECE), size) < 8 * _PIECE:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self.cells = memoryview(mmap.mmap(self.file, size + 8 * _PIECE)).cast("d")
        return self.cells


def pack_note(note: tuple) -> bytes:
    """A note as bytes: their number, then marshal's, which is what Python packs fastest."""
    packed = marshal.dumps(note)
    return _SIZE.pack(len(packed)) + packed


def unpack_notes(data: bytes) -> tuple[list[tuple], bytes]:
    """The whole notes at the beginning of `data`, and the bytes of one that has only begun."""
    notes, at = [], 0
    while len(data) >= at + _SIZE.size and len(data) >= (end := at + _SIZE.size + _SIZE.unpack_from(data, at)[0]):
        notes.append(marshal.loads(data[at + _SIZE.size : end]))
        at = end
    return notes, data[at:]


def has_begun(folder: str, rank: int) -> bool:
    """Whether there is a Record to open: a rank makes its table first."""
    return os.path.exists(path_in(folder, "notes", rank))


class Record:
    """The launcher's view of what one rank has recorded so far."""

    def __init__(self, folder: str, rank: int):
        self.rank = rank
        self.notes: list[tuple] = []
        self.begun = b""  # a note of which only a part is there
        self.calls_file = open(path_in(folder, "calls", rank), "rb", buffering=0)
        self.notes_file = open(path_in(folder, "notes", rank), "rb", buffering=0)

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
