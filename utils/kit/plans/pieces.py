"""Pieces of a plan's step, measured: one layer, the embeddings and the output, run by `simulate` and not priced.

    pieces = measure_pieces(model, {Key.of(plan) for plan in candidates}, cluster)     {Key: Piece}
    compose(plan, pieces, model, batch, cluster)      {part: seconds}, as seconds_of returns them (seconds.py)

What a piece takes depends on tp, cp, ep and the microbatch alone, so a few dozen pieces make up thousands of plans.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ...cluster.hardware import Cluster
from ...worlds.virtual.launch import simulate
from .layers import Piece as Part
from .model import Model
from .plan import Plan
from .products import DTYPE
from .step import Stage, alike
from .work import Pass, Seconds, embedding_seconds, layer_seconds, output_seconds


class Key(NamedTuple):
    """All that a piece depends on, for one model on one cluster."""

    tp: int
    cp: int = 1
    ep: int = 1
    micro: int = 1

    @classmethod
    def of(cls, plan: Plan) -> Key:
        return cls(plan.tp, plan.cp, plan.ep, plan.micro)

    def plan(self, recompute: str = "none") -> Plan:
        """The smallest one with these sizes: on tp x cp x ep GPUs, or fewer if ep uses those of cp."""
        dp = self.ep // math.gcd(self.ep, self.cp)
        return Plan(dp, self.tp, 1, self.cp, self.ep, 1, self.micro, recompute)


class Piece(NamedTuple):
    """What the ranks of a Key take for one microbatch, forward and backward.

    again   added to a layer's backward if it computes the activation function again
    """

    layer: Pass
    embedding: Pass
    output: Pass
    again: Seconds

    def layer_of(self, plan: Plan) -> Pass:
        """A layer's, with what the plan computes again."""
        more = {"none": Seconds(), "selective": self.again, "full": self.layer.forward}[plan.recompute]
        return self.layer._replace(backward=self.layer.backward.plus(more))


def measure_pieces(
    model: Model, keys: Iterable[Key], cluster: Cluster, progress: Callable[[int, int], None] | None = None
) -> dict[Key, Piece]:
    """Run one layer, the embeddings and the output for each key, on a cluster with room for tp x cp x ep ranks.

    progress   called with (pieces measured, pieces in all) after each run

    Seconds are split into parts (compute, tp, ...) as the formula of work.py splits them; their sum is what was
    measured. Raises RankFailed for a key whose sizes don't divide the model's.
    """
    cluster = cluster.at_rates()
    endless = replace(cluster, gpu=replace(cluster.gpu, memory=math.inf))
    together: dict[tuple[int, ...], list[Key]] = defaultdict(list)
    for key in dict.fromkeys(keys):  # one run for those whose ranks differ alike
        together[(key.tp, key.cp, key.ep) if key.cp > 1 else (1,)].append(key)
    found: dict[Key, Piece] = {}
    every = sum(map(len, together.values()))
    for several in together.values():
        plans = [key.plan() for key in several]
        size = max(plan.gpus for plan in plans)
        kind = alike(plans[0]) if plans[0].cp > 1 else lambda rank: 0
        run = simulate(every_piece, size, replace(model, layers=1, plain=0), plans, cluster=endless, alike=kind)
        for key, seconds in zip(several, run.results[0], strict=True):
            found[key] = in_parts(key, model, cluster, seconds)
        if progress is not None:
            progress(len(found), every)
    return found


def every_piece(rank: int, world_size: int, model: Model, plans: list[Plan]) -> list[list[tuple[float, float]]]:
    found = []
    for plan in plans:
        timed(parts(rank, model, plan, "none")[0], model, plan)  # not counted: the host isn't ahead of the GPU yet
        every = [part for recompute in ("none", "selective") for part in parts(rank, model, plan, recompute)]
        found.append([timed(part, model, plan) for part in every])
    return found


def parts(rank: int, model: Model, plan: Plan, recompute: str) -> list[Part]:
    [pieces] = Stage(rank, model, replace(plan, recompute=recompute), plan.dp * plan.micro).chunks
    return pieces


def timed(part: Part, model: Model, plan: Plan) -> tuple[float, float]:
    """(forward, backward) of one microbatch."""

    def residual() -> Tensor:
        return torch.empty(plan.tokens(model) // plan.tp, model.width, dtype=DTYPE).requires_grad_()

    begin = time.perf_counter()
    y = part(residual())
    middle = time.perf_counter()
    torch.autograd.backward([get_gradient_edge(y)], [torch.empty_like(y)])
    return middle - begin, time.perf_counter() - middle


def in_parts(key: Key, model: Model, cluster: Cluster, measured: list[tuple[float, float]]) -> Piece:
    """measured: (forward, backward) of embeddings, layer and output, then again where activations are recomputed."""
    formulas = [layer_seconds] if not model.vocabulary else [embedding_seconds, layer_seconds, output_seconds]
    priced = [formula(model, key.plan(), cluster) for formula in formulas]
    passes = [
        Pass(scaled(price.forward, forward), scaled(price.backward, backward))
        for price, (forward, backward) in zip(priced, measured[: len(priced)], strict=True)
    ]
    place = len(priced) // 2
    again = Seconds(memory=measured[place + len(priced)][1] - measured[place][1])
    ends = (passes[0], passes[2]) if model.vocabulary else (Pass(), Pass())
    return Piece(passes[place], *ends, again)


def scaled(price: Seconds, measured: float) -> Seconds:
    return price.times(measured / sum(price))
