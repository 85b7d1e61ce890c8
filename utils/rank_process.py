"""What one rank does, from its fork to its exit.

output to its pipe -> the kernel's environment -> join the world -> fn(rank, world_size, ...)
-> leave the outcome in a file -> wait to be ended
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import fcntl
import importlib
import linecache
import os
import pickle
import random
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from datetime import timedelta

import cloudpickle
import numpy.random
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from utils import recorder, regions
from utils.protocol import FINISHED, SYNCHRONISED, Failure, Frame, Request, path_in
from utils.record import SharedTable, pack_note
from utils.result import CannotReturn, pickle_result, write_whole

# What lessons use, besides torch: each of these would otherwise cost every rank of every call up to a second.
PRELOADED = [
    "sympy",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "torch.distributed.nn.functional",
]

OURS = {__file__, pickle_result.__code__.co_filename}  # whose lines are left out of a traceback
rank_of_this_process: int | None = None
marks = 1  # the descriptor that the marks of protocol.py are written to: the rank's output


def wait_for_call(door: int) -> None:
    """What a fresh interpreter does: import torch, then wait at its door to be told which rank it is."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with socket.socket(fileno=door) as ours:
        die_with_parent()
        for module in PRELOADED:
            importlib.import_module(module)
        torch.manual_seed(0)
        message, outputs, _, _ = socket.recv_fds(ours, 4096, 1)
    if message:  # else nobody will ever call
        rank, folder = message.decode().split(" ", 1)
        run_rank(int(rank), folder, outputs[0])


def run_rank(rank: int, folder: str, output: int) -> None:
    """Become rank `rank` of the world in `folder`; never returns. Its prints go to the descriptor `output`."""
    global rank_of_this_process
    rank_of_this_process = rank
    me = os.getpid()
    try:
        die_with_parent()
        os.setpgid(0, 0)  # what this rank starts ends with it
        redirect(output)
        with open(os.path.join(folder, "request"), "rb") as file:
            request = pickle.load(file)
        with open(path_in(folder, "stack", rank), "wb") as stack:
            faulthandler.enable(stack, all_threads=False)
            faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False, chain=False)
            outcome = perform(rank, request) if request.cluster is None else perform_virtually(request)
            if os.getpid() != me:  # a fork that the program made and that came back from it
                return
            leave(rank, request, outcome)
            while True:
                signal.pause()
    except BaseException:  # ours, not the student's (a full disk, say): it is printed, and the rank counts as crashed
        traceback.print_exc()
    finally:
        try:
            flush()
        finally:
            os._exit(1)  # no atexit, no destructors: they may wait for ranks that are gone


def die_with_parent() -> None:
    """Have this process killed when its parent, the zygote, is gone."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    elif threading.active_count() == 1:
        threading.Thread(target=watch_parent, args=(os.getppid(),), daemon=True).start()


def watch_parent(parent: int) -> None:
    """Where the system does not do it by itself: end this process when it has been handed to another parent."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def redirect(output: int) -> None:
    """Prints, warnings, logging and what C libraries write all go to `output`; stdin is empty."""
    global marks
    high = min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)  # out of the program's way
    marks = fcntl.fcntl(output, fcntl.F_DUPFD_CLOEXEC, high)  # ours, whatever the program does to 1 and 2
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)
    builtins.input = no_keyboard
    # One stream under both names, so that what is printed and what is warned stays in order.
    sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.__stdout__ = sys.__stderr__ = sys.stdout
    draw_bars_as_text()


def no_keyboard(prompt="", /):
    """Takes the place of `input`."""
    raise EOFError("a rank has no keyboard: ask in the notebook and pass the answer: spawn(work, 4, answer)")


def draw_bars_as_text() -> None:
    """tqdm's bar for notebooks draws in a page, which a rank doesn't have: the plain one takes its place."""
    bars = sys.modules.get("tqdm.std")  # torch imports it where it is installed
    if bars is not None:
        bars.tqdm_notebook, bars.tnrange = bars.tqdm, bars.trange
        sys.modules["tqdm.notebook"] = sys.modules["tqdm"].notebook = bars


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the program closed it, or put something else in its place
            pass


def enter(rank: int, request: Request) -> None:
    """Put this process where the kernel is, tell it which rank it is, and join the world."""
    size = request.world_size
    settle(request)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), PYTHONFAULTHANDLER="1"
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    check_interfaces(os.environ["GLOO_SOCKET_IFNAME"])
    if request.backend == "nccl":
        torch.cuda.set_device(rank)
    calls = SharedTable(path_in(request.folder, "calls", rank))
    notes = os.open(path_in(request.folder, "notes", rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    recorder.install(
        recorder.Recorder(lambda note: os.write(notes, pack_note(note)), request.zero, note_synchronisation, calls)
    )
    dist.init_process_group(
        request.backend,
        store=dist.FileStore(os.path.join(request.folder, "store"), size),
        rank=rank,
        world_size=size,
        timeout=timedelta(days=1),  # the launcher sees sooner that a world is stuck
    )
    if request.backend == "gloo":
        dist.group.WORLD.inner.barrier().wait()  # nobody begins, and perhaps crashes, before all are connected


def settle(request: Request) -> None:
    """Put this process where the kernel is, and let all random numbers begin alike."""
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.working_directory)
    sys.path[:] = request.sys_path
    sys.argv = [""]
    linecache.cache.update(request.sources)

    torch.set_num_threads(threads_asked_for(request.environment))
    random.seed(0)  # every rank draws the same numbers unless the program seeds by rank; torch's were seeded before
    numpy.random.seed(0)

    if hasattr(distributed_c10d, "_pickler"):  # so that a cell's classes travel in object collectives too
        distributed_c10d._pickler = cloudpickle.Pickler


def threads_asked_for(environment: dict[str, str]) -> int:
    """One, unless OMP_NUM_THREADS says another number; OpenMP takes no notice of what is none either."""
    first = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else 1


def check_interfaces(names: str) -> None:
    known = [name for _, name in socket.if_nameindex()]
    for name in names.split(","):
        if name not in known:
            raise ValueError(
                f"GLOO_SOCKET_IFNAME names the network interface {name!r}; this machine has {', '.join(known)}. "
                "Leave it to us: del os.environ['GLOO_SOCKET_IFNAME']."
            )


def note_synchronisation() -> None:
    flush()
    os.write(marks, SYNCHRONISED)


def perform(rank: int, request: Request) -> bytes:
    """Run the program; the pickled outcome is ("result", what it returned) or a Failure."""
    try:
        enter(rank, request)
        with open(os.path.join(request.folder, "program"), "rb") as program:
            fn, args, kwargs = pickle.load(program)
        result = fn(rank, request.world_size, *args, **kwargs)
        threading._shutdown()  # wait for threads that the program left behind, as multiprocessing does
        if regions.recorder is not None:
            regions.recorder.settle()
        return pickle_result(result)
    except SystemExit as exit:
        return pickle_result(None) if exit.code in (None, 0) else pickle.dumps(failure(exit, request.zero))
    except BaseException as error:
        return pickle.dumps(failure(error, request.zero))


def perform_virtually(request: Request) -> bytes:
    """Run the program on all ranks of a virtual cluster, which live in this process."""
    from utils.virtual.world import run_virtual_world  # the ranks of a real world don't need it

    return run_virtual_world(request)


def failure(error: BaseException, zero: float) -> Failure:
    frames = tuple(
        Frame(frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in OURS
    )
    if isinstance(error, SyntaxError) and error.filename:
        frames += (Frame(error.filename, error.lineno or 0, "", (error.text or "").strip()),)
    return Failure(type(error).__name__, _text(error), frames, time.monotonic() - zero)


def _text(error: BaseException) -> str:
    """Its message, notes and causes, as plain text of a length that can be read."""
    try:
        text = "".join(str(error))
    except Exception as nested:  # a student's __str__ may raise
        text = f"(its message can't be shown: {type(nested).__name__})"
    text = "\n".join([text, *map(str, getattr(error, "__notes__", ()))])
    if len(text) > 4000:
        text = f"{text[:2000]}\n... {len(text) - 4000} characters ...\n{text[-2000:]}"
    members = getattr(error, "exceptions", ()) if isinstance(error, BaseExceptionGroup) else ()
    for what, other in [("caused by", error.__cause__), *(("one of them:", member) for member in members[:5])]:
        if other is not None:
            text += f"\n  {what} {type(other).__name__}: {_text(other)}"
    return text.encode("utf-8", "backslashreplace").decode()


def leave(rank: int, request: Request, outcome: bytes) -> None:
    """Put the outcome where the launcher finds it, whole or not at all, and say that it is there."""
    path = path_in(request.folder, "outcome", rank)
    try:
        write_whole(path, outcome)
    except CannotReturn as error:
        write_whole(path, pickle.dumps(failure(error, request.zero)))
    flush()
    os.write(marks, FINISHED)
