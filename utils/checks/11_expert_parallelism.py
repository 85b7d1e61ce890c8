"""The visible checks of lesson 11. Form: see oracles.py, and gradients.py for functions that autograd goes through.

What is right comes from one process on whole tensors, with autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cluster.presets import find_cluster
from ..kit.drivers.backward import my_group
from ..kit.drivers.grouped import call_in_group
from ..kit.expert_placement import DIM, HIDDEN, placed_layer, routing_statistic
from ..kit.mixture import expert_mlp, make_experts, mixture
from ..text.units import plural
from .answer import Answer, CheckFailed
from .closed_forms import simulate
from .compare import Mistakes
from .gradients import CLOSE, driven, expect_passes, in_groups, output_first, serial
from .inputs import Draws
from .oracles import Case, oracle
from .recorded import recorded, recorded_par
from .scores import Measure
from .traffic import expect_calls

LESSON = "11_expert_parallelism"
Dtype = torch.dtype
Groups = Sequence[Sequence[int]]
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
COUNT = 8  # bytes of an int64
SIZES_FIRST = (
    "what a rank receives is what the others send to it, which only they know. And all ranks make the same calls in "
    "the same order, also one that has nothing to send."
)


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

    y, gradients = serial(gates, grad, x=x, w_gate=w_gate)
    rounded = partial(close, gates_of((x @ w_gate).float(), k, softmax_first))
    before = "computed in bfloat16: convert x and w_gate to float32 before the product"
    mistakes: dict[str, Mistakes] = {
        "output": {
            "the softmax over all experts, also of those that were not chosen: set those to zero": gates(
                x, w_gate, True, E
            ),
            "the softmax over the chosen scores alone; with softmax_first it goes over all experts": gates(
                x, w_gate, False
            ),
            "the softmax over all experts; without softmax_first it goes over the chosen scores alone": gates(
                x, w_gate, True
            ),
            **({before: rounded} if dtype == BF16 else {}),
        }
    }
    right = {"output": y} if dtype == BF16 else {"output": y, **gradients}
    given = {"x": x, "w_gate": w_gate}
    same = {"k": k, "softmax_first": softmax_first}
    return driven(1, given, None if dtype == BF16 else grad, right, mistakes, same=same, rtol=1e-5)


# ---- capacity


def with_lists(function: Callable[..., Any], experts: list[list[int]], **same: int) -> Any:
    """Call the function with a tensor; its result as lists."""
    positions = function(torch.tensor(experts), **same)
    return positions.tolist() if isinstance(positions, Tensor) else positions


buffer_positions = recorded(LESSON, "buffer-positions", through=with_lists)


# ---- dispatch and combine


def moved(parts: list[list[Tensor]]) -> list[Tensor]:
    """parts[source][destination] -> what each destination receives, the first source's rows first."""
    return [torch.cat([of_source[rank] for of_source in parts]) for rank in range(len(parts))]


@oracle(
    values=[([[1, 2], [0, 3]], 2), ([[2, 0, 1], [0, 0, 4], [3, 0, 0]], 2)],
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

    return output_first(driven(size, {"rows": rows, "send": send}, grads, right, mistakes, traffic=judge))


def expect_each_passes(
    answer: Answer, forward: list[list[tuple[str, int]]], backward: list[list[tuple[str, int]]]
) -> str:
    """expect_passes, where the ranks make calls of different sizes."""
    for rank, calls in enumerate(zip(forward, backward, strict=True)):
        expect_passes(answer, *calls, ranks=[rank])
    return "sizes first, then rows; in the backward pass rows only."


def few_gates(draws: Draws, T: int, E: int, k: int, only: int | None) -> Tensor:
    """Random gates of k experts for each token, (T, E). only: the one expert that all tokens choose."""
    gates = normal(draws, T, E, seed=5).abs() + 0.1
    if only is not None:
        return gates * torch.nn.functional.one_hot(torch.tensor(only), E)
    return gates * largest(gates, k) if T else gates


@oracle(
    values=[([3, 5], 4, 2), ([4, 1, 2], 3, 1, 2)],
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
    ungated, _ = serial(mixture, grad, **whole | {"gates": (gates > 0).to(F64)})

    early = torch.stack([expert_mlp(x * gates[:, e, None], w_up[e], w_down[e]) for e in range(E)]).sum(0)

    def of_tokens(value: Tensor) -> list[Tensor]:
        return list(value.split(tokens))

    def of_experts(value: Tensor) -> list[Tensor]:
        return [part.clone() for part in value.chunk(size)]

    given = {
        "x": of_tokens(x),
        "gates": of_tokens(gates),
        "w_up_local": of_experts(w_up),
        "w_down_local": of_experts(w_down),
    }
    right = {
        "output": of_tokens(y),
        "x": of_tokens(gradients["x"]),
        "gates": of_tokens(gradients["gates"]),
        "w_up_local": of_experts(gradients["w_up"]),
        "w_down_local": of_experts(gradients["w_down"]),
    }
    mistakes: dict[str, Mistakes] = {
        "output": {
            "the sum of the experts' outputs, without the gates": of_tokens(ungated),
            "the layer and the residual connection: x is not part of it": of_tokens(y + x),
            "the layer with results in the experts' order: before the way back, restore the order in which the rows "
            "arrived": not_put_back(of_tokens(x), of_tokens(gates), w_up, w_down),
            "the experts of x times the gates: an expert is not linear, so multiply what it returns": of_tokens(early),
        },
    }
    chosen = [of_rank > 0 for of_rank in of_tokens(gates)]
    sent = [int(mask.sum()) * D * x.element_size() for mask in chosen]
    arrived = [sum(int(mask.chunk(size, 1)[rank].sum()) for mask in chosen) * D * 8 for rank in range(size)]

    def judge(answer: Answer) -> str:
        rows = [[("all_to_all", sent[rank]), ("all_to_all", arrived[rank])] for rank in range(size)]
        return expect_each_passes(answer, [[("all_to_all", COUNT * E), *calls] for calls in rows], rows)

    case = driven(size, given, of_tokens(grad), right, mistakes, rtol=CLOSE, traffic=judge)
    return output_first(case)


def not_put_back(x: list[Tensor], gates: list[Tensor], w_up: Tensor, w_down: Tensor) -> list[Tensor]:
    """The layer, if each rank sends results back in the order in which its experts made them."""
    y, share = [torch.zeros_like(each) for each in x], len(w_up) // len(x)
    for owner in range(len(x)):
        mine = range(owner * share, (owner + 1) * share)
        chosen = [
            (s, e, t) for s, gate in enumerate(gates) for e in mine for t in gate[:, e].nonzero().flatten().tolist()
        ]
        for (s, e, t), (source, expert, token) in zip(
            chosen, sorted(chosen, key=lambda one: (one[1], one[0], one[2])), strict=True
        ):
            y[s][t] += gates[s][t, e] * expert_mlp(x[source][token], w_up[expert], w_down[expert])
    return y


# ---- balance

slowest_rank = recorded(LESSON, "slowest-rank")


@oracle(values=[([4, 4], 3, 1), ([3, 6], 4, 2)], if_stuck="every rank must call g equally often.")
@in_groups
def balance_loss(draws: Draws, tokens: list[int], E: int, k: int) -> Case:
    scores = [normal(draws, t, E, seed=rank) + torch.arange(E) / 2 for rank, t in enumerate(tokens)]
    given = [each.softmax(-1) for each in scores]
    chosen = [each.topk(k).indices for each in scores]

    def loss(probabilities: Tensor, choices: Tensor) -> Tensor:
        share = torch.bincount(choices.flatten(), minlength=E).double() / choices.numel()
        return E * (share * probabilities.mean(0)).sum()

    def uneven() -> Tensor:
        """With means of the ranks' shares, and of their probabilities."""
        shares = torch.stack([torch.bincount(one.flatten(), minlength=E).double() / one.numel() for one in chosen])
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
            "computed from the means of the ranks, which don't have equally many tokens": uneven(),
        },
    }
    right = {"output": y, "probabilities": of_ranks}
    return driven(len(tokens), {"probabilities": given, "chosen": chosen}, grad, right, mistakes, rtol=CLOSE)


@oracle(values=[(2, 4, 0.25), (4, 3, 0.5, [[0, 2], [1, 3]])], traffic=[(2, 6, 0.5)])
def balance_bias(draws: Draws, size: int, E: int, rate: float, groups: Groups = ()) -> Case:
    teams = groups or [list(range(size))]
    team = {rank: members for members in teams for rank in members}
    bias = draws.integers(E, F64)
    loads = [10 + 3 * draws.integers(E, F64, seed=1 + rank) for rank in range(size)]

    def step(load: Tensor, direction: float = rate) -> Tensor:
        too_little, too_much = load < load.mean(), load > load.mean()
        return bias + direction * (too_little.double() - too_much.double())

    totals = [torch.stack([loads[other] for other in team[rank]]).sum(0) for rank in range(size)]
    mistakes = {
        "the biases by this rank's own load: the load is that of the whole group": [step(load) for load in loads],
        "a step in the wrong direction: an expert with less than the mean load goes up": [
            step(total, -rate) for total in totals
        ],
        "a step in proportion to the load; each step is `rate`, whatever the difference": [
            bias + rate * (total.mean() - total) for total in totals
        ],
        "a step by the load of all ranks; the load is that of the group": step(torch.stack(loads).sum(0)),
        "the step alone, without the old bias": [step(total) - bias for total in totals],
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
        "the dense gradient": {
            "the sum: divide it by the tokens of all ranks": of_dense,
            "the mean over the ranks: the ranks have different numbers of tokens": [
                part / sum(rank in group and len(group) for group in data) for rank, part in enumerate(of_dense)
            ],
            "divided by this rank's own tokens: divide by those of all ranks": over(of_dense, tokens),
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


# ---- two levels


def on_nodes(function: Callable[..., Any], x: Tensor, rank: int, local: Groups, cross: Groups) -> Any:
    return function(x, *(my_group(rank, [list(members) for members in groups]) for groups in (local, cross)))


@oracle(values=[(2, 2, 1, 3), (2, 3, 2, 1)], traffic=[(2, 2, 2, 3)], if_stuck=SIZES_FIRST)
def two_level_exchange(draws: Draws, nodes: int, local: int, n: int, D: int, dtype: Dtype = F32) -> Case:
    size = nodes * local
    xs = draws.different_integers(size, (size * n, D), dtype)
    parts = [list(x.split(n)) for x in xs]
    right = moved(parts)
    by_place = [torch.cat([of_rank.view(nodes, local, n, D).transpose(0, 1).flatten(0, 2)]) for of_rank in right]
    inside = [[node * local + place for place in range(local)] for node in range(nodes)]
    between = [[node * local + place for node in range(nodes)] for place in range(local)]  # no answer: it is given
    mistakes = {
        "x itself: nothing was exchanged": xs,
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
        traffic=judge,
        values_first=True,
    )


def in_groups_of(calls: list[tuple[int, str, int]]) -> str:
    words = [f"{op} of {nbytes:,} bytes in a group of {team}" for team, op, nbytes in calls]
    return ", ".join(words) or "none"


# ---- the challenge

NODES = replace(find_cluster("dgx-h100", 4), name="4 nodes of one GPU", nodes=4, gpus_per_node=1, nics=None)


@oracle(score=[(64, 8192, 0)], par=recorded_par(LESSON, "expert-placement"))
def expert_placement(_: Draws, experts: int, tokens: int, seed: int) -> Case:
    """On the four nodes of NODES."""
    routing = routing_statistic(NODES.nodes, experts, tokens, seed)
    flops = sum(map(sum, routing)) * 4 * DIM * HIDDEN
    return Case(
        [[routing]],
        also=lambda answer: expect_places(answer.results[0], experts),
        score=Measure(lambda answer: seconds_of_layer(routing, answer.results[0]), "s", "of virtual time"),
        limit=flops / NODES.nodes / NODES.gpu.peak("bf16"),  # no answer: the limit, as if all were even
    )


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
            raise CheckFailed(f"node {node} has {count} experts", f"{share} on each node", "No node has room for more.")


def seconds_of_layer(routing: list[list[int]], places: list[int]) -> float:
    return simulate(placed_layer, NODES.nodes, routing, places, cluster=NODES).elapsed
