"""Watches over a world from its start to its end, and decides when to stop waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...diagnosis.errors import RankCrashed
from ...report.run import Run
from .process_world import NoZygote, ProcessWorld
from .zygote.client import zygote

GRACE = 0.5  # seconds that the other ranks have to report what happened to them, once one has failed
GRACE_AT_REST = 0.05  # the same, when all of them wait for others: none will report anything more
MAX_START = 120  # seconds that the zygote may take to import torch
MAX_PRINTED = 256 << 20  # bytes per process
QUIET = 0.4  # seconds without a call to the network, after which we check whether any rank can still move


def run_world(make: Callable[[], ProcessWorld], timeout: float) -> Run:
    """Run the world that `make` makes from its start to its end. Raises the report of what went wrong."""
    try:
        return run_once(make, timeout)
    except NoZygote:  # it was killed after the last call; now there is a new one
        return run_once(make, timeout)


def run_once(make: Callable[[], ProcessWorld], timeout: float) -> Run:
    with make() as world:
        try:
            Watchdog(world, timeout).watch()
        except KeyboardInterrupt:
            raise world.interrupted() from None
        return world.collect()


class Watchdog:
    """Listens to a world, and checks its state after each read. It is in one of three states.

    starting   until the zygote has made the processes. The first call may have to wait for torch to be imported, so the
               time-out counts only once they are there.
    running    three checks, each of which raises its own report: the time is up, a rank prints without end, or no rank
               can move. Their order does not matter.
    failing    from the first failure on, whatever the state before. The other ranks get a moment to report what
               happened to them. The checks no longer apply: ranks that wait for a failed one look stuck, but the
               failure is the better report.
    """

    def __init__(self, world: ProcessWorld, timeout: float):
        self.world, self.timeout = world, timeout
        self.deadline: float | None = None  # known once the processes are there
        self.grace_ends: float | None = None  # known once a rank has failed
        self.quiet_since = time.monotonic()
        self.last_progress: object = None

    def watch(self) -> None:
        """Show what the ranks print until all have ended or one has failed. Raises the report of any other end."""
        while not self.world.is_over():
            self.world.listen(0.1 if self.grace_ends is None else 0.02)
            now = time.monotonic()
            progress = self.world.progress()
            if progress != self.last_progress:
                self.quiet_since, self.last_progress = now, progress
            if self.grace_ends is None and self.world.any_failed():
                self.grace_ends = now + GRACE
            if self.grace_ends is not None:
                at_rest = now - self.quiet_since > GRACE_AT_REST and not self.world.any_running()
                if now >= self.grace_ends or at_rest:
                    return
            elif self.world.started:
                self.check_running(now)
            elif now - self.world.zero > MAX_START:
                raise not_started()

    def check_running(self, now: float) -> None:
        if self.deadline is None:
            self.deadline = now + self.timeout
        if now >= self.deadline:
            raise self.world.timed_out(self.timeout)
        if max(self.world.printed_bytes) > MAX_PRINTED:
            raise self.world.flooded(MAX_PRINTED)
        if now - self.quiet_since >= QUIET:
            self.world.raise_if_stuck()
            self.quiet_since = now


def not_started() -> RankCrashed:
    words = zygote.last_words()
    zygote.stop()
    return RankCrashed(
        f"the process that starts the ranks is not ready after {MAX_START} s. Does `import torch` take that long? "
        + (f"Its last words: {words}" if words else "Run the cell again, which starts a new one.")
    )
