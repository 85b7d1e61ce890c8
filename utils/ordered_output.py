"""The ranks' prints, in an order that does not depend on luck.

Lines sort by how many collectives on the whole world their rank had called when it ended them, then by rank, then as
printed. A line is passed on as soon as nothing that belongs before it can still come.
"""

from __future__ import annotations

import re
from collections import deque

from utils.protocol import FINISHED, SYNCHRONISED

MARKS = (SYNCHRONISED, FINISHED)
_END = re.compile(b"\n|" + b"|".join(map(re.escape, MARKS)))


class OrderedOutput:
    """Takes the bytes that ranks write, in any order; `ready()` gives the lines that may be shown, as (rank, text)."""

    def __init__(self, world_size: int):
        self.text = [[] for _ in range(world_size)]  # per rank: its lines, as printed
        self._ranks = [_RankOutput() for _ in range(world_size)]
        self._epoch, self._rank = 0, 0  # whose turn it is

    def feed(self, rank: int, data: bytes) -> None:
        """`data` has come from `rank`."""
        self._ranks[rank].feed(data)

    def is_closed(self, rank: int) -> bool:
        """Whether `rank` has said that it is finished, or been closed."""
        return self._ranks[rank].closed

    def close(self, rank: int) -> None:
        """No more will come from `rank`."""
        self._ranks[rank].close()

    def ready(self):
        while any(not rank.is_spent for rank in self._ranks):
            current = self._ranks[self._rank]
            while current.lines and current.lines[0][0] <= self._epoch:
                line = current.lines.popleft()[1]
                self.text[self._rank].append(line)
                yield self._rank, line
            if not current.closed and current.epoch <= self._epoch:
                return
            self._rank += 1
            if self._rank == len(self._ranks):
                self._epoch, self._rank = self._epoch + 1, 0


class _RankOutput:
    def __init__(self):
        self.lines: deque[tuple[int, str]] = deque()  # (epoch, line), not yet passed on
        self.epoch = 0
        self.closed = False
        self._begun: list[bytes] = []  # pieces of the line that has not ended yet
        self._tail = b""  # the last bytes seen: a mark may come in two reads

    @property
    def is_spent(self) -> bool:
        return self.closed and not self.lines

    def feed(self, data: bytes) -> None:
        data, self._tail = self._tail + data, b""
        done = 0
        for end in _END.finditer(data):
            self._begun.append(data[done : end.start()])
            done = end.end()
            if end[0] == b"\n":
                self._end_line()
            elif end[0] == SYNCHRONISED:
                self.epoch += 1
            else:
                self.close()
        keep = _length_of_begun_mark(data[done:])
        self._begun.append(data[done : len(data) - keep])
        self._tail = data[len(data) - keep :]

    def close(self) -> None:
        self._begun.append(self._tail)
        self._tail = b""
        if any(self._begun):
            self._end_line()
        self.closed = True

    def _end_line(self) -> None:
        text = b"".join(self._begun).decode("utf-8", errors="backslashreplace")
        self._begun = []
        self.lines.append((self.epoch, text.rstrip("\r").rpartition("\r")[2]))  # a progress bar: its last state


def _length_of_begun_mark(data: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of a mark."""
    begin = data.rfind(MARKS[0][:1], -max(map(len, MARKS)))
    return len(data) - begin if begin >= 0 and any(mark.startswith(data[begin:]) for mark in MARKS) else 0
