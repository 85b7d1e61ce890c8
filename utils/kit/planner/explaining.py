"""`--explain PLAN`: one plan beside the best: what it breaks, lacks, and takes, and what would make it fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from ...text import tables
from ...text.units import nearest
from ..plans import Candidate, Plan, bytes_of, rule_broken
from ..plans.plan import RECOMPUTE
from .losers import SAID, slower

if TYPE_CHECKING:
    from .planning import Planning

SIZES = [field.name for field in fields(Plan) if field.name != "recompute"]


def read_plan(text: str, gpus: int) -> Plan:
    """ "tp 4, pp 8, chunks 12", "tp=4 pp=8" or "tp4-pp8", with the dp that uses all GPUs unless it is given.

    Raises ValueError for a text that is no plan.
    """
    given: dict[str, str] = {}
    for name, value in re.findall(r"([a-z]+)[\s=]*(\d+|none|selective|full)\b", text.lower()):
        if name not in (*SIZES, "recompute"):
            raise ValueError(f"a plan has no {name!r}{nearest(name, SIZES)} It has {', '.join(SIZES)}, recompute.")
        given[name] = value
    rest = re.sub(r"([a-z]+)[\s=]*(\d+|none|selective|full)\b", "", text.lower()).strip(" ,;-_/")
    kind = given.pop("recompute", "none")
    if rest or not (given or kind != "none") or kind not in RECOMPUTE:
        raise ValueError(f"{text!r} is no plan. Write sizes like this: 'tp 4, pp 8, chunks 12, recompute selective'.")
    sizes = {name: int(value) for name, value in given.items()}
    used = sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1)
    return Plan(**{"dp": max(1, gpus // max(1, used)), **sizes}, recompute=kind)


def explained(found: Planning, plan: str | Plan) -> str:
    """See Planning.explain."""
    asked = plan if isinstance(plan, Plan) else read_plan(plan, found.cluster.size)
    broken = rule_broken(asked, found.model, found.batch, found.cluster)
    if broken:
        return f"{asked}: this can't be carried out, since {broken}."
    candidate = found.candidate(asked)
    lines = [f"{asked}: {verdict(found, candidate)}", ""]
    beside = found.best[0] if found.best else None
    nbytes, seconds = (beside.bytes, beside.seconds) if beside else (None, None)
    lines += [two_columns("GB on the fullest GPU", candidate.bytes, nbytes, 1e9), ""]
    lines += [two_columns("s per step", candidate.seconds, seconds, 1.0)]
    if candidate.plan.cp > found.limits[1] and asked.tp * asked.cp > found.cluster.gpus_per_node:
        lines += ["", f"Beyond cp {found.limits[1]} between nodes, no program was held against the formula."]
    if candidate.gigabytes * 1e9 > found.cluster.gpu.memory:
        lines += ["", *what_would_fit(found, asked)]
    elif beside is not None and asked != beside.plan:
        lines += ["", f"Against the best, {slower(candidate, beside)}."]
    return "\n".join(lines)


def verdict(found: Planning, candidate: Candidate) -> str:
    memory = found.cluster.gpu.memory / 1e9
    if candidate.gigabytes > memory:
        return f"it doesn't fit. A GPU would need {candidate.gigabytes:.1f} GB and has {memory:g}"
    place = next((n for n, each in enumerate(found.best, 1) if each.plan == candidate.plan), 0)
    ahead = 1 + sum(each.total < candidate.total * (1 - 1e-9) for each in found.fitting)
    source = "measured" if place else "by formula"
    return f"number {place or ahead} of {len(found.fitting):,} that fit, {source}. A step takes {candidate.total:.4g} s"


def two_columns(what: str, these: dict[str, float], those: dict[str, float] | None, unit: float) -> str:
    names = [name for name in these if these[name] or (those and those[name])]
    rows = []
    for name in (*names, "in all"):
        columns = [sum(each.values()) if name == "in all" else each[name] for each in (these, those) if each]
        rows.append((SAID.get(name, name), *(f"{value / unit:.4g}" for value in columns)))
    return tables.text([what, "this plan", *(["the best"] if those else [])], rows)


def what_would_fit(found: Planning, plan: Plan) -> list[str]:
    """Sentences about single changes with which it fits."""
    lines = []
    for change, other in single_changes(plan):
        if rule_broken(other, found.model, found.batch, found.cluster):
            continue
        needs = sum(bytes_of(other, found.model, found.batch).values())
        if needs <= found.cluster.gpu.memory:
            total = found.candidate(other).total
            lines.append(f"  {change}: {needs / 1e9:.1f} GB, {total:.4g} s per step")
    return ["With one change it would fit:", *lines] if lines else ["No single change would make it fit."]


def single_changes(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """(what is changed, the plan) for each change that may save memory: recomputation, half a microbatch, or twice as
    many ranks of an axis in place of dp.
    """
    for kind in RECOMPUTE[RECOMPUTE.index(plan.recompute) + 1 :]:
        yield f"recompute {kind}", replace(plan, recompute=kind)
    if plan.micro % 2 == 0:
        yield f"micro {plan.micro // 2}", replace(plan, micro=plan.micro // 2)
    if plan.dp % 2 == 0:
        half = replace(plan, dp=plan.dp // 2)
        yield f"tp {2 * plan.tp}", replace(half, tp=2 * plan.tp)
        yield f"pp {2 * plan.pp}", replace(half, pp=2 * plan.pp)
        yield f"cp {2 * plan.cp}", replace(half, cp=2 * plan.cp)
