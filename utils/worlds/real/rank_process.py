"""What one rank does, from its fork to its exit.

output to its pipe -> the kernel's environment -> join the world -> fn(rank, world_size, ...)
-> leave the outcome in a file -> wait to be killed
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import itertools
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from _thread import start_new_thread
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...recording import recorded_group, recorder, regions
from ...recording.call_table import SharedTable
from ...recording.notes import Note, pack_note
from ...recording.stack import look_at_main_thread
from ...recording.torch_private import COMPILER
from ..common import rank_environment, this_rank
from ..common.joining import Joining, give_group
from ..common.protocol import FINISHED, SYNCHRONISED, Request, path_in
from ..common.rank_environment import adopt_environment, failure, flush, redirect
from ..common.result import CannotReturn, pickle_result, write_whole
from ..common.torchrun_variables import torchrun_variables

ALSO_PRELOADED = "SPAWN_PRELOAD"  # environment variable: names of further modules
# What lessons use besides torch. Importing one of these later would cost every rank of every call up to a second.
PRELOADED = [
    "sympy",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    COMPILER,
    "torch.distributed.pipelining",
    "torch.distributed.nn.functional",
]


def preload() -> None:
    """Import what programs may use, and what other worlds ask for (zygote/client.py), once, before ranks are made."""
    for module in (*PRELOADED, *os.environ.get(ALSO_PRELOADED, "").split()):
        importlib.import_module(module)


def wait_for_call(connection: int) -> None:
    """Run by a fresh interpreter: import torch, then wait for a message that says which rank it is."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with socket.socket(fileno=connection) as ours:
        die_with_parent()
        preload()
        torch.manual_seed(0)
        message, outputs, _, _ = socket.recv_fds(ours, 4096, 1)
    if message:  # otherwise the zygote is gone
        rank, folder = message.decode().split(" ", 1)
        run_rank(int(rank), folder, outputs[0])


def run_rank(rank: int, folder: str, output: int) -> None:
    """Become rank `rank` of the world in `folder`, printing to the descriptor `output`. Never returns."""
    this_rank.number = rank
    me = os.getpid()
    try:
        die_with_parent()
        os.setpgid(0, 0)  # processes that this rank starts end with it
        redirect(output)
        with open(os.path.join(folder, "request"), "rb") as file:
            request = pickle.load(file)
        with open(path_in(folder, "stack", rank), "wb") as stack:
            faulthandler.enable(stack, all_threads=False)
            faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False, chain=False)
            module, _, function = request.entry.partition(":")
            outcome = getattr(importlib.import_module(module), function)(rank, request)
            if os.getpid() != me:  # a fork that the program made, which came back from it
                return
            leave(rank, request, outcome)
            while True:
                signal.pause()
    except BaseException:  # not the student's error (a full disk, say): it is printed, and the rank counts as crashed
        traceback.print_exc()
    finally:
        try:
            flush()
        finally:
            os._exit(1)  # without atexit and destructors, which may wait for ranks that are gone


def die_with_parent() -> None:
    """Have this process killed when its parent, the zygote, is gone."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    elif threading.active_count() == 1:
        threading.Thread(target=watch_parent, args=(os.getppid(),), daemon=True).start()


def watch_parent(parent: int) -> None:
    """For systems that do not do it: kill this process when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def enter(rank: int, request: Request) -> None:
    """Set up this process like the kernel, with the variables of its rank, and join the world."""
    size = request.world_size
    surround(rank, request)
    os.environ["PYTHONFAULTHANDLER"] = "1"
    if request.backend == "nccl":
        torch.cuda.set_device(rank)
    record(rank, request)
    dist.init_process_group(
        request.backend,
        store=dist.FileStore(os.path.join(request.folder, "store"), size),
        rank=rank,
        world_size=size,
        timeout=timedelta(days=1),  # the kernel notices sooner that a world is stuck
    )
    if request.backend == "gloo":
        group: Any = dist.group.WORLD  # a RecordedGroup; the barrier is not part of the program
        group.inner.barrier().wait()  # no rank begins, and perhaps crashes, before all are connected
    give_group()
    on = "run on the CPU, with Gloo" if request.backend == "gloo" else "have a GPU each, and NCCL"
    advice = (
        f"the ranks of this world {on}. Leave the backend out, and take the device from get_device(); or have spawn "
        'choose another: spawn(work, 4, backend="gloo").'
    )
    let_program_join(request, {request.backend}, advice)


def surround(rank: int, request: Request) -> None:
    """The kernel's environment, with the variables of this rank."""
    adopt_environment(request)
    os.environ.update(torchrun_variables(rank, request.world_size, ranks_per_node=request.world_size))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    check_interfaces(os.environ["GLOO_SOCKET_IFNAME"])


def record(rank: int, request: Request) -> None:
    """From now on, record this rank's calls where the launcher reads them."""
    calls = SharedTable(path_in(request.folder, "calls", rank))
    notes = os.open(path_in(request.folder, "notes", rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def take_note(note: Note) -> None:
        os.write(notes, pack_note(note))

    recorded = recorder.Recorder(take_note, request.zero, mark_synchronisation, calls)
    recorded.on_first_group = lambda: show_stack_on_request(path_in(request.folder, "look", rank))
    recorded.steps.every = request.check_replicas
    recorded_group.install(recorded)


def show_stack_on_request(path: str) -> None:
    """From now on, whoever opens this pipe for writing finds where this rank is beside it, in a file "...-stack".

    By a thread that waits in the system, unknown to the program: while a rank waits inside a call, no signal handler
    in Python gets its turn.
    """
    os.mkfifo(path, 0o600)

    def answer() -> None:
        while True:
            with open(path, "rb"):
                write_whole(path + "-stack", pickle.dumps(look_at_main_thread()))

    start_new_thread(answer, ())


def let_program_join(request: Request, backends: set[str], advice: str) -> None:
    """The program may start the process group itself, and make further ones."""
    numbers = itertools.count(2)

    def new_store() -> dist.Store:
        return dist.FileStore(os.path.join(request.folder, f"store-{next(numbers)}"), request.world_size)

    Joining(new_store, backends, None, advice)


def check_interfaces(names: str) -> None:
    known = [name for _, name in socket.if_nameindex()]
    for name in names.split(","):
        if name not in known:
            raise ValueError(
                f"GLOO_SOCKET_IFNAME names the network interface {name!r}; this machine has {', '.join(known)}. "
                "Delete the variable, and the right one is chosen for you: del os.environ['GLOO_SOCKET_IFNAME']."
            )


def mark_synchronisation() -> None:
    flush()
    os.write(rank_environment.marks, SYNCHRONISED)


def perform(rank: int, request: Request) -> bytes:
    """Run the program. Returns its outcome, a Result or a Failure, pickled."""
    try:
        enter(rank, request)
        with open(os.path.join(request.folder, "program"), "rb") as program:
            fn, args, kwargs = pickle.load(program)
        result = fn(rank, request.world_size, *args, **kwargs)
        threading._shutdown()  # type: ignore[attr-defined]  # wait for the program's threads, as multiprocessing does
        if isinstance(regions.recorder, recorder.Recorder):
            regions.recorder.finish()
        return pickle_result(result)
    except SystemExit as exit:
        return pickle_result(None) if exit.code in (None, 0) else pickle.dumps(failure(exit, request.zero))
    except BaseException as error:
        return pickle.dumps(failure(error, request.zero))


def leave(rank: int, request: Request, outcome: bytes) -> None:
    """Put the outcome where the kernel finds it, whole or not at all, and say that it is there."""
    path = path_in(request.folder, "outcome", rank)
    try:
        write_whole(path, outcome)
    except CannotReturn as error:
        write_whole(path, pickle.dumps(failure(error, request.zero)))
    flush()
    os.write(rank_environment.marks, FINISHED)
