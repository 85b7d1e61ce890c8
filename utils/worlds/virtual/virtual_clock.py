"""Python's own clocks, as a virtual rank reads them: a program that times itself gets the cluster's times.

`time.perf_counter`, `monotonic` and `time` (and their `_ns` versions) read the clock of the calling rank, which starts
at 0; `time.sleep` moves it on. Outside the ranks they are unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .scheduler import Scheduler

CLOCKS = ("perf_counter", "monotonic", "time")


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
        return real() if scheduler.running is None else shown(scheduler.running.clock)

    return clock
