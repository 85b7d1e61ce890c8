"""The checks of lesson 12. Form: see oracles.py; what a rank runs: kit/drivers.

The truth about every value is one process with the whole model and the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.checks.answer import Answer, CheckFailed
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, as_tuple, every, oracle, vary
from utils.checks.scores import Measure
from utils.checks.show import show
from utils.checks.traffic import expect_only_messages
from utils.cluster.hardware import Cluster
from utils.cluster.presets import find_cluster
from utils.kit import mlp
from utils.kit.attention_blocks import attention_block, attention_block_backward
from utils.kit.drivers.attention import count_scores
from utils.kit.drivers.on_a_grid import use_groups
from utils.kit.drivers.sharded import backward_in_groups, in_groups
from utils.kit.plans import Model, Plan, problem_of, seconds_of

ROOM = Path(__file__).parent
DOUBLE = torch.float64
CLOSE = 1e-9

axis_groups = frozen_cases(ROOM, "axis-groups")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ({"dp": 3, "cp": 2, "tp": 2}, ("cp",)),
        ({"pp": 2, "dp": 3, "cp": 2, "tp": 4}, ("tp", "dp")),
        ({"dp": 5, "tp": 1}, ("dp",)),
        ({"a": 2, "b": 3, "c": 2}, ("a", "c", "b")),
    ]
)
def hidden_axis_groups(_: Draws, sizes: dict[str, int], axes: tuple[str, ...]) -> Case:
    text = " x ".join(f"{name} {size}" for name, size in sizes.items())
    return Case(
        [[sizes], [axes]],
        right=every(along(sizes, axes)),
        seen=f"{text}, along {axes}: you returned",
    )


### END HIDDEN TESTS


# ---- the grid


@oracle(
    values=[({"pp": [[0, 1], [2, 3]], "tp": [[0, 2], [1, 3]]}, 4)],
    if_stuck="every rank must call dist.new_group for every group, in the same order, also for those it isn't in.",
)
def process_groups(_: Draws, members: dict[str, list[list[int]]], world_size: int) -> Case:
    def of(rank: int, name: str) -> list[int]:
        return next(group for group in members[name] if rank in group)

    ranks = range(world_size)
    right = {name: [(of(rank, name), sum(of(rank, name))) for rank in ranks] for name in members}
    return Case(
        [[members] * world_size],
        right=right,
        seen="rank {rank}: the group {part!r} and the sum of its ranks are",
        mistakes=dict.fromkeys(
            members,
            {
                "no group of this name on this rank: return a dict {name: group}": ([], -1),
                "a group of this name that this rank isn't in: keep a group if the rank is one of its members": (
                    [-1],
                    -1,
                ),
                "all ranks: give the members to dist.new_group": (list(ranks), -1),
            },
        ),
        driver=use_groups,
    )


### BEGIN HIDDEN TESTS
hidden_process_groups = vary(
    process_groups,
    values=[
        ({"dp": [[0, 3], [1, 4], [2, 5]], "tp": [[0, 1, 2], [3, 4, 5]], "world": [[0, 1, 2, 3, 4, 5]]}, 6),
        ({"tp": [[0], [1], [2]], "dp": [[0, 1, 2]]}, 3),
    ],
)
### END HIDDEN TESTS


# ---- three axes, one step

Sizes = tuple[int, int, int]  # dp, pp, tp
Members = list[list[int]]


def grid_of(sizes: Sequence[int]) -> Tensor:
    """The ranks as a tensor of this shape, the last axis innermost."""
    return torch.arange(math.prod(sizes)).view(*sizes)


def groups_along(sizes: Sequence[int], *axes: int) -> Members:
    """All groups along some axes of a grid."""
    grid = grid_of(sizes).movedim(axes, tuple(range(-len(axes), 0)))
    found: Members = grid.reshape(-1, math.prod(sizes[axis] for axis in axes)).tolist()
    return sorted(found)


def coordinates(sizes: Sequence[int]) -> list[list[int]]:
    """The coordinates of each rank."""
    return [(grid_of(sizes) == rank).nonzero()[0].tolist() for rank in range(math.prod(sizes))]


def piece(whole: Sequence[Tensor], sizes: Sizes, place: Sequence[int]) -> list[Tensor]:
    """What a rank has of the weights, or of their gradients: its stage, cut by columns and by rows in turn."""
    (_, stages, parts), (_, stage, part) = sizes, place
    each = len(whole) // stages
    mine = whole[stage * each : stage * each + each]
    return [x.chunk(parts, 1 - number % 2)[part].clone() for number, x in enumerate(mine)]


@oracle(
    values=[((2, 2, 2), 4, 8, 4), ((1, 1, 2), 4, 4, 2)],
    traffic=[((2, 2, 2), 8, 8, 2)],
    if_stuck="all ranks of a group must make the same calls in it, in the same order; no rank skips a microbatch.",
)
def grid_step(draws: Draws, sizes: Sizes, layers: int, rows: int, count: int, dim: int = 4) -> Case:
    weights = mlp.make_weights(layers, dim, draws.salted(), DOUBLE)
    batch = mlp.make_batch(rows, dim, draws.salted(), DOUBLE)
    loss, gradients = mlp.serial_gradients(weights, batch)
    places, ranks = coordinates(sizes), range(math.prod(sizes))
    names = [f"the gradient of weights[{number}]" for number in range(layers // sizes[1])]
    pieces = [piece(gradients, sizes, place) for place in places]
    losses = [loss if stage == sizes[1] - 1 else None for _, stage, _ in places]

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        of_loss, of_weights = as_tuple(got, ["the loss", "the gradients"], rank).values()
        return as_tuple(of_weights, names, rank) | {"the loss": of_loss}

    return Case(
        [[batch for _ in ranks], [piece(weights, sizes, place) for place in places], [count for _ in ranks]],
        for_all={"groups": {name: groups_along(sizes, axis) for axis, name in enumerate(GROUPS)}},
        right={name: [x[number] for x in pieces] for number, name in enumerate(names)} | {"the loss": losses},
        rtol=CLOSE,
        unpack=unpack,
        driver=in_groups,
        values_first=True,
        advice={
            "AssertionError": "No gradient reached the x that a stage was given: only the first takes a microbatch."
        },
        traffic=lambda answer: expect_axes(answer, sizes, layers, rows, count, dim),
    )


### BEGIN HIDDEN TESTS
hidden_grid_step = vary(
    grid_step,
    values=[((1, 3, 1), 6, 6, 3), ((2, 1, 3), 4, 4, 1, 6), ((1, 1, 1), 2, 4, 2)],
    traffic=[((1, 2, 4), 4, 8, 4)],
)
### END HIDDEN TESTS


GROUPS = ("dp_group", "pp_group", "tp_group")
SMALL = 64  # bytes: a loss here and there


def expect_axes(answer: Answer, sizes: Sizes, layers: int, rows: int, count: int, dim: int) -> str:
    """Raise CheckFailed unless each rank moved what a step needs along each axis of the grid."""
    dp, pp, tp = sizes
    of_rows, pairs = rows // dp * dim * 8, layers // pp // 2
    groups = {"along dp": groups_along(sizes, 0), "along tp": groups_along(sizes, 2)}
    for rank, (_, stage, _) in enumerate(coordinates(sizes)):
        doors = (2 * pairs - (stage == 0)) * of_rows  # the batch itself needs no gradient
        wanted = {
            "along dp": (dp > 1) * 2 * pairs * dim * dim // tp * 8,
            "along tp": (tp > 1) * doors,
            "along pp": ((stage > 0) + (stage < pp - 1)) * of_rows,
        }
        expect_along(answer, rank, groups, wanted, ADVICE, spare=SMALL)
    return "no byte more than needed along any axis."


ELSEWHERE = "to groups that lie along no axis"
ADVICE = {
    "along tp": "f and g once for each pair of layers and microbatch. Are whole gradients reduced along tp too?",
    "along dp": "Each gradient is reduced once, after all microbatches.",
    "along pp": "Each microbatch of a rank's own rows crosses a boundary once in each direction.",
    ELSEWHERE: "Which group did you hand to that call? Without one, it is the whole world.",
}


def expect_along(
    answer: Answer,
    rank: int,
    groups: dict[str, Members],
    wanted: dict[str, int],
    advice: dict[str, str],
    spare: int = 0,
) -> None:
    """Raise CheckFailed unless a rank handed in so many bytes to each kind of groups, or `spare` more."""
    kinds = {tuple(members): kind for kind, teams in groups.items() for members in teams}
    found = dict.fromkeys([*groups, "along pp", ELSEWHERE], 0)  # messages go along pp
    for event in answer.events:
        if event.rank == rank and event.op not in ("recv", "barrier") and len(event.members) > 1:
            found["along pp" if event.op == "send" else kinds.get(event.members, ELSEWHERE)] += event.bytes
    for kind, nbytes in found.items():
        need = wanted.get(kind, 0)
        if not need <= nbytes <= need + spare:
            raise CheckFailed(
                f"rank {rank} handed in {nbytes:,} bytes {kind}", f"{need:,} bytes", advice.get(kind, ONCE_EACH)
            )


# ---- context parallelism

STUCK_RING = (
    "in a ring, everybody sends to the next rank of the group and receives from the one before. If all of them receive "
    "first, or wait for their send first, nobody moves: isend, recv, then wait. Peers are global ranks."
)


def heads_of(draws: Draws, seed: int, tokens: int, heads: int = 2) -> Tensor:
    """(3, heads, tokens, 4), random: no two dimensions need be alike."""
    return torch.randn(3, heads, tokens, 4, generator=draws.generator(seed), dtype=DOUBLE)


@oracle(values=[(False,), (True,)])
def merge_attention(draws: Draws, nothing: bool, large: float = 1.0) -> Case:
    """Two blocks of keys; nothing: of the second block, the first queries may see no key. large: a factor of q."""
    q, k, v = (heads_of(draws, seed, 6) for seed in range(3))
    q, queries = large * q, torch.arange(6) if nothing else torch.full((6,), 6)
    keys = torch.arange(6)
    blocks = [attention_block(q, k[:, :, part], v[:, :, part], queries, keys[part]) for part in (FIRST, SECOND)]
    (out_a, lse_a), (out_b, lse_b) = blocks
    out, lse = attention_block(q, k, v, queries, keys)
    not_a_number = (
        "infinite or not a number: an exponential overflows, or -inf is subtracted from -inf. Shift by the larger lse, "
        "or let torch.logaddexp do it"
    )
    became_infinite = (
        "0 for some queries: an exponential became infinite. Shift by the larger lse, or use torch.logaddexp"
    )
    return Case(
        [[out_a], [lse_a], [out_b], [lse_b]],
        right={"out": out, "lse": lse},
        rtol=CLOSE,
        mistakes={
            "out": {
                became_infinite: lambda got: vanished(got, out),
                not_a_number: overflowed,
            },
            "lse": {not_a_number: overflowed},
        },
        advice={"must match the size": "An lse has no dimension for the width of a head: unsqueeze(-1) makes one."},
    )


### BEGIN HIDDEN TESTS
hidden_merge_attention = vary(merge_attention, values=[(False, 3000.0), (True, 300.0)])
### END HIDDEN TESTS


FIRST, SECOND = slice(0, 3), slice(3, 6)


def vanished(got: Any, right: Tensor) -> bool:
    """Whether it is 0 for some queries for which it shouldn't be."""
    return isinstance(got, Tensor) and got.shape == right.shape and bool(((got == 0) & (right != 0)).all(-1).any())


def overflowed(got: Any) -> bool:
    return isinstance(got, Tensor) and bool(got.isnan().any() | (got == math.inf).any())


def zigzag(rank: int, ranks: int, chunk: int) -> Tensor:
    """The positions of a rank's two chunks."""
    chunks = torch.arange(2 * ranks * chunk).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


@oracle(values=[([(1, 1), (2, 0), (0, 1)], 2)])
def zigzag_block(draws: Draws, blocks: list[tuple[int, int]], chunk: int) -> Case:
    """blocks: of each rank of the run, whose queries meet whose keys. chunk: tokens of a chunk."""
    qs, ks, vs = ([heads_of(draws, 10 * n + seed, 2 * chunk) for n in range(len(blocks))] for seed in range(3))
    ranks, each = max(max(pair) for pair in blocks) + 1, 2 * chunk
    places = [[zigzag(rank, ranks, chunk) for rank in pair] for pair in blocks]
    right = [attention_block(q, k, v, *both) for q, k, v, both in zip(qs, ks, vs, places, strict=True)]

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        return as_tuple(got["result"], ["out", "lse"], rank) | {"the number of scores": got["scores"]}

    return Case(
        [qs, ks, vs, [mine for mine, _ in blocks], [theirs for _, theirs in blocks]],
        right={
            "out": [out for out, _ in right],
            "lse": [lse for _, lse in right],
            "the number of scores": [each * (each + (a == b)) // 2 for a, b in blocks],
        },
        seen=[
            f"{{part}}, of the queries of rank {mine} among the keys of rank {theirs}, is" for mine, theirs in blocks
        ],
        rtol=CLOSE,
        driver=count_scores,
        unpack=unpack,
    )


### BEGIN HIDDEN TESTS
hidden_zigzag_block = vary(zigzag_block, values=[([(3, 1), (1, 3), (3, 3)], 3), ([(0, 4), (4, 0)], 1), ([(0, 0)], 2)])
### END HIDDEN TESTS


def spread(x: Tensor, positions: Sequence[Tensor]) -> list[Tensor]:
    """The tokens of each rank, of (B, heads, S, d) or (B, heads, S)."""
    return [x[:, :, mine].clone() for mine in positions]


def layout(kind: str, ranks: int, tokens: int) -> list[Tensor]:
    """Which tokens each rank has: neighbours, or dealt out one by one."""
    if kind == "chunks":
        return list(torch.arange(ranks * tokens).chunk(ranks))
    return [torch.arange(rank, ranks * tokens, ranks) for rank in range(ranks)]


@dataclass
class Ring:
    """Attention over tokens that `groups` of ranks share, each group with a sequence of its own."""

    draws: Draws
    groups: Members
    tokens: int
    kind: str
    heads: int = 2

    def __post_init__(self) -> None:
        size = len(self.groups[0])
        self.positions = layout(self.kind, size, self.tokens)
        total = size * self.tokens
        self.whole = [
            [heads_of(self.draws, 10 * number + seed, total, self.heads) for seed in range(4)]
            for number in range(len(self.groups))
        ]

    def on_ranks(self, of_group: Callable[[int], Sequence[Any]]) -> list[Any]:
        """One value per rank, from the values of each group's ranks in group order."""
        found = [(rank, x) for n, ranks in enumerate(self.groups) for rank, x in zip(ranks, of_group(n), strict=True)]
        return [x for _, x in sorted(found, key=lambda pair: pair[0])]

    def local(self, number: int) -> list[Tensor]:
        """Of each rank its tokens of q (0), k (1), v (2) or the gradient of the output (3)."""
        return self.on_ranks(lambda group: spread(self.whole[group][number], self.positions))

    def all_positions(self) -> list[list[Tensor]]:
        """On every rank: the positions of each rank of its group."""
        return self.on_ranks(lambda _: [self.positions] * len(self.positions))

    def results(self, group: int) -> tuple[Tensor, Tensor]:
        """(out, lse) of the whole sequence."""
        q, k, v, _ = self.whole[group]
        order = torch.arange(q.shape[2])
        return attention_block(q, k, v, order, order)

    def results_on_ranks(self, part: int) -> list[Tensor]:
        return self.on_ranks(lambda group: spread(self.results(group)[part], self.positions))

    def gradients_on_ranks(self, part: int) -> list[Tensor]:
        """Of each rank its tokens of dq (0), dk (1) or dv (2)."""

        def gradients(group: int) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v, grad = self.whole[group]
            order = torch.arange(q.shape[2])
            return attention_block_backward(q, k, v, *self.results(group), grad, order, order)

        return self.on_ranks(lambda group: spread(gradients(group)[part], self.positions))


def merged(out: Tensor, lse: Tensor, more: Tensor, its_lse: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.stack([lse, its_lse])
    shares = both.softmax(0).nan_to_num(0.0).unsqueeze(-1)
    return (shares * torch.stack([out, more])).sum(0), both.logsumexp(0)


@oracle(
    values=[([[0, 1, 2]], 2, "chunks"), ([[0, 2], [1, 3]], 3, "dealt")],
    traffic=[([[0, 1, 2, 3]], 2, "chunks")],
    if_stuck=STUCK_RING,
)
def ring_attention(draws: Draws, groups: Members, tokens: int, kind: str) -> Case:
    ring = Ring(draws, groups, tokens, kind)
    size, k = len(groups[0]), ring.local(1)[0]
    return Case(
        [ring.local(0), ring.local(1), ring.local(2), ring.all_positions()],
        for_all={"merge": merged, "groups": {"cp_group": groups}},
        right={"out": ring.results_on_ranks(0), "lse": ring.results_on_ranks(1)},
        rtol=CLOSE,
        driver=in_groups,
        values_first=True,
        traffic=lambda answer: expect_ring(answer, (size - 1) * 2 * k.nbytes, size - 1),
    )


### BEGIN HIDDEN TESTS
hidden_ring_attention = vary(
    ring_attention,
    values=[([[0, 1, 2, 3, 4]], 1, "dealt"), ([[0]], 3, "chunks"), ([[0, 3], [1, 4], [2, 5]], 2, "chunks")],
    traffic=[([[0, 1, 2], [3, 4, 5]], 3, "dealt"), ([[0]], 2, "chunks")],
)
### END HIDDEN TESTS


def expect_ring(answer: Answer, nbytes: int, messages: int) -> str:
    """Raise CheckFailed unless each rank sent so many bytes, all to the same rank, in so many messages at most."""
    expect_only_messages(answer)
    for rank in range(answer.run.world_size):
        sends = [event for event in answer.events if event.rank == rank and event.op == "send"]
        total = sum(event.bytes for event in sends)
        if total != nbytes:
            raise CheckFailed(
                f"rank {rank} sent {total:,} bytes",
                f"{nbytes:,} bytes",
                "Keys and values need P - 1 hops: one more brings them back to where they started."
                if total > nbytes
                else "Something never went all the way round.",
            )
        if len(sends) > messages:
            raise CheckFailed(
                f"rank {rank} sent {len(sends)} messages",
                f"{messages}",
                "Keys and values travel together, as one tensor.",
            )
        if len({event.peer for event in sends}) > 1:
            raise CheckFailed(f"rank {rank} sends to several ranks", "one, the next of the group")
    return f"each rank sent {nbytes:,} bytes, all to the next rank."


@oracle(
    values=[([[0, 1, 2]], 2, "chunks"), ([[0, 2], [1, 3]], 2, "dealt")],
    traffic=[([[0, 1, 2, 3]], 2, "chunks")],
    if_stuck=STUCK_RING,
)
def ring_attention_backward(draws: Draws, groups: Members, tokens: int, kind: str) -> Case:
    ring = Ring(draws, groups, tokens, kind)
    size, nbytes = len(groups[0]), 2 * ring.local(1)[0].nbytes

    return Case(
        [
            *(ring.local(part) for part in range(3)),
            ring.all_positions(),
            *(ring.results_on_ranks(part) for part in range(2)),
            ring.local(3),
        ],
        for_all={"groups": {"cp_group": groups}},
        right={name: ring.gradients_on_ranks(part) for part, name in enumerate(("dq", "dk", "dv"))},
        rtol=CLOSE,
        driver=in_groups,
        values_first=True,
        traffic=lambda answer: expect_ring(answer, (size > 1) * (2 * size - 1) * nbytes, 2 * size - 1),
    )


### BEGIN HIDDEN TESTS
hidden_ring_attention_backward = vary(
    ring_attention_backward,
    values=[([[0, 1, 2, 3, 4]], 1, "dealt"), ([[0]], 3, "chunks"), ([[0, 3], [1, 4], [2, 5]], 2, "chunks")],
    traffic=[([[0, 1, 2], [3, 4, 5]], 3, "dealt")],
)
### END HIDDEN TESTS


@oracle(
    values=[([[0, 1]], 2, 4), ([[0, 2], [1, 3]], 3, 2)],
    traffic=[([[0, 1, 2, 3]], 2, 4)],
    if_stuck="all ranks of the group must call all_to_all_single, with tensors of the same size.",
)
def ulysses_attention(draws: Draws, groups: Members, tokens: int, heads: int) -> Case:
    ring = Ring(draws, groups, tokens, "chunks", heads)
    return Case(
        [ring.local(part) for part in range(3)],
        for_all={"groups": {"cp_group": groups}},
        right=ring.results_on_ranks(0),
        rtol=CLOSE,
        driver=in_groups,
        values_first=True,
        traffic=lambda answer: expect_exchanged(answer, 4 * ring.local(0)[0].nbytes),
    )


### BEGIN HIDDEN TESTS
hidden_ulysses_attention = vary(
    ulysses_attention,
    values=[([[0, 1, 2]], 2, 6), ([[0, 3], [1, 4], [2, 5]], 1, 2), ([[0]], 3, 2)],
    traffic=[([[0, 1, 2]], 1, 3)],
)
### END HIDDEN TESTS


def expect_exchanged(answer: Answer, nbytes: int) -> str:
    for rank in range(answer.run.world_size):
        events = [event for event in answer.events if event.rank == rank]
        strangers = sorted({event.op for event in events} - {"all_to_all"})
        total = sum(event.bytes for event in events)
        if strangers or total != nbytes:
            raise CheckFailed(
                f"rank {rank} handed {total:,} bytes to {', '.join(strangers) or 'all_to_all'}",
                f"{nbytes:,} bytes to all_to_all",
                "q, k and v there, the result back: each of them once, and no rank needs all heads of all tokens.",
            )
    return f"{nbytes:,} bytes handed to all-to-alls per rank, whatever the number of ranks."


# ---- across all axes

GRADIENTS = {
    "matrix_after_norm": (2, 3),
    "norm": (3,),
    "table": (4, 2),
}  # sharded over tp; replicated; replicated and tied


def on_stage(name: str, stage: int, stages: int) -> bool:
    return name != "table" or stage in (0, stages - 1)


@oracle(
    values=[((2, 2, 2),)],
    traffic=[((2, 3, 1),), ((2, 2, 2),)],
    if_stuck="all ranks of a group must make the same calls in it.",
)
def finish_gradients(draws: Draws, sizes: Sizes) -> Case:
    dp, pp, tp = sizes
    places, ranks = coordinates(sizes), range(math.prod(sizes))
    whole = {
        name: draws.different_integers(len(ranks), shape, DOUBLE, seed)
        for seed, (name, shape) in enumerate(GRADIENTS.items())
    }
    given = [{name: whole[name][rank] for name in GRADIENTS if on_stage(name, places[rank][1], pp)} for rank in ranks]
    ends = [[int(x) for x in grid_of(sizes)[d, [0, pp - 1], t].unique()] for d in range(dp) for t in range(tp)]
    inside = [[int(rank)] for rank in grid_of(sizes)[:, 1 : pp - 1].flatten()]

    def finished(name: str) -> list[Tensor | None]:
        """What each rank should return under a name."""
        x = torch.stack(whole[name]).unflatten(0, sizes)  # (dp, pp, tp, ...)
        if name == "table":
            x = x[:, sorted({0, pp - 1})].sum(1, keepdim=True)
        if name != "matrix_after_norm":
            x = x.sum(2, keepdim=True)
        x = x.mean(0).expand(pp, tp, *GRADIENTS[name])
        return [x[stage, part].clone() if on_stage(name, stage, pp) else None for _, stage, part in places]

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        if not isinstance(got, dict) or got.keys() != given[rank].keys():
            raise CheckFailed(f"rank {rank} returned {show(got)}", f"a dict with {', '.join(given[rank])}")
        return dict.fromkeys(GRADIENTS) | got

    groups = {"dp_group": groups_along(sizes, 0), "tp_group": groups_along(sizes, 2), "embedding_group": ends + inside}
    return Case(
        [given],
        for_all={"partial": ["norm", "table"], "tied": ["table"], "groups": groups},
        right={name: finished(name) for name in GRADIENTS},
        unpack=unpack,
        rtol=CLOSE,
        driver=in_groups,
        values_first=True,
        traffic=lambda answer: expect_finished(answer, sizes, places, groups),
    )


### BEGIN HIDDEN TESTS
hidden_finish_gradients = vary(finish_gradients, values=[((1, 3, 2),), ((3, 1, 1),)], traffic=[((1, 3, 2),)])
### END HIDDEN TESTS


ONCE_EACH = "Each gradient goes once along each axis that it needs, and along no other."


def expect_finished(answer: Answer, sizes: Sizes, places: list[list[int]], groups: dict[str, Members]) -> str:
    """Raise CheckFailed unless each gradient went once along each axis that it needs."""
    nbytes = {name: math.prod(shape) * 8 for name, shape in GRADIENTS.items()}
    for rank, (_, stage, _) in enumerate(places):
        here = {name for name in GRADIENTS if on_stage(name, stage, sizes[1])}
        wanted = {
            "along dp": (sizes[0] > 1) * sum(nbytes[name] for name in here),
            "along tp": (sizes[2] > 1) * sum(nbytes[name] for name in here - {"matrix_after_norm"}),
            "to the two ends of the pipeline": (sizes[1] > 1) * nbytes["table"] * ("table" in here),
        }
        named = dict(zip(wanted, groups.values(), strict=True))
        expect_along(answer, rank, named, wanted, {})
    return "each gradient went once along each axis that it needs."


@oracle(
    values=[((2, 2, 2),), ((1, 3, 1),)],
    traffic=[((1, 2, 2),)],
    if_stuck="all ranks of a group must make the same calls in it.",
)
def grid_norm(draws: Draws, sizes: Sizes) -> Case:
    _, pp, tp = sizes
    places = coordinates(sizes)
    matrices = draws.different_integers(pp * tp, (2, 2), DOUBLE)
    norms = draws.different_integers(pp, 3, DOUBLE, 1)
    table = draws.integers((3, 2), DOUBLE, 2) + 7
    heads = draws.different_integers(tp, (2, 3), DOUBLE, 3)
    given = [
        {"matrix": matrices[stage * tp + part], "norm": norms[stage]}
        | ({"table": table, "head": heads[part]} if on_stage("table", stage, pp) else {})
        for _, stage, part in places
    ]
    elsewhere = [["table", "head"] if pp > 1 and stage == pp - 1 else [] for _, stage, _ in places]
    return Case(
        [given, [["norm", "table"]] * len(places), elsewhere],
        for_all={"groups": {"pp_group": groups_along(sizes, 1), "tp_group": groups_along(sizes, 2)}},
        right=math.sqrt(sum(float(x.square().sum()) for x in [*matrices, *norms, table, *heads])),
        rtol=CLOSE,
        driver=in_groups,
        values_first=True,
        traffic=expect_few_bytes,
    )


### BEGIN HIDDEN TESTS
hidden_grid_norm = vary(
    grid_norm, values=[((1, 1, 4),), ((1, 4, 2),), ((3, 1, 2),), ((1, 1, 1),)], traffic=[((1, 3, 2),)]
)
### END HIDDEN TESTS


def expect_few_bytes(answer: Answer) -> str:
    for rank in range(answer.run.world_size):
        total = sum(event.bytes for event in answer.events if event.rank == rank)
        if total > SMALL:
            raise CheckFailed(
                f"rank {rank} handed in {total:,} bytes", f"{SMALL} at most", "Only sums of squares need to travel."
            )
    return "one number or two per rank."


@oracle(values=[([3, 5, 1],), ([4, 0, 2, 5], [[0, 2], [1, 3]])], traffic=[([3, 5, 1],)])
def token_mean(draws: Draws, counts: list[int], groups: Members | None = None) -> Case:
    groups = groups or [list(range(len(counts)))]
    losses = [(draws.integers(count, DOUBLE, seed=rank) + 5 + rank) for rank, count in enumerate(counts)]
    mine = [next(members for members in groups if rank in members) for rank in range(len(counts))]
    tokens = [sum(counts[rank] for rank in members) for members in mine]
    of_ranks = list(zip(losses, mine, tokens, strict=True))

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        names = ["the loss to go backward from", "the mean"]
        return as_tuple(got["result"], names, rank) | {"the gradient of each loss": got["gradient"]}

    return Case(
        [losses],
        for_all={"groups": {"dp_group": groups}},
        unpack=unpack,
        right={
            "the loss to go backward from": [x.sum() * len(members) / count for x, members, count in of_ranks],
            "the mean": [torch.cat([losses[rank] for rank in members]).sum() / count for _, members, count in of_ranks],
            "the gradient of each loss": [torch.full_like(x, len(members) / count) for x, members, count in of_ranks],
        },
        rtol=CLOSE,
        mistakes={
            "the loss to go backward from": {"not a number: the mean of no tokens. Start from the sum": overflowed},
            "the gradient of each loss": {
                "no gradient: the loss to go backward from has no graph. Start from `losses` as they are": None,
            },
        },
        driver=backward_in_groups,
        values_first=True,
        traffic=expect_few_bytes,
    )


### BEGIN HIDDEN TESTS
hidden_token_mean = vary(
    token_mean,
    values=[([2, 7, 1, 4], [[0, 2], [1, 3]]), ([3],), ([0, 1, 1, 2, 9],)],
    traffic=[([2, 7, 1, 4], [[0, 2], [1, 3]])],
)
### END HIDDEN TESTS


def along(sizes: dict[str, int], axes: Sequence[str]) -> Members:
    """What axis_groups should return."""
    return groups_along([*sizes.values()], *(number for number, name in enumerate(sizes) if name in axes))


def with_along(function: Callable[..., Any], sizes: dict[str, int]) -> Any:
    """Call the function with the sizes of a grid, and with what axis_groups should be."""
    return function(sizes, along)


program_groups = frozen_cases(ROOM, "program-groups", driver=with_along)


### BEGIN HIDDEN TESTS
NAMES = {"pp": ("pp",), "cp": ("cp",), "tp": ("tp",), "mean": ("dp", "cp")}


@oracle(
    values=[
        ({"pp": 3, "dp": 2, "cp": 1, "tp": 2},),
        ({"dp": 2, "cp": 3, "pp": 1, "tp": 1},),
        ({"cp": 2, "tp": 2, "dp": 2, "pp": 2},),
        ({"dp": 1, "pp": 5, "cp": 2, "tp": 1},),
    ]
)
def hidden_program_groups(_: Draws, sizes: dict[str, int]) -> Case:
    right = {name: along(sizes, axes) for name, axes in NAMES.items()}
    of_ends = [[[ranks[0], *ranks[1:][-1:]], *([rank] for rank in ranks[1:-1])] for ranks in right["pp"]]
    right["ends"] = sorted(group for of_pipeline in of_ends for group in of_pipeline)
    return Case(
        [[sizes]],
        right={name: every(groups) for name, groups in right.items()},
        seen=" x ".join(f"{name} {size}" for name, size in sizes.items()) + ": the groups {part!r} are",
        driver=with_along,
    )


### END HIDDEN TESTS


batch_rows = frozen_cases(ROOM, "batch-rows")


### BEGIN HIDDEN TESTS


@oracle(values=[(40, 8, 7, 1, 4), (12, 6, 2, 5, 2), (9, 3, 11, 0, 1), (10, 4, 7, 3, 2)])
def hidden_batch_rows(_: Draws, samples: int, batch: int, step: int, seed: int, size: int) -> Case:
    epoch, place = divmod(step, samples // batch)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch))
    return Case(
        [[step] * size, [batch] * size, [samples] * size, [seed] * size, list(range(size)), [size] * size],
        right=[rows.tolist() for rows in order[place * batch :][:batch].chunk(size)],
        seen=f"step {step}, batches of {batch} of {samples} samples, {size} data ranks: rank {{rank}} gets",
    )


### END HIDDEN TESTS
pieces_to_read = frozen_cases(ROOM, "pieces-to-read")


### BEGIN HIDDEN TESTS
Box = tuple[tuple[int, int], ...]  # (first, end) along each dimension


@oracle(
    values=[
        (((0, 4), (0, 6)), {"a": ((0, 2), (0, 6)), "b": ((2, 4), (0, 6))}),
        (((3, 5), (1, 2)), {"a": ((0, 4), (0, 2)), "b": ((4, 8), (0, 2)), "c": ((0, 8), (2, 4))}),
        (((2, 9),), {"w0": ((0, 4),), "w1": ((4, 8),), "w2": ((8, 12),)}),
        (((0, 2), (1, 3), (0, 1)), {"x": ((0, 2), (0, 2), (0, 1)), "y": ((0, 2), (2, 4), (0, 1))}),
    ]
)
def hidden_pieces_to_read(_: Draws, wanted: Box, saved: dict[str, Box]) -> Case:
    right = {}
    for name, box in saved.items():
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, box, strict=True)]
        if all(first < end for first, end in common):
            right[name] = tuple(
                tuple((first - a, end - a) for (first, end), (a, _) in zip(common, origin, strict=True))
                for origin in (box, wanted)
            )
    return Case([[wanted], [saved]], right=every(right), seen=f"wanted {wanted}: you returned")


### END HIDDEN TESTS
shard_boxes = frozen_cases(ROOM, "shard-boxes")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ("qkv", (7, 6), 4),
        ("columns", (2, 3, 4), 2),
        ("columns", (5,), 3),
        ("rows", (3, 2), 4),
        ("qkv", (2, 9), 1),
        ("no", (4,), 3),
    ]
)
def hidden_shard_boxes(_: Draws, cut: str, shape: tuple[int, ...], size: int) -> Case:
    dim = 0 if cut == "rows" else len(shape) - 1
    places = torch.arange(shape[dim] * size).view(3 if cut == "qkv" else 1, size, -1)  # in the whole weight, along dim
    whole = [(0, n) for n in shape]

    def boxes(rank: int) -> list[Box]:
        ends = [(int(piece[0]), int(piece[-1]) + 1) for piece in places[:, rank]]
        return [(*whole[:dim], pair, *whole[dim + 1 :]) for pair in ends]

    return Case(
        [[cut] * size, [shape] * size, list(range(size)), [size] * size],
        right=[[tuple(whole)] if cut == "no" else boxes(rank) for rank in range(size)],
        seen=f'"{cut}", a shard of {shape}, tp {size}: rank {{rank}} has',
    )


### END HIDDEN TESTS


# ---- the challenge


@oracle(score=[(80, 10_240, 80, 2048, 1024)], par=frozen_par(ROOM, "best-grid"))
def best_grid(_: Draws, layers: int, width: int, heads: int, length: int, batch: int) -> Case:
    cluster, model = find_cluster("dgx-h100", GPUS, "datasheet"), Model(layers, width, heads, length, vocabulary=0)
    plans = Measure(lambda answer: step_seconds(answer.results[0], model, batch, cluster), "s", "for a step")
    least = model.flops_per_token * length * batch / (GPUS * cluster.gpu.peak("bfloat16"))
    return Case([[layers], [width], [heads], [length], [batch], [GPUS]], score=plans, limit=least)


### BEGIN HIDDEN TESTS


def par_of_grid(layers: int, width: int, heads: int, length: int, batch: int) -> float:
    """tp of a node, the fewest stages that fit, and microbatches of one sequence; recomputing only if it must."""
    cluster, model = find_cluster("dgx-h100", GPUS, "datasheet"), Model(layers, width, heads, length, vocabulary=0)
    for recompute, pp in product(("none", "full"), range(1, layers + 1)):
        plan = Plan(GPUS // (8 * pp), 8, pp, recompute=recompute)
        if not problem_of(plan, model, batch, cluster):
            return sum(seconds_of(plan, model, batch, cluster).values())
    raise ValueError("no plan fits")


hidden_best_grid = vary(
    best_grid,
    par=par_of_grid,
    score=[(96, 12_288, 96, 2048, 1536), (32, 4096, 32, 8192, 512)],
)
### END HIDDEN TESTS


GPUS = 512


def step_seconds(answer: Any, model: Model, batch: int, cluster: Cluster) -> float:
    names = [field.name for field in fields(Plan)]
    if not isinstance(answer, dict) or not answer.keys() <= set(names):
        raise CheckFailed(f"it returned {show(answer)}"[:200], f"a dict with some of {', '.join(names)}")
    plan = Plan(**answer)
    problem = problem_of(plan, model, batch, cluster)
    if problem:
        raise CheckFailed(f"the plan doesn't work: {problem}", mistake="problem_of says so of a plan beforehand.")
    return sum(seconds_of(plan, model, batch, cluster).values())


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(best_grid, par=par_of_grid),
    vary(
        hidden_program_groups,
        values=[({"dp": 2, "pp": 3, "cp": 2, "tp": 2},), ({"pp": 4, "dp": 1, "tp": 2, "cp": 1},)],
    ),
    vary(hidden_batch_rows, values=[(24, 4, 2, 1, 2), (20, 4, 13, 0, 2)]),
    vary(
        hidden_pieces_to_read,
        values=[
            (((0, 4), (3, 6)), {"first": ((0, 2), (0, 6)), "second": ((2, 4), (0, 6)), "third": ((4, 6), (0, 6))}),
            (((2, 6), (0, 4)), {"left": ((0, 8), (0, 2)), "right": ((0, 8), (2, 4))}),
        ],
    ),
    vary(
        hidden_shard_boxes,
        values=[("rows", (2, 4), 3), ("columns", (2, 4), 3), ("qkv", (5, 12), 2), ("no", (3, 5), 2)],
    ),
    vary(
        hidden_axis_groups, values=[({"dp": 2, "pp": 2, "tp": 3}, ("pp",)), ({"dp": 2, "pp": 3, "tp": 2}, ("dp", "tp"))]
    ),
)
### END HIDDEN TESTS
