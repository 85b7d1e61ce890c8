"""The ranks' prints, in an order that is the same in every run.

Lines are sorted by the number of collectives on the whole world that their rank had called when it ended the line,
then by rank, then in the order of printing. A line is passed on as soon as nothing that belongs before it can still
come; the last state of a progress bar, as soon as it is certain to be the last.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from ..common.framing import Framing, is_only
from ..common.protocol import FINISHED, SYNCHRONISED

UP = b"\x1b[A"  # one row up: tqdm goes down to draw a nested bar, and comes back
_MOVE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-ln-~]")  # moves a terminal's cursor or clears it: every escape but colours


class OrderedOutput:
    """Takes the bytes that ranks write, in any order. `ready()` yields the lines that may be shown."""

    def __init__(self, world_size: int):
        self.text: list[list[str]] = [[] for _ in range(world_size)]  # per rank, what has been passed on
        self._ranks = [_RankOutput() for _ in range(world_size)]
        self._epoch, self._rank = 0, 0  # the rank whose turn it is

    def feed(self, rank: int, data: bytes) -> None:
        """Take in bytes that `rank` has written."""
        self._ranks[rank].feed(data)

    def is_closed(self, rank: int) -> bool:
        """Whether `rank` has said that it is finished, or has been closed."""
        return self._ranks[rank].closed

    def close(self, rank: int) -> None:
        """Nothing more will come from `rank`."""
        self._ranks[rank].close()

    def ready(self) -> Iterator[tuple[int, str]]:
        """(rank, one or more whole lines), for all that may be shown now."""
        while unspent := [rank for rank in self._ranks if not rank.is_spent]:
            current = self._ranks[self._rank]
            while current.lines and current.lines[0][0] <= self._epoch:
                lines = current.lines.popleft()[1]
                self.text[self._rank].append(lines)
                yield self._rank, lines
            if not current.closed and current.epoch <= self._epoch:
                return
            self._rank += 1
            if self._rank == len(self._ranks):
                self._epoch, self._rank = min(rank.next_epoch for rank in unspent), 0

    def bar(self) -> tuple[int, str] | None:
        """The lowest rank that is drawing a progress bar, and how it looks now."""
        return next(((rank, bar) for rank, output in enumerate(self._ranks) if (bar := output.bar())), None)


class _RankOutput:
    """Turns what one rank writes into lines.

    A row that is overwritten (\\r) is a progress bar: only its last state becomes a line. When such a row has ended, it
    waits for what comes next, because tqdm may just have gone down to draw a nested bar once, and will come back. Then
    the row has not ended after all, and what is drawn next is its new state.
    """

    def __init__(self) -> None:
        self.lines: deque[tuple[int, str]] = deque()  # (epoch, whole lines), not yet passed on
        self.epoch = 0
        self.closed = False
        self._row = [b""]  # the row that has not ended yet, in pieces; if it holds a \r, then in the first
        self._bar: bytes | None = None  # a bar's row that has ended and waits
        self._below = 0  # rows between it and the cursor
        self._framing = Framing(SYNCHRONISED, FINISHED, UP)

    @property
    def is_spent(self) -> bool:
        return self.closed and not self.lines

    @property
    def next_epoch(self) -> int:
        """The epoch of the first line that has not been passed on, or of the next one that can come."""
        return self.lines[0][0] if self.lines else self.epoch

    def feed(self, data: bytes) -> None:
        if not self._framing.tail and is_only(SYNCHRONISED, data):  # the usual case where ranks communicate much
            self._settle()
            self.epoch += len(data) // len(SYNCHRONISED)
            return
        for mark, text in self._framing.split(data):
            if mark == SYNCHRONISED:
                self._settle()
                self.epoch += 1
            elif mark == FINISHED:
                self._close()
            elif mark == UP:
                self._come_back()
            else:
                self._write(text)

    def close(self) -> None:
        self._write(self._framing.rest())
        self._close()

    def _close(self) -> None:
        if any(self._row):
            self._end_row()
        self._settle()
        self.closed = True

    def bar(self) -> str:
        """The bar that is being drawn, as it looks now; "" if there is none."""
        if self._bar is not None:
            return _last_state(_decode(self._bar))
        return _last_state(_decode(b"".join(self._row))) if b"\r" in self._row[0] else ""

    def _write(self, text: bytes) -> None:
        if self._bar is None and b"\r" not in self._row[0] and b"\r" not in text:
            ended, newline, begun = text.rpartition(b"\n")
            if newline:  # the usual and quick case: many lines at once
                self._add_lines(b"".join(self._row) + ended)
                self._row = [begun]
            else:
                self._row.append(begun)
        else:
            *rows, begun = text.split(b"\n")
            for rest in rows:
                self._extend_row(rest)
                self._end_row()
            self._extend_row(begun)

    def _extend_row(self, text: bytes) -> None:
        self._row.append(text)
        if self._bar is not None or b"\r" in text:
            row = b"".join(self._row)
            last = max(row.rstrip(b"\r").rfind(b"\r"), 0)  # start of the last state
            is_drawn_again = row[:last].strip(b"\r ") != b""
            if row and (row[last : last + 1] != b"\r" or is_drawn_again):  # not a nested bar that is drawn once
                self._settle()
            self._row = [row[last:]]

    def _end_row(self) -> None:
        row = b"".join(self._row)
        self._row = [b""]
        if self._bar is not None and not row:
            self._below += 1
            return
        self._settle()
        if b"\r" in row.rstrip(b"\r"):
            self._bar, self._below = row, 1
        else:
            self._add_lines(row)

    def _come_back(self) -> None:
        if self._bar is not None:
            self._below -= 1
            if self._below == 0:
                drawn = b"".join(self._row)
                self._row = [drawn if drawn.strip(b"\r ") else self._bar]
                self._bar = None

    def _settle(self) -> None:
        """The waiting bar is final."""
        if self._bar is not None:
            self._add_lines(self._bar + b"\n" * (self._below - 1))
            self._bar = None

    def _add_lines(self, rows: bytes) -> None:
        text = _decode(rows)
        if "\r" in text:
            text = "\n".join(map(_last_state, text.split("\n")))
        self.lines.append((self.epoch, text + "\n"))


def _decode(rows: bytes) -> str:
    text = rows.decode("utf-8", errors="backslashreplace")
    return _MOVE.sub("", text) if "\x1b" in text else text


def _last_state(row: str) -> str:
    """What a row shows after all the overwriting, without the spaces that wiped out a longer state."""
    _, overwritten, last = row.rstrip("\r").rpartition("\r")
    return last.rstrip(" ") if overwritten else last
