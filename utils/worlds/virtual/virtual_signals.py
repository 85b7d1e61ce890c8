"""Signals, as a virtual rank sees them: it may say what to do on one, as scripts do that a cluster may stop.

Python lets only the main thread of a process do that, and ranks are threads. So each rank's handlers are kept here.
Nobody but the rank itself sends it a signal, and in virtual time no alarm goes off.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from .scheduler import Scheduler

HANDLERS = (signal.SIG_DFL, signal.SIG_IGN)


set_real, get_real, raise_real, kill_real = signal.signal, signal.getsignal, signal.raise_signal, os.kill


class Signals:
    """The handlers of all ranks, and Python's functions as a rank calls them."""

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.handlers: dict[tuple[int, int], Any] = {}  # (rank, signal) -> what `signal.signal` was given

    def in_rank(self) -> bool:
        running = self.scheduler.running
        return running is not None and running.ident == threading.get_ident()

    def key(self, number: int) -> tuple[int, int]:
        assert self.scheduler.running is not None
        return self.scheduler.running.number, signal.Signals(number)

    def set_handler(self, number: int, handler: Any) -> Any:
        if not self.in_rank():
            return set_real(number, handler)
        if not callable(handler) and handler not in HANDLERS:
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        before = self.get_handler(number)
        self.handlers[self.key(number)] = handler
        return before

    def get_handler(self, number: int) -> Any:
        real = get_real(number)
        return self.handlers.get(self.key(number), real) if self.in_rank() else real

    def raise_signal(self, number: int) -> None:
        handler = self.handlers.get(self.key(number), signal.SIG_DFL) if self.in_rank() else signal.SIG_DFL
        if handler == signal.SIG_DFL:
            raise_real(number)
        elif handler != signal.SIG_IGN:
            handler(number, sys._getframe(1))

    def kill(self, pid: int, number: int) -> None:
        if pid == os.getpid() and self.in_rank() and number:
            self.raise_signal(number)
        else:
            kill_real(pid, number)


def patch_signals(scheduler: Scheduler) -> None:
    """Give each rank of this process handlers of its own."""
    ranks = Signals(scheduler)
    signal.signal, signal.getsignal = ranks.set_handler, ranks.get_handler  # type: ignore[assignment]
    signal.raise_signal, os.kill = ranks.raise_signal, ranks.kill
    signal.alarm = lambda seconds: 0
    signal.setitimer = lambda which, seconds, interval=0.0: (0.0, 0.0)
