"""Messages and collectives in virtual time: who waits for whom, and which link is taken until when.

The textbooks' single-port full-duplex model: a message of n bytes over a link holds its sender's way out and its
receiver's way in for alpha + n / bandwidth. It begins when both ends have asked for it and both ways are free. Of those
that could begin, the earliest does; at the same moment, the one that was asked for first.

A collective begins when every member has called it and their links of that tier, intra or inter, are free; it holds
them for as long as the best algorithm takes (collective_costs.py). So collectives of one group run one after another,
and those inside nodes run beside those across nodes. A network card that several GPUs share is taken for the n /
bandwidth of each message: their latencies overlap, their bytes do not.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from dataclasses import dataclass

from ...cluster.collective_costs import Layout, cost
from ...cluster.hardware import Cluster
from ...diagnosis.mismatch import difference
from ...events.event import Event
from ...events.matching import POINT_TO_POINT
from .argument_checks import disagreement
from .link_occupancy import LinkOccupancy


@dataclass(slots=True, eq=False)
class VirtualCall:
    """One call of one rank. `event` says what it asks for; `end` is when its result is there, once that is known."""

    event: Event
    method: str
    args: tuple
    transfer: Transfer | None = None
    end: float | None = None
    waiter: object = None  # the rank, while it waits
    waited: float | None = None  # when it began to wait, if the call is asynchronous
    waited_at: str = ""  # where
    source: int | None = None  # of a receive from any source: who has sent it


@dataclass(slots=True, eq=False)
class Transfer:
    """A message or a collective that everybody has asked for.

    calls   {rank: its call}: of a message, the sender's first
    ready   when the last of them has asked
    """

    calls: dict[int, VirtualCall]
    ready: float
    number: int
    start: float | None = None
    end: float | None = None
    algorithm: str = ""


class Team:
    """One group as the network sees it: the calls of its members, and what their collectives cost."""

    def __init__(self, members: tuple[int, ...], ways: LinkOccupancy):
        self.members = members
        self.tier = ways.tier(members)
        self.layout = Layout.of(ways.cluster, members)
        self.made: dict[int, int] = defaultdict(int)  # rank -> how many collectives it has called
        self.open: dict[int, dict[int, VirtualCall]] = {}  # place -> {rank: its call}, until all have called


class Network:
    """Takes calls, finds out which belong together, and does them in the order of virtual time."""

    def __init__(self, cluster: Cluster, size: int, deliver=lambda calls: None):
        """deliver: moves the values of a message or a collective."""
        self.cluster, self.ways, self.deliver = cluster, LinkOccupancy(cluster, size), deliver
        self.teams: dict[tuple, Team] = {}
        self.sends: dict[tuple, deque[VirtualCall]] = defaultdict(deque)  # channel -> nobody receives them yet
        self.receives: dict[tuple, deque[VirtualCall]] = defaultdict(deque)
        self.from_anybody: dict[tuple, deque[VirtualCall]] = defaultdict(deque)  # (receiver, group, tag)
        self.channels_to: dict[tuple, dict] = defaultdict(dict)  # (receiver, group, tag) -> channels with messages
        self.heap: list[tuple] = []  # what could begin: (start, ready, number, transfer)
        self.numbers = itertools.count()
        self.calls = 0
        self.algorithms: dict[tuple, list] = {}  # (op, bytes, layout) -> [how often, Cost]

    # --- asking

    def ask(self, call: VirtualCall) -> None:
        """Raises RuntimeError, in the rank that asks, for a message to itself."""
        event = call.event
        if event.op in POINT_TO_POINT and event.peer == event.rank:
            verb = "sends to" if event.op == "send" else "receives from"
            raise RuntimeError(f"rank {event.rank} {verb} itself: a message goes to another rank. Copy the tensor.")
        self.calls += 1
        if call.event.op == "send":
            self.send(call)
        elif call.event.op == "recv":
            self.receive(call)
        else:
            self.join_collective(call)

    def send(self, call: VirtualCall) -> None:
        channel = channel_of(call.event)
        self.sends[channel].append(call)
        if len(self.sends[channel]) == 1:
            self.channels_to[channel[1:]][channel] = True
            self.match(channel)

    def receive(self, call: VirtualCall) -> None:
        event = call.event
        if event.peer is not None:
            channel = channel_of(event)
            self.receives[channel].append(call)
            self.match(channel)
            return
        address = event.rank, event.group, event.tag
        self.from_anybody[address].append(call)
        if len(self.from_anybody[address]) == 1:
            self.match_all(address)

    def withdraw(self, call: VirtualCall) -> bool:
        """Forget a message, or a receive, that has not met its other end; False if there is none such."""
        event = call.event
        waiting = self.sends if event.op == "send" else self.receives
        queue = self.from_anybody[event.rank, event.group, event.tag]
        queue = queue if event.op == "recv" and event.peer is None else waiting[channel_of(event)]
        if call not in queue:
            return False
        queue.remove(call)
        return True

    def match(self, channel: tuple) -> None:
        """Find the receives of the messages on a channel.

        A message goes to the first receive that names its sender, as on Gloo, unless that came after the message and
        there was one from any source before it.
        """
        sends, receives = self.sends[channel], self.receives[channel]
        anybody = self.from_anybody.get(channel[1:])
        while sends and receives and not (anybody and comes_first(anybody[0], receives[0], sends[0])):
            self.pair(sends.popleft(), receives.popleft())
        if sends and anybody:
            self.push(transfer_of(sends[0], anybody[0], next(self.numbers)))  # unless another message comes earlier

    def match_all(self, address: tuple) -> None:
        for channel in [*self.channels_to[address]]:
            if self.sends[channel]:
                self.match(channel)
            else:
                del self.channels_to[address][channel]

    def pair(self, send: VirtualCall, receive: VirtualCall) -> None:
        send.transfer = receive.transfer = transfer_of(send, receive, next(self.numbers))
        self.push(send.transfer)

    def accept(self, transfer: Transfer) -> bool:
        """Make a pair of a message and a receive from any source; False if one of the two has found another."""
        send, receive = transfer.calls.values()
        if send.transfer is not None or receive.transfer is not None:
            return False
        send.transfer = receive.transfer = transfer
        receive.source = send.event.rank
        channel = channel_of(send.event)
        self.sends[channel].popleft()
        self.from_anybody[channel[1:]].popleft()
        self.match_all(channel[1:])
        return True

    def team(self, group: str, members: tuple[int, ...]) -> Team:
        key = group, members
        if key not in self.teams:
            self.teams[key] = Team(members, self.ways)
        return self.teams[key]

    def join_collective(self, call: VirtualCall) -> None:
        event = call.event
        team = self.team(event.group, event.members)
        place = team.made[event.rank]
        team.made[event.rank] += 1
        calls = team.open.setdefault(place, {})
        calls[event.rank] = call
        if len(calls) == len(team.members):
            del team.open[place]
            calls = {rank: calls[rank] for rank in team.members}
            if not differ(calls):
                if said := disagreement(list(calls.values())):
                    raise RuntimeError(said)
                transfer = Transfer(calls, max(c.event.start for c in calls.values()), next(self.numbers))
                for each in calls.values():
                    each.transfer = transfer
                self.push(transfer)

    # --- doing

    def push(self, transfer: Transfer) -> None:
        heapq.heappush(self.heap, (self.could_start(transfer), transfer.ready, transfer.number, transfer))

    def could_start(self, transfer: Transfer) -> float:
        first = next(iter(transfer.calls.values())).event
        if first.op == "send":
            return max(transfer.ready, self.ways.free_for_message(first.rank, first.peer))
        if len(first.members) == 1:
            return transfer.ready
        tier = self.team(first.group, first.members).tier
        return max(transfer.ready, self.ways.free_for_collective(first.members, tier))

    def earliest(self) -> float:
        """When the next transfer can begin, as things stand; inf if none can."""
        while self.heap:
            start, _, _, transfer = self.heap[0]
            now = self.could_start(transfer)
            if now <= start:
                return start
            heapq.heapreplace(self.heap, (now, *self.heap[0][1:]))  # its links were taken meanwhile
        return math.inf

    def commit(self) -> list:
        """Do the earliest transfer; returns who has waited for it."""
        start, _, _, transfer = heapq.heappop(self.heap)
        calls = list(transfer.calls.values())
        first = calls[0].event
        if calls[0].transfer is not transfer and not self.accept(transfer):
            return []
        transfer.start = start
        if first.op == "send":
            receiver = calls[-1].event
            transfer.end = self.ways.take_for_message(first.rank, receiver.rank, start, first.bytes)
        else:
            transfer.end = self.do_collective(transfer, first, start)
        for call in calls:
            call.end = transfer.end
        self.deliver(calls)
        waiters = []
        for call in calls:
            call.args = ()  # the network keeps nobody's tensors alive
            if call.waiter is not None:
                waiters.append(call.waiter)
                call.waiter.has_got(call)
        return waiters

    def do_collective(self, transfer: Transfer, first: Event, start: float) -> float:
        team = self.team(first.group, first.members)
        nbytes = payload(transfer.calls)
        charged = cost(first.op, nbytes, self.cluster, team.layout)
        transfer.algorithm = charged.algorithm
        self.algorithms.setdefault((first.op, nbytes, team.layout), [0, charged])[0] += 1
        end = start + charged.seconds
        if len(first.members) > 1:
            self.ways.take_for_collective(first.members, team.tier, end)
        return end


def channel_of(event: Event) -> tuple:
    if event.op == "send":
        return event.rank, event.peer, event.group, event.tag
    return event.peer, event.rank, event.group, event.tag


def transfer_of(send: VirtualCall, receive: VirtualCall, number: int) -> Transfer:
    calls = {send.event.rank: send, receive.event.rank: receive}
    return Transfer(calls, max(send.event.start, receive.event.start), number)


def comes_first(anybody: VirtualCall, named: VirtualCall, message: VirtualCall) -> bool:
    """Whether a message is for a receive from any source, not for one of the same rank that names the sender."""
    return anybody.event.index < named.event.index and named.event.start > message.event.start


def differ(calls: dict[int, VirtualCall]) -> bool:
    """Whether the calls can't be one collective: real ranks would hang, or get wrong values."""
    first = next(iter(calls.values())).event
    what = first.op, first.peer, first.reduce_op, first.dtype, first.shape
    if all((e.op, e.peer, e.reduce_op, e.dtype, e.shape) == what for e in (call.event for call in calls.values())):
        return False
    return difference({rank: call.event for rank, call in calls.items()}) != ""


def payload(calls: dict[int, VirtualCall]) -> int:
    """Bytes in nccl-tests' sense: of the whole that is gathered or scattered; of the tensor where all hold it."""
    events = [call.event for call in calls.values()]
    if events[0].op in ("all_gather", "gather"):
        return sum(event.bytes for event in events)
    return max(event.bytes for event in events)
