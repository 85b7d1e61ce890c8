"""Which calls belong together: those of one collective, and the two ends of a message.

The n-th collective that each rank calls on a group is the same one. The n-th send from one rank to another, with the
same group and tag, belongs to the n-th such receive. This is said here alone: `Matching` goes through the record of a
whole run, and the virtual cluster's network, which matches calls while they are made, counts with the same parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Generic, TypeVar

from .event import Event
from .rank_state import RankState

GroupKey = tuple[str, tuple[int, ...]]  # (name, members)
Channel = tuple[int | None, int | None, str, int]  # (sender, receiver, group, tag)
Address = tuple[int | None, str, int]  # (receiver, group, tag)
Call = TypeVar("Call")
Kept = TypeVar("Kept")


def group_key(event: Event) -> GroupKey:
    """What identifies a group. Its name is not enough: if ranks make groups in a different order, the names differ."""
    return event.group, event.members


def channel_of(message: Event) -> Channel:
    if message.op == "send":
        return message.rank, message.peer, message.group, message.tag
    return message.peer, message.rank, message.group, message.tag


class PerGroup(Generic[Kept]):
    """One thing for each group, made when it is first asked for.

    Ranks share the tuple of a group's members. To hash thousands of them at each call is slow: it is done once per
    tuple, which is kept, so that no other gets its id.
    """

    def __init__(self, make: Callable[[tuple[int, ...]], Kept]) -> None:
        self.make = make
        self.by_key: dict[GroupKey, Kept] = {}
        self.by_id: dict[tuple[str, int], tuple[tuple[int, ...], Kept]] = {}

    def of(self, event: Event) -> Kept:
        found = self.by_id.get((event.group, id(event.members)))
        if found is None:
            key = group_key(event)
            if key not in self.by_key:
                self.by_key[key] = self.make(event.members)
            found = self.by_id[event.group, id(event.members)] = event.members, self.by_key[key]
        return found[1]


class Rounds(Generic[Call]):
    """The collectives of one group: in each round, all its members make the same one.

    made    {rank: how many it has called}
    calls   {round: {rank: its call}}
    """

    def __init__(self) -> None:
        self.made: dict[int, int] = {}
        self.calls: dict[int, dict[int, Call]] = {}

    def add(self, rank: int, call: Call) -> int:
        """Returns the round that the call belongs to."""
        number = self.made.get(rank, 0)
        self.made[rank] = number + 1
        if number in self.calls:
            self.calls[number][rank] = call
        else:
            self.calls[number] = {rank: call}
        return number

    def of(self, rank: int) -> list[Call]:
        return [self.calls[number][rank] for number in range(self.made.get(rank, 0))]

    def partners(self, number: int, members: Iterable[int]) -> dict[int, Call | None]:
        """For each member of the group, its call in a round; None if it has not made it yet."""
        calls = self.calls[number]
        return {rank: calls.get(rank) for rank in members}


class Matching:
    """All calls of a world, matched in one pass.

    collectives                the Rounds of each group
    sends, receives[channel]   messages, in order
    from_anybody[address]      receives from any source that have received nothing yet
    """

    def __init__(self, states: Iterable[RankState]) -> None:
        self.states = {state.rank: state for state in states}
        self.collectives: PerGroup[Rounds[Event]] = PerGroup(lambda members: Rounds())
        self.sends: dict[Channel, list[Event]] = defaultdict(list)
        self.receives: dict[Channel, list[Event]] = defaultdict(list)
        self.from_anybody: dict[Address, list[Event]] = defaultdict(list)
        self.places: dict[tuple[int, int], int] = {}  # (rank, index) of a collective: its round
        for state in self.states.values():
            for event in state.events:
                self.sort_in(event)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Matching:
        """The matching of a run's events."""
        states: dict[int, RankState] = {}
        for event in sorted(events, key=lambda e: (e.rank, e.index)):
            states.setdefault(event.rank, RankState(event.rank)).events.append(event)
        return cls(states.values())

    def sort_in(self, event: Event) -> None:
        if event.op == "send":
            self.sends[channel_of(event)].append(event)
        elif event.op == "recv" and event.peer is None:
            self.from_anybody[channel_of(event)[1:]].append(event)
        elif event.op == "recv":
            self.receives[channel_of(event)].append(event)
        else:
            self.places[event.rank, event.index] = self.collectives.of(event).add(event.rank, event)

    def pairs(self) -> Iterator[tuple[Event, Event]]:
        """Each send with its receive, except where a receive from any source may still get the message."""
        for channel, sends in self.sends.items():
            if channel[1:] not in self.from_anybody:
                yield from zip(sends, self.receives.get(channel, ()), strict=False)

    def likely_pairs(self) -> Iterator[tuple[Event, Event]]:
        """All pairs: receives from any source that have received nothing yet get what is left, the earliest first."""
        left_over: dict[Address, list[Event]] = defaultdict(list)
        for channel, sends in self.sends.items():
            receives = self.receives.get(channel, [])
            yield from zip(sends, receives, strict=False)
            left_over[channel[1:]] += sends[len(receives) :]
        for address, receives in self.from_anybody.items():
            yield from zip(sorted(left_over[address], key=lambda e: e.start), receives, strict=False)

    @cached_property
    def other_ends(self) -> dict[tuple[int, int], Event]:
        return {(one.rank, one.index): other for pair in self.likely_pairs() for one, other in (pair, pair[::-1])}

    def other_end(self, message: Event) -> Event | None:
        """The receive of a send, the send of a receive; None as long as no rank has made it."""
        return self.other_ends.get((message.rank, message.index))

    def partners(self, collective: Event) -> dict[int, Event | None]:
        """For each member of the group, its call of this collective; None if it has not made it yet."""
        place = self.places[collective.rank, collective.index]
        return self.collectives.of(collective).partners(place, collective.members)
