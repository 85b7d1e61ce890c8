"""The messages of a collective algorithm without what is in them: enough to see how long it takes.

ring = [Round([(0, 1), (1, 2), (2, 0)], share=1 / 3, adds=True)] * 2       # a reduce-scatter of 3 ranks
simulate(play, 3, ring, nbytes=3_000_000)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist


class Round(NamedTuple):
    """Messages that are sent at the same time; every rank sends one at most, and receives one at most.

    pairs   (source, destination) of each
    share   how much each carries, as a share of the whole
    adds    whether the receiver adds it to what it has
    """

    pairs: Sequence[tuple[int, int]]
    share: float
    adds: bool


def play(rank: int, world_size: int, rounds: Sequence[Round], nbytes: int) -> None:
    """A rank program: all rounds, in order, of a collective of `nbytes` bytes. A message is made of float32 numbers."""
    for pairs, share, adds in rounds:
        mine, arrived = (torch.empty(round(share * nbytes / 4)) for _ in range(2))
        sending = [dist.isend(mine, destination) for source, destination in pairs if source == rank]
        for source, destination in pairs:
            if destination == rank:
                dist.recv(arrived, source)
        for handle in filter(None, sending):
            handle.wait()
        if adds and any(destination == rank for _, destination in pairs):
            mine.add_(arrived)
