"""`spawn`: run a notebook's function on real ranks. What happened comes back as a Run, or as one readable error.

check the call -> pickle the program by value -> hand it to the zygote -> watch the ranks: prints, time-out, stuck?
-> collect -> return a Run, or raise
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...report.run import Run
from ..common.call_checks import MAX_PROCESSES, check_program, check_timeout, check_world_size
from ..common.program import name_of, pickle_program
from ..jobs.in_place import already_a_rank, run_in_place
from .placement import choose_backend


def spawn(
    fn: Callable[..., object],
    world_size: int,
    *args: Any,
    timeout: float | None = None,
    backend: str | None = None,
    check_replicas: int = 0,
    **kwargs: Any,
) -> Run:
    """Run `fn(rank, world_size, *args, **kwargs)` on `world_size` fresh processes that can talk to each other.

    fn        a rank program, which may be defined in a notebook cell. `torch.distributed` is set up before it starts.
    timeout   seconds after which ranks that have not finished are ended; 60 by default.
    backend   "gloo" (CPU) or "nccl" (one GPU per rank). By default NCCL if enough GPUs are free, otherwise Gloo.

    check_replicas
              after every so many steps of an optimizer, compare the parameters and buffers that the ranks hold. If they
              differ, as replicas in data parallelism must not, the run ends as a SilentMistake that names the first.

    All ranks start the same way: seed 0 for torch, numpy and random, one torch thread, nothing left over from earlier
    calls. Prints appear with "[rank 2] " in front, in an order that is the same every time: by how many collectives the
    rank had called, then by rank.

    Returns a Run, with what each rank returned in `run.results`.
    Raises, before any process starts, ValueError or TypeError for a call that can't work; and later

    RankFailed      a rank raised an exception
    RankCrashed     a rank's process died
    WorldStuck      no rank that has not finished can move: each waits for another
    RankTimeout     the time is up
    SilentMistake   every rank finished, but their calls do not fit together, so the values can't be trusted

    Under torchrun or SLURM the process already is a rank: fn runs in place, on all ranks of the job (jobs/in_place.py).
    """
    check_program(fn, args, kwargs)
    in_place = already_a_rank()
    world_size = check_world_size(world_size, most=None if in_place else MAX_PROCESSES)
    timeout = check_timeout(timeout)
    if type(check_replicas) is not int or check_replicas < 0:
        raise ValueError(f"check_replicas is a number of steps, or 0 for never; got {check_replicas!r}.")
    if in_place:
        return run_in_place(fn, world_size, args, kwargs, backend)
    placement = choose_backend(backend, world_size)
    program = pickle_program(fn, args, kwargs, world_size)
    from .watchdog import run_world  # only now, so that `import utils` is quick
    from .world import RealWorld

    run = run_world(lambda: RealWorld(world_size, placement, program, check_replicas), timeout)
    run.program = name_of(fn)
    return run
