"""Stages of a pipeline whose schedules cut a batch into different numbers of microbatches."""

from __future__ import annotations

from collections.abc import Iterable

from ..events.rank_state import RankState


def different_microbatches(states: Iterable[RankState]) -> str:
    """A sentence about two ranks that never used schedules with the same number; "" if there are none."""
    used = {s.rank: {e.module: e.where for e in s.events if e.module and e.wrapper == "pipeline"} for s in states}
    known = [(rank, numbers) for rank, numbers in used.items() if numbers]
    for rank, numbers in known[1:]:
        first, others = known[0]
        if not numbers.keys() & others.keys():
            return (
                f"The pipeline schedule has {', '.join(others)} on rank {first} and {', '.join(numbers)} on rank "
                f"{rank}. All stages must cut the batch into the same number."
            )
    return ""
