"""One virtual rank: what it has computed, asked of the network, and holds in memory."""

from __future__ import annotations

import re
import threading

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakIdKeyDictionary

from ...events.event import Event, Region
from ...events.failure import Failure
from ...events.matching import POINT_TO_POINT
from ...recording.callers import who_called
from ...recording.reader import making
from ...recording.storages import COMMUNICATION, Storages
from ..common.rank_environment import failure
from .meta_tensors import NoValues
from .network import VirtualCall
from .scheduler import RankThread

NO_STORAGE = re.compile(r"\bmeta\b|unallocated storage|Tensor\.__format__")  # what torch says when there are no values


class VirtualRank(RankThread):
    """A rank of the world `world` (world.py)."""

    def __init__(self, number: int, world):
        super().__init__(number, world.turns)
        self.world = world
        self.calls: list[VirtualCall] = []
        self.groups_made: list[Event] = []
        self.regions: list[Region] = []
        self.busy: list[list[float]] = []  # [start, end] of what it has computed
        self.strides: dict[int, tuple] = {}
        self.received = WeakIdKeyDictionary()  # what a message has come into: no parameter, whatever it requires
        self.awaited: list[VirtualCall] = []  # what it waits for, or has waited for last
        self.in_vain: list[
            VirtualCall
        ] = []  # what had not come when it was asked about at `looked_at`, a moment of its clock
        self.looked_at = -1.0
        self.promised: dict = {}  # VirtualWork -> its future, of which the result is not there yet (process_group.py)
        self.unasked: dict[int, str] = {}  # index -> where, of asynchronous calls of which nobody has asked the result
        self.storages = Storages(lambda: self.clock, devices=("cpu", "meta"))
        self.result: bytes | None = None
        self.failure: Failure | None = None

    def work(self) -> None:
        """Join the world, run the program, and keep what it returned or raised."""
        world = self.world
        try:
            with world.turns.own_work():
                dist.init_process_group("gloo", store=world.store, rank=self.number, world_size=world.size)
                self.groups.pg_group_ranks[dist.group.WORLD] = world.everybody  # torch makes one for each rank
                fn, args, kwargs = world.load_program()
            gpu = world.make_gpu(self)
            with saved_tensors_hooks(self.storages.saved_for_backward, lambda tensor: tensor), gpu:
                result = fn(self.number, world.size, *args, **kwargs)
            with world.turns.own_work():
                self.result = world.pack_result(result)
        except SystemExit as exit:
            if exit.code in (None, 0):
                self.result = world.pack_result(None)
            else:
                self.failure = failure(exit, 0.0)
        except BaseException as error:
            if world.only_sizes and NO_STORAGE.search(str(error)) and not isinstance(error, NoValues):
                error.add_note(str(NoValues("It")))
            self.failure = failure(error, 0.0)
        if self.failure is not None:
            world.somebody_failed()

    # --- time

    def compute(self, seconds: float) -> None:
        start, self.clock = self.clock, self.clock + seconds
        if self.busy and self.busy[-1][1] == start:
            self.busy[-1][1] = self.clock
        else:
            self.busy.append([start, self.clock])

    def wait_for(self, call: VirtualCall) -> None:
        """Until the result of `call` is there: bring the clock to that moment."""
        self.asked_for(call)
        self.begins_to_wait(call)
        if call.end is None:
            self.wait_for_first([call])
        self.clock = max(self.clock, call.end)

    def begins_to_wait(self, call: VirtualCall) -> None:
        if call.event.is_async and call.waited is None:
            call.waited, call.waited_at = self.clock, who_called()[0]

    def wait_for_first(self, calls: list[VirtualCall]) -> None:
        """Until the network says of one of `calls` when its result is there, and that moment has come."""
        self.awaited = calls
        for call in calls:
            call.waiter = self
        self.turns.give_away(self)

    def has_got(self, call: VirtualCall) -> None:
        """The network says when the result of `call`, for which it waits, is there."""
        self.clock = max(self.clock, call.end)
        for other in self.awaited:
            other.waiter = None

    def has_come(self, call: VirtualCall) -> bool:
        """Whether the result of `call` is there at this rank's time.

        Asked twice at one moment of its clock, it waits for the first of all that it was asked about at that moment:
        nothing else would make the time pass.
        """
        if self.looked_at != self.clock:
            self.looked_at, self.in_vain = self.clock, []
        if call in self.in_vain:
            self.let_time_pass()
        elif call.end is None:
            self.turns.look_around(self)
        if call.end is not None and call.end <= self.clock:
            return True
        if call not in self.in_vain:
            self.in_vain.append(call)
        return False

    def let_time_pass(self) -> None:
        """Until the first of what it was asked about in vain is there, if none has come since."""
        asked = self.in_vain
        self.in_vain = [call for call in asked if call.end is None or call.end > self.clock]
        if len(self.in_vain) < len(asked):
            return
        known = [call.end for call in asked if call.end is not None]
        if known:
            self.clock = min(known)
            return
        for call in asked:
            self.begins_to_wait(call)
        self.wait_for_first(asked)
        for call in asked:
            if call.end is None or call.end > self.clock:
                call.waited = None  # for nothing has come of it yet

    # --- the network

    def call(self, call: VirtualCall, directly: bool, tensors: list[torch.Tensor], dense: list[torch.Tensor]) -> None:
        """Make a call. directly: by a line of the program's own; dense: what must lie in memory without gaps."""
        if threading.get_ident() != self.ident:
            raise RuntimeError(
                f"a thread of rank {self.number}'s own called {call.event.op}: on a virtual cluster a rank is a thread "
                "itself, and only it can use the network. Start the call with async_op=True instead, and wait later."
            )
        event = call.event
        self.calls.append(call)
        for tensor in tensors:
            self.storages.count(tensor, COMMUNICATION)
            if event.op == "recv":
                self.received[tensor] = True
        for tensor in dense:
            if tensor.layout is torch.strided and not tensor.is_contiguous():
                self.strides[event.index] = tuple(tensor.shape), tensor.stride()
        if event.is_async and directly:
            self.unasked[event.index] = event.where
        if event.op not in POINT_TO_POINT and event.group == "world":
            self.world.prints.synchronised(self.number)
        self.world.network.ask(call)

    def hands_out(self, work) -> None:
        """A call's handle goes to the program. Here a message arrives, whatever becomes of its handle."""

    def asked_for(self, call: VirtualCall) -> None:
        self.unasked.pop(call.event.index, None)

    def make_group(self, name: str, members: tuple[int, ...], make):
        """Call `make`, which makes a group, once all members have come to make it."""
        fields = {"group": name, "members": members, "where": who_called()[0], "start": self.clock}
        number = len(self.groups_made)
        self.groups_made.append(making(self.number, number, end=None, **fields))
        if self.number in members:
            self.world.meet((name, members), self)
        self.groups_made[number] = making(self.number, number, end=self.clock, **fields)
        return make()

    # --- memory

    def out_of_memory(self, limit: float) -> None:
        """Raises what a GPU's allocator would: who needs how much, how much there is, and what holds it."""
        asked_for = self.storages.sizes[-1]
        held = self.storages.by_kind()
        held[self.storages.kinds[-1]] -= asked_for
        holders = sorted((-size, kind) for kind, size in held.items() if size)
        holds = f" and holds {', '.join(f'{in_gb(-size)} of {kind}' for size, kind in holders)}" if holders else ""
        raise torch.OutOfMemoryError(
            f"rank {self.number} is out of memory: needs {in_gb(self.storages.live)} of {in_gb(limit)}. "
            f"It asks for {in_gb(asked_for)}{holds}."
        )


def in_gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.3g} MB"
