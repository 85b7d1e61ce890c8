"""Whose turn it is: only one rank runs at a time, the one whose clock is furthest behind."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class HasClock(Protocol):
    @property
    def clock(self) -> float: ...
    @property
    def number(self) -> int: ...


Ranks = TypeVar("Ranks", bound=HasClock)


class Turns(Generic[Ranks]):
    """Gives each rank its turn.

    earliest   of the network: when its next transfer could begin; inf if there is none
    commit     of the network: carry out that transfer; returns the ranks that were waiting for it
    """

    def __init__(self, earliest: Callable[[], float], commit: Callable[[], Sequence[Ranks]]):
        self.earliest, self.commit = earliest, commit
        self.ready: list[tuple[float, int, Ranks]] = []  # a heap of (clock, number, rank)

    def make_ready(self, rank: Ranks) -> None:
        heapq.heappush(self.ready, (rank.clock, rank.number, rank))

    def next_rank(self) -> Ranks | None:
        """The rank whose turn it is; None if none can go on.

        A transfer may begin only when no rank that is ready could still ask for an earlier one.
        """
        while True:
            earliest = self.earliest()
            if self.ready and self.ready[0][0] <= earliest:
                return heapq.heappop(self.ready)[2]
            if earliest == math.inf:
                return None
            for rank in self.commit():
                self.make_ready(rank)
