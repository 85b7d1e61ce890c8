"""The world of a job that torchrun or SLURM has started, seen from one of its ranks."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import random
import sys
import time
from datetime import timedelta

import cloudpickle
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
from ..common.program import pickle_program
from ..common.rank_environment import failure
from ..common.result import ResultPickler, pickle_result
from . import detect
from .marked_output import marked_output

FOR_EVER = timedelta(days=365)  # a rank may be done with its program long before the others


class JobWorld:
    """All ranks of the job. Joined once in a process; each call of spawn runs on it.

    What spawn itself sends goes over a Gloo group beside the default one. So it is no Event of the program, and in an
    NCCL world it need not pass through the GPU.
    """

    def __init__(self):
        self.name = detect.launcher()
        detect.set_variables()
        self.store, self.rank, self.size = next(dist.rendezvous("env://"))
        self.beside = dist.ProcessGroupGloo(dist.PrefixStore("beside", self.store), self.rank, self.size)
        set_timeout(self.beside, FOR_EVER)  # only now: to connect, torch's half an hour is enough
        self.made = None  # the default group, if it is ours
        self.groups_made = 0
        self.recorder = Recorder(self.take_note, time.monotonic())
        self.group_notes: list[Note] = []  # a group stays over many calls, and is noted once
        self.notes: list[Note] = []  # of this call
        self.running = False
        self.over = ""  # the report of the failure that ended this world
        self.told: set[int] = set()  # world sizes that were asked for
        install(self.recorder)
        set_pickler_of_objects(ClassesByName)
        atexit.register(self.leave)

    def take_note(self, note: Note) -> None:
        (self.group_notes if isinstance(note, GroupMembers) else self.notes).append(note)

    # --- one call of spawn

    def run(self, fn, asked: int, args: tuple, kwargs: dict, backend: str | None) -> Run:
        if self.running:
            raise RuntimeError(
                f"spawn was called on rank {self.rank}, inside a rank program. Call it from the script's own lines."
            )
        if self.over:
            raise RankFailed(f"This job's world has ended: {self.over}")
        self.tell_who_takes_part(asked)
        program = pickle_program(fn, args, kwargs, self.size, ClassesByName)
        self.running = True
        try:
            backend = self.use_backend(backend)
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
            results=[pickle.loads(result)[1] for result in results],
            output=list(output),
            events=[event for state in states for event in state.events],
            elapsed=max(elapsed),
            regions=[region for state in states for region in state.regions],
            memory_notes=[read_memory(notes) for notes, _ in records],
        )
        if error := silent_mistake(states):  # on every rank, since all have the same before them
            error.results, error.output, error.events = run.results, run.output, run.events
            raise error
        return run

    def perform(self, program: bytes) -> tuple:
        """Run the program here, on a copy of what it uses, so that it changes nothing of the script's, as in spawn.

        Returns (pickled result, what was printed, the recorder's notes and table, seconds).
        """
        fn, args, kwargs = pickle.loads(program)
        self.notes = []
        self.beside.barrier().wait()  # all begin together, so that their events have one zero
        self.recorder.restart(time.monotonic())
        with marked_output(self.rank) as printed, numbers_of_a_fresh_rank():
            try:
                result = fn(self.rank, self.size, *args, **kwargs)
            except SystemExit as exit:
                if exit.code not in (None, 0):
                    raise
                result = None
        self.recorder.finish()
        seconds = self.recorder.now()
        result = pickle_result(result, ClassesByNameTensorsByValue)
        record = [*self.group_notes, *self.notes], self.recorder.rows()
        return result, "".join(printed), record, seconds

    def tell_who_takes_part(self, asked: int) -> None:
        if self.rank == 0 and asked != self.size and asked not in self.told:
            print(f"spawn: {asked} ranks asked for; under {self.name} the whole job takes part, {self.size} ranks.")
        self.told.add(asked)

    # --- what all tell each other

    def gather(self, mine) -> list:
        """Everybody's `mine`, by rank, on every rank."""
        data = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        lengths = [length.item() for length in self.all_gather(torch.tensor([len(data)]))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(data)] = data
        rows = self.all_gather(padded)
        return [pickle.loads(row[:length].numpy()) for row, length in zip(rows, lengths, strict=True)]

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(x) for _ in range(self.size)]
        self.beside.allgather([rows], [x]).wait()
        return rows

    # --- the default process group

    def use_backend(self, backend: str | None) -> str:
        """Have a default group over `backend`, and say which; one that the script has made itself stays."""
        if dist.is_initialized() and dist.group.WORLD is not self.made:
            return dist.get_backend()
        if backend == "nccl" and self.best_backend != "nccl":
            raise ValueError(
                f'backend="nccl" needs a GPU for each of {self.size} ranks, and not every rank has its own. '
                'Leave backend out, or say backend="gloo", to run on the CPU.'
            )
        backend = backend or self.best_backend
        if dist.is_initialized() and dist.get_backend() == backend:
            return backend
        if dist.is_initialized():
            dist.destroy_process_group()
        if backend == "nccl":
            torch.cuda.set_device(gpu_of_this_rank())  # before the group: NCCL takes the current one
        self.groups_made += 1  # each with keys of its own: torch leaves those of the one before in the store
        store = dist.PrefixStore(f"world-{self.groups_made}", self.store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size)
        self.made = dist.group.WORLD
        return backend

    @functools.cached_property
    def best_backend(self) -> str:
        """NCCL where each rank has a GPU of its own, else Gloo: all ranks decide together, and alike."""
        index = gpu_of_this_rank()
        gpus = self.gather(None if index is None else str(torch.cuda.get_device_properties(index).uuid))
        if None not in gpus and len(set(gpus)) == self.size:
            return "nccl"
        if self.rank == 0 and any(gpus):
            print(f"{self.size} ranks, and not a GPU for each: NCCL needs one, so this runs on the CPU.")
        return "gloo"

    # --- the end

    def end(self, error: BaseException) -> None:
        """This world is over, for all. On a rank that only missed another one: raise what that one had said."""
        own = failure(error, self.recorder.zero)
        reported = None
        with contextlib.suppress(RuntimeError):  # the process that keeps the store may be gone
            if not is_innocent(own):
                self.store.compare_set("failure", "", pickle.dumps((self.rank, own)))
            elif self.store.check(["failure"]):
                reported = pickle.loads(self.store.get("failure"))
        rank, what = reported or (self.rank, own)
        self.over = report(rank, what)
        self.beside = None  # closes its connections: those who wait for this rank, there, need not any longer
        sys.excepthook = functools.partial(leave_at_once, sys.excepthook)
        if reported:
            raise RankFailed(self.over, rank=rank) from None

    def leave(self) -> None:
        """At the exit of a process that has not failed; else connections would close in the middle of a destructor."""
        if dist.is_initialized() and dist.group.WORLD is self.made:
            dist.destroy_process_group()
        self.beside = self.store = self.made = None


def report(rank: int, what: Failure) -> str:
    return str(report_failures({rank: what}, {}, {}))


def leave_at_once(show, *error) -> None:
    """In place of sys.excepthook: show the error, then exit without destructors. They may wait for ranks for ever."""
    show(*error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def gpu_of_this_rank() -> int | None:
    """The index of its GPU: LOCAL_RANK's, or the only one where the job shows each process no other."""
    count = torch.cuda.device_count()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    return local_rank if local_rank < count else 0 if count == 1 else None


@contextlib.contextmanager
def numbers_of_a_fresh_rank():
    """Random numbers begin as on every rank of spawn, with seed 0; afterwards the script's own go on."""
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


class ClassesByName(cloudpickle.Pickler):
    """Pickles by value, but a class of the script by its name: every process runs that script, and has it already.

    So an object is of the same class wherever it arrives, and two equal dataclasses of two ranks are equal.
    """

    def reducer_override(self, value):
        if isinstance(value, type) and is_found_by_name(value):
            return NotImplemented
        return super().reducer_override(value)


class ClassesByNameTensorsByValue(ClassesByName, ResultPickler):
    """For what a rank returns."""


def is_found_by_name(cls: type) -> bool:
    try:
        found = functools.reduce(getattr, cls.__qualname__.split("."), sys.modules[cls.__module__])
    except (KeyError, AttributeError):  # made inside a function
        return False
    return found is cls
