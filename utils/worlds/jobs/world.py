"""The world of a job that torchrun or SLURM has started, as seen by one of its ranks."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple

import numpy
import torch
import torch.distributed as dist

from ...diagnosis.errors import RankFailed
from ...diagnosis.failure_report import is_innocent, report_failures
from ...diagnosis.silent_mistakes import silent_mistake
from ...events.failure import Failure
from ...events.isend_ends import bound_by_receives
from ...recording.notes import GroupMembers, Note
from ...recording.reader import read_memory, read_state
from ...recording.recorded_group import install
from ...recording.recorder import Recorder
from ...recording.torch_private import set_pickler_of_objects, set_timeout
from ...report.run import Run
from ..common.by_value import Pickler
from ..common.joining import Joining, give_group
from ..common.program import pickle_program
from ..common.rank_environment import failure
from ..common.result import ResultPickler, pickle_result
from . import detect
from .marked_output import marked_output

CONNECT = timedelta(minutes=30)  # torch's own time-out
FOREVER = timedelta(days=365)  # one rank may finish its program long before the others


class RankOutcome(NamedTuple):
    """What one rank tells the others after a program."""

    result: bytes  # a pickled Result
    output: str
    record: tuple[list[Any], bytes]  # the recorder's notes and table
    seconds: float


class JobWorld:
    """All ranks of the job. A process joins it once, and each call of spawn runs on it.

    Whatever spawn itself sends goes over a Gloo group of its own (`self.gloo`). So it does not become an Event of the
    program, and in an NCCL world it need not pass through the GPU.
    """

    def __init__(self) -> None:
        self.name = detect.launcher() or "torchrun"
        detect.set_variables()
        self.store, self.rank, self.size = next(dist.rendezvous("env://"))
        self.gloo: Any = dist.ProcessGroupGloo(dist.PrefixStore("spawn", self.store), self.rank, self.size, CONNECT)
        set_timeout(self.gloo, FOREVER)
        self.made: object = None  # the default group, if we made it
        self.groups_made = 0
        self.recorder = Recorder(self.take_note, time.monotonic())
        self.group_notes: list[Note] = []  # a group stays over many calls, and is noted once
        self.notes: list[Note] = []  # notes of this call
        self.running = False
        self.ended_by = ""  # the report of the failure that ended this world
        self.sizes_asked: set[int] = set()
        install(self.recorder)
        self.joining = Joining(self.new_store, set(), None, "")
        set_pickler_of_objects(ClassesByName)
        atexit.register(self.leave)

    def take_note(self, note: Note) -> None:
        (self.group_notes if isinstance(note, GroupMembers) else self.notes).append(note)

    # --- one call of spawn

    def run(
        self, fn: Callable[..., object], asked: int, args: tuple[Any, ...], kwargs: dict[str, Any], backend: str | None
    ) -> Run:
        if self.running:
            raise RuntimeError(
                f"spawn was called on rank {self.rank}, inside a rank program. Call it from the script's own lines."
            )
        if self.ended_by:
            raise RankFailed(f"This job's world has ended: {self.ended_by}")
        self.say_who_takes_part(asked)
        program = pickle_program(fn, args, kwargs, self.size, ClassesByName)
        self.running = True
        try:
            backend = self.use_backend(backend)
            self.let_program_join(backend)
            outcomes = self.gather(self.perform(program))
        except BaseException as error:
            self.end(error)
            raise
        finally:
            self.running = False
        results, output, records, elapsed = zip(*outcomes, strict=True)
        states = [read_state(rank, notes, table, True) for rank, (notes, table) in enumerate(records)]
        bound_by_receives(states)
        run = Run(
            world_size=self.size,
            world=self.name,
            backend=backend,
            results=[pickle.loads(result).value for result in results],
            output=list(output),
            events=[event for state in states for event in state.events],
            elapsed=max(elapsed),
            regions=[region for state in states for region in state.regions],
            memory_notes=[read_memory(notes) for notes, _ in records],
        )
        if mistake := silent_mistake(states):  # on every rank, because all see the same events
            mistake.results, mistake.output, mistake.events = run.results, run.output, run.events
            raise mistake
        return run

    def perform(self, program: bytes) -> RankOutcome:
        """Run the program here, on a copy of everything it uses, so that the script's own variables stay unchanged."""
        fn, args, kwargs = pickle.loads(program)
        self.notes = []
        self.gloo.barrier().wait()  # all begin together, so that their times count from the same moment
        self.recorder.restart(time.monotonic())
        with marked_output(self.rank) as printed, random_numbers_of_a_fresh_rank():
            try:
                result = fn(self.rank, self.size, *args, **kwargs)
            except SystemExit as exit:
                if exit.code not in (None, 0):
                    raise
                result = None
        self.recorder.finish()
        seconds = self.recorder.now()
        pickled = pickle_result(result, ClassesByNameTensorsByValue)
        record = [*self.group_notes, *self.notes], self.recorder.rows()
        return RankOutcome(pickled, "".join(printed), record, seconds)

    def say_who_takes_part(self, asked: int) -> None:
        if self.rank == 0 and asked != self.size and asked not in self.sizes_asked:
            print(f"spawn: you asked for {asked} ranks; under {self.name} all {self.size} ranks of the job take part.")
        self.sizes_asked.add(asked)

    # --- exchanging values

    def gather(self, mine: Any) -> list[Any]:
        """The `mine` of every rank, in rank order, on every rank."""
        data = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        lengths = [int(length) for length in self.all_gather(torch.tensor([len(data)]))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(data)] = data
        rows = self.all_gather(padded)
        return [pickle.loads(row[:length].numpy().data) for row, length in zip(rows, lengths, strict=True)]

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(x) for _ in range(self.size)]
        self.gloo.allgather([rows], [x]).wait()
        return rows

    # --- the default process group

    def use_backend(self, backend: str | None) -> str:
        """Make a default group over `backend`, unless the script has made one itself. Returns the backend in use."""
        if dist.is_initialized() and dist.group.WORLD is not self.made:
            return str(dist.get_backend())
        if backend == "nccl" and self.best_backend != "nccl":
            raise ValueError(
                f'backend="nccl" needs a GPU for each of {self.size} ranks, and not every rank has its own. '
                'Leave backend out, or use backend="gloo", to run on the CPU.'
            )
        backend = backend or self.best_backend
        if dist.is_initialized() and dist.get_backend() == backend:
            return backend
        if dist.is_initialized():
            dist.destroy_process_group()
        if backend == "nccl":
            torch.cuda.set_device(gpu_of_this_rank())  # before the group, because NCCL takes the current one
        dist.init_process_group(backend, store=self.new_store(), rank=self.rank, world_size=self.size)
        self.made = dist.group.WORLD
        return backend

    def new_store(self) -> dist.Store:
        """Each group gets its own keys, because torch leaves those of the last one in the store."""
        self.groups_made += 1
        return dist.PrefixStore(f"world-{self.groups_made}", self.store)

    def let_program_join(self, backend: str) -> None:
        """The program may start the process group itself: it then gets the one that is there."""
        if dist.group.WORLD is self.made:
            give_group()
        self.joining.backends = {backend}
        self.joining.advice = (
            f'this job runs on {backend}. Leave the backend out, or name it: spawn(work, 4, backend="nccl").'
        )

    @functools.cached_property
    def best_backend(self) -> str:
        """NCCL if each rank has a GPU of its own, otherwise Gloo. All ranks decide this together."""
        index = gpu_of_this_rank()
        gpus = self.gather(None if index is None else str(torch.cuda.get_device_properties(index).uuid))
        if None not in gpus and len(set(gpus)) == self.size:
            return "nccl"
        if self.rank == 0 and any(gpus):
            print(f"There is no GPU for each of {self.size} ranks, which NCCL needs, so this runs on the CPU.")
        return "gloo"

    # --- the end

    def end(self, error: BaseException) -> None:
        """End this world, for all ranks. On a rank that only lost contact with another, raise that one's report."""
        own = failure(error, self.recorder.zero)
        reported = None
        with contextlib.suppress(RuntimeError):  # the process that holds the store may be gone
            if not is_innocent(own):
                self.store.compare_set("failure", "", pickle.dumps((self.rank, own)))
            elif self.store.check(["failure"]):
                reported = pickle.loads(self.store.get("failure"))
        rank, what = reported or (self.rank, own)
        self.ended_by = report(rank, what)
        self.gloo = None  # closes its connections, so that ranks that wait for this one stop waiting
        sys.excepthook = functools.partial(leave_at_once, sys.excepthook)
        if reported:
            raise RankFailed(self.ended_by, rank=rank) from None

    def leave(self) -> None:
        """At the exit of a process that has not failed. Otherwise connections would close in a destructor."""
        if dist.is_initialized() and dist.group.WORLD is self.made:
            dist.destroy_process_group()
        self.gloo = self.made = None
        del self.store


def report(rank: int, what: Failure) -> str:
    return str(report_failures({rank: what}, {}, {}))


def leave_at_once(
    show: Callable[..., object], kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """In place of sys.excepthook: show the error, then exit without destructors, which may wait for ranks forever."""
    show(kind, error, traceback)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def gpu_of_this_rank() -> int | None:
    """The index of its GPU: LOCAL_RANK, or 0 if the job shows each process only one. None without a GPU of its own."""
    count = torch.cuda.device_count()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    return local_rank if local_rank < count else 0 if count == 1 else None


@contextlib.contextmanager
def random_numbers_of_a_fresh_rank() -> Iterator[None]:
    """Random numbers start with seed 0, as on every rank of spawn. Afterwards the script's own continue."""
    python, arrays = random.getstate(), numpy.random.get_state()
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)


class ClassesByName(Pickler):
    """Pickles by value, except classes of the script: by name, because every process runs that script and has them.

    So an object has the same class wherever it arrives, and equal dataclasses from two ranks compare equal.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and is_found_by_name(value):
            return NotImplemented
        return super().reducer_override(value)


class ClassesByNameTensorsByValue(ClassesByName, ResultPickler):
    """For what a rank returns."""


def is_found_by_name(cls: type) -> bool:
    try:
        found: object = functools.reduce(getattr, cls.__qualname__.split("."), sys.modules[cls.__module__])
    except (KeyError, AttributeError):  # made inside a function
        return False
    return found is cls
