"""`find_plans`: everything that is known about a model on a cluster, from enumeration to what the losers lack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter

from ...cluster.hardware import Cluster
from ...cluster.presets import find_cluster, site_factor
from ..plans import Candidate, Model, Plan, bytes_of
from ..plans.plan import RECOMPUTE
from ..plans.search import MOST_CP, checked_plans, confirmed, contenders, priced
from ..plans.search import order as by_time
from . import saving
from .explaining import explained
from .models import find_model
from .report import report

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Planning:
    """What `find_plans` found. Printed, it is the whole report.

    name       of the model
    batch      sequences per step
    best       the best plans, best first, composed of measured pieces; [] if none fits
    fitting    all that fit, by formula, best first
    too_large  {plan: {kind: bytes}} of all that don't
    limits     what was left out: the kinds of recomputation that were tried, and the largest cp between nodes
    took       (seconds of this machine for the formula, for measuring)
    """

    name: str
    model: Model
    batch: int
    cluster: Cluster
    best: list[Candidate]
    fitting: list[Candidate]
    too_large: dict[Plan, dict[str, float]]
    limits: tuple[tuple[str, ...], int]
    took: tuple[float, float]

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch * self.model.length

    @cached_property
    def nearest(self) -> Plan | None:
        """Of the plans that don't fit, the one that lacks the least."""
        return min(self.too_large, key=lambda plan: sum(self.too_large[plan].values()), default=None)

    def mfu(self, seconds: float) -> float:
        """Of a step that takes so long: the model's FLOPs as a part of those that the GPUs could do, from 0 to 1."""
        available = seconds * self.cluster.size * self.cluster.gpu.peak("bfloat16")
        return self.tokens * self.model.flops_per_token / available

    def days(self, seconds: float, tokens: float) -> float:
        """For a campaign of so many tokens, without failures, if a step takes so many seconds."""
        return tokens / self.tokens * seconds / 86_400

    def candidate(self, plan: Plan) -> Candidate:
        """A plan, measured if it is among the best, else by formula. It may be too large, but must break no rule."""
        known = next((each for each in self.best if each.plan == plan), None)
        return known or priced(plan, self.model, self.batch, self.cluster)

    def explain(self, plan: str | Plan) -> str:
        """What a plan breaks, lacks or takes, beside the best; and what would make it fit.

        plan   a Plan, or its sizes as text: "tp 4, pp 4, cp 2, chunks 5". What is left out is 1; dp follows.

        Raises ValueError for a text that is no plan.
        """
        return explained(self, plan)

    def text(self, tokens: float | None = None) -> str:
        """The whole report. tokens: of a campaign, for its days."""
        return report(self, tokens)

    def __repr__(self) -> str:
        return self.text()

    def save_csv(self, path: str | Path) -> None:
        """All plans that fit, a line each: sizes, bytes by kind, seconds by part; the best as measured."""
        saving.save_csv(self, Path(path))

    def save_json(self, path: str | Path) -> None:
        """The model, the cluster, the best plans with everything, and how many fit."""
        saving.save_json(self, Path(path))


def find_plans(
    model: str | Path | Model,
    gpus: int,
    cluster: str | Cluster = "dgx-h100",
    *,
    batch: int,
    sequence: int | None = None,
    site: str | float = "benchmark",
    n: int = 10,
    recompute: Iterable[str] = RECOMPUTE,
    most_cp: int = MOST_CP,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Planning:
    """The best ways to spread a model's training step over GPUs, with their bytes, seconds, and why the others lost.

    model      a name in MODELS ("llama-3-70b"), the path of a config.json of transformers, or a Model
    gpus       whole nodes of the cluster, or fewer than one node
    cluster    a preset's name, or a Cluster
    batch      sequences per step, over all GPUs
    sequence   tokens per sequence; by default see find_model
    site       "benchmark", "production", ...: see SITES in cluster/presets.py
    n          how many of the best to measure and to return
    recompute  the kinds to try, of "none", "selective" and "full"
    most_cp    the largest context-parallel group between nodes. Beyond 4 the model has not been held against programs
    memory     bytes that tensors may take on a GPU; by default Gpu.memory. An H100 with 80 GiB has 85.9e9 in all
    progress   called with a line of text whenever there is news

    Every plan is priced by formula, memory first. The best n, and those within 5 % of the best, are composed of pieces
    that `simulate` has measured, and that decides. If none fits, `best` is empty, and the report says what is missing.

    Raises ValueError for an unknown name, sizes that contradict each other, and a number of GPUs that are not whole
    nodes.
    """
    say = progress or (lambda line: None)
    name, found = find_model(model, sequence)
    if batch < 1:
        raise ValueError(f"batch is {batch}; it must be sequences per step, 1 or more")
    machine = machine_of(cluster, gpus, site, memory)
    kinds = tuple(recompute)
    if not kinds or set(kinds) - set(RECOMPUTE):
        raise ValueError(f"recompute is {kinds}; the kinds are {', '.join(RECOMPUTE)}")
    begin = perf_counter()
    fitting: list[Candidate] = []
    too_large: dict[Plan, dict[str, float]] = {}
    for plan in checked_plans(found, batch, machine, kinds, most_cp):
        needs = bytes_of(plan, found, batch)
        if sum(needs.values()) <= machine.gpu.memory:
            fitting.append(priced(plan, found, batch, machine))
        else:
            too_large[plan] = needs
    fitting.sort(key=by_time)
    middle = perf_counter()
    if fitting:
        say(f"by formula, in {middle - begin:.1f} s: {fitting[0].plan} at {fitting[0].total:.4g} s per step")
    close = contenders(fitting, n)
    best = confirmed(close, found, batch, machine, lambda done, every: say(f"measured {done} of {every} pieces"))
    took = middle - begin, perf_counter() - middle
    return Planning(name, found, batch, machine, best[:n], fitting, too_large, (kinds, most_cp), took)


def machine_of(cluster: str | Cluster, gpus: int, site: str | float, memory: float | None) -> Cluster:
    """The cluster with exactly these GPUs, at its rates."""
    machine = find_cluster(cluster, gpus).at_rates()
    inside = machine.gpus_per_node
    if gpus < inside:
        machine = replace(machine, nodes=1, gpus_per_node=gpus, nics=None)
    elif gpus % inside:
        down, up = gpus // inside * inside, math.ceil(gpus / inside) * inside
        raise ValueError(
            f"{gpus} GPUs are not whole nodes of {machine.name!r}, which have {inside}: take {down} or {up}"
        )
    else:
        machine = replace(machine, nodes=gpus // inside)
    if site_factor(site) != 1:
        if machine.rates != "achieved":
            raise ValueError(f"site {site!r} changes achieved rates, and those of {machine.name!r} are not known")
        machine = replace(machine, site=site_factor(site))
    if memory is not None:
        machine = replace(machine, gpu=replace(machine.gpu, memory=memory))
    return machine
