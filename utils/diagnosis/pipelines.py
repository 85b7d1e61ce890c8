"""Stages of a pipeline whose schedules cut a batch into different numbers of microbatches."""

from __future__ import annotations

from collections.abc import Iterable

from ..events.rank_state import RankState


def different_microbatches(states: Iterable[RankState]) -> str:
    """A sentence about two neighbours that never used schedules with the same number; "" if there are none."""
    calls = {s.rank: [e for e in s.events if e.part and e.wrapper == "pipeline"] for s in states}
    numbers = {rank: dict.fromkeys(event.part for event in events) for rank, events in calls.items()}
    for rank, events in calls.items():
        for other in dict.fromkeys(event.peer for event in events if event.peer is not None):
            if numbers.get(other) and not numbers[rank].keys() & numbers[other].keys():
                return (
                    f"The pipeline schedule has {', '.join(numbers[rank])} on rank {rank} and "
                    f"{', '.join(numbers[other])} on rank {other}. All stages must cut the batch into the same number."
                )
    return ""
