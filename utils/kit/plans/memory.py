"""What a plan keeps in memory, by kind, on each stage and on the fullest: the bytes that step.py's tensors take.

    bytes_of(plan, model, batch)              {"parameters", "gradients", "optimizer", "activations", "working"}
    bytes_of(plan, model, batch, stage=0)     on a rank of one stage
    problem_of(plan, model, batch, cluster)   why it can't be carried out or doesn't fit; "" if it does

Per parameter 2 bytes of weight, 4 of gradient, and 12 of Adam's state spread over the ranks that have the same ones.
Activations are those that autograd keeps (layers.py): of the layers of as many microbatches as are under way. "working"
is what exists only while a piece computes. What tensors don't hold is left out: see the end of docs/simulator.md.
"""

from __future__ import annotations

from functools import cache

from ...cluster.hardware import Cluster
from .model import Model
from .plan import Plan, rule_broken
from .schedule import most_alive


def parameters_of(plan: Plan, model: Model, stage: int) -> tuple[int, int]:
    """(those that all ranks of dp x cp have, those of experts), on a rank of a stage."""
    layers, table = plan.stage_layers(model, stage), model.vocabulary // plan.tp * model.width
    first, last = stage == 0, stage == plan.pp - 1
    tables = table * (first + (last and not (first and model.tied)))
    final_norm = 2 * model.width * (last and model.vocabulary > 0)
    plain = plan.plain_layers(model, stage)
    of_experts = (layers - plain) * model.experts // plan.ep * model.expert_parameters // plan.tp
    dense = (layers - plain) * dense_parameters(model, plan.tp)
    if plain:
        dense += plain * dense_parameters(model.plain_layer, plan.tp)
    return dense + tables + final_norm, of_experts


@cache
def dense_parameters(model: Model, tp: int) -> int:
    """Of a layer, on a rank of tp; its keys are repeated if there are more ranks than heads of them."""
    keys = max(model.keys // tp, model.head_width)
    attention = model.width * (2 * model.queries // tp + 2 * keys)
    return attention + model.width * (model.matrices * model.dense_ffn // tp + model.experts + 4)


@cache
def layer_bytes(model: Model, tp: int, tokens: int, rows: int, recompute: str) -> tuple[int, int, int]:
    """Of a layer and a microbatch: (input, all that is kept for backward, most that backward needs besides).

    tokens: of a rank of cp; rows: that a rank sends to experts
    """
    own, cut = tokens // tp, tp > 1
    keys, into = max(model.keys // tp, model.head_width), model.matrices - 1
    stream = 2 * own * model.width  # a tensor of the residual stream
    heads = 2 * tokens * (2 * model.queries // tp + 2 * keys) + 4 * tokens * model.heads // tp
    inner = 2 * tokens * model.dense_ffn // tp
    inside = 2 * rows * model.ffn  # all tp ranks' rows, a part of the columns
    there = 2 * rows * model.width
    active = 0 if recompute == "selective" else 1
    norms = 2 * (stream + 8 * own)  # the output, a mean and a deviation
    kept = 2 * stream + norms + heads + (into + active) * inner
    freed = 0
    if model.experts:  # backward begins with them
        kept += (into + active) * inside + 2 * there + 4 * own * (model.experts + 3 * model.top)
        inner, own_rows, freed = inside, there, cut * there  # kept by the sum over a token's experts
    else:
        own_rows = stream
    whole = own_rows * tp
    most = max(cut * whole + (into + 1) * inner, (1 + cut) * whole + cut * own_rows - active * inner) - freed
    return stream, kept, stream + max(most, freed)


def bytes_of(plan: Plan, model: Model, batch: int, stage: int | None = None) -> dict[str, float]:
    """{kind: bytes} on a rank of the stage; by default, of the one that needs most."""
    if stage is None:
        less = plan.stage_layers(model, 0) < plan.layers(model) or model.plain  # on the first stage than on others
        candidates = {0, plan.pp - 1, *range(min(plan.pp, 2 + model.plain) if less else 0)}
        return max((bytes_of(plan, model, batch, each) for each in candidates), key=lambda kinds: sum(kinds.values()))
    dense, experts = parameters_of(plan, model, stage)
    live, working = live_layers(plan, model, batch, stage), working_bytes(plan, model, stage)
    stream, kept, _ = of_layer(plan, model)
    return {
        "parameters": 2.0 * (dense + experts),
        "gradients": 4.0 * (dense + experts),
        "optimizer": 12.0 * (dense + experts * plan.ep) / plan.replicas,
        "activations": float(live * (stream if plan.recompute == "full" else kept)),
        "working": float(working),
    }


def of_layer(plan: Plan, model: Model) -> tuple[int, int, int]:
    return layer_bytes(model, plan.tp, plan.tokens(model), plan.rows(model), plan.recompute)


def problem_of(plan: Plan, model: Model, batch: int, cluster: Cluster) -> str:
    """The rule that a plan breaks, or how much memory is missing, in words; "" if there is no problem."""
    broken = rule_broken(plan, model, batch, cluster)
    if broken:
        return broken
    kinds = bytes_of(plan, model, batch)
    if sum(kinds.values()) <= cluster.gpu.memory:
        return ""
    parts = ", ".join(f"{nbytes / 1e9:.1f} {kind}" for kind, nbytes in kinds.items())
    return f"a GPU would need {sum(kinds.values()) / 1e9:.1f} GB, and has {cluster.gpu.memory / 1e9:g} GB: {parts}"


def live_layers(plan: Plan, model: Model, batch: int, stage: int) -> int:
    """Layers whose activations are there at once: those of all microbatches under way."""
    mine, count = plan.stage_layers(model, stage), plan.microbatches(batch)
    if plan.chunks == 1:
        return min(count, plan.pp - stage) * mine
    under_way = min(count * plan.chunks, 2 * (plan.pp - stage - 1) + (plan.chunks - 1) * plan.pp + 1)
    each = plan.layers(model)
    if mine < each and stage == 0:
        return most_alive(0, plan.pp, count, tuple(plan.chunk_layers(model, 0)))
    return under_way * each // plan.chunks - (each - mine)  # one microbatch of the last stage's last chunk


def working_bytes(plan: Plan, model: Model, stage: int) -> int:
    """The most that the first backward of a layer, the output or the embeddings need; two messages with a pipeline."""
    stream, kept, most = of_layer(plan, model)
    needs = [most + (kept - stream if plan.recompute == "full" else 0)]
    if model.vocabulary and stage == plan.pp - 1:  # kept by the norm; logits, in 16 and in 32 bits
        needs.append(2 * stream + (8 * plan.tokens(model) + 6 * plan.tokens(model) * model.vocabulary) // plan.tp)
    if model.vocabulary and stage == 0:  # all layers of the chunk are done then
        done = plan.chunk_layers(model, stage)[0] * (stream if plan.recompute == "full" else kept)
        needs.append(2 * model.vocabulary // plan.tp * model.width + stream * plan.tp - done)
    return max(needs) + (2 * stream if plan.pp > 1 else 0)
