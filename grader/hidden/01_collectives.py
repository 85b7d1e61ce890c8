"""The hidden tests of lesson 01: the visible checks with other inputs.

World sizes 1, 2, 3, 5 and 8; all kinds of roots; uneven and odd sizes; other dtypes; views with gaps.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from utils.checks.marking import check
from utils.checks.oracles import vary
from utils.checks.runner import Runner

visible: Any = import_module("utils.checks.01_collectives")
F32, F64, BF16, I32, I64 = torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64


# ---- part 2

BY_HAND = [
    (3, 1, (2, 3), F64),
    (3, 0, 7, BF16),
    (8, 3, 2, I32),
    (5, 4, 1, I64),
    (1, 0, 3),  # last: with one rank, or one number, different mistakes look the same
]
BYTES_BY_HAND = [(5, 3, 5, F64), (1, 0, 5, F64)]

broadcast_by_hand = vary(visible.broadcast_by_hand, values=BY_HAND, traffic=BYTES_BY_HAND)
gather_by_hand = vary(visible.gather_by_hand, values=BY_HAND, traffic=BYTES_BY_HAND)
reduce_by_hand = vary(visible.reduce_by_hand, values=BY_HAND, traffic=BYTES_BY_HAND)
scatter_by_hand = vary(
    visible.scatter_by_hand,
    values=[((3,), 0), ((1, 4, 2), 1, F64), ((3, 1, 2, 5, 2), 4, I64), ((1,) * 8, 0, BF16)],
    traffic=[((1, 3, 2, 4, 2), 3, F64), ((2,), 0, F64)],
)


# ---- part 3

grid_sums = vary(
    visible.grid_sums, values=[(6, 2, (2, 2), I64), (5, 1), (3, 3, 4, BF16), (1, 1)], traffic=[(6, 2, 3, F64), (3, 1)]
)


# ---- part 4

all_reduce_from_halves = vary(
    visible.all_reduce_from_halves,
    values=[
        (5, (3, 4), I64),
        (3, 4, BF16),
        (8, 5),
        (3, 1, F64),
        (1, 3),
        (3, (2, 5), F32, lambda x: x.T),
        {"world_size": 3, "shape": 4, "groups": [[0, 1, 4], [2, 3, 5]]},
    ],
    traffic=[(3, 7, F64), (5, 5, F64), (3, (4, 3))],
)
distributed_transpose = vary(
    visible.distributed_transpose,
    values=[(3, (4, 6), F64), (5, (2, 5), I64), (3, (1, 9), BF16), (1, (2, 3)), (3, (6, 2), F32, lambda x: x.T)],
    traffic=[(3, (2, 3), F64)],
)


# ---- part 5

global_statistics = vary(
    visible.global_statistics,
    values=[
        ((3,),),
        ((5, 1, 2), F64),
        ((1, 1, 7, 2, 3),),
        ((2, 3, 1), F32, -1),
        ((2, 5, 1, 3, 4), F64, 1, [[0, 3, 4], [1, 2]]),
    ],
)
launch_then_wait = vary(
    visible.launch_then_wait,
    values=[(1, (2, 3)), (3, (1, 5, 2, 2), F64), (5, (3,), I64), (3, (2, 4), F32, -1)],
    traffic=[(3, (2, 1, 4, 3, 1))],
    time=[(3, (3000, 600, 900))],
)


# ---- part 6

all_reduce_any_view = vary(
    visible.all_reduce_any_view,
    values=[
        (1, 10, lambda x: x[1::3], F32),
        (3, 10, lambda x: x[1::3], BF16),
        (5, 10, lambda x: x[1::3], I64),
        (3, (2, 3), lambda x: x.T, F64),
        (3, (2, 3, 4), lambda x: x[:, 1, ::2]),
        {"world_size": 3, "shape": (2, 3), "mixed": True},
    ],
)


@check("agree-or-explain")
def agree_or_explain_values(run: Runner) -> None:
    for world_size, dtype in ((1, I64), (3, F64)):
        visible.judge_agreement(run, visible.drawn(run.draws, world_size, (2, 2), dtype))
    xs = run.draws.different_integers(3, (2, 3))
    visible.judge_disagreement(run, [xs[0], xs[1], xs[2].T], odd=[2])  # as many numbers, another shape
    visible.judge_disagreement(run, [xs[0].int(), xs[1], xs[2]], odd=[1, 2])  # rank 0 is the one that differs
    xs = run.draws.different_integers(5, 4)
    visible.judge_disagreement(run, [xs[0], xs[1].int(), xs[2], xs[3][:1], xs[4]], odd=[1, 3])


# ---- the challenge


def seconds_of_uneven_all_gather(lengths: tuple[int, ...], dtype: torch.dtype = F32) -> float:
    """All tensors padded to the longest: in each of P - 1 steps, each rank passes on one of them."""
    seconds: float = visible.WIRE.seconds(max(lengths) * dtype.itemsize)
    return (len(lengths) - 1) * seconds


uneven_all_gather = vary(
    visible.uneven_all_gather,
    par=seconds_of_uneven_all_gather,
    score=[((7_000, 0, 300, 100_000, 12),), ((1_000, 100_000, 50), F64)],  # uneven enough for sharing out to pay
)

RECORDED = (vary(visible.uneven_all_gather, par=seconds_of_uneven_all_gather),)
