"""The checks of lesson 11. Form: see oracles.py, and gradients.py for functions that autograd goes through.

What is right comes from one process on whole tensors, with autograd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.checks.answer import Answer, CheckFailed
from utils.checks.compare import Mistakes
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.gradients import (
    CLOSE,
    OVERFLOW,
    driven,
    expect_passes,
    in_groups,
    output_first,
    overflows,
    serial,
    unpacked,
)
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary
from utils.checks.runner import simulate
from utils.checks.scores import Measure
from utils.checks.traffic import expect_calls
from utils.cluster.presets import find_cluster
from utils.kit.drivers.backward import DriveResult, my_group
from utils.kit.drivers.grouped import call_in_group
from utils.kit.drivers.left_behind import leaving_no_groups
from utils.kit.expert_placement import DIM, HIDDEN, placed_layer, routing_statistic
from utils.kit.mixture import make_experts, mixture
from utils.text.units import plural

ROOM = Path(__file__).parent
Dtype = torch.dtype
Groups = Sequence[Sequence[int]]
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
COUNT = 8  # bytes of an int64
SIZES_FIRST = (
    "what a rank receives is what the others send to it, which only they know. And all ranks make the same calls in "
    "the same order, also one that has nothing to send."
)


ADVICE = {
    "Number of tensor splits not equal to group size": (
        "A call without the group goes to all ranks: hand the group to every all_to_all."
    ),
    r"IndexError[\s\S]*get_rank\(\)": (
        "dist.get_rank() is this rank's number in the world. Its place in the group is dist.get_rank(group)."
    ),
    r"inLengthPerRank\[myRank\]": (
        "According to its two lists of splits, this rank sends itself a different number of rows than it receives from "
        "itself. Entry r of the first list says how many rows go to rank r; entry r of the second, how many come from "
        "it."
    ),
    "in->size == out->size": (
        "Without lists of splits, all_to_all_single cuts both tensors into equal parts. The ranks send different "
        "numbers of rows, so hand in both lists."
    ),
    "incorrect number of gradients": (
        "backward returns one entry for each argument of forward: None for the list and for the group."
    ),
    r"Split sizes doesn't match[\s\S]*in backward": (
        "The backward pass goes the other way: it sends as many rows as each rank has sent to this one."
    ),
    r"Split sizes doesn't match": "The first list of splits has to add up to the rows that you hand in.",
    "returned an invalid gradient at index 0": (
        "backward has to return one row for each row that left, so the rows of `grad` must travel back."
    ),
    r"torch\.cat\(\): expected a non-empty list": (
        "No row has come for any of this rank's experts. Run each expert all the same, on an empty tensor: its weights "
        "then get a gradient of zeros."
    ),
}


OF_LAYER = ADVICE | {
    r"Split sizes doesn't match": (
        "The first list of splits has to add up to the rows that you hand in. The counts need an entry for each of the "
        "E experts, chosen or not (bincount's minlength), and on the way back the two lists change places."
    ),
}


def normal(draws: Draws, *shape: int, seed: int = 0, dtype: Dtype = F64) -> Tensor:
    return torch.randn(shape, generator=draws.generator(seed), dtype=F64).to(dtype)


def largest(scores: Tensor, k: int) -> Tensor:
    """Which k entries of each row are the largest, as a mask."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.topk(k).indices, True)


# ---- the router


def gates_of(scores: Tensor, k: int, softmax_first: bool) -> Tensor:
    chosen = largest(scores, k)
    if softmax_first:
        return scores.softmax(-1) * chosen
    return scores.masked_fill(~chosen, -torch.inf).softmax(-1)


def is_bfloat16(got: Any) -> bool:
    return isinstance(got, Tensor) and got.dtype == BF16


def close(value: Tensor, got: Any) -> bool:
    """Whether these are the same numbers but for rounding."""
    if not isinstance(got, Tensor) or (got.shape, got.dtype) != (value.shape, value.dtype):
        return False
    return torch.allclose(got, value, atol=1e-2)


@oracle(
    values=[(5, 4, 6, 2, True), (5, 4, 6, 2, False), (40, 16, 8, 2, False, BF16), (3, 4, 6, 2, False, F32, True)],
)
def router(
    draws: Draws, T: int, D: int, E: int, k: int, softmax_first: bool, dtype: Dtype = F32, ties: bool = False
) -> Case:
    """ties: all scores are equal; which k are chosen doesn't count."""
    x, w_gate = normal(draws, T, D, dtype=dtype) * (not ties), normal(draws, D, E, seed=1, dtype=dtype)
    grad = normal(draws, T, E, seed=2, dtype=F32)

    def gates(x: Tensor, w_gate: Tensor) -> Tensor:
        return gates_of(x.double() @ w_gate.double(), k, softmax_first).to(F32)

    y, gradients = serial(gates, grad, x=x, w_gate=w_gate)
    y = y.sort(-1, descending=True).values if ties else y
    mistakes: dict[str, Mistakes] = {"output": {}}
    if dtype == BF16:
        mistakes["output"] = {  # not known by their numbers, which depend on the processor
            "computed in bfloat16: convert x and w_gate to float32 before the product": partial(
                close, gates_of((x @ w_gate).float(), k, softmax_first)
            ),
            "in bfloat16: the gates are float32, whatever x is": is_bfloat16,
        }
    alone = ties or dtype == BF16  # no gradients
    right = {"output": y} if alone else {"output": y, **gradients}
    given = {"x": x, "w_gate": w_gate}
    same = {"k": k, "softmax_first": softmax_first}
    case = driven(1, given, None if alone else grad, right, mistakes, for_all=same, rtol=1e-5)
    return replace(case, unpack=sorted_gates, seen=TIED) if ties else case


TIED = "all scores of a token are equal, and the gates that you chose are, sorted,"


def sorted_gates(result: DriveResult, rank: int) -> dict[str, Any]:
    gates = unpacked(result, rank)[""]
    return {"": gates.sort(-1, descending=True).values if isinstance(gates, Tensor) and gates.ndim else gates}


### BEGIN HIDDEN TESTS
hidden_router = vary(
    router,
    values=[
        (7, 3, 5, 3, False),
        (6, 5, 4, 1, True),
        (3, 4, 4, 4, False),
        (60, 32, 6, 1, True, BF16),
        (4, 3, 5, 3, True, F32, True),
    ],
)
### END HIDDEN TESTS


# ---- capacity


def with_lists(function: Callable[..., Any], experts: list[list[int]], **for_all: int) -> Any:
    """Call the function with a tensor; its result as lists."""
    positions = function(torch.tensor(experts), **for_all)
    return positions.tolist() if isinstance(positions, Tensor) else positions


buffer_positions = frozen_cases(ROOM, "buffer-positions", driver=with_lists)


### BEGIN HIDDEN TESTS


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
def hidden_buffer_positions(draws: Draws, T: int, E: int, k: int, capacity: int) -> Case:
    scores = torch.rand(T, E, generator=draws.generator()) + torch.linspace(0, 0.5, E)
    experts = scores.topk(k).indices.tolist()
    return Case(
        [[experts]],
        for_all={"num_experts": E, "capacity": capacity},
        right=every(placed(experts, capacity)),
        driver=with_lists,
    )


### END HIDDEN TESTS


# ---- dispatch and combine


BY_HAND = (
    "no gradient: either `backward` returns None for the rows, or the rows go by a call that isn't in an autograd "
    "function"
)


def moved(parts: list[list[Tensor]]) -> list[Tensor]:
    """parts[source][destination] -> what each destination receives, the first source's rows first."""
    return [torch.cat([of_source[rank] for of_source in parts]) for rank in range(len(parts))]


@oracle(
    values=[
        {"send": [[1, 2], [0, 3]], "D": 2, "groups": [[0, 2], [1, 3]]},
        ([[2, 0, 1], [0, 0, 4], [3, 0, 0]], 2),
    ],
    traffic=[([[1, 2], [0, 3]], 3)],
    if_stuck=SIZES_FIRST,
)
@in_groups
def exchange_rows(draws: Draws, send: list[list[int]], D: int, dtype: Dtype = F32) -> Case:
    """send[source][destination]: rows."""
    size = len(send)
    receive = [list(column) for column in zip(*send, strict=True)]
    rows = [draws.integers((sum(counts), D), dtype, seed=rank) + 10 * (rank + 1) for rank, counts in enumerate(send)]
    grads = [draws.integers((sum(counts), D), dtype, seed=50 + rank) + 7 for rank, counts in enumerate(receive)]
    parts = [list(x.split(counts)) for x, counts in zip(rows, send, strict=True)]
    back = [list(grad.split(counts)) for grad, counts in zip(grads, receive, strict=True)]
    right = {"output": moved(parts), "rows": moved(back)}

    def judge(answer: Answer) -> str:
        return expect_each_passes(
            answer,
            forward=[[("all_to_all", COUNT * size), ("all_to_all", x.nbytes)] for x in rows],
            backward=[[("all_to_all", grad.nbytes)] for grad in grads],
        )

    given = {"rows": rows, "send": send}
    case = driven(size, given, grads, right, advice=ADVICE, traffic=judge)
    case.mistakes = {**case.mistakes, "the gradient of rows": {OVERFLOW: overflows, BY_HAND: None}}
    return output_first(case)


### BEGIN HIDDEN TESTS
PAIRS = [[0, 2], [1, 3]]  # two groups of two: ranks 0 and 1 come first in theirs
hidden_exchange_rows = vary(
    exchange_rows,
    values=[
        {"send": [[1, 2], [3, 0]], "D": 3, "dtype": F64, "groups": PAIRS},
        ([[0, 0, 0], [1, 0, 2], [0, 0, 0]], 2),
        ([[4]], 3),
    ],
    traffic=[([[0, 3, 1], [2, 2, 0], [1, 0, 0]], 2, F64)],
)
### END HIDDEN TESTS


def expect_each_passes(
    answer: Answer, forward: list[list[tuple[str, int]]], backward: list[list[tuple[str, int]]]
) -> str:
    """expect_passes, where the ranks make calls of different sizes. The first one sends numbers of rows, in int64."""
    for rank, [sizes, *_] in enumerate(forward):
        first = next((event for event in answer.events if (event.rank, event.op) == (rank, "all_to_all")), None)
        if first and first.dtype != "int64" and first.bytes == sizes[1] // 2:
            raise CheckFailed(
                f"rank {rank} sends its numbers of rows in {first.dtype}",
                "int64",
                "torch.tensor makes that of a list of whole numbers by itself.",
            )
    for rank, calls in enumerate(zip(forward, backward, strict=True)):
        expect_passes(answer, *calls, ranks=[rank])
    return "sizes first, then rows; in the backward pass rows only."


def few_gates(draws: Draws, T: int, E: int, k: int, only: int | None) -> Tensor:
    """Random gates of k experts for each token, (T, E). only: the one expert that all tokens choose."""
    gates = normal(draws, T, E, seed=5).abs() + 0.1
    if only is not None:
        return gates * torch.nn.functional.one_hot(torch.tensor(only), E)
    return gates * largest(gates, k) if T else gates


def parts_of(tokens: list[int], value: Tensor) -> list[Tensor]:
    """Each rank's tokens."""
    return [part.clone() for part in value.split(tokens)]


def floats_of(tokens: list[int], values: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """What each rank has of a layer's tensors, or of their gradients: its tokens, its experts."""
    size = len(tokens)
    return {
        **{name: parts_of(tokens, values[name]) for name in ("x", "gates")},
        **{f"{name}_local": [part.clone() for part in values[name].chunk(size)] for name in ("w_up", "w_down")},
    }


@oracle(
    values=[{"tokens": [3, 5], "E": 4, "k": 2, "groups": [[0, 2], [1, 3]]}, ([4, 1, 2], 3, 1, 2)],
    traffic=[([3, 5], 4, 2)],
    if_stuck=SIZES_FIRST,
)
@in_groups
def expert_layer(draws: Draws, tokens: list[int], E: int, k: int, only: int | None = None) -> Case:
    """tokens: of each rank. only: the expert that all tokens choose."""
    D, F, size, T = 3, 5, len(tokens), sum(tokens)
    x, grad, gates = normal(draws, T, D), normal(draws, T, D, seed=1), few_gates(draws, T, E, k, only)
    w_up, w_down = make_experts(E, D, F, draws.salted())
    whole = {"x": x, "gates": gates, "w_up": w_up, "w_down": w_down}
    y, gradients = serial(mixture, grad, **whole)
    gradients["gates"] *= gates > 0
    of_tokens = partial(parts_of, tokens)
    given = floats_of(tokens, whole)
    right = {"output": of_tokens(y), **floats_of(tokens, gradients)}
    chosen = [of_rank > 0 for of_rank in of_tokens(gates)]
    sent = [int(mask.sum()) * D * x.element_size() for mask in chosen]
    arrived = [sum(int(mask.chunk(size, 1)[rank].sum()) for mask in chosen) * D * 8 for rank in range(size)]

    def judge(answer: Answer) -> str:
        rows = [[("all_to_all", sent[rank]), ("all_to_all", arrived[rank])] for rank in range(size)]
        return expect_each_passes(answer, [[("all_to_all", COUNT * E), *calls] for calls in rows], rows)

    case = driven(size, given, of_tokens(grad), right, advice=OF_LAYER, rtol=CLOSE, traffic=judge)
    return output_first(case)


### BEGIN HIDDEN TESTS
hidden_expert_layer = vary(
    expert_layer,
    values=[
        {"tokens": [2, 3], "E": 6, "k": 2, "groups": PAIRS},
        ([3, 0, 4], 6, 3),
        ([1, 2, 1, 2], 8, 2, 5),
        ([5], 3, 2),
    ],
    traffic=[([2, 4, 1], 6, 2)],
)
### END HIDDEN TESTS


def drawn_positions(draws: Draws, experts: list[list[int]], capacity: int) -> list[list[int]]:
    """A row in its expert's buffer for each choice, in a random order; -1 for those that come when it is full."""
    places = [(token, choice) for token, chosen in enumerate(experts) for choice in range(len(chosen))]
    free: dict[int, int] = {}
    positions = [[-1] * len(chosen) for chosen in experts]
    for number in torch.randperm(len(places), generator=draws.generator(9)).tolist():
        token, choice = places[number]
        position = free.get(experts[token][choice], 0)
        if position < capacity:
            positions[token][choice], free[experts[token][choice]] = position, position + 1
    return positions


@oracle(
    values=[
        {"tokens": [4, 5], "E": 4, "k": 2, "capacity": 2, "groups": [[0, 2], [1, 3]]},
        ([4, 3, 5], 6, 1, 1),
    ],
    traffic=[([4, 5], 4, 2, 2)],
    if_stuck="with fixed buffers nothing depends on the routing, so every rank makes the same calls with equal sizes.",
)
@in_groups
def capacity_layer(draws: Draws, tokens: list[int], E: int, k: int, capacity: int) -> Case:
    """tokens: of each rank."""
    D, F, size, T = 3, 5, len(tokens), sum(tokens)
    x, grad, weight = normal(draws, T, D), normal(draws, T, D, seed=1), normal(draws, T, k, seed=2).abs() + 0.1
    liked = normal(draws, T, E, seed=3) + torch.linspace(0, 1.5, E)  # some experts are wanted too often
    experts = liked.topk(k).indices
    w_up, w_down = make_experts(E, D, F, draws.salted())
    positions = torch.cat(
        [
            torch.tensor(drawn_positions(draws, of_rank.tolist(), capacity), dtype=torch.int64).view(-1, k)
            for of_rank in experts.split(tokens)
        ]
    )
    dropped = positions < 0

    def layer(x: Tensor, gates: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
        return mixture(x, torch.zeros(T, E, dtype=F64).scatter(1, experts, gates), w_up, w_down)

    whole = {"x": x, "gates": weight.masked_fill(dropped, 0), "w_up": w_up, "w_down": w_down}
    y, gradients = serial(layer, grad, **whole)
    gradients["gates"] = gradients["gates"].masked_fill(dropped, 0)
    of_tokens = partial(parts_of, tokens)
    given = floats_of(tokens, whole | {"gates": weight})
    given |= {"experts": of_tokens(experts), "positions": of_tokens(positions)}
    right = {"output": of_tokens(y), **floats_of(tokens, gradients)}
    nbytes = E * capacity * D * x.element_size()
    calls = [("all_to_all", nbytes), ("all_to_all", nbytes)]
    case = driven(
        size,
        given,
        of_tokens(grad),
        right,
        for_all={"capacity": capacity},
        advice=ADVICE,
        rtol=CLOSE,
        traffic=partial(expect_passes, forward=calls, backward=calls),
    )
    return output_first(case)


### BEGIN HIDDEN TESTS
hidden_capacity_layer = vary(
    capacity_layer,
    values=[
        {"tokens": [6, 3], "E": 4, "k": 2, "capacity": 1, "groups": PAIRS},
        ([4, 0, 6], 6, 3, 2),
        ([5], 3, 2, 9),
    ],
    traffic=[([6, 2, 4], 6, 2, 3)],
)
### END HIDDEN TESTS


# ---- balance

slowest_rank = frozen_cases(ROOM, "slowest-rank")


### BEGIN HIDDEN TESTS


@oracle(values=[(3, 6, 64, 256, 1e12), (5, 5, 7, 11, 3e9), (1, 4, 8, 8, 1e6), (4, 16, 32, 96, 2e13)])
def hidden_slowest_rank(draws: Draws, P: int, E: int, dim: int, hidden: int, flops: float) -> Case:
    counts = torch.randint(1, 100, (P, E), generator=draws.generator(1)) + torch.arange(E) * 7
    loads = counts.view(P, P, E // P).sum((0, 2)).tolist()
    return Case(
        [[counts.tolist()]],
        for_all={"num_ranks": P, "dim": dim, "hidden": hidden, "flops": flops},
        right={
            "the time": max(loads) * 4 * dim * hidden / flops,
            "the load over the mean": max(loads) / sum(loads) * P,
        },
        rtol=1e-9,
    )


### END HIDDEN TESTS


@oracle(values=[([4, 4], 3, 1), ([3, 6], 4, 2)], if_stuck="every rank must call g equally often.")
@in_groups
def balance_loss(draws: Draws, tokens: list[int], E: int, k: int, liked: float = 0.5) -> Case:
    """liked: by how much more than the one before each expert is wanted."""
    scores = [normal(draws, t, E, seed=rank) + liked * torch.arange(E) for rank, t in enumerate(tokens)]
    given = [each.softmax(-1) for each in scores]
    chosen = [each.topk(k).indices for each in scores]

    def loss(probabilities: Tensor) -> Tensor:
        share = torch.bincount(torch.cat(chosen).flatten(), minlength=E).double() / sum(tokens) / k
        return E * (share * probabilities.mean(0)).sum()

    grad = torch.tensor(1.0, dtype=F64)
    y, gradients = serial(loss, grad, probabilities=torch.cat(given))
    right = {"output": y, "probabilities": list(gradients["probabilities"].split(tokens))}
    return driven(len(tokens), {"probabilities": given, "chosen": chosen}, grad, right, rtol=CLOSE)


### BEGIN HIDDEN TESTS
hidden_balance_loss = vary(
    balance_loss,
    values=[{"tokens": [3, 5], "E": 4, "k": 2, "groups": PAIRS}, ([2, 5, 3], 5, 3), ([6], 4, 1), ([2, 3], 6, 1, -4.0)],
)
### END HIDDEN TESTS


def summed(values: list[Any], groups: Groups) -> list[Any]:
    """For each rank, the sum over its group."""
    sums = {rank: sum(values[other] for other in members) for members in groups for rank in members}
    return [sums[rank] for rank in range(len(values))]


@oracle(values=[(2, 4, 0.25), (4, 3, 0.5, [[0, 2], [1, 3]])], traffic=[(2, 6, 0.5)])
def balance_bias(draws: Draws, size: int, E: int, rate: float, groups: Groups = ()) -> Case:
    bias = draws.integers(E, F64)
    loads = [10 + 3 * draws.integers(E, F64, seed=1 + rank) for rank in range(size)]
    for load in loads if not groups else []:  # the last expert has exactly the mean load
        load[-1] = load[:-1].sum()
        load[:-1] *= E - 1

    def step(load: Tensor) -> Tensor:
        too_little, too_much = load < load.mean(), load > load.mean()
        return bias + rate * (too_little.double() - too_much.double())

    def in_proportion(got: Any) -> bool:
        sizes = (got - bias).abs() if isinstance(got, Tensor) and got.shape == bias.shape else 0 * bias
        return bool(((sizes > CLOSE) & ((sizes - rate).abs() > CLOSE)).any())

    return Case(
        [[bias] * size, loads],
        for_all={"rate": rate, "groups": groups or None},
        right=[step(total) for total in summed(loads, groups or [list(range(size))])],
        mistakes={"a step of another size than `rate`: it is that, whatever the difference": in_proportion},
        driver=call_in_group,
        rtol=CLOSE,
        traffic=lambda answer: expect_calls(answer, ["all_reduce"], [bias.nbytes]),
    )


### BEGIN HIDDEN TESTS
hidden_balance_bias = vary(
    balance_bias,
    values=[(3, 7, 0.125), (4, 4, 0.5, [[0, 1], [2, 3]]), (1, 5, 1.0)],
    traffic=[(3, 4, 0.25)],
)
### END HIDDEN TESTS


# ---- gradients


def on_grid(
    function: Callable[..., Any],
    dense: Tensor,
    expert: Tensor,
    num_tokens: int,
    rank: int,
    data: Sequence[list[int]],
    replicas: Sequence[list[int]],
) -> Any:
    return function(dense, expert, num_tokens, my_group(rank, data), my_group(rank, replicas))


@oracle(
    values=[([[0, 1, 2, 3]], [[0, 2], [1, 3]], [3, 5, 7, 6]), ([[0, 1], [2, 3]], [[0], [1], [2], [3]], [3, 1, 5, 7])]
)
def moe_gradients(
    draws: Draws, data: Groups, replicas: Groups, tokens: list[int], shape: tuple[int, ...] = (2, 3), dtype: Dtype = F64
) -> Case:
    size = len(tokens)
    dense = draws.different_integers(size, shape, dtype)
    expert = draws.different_integers(size, shape[::-1], dtype, seed=1)

    def over(sums: list[Any], counts: list[Any]) -> list[Any]:
        return [total / count for total, count in zip(sums, counts, strict=True)]

    total = summed(tokens, data)
    right = {
        "the dense gradient": over(summed(dense, data), total),
        "the expert's gradient": over(summed(expert, replicas), total),
    }
    return Case(
        [dense, expert, tokens],
        for_all={"data": data, "replicas": replicas},
        right=right,
        driver=on_grid,
        rtol=CLOSE,
    )


### BEGIN HIDDEN TESTS
hidden_moe_gradients = vary(
    moe_gradients,
    values=[
        ([[0, 1, 2]], [[0], [1], [2]], [4, 1, 2]),
        ([[0, 1, 4, 5], [2, 3, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]], [1, 2, 3, 9, 5, 6, 7, 8], (4,)),
    ],
)
### END HIDDEN TESTS


# ---- two levels


def on_nodes(function: Callable[..., Any], x: Tensor, rank: int, local: Groups, cross: Groups) -> Any:
    given = [my_group(rank, [list(members) for members in groups]) for groups in (local, cross)]
    return leaving_no_groups(function, x, *given)


TARGETS_FIRST = {
    "Split sizes doesn't match": (
        "Dimension 0 must have one entry for each rank of the group. Ranks are numbered node by node, so `x` has the "
        "dimensions (nodes, ranks of a node, rows, features)."
    ),
}


@oracle(values=[(2, 2, 1, 3), (2, 3, 2, 1)], traffic=[(2, 2, 2, 3)], if_stuck=SIZES_FIRST)
def two_level_exchange(draws: Draws, nodes: int, local: int, n: int, D: int, dtype: Dtype = F32) -> Case:
    size = nodes * local
    xs = draws.different_integers(size, (size * n, D), dtype)
    parts = [list(x.split(n)) for x in xs]
    inside = [[node * local + place for place in range(local)] for node in range(nodes)]
    between = [[node * local + place for node in range(nodes)] for place in range(local)]

    def judge(answer: Answer) -> str:
        for rank in range(size):
            seen = sorted((len(e.members), e.op, e.bytes) for e in answer.events if e.rank == rank)
            wanted = sorted((team, "all_to_all", xs[0].nbytes) for team in (local, nodes))
            if seen != wanted:
                raise CheckFailed(
                    f"rank {rank} made these calls: {in_groups_of(seen)}",
                    in_groups_of(wanted),
                    "One all-to-all of the whole tensor inside the node, and one between the nodes.",
                )
        return f"each rank sends {plural(nodes - 1, 'message')} to other nodes, not {(nodes - 1) * local}."

    return Case(
        [xs],
        for_all={"local": inside, "cross": between},
        right=moved(parts),
        driver=on_nodes,
        advice=TARGETS_FIRST,
        traffic=judge,
        values_first=True,
    )


### BEGIN HIDDEN TESTS
hidden_two_level_exchange = vary(
    two_level_exchange,
    values=[(3, 2, 1, 2, F64), (1, 3, 2, 2), (4, 1, 1, 3)],
    traffic=[(3, 2, 1, 4, F64)],
)
### END HIDDEN TESTS


def in_groups_of(calls: list[tuple[int, str, int]]) -> str:
    words = [f"{op} of {nbytes:,} bytes in a group of {team}" for team, op, nbytes in calls]
    return ", ".join(words) or "none"


# ---- the challenge

NODES = replace(find_cluster("dgx-h100", 4), name="4 nodes of one GPU", nodes=4, gpus_per_node=1, nics=None)


@oracle(score=[(64, 8192, 0)], par=frozen_par(ROOM, "expert-placement"))
def expert_placement(_: Draws, experts: int, tokens: int, seed: int) -> Case:
    """On the four nodes of NODES."""
    routing = routing_statistic(NODES.nodes, experts, tokens, seed)
    flops = sum(map(sum, routing)) * 4 * DIM * HIDDEN
    return Case(
        [[routing]],
        also=lambda answer: expect_places(answer.results[0], experts),
        score=Measure(lambda answer: seconds_of_layer(routing, answer.results[0]), "s", "of virtual time"),
        limit=flops / NODES.nodes / NODES.gpu.peak("bf16"),
    )


### BEGIN HIDDEN TESTS


def seconds_of_even_loads(experts: int, tokens: int, seed: int) -> float:
    """Experts by falling load, each to the node with the least so far that has room."""
    routing = routing_statistic(NODES.nodes, experts, tokens, seed)
    nodes, load = range(len(routing)), [sum(counts) for counts in zip(*routing, strict=True)]
    on_node: list[list[int]] = [[] for _ in nodes]
    for expert in sorted(range(experts), key=lambda expert: -load[expert]):
        free = [those for those in on_node if len(those) < experts // len(routing)]
        min(free, key=lambda those: sum(load[one] for one in those)).append(expert)
    places = [next(node for node in nodes if expert in on_node[node]) for expert in range(experts)]
    seconds: float = seconds_of_layer(routing, places)
    return seconds


hidden_expert_placement = vary(expert_placement, par=seconds_of_even_loads, score=[(64, 8192, 1), (64, 16_384, 2)])
### END HIDDEN TESTS


def expect_places(places: Any, experts: int) -> None:
    if not isinstance(places, list) or len(places) != experts:
        raise CheckFailed(f"it returned {places!r}"[:200], f"a list of {experts} nodes, one for each expert")
    strange = [place for place in places if type(place) is not int or place not in range(NODES.nodes)]
    if strange:
        raise CheckFailed(
            f"it places an expert on node {strange[0]!r}"[:200], f"whole numbers from 0 to {NODES.nodes - 1}"
        )
    counts, share = [places.count(node) for node in range(NODES.nodes)], experts // NODES.nodes
    for node, count in enumerate(counts):
        if count != share:
            saw = f"node {node} has {count} experts, and each has room for {share}"
            raise CheckFailed(saw, mistake="A node that is full is out of the choice.")


def seconds_of_layer(routing: list[list[int]], places: list[int]) -> float:
    return simulate(placed_layer, NODES.nodes, routing, places, cluster=NODES).elapsed


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(hidden_slowest_rank, values=[(2, 4, 16, 64, 1e9), (4, 8, 32, 128, 5e11)]),
    vary(expert_placement, par=seconds_of_even_loads),
    vary(hidden_buffer_positions, values=[(6, 3, 2, 2), (8, 4, 2, 3)]),
)
### END HIDDEN TESTS
