"""The network of a graded run: every message of every rank passes through here, where it is counted and timed.

It is the network of the virtual cluster (utils/worlds/virtual/network.py), with sandboxed processes as ranks. Ranks
have no connection but this hub. So the hub makes the events that traffic is judged by, from the tensors that arrive,
and the value that a rank returns can only come from its own inputs and from what the hub has delivered.

    Hub(connections, cluster, virtual=False).run() -> Run, or raises what `spawn` would raise

The hub believes a rank only where nothing else can be known: its result, how long it computed, what it holds in memory.
Anything that is not a valid request ends the rank (Breach). One rank runs at a time, in the order of virtual time.

REQUESTS and those of hub_storage.py are the protocol: words, each the name of the method that answers it, which returns
True when the rank's turn is over. Fields are untrusted: see untrusted.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from grader.inside.codec import Breach
from grader.judging import hub_storage
from grader.judging.hub_rank import (
    MAX_CALLS,
    MAX_CLAIMS,
    MAX_OTHER_MESSAGES,
    Finished,
    Placeholders,
    RankOfHub,
    RankResult,
    Stays,
)
from grader.judging.hub_storage import STORE, Storage
from grader.judging.rank_connection import RankConnection
from grader.judging.untrusted import Message, cell_line, index_into, text, whole, wrapper_name
from utils.cluster import Cluster
from utils.diagnosis.errors import RankCrashed, RankFailed, RankTimeout
from utils.diagnosis.words import ranks_text
from utils.events.event import Event, Region
from utils.events.failure import Failure, Frame
from utils.events.memory_samples import KINDS, MemoryNote, peak_of
from utils.events.rank_state import RankState, TensorLayout
from utils.recording.reader import making
from utils.recording.torch_calls import OPERATIONS, CallOptions, handed_in, new_event, tensors_in
from utils.report.collective_charges import Charge
from utils.report.run import Run
from utils.worlds.virtual import data_movement
from utils.worlds.virtual.argument_checks import argument_error
from utils.worlds.virtual.calls import VirtualCall
from utils.worlds.virtual.network import Network
from utils.worlds.virtual.turns import Turns
from utils.worlds.virtual.world import raise_what_went_wrong

TICK = 1e-6
REQUESTS = (
    *("call", "wait", "catch_up", "asked_for_result", "dropped_handle", "began_to_wait", "make_group", "join"),
    *("mark", "span", "done", "failed"),
)


class Hub(Turns[RankOfHub]):
    """Runs one world: gives each rank its turn, answers its requests, and puts together what happened.

    connections   one to each rank; the rank has received its order
    cluster       whose links and costs apply
    virtual       whether time is the cluster's. If not, an event's time is its place in the order of all requests, and
                  ranks are told no times
    stays         SlowMemories and Witnesses, which live here and which ranks use through stand-ins
    times_count   whether times earn points: then, where computing takes no time, all times are the hub's own
    """

    def __init__(
        self,
        connections: Sequence[RankConnection],
        cluster: Cluster,
        virtual: bool,
        stays: Sequence[Stays] = (),
        times_count: bool = False,
    ):
        self.size, self.cluster, self.virtual = len(connections), cluster, virtual
        self.placeholders = Placeholders(stays)
        self.ranks = [RankOfHub(number, connection) for number, connection in enumerate(connections)]
        for connection in connections:
            connection.count = self.placeholders.count
        self.network = Network(cluster, self.size, deliver, inconvenient=not virtual)
        self.believes_clocks = virtual and not (times_count and computes_for_free(cluster))
        super().__init__(self.network.earliest, self.network.commit)
        self.ticks = 0
        self.making_group: dict[tuple[str, tuple[int, ...]], list[RankOfHub]] = {}  # the members that have arrived
        self.joining: dict[str, dict[int, RankOfHub]] = {}  # store -> {rank in the new default group: who}
        self.storage = Storage(stays, self.now, self.seconds_of, self.make_ready)
        everybody = tuple(range(self.size))
        for rank in self.ranks:
            rank.groups.add(("world", everybody))

    # ---- whose turn it is

    def run(self) -> Run:
        """Run until all ranks have finished or none can continue. Raises what `spawn` and `simulate` raise."""
        for rank in self.ranks:
            self.make_ready(rank)
        while (following := self.next_rank()) is not None:
            self.run_until_it_waits(following)
        return self.outcome()

    def run_until_it_waits(self, rank: RankOfHub) -> None:
        """Give a rank its turn: until it waits for other ranks, or is over."""
        try:
            if rank.reply is not None:
                reply, rank.reply = rank.reply, None
                rank.connection.answer(reply())
            while not rank.over:
                message = rank.connection.receive(self.placeholders.resolve)
                if message is None:
                    rank.over = True
                elif self.handle(rank, message):
                    return
        except TimeoutError:
            raise self.timeout_of(rank) from None
        except OSError:  # the rank has closed its end
            rank.over = True
        except Breach as breach:
            rank.breach, rank.over = str(breach), True

    def timeout_of(self, rank: RankOfHub) -> RankTimeout:
        where = f", after {rank.calls[-1].event.op} at {rank.calls[-1].event.where}" if rank.calls else ""
        return RankTimeout(f"rank {rank.number} took too long{where}.\n\nIs there a loop that never ends?")

    def now(self, rank: RankOfHub, message: Message) -> float:
        """The time of a rank's request: by the rank's clock if time is virtual, else its place in the order of all."""
        if not self.virtual:
            self.ticks += 1
            rank.clock = max(rank.clock, self.ticks * TICK)
        elif self.believes_clocks:
            claimed = message.get("clock", rank.clock)
            if type(claimed) not in (int, float) or not math.isfinite(claimed):
                raise Breach("a clock reading that is not a time")
            rank.clock = max(rank.clock, float(claimed))
        return rank.clock

    def seconds_of(self, nbytes: int) -> float:
        """What a message takes, for accesses to what ranks share."""
        return self.cluster.inter.alpha + nbytes / self.cluster.inter.bandwidth if self.virtual else 0.0

    # ---- requests

    def handle(self, rank: RankOfHub, message: Message) -> bool:
        """Do what a message asks for. Returns whether the rank's turn is over."""
        rank.messages += 1
        if rank.messages > MAX_CALLS + MAX_OTHER_MESSAGES:
            raise Breach("more messages than any answer needs")
        word = message["do"] if type(message.get("do")) is str else ""
        owner = self if word in REQUESTS else self.storage if word in hub_storage.REQUESTS else None
        if owner is None:
            raise Breach("a request of an unknown kind")
        try:
            return bool(getattr(owner, word)(rank, message))
        except (Breach, OSError):
            raise
        except Exception as error:  # whatever a forged message leads to
            raise Breach(f"a malformed request ({type(error).__name__})") from None

    def call(self, rank: RankOfHub, message: Message) -> None:
        """A send, a receive or a collective."""
        if len(rank.calls) >= MAX_CALLS:
            raise Breach(f"more than {MAX_CALLS:,} calls")
        call = self.read_call(rank, message)
        index = call.event.index
        rank.calls.append(call)
        if call.event.op != "send" and call.event.op != "barrier":
            rank.outputs[index] = tensors_in(call.args[:1])
        if call.event.is_async and message["directly"] is True:
            rank.unused_handles[index] = call.event.where
        if message["strides"] is not None:
            shape, strides = message["strides"]
            rank.strides[index] = TensorLayout(tuple(map(int, shape)), tuple(map(int, strides)))
        try:
            self.network.ask(call)
        except RuntimeError as error:
            rank.answer(error=error)
        else:
            rank.answer()
        rank.unreported.append(index)

    def read_call(self, rank: RankOfHub, message: Message) -> VirtualCall:
        """The call that a message asks for. Its bytes are counted from the tensors that came with the message."""
        method, args = message["method"], message["args"]
        op = OPERATIONS[method]
        group = text(message["group"]), tuple(message["members"])
        if group not in rank.groups:
            raise Breach("a call on a group that it does not belong to")
        peer, tag, reduce_op = message["peer"], message["tag"], message["reduce_op"]
        if (
            (peer is not None and peer not in group[1])
            or type(tag) is not int
            or reduce_op not in data_movement.REDUCTIONS
        ):
            raise Breach("a call that no program can make")
        if op in ("send", "recv") and peer is None and method != "recv_anysource":
            raise Breach("a point-to-point message without a peer")
        if not self.virtual and any(tensor.is_meta for tensor in tensors_in(args)):
            raise Breach("a tensor without values")
        if argument_error(method, op, args, len(group[1]), reduce_op):
            raise Breach("a call that does not fit its group")
        event = new_event(
            method,
            handed_in(op, args),
            CallOptions(peer, tag, reduce_op),
            rank=rank.number,
            index=len(rank.calls),
            group=group[0],
            members=group[1],
            is_async=message["is_async"] is True,
            start=self.now(rank, message),
            where=cell_line(message["where"]),
            wrapper=wrapper_name(message["wrapper"]),
        )
        return VirtualCall(event, method, tuple(args))

    def wait(self, rank: RankOfHub, message: Message) -> bool:
        """Wait for the first of some calls to be done."""
        self.now(rank, message)
        rank.waits_for = [rank.calls[index_into(rank.calls, index)] for index in message["for"]]
        rank.reply = lambda: self.news_for(rank)
        ends = [call.end for call in rank.waits_for if call.end is not None]
        if ends:
            rank.clock = max(rank.clock, min(ends))
            self.make_ready(rank)
        else:
            for call in rank.waits_for:
                call.waiter = rank
        return True

    def catch_up(self, rank: RankOfHub, message: Message) -> bool:
        """Let everything happen that happens before this rank's clock."""
        self.now(rank, message)
        rank.reply = lambda: self.news_for(rank)
        self.make_ready(rank)
        return True

    def news_for(self, rank: RankOfHub) -> dict[str, Any]:
        """The calls that are done and that the rank does not know about yet, with what they delivered."""
        rank.waits_for = None
        done = [index for index in rank.unreported if rank.calls[index].end is not None]
        rank.unreported = [index for index in rank.unreported if rank.calls[index].end is None]
        news = []
        for index in done:
            call = rank.calls[index]
            news.append([index, call.end if self.virtual else None, call.source, rank.outputs.pop(index, [])])
        return {"came": news}

    def asked_for_result(self, rank: RankOfHub, message: Message) -> None:
        """The program has asked about an asynchronous call's result."""
        rank.unused_handles.pop(message["index"], None)

    def dropped_handle(self, rank: RankOfHub, message: Message) -> None:
        """The program has thrown away a message's handle. If the message had not met its other end, it never will."""
        call = rank.calls[index_into(rank.calls, message["index"])]
        if call.transfer is None and self.network.withdraw(call):
            rank.lost.add(call.event.index)

    def began_to_wait(self, rank: RankOfHub, message: Message) -> None:
        """The program begins to wait for an asynchronous call."""
        call = rank.calls[index_into(rank.calls, message["index"])]
        call.waited, call.waited_at = self.now(rank, message), cell_line(message["where"])

    # ---- groups

    def make_group(self, rank: RankOfHub, message: Message) -> bool:
        """A rank makes a group. A member continues once all members have arrived."""
        name, members = text(message["group"]), tuple(message["members"])
        if not all(type(one) is int and 0 <= one < self.size for one in members) or len(set(members)) < len(members):
            raise Breach("a group with ranks that do not exist")
        where, start = cell_line(message["where"]), self.now(rank, message)
        number = len(rank.groups_made)

        def made(end: float | None) -> Event:
            return making(rank.number, number, group=name, members=members, start=start, end=end, where=where)

        def reply() -> dict[str, Any]:
            rank.groups.add((name, members))
            rank.groups_made[number] = made(self.now(rank, {}))
            return {"clock": rank.clock} if self.virtual else {}

        rank.groups_made.append(made(None))
        if rank.number not in members:
            rank.groups_made[number] = made(rank.clock)
            rank.answer()
            return False
        rank.reply = reply
        arrived = self.making_group.setdefault((name, members), [])
        arrived.append(rank)
        if len(arrived) == len(members):
            del self.making_group[name, members]
            self.continue_together(arrived)
        return True

    def continue_together(self, ranks: list[RankOfHub]) -> None:
        now = max(rank.clock for rank in ranks)
        for rank in ranks:
            rank.clock = now
            self.make_ready(rank)

    def join(self, rank: RankOfHub, message: Message) -> bool:
        """A rank makes a default group, with all that name the same store, in the order of the numbers they claim."""
        store, number, size = text(message["store"]), whole(message["rank"]), whole(message["size"])
        self.storage.note(rank, STORE, len(store))
        arrived = self.joining.setdefault(store, {})
        if number in arrived or not 0 <= number < size or rank in arrived.values():
            said = f"rank {number} has joined twice at {store}: each rank must use its own number"
            rank.answer(error=RuntimeError(said))
            return False
        arrived[number] = rank
        members: list[int] = []  # filled in when all have arrived
        rank.reply = lambda: {"members": members}
        if len(arrived) == size:
            del self.joining[store]
            members += [arrived[one].number for one in range(size)]
            for one in arrived.values():
                one.groups.add(("world", tuple(members)))
                one.reply = lambda: {"members": members}
            self.continue_together(list(arrived.values()))
        return True

    # ---- regions, and the end

    def mark(self, rank: RankOfHub, message: Message) -> None:
        """A region begins or ends now. The rank isn't told when: the number would say what other ranks have done."""
        rank.marks.append(self.now(rank, message))

    def span(self, rank: RankOfHub, message: Message) -> None:
        """A region, from one of the rank's marks to a later one."""
        start, end = (rank.marks[index_into(rank.marks, message[name])] for name in ("start", "end"))
        if start > end:
            raise Breach("a region that never took place")
        rank.regions.append(Region(rank.number, text(message["name"]), start, end))

    def done(self, rank: RankOfHub, message: Message) -> bool:
        """The program has returned."""
        self.now(rank, message)
        result, after, shared = message["result"], message["after"], message["shared"]
        if type(after) is not list or type(shared) is not bool:
            raise Breach("something that is not a result")
        if any(torch.as_tensor(column).numel() > 2 * MAX_CLAIMS for column in (message["busy"], *message["memory"])):
            raise Breach("more times than any program has")
        spans = torch.as_tensor(message["busy"], dtype=torch.float64).reshape(-1, 2).tolist()
        busy = [Region(rank.number, "compute", start, end) for start, end in spans]
        columns = [torch.as_tensor(column).tolist() for column in message["memory"]]
        samples = [(float(when), KINDS[kind], int(nbytes)) for when, kind, nbytes in zip(*columns, strict=True)]
        printed = text(message["printed"], 1 << 20)
        rank.finished = Finished(RankResult(result, after, shared), busy, samples, printed)
        rank.over = True
        return True

    def failed(self, rank: RankOfHub, message: Message) -> bool:
        """The program has raised."""
        frames = tuple(
            Frame(text(file), int(line), text(function), text(source))
            for file, line, function, source in message["frames"]
        )
        what, moment = text(message["message"], 8000), self.ticks + rank.clock
        rank.failure = Failure(text(message["kind"]), what, frames, moment)
        rank.over = True
        return True

    # ---- the run as a whole

    def outcome(self) -> Run:
        states = [self.final_state(rank) for rank in self.ranks]
        failures = {rank.number: rank.failure for rank in self.ranks if rank.failure is not None}
        gone = [rank for rank in self.ranks if rank.over and rank.finished is None and rank.failure is None]
        if gone and not failures:
            raise RankCrashed("; ".join(f"rank {rank.number} {rank.how_it_ended()}" for rank in gone) + ".")
        raise_what_went_wrong(states, failures)
        finished = [rank.finished for rank in self.ranks if rank.finished is not None]  # all of them
        events = [event for state in states for event in state.events]
        events += [event for rank in self.ranks for event in rank.shared]
        regions = [region for state in states for region in state.regions]
        last = max((event.end for event in events if event.end is not None), default=0.0)
        return Run(
            world_size=self.size,
            world="graded",
            backend=self.cluster.name,
            results=[one.result for one in finished],
            output=[one.printed for one in finished],
            events=events,
            elapsed=max(last, *(rank.clock for rank in self.ranks)),
            regions=regions or [span for one in finished for span in one.busy],
            memory_notes=[[MemoryNote("virtual", one.memory, peak_of(one.memory)[0])] for one in finished],
            algorithms=[Charge(*kind, *charged) for kind, charged in self.network.algorithms.items()],
        )

    def final_state(self, rank: RankOfHub) -> RankState:
        """A rank's state. In real time an asynchronous call that it never asked about has no end, as with spawn."""
        state = rank.state
        if not self.virtual:
            state.events = [
                replace(event, end=None) if event.index in rank.unused_handles and event.op != "send" else event
                for event in state.events
            ]
        return state


def deliver(calls: list[VirtualCall]) -> None:
    """Move the values of a message or a collective. Raises RankFailed for what no backend can do, such as the average
    of whole numbers, and for whatever forged tensors lead to.
    """
    try:
        data_movement.deliver(calls)
    except Exception as error:
        event, ranks = calls[0].event, sorted(call.event.rank for call in calls)
        raise RankFailed(f"{event.op} failed on {ranks_text(ranks).lower()}: {type(error).__name__}: {error}") from None


def computes_for_free(cluster: Cluster) -> bool:
    """Whether its GPUs take no time for anything, so that a rank has no time of its own to tell us about."""
    gpu = cluster.gpu
    return gpu.launch == 0 and math.isinf(gpu.bandwidth) and all(map(math.isinf, gpu.flops.values()))
