"""What `alike` could have been told: which ranks did the same, found in what all of them have done."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from .alike import Representatives, why_not
from .gpu import total

if TYPE_CHECKING:
    from ...cluster.hardware import Cluster
    from .rank import VirtualRank

WORTH_A_REMARK = 100_000  # operations and calls of all ranks together: some ten seconds
Numbers = npt.NDArray[np.int64]


class Axis(NamedTuple):
    """A number of a rank in a grid: rank // stride % size."""

    stride: int
    size: int

    def text(self, world_size: int) -> str:
        divided = f"rank // {self.stride}" if self.stride > 1 else "rank"
        return divided if self.stride * self.size == world_size else f"{divided} % {self.size}"

    def numbers(self, world_size: int) -> Numbers:
        return np.arange(world_size) // self.stride % self.size


def about_kinds(cluster: Cluster, device: str, ranks: Sequence[VirtualRank]) -> str:
    """A remark on a program that was slow because all ranks ran, with the argument spelled out; "" if there is none."""
    work = sum(len(rank.calls) + sum(rank.times.values()) for rank in ranks)
    ended_well = all(rank.finished and rank.failure is None for rank in ranks)
    if work < WORTH_A_REMARK or not ended_well or why_not(cluster, device):
        return ""
    size, looks = len(ranks), looks_of(ranks)
    for axes in grids(size):
        kinds = numbers_in(axes, size)
        first = np.unique(kinds, return_index=True)[1]
        runs_as = first[kinds]
        stand_ins = Representatives(cluster, size, tuple(runs_as.tolist()))
        if (looks == looks[runs_as]).all() and can_stand_for_all(stand_ins, ranks):
            return remark(axes, size, len(first))
    return ""


def remark(axes: Sequence[Axis], size: int, kinds: int) -> str:
    text = ", ".join(axis.text(size) for axis in axes) or "0"
    return (
        f"All {size:,} ranks ran, and there {'is 1 kind' if kinds == 1 else f'are {kinds:,} kinds'} of them. With "
        f"alike=lambda rank: {f'({text})' if len(axes) > 1 else text}, simulate runs one of each kind, "
        "and times, memory and costs are the same."
    )


def grids(size: int) -> list[tuple[Axis, ...]]:
    """Ways to number ranks by one or two axes of a grid, or none, those with the fewest kinds first: a quarter of the
    ranks at most.
    """
    divisors = [number for number in range(1, size + 1) if size % number == 0]
    axes = [Axis(stride, more) for stride in divisors for more in divisors if more > 1 and size % (stride * more) == 0]
    pairs = [
        (outer, inner) for inner, outer in combinations(axes, 2) if outer.stride % (inner.stride * inner.size) == 0
    ]
    found: list[tuple[Axis, ...]] = [(), *((axis,) for axis in axes), *pairs]
    counted = [(count_of(grid), len(grid), grid) for grid in found]
    return [grid for count, _, grid in sorted(counted) if count * 4 <= size]


def count_of(axes: Sequence[Axis]) -> int:
    return int(np.prod([axis.size for axis in axes], dtype=np.int64))


def numbers_in(axes: Sequence[Axis], size: int) -> Numbers:
    """For each rank, the number of its kind."""
    kinds = np.zeros(size, dtype=np.int64)
    for axis in axes:
        kinds = kinds * axis.size + axis.numbers(size)
    return kinds


def looks_of(ranks: Sequence[VirtualRank]) -> Numbers:
    """A number for each rank, the same for those that called, computed and held the same, all at the same times."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(look(rank), len(known)) for rank in ranks])


def look(rank: VirtualRank) -> Hashable:
    calls = tuple(
        (call.event.op, call.event.bytes, call.event.where, len(call.event.members), call.event.start, call.end)
        for call in rank.calls
    )
    spans = tuple((span.name, span.start, span.end) for span in rank.regions)
    return rank.clock, calls, spans, tuple(rank.storages.samples()), tuple(total(rank.times, rank.clock, 0.0))


def can_stand_for_all(stand_ins: Representatives, ranks: Sequence[VirtualRank]) -> bool:
    """Whether `simulate` would let the first rank of each kind run for the others."""
    running = set(stand_ins.running)
    try:
        for members in {made.members for rank in ranks for made in rank.groups_made}:
            stand_ins.check_placement(members)
        for members in {call.event.members for number in running for call in ranks[number].calls}:
            if len(stand_ins.present(members)) > 0:
                stand_ins.groups_like(stand_ins.weights(members))
        for number in running:
            for call in ranks[number].calls:
                stand_ins.check_peer(call.event)
    except RuntimeError:  # its words are for those who have said `alike`
        return False
    return True
