"""The world of a virtual cluster, in a process of its own: its ranks, its network, and what it reports at the end.

Whatever a rank does to its process (environment, random numbers, output) happens here, not in the kernel.
"""

from __future__ import annotations

import io
import marshal
import os
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import astuple, fields
from datetime import timedelta
from operator import attrgetter
from time import monotonic  # the machine's clock: virtual_clock.py gives ranks another
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import distributed_c10d as c10d
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...cluster.hardware import Cluster
from ...events.collectives import POINT_TO_POINT
from ...events.event import Event, Region
from ...recording import regions
from ...recording.callers import who_called
from ...recording.gradients import Gradients
from ...recording.samplers import watch_samplers
from ...recording.stack import look_at
from ...recording.storages import Storages, let_torch_func_run, restore
from ...recording.torch_private import (
    NewGroup,
    set_thread_isolation_mode,
    when_call_is_skipped,
    when_world_is_left,
    wrap_making_of_groups,
)
from ...text import source_lines
from ..common import pickling, rank_environment
from ..common.joining import Joining, give_group
from ..common.outcome import RankRecord, Refused, VirtualOutcome
from ..common.protocol import NEWS_IS, SPEAKS, SYNCHRONISED, Request, path_in
from ..common.rank_environment import failure
from ..common.result import pickle_result
from ..common.torchrun_variables import torchrun_variables
from . import (
    data_movement,
    ddp_check,
    fused_attention,
    gpu_semantics,
    meta_tensors,
    torch_wrappers,
    virtual_clock,
    virtual_signals,
)
from .alike import Representatives
from .calls import VirtualCall
from .compiled import patch_compile
from .fair_network import FairNetwork
from .gpu import Plan, VirtualGpu, total
from .kinds import about_kinds
from .meta_tensors import NoValues
from .network import Network, NetworkInterface
from .per_process import keep_apart
from .process_group import VirtualGroup
from .rank import VirtualRank
from .scheduler import RankThread, Scheduler, TooManyRanks
from .shared_libraries import about_import, about_patches
from .stores import NAME_KEY, VirtualStore, share_stores
from .surroundings import SeparateState, Surroundings
from .virtual_cuda import patch_cuda

GRACE = 0.5  # seconds that the other ranks have to get as far as they can, once one has failed
MOST_STACKS = 32  # ranks up to this one are looked at where they wait
PROGRESS_EVERY = 0.2  # seconds
FLUSH = 1 << 16  # bytes
# Errors of torch's, and of safetensors, about missing values.
NO_STORAGE = re.compile(r"\bmeta\b|unallocated storage|Tensor\.__format__|invalid shape, data type, or offset")
BACKENDS = {"gloo", "nccl"}  # for the network of a virtual cluster they are the same

Shared = TypeVar("Shared", bound=Hashable)


class SimulatedWorld:
    """The ranks of one call of `simulate`, and all that they share."""

    def __init__(self, request: Request, program: bytes):
        self.request, self.program = request, program
        assert isinstance(request.cluster, Cluster)
        self.size, self.cluster = request.world_size, request.cluster
        self.only_sizes = request.device == "meta"
        self.representatives = Representatives(self.cluster, self.size, request.alike)
        self.network = self.make_network()
        self.scheduler = self.make_scheduler()
        self.scheduler.on_turn = self.report_progress
        self.scheduler.on_long_turn = self.report_long_turn
        self.scheduler.say_once = self.say_once
        self.store = dist.HashStore()
        self.gradients = Gradients()
        self.world_group_ranks = {rank: rank for rank in range(self.size)}  # global rank -> rank in the default group
        self.shared: dict[Any, Any] = {}
        self.everyone = self.share(tuple(range(self.size)))  # the ranks of the first default group
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.waiting_members: dict[Hashable, list[VirtualRank]] = {}  # by the group they make
        self.came: dict[Hashable, dict[int, int]] = {}  # by the default group they make: {rank in it: rank here}
        self.stores: dict[str, VirtualStore] = {}
        self.separate = SeparateState(
            in_rank=lambda: self.scheduler.running is not None,
            on_import=lambda module, source: self.say_once("import", about_import(module, source)),
        )
        self.prints = Prints(self.scheduler)
        self.said: set[str] = set()  # subjects of the remarks printed so far
        self.next_report = monotonic() + PROGRESS_EVERY
        self.ranks = self.make_ranks()

    def make_network(self) -> NetworkInterface:
        kind = FairNetwork if self.cluster.rates == "achieved" else Network
        return kind(self.cluster, self.size, self.deliver, representatives=self.representatives)

    def make_scheduler(self) -> Scheduler:
        return Scheduler(self.network.earliest, self.network.commit)

    def surroundings_of(self, rank: int) -> Surroundings:
        return Surroundings(self.separate, torchrun_variables(rank, self.size, self.cluster.gpus_per_node))

    def make_ranks(self) -> list[VirtualRank]:
        return [VirtualRank(number, self, self.surroundings_of(number)) for number in self.representatives.running]

    def make_gpu(self, rank: VirtualRank) -> VirtualGpu:
        return VirtualGpu(rank, self.cluster, self.only_sizes, self.plans)

    @property
    def running(self) -> VirtualRank:
        """The rank whose turn it is, for what torch calls on a rank's thread."""
        return self.scheduler.running  # type: ignore[return-value]

    def run(self) -> None:
        self.scheduler.run(self.ranks)
        self.prints.flush()

    def perform(self, rank: VirtualRank) -> None:
        """Let the running rank join the world and run the program; keep what it returned or raised."""
        try:
            with self.scheduler.bookkeeping():
                dist.init_process_group("gloo", store=self.store, rank=rank.number, world_size=self.size)
                rank.groups.pg_group_ranks[dist.group.WORLD] = self.world_group_ranks  # torch makes one per rank
                give_group()
                fn, args, kwargs = self.load_program()
            with saved_tensors_hooks(rank.storages.save, restore), self.make_gpu(rank):
                result = fn(rank.number, self.size, *args, **kwargs)
            with self.scheduler.bookkeeping():
                rank.result = self.pack_result(result)
        except SystemExit as exit:
            if exit.code in (None, 0):
                rank.result = self.pack_result(None)
            else:
                rank.failure = failure(exit, 0.0)
        except BaseException as error:
            if self.only_sizes and NO_STORAGE.search(str(error)) and not isinstance(error, NoValues):
                error.add_note(str(NoValues("It")))
            rank.failure = failure(error, 0.0)
        if rank.failure is not None:  # others get as far as they can for a while
            self.scheduler.deadline = self.scheduler.deadline or monotonic() + GRACE

    def share(self, value: Shared) -> Shared:
        """The same object for all who hold an equal one."""
        return self.shared.setdefault(value, value)  # type: ignore[no-any-return]

    def ask(self, call: VirtualCall) -> None:
        """Pass on what the running rank asks of the network. Raises what `Network.ask` raises."""
        if call.event.op not in POINT_TO_POINT and call.event.group == "world":
            self.prints.synchronised(call.event.rank)
        self.network.ask(call)

    def deliver(self, calls: list[VirtualCall]) -> None:
        with self.scheduler.bookkeeping():
            data_movement.deliver(calls, self.representatives.calls_of_all)

    def store_named(self, name: str) -> dist.Store:
        """The store behind a file or an address: the same for all ranks that name it."""
        if name not in self.stores:
            self.stores[name] = VirtualStore(name, self)
        return self.stores[name]

    def new_store(self) -> dist.Store:
        """Where the ranks meet for one more default group."""
        self.running.stores_met_at += 1
        return self.store_named(f"meeting {self.running.stores_met_at}")

    def join(self, store: dist.Store, rank: int, size: int) -> None:
        """Called when a rank makes its default group: the first consists of all ranks, by their own numbers.

        For a further one, wait until as many have come to this store as the group has members.
        """
        me = self.running
        if me.default_group is None:
            me.default_group = self.everyone
            return
        if self.representatives.runs_as is not None:
            raise RuntimeError("with alike=, a rank program can't make another default group: all ranks must run.")
        if not 0 <= rank < size:
            raise ValueError(f"rank {me.number} joins as rank {rank} of {size}: ranks count from 0 to {size - 1}.")
        if not store.check([NAME_KEY]) and size > 1:
            raise RuntimeError(
                f"rank {me.number} would wait forever: the others can't find its {type(store).__name__}. Ranks meet at "
                "a FileStore or a TCPStore; or call init_process_group without a store."
            )
        group = store.get(NAME_KEY) if size > 1 else f"rank {me.number} alone", size
        came = self.came.setdefault(group, {})
        if rank in came:
            raise ValueError(f"ranks {came[rank]} and {me.number} both join as rank {rank} of {size}.")
        came[rank] = me.number
        if len(came) == size:
            del self.came[group]
        with me.in_new_group("world", tuple(range(size)), ""):
            self.meet(group, size)
        me.default_group = self.share(tuple(came[number] for number in range(size)))

    def to_world_ranks(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The world's numbers of ranks that torch's default group numbers so."""
        group = self.running.default_group
        assert group is not None
        return self.share(tuple(group[rank] for rank in ranks))

    def pack_result(self, result: Any) -> bytes:
        return pickle_result(result)

    def load_program(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """A copy for one rank: (function, args, kwargs). In a world without values its tensors have none either."""
        unpickler = EmptyUnpickler if self.only_sizes else pickle.Unpickler
        program: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = unpickler(io.BytesIO(self.program)).load()
        return program

    def make_group(self, asked: NewGroup, make: Callable[[], Any]) -> Any:
        """Call `make`, which makes a group of the running rank, once all members have come to make it."""
        rank, members = self.running, self.to_world_ranks(asked.members)
        self.representatives.check_placement(members)
        with rank.in_new_group(asked.name, members, asked.description):
            if rank.number in members:
                self.meet((asked.name, members), len(self.representatives.present(members)))
        return make()

    def meet(self, group: Hashable, size: int) -> None:
        """Wait until `size` ranks, all that run of its members, have come to make a group."""
        present = self.waiting_members.setdefault(group, [])
        present.append(self.running)
        if len(present) < size:
            self.scheduler.suspend(self.running)
            return
        del self.waiting_members[group]
        now = max(member.clock for member in present)
        for member in present:
            member.clock = now
        for other in present[:-1]:
            self.scheduler.make_ready(other)

    def unknown_value(self, tensor: torch.Tensor) -> float | bool | None:
        """What a rank gets that asks for the value of a tensor without values; None if that is an error."""
        if not self.request.item_as_nan or (value := meta_tensors.nan_like(tensor)) is None:
            return None
        asks = source_lines.place(who_called()[0]) or "what asks for one"
        self.say_once("no values", f"On device='meta' tensors have no values, so {asks} gets {value}.")
        return value

    def say_once(self, about: str, text: str) -> None:
        """Print a remark, if there is one, the first time that a rank gives cause for it."""
        if text and about not in self.said:
            self.said.add(about)
            print(text)

    def make_recorder(self) -> VirtualRecorder:
        return VirtualRecorder(self)

    def report_progress(self) -> None:
        """How far the ranks are, for the progress bar in the notebook."""
        now = monotonic()
        if now >= self.next_report:
            self.next_report = now + PROGRESS_EVERY
            running = [rank.clock for rank in self.ranks if not rank.finished]
            if running:
                self.prints.news(f"{min(running):.9f} {self.network.calls} {len(self.ranks) - len(running)}")

    def report_long_turn(self, rank: RankThread) -> None:
        """Called on the main thread, while the rank goes on."""
        line = source_lines.place(lines_of(self).get(rank.number, ""))
        self.say_once(
            "long turn",
            f"rank {rank.number} has been running for a minute of real time{f' at {line}' if line else ''}, and the "
            "other ranks wait for their turn. What torch computes on device='meta' takes none; loops in Python do.",
        )
        self.prints.flush()

    # --- at the end

    def outcome(self) -> VirtualOutcome:
        return VirtualOutcome(
            ranks=marshal.dumps([self.record_of(rank) for rank in self.ranks]),
            results=[rank.result for rank in self.ranks],
            failures={rank.number: rank.failure for rank in self.ranks if rank.failure is not None},
            algorithms=[(*kind, *charge) for kind, charge in self.network.algorithms.items()],
            lines=lines_of(self) if self.scheduler.held_up is not None else {},
            held_up=[self.scheduler.held_up.number] if self.scheduler.held_up is not None else [],
        )

    def record_of(self, rank: VirtualRank) -> RankRecord:
        late = rank.starved + (rank.uneven.late if rank.uneven else 0.0)  # its GPU waited: for the host, by its jitter
        return {
            "finished": rank.finished,
            "clock": rank.clock,
            "events": [event_fields(call) for call in rank.calls],
            "waits": {call.event.index: call.waited_at for call in rank.calls if call.waited is not None},
            "groups_made": list(map(astuple, rank.groups_made)),
            "strides": rank.strides,
            "unused_handles": rank.unused_handles if rank.finished else {},
            "skipped": rank.skipped,
            "unreduced": rank.unreduced,
            "frozen": rank.frozen,
            "moved": rank.moved,
            "left": rank.left,
            "samplers": list(map(tuple, rank.samplers)),
            "stack": self.stack_of(rank),
            "regions": list(map(astuple, rank.regions)),
            "busy": self.share(tuple((start, end) for start, end in rank.busy)),
            "memory": self.share(tuple(rank.storages.samples())),
            "computed": self.share(tuple(total(rank.times, rank.clock, late))),
        }

    def stack_of(self, rank: VirtualRank) -> list[tuple[Any, ...]]:
        waits = not rank.finished and rank.failure is None and rank.number < MOST_STACKS
        return [tuple(frame) for frame in look_at(rank.ident or 0)] if waits else []


NAMES = [field.name for field in fields(Event)]
EVENT = attrgetter(*NAMES)
PEER, END, WAITED = map(NAMES.index, ("peer", "end", "waited"))


def event_fields(call: VirtualCall) -> tuple[Any, ...]:
    """The fields of its Event, now that it is known when it ended, who sent it, and when it was waited for."""
    values = list(EVENT(call.event))
    values[END], values[WAITED] = call.end, call.waited
    if call.source is not None:
        values[PEER] = call.source
    return tuple(values)


class EmptyUnpickler(pickle.Unpickler):
    """Reads a program, with the tensors in it but without their values."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return unpack_empty if found is pickling.unpack else found


def unpack_empty(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if meta_tensors.is_data(dtype, len(shape)):
        return torch.empty(shape, dtype=dtype, device="meta")
    return pickling.unpack(data, dtype, shape)


class Prints(io.TextIOBase):
    """The stream that all ranks print to: a single pipe, in which a mark says whose text follows."""

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.buffer = bytearray()
        self.speaker: int | None = None
        self.lock = threading.RLock()  # the main thread may say something while a rank runs

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        running = self.scheduler.running
        self.say(running.number if running is not None else 0, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def synchronised(self, rank: int) -> None:
        self.say(rank, SYNCHRONISED)

    def say(self, rank: int, data: bytes) -> None:
        with self.lock:
            if rank != self.speaker:
                self.speaker = rank
                self.buffer += SPEAKS % rank
            self.buffer += data
            if len(self.buffer) > FLUSH:
                self.flush()

    def news(self, text: str) -> None:
        self.buffer += NEWS_IS % text.encode()
        self.flush()

    def flush(self) -> None:
        with self.lock:
            data, self.buffer = bytes(self.buffer), bytearray()
            while data:
                data = data[os.write(rank_environment.marks, data) :]


class VirtualRecorder:
    """Stands in for the recorder in `region` and `track_memory`: times are those of the running rank."""

    def __init__(self, world: SimulatedWorld):
        self.world = world

    def now(self) -> float:
        return self.world.running.clock

    mark = now

    def span(self, kind: str, name: str, start: float, end: float) -> None:
        rank = self.world.running
        rank.regions.append(Region(rank.number, name, start, end))

    @property
    def storages(self) -> Storages:
        """What `track_memory` would count is counted anyway."""
        return self.world.running.storages


def run_virtual_world(_: int, request: Request) -> bytes:
    """Run the program of `request` on all its ranks. Returns a VirtualOutcome or Refused, pickled, for world.py."""
    rank_environment.adopt_environment(request)
    with open(os.path.join(request.folder, "program"), "rb") as file:
        world = SimulatedWorld(request, file.read())
    patch_torch(world)
    world.separate.install()
    keep_apart(world, world.separate)
    enter(world)
    virtual_clock.patch_time(world.scheduler)
    virtual_signals.patch_signals(world.scheduler)
    dump_positions_on_signal(world)
    outcome: VirtualOutcome | Refused
    try:
        world.run()
        world.say_once("patches", about_patches())
        if request.alike is None:
            world.say_once("kinds", about_kinds(world.cluster, request.device, world.ranks))
        world.prints.flush()
        outcome = world.outcome()
    except TooManyRanks as error:
        outcome = Refused(str(error))
    return pickle.dumps(outcome)


def patch_torch(world: SimulatedWorld) -> None:
    """Make this process one of a virtual cluster: its groups are those of the running rank."""
    set_thread_isolation_mode(True)  # torch's C++ registry of groups becomes one per thread
    register_optimizer_step_post_hook(lambda optimizer, *_: world.running.after_step(optimizer))

    class VirtualGloo(VirtualGroup):
        def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
            super().__init__(world, rank, size)

    c10d.ProcessGroupGloo = VirtualGloo  # type: ignore[assignment,misc]

    def make_group(asked: NewGroup, make: Callable[[], Any]) -> Any:
        if not asked.members:  # the default group
            made = make()
            world.join(asked.store, asked.rank, asked.size)
            return made
        return world.make_group(asked, make)

    wrap_making_of_groups(make_group)
    watch_samplers(lambda use: world.running.samplers.append(use))
    when_world_is_left(lambda: setattr(world.running, "left", who_called().where))
    when_call_is_skipped(lambda name: world.running.skipped.append((name, who_called().where)))
    share_stores(world.store_named)
    let_torch_func_run()
    Joining(
        world.new_store, BACKENDS, "gloo", f"a virtual cluster's network answers to {' and '.join(sorted(BACKENDS))}."
    )
    torch_wrappers.patch_wrappers(world)
    patch_cuda(world)
    ddp_check.patch_ddp(world)
    fused_attention.patch_attention(world)
    patch_compile(world)


def enter(world: SimulatedWorld) -> None:
    """Make this process's surroundings this world's: where prints go, who records regions and memory."""
    for stream in ("stdout", "stderr", "__stdout__", "__stderr__"):
        setattr(sys, stream, world.prints)
    regions.recorder = world.make_recorder()
    if world.only_sizes:
        functional.dropout = gpu_semantics.dropout
        torch_wrappers.patch_for_meta_tensors()
    if world.request.item_as_nan:
        torch_wrappers.read_unknown_values()


def dump_positions_on_signal(world: SimulatedWorld) -> None:
    """On SIGUSR1 this process writes to a file at which line each rank is, and what it has called so far."""
    path = path_in(world.request.folder, "where", 0)

    def dump(*_: object) -> None:
        with open(path + ".part", "wb") as file:
            pickle.dump((lines_of(world), [world.record_of(rank) for rank in world.ranks]), file)
        os.replace(path + ".part", path)

    signal.signal(signal.SIGUSR1, dump)


def lines_of(world: SimulatedWorld) -> dict[int, str]:
    """{rank: "file:line", where it is} of those that have not finished."""
    frames = sys._current_frames()
    return {rank.number: students_line(frames.get(rank.ident or 0)) for rank in world.ranks if not rank.finished}


def students_line(frame: FrameType | None) -> str:
    """ "file:line" of the innermost line of a stack that is the student's; "" if there is none."""
    while frame is not None:
        if source_lines.is_students(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
