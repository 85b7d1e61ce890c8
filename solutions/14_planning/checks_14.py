"""The checks of lesson 14. Form: see oracles.py; what a rank runs: kit/drivers/on_plans.py.

The truth about a plan is what utils/kit/plans says: its rules, bytes and seconds are held against runs by tests.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from utils.checks.answer import Answer, CheckFailed
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, oracle, vary
from utils.checks.show import show
from utils.cluster.hardware import Cluster
from utils.kit.drivers.on_plans import Site, Sizes, cluster_of, model_of, on_cluster
from utils.kit.plans import Model, Plan, bytes_of, plans, problem_of, seconds_of
from utils.kit.plans.plan import divisors
from utils.kit.plans.work import collective_seconds

ROOM = Path(__file__).parent
MODEL, AT = "nemotron-4-15b", ("dgx-h100", 64)
MOST_CP = MOST_MICRO = 4
KINDS = ("none", "full")


# ---- rules


def as_plan(sizes: Any) -> Plan:
    """A plan from its sizes. Raises CheckFailed for anything else."""
    if not isinstance(sizes, dict) or sizes.keys() != Plan.__dataclass_fields__.keys():
        raise CheckFailed(f"there is {show(sizes)}", "a Plan")
    return Plan(**sizes)


def total(plan: Plan, model: Model, batch: int, cluster: Cluster) -> float:
    return sum(seconds_of(plan, model, batch, cluster).values())


@cache
def best_of(model: Model, batch: int, cluster: Cluster) -> tuple[float, Plan]:
    """(seconds, the plan) of the fastest that fits."""
    fitting = [
        plan
        for plan in plans(model, batch, cluster, MOST_MICRO, MOST_CP, KINDS)
        if sum(bytes_of(plan, model, batch).values()) <= cluster.gpu.memory
    ]
    best = min(fitting, key=lambda plan: total(plan, model, batch, cluster))
    return total(best, model, batch, cluster), best


@oracle(values=[("llama-3-8b", {}, 256, ("dgx-h100", 64)), ("llama-3-70b", {}, 480, ("dgx-h100", 240))])
def first_guess(_: Draws, name: str, sizes: Sizes, batch: int, site: Site) -> Case:
    model, cluster = model_of(name, sizes), cluster_of(site)
    where = f"{name}, batch {batch}, on {site[1]} GPUs of {site[0]}"

    def judge(answer: Answer) -> str:
        plan = as_plan(answer.results[0])
        expect_no_problem(plan, model, batch, cluster, where)
        seconds, (least, best) = total(plan, model, batch, cluster), best_of(model, batch, cluster)
        if plan.recompute != "none" and not problem_of(replace(plan, recompute="none"), model, batch, cluster):
            raise CheckFailed(
                f"{where}: {plan}, {seconds:.2f} s",
                f"no recomputing: that takes {total(replace(plan, recompute='none'), model, batch, cluster):.2f} s",
                "The plan fits without it, and recomputing all layers costs a third of their time. It comes last.",
            )
        if seconds > SLOWEST * least:
            raise CheckFailed(
                f"{where}: {plan}, {seconds:.2f} s",
                f"{SLOWEST * least:.2f} s at most, {SLOWEST} times those of the best plan",
                slow_because(plan, best, model, batch, cluster),
            )
        return f"{where}: {plan}, {seconds / least - 1:.0%} slower than the best plan."

    return Case([[name], [sizes], [batch], [site]], also=judge, through=on_cluster)


SLOWEST = 1.5


def expect_no_problem(plan: Plan, model: Model, batch: int, cluster: Cluster, where: str) -> None:
    problem = problem_of(plan, model, batch, cluster)
    if not problem:
        return
    why, kinds = "", bytes_of(plan, model, batch) if "GPU would need" in problem else {}
    if kinds and 2 * sum(kinds.values()) - kinds["gradients"] - kinds["optimizer"] > 0:
        states = kinds["parameters"] + kinds["gradients"] + kinds["optimizer"]
        if sum(kinds.values()) - states + kinds["parameters"] <= cluster.gpu.memory:
            why = "With the 2 bytes of each weight alone it would fit. Gradients and Adam's state need room, too."
    if plan.tp > cluster.gpus_per_node:
        inside, across = (collective_seconds("all_gather", 1e8, plan.tp, step, cluster) for step in (1, 8))
        near = collective_seconds("all_gather", 1e8, cluster.gpus_per_node, 1, cluster)
        why = (
            f"Its ranks talk in the middle of every layer. 100 MB are gathered in {near * 1e3:.2f} ms within a node, "
            f"and in {inside * 1e3:.2f} ms across nodes."
        )
    raise CheckFailed(f"{where}: {plan}, {problem}", "a plan that works and fits", why)


def slow_because(plan: Plan, best: Plan, model: Model, batch: int, cluster: Cluster) -> str:
    """The part of a step that costs most more than in the best plan."""
    mine, least = (seconds_of(each, model, batch, cluster) for each in (plan, best))
    part = max(mine, key=lambda name: mine[name] - least[name])
    words = f"Most of it is in {part}: {mine[part]:.2f} s, against {least[part]:.2f} s in the best plan."
    return words + BUSIEST * (part == "compute" and plan.pp > 1)


BUSIEST = " One stage has more to do than the others, such as the last, which computes the logits."


### BEGIN HIDDEN TESTS
hidden_first_guess = vary(
    first_guess,
    values=[
        ("llama-2-13b", {}, 384, ("dgx-a100", 96)),
        ("mt-nlg-530b", {}, 1920, ("dgx-a100", 2240)),
        ("mixtral-8x7b", {}, 256, ("dgx-h100", 64)),
        ("nemotron-4-340b", {}, 768, ("dgx-h100", 768)),
    ],
)
### END HIDDEN TESTS
