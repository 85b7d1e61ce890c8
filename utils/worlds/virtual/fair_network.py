"""A network whose links are shared fairly, for rates="achieved": k transfers on a link each get 1/k of its bandwidth.

Each transfer waits for its turn, then for its latency, and then its bytes flow:

    push -> its lane is free: "begin" -> its latency is over: "flow", and it takes its ports -> "end" is known

A lane is what NCCL carries out in order: the collectives of one group, the messages from one rank to another. Ports are
what transfers share: a rank's way out and its way in, inside nodes and between them, and network cards that several
ranks share. A flow is as fast as the busiest of its ports allows. Whenever a flow begins or ends, those that share a
port with it change their speed, so nobody knows when a transfer ends before it does.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...events.event import Event
from .calls import GroupCalls, Order, Transfer
from .network import Network


@dataclass(slots=True, eq=False)
class Flow:
    """A transfer under way.

    ports       of each, the flows that are on it now
    remaining   seconds that its bytes would still take if it had its ports for itself, at the time `since`
    share       how many flows are on the busiest of its ports; 0 until that is known
    version     goes up with each change of speed, so that an end that was foreseen before is known to be out of date
    """

    transfer: Transfer
    lane: Hashable
    ports: list[set[Flow]]
    latency: float
    remaining: float
    since: float = 0.0
    share: int = 0
    version: int = 0


class Moment(NamedTuple):
    """When something happens to a flow: "begin", "flow" or "end". No two have the same order and version at one time,
    so which of them is next doesn't depend on when they were foreseen.
    """

    time: float
    ready: float
    order: Order
    version: int
    kind: str
    flow: Flow


class FairNetwork(Network):
    """As Network, with shared links."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moments: list[Moment] = []
        self.lanes: dict[Hashable, deque[Flow]] = defaultdict(deque)  # the first is under way, the others wait
        self.on_port: dict[Hashable, set[Flow]] = defaultdict(set)
        self.now = 0.0  # when the last thing happened
        self.unsettled: dict[int, set[Flow]] = {}  # ports that flows have taken or left at this moment, by their id

    # --- waiting for a turn

    def push(self, transfer: Transfer) -> None:
        first = next(iter(transfer.calls.values())).event
        flow = self.message(transfer, first) if transfer.group is None else self.collective(transfer, transfer.group)
        lane = self.lanes[flow.lane]
        lane.append(flow)
        if len(lane) == 1:
            self.at(transfer.ready, "begin", flow)

    def push_in_turn(self, transfer: Transfer, group: GroupCalls) -> None:
        self.push(transfer)  # the group's lane sees to it

    def message(self, transfer: Transfer, first: Event) -> Flow:
        sender, receiver = first.rank, first.peer
        assert receiver is not None
        link, nodes, nics = self.cluster.link(sender, receiver), self.links.nodes, self.links.nics
        tier = "intra" if nodes[sender] == nodes[receiver] else "inter"
        ports: list[Hashable] = [("out", tier, sender), ("in", tier, receiver)]
        if nics is not None and tier == "inter":
            ports += [("out", nics[sender]), ("in", nics[receiver])]
        return Flow(transfer, (sender, receiver), self.flows_on(ports), link.alpha, first.bytes / link.bandwidth)

    def collective(self, transfer: Transfer, group: GroupCalls) -> Flow:
        charged = self.charge(transfer, group)
        latency = sum(part.latency for part in charged.parts[charged.algorithm])
        ports = self.flows_on(self.ports_of(group.present if len(group.members) > 1 else (), group.tier))
        return Flow(transfer, group, ports, latency, charged.seconds - latency)

    def ports_of(self, members: tuple[int, ...], tier: str) -> Iterator[Hashable]:
        for rank in members:
            yield "out", tier, rank
            yield "in", tier, rank
        if self.links.nics is not None and tier == "inter":
            for nic in dict.fromkeys(self.links.nics[rank] for rank in members):
                yield "out", nic
                yield "in", nic

    def flows_on(self, ports: Iterable[Hashable]) -> list[set[Flow]]:
        return [self.on_port[port] for port in ports]

    def at(self, time: float, kind: str, flow: Flow) -> None:
        transfer = flow.transfer
        heapq.heappush(self.moments, Moment(time, transfer.ready, transfer.order, flow.version, kind, flow))

    def is_held_back(self, message: Transfer) -> bool:
        """Whether another message from the same sender is under way to the same receiver."""
        sender, receiver = message.calls
        return self.lanes[sender, receiver][0].transfer is not message

    # --- what the scheduler calls

    def earliest(self) -> float:
        while self.moments and self.moments[0].version != self.moments[0].flow.version:
            heapq.heappop(self.moments)
        if self.unsettled and (not self.moments or self.moments[0].time > self.now):
            self.settle()
            return self.earliest()
        return self.moments[0].time if self.moments else math.inf

    def commit(self) -> list[Any]:
        """Let the next thing happen. Returns the waiters of calls that are complete."""
        moment = heapq.heappop(self.moments)
        self.now = moment.time
        if moment.kind == "begin":
            self.begin(moment.flow, moment.time)
        elif moment.kind == "flow":
            self.take_ports(moment.flow, moment.time)
        else:
            return self.end(moment.flow, moment.time)
        return []

    def begin(self, flow: Flow, now: float) -> None:
        calls = list(flow.transfer.calls.values())
        if calls[0].transfer is not flow.transfer and not self.accept(flow.transfer):
            self.leave_lane(flow, now)
            return
        self.deliver(calls)
        for call in calls:
            call.begun = True
            call.args = ()  # so that the network keeps no tensors alive
        self.at(now + flow.latency, "flow", flow)

    def take_ports(self, flow: Flow, now: float) -> None:
        flow.since = now
        if flow.remaining > 0 and flow.ports:
            for port in flow.ports:
                port.add(flow)
                self.unsettled[id(port)] = port
        else:
            flow.share = 1
            self.foresee_end(flow)

    def end(self, flow: Flow, now: float) -> list[Any]:
        for port in flow.ports:
            port.discard(flow)
            self.unsettled[id(port)] = port
        waiters = []
        for call in flow.transfer.calls.values():
            call.end = now
            if call.waiter is not None:
                waiters.append(call.waiter)
                call.waiter.on_completed(call)
        self.leave_lane(flow, now)
        return waiters

    def leave_lane(self, flow: Flow, now: float) -> None:
        lane = self.lanes[flow.lane]
        lane.popleft()
        if lane:
            self.at(max(now, lane[0].transfer.ready), "begin", lane[0])

    # --- speeds

    def settle(self) -> None:
        """Change the speeds of the flows on ports that were taken or left at this moment."""
        ports, self.unsettled = self.unsettled.values(), {}
        for flow in set().union(*ports):
            share = max(map(len, flow.ports))
            if share != flow.share:
                if flow.share:
                    flow.remaining -= (self.now - flow.since) / flow.share
                flow.since, flow.share = self.now, share
                self.foresee_end(flow)

    def foresee_end(self, flow: Flow) -> None:
        flow.version += 1
        self.at(flow.since + max(0.0, flow.remaining) * flow.share, "end", flow)
