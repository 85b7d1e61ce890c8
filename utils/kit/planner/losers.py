"""Why plans lost: for each size of each axis, the best plan that has it, and what it is slower in or lacks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..plans import Candidate, Plan
from ..plans.plan import RECOMPUTE, divisors, indivisible

if TYPE_CHECKING:
    from .planning import Planning

AXES = ("tp", "cp", "pp", "ep", "chunks", "micro", "recompute")
SAID = {
    "compute": "computing",
    "memory": "memory-bound",
    "pp": "messages",
    "dp": "gradients",
}
LEAST = 0.002  # share of a step: smaller differences are not worth a word


class Loser(NamedTuple):
    """A group of plans that have one size in common.

    what    "tp 8"
    plans   how many there are, and how many of them fit
    best    the best that fits, by formula; None if none does
    why     "+4.1 %: +0.52 s tp, -0.10 s bubble"; or what the nearest lacks; or why there is none
    """

    what: str
    plans: int
    fit: int
    best: Candidate | None
    why: str


def losers(found: Planning) -> list[Loser]:
    """For each size that the best plan doesn't have, axis by axis. [] if no plan fits."""
    if not found.fitting:
        return []
    winner = found.candidate(found.best[0].plan)
    by_formula = next(each for each in found.fitting if each.plan == winner.plan)
    return [loser for axis in AXES for loser in of_axis(found, axis, by_formula)]


def of_axis(found: Planning, axis: str, winner: Candidate) -> Iterator[Loser]:
    first: dict[Any, Candidate] = {}
    fit: dict[Any, int] = {}
    large: dict[Any, list[Plan]] = {}
    for each in found.fitting:
        value = getattr(each.plan, axis)
        first.setdefault(value, each)
        fit[value] = fit.get(value, 0) + 1
    for plan in found.too_large:
        large.setdefault(getattr(plan, axis), []).append(plan)
    values = RECOMPUTE if axis == "recompute" else sorted({*first, *large})
    for value in (each for each in values if each in first or each in large):
        if value == getattr(winner.plan, axis):
            continue
        count, several, best = fit.get(value, 0), large.get(value, []), first.get(value)
        why = slower(best, winner) if best else missing(found, several)
        yield Loser(f"{axis} {value}", count + len(several), count, best, why)
    yield from never_tried(found, axis, {*first, *large})


def slower(candidate: Candidate, winner: Candidate) -> str:
    """By how much, and in what: the three parts that differ most."""
    apart = {part: candidate.seconds[part] - winner.seconds[part] for part in winner.seconds}
    parts = sorted(apart, key=lambda part: -abs(apart[part]))[:3]
    said = [f"{apart[part]:+.2g} s {SAID.get(part, part)}" for part in parts if abs(apart[part]) > LEAST * winner.total]
    percent = f"{100 * (candidate.total / winner.total - 1):+.1f} %"
    return f"{percent}: {', '.join(said)}" if said else percent


def missing(found: Planning, plans: list[Plan]) -> str:
    """What the one that lacks the least lacks, and what takes most of its memory."""
    nearest = min(plans, key=lambda plan: sum(found.too_large[plan].values()))
    kinds = found.too_large[nearest]
    over = (sum(kinds.values()) - found.cluster.gpu.memory) / 1e9
    most = max(kinds, key=lambda kind: kinds[kind])
    return f"lacks {over:.1f} GB at least; {kinds[most] / 1e9:.1f} GB are {most}"


def never_tried(found: Planning, axis: str, tried: set[Any]) -> Iterator[Loser]:
    """Sizes that divide the GPUs and that no plan has: the first ones, with the rule that they break."""
    inside, size = found.cluster.gpus_per_node, found.cluster.size
    values = [value for value in divisors(size) if value not in tried]
    if axis == "tp":
        within = [value for value in values if value <= inside]
        for value in within:
            broken = indivisible(Plan(size // value, value), found.model, math.lcm(found.batch, size))
            batch = f"no dp x micro that goes with it divides the batch of {found.batch:,}"
            yield Loser(f"tp {value}", 0, 0, None, broken or batch)
        if beyond := [value for value in values if value > inside]:
            yield Loser(f"tp {beyond[0]}+", 0, 0, None, f"leaves the node of {inside} GPUs")
    if axis == "cp" and (beyond := [value for value in values if value > max(tried)]):
        yield Loser(f"cp {beyond[0]}+", 0, 0, None, "not tried between nodes: no program was held against it")
