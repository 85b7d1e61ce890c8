"""A plan: how a model's training step is spread over GPUs. Which plans there are, and what is wrong with others.

    plan = Plan(dp=32, tp=4, pp=8, chunks=12)
    rule_broken(plan, model, batch, cluster)    why it can't be carried out; "" if it can
    plans(model, batch, cluster)                all that can, and may or may not fit into memory

Ranks are numbered along tp, cp, dp, pp from the inside out. Experts are spread over `ep` neighbouring places of the
dp x cp axis, so that ep takes no GPUs of its own. (Some papers list it as one more axis: dp 8 x ep 8 there is dp 64
with ep 8 here.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product

from ...cluster.hardware import Cluster
from .model import Model

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Plan:
    """Sizes of the axes, and how a rank goes about its part.

    dp, tp, pp   data, tensor (with sequence parallelism) and pipeline parallelism
    cp           context parallelism: tokens of a sequence, keys and values go round a ring
    ep           ranks that share out the experts of a layer
    chunks       stages that a pipeline rank has (interleaving); 1: none
    micro        sequences in a microbatch
    recompute    what backward computes again: "none"; "selective": the MLP's activation function; "full": each layer

    Weights, in 16 bits, and their gradients, in 32, are whole on each rank of dp x cp; Adam's state is spread over them
    (ZeRO-1).
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    chunks: int = 1
    micro: int = 1
    recompute: str = "none"

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Ranks with the same dense weights; of an expert's, it is this by ep."""
        return self.dp * self.cp

    def microbatches(self, batch: int) -> int:
        """Per step, with `batch` sequences."""
        return batch // (self.dp * self.micro)

    def tokens(self, model: Model) -> int:
        """Of a microbatch, on a rank of cp."""
        return self.micro * model.length // self.cp

    def rows(self, model: Model) -> int:
        """That a rank sends to experts per microbatch: its tokens, each for `top` experts, rounded up to a multiple of
        the experts.
        """
        return -(-self.tokens(model) // self.tp * model.top // max(1, model.experts)) * model.experts

    def layers(self, model: Model) -> int:
        """Of a stage in the middle, all its chunks together."""
        return -(-model.layers // self.pp)

    def stage_layers(self, model: Model, stage: int) -> int:
        """Of one stage, all its chunks together.

        What is missing to the same number for all is missing on the last stage and on the first in turn, since these
        have the output and the embeddings: 126 layers on 16 stages are 7, 8, ..., 8, 7.
        """
        each = self.layers(model)
        missing = each * self.pp - model.layers
        return each - (missing // 2 if stage == 0 else 0) - (-(-missing // 2) if stage == self.pp - 1 else 0)

    def chunk_layers(self, model: Model, stage: int) -> list[int]:
        """Of each chunk of a stage. The last stage has fewer in its last one, the first in its first."""
        each = self.layers(model)
        sizes = [each // self.chunks] * self.chunks
        sizes[-1 if stage else 0] -= each - self.stage_layers(model, stage)
        return sizes

    def plain_layers(self, model: Model, stage: int) -> int:
        """Of a stage's first chunk: those without experts, though the model has some."""
        if not model.plain:
            return 0
        before = sum(self.chunk_layers(model, each)[0] for each in range(stage))
        return min(max(0, model.plain - before), self.chunk_layers(model, stage)[0])

    def __str__(self) -> str:
        """Its sizes other than 1: dp 32, tp 4, pp 8, chunks 12."""
        sizes = [f"{field.name} {getattr(self, field.name)}" for field in fields(self) if field.name != "recompute"]
        shown = [size for size in sizes if not size.endswith(" 1")]
        return ", ".join([*shown, *([f"recompute {self.recompute}"] if self.recompute != "none" else [])]) or "one GPU"


def rule_broken(plan: Plan, model: Model, batch: int, cluster: Cluster) -> str:
    """Why a plan can't be carried out on all GPUs of a cluster, in words; "" if it can. batch: sequences per step.

    Memory is a question of its own: see problem_of in memory.py.
    """
    sizes = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "recompute"}
    wrong = [name for name, size in sizes.items() if type(size) is not int or size < 1]
    if wrong:
        return f"{' and '.join(wrong)} must be {'a whole number' if len(wrong) == 1 else 'whole numbers'}, 1 or more"
    if plan.recompute not in RECOMPUTE:
        return f"recompute is {plan.recompute!r}; it must be one of {', '.join(RECOMPUTE)}"
    if plan.gpus != cluster.size:
        return f"dp x tp x pp x cp is {plan.gpus}, but there are {cluster.size} GPUs"
    if plan.tp > cluster.gpus_per_node:
        return f"tp is {plan.tp}, but a node has {cluster.gpus_per_node} GPUs"
    return indivisible(plan, model, batch) or bad_stages(plan, model, batch)


def indivisible(plan: Plan, model: Model, batch: int) -> str:
    """The first size that doesn't divide what it cuts."""
    keys, tokens = model.key_heads, 2 * plan.cp * plan.tp if plan.cp > 1 else plan.tp
    for what, whole, parts in (
        ("tp must divide the heads", model.heads, plan.tp),
        ("tp must divide the heads of keys, or be a multiple of them", max(keys, plan.tp), min(keys, plan.tp)),
        ("tp must divide ffn", model.ffn, plan.tp),
        ("tp must divide the vocabulary", model.vocabulary, plan.tp),
        ("cp x tp, and twice that with cp, must divide the length", model.length, tokens),
        ("ep must divide the experts", max(1, model.experts), plan.ep),
        ("ep must divide dp x cp", plan.replicas, plan.ep),
        ("dp x micro must divide the batch", batch, plan.dp * plan.micro),
    ):
        if whole % parts:
            return f"{what}: {whole} / {parts} is not a whole number"
    return ""


def bad_stages(plan: Plan, model: Model, batch: int) -> str:
    """What is wrong with its pipeline."""
    each = plan.layers(model)
    if plan.chunks > 1 and plan.pp == 1:
        return "chunks need a pipeline, pp above 1"
    if each % plan.chunks:
        return f"chunks must divide the {each} layers of a stage: {each} / {plan.chunks} is not a whole number"
    if plan.chunks > 1 and plan.microbatches(batch) % plan.pp:
        return f"with chunks, pp must divide the microbatches, and {plan.pp} doesn't divide {plan.microbatches(batch)}"
    if min(plan.chunk_layers(model, 0) + plan.chunk_layers(model, plan.pp - 1)) < 0:
        return f"{model.layers} layers can't be spread over {plan.pp} stages of {plan.chunks} chunks"
    return ""


@lru_cache
def divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def plans(
    model: Model,
    batch: int,
    cluster: Cluster,
    most_micro: int = 8,
    most_cp: int = 16,
    recompute: tuple[str, ...] = RECOMPUTE,
) -> Iterator[Plan]:
    """Every plan on all GPUs of a cluster that breaks no rule, each once.

    most_micro, most_cp   larger ones are left out
    recompute             the kinds to try
    """
    gpus = cluster.size
    for tp in divisors(math.gcd(gpus, model.heads)):
        if tp > cluster.gpus_per_node:
            break
        for cp, pp in product(divisors(gpus // tp), divisors(gpus // tp)):
            if cp > most_cp or gpus % (tp * cp * pp) or pp > model.layers + 2:
                continue
            dp = gpus // (tp * cp * pp)
            if indivisible(Plan(dp, tp, pp, cp), model, batch):
                continue
            experts = divisors(math.gcd(max(1, model.experts), dp * cp))
            for micro, chunks in product(divisors(batch // dp), divisors(-(-model.layers // pp))):
                if micro > most_micro or bad_stages(Plan(dp, tp, pp, cp, 1, chunks, micro), model, batch):
                    continue
                for ep, again in product(experts, recompute):
                    yield Plan(dp, tp, pp, cp, ep, chunks, micro, again)
