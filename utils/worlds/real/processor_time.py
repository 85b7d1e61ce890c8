"""Whether ranks compute: what the system says about their processes and all that these have started."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

try:
    import psutil
except ModuleNotFoundError:  # on a bare GPU machine (docs/gpu.md)
    psutil = None

BUSY = 0.02  # seconds: two ticks of the system's clock
WAKING = 1e-3  # seconds of processor that it may take to wake up, find that nothing has changed, and wait again


def which_compute(pids: dict[int, int], pause: Callable[[], object]) -> list[int]:
    """The ranks that use the processor during `pause()`, or would if they got it. pids: {rank: its process}.

    Without psutil nobody can tell, so all of them count.
    """
    if psutil is None:
        pause()
        return list(pids)
    before = {rank: look(pid) for rank, pid in pids.items()}
    pause()
    after = {rank: look(pid) for rank, pid in pids.items()}
    return [rank for rank in pids if computes(before[rank], after[rank])]


class Look(NamedTuple):
    """What the system says of a process: seconds of processor time so far, how often it has waited for something, and
    whether it has, or would take, a processor now.
    """

    used: float
    waits: int
    runs: bool


def computes(before: dict[int, Look], after: dict[int, Look]) -> bool:
    """Whether a rank computed between two looks at its processes, and did more than ask again and again for something
    that isn't there yet, as a wait for a key of a store does every few milliseconds.

    On a machine that has too much to do, it may have got no processor at all; but then it hasn't waited either.
    """
    none = Look(0, 0, False)
    changes = [(before.get(pid, none), now) for pid, now in after.items()]
    used = sum(max(0.0, now.used - was.used - WAKING * (now.waits - was.waits)) for was, now in changes)
    return used >= BUSY or any(now.runs and now.waits == was.waits for was, now in changes)


def look(pid: int) -> dict[int, Look]:
    """A process and each of its descendants. One that is gone is left out."""
    found = {}
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error), member.oneshot():
                times = member.cpu_times()
                waits, runs = member.num_ctx_switches().voluntary, member.status() == psutil.STATUS_RUNNING
                found[member.pid] = Look(times.user + times.system, waits, runs)
    return found
