"""The checks of lesson 11. Form: see oracles.py, and gradients.py for functions that autograd goes through.

What is right comes from one process on whole tensors, with autograd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.checks.answer import Answer, CheckFailed
from utils.checks.closed_forms import simulate
from utils.checks.compare import Mistakes
from utils.checks.equality import alike
from utils.checks.gradients import CLOSE, OVERFLOW, driven, expect_passes, in_groups, output_first, overflows, serial
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary
from utils.checks.recorded import recorded, recorded_par
from utils.checks.scores import Measure
from utils.checks.traffic import expect_calls
from utils.cluster.presets import find_cluster
from utils.kit.drivers.backward import my_group
from utils.kit.drivers.grouped import call_in_group
from utils.kit.drivers.left_behind import leaving_no_groups
from utils.kit.expert_placement import DIM, HIDDEN, placed_layer, routing_statistic
from utils.kit.mixture import expert_mlp, make_experts, mixture
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


WHOLE_WORLD = {
    "Number of tensor splits not equal to group size": (
        "A call without the group goes to all ranks: hand the group to every all_to_all."
    ),
}
ADVICE = WHOLE_WORLD | {
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


def like(*values: Tensor) -> Callable[[Any], bool]:
    """Whether what came back is one of these, but for rounding."""
    return lambda got: any(alike(got, value, 1e-5) for value in values)


def close(value: Tensor, got: Any) -> bool:
    """Whether these are the same numbers but for rounding."""
    if not isinstance(got, Tensor) or (got.shape, got.dtype) != (value.shape, value.dtype):
        return False
    return torch.allclose(got, value, atol=1e-2)


@oracle(values=[(5, 4, 6, 2, True), (5, 4, 6, 2, False), (40, 16, 8, 2, False, BF16)])
def router(draws: Draws, T: int, D: int, E: int, k: int, softmax_first: bool, dtype: Dtype = F32) -> Case:
    x, w_gate = normal(draws, T, D, dtype=dtype), normal(draws, D, E, seed=1, dtype=dtype)
    grad = normal(draws, T, E, seed=2, dtype=F32)

    def gates(x: Tensor, w_gate: Tensor, first: bool = softmax_first, most: int = k) -> Tensor:
        return gates_of(x.double() @ w_gate.double(), most, first).to(F32)

    def gates_of_tokens(x: Tensor, w_gate: Tensor) -> Tensor:
        return (scores.softmax(0) * largest(scores.softmax(0), k)).to(F32)

    scores = x.double() @ w_gate.double()
    chosen = largest(scores, k)
    y, gradients = serial(gates, grad, x=x, w_gate=w_gate)
    rounded = partial(close, gates_of((x @ w_gate).float(), k, softmax_first))
    before = "computed in bfloat16: convert x and w_gate to float32 before the product"
    best = torch.gather(gates(x, w_gate), 1, scores.topk(k).indices)
    lowest, over_zeros = largest(-scores, k), torch.where(chosen, scores, 0).softmax(-1).to(F32)
    zeros = "a softmax in which experts that were not chosen have a score of 0: it has to be -inf, or leave them out"
    mistakes: dict[str, Mistakes] = {
        "output": {
            "the softmax over all experts, also of those that were not chosen: set those to zero": gates(
                x, w_gate, True, E
            ),
            "the softmax over the chosen scores alone; with softmax_first it goes over all experts, and what is chosen "
            "stays as it is": gates(x, w_gate, False),
            "the softmax over all experts; without softmax_first it goes over the chosen scores alone": gates(
                x, w_gate, True
            ),
            "a softmax over the tokens: the last dimension is that of the experts": gates_of_tokens(x, w_gate),
            "1 for each expert that was chosen: its gate is the softmax's number": chosen.to(F32),
            "the scores themselves: a gate comes out of a softmax": (scores * chosen).to(F32),
            "one expert for each token: choose k of them": gates(x, w_gate, softmax_first, 1),
            "the gates of the chosen experts alone, (T, k): put each into its place in a row of E": best,
            "the gates of the experts with the lowest scores": like(
                (scores.softmax(-1) * lowest).to(F32), scores.masked_fill(~lowest, -torch.inf).softmax(-1).to(F32)
            ),
            **({} if softmax_first else {zeros: like(over_zeros, over_zeros * chosen)}),
            **({before: rounded} if dtype == BF16 else {}),
            "in bfloat16: the gates are float32, whatever x is": lambda got: (
                isinstance(got, Tensor) and got.dtype == BF16
            ),
        }
    }
    right = {"output": y} if dtype == BF16 else {"output": y, **gradients}
    given = {"x": x, "w_gate": w_gate}
    same = {"k": k, "softmax_first": softmax_first}
    return driven(1, given, None if dtype == BF16 else grad, right, mistakes, same=same, rtol=1e-5)


### BEGIN HIDDEN TESTS
hidden_router = vary(
    router,
    values=[(7, 3, 5, 3, False), (6, 5, 4, 1, True), (3, 4, 4, 4, False), (60, 32, 6, 1, True, BF16)],
)
### END HIDDEN TESTS


# ---- capacity


def with_lists(function: Callable[..., Any], experts: list[list[int]], **same: int) -> Any:
    """Call the function with a tensor; its result as lists."""
    positions = function(torch.tensor(experts), **same)
    return positions.tolist() if isinstance(positions, Tensor) else positions


buffer_positions = recorded(ROOM, "buffer-positions", through=with_lists)


### BEGIN HIDDEN TESTS


def placed(experts: list[list[int]], capacity: int, by_token: bool = False) -> list[list[int]]:
    """by_token: all choices of a token before the next token's."""
    k, taken = len(experts[0]), Counter[int]()
    positions = [[-1] * k for _ in experts]
    places = [(token, choice) for choice in range(k) for token in range(len(experts))]
    for token, choice in sorted(places) if by_token else places:
        expert = experts[token][choice]
        if taken[expert] < capacity:
            positions[token][choice] = taken[expert]
        taken[expert] += 1
    return positions


@oracle(values=[(9, 4, 2, 3), (6, 3, 3, 4), (5, 7, 1, 1), (12, 5, 3, 6)])
def hidden_buffer_positions(draws: Draws, T: int, E: int, k: int, capacity: int) -> Case:
    scores = torch.rand(T, E, generator=draws.generator()) + torch.linspace(0, 0.5, E)
    experts = scores.topk(k).indices.tolist()
    unlimited = placed(experts, T * k)
    columns = [placed([[e] for e in column], capacity) for column in zip(*experts, strict=True)]
    flat = [p for column in zip(*placed(experts, capacity), strict=True) for p in column]
    untransposed = [flat[start : start + k] for start in range(0, T * k, k)]
    separate = [[column[token][0] for column in columns] for token in range(T)]
    mistakes = {
        "the order of the tokens with all their choices: first choices of all tokens come first": every(
            placed(experts, capacity, by_token=True)
        ),
        "without a limit: positions from the capacity on are -1": every(unlimited),
        "one row too many: positions start at 0, so the capacity itself is too large": every(
            placed(experts, capacity + 1)
        ),
        "without dropping: a choice that doesn't fit gets -1, not the last row": every(
            [[min(p, capacity - 1) for p in row] for row in unlimited]
        ),
        "the right positions in the wrong places: transpose back what you have transposed": every(untransposed),
        "counted from 1, so that the last row of each buffer stays empty": every(
            [[p + 1 if 0 <= p < capacity - 1 else -1 for p in row] for row in placed(experts, capacity)]
        ),
        "the capacity in place of -1 for a choice that doesn't fit": every(
            [[capacity if p < 0 else p for p in row] for row in placed(experts, capacity)]
        ),
        "without dropping: a choice that doesn't fit gets -1, it doesn't start again at row 0": every(
            [[p % capacity for p in row] for row in unlimited]
        ),
        "the row among the buffers of all experts, end to end: it is counted within the expert's own buffer": every(
            [
                [p if p < 0 else e * capacity + p for e, p in zip(*pair, strict=True)]
                for pair in zip(experts, placed(experts, capacity), strict=True)
            ]
        ),
        "counted from 1": every([[p + (p >= 0) for p in row] for row in placed(experts, capacity)]),
        "counted for each choice by itself: second choices come after the first ones in the same buffer": every(
            separate
        ),
    }
    return Case(
        [[experts]],
        same={"num_experts": E, "capacity": capacity},
        right=every(placed(experts, capacity)),
        mistakes=mistakes,
        through=with_lists,
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
    mistakes: dict[str, Mistakes] = {
        "output": {
            "this rank's own rows: nothing was exchanged": rows,
        },
        "rows": {
            "zero: backward has to send the rows of `grad` back to where they came from": [
                torch.zeros_like(x) for x in rows
            ],
        },
    }
    right = {"output": moved(parts), "rows": moved(back)}

    def judge(answer: Answer) -> str:
        return expect_each_passes(
            answer,
            forward=[[("all_to_all", COUNT * size), ("all_to_all", x.nbytes)] for x in rows],
            backward=[[("all_to_all", grad.nbytes)] for grad in grads],
        )

    given = {"rows": rows, "send": send}
    case = driven(size, given, grads, right, mistakes, advice=ADVICE, traffic=judge)
    case.mistakes = {**case.mistakes, "the gradient of rows": {**mistakes["rows"], OVERFLOW: overflows, BY_HAND: None}}
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
    of_all_gates = gradients["gates"].clone()
    gradients["gates"] *= gates > 0
    ungated, _ = serial(mixture, grad, **whole | {"gates": (gates > 0).to(F64)})

    early = torch.stack([expert_mlp(x * gates[:, e, None], w_up[e], w_down[e]) for e in range(E)]).sum(0)
    first_of_rank = torch.arange(E) // (E // size) * (E // size)
    first, _ = serial(mixture, grad, **whole | {"w_up": w_up[first_of_rank], "w_down": w_down[first_of_rank]})
    to_one = gates / gates.sum(1, keepdim=True).clamp(min=1e-9)

    of_tokens = partial(parts_of, tokens)
    given = floats_of(tokens, whole)
    right = {"output": of_tokens(y), **floats_of(tokens, gradients)}
    parts = of_tokens(x), of_tokens(gates), w_up, w_down
    mistakes: dict[str, Mistakes] = {
        "output": {
            "the sum of the experts' outputs, without the gates": of_tokens(ungated),
            "the layer and the residual connection: x is not part of it": of_tokens(y + x),
            "the layer with results in the experts' order: before the way back, restore the order in which the rows "
            "arrived": misplaced(*parts, lambda sent, grouped, i: grouped[i]),
            "the layer with results put back the wrong way round: undo the order with its own argsort": misplaced(
                *parts, lambda sent, grouped, i: grouped[sent.index(grouped[i])]
            ),
            "the layer with rows given to the wrong experts: rows arrive by source, an expert wants its own": misplaced(
                *parts, lambda sent, grouped, i: (sent[i][0], grouped[i][1], sent[i][2])
            ),
            "the layer with rows that leave in the order of the tokens: sort them by expert": by_token(*parts),
            "the layer with the first expert of a rank for all rows that come to it": of_tokens(first),
            "the layer with gates that are made to add up to 1: they are weights already": of_tokens(
                serial(mixture, grad, **whole | {"gates": to_one})[0]
            ),
            "the part of this rank's own experts: the other rows have to travel": [
                mixture(own_x, own_gates * (torch.arange(E) // (E // size) == rank), w_up, w_down)
                for rank, (own_x, own_gates) in enumerate(zip(of_tokens(x), of_tokens(gates), strict=True))
            ],
            "the result of each token's last expert alone: add up the rows that belong to one token": of_tokens(
                serial(mixture, grad, **whole | {"gates": gates * is_last(gates)})[0]
            ),
            "the experts of x times the gates: an expert is not linear, so multiply what it returns": of_tokens(early),
        },
        "gates": {
            "a gradient for experts that were not chosen, too: each token goes to the chosen ones alone": of_tokens(
                of_all_gates
            ),
        },
    }
    chosen = [of_rank > 0 for of_rank in of_tokens(gates)]
    sent = [int(mask.sum()) * D * x.element_size() for mask in chosen]
    arrived = [sum(int(mask.chunk(size, 1)[rank].sum()) for mask in chosen) * D * 8 for rank in range(size)]

    def judge(answer: Answer) -> str:
        rows = [[("all_to_all", sent[rank]), ("all_to_all", arrived[rank])] for rank in range(size)]
        return expect_each_passes(answer, [[("all_to_all", COUNT * E), *calls] for calls in rows], rows)

    case = driven(size, given, of_tokens(grad), right, mistakes, advice=OF_LAYER, rtol=CLOSE, traffic=judge)
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


Row = tuple[int, int, int]  # source, expert, token


def is_last(gates: Tensor) -> Tensor:
    """A mask: the chosen expert with the largest number, of each token."""
    return torch.nn.functional.one_hot((gates > 0).mul(torch.arange(1, gates.shape[1] + 1)).argmax(1), gates.shape[1])


def by_token(x: list[Tensor], gates: list[Tensor], w_up: Tensor, w_down: Tensor) -> list[Tensor]:
    """The layer, if rows leave in the order of the tokens, and are counted as if they left in that of the experts."""
    y = [torch.zeros_like(each) for each in x]
    for rank, gate in enumerate(gates):
        pairs = gate.nonzero().tolist()
        for (t, e), used in zip(pairs, sorted(e for _, e in pairs), strict=True):
            y[rank][t] += gate[t, e] * expert_mlp(x[rank][t], w_up[used], w_down[used])
    return y


def misplaced(
    x: list[Tensor], gates: list[Tensor], w_up: Tensor, w_down: Tensor, used: Callable[[list[Row], list[Row], int], Row]
) -> list[Tensor]:
    """The layer, if for the i-th row that an owner has received, it sends back the result of `used(sent, grouped, i)`.

    sent, grouped: the rows as they arrive, and in the order of the experts
    """
    y, share = [torch.zeros_like(each) for each in x], len(w_up) // len(x)
    for owner in range(len(x)):
        mine = range(owner * share, (owner + 1) * share)
        sent = [
            (s, e, t) for s, gate in enumerate(gates) for e in mine for t in gate[:, e].nonzero().flatten().tolist()
        ]
        grouped = sorted(sent, key=lambda one: (one[1], one[0], one[2]))
        for number, (s, e, t) in enumerate(sent):
            source, expert, token = used(sent, grouped, number)
            y[s][t] += gates[s][t, e] * expert_mlp(x[source][token], w_up[expert], w_down[expert])
    return y


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
    undropped, ungated = (layer(**whole | {"gates": gates}) for gates in (weight, (~dropped).to(F64)))
    early = torch.zeros_like(y)
    for c in range(k):
        for e in range(E):
            early += expert_mlp(x * whole["gates"][:, [c]], w_up[e], w_down[e]) * (experts[:, [c]] == e)
    share, sources = E // size, torch.repeat_interleave(torch.arange(size), torch.tensor(tokens))
    mixed = torch.zeros_like(y)
    for t, c in (~dropped).nonzero().tolist():
        owner, mine = divmod(int(experts[t, c]), share)
        row = (int(sources[t]) * share + mine) * capacity + int(positions[t, c])  # among those that the owner receives
        used = owner * share + row // (size * capacity)
        mixed[t] += weight[t, c] * expert_mlp(x[t], w_up[used], w_down[used])
    of_tokens = partial(parts_of, tokens)
    on_ranks = [of_tokens(one) for one in (x, experts, positions, weight)]
    untransposed = layer_of_buffers(on_ranks, w_up, w_down, capacity)
    kept_gates = whole["gates"]
    last = torch.zeros_like(dropped).scatter(1, last_kept(dropped), True)
    other_gates = {
        "the layer without the rows in place 0: only a position of -1 is dropped": kept_gates * (positions > 0),
        "the result of each token's last choice alone: add up the rows that belong to one token": kept_gates * last,
        "the layer with gates that are made to add up to 1: a dropped choice's share is lost": kept_gates
        / kept_gates.sum(1, keepdim=True).clamp(min=1e-9),
    }

    given = floats_of(tokens, whole | {"gates": weight})
    given |= {"experts": of_tokens(experts), "positions": of_tokens(positions)}
    right = {"output": of_tokens(y), **floats_of(tokens, gradients)}
    mistakes: dict[str, Mistakes] = {
        "output": {
            "the layer without a limit: a choice with position -1 is dropped, and adds nothing": of_tokens(undropped),
            "the sum of the experts' outputs, without the gates": of_tokens(ungated),
            "the experts of x times the gates: an expert is not linear, so multiply what it returns": of_tokens(early),
            "the layer and the residual connection: x is not part of it": of_tokens(y + x),
            "the layer with x in place of 0 for tokens that were dropped: the layer adds nothing for them": of_tokens(
                torch.where(dropped.all(1, keepdim=True), x, y)
            ),
            **{words: of_tokens(layer(**whole | {"gates": gates})) for words, gates in other_gates.items()},
            "the layer with results in the experts' order: before the way back, change the two dimensions back": (
                untransposed
            ),
            "computed by the wrong experts: rows arrive by source, and each expert wants its rows from all sources. "
            "View them as (P, E/P, capacity, D), and bring the expert to the front": of_tokens(mixed),
        },
    }
    nbytes = E * capacity * D * x.element_size()
    calls = [("all_to_all", nbytes), ("all_to_all", nbytes)]
    case = driven(
        size,
        given,
        of_tokens(grad),
        right,
        mistakes,
        same={"capacity": capacity},
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


def last_kept(dropped: Tensor) -> Tensor:
    """The place of each token's last choice that was kept, (T, 1)."""
    k = dropped.shape[1]
    return torch.where(dropped, -1, torch.arange(k)).argmax(1, keepdim=True)


def layer_of_buffers(on_ranks: list[list[Tensor]], w_up: Tensor, w_down: Tensor, capacity: int) -> list[Tensor]:
    """The layer with fixed buffers, if results go back by expert, as they were computed, and not by source."""
    x, experts, positions, weight = on_ranks
    size, D = len(x), x[0].shape[1]
    share, y = len(w_up) // size, [torch.zeros_like(each) for each in x]
    results = torch.zeros(len(w_up), size, capacity, D, dtype=F64)  # expert, source, place
    kept = [(s, t, c) for s in range(size) for t, c in (positions[s] >= 0).nonzero().tolist()]
    for s, t, c in kept:
        e = int(experts[s][t, c])
        results[e, s, positions[s][t, c]] = expert_mlp(x[s][t], w_up[e], w_down[e])
    back = results.view(size, size, share, capacity, D)  # owner; what it sends to each rank
    for s, t, c in kept:
        owner, mine = divmod(int(experts[s][t, c]), share)
        y[s][t] += weight[s][t, c] * back[owner, s, mine, positions[s][t, c]]
    return y


# ---- balance

slowest_rank = recorded(ROOM, "slowest-rank")


### BEGIN HIDDEN TESTS


@oracle(values=[(3, 6, 64, 256, 1e12), (5, 5, 7, 11, 3e9), (1, 4, 8, 8, 1e6), (4, 16, 32, 96, 2e13)])
def hidden_slowest_rank(draws: Draws, P: int, E: int, dim: int, hidden: int, flops: float) -> Case:
    counts = torch.randint(1, 100, (P, E), generator=draws.generator()) + torch.arange(E) * 7
    of_experts = counts.sum(0).tolist()
    per_rank = E // P
    loads = [sum(of_experts[rank * per_rank : (rank + 1) * per_rank]) for rank in range(P)]
    most, mean = max(loads), sum(loads) / P
    second = 4 * dim * hidden / flops
    return Case(
        [[counts.tolist()]],
        same={"num_ranks": P, "dim": dim, "hidden": hidden, "flops": flops},
        right={"the time": most * second, "the load over the mean": most / mean},
        mistakes={
            "the time": {
                "half of it: each of the two products takes two operations for each number of its matrix": most
                * second
                / 2,
                "the time of the fullest expert; a rank has several": max(of_experts) * second,
                "the time for the rows that one rank sends: what it receives is what it computes": max(
                    map(sum, counts.tolist())
                )
                * second,
                "the time with the experts dealt out in turn; a rank has neighbours": max(
                    sum(of_experts[rank::P]) for rank in range(P)
                )
                * second,
                "the time for the rows of a rank for itself: rows arrive from all ranks": max(
                    sum(counts[rank, rank * per_rank : (rank + 1) * per_rank].tolist()) for rank in range(P)
                )
                * second,
                "the time for the rows of all ranks together: the ranks work at the same time": sum(loads) * second,
                "the time with perfect balance: the layer waits for the fullest rank": mean * second,
                "the time for the rows of one source: rows arrive from all ranks": max(
                    sum(row[rank * per_rank : (rank + 1) * per_rank]) for row in counts.tolist() for rank in range(P)
                )
                * second,
            },
            "the load over the mean": {
                "the most over the least: divide by the mean of the ranks": most / min(loads),
                "the mean over the most: the other way round": mean / most,
                "the load over the mean of the experts: divide by the mean of the ranks": most / (sum(of_experts) / E),
                "its share of all rows: divide by the mean of the ranks": most / sum(loads),
                "the fullest expert's load over the mean of the experts; a rank has several": max(of_experts)
                / (sum(of_experts) / E),
            },
        },
        rtol=1e-9,
    )


### END HIDDEN TESTS


@oracle(values=[([4, 4], 3, 1), ([3, 6], 4, 2)], if_stuck="every rank must call g equally often.")
@in_groups
def balance_loss(draws: Draws, tokens: list[int], E: int, k: int) -> Case:
    scores = [normal(draws, t, E, seed=rank) + torch.arange(E) / 2 for rank, t in enumerate(tokens)]
    given = [each.softmax(-1) for each in scores]
    chosen = [each.topk(k).indices for each in scores]

    def share_of(choices: Tensor) -> Tensor:
        return torch.bincount(choices.flatten(), minlength=E).double() / choices.numel()

    def loss(probabilities: Tensor, choices: Tensor) -> Tensor:
        return E * (share_of(choices) * probabilities.mean(0)).sum()

    def uneven() -> Tensor:
        """With means of the ranks' shares, and of their probabilities."""
        shares = torch.stack([share_of(one) for one in chosen])
        means = torch.stack([one.mean(0) for one in given])
        return E * (shares.mean(0) * means.mean(0)).sum()

    grad = torch.tensor(1.0, dtype=F64)
    y, gradients = serial(lambda p: loss(p, torch.cat(chosen)), grad, p=torch.cat(given))
    local = [loss(*each) for each in zip(given, chosen, strict=True)]
    of_ranks = list(gradients["p"].split(tokens))
    mistakes: dict[str, Mistakes] = {
        "output": {
            "the loss of this rank's tokens alone: sum counts and probabilities over the ranks": local,
            "the mean of the ranks' own losses: a product of means is not the mean of the products": sum(local)
            / len(tokens),
            "the sum of the ranks' own losses: sum what goes into the product, not the product": sum(local),
            f"{k} times too large: the shares are of all T k choices": k * y,
            f"{E} times too small: the factor E is missing": y / E,
            "computed from this rank's own shares: sum the counts over the ranks, too": [
                E * (share_of(one) * torch.cat(given).mean(0)).sum() for one in chosen
            ],
            "computed from this rank's own probabilities: sum them over the ranks, too": [
                E * (share_of(torch.cat(chosen)) * one.mean(0)).sum() for one in given
            ],
            f"{sum(tokens)} times too large: the probabilities' mean is their sum divided by the tokens": sum(tokens)
            * y,
            "computed with this rank's own number of tokens: sum that over the ranks, too": [
                like(y * (sum(tokens) / t), y * (sum(tokens) / t) ** 2) for t in tokens
            ],
            "the shares times themselves: one of the two factors is the mean probability": E
            * share_of(torch.cat(chosen)).square().sum(),
            "computed from the first choices alone: all k of each token count": loss(
                torch.cat(given), torch.cat(chosen)[:, :1]
            ),
            "computed from the means of the ranks, which don't have equally many tokens": uneven(),
        },
    }
    right = {"output": y, "probabilities": of_ranks}
    return driven(len(tokens), {"probabilities": given, "chosen": chosen}, grad, right, mistakes, rtol=CLOSE)


### BEGIN HIDDEN TESTS
hidden_balance_loss = vary(
    balance_loss,
    values=[{"tokens": [3, 5], "E": 4, "k": 2, "groups": PAIRS}, ([2, 5, 3], 5, 3), ([6], 4, 1)],
)
### END HIDDEN TESTS


@oracle(values=[(2, 4, 0.25), (4, 3, 0.5, [[0, 2], [1, 3]])], traffic=[(2, 6, 0.5)])
def balance_bias(draws: Draws, size: int, E: int, rate: float, groups: Groups = ()) -> Case:
    teams = groups or [list(range(size))]
    team = {rank: members for members in teams for rank in members}
    bias = draws.integers(E, F64)
    loads = [10 + 3 * draws.integers(E, F64, seed=1 + rank) for rank in range(size)]
    for load in loads if not groups else []:  # the last expert has exactly the mean load
        load[-1] = load[:-1].sum()
        load[:-1] *= E - 1

    def step(load: Tensor, direction: float = rate) -> Tensor:
        too_little, too_much = load < load.mean(), load > load.mean()
        return bias + direction * (too_little.double() - too_much.double())

    totals = [torch.stack([loads[other] for other in team[rank]]).sum(0) for rank in range(size)]
    mistakes: dict[str, Any] = {
        "the biases by this rank's own load: the load is that of the whole group": [step(load) for load in loads],
        "a step in the wrong direction: an expert with less than the mean load goes up": [
            step(total, -rate) for total in totals
        ],
        "a step in proportion to the load; each step is `rate`, whatever the difference": [
            bias + rate * (total.mean() - total) for total in totals
        ],
        "a step by the load of all ranks; the load is that of the group": step(torch.stack(loads).sum(0)),
        "the step alone, without the old bias": [step(total) - bias for total in totals],
        "a step up alone: an expert with more than the mean load goes down": [
            bias + rate * (total < total.mean()) for total in totals
        ],
        "a step by the mean of this rank's own load: take the mean of the sum": [
            bias + rate * (load.mean() - total).sign() for load, total in zip(loads, totals, strict=True)
        ],
        "a step down for the expert with exactly the mean load: its bias stays": [
            bias + torch.where(total < total.mean(), rate, -rate) for total in totals
        ],
        "a step up for the expert with exactly the mean load: its bias stays": [
            bias + torch.where(total > total.mean(), -rate, rate) for total in totals
        ],
    }
    return Case(
        [[bias] * size, loads],
        same={"rate": rate, "groups": groups or None},
        right=[step(total) for total in totals],
        mistakes=mistakes,
        through=call_in_group,
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

    def summed(values: list[Any], groups: Groups) -> list[Any]:
        team = {rank: members for members in groups for rank in members}
        return [sum(values[other] for other in team[rank]) for rank in range(size)]

    def over(sums: list[Any], counts: list[Any]) -> list[Any]:
        return [total / count for total, count in zip(sums, counts, strict=True)]

    total, of_dense, of_expert = summed(tokens, data), summed(dense, data), summed(expert, replicas)
    fewer = [len(next(group for group in replicas if rank in group)) for rank in range(size)]
    mistakes = {
        "": {
            "the right pair the wrong way round: the dense gradient comes first": lambda got: (
                shape != shape[::-1] and [getattr(one, "shape", None) for one in got] == [shape[::-1], shape]
            ),
        },
        "the dense gradient": {
            "the sum: divide it by the tokens of all ranks": of_dense,
            "the mean over the ranks: the ranks have different numbers of tokens": [
                part / sum(rank in group and len(group) for group in data) for rank, part in enumerate(of_dense)
            ],
            "divided by this rank's own tokens: divide by those of all ranks": over(of_dense, tokens),
            "the sum divided by this rank's tokens times the ranks: ranks have different numbers of tokens": [
                part / (tokens[rank] * sum(rank in group and len(group) for group in data))
                for rank, part in enumerate(of_dense)
            ],
            "the mean of the ranks' means: ranks have different numbers of tokens": [
                part / sum(rank in group and len(group) for group in data)
                for rank, part in enumerate(summed(over(dense, tokens), data))
            ],
            "the sum over the replica group: every data rank has this weight": over(summed(dense, replicas), total),
        },
        "the expert's gradient": {
            "the sum over all data ranks: the other ranks of the expert-parallel group have different experts": over(
                summed(expert, data), total
            ),
            "divided by the tokens of the replica group: its tokens came from all ranks": over(
                of_expert, summed(tokens, replicas)
            ),
            "the mean over the replica group": over(of_expert, fewer),
            "this rank's own: the other replicas have seen other tokens": over(expert, total),
        },
    }
    return Case(
        [dense, expert, tokens],
        same={"data": data, "replicas": replicas},
        right={"the dense gradient": over(of_dense, total), "the expert's gradient": over(of_expert, total)},
        mistakes=mistakes,
        through=on_grid,
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


def level(parts: list[list[Tensor]], groups: Groups) -> list[list[Tensor]]:
    """An all-to-all in each group, of each rank's list of chunks, cut into equal pieces."""
    arrived = list(parts)
    for members in groups:
        share = len(parts[0]) // len(members)
        for place, rank in enumerate(members):
            arrived[rank] = [one for other in members for one in parts[other][place * share : (place + 1) * share]]
    return arrived


def same_rows(x: Tensor, got: Any) -> bool:
    """Whether these are the rows of x, in some order."""
    return isinstance(got, Tensor) and got.shape == x.shape and sorted(got.tolist()) == sorted(x.tolist())


def joined(parts: list[list[Tensor]]) -> list[Tensor]:
    return [torch.cat(of_rank) for of_rank in parts]


@oracle(values=[(2, 2, 1, 3), (2, 3, 2, 1)], traffic=[(2, 2, 2, 3)], if_stuck=SIZES_FIRST)
def two_level_exchange(draws: Draws, nodes: int, local: int, n: int, D: int, dtype: Dtype = F32) -> Case:
    size = nodes * local
    xs = draws.different_integers(size, (size * n, D), dtype)
    parts = [list(x.split(n)) for x in xs]
    right = moved(parts)
    by_place = [torch.cat([of_rank.view(nodes, local, n, D).transpose(0, 1).flatten(0, 2)]) for of_rank in right]
    inside = [[node * local + place for place in range(local)] for node in range(nodes)]
    between = [[node * local + place for node in range(nodes)] for place in range(local)]
    by_target = [
        [of_rank[node * local + place] for place in range(local) for node in range(nodes)] for of_rank in parts
    ]
    mistakes = {
        "x itself: nothing was exchanged": xs,
        "what you get without any reordering: both levels want the targets that they serve side by side": joined(
            level(level(parts, inside), between)
        ),
        "what you get if the rows go to the first level as they are: before it, sort them by place": joined(
            level(
                [
                    [one[place * nodes + node] for node in range(nodes) for place in range(local)]
                    for one in level(parts, inside)
                ],
                between,
            )
        ),
        "what the second level alone gives: first, rows go to the rank of this node that serves their place": joined(
            level(parts, between)
        ),
        "what the first level gives: the rows have to go on to their nodes": [
            partial(same_rows, one) for one in joined(level(by_target, inside))
        ],
        "what you get if the first level's result goes on as it is: before the second, sort it by node": joined(
            level(level(by_target, inside), between)
        ),
        "the right rows, sorted by place in the source's node: they must be sorted by rank, node by node": by_place,
    }

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
        same={"local": inside, "cross": between},
        right=right,
        mistakes=mistakes,
        through=on_nodes,
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


@oracle(score=[(64, 8192, 0)], par=recorded_par(ROOM, "expert-placement"))
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
            raise CheckFailed(f"node {node} has {count} experts", f"{share} on each node")


def seconds_of_layer(routing: list[list[int]], places: list[int]) -> float:
    return simulate(placed_layer, NODES.nodes, routing, places, cluster=NODES).elapsed


### BEGIN HIDDEN TESTS
RECORDED = (
    vary(hidden_slowest_rank, values=[(2, 4, 16, 64, 1e9), (4, 8, 32, 128, 5e11)]),
    vary(expert_placement, par=seconds_of_even_loads),
    vary(hidden_buffer_positions, values=[(6, 3, 2, 2), (8, 4, 2, 3)]),
)
### END HIDDEN TESTS
