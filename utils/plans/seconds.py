"""How long a plan's training step takes, by part, at the rates of the cluster: what step.py takes, in closed form.

    seconds_of(plan, model, batch, find_cluster("dgx-h100", 1024))     {part: seconds}; their sum is a step

compute, memory    products and attention; kernels that memory limits: on the stage that has most to do
tp, cp, ep         communication inside layers, as far as nothing runs beside it
pp, bubble         messages between stages that someone waits for; waiting for the pipeline to fill and to empty
dp                 gathering parameters and scattering gradients, as far as computing doesn't hide it
optimizer          Adam
"""

from __future__ import annotations

from dataclasses import replace

from ..cluster.hardware import Cluster
from .memory import dense_parameters, parameters_of
from .model import Model
from .plan import Plan
from .work import (
    Pass,
    Seconds,
    collective_seconds,
    embedding_seconds,
    kernel_rates,
    layer_seconds,
    optimizer_seconds,
    output_seconds,
)

PARTS = ("compute", "memory", "tp", "cp", "ep", "pp", "bubble", "dp", "optimizer")


def seconds_of(plan: Plan, model: Model, batch: int, cluster: Cluster) -> dict[str, float]:
    """{part: seconds} for a step of `batch` sequences, for a plan that `problem_of` finds nothing wrong with.

    At the cluster's rates; if it names none, at those that `simulate` would take.
    """
    cluster = cluster if cluster.rates else cluster.at_rates()
    alone = replace(plan, dp=1, pp=1, chunks=1)  # all that a microbatch on a stage depends on
    layer = layer_seconds(model, alone, cluster)
    count = plan.microbatches(batch)
    stages = stage_seconds(plan, model, layer, alone, cluster)
    most = max(stages, key=sum)
    parts = most.times(count)._asdict()
    parts["pp"] = message_seconds(plan, model, count, cluster)
    parts["bubble"] = (sum(map(sum, stages)) + (plan.pp - len(stages)) * sum(stages[0]) - sum(most)) / plan.chunks
    parts["dp"] = exchange_seconds(plan, model, layer, cluster)
    dense, experts = max((parameters_of(plan, model, stage) for stage in (0, plan.pp - 1)), key=sum)
    parts["optimizer"] = optimizer_seconds((dense + experts * plan.ep) / plan.replicas, cluster)
    return parts


def stage_seconds(plan: Plan, model: Model, layer: Pass, alone: Plan, cluster: Cluster) -> list[Seconds]:
    """A microbatch, forward and backward, on a stage in the middle, on the first and on the last, if there are such."""
    each = layer.whole
    ends = [each.times(sum(plan.chunk_layers(model, stage))) for stage in sorted({0, plan.pp - 1})]
    if model.vocabulary:
        for place, piece in ((0, embedding_seconds), (-1, output_seconds)):
            ends[place] = ends[place].plus(piece(model, alone, cluster).whole)
    return [each.times(plan.layers(model)), *ends] if plan.pp > 2 else ends


def message_seconds(plan: Plan, model: Model, count: int, cluster: Cluster) -> float:
    """Activations and their gradients on the way from stage to stage while a stage waits for them.

    While the pipeline fills and empties it always does. In between, 1F1B leaves no time either: each microbatch waits
    for 2 messages, less those of one stage in pp; with chunks they travel beside other chunks' computing.
    """
    if plan.pp == 1:
        return 0.0
    nbytes = 2 * plan.tokens(model) // plan.tp * model.width
    message = cluster.link(0, plan.tp * plan.replicas).seconds(nbytes)
    rounds = plan.pp - 1 if plan.chunks > 1 else (plan.pp - 1) * (1 + count / plan.pp)
    return 2 * rounds * message


def exchange_seconds(plan: Plan, model: Model, layer: Pass, cluster: Cluster) -> float:
    """What replicas exchange on the first stage and nothing hides, and what it slows down.

    Layer by layer, parameters come beside the first microbatch's forward, and gradients go beside the last one's
    backward. A rank waits longest for the first layer's, or for the last layer's of the first or the last chunk.
    """
    if plan.replicas == 1 and not (model.tied and plan.pp > 1):
        return 0.0
    table = model.vocabulary // plan.tp * model.width
    of_layer = dense_parameters(model, plan.tp), model.experts * model.expert_parameters // plan.ep // plan.tp
    seconds = 0.0
    for op, size, computing in (("all_gather", 2, layer.forward), ("reduce_scatter", 4, layer.backward)):

        def exchanged(parameters: int, sharing: int = 1, op: str = op, size: int = size) -> float:
            stride = plan.tp * sharing
            return collective_seconds(op, size * parameters, plan.replicas // sharing, stride, cluster)

        each = exchanged(of_layer[0]) + (exchanged(of_layer[1], plan.ep) if of_layer[1] else 0.0)
        ends = exchanged(table) if table else 0.0
        layers, all_of_one = plan.layers(model) // plan.chunks, computing.all
        seen = max(
            each,
            layers * each - (layers - 1) * all_of_one,
            plan.chunks * layers * each - ((plan.chunks - 1) * plan.pp * layers + layers - 1) * all_of_one,
        )
        tables = 2 if plan.pp == 1 and not model.tied else 1
        hidden = plan.layers(model) * each + tables * ends - seen - ends
        if rates := kernel_rates(cluster):
            seconds += rates.beside * max(0.0, hidden) * computing.compute / all_of_one
        seconds += ends + seen
    if model.tied and plan.pp > 1 and table:
        stage = plan.tp * plan.replicas
        seconds += collective_seconds("all_reduce", 4 * table, 2, stage * (plan.pp - 1), cluster)
    return seconds
