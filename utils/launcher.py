"""`spawn`: run a function of a notebook on real ranks and bring back what happened, as a Run or as one readable error.

check the call -> pickle the program by value -> hand it to the zygote -> watch the ranks: print, time-out, stuck?
-> collect -> Run, or raise
"""

from __future__ import annotations

import inspect
import operator
import os
import pickle
import sys
import time

import cloudpickle

from utils import source_lines
from utils.real_world import RealWorld
from utils.run import Run

DEFAULT_TIMEOUT = 60.0
MAX_RANKS = 128  # real processes on one machine; also what fits in one message to the zygote


def spawn(fn, world_size: int, *args, timeout: float | None = None, backend: str | None = None, **kwargs) -> Run:
    """Run `fn(rank, world_size, *args, **kwargs)` on `world_size` fresh processes that can talk to each other.

    fn        a rank program; it may be defined in a notebook cell. `torch.distributed` is ready when it begins.
    timeout   seconds until ranks that have not finished are ended; 60 unless given.
    backend   "gloo" (CPU) or "nccl" (one GPU a rank); unless given, NCCL where there are enough GPUs, else Gloo.

    Every rank starts alike: same seed (0) for torch, numpy and random, one torch thread, nothing left of earlier calls.
    Prints appear with "[rank 2] " in front, in an order that is the same every time: by how many collectives the rank
    had called, then by rank.

    Returns a Run. Raises ValueError or TypeError for a call that can't work, before any process starts; RankFailed when
    a rank raises, RankCrashed when one dies, WorldStuck when nobody can move, RankTimeout when the time is up.
    Under torchrun the process already is a rank: fn runs in place, on the world that torchrun made.
    """
    check_program(fn, args, kwargs)
    world_size = check_world_size(world_size)
    timeout = check_timeout(timeout)
    if already_a_rank():
        return run_in_place(fn, args, kwargs, backend)
    backend = choose_backend(backend, world_size)
    program = pickle_program(fn, args, kwargs)
    with RealWorld(world_size, backend, program) as world:
        world.watch(timeout)
        return world.collect()


def get_device(rank: int | None = None):
    """The torch.device of `rank` (this rank unless given): its GPU in an NCCL world, else the CPU."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if rank is None else rank)
    return torch.device("cpu")


# --- the call


def check_program(fn, args: tuple, kwargs: dict) -> None:
    if not callable(fn):
        raise TypeError(f"spawn needs a function, and got {fn!r}. Pass it without calling it: spawn(work, 4).")
    name = getattr(fn, "__name__", type(fn).__name__)
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"{name} is async; a rank program is an ordinary function: def {name}(rank, world_size, ...).")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(0, 1, *args, **kwargs)
    except TypeError as error:
        given = ", ".join(["rank", "world_size", *(type(a).__name__ for a in args), *(f"{k}=..." for k in kwargs)])
        raise TypeError(
            f"{name}{signature} can't be called as {name}({given}): {error}. "
            f"A rank program takes its rank and the world size first: def {name}(rank, world_size, ...)."
        ) from None


def check_world_size(world_size) -> int:
    if isinstance(world_size, bool) or not hasattr(world_size, "__index__"):
        raise TypeError(f"world_size is how many ranks to start, a whole number; got {world_size!r}.")
    world_size = operator.index(world_size)
    if world_size < 1:
        raise ValueError(f"world_size is how many ranks to start: at least 1, and got {world_size}.")
    if world_size > MAX_RANKS:
        raise ValueError(
            f"world_size={world_size}: spawn starts real processes on this machine, at most {MAX_RANKS}. Choose fewer."
        )
    return world_size


def check_timeout(timeout) -> float:
    if timeout is None:
        return DEFAULT_TIMEOUT
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout is in seconds, more than 0; got {timeout!r}.")
    return float(timeout)


def choose_backend(backend: str | None, world_size: int) -> str:
    """NCCL where there are enough GPUs, else Gloo; says so in one line when a GPU stays unused."""
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f'backend is "gloo" or "nccl"; got {backend!r}.')
    gpus = count_gpus()
    if backend == "nccl" and gpus < world_size:
        raise ValueError(
            f'backend="nccl" needs a GPU for each of {world_size} ranks, and this machine has {gpus}. '
            'Leave backend out, or say backend="gloo", to run on the CPU.'
        )
    if backend is None:
        backend = "nccl" if gpus >= world_size else "gloo"
        if backend == "gloo" and gpus:
            print(f"{world_size} ranks and {gpus} GPU(s): NCCL needs one for each, so this runs on the CPU.")
    return backend


def count_gpus() -> int:
    """How many NVIDIA GPUs torch would use here, without opening one."""
    if not os.path.exists("/dev/nvidiactl"):
        return 0
    import torch

    return torch.cuda.device_count()


def pickle_program(fn, args: tuple, kwargs: dict) -> bytes:
    """The program by value, as bytes. Raises TypeError that names what can't travel."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is not None and source_lines.is_students(getattr(module, "__file__", None) or "<frozen "):
        cloudpickle.register_pickle_by_value(module)  # as a cell's functions: the rank need not find or import its file
    try:
        return cloudpickle.dumps((fn, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        culprit = find_unpicklable(fn, args, kwargs)
        raise TypeError(
            f"{culprit} can't be sent to the ranks: {error}. Each rank is a process of its own: "
            "make such things inside the function."
        ) from None


def find_unpicklable(fn, args: tuple, kwargs: dict) -> str:
    """Which variable of the program is the one that can't be pickled."""
    function = inspect.unwrap(fn) if inspect.isfunction(fn) else fn
    captured = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    candidates = {f"argument {number}": value for number, value in enumerate(args)}
    candidates |= {f"argument {name}=": value for name, value in kwargs.items()}
    if captured:
        candidates |= {
            f"`{name}`, which {fn.__name__} uses,": v for name, v in {**captured.nonlocals, **captured.globals}.items()
        }
    for name, value in candidates.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"{name} (a {type(value).__name__})"
    return f"{getattr(fn, '__name__', fn)}"


# --- already a rank


def already_a_rank() -> bool:
    """Whether this process was started as one rank of many, by torchrun or by spawn itself."""
    from_spawn = sys.modules.get("utils.rank_process")
    if from_spawn is not None and from_spawn.rank_of_this_process is not None:
        raise RuntimeError(
            f"spawn was called on rank {from_spawn.rank_of_this_process}, inside a world that spawn made. "
            "Call it from the notebook, not from a rank program."
        )
    in_notebook = "ipykernel" in sys.modules  # where a tutorial's cell may have set these by hand
    return not in_notebook and all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def run_in_place(fn, args: tuple, kwargs: dict, backend: str | None) -> Run:
    """Run the program on this very process, a rank of the world that torchrun made; every rank gets all results."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        has_gpu = torch.cuda.device_count() > local_rank
        backend = backend or ("nccl" if has_gpu else "gloo")
        if backend == "nccl":
            torch.cuda.set_device(local_rank)
        dist.init_process_group(backend)
    began = time.monotonic()
    rank, size = dist.get_rank(), dist.get_world_size()
    result = fn(rank, size, *args, **kwargs)
    results = [None] * size
    dist.all_gather_object(results, result)
    return Run(size, "torchrun", dist.get_backend(), results, [""] * size, [], time.monotonic() - began)
