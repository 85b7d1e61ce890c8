"""`python -m tests.accuracy.fit [FILE]`: how the fitted rates in presets.py were found, and how sure they are.

A time is linear in the reciprocals of the rates, but for what overlaps. So each row is simulated at the presets' rates,
and again with one of them slower; FILE keeps the result. From that follows its time at any rates, and those with the
least error are searched on a grid.

All rows of a source err together, so nothing is learned about unseen ones from how well rates fit their own rows. Each
source is predicted with rates that were fitted to all others, and the errors of these predictions set the width of
Uncertainty.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, median, pvariance
from typing import NamedTuple

from tests.accuracy.rows import Row
from tests.accuracy.sources import TRAINING, source_of
from tests.accuracy.step import forget, simulated
from utils.cluster import KernelRates, presets

SLOWER = 0.9
ATTENTION = ("attention", "attention_backward", "attention_3", "attention_3_backward")
PARTS = {"sustained": ("sustained",), "attention": ATTENTION, "memory": ("memory", "rows")}
# Where rates would be without any rows: attention by its paper, memory by the best kernels; and how much a deviation
# costs, as against the rows' errors.
EXPECTED = {"attention": 0.65, "memory": 0.9}
STIFF = 1.5
GRID = ([exp(0.01 * n) for n in range(-20, 21)], [exp(0.05 * n) for n in range(-6, 7)])
FITTED = {"dgx-a100": (0, 1, 1), "dgx-h100": (0, None, None)}  # the grid of each rate; None: not fitted


class Times(NamedTuple):
    """A row's seconds at the presets' rates, by what they depend on, and those that were published."""

    source: str
    name: str
    cluster: str
    site: str
    products: float
    attention: float
    memory: float
    rest: float
    published: float

    def at(self, factors: tuple[float, float, float], site: float = 1.0) -> float:
        """Seconds with rates that are so many times the presets': sustained, attention, memory."""
        sustained, attention, memory = factors
        computing = (self.products + self.attention / attention) / sustained
        return computing * site + self.memory / memory + self.rest

    def error(self, factors: tuple[float, float, float], site: float = 1.0) -> float:
        return log(self.at(factors, site) / self.published)


def times_of(row: Row) -> Times:
    assert row.setting is not None
    before = simulated(row, "achieved")
    part: dict[str, float] = {}
    for name, fields in PARTS.items():
        with_slower(row.setting.cluster, fields)
        part[name] = (simulated(row, "achieved") - before) / (1 / SLOWER - 1)
        with_slower(row.setting.cluster, ())
    products = part["sustained"] - part["attention"]
    rest = before - part["sustained"] - part["memory"]
    setting, parts = row.setting, (products, part["attention"], part["memory"], rest)
    return Times(source_of(row), row.name, setting.cluster, setting.site, *parts, row.seconds)


PRESETS = dict(presets.PRESETS)


def with_slower(name: str, fields: tuple[str, ...]) -> None:
    """Let this preset's GPU have slower rates, or if there are no fields its own again."""
    cluster = PRESETS[name]
    rates = cluster.gpu.achieved
    assert isinstance(rates, KernelRates)
    changed = {field: getattr(rates, field) * SLOWER for field in fields if getattr(rates, field) is not None}
    forget()
    presets.PRESETS[name] = replace(cluster, gpu=replace(cluster.gpu, achieved=replace(rates, **changed)))


def measured(file: Path | None) -> list[Times]:
    """Of all training rows; those that the file has are not simulated again."""
    kept = json.loads(file.read_text()) if file is not None and file.exists() else []
    known = {row[1]: Times(*row) for row in kept}
    for row in TRAINING:
        if row.name not in known:
            known[row.name] = times_of(row)
            if file is not None:
                file.write_text(json.dumps(list(known.values())))
    return [known[row.name] for row in TRAINING]


def by_source(rows: Iterable[Times]) -> dict[str, list[Times]]:
    sources: dict[str, list[Times]] = {}
    for row in rows:
        sources.setdefault(row.source, []).append(row)
    return sources


def best_factors(rows: list[Times], cluster: str) -> tuple[float, float, float]:
    """Those with the least mean error without sign, where n rows of a source count as much as sqrt(n) sources."""
    sources = by_source(row for row in rows if row.cluster == cluster and row.site != "production")
    rates = PRESETS[cluster].gpu.achieved
    assert rates is not None
    expected = [at / getattr(rates, name) for name, at in EXPECTED.items()] if FITTED[cluster][1] is not None else []
    axes = [GRID[place] if place is not None else [1.0] for place in FITTED[cluster]]

    def badness(factors: tuple[float, float, float]) -> float:
        pulled = sum(log(factor / there) ** 2 for factor, there in zip(factors[1:], expected, strict=False))
        return STIFF * pulled + sum(
            sqrt(len(members)) * mean(abs(row.error(factors)) for row in members) for members in sources.values()
        )

    return min(product(*axes), key=badness)


def production(rows: list[Times], factors: dict[str, tuple[float, float, float]]) -> float:
    """The site's factor, as a part of the present one, that makes the mean error of each source zero: their mean."""

    def needed(members: list[Times]) -> float:
        return min(GRID[0], key=lambda site: abs(mean(row.error(factors[row.cluster], site) for row in members)))

    return mean(map(needed, by_source(row for row in rows if row.site == "production").values()))


def fit(rows: list[Times]) -> tuple[dict[str, tuple[float, float, float]], float]:
    factors = {cluster: best_factors(rows, cluster) for cluster in FITTED}
    return factors, production(rows, factors)


def left_out(rows: list[Times]) -> Iterator[tuple[Times, float]]:
    """(row, log error) of each, by rates that were fitted to all other sources."""
    for source, members in by_source(rows).items():
        factors, site = fit([row for row in rows if row.source != source])
        for row in members:
            yield row, row.error(factors[row.cluster], site if row.site == "production" else 1.0)


# Student's t for 80 % on both sides together, by degrees of freedom.
STUDENT = (3.08, 1.89, 1.64, 1.53, 1.48, 1.44, 1.41, 1.40, 1.38, 1.37)


def width(errors: Mapping[str, list[float]]) -> float:
    """Half of the interval in which 8 of 10 rows of the next source are expected, from each source's errors. Sources
    differ, and so do the rows of one. Few sources say little about the next.
    """
    means = [mean(every) for every in errors.values()]
    between = mean(each**2 for each in means) * (1 + 1 / len(means))
    return STUDENT[len(means) - 2] * sqrt(between + mean(map(pvariance, errors.values())))


def main() -> None:
    rows = measured(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    factors, site = fit(rows)
    for cluster, (sustained, attention, memory) in factors.items():
        print(f"{cluster}: sustained x {sustained:.3f}, attention x {attention:.3f}, memory and rows x {memory:.3f}")
    print(f"production x {site:.3f}")
    errors: dict[str, list[float]] = {}
    of: dict[str, dict[str, list[float]]] = {cluster: {} for cluster in FITTED}
    for row, error in left_out(rows):
        errors.setdefault(row.source, []).append(error)
        of[row.cluster][row.source] = errors[row.source]
    for cluster, sources in of.items():
        print(f"{cluster}: the next source's rows within {100 * width(sources):.1f} %, 8 of 10")
    for source, every in [*errors.items(), ("all", [e for members in errors.values() for e in members])]:
        sizes = sorted(map(abs, every))
        line = f"median {100 * median(sizes):.1f} %, worst {100 * sizes[-1]:.1f} %, mean {100 * mean(every):+.1f} %"
        print(f"{source}: {len(every)} rows, {line}")


if __name__ == "__main__":
    main()
