"""Ranks as fresh interpreters, for systems where a fork is not safe: macOS, or a torch whose import starts threads.

One takes seconds to import torch. So some are kept ready that have done it and wait at a socket, their door, to be told
which rank they are; each is used once, and replaced while the student reads what it printed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable

RANK_PROCESS = __package__.rpartition(".")[0] + ".rank_process"
FIRST = 4  # how many are kept ready before the first call
MOST = 8  # and how many at most: each takes about 150 MB


class FreshInterpreters:
    """Makes ranks of interpreters that wait; `get_on` starts new ones, as many as the last world had."""

    def __init__(self):
        self.waiting: dict[int, socket.socket] = {}  # pid -> our end of its door

    def get_on(self, last_size: int) -> bool:
        """Start one more to wait; False if there are enough."""
        if len(self.waiting) >= min(last_size or FIRST, MOST):
            return False
        self._start()
        return True

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            program = f"from {RANK_PROCESS} import wait_for_call; wait_for_call({theirs.fileno()})"
            pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ)
        self.waiting[pid] = ours

    def whats_wrong(self) -> str:
        return ""

    def make(self, rank: int, folder: str, output: int, _: Iterable[int]) -> int:
        """Tell one that it is rank `rank` of the world in `folder`; returns its pid."""
        while True:
            if not self.waiting:
                self._start()
            pid = next(iter(self.waiting))
            with self.waiting.pop(pid) as door:
                try:
                    socket.send_fds(door, [f"{rank} {folder}".encode()], [output])
                    return pid
                except OSError:  # it died while it waited
                    continue

    def forget(self, pid: int) -> None:
        """It died while it waited."""
        if pid in self.waiting:
            self.waiting.pop(pid).close()
