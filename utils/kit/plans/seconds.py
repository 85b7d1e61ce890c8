"""How long a plan's training step takes, by part, at the rates of the cluster: what step.py takes, in closed form.

    seconds_of(plan, model, batch, find_cluster("dgx-h100", 1024))     {part: seconds}; their sum is a step
    compose(plan, pieces, model, batch, cluster)                       the same of pieces that `simulate` measured
    range_of(seconds, cluster)                                         how long it may really take

compute, memory    products and attention; kernels that memory limits: on the stage that has most to do
tp, cp, ep         communication inside layers, as far as nothing runs beside it
pp, bubble         messages between stages that someone waits for; waiting for the pipeline to fill and to empty
dp                 gathering parameters and scattering gradients, as far as computing doesn't hide it
optimizer          Adam
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from ...cluster.hardware import Cluster
from .memory import dense_parameters, parameters_of
from .model import Model
from .pieces import Key, Piece
from .plan import Plan
from .work import (
    Pass,
    Seconds,
    collective_seconds,
    embedding_seconds,
    layer_seconds,
    optimizer_seconds,
    output_seconds,
)

PARTS = ("compute", "memory", "tp", "cp", "ep", "pp", "bubble", "dp", "optimizer")
NOTHING = Seconds()


def seconds_of(plan: Plan, model: Model, batch: int, cluster: Cluster) -> dict[str, float]:
    """{part: seconds} for a step of `batch` sequences, for a plan that breaks no rule.

    At the cluster's rates; if it names none, at those that `simulate` would take.
    """
    cluster = cluster if cluster.rates else cluster.at_rates()
    alone = replace(plan, dp=1, chunks=1)  # all that a microbatch on a stage depends on
    return step_seconds(plan, model, batch, cluster, *priced_stages(alone, model, cluster))


def compose(plan: Plan, pieces: Mapping[Key, Piece], model: Model, batch: int, cluster: Cluster) -> dict[str, float]:
    """{part: seconds} as seconds_of returns them, of measured pieces (pieces.py). KeyError if the plan's is missing."""
    cluster = cluster if cluster.rates else cluster.at_rates()
    piece = pieces[Key.of(plan)]
    layer = piece.layer_of(plan)
    stages = stages_of(plan, model, layer.whole, piece.embedding.whole, piece.output.whole)
    return step_seconds(plan, model, batch, cluster, layer, stages)


def step_seconds(
    plan: Plan, model: Model, batch: int, cluster: Cluster, layer: Pass, stages: list[Seconds]
) -> dict[str, float]:
    """A step's parts. layer: one microbatch of it; stages: see stages_of."""
    count = plan.microbatches(batch)
    most = max(stages, key=sum)
    parts = dict(zip(PARTS, most.times(count), strict=False))
    bubble = bubble_seconds(plan, list(map(sum, stages)), plan.layers(model) * sum(layer.whole))
    parts["pp"] = message_seconds(plan, model, count, bubble / max(1, plan.pp - 1) - sum(most), cluster)
    parts["bubble"] = bubble
    parts["dp"] = exchange_seconds(plan, model, layer, cluster)
    dense, experts = max((parameters_of(plan, model, stage) for stage in (0, plan.pp - 1)), key=sum)
    parts["optimizer"] = optimizer_seconds((dense + experts * plan.ep) / plan.replicas, cluster)
    return parts


@lru_cache(maxsize=65536)
def priced_stages(plan: Plan, model: Model, cluster: Cluster) -> tuple[Pass, list[Seconds]]:
    """(a layer by formula, stages_of)"""
    alone = replace(plan, pp=1)
    layer = layer_seconds(model, alone, cluster)
    ends = [piece(model, alone, cluster).whole for piece in (embedding_seconds, output_seconds) if model.vocabulary]
    return layer, stages_of(plan, model, layer.whole, *ends)


def stages_of(
    plan: Plan, model: Model, layer: Seconds, embedding: Seconds = NOTHING, output: Seconds = NOTHING
) -> list[Seconds]:
    """What a microbatch takes forward and backward on a stage in the middle, on the first and on the last, if there
    are such. layer, embedding, output: what one of them takes.
    """
    ends = [layer.times(plan.stage_layers(model, stage)) for stage in sorted({0, plan.pp - 1})]
    for place, piece in ((0, embedding), (-1, output)):
        ends[place] = ends[place].plus(piece)
    return [layer.times(plan.layers(model)), *ends] if plan.pp > 2 else ends


def range_of(seconds: Mapping[str, float], cluster: Cluster) -> tuple[float, float] | None:
    """(shortest, longest) between which a real cluster would need, in 8 of 10 cases, as `Run.range` has it for a run.

    seconds   a step's, by part. A bubble lasts as long as what the others do meanwhile.

    None at a datasheet's rates, and where the rates don't say.
    """
    uncertainty = cluster.at_rates().uncertainty
    if uncertainty is None:
        return None
    busy = sum(seconds.values()) - seconds["bubble"]
    stretched = {part: took * (1 + seconds["bubble"] / busy) for part, took in seconds.items() if part != "bubble"}
    memory = stretched["memory"] + stretched["optimizer"]
    rest = sum(stretched.values()) - stretched["compute"] - memory
    return uncertainty.between({"computing": stretched["compute"], "memory": memory, "communication": rest})


def bubble_seconds(plan: Plan, stages: list[float], middle: float) -> float:
    """How long the busiest stage waits: for the first chunk of each stage before it, and the last of each behind it.

    stages: as stages_of has them; middle: one that has all its layers and nothing else
    """
    chunks = [stage - (1 - 1 / plan.chunks) * middle for stage in stages]  # the chunk on the first and last stage
    return sum(chunks) + (plan.pp - len(stages)) * chunks[0] - max(chunks)


def message_seconds(plan: Plan, model: Model, count: int, behind: float, cluster: Cluster) -> float:
    """Activations and their gradients on the way from stage to stage while a stage waits for them.

    While the pipeline fills and empties, someone waits for each. In between, they travel beside other chunks' work.
    With one chunk there is no time for that: each microbatch waits for 2 messages, less those of one stage in pp, and
    less what stages wait anyway for the one that has most to do (-behind).
    """
    if plan.pp == 1:
        return 0.0
    nbytes = 2 * plan.tokens(model) // plan.tp * model.width
    message = cluster.link(0, plan.tp * plan.replicas).seconds(nbytes)
    between = 0.0 if plan.chunks > 1 else max(0.0, 2 * (plan.pp - 1) / plan.pp * message + behind)
    return 2 * (plan.pp * plan.chunks - 1) * message + count * between


def exchange_seconds(plan: Plan, model: Model, layer: Pass, cluster: Cluster) -> float:
    """What replicas exchange on the first stage and nothing hides, and what it slows down.

    Layer by layer, parameters come beside the first microbatch's forward, and gradients go beside the last one's
    backward. A rank waits longest for the first layer's, or for the last layer's of the first or the last chunk.
    """
    table = model.vocabulary // plan.tp * model.width
    layers, rates, seconds = plan.layers(model) // plan.chunks, cluster.kernel_rates, 0.0
    passes = zip(replica_seconds(model, plan.tp, plan.ep, plan.replicas, cluster), layer, strict=True)
    for (each, ends), computing in passes if plan.replicas > 1 else ():
        all_of_one = sum(computing)
        before_last = (plan.chunks - 1) * plan.pp * layers + layers - 1
        seen = max(
            each,
            layers * each - (layers - 1) * all_of_one,
            plan.chunks * layers * each - before_last * all_of_one,
        )
        tables = 2 if plan.pp == 1 and not model.tied else 1
        hidden = plan.chunks * layers * each + (tables - 1) * ends - seen
        slowed = rates.beside * max(0.0, hidden) * computing.compute / all_of_one if rates is not None else 0.0
        seconds += ends + seen + slowed
    if model.tied and plan.pp > 1:
        stage = plan.tp * plan.replicas
        seconds += collective_seconds("all_reduce", 4 * table, 2, stage * (plan.pp - 1), cluster)
    return seconds


@lru_cache(maxsize=65536)
def replica_seconds(
    model: Model, tp: int, ep: int, replicas: int, cluster: Cluster
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(of a layer, of a table), for gathering their parameters and for scattering their gradients."""
    experts = model.experts * model.expert_parameters // ep // tp
    parts = (dense_parameters(model, tp), 1), (experts, ep), (model.vocabulary // tp * model.width, 1)

    def both(op: str, size: int) -> tuple[float, float]:
        dense, of_experts, table = (
            collective_seconds(op, size * number, replicas // sharing, tp * sharing, cluster) if number else 0.0
            for number, sharing in parts
        )
        return dense + of_experts, table

    return both("all_gather", 2), both("reduce_scatter", 4)
