"""Where published plans come among all plans for their model, cluster and batch, by formula: `make accuracy` prints it.

A plan far from the first says that its authors knew better ways to their model, or that ours misses what it costs.
"""

from __future__ import annotations

from typing import NamedTuple

from utils.kit.plans import MODELS, RUNS, Published, bytes_of
from utils.kit.plans.search import Candidate, checked_plans, order, priced
from utils.text import tables

HEADER = ["model", "GPUs", "plans", "fit", "published", "GB", "fits", "rank", "behind the first", "s there", "s here"]


class Place(NamedTuple):
    """Of a published plan. plans, fit: how many there are, and how many fit; behind: the first, relative."""

    plans: int
    fit: int
    own: Candidate
    rank: int
    behind: float


def place_of(run: Published) -> Place:
    """Its rank is that among the plans that fit, also if it doesn't fit itself."""
    model, cluster = MODELS[run.model], run.on
    every = list(checked_plans(model, run.batch, cluster, most_cp=max(4, run.plan.cp)))
    fitting = [plan for plan in every if sum(bytes_of(plan, model, run.batch).values()) <= cluster.gpu.memory]
    first, *others = sorted((priced(plan, model, run.batch, cluster) for plan in fitting), key=order)
    own = priced(run.plan, model, run.batch, cluster)
    quicker = sum(order(each)[0] < order(own)[0] for each in (first, *others))
    return Place(len(every), len(fitting), own, 1 + quicker, own.total / first.total - 1)


def line_of(run: Published) -> tables.Row:
    place = place_of(run)
    fits = place.own.gigabytes * 1e9 <= run.on.gpu.memory
    return (
        run.model, f"{run.plan.gpus:,}", f"{place.plans:,}", f"{place.fit:,}", str(run.plan),
        f"{place.own.gigabytes:.1f}", "yes" if fits else "no", str(place.rank), f"{100 * place.behind:+.1f} %",
        f"{run.seconds:.3g}" if run.seconds else "", f"{place.own.total:.3g}",
    )  # fmt: skip


def ranks() -> str:
    """A line for each published plan."""
    return tables.text(HEADER, [line_of(run) for run in RUNS])
