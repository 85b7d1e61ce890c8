"""What is run where a check judges what surrounds a plan: bytes of experts on two tiers, an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..two_tier_dispatch import Routing, exchange


def of_own_tokens(
    function: Callable[..., Any], everyone: Sequence[Routing], rank: int, world_size: int, **sizes: int
) -> Any:
    """The bytes that `function` finds for the tokens of this rank."""
    return function([list(token) for token in everyone[rank]], rank, **sizes)


def beside_exchange(
    function: Callable[..., Any], everyone: Sequence[Routing], rank: int, world_size: int, **sizes: int
) -> Any:
    """The same, beside the exchange of all ranks' tokens."""
    exchange(rank, world_size, everyone, **sizes)
    return of_own_tokens(function, everyone, rank, world_size, **sizes)


class NotedRow(Mapping[str, Any]):
    """A row of published runs that notes its name in `seen` when its measured seconds are read."""

    def __init__(self, row: Mapping[str, Any], seen: list[str]):
        self.row, self.seen = dict(row), seen

    def __getitem__(self, key: str) -> Any:
        if key == "seconds" and self.row["name"] not in self.seen:
            self.seen.append(self.row["name"])
        return self.row[key]

    def __iter__(self) -> Any:
        return iter(self.row)

    def __len__(self) -> int:
        return len(self.row)


def with_noted_rows(
    function: Callable[..., Any], rows: Sequence[Mapping[str, Any]], held_out: Sequence[str]
) -> dict[str, Any]:
    """Call `function(rows, predict, calibrate, is_held_out)` with rows that note who reads their seconds.

    held_out: the workloads that are. The factor of `calibrate` is the mean of measured by predicted seconds.
    """
    seen: list[str] = []
    fixed: list[list[str]] = []

    def predict(row: Mapping[str, Any]) -> float:
        return float(row["predicted"])

    def calibrate(chosen: Sequence[Mapping[str, Any]]) -> float:
        chosen = list(chosen)
        factor: float = sum(row["seconds"] / predict(row) for row in chosen) / max(1, len(chosen))
        fixed.append(list(seen))
        return factor

    median, worst, bias = function(
        [NotedRow(row, seen) for row in rows], predict, calibrate, lambda workload: workload in held_out
    )
    names = {row["name"] for row in rows if row["workload"] in held_out}
    early = sorted(names & {name for names_seen in fixed for name in names_seen})
    return {
        "the number of factors that were fitted": len(fixed),
        "the list of held-out rows that were read before the factor was fixed": ", ".join(early) or "empty",
        "the median error": median,
        "the worst error": worst,
        "the bias": bias,
    }
