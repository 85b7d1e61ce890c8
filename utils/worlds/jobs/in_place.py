"""`spawn` in a process that already is a rank, because torchrun or SLURM started it: the program runs in place.

join the world of the job, once -> all begin together -> fn(rank, world_size, ...) on a copy of everything it uses
-> every rank gets the results, prints and events of all -> Run

Imports nothing heavy until that is needed: in a kernel, `already_a_rank` is all that is called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, cast

from ...report.run import Run
from ..common import this_rank
from . import detect
from .marked_output import Muted

if TYPE_CHECKING:
    from .world import JobWorld


def already_a_rank() -> bool:
    """Whether torchrun or SLURM started this process as one rank of many. Raises RuntimeError on a rank of spawn."""
    if this_rank.number is not None:
        raise RuntimeError(
            f"spawn was called on rank {this_rank.number}, inside a world that spawn made. "
            "Call it from the notebook, not from a rank program."
        )
    return detect.launcher() is not None


def run_in_place(
    fn: Callable[..., object], world_size: int, args: tuple[Any, ...], kwargs: dict[str, Any], backend: str | None
) -> Run:
    """Run the program in this very process, a rank of the job's world. All ranks take part, whatever `world_size` says.

    Prints appear at once. The first call makes the default process group, unless the script has one already; then that
    one is used, and its calls are not recorded. The rank that raises an exception raises it unchanged; the others raise
    RankFailed as soon as they miss that rank. A silent mistake is raised on every rank. Nothing watches for deadlocks:
    torch's own time-out ends one.
    """
    return job_world().run(fn, world_size, args, kwargs, backend)


@functools.cache
def job_world() -> JobWorld:
    """The world of this job, which the first call joins."""
    from .world import JobWorld

    return JobWorld()


def only_first_process_prints() -> None:
    """From now on, whatever a script prints outside of rank programs appears once, not once per process."""
    if not detect.is_first_process():
        sys.stdout = cast(TextIO, Muted(sys.stdout))
