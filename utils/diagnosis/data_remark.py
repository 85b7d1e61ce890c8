"""A remark on ranks whose DistributedSamplers don't divide the data: some of it is read twice, and some never."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..events.rank_state import RankState, SamplerUse
from ..text.source_lines import place
from .words import ranks_text


def data_remark(states: Sequence[RankState]) -> str:
    """What is wrong with the first epoch of which that is known; "" if nothing is."""
    for uses in zip(*(state.samplers for state in states if state.samplers), strict=False):
        by_rank = dict(zip((state.rank for state in states if state.samplers), uses, strict=True))
        divide = len({(use.samples, use.replicas) for use in uses}) == 1 and uses[0].replicas == len(uses) > 1
        if divide and (remark := in_other_orders(by_rank) or one_part_twice(by_rank)):
            return remark
    return ""


def in_other_orders(uses: dict[int, SamplerUse]) -> str:
    (rank, first), *others = uses.items()
    for other, use in others:
        if use.order != first.order:
            return (
                f"Ranks {rank} and {other} shuffle the data differently ({line_of(uses.values())}): their "
                "DistributedSamplers differ in seed or epoch, so the ranks read some samples twice and others never. "
                "Give every rank's sampler the same seed, and call set_epoch(epoch) on all of them."
            )
    return ""


def one_part_twice(uses: dict[int, SamplerUse]) -> str:
    readers: dict[int, list[int]] = {}
    for rank, use in uses.items():
        readers.setdefault(use.part, []).append(rank)
    for part, ranks in readers.items():
        if len(ranks) > 1:
            return (
                f"{ranks_text(ranks)} read the same part of the data ({line_of(uses.values())}): their "
                f"DistributedSamplers all say rank={part}. Pass each its own rank, or leave rank out."
            )
    return ""


def line_of(uses: Iterable[SamplerUse]) -> str:
    return place(next(iter(uses)).where).partition(":  ")[0]
