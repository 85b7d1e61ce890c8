"""The prints of a rank that shares its process with a script: marked, shown at once, and recorded for the Run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO


@contextlib.contextmanager
def marked_output(rank: int) -> Iterator[list[str]]:
    """Whatever Python prints appears with "[rank 3] " in front of each line. Yields the lines so far."""
    lines: list[str] = []
    screen = sys.stdout.stream if isinstance(sys.stdout, Muted) else sys.stdout
    out, err = MarkedStream(screen, rank, lines), MarkedStream(sys.stderr, rank, lines)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield lines
    finally:
        out.close_line()
        err.close_line()


class MarkedStream:
    """Stands in front of `stream`. Passes on whole lines, so that the lines of several processes don't mix."""

    def __init__(self, stream: TextIO, rank: int, lines: list[str]):
        self.stream, self.mark, self.lines = stream, f"[rank {rank}] ", lines
        self.line = ""  # the one that has not ended yet
        self.shown = 0  # number of its characters on the screen
        self.lock = threading.Lock()

    def write(self, text: str) -> int:
        with self.lock:
            *ended, rest = text.split("\n")
            for part in ended:
                self.line += part
                self.lines.append(self.line.rstrip("\r").rpartition("\r")[2] + "\n")  # a progress bar: its last state
                self.line += "\n"
                self.show()
                self.line, self.shown = "", 0
            self.line += rest
        return len(text)

    def flush(self) -> None:
        """Show what there is of an unfinished line, too: a progress bar, or a print with `end=""`."""
        with self.lock:
            self.show()

    def show(self) -> None:
        if new := self.line[self.shown :]:
            beginning = "" if self.shown else self.mark
            self.stream.write(beginning + new.rstrip("\r").replace("\r", "\r" + self.mark))
            self.stream.flush()
            self.shown = len(self.line)

    def close_line(self) -> None:
        if self.line:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Muted:
    """Stands in front of `stream` and lets nothing through."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
