"""The best plans of a model on a cluster: all are priced by formula, the best are composed of measured pieces.

    for one in search(model, 2048, find_cluster("dgx-h100", 1024), n=5):
        print(one.plan, one.total, one.gigabytes)

Memory is asked first, by formula. The formula only prunes: whatever it puts within `within` of its best is composed
of pieces (pieces.py), and these decide. Context parallelism is tried up to 4 ranks, or inside a node: further than
that, the model has not been held against programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ...cluster.hardware import Cluster
from .memory import bytes_of
from .model import Model
from .pieces import Key, measure_pieces
from .plan import RECOMPUTE, Plan, plans
from .seconds import compose, range_of, seconds_of

MOST_CP = 4  # between nodes
WITHIN = 0.05  # the formula's tolerance in tests


@dataclass(frozen=True)
class Candidate:
    """A plan with what it takes.

    bytes     {kind: bytes} on the fullest rank
    seconds   {part: seconds} of a step
    range     (shortest, longest) seconds of a step in 8 of 10 cases; None where that isn't known
    measured  whether seconds are composed of measured pieces; else they are the formula's
    """

    plan: Plan
    bytes: dict[str, float]
    seconds: dict[str, float]
    range: tuple[float, float] | None
    measured: bool = False

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return math.fsum(self.seconds.values())

    @property
    def gigabytes(self) -> float:
        """On the fullest rank."""
        return math.fsum(self.bytes.values()) / 1e9


def order(candidate: Candidate) -> tuple[float, float]:
    """Quicker first; of two that are as quick, the one that needs less memory."""
    return float(f"{candidate.total:.9g}"), candidate.gigabytes


def checked_plans(
    model: Model, batch: int, cluster: Cluster, recompute: tuple[str, ...] = RECOMPUTE, most_cp: int = MOST_CP
) -> Iterator[Plan]:
    """The plans of `plans` along the axes on which the model was held against programs."""
    inside = cluster.gpus_per_node
    for plan in plans(model, batch, cluster, most_cp=max(most_cp, inside), recompute=recompute):
        if plan.cp <= most_cp or plan.tp * plan.cp <= inside:
            yield plan


def priced(plan: Plan, model: Model, batch: int, cluster: Cluster) -> Candidate:
    """By formula."""
    seconds = seconds_of(plan, model, batch, cluster)
    return Candidate(plan, bytes_of(plan, model, batch), seconds, range_of(seconds, cluster))


def confirmed(
    candidates: Iterable[Candidate],
    model: Model,
    batch: int,
    cluster: Cluster,
    progress: Callable[[int, int], None] | None = None,
) -> list[Candidate]:
    """The same plans composed of measured pieces, best first. progress: see measure_pieces."""
    candidates = list(candidates)
    pieces = measure_pieces(model, [Key.of(each.plan) for each in candidates], cluster, progress)
    found = []
    for each in candidates:
        seconds = compose(each.plan, pieces, model, batch, cluster)
        found.append(Candidate(each.plan, each.bytes, seconds, range_of(seconds, cluster), True))
    return sorted(found, key=order)


def search(
    model: Model,
    batch: int,
    cluster: Cluster,
    n: int = 10,
    recompute: tuple[str, ...] = RECOMPUTE,
    most_cp: int = MOST_CP,
    within: float = WITHIN,
    progress: Callable[[int, int], None] | None = None,
) -> list[Candidate]:
    """The n best plans with `batch` sequences per step that fit into the cluster's GPUs, best first.

    recompute   the kinds to try
    most_cp     larger cp is left out, unless tp x cp ranks share a node
    within      part of the formula's best time by which another may be longer and still be measured

    [] if none fits. At least n are measured, if so many fit.
    """
    fitting = [
        plan
        for plan in checked_plans(model, batch, cluster, recompute, most_cp)
        if sum(bytes_of(plan, model, batch).values()) <= cluster.gpu.memory
    ]
    by_formula = sorted((priced(plan, model, batch, cluster) for plan in fitting), key=order)
    return confirmed(contenders(by_formula, n, within), model, batch, cluster, progress)[:n]


def contenders(by_formula: list[Candidate], n: int, within: float = WITHIN) -> list[Candidate]:
    """The first n, and all others that the formula may have put too far behind, best first."""
    limit = by_formula[0].total * (1 + within) if by_formula else 0.0
    return [each for place, each in enumerate(by_formula) if place < n or each.total <= limit]
