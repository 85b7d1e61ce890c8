"""`spawn` in a process that already is a rank, because torchrun or SLURM started it: the program runs in place.

join the world of the job, once -> all begin together -> fn(rank, world_size, ...) with its own copy of what it uses
-> everybody's results, prints and events to everybody -> Run

Imports nothing heavy until it is needed: a kernel asks `already_a_rank` and goes another way.
"""

from __future__ import annotations

import functools
import sys

from ...report.run import Run
from ..common import this_rank
from . import detect
from .marked_output import Muted


def already_a_rank() -> bool:
    """Whether this process was started as one rank of many, by torchrun or SLURM; raises on a rank of spawn itself."""
    if this_rank.number is not None:
        raise RuntimeError(
            f"spawn was called on rank {this_rank.number}, inside a world that spawn made. "
            "Call it from the notebook, not from a rank program."
        )
    return detect.launcher() is not None


def run_in_place(fn, world_size: int, args: tuple, kwargs: dict, backend: str | None) -> Run:
    """Run the program on this very process, a rank of the job's world. All ranks take part, whatever `world_size` says.

    Prints appear at once. The default process group is made by the first call, unless the script has one already: then
    that is used, and its calls are not recorded. An exception goes up as it is on the rank that raised it; the others
    raise RankFailed as soon as they miss that rank. A silent mistake is raised on every
    rank. Nobody watches for a deadlock: torch's own time-out ends one.
    """
    return world().run(fn, world_size, args, kwargs, backend)


@functools.cache
def world():
    """The world of this job, joined by the first call."""
    from .world import JobWorld

    return JobWorld()


def only_first_process_prints() -> None:
    """From now on, what a script prints outside of rank programs appears once, not once a process."""
    if not detect.is_first_process():
        sys.stdout = Muted(sys.stdout)
