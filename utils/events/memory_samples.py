"""Samples of a rank's live bytes over time, and where they peak. Plain arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass  # it needs torch

OTHER = "other"
KINDS = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "communication",
    OTHER,
)  # what is more than one, is the first


Sample = tuple[float, str, int]  # (seconds, kind, live bytes of that kind from then on)


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
    """(bytes, {kind: bytes}) when there were most of them, the first time."""
    if not samples:
        return 0, {}
    over_time = [nbytes for _, nbytes in totals(samples)]
    most = max(over_time)
    live = {kind: nbytes for _, kind, nbytes in samples[: over_time.index(most) + 1]}
    return most, {kind: nbytes for kind, nbytes in live.items() if nbytes}
