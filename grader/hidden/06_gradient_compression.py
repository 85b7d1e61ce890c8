"""The hidden tests of lesson 06, and the oracle of the exercise whose answer is a formula.

World sizes 1, 2, 3, 5 and 8; other dtypes, seeds, sizes, blocks and compressors; slower networks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, oracle, side_by_side, vary

visible: Any = import_module("utils.checks.06_gradient_compression")
COARSE, HALF = visible.COARSE, visible.HALF

mean_in_half = vary(
    visible.mean_in_half,
    values=[(3, torch.float16, 4, torch.float64), (5, torch.bfloat16, 3), (1, torch.float16)],
    traffic=[(3, torch.bfloat16, 5)],
)
stochastic_round = vary(visible.stochastic_round, values=[(2, 9000, torch.float64), (5, 2000)])
quantise = vary(
    visible.quantise,
    values=[
        (1, 5, 127, torch.round),
        (13, 5, 7, torch.floor),
        (12, 12, 127, visible.upwards),
        (9, 2, 7, torch.round, 0, torch.float64),
    ],
)
mean_of_gathered = vary(
    visible.mean_of_gathered, values=[(5, 3, 0), (3, 4, 2, True), (1, 3)], traffic=[(2, 5, 3, True), (4, 3)]
)
majority = vary(visible.majority, values=[(5, 17), (8, 8, torch.float64), (1, 3), (2, 9)], traffic=[(3, 33)])

top_k_mean = vary(visible.top_k_mean, values=[(5, 9, 4), (4, 4, 4), (1, 6, 2), (2, 12, 1)], traffic=[(5, 11, 3)])
random_k_mean = vary(visible.random_k_mean, values=[(4, 9, 4), (5, 6, 3), (1, 5, 2)], traffic=[(3, 7, 2, 5)])

feedback_step = vary(visible.feedback_step, values=[(3, 5, visible.halved_mean), (5, 2), (1, 4, visible.halved_mean)])
power_sgd = vary(
    visible.power_sgd,
    values=[(5, 3, 6, 1), (2, 4, 4, 4), (1, 7, 5, 3), (3, 8, 3, 2, torch.float32)],
    traffic=[(3, 3, 9, 1, torch.float32)],
)

compressed_hook = vary(
    visible.compressed_hook,
    values=[(3, 3, 2, HALF, (), 3), (1, 2, 1, COARSE), (2, 4, 4, COARSE, (), 3)],
    traffic=[(3, 3, 1, HALF, (0.1, 1.3))],
    time=[(2, 5, 1, COARSE, (0.05, 2.5)), (4, 4, 2, HALF, (0.05, 0.2))],
)


Numbers = tuple[float, float, float, int]  # bytes dense, bytes of a payload, seconds, ranks


@oracle(values=[((3e9, 1e7, 2e-3, 16), (4e6, 4e6, 1e-3, 2), (1e6, 2e5, 5e-4, 9), (1e6, 2e5, 5e-4, 12))])
def break_even(_: Draws, *numbers: Numbers) -> Case:
    return side_by_side([break_even_of(*each) for each in numbers])


def break_even_of(dense: float, payload: float, codec: float, ranks: int) -> Case:
    all_reduce, all_gather = 2 * (ranks - 1) / ranks * dense, (ranks - 1) * payload  # bytes that each rank sends
    saved = {
        "the bytes handed in: each rank sends P - 1 payloads in one case, 2 (P - 1) / P gradients in the other": (
            dense - payload
        ),
        "an all-reduce of payloads: they are gathered, so each rank sends P - 1 of them": (
            2 * (ranks - 1) / ranks * (dense - payload)
        ),
        "a gather that sends (P - 1) / P payloads: each rank passes on P - 1 of them": (
            all_reduce - payload * (ranks - 1) / ranks
        ),
        "a gather that sends nothing: subtract its bytes": all_reduce,
        "the bytes of both together: subtract those of the gather": all_reduce + all_gather,
        "2 (P - 1) // P, which is rounded down: divide with /": 2 * (ranks - 1) // ranks * dense - all_gather,
        "one payload sent by each rank: in a gather it is P - 1": all_reduce - payload,
        "P payloads sent by each rank: in a gather it is P - 1": all_reduce - ranks * payload,
        "an all-reduce that sends (P - 1) / P gradients: it has two phases": all_reduce / 2 - all_gather,
    }
    mistakes = {f"the result for {words}": max(0.0, each / codec) for words, each in saved.items()}
    if all_reduce < all_gather:
        more = (all_gather - all_reduce) / codec
        mistakes["below 0: where compression sends more bytes it never pays, and the answer is 0.0"] = -more
        mistakes["for bytes that aren't saved but added: where compression sends more, the answer is 0.0"] = more
    elif all_reduce > all_gather:
        mistakes["the bytes saved times the seconds: divide"] = (all_reduce - all_gather) * codec
        mistakes["seconds per byte: divide the bytes saved by the seconds"] = codec / (all_reduce - all_gather)
    return Case(
        [[dense], [payload], [codec], [ranks]],
        right=max(0.0, (all_reduce - all_gather) / codec),
        mistakes=mistakes,
        rtol=1e-9,
        seen=f"{dense:g} bytes, payload {payload:g} bytes, codec {codec:g} s, {ranks} ranks: you returned",
    )


# ---- the challenge


def two_percent(rank: int, world_size: int) -> Any:
    """Par: top 2 % with error feedback."""
    residual = torch.zeros(1)

    def hook(bucket: Any) -> Any:
        nonlocal residual
        flat = bucket.flat + residual
        where = flat.abs().topk(len(flat) // 50).indices
        residual = flat.index_fill(0, where, 0)
        mine = [flat[where], where.int()]
        everybodys = [[x.clone() for _ in range(world_size)] for x in mine]
        for parts, x in zip(everybodys, mine, strict=True):
            dist.all_gather(parts, x)
        values, places = (torch.cat(parts) for parts in everybodys)
        bucket.flat.zero_().index_add_(0, places, values / world_size)
        return lambda: None

    return hook


def seconds_of_two_percent(steps: int, seed: int) -> float:
    seconds: float = visible.seconds_of_training(two_percent, visible.SLOW, steps, seed)
    return seconds


slow_network_hook = vary(visible.slow_network_hook, par=seconds_of_two_percent, score=[(visible.STEPS, 1)])

RECORDED = (
    vary(break_even, values=[((64e6, 1e6, 1e-3, 8), (100e6, 10e6, 2e-3, 4), (8e6, 5e6, 1e-3, 8))]),
    vary(visible.slow_network_hook, par=seconds_of_two_percent),
)
