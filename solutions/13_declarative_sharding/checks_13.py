"""The checks of lesson 13. Form: see oracles.py; what a rank runs: kit/drivers/on_a_mesh.py.

Whole tensors say what is right. The shares of a partial sum have mixed signs, so that no function of one of them can
pass for that of their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.checks.answer import Answer, CheckFailed
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.gradients import NO_GRADIENT, driven, expect_passes, serial
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary
from utils.checks.scores import Measure
from utils.checks.traffic import in_turn
from utils.kit.block_plans import VALUE, cost_of_plan, layouts_of, price, uniform_plan, weights_of_block
from utils.kit.drivers.on_a_mesh import (
    count_model,
    cut_out,
    each_conversion,
    each_on_mesh,
    on_device_mesh,
    on_mesh,
    places,
    through_conversions,
    walk,
)
from utils.kit.placements import USES, Layout, both_passes, cut_dim, local_shape, moved, part, turned
from utils.kit.placements import convert as any_conversion

ROOM = Path(__file__).parent
DOUBLE = torch.float64
Shape = tuple[int, ...]


def spread(draws: Draws, shape: Shape, layout: Layout, mesh: Shape, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    """(a tensor, what each rank of the mesh has of it)"""
    ends = places(tuple(n if p == "P" else 1 for p, n in zip(layout, mesh, strict=True)))
    generator = draws.generator(seed)
    shares = {place: torch.randint(-99, 100, shape, generator=generator).to(DOUBLE) for place in ends}
    held = []
    for place in places(mesh):
        share = tuple(at if p == "P" else 0 for p, at in zip(layout, place, strict=True))
        held.append(part(shares[share], layout, mesh, place).clone())
    return torch.stack(list(shares.values())).sum(0), held


def parts(whole: Tensor, layout: Layout, mesh: Shape) -> list[Tensor]:
    return [part(whole, layout, mesh, place).clone() for place in places(mesh)]


# ---- where a tensor lies


@oracle(
    values=[
        ((4, 6), ("S1", "S0"), (2, 3)),
        ((7, 3), ("S0", "S0"), (2, 3)),
        ((5, 2), ("S0",), (4,)),
        ((3, 5), ("P", "S1"), (2, 2)),
    ]
)
def my_part(_: Draws, shape: Shape, layout: Layout, mesh: Shape) -> Case:
    x = torch.arange(math.prod(shape)).view(shape)
    ranks = places(mesh)
    return Case(
        [[x for _ in ranks], [layout for _ in ranks], [mesh for _ in ranks], ranks],
        right=parts(x, layout, mesh),
        seen=[f"shape {shape} as {layout} on a mesh {mesh}: at {place}, your slices take" for place in ranks],
        driver=cut_out,
        in_order=True,
    )


### BEGIN HIDDEN TESTS
hidden_my_part = vary(
    my_part,
    values=[
        ((10, 7), ("S1", "S1"), (3, 2)),
        ((2, 3, 5), ("S2", "R", "S0"), (2, 1, 3)),
        ((1,), ("S0", "S0"), (2, 2)),
        ((4, 4), ("R", "P"), (1, 2)),
    ],
)
### END HIDDEN TESTS


# ---- from one placement to another

conversion_bytes = frozen_cases(ROOM, "conversion-bytes")

### BEGIN HIDDEN TESTS
PAIRS = [(a, b) for a in ("P", "S0", "S1", "R") for b in ("R", "S0", "S1")]


@oracle(values=[(64, src, dst, n) for n in (2, 8) for src, dst in PAIRS])
def hidden_conversion_bytes(_: Draws, nbytes: int, src: str, dst: str, n: int) -> Case:
    op, share = {
        "PR": ("all_reduce", 2 * (n - 1) / n),
        "PS": ("reduce_scatter", (n - 1) / n),
        "SR": ("all_gather", n - 1),
        "SS": ("all_to_all", (n - 1) / n),
    }.get("" if src == dst else src[0] + dst[0], ("", 0))
    return Case(
        [[nbytes], [src], [dst], [n]],
        right=(op, round(nbytes * share)),
        seen=f"{src} to {dst}, {nbytes} bytes on each of {n} ranks: you returned",
    )


### END HIDDEN TESTS

CALLS = {"PR": "all_reduce", "PS": "reduce_scatter", "SR": "all_gather", "SS": "all_to_all"}
INSTEAD = {
    "SS": "Gathering first gives every rank all of it, and it throws most of that away.",
    "PS": "All-reducing first gives every rank the whole sum, and it throws most of that away: twice the bytes.",
    "RS": "A rank has its part already.",
}
STUCK = "all ranks of the group must call the same collective, with the same sizes where it wants them."


def needed(src: str, dst: str, x: Tensor, shape: Shape, n: int) -> list[tuple[str, int]]:
    """The call of a conversion, with the bytes handed in: of parts that are padded, where they must be equal."""
    if src == dst or src[0] + dst[0] not in CALLS:
        return []
    sizes = list(x.shape)
    for dim, times in ((cut_dim(src), 1), (cut_dim(dst), n)):
        if dim is not None and src[0] + dst[0] != "SS":
            sizes[dim] = times * -(-shape[dim] // n)
    return [(CALLS[src[0] + dst[0]], math.prod(sizes) * x.element_size())]


def expect_call(answer: Answer, src: str, dst: str, xs: Sequence[Tensor], shape: Shape) -> str:
    """Raise CheckFailed unless each rank made the one call that the conversion takes."""
    for rank, x in enumerate(xs):
        wanted = needed(src, dst, x, shape, len(xs))
        calls = [(event.op, event.bytes) for event in answer.events if event.rank == rank]
        if calls != wanted:
            raise CheckFailed(
                f"{src} to {dst}: rank {rank} called {words_of(calls)}, which sends "
                f"{answer.run.traffic().implied(rank):,} bytes",
                words_of(wanted),
                INSTEAD.get(src[0] + dst[0], "One call is enough, with no more than this rank's part."),
            )
    return f"{src} to {dst}: {in_turn([op for op, _ in needed(src, dst, xs[0], shape, len(xs))])}, and nothing else."


def words_of(calls: Sequence[tuple[str, int]]) -> str:
    return " and ".join(f"{op} with {nbytes:,} bytes" for op, nbytes in calls) or "nothing"


ONE_PIECE = (
    "A rank sends one piece to each rank: cut along the dimension in `dst`. If `src` is `dst`, there is nothing to do."
)
IN_GROUP = "`dist.get_rank(group)` counts within the group; without an argument, it counts among all ranks."
FEWER = "If some parts are empty, `x.chunk(n, dim)` gives fewer than n; the kit's `chunks(x, n, dim)` always gives n."


def all_pairs(
    draws: Draws, n: int, whole_shape: Shape, pairs: Sequence[tuple[str, str]] = (), times: int = 1, **more: Any
) -> Case:
    """The case of all conversions of a tensor of this shape along one axis, or of these; in as many groups at once."""
    cuts = [f"S{dim}" for dim in range(len(whole_shape))]
    those = pairs or [(src, dst) for src in ("P", *cuts, "R") for dst in ("R", *cuts)]
    named = {f"{src} to {dst}": (src, dst) for src, dst in those}
    xs: list[dict[str, Tensor]] = [{} for _ in range(n)]
    right = {}
    if times > 1:
        more["members"] = [list(range(first, first + n)) for first in range(0, times * n, n)]
    for number, (name, (src, dst)) in enumerate(named.items()):
        # In grading each pair has numbers of its own, or what one of them leads to is what another one starts from.
        whole, held = spread(draws, whole_shape, (src,), (n,), number if draws.salt else 0)
        right[name] = [x.clone() for x in held] if src == dst else parts(whole, (dst,), (n,))
        for rank, x in enumerate(held):
            xs[rank][name] = x
    return Case(
        [xs * times],
        for_all={"pairs": named, **more},
        right={name: whole * times for name, whole in right.items()},
        seen=f"shape {whole_shape} from {{part}}: rank {{rank}} has",
        driver=each_conversion,
        values_first=True,
        traffic=lambda answer: expect_call(
            answer, *those[0], [x[f"{those[0][0]} to {those[0][1]}"] for x in xs], whole_shape
        ),
    )


EACH = [("P", "S0"), ("S1", "S0"), ("S1", "R"), ("R", "S1"), ("P", "R"), ("S1", "S1")]  # one of each kind


@oracle(
    values=[(2, (4, 2, 6)), (3, (3, 6, 9))],
    traffic=[(4, (8, 4), [pair]) for pair in EACH],
    if_stuck=STUCK,
)
def convert(draws: Draws, n: int, shape: Shape, pairs: Sequence[tuple[str, str]] = (), times: int = 1) -> Case:
    return replace(
        all_pairs(draws, n, shape, pairs, times), advice={"tensor list size": ONE_PIECE, "out of range": IN_GROUP}
    )


### BEGIN HIDDEN TESTS
hidden_convert = vary(
    convert,
    values=[(1, (2, 3)), (4, (8, 4, 4)), (5, (5, 10)), (2, (2, 4), (), 2)],
    traffic=[(3, (3, 6, 9), [pair]) for pair in [("S2", "S0"), ("P", "S1")]] + [(2, (4, 2), [("R", "S0")])],
)
### END HIDDEN TESTS


@oracle(
    values=[(4, (7, 6)), (3, (5, 2)), (4, (5, 3, 4))],
    traffic=[(4, (7, 5), [pair]) for pair in EACH[:4]],
    if_stuck=STUCK + " A rank whose part is empty calls it, too.",
)
def convert_uneven(draws: Draws, n: int, shape: Shape, pairs: Sequence[tuple[str, str]] = ()) -> Case:
    case = all_pairs(draws, n, shape, pairs, shape=shape)
    return replace(case, advice=UNEVEN)


UNEVEN = {
    "out of range|splits not equal": FEWER,
    "must be non-negative": "A part that would begin behind the end is empty, not negative.",
    "must match except in dimension": "What arrives are parts along the dimension that `src` cuts: join them there.",
    "LengthPerRank": "Rank k sends its own rows of this rank's columns: all_to_all needs one count for each rank.",
}


### BEGIN HIDDEN TESTS
hidden_convert_uneven = vary(
    convert_uneven,
    values=[(4, (1, 5)), (3, (4, 2, 7)), (1, (3, 2)), (2, (4, 6))],
    traffic=[(4, (5, 2), [pair]) for pair in [("S0", "S1"), ("S1", "R")]] + [(3, (2, 4), [("P", "S1")])],
)
### END HIDDEN TESTS


# ---- several axes

WRONG_SHAPE = (
    "A conversion gets a tensor and a shape that don't fit each other. The tensor is what the previous step left. The "
    "shape is that of what the ranks of that axis have together: the whole tensor as the other axes cut it at this "
    "moment, seen from this rank."
)


@oracle(
    values=[
        ((4, 6), ("R", "S0"), [(0, "R", "S1"), (1, "S0", "S1")], (2, 2)),
        ((7, 5), ("S0", "S0"), [(1, "S0", "R"), (0, "S0", "S1")], (2, 3)),
        ((5, 7), ("P", "S1"), [(1, "S1", "R"), (0, "P", "S1")], (2, 2)),
    ],
    if_stuck="each step is a conversion along one axis: all ranks of that axis' group make it together.",
)
def redistribute(draws: Draws, shape: Shape, src: Layout, steps: list[tuple[int, str, str]], mesh: Shape) -> Case:
    """Steps that are possible one by one: at each of them no later axis cuts a dimension that changes.

    src: () for all pairs of layouts, one after the other
    """
    if not src:
        return all_layouts(draws, shape, mesh)
    whole, xs = spread(draws, shape, src, mesh)
    dst = list(src)
    for axis, _, new in steps:
        dst[axis] = new
    return Case(
        [xs],
        for_all={"shape": shape, "src": src, "steps": steps, "mesh": mesh, "convert": any_conversion},
        right=parts(whole, tuple(dst), mesh),
        seen=f"{src} to {tuple(dst)} of shape {shape} on a mesh {mesh}: rank {{rank}} has",
        driver=on_mesh,
        advice={"inLengthPerRank|must match|size": WRONG_SHAPE},
    )


def all_layouts(draws: Draws, shape: Shape, mesh: Shape) -> Case:
    """The case of all pairs of layouts: steps undo the later axes, convert the first one, and cut the later ones."""
    cuts, later = ("R", *(f"S{dim}" for dim in range(len(shape)))), range(1, len(mesh))
    xs: list[dict[str, Tensor]] = [{} for _ in places(mesh)]
    ways: dict[str, Any] = {}
    right: dict[str, Any] = {}
    pairs = product(product((*cuts, "P"), repeat=len(mesh)), product(cuts, repeat=len(mesh)))
    for number, (src, dst) in enumerate(pairs):
        name = f"{' '.join(src)} to {' '.join(dst)}"
        whole, held = spread(draws, shape, src, mesh, number)
        steps = [(axis, src[axis], "R") for axis in reversed(later) if src[axis] != "R"]
        steps += [(0, src[0], dst[0])] * (src[0] != dst[0])
        ways[name] = src, steps + [(axis, "R", dst[axis]) for axis in later if dst[axis] != "R"]
        right[name] = parts(whole, dst, mesh)
        for x, here in zip(xs, held, strict=True):
            x[name] = here
    return Case(
        [xs],
        for_all={"ways": ways, "shape": shape, "mesh": mesh, "convert": any_conversion},
        right=right,
        seen=f"{{part}}, shape {shape} on a mesh {mesh}: rank {{rank}} has",
        driver=each_on_mesh,
        advice={"inLengthPerRank|must match|size": WRONG_SHAPE},
    )


### BEGIN HIDDEN TESTS
hidden_redistribute = vary(
    redistribute,
    values=[
        ((5, 3), (), [], (2, 2)),
        ((5, 3), ("S0",), [(0, "S0", "S1")], (4,)),
        ((7, 10), ("S1", "P"), [(1, "P", "S0"), (0, "S1", "R")], (2, 3)),
        ((5, 3, 2), ("S2", "S0", "S1"), [(1, "S0", "R"), (2, "S1", "S0"), (0, "S2", "S1")], (1, 2, 3)),
        ((3, 3), ("S0", "S1"), [], (2, 2)),
        ((7, 5), ("R", "P"), [(1, "P", "R"), (0, "R", "S1"), (1, "R", "S1")], (3, 2)),
    ],
)
### END HIDDEN TESTS


cheapest_steps = frozen_cases(ROOM, "cheapest-steps", driver=walk)

### BEGIN HIDDEN TESTS


def least(shape: Shape, src: Layout, dst: Layout, mesh: Shape) -> float:
    """The fewest numbers that a rank sends, by relaxing all steps until nothing changes."""
    options = ["R", *(f"S{dim}" for dim in range(len(shape)))]
    layouts = {*product(*([*options, p] for p in src))}
    best = dict.fromkeys(layouts, math.inf) | {src: 0.0}
    for _ in range(len(layouts)):
        before = dict(best)
        for layout in layouts:
            for axis, new in product(range(len(mesh)), options):
                inner = {cut_dim(p) for p in layout[axis + 1 :]} - {None}
                if new == layout[axis] or {cut_dim(layout[axis]), cut_dim(new)} & inner:
                    continue
                after = (*layout[:axis], new, *layout[axis + 1 :])
                undone = (*layout[:axis], "R", *layout[axis + 1 :])
                size = math.prod(local_shape(shape, undone, mesh, [0] * len(mesh)))
                best[after] = min(best[after], best[layout] + moved(size, layout[axis], new, mesh[axis]))
        if best == before:
            break
    return best[dst]


@oracle(
    values=[
        ((8, 12), ("S0", "S0"), ("R", "S0"), (2, 2)),
        ((64, 64), ("R", "S0"), ("S1", "S1"), (8, 8)),
        ((12, 18), ("P", "S1"), ("S1", "S0"), (2, 3)),
        ((8, 8), ("S0", "S1"), ("S1", "S0"), (2, 2)),
        ((8, 8, 8), ("S0", "S1", "S2"), ("S2", "S0", "S0"), (2, 2, 2)),
        ((8, 8), ("P", "P"), ("S0", "S0"), (2, 4)),
        ((4, 4), ("S1",), ("S1",), (4,)),
    ]
)
def hidden_cheapest_steps(_: Draws, shape: Shape, src: Layout, dst: Layout, mesh: Shape) -> Case:
    right = {"the first impossible step": "none", "the layout at the end": dst}
    return Case(
        [[shape], [src], [dst], [mesh]],
        right=right | {"the count of numbers that a rank sends": int(least(shape, src, dst, mesh))},
        seen=f"{src} to {dst}, shape {shape} on {mesh}: {{part}} is",
        driver=walk,
    )


### END HIDDEN TESTS


# ---- what an operation makes of placements: the truth is a computation

MATMUL = "bd,df->bf"


def truth(draws: Draws, equation: str, placements: Layout, n: int = 2) -> str:
    """How the result lies if n ranks compute with what they have; "convert" if it is no part of the right one."""
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    drawn = [
        spread(draws, (2 * n,) * len(term), (placement,), (n,), seed)
        for seed, (term, placement) in enumerate(zip(terms, placements, strict=True))
    ]
    right = torch.einsum(equation, *(whole for whole, _ in drawn))
    try:
        got = [torch.einsum(equation, *(held[rank] for _, held in drawn)) for rank in range(n)]
    except RuntimeError:  # sizes that don't match
        return "convert"
    for placement in ("R", *(f"S{dim}" for dim in range(len(output)))):
        if all(map(torch.equal, got, parts(right, (placement,), (n,)))):
            return placement
    return "P" if got[0].shape == right.shape and torch.equal(sum(got, torch.zeros_like(right)), right) else "convert"


@oracle(
    values=[
        (MATMUL, "S0", "R"),
        (MATMUL, "R", "S1"),
        (MATMUL, "S1", "S0"),
        (MATMUL, "R", "R"),
        (MATMUL, "P", "R"),
        (MATMUL, "P", "P"),
        (MATMUL, "S0", "S1"),
        (MATMUL, "S1", "R"),
        (MATMUL, "P", "S1"),
        ("bshd,bthd->bhst", "S2", "S2"),
        ("ab,bc,cd->ad", "S1", "S0", "R"),
    ]
)
def einsum_rule(draws: Draws, equation: str, *placements: str) -> Case:
    return Case(
        [[equation], *([placement] for placement in placements)],
        right=truth(draws, equation, placements),
        seen=f"for {equation!r} of {' and '.join(placements)} you returned",
    )


### BEGIN HIDDEN TESTS
hidden_einsum_rule = vary(
    einsum_rule,
    values=[
        *((MATMUL, a, b) for a in ("R", "S0", "S1", "P") for b in ("R", "S0", "S1", "P")),
        ("bf,df->bd", "S1", "S1"),
        ("bf,bd->df", "S0", "S0"),
        ("bf,bd->df", "S1", "R"),
        ("ab,bc,cd->ad", "R", "S1", "S0"),
        ("ab,bc,cd->ad", "P", "R", "P"),
        ("ab,bc,bd->acd", "S1", "S0", "R"),
        ("bshd,bthd->bhst", "S1", "R"),
    ],
)
### END HIDDEN TESTS


# ---- backward passes

gradient_conversion = frozen_cases(ROOM, "gradient-conversion")

### BEGIN HIDDEN TESTS


@oracle(values=[(a, b) for a in ("R", "P", "I", "S0", "S2") for b in ("R", "P", "I", "S0", "S2")])
def hidden_gradient_conversion(_: Draws, src: str, dst: str) -> Case:
    return Case([[src], [dst]], right=(turned(dst), turned(src)), seen=f"of {src} to {dst} you returned")


### END HIDDEN TESTS

DATA, FSDP = {"x": "S0", "w1": "I", "w2": "I"}, {"x": "S0", "w1": "S0", "w2": "S0"}
MEGATRON, SEQUENCE = {"x": "I", "w1": "S1", "w2": "S0"}, {"x": "S0", "w1": "S1", "w2": "S0"}
SUMS = {"x": "S1", "w1": "S0", "w2": "S0"}  # both products are partial sums, the first one in front of relu


def mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return torch.matmul(torch.matmul(x, w1).relu(), w2)


def sharded(draws: Draws, n: int, stored: dict[str, str], labels: tuple[str, str], sizes: Shape, driver: Any) -> Case:
    """The case of an MLP whose tensors are spread over n ranks, in both passes. sizes: B, D, F, even parts."""
    b, d, f = (n * size for size in sizes)
    tensors = {
        name: torch.randn(shape, generator=draws.generator(seed), dtype=DOUBLE)
        for seed, (name, shape) in enumerate({"x": (b, d), "w1": (d, f), "w2": (f, d)}.items())
    }
    grad = torch.randn(b, d, generator=draws.generator(9), dtype=DOUBLE)
    y, gradients = serial(mlp, grad, **tensors)

    def held(name: str, value: Tensor) -> list[Tensor]:
        return parts(value, (stored[name],), (n,))

    case = driven(
        n,
        {f"{name}_local": held(name, value) for name, value in tensors.items()},
        held("x", grad),
        {"output": held("x", y)} | {f"{name}_local": held(name, value) for name, value in gradients.items()},
        for_all={"strategy": strategy_of(stored, labels), "stored": stored, "labels": labels},
        rtol=1e-9,
        traffic=lambda answer: expect_passes(answer, *passes(tensors, y, stored, labels, n), why=(WHY, WHY)),
        values_first=True,
    )
    lost: dict[str, Any] = {name: {NO_GRADIENT: None} for name in case.right if name}
    return replace(case, driver=driver, drivers={}, mistakes=lost)


WHY = "Each tensor is converted once, from how it lies to what the label uses, and its gradient once on the way back."


def passes(
    tensors: dict[str, Tensor], y: Tensor, stored: dict[str, str], labels: tuple[str, str], n: int
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The calls of the forward and of the backward pass, with the bytes handed in."""
    hidden = tensors["x"].shape[0] * tensors["w1"].shape[1] * y.element_size()
    (x1, u1, y1), (x2, u2, y2) = (USES[label] for label in labels)
    conversions = [
        (tensors["x"].nbytes, stored["x"], x1),
        (tensors["w1"].nbytes, stored["w1"], u1),
        (hidden, y1, x2),
        (tensors["w2"].nbytes, stored["w2"], u2),
        (y.nbytes, y2, stored["x"]),
    ]
    there: list[tuple[str, int]] = []
    back: list[tuple[str, int]] = []
    for nbytes, old, new in conversions:
        for calls, a, b in ((there, old, new), (back, turned(new), turned(old))):
            if op := CALLS.get((a[0] + b[0]).replace("I", "R")) if a != b else None:
                calls.append((op, nbytes // (n if a[0] == "S" else 1)))
    return there, back


STRATEGIES = [
    (DATA, ("b", "b")),
    (FSDP, ("b", "b")),
    (MEGATRON, ("f", "d")),
    (SEQUENCE, ("f", "d")),
    (SUMS, ("d", "d")),
]
NAMES = ("data parallel", "FSDP", "Megatron", "Megatron and sequence parallel", "a sum in both products")


def strategy_of(stored: dict[str, str], labels: tuple[str, str]) -> str:
    way = stored, labels
    return NAMES[STRATEGIES.index(way)] if way in STRATEGIES else f"labels {' and '.join(labels)}"


STUCK_MLP = "all ranks convert the same tensors in the same order."


@oracle(values=[(2, *way) for way in STRATEGIES], traffic=[(4, *way) for way in STRATEGIES], if_stuck=STUCK_MLP)
def sharded_mlp(
    draws: Draws, n: int, stored: dict[str, str], labels: tuple[str, str], sizes: Shape = (1, 2, 3)
) -> Case:
    return sharded(draws, n, stored, labels, sizes, through_conversions)


### BEGIN HIDDEN TESTS
MORE = [({"x": "S0", "w1": "S1", "w2": "S1"}, ("b", "b")), ({"x": "S0", "w1": "S1", "w2": "I"}, ("f", "b"))]
hidden_sharded_mlp = vary(
    sharded_mlp,
    values=[(3, *STRATEGIES[1], (2, 1, 1)), (1, *STRATEGIES[3]), *((2, *way) for way in MORE)],
    traffic=[(3, *STRATEGIES[3], (2, 1, 1)), (2, *MORE[0])],
)
### END HIDDEN TESTS


# ---- choosing

layer_bytes = frozen_cases(ROOM, "layer-bytes")
shard_model = frozen_cases(ROOM, "shard-model", driver=count_model)

### BEGIN HIDDEN TESTS


@oracle(
    values=[
        (tokens, rows, columns, label, stored, n)
        for label in "bfd"
        for stored in ("I", "S0", "S1")
        for tokens, rows, columns, n in ((8, 16, 8, 2), (128, 64, 256, 8))
    ]
)
def hidden_layer_bytes(_: Draws, tokens: int, rows: int, columns: int, label: str, stored: str, n: int) -> Case:
    x, w, y = USES[label]
    sizes = {tokens * rows: ("S0", x)}
    conversions = [*sizes.items(), (rows * columns, (stored, w)), (tokens * columns, (y, "S0"))]
    forward = sum(moved(size, *pair, n) for size, pair in conversions)
    total = sum(both_passes(size, *pair, n) for size, pair in conversions)
    return Case(
        [[tokens], [rows], [columns], [label], [stored], [n]],
        right=(forward, total - forward),
        seen=f"{tokens} tokens, {rows} x {columns}, label {label}, w as {stored}, {n} ranks: you returned",
    )


@oracle(
    values=[
        ([8, 32, 8], 8, 2, 256),
        ([8, 32, 8], 512, 8, 64),
        ([16, 16, 64, 16], 32, 4, 1000),
        ([16, 64, 16, 64, 16], 64, 4, 1024),
        ([32, 8], 64, 2, 256),
        ([32, 16, 32], 8, 4, 768),
        ([64, 8, 64], 32, 4, 512),
    ]
)
def hidden_shard_model(_: Draws, widths: list[int], tokens: int, n: int, budget: int) -> Case:
    """Layer by layer: {(how the activations lie, what is stored): the fewest numbers sent so far}."""
    states = {("S0", 0): 0}
    for rows, columns in pairwise(widths):
        after: dict[tuple[str, int], int] = {}
        for ((now, held), sent), (x, w, y), stored in product(states.items(), USES.values(), ("I", "S0", "S1")):
            more = rows * columns // (1 if stored == "I" else n)
            price = both_passes(tokens * rows, now, x, n) + both_passes(rows * columns, stored, w, n)
            if held + more <= budget:
                after[y, held + more] = min(after.get((y, held + more), sent + price), sent + price)
        states = after
    ends = (sent + both_passes(tokens * widths[-1], now, "S0", n) for (now, _), sent in states.items())
    return Case(
        [[widths], [tokens], [n], [budget]],
        right={
            "the answer to whether the weights fit the budget": True,
            "the count of numbers that a rank sends": min(ends),
        },
        seen=f"widths {widths}, {tokens} tokens, {n} ranks, {budget} numbers of weights: {{part}} is",
        driver=count_model,
    )


### END HIDDEN TESTS


# ---- DTensor


@oracle(values=[(2, *way) for way in STRATEGIES], traffic=[(4, *way) for way in STRATEGIES], if_stuck=STUCK_MLP)
def dtensor_mlp(
    draws: Draws, n: int, stored: dict[str, str], labels: tuple[str, str], sizes: Shape = (1, 2, 3)
) -> Case:
    return replace(sharded(draws, n, stored, labels, sizes, on_device_mesh), advice=FROM_LOCAL)


FROM_LOCAL = {
    r"(The backward pass through DTensors communicates.*)": "Was each tensor made by `from_local`? Each rank has its "
    "own part already. `distribute_tensor` sends rank 0's instead, and then the ranks' gradients don't fit each other.",
    "must have same reduction dim": "The sizes of x and w don't fit. Was each made by `from_local`, as `stored` says? "
    "`distribute_tensor` cuts what is a part already.",
}


### BEGIN HIDDEN TESTS
hidden_dtensor_mlp = vary(
    dtensor_mlp,
    values=[(3, *STRATEGIES[1], (2, 1, 1)), (2, *MORE[1])],
    traffic=[(3, *STRATEGIES[3], (2, 1, 1))],
)
### END HIDDEN TESTS


# ---- JAX's compiled programs

GROUPS = {
    "{{0,1,2,3},{4,5,6,7}}": 4,
    "[2,4]<=[8]": 4,
    "mesh['x'=2,'y'=4] {'y'}": 4,
    "mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}": 2,
    "{{0,4},{1,5},{2,6},{3,7}}": 2,
    "[4,2]<=[2,4]T(1,0)": 2,
    "mesh['x'=2,'y'=4] {'x','y'}": 8,
    "mesh['data'=8] {'data'}": 8,
    "[1,8]<=[8]": 8,
}


def hlo_line(name: str, op: str, arrays: Sequence[tuple[str, Shape]], groups: str) -> str:
    orders = ["", "{0}", "{1,0}"]  # orders of the dimensions in memory; a scalar has none
    types = [f"{kind}[{','.join(map(str, shape))}]{orders[len(shape)]}" for kind, shape in arrays]
    result = types[0] if len(types) == 1 else f"({', '.join(types)})"
    return f"  %{name} = {result} {op}(%operand), channel_id=1, replica_groups={groups}, dimensions={{0}}"


@oracle(values=[(groups,) for groups in list(GROUPS)[:6]])
def read_hlo(draws: Draws, groups: str) -> Case:
    n = GROUPS[groups]
    rows = int(draws.integers((1,)).abs()) + 2
    text = "\n".join(
        [
            "HloModule jit_step, num_partitions=8",
            "ENTRY %main_spmd (param: f32[8,4]) -> f32[8,4] {",
            hlo_line("all-gather", "all-gather", [("f32", (n * rows, 16))], groups),
            "  %dot = f32[8,4]{1,0} dot(%x, %all-gather), lhs_contracting_dims={1}",
            hlo_line("all-reduce.1", "all-reduce", [("bf16", (rows, 8)), ("f32", (rows,)), ("f32", ())], groups),
            hlo_line("reduce-scatter", "reduce-scatter", [("f64", (rows, 8))], groups),
            hlo_line("swapped", "all-to-all", [("f32", (rows, 2))] * n, groups),
            hlo_line("all-reduce.2", "all-reduce", [("f32", (rows, 8))], groups),
            "  ROOT %y = f32[8,4]{1,0} fusion(%all-reduce.1), calls=%computation",
            "}",
        ]
    )
    right = [
        ("all-gather", 64 * rows, n),
        ("all-reduce", 20 * rows + 4, n),
        ("reduce-scatter", 64 * rows * n, n),
        ("all-to-all", 8 * rows * n, n),
        ("all-reduce", 32 * rows, n),
    ]
    words = groups.replace("{", "{{").replace("}", "}}")
    return Case([[text]], right=every(right), seen=f"replica_groups={words}: you returned")


### BEGIN HIDDEN TESTS
hidden_read_hlo = vary(read_hlo, values=[(groups,) for groups in list(GROUPS)[3:]])
### END HIDDEN TESTS


# ---- the challenge


Block = tuple[int, int, int, int, Shape]  # tokens, sequences, width, hidden, mesh


def bytes_of_plan(plan: Any, block: Block, budget: int) -> float:
    try:
        sent, held = cost_of_plan(plan, *block)
    except ValueError as error:
        raise CheckFailed(f"the plan doesn't work: {error}", mistake="cost_of_plan says so beforehand.") from None
    if held > budget:
        raise CheckFailed(
            f"each rank would hold {held / 1e6:,.0f} MB",
            f"at most {budget / 1e6:,.0f} MB",
            "Cut what is stored along every axis, and keep fewer operands: those are converted again instead.",
        )
    return float(sent)


@oracle(score=[(65536, 32, 8192, 28672, (4, 8), 1_000_000_000)], par=frozen_par(ROOM, "block-plan"))
def block_plan(_: Draws, tokens: int, sequences: int, width: int, hidden: int, mesh: Shape, budget: int) -> Case:
    block = tokens, sequences, width, hidden, mesh
    return Case(
        [[tokens], [sequences], [width], [hidden], [mesh], [budget]],
        score=Measure(lambda answer: bytes_of_plan(answer.results[0], block, budget), "B", "sent by each rank"),
        limit=fewest(block),
    )


def fewest(block: Block) -> float:
    """Each product's fewest bytes if it is alone, with x or y cut by tokens, and everything kept."""
    tokens, _, width, hidden, mesh = block
    total, cut = 0, ("S0",) * len(mesh)
    for name, (rows, columns) in weights_of_block(width, hidden).items():
        ways = []
        for labels, stored in product(product(USES, repeat=len(mesh)), product(("I", "S0", "S1"), repeat=len(mesh))):
            x, w, y = layouts_of("".join(labels))
            first = name in ("qkv", "up")
            ends = price(tokens * rows, cut, x, mesh) if first else price(tokens * columns, y, cut, mesh)
            ways.append(ends[1] + price(rows * columns, stored, w, mesh)[1])
        total += min(ways)
    return float(VALUE * total)


### BEGIN HIDDEN TESTS


def par_of_block_plan(tokens: int, sequences: int, width: int, hidden: int, mesh: Shape, budget: int) -> float:
    """The same choice for all products: FSDP or Megatron along each axis, weights cut, the same operands kept."""
    found = []
    for axes, kept in product(product("bt", repeat=len(mesh)), ("", "x", "w", "xw")):
        with suppress(ValueError):
            plan = uniform_plan("".join(axes), "S0", kept)
            found.append(cost_of_plan(plan, tokens, sequences, width, hidden, mesh))
    return float(min(sent for sent, held in found if held <= budget))


hidden_block_plan = vary(
    block_plan,
    par=par_of_block_plan,
    score=[
        (16384, 8, 8192, 28672, (4, 8), 600_000_000),
        (131072, 8, 4096, 16384, (8, 8), 325_000_000),
    ],
)
### END HIDDEN TESTS


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(block_plan, par=par_of_block_plan),
    vary(hidden_conversion_bytes, values=[(240, src, dst, 4) for src, dst in PAIRS]),
    vary(
        hidden_cheapest_steps,
        values=[
            ((8, 12), ("R", "S0"), ("S1", "S1"), (2, 2)),
            ((8, 12), ("S0", "S0"), ("S1", "S0"), (2, 2)),
            ((12, 18), ("P", "S0"), ("R", "S1"), (2, 3)),
            ((8, 8), ("S0", "S0"), ("S1", "R"), (4, 2)),
            ((8, 8), ("P", "R"), ("R", "S0"), (2, 2)),
            ((8, 8), ("P", "P"), ("S0", "S0"), (2, 2)),
            ((8, 8), ("P", "S0"), ("S0", "R"), (4, 2)),
            ((8, 8), ("R", "S0"), ("R", "R"), (4, 2)),
        ],
    ),
    vary(
        hidden_gradient_conversion,
        values=[("S0", "S1"), ("P", "R"), ("I", "R"), ("P", "I"), ("S0", "R"), ("P", "S1"), ("R", "S0")],
    ),
    vary(
        hidden_layer_bytes,
        values=[(64, 16, 32, "f", "S1", 4), (64, 16, 32, "b", "S0", 4)]
        + [(64, 16, 32, label, stored, 4) for label in "bfd" for stored in ("I", "S0", "S1")],
    ),
    vary(
        hidden_shard_model,
        values=[
            ([16, 64, 16], 16, 4, 512),
            ([16, 64, 16], 256, 4, 512),
            ([8, 256], 64, 4, 512),
            ([16, 64, 16], 256, 4, 4096),
            ([16, 64, 64, 16], 48, 4, 3000),
        ],
    ),
)
### END HIDDEN TESTS
