"""The hidden tests of lesson 08: the visible checks, with other values.

Groups of 1, 2, 3, 4, 5 and 8 ranks, and two groups side by side; other shapes and dtypes; strided views.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from utils.checks.closed_forms import simulate
from utils.checks.marking import check
from utils.checks.oracles import vary
from utils.checks.runner import Runner
from utils.kit.functional_collectives import all_gather, reduce_scatter

visible: Any = import_module("utils.checks.08_tensor_parallelism")

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
column_major = visible.column_major
PAIRS = [[0, 2], [1, 3]]  # two groups of two: ranks 0 and 1 come first in theirs


def columns_apart(x: torch.Tensor) -> torch.Tensor:
    """The same values, with gaps between the columns."""
    return x.repeat_interleave(2, -1)[..., ::2]


def all_alike(x: torch.Tensor) -> torch.Tensor:
    """The first column everywhere: a view with stride 0."""
    return x[:, :1].expand(x.shape)


# ---- part 1

shard_of_weight = vary(
    visible.shard_of_weight, values=[(3, 9, 4, 0), (5, 3, 10, 1), (1, 3, 4, 1)], memory=[(3, 5, 9, 1)]
)
column_parallel = vary(
    visible.column_parallel,
    values=[(3, 1, 5, 3), (1, 2, 3, 4), {"size": 2, "B": 3, "D": 2, "F": 4, "dtype": F64, "groups": PAIRS}],
    traffic=[(3, 5, 4, 6, F64)],
)
row_parallel = vary(
    visible.row_parallel,
    values=[(5, 2, 10, 3), (1, 2, 3, 4), {"size": 2, "B": 3, "F": 4, "D": 2, "dtype": F64, "groups": PAIRS}],
    traffic=[(3, 4, 9, 5, F64)],
)

# ---- part 2

IN_PAIRS = {"size": 2, "shape": (3, 1, 2), "dtype": F64, "groups": PAIRS}

copy_to_shards = vary(
    visible.copy_to_shards,
    values=[(3, (2, 4), F32, column_major), (2, (2, 4), F32, all_alike), (4, (5,), BF16), (1, (2, 2)), IN_PAIRS],
    traffic=[(3, (5, 1), F64)],
)
reduce_from_shards = vary(
    visible.reduce_from_shards,
    values=[(3, (2, 1, 4), F32, column_major), (5, (2, 3), BF16, columns_apart), (1, (2, 2)), IN_PAIRS],
    traffic=[(3, (5, 1), F64)],
)
gather_from_shards = vary(
    visible.gather_from_shards,
    values=[(3, (2, 2, 2), F32, columns_apart), (5, (7,), BF16), (1, (2, 2)), IN_PAIRS | {"shape": (3, 2)}],
    traffic=[(3, (2, 1, 2), F64)],
)

# ---- part 3

megatron_mlp = vary(
    visible.megatron_mlp,
    values=[(3, (2, 5), 9), (2, (2, 3, 4), 8), (1, (3, 4), 6)],
    traffic=[(3, (2, 2, 5), 9)],
    time=[(8, (64, 32), 32, 2e-6, 3e9)],
)

# ---- part 4

parallel_embedding = vary(
    visible.parallel_embedding,
    values=[
        (5, 2, 3, torch.tensor([9, 0, 1, 4, 5, 9, 6, 3, 2, 7, 8]), F64),
        (3, 4, 1, torch.tensor([[[3], [4], [11]]])),
        (2, 3, 2, torch.tensor([5, 5, 3])),  # one rank has none of them
        (1, 4, 2, torch.tensor([3, 0])),
    ],
    traffic=[(3, 2, 4, torch.tensor([[0, 5, 3]]))],
)
parallel_cross_entropy = vary(
    visible.parallel_cross_entropy,
    values=[
        (3, 7, 4),
        (5, 4, 2, -1000.0),
        (1, 3, 4, 1000.0),
        (4, 8, 3, 0.0, 1),
        (3, 4, 3, 500.0, -1, -900.0),
        {"size": 2, "N": 9, "words": 3, "apart": 900.0, "groups": PAIRS},
    ],
    traffic=[(3, 5, 40)],
)
parallel_attention = vary(
    visible.parallel_attention, values=[(3, 1, 4, 12, 6), (4, 2, 2, 8, 4), (1, 2, 3, 6, 3)], traffic=[(3, 1, 5, 6, 3)]
)

# ---- part 5

ACROSS: list[Any] = [(3, (1, 2, 4), F32, columns_apart), (5, (2, 1, 1)), (1, (2, 2, 2))]

across_sequence = vary(
    visible.across_sequence,
    values=[
        *((way, *case) for case in ACROSS for way in visible.WAYS),
        *(IN_PAIRS | {"direction": way, "shape": (3, 2, 1)} for way in visible.WAYS),
    ],
    traffic=[(way, 3, (1, 2, 2), F64) for way in visible.WAYS],
)
sequence_parallel_mlp = vary(
    visible.sequence_parallel_mlp,
    values=[(3, 1, 6, 4, 6), (4, 2, 4, 5, 8), (1, 2, 3, 4, 4)],
    traffic=[(3, 1, 6, 5, 6)],
    memory=[(2, 1, 96, 32, 32, True)],
)


@check("dropout-generators")
def dropout_generators_values(run: Runner) -> None:
    visible.judge_generators(run, 8, seed=3)
    visible.judge_generators(run, 3, seed=2**31)
    visible.judge_generators(run, 1, seed=1)


# ---- the challenge


class GatheredTwice(torch.autograd.Function):
    """Keeps the shards, and gathers once more in the backward pass. tokens_first: which gradient comes first there."""

    @staticmethod
    def forward(ctx: Any, tokens_first: bool, x: torch.Tensor, w: torch.Tensor, tp_group: Any) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.tp_group, ctx.tokens_first = tp_group, tokens_first
        return all_gather(x, tp_group, dim=1) @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor, None]:
        x, w = ctx.saved_tensors
        grad_x = reduce_scatter(grad @ w.T, ctx.tp_group, dim=1) if ctx.tokens_first else None
        grad_w = all_gather(x, ctx.tp_group, dim=1).flatten(0, 1).T @ grad.flatten(0, 1)
        return None, reduce_scatter(grad @ w.T, ctx.tp_group, dim=1) if grad_x is None else grad_x, grad_w, None


def stack_of(rank: int, world_size: int, B: int, S: int, D: int, F: int, groups: list[list[int]] | None) -> int:
    t = len(groups[0]) if groups else world_size
    shapes = [(B, S // t, D), (D, F // t), (B, S, F // t)]
    xs, ws, grads = ([torch.zeros(shape, dtype=F64) for _ in range(visible.PRODUCTS)] for shape in shapes)
    either = [partial(GatheredTwice.apply, first) for first in (True, False)]  # which keeps more depends on the shapes
    return max(int(visible.drive_stack(one, xs, ws, grads, rank, world_size, groups)["peak"]) for one in either)


def peak_of_gathered_twice(size: int, *shape_and_groups: Any) -> float:
    return float(max(simulate(stack_of, size, *shape_and_groups, cluster=visible.CHALLENGE, device="cpu").results))


gathered_product = vary(
    visible.gathered_product,
    par=peak_of_gathered_twice,
    score=[(3, 1, 48, 20, 12, None), (4, 3, 16, 8, 24, PAIRS), (1, 2, 8, 4, 4, None)],
)

RECORDED = (vary(visible.gathered_product, par=peak_of_gathered_twice),)
