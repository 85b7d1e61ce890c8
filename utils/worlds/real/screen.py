"""What stands on the student's screen: the ranks' lines, and below them a live line, the bar that a rank draws now.

The live line is for somebody who looks on, and is overwritten in such a way that a notebook and a terminal end with the
text that there would be without it. Tools that store or compare a cell's output (nbclient, nbval) get none.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time

PATIENCE = 0.2  # seconds that a bar must last to be shown: a quick one leaves its last state only
REDRAW = 0.1  # seconds between two states of it
FLUSH = 0.05  # seconds between two flushes: each is a message, and Jupyter drops the output of a cell that sends many
WIDTH = 150  # characters of a live line; a terminal says how many it has
COLOUR = re.compile(r"\x1b\[[\d;]*m")
CONTROL = re.compile(r"[\x00-\x1a\x1c-\x1f\x7f]")  # tabs, bells, backspaces, ...: not one column wide


class Screen:
    """The screen as one world writes to it. Worlds that run in threads at the same time share what stands there."""

    lock = threading.Lock()
    live = ""  # the live line that stands there

    def __init__(self):
        self.rank: int | str | None = None  # whose bar we last saw,
        self.since = 0.0  # and since when
        self.drawn = 0.0  # when the live line was last written
        self.flushed, self.is_flushed = 0.0, True

    def show(self, lines: list[tuple[int, str]], bar: tuple[int | str, str] | None) -> None:
        """Write `lines`, pairs of a rank and whole lines, and below them `bar`, a rank's or one with a name, if it has
        lasted."""
        if sys.stdout is None:
            return
        text = can_be_written("".join(with_rank(*pair) for pair in lines))
        now = time.monotonic()
        live = can_be_written(self.live_line(bar, now))
        with self.lock:
            if text or (live != Screen.live and (not live or now - self.drawn >= REDRAW)):
                before, Screen.live = Screen.live, live
                self.drawn, self.is_flushed = now, False
                sys.stdout.write(in_place_of(before, text + live))
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
    """The same lines, each with its rank in front."""
    return f"[rank {rank}] " + lines[:-1].replace("\n", f"\n[rank {rank}] ") + "\n" if lines else ""


def can_be_written(text: str) -> str:
    """`text` with escapes for what the encoding of the screen lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def in_place_of(live: str, text: str) -> str:
    """What to write so that `text` stands where `live` stood, and nothing is left of it."""
    if not live:
        return text
    if is_terminal(sys.stdout):
        return "\r\x1b[K" + text
    # Notebooks write over what is there: what is longer has to be taken back, a character a backspace.
    first, _, _ = text.partition("\n")
    return "\b" * (notebook_length(live) - notebook_length(first)) + "\r" + text


def notebook_length(text: str) -> int:
    """How many characters a notebook's page counts: JavaScript counts one that is not in the basic plane twice."""
    return len(text.encode("utf-16-le")) // 2


def is_terminal(stream) -> bool:
    return hasattr(stream, "isatty") and stream.isatty()


def is_watched(stream) -> bool:
    """Whether somebody looks on while it is written: at a terminal, or in a notebook whose page can ask for input.

    What goes to a file is read later, and so is a cell that a tool runs (nbclient, nbval): those take no input.
    """
    if is_terminal(stream):
        return True
    jupyter = sys.modules.get("ipykernel.iostream")
    if jupyter is None or not isinstance(stream, jupyter.OutStream):
        return False
    shell = sys.modules["IPython"].get_ipython()
    return bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", True))
