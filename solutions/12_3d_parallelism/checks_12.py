"""The checks of lesson 12. Form: see oracles.py; what a rank runs: kit/drivers.

The truth about every value is one process with the whole model and the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from utils.checks.answer import Answer, CheckFailed
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, as_tuple, every, oracle, vary
from utils.checks.recorded import recorded, recorded_par
from utils.checks.scores import Measure
from utils.checks.show import show
from utils.checks.traffic import expect_only_messages
from utils.cluster.grid_costs import Model, problem_of, step_costs
from utils.cluster.hardware import Cluster
from utils.cluster.presets import find_cluster
from utils.kit import mlp
from utils.kit.attention_blocks import attention_block, attention_block_backward, causal_attention
from utils.kit.drivers.attention import count_scores
from utils.kit.drivers.on_a_grid import use_groups
from utils.kit.drivers.sharded import backward_in_groups, in_groups
from utils.kit.transformer import attend

### BEGIN HIDDEN TESTS
F32 = torch.float32
### END HIDDEN TESTS

ROOM = Path(__file__).parent
DOUBLE = torch.float64
CLOSE = 1e-9

axis_groups = recorded(ROOM, "axis-groups")


### BEGIN HIDDEN TESTS


def ranks_that_agree(sizes: dict[str, int], axes: tuple[str, ...], inner_first: bool = False) -> list[list[int]]:
    """The groups along `axes`; inner_first: as if the first axis were innermost."""
    names = list(sizes)[:: -1 if inner_first else 1]
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(product(*(range(sizes[name]) for name in names))):
        key = tuple(at for name, at in zip(names, place, strict=True) if name not in axes)
        found.setdefault(key, []).append(rank)
    return sorted(found.values())


@oracle(
    values=[
        ({"dp": 3, "cp": 2, "tp": 2}, ("cp",)),
        ({"pp": 2, "dp": 3, "cp": 2, "tp": 4}, ("tp", "dp")),
        ({"dp": 5, "tp": 1}, ("dp",)),
        ({"a": 2, "b": 3, "c": 2}, ("a", "c", "b")),
    ]
)
def hidden_axis_groups(_: Draws, sizes: dict[str, int], axes: tuple[str, ...]) -> Case:
    right = ranks_that_agree(sizes, axes)
    others = tuple(name for name in sizes if name not in axes)
    wrong = {
        "the groups if the FIRST axis is innermost: here the last one is": ranks_that_agree(sizes, axes, True),
        "the groups along the other axes: ranks of a group differ on `axes` and agree on the others": (
            ranks_that_agree(sizes, others)
        ),
        "only the group of rank 0: all groups are wanted": right[:1],
        "cut into neighbouring ranks: only groups along the innermost axes lie like that": [
            list(range(start, start + len(right[0]))) for start in range(0, math.prod(sizes.values()), len(right[0]))
        ],
    }
    if len(axes) > 1:
        for axis in axes:
            wrong[f"the groups along {axis} alone: ranks that differ on any of `axes` are in one group"] = (
                ranks_that_agree(sizes, (axis,))
            )
        single = [group for axis in axes for group in ranks_that_agree(sizes, (axis,))]
        wrong["the groups of each axis alone: ranks that differ on any of `axes` are in one group"] = sorted(single)
        names = [*others, *axes]
        of_place = {tuple(place): rank for rank, place in enumerate(product(*map(range, sizes.values())))}
        as_given = [
            of_place[tuple(at[names.index(name)] for name in sizes)]
            for at in product(*(range(sizes[name]) for name in names))
        ]
        each = len(right[0])
        wrong["with ranks in the order that `axes` gives: within a group they ascend"] = sorted(
            as_given[start : start + each] for start in range(0, len(as_given), each)
        )
    text = " x ".join(f"{name} {size}" for name, size in sizes.items())
    return Case(
        [[sizes], [axes]],
        right=every(right),
        mistakes={words: every(groups) for words, groups in wrong.items()},
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
    unused = {name: [(of(rank, name), -1) for rank in ranks] for name in members}
    return Case(
        [[members] * world_size],
        right=right,
        seen="rank {rank}: the group {part!r} and the sum of its ranks are",
        mistakes={
            name: {
                "no group of this name that a rank could use: return a dict {name: group}": ([], -1),
                "all ranks: give the members to dist.new_group": (list(ranks), -1),
                "the right group, but on a different rank the answer holds none that this rank is in": unused[name],
            }
            for name in members
        },
        through=use_groups,
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


def groups_along(sizes: Sequence[int], axis: int) -> Members:
    """All groups along one axis of a grid."""
    found: Members = grid_of(sizes).movedim(axis, -1).reshape(-1, sizes[axis]).tolist()
    return found


def coordinates(sizes: Sequence[int]) -> list[list[int]]:
    """The coordinates of each rank."""
    return [(grid_of(sizes) == rank).nonzero()[0].tolist() for rank in range(math.prod(sizes))]


def piece(whole: Sequence[Tensor], sizes: Sizes, place: Sequence[int]) -> list[Tensor]:
    """What a rank has of the weights, or of their gradients: its stage, cut by columns and by rows in turn."""
    (_, stages, parts), (_, stage, part) = sizes, place
    each = len(whole) // stages
    mine = whole[stage * each : stage * each + each]
    return [x.chunk(parts, 1 - number % 2)[part].clone() for number, x in enumerate(mine)]


Parts = list[Tensor]  # one tensor for each rank of a tensor group


def through_f(xs: Parts) -> Parts:
    """Each rank's own tensor; in the backward pass each gets the sum of all gradients."""
    from_all = sum(x - x.detach() for x in xs)
    return [x.detach() + from_all for x in xs]


def through_g(xs: Parts) -> Parts:
    """The sum on each rank; in the backward pass each keeps its own gradient."""
    total = sum(x.detach() for x in xs)
    return [total + (x - x.detach()) for x in xs]


def gelus(xs: Parts) -> Parts:
    return [gelu(x) for x in xs]


WRONG_DOORS: dict[str, tuple[Callable[[Parts], Parts], Callable[[Parts], Parts]]] = {  # before and after two products
    "without f: each tensor rank then knows only its own columns' share of x's gradient": (
        list,
        lambda ys: gelus(through_g(ys)),
    ),
    "without g: each tensor rank then has only its own rows' share of the sum": (through_f, gelus),
    "with f and g swapped: f comes before the columns, g after the rows": (
        through_g,
        lambda ys: gelus(through_f(ys)),
    ),
    "without the gelu after g: each of the two matrices is a layer": (through_f, through_g),
    "with the second gelu before g: add up first, since gelu of a sum is not the sum of the gelus": (
        through_f,
        lambda ys: through_g(gelus(ys)),
    ),
}


def step_of_parts(
    weights: Sequence[Tensor], batches: Parts, enter: Callable[[Parts], Parts], leave: Callable[[Parts], Parts]
) -> tuple[Parts, list[Tensor]]:
    """(each rank's loss, gradients of whole weights) of the ranks of a tensor group, with these doors."""
    leaves = [[w.clone().requires_grad_() for w in weights] for _ in batches]
    cut = [[w.chunk(len(batches), 1 - n % 2)[part] for n, w in enumerate(of)] for part, of in enumerate(leaves)]
    xs = batches
    for n in range(0, len(weights), 2):
        xs = leave([gelu(x @ of[n]) @ of[n + 1] for x, of in zip(enter(xs), cut, strict=True)])
    losses = [mlp.loss_of(x) for x in xs]
    torch.stack(losses).sum().backward()
    gradients = [[of[n].grad for of in leaves] for n in range(len(weights))]
    whole = [torch.stack([grad for grad in of_ranks if grad is not None]).sum(0) for of_ranks in gradients]
    return [loss.detach() for loss in losses], whole


@oracle(
    values=[((2, 2, 2), 4, 8, 4)],
    traffic=[((2, 2, 2), 8, 8, 2)],
    if_stuck="all ranks of a group must make the same calls in it, in the same order; no rank skips a microbatch.",
)
def grid_step(draws: Draws, sizes: Sizes, layers: int, rows: int, count: int, dim: int = 4) -> Case:
    weights, batch = (
        mlp.make_weights(layers, dim, draws.salted(), DOUBLE),
        mlp.make_batch(rows, dim, draws.salted(), DOUBLE),
    )
    loss, gradients = mlp.serial_gradients(weights, batch)
    places, ranks = coordinates(sizes), range(math.prod(sizes))
    own = [mlp.serial_gradients(weights, part) for part in batch.chunk(sizes[0])]
    names = [f"the gradient of weights[{number}]" for number in range(layers // sizes[1])]

    def pieces(of_rank: Callable[[Sequence[int]], Sequence[Tensor]], number: int) -> list[Tensor]:
        return [piece(of_rank(place), sizes, place)[number] for place in places]

    right_doors = through_f, lambda ys: gelus(through_g(ys))
    of_parts = {words: step_of_parts(weights, [batch] * sizes[2], *doors) for words, doors in WRONG_DOORS.items()}
    of_parts["what you get if tensor ranks take different rows: all of them need chunk dp_rank"] = step_of_parts(
        weights, [batch.chunk(sizes[0])[part % sizes[0]] for part in range(sizes[2])], *right_doors
    )
    first_ones = torch.cat([part.chunk(count)[0] for part in batch.chunk(sizes[0])])
    of_parts["with microbatch 0 each time: `number` says which one to take"] = step_of_parts(
        weights, [first_ones] * sizes[2], *right_doors
    )
    scaled = {
        f"{sizes[0]} times too large: average over the data axis": sizes[0],
        f"{count} times too large: a microbatch is one of {count} parts of the mean": count,
        "divided by the size of the data axis once too often": 1 / sizes[0],
        "divided by the number of microbatches once too often": 1 / count,
        "divided by the number of all ranks: the mean is that over the data axis": sizes[0] / len(ranks),
    }

    def along(axis: int, number: int) -> list[Tensor]:
        """The sum of finished gradients along an axis."""
        others = [[[*at[:axis], other, *at[axis + 1 :]] for other in range(sizes[axis])] for at in places]
        return [torch.stack([piece(gradients, sizes, at)[number] for at in of]).sum(0) for of in others]

    own_rows = "that of this rank's own rows: average over the data axis"
    mistakes: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names):
        mistakes[name] = {own_rows: pieces(lambda at: own[at[0]][1], number)}
        for words, (_, wrong) in of_parts.items():
            mistakes[name][words] = [piece(wrong, sizes, at)[number] for at in places]
        for words, factor in scaled.items():
            mistakes[name][words] = [factor * x for x in pieces(lambda _: gradients, number)]
        over_tp, over_pp = along(2, number), along(1, number)
        mistakes[name]["added up along tp too: these ranks have different columns and rows"] = over_tp
        mistakes[name]["the mean along tp: these ranks have different columns and rows"] = [
            x / sizes[2] for x in over_tp
        ]
        mistakes[name]["added up along pp too: stages have different layers"] = over_pp
    on_last = [place[1] == sizes[1] - 1 for place in places]
    losses = {own_rows: [own[d][0] for d, _, _ in places]}
    losses[f"{count} times too large: a microbatch is one of {count} parts of the mean"] = [
        count * loss for _ in places
    ]
    losses |= {words: [of_ranks[part] for _, _, part in places] for words, (of_ranks, _) in of_parts.items()}
    mistakes["the loss"] = {
        words: [x if last else None for x, last in zip(of_ranks, on_last, strict=True)]
        for words, of_ranks in losses.items()
    }

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        of_loss, of_weights = as_tuple(got, ["the loss", "the gradients"], rank).values()
        return as_tuple(of_weights, names, rank) | {"the loss": of_loss}

    return Case(
        [[batch for _ in ranks], [piece(weights, sizes, place) for place in places], [count for _ in ranks]],
        same={"groups": {name: groups_along(sizes, axis) for axis, name in enumerate(GROUPS)}},
        right={name: pieces(lambda _: gradients, number) for number, name in enumerate(names)}
        | {"the loss": [loss if last else None for last in on_last]},
        mistakes=mistakes,
        rtol=CLOSE,
        unpack=unpack,
        through=in_groups,
        values_first=True,
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
    for rank, (_, stage, _) in enumerate(coordinates(sizes)):
        doors = (2 * pairs - (stage == 0)) * of_rows  # the batch itself needs no gradient
        wanted = {
            "dp": (dp > 1) * 2 * pairs * dim * dim // tp * 8,
            "tp": (tp > 1) * doors,
            "pp": ((stage > 0) + (stage < pp - 1)) * of_rows,
        }
        expect_along(answer, rank, moved(answer, rank, sizes), wanted)
    return "no byte more than needed along any axis."


def moved(answer: Answer, rank: int, sizes: Sizes) -> dict[str, int]:
    """{axis: the bytes that a rank handed in along it}, "elsewhere" for any other group. Sends go along pp."""
    along = {
        tuple(group): axis
        for number, axis in enumerate(("dp", "pp", "tp"))
        if sizes[number] > 1
        for group in groups_along(sizes, number)
    }
    found: dict[str, int] = dict.fromkeys(("dp", "pp", "tp", "elsewhere"), 0)
    for event in answer.events:
        if event.rank == rank and event.op not in ("recv", "barrier") and len(event.members) > 1:
            found["pp" if event.op == "send" else along.get(event.members, "elsewhere")] += event.bytes
    return found


ADVICE = {
    "tp": "f and g once for each pair of layers and microbatch. Are whole gradients reduced along tp too?",
    "dp": "Each gradient is reduced once, after all microbatches.",
    "pp": "Each microbatch crosses a boundary once in each direction.",
    "elsewhere": "Which group did you hand to that call? Without one, it is the whole world.",
}


def expect_along(answer: Answer, rank: int, got: dict[str, int], wanted: dict[str, int]) -> None:
    for axis, nbytes in got.items():
        need = wanted.get(axis, 0)
        if not need <= nbytes <= need + SMALL:
            raise CheckFailed(
                f"rank {rank} handed in {nbytes:,} bytes along {axis}"
                if axis != "elsewhere"
                else f"rank {rank} handed in {nbytes:,} bytes to groups that lie along no axis",
                f"{need:,} bytes",
                ADVICE[axis],
            )


# ---- context parallelism

STUCK_RING = (
    "in a ring, everybody sends to the next rank of the group and receives from the one before. If all of them receive "
    "first, or wait for their send first, nobody moves: isend, recv, then wait. Peers are global ranks."
)


def heads_of(draws: Draws, seed: int, tokens: int, heads: int = 2, batch: int = 2) -> Tensor:
    """(batch, heads, tokens, 4), random."""
    return torch.randn(batch, heads, tokens, 4, generator=draws.generator(seed), dtype=DOUBLE)


@oracle(values=[(False,), (True,)])
def merge_attention(draws: Draws, nothing: bool, large: float = 1.0) -> Case:
    """Two blocks of keys; nothing: of the second block, the first queries may see no key. large: a factor of q."""
    q, k, v = (heads_of(draws, seed, 6) for seed in range(3))
    q, queries = large * q, torch.arange(6) if nothing else torch.full((6,), 6)
    keys = torch.arange(6)
    blocks = [attention_block(q, k[:, :, part], v[:, :, part], queries, keys[part]) for part in (FIRST, SECOND)]
    (out_a, lse_a), (out_b, lse_b) = blocks
    out, lse = attention_block(q, k, v, queries, keys)
    larger, both = torch.maximum(lse_a, lse_b), torch.stack([lse_a, lse_b])
    shifted = (both - larger).exp().sum(0)
    in_base_2 = torch.logaddexp2(lse_a, lse_b)
    weighed = {
        "weighed by shares of the lse: an lse is a logarithm, so the weights are exponentials": both / both.sum(0),
        "weighed with an lse to base 2: the exponentials are those of e": (both - in_base_2).exp(),
    }
    parts = torch.stack([out_a, out_b])
    with_nans = {"not a number: exp(-inf - -inf). Shift by the larger lse, or let torch.logaddexp do it": overflowed}
    return Case(
        [[out_a], [lse_a], [out_b], [lse_b]],
        right={"out": out, "lse": lse},
        rtol=CLOSE,
        mistakes={
            "out": {
                "the sum: weigh each part by its share of all exponentials": out_a + out_b,
                "the mean: weigh each part by its share of all exponentials": (out_a + out_b) / 2,
                "the sum of both parts with the right weights, never divided by the sum of the weights": (
                    lambda got: proportional(got, out)
                ),
                "the right weights, the wrong way round": merged(out_a, lse_b, out_b, lse_a)[0],
                **{words: (shares.unsqueeze(-1) * parts).sum(0) for words, shares in weighed.items()},
                "0 for some queries: an exponential became infinite. Shift by the larger lse, or use torch.logaddexp": (
                    lambda got: vanished(got, out)
                ),
                **with_nans,
            },
            "lse": {
                "the sum of both: it is the logarithm of a sum of exponentials": lse_a + lse_b,
                "the larger one: it is the logarithm of a sum of exponentials": larger,
                "the larger one and the sum of the shifted exponentials: take its logarithm": larger + shifted,
                "shifted: add the larger lse again, after the logarithm": shifted.log(),
                "to base 2: the exponentials are those of e": in_base_2,
                **with_nans,
            },
        },
    )


### BEGIN HIDDEN TESTS
hidden_merge_attention = vary(merge_attention, values=[(False, 3000.0), (True, 300.0)])
### END HIDDEN TESTS


FIRST, SECOND = slice(0, 3), slice(3, 6)


def proportional(got: Any, right: Tensor) -> bool:
    """Whether each query's result is a multiple of the right one, of 1 to 2 as two weights of at most 1 give."""
    if not isinstance(got, Tensor) or got.shape != right.shape:
        return False
    ratio = got / right
    return bool(((ratio - ratio[..., :1]).abs() < 1e-6).all() and (ratio > 1 - 1e-6).all() and (ratio <= 2).all())


def vanished(got: Any, right: Tensor) -> bool:
    """Whether it is 0 for some queries for which it shouldn't be."""
    return isinstance(got, Tensor) and got.shape == right.shape and bool(((got == 0) & (right != 0)).all(-1).any())


def overflowed(got: Any) -> bool:
    return isinstance(got, Tensor) and bool(got.isnan().any() | (got == math.inf).any())


def zigzag(rank: int, ranks: int, chunk: int) -> Tensor:
    """The positions of a rank's two chunks."""
    chunks = torch.arange(2 * ranks * chunk).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


def shown(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) with any mask, (queries, keys): True where a query sees a key."""
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~visible, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v, scores.logsumexp(-1)


@oracle(values=[([(1, 1), (2, 0), (0, 1)], 2)])
def zigzag_block(draws: Draws, blocks: list[tuple[int, int]], chunk: int) -> Case:
    """blocks: of each rank of the run, whose queries meet whose keys. chunk: tokens of a chunk."""
    qs, ks, vs = ([heads_of(draws, 10 * n + seed, 2 * chunk) for n in range(len(blocks))] for seed in range(3))
    ranks, late = max(max(pair) for pair in blocks) + 1, torch.arange(2 * chunk) >= chunk

    def wrong(mask: Callable[[int, int, Tensor], Tensor]) -> list[tuple[Tensor, Tensor]]:
        """(out, lse) of each block if (queries_of, keys_of, what is right) lead to this mask."""
        found = []
        for q, k, v, (mine, theirs) in zip(qs, ks, vs, blocks, strict=True):
            right = zigzag(theirs, ranks, chunk)[None, :] <= zigzag(mine, ranks, chunk)[:, None]
            found.append(shown(q, k, v, mask(mine, theirs, right)))
        return found

    wrongs = {
        "that of all pairs, whether visible or not: half of them are masked": wrong(lambda _, __, right: right | True),
        "what a causal mask by number gives: that is right for a rank's own keys only": wrong(
            lambda _, __, right: (right | True).tril()
        ),
        "the late keys of a rank before this one: its early chunk is the one that all queries see": wrong(
            lambda mine, theirs, right: right if theirs >= mine else late[None, :].expand(right.shape)
        ),
        "the early queries among the keys of a rank behind: it is the late ones that see all of these": wrong(
            lambda mine, theirs, right: right if theirs <= mine else ~late[:, None].expand(right.shape)
        ),
        "what a rank before this one would need: of a rank behind, the late queries see all keys": wrong(
            lambda mine, theirs, right: right if theirs <= mine else ~late[None, :].expand(right.shape)
        ),
        "what a rank behind this one would need: of a rank before, all queries see the early keys": wrong(
            lambda mine, theirs, right: right if theirs >= mine else late[:, None].expand(right.shape)
        ),
        "of the late queries alone: both chunks come after the early one of a rank before": wrong(
            lambda mine, theirs, right: right if theirs >= mine else right & late[:, None]
        ),
        "what a causal mask leaves of the late queries: they come after all keys of a rank behind": wrong(
            lambda mine, theirs, right: right if theirs <= mine else right & (right | True).tril(-chunk)
        ),
    }
    right, each = wrong(lambda _, __, mask: mask), 2 * chunk
    mistakes: dict[str, dict[str, Any]] = {
        name: {words: [both[part] for both in of] for words, of in wrongs.items()}
        for part, name in enumerate(("out", "lse"))
    }
    mistakes["lse"]["0 where a query sees none of the keys: the log of an empty sum is -inf"] = [
        lse.masked_fill(lse == -math.inf, 0.0) for _, lse in right
    ]
    mistakes["lse"]["inf where a query sees none of the keys: the log of an empty sum is -inf"] = [
        lse.masked_fill(lse == -math.inf, math.inf) for _, lse in right
    ]
    for part, name in enumerate(("out", "lse")):
        mistakes[name]["right, but with the early and the late queries swapped"] = [
            both[part].roll(chunk, 2) for both in right
        ]
    mistakes["the number of scores"] = {
        "those of all pairs: what is masked must be left out, not computed and thrown away": each**2,
        "none: call `attend`, which stands for the fast kernel": 0,
    }

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
        mistakes=mistakes,
        rtol=CLOSE,
        through=count_scores,
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
    every_token = torch.arange(ranks * tokens)
    return list(
        every_token.chunk(ranks)
        if kind == "chunks"
        else [torch.arange(rank, ranks * tokens, ranks) for rank in range(ranks)]
    )


@dataclass
class Ring:
    """Attention over tokens that `groups` of ranks share, each group with a sequence of its own."""

    draws: Draws
    groups: Members
    tokens: int
    kind: str

    def __post_init__(self) -> None:
        size = len(self.groups[0])
        self.positions = layout(self.kind, size, self.tokens)
        total = size * self.tokens
        self.whole = [
            [heads_of(self.draws, 10 * number + seed, total) for seed in range(4)] for number in range(len(self.groups))
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

    def steps(self, group: int, place: int, hops: Sequence[int], said: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(out, lse) of a rank that sees the keys of the ranks `hops` before it, with the positions of those `said`."""
        q, k, v, _ = self.whole[group]
        keys, places = (
            torch.cat([self.positions[(place - hop) % len(self.positions)] for hop in of]) for of in (hops, said)
        )
        mine = self.positions[place]
        return attention_block(q[:, :, mine], k[:, :, keys], v[:, :, keys], mine, places)

    def unmasked(self, part: int) -> list[Tensor]:
        """If only a rank's own keys were masked."""

        def of(group: int, place: int) -> Tensor:
            q, k, v, _ = self.whole[group]
            mine = self.positions[place]
            seen = torch.ones(len(mine), k.shape[2], dtype=torch.bool)
            seen[:, mine] = mine[None, :] <= mine[:, None]
            return shown(q[:, :, mine], k, v, seen)[part]

        return self.on_ranks(lambda group: [of(group, place) for place in range(len(self.positions))])

    def values_first(self, group: int, place: int) -> tuple[Tensor, Tensor]:
        """(out, lse) of a rank that takes keys for values, and values for keys, except its own."""
        q, k, v, _ = self.whole[group]
        mine, order = self.positions[place], torch.arange(k.shape[2])
        is_mine = torch.isin(order, mine)[:, None]
        return attention_block(q[:, :, mine], torch.where(is_mine, k, v), torch.where(is_mine, v, k), mine, order)

    def wrong(self, part: int, hops: Sequence[int], said: Sequence[int]) -> list[Tensor]:
        size = len(self.positions)
        return self.on_ranks(lambda group: [self.steps(group, p, hops, said)[part] for p in range(size)])


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
    hops, none = list(range(size)), [0] * size
    wrong = {  # {mistake: (keys, positions)}, as offsets to earlier ranks
        "attention to this rank's own keys alone: merge those that arrive, too": ([0], [0]),
        "attention without the keys of the last rank of the ring: P - 1 blocks arrive": (hops[:-1], hops[:-1]),
        "attention to the last block alone: merge it with what you had": (hops[-1:], hops[-1:]),
        "attention to the first and the last block alone: merge each with all that came before": (
            [0, hops[-1]],
            [0, hops[-1]],
        ),
        "attention to this rank's own keys twice: P - 1 blocks arrive": ([*hops, 0], [*hops, 0]),
        "attention to the same arrived keys in each hop: pass on what has just arrived": (
            [min(1, hop) for hop in hops],
            hops,
        ),
        "attention to this rank's own keys each time: attend to those that have arrived": (none, hops),
        "with the same positions for queries and keys: keys have those of the rank that they come from": (
            hops,
            none,
        ),
        "with positions one hop ahead of the keys: the first that arrive are of the rank before this one": (
            hops,
            [hop and hop + 1 for hop in hops],
        ),
        "with positions one hop behind the keys: the first that arrive are of the rank before this one": (
            hops,
            [max(0, hop - 1) for hop in hops],
        ),
        "with positions as if keys came from the next rank: they come from the one before": (
            hops,
            [-hop for hop in hops],
        ),
    }
    mistakes = {
        part: {words: ring.wrong(number, *of) for words, of in wrong.items() if of[0]}
        for number, part in enumerate(("out", "lse"))
    }
    for number, part in enumerate(("out", "lse")):
        mistakes[part]["attention to later tokens, too: it must be causal"] = ring.unmasked(number)
    swapped = ring.on_ranks(lambda group: [ring.values_first(group, place) for place in range(size)])
    mistakes["out"]["attention with values as keys: of what arrives, keys come first"] = [of[0] for of in swapped]
    return Case(
        [ring.local(0), ring.local(1), ring.local(2), ring.all_positions()],
        same={"merge": merged, "groups": {"cp_group": groups}},
        right={"out": ring.results_on_ranks(0), "lse": ring.results_on_ranks(1)},
        rtol=CLOSE,
        mistakes=mistakes,
        through=in_groups,
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

    def gradients(group: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, grad = ring.whole[group]
        order = torch.arange(q.shape[2])
        return attention_block_backward(q, k, v, *ring.results(group), grad, order, order)

    def partial(
        group: int, place: int, keys_of: int, said: int | None = None, alone: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the queries of one rank say about the keys of another one.

        said: the rank whose positions these keys are given; alone: with out and lse of this block alone
        """
        q, k, v, grad = ring.whole[group]
        mine, theirs = ring.positions[place], ring.positions[keys_of]
        places = theirs if said is None else ring.positions[said % size]
        blocks = q[:, :, mine], k[:, :, theirs], v[:, :, theirs]
        out, lse = attention_block(*blocks, mine, places) if alone else (x[:, :, mine] for x in ring.results(group))
        parts = attention_block_backward(*blocks, out, lse, grad[:, :, mine], mine, places)
        return tuple(x.nan_to_num(0.0) if alone else x for x in parts)  # type: ignore[return-value]

    def dq_with(said: Callable[[int, int], int], alone: bool = False) -> list[Tensor]:
        """dq with the positions of rank said(place, hop) for the keys that come in a hop."""
        return ring.on_ranks(
            lambda group: [
                torch.stack([partial(group, p, (p - hop) % size, said(p, hop), alone)[0] for hop in range(size)]).sum(0)
                for p in range(size)
            ]
        )

    def of_last_visit(part: int) -> list[Tensor]:
        return ring.on_ranks(lambda group: [partial(group, (p - 1) % size, p)[part] for p in range(size)])

    def of_ranks(part: int, hop: int) -> list[Tensor]:
        """Where the gradient of keys ends up `hop` ranks behind its owner."""
        return ring.on_ranks(
            lambda group: [spread(gradients(group)[part], ring.positions)[(p - hop) % size] for p in range(size)]
        )

    def own(part: int) -> list[Tensor]:
        return ring.on_ranks(lambda group: [partial(group, p, p)[part] for p in range(size)])

    names = ("dq", "dk", "dv")
    last = ring.on_ranks(lambda group: [partial(group, p, (p + 1) % size)[0] for p in range(size)])
    shifted = "the gradient of another rank's keys: one more hop brings it home to its owner"
    return Case(
        [
            *(ring.local(part) for part in range(3)),
            ring.all_positions(),
            *(ring.results_on_ranks(part) for part in range(2)),
            ring.local(3),
        ],
        same={"groups": {"cp_group": groups}},
        right={name: of_ranks(part, 0) for part, name in enumerate(names)},
        rtol=CLOSE,
        mistakes={
            "dq": {
                "what this rank's own keys contribute: add up all hops": own(0),
                "what the last keys to arrive contribute: add up all hops": last,
                "with this rank's positions for all keys: use those of the rank that they come from": (
                    dq_with(lambda place, _: place)
                ),
                "with positions one hop ahead of the keys: in round 0 this rank's own keys are here": (
                    dq_with(lambda place, hop: place - hop - 1)
                ),
                "with each block's own out and lse: those of all keys are given": (
                    dq_with(lambda place, hop: place - hop, alone=True)
                ),
            },
            **{
                name: {
                    "what this rank's own queries contribute: others have looked at these keys, too": own(part),
                    shifted: of_ranks(part, -1),
                    "one of k and v, the wrong way round: dk, then dv": of_ranks(3 - part, 0),
                    "what the last rank to have these keys contributes: add to what has arrived": of_last_visit(part),
                    f"divided by {size}: each rank adds its part, and nothing is averaged": [
                        x / size for x in of_ranks(part, 0)
                    ],
                }
                for part, name in enumerate(names)
                if part
            },
        },
        through=in_groups,
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
    size = len(groups[0])
    total, nbytes = size * tokens, heads * tokens * 4 * 8
    whole = [
        [heads_of(draws, 10 * number + seed, total, heads, 1) for seed in range(3)] for number in range(len(groups))
    ]

    def on_ranks(of_group: Callable[[int], Sequence[Tensor]]) -> list[Tensor]:
        found = [(rank, x) for n, ranks in enumerate(groups) for rank, x in zip(ranks, of_group(n), strict=True)]
        return [x.clone() for _, x in sorted(found, key=lambda pair: pair[0])]

    def shards_of(part: int) -> list[Tensor]:
        """Of each rank its tokens of q (0), k (1) or v (2)."""
        return on_ranks(lambda group: whole[group][part].chunk(size, 2))

    outs = [causal_attention(*qkv) for qkv in whole]
    keys_twice = [causal_attention(q, k, k) for q, k, _ in whole]
    sighted = [attend(q, k, v) for q, k, v in whole]
    chunks = [
        torch.cat([causal_attention(*(x.chunk(size, 2)[p] for x in qkv)) for p in range(size)], 2) for qkv in whole
    ]
    swapped = [out.unflatten(1, (size, heads // size)).transpose(1, 2).flatten(1, 2) for out in outs]
    return Case(
        [shards_of(part) for part in range(3)],
        same={"groups": {"cp_group": groups}},
        right=on_ranks(lambda group: outs[group].chunk(size, 2)),
        rtol=CLOSE,
        mistakes={
            "attention within this rank's own tokens: exchange them first": on_ranks(
                lambda group: chunks[group].chunk(size, 2)
            ),
            "attention that adds up keys where values belong: q, k and v travel": on_ranks(
                lambda group: keys_twice[group].chunk(size, 2)
            ),
            "attention to later tokens, too: it must be causal": on_ranks(lambda group: sighted[group].chunk(size, 2)),
            "all tokens of some heads: exchange them back": on_ranks(lambda group: outs[group].chunk(size, 1)),
            "right, but with the heads in a different order: heads come back from rank 0 first": on_ranks(
                lambda group: swapped[group].chunk(size, 2)
            ),
        },
        through=in_groups,
        values_first=True,
        traffic=lambda answer: expect_exchanged(answer, 4 * nbytes),
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

TIED = ("tied", "tied mean")
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
    embedding = ends + inside

    def outcome(steps: Mapping[str, Sequence[str]], factor: float = 1.0) -> list[dict[str, Tensor]]:
        """steps: {name: over which groups its gradient is summed}, and the mean over dp."""
        found = [dict(of_rank) for of_rank in given]
        for name in GRADIENTS:
            for step in steps[name]:
                members = embedding if step in TIED else groups_along(sizes, {"dp": 0, "tp": 2, "tp mean": 2}[step])
                mean = {"dp": 1 / dp, "tp mean": 1 / tp, "tied mean": 1 / min(pp, 2)}.get(step, 1.0)
                found = [dict(x) for x in added_up(found, name, members, mean)]
        return [{name: factor * x for name, x in of_rank.items()} for of_rank in found]

    steps = {"matrix_after_norm": ["dp"], "norm": ["tp", "dp"], "table": ["tp", "tied", "dp"]}
    right = outcome(steps)
    wrong = {
        "without the sum along tp: each rank has used this weight for its own tokens": {
            name: [step for step in of if step != "tp"] for name, of in steps.items()
        },
        "summed along tp too: this weight is cut there, and its gradient is whole": steps
        | {"matrix_after_norm": ["tp", "dp"]},
        "the mean along tp: add up, each rank's tokens give a part of one gradient": {
            name: [step.replace("tp", "tp mean") for step in of] for name, of in steps.items()
        },
        "added up along tp in place of the two ends of the pipeline: they are the embedding_group": steps
        | {"table": ["tp", "tp", "dp"]},
        "added up over the embedding_group in place of tp: a partial weight's ranks are the tp_group": steps
        | {"norm": ["tied", "dp"], "table": ["tied", "tied", "dp"]},
        "without the other end of the pipeline: a tied weight is used twice, and both gradients count": steps
        | {"table": ["tp", "dp"]},
        "the mean of the two ends of the pipeline: add them up, each is a part of one weight's gradient": steps
        | {"table": ["tp", "tied mean", "dp"]},
        "without the mean along dp": {name: [step for step in of if step != "dp"] for name, of in steps.items()},
    }
    outcomes = {words: outcome(these) for words, these in wrong.items()}
    outcomes["the sum along dp: take the mean"] = outcome(steps, dp)
    outcomes["divided by the number of all ranks: the mean is that along dp"] = outcome(steps, dp / len(ranks))

    def by_name(of_ranks: list[dict[str, Tensor]], name: str) -> list[Tensor | None]:
        return [of_rank.get(name) for of_rank in of_ranks]

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        if not isinstance(got, dict) or got.keys() != given[rank].keys():
            raise CheckFailed(f"rank {rank} returned {show(got)}", f"a dict with {', '.join(given[rank])}")
        return dict.fromkeys(GRADIENTS) | got

    groups = {"dp_group": groups_along(sizes, 0), "tp_group": groups_along(sizes, 2), "embedding_group": embedding}
    return Case(
        [given],
        same={"partial": ["norm", "table"], "tied": ["table"], "groups": groups},
        right={name: by_name(right, name) for name in GRADIENTS},
        mistakes={name: {words: by_name(of, name) for words, of in outcomes.items()} for name in GRADIENTS},
        unpack=unpack,
        rtol=CLOSE,
        through=in_groups,
        values_first=True,
        traffic=lambda answer: expect_finished(answer, sizes, places, embedding),
    )


### BEGIN HIDDEN TESTS
hidden_finish_gradients = vary(finish_gradients, values=[((1, 3, 2),), ((3, 1, 1),)], traffic=[((1, 3, 2),)])
### END HIDDEN TESTS


def added_up(found: list[dict[str, Tensor]], name: str, groups: Members, factor: float) -> list[dict[str, Tensor]]:
    after = [dict(x) for x in found]
    for members in groups:
        having = [rank for rank in members if name in found[rank]]
        if having:
            total = torch.stack([found[rank][name] for rank in having]).sum(0) * factor
            for rank in having:
                after[rank][name] = total
    return after


def expect_finished(answer: Answer, sizes: Sizes, places: list[list[int]], embedding: Members) -> str:
    """Raise CheckFailed unless each gradient went once along each axis that it needs."""
    nbytes = {name: math.prod(shape) * 8 for name, shape in GRADIENTS.items()}
    for rank, place in enumerate(places):
        here = {name for name in GRADIENTS if on_stage(name, place[1], sizes[1])}
        ends = next(tuple(members) for members in embedding if rank in members)
        got = {"dp": 0, "tp": 0, "tied": 0, "elsewhere": 0}
        for event in (event for event in answer.events if event.rank == rank and len(event.members) > 1):
            along = {tuple(ends): "tied"} | {
                tuple(members): axis for axis, n in (("dp", 0), ("tp", 2)) for members in groups_along(sizes, n)
            }
            got[along.get(event.members, "elsewhere")] += event.bytes
        wanted = {
            "dp": (sizes[0] > 1) * sum(nbytes[name] for name in here),
            "tp": (sizes[2] > 1) * sum(nbytes[name] for name in here - {"matrix_after_norm"}),
            "tied": (len(ends) > 1) * nbytes["table"] * ("table" in here),
            "elsewhere": 0,
        }
        for axis, count in got.items():
            if count != wanted[axis]:
                where = {"tied": "to the two ends of the pipeline", "elsewhere": "to other groups"}
                raise CheckFailed(
                    f"rank {rank} handed {count:,} bytes {where.get(axis, f'to its {axis} group')}",
                    f"{wanted[axis]:,} bytes",
                    "Each gradient goes once along each axis that it needs, and along no other.",
                )
    return "each gradient went once along each axis that it needs."


@oracle(
    values=[((2, 2),), ((3, 1),)], traffic=[((2, 2),)], if_stuck="all ranks of a group must make the same calls in it."
)
def grid_norm(draws: Draws, sizes: tuple[int, int]) -> Case:
    pp, tp = sizes
    places = coordinates(sizes)
    matrices = draws.different_integers(pp * tp, (2, 2), DOUBLE)
    norms = draws.different_integers(pp, 3, DOUBLE, 1)
    table = draws.integers((3, 2), DOUBLE, 2) + 7
    given = [
        {"matrix": matrices[rank], "norm": norms[stage]} | ({"table": table} if on_stage("table", stage, pp) else {})
        for rank, (stage, _) in enumerate(places)
    ]
    elsewhere = [["table"] if pp > 1 and stage == pp - 1 else [] for stage, _ in places]

    def squares(xs: Sequence[Tensor]) -> float:
        return sum(float(x.square().sum()) for x in xs)

    sharded, replicated, tied = squares(matrices), squares(norms), squares([table])
    ends = 2 if pp > 1 else 1
    own = [  # replicated gradients divided by the ranks that have them, tied ones on the first stage
        squares([of["matrix"]]) + (squares([of["norm"]]) + (at == 0) * tied) / tp
        for of, (at, _) in zip(given, places, strict=True)
    ]
    of_slice = [math.sqrt(sum(own[r] for r, (_, at) in enumerate(places) if at == part)) for _, part in places]
    of_stage = [math.sqrt(sum(own[r] for r, (at, _) in enumerate(places) if at == stage)) for stage, _ in places]
    return Case(
        [given, [["norm", "table"]] * len(places), elsewhere],
        same={"groups": {"pp_group": groups_along(sizes, 0), "tp_group": groups_along(sizes, 1)}},
        right=math.sqrt(sharded + replicated + tied),
        rtol=CLOSE,
        mistakes={
            "the norm with replicated gradients counted on every tp rank: count them once": math.sqrt(
                sharded + tp * (replicated + tied)
            ),
            "the norm with the tied gradient counted on both of its stages: `elsewhere` says what to leave out": (
                math.sqrt(sharded + replicated + ends * tied)
            ),
            "the norm of everything on every rank: count replicated gradients, and tied ones, once": math.sqrt(
                sharded + tp * (replicated + ends * tied)
            ),
            "the norm of this rank's gradients: add up the squares over the grid": [math.sqrt(x) for x in own],
            "this stage's norm: add up the squares along pp, too": of_stage,
            "the norm of this rank's columns and rows: add up the squares along tp, too": of_slice,
            "the norm with sharded gradients divided by the tp ranks, too: each of these has other numbers": math.sqrt(
                sharded / tp + replicated + tied
            ),
            "the norm with sharded and replicated gradients swapped": math.sqrt(
                sharded / tp + tp * (replicated + tied)
            ),
            "the root of a mean over stages: add up their squares": math.sqrt((sharded + replicated + tied) / pp),
            "the norm of the sharded gradients alone: replicated ones count too, once": math.sqrt(sharded),
            "the norm with replicated gradients counted too little: each of P ranks counts a P-th of the squares": (
                math.sqrt(sharded + (replicated + tied) / tp)
            ),
            "the square of the norm": sharded + replicated + tied,
        },
        through=in_groups,
        values_first=True,
        traffic=expect_few_bytes,
    )


### BEGIN HIDDEN TESTS
hidden_grid_norm = vary(grid_norm, values=[((1, 4),), ((4, 2),), ((1, 1),)], traffic=[((3, 2),)])
### END HIDDEN TESTS


def expect_few_bytes(answer: Answer) -> str:
    for rank in range(answer.run.world_size):
        total = sum(event.bytes for event in answer.events if event.rank == rank)
        if total > SMALL:
            raise CheckFailed(
                f"rank {rank} handed in {total:,} bytes", f"{SMALL} at most", "Only sums of squares need to travel."
            )
    return "one number or two per rank."


@oracle(values=[([3, 5, 1],), ([4, 0],)], traffic=[([3, 5, 1],)])
def token_mean(draws: Draws, counts: list[int], groups: Members | None = None) -> Case:
    groups = groups or [list(range(len(counts)))]
    losses = [(draws.integers(count, DOUBLE, seed=rank) + 5 + rank) for rank, count in enumerate(counts)]

    def of(rank: int) -> tuple[float, int, int]:
        """(sum of the losses, tokens, ranks) of a rank's group."""
        mine = next(members for members in groups if rank in members)
        return sum(float(losses[r].sum()) for r in mine), sum(counts[r] for r in mine), len(mine)

    every_rank = [of(rank) for rank in range(len(counts))]
    sums = [losses[rank].sum() for rank in range(len(counts))]
    means = [x.mean() for x in losses]
    local = [total * size / tokens for total, (_, tokens, size) in zip(sums, every_rank, strict=True)]
    shares = [
        torch.full((count,), size / tokens, dtype=DOUBLE)
        for count, (_, tokens, size) in zip(counts, every_rank, strict=True)
    ]

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        names = ["the loss to go backward from", "the mean"]
        return as_tuple(got["result"], names, rank) | {"the gradient of each loss": got["gradient"]}

    return Case(
        [losses],
        same={"groups": {"dp_group": groups}},
        unpack=unpack,
        right={
            "the loss to go backward from": local,
            "the mean": [torch.tensor(s / n, dtype=DOUBLE) for s, n, _ in every_rank],
            "the gradient of each loss": shares,
        },
        rtol=CLOSE,
        mistakes={
            "the loss to go backward from": {
                "the mean over this rank's own tokens: a rank with few tokens then counts as much as the others": means,
                "P times too small: the gradients are averaged over P ranks later": [
                    total / tokens for total, (_, tokens, _) in zip(sums, every_rank, strict=True)
                ],
                "the sum over this rank's tokens: divide by the tokens of all ranks": sums,
                "the mean over all ranks' tokens: start from this rank's own sum, which has a graph": [
                    torch.tensor(s / n, dtype=DOUBLE) for s, n, _ in every_rank
                ],
                "multiplied by the number of all ranks: the gradients are averaged over dp_group alone": [
                    total * len(counts) / tokens for total, (_, tokens, _) in zip(sums, every_rank, strict=True)
                ],
                "divided by P: the gradients are averaged over P ranks later, so multiply by P": [
                    total / tokens / size for total, (_, tokens, size) in zip(sums, every_rank, strict=True)
                ],
            },
            "the gradient of each loss": {
                "no gradient: the loss to go backward from has no graph. Start from `losses` as they are": (
                    lambda got: got is None
                ),
            },
            "the mean": {
                "the mean of the ranks' means: weigh every token alike": [
                    torch.stack([means[r] for r in next(g for g in groups if rank in g)]).mean()
                    for rank in range(len(counts))
                ],
                "this rank's own mean": means,
                "the sum over all ranks, divided by this rank's tokens alone: count those of all ranks": [
                    torch.tensor(s, dtype=DOUBLE) / n for (s, _, _), n in zip(every_rank, counts, strict=True)
                ],
                "multiplied by P: that belongs to the loss to go backward from alone": [
                    torch.tensor(s / n * size, dtype=DOUBLE) for s, n, size in every_rank
                ],
            },
        },
        through=backward_in_groups,
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


batch_rows = recorded(ROOM, "batch-rows")


### BEGIN HIDDEN TESTS


@oracle(values=[(40, 8, 7, 1, 4), (12, 6, 2, 5, 2), (9, 3, 11, 0, 1), (10, 4, 7, 3, 2)])
def hidden_batch_rows(_: Draws, samples: int, batch: int, step: int, seed: int, size: int) -> Case:
    epoch, place = divmod(step, samples // batch)

    def order(number: int) -> list[int]:
        found: list[int] = torch.randperm(samples, generator=torch.Generator().manual_seed(number)).tolist()
        return found

    def at(mixed: list[int], start: int) -> list[list[int]]:
        """The rows of each rank, of the batch that begins there."""
        return [x.tolist() for x in torch.tensor(mixed[start : start + batch]).chunk(size)]

    right = at(order(seed + epoch), place * batch)
    each = batch // size
    dealt = [order(seed + epoch)[place * batch : (place + 1) * batch][rank::size] for rank in range(size)]
    sampler = [order(seed + epoch)[rank::size][place * each : (place + 1) * each] for rank in range(size)]
    mistakes: dict[str, Any] = {
        "every P-th row of the batch: chunk dp_rank is wanted": dealt,
        "each rank's place in its own part of the data set: the batch then depends on the number of ranks": sampler,
    }
    if epoch:
        mistakes["the order of the first epoch: shuffle with seed + epoch"] = at(order(seed), place * batch)
    mistakes["a new order at each step: shuffle once for each epoch"] = at(order(seed + step), place * batch)
    mistakes |= {
        "the right samples in a different order: a batch is in the order of the permutation": [
            sorted(x) for x in right
        ],
        "a different order on each rank: all data ranks cut the same batch": [
            at(order(seed + epoch + rank), place * batch)[rank] for rank in range(size)
        ],
        "what epochs counted from 1 give: the first one is epoch 0": at(order(seed + epoch + 1), place * batch),
        "a batch for each rank: batch_size counts the samples of all data ranks together": [
            order(seed + epoch)[(place * size + rank) * batch :][:batch] for rank in range(size)
        ],
    }
    if epoch:
        beyond = order(seed + epoch)[step * batch :][:batch]
        mistakes["what is at step * batch_size: in each epoch, places begin at 0 again"] = [
            beyond[rank * each : (rank + 1) * each] for rank in range(size)
        ]
    if samples % batch:
        by_samples = at(order(seed + step * batch // samples), place * batch)
        mistakes["what epochs of all samples would give: those left over are not used, and belong to no epoch"] = (
            by_samples
        )
        shorter = torch.randperm(
            samples // batch * batch, generator=torch.Generator().manual_seed(seed + epoch)
        ).tolist()
        mistakes["an order of whole batches alone: permute all num_samples, and leave the last ones out"] = at(
            shorter, place * batch
        )
        late, where = divmod(step, -(-samples // batch))
        rows = order(seed + late)[where * batch :][:batch]
        mistakes["counted with an incomplete batch at the end of each epoch: samples left over are not used"] = [
            rows[rank * each : (rank + 1) * each] for rank in range(size)
        ]
    if place:
        mistakes["the first batch of the epoch, whatever the step"] = at(order(seed + epoch), 0)
    if size > 1:
        mistakes["the whole batch: chunk dp_rank of it is wanted"] = [sum(right, [])] * size
    return Case(
        [[step] * size, [batch] * size, [samples] * size, [seed] * size, list(range(size)), [size] * size],
        right=right,
        mistakes=mistakes,
        seen=f"step {step}, batches of {batch} of {samples} samples, {size} data ranks: rank {{rank}} gets",
    )


### END HIDDEN TESTS
pieces_to_read = recorded(ROOM, "pieces-to-read")


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
    right, offsets, swapped, from_whole, touching, some = {}, {}, {}, {}, {}, {}
    for name, box in saved.items():
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, box, strict=True)]
        there, here = (
            tuple((first - a, end - a) for (first, end), (a, _) in zip(common, origin, strict=True))
            for origin in (box, wanted)
        )
        if all(first < end for first, end in common):
            right[name], offsets[name], swapped[name] = (there, here), (tuple(common), tuple(common)), (here, there)
            from_whole[name] = (tuple(common), here)
        if all(first <= end for first, end in common):
            touching[name] = (there, here)
        if any(first < end for first, end in common):
            some[name] = (there, here)
    in_files, in_wanted = ({name: (both[n], both[n]) for name, both in right.items()} for n in (0, 1))
    in_whole_there = {name: (read, offsets[name][1]) for name, (read, _) in right.items()}
    inclusive = {name: (tuple((a, b - 1) for a, b in read), goes) for name, (read, goes) in right.items()}
    half_moved = {
        name: (read, tuple((a, end) for (a, _), (_, end) in zip(goes, offsets[name][1], strict=True)))
        for name, (read, goes) in right.items()
    }
    inside = {
        name: both
        for name, both in right.items()
        if all(c >= a and d <= b for (a, b), (c, d) in zip(wanted, saved[name], strict=True))
    }
    lengths = {name: tuple(tuple((a, b - a) for a, b in part) for part in both) for name, both in right.items()}
    whole = {name: (tuple((0, b - a) for a, b in saved[name]), here) for name, (_, here) in right.items()}
    mistakes = {
        "places in the whole tensor: count from the start of the file, and from the start of the wanted part": offsets,
        "right, but the two the wrong way round: the place in the file comes first": swapped,
        "what to read in places of the whole tensor: count from the start of the file": from_whole,
        "files that only touch the wanted part, too: `end` is the first place behind": touching,
        "files that overlap along one dimension only, too: they must overlap along all": some,
        "(first, length) of each part: (first, end) is wanted": lengths,
        "places in the wanted part, both times: what to read is in places of the file": in_wanted,
        "places in the file, both times: where it goes is in places of the wanted part": in_files,
        "where it goes in places of the whole tensor: count from the start of the wanted part": in_whole_there,
        "what to read with its last place as `end`: `end` is the first place behind": inclusive,
        "where it goes with only its start moved: move its end, too": half_moved,
        "only the files that lie in the wanted part entirely: a part of a file may be wanted": inside,
        "only one of the files: each that holds something of the wanted part has to be read": dict(
            [*right.items()][:1]
        ),
        "all that is in the file: only what is wanted should be read": whole,
    }
    return Case(
        [[wanted], [saved]],
        right=every(right),
        mistakes={words: every(x) for words, x in mistakes.items() if x != right},
        seen=f"wanted {wanted}: you returned",
    )


### END HIDDEN TESTS


# ---- the challenge


@oracle(score=[(80, 10_240, 80, 2048, 1024)], par=recorded_par(ROOM, "best-grid"))
def best_grid(_: Draws, layers: int, width: int, heads: int, length: int, batch: int) -> Case:
    cluster = find_cluster("dgx-h100", GPUS)
    model = Model(layers, width, heads, length)
    plans = Measure(lambda answer: seconds_of(answer.results[0], model, batch, cluster), "s", "for a step")
    least = model.flops_per_token * length * batch / (GPUS * cluster.gpu.peak("bfloat16"))
    return Case([[layers], [width], [heads], [length], [batch], [GPUS]], score=plans, limit=least)


### BEGIN HIDDEN TESTS


def par_of_grid(layers: int, width: int, heads: int, length: int, batch: int) -> float:
    """tp of a node, the fewest stages that fit, and microbatches of one sequence; recomputing only if it must."""
    cluster, model = find_cluster("dgx-h100", GPUS), Model(layers, width, heads, length)
    for recompute, pp in product((False, True), (n for n in range(1, layers + 1) if layers % n == 0)):
        dp = GPUS // (8 * pp)
        plan = {"dp": dp, "pp": pp, "tp": 8, "microbatches": batch // max(1, dp), "recompute": recompute}
        if not problem_of(plan, model, batch, cluster):
            return step_costs(plan, model, batch, cluster)["seconds"]
    raise ValueError("no plan fits")


hidden_best_grid = vary(
    best_grid,
    par=par_of_grid,
    score=[(96, 12_288, 96, 2048, 1536), (32, 4096, 32, 8192, 512)],
)
### END HIDDEN TESTS


GPUS = 512


def seconds_of(plan: Any, model: Model, batch: int, cluster: Cluster) -> float:
    names = {"dp", "pp", "tp", "microbatches", "recompute"}
    if not isinstance(plan, dict) or plan.keys() != names:
        raise CheckFailed(f"it returned {show(plan)}"[:200], f"a dict with {', '.join(sorted(names))}")
    try:
        return step_costs(plan, model, batch, cluster)["seconds"]
    except (ValueError, TypeError) as error:
        raise CheckFailed(f"the plan can't be carried out: {error}", "one that can") from None


### BEGIN HIDDEN TESTS
RECORDED = (
    vary(best_grid, par=par_of_grid),
    vary(hidden_batch_rows, values=[(20, 4, 2, 0, 2), (20, 4, 13, 0, 2)]),
    vary(
        hidden_pieces_to_read,
        values=[
            (((0, 4), (3, 6)), {"first": ((0, 2), (0, 6)), "second": ((2, 4), (0, 6)), "third": ((4, 6), (0, 6))}),
            (((2, 6), (0, 4)), {"left": ((0, 8), (0, 2)), "right": ((0, 8), (2, 4))}),
        ],
    ),
    vary(
        hidden_axis_groups, values=[({"dp": 2, "pp": 2, "tp": 3}, ("pp",)), ({"dp": 2, "pp": 3, "tp": 2}, ("dp", "tp"))]
    ),
)
### END HIDDEN TESTS
