"""Whether ranks compute: what the system says about their processes and all that these have started."""

from __future__ import annotations

from collections.abc import Callable, Iterator

try:
    import psutil
except ModuleNotFoundError:  # on a bare GPU machine (docs/gpu.md)
    psutil = None

BUSY = 0.02  # seconds: two ticks of the system's clock


def which_compute(pids: dict[int, int], pause: Callable[[], object]) -> list[int]:
    """The ranks that use the processor during `pause()`, or would if they got it. pids: {rank: its process}.

    Without psutil nobody can tell, so all of them count.
    """
    if psutil is None:
        pause()
        return list(pids)
    before = {rank: sum(used for used, _ in looks(pid)) for rank, pid in pids.items()}
    pause()
    after = {rank: list(looks(pid)) for rank, pid in pids.items()}
    return [
        rank
        for rank, seen in after.items()
        if any(runs for _, runs in seen) or sum(used for used, _ in seen) - before[rank] >= BUSY
    ]


def looks(pid: int) -> Iterator[tuple[float, bool]]:
    """(seconds of processor time so far, whether it is running) for a process and each of its descendants."""
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            yield times.user + times.system, one.status() == psutil.STATUS_RUNNING
    except psutil.Error:  # it is gone
        pass
