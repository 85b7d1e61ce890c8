"""The hidden tests of lesson 11: the visible checks, with other values.

Groups of 1 to 5 ranks, and two groups side by side; ranks without tokens, experts that nobody chooses.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from itertools import product
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary

visible: Any = import_module("utils.checks.11_expert_parallelism")

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
PAIRS = [[0, 2], [1, 3]]  # two groups of two: ranks 0 and 1 come first in theirs

router = vary(
    visible.router,
    values=[(7, 3, 5, 3, False), (6, 5, 4, 1, True), (3, 4, 4, 4, False), (60, 32, 6, 1, True, BF16)],
)


# ---- capacity


def placed(experts: list[list[int]], capacity: int) -> list[list[int]]:
    k, taken = len(experts[0]), Counter[int]()
    positions = [[-1] * k for _ in experts]
    for choice, token in product(range(k), range(len(experts))):
        expert = experts[token][choice]
        if taken[expert] < capacity:
            positions[token][choice] = taken[expert]
        taken[expert] += 1
    return positions


@oracle(values=[(9, 4, 2, 3), (6, 3, 3, 4), (5, 7, 1, 1), (12, 5, 3, 6)])
def buffer_positions(draws: Draws, T: int, E: int, k: int, capacity: int) -> Case:
    scores = torch.rand(T, E, generator=draws.generator()) + torch.linspace(0, 0.5, E)
    experts = scores.topk(k).indices.tolist()
    return Case(
        [[experts]],
        same={"num_experts": E, "capacity": capacity},
        right=every(placed(experts, capacity)),
        through=visible.with_lists,
    )


# ---- dispatch and combine

exchange_rows = vary(
    visible.exchange_rows,
    values=[
        {"send": [[1, 2], [3, 0]], "D": 3, "dtype": F64, "groups": PAIRS},
        ([[0, 0, 0], [1, 0, 2], [0, 0, 0]], 2),
        ([[4]], 3),
    ],
    traffic=[([[0, 3, 1], [2, 2, 0], [1, 0, 0]], 2, F64)],
)
expert_layer = vary(
    visible.expert_layer,
    values=[
        {"tokens": [2, 3], "E": 6, "k": 2, "groups": PAIRS},
        ([3, 0, 4], 6, 3),
        ([1, 2, 1, 2], 8, 2, 5),
        ([5], 3, 2),
    ],
    traffic=[([2, 4, 1], 6, 2)],
)
capacity_layer = vary(
    visible.capacity_layer,
    values=[
        {"tokens": [6, 3], "E": 4, "k": 2, "capacity": 1, "groups": PAIRS},
        ([4, 0, 6], 6, 3, 2),
        ([5], 3, 2, 9),
    ],
    traffic=[([6, 2, 4], 6, 2, 3)],
)

# ---- balance and gradients


@oracle(values=[(3, 6, 64, 256, 1e12), (5, 5, 7, 11, 3e9), (1, 4, 8, 8, 1e6), (4, 16, 32, 96, 2e13)])
def slowest_rank(draws: Draws, P: int, E: int, dim: int, hidden: int, flops: float) -> Case:
    counts = torch.randint(1, 100, (P, E), generator=draws.generator(1)) + torch.arange(E) * 7
    of_experts = counts.sum(0).tolist()
    per_rank = E // P
    loads = [sum(of_experts[rank * per_rank : (rank + 1) * per_rank]) for rank in range(P)]
    most, mean = max(loads), sum(loads) / P
    second = 4 * dim * hidden / flops
    return Case(
        [[counts.tolist()]],
        same={"num_ranks": P, "dim": dim, "hidden": hidden, "flops": flops},
        right={"the time": most * second, "the load over the mean": most / mean},
        rtol=1e-9,
    )


balance_loss = vary(
    visible.balance_loss,
    values=[{"tokens": [3, 5], "E": 4, "k": 2, "groups": PAIRS}, ([2, 5, 3], 5, 3), ([6], 4, 1)],
)
balance_bias = vary(
    visible.balance_bias,
    values=[(3, 7, 0.125), (4, 4, 0.5, [[0, 1], [2, 3]]), (1, 5, 1.0)],
    traffic=[(3, 4, 0.25)],
)
moe_gradients = vary(
    visible.moe_gradients,
    values=[
        ([[0, 1, 2]], [[0], [1], [2]], [4, 1, 2]),
        ([[0, 1, 4, 5], [2, 3, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]], [1, 2, 3, 9, 5, 6, 7, 8], (4,)),
    ],
)
two_level_exchange = vary(
    visible.two_level_exchange,
    values=[(3, 2, 1, 2, F64), (1, 3, 2, 2), (4, 1, 1, 3)],
    traffic=[(3, 2, 1, 4, F64)],
)


# ---- the challenge


def seconds_of_even_loads(experts: int, tokens: int, seed: int) -> float:
    """Experts by falling load, each to the node with the least so far that has room."""
    routing = visible.routing_statistic(visible.NODES.nodes, experts, tokens, seed)
    nodes, load = range(len(routing)), [sum(counts) for counts in zip(*routing, strict=True)]
    on_node: list[list[int]] = [[] for _ in nodes]
    for expert in sorted(range(experts), key=lambda expert: -load[expert]):
        free = [those for those in on_node if len(those) < experts // len(routing)]
        min(free, key=lambda those: sum(load[one] for one in those)).append(expert)
    places = [next(node for node in nodes if expert in on_node[node]) for expert in range(experts)]
    seconds: float = visible.seconds_of_layer(routing, places)
    return seconds


expert_placement = vary(visible.expert_placement, par=seconds_of_even_loads, score=[(64, 8192, 1), (64, 16_384, 2)])

RECORDED = (
    vary(slowest_rank, values=[(2, 4, 16, 64, 1e9), (4, 8, 32, 128, 5e11)]),
    vary(visible.expert_placement, par=seconds_of_even_loads),
    vary(buffer_positions, values=[(6, 3, 2, 2), (8, 4, 2, 3)]),
)
