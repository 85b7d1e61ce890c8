"""`python -m tests.accuracy [FILE]`: published times, and what is predicted for them, by source.

A training row is predicted with rates that were fitted to the rows of all other sources (fit.py), so nothing is said
about a source that the rates have seen. The last column counts rows that lie inside the range which `run.range` would
give. FILE keeps what was simulated, for the next time.

Below are the all-reduces, where published plans come among all plans for their model (ranks.py), and the steps of Llama
3 as one program each (utils/kit/plans/step.py), which takes a minute or two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import exp
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import NamedTuple

from tests.accuracy.fit import Times, left_out, measured
from tests.accuracy.ranks import ranks
from tests.accuracy.rows import ROWS, Row, nccl_tests, split
from tests.accuracy.sources import TRAINING
from tests.accuracy.step import carried_out, simulated
from utils.cluster import Uncertainty, presets
from utils.text import tables
from utils.text.units import quantity

WHOLE = "Llama 3 2024"  # the family whose schedule, sharding and overlap are known well enough to write its whole step
HEADER = ["source", "row", "published", "predicted", "error", "from", "to", "inside"]


class Prediction(NamedTuple):
    """Seconds of a row, without its source: published, predicted, and the range."""

    source: str
    name: str
    published: float
    seconds: float
    range: tuple[float, float]

    @property
    def error(self) -> float:
        return self.seconds / self.published - 1

    @property
    def inside(self) -> bool:
        return self.range[0] <= self.published <= self.range[1]

    def line(self) -> tables.Row:
        published, seconds, shortest, longest = (
            quantity(each, "s") for each in (self.published, self.seconds, *self.range)
        )
        inside = "yes" if self.inside else "no"
        return self.source, self.name, published, seconds, f"{100 * self.error:+.1f} %", shortest, longest, inside


def main() -> None:
    """Print a line for each row, and then one for each source."""
    rows = measured(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    predictions = [predicted(row, error) for row, error in left_out(rows)]
    print(tables.text(HEADER, [each.line() for each in predictions]), end="\n\n")
    print(checked([*TRAINING, *ROWS]), end="\n\n")
    print(summary(predictions), end="\n\n")
    print(all_reduces(), end="\n\n")
    print(ranks(), end="\n\n")
    for row in ROWS:
        if row.family == WHOLE:
            print(whole(row))


def predicted(row: Times, error: float) -> Prediction:
    """The row's prediction, which is off by this much (as a logarithm)."""
    seconds = row.published * exp(error)
    rates = presets.PRESETS[row.cluster].gpu.achieved
    assert rates is not None and isinstance(rates.uncertainty, Uncertainty)
    parts = {"computing": row.products + row.attention, "memory": row.memory, "communication": row.rest}
    factor = seconds / sum(parts.values())  # the rates without this source change the parts by little
    between = rates.uncertainty.between({name: part * factor for name, part in parts.items()})
    return Prediction(row.source, row.name, row.published, seconds, between)


def summary(predictions: Iterable[Prediction]) -> str:
    """For each source and for all: the count, the median and the worst error, the mean with its sign, those inside."""
    sources: dict[str, list[Prediction]] = {}
    for each in predictions:
        sources.setdefault(each.source, []).append(each)
    every = [each for members in sources.values() for each in members]
    lines = []
    for source, members in [*sources.items(), ("all", every)]:
        errors = [100 * each.error for each in members]
        worst = max(errors, key=abs)
        inside = sum(each.inside for each in members)
        cells = f"{median(map(abs, errors)):.1f} %", f"{worst:+.1f} %", f"{mean(errors):+.1f} %"
        lines.append((source, str(len(members)), *cells, f"{inside} of {len(members)}"))
    return tables.text(["source, never fitted to", "rows", "median", "worst", "mean", "inside"], lines)


def all_reduces() -> str:
    """The same for the all-reduces. What the switch reaches was fitted to one half of two sources, not to the third."""
    halves = [
        (row, half)
        for half, members in zip(("fitted to", "held out"), split(ROWS), strict=True)
        for row in members
        if row.what == "all_reduce" and not row.contradictions
    ]
    errors: dict[tuple[str, str], list[float]] = {}
    for row, half in [*halves, *((row, "by nccl-tests, never fitted to") for row in nccl_tests())]:
        machine = row.name.split(" on ")[1]
        errors.setdefault((machine, half), []).append(100 * (simulated(row, "achieved") / row.seconds - 1))
    lines = [
        (
            *key,
            str(len(every)),
            f"{median(map(abs, every)):.1f} %",
            f"{max(every, key=abs):+.1f} %",
            f"{mean(every):+.1f} %",
        )
        for key, every in sorted(errors.items())
    ]
    return tables.text(["all-reduce", "half", "rows", "median", "worst", "mean"], lines)


def whole(row: Row) -> str:
    """A step as one program, on all GPUs: how long it takes there and here."""
    began = perf_counter()
    run = carried_out(row, "achieved")
    took = perf_counter() - began
    error = 100 * (run.elapsed / row.seconds - 1)
    between = " to ".join(f"{seconds:.2f}" for seconds in run.range)
    return f"{row.name}, as one program: {run.elapsed:.2f} s ({between}), {error:+.1f} %; simulated in {took:.0f} s"


def checked(rows: list[Row]) -> str:
    """What the rows of each family were checked against, and which contradict it."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row.family, []).extend(check.what for check in row.checks)
    lines = [f"{family}: checked by {', '.join(dict.fromkeys(whats))}" for family, whats in kinds.items()]
    doubts = [f"{row.name}: {check}; not in the summary" for row in rows for check in row.contradictions]
    return "\n".join([*lines, *dict.fromkeys(doubts)])


if __name__ == "__main__":
    main()
