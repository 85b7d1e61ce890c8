"""What the student sees: the ranks' lines, and below them a live line, the progress bar that a rank is drawing.

The live line is for someone who is watching. It is overwritten in such a way that the text left in a notebook or a
terminal is the same as without it. Tools that store or compare a cell's output (nbclient, nbval) get no live line.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from typing import Any

PATIENCE = 0.2  # seconds that a bar must last to be shown: of a quick one, only the last state appears
REDRAW = 0.1  # seconds between two states of a bar
FLUSH = 0.05  # seconds between two flushes: each is a message, and Jupyter drops the output of a cell that sends many
WIDTH = 150  # characters of a live line, unless a terminal says how many it has
COLOUR = re.compile(r"\x1b\[[\d;]*m")
CONTROL = re.compile(r"[\x00-\x1a\x1c-\x1f\x7f]")  # tabs, bells, backspaces, ...: not one column wide


class Screen:
    """The screen, as one world writes to it. Worlds that run at the same time, in threads, share the live line."""

    lock = threading.Lock()
    live = ""  # the live line that is on the screen now

    def __init__(self) -> None:
        self.rank: int | str | None = None  # owner of the bar seen last
        self.since = 0.0  # since when it has been that one's
        self.drawn = 0.0  # time at which the live line was last written
        self.flushed, self.is_flushed = 0.0, True

    def show(self, lines: list[tuple[int, str]], bar: tuple[int | str, str] | None) -> None:
        """Write `lines`, pairs of a rank and whole lines, and below them `bar`, if it has lasted long enough.

        bar   (rank or name, its state)
        """
        if sys.stdout is None:
            return
        text = printable("".join(with_rank(*pair) for pair in lines))
        now = time.monotonic()
        live = printable(self.live_line(bar, now))
        with self.lock:
            if text or (live != Screen.live and (not live or now - self.drawn >= REDRAW)):
                before, Screen.live = Screen.live, live
                self.drawn, self.is_flushed = now, False
                sys.stdout.write(text_to_replace(before, text + live))
        if now - self.flushed >= FLUSH:
            self.flush()

    def flush(self) -> None:
        if not self.is_flushed:
            self.flushed, self.is_flushed = time.monotonic(), True
            sys.stdout.flush()

    def live_line(self, bar: tuple[int | str, str] | None, now: float) -> str:
        rank, state = bar or (None, "")
        if rank != self.rank:
            self.rank, self.since = rank, now
        if rank is None or now - self.since < PATIENCE or not is_watched(sys.stdout):
            return ""
        line = (f"[rank {rank}] " if isinstance(rank, int) else f"[{rank}] ") + CONTROL.sub(" ", state)
        width = shutil.get_terminal_size((WIDTH, 0)).columns - 1  # a line that wraps can't be overwritten
        return line if len(line) <= width else COLOUR.sub("", line)[:width]


def with_rank(rank: int, lines: str) -> str:
    """The same lines, each with "[rank N] " in front."""
    return f"[rank {rank}] " + lines[:-1].replace("\n", f"\n[rank {rank}] ") + "\n" if lines else ""


def printable(text: str) -> str:
    """`text` with escapes for the characters that the screen's encoding lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def text_to_replace(live: str, text: str) -> str:
    """What to write so that `text` takes the place of the live line `live`, and nothing is left of that."""
    if not live:
        return text
    if is_terminal(sys.stdout):
        return "\r\x1b[K" + text
    # A notebook overwrites character by character, so whatever is longer must be deleted with backspaces.
    first, _, _ = text.partition("\n")
    return "\b" * (notebook_length(live) - notebook_length(first)) + "\r" + text


def notebook_length(text: str) -> int:
    """The length as a notebook's page counts it: to JavaScript, a character outside the basic plane counts as two."""
    return len(text.encode("utf-16-le")) // 2


def is_terminal(stream: Any) -> bool:
    return hasattr(stream, "isatty") and bool(stream.isatty())


def is_watched(stream: Any) -> bool:
    """Whether someone is watching: at a terminal, or in a notebook whose page can ask for input.

    A file is read later, and so is the output of a cell that a tool runs (nbclient, nbval): those take no input.
    """
    if is_terminal(stream):
        return True
    jupyter = sys.modules.get("ipykernel.iostream")
    if jupyter is None or not isinstance(stream, jupyter.OutStream):
        return False
    shell = sys.modules["IPython"].get_ipython()
    return bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", True))
