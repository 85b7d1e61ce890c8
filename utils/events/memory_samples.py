"""Samples of a rank's live bytes over time, and their peak."""

from __future__ import annotations

from typing import NamedTuple

OTHER = "other"
# What bytes are for. A storage of more than one kind counts as the first of them.
KINDS = ("parameters", "gradients", "optimizer state", "activations", "communication", OTHER)

Sample = tuple[float, str, int]  # (seconds, kind, live bytes of that kind from then on)


class MemoryNote(NamedTuple):
    """The memory of one rank during one stretch of its program.

    device   "cpu": storages that track_memory followed; "virtual": everything on a virtual rank; "cuda": as reported
             by the GPU's allocator
    samples  live bytes over time
    peak     the most bytes alive at once
    """

    device: str
    samples: list[Sample]
    peak: int


def totals(samples: list[Sample]) -> list[tuple[float, int]]:
    """(seconds, live bytes of all kinds from then on)."""
    live: dict[str, int] = {}
    total, over_time = 0, []
    for seconds, kind, nbytes in samples:
        total += nbytes - live.get(kind, 0)
        live[kind] = nbytes
        over_time.append((seconds, total))
    return over_time


def peak_of(samples: list[Sample]) -> tuple[int, dict[str, int]]:
    """(bytes, {kind: bytes}) at the moment when the most bytes were alive; the first such moment."""
    if not samples:
        return 0, {}
    over_time = [nbytes for _, nbytes in totals(samples)]
    most = max(over_time)
    live = {kind: nbytes for _, kind, nbytes in samples[: over_time.index(most) + 1]}
    return most, {kind: nbytes for kind, nbytes in live.items() if nbytes}
