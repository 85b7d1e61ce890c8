"""One rank of a graded run: a process of its own that loads the student's answer, runs it, and reaches the hub alone.

It is a world of the virtual cluster (utils/worlds/virtual/engine.py) with a single rank in it: what that rank asks of the
network goes over a socket to the hub, and what all of it comes to is decided there. So nothing in this process has to
be believed, and the student may read and change all of it.

    order (pickled, from the judge) -> calls and what else it asks, an answer to each -> done or failed
"""

from __future__ import annotations

import io
import math
import os
import pickle
import socket
import struct
import sys
import threading
import weakref
from dataclasses import astuple
from typing import Any

import torch
import torch.distributed as dist

from grader.inside import codec, slices
from grader.inside.host import seed
from utils.checks.runner import call_with
from utils.events.matching import POINT_TO_POINT
from utils.kit import shared_file
from utils.kit.slow_memory import SlowMemory
from utils.recording.callers import who_called
from utils.recording.torch_calls import OUTPUT_FIRST, TAKEN_AS_DENSE, tensors_in
from utils.recording.torch_private import OpOverload
from utils.worlds.common import pickling, rank_environment
from utils.worlds.common.protocol import Request
from utils.worlds.virtual import data_movement, virtual_clock
from utils.worlds.virtual.engine import Engine, VirtualRecorder, enter, patch_torch
from utils.worlds.virtual.gpu import VirtualGpu
from utils.worlds.virtual.network import VirtualCall
from utils.worlds.virtual.rank import VirtualRank
from utils.worlds.virtual.scheduler import Scheduler

aten = torch.ops.aten
UNWRITTEN = {
    aten.empty,
    aten.empty_strided,
    aten.empty_like,
    aten.new_empty,
    aten.new_empty_strided,
    aten.resize_,
}
LENGTH = struct.Struct("!Q")
MOST_PRINTED = 1 << 20  # characters that are told; no more are kept
rank_environment.machinery.add(os.path.join(os.path.dirname(__file__), ""))


def main(line: socket.socket) -> None:
    """What the process does: read the notebook's cells for the judge, or be a rank, once or in several runs."""
    order = next_order(line)
    if "read" in order:
        codec.send(line, {"do": "done", "answers": slices.read(**order["read"])})
        return
    play(order, line)
    while order["more"]:
        leave()
        order = next_order(line)
        play(order, line)


def next_order(line: socket.socket) -> dict[str, Any]:
    [length] = LENGTH.unpack(codec.read_all(line, LENGTH.size))
    return pickle.loads(codec.read_all(line, length))


def play(order: dict[str, Any], line: socket.socket) -> None:
    """Be the rank of one run."""
    world = world_of(order, line)
    enter(world)
    if world.virtual:
        virtual_clock.patch_time(world.scheduler)
    world.run()
    world.wire.tell(world.told_in_the_end())


def leave() -> None:
    """Before the next run: what a process of its own would find."""
    if dist.is_initialized():
        dist.destroy_process_group()
    seed()


stage: list[RankWorld] = []  # the world that torch has been told of in this process


def world_of(order: dict[str, Any], line: socket.socket) -> RankWorld:
    """The world of an order. Torch is patched once in a process, so the world that it was patched for begins anew."""
    if stage:
        stage[0].__init__(order, line)
    else:
        stage.append(RankWorld(order, line))
        patch_torch(stage[0])
        talk_to_the_hub(stage[0])
    return stage[0]


class RankWorld(Engine):
    """The world as one rank sees it: itself, and a wire to the hub.

    virtual   whether it has virtual time; else the hub knows the order in which things happen, and the rank no time
    """

    def __init__(self, order: dict[str, Any], line: socket.socket):
        self.order, self.number, self.virtual = order, order["rank"], order["virtual"]
        self.wire = Wire(line, self)
        self.joined = 0  # how often it has made a default group
        self.others: list[int] | None = None  # the world's numbers of the ranks of the default group it has made itself
        request = Request(
            world_size=order["world_size"],
            backend="gloo",
            folder="/tmp",
            zero=0.0,
            environment={},
            working_directory="/tmp",
            sys_path=[],
            sources={},
            cluster=order["cluster"],
            device=order["device"],
        )
        super().__init__(request, order["program"])
        self.prints = Printed()
        self.memories: list[HubMemory] = []

    def make_network(self) -> Wire:
        return self.wire

    def make_scheduler(self) -> TurnsOfOne:
        return TurnsOfOne(self.wire.earliest, self.wire.commit, self.local_rank)

    def make_ranks(self) -> list[VirtualRank]:
        self.rank = RemoteRank(self.number, self)
        return [self.rank]

    def make_recorder(self) -> VirtualRecorder:
        return RegionsOfTheHub(self, self.wire, self.virtual)

    def load_program(self):
        answer = slices.load(self.order["answer"])
        function, mine, same, catch = ProgramUnpickler(self.program, answer, self).load()
        return call_with, (function, mine, same, catch), {}

    def make_gpu(self, rank: VirtualRank) -> VirtualGpu:
        return WithoutGarbage(rank, self.cluster.gpu, self.only_sizes, self.plans)

    def pack_result(self, outcome: tuple | None) -> bytes:
        for memory in self.memories:
            memory.write_back()
        result, after, shared = outcome or (None, [], False)
        told = {"result": result, "after": [state_of(value) for value in after], "shared": shared}
        return codec.pack({"do": "done", **told, **self.claims()}, known=lambda value: known(value))

    def claims(self) -> dict[str, Any]:
        """What only the rank can know."""
        rank = self.rank
        return {
            "clock": rank.clock,
            "busy": [list(span) for span in rank.busy] if self.virtual else [],
            "memory": [list(sample) for sample in rank.storages.samples()],
            "printed": self.prints.text,
        }

    def told_in_the_end(self) -> bytes:
        if self.rank.failure is None:
            return self.rank.result
        said = self.rank.failure
        frames = [list(astuple(frame)) for frame in said.frames[-50:]]
        return codec.pack({"do": "failed", "kind": said.kind, "message": said.message, "frames": frames})

    def join(self, store, rank: int, size: int) -> None:
        self.joined += 1
        if self.joined > 1:
            name = store.get(HubStore.NAME).decode()
            self.others = self.wire.exchange({"do": "join", "store": name, "rank": rank, "size": size})["members"]

    def to_world_ranks(self, ranks) -> tuple[int, ...]:
        return tuple(ranks if self.others is None else (self.others[rank] for rank in ranks))


class TurnsOfOne(Scheduler):
    """The turns of the one rank of this process. It runs in the main thread, as a program of its own would: there it
    may handle signals, for one.
    """

    def run(self, ranks: list[RemoteRank]) -> None:
        [rank] = ranks
        self.make_ready(rank)
        self.next_rank()
        rank.switch_in()
        try:
            rank.work()
        finally:
            rank.finished = True

    def suspend(self, rank: RemoteRank) -> None:
        if self.next_rank() is not rank:
            raise SystemExit(1)  # the hub has nothing more to say


class RemoteRank(VirtualRank):
    """The one rank of this process."""

    ident = property(lambda self: threading.main_thread().ident)

    def restore_random_state(self) -> None:
        """They are in place: the host has seeded all generators."""

    def mark_used(self, call: VirtualCall) -> None:
        if call.event.index in self.unused:
            self.world.wire.tell(codec.pack({"do": "asked", "index": call.event.index}))
        super().mark_used(call)

    def record_wait(self, call: VirtualCall) -> None:
        before = call.waited
        super().record_wait(call)
        if call.waited is not None and before is None:
            told = {"do": "waits", "index": call.event.index, "where": call.waited_at, "clock": self.clock}
            self.world.wire.tell(codec.pack(told))

    def call(self, call: VirtualCall, directly: bool, tensors: list, dense: list) -> None:
        self.world.wire.directly = directly
        super().call(call, directly, tensors, dense)

    def handle_created(self, work) -> None:
        """A message whose handle is thrown away too early is lost, as with Gloo; not where `simulate` keeps it."""
        if not self.world.virtual and work.call.event.is_async and work.call.event.op in POINT_TO_POINT:
            weakref.finalize(work, self.thrown_away, work.call).atexit = False

    def thrown_away(self, call: VirtualCall) -> None:
        if call.end is None and call.waited is None:
            self.world.wire.tell(codec.pack({"do": "dropped", "index": call.event.index}))

    def make_group(self, name: str, members: tuple[int, ...], make):
        members = self.world.to_world_ranks(members)
        told = {"do": "make", "group": name, "members": list(members), "where": who_called()[0], "clock": self.clock}
        self.clock = max(self.clock, self.world.wire.exchange(told).get("clock", 0.0))
        return make()


class Wire:
    """Takes the place of the network: asks the hub, and hands on what it answers."""

    calls, algorithms = 0, {}

    def __init__(self, line: socket.socket, world: RankWorld):
        self.line, self.world, self.directly = line, world, False
        self.told = True  # whether the hub has just said what has come; at first there is nothing to be told

    def tell(self, message: bytes) -> None:
        self.line.sendall(message)

    def exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        """Ask and wait for the answer; raises the error that the hub answers with."""
        codec.send(self.line, message)
        answer = codec.receive(self.line)
        if answer is None:
            raise SystemExit(1)  # the judge is gone
        if "error" in answer:
            raise answer["error"]
        return answer

    def ask(self, call: VirtualCall) -> None:
        event, args = call.event, call.args
        only_room = {id(tensor) for tensor in outputs_of(call) if not reads_output(call)}

        def known(value):
            if isinstance(value, torch.Tensor) and id(value) in only_room and not value.is_meta:
                return {"room": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
            return None

        told = {
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
            "clock": event.start,
            "args": [plain(arg) for arg in args],
            "strides": strides_of(call),
        }
        with self.world.scheduler.bookkeeping():
            codec.send(self.line, told, known)
            answer = codec.receive(self.line)
        if answer is None:
            raise SystemExit(1)
        if "error" in answer:
            raise answer["error"]

    # what the rank's turns ask of a network: nothing comes earlier than the hub's word, and after it all has come

    def earliest(self) -> float:
        told, self.told = self.told, False
        return math.inf if told or self.world.rank.finished else -1.0

    def commit(self) -> list[VirtualRank]:
        rank, scheduler = self.world.rank, self.world.scheduler
        self.told = True
        looks = bool(scheduler.ready)
        told = {"do": "look"} if looks else {"do": "wait", "for": [call.event.index for call in rank.awaited]}
        with scheduler.bookkeeping():
            answer = self.exchange({**told, "clock": rank.clock})
            for index, end, source, tensors in answer["came"]:
                self.has_come(rank.calls[index], end, source, tensors)
        if looks:
            return []
        for call in rank.awaited:
            call.waiter = None
        first = min(call.end for call in rank.awaited if call.end is not None)
        rank.clock = max(rank.clock, first)
        return [rank]

    def has_come(self, call: VirtualCall, end: float | None, source: int | None, tensors: list[torch.Tensor]) -> None:
        for into, what in zip(outputs_of(call), tensors, strict=True):
            data_movement.write(into, what)
        call.end = self.world.rank.clock if end is None else end
        call.source, call.args = source, ()


def outputs_of(call: VirtualCall) -> list[torch.Tensor]:
    """The tensors that a call fills, in order."""
    return [] if call.event.op in ("send", "barrier") else tensors_in(call.args[:1])


def reads_output(call: VirtualCall) -> bool:
    """Whether what it fills is also what it hands in."""
    return call.event.op not in (*OUTPUT_FIRST, "recv")


def plain(arg):
    """An argument without torch's options."""
    if isinstance(arg, (list, tuple)):
        return [plain(item) for item in arg]
    return arg if isinstance(arg, (torch.Tensor, int)) and not isinstance(arg, bool) else None


def strides_of(call: VirtualCall) -> list | None:
    """(shape, strides) of a tensor that Gloo would take for one without gaps."""
    for position in TAKEN_AS_DENSE.get(call.method, ()):
        for tensor in tensors_in(call.args[position]):
            if tensor.layout is torch.strided and not tensor.is_contiguous():
                return [list(tensor.shape), list(tensor.stride())]
    return None


class WithoutGarbage(VirtualGpu):
    """Memory that nobody has written yet holds the same in every process: what is sent of it can be compared."""

    def do(self, function: OpOverload, args, kwargs):
        packet = function.overloadpacket
        if self.only_sizes or packet not in UNWRITTEN:
            return super().do(function, args, kwargs)
        if packet is torch.ops.aten.resize_:
            held = args[0].untyped_storage().nbytes()
            result = function(*args, **kwargs)
            with torch.no_grad():
                whole = torch.empty(0, dtype=torch.uint8).set_(result.untyped_storage())
                whole[held:] = 0
            return result
        return function(*args, **kwargs).zero_()


class RegionsOfTheHub(VirtualRecorder):
    """Where there is no virtual time, a region is known by its place in the order of all that the hub hears."""

    def __init__(self, world: RankWorld, wire: Wire, virtual: bool):
        super().__init__(world)
        self.wire, self.virtual = wire, virtual

    def mark(self) -> float:
        return self.now() if self.virtual else self.wire.exchange({"do": "mark"})["mark"]

    def span(self, kind: str, name: str, start: float, end: float) -> None:
        self.wire.tell(codec.pack({"do": "span", "name": name, "start": start, "end": end}))


class Printed(io.TextIOBase):
    """What the rank prints: its beginning is told, the rest is not kept."""

    def __init__(self):
        self.text = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if len(self.text) < MOST_PRINTED:
            self.text += text[: MOST_PRINTED - len(self.text)]
        return len(text)

    def synchronised(self, rank: int) -> None:
        pass

    def news(self, text: str) -> None:
        pass


# ---- what an exercise uses besides torch.distributed, and the ranks share -------------------------------------------


class ProgramUnpickler(pickle.Unpickler):
    """Reads what the judge sends; in place of the answer and of memories it has signs."""

    def __init__(self, program: bytes, answer, world: RankWorld):
        super().__init__(io.BytesIO(program))
        self.answer, self.world = answer, world

    def persistent_load(self, sign):
        if sign == "answer":
            return self.answer
        self.world.memories.append(HubMemory(self.world.wire, *sign))
        return self.world.memories[-1]


class HubMemory(SlowMemory):
    """A memory that lies at the hub, where its traffic is counted."""

    def __init__(self, wire: Wire, number: int, room: int):
        super().__init__({}, room)
        self.wire, self.number = wire, number
        self.looked_at: dict[
            str, torch.Tensor
        ] = {}  # arrays of which the program has taken hold, beside load and store
        del self.arrays

    def __getattr__(self, name: str):
        if name != "arrays":
            raise AttributeError(f"a SlowMemory has no {name!r}")
        self.looked_at = self.looked_at or self.wire.exchange({"do": "arrays", "memory": self.number})["arrays"]
        return self.looked_at

    def write_back(self) -> None:
        """What was written into arrays that the program has taken hold of."""
        if self.looked_at:
            told = {"do": "overwrite", "memory": self.number, "arrays": self.looked_at}
            self.wire.tell(codec.pack(told))

    def fetch(self, name: str, where: tuple) -> torch.Tensor:
        self.write_back()
        return self.wire.exchange({"do": "load", "memory": self.number, "name": name, "where": parts(where)})["tile"]

    def put(self, name: str, tile: torch.Tensor, where: tuple) -> int:
        self.write_back()
        if self.looked_at:
            self.looked_at[name][where].copy_(tile)
        told = {"do": "store", "memory": self.number, "name": name, "where": parts(where), "tile": tile}
        return self.wire.exchange(told)["bytes"]


def parts(where: tuple) -> list:
    return [[part.start, part.stop, part.step] for part in where]


class HubStore(dist.Store):
    """Where ranks meet that were given a store, by the name of its file or address: the keys lie at the hub."""

    NAME = "name of the store"
    kept: list[HubStore] = []

    def __init__(self, name: str, world: RankWorld):
        super().__init__()
        self.name, self.world = name, world
        self.kept.append(self)  # torch keeps the C++ half of it alone

    def ask(self, what: str, key: str, value: bytes = b"", amount: int = 0) -> Any:
        told = {"do": "keys", "store": self.name, "what": what, "key": key, "value": value.hex(), "amount": amount}
        return self.world.wire.exchange(told)["value"]

    def set(self, key: str, value) -> None:
        self.ask("set", key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self.name.encode() if key.endswith(self.NAME) else bytes.fromhex(self.ask("get", key))

    def add(self, key: str, amount: int) -> int:
        return self.ask("add", key, amount=amount)

    def check(self, keys: list[str]) -> bool:
        return all(key.endswith(self.NAME) or self.ask("check", key) for key in keys)

    def wait(self, keys: list[str], timeout=None) -> None:
        for key in keys:
            self.ask("get", key)


def talk_to_the_hub(world: RankWorld) -> None:
    """Files and stores that ranks share lie at the hub: a rank's own folders are seen by nobody else."""

    def file_store(path, world_size=-1):
        return HubStore(f"file {path}", world)

    def tcp_store(host_name, port, *args, **kwargs):
        return HubStore(f"tcp {host_name}:{port}", world)

    for module in (dist, sys.modules["torch.distributed.rendezvous"]):  # dist.rendezvous is a function
        module.FileStore, module.TCPStore = file_store, tcp_store

    def append(file, line: str) -> None:
        world.wire.exchange({"do": "append", "path": str(file.path), "line": line})

    def lines(file) -> list[str]:
        return world.wire.exchange({"do": "lines", "path": str(file.path)})["lines"]

    shared_file.SharedFile.append, shared_file.SharedFile.lines = append, lines


def known(value) -> dict | None:
    """What stands for something that the judge has itself."""
    return {"memory": value.number} if type(value) is HubMemory else None


def state_of(value) -> list:
    """An input after the call: ["value", it], or of an object that has state ["state", what it holds]."""
    if isinstance(value, torch.nn.Module):
        tensors = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        return ["state", {name: tensor.detach() for name, tensor in tensors.items()}]
    owner = getattr(value, "__self__", value)
    if type(owner).__module__.startswith("utils.") and hasattr(owner, "__dict__") and known(owner) is None:
        return ["state", dict(vars(owner))]
    return ["value", value]


def strided(data, dtype: torch.dtype, shape: tuple, strides: tuple, requires_grad: bool) -> torch.Tensor:
    """A tensor by its values, with gaps where it has had them, and nothing of what lay in the gaps."""
    tensor = torch.empty_strided(shape, strides, dtype=dtype)
    return tensor.copy_(pickling.unpack(data, dtype, shape)).requires_grad_(requires_grad)
