"""One virtual rank: what it computes, asks of the network, and holds in memory.

A program may poll a handle in a loop, `while not work.is_completed(): ...`, and on a virtual cluster polling takes no
time: the clock would stand still and the loop would never end. So `poll` moves the clock itself, the second time round:

    first poll at this moment of the clock    let all that happens before this moment happen; is the result there?
      |  yes -> True                          no -> remember the call in `polled`, False
      v
    same call, same moment, again             nothing else can make time pass: `wait_for_first_polled`
      |                                       waits until the first of the calls in `polled` is complete
      v
    any later moment                          `polled` is forgotten, and all this starts again
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.optim import Optimizer

from ...cluster.hardware import Cluster
from ...cluster.jitter import Unevenness
from ...events.collectives import POINT_TO_POINT
from ...events.event import Event, Region
from ...events.failure import Failure
from ...events.rank_state import SamplerUse
from ...recording.callers import who_called
from ...recording.gradients import Gradients
from ...recording.notes import ParameterIn
from ...recording.reader import making
from ...recording.replicas import frozen, unreduced
from ...recording.storages import COMMUNICATION, Storages
from .calls import VirtualCall
from .kernels import Kernel, Work
from .scheduler import RankThread, Scheduler
from .surroundings import Surroundings

MOST_COMPARED = 8  # ranks whose parameters are compared


class World(Protocol):
    """What a rank, its GPU, its process groups and torch's wrappers need of the world that they are in.

    running      the rank whose turn it is
    only_sizes   whether tensors have sizes but no values
    gradients    the parameters of all ranks
    """

    scheduler: Scheduler
    gradients: Gradients
    cluster: Cluster
    only_sizes: bool

    @property
    def running(self) -> VirtualRank: ...
    def perform(self, rank: VirtualRank) -> None: ...
    def ask(self, call: VirtualCall) -> None: ...
    def to_world_ranks(self, ranks: Iterable[int]) -> tuple[int, ...]: ...
    def unknown_value(self, tensor: torch.Tensor) -> float | bool | None: ...
    def say_once(self, about: str, text: str) -> None: ...


class VirtualRank(RankThread):
    """A rank of `world` (simulated_world.py)."""

    def __init__(self, number: int, world: World, surroundings: Surroundings):
        super().__init__(number, world.scheduler, surroundings)
        self.world = world
        self.calls: list[VirtualCall] = []
        self.groups_made: list[Event] = []
        self.default_group: tuple[int, ...] | None = None  # the world's numbers of its members; None before it joins
        self.stores_met_at = 1  # how many stores the world has given it to meet others
        self.regions: list[Region] = []
        self.strides: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # index of a call -> (shape, strides)
        self.received: set[int] = set()  # numbers of storages that messages have filled
        self.awaited: list[VirtualCall] = []  # the calls of its current wait, or of the last one
        self.polled: list[VirtualCall] = []  # polled in vain at the moment `polled_at` of its clock
        self.polled_at = -1.0
        self.pending_futures: dict[VirtualCall, tuple[Future[Any], Sequence[torch.Tensor]]] = {}  # without result yet
        self.samplers: list[SamplerUse] = []
        self.left = ""  # "file:line" where it has destroyed the default group
        self.skipped: list[tuple[str, str]] = []  # (function, "file:line") of calls for groups that it is not in
        self.unreduced: tuple[str, list[str]] | None = None  # its first step, if DDP had not reduced its gradients
        self.frozen: list[tuple[str, int]] = []  # (name, fingerprint) of untrained parameters, at its first step
        self.moved: dict[int, tuple[int, str]] = {}  # index of a broadcast -> (fingerprint, name) of its parameter
        self.has_stepped = False
        self.unused_handles: dict[int, str] = {}  # {index of an asynchronous call: "file:line"}
        self.beside: list[VirtualCall] = []  # asynchronous collectives that may not have ended, at achieved rates
        self.storages = Storages(lambda: self.clock, devices=("cpu", "meta"))
        self.times: dict[Work, int] = {}  # how often its GPU carried out operations of that cost
        self.starved = 0.0  # seconds that its GPU has waited for operations to be issued
        self.run_kernel: Callable[[Kernel], None]  # its GPU's
        self.uneven: Unevenness | None = None  # its stragglers and late launches, if there are any
        self.result: bytes | None = None
        self.failure: Failure | None = None

    must_wait_for_sends = False  # only where answers are judged

    def work(self) -> None:
        self.world.perform(self)

    def after_step(self, optimizer: Optimizer) -> None:
        self.storages.count_state(optimizer)
        if not self.has_stepped:
            self.has_stepped = True
            wrappers = {call.event.wrapper for call in self.calls}
            if "DDP" in wrappers and "DDP backward" not in wrappers:
                self.unreduced = unreduced(optimizer)
            if "DDP" in wrappers and self.can_compare():
                with self.scheduler.bookkeeping():
                    self.frozen = list(frozen(self.storages.has_seen))

    def can_compare(self) -> bool:
        """Whether its parameters are compared with those of others: a search goes through all ranks' objects."""
        return not self.world.only_sizes and self.number < MOST_COMPARED

    def note_parameter(self, index: int, tensor: torch.Tensor) -> None:
        """Note which parameter a call sends or fills, if `tensor` is one."""
        if self.can_compare():
            with self.scheduler.bookkeeping():
                for note in self.world.gradients.notes_about(index, tensor):
                    if isinstance(note, ParameterIn):
                        self.moved[index] = note.fingerprint, note.name

    def waits_for_host(self, seconds: float) -> float:
        """How long the GPU waits for an operation that the host takes so many seconds to issue."""
        self.host += seconds
        waits = max(0.0, self.host - self.clock)
        self.starved += waits
        return waits

    # --- waiting

    def wait_for(self, call: VirtualCall) -> None:
        """Wait until `call` is complete: bring the clock to that moment."""
        self.mark_used(call)
        self.record_wait(call)
        if call.end is None:
            self.suspend_until_first([call])
        assert call.end is not None
        self.clock = max(self.clock, call.end)

    def record_wait(self, call: VirtualCall) -> None:
        if call.event.is_async and call.waited is None:
            call.waited, call.waited_at = self.clock, who_called()[0]

    def suspend_until_first(self, calls: list[VirtualCall]) -> None:
        """Until the network has completed one of `calls`, and this rank's clock has reached its end."""
        self.awaited = calls
        for call in calls:
            call.waiter = self
        self.scheduler.suspend(self)

    def on_completed(self, call: VirtualCall) -> None:
        """The network has completed `call`, for which this rank waits."""
        assert call.end is not None
        self.clock = max(self.clock, call.end)
        for other in self.awaited:
            other.waiter = None

    def poll(self, call: VirtualCall) -> bool:
        """Whether `call` is complete at this moment of the clock. May move the clock: see the top of this file."""
        if self.polled_at != self.clock:
            self.polled_at, self.polled = self.clock, []
        if call in self.polled:
            self.wait_for_first_polled()
        elif call.end is None:
            self.scheduler.yield_turn(self)
        if self.has_ended(call):
            return True
        if call not in self.polled:
            self.polled.append(call)
        return False

    def has_ended(self, call: VirtualCall) -> bool:
        return call.end is not None and call.end <= self.clock

    def wait_for_first_polled(self) -> None:
        """Wait until the first of the polled calls is complete, unless one has been completed since it was polled."""
        polled = self.polled
        self.polled = [call for call in polled if not self.has_ended(call)]
        if len(self.polled) < len(polled):
            return
        ends = [call.end for call in polled if call.end is not None]
        if ends:
            self.clock = min(ends)
            return
        for call in polled:
            self.record_wait(call)
        self.suspend_until_first(polled)
        for call in polled:
            if not self.has_ended(call):
                call.waited = None  # the wait was for another

    def works_for_collective(self) -> bool:
        """Whether a collective of this rank is under way at this moment of the clock, at achieved rates."""
        self.beside = [call for call in self.beside if call.end is None]
        if not self.beside:
            return False
        self.scheduler.yield_moment(self)
        return any(call.end is None and call.begun for call in self.beside)

    # --- the network

    def call(
        self, call: VirtualCall, directly: bool, tensors: Sequence[torch.Tensor], dense: Sequence[torch.Tensor]
    ) -> None:
        """Make a call.

        directly   whether a line of the program made it, not a wrapper such as DDP
        dense      tensors that Gloo takes to lie in memory without gaps

        Raises RuntimeError in a thread that the program has started, and for a message of a rank to itself.
        """
        if threading.get_ident() != self.ident:
            raise RuntimeError(
                f"a thread that rank {self.number} started called {call.event.op}. On a virtual cluster a rank is a "
                "thread itself, and no other can use the network. Start the call with async_op=True and wait later."
            )
        event = call.event
        self.calls.append(call)
        for tensor in tensors:
            self.storages.count(tensor, COMMUNICATION)
            if event.op == "recv":
                self.received.update(self.storages.numbers_of(tensor))
        for tensor in dense:
            if tensor.layout is torch.strided and not tensor.is_contiguous():
                self.strides[event.index] = tuple(tensor.shape), tensor.stride()
        if event.is_async and directly and (event.op != "send" or self.must_wait_for_sends):
            self.unused_handles[event.index] = event.where
        if event.is_async and event.op not in POINT_TO_POINT and self.world.cluster.rates == "achieved":
            self.beside.append(call)
        self.world.ask(call)

    def handle_created(self, work: dist.Work) -> None:
        """The program gets the handle of a call. Here a message arrives, whatever becomes of its handle."""

    def mark_used(self, call: VirtualCall) -> None:
        self.unused_handles.pop(call.event.index, None)

    @contextmanager
    def in_new_group(self, name: str, members: tuple[int, ...], description: str) -> Iterator[None]:
        """Note that this rank makes a group, from beginning to end: it may have to wait for others in it."""
        number = len(self.groups_made)
        where = who_called().where
        self.groups_made.append(making(self.number, number, name, members, self.clock, None, where, description))
        yield
        self.groups_made[number] = replace(self.groups_made[number], end=self.clock)

    # --- memory

    def out_of_memory(self, limit: float) -> NoReturn:
        """Raises what a GPU's allocator would: how much is needed, how much there is, and what holds it."""
        requested = self.storages.sizes[-1]
        held = self.storages.by_kind()
        held[self.storages.kind_of(len(self.storages.sizes) - 1)] -= requested
        holders = sorted((-size, kind) for kind, size in held.items() if size)
        holds = f" and holds {', '.join(f'{in_gb(-size)} of {kind}' for size, kind in holders)}" if holders else ""
        raise torch.OutOfMemoryError(
            f"rank {self.number} is out of memory: needs {in_gb(self.storages.live)} of {in_gb(limit)}. "
            f"It asks for {in_gb(requested)}{holds}."
        )


def in_gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.3g} MB"
