"""Ranks as fresh interpreters, for systems where a fork is not safe: macOS, or a torch whose import starts threads.

Each takes seconds to import torch. So a few are kept ready, which have imported it and wait at a socket until
they learn which rank they are. Each is used once, and replaced while the student reads what it printed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable

RANK_PROCESS = __package__.rpartition(".")[0] + ".rank_process"
WAITING_AT_FIRST = 4  # kept ready before the first call
MAX_WAITING = 8  # kept ready at any time: each takes about 150 MB


class FreshInterpreters:
    """Turns waiting interpreters into ranks. `prepare` adds another, up to as many as the last world had."""

    def __init__(self) -> None:
        self.waiting: dict[int, socket.socket] = {}  # {pid: our end of its connection}

    def prepare(self, last_size: int) -> bool:
        """Start one more interpreter; False if enough are waiting."""
        if len(self.waiting) >= min(last_size or WAITING_AT_FIRST, MAX_WAITING):
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

    def learn(self, modules: list[str]) -> None:
        """Nothing to do: the waiting interpreters have already been made."""

    def problem(self) -> str:
        return ""

    def make(self, rank: int, folder: str, output: int, _: Iterable[int]) -> int:
        """Tell one interpreter that it is rank `rank` of the world in `folder`. Returns its pid."""
        while True:
            if not self.waiting:
                self._start()
            pid = next(iter(self.waiting))
            with self.waiting.pop(pid) as connection:
                try:
                    socket.send_fds(connection, [f"{rank} {folder}".encode()], [output])
                    return pid
                except OSError:  # it died while waiting
                    continue

    def forget(self, pid: int) -> None:
        """If this was a waiting interpreter, it has died."""
        if pid in self.waiting:
            self.waiting.pop(pid).close()
