"""Which calls belong together: those of one collective, and the two ends of a message.

The n-th collective that each rank calls on a group is the same one. The n-th send from one rank to another, with the
same group and tag, belongs to the n-th such receive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .event import Event
from .rank_state import RankState

POINT_TO_POINT = ("send", "recv")

GroupKey = tuple[str, tuple[int, ...]]  # (name, members)
Channel = tuple[int | None, int | None, str, int]  # (sender, receiver, group, tag)
Call = tuple[int, int]  # (rank, index) of an Event


def group_key(event: Event) -> GroupKey:
    """What identifies a group. Its name is not enough: if ranks make groups in a different order, the names differ."""
    return event.group, event.members


class Matching:
    """All calls of a world, matched in one pass.

    collectives[group key][rank]   a rank's collectives on a group, in order
    sends, receives[channel]       messages, in order
    from_anybody[(receiver, group, tag)]   receives from any source that have received nothing yet
    """

    def __init__(self, states: list[RankState]) -> None:
        self.states = {state.rank: state for state in states}
        self.collectives: dict[GroupKey, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
        self.sends: dict[Channel, list[Event]] = defaultdict(list)
        self.receives: dict[Channel, list[Event]] = defaultdict(list)
        self.from_anybody: dict[tuple[int | None, str, int], list[Event]] = defaultdict(list)
        self.same_group: dict[tuple[str, int], dict[int, list[Event]]] = {}  # by the id of the members: see `calls_on`
        self.places: dict[Call, int] = {}  # of a collective in its group's order
        for state in states:
            for event in state.events:
                self.sort_in(event)
        self.other_ends = dict(self.pairs())  # of messages

    def sort_in(self, event: Event) -> None:
        if event.op == "send":
            self.sends[event.rank, event.peer, event.group, event.tag].append(event)
        elif event.op == "recv" and event.peer is None:
            self.from_anybody[event.rank, event.group, event.tag].append(event)
        elif event.op == "recv":
            self.receives[event.peer, event.rank, event.group, event.tag].append(event)
        else:
            calls = self.calls_on(event)[event.rank]
            self.places[event.rank, event.index] = len(calls)
            calls.append(event)

    def calls_on(self, event: Event) -> dict[int, list[Event]]:
        """The collectives on the group of one of the events of `states`. Its members are hashed once per tuple."""
        key = event.group, id(event.members)
        if key not in self.same_group:
            self.same_group[key] = self.collectives[group_key(event)]
        return self.same_group[key]

    def pairs(self) -> Iterator[tuple[Call, Event]]:
        left_over: dict[tuple[int | None, str, int], list[Event]] = defaultdict(list)
        for channel, sends in self.sends.items():
            receives = self.receives.get(channel, [])
            for send, receive in zip(sends, receives, strict=False):
                yield from both_ways(send, receive)
            left_over[channel[1:]] += sends[len(receives) :]
        for receiver, receives in self.from_anybody.items():
            for send, receive in zip(sorted(left_over[receiver], key=lambda e: e.start), receives, strict=False):
                yield from both_ways(send, receive)

    def other_end(self, message: Event) -> Event | None:
        """The receive of a send, the send of a receive; None as long as no rank has made it."""
        return self.other_ends.get((message.rank, message.index))

    def partners(self, collective: Event) -> dict[int, Event | None]:
        """For each member of the group, its call at the same place in the order; None if it has not made one yet."""
        place, calls = self.places[collective.rank, collective.index], self.collectives[group_key(collective)]
        return {rank: calls[rank][place] if place < len(calls[rank]) else None for rank in collective.members}


def both_ways(one: Event, other: Event) -> Iterator[tuple[Call, Event]]:
    yield (one.rank, one.index), other
    yield (other.rank, other.index), one
