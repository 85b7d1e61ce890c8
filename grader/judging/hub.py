"""The network of a graded run: every message of every rank passes through here, is counted here, and is timed here.

It is the network of the virtual cluster (utils/worlds/virtual/network.py) with ranks that are sandboxed processes. They have
nothing in common but this hub, so what it has seen is all there is: the events that traffic is judged by are made here,
from the tensors that came, and a value that a rank returns can only have come from its own inputs and through the hub.

    Hub(lines, cluster, virtual=False).run() -> Run, or what `spawn` would raise

Nothing that a rank sends is believed but what it can only know itself: its result, how long it computed, what it holds
in memory. What is no message ends the rank (Breach). One rank runs at a time, in the order of virtual time.
"""

from __future__ import annotations

import heapq
import math
import re
from dataclasses import replace
from typing import Any

from grader.inside.codec import Breach
from grader.judging.hub_rank import MOST_CALLS, MOST_NOTES, Known, Rank
from grader.judging.rank_connection import RankConnection
from utils.cluster import Cluster
from utils.diagnosis.errors import RankCrashed, RankTimeout
from utils.events.event import Event, Region
from utils.events.failure import Failure, Frame
from utils.events.memory_samples import KINDS, MemoryNote, peak_of
from utils.events.rank_state import RankState
from utils.kit.slow_memory import SlowMemory
from utils.recording.reader import making
from utils.recording.torch_calls import OPERATIONS, OUTPUT_FIRST, tensors_in
from utils.report.collective_charges import Charge
from utils.report.run import Run
from utils.worlds.virtual import data_movement
from utils.worlds.virtual.argument_checks import argument_error
from utils.worlds.virtual.network import Network, VirtualCall
from utils.worlds.virtual.world import raise_what_went_wrong

TICK = 1e-6
PLACE = re.compile(r"cell (\d+|of [\w-]+):\d{1,6}")  # as inside/slices.py names cells
REDUCTIONS = {"", "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"}


class Hub:
    """lines    to each rank, which has got its order
    cluster   whose links and costs count; virtual: whether its times do. If not, the order of all that the hub hears is
              the time of the events, and the ranks are told none
    memories  what lies here and ranks load from
    """

    def __init__(
        self,
        lines: list[RankConnection],
        cluster: Cluster,
        virtual: bool,
        memories: list[SlowMemory] = (),
    ):
        self.size, self.cluster, self.virtual = len(lines), cluster, virtual
        self.memories, self.known = memories, Known(memories)
        self.ranks = [Rank(number, line) for number, line in enumerate(lines)]
        for line in lines:
            line.take = self.known.take
        self.network = Network(cluster, self.size, data_movement.deliver)
        self.ready: list[tuple[float, int, Rank]] = []
        self.ticks = 0
        self.coming: dict[tuple, list[Rank]] = {}
        self.stores: dict[str, dict[str, bytes]] = {}
        self.written: dict[tuple[str, str], float] = {}  # (store, key) -> when
        self.missed: dict[tuple[str, str], list[Rank]] = {}  # (store, key) -> who waits for it
        self.joining: dict[str, dict[int, Rank]] = {}
        self.files: dict[str, list[str]] = {}
        everybody = tuple(range(self.size))
        for rank in self.ranks:
            rank.groups.add(("world", everybody))

    # ---- whose turn it is

    def run(self) -> Run:
        """Until all ranks have finished, or none can go on. Raises what `spawn` and `simulate` raise."""
        for rank in self.ranks:
            self.make_ready(rank)
        while (rank := self.next()) is not None:
            self.turn(rank)
        return self.outcome()

    def make_ready(self, rank: Rank) -> None:
        heapq.heappush(self.ready, (rank.clock, rank.number, rank))

    def next(self) -> Rank | None:
        """A transfer may begin only when no rank that can run could still ask for an earlier one."""
        while True:
            earliest = self.network.earliest()
            if self.ready and self.ready[0][0] <= earliest:
                return heapq.heappop(self.ready)[2]
            if earliest == math.inf:
                return None
            for rank in self.network.commit():
                self.make_ready(rank)

    def turn(self, rank: Rank) -> None:
        """Let a rank run until it waits, or is over."""
        try:
            if rank.answer is not None:
                answer, rank.answer = rank.answer, None
                rank.line.say(answer())
            while not rank.over:
                message = rank.line.hear(self.known)
                if message is None:
                    rank.over = True
                elif self.hear(rank, message):
                    return
        except TimeoutError:
            raise self.too_long(rank) from None
        except OSError:  # the rank has closed its end
            rank.over = True
        except Breach as breach:
            rank.breach, rank.over = str(breach), True

    def too_long(self, rank: Rank) -> RankTimeout:
        where = f", after {rank.calls[-1].event.op} at {rank.calls[-1].event.where}" if rank.calls else ""
        return RankTimeout(f"rank {rank.number} took too long{where}.\n\nIs there a loop without an end?")

    def now(self, rank: Rank, message: dict) -> float:
        """The time of what a rank does: its own where time is virtual, else a place in the order of all."""
        if not self.virtual:
            self.ticks += 1
            rank.clock = max(rank.clock, self.ticks * TICK)
        else:
            claimed = message.get("clock", rank.clock)
            if type(claimed) not in (int, float) or not math.isfinite(claimed):
                raise Breach("a clock that shows no time")
            rank.clock = max(rank.clock, float(claimed))
        return rank.clock

    # ---- what a rank says

    def hear(self, rank: Rank, message: dict) -> bool:
        """Do what a message asks for; returns whether the rank's turn is over."""
        rank.notes += 1
        if rank.notes > MOST_CALLS + MOST_NOTES:
            raise Breach("more messages than any answer needs")
        do = message.get("do")
        handle = getattr(self, f"do_{do}", None) if type(do) is str else None
        if handle is None:
            raise Breach("a message of no known kind")
        try:
            return bool(handle(rank, message))
        except (Breach, OSError):
            raise
        except Exception as error:  # whatever a forged message leads to
            raise Breach(f"a message that asks for nothing that there is ({type(error).__name__})") from None

    def tell(self, rank: Rank, **answer: Any) -> None:
        rank.line.say(answer)

    def do_call(self, rank: Rank, message: dict) -> None:
        if len(rank.calls) >= MOST_CALLS:
            raise Breach(f"more than {MOST_CALLS:,} calls")
        call = self.call_of(rank, message)
        rank.calls.append(call)
        if call.event.op != "send" and call.event.op != "barrier":
            rank.outputs[call.event.index] = tensors_in(call.args[:1])
        if call.event.is_async and message["directly"] is True:
            rank.unasked[call.event.index] = call.event.where
        if message["strides"] is not None:
            shape, strides = message["strides"]
            rank.strides[call.event.index] = tuple(map(int, shape)), tuple(map(int, strides))
        try:
            self.network.ask(call)
        except RuntimeError as error:
            self.tell(rank, error=error)
        else:
            self.tell(rank)
        rank.untold.append(call.event.index)

    def call_of(self, rank: Rank, message: dict) -> VirtualCall:
        """The call that a message asks for; what it hands in is counted from the tensors that have come with it."""
        method, args = message["method"], message["args"]
        op = OPERATIONS[method]
        group = text(message["group"]), tuple(message["members"])
        if group not in rank.groups:
            raise Breach("a call on a group that it is not in")
        peer, tag, reduce_op = message["peer"], message["tag"], message["reduce_op"]
        if (peer is not None and peer not in group[1]) or type(tag) is not int or reduce_op not in REDUCTIONS:
            raise Breach("a call that no program can make")
        if op in ("send", "recv") and peer is None and method != "recv_anysource":
            raise Breach("a message from nobody, or to nobody")
        handed_in = tensors_in(args[1] if op in OUTPUT_FIRST and len(args) > 1 else args[:1])
        first = handed_in[0] if handed_in else None
        if not self.virtual and any(tensor.is_meta for tensor in tensors_in(args)):
            raise Breach("a tensor without values")
        if argument_error(method, op, args, len(group[1]), reduce_op):
            raise Breach("a call that does not fit its group")
        event = Event(
            rank=rank.number,
            index=len(rank.calls),
            op=op,
            group=group[0],
            members=group[1],
            peer=peer,
            tag=tag,
            bytes=sum(tensor.numel() * tensor.element_size() for tensor in handed_in),
            dtype=str(first.dtype).removeprefix("torch.") if first is not None else "",
            shape=tuple(first.shape) if first is not None else (),
            reduce_op=reduce_op,
            is_async=message["is_async"] is True,
            start=self.now(rank, message),
            end=None,
            where=place(message["where"]),
        )
        return VirtualCall(event, method, tuple(args))

    def do_wait(self, rank: Rank, message: dict) -> bool:
        self.now(rank, message)
        rank.waits_for = [rank.calls[index] for index in message["for"]]
        rank.answer = lambda: self.what_has_come(rank)
        come = [call for call in rank.waits_for if call.end is not None]
        if come:
            rank.clock = max(rank.clock, min(call.end for call in come))
            self.make_ready(rank)
        else:
            for call in rank.waits_for:
                call.waiter = rank
        return True

    def do_look(self, rank: Rank, message: dict) -> bool:
        """Let everything happen that happens before this rank's clock."""
        self.now(rank, message)
        rank.answer = lambda: self.what_has_come(rank)
        self.make_ready(rank)
        return True

    def what_has_come(self, rank: Rank) -> dict:
        rank.waits_for = None
        come = [index for index in rank.untold if rank.calls[index].end is not None]
        rank.untold = [index for index in rank.untold if rank.calls[index].end is None]
        told = []
        for index in come:
            call = rank.calls[index]
            told.append([index, call.end if self.virtual else None, call.source, rank.outputs.pop(index, [])])
        return {"came": told}

    def do_asked(self, rank: Rank, message: dict) -> None:
        rank.unasked.pop(message["index"], None)

    def do_dropped(self, rank: Rank, message: dict) -> None:
        """A message whose handle was thrown away before it met its other end never does."""
        call = rank.calls[message["index"]]
        if call.transfer is None and self.network.withdraw(call):
            rank.lost.add(call.event.index)

    def do_waits(self, rank: Rank, message: dict) -> None:
        call = rank.calls[message["index"]]
        call.waited, call.waited_at = self.now(rank, message), place(message["where"])

    # ---- groups

    def do_make(self, rank: Rank, message: dict) -> bool:
        """A rank makes a group: it goes on once all members have come to make it."""
        name, members = text(message["group"]), tuple(message["members"])
        if not all(type(one) is int and 0 <= one < self.size for one in members) or len(set(members)) < len(members):
            raise Breach("a group of ranks that there are not")
        made = {"group": name, "members": members, "where": place(message["where"]), "start": self.now(rank, message)}
        number = len(rank.groups_made)
        rank.groups_made.append(making(rank.number, number, end=None, **made))

        def answer() -> dict:
            rank.groups.add((name, members))
            rank.groups_made[number] = making(rank.number, number, end=self.now(rank, {}), **made)
            return {"clock": rank.clock} if self.virtual else {}

        if rank.number not in members:
            rank.groups_made[number] = making(rank.number, number, end=rank.clock, **made)
            self.tell(rank)
            return False
        rank.answer = answer
        come = self.coming.setdefault((name, members), [])
        come.append(rank)
        if len(come) == len(members):
            del self.coming[name, members]
            self.go_on_together(come)
        return True

    def go_on_together(self, ranks: list[Rank]) -> None:
        now = max(rank.clock for rank in ranks)
        for rank in ranks:
            rank.clock = now
            self.make_ready(rank)

    def do_join(self, rank: Rank, message: dict) -> bool:
        """A rank makes a default group of its own: with all who name the same store, in the order of their numbers."""
        name, number, size = text(message["store"]), message["rank"], message["size"]
        come = self.joining.setdefault(name, {})
        if number in come or not 0 <= number < size or rank in come.values():
            self.tell(
                rank, error=RuntimeError(f"rank {number} has joined twice at {name}: each rank has its own number")
            )
            return False
        come[number] = rank
        rank.answer = lambda: {"members": members}
        members: list[int] = []
        if len(come) == size:
            del self.joining[name]
            members += [come[one].number for one in range(size)]
            for one in come.values():
                one.groups.add(("world", tuple(members)))
                one.answer = lambda: {"members": members}
            self.go_on_together(list(come.values()))
        return True

    # ---- stores, files and memories that lie here

    def pay(self, rank: Rank, nbytes: int) -> None:
        """What is written there or read takes as long as a message: else values could travel in no time."""
        if self.virtual:
            rank.clock += self.cluster.inter.alpha + nbytes / self.cluster.inter.bandwidth

    def do_keys(self, rank: Rank, message: dict) -> bool:
        name, what, key = text(message["store"]), message["what"], text(message["key"])
        keys = self.stores.setdefault(name, {})
        if what == "get":

            def answer() -> dict:
                rank.clock = max(rank.clock, self.written[name, key])
                self.pay(rank, len(keys[key]))
                return {"value": keys[key].hex()}

            rank.answer = answer
            if key in keys:
                self.make_ready(rank)
            else:
                self.missed.setdefault((name, key), []).append(rank)
            return True
        if what == "check":
            self.tell(rank, value=key in keys)
            return False
        if len(keys) > 10_000 or len(message["value"]) > 1 << 20:
            raise Breach("a store that overflows")
        before = int(keys.get(key, b"0")) if what == "add" else 0
        keys[key] = str(before + int(message["amount"])).encode() if what == "add" else bytes.fromhex(message["value"])
        self.pay(rank, len(keys[key]))
        self.written[name, key] = rank.clock
        self.tell(rank, value=before + int(message["amount"]))
        for other in self.missed.pop((name, key), []):
            self.make_ready(other)
        return False

    def do_append(self, rank: Rank, message: dict) -> None:
        lines = self.files.setdefault(text(message["path"]), [])
        if len(lines) > 10_000:
            raise Breach("a file that overflows")
        start = self.now(rank, {})
        lines.append(text(message["line"]))
        self.pay(rank, len(message["line"]))
        rank.regions.append(Region(rank.number, "append", start, self.now(rank, {})))
        self.tell(rank)

    def do_lines(self, rank: Rank, message: dict) -> None:
        start = self.now(rank, {})
        lines = list(self.files.get(text(message["path"]), []))
        self.pay(rank, sum(map(len, lines)))
        rank.regions.append(Region(rank.number, "read", start, self.now(rank, {})))
        self.tell(rank, lines=lines)

    def do_load(self, rank: Rank, message: dict) -> None:
        memory, where = self.memories[message["memory"]], [slice(*part) for part in message["where"]]
        try:
            tile = memory.load(message["name"], *where)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            self.tell(rank, error=error)
        else:
            self.tell(rank, tile=tile)

    def do_arrays(self, rank: Rank, message: dict) -> None:
        """A rank looks at what lies in a memory without loading it: that is not counted, and the check will see it."""
        self.tell(rank, arrays=self.memories[message["memory"]].arrays)

    def do_overwrite(self, rank: Rank, message: dict) -> None:
        arrays = self.memories[message["memory"]].arrays
        for name, array in message["arrays"].items():
            arrays[name].copy_(array)

    def do_store(self, rank: Rank, message: dict) -> None:
        memory, where = self.memories[message["memory"]], [slice(*part) for part in message["where"]]
        before = memory.stored
        try:
            memory.store(message["name"], message["tile"], *where)
        except (KeyError, TypeError, ValueError) as error:
            self.tell(rank, error=error)
        else:
            self.tell(rank, bytes=memory.stored - before)

    # ---- regions, and the end

    def do_mark(self, rank: Rank, message: dict) -> None:
        mark = self.now(rank, {})
        rank.marks.add(mark)
        self.tell(rank, mark=mark)

    def do_span(self, rank: Rank, message: dict) -> None:
        start, end = float(message["start"]), float(message["end"])
        if not 0 <= start <= end or (not self.virtual and not {start, end} <= rank.marks):
            raise Breach("a region that was not")
        rank.regions.append(Region(rank.number, text(message["name"]), start, end))

    def do_done(self, rank: Rank, message: dict) -> bool:
        self.now(rank, message)
        if type(message["after"]) is not list or type(message["shared"]) is not bool:
            raise Breach("no result")
        busy = [Region(rank.number, "compute", float(start), float(end)) for start, end in message["busy"]]
        samples = [(float(when), kind, int(nbytes)) for when, kind, nbytes in message["memory"] if kind in KINDS]
        rank.done = {**message, "busy": busy, "memory": samples, "printed": text(message["printed"], 1 << 20)}
        rank.over = True
        return True

    def do_failed(self, rank: Rank, message: dict) -> bool:
        frames = [
            Frame(text(file), int(line), text(function), text(source))
            for file, line, function, source in message["frames"]
        ]
        rank.failure = Failure(
            text(message["kind"]), text(message["message"], 8000), tuple(frames), self.ticks + rank.clock
        )
        rank.over = True
        return True

    # ---- what came of it

    def outcome(self) -> Run:
        states = [self.settled(rank) for rank in self.ranks]
        failures = {rank.number: rank.failure for rank in self.ranks if rank.failure is not None}
        gone = [rank for rank in self.ranks if rank.over and rank.done is None and rank.failure is None]
        if gone and not failures:
            raise RankCrashed("; ".join(f"rank {rank.number} {rank.how_it_went()}" for rank in gone) + ".")
        raise_what_went_wrong(states, failures)
        events = [event for state in states for event in state.events]
        regions = [region for state in states for region in state.regions]
        regions = regions or [span for rank in self.ranks for span in rank.done["busy"]]
        last = max((event.end for event in events if event.end is not None), default=0.0)
        return Run(
            world_size=self.size,
            world="graded",
            backend=self.cluster.name,
            results=[(rank.done["result"], rank.done["after"], rank.done["shared"]) for rank in self.ranks],
            output=[rank.done["printed"] for rank in self.ranks],
            events=events,
            elapsed=max(last, *(rank.clock for rank in self.ranks)),
            regions=regions,
            memory_notes=[
                [MemoryNote("virtual", rank.done["memory"], peak_of(rank.done["memory"])[0])] for rank in self.ranks
            ],
            algorithms=[Charge(*kind, *charged) for kind, charged in self.network.algorithms.items()],
        )

    def settled(self, rank: Rank) -> RankState:
        """A rank's state; without virtual time, what it has started and never asked about has no end, as with spawn."""
        state = rank.state
        if not self.virtual:
            state.events = [
                replace(event, end=None) if event.index in rank.unasked and event.op != "send" else event
                for event in state.events
            ]
        return state


def text(value: Any, most: int = 1000) -> str:
    if type(value) is not str:
        raise Breach("no text")
    return value[:most]


def place(value: Any) -> str:
    """Where a call stands. Who explains why a world is stuck opens that file, so it must be a cell of the notebook."""
    where = text(value)
    return where if PLACE.fullmatch(where) else ""
