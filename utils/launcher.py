"""`spawn`: run a function of a notebook on real ranks and bring back what happened, as a Run or as one readable error.

    check the call -> pickle the program by value -> hand it to the zygote -> watch the ranks: print, time-out, stuck?
    -> collect -> Run, or raise
"""

from __future__ import annotations

import inspect
import json
import linecache
import operator
import os
import pickle
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection

import cloudpickle

from utils import source_lines, stuck
from utils.errors import (
    INNOCENT,
    RankCrashed,
    RankError,
    RankTimeout,
    WorldStuck,
    report_crash,
    report_failures,
)
from utils.ordered_output import OrderedOutput
from utils.protocol import Failure, Request, path_in, read_events
from utils.run import Run

DEFAULT_TIMEOUT = 60.0
MAX_RANKS = 128  # real processes on one machine; also what fits in one message to the zygote
GRACE = 0.5  # seconds that the other ranks have to say what happened to them, once one has failed
QUIET = 0.4  # seconds without a call to the network, after which we look whether anybody can still move

COURSE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
IN_ZYGOTE = "UTILS_ZYGOTE"  # environment variable: importing utils here starts nothing
ZYGOTES_ENVIRONMENT = {
    IN_ZYGOTE: "1",
    "PYTHONPATH": COURSE,
    "OMP_NUM_THREADS": "1",  # a process with more than one thread can't be forked safely
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # look for GPUs without opening one
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # Gloo's own words on a lost connection; the report says it better
}


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
        raise TypeError(
            f"spawn needs a function, and got {fn!r}. Pass it without calling it: spawn(work, 4), not spawn(work(...), 4)."
        )
    name = getattr(fn, "__name__", type(fn).__name__)
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
            f"world_size={world_size}: spawn starts real processes on this machine, at most {MAX_RANKS} of them."
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
            print(f"{gpus} GPU{'s' if gpus > 1 else ''} for {world_size} ranks: NCCL needs one each, so this runs on the CPU.")
    return backend


def count_gpus() -> int:
    """How many NVIDIA GPUs torch would use here, without opening one."""
    if not os.path.exists("/dev/nvidiactl"):
        return 0
    import torch

    return torch.cuda.device_count()


def pickle_program(fn, args: tuple, kwargs: dict) -> bytes:
    """The program by value, as bytes. Raises TypeError that names what can't travel."""
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
        candidates |= {f"`{name}`, which {fn.__name__} uses," : v for name, v in {**captured.nonlocals, **captured.globals}.items()}
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
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def run_in_place(fn, args: tuple, kwargs: dict, backend: str | None) -> Run:
    """Run the program on this very process, one rank of the world that torchrun made; results of all ranks everywhere."""
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


# --- the zygote


class Zygote:
    """The process that forks our ranks: started once, started again if it is gone."""

    def __init__(self):
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None
        self.control: socket.socket | None = None
        self.complaints = None  # a file: what it said on stderr
        self.owner = None

    def start(self) -> None:
        """Make sure that it runs; returns at once, while torch is still being imported over there."""
        with self.lock:
            if self.owner != os.getpid() or self.process.poll() is not None:
                self._start()

    def _start(self) -> None:
        if self.control is not None:
            self.control.close()
        self.control, theirs = socket.socketpair()
        self.complaints = tempfile.TemporaryFile()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from utils.zygote import main; main({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.complaints,
                stderr=self.complaints,
                cwd=COURSE,
                env={**os.environ, **ZYGOTES_ENVIRONMENT},
                start_new_session=True,  # Jupyter's interrupt is for the kernel, not for the ranks
            )
        self.owner = os.getpid()

    def make_world(self, request: Request, outputs: list[int]) -> Connection:
        """Fork the ranks of `request`, their prints going to `outputs`; returns the connection that tells of them."""
        self.start()
        with self.lock:
            try:
                return self._hand_over(request, outputs)
            except OSError:  # it was killed a moment ago
                self.process.kill()
                self.process.wait()
                self._start()
                return self._hand_over(request, outputs)

    def _hand_over(self, request: Request, outputs: list[int]) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            connection = Connection(ours.detach())
            socket.send_fds(self.control, [b"+"], [theirs.fileno(), *outputs])
        connection.send(request)
        return connection

    def last_words(self) -> str:
        """The last line it wrote before it died."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


zygote = Zygote()


def start_zygote() -> None:
    """Called by `import utils`: have the zygote import torch while the notebook does the same."""
    if IN_ZYGOTE not in os.environ and "RANK" not in os.environ and hasattr(os, "fork"):
        zygote.start()


# --- one world of real ranks


class RealWorld:
    """The processes of one call of spawn, from their start to the last byte they leave."""

    def __init__(self, size: int, backend: str, program: bytes):
        self.size, self.backend = size, backend
        self.zero = time.monotonic()
        self.output = OrderedOutput(size)
        self.outcomes: dict[int, object] = {}  # of the ranks that are finished: ("result", value) or a Failure
        self.exit_codes: dict[int, int] = {}  # of the processes that have ended
        self.states = [stuck.RankState(rank) for rank in range(size)]
        self.event_lines: list[list] = [[] for _ in range(size)]
        self.event_files: list[tuple] = []
        self.folder = tempfile.mkdtemp(prefix="ranks-")
        try:
            with open(os.path.join(self.folder, "program"), "wb") as file:
                file.write(program)
            self.start(program)
        except BaseException:
            self.remove_folder()
            raise

    def start(self, program: bytes) -> None:
        pipes = [os.pipe() for _ in range(self.size)]
        self.readers = {read: rank for rank, (read, _) in enumerate(pipes)}
        request = Request(
            world_size=self.size,
            backend=self.backend,
            folder=self.folder,
            zero=self.zero,
            environment=dict(os.environ),
            working_directory=os.getcwd(),
            sys_path=list(sys.path),
            sources={file: entry for file, entry in linecache.cache.items() if file.encode() in program},
        )
        try:
            self.connection = zygote.make_world(request, [write for _, write in pipes])
        except BaseException:
            for read in self.readers:
                os.close(read)
            raise
        finally:
            for _, write in pipes:
                os.close(write)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.connection, selectors.EVENT_READ)
        for read in self.readers:
            os.set_blocking(read, False)
            self.selector.register(read, selectors.EVENT_READ)

    def __enter__(self) -> RealWorld:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        """Whatever happened (an interrupt, say): no process, descriptor or file stays."""
        try:
            self.end()
        finally:
            self.selector.close()
            self.connection.close()
            for read in self.readers:
                os.close(read)
            self.close_event_files()
            self.remove_folder()
        if isinstance(error, RankError):
            error.output = self.printed()
            error.events = [event for state in self.states for event in state.events]

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- while the ranks run

    def watch(self, timeout: float) -> None:
        """Print what the ranks print until all have ended; end them when one fails, when none can move, when time is up."""
        deadline = self.zero + timeout
        give_up = None  # when to stop waiting for the others, once a rank has failed
        quiet_since, last_seen = time.monotonic(), None
        while not all(self.has_ended(rank) for rank in range(self.size)):
            self.listen(0.1 if give_up is None else 0.02)
            now = time.monotonic()
            seen = self.read_events()
            if seen != last_seen:
                quiet_since, last_seen = now, seen
            if give_up is None and self.somebody_failed():
                give_up = now + GRACE
            if give_up is not None:
                if now >= give_up or (now - quiet_since > GRACE / 10 and not self.anybody_running()):
                    break
            elif now >= deadline:
                raise self.timed_out(timeout)
            elif now - quiet_since >= QUIET:
                self.raise_if_stuck()
                quiet_since = now

    def has_ended(self, rank: int) -> bool:
        return rank in self.outcomes or rank in self.exit_codes

    def somebody_failed(self) -> bool:
        return bool(self.exit_codes) or any(isinstance(outcome, Failure) for outcome in self.outcomes.values())

    def anybody_running(self) -> bool:
        """Whether a rank is at work: neither ended nor waiting for the others."""
        self.update_states()
        return any(not self.has_ended(s.rank) and s.blocked_in() is None for s in self.states)

    def listen(self, seconds: float) -> None:
        """Take in prints and exits, waiting up to `seconds` for the first."""
        for key, _ in self.selector.select(seconds):
            if key.fileobj is self.connection:
                self.take_message()
            else:
                self.take_output(key.fd)
        self.show()

    def take_message(self) -> None:
        try:
            kind, rank, value = self.connection.recv()
        except (EOFError, OSError):
            words = zygote.last_words()
            raise RankCrashed(
                "the process that starts the ranks was killed or could not start"
                + (f": {words}" if words else ". Run the cell again: it is started anew.")
            ) from None
        if kind == "exit":
            self.exit_codes[rank] = value

    def take_output(self, descriptor: int) -> bool:
        """Read what has come from one rank; False when no more is there now."""
        rank = self.readers[descriptor]
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return False
        if data:
            self.output.feed(rank, data)
        else:
            self.selector.unregister(descriptor)
            self.output.close(rank)
        if self.output.is_closed(rank) and rank not in self.outcomes:
            self.take_outcome(rank)
        return bool(data)

    def take_outcome(self, rank: int) -> None:
        """Read what the rank left when its function was over; a rank that crashed left nothing."""
        path = path_in(self.folder, "outcome", rank)
        if os.path.exists(path):
            with open(path, "rb") as file:
                try:
                    self.outcomes[rank] = pickle.load(file)
                except Exception as error:
                    said = f"what it returned can't be read here: {type(error).__name__}: {error}"
                    self.outcomes[rank] = Failure("CannotReturn", said, (), time.monotonic() - self.zero)
            self.states[rank].finished = True

    def show(self) -> None:
        text = "".join(f"[rank {rank}] {line}\n" for rank, line in self.output.ready())
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()

    def read_events(self) -> int:
        """Take in what the recorders have written since last time; returns how many lines there are in all."""
        if not self.event_files:
            paths = [path_in(self.folder, "events", rank) for rank in range(self.size)]
            if not all(os.path.exists(path) for path in paths):
                return 0
            self.event_files = [open(path) for path in paths]
            self.begun_lines = [""] * self.size
        for rank, file in enumerate(self.event_files):
            *lines, self.begun_lines[rank] = (self.begun_lines[rank] + file.read()).split("\n")
            self.event_lines[rank] += [json.loads(line) for line in lines]
        return sum(map(len, self.event_lines)) + len(self.outcomes) + len(self.exit_codes)

    def close_event_files(self) -> None:
        for file in self.event_files:
            file.close()

    def update_states(self) -> None:
        self.read_events()
        for state, lines in zip(self.states, self.event_lines, strict=True):
            state.events, state.waits = read_events(state.rank, lines)

    def raise_if_stuck(self) -> None:
        self.update_states()
        report = stuck.explain(self.states)
        if report is not None:
            self.end()
            raise WorldStuck(f"no rank can move any more: each waits for another.\n{report}")

    def timed_out(self, timeout: float) -> RankTimeout:
        """Ask each rank for its line, end them, and say where each was."""
        self.update_states()
        running = self.ask_for_lines()
        unfinished = [state.rank for state in self.states if not state.finished]
        at_work = [rank for rank in unfinished if self.states[rank].blocked_in() is None]
        lines = stuck.describe(self.states, running)
        self.end()
        verb = "has" if len(unfinished) == 1 else "have"
        return RankTimeout(
            f"{stuck.ranks(unfinished).lower()} {verb} not finished after {timeout:g} s.\n"
            + "\n".join("  " + line for line in lines)
            + f"\n\nIf the work needs longer, say how long: spawn(..., timeout={max(300, round(5 * timeout))}).",
            rank=next(iter(at_work or unfinished), None),
        )

    def ask_for_lines(self) -> dict[int, str]:
        """{rank: "file:line"} of the ranks that run, by faulthandler: it answers even from a loop that holds the GIL."""
        self.connection.send(("signal", signal.SIGUSR1))
        answered_by = time.monotonic() + 1.0
        waiting = [state.rank for state in self.states if not state.finished]
        while time.monotonic() < answered_by and not all(self.stack(rank) for rank in waiting):
            self.listen(0.02)
        return {rank: self.students_line(rank) for rank in waiting}

    def stack(self, rank: int) -> str:
        try:
            with open(path_in(self.folder, "stack", rank), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def students_line(self, rank: int) -> str:
        """The innermost line of the student's in the stack that the rank left, "file:line", or "" if there is none."""
        frames = re.findall(r'^  File "(.*)", line (\d+)', self.stack(rank), re.MULTILINE)  # innermost first
        own = [(file, line) for file, line in frames if source_lines.is_students(file)]
        return ":".join(own[0]) if own else ""

    def end(self) -> None:
        """End all processes, and take in what they have left."""
        try:
            if len(self.exit_codes) < self.size:
                self.connection.send(("signal", signal.SIGKILL))
            patience = time.monotonic() + 5
            while len(self.exit_codes) < self.size and time.monotonic() < patience:
                self.listen(0.1)
        except (OSError, RankError):  # the zygote is gone, and its ranks with it
            pass
        for descriptor, rank in self.readers.items():
            if descriptor in self.selector.get_map():
                while self.take_output(descriptor):
                    pass
            self.output.close(rank)
        self.show()

    # --- when they have ended

    def collect(self) -> Run:
        """The Run of a world that went well; raises the report of one that did not."""
        self.update_states()
        crashes = dict(self.exit_codes)  # nobody was ended by us yet: a process that is gone, is gone by itself
        self.end()
        failures = {rank: outcome for rank, outcome in self.outcomes.items() if isinstance(outcome, Failure)}
        waiting = {s.rank: event for s in self.states if s.rank not in crashes and (event := s.blocked_in()) is not None}
        crashes = {rank: code for rank, code in crashes.items() if rank not in self.outcomes}
        blamed = any(not INNOCENT.search(failure.message) for failure in failures.values())
        if crashes and not blamed:
            rank, code = min(crashes.items())
            hint = stuck.difference_at_the_end(self.states)
            place = source_lines.place(self.students_line(rank))
            raise report_crash(rank, code, place, self.states[rank].events, hint)
        if failures:
            raise report_failures(failures, waiting)
        return Run(
            world_size=self.size,
            world="spawn",
            backend=self.backend,
            results=[self.outcomes[rank][1] for rank in range(self.size)],
            output=self.printed(),
            events=[event for state in self.states for event in state.events],
            elapsed=time.monotonic() - self.zero,
        )

    def printed(self) -> list[str]:
        return ["".join(line + "\n" for line in lines) for lines in self.output.text]
