"""The hidden tests of lesson 02: the visible checks with other inputs.

World sizes 1, 2, 3, 5 and 8; fewer elements than ranks, and none; other dtypes; several teams at once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, oracle, side_by_side, vary
from utils.cluster.hardware import links

visible: Any = import_module("utils.checks.02_all_reduce")
in_order, bits, NAMES, BOTH, BYTES = visible.in_order, visible.bits, visible.NAMES, visible.BOTH, visible.BYTES
F32, F64, BF16, I32, I64 = torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64

# Teams, elements, dtype. The small ones last: with few numbers, different mistakes look the same.
WORLDS: list[Any] = [
    ([[4, 2, 0, 1, 3]], 13, F64),
    ([[5, 1, 3], [0, 2, 4]], 8, I32),
    ([[1, 2, 0], [3]], 10, BF16),
    ([list(range(8))], 3, F32),
    ([[1, 0]], 1, F64),
    ([[2, 1, 0]], 0, F32),
]
POWERS: list[Any] = [
    ([[5, 2, 7, 0, 3, 6, 1, 4]], 21, F64),
    ([[3, 1, 0, 5], [4, 2]], 9, I32),
    ([[1, 0]], 5, BF16),
    ([list(range(4))], 3, F32),
    ([[2, 1, 3, 0]], 0, F32),
    ([[0]], 3, F32),
]
NODES: list[Any] = [  # with the ranks of each node before the elements
    ([[5, 3, 1, 4, 0, 2]], 2, 11, F64),
    ([list(range(8))], 4, 3, I32),
    ([[2, 1, 0]], 3, 7, BF16),
    ([[1, 2, 0]], 1, 5, F32),
    ([[0]], 1, 3, F32),
    ([[0, 5, 2, 3], [4, 1]], 2, 9),
]
ALONE = ([[0]], 3)


# ---- parts 1 to 5

naive_all_reduce = vary(
    visible.naive_all_reduce,
    values=[*WORLDS[:-1], bits(5)],  # Gloo can't receive an empty tensor from any source
    traffic=[([[3, 1, 4, 0, 2]], 7), ALONE],
)
tree_all_reduce = vary(
    visible.tree_all_reduce,
    values=[*WORLDS, bits(5)],
    traffic=[(in_order(6), 5), (in_order(3), 5), ALONE],
    time=[(in_order(5), 50), (in_order(16), 50)],
)
AROUND: dict[str, Any] = {
    "values": WORLDS,
    "traffic": [([[3, 1, 4, 0, 2]], 12), ([[1, 0]], 3), ALONE],
    "time": [(in_order(5), 200), (in_order(2), 80)],
}
ring_reduce_scatter = vary(visible.ring_reduce_scatter, **AROUND)
ring_all_gather = vary(visible.ring_all_gather, **AROUND)
ring_all_reduce = vary(
    visible.ring_all_reduce, values=[*WORLDS, bits(5)], traffic=[(in_order(5), 13), ALONE], time=[(in_order(5), 500)]
)
halving_doubling = vary(
    visible.halving_doubling,
    values=POWERS,
    traffic=[(in_order(8), 24), (in_order(2), 6), ALONE],
    time=[(in_order(16), 160), (in_order(4), 40)],
)
halving_doubling_any_size = vary(
    visible.halving_doubling_any_size,
    values=[*WORLDS, bits(3)],
    traffic=[(in_order(size), 8) for size in (7, 3, 4, 1)],
    time=[(in_order(size), 80) for size in (11, 6, 8)],
)
hierarchical_all_reduce = vary(
    visible.hierarchical_all_reduce,
    values=NODES,
    traffic=[(in_order(6), 2, 24), (in_order(8), 4, 24)],
    time=[(in_order(6), 2, 150), (in_order(16), 4, 400)],
)
pairwise_all_to_all = vary(
    visible.pairwise_all_to_all,
    values=WORLDS,
    traffic=[([[3, 1, 4, 0, 2]], 13), ALONE],
    time=[(in_order(5), 125), (in_order(8), 200)],
)


# ---- part 6


def rounds_of(algorithm: str, size: int) -> list[float]:
    """The share of all bytes in each message, for the messages that follow one another."""
    halves = [0.5**level for level in range(1, size.bit_length())]
    power = 2 ** len(halves)
    rounds: dict[str, list[float]] = {
        "naive": [1.0] * 2 * (size - 1),
        "tree": [1.0] * 2 * (len(halves) + (size > power)),
        "ring": [1 / size] * 2 * (size - 1),
        "halving-doubling": [1.0] * 2 * (size > power) + 2 * halves,
    }
    return rounds[algorithm]


@oracle(values=[((2, 3, 5, 33, 1024), 100, 3e-6, 25e9), ((1, 4, 7), 0, 1e-5, 1e9)])
def all_reduce_seconds(draws: Draws, sizes: tuple[int, ...], scale: int, alpha: float, bandwidth: float) -> Case:
    """For each algorithm and size, with up to a hundred times `scale` bytes."""
    counts = torch.randint(10, 100, (len(sizes),), generator=draws.generator()).tolist()
    rows = [(size, scale * count) for size, count in zip(sizes, counts, strict=True)]
    cases = [seconds_of(name, *row, alpha, bandwidth) for name in NAMES for row in rows]
    return replace(side_by_side(cases), cluster=links(len(cases), alpha, bandwidth))


def seconds_of(name: str, size: int, nbytes: int, alpha: float, bandwidth: float) -> Case:
    rounds, flow = rounds_of(name, size), nbytes / bandwidth
    whole, power = alpha + flow, 2 ** (size.bit_length() - 1)
    right, fold = len(rounds) * alpha + sum(rounds) * flow, 2 * whole if size > power else 0
    one_way, exactly = math.log2(power), math.log2(size)
    share, of_all = (power - 1) / power, (size - 1) / size
    own: dict[str, dict[str, Any]] = {
        "naive": {"the time of P messages each way: place 0 has nothing to send to itself": 2 * size * whole},
        "tree": {
            "the time with log2 P not rounded up: a tree has a whole number of rounds": 2 * exactly * whole,
            "the time with log2 P rounded down: the last ranks need a round too": 2 * one_way * whole,
            "the time with one round too many: 8 ranks need 3 rounds one way, 9 need 4": 2 * size.bit_length() * whole,
        },
        "ring": {
            "the time with whole tensors in each step: a ring sends n / P": len(rounds) * whole,
            "the time of P steps in each half: P - 1 are enough": right * size / max(1, size - 1),
        },
        "halving-doubling": {
            "the time without the fold: `fold` belongs to it": right - 2 * whole,
            "the time with whole tensors in each round: halves, quarters, ... are sent": fold + 2 * one_way * whole,
            "the time with the latencies of one way only: there are 2 log2 P' rounds": right - one_way * alpha,
            "the time with (P - 1) / P of the bytes: it is (P' - 1) / P' of them": right + 2 * (of_all - share) * flow,
            "the time with the bytes of one way only: both ways send (P' - 1) / P' of them": right - share * flow,
            "the time of one round too many each way: log2 P' is bit_length - 1": right + 2 * alpha,
            "the time with half of the fold: `fold` already has both of its messages": right - fold / 2,
        },
    }
    for log2, how in ((exactly, ""), ((size - 1).bit_length(), ", log2 P rounded up")):
        own["halving-doubling"] |= {
            f"the time of too many rounds{how}: after the fold only P' ranks are left": right
            + 2 * (log2 - one_way) * alpha,
            f"what a power of two takes{how}: fold, then let P' ranks halve": 2 * (log2 * alpha + of_all * flow),
        }
    usual = {
        "half of it: count the way up and the way down": right / 2,
        "the time with one latency in all: each round begins with one": right - (len(rounds) - 1) * alpha,
        "the time of 8 times as many bytes: `bandwidth` counts bytes, not bits": right + 7 * sum(rounds) * flow,
        "what bytes times bandwidth gives: divide": len(rounds) * alpha + sum(rounds) * nbytes * bandwidth,
        "microseconds: seconds are wanted": right * 1e6,
        "the time of rounded bytes: use /, not //": right + sum(int(r * nbytes) / bandwidth - r * flow for r in rounds),
    }
    return Case(
        [[name], [size], [nbytes], [alpha], [bandwidth]],
        right=right,
        mistakes=usual | own.get(name, {}) if size > 1 else {},
        rtol=1e-9,
        seen=f"all_reduce_seconds({name!r}, size={size}, nbytes={nbytes}, ...) returned",
    )


@oracle(values=[(size, 3e-6, 25e9) for size in (2, 3, 5, 7, 64, 1000)])
def crossover(draws: Draws, size: int, alpha: float, bandwidth: float) -> Case:
    """Where two straight lines meet, each known from its rounds."""
    tree, ring = rounds_of("tree", size), rounds_of("ring", size)
    unit, exactly = alpha * bandwidth, math.log2(size)
    right = (len(ring) - len(tree)) / (sum(tree) - sum(ring)) * unit
    whole_ring = (len(ring) - len(tree)) / (sum(tree) - 2 or 1) * unit
    rounds, more = (size - 1).bit_length(), size - 1 - (size - 1).bit_length()
    down, of_ring = size.bit_length() - 1, (size - 1) / size
    not_rounded_up = (size - 1 - exactly) / (exactly - (size - 1) / size) * unit
    one_side = (size - 1 - size * rounds) / (size * rounds - of_ring) * unit
    return Case(
        [[size], [alpha], [bandwidth]],
        right=right,
        mistakes={
            "upside down: the more rounds the ring needs, the later it wins": right and unit**2 / right,
            "the right ratio, but without alpha times bandwidth": right / unit,
            "half of it": right / 2,
            "the right number with the wrong sign: more rounds cost, fewer bytes gain": -right,
            "what alpha / bandwidth gives: multiply them": right / bandwidth**2,
            "alpha * bandwidth alone: it depends on P as well": unit,
            "1 / P of it: you multiplied the bytes by P, but not the latencies": right / size,
            "what the equation gives if only the tree's side is multiplied by P: multiply both sides": one_side,
            "in elements of 4 bytes: bytes are wanted": right / 4,
            "the right number, rounded down": float(math.floor(right)),
            "the right number, rounded up": float(math.floor(right) + 1),
            "what log2 P gives if it is not rounded up: use `rounds`": not_rounded_up,
            "what log2 P gives if it is rounded down: use `rounds`": (size - 1 - down) / (down - of_ring) * unit,
            "what a ring that sends all n bytes one way would give: it sends (P - 1) / P of them": whole_ring,
            "what a ring of whole tensors would give: it sends n / P in each step": -unit,
            "what a ring of n / P in all gives: it sends that P - 1 times each way": more / (rounds - 1 / size) * unit,
            "what a ring of P steps each way gives: it takes P - 1": (size - rounds) / (rounds - 1 or 1) * unit,
            "what a ring gives that sends nothing: it sends (P - 1) / P of the bytes each way": more / rounds * unit,
        }
        | ({} if right else {"never: with as few rounds as the tree, the ring wins from the first byte": math.inf}),
        rtol=1e-9,
        seen=f"crossover(size={size}, alpha={alpha}, bandwidth={bandwidth:.3g}) returned",
        through=visible.zero_or_almost,
    )


# ---- the challenge


def seconds_of_mixed_sizes(nodes: int, local: int, sizes: tuple[int, ...]) -> float:
    """All tensors as one, by rings inside the nodes and across them, as hierarchical-all-reduce has it.

    In each step some rank has the longest chunk, and `tensor_split` makes the first ones longer.
    """
    numel = sum(sizes)
    chunk = -(-numel // local)
    inside: float = visible.INSIDE.seconds(BYTES * chunk)
    across: float = visible.ACROSS.seconds(BYTES * -(-chunk // nodes))
    return 2 * (local - 1) * inside + 2 * (nodes - 1) * across


mixed_sizes = vary(
    visible.mixed_sizes,
    par=seconds_of_mixed_sizes,
    score=[(2, 3, (5, 3000, 0, 700, 41, 2049)), (3, 2, (1, 1, 2)), (1, 4, (900, 11))],
)

RECORDED = (
    vary(visible.mixed_sizes, par=seconds_of_mixed_sizes),
    vary(all_reduce_seconds, values=[((8, 6, 1), 100, 1e-5, 1e9)]),
    vary(crossover, values=[(size, 1e-5, 1e9) for size in (12, 8, 4, 2)]),
)

choose_algorithm = vary(
    visible.choose_algorithm,
    values=[
        (NAMES, (1, 2, 1, 3), "naive"),
        (NAMES[::-1], (1, 2, 1, 3), "ring"),
        (BOTH, (1, 2, 2, 1), "tree"),
        (NAMES, (3, 2.001, 4, 2), "halving-doubling"),
        (NAMES[:3], (3, 2, 2.001, 1), "tree"),
    ],
)
VIEW = (torch.clone, F64, visible.as_a_view)
all_reduce = vary(
    visible.all_reduce,
    values=[
        (40, lambda x: x[1::3], BF16),
        ((2, 3, 4), lambda x: x[:, 1, ::2], I64),
        ((2, 3, 4), lambda x: x.permute(2, 0, 1)),
        (3, lambda x: x[0]),
    ],
    traffic=[(7, *VIEW), (8, *VIEW), *((n, lambda x: x[::3], BF16) for n in (93, 96))],
)
