"""Python's own clocks, as a virtual rank reads them: a program that times itself gets the cluster's times.

`time.perf_counter`, `monotonic` and `time` (and their `_ns` versions) read the clock of the calling rank, which starts
at 0; `time.sleep` moves it on. Outside the ranks they are unchanged.

Only computing, communication and sleep take virtual time. A program that reads the clock until some moment has come
would do so forever. So if it has read it very often while it stood still, each further read takes time: more and more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ...recording.callers import who_called
from ...text.source_lines import place
from .scheduler import RankThread, Scheduler

CLOCKS = ("perf_counter", "monotonic", "time")
READS = 100_000  # reads of a clock that stands still; a real one would have moved on by some hundredths of a second
FIRST_STEP, GROWTH = 1e-6, 1.01  # virtual seconds for the first read after these; how much more for each further one


def patch_time(scheduler: Scheduler) -> None:
    """Make Python's clocks virtual for all ranks of this process."""
    for name in CLOCKS:
        real, real_ns = getattr(time, name), getattr(time, f"{name}_ns")
        setattr(time, name, rank_clock(scheduler, real, lambda seconds: seconds))
        setattr(time, f"{name}_ns", rank_clock(scheduler, real_ns, lambda seconds: round(seconds * 1e9)))
    real_sleep = time.sleep

    def sleep(seconds: float) -> None:
        if scheduler.running is None or not seconds > 0:  # for a wrong argument, Python's own error
            real_sleep(seconds)
        else:
            scheduler.running.compute(float(seconds))
            scheduler.running.host = scheduler.running.clock  # it is the host that sleeps

    time.sleep = sleep  # type: ignore[assignment]


def rank_clock(scheduler: Scheduler, real: Callable[[], float], shown: Callable[[float], float]) -> Callable[[], float]:
    def clock() -> float:
        rank = scheduler.running
        if rank is None:
            return real()
        if rank.clock != rank.read_at:
            rank.read_at, rank.reads = rank.clock, 0
        rank.reads += 1
        if rank.reads > READS:
            let_time_pass(scheduler, rank)
        return shown(rank.clock)

    return clock


def let_time_pass(scheduler: Scheduler, rank: RankThread) -> None:
    """The rank does nothing but read a clock that stands still."""
    where = place(who_called()[0]) or f"rank {rank.number}"
    scheduler.say_once(
        "clock",
        f"{where}: this has read the clock {READS:,} times while it stood still. Only computing, communication and "
        "time.sleep take virtual time. From now on, each such read does, too. In a loop that waits, call time.sleep.",
    )
    rank.clock += FIRST_STEP * GROWTH ** (rank.reads - READS)
    rank.read_at = rank.clock
