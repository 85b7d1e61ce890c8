"""What ranks ask of the network, and which calls belong together."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...cluster.layout import Layout
from ...events.event import Event
from ...events.matching import Rounds

Order = tuple[tuple[int, ...], bool, int]  # the two parts of order_of, then a sequence number to break ties


class Waiter(Protocol):
    """A rank, while it waits for a call."""

    def on_completed(self, call: VirtualCall) -> None: ...


@dataclass(slots=True, eq=False)
class VirtualCall:
    """One call of one rank. `event` says what it asks for; `end` is when it is complete, once that is known.

    begun   whether it is being carried out: known only where links are shared (fair_network.py)
    """

    event: Event
    method: str
    args: tuple[Any, ...]
    transfer: Transfer | None = None
    end: float | None = None
    begun: bool = False
    waiter: Waiter | None = None  # the rank, while it waits
    waited: float | None = None  # when it began to wait, if the call is asynchronous
    waited_at: str = ""  # "file:line" where it did
    source: int | None = None  # the sender, once a receive from any source has received something


@dataclass(eq=False)
class GroupCalls(Rounds["VirtualCall"]):
    """One process group: where it lies, and the collectives that not all members have called yet.

    present      the members that run; weights: {one of them: how many members it stands for} (see alike.py)
    stands_for   how many groups of the world do what this one does, itself included
    tier         of the links between its members: "intra" or "inter"
    due          collectives that all members have called and that have not begun: they go one after the other, so only
                 the first competes with other transfers
    """

    members: tuple[int, ...]
    present: tuple[int, ...]
    weights: dict[int, int]
    stands_for: int
    tier: str
    layout: Layout
    due: deque[Transfer] = field(default_factory=deque)

    def __post_init__(self) -> None:
        super().__init__()


@dataclass(slots=True, eq=False)
class Transfer:
    """A message or a collective that all its ranks have asked for.

    calls   {rank: its call}: of a message, the sender's first
    ready   when the last of them asked
    order   decides between transfers that could begin at the same moment (see order_of)
    group   the collective's group; None for a message
    """

    calls: dict[int, VirtualCall]
    ready: float
    order: Order
    group: GroupCalls | None = None


def order_of(events: list[Event]) -> tuple[tuple[int, ...], bool]:
    """Which of the transfers that could begin at one moment goes first: what comes first in the ranks' programs.

    It only depends on what the ranks do, not on when their turns come, so that ranks which do the same stay equal.
    """
    if events[0].op == "send":
        return tuple(event.index for event in events), True
    return tuple(sorted({event.index for event in events})), False


def comes_first(any_source: VirtualCall, named: VirtualCall, message: VirtualCall) -> bool:
    """Of one rank's two receives: whether the one from any source gets a message, not the one that names its sender."""
    return any_source.event.index < named.event.index and named.event.start > message.event.start
