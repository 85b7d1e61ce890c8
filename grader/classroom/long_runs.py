"""What a command of many minutes needs: an end in one sentence after Ctrl-C, and a sign of life without a terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

CLEANING_UP = 15  # seconds, in which further Ctrl-C are ignored
MINUTE = 60.0  # seconds
STOPPED = "stopped: all finished judgements are kept, and the same command continues from here"


@contextmanager
def handling_interrupts(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Let this handle Ctrl-C in the `with` block, here and in processes started there. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ends_in_a_sentence(words: str = STOPPED) -> Iterator[None]:
    """Make Ctrl-C in the `with` block end the program with these words, after what it has started is ended.

    Further ones that arrive meanwhile don't interrupt that, whether they come at once or from impatience.
    """
    last = float("-inf")

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if monotonic() - last > CLEANING_UP:
            last = monotonic()
            raise KeyboardInterrupt

    try:
        with handling_interrupts(stop):
            yield
    except KeyboardInterrupt:
        raise SystemExit(words) from None


@contextmanager
def a_line_every(seconds: float, line: Callable[[], str], wanted: bool = True) -> Iterator[None]:
    """Print a line again and again during the `with` block, if that is wanted."""
    ended = threading.Event()

    def say() -> None:
        while not ended.wait(seconds):
            print(line(), flush=True)

    if not wanted:
        yield
        return
    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Pace:
    """How far a long run is, in words."""

    def __init__(self, what: str, all_of_them: int) -> None:
        self.what, self.all, self.done, self.began = what, all_of_them, 0, monotonic()

    def __str__(self) -> str:
        passed = monotonic() - self.began
        left = passed / self.done * (self.all - self.done) if self.done else None
        rest = "" if left is None else f", about {max(1, round(left / MINUTE))} min left"
        return f"{self.what}: {self.done} of {self.all} after {round(passed / MINUTE)} min{rest}"
