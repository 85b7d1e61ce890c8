"""What was found, as text: does it fit, the best plans, their bytes and seconds, and why the others lost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from ...cluster.presets import PRESETS
from ...text import tables
from ...text.units import plural, quantity
from ..plans import Plan, bytes_of
from ..plans.plan import RECOMPUTE, divisors, plans, rule_broken
from ..plans.search import checked_plans
from .losers import SAID, losers

if TYPE_CHECKING:
    from .planning import Planning

SPARE = 5.0  # GB that CUDA, NCCL and fragmentation may well need
LARGER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # times as many nodes, to look for a number that would do


def report(found: Planning, tokens: float | None = None) -> str:
    """See Planning.text."""
    parts = [heading(found), fits(found)]
    if found.best:
        parts += [best_table(found, tokens), bytes_table(found), seconds_table(found), losers_table(found)]
    elif found.too_large:
        parts += [what_would_fit(found)]
    return "\n\n".join([*parts, *([remarks(found)] if found.best else [])])


def heading(found: Planning) -> str:
    model, cluster = found.model, found.cluster
    site = f", {cluster.site:g} times as slow as in benchmarks" if cluster.site != 1 else ""
    return (
        f"{found.name}: {model.parameters / 1e9:.4g} billion parameters, {plural(found.batch, 'sequence')} of "
        f"{model.length:,} tokens per step\n"
        f"{plural(cluster.size, 'GPU')} of {cluster.name}, {cluster.gpu.memory / 1e9:g} GB each, at {cluster.rates} "
        f"rates{site}"
    )


def fits(found: Planning) -> str:
    """The first answer: how many plans fit, or what the nearest lacks, or why there is none."""
    count = len(found.fitting) + len(found.too_large)
    memory = found.cluster.gpu.memory / 1e9
    if found.fitting:
        return f"It fits: {len(found.fitting):,} of {plural(count, 'plan')} need {memory:g} GB or less.{tight(found)}"
    if not found.too_large:
        return f"There is no plan: each breaks a rule, most of them this one: {rules(found)}"
    assert found.nearest is not None
    kinds = found.too_large[found.nearest]
    total = sum(kinds.values()) / 1e9
    said = ", ".join(f"{nbytes / 1e9:.1f} {kind}" for kind, nbytes in kinds.items())
    return (
        f"It doesn't fit: none of {plural(count, 'plan')} needs {memory:g} GB or less. The nearest lacks "
        f"{total - memory:.1f} GB:\n  {found.nearest}\n  {total:.1f} GB: {said}"
    )


def tight(found: Planning) -> str:
    """How much the best plan leaves, if it is less than SPARE, and the best that leaves more."""
    first, limit = found.best[0], found.cluster.gpu.memory / 1e9 - SPARE
    if first.gigabytes <= limit:
        return ""
    left = f"\nThe best leaves {found.cluster.gpu.memory / 1e9 - first.gigabytes:.1f} GB free."
    other = next((each for each in found.fitting if each.gigabytes <= limit), None)
    if other is None:
        return f"{left} None leaves {SPARE:g} GB."
    apart = other.total / found.fitting[0].total - 1
    return f"{left} If {SPARE:g} GB must stay free, the best is {other.plan}: {100 * apart:+.1f} %."


def rules(found: Planning) -> str:
    """The rules that most grids break, and a batch that would do."""
    size, model = found.cluster.size, found.model
    counted: Counter[str] = Counter()
    for tp, pp in product(divisors(math.gcd(size, found.cluster.gpus_per_node)), divisors(size)):
        if size % (tp * pp) == 0:
            plan = Plan(size // (tp * pp), tp, pp)
            counted[rule_broken(plan, model, found.batch, found.cluster) or "other rules"] += 1
    worst = counted.most_common(1)[0][0]
    near = sorted(range(max(1, found.batch - size), found.batch + size + 1), key=lambda n: abs(n - found.batch))
    better = next((n for n in near if next(plans(model, n, found.cluster), None) is not None), None)
    return worst + "." + (f" With {better:,} sequences per step there are plans." if better else "")


def what_would_fit(found: Planning) -> str:
    """Recomputation that was not tried, more GPUs, GPUs with more memory."""
    kinds, most_cp = found.limits
    lines = []
    others = tuple(kind for kind in RECOMPUTE if kind not in kinds)
    if plan := smallest(found, found.cluster.nodes, others, most_cp):
        lines.append(f"recomputing more: {plan}")
    for times in LARGER:
        if plan := smallest(found, times * found.cluster.nodes, kinds, most_cp):
            lines.append(f"{times * found.cluster.size:,} GPUs: {plan}")
            break
    assert found.nearest is not None
    needs = sum(found.too_large[found.nearest].values())
    larger = [
        f"{name} ({preset.gpu.memory / 1e9:g} GB)"
        for name, preset in PRESETS.items()
        if needs <= preset.gpu.memory and preset.gpus_per_node == found.cluster.gpus_per_node
    ]
    if larger:
        lines.append(f"as many GPUs with more memory: {', '.join(larger)}")
    return "\n".join(["It would fit with", *(f"  {line}" for line in lines)] if lines else [])


def smallest(found: Planning, nodes: int, kinds: tuple[str, ...], most_cp: int) -> str:
    """The plan that needs least memory on so many nodes, in words, if it fits; else ""."""
    cluster = replace(found.cluster, nodes=nodes)
    needs = {
        plan: sum(bytes_of(plan, found.model, found.batch).values())
        for plan in checked_plans(found.model, found.batch, cluster, kinds, most_cp)
    }
    plan = min(needs, key=lambda plan: needs[plan], default=None)
    if plan is None or needs[plan] > cluster.gpu.memory:
        return ""
    return f"{plan} needs {needs[plan] / 1e9:.1f} GB"


def best_table(found: Planning, tokens: float | None) -> str:
    header = ["", "plan", "GB", "s per step", "8 of 10 cases", "MFU", "tokens/s"]
    rows = []
    for place, each in enumerate(found.best, 1):
        between = f"{each.range[0]:.4g} to {each.range[1]:.4g}" if each.range else "unknown"
        rate = f"{found.tokens / each.total:,.0f}"
        row = [str(place), str(each.plan), f"{each.gigabytes:.1f}", f"{each.total:.4g}", between]
        row += [f"{100 * found.mfu(each.total):.1f} %", rate]
        if tokens:
            ends = each.range or (each.total, each.total)
            shortest, longest = (f"{found.days(seconds, tokens):,.3g}" for seconds in ends)
            row += [f"{found.days(each.total, tokens):,.3g} ({shortest} to {longest})"]
        rows.append(row)
    return tables.text([*header, *([f"days for {quantity(tokens, 'B')[:-1].strip()} tokens"] if tokens else [])], rows)


def bytes_table(found: Planning) -> str:
    kinds = list(found.best[0].bytes)
    rows = [
        (str(place), *(f"{each.bytes[kind] / 1e9:.1f}" for kind in kinds)) for place, each in enumerate(found.best, 1)
    ]
    return tables.text(["GB", *kinds], rows)


def seconds_table(found: Planning) -> str:
    parts = [part for part in found.best[0].seconds if any(each.seconds[part] for each in found.best)]
    rows = [(str(place), *(f"{each.seconds[part]:.3g}" for part in parts)) for place, each in enumerate(found.best, 1)]
    return tables.text(["s", *(SAID.get(part, part) for part in parts)], rows)


def losers_table(found: Planning) -> str:
    lines = [f"Why others lose against {found.best[0].plan} (the best that have one size in common, by formula):"]
    every = losers(found)
    widths = [max(len(each.what) for each in every), max(len(counts(each.plans, each.fit)) for each in every)]
    for each in every:
        line = f"  {each.what:<{widths[0]}}   {counts(each.plans, each.fit):>{widths[1]}}   {each.why}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def counts(plans: int, fit: int) -> str:
    if not plans:
        return "no plan"
    return f"{fit:,} of {plans:,} fit" if fit else f"none of {plans:,} fits"


def remarks(found: Planning) -> str:
    """How this was found, and what it leaves out."""
    formula, measuring = found.took
    count = len(found.fitting) + len(found.too_large)
    return (
        f"{count:,} plans by formula in {formula:.1f} s ({count / max(formula, 1e-9):,.0f} per second); the best and "
        f"those within 5 % of it composed of measured pieces in {measuring:.1f} s.\n"
        f"Tried: cp up to {found.limits[1]}, or inside a node; up to 8 sequences in a microbatch; "
        f"recompute {', '.join(found.limits[0])}. GB are what tensors hold: CUDA, NCCL and fragmentation come on top."
    )
