"""The world of a virtual cluster, in a process of its own: its ranks, its network, and what is told of them.

Everything that a rank may do to its process (environment, random numbers, output) happens here, not in the kernel.
"""

from __future__ import annotations

import io
import marshal
import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import astuple, fields
from operator import attrgetter
from time import monotonic  # the machine's: virtual_clock.py gives ranks another
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...events.event import Event, Region
from ...recording import regions
from ...recording.storages import Storages
from ...recording.torch_private import NewGroup, set_thread_isolation_mode, wrap_making_of_groups
from ...text import source_lines
from ..common import pickling, rank_environment
from ..common.outcome import Refused, VirtualOutcome
from ..common.protocol import NEWS_IS, SPEAKS, SYNCHRONISED, Request, path_in
from ..common.result import pickle_result
from . import data_movement, ddp_check, gpu_semantics, meta_tensors, torch_wrappers, virtual_clock
from .gpu import VirtualGpu
from .network import Network, VirtualCall
from .process_group import VirtualGroup
from .rank import VirtualRank
from .scheduler import Scheduler, TooManyRanks

GRACE = 0.5  # seconds that the other ranks have to come as far as they can, once one has failed
NEWS = 0.2  # seconds between two lines about how far we are
FLUSH = 1 << 16  # bytes


class Engine:
    """The ranks of one call of `simulate`."""

    def __init__(self, request: Request, program: bytes):
        self.request, self.program = request, program
        self.size, self.cluster = request.world_size, request.cluster
        self.only_sizes = request.device == "meta"
        self.network = self.make_network()
        self.turns = self.make_turns()
        self.turns.on_turn = self.tell_news
        self.store = dist.HashStore()
        self.everybody = {rank: rank for rank in range(self.size)}  # global rank -> rank in the default group
        self.plans: dict = {}
        self.shared: dict = {}
        self.coming: dict[tuple, list] = {}  # groups that are being made -> the members that have come
        self.prints = Prints(self.turns)
        self.next_news = monotonic() + NEWS
        self.ranks = self.make_ranks()

    def make_network(self) -> Network:
        return Network(self.cluster, self.size, self.deliver)

    def make_turns(self) -> Scheduler:
        return Scheduler(self.network.earliest, self.network.commit, self.local_rank)

    def local_rank(self, rank: int) -> int:
        return rank % self.cluster.gpus_per_node

    def make_ranks(self) -> list[VirtualRank]:
        return [VirtualRank(number, self) for number in range(self.size)]

    def make_gpu(self, rank: VirtualRank) -> VirtualGpu:
        return VirtualGpu(rank, self.cluster.gpu, self.only_sizes, self.plans)

    def run(self) -> None:
        self.turns.run(self.ranks)
        self.prints.flush()

    def share(self, value):
        """The same object for all who hold an equal one."""
        return self.shared.setdefault(value, value)

    def deliver(self, calls: list[VirtualCall]) -> None:
        with self.turns.own_work():
            data_movement.deliver(calls)

    def join(self, store, rank: int, size: int) -> None:
        """A rank makes its default group: all ranks of the world, each by its own number."""

    def numbers_of(self, ranks) -> tuple[int, ...]:
        """The world's ranks that torch's default group calls so."""
        return self.share(tuple(ranks))

    def pack_result(self, result):
        return pickle_result(result)

    def load_program(self):
        """A copy of the program for one rank; what it has brought along has no values in a world that has none."""
        return (EmptyUnpickler if self.only_sizes else pickle.Unpickler)(io.BytesIO(self.program)).load()

    def meet(self, group: tuple, rank: VirtualRank) -> None:
        """Wait until all members of a group, (name, members), have come to make it."""
        come = self.coming.setdefault(group, [])
        come.append(rank)
        if len(come) == len(group[1]):
            del self.coming[group]
            now = max(member.clock for member in come)
            for member in come:
                member.clock = now
            for other in come[:-1]:
                self.turns.make_ready(other)
        else:
            self.turns.give_away(rank)

    def make_recorder(self) -> Clock:
        return Clock(self.turns)

    def somebody_failed(self) -> None:
        self.turns.give_up = self.turns.give_up or monotonic() + GRACE

    def tell_news(self) -> None:
        """How far we are, for somebody who looks on."""
        now = monotonic()
        if now >= self.next_news:
            self.next_news = now + NEWS
            running = [rank.clock for rank in self.ranks if not rank.finished]
            if running:
                self.prints.news(f"{min(running):.9f} {self.network.calls} {self.size - len(running)}")

    # --- what is told in the end

    def outcome(self) -> bytes:
        ranks = [self.told(rank) for rank in self.ranks]
        return pickle.dumps(
            VirtualOutcome(
                ranks=marshal.dumps(ranks),
                results=[rank.result for rank in self.ranks],
                failures={rank.number: rank.failure for rank in self.ranks if rank.failure is not None},
                algorithms=[(*kind, *charged) for kind, charged in self.network.algorithms.items()],
            )
        )

    def told(self, rank: VirtualRank) -> dict:
        """One rank, in what marshal can write."""
        return {
            "finished": rank.finished,
            "clock": rank.clock,
            "events": [final(call) for call in rank.calls],
            "waits": {call.event.index: call.waited_at for call in rank.calls if call.waited is not None},
            "groups_made": list(map(astuple, rank.groups_made)),
            "strides": rank.strides,
            "dropped": rank.unasked if rank.finished else {},
            "regions": list(map(astuple, rank.regions)),
            "busy": self.share(tuple(map(tuple, rank.busy))),
            "memory": self.share(tuple(rank.storages.samples())),
        }


EVENT = attrgetter(*(field.name for field in fields(Event)))


def final(call: VirtualCall) -> tuple:
    """The fields of its Event, as they have turned out."""
    *before, peer, tag, nbytes, dtype, shape, reduce_op, is_async, start, _, where, _ = EVENT(call.event)
    peer = peer if call.source is None else call.source
    return *before, peer, tag, nbytes, dtype, shape, reduce_op, is_async, start, call.end, where, call.waited


class EmptyUnpickler(pickle.Unpickler):
    """Reads a program, and the tensors that it has brought along without their values."""

    def find_class(self, module: str, name: str):
        found = super().find_class(module, name)
        return unpack_empty if found is pickling.unpack else found


def unpack_empty(data, dtype: torch.dtype, shape: tuple) -> torch.Tensor:
    device = "meta" if meta_tensors.is_data(dtype, len(shape)) else "cpu"
    return torch.empty(shape, dtype=dtype, device="meta") if device == "meta" else pickling.unpack(data, dtype, shape)


class Prints(io.TextIOBase):
    """The stream that all ranks print to: one pipe, in which a sign says whose text follows."""

    def __init__(self, turns: Scheduler):
        self.turns = turns
        self.buffer = bytearray()
        self.speaker: int | None = None

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        running = self.turns.running
        self.say(running.number if running is not None else 0, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def synchronised(self, rank: int) -> None:
        self.say(rank, SYNCHRONISED)

    def say(self, rank: int, data: bytes) -> None:
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
        data, self.buffer = bytes(self.buffer), bytearray()
        while data:
            data = data[os.write(rank_environment.marks, data) :]


class Clock:
    """Takes the place of the recorder for `region` and `track_memory`: times are those of the rank that runs."""

    def __init__(self, turns: Scheduler):
        self.turns = turns

    def now(self) -> float:
        return self.turns.running.clock

    mark = now

    def span(self, kind: str, name: str, start: float, end: float) -> None:
        self.turns.running.regions.append(Region(self.turns.running.number, name, start, end))

    @property
    def storages(self) -> Storages:
        """What `track_memory` would count is counted anyway."""
        return self.turns.running.storages


def run_virtual_world(_: int, request: Request) -> bytes:
    """Run the program of `request` on all its ranks; returns what the launcher wants to know (launch.py)."""
    rank_environment.adopt_environment(request)
    with open(os.path.join(request.folder, "program"), "rb") as file:
        world = Engine(request, file.read())
    patch_torch(world)
    enter(world)
    virtual_clock.take_over(world.turns)
    tell_lines_when_asked(world)
    try:
        world.run()
    except TooManyRanks as error:
        return pickle.dumps(Refused(str(error)))
    return world.outcome()


def patch_torch(world: Engine) -> None:
    """Make this process one of a virtual cluster: its groups are those of the rank that runs."""
    set_thread_isolation_mode(True)  # torch's registry of groups is each thread's own
    register_optimizer_step_post_hook(lambda optimizer, *_: world.turns.running.storages.count_state(optimizer))

    class VirtualGloo(VirtualGroup):
        def __init__(self, store, rank, size, timeout):
            super().__init__(world, rank, size)

    c10d.ProcessGroupGloo = VirtualGloo

    def make_group(asked: NewGroup, make: Callable[[], Any]) -> Any:
        if not asked.members:  # the default group
            made = make()
            world.join(asked.store, asked.rank, asked.size)
            return made
        return world.turns.running.make_group(asked.name, tuple(asked.members), make)

    wrap_making_of_groups(make_group)
    torch_wrappers.take_over(world)
    ddp_check.take_over(world)


def enter(world: Engine) -> None:
    """What programs find around them is this world's: its size, where prints go, what regions and memory are told."""
    os.environ.update(WORLD_SIZE=str(world.size), LOCAL_WORLD_SIZE=str(min(world.size, world.cluster.gpus_per_node)))
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = world.prints
    regions.recorder = world.make_recorder()
    if world.only_sizes:
        gpu_semantics.take_over()
        torch_wrappers.take_over_without_values()


def tell_lines_when_asked(world: Engine) -> None:
    """A signal makes this process write down at which line each rank is, and what it has called so far."""
    path = path_in(world.request.folder, "where", 0)

    def tell_lines(*_) -> None:
        frames = sys._current_frames()
        lines = {rank.number: students_line(frames.get(rank.ident)) for rank in world.ranks if not rank.finished}
        with open(path + ".part", "wb") as file:
            pickle.dump((lines, [world.told(rank) for rank in world.ranks]), file)
        os.replace(path + ".part", path)

    signal.signal(signal.SIGUSR1, tell_lines)


def students_line(frame) -> str:
    """ "file:line" of the innermost line of a stack that is the student's; "" if there is none."""
    while frame is not None:
        if source_lines.is_students(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
