"""The language model of transformer.py on a grid: stages along pp, heads and columns along tp, tokens along cp.

    mine = cut_model(model, place, sizes)                  this rank's weights, {name: tensor}
    stage = make_stage(mine, tokens_of_microbatches, positions, place, sizes, num_heads, tp_group, look)
    loss = pipelined(stage, count, like, pp_group)         this rank's share of the loss, on the last stage

place, sizes: {"dp", "pp", "cp", "tp"}, a rank's coordinates and the sizes of the axes. A rank has the tokens of its cp
coordinate; between the sharded regions tp cuts these once more. Gradients still miss what the other ranks know: see
`needs_tp_sum` and `is_tied`, and average over dp and cp together. P of each axis divides what it cuts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .pipelined import Stage
from .sharded_regions import blocks_for
from .transformer import Look, layer_norm, merge_heads, of_layer, split_heads

COLUMNS, ROWS = ("w_up", "b_up"), ("w_out", "w_down")  # cut along the last dimension, or the first; w_qkv: by heads
Place = Mapping[str, int]


def needs_tp_sum(name: str) -> bool:
    """Whether every tp rank has all of this weight, and uses it for its own tokens only."""
    return name.split(".")[-1] not in (*COLUMNS, *ROWS, "w_qkv")


def is_tied(name: str) -> bool:
    """Whether the first and the last stage both have this weight."""
    return name == "table"


def stages_of(name: str, layers: int, stages: int) -> list[int]:
    """The stages that have this weight."""
    if "." in name:
        return [int(name.split(".")[0]) * stages // layers]
    return {"table": [0, stages - 1], "positions": [0]}.get(name, [stages - 1])


def cut(name: str, weight: Tensor, place: int, size: int) -> Tensor:
    """The part of a whole weight that one tp rank has, in memory of its own."""
    name = name.split(".")[-1]
    if name == "w_qkv":
        thirds: Tensor = weight.unflatten(1, (3, size, -1))  # (D, 3, t, D / t)
        return thirds[:, :, place].flatten(1).clone()
    if name in COLUMNS + ROWS:
        parts = weight.chunk(size, 0 if name in ROWS else -1)
        return parts[place].clone()
    return weight.clone()


def cut_model(model: Mapping[str, Tensor], place: Place, sizes: Place) -> dict[str, Tensor]:
    """The weights of one rank."""
    layers = sum(name.endswith(".w_qkv") for name in model)
    return {
        name: cut(name, weight, place["tp"], sizes["tp"])
        for name, weight in model.items()
        if place["pp"] in stages_of(name, layers, sizes["pp"])
    }


def sharded_layer(x: Tensor, w: Mapping[str, Tensor], heads: int, tp_group: dist.ProcessGroup, look: Look) -> Tensor:
    """One layer: (B, S / t, D) -> (B, S / t, D). heads: of this rank. look: attention, (B, heads, S, d) three times."""
    blocks = blocks_for(tp_group)
    gather, scatter = blocks["gather"], blocks["scatter"]
    h = gather(layer_norm(x, w["norm1_weight"], w["norm1_bias"]))
    q, k, v = (split_heads(part, heads) for part in (h @ w["w_qkv"]).chunk(3, dim=-1))
    x = x + scatter(merge_heads(look(q, k, v)) @ w["w_out"]) + w["b_out"]
    h = gather(layer_norm(x, w["norm2_weight"], w["norm2_bias"]))
    y: Tensor = x + scatter(nn.functional.gelu(h @ w["w_up"] + w["b_up"]) @ w["w_down"]) + w["b_down"]
    return y


def make_stage(
    mine: dict[str, Tensor],
    microbatches: Sequence[Tensor],
    positions: Tensor,
    place: Place,
    sizes: Place,
    num_heads: int,
    tp_group: dist.ProcessGroup,
    look: Look,
) -> Stage:
    """What `pipelined` calls. microbatches: (B, S + 1) tokens each, int64; num_heads: of the whole model.

    positions: those of this cp coordinate's tokens in the whole sequence, (S / c,), int64. look: attention of the
    queries there among the keys of all of cp. The last stage returns this rank's part of the mean loss over these
    tokens: those of the tp group add up to it.
    """
    numbers = sorted({int(name.split(".")[0]) for name in mine if "." in name})
    own = positions.chunk(sizes["tp"])[place["tp"]]

    def stage(number: int, x: Tensor | None) -> Tensor:
        tokens = microbatches[number]
        if x is None:
            x = mine["table"][tokens[:, :-1][:, own]] + mine["positions"][own]
        for layer in numbers:
            x = sharded_layer(x, of_layer(mine, layer), num_heads // sizes["tp"], tp_group, look)
        if place["pp"] < sizes["pp"] - 1:
            return x
        logits = layer_norm(x, mine["norm_weight"], mine["norm_bias"]) @ mine["table"].T
        wanted = tokens[:, 1:][:, own]
        total = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
        return total / (wanted.numel() * sizes["tp"] * len(microbatches))

    return stage


def between_stages(mine: Mapping[str, Tensor], microbatch: Tensor, sizes: Place, width: int) -> Tensor:
    """A tensor that looks like what travels from stage to stage: (B, S / (c t), D)."""
    rows, length = microbatch.shape
    dtype = next(iter(mine.values())).dtype
    return torch.empty(rows, (length - 1) // (sizes["cp"] * sizes["tp"]), width, dtype=dtype)
