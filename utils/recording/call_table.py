"""What a rank writes while it runs: a table with one row of numbers per call, and notes for what needs words."""

from __future__ import annotations

import errno
import marshal
import mmap
import os
import struct
import threading
from array import array

# The columns of a call's row, all floats. Times are in seconds since the world began; 0 says "not yet".
#   KIND   the number of the note ("call", number, fields) that says what is called; 0 where there is no call
#   LINE   the number of the note ("line", number, where) that says where the rank waits for it
COLUMNS = 5
KIND, START, END, WAITED, LINE = range(COLUMNS)
HEADER = 1  # in front of the rows: when the rank last wrote anything
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
