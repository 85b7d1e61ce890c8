"""Messages and collectives in virtual time: which calls belong together, and which link is taken until when.

The textbooks' single-port full-duplex model: a message of n bytes over a link occupies its sender's outgoing link and
its receiver's incoming one for alpha + n / bandwidth. It begins when both ends have asked for it and both links are
free. Of all that could begin, the earliest does; at the same moment, the one that comes first in its rank's program.

A collective begins when every member has called it and their links of that tier, intra or inter, are free; it occupies
them for as long as the best algorithm takes (collective_costs.py). So collectives of one group run one after another,
and those inside nodes run alongside those across nodes. A network card that several GPUs share is taken for the
n / bandwidth of each message: latencies overlap, bytes do not.

    ask -> match a send with a receive, or all members' calls -> push -> [earliest, commit] -> VirtualCall.end is known
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ...cluster.collective_costs import Cost, Layout, cost
from ...cluster.hardware import Cluster
from ...diagnosis.mismatch import difference
from ...events.collectives import COLLECTIVES, POINT_TO_POINT
from ...events.matching import Address, Channel, PerGroup, channel_of
from .alike import Representatives
from .any_source import AnySource
from .argument_checks import exchange_error
from .calls import GroupCalls, Order, Transfer, VirtualCall, comes_first, order_of
from .held_back import HeldBack
from .link_occupancy import LinkOccupancy

AFTER_ALL_ELSE = sys.float_info.max  # a time that every rank's clock is before


class Tally(NamedTuple):
    """What the collectives of one kind have been charged: how many there were, and the cost of each."""

    times: int
    cost: Cost


Tallies = dict[tuple[str, int, Layout], Tally]  # by (operation, bytes, layout)


class NetworkInterface(Protocol):
    """What ranks and scheduler need of a network: a `Network`, or a connection to one in another process."""

    @property
    def calls(self) -> int: ...
    @property
    def algorithms(self) -> Tallies: ...
    def ask(self, call: VirtualCall) -> None: ...
    def earliest(self) -> float: ...
    def commit(self) -> list[Any]: ...


class Network:
    """Takes calls, finds out which belong together, and carries them out in the order of virtual time."""

    def __init__(
        self,
        cluster: Cluster,
        size: int,
        deliver: Callable[[list[VirtualCall]], None] = lambda calls: None,
        inconvenient: bool = False,
        representatives: Representatives | None = None,
    ):
        """deliver: moves the values of a message or a collective.

        inconvenient   receives from any source match last, when nobody can do anything else, and take the highest and
                       the lowest sender in turn, to expose races
        representatives
                       by default all ranks run
        """
        self.cluster, self.links, self.deliver = cluster, LinkOccupancy(cluster, size), deliver
        self.representatives = representatives or Representatives(cluster, size)
        self.groups = PerGroup(self.new_group)
        self.sends: dict[Channel, deque[VirtualCall]] = defaultdict(deque)  # not received yet
        self.receives: dict[Channel, deque[VirtualCall]] = defaultdict(deque)
        self.any_source: dict[Address, AnySource] = {}  # receives that name no sender
        self.channels_to: dict[Address, dict[Channel, bool]] = defaultdict(dict)
        self.inconvenient, self.times_chosen = inconvenient, 0
        self.heap: list[tuple[float, float, Order, Transfer]] = []  # candidates: (start, ready, order, transfer)
        self.held_back = HeldBack(self.links)
        self.numbers = itertools.count()
        self.calls = 0
        self.algorithms: Tallies = {}

    # --- asking

    def ask(self, call: VirtualCall) -> None:
        """Raises RuntimeError, in the calling rank, for a message to itself, an all-to-all whose sizes don't fit, and a
        call with ranks for which nobody can stand (alike.py).
        """
        event = call.event
        if event.op in POINT_TO_POINT and event.peer == event.rank:
            verb = "sends to" if event.op == "send" else "receives from"
            raise RuntimeError(f"rank {event.rank} {verb} itself. Messages go to other ranks: copy the tensor instead.")
        self.representatives.check_peer(event)
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
        if address not in self.any_source:
            self.any_source[address] = AnySource()
            for channel in self.channels_to[address]:
                self.match(channel)
        any_source = self.any_source[address]
        any_source.receives.append(call)
        if len(any_source.receives) == 1:
            self.start_again(any_source)

    def withdraw(self, call: VirtualCall) -> bool:
        """Forget a send or a receive that has not been matched with its other end. False if it is not waiting."""
        event = call.event
        if event.op == "recv" and event.peer is None:
            any_source = self.any_source[event.rank, event.group, event.tag]
            if call not in any_source.receives:
                return False
            any_source.receives.remove(call)
            self.start_again(any_source)
            return True
        channel = channel_of(event)
        queue = (self.sends if event.op == "send" else self.receives)[channel]
        if call not in queue:
            return False
        queue.remove(call)
        self.match(channel)
        return True

    def match(self, channel: Channel) -> None:
        """Find the receives for the messages on a channel.

        A message goes to the first receive that names its sender, as on Gloo, unless that receive was called after the
        message was sent, and one from any source before it.
        """
        sends, receives = self.sends[channel], self.receives[channel]
        any_source = self.any_source.get(channel[1:])
        first = any_source.receives[0] if any_source and any_source.receives else None
        while sends and receives and not (first and comes_first(first, receives[0], sends[0])):
            self.pair(sends.popleft(), receives.popleft())
        if any_source:
            if sends and receives:
                any_source.crossed[channel] = True
            any_source.offer(channel, sends[0] if sends else None)
            self.compete(any_source)

    def start_again(self, any_source: AnySource) -> None:
        """Another receive from any source is the first of its rank."""
        any_source.start_again()
        crossed, any_source.crossed = any_source.crossed, {}
        for channel in crossed:
            self.match(channel)
        self.compete(any_source)

    def compete(self, any_source: AnySource) -> None:
        """Let the best messages for the first receive from any source compete with the other transfers (see `accept`),
        up to one that only the receiver's links can hold back.
        """
        while not self.inconvenient and (message := any_source.next_to_compete()):
            tentative = self.message_of(message, any_source.receives[0])
            self.push(tentative)
            if self.is_held_back(tentative):
                any_source.front = None

    def pair(self, send: VirtualCall, receive: VirtualCall) -> None:
        send.transfer = receive.transfer = self.message_of(send, receive)
        self.push(send.transfer)

    def message_of(self, send: VirtualCall, receive: VirtualCall) -> Transfer:
        return self.transfer_of({send.event.rank: send, receive.event.rank: receive})

    def transfer_of(self, calls: dict[int, VirtualCall], group: GroupCalls | None = None) -> Transfer:
        events = [call.event for call in calls.values()]
        return Transfer(calls, max(event.start for event in events), (*order_of(events), next(self.numbers)), group)

    def is_open(self, transfer: Transfer) -> bool:
        """Whether a message still competes for a receive from any source."""
        send, receive = transfer.calls.values()
        any_source = self.any_source[channel_of(send.event)[1:]]
        return any_source.is_on_offer(send) and bool(any_source.receives) and any_source.receives[0] is receive

    def accept(self, transfer: Transfer) -> bool:
        """Pair a message with a receive from any source; False if one of the two has been paired with another."""
        if not self.is_open(transfer):
            return False
        send, receive = transfer.calls.values()
        channel = channel_of(send.event)
        any_source = self.any_source[channel[1:]]
        send.transfer = receive.transfer = transfer
        receive.source = send.event.rank
        self.sends[channel].popleft()
        any_source.receives.popleft()
        any_source.crossed[channel] = True
        self.start_again(any_source)
        return True

    def new_group(self, members: tuple[int, ...]) -> GroupCalls:
        """Raises RuntimeError if it has ranks for which nobody can stand (alike.py)."""
        ranks, tier = self.representatives, self.links.tier(members)
        weights = ranks.weights(members)
        stands_for = ranks.groups_like(weights)
        if tier == "inter":
            ranks.check_cards(members)
        layout = Layout.of(self.cluster, members)
        return GroupCalls(members, ranks.present(members), weights, stands_for, tier, layout)

    def join_collective(self, call: VirtualCall) -> None:
        event = call.event
        group = self.groups.of(event)
        number = group.add(event.rank, call)
        if len(group.calls[number]) == len(group.present):
            made = group.calls.pop(number)
            calls = {rank: made[rank] for rank in group.present}
            if not differ(calls):
                if error := exchange_error(self.representatives.calls_of_all(list(calls.values()))):
                    raise RuntimeError(error)
                transfer = self.transfer_of(calls, group)
                for each in calls.values():
                    each.transfer = transfer
                self.push_in_turn(transfer, group)

    def push_in_turn(self, transfer: Transfer, group: GroupCalls) -> None:
        group.due.append(transfer)
        if len(group.due) == 1:
            self.push(transfer)

    # --- carrying out

    def push(self, transfer: Transfer) -> None:
        heapq.heappush(self.heap, (self.could_start(transfer), transfer.ready, transfer.order, transfer))

    def push_all(self, transfers: Iterable[Transfer]) -> None:
        for transfer in transfers:
            self.push(transfer)

    def could_start(self, transfer: Transfer) -> float:
        first = next(iter(transfer.calls.values())).event
        if first.op == "send":
            assert first.peer is not None
            return max(transfer.ready, self.links.free_for_message(first.rank, first.peer))
        group = transfer.group
        if group is None or len(group.members) == 1:
            return transfer.ready
        return max(transfer.ready, self.links.free_for_collective(group.present, group.tier))

    def is_held_back(self, message: Transfer) -> bool:
        """Whether a message waits for more than its receiver's links."""
        receiver = next(iter(message.calls.values())).event.peer
        assert receiver is not None
        return self.could_start(message) > max(message.ready, self.links.free_to_receive(receiver))

    def earliest(self) -> float:
        """When the next transfer can begin, as things stand; inf if none can."""
        while self.heap:
            start, _, _, transfer = self.heap[0]
            now = self.could_start(transfer)
            if now <= start:
                return start
            heapq.heappop(self.heap)  # its links have been taken in the meantime
            first = next(iter(transfer.calls.values()))
            if transfer.group is None and first.transfer is transfer:
                self.push_all(self.held_back.add(transfer))
                continue
            self.push(transfer)
            if first.transfer is None and self.is_open(transfer) and self.is_held_back(transfer):
                any_source = self.any_source[channel_of(first.event)[1:]]
                any_source.front = None
                self.compete(any_source)
        if self.inconvenient and any(one.messages() for one in self.any_source.values()):
            return AFTER_ALL_ELSE
        return math.inf

    def choose(self) -> None:
        """Pair a receive from any source with the message of the least convenient sender."""
        self.times_chosen += 1
        extreme = max if self.times_chosen % 2 else min
        choices = [(message, one.receives[0]) for one in self.any_source.values() for message in one.messages()]
        chosen = self.message_of(*extreme(choices, key=lambda choice: choice[0].event.rank))
        self.accept(chosen)
        self.push(chosen)

    def commit(self) -> list[Any]:
        """Carry out the earliest transfer. Returns the waiters of its calls: ranks, of whatever class they are."""
        if not self.heap:
            self.choose()
        start, _, _, transfer = heapq.heappop(self.heap)
        calls = list(transfer.calls.values())
        first = calls[0].event
        if calls[0].transfer is not transfer and not self.accept(transfer):
            return []
        if transfer.group is None:
            end = self.links.take_for_message(first.rank, calls[-1].event.rank, start, first.bytes)
            self.push_all(self.held_back.remove(transfer))
        else:
            end = start + self.charge(transfer, transfer.group).seconds
            if len(first.members) > 1:
                self.links.take_for_collective(transfer.group.present, transfer.group.tier, end)
            transfer.group.due.popleft()
            self.push_all(itertools.islice(transfer.group.due, 1))
        for call in calls:
            call.end = end
        self.deliver(calls)
        waiters = []
        for call in calls:
            call.args = ()  # so that the network keeps no tensors alive
            if call.waiter is not None:
                waiters.append(call.waiter)
                call.waiter.on_completed(call)
        return waiters

    def charge(self, transfer: Transfer, group: GroupCalls) -> Cost:
        """What a collective costs, by the best algorithm; noted in `algorithms`."""
        op, nbytes = next(iter(transfer.calls.values())).event.op, payload(transfer.calls, group.weights)
        kind = op, nbytes, group.layout
        charged = cost(op, nbytes, self.cluster, group.layout)
        times = self.algorithms[kind].times if kind in self.algorithms else 0
        self.algorithms[kind] = Tally(times + group.stands_for, charged)
        return charged


def differ(calls: dict[int, VirtualCall]) -> bool:
    """Whether the calls can't be one collective: real ranks would hang or get wrong values."""
    first = next(iter(calls.values())).event
    what = first.op, first.peer, first.reduce_op, first.dtype, first.shape
    if all((e.op, e.peer, e.reduce_op, e.dtype, e.shape) == what for e in (call.event for call in calls.values())):
        return False
    return difference({rank: call.event for rank, call in calls.items()}) != ""


def payload(calls: dict[int, VirtualCall], weights: dict[int, int]) -> int:
    """Bytes as nccl-tests count them: all that is gathered or scattered; otherwise the tensor that each rank holds.

    weights   {rank: for how many members of the group it counts}
    """
    events = [call.event for call in calls.values()]
    if COLLECTIVES[events[0].op].input_is_chunk:
        return sum(event.bytes * weights[event.rank] for event in events)
    return max(event.bytes for event in events)
