"""The table in which a rank records its calls while it runs: one row of numbers per call."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from array import array

# The columns of a call's row, all floats. Times are in seconds since the world began; 0 means "not yet".
#   KIND   the number of the CallKind that describes the call; 0 where there is no call
#   LINE   the number of the WaitLine where the rank waits for it
COLUMNS = 5
KIND, START, END, WAITED, LINE = range(COLUMNS)
HEADER = 1  # in front of the rows: when the rank last wrote anything
_PIECE = 8192  # floats by which a table grows; their bytes are a whole number of pages on every machine


class Table:
    """Calls as rows, in memory. `cells` holds everything: a call's row begins at HEADER + COLUMNS * index."""

    cells: array[float] | memoryview[float]

    def __init__(self) -> None:
        self.cells = self.floats = array("d", bytes(8 * _PIECE))

    def make_room(self, cells: int) -> array[float] | memoryview[float]:
        """Grow to at least this many cells, and return them all."""
        while len(self.cells) < cells:
            self.floats.extend(array("d", bytes(8 * _PIECE)))
        return self.cells


class SharedTable(Table):
    """The same in a file, which another process reads meanwhile."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.lock = threading.Lock()
        self.cells = memoryview(b"").cast("d")
        self.make_room(HEADER)

    def make_room(self, cells: int) -> array[float] | memoryview[float]:
        with self.lock:
            while len(self.cells) < cells:
                size = 8 * len(self.cells)
                # Written, not just made longer: so a full disk raises here, where an access would kill the process.
                if os.pwrite(self.file, bytes(8 * _PIECE), size) < 8 * _PIECE:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self.cells = memoryview(mmap.mmap(self.file, size + 8 * _PIECE)).cast("d")
        return self.cells
