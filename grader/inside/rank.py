"""One rank of a graded run: a process of its own that loads the student's function, runs it, and talks only to the hub.

It is the world of `simulate` (utils/worlds/virtual/simulated_world.py) with a single rank. What that rank asks of the
network goes over a socket to the hub, which decides what happens. So the judge need not trust anything in this process,
and the student may read and change all of it.

    an order from the judge -> requests, each with its answer -> done or failed
"""

from __future__ import annotations

import io
import math
import os
import pickle
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from grader.inside import codec, slices
from grader.inside.host import seed
from grader.inside.orders import ReadOrder, RunOrder, receive_order
from utils.events.collectives import POINT_TO_POINT, form_of
from utils.events.memory_samples import KINDS
from utils.kit import shared_file
from utils.kit.drivers.call import call_with
from utils.kit.slow_memory import SlowMemory
from utils.recording.callers import who_called
from utils.recording.in_flight import Flight, flight_of
from utils.recording.torch_calls import reads_second, tensors_in
from utils.recording.torch_private import NewGroup, OpOverload
from utils.worlds.common import pickling, rank_environment
from utils.worlds.common.protocol import Request
from utils.worlds.virtual import data_movement, virtual_clock
from utils.worlds.virtual.calls import VirtualCall
from utils.worlds.virtual.gpu import VirtualGpu
from utils.worlds.virtual.kernels import Work
from utils.worlds.virtual.network import Tallies
from utils.worlds.virtual.rank import VirtualRank
from utils.worlds.virtual.scheduler import Scheduler
from utils.worlds.virtual.simulated_world import Prints, SimulatedWorld, VirtualRecorder, enter, patch_torch
from utils.worlds.virtual.stores import NAME_KEY

aten = torch.ops.aten
UNWRITTEN = {
    aten.empty,
    aten.empty_strided,
    aten.empty_like,
    aten.new_empty,
    aten.new_empty_strided,
    aten.resize_,
}
OURS = ("utils.", "checks_")  # how the modules begin whose objects a check may hand to its ranks
MAX_PRINTED = 1 << 20  # characters that are kept and sent
rank_environment.machinery.add(os.path.join(os.path.dirname(__file__), ""))


def main(connection: socket.socket) -> None:
    """What the process does: read the notebook's cells for the judge, or be a rank, in one run or several."""
    order = receive_order(connection)
    if isinstance(order, ReadOrder):
        codec.send(connection, {"do": "done", "slices": slices.read(order.cells, order.wanted)})
        return
    run_once(order, connection)
    while order.more_runs:
        clean_up()
        order = receive_order(connection)
        assert isinstance(order, RunOrder)
        run_once(order, connection)


def run_once(order: RunOrder, connection: socket.socket) -> None:
    """Be the rank of one run."""
    world = world_for(order, connection)
    enter(world)
    if world.virtual:
        virtual_clock.patch_time(world.scheduler)
    world.run()
    world.hub.send(world.last_message())
    world.hub.is_over = True


def clean_up() -> None:
    """Before the next run: restore what a fresh process would find."""
    if dist.is_initialized():
        dist.destroy_process_group()
    seed()


def world_for(order: RunOrder, connection: socket.socket) -> RankWorld:
    """A new world for a run, which is from now on the current one."""
    world = RankWorld(order, connection)
    current_world.__dict__ = world.__dict__
    patch_once()
    return world


@cache
def patch_once() -> None:
    """Torch can be patched only once per process, so it is patched for whichever world is the current one."""
    patch_torch(current_world)
    share_through_hub(current_world)


class RankWorld(SimulatedWorld):
    """The world as one rank sees it: itself, and a connection to the hub.

    virtual   whether the run has virtual time; if not, the hub knows the order of events, and the rank knows no times
    """

    def __init__(self, order: RunOrder, connection: socket.socket):
        # What `make_network` and the others need comes first: Engine.__init__ calls them.
        self.order, self.number, self.virtual = order, order.rank, order.virtual
        self.hub = HubNetwork(connection, self)
        self.times_joined = 0  # how often the program has made a default group
        self.default_group: list[int] | None = None  # its ranks, once the program has made one of its own
        request = Request(
            world_size=order.world_size,
            backend="gloo",
            folder="/tmp",
            zero=0.0,
            environment={},
            working_directory="/tmp",
            sys_path=[],
            sources={},
            cluster=order.cluster,
            device=order.device,
        )
        super().__init__(request, order.program)
        self.prints: Printed = Printed(self.scheduler)

    def make_network(self) -> HubNetwork:
        return self.hub

    def make_scheduler(self) -> SingleRankScheduler:
        return SingleRankScheduler(self.hub.earliest, self.hub.commit)

    def make_ranks(self) -> list[VirtualRank]:
        self.rank = RemoteRank(self.number, self)
        return [self.rank]

    def make_recorder(self) -> VirtualRecorder:
        return HubRecorder(self)

    def load_program(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        function = slices.load(self.order.code)
        function, own_inputs, same, catch = ProgramUnpickler(self.program, function, self).load()
        return call_with, (function, own_inputs, same, catch), {}

    def make_gpu(self, rank: VirtualRank) -> VirtualGpu:
        gpu = ZeroedMemory(rank, self.cluster, self.only_sizes, self.plans)
        gpu.virtual = self.virtual
        return gpu

    def pack_result(self, outcome: tuple[Any, list[Any], bool] | None) -> bytes:
        result, after, shared = outcome or (None, [], False)
        message = {"result": result, "after": [state_of(value) for value in after], "shared": shared}
        return codec.pack({"do": "done", **message, **self.claims()}, placeholder_for)

    def claims(self) -> dict[str, Any]:
        """What only the rank can know."""
        rank = self.rank
        times, kinds, sizes = zip(*rank.storages.samples(), strict=True)
        return {
            "clock": rank.clock,
            "busy": column([end for span in rank.busy for end in span] if self.virtual else [], torch.float64),
            "memory": [
                column(times, torch.float64),
                column(map(KINDS.index, kinds), torch.int64),
                column(sizes, torch.int64),
            ],
            "printed": self.prints.text,
        }

    def last_message(self) -> bytes:
        failure = self.rank.failure
        if failure is None:
            assert self.rank.result is not None
            return self.rank.result
        frames = [list(astuple(frame)) for frame in failure.frames[-50:]]
        return codec.pack({"do": "failed", "kind": failure.kind, "message": failure.message, "frames": frames})

    def store_named(self, name: str) -> HubStore:
        return HubStore(name, self)

    def join(self, store: dist.Store, rank: int, size: int) -> None:
        self.times_joined += 1
        if self.times_joined > 1:
            name = store.get(NAME_KEY).decode()
            answer = self.hub.request({"do": "join", "store": name, "rank": rank, "size": size})
            self.default_group = answer["members"]

    def to_world_ranks(self, ranks: Iterable[int]) -> tuple[int, ...]:
        group = self.default_group
        return tuple(ranks if group is None else (group[rank] for rank in ranks))

    def make_group(self, asked: NewGroup, make: Callable[[], Any]) -> Any:
        rank, members = self.rank, self.to_world_ranks(asked.members)
        where = who_called()[0]
        request = {"do": "make_group", "group": asked.name, "members": [*members], "where": where, "clock": rank.clock}
        rank.clock = max(rank.clock, self.hub.request(request).get("clock", 0.0))
        return make()


current_world = RankWorld.__new__(RankWorld)  # has no state of its own, but that of the current run's world


def column(values: Iterable[float], dtype: torch.dtype) -> torch.Tensor:
    """Numbers as a tensor, which takes far less time to pack and unpack than a list."""
    return torch.tensor(list(values), dtype=dtype, device="cpu")


class SingleRankScheduler(Scheduler):
    """The scheduler of the one rank of this process.

    The rank runs in the main thread, as an ordinary program would: there it may handle signals, for example.
    """

    def run(self, ranks: Sequence[Any]) -> None:
        [rank] = ranks
        self.make_ready(rank)
        self.next_rank()
        rank.switch_in()
        try:
            rank.work()
        finally:
            rank.finished = True

    def suspend(self, rank: Any) -> None:
        if self.next_rank() is not rank:
            raise SystemExit(1)  # the hub has closed the connection


class RemoteRank(VirtualRank):
    """The one rank of this process."""

    world: RankWorld
    must_wait_for_sends = True

    def __init__(self, number: int, world: RankWorld):
        super().__init__(number, world, world.surroundings_of(number))
        self.flights: dict[int, Flight] = {}  # asynchronous calls not waited for yet, by index

    ident = property(lambda self: threading.main_thread().ident)

    def restore_random_state(self) -> None:
        """Nothing to do: the host has seeded all generators."""

    def mark_used(self, call: VirtualCall) -> None:
        if call.event.index in self.unused_handles:
            self.world.hub.tell({"do": "asked_for_result", "index": call.event.index})
        super().mark_used(call)

    def record_wait(self, call: VirtualCall) -> None:
        before = call.waited
        super().record_wait(call)
        if call.waited is not None and before is None:
            index, where = call.event.index, call.waited_at
            self.world.hub.tell({"do": "began_to_wait", "index": index, "where": where, "clock": self.clock})

    def call(
        self, call: VirtualCall, directly: bool, tensors: Sequence[torch.Tensor], dense: Sequence[torch.Tensor]
    ) -> None:
        self.world.hub.directly = directly
        super().call(call, directly, tensors, dense)
        event = call.event
        if event.is_async and directly:
            with self.world.scheduler.bookkeeping():
                flight = flight_of(event.op, call.args, event.peer == self.number, event.where)
            if flight is not None:
                self.flights[event.index] = flight

    def wait_for(self, call: VirtualCall) -> None:
        super().wait_for(call)
        self.land(call)

    def poll(self, call: VirtualCall) -> bool:
        done = super().poll(call)
        if done:
            self.land(call)
        return done

    def land(self, call: VirtualCall) -> None:
        """The program knows that the call is done. Raises RuntimeError if it has changed a tensor in flight."""
        flight = self.flights.pop(call.event.index, None)
        if flight is not None:
            with self.world.scheduler.bookkeeping():
                flight.land(self.world.hub.arrived.pop(call.event.index, []))

    def handle_created(self, work: Any) -> None:
        """As with Gloo, a message's handle may be waited for once, and the message is lost if its handle is thrown away
        too early; in virtual time it arrives anyway.
        """
        if not self.world.virtual and work.call.event.is_async and work.call.event.op in POINT_TO_POINT:
            work.only_once = True
            weakref.finalize(work, self.thrown_away, work.call, self.world.hub).atexit = False

    def thrown_away(self, call: VirtualCall, hub: HubNetwork) -> None:
        if call.end is None and call.waited is None:
            hub.tell({"do": "dropped_handle", "index": call.event.index})


class HubNetwork:
    """Stands in for the network: passes requests to the hub, and its answers to the rank."""

    def __init__(self, connection: socket.socket, world: RankWorld):
        self.connection, self.world, self.directly = connection, world, False
        self.calls = self.marks = 0  # `calls` stays 0: the hub counts and charges them
        self.algorithms: Tallies = {}
        self.arrived: dict[int, list[torch.Tensor]] = {}  # for calls in flight: what the program gets when it waits
        self.up_to_date = True  # the hub has just sent all its news; at first there are none
        self.is_over = False  # the run is, and what is collected of it later has nothing more to tell

    def send(self, message: bytes) -> None:
        self.connection.sendall(message)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message that the hub does not answer."""
        if not self.is_over:
            self.send(codec.pack(message))

    def request(self, message: dict[str, Any], placeholder_for: codec.PlaceholderFor | None = None) -> dict[str, Any]:
        """Send a message and wait for the answer. Raises the error that the hub answers with."""
        self.send(codec.pack(message, placeholder_for))
        answer = codec.receive(self.connection)
        if answer is None:
            raise SystemExit(1)  # the judge is gone
        if "error" in answer:
            raise answer["error"]
        return answer

    def ask(self, call: VirtualCall) -> None:
        event, args = call.event, call.args
        only_fills = event.op == "recv" or reads_second(event.op)  # its outputs are no input
        buffers = {id(tensor) for tensor in outputs_of(call) if only_fills}

        def buffer_for(value: Any) -> dict[str, Any] | None:
            if isinstance(value, torch.Tensor) and id(value) in buffers and not value.is_meta:
                return {"buffer": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
            return None

        message = {
            "do": "call",
            "method": call.method,
            "group": event.group,
            "members": list(event.members),
            "peer": event.peer,
            "tag": event.tag,
            "reduce_op": event.reduce_op,
            "is_async": event.is_async,
            "directly": self.directly,
            "where": event.where,
            "wrapper": event.wrapper,
            "clock": event.start,
            "args": [plain(arg) for arg in args],
            "strides": strides_of(call),
        }
        with self.world.scheduler.bookkeeping():
            self.request(message, buffer_for)

    # What the scheduler asks of a network. Nothing happens before the hub's next answer, and with it all of it has.

    def earliest(self) -> float:
        up_to_date, self.up_to_date = self.up_to_date, False
        return math.inf if up_to_date or self.world.rank.finished else -1.0

    def commit(self) -> list[VirtualRank]:
        rank, scheduler = self.world.rank, self.world.scheduler
        self.up_to_date = True
        only_looks = bool(scheduler.ready)
        message = (
            {"do": "catch_up"} if only_looks else {"do": "wait", "for": [call.event.index for call in rank.awaited]}
        )
        with scheduler.bookkeeping():
            for index, end, source, tensors in self.request({**message, "clock": rank.clock})["came"]:
                self.complete(rank.calls[index], end, source, tensors)
        if only_looks:
            return []
        for call in rank.awaited:
            call.waiter = None
        first = min(call.end for call in rank.awaited if call.end is not None)
        rank.clock = max(rank.clock, first)
        return [rank]

    def complete(self, call: VirtualCall, end: float | None, source: int | None, tensors: list[torch.Tensor]) -> None:
        flight = self.world.rank.flights.get(call.event.index)
        if flight is not None and flight.receives:
            self.arrived[call.event.index] = tensors
        else:
            for output, values in zip(outputs_of(call), tensors, strict=True):
                data_movement.write(output, values)
        call.end = self.world.rank.clock if end is None else end
        call.source, call.args = source, ()


def outputs_of(call: VirtualCall) -> Sequence[torch.Tensor]:
    """The tensors that a call fills, in order."""
    return [] if call.event.op in ("send", "barrier") else tensors_in(call.args[:1])


def plain(arg: Any) -> Any:
    """An argument without torch's option objects."""
    if isinstance(arg, (list, tuple)):
        return [plain(item) for item in arg]
    return arg if isinstance(arg, (torch.Tensor, int)) and not isinstance(arg, bool) else None


def strides_of(call: VirtualCall) -> list[list[int]] | None:
    """(shape, strides) of a tensor with gaps that Gloo would take for one without."""
    for position in form_of(call.event.op, call.method).dense:
        for tensor in tensors_in(call.args[position]):
            if tensor.layout is torch.strided and not tensor.is_contiguous():
                return [list(tensor.shape), list(tensor.stride())]
    return None


class ZeroedMemory(VirtualGpu):
    """Fills new memory with zeros: in every process it then holds the same, so messages sent from it are comparable."""

    virtual: bool  # whether time is

    def carry_out(self, function: OpOverload, args: Any, kwargs: Any) -> tuple[Any, Any, bool]:
        """Without virtual time nothing has a cost, and working it out would take longer than the operation."""
        if self.virtual:
            return super().carry_out(function, args, kwargs)
        args, kwargs = self.place(function, args, kwargs)
        return self.do(function, args, kwargs), args, function.is_view

    def launch(self, work: Work) -> None:
        if self.virtual:
            super().launch(work)

    def do(self, function: OpOverload, args: Any, kwargs: Any) -> Any:
        packet = function.overloadpacket
        if self.only_sizes or packet not in UNWRITTEN:
            return super().do(function, args, kwargs)
        if packet is torch.ops.aten.resize_:
            before = args[0].untyped_storage().nbytes()
            result = function(*args, **kwargs)
            with torch.no_grad():
                whole = torch.empty(0, dtype=torch.uint8).set_(result.untyped_storage())
                whole[before:] = 0
            return result
        return function(*args, **kwargs).zero_()


class HubRecorder(VirtualRecorder):
    """A region begins and ends at the hub's times: a mark is its number among the marks of this rank."""

    world: RankWorld

    def mark(self) -> int:
        self.world.hub.tell({"do": "mark", "clock": self.now()})
        self.world.hub.marks += 1
        return self.world.hub.marks - 1

    def span(self, kind: str, name: str, start: int, end: int) -> None:  # type: ignore[override]
        self.world.hub.tell({"do": "span", "name": name, "start": start, "end": end})


class Printed(Prints):
    """What the rank prints, up to MAX_PRINTED characters."""

    def __init__(self, scheduler: Scheduler):
        super().__init__(scheduler)
        self.text = ""

    def write(self, text: str) -> int:
        if len(self.text) < MAX_PRINTED:
            self.text += text[: MAX_PRINTED - len(self.text)]
        return len(text)

    def synchronised(self, rank: int) -> None:
        pass

    def news(self, text: str) -> None:
        pass

    def flush(self) -> None:
        pass


# ---- what ranks share besides torch.distributed ----------------------------------------------------------------------


class ProgramUnpickler(pickle.Unpickler):
    """Reads the judge's program, which has placeholders for the student's function, memories and witnesses."""

    def __init__(self, program: bytes, function: Callable[..., Any], world: RankWorld):
        super().__init__(io.BytesIO(program))
        self.function, self.world = function, world

    def persistent_load(self, placeholder: Any) -> Any:
        if placeholder == "answer":
            return self.function
        number, *memory = placeholder
        return HubMemory(self.world.hub, number, *memory) if memory else HubWitness(self.world.hub, number)


class HubWitness:
    """A Witness that lives with the judge: nothing of it is here."""

    def __init__(self, hub: HubNetwork, number: int):
        self.hub, self.number = hub, number

    def __call__(self, *question: Any) -> Any:
        return self.hub.request({"do": "ask", "witness": self.number, "question": list(question)})["said"]


class HubMemory(SlowMemory):
    """A memory that lives at the hub, which counts its traffic and knows what is on the chip.

    arrays   in place of each array, a tensor on the device meta: its shape and dtype, and nothing to read
    """

    def __init__(self, hub: HubNetwork, number: int, room: int, arrays: dict[str, torch.Tensor]):
        super().__init__({}, room)
        self.hub, self.number, self.arrays = hub, number, arrays

    def ask(self, word: str, **fields: Any) -> dict[str, Any]:
        return self.hub.request({"do": word, "memory": self.number, **fields})

    def fetch(self, name: str, where: tuple[slice, ...]) -> torch.Tensor:
        answer = self.ask("load", name=name, where=as_lists(where))
        tile: torch.Tensor = answer["tile"]
        message = {"do": "let_go", "memory": self.number, "number": answer["number"]}
        weakref.finalize(tile.untyped_storage(), self.hub.tell, message).atexit = False
        return tile

    def put(self, name: str, values: torch.Tensor, where: tuple[slice, ...]) -> int:
        if values.is_meta:
            raise RuntimeError(
                "you store numbers that were never loaded: only memory.load and memory.store move what is in "
                "memory.arrays"
            )
        nbytes: int = self.ask("store", name=name, where=as_lists(where), tile=values)["bytes"]
        return nbytes


def as_lists(where: tuple[slice, ...]) -> list[list[Any]]:
    return [[part.start, part.stop, part.step] for part in where]


class HubStore(dist.Store):
    """A store where ranks meet, identified by the name of its file or address. The hub holds its keys."""

    alive: ClassVar[list[HubStore]] = []  # torch keeps only the C++ half of a store alive

    def __init__(self, name: str, world: RankWorld):
        super().__init__()
        self.name, self.world = name, world
        self.alive.append(self)

    def ask(self, word: str, key: str, **fields: Any) -> Any:
        return self.world.hub.request({"do": word, "store": self.name, "key": key, **fields})["value"]

    def set(self, key: str, value: str | bytes) -> None:
        self.ask("key_set", key, value=(value.encode() if isinstance(value, str) else bytes(value)).hex())

    def get(self, key: str) -> bytes:
        return self.name.encode() if key.endswith(NAME_KEY) else bytes.fromhex(self.ask("key_get", key))

    def add(self, key: str, amount: int) -> int:
        total: int = self.ask("key_add", key, amount=amount)
        return total

    def check(self, keys: list[str]) -> bool:
        return all(key.endswith(NAME_KEY) or self.ask("key_check", key) for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.ask("key_get", key)


def share_through_hub(world: RankWorld) -> None:
    """Let the hub hold the files that ranks share: no rank can see another's folders."""

    def append(file: shared_file.SharedFile, line: str) -> None:
        world.hub.request({"do": "append", "path": str(file.path), "line": line})

    def lines(file: shared_file.SharedFile) -> list[str]:
        found: list[str] = world.hub.request({"do": "lines", "path": str(file.path)})["lines"]
        return found

    for method in (append, lines):
        setattr(shared_file.SharedFile, method.__name__, method)


def placeholder_for(value: Any) -> dict[str, Any] | None:
    """The placeholder of something that lives at the hub."""
    return {PLACEHOLDERS[type(value)]: value.number} if type(value) in PLACEHOLDERS else None


PLACEHOLDERS: dict[type, str] = {HubMemory: "memory", HubWitness: "witness"}


def state_of(value: Any) -> list[Any]:
    """An input after the call: ["value", it], or for an object that has state, ["state", its attributes]."""
    if isinstance(value, torch.nn.Module):
        tensors = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        return ["state", {name: tensor.detach() for name, tensor in tensors.items()}]
    owner = getattr(value, "__self__", value)
    if type(owner).__module__.startswith(OURS) and hasattr(owner, "__dict__") and placeholder_for(owner) is None:
        return ["state", dict(vars(owner))]
    return ["value", value]


def strided(
    data: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    """A tensor from its values, with gaps where it had gaps, and nothing of what lay in them."""
    tensor = torch.empty_strided(shape, strides, dtype=dtype)
    return tensor.copy_(pickling.unpack(data, dtype, shape)).requires_grad_(requires_grad)
