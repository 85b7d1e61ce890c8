"""Python's own clocks, as a virtual rank reads them: a program that times itself gets the times of the cluster.

`time.perf_counter`, `monotonic` and `time` (and their `_ns`) give the clock of the rank that asks, which starts at 0;
`time.sleep` lets it pass. Outside of the ranks they stay what they are.
"""

import time
from collections.abc import Callable

from .scheduler import Scheduler

CLOCKS = ("perf_counter", "monotonic", "time")


def take_over(turns: Scheduler) -> None:
    """From now on, for all ranks of this process."""
    for name in CLOCKS:
        setattr(time, name, of_the_rank(turns, getattr(time, name), lambda seconds: seconds))
        setattr(
            time, f"{name}_ns", of_the_rank(turns, getattr(time, f"{name}_ns"), lambda seconds: round(seconds * 1e9))
        )
    really_sleep = time.sleep

    def sleep(seconds: float) -> None:
        if turns.running is None or not seconds > 0:  # what is no length of time is refused in Python's words
            return really_sleep(seconds)
        turns.running.compute(float(seconds))

    time.sleep = sleep


def of_the_rank(turns: Scheduler, really: Callable, shown: Callable) -> Callable:
    def clock() -> float:
        return really() if turns.running is None else shown(turns.running.clock)

    return clock
