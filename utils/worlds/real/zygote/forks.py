"""Ranks as forks of this process, which has imported torch once: about a millisecond each, and each a clean start.

The start is clean because this process runs no student code, opens no GPU and has a single thread. Forks of a process
that has computed, or in which another thread holds a lock, could hang.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

HUGE_PAGE = 2 << 20  # bytes
PIECE = 4 * HUGE_PAGE  # takes some milliseconds, so that a call that comes meanwhile does not wait long
MADV_COLLAPSE = 25  # Linux 6.1: turn this memory into huge pages, now


class Forks:
    """Makes ranks by `fork`, from a process that has imported torch, and later everything that lessons use."""

    def __init__(self) -> None:
        from ....text import source_lines
        from .. import rank_process

        source_lines.library_prefixes()  # cached from now on, for every rank
        self.preload, self.run_rank = rank_process.preload, rank_process.run_rank
        self.pieces: Iterator[tuple[int, int]] = iter(())
        self.seed_and_freeze()

    def load_the_rest(self) -> None:
        self.preload()
        gc.collect()
        self.seed_and_freeze()
        self.pieces = iter(anonymous_memory())

    def learn(self, modules: list[str]) -> None:
        """Import these, if they are here, for all ranks from now on."""
        if new := [module for module in modules if module not in sys.modules]:
            for module in new:
                with suppress(Exception):  # a rank that needs it will say what is wrong
                    importlib.import_module(module)
            self.seed_and_freeze()

    def seed_and_freeze(self) -> None:
        """Do here, once, what takes milliseconds and every rank would do: they are copies of this process."""
        import torch

        torch.manual_seed(0)
        gc.freeze()  # all ranks share what is in memory now: keep the collector from touching it

    def prepare(self, _: int) -> bool:
        """Turn one more piece of memory into huge pages; False if none is left."""
        piece = next(self.pieces, None)
        if piece is not None:
            collapse(*piece)
        return piece is not None

    def problem(self) -> str:
        """Why a fork would not be a clean start; "" if it would."""
        if not os.path.isdir("/proc/self/task"):
            return ""
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            return f"importing torch has started {threads - 1} thread{'s' * (threads > 2)}"
        open_files = [f"/proc/self/fd/{descriptor}" for descriptor in os.listdir("/proc/self/fd")]
        if any(os.readlink(file).startswith("/dev/nvidia") for file in open_files if os.path.islink(file)):
            return "importing torch has opened a GPU"
        return ""

    def make(self, rank: int, folder: str, output: int, to_close: Iterable[int]) -> int:
        """Fork rank `rank` of the world in `folder`, which closes the descriptors `to_close`. Returns its pid."""
        pid = os.fork()
        if pid == 0:
            gc.enable()  # start.py has switched it off while it imports
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            for descriptor in to_close:
                os.close(descriptor)
            self.run_rank(rank, folder, output)
        try:
            os.setpgid(pid, pid)  # the rank does this too, and either may be first
        except OSError:  # it is already gone
            pass
        return pid

    def forget(self, pid: int) -> None:
        """A child that is not a rank has ended. Here all children are ranks."""


def anonymous_memory() -> list[tuple[int, int]]:
    """(address, bytes) of this process's own memory, in small pieces; [] where the system does not say."""
    if not os.path.exists("/proc/self/maps"):
        return []
    pieces = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, access, _, _, inode, *name = line.split()
            if access.startswith("rw") and inode == "0" and (not name or name[0] == "[heap]"):
                begin, end = (int(address, 16) for address in span.split("-"))
                begin, end = -(-begin // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
                pieces += [(at, min(PIECE, end - at)) for at in range(begin, end, PIECE)]
    return pieces


def collapse(begin: int, length: int) -> None:
    """Move this memory into huge pages. A fork then copies 512 times fewer entries, which makes it four times faster.

    An older Linux, or one that has no huge page left, refuses, and nothing changes.
    """
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), ctypes.c_int(MADV_COLLAPSE))
