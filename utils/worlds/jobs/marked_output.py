"""The prints of a rank that shares its process with a script: marked, shown at once, and kept for the Run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def marked_output(rank: int) -> Iterator[list[str]]:
    """What Python prints on stdout or stderr appears with "[rank 3] " in front of each line. Yields the lines."""
    kept: list[str] = []
    screen = sys.stdout.stream if isinstance(sys.stdout, Muted) else sys.stdout
    out, err = MarkedStream(screen, rank, kept), MarkedStream(sys.stderr, rank, kept)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield kept
    finally:
        out.close_line()
        err.close_line()


class MarkedStream:
    """Stands in front of `stream`. A line is passed on whole, so that lines of several processes don't mix."""

    def __init__(self, stream, rank: int, kept: list[str]):
        self.stream, self.mark, self.kept = stream, f"[rank {rank}] ", kept
        self.line, self.shown = "", 0  # the line that has not ended yet, and how much of it is on the screen
        self.lock = threading.Lock()

    def write(self, text: str) -> int:
        with self.lock:
            *ended, rest = text.split("\n")
            for part in ended:
                self.line += part
                self.kept.append(self.line.rstrip("\r").rpartition("\r")[2] + "\n")  # a progress bar: its last state
                self.line += "\n"
                self.show()
                self.line, self.shown = "", 0
            self.line += rest
        return len(text)

    def flush(self) -> None:
        """Shows a line that has only begun, too: a progress bar, or an `end=""` that can't wait."""
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

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


class Muted:
    """Stands in front of `stream` and lets nothing through."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)
