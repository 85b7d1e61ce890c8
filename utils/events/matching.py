"""Who belongs with whom: the calls that are one collective, the two ends of a message, the makers of one group.

Collectives meet by their place in the order of a group's calls; messages by sender, receiver, group and tag, in order.
"""

from __future__ import annotations

from collections import defaultdict

from .event import Event
from .rank_state import RankState

POINT_TO_POINT = ("send", "recv")


def group_key(event: Event) -> tuple:
    """What a group is known by. Its name alone will not do: ranks that make groups in another order mix up names."""
    return event.group, event.members


class Matching:
    """All calls of a world, put together in one pass.

    collectives[team][rank]    a rank's collectives on a group, in order
    sends, receives[channel]   messages in order; a channel is (sender, receiver, group, tag)
    from_anybody[(receiver, group, tag)]   receives from any source that have got nothing yet
    """

    def __init__(self, states: list[RankState]):
        self.states = states
        self.collectives: dict[tuple, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
        self.sends: dict[tuple, list[Event]] = defaultdict(list)
        self.receives: dict[tuple, list[Event]] = defaultdict(list)
        self.from_anybody: dict[tuple, list[Event]] = defaultdict(list)
        self.places: dict[tuple[int, int], int] = {}  # of a collective, (rank, index) -> where in its group's order
        for state in states:
            for event in state.events:
                self.sort_in(event)
        self.other_ends = dict(self.pairs())  # of a message, (rank, index) -> the call at its other end

    def sort_in(self, event: Event) -> None:
        if event.op == "send":
            self.sends[event.rank, event.peer, event.group, event.tag].append(event)
        elif event.op == "recv" and event.peer is None:
            self.from_anybody[event.rank, event.group, event.tag].append(event)
        elif event.op == "recv":
            self.receives[event.peer, event.rank, event.group, event.tag].append(event)
        else:
            calls = self.collectives[group_key(event)][event.rank]
            self.places[event.rank, event.index] = len(calls)
            calls.append(event)

    def pairs(self):
        left_over = defaultdict(list)
        for channel, sends in self.sends.items():
            receives = self.receives.get(channel, [])
            for send, receive in zip(sends, receives, strict=False):
                yield from both_ways(send, receive)
            left_over[channel[1:]] += sends[len(receives) :]
        for channel, receives in self.from_anybody.items():
            for send, receive in zip(sorted(left_over[channel], key=lambda e: e.start), receives, strict=False):
                yield from both_ways(send, receive)

    def other_end(self, message: Event) -> Event | None:
        """The receive of a send, the send of a receive; None while nobody has made it."""
        return self.other_ends.get((message.rank, message.index))

    def partners(self, collective: Event) -> dict[int, Event | None]:
        """For each member of the group: its call at the same place in the order, or None if it has not made one."""
        place, calls = self.places[collective.rank, collective.index], self.collectives[group_key(collective)]
        return {rank: calls[rank][place] if place < len(calls[rank]) else None for rank in collective.members}

    def all_collectives(self):
        """{rank: its call, or None} for each collective of each group, in order."""
        for (_, members), calls in self.collectives.items():
            for place in range(max(map(len, calls.values()))):
                yield {rank: calls[rank][place] if place < len(calls[rank]) else None for rank in members}


def both_ways(one: Event, other: Event):
    yield (one.rank, one.index), other
    yield (other.rank, other.index), one
