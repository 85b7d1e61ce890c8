"""`spawn`: run a function of a notebook on real ranks and bring back what happened, as a Run or as one readable error.

check the call -> pickle the program by value -> hand it to the zygote -> watch the ranks: print, time-out, stuck?
-> collect -> Run, or raise
"""

from __future__ import annotations

from ...report.run import Run
from ..common.call_checks import MAX_PROCESSES, check_program, check_timeout, check_world_size
from ..common.program import pickle_program
from ..jobs.in_place import already_a_rank, run_in_place
from .placement import choose_backend


def spawn(fn, world_size: int, *args, timeout: float | None = None, backend: str | None = None, **kwargs) -> Run:
    """Run `fn(rank, world_size, *args, **kwargs)` on `world_size` fresh processes that can talk to each other.

    fn        a rank program; it may be defined in a notebook cell. `torch.distributed` is ready when it begins.
    timeout   seconds until ranks that have not finished are ended; 60 unless given.
    backend   "gloo" (CPU) or "nccl" (one GPU a rank); unless given, NCCL where enough GPUs are free, else Gloo.

    Every rank starts alike: same seed (0) for torch, numpy and random, one torch thread, nothing left of earlier calls.
    Prints appear with "[rank 2] " in front, in an order that is the same every time: by how many collectives the rank
    had called, then by rank.

    Returns a Run. Raises ValueError or TypeError for a call that can't work, before any process starts; RankFailed when
    a rank raises, RankCrashed when one dies, WorldStuck when nobody can move, RankTimeout when the time is up, and
    SilentMistake when all went well, except that the ranks' calls do not fit together.
    Under torchrun or SLURM the process already is a rank: fn runs in place, on all ranks of the job (in_place.py).
    """
    check_program(fn, args, kwargs)
    in_place = already_a_rank()
    world_size = check_world_size(world_size, most=None if in_place else MAX_PROCESSES)
    timeout = check_timeout(timeout)
    if in_place:
        return run_in_place(fn, world_size, args, kwargs, backend)
    placement = choose_backend(backend, world_size)
    program = pickle_program(fn, args, kwargs, world_size)
    from .watchdog import run_world  # only now, so that `import utils` is quick
    from .world import RealWorld

    return run_world(lambda: RealWorld(world_size, placement, program), timeout)
