"""The hidden tests of lesson 03, and the oracles of the exercises whose answer is a formula.

World sizes 1, 2, 3, 5 and 8; one repeat; no warm-up; ties, unsorted and single times; other sizes and units.
"""

from __future__ import annotations

import math
from importlib import import_module
from statistics import mean, median, median_high, median_low, pstdev
from typing import Any

from utils.benchmark import nccl_conventions
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, side_by_side, vary
from utils.text.units import quantity

visible: Any = import_module("utils.checks.03_benchmarking")
RTOL = visible.RTOL
Line = tuple[float, float]  # alpha, beta
OPS = list(nccl_conventions.OPS)


# ---- measuring

time_once = vary(
    visible.time_once,
    values=[
        (
            "earlier work on rank 1, different new work on each rank",
            [{"numel": 3000, "queued": 0.3 * (rank == 1), "kernel": 0.01 * rank} for rank in range(5)],
        ),
        ("one rank, with earlier work", [{"numel": 50, "queued": 0.2, "handle": True}]),
        (
            "a handle, and earlier work on rank 1",
            [{"numel": 3000, "queued": 0.3 * (rank == 1), "handle": True} for rank in range(2)],
        ),
    ],
    traffic=[("", [{"numel": 10, "kernel": 0.1}] * 3)],
)
times_of_the_slowest = vary(
    visible.times_of_the_slowest, values=[(5, 0, 6, 1), (2, 3, 1, 1), (1, 1, 2, 1)], traffic=[(3, 0, 7)]
)


@oracle(values=[([3e-5], [2.0, 2.0, 2.0, 9.0], [7e-3, 1e-3], [4.0, 3.0, 2.0, 1.0, 9.0, 60.0, 5.0])])
def median_and_spread(_: Draws, *lists: list[float]) -> Case:
    return side_by_side([summarised(times) for times in lists])


def summarised(times: list[float]) -> Case:
    middle, average = median(times), mean(times)
    distances = [abs(each - middle) for each in times]
    spread = median(distances)
    return Case(
        [[times]],
        right={"the median": middle, "the spread": spread / middle},
        rtol=RTOL,
        mistakes={
            "the median": {
                "the mean: one outlier can move it anywhere": average,
                "the minimum: a lucky time that may never come again": min(times),
                "the middle of an unsorted list: sort first": times[len(times) // 2],
                "the lower of the two in the middle: take the value halfway between": median_low(times),
                "the upper of the two in the middle: take the value halfway between": median_high(times),
            },
            "the spread": {
                "the spread in seconds: divide by the median": spread,
                "the spread in percent: return a share": 100 * spread / middle,
                "the range: the outlier decides it": (max(times) - min(times)) / middle,
                "the largest distance: the outlier decides it": max(distances) / middle,
                "the standard deviation: it follows the outlier": pstdev(times) / middle,
                "the distance between quartiles: take the median of the distances": (
                    (sorted(times)[3 * len(times) // 4] - sorted(times)[len(times) // 4]) / middle
                ),
                "the mean distance: take the median of the distances, too": mean(distances) / middle,
                "a share of each time: divide by the median": median(abs(each - middle) / each for each in times),
                "the distance from the mean: take the distances from the median": (
                    median(abs(each - average) for each in times) / middle
                ),
                "the median of signed distances: take their absolute values": (
                    median(each - middle for each in times) / middle
                ),
            },
        },
        seen=f"for {times} you returned {{part}}",
    )


# ---- counting


@oracle(
    values=[
        (["gather", "reduce_scatter", "all_gather"], [12, 24, 1000]),
        (["all_gather", "scatter", "all_to_all", "reduce", "broadcast"], [40] * 5),
        (["all_gather"], [64]),
        (OPS, [800] * 8),
    ]
)
def counted_bytes(_: Draws, collectives: list[str], passed_in: list[int]) -> Case:
    world_size = len(collectives)

    def counted(collective: str, nbytes: int) -> Case:
        by = "the root" if collective == "scatter" else "each rank"
        others = (world_size - 1) / world_size
        return Case(
            [[collective], [nbytes]],
            right=float(nccl_conventions.total_bytes(collective, nbytes, world_size)),
            rtol=RTOL,
            mistakes={
                "one chunk of it: S is the whole tensor, all chunks together": nbytes / world_size,
                "P times the whole: a rank hands in one chunk only to all-gather and gather": nbytes * world_size,
                "the bytes that one rank must send: that comes later, in busbw": nbytes * others,
                "twice the whole: the two phases come later, in busbw": 2 * nbytes,
                "the other ranks' chunks: this rank's own counts, too": nbytes * (world_size - 1),
                "what this rank passes in: here that is one chunk of the whole": nbytes,
            },
            seen=f"{collective} of {world_size} ranks, {nbytes:,} bytes passed in by {by}: you returned",
        )

    return side_by_side([counted(*one) for one in zip(collectives, passed_in, strict=True)])


@oracle(
    values=[
        *[(OPS[:size], 1 << 20, 3e-5) for size in (2, 3, 5)],
        (OPS[3:], 12_345_678, 0.5),
        (OPS, 64, 1e-3),
        (["all_reduce"], 4096, 1e-6),  # one rank sends nothing
    ]
)
def bandwidths(_: Draws, collectives: list[str], nbytes: int, took: float) -> Case:
    return side_by_side([bandwidth_of(one, len(collectives), nbytes, took) for one in collectives])


def bandwidth_of(collective: str, world_size: int, nbytes: int, took: float) -> Case:
    algbw = nccl_conventions.algbw(nbytes, took)
    busbw = nccl_conventions.busbw(collective, nbytes, took, world_size)
    others = 1 - 1 / world_size
    factors = {
        "algbw, as if the factor were 1: that is so for broadcast and reduce alone": algbw,
        "twice the right one: only what is sent counts, and only an all-reduce has two phases": 2 * busbw,
        "P times the right one: `nbytes` is already the size of the whole": busbw * world_size,
        "P times too small: divide one rank's bytes by its time, not by P times that": busbw / world_size,
        "0, because // rounds down: use /": 0.0,
    }
    if collective in ("broadcast", "reduce"):
        whole = "In a broadcast or reduce nothing is cut into chunks: a rank passes on the whole, so busbw is algbw"
        factors["algbw times P - 1: a rank passes the whole on once"] = algbw * (world_size - 1)
        factors[f"algbw times (P - 1) / P, the factor of an all-gather. {whole}"] = algbw * others
        factors[f"algbw times 2 (P - 1) / P, the factor of an all-reduce. {whole}"] = algbw * 2 * others
    elif others:
        factors["algbw with (P - 1) / P upside down: a rank sends less than S in each phase"] = busbw / others**2
        factors["algbw / P, for one chunk: the least that must be sent is P - 1 chunks"] = algbw / world_size
        factors["algbw with P - 1 / P: write (P - 1) / P"] = busbw / others * (world_size - 1 / world_size)
    if collective == "all_reduce":
        factors["half the right one: an all-reduce has two phases"] = busbw / 2
        factors["the result of rounding the factor down by //: use /"] = algbw * (2 * (world_size - 1) // world_size)
        factors["algbw with a factor of 2: P ranks need 2 (P - 1) / P"] = algbw * 2
        factors["algbw with 2 (P - 1) instead of 2 (P - 1) / P"] = algbw * 2 * (world_size - 1)
    return Case(
        [[collective]],
        same={"nbytes": nbytes, "seconds": took},
        right={"algbw": algbw, "busbw": busbw},
        rtol=RTOL,
        mistakes={
            "algbw": {
                "GiB/s, divided by 2**30: GB are 1e9 bytes": algbw * 1e9 / 2**30,
                "bytes/s: for GB/s, divide by 1e9": algbw * 1e9,
            },
            "busbw": factors,
        },
        seen=f"{collective} of {world_size} ranks, {nbytes:,} bytes in {quantity(took, 's')}: you returned {{part}}",
    )


find_the_mistakes = vary(
    visible.find_the_mistakes,
    values=[
        (
            ("all_reduce", ["GiB", "one chunk", "algbw"], 0.005),
            ("all_gather", ["GiB", "both ways"], -0.005),
            ("all_to_all", ["one chunk", "algbw"], 0),
            ("gather", None, 0.03),
            ("all_reduce", ["GiB", "one chunk", "both ways", "algbw"], 0),
        ),
        (("reduce_scatter", ["GiB"], 0.007), ("all_reduce", [], -0.007), ("broadcast", [], 0)),
    ],
)


# ---- sweeping


@oracle(
    values=[
        ((1, 100, 2, 1), (4, 4, 3, 2), (100, 5000, 3, 8), (24, 24, 10, 4), (9, 3, 2, 4)),
        ((1, 70, 2, 8),),
        ((33, 4000, 2, 4), (64, 1 << 20, 16, 2)),
    ],
    if_stuck="whether `nbytes` becomes 0, since 0 times `step` is still 0. Keep `nbytes`, and round down a copy.",
)
def sweep_sizes(_: Draws, *sweeps: tuple[int, int, int, int]) -> Case:
    """For each rank (smallest, largest, step, itemsize)."""
    return side_by_side([swept(*sweep, len(sweeps)) for sweep in sweeps])


def swept(smallest: int, largest: int, step: int, itemsize: int, world_size: int) -> Case:
    powers = [nbytes for nbytes in (smallest * step**power for power in range(64)) if nbytes <= largest]
    grain = world_size * itemsize

    def rounded(to: int) -> list[int]:
        return sorted({nbytes // to * to for nbytes in powers} - {0})

    right = rounded(grain)
    at_once, nbytes = [], smallest
    while nbytes <= largest:
        nbytes = nbytes // grain * grain or nbytes
        at_once += [nbytes] * (nbytes % grain == 0)
        nbytes *= step
    product = " (the product, not the least common multiple)" * (itemsize % world_size == 0)
    mistakes = {
        "a list with sizes that can't be cut into P equal chunks of whole elements: round down": powers,
        f"a list of multiples of {itemsize} bytes, one element. With {world_size} ranks they must be multiples of "
        f"{world_size} * {itemsize} = {grain}, so that every rank gets whole elements{product}": rounded(itemsize),
        f"a list of multiples of {world_size} bytes, one for each rank. An element has {itemsize} bytes, so they must "
        f"be multiples of {world_size} * {itemsize} = {grain}": rounded(world_size),
        "a list of sizes rounded to the nearest multiple: round down": sorted(
            {round(nbytes / grain) * grain for nbytes in powers} - {0}
        ),
        "a list of those sizes alone that are multiples of P * itemsize: round the others down": [
            n for n in powers if n % grain == 0
        ],
        "the result of nbytes % P * itemsize, which is (nbytes % P) * itemsize: use P * itemsize in parentheses": [
            size for size in (nbytes - nbytes % world_size * itemsize for nbytes in powers) if size > 0
        ],
        "the result of // P * itemsize, which divides by P alone: use P * itemsize in parentheses": [
            size for size in (nbytes // world_size * itemsize * grain for nbytes in powers) if size
        ],
        "a list of the numbers of whole chunks: multiply by P * itemsize again": [nbytes // grain for nbytes in right],
        "a list without the smallest: one element for each rank is enough": [n for n in right if n > grain],
        "a list of sizes rounded up: round down": sorted({-(-nbytes // grain) * grain for nbytes in powers}),
        "a list with small sizes raised: leave them out": [max(n // grain, 1) * grain for n in powers],
        "a list of the numbers of elements: multiply by itemsize": [nbytes // itemsize for nbytes in right],
        "an empty list: leave out a small size, and go on with the next": [] if smallest < grain else right,
        "a list with a size of 0: leave it out": [0, *right],
        "a list without the largest: `largest` itself counts": [
            nbytes for nbytes in right if nbytes < largest - largest % grain
        ],
        "a list of sizes rounded before they were multiplied: multiply the unrounded ones": at_once,
    }
    sweep = f"from {smallest} to {largest}, step {step}, {world_size} ranks, {itemsize} bytes per element"
    return Case(
        [[smallest], [largest], [step], [itemsize]],
        right=every(right),
        mistakes={words: every(wrong) for words, wrong in mistakes.items()},
        seen=f"{sweep}: you returned",
    )


# ---- the model

SIZES = [8, 100, 3000, 50_000, 2_000_000]
fit = vary(
    visible.fit,
    values=[
        {
            "lines": [(1e-6, 4.5e11, SIZES, 0.1), (5e-5, 1e9, SIZES[::-1], 0.3)],
            "measured": [
                ([1000, 9000], [0.001, 0.005]),
                ([1000, 8000, 64_000], [1e-6, 2e-5, 1.9e-4]),  # the best line begins below 0
            ],
        }
    ],
)


@oracle(values=[((0.9, 4e-5, 1 / 5e9), (0.99, 1e-6, 1e-11), (0.1, 3.0, 2.0), (0.5, 0.0, 1e-9))])
def size_for_share(_: Draws, *wanted: tuple[float, float, float]) -> Case:
    """For each rank (share, alpha, beta)."""
    return side_by_side([size_for(*one) for one in wanted])


def size_for(share: float, alpha: float, beta: float) -> Case:
    odds, half = share / (1 - share), alpha / beta
    mistakes = {
        "the half-bandwidth size: the share matters": half,
        "s / (1 - s) * alpha, which are seconds: divide by beta": odds * alpha,
        "2 * s * alpha / beta, which is right for a half alone": 2 * share * half,
        "s / (1 + s) * alpha / beta: what changes sides in the equation changes its sign": share / (1 + share) * half,
        "share * alpha / beta: at that size the latency still takes most of the time": share * half,
        "for the share that is missing: s / (1 - s), not (1 - s) / s": half / odds,
        "1 / (1 - s) times alpha / beta. Solve again: n = s * (alpha / beta + n), and collect n on the left. "
        "For s = 0.5 it must give alpha / beta": half / (1 - share),
        "(1 - s) * alpha / beta: the closer s is to 1, the larger the size must be": (1 - share) * half,
        "the size for `share` bytes/s: set it equal to share / beta": share * alpha / (1 - share * beta),
        "the right size, rounded: return it as it comes out": math.floor(odds * half * (1 - 1e-12)),
    }
    if alpha:
        mistakes["the fraction upside down: seconds divided by seconds per byte are bytes"] = odds / half
    return Case(
        [[share], [alpha], [beta]],
        right=odds * half,
        rtol=RTOL,
        mistakes=mistakes,
        advice={"ZeroDivisionError": "alpha may be 0: solve for n so that nothing is divided by alpha."},
        seen=f"share {share}, alpha {quantity(alpha, 's')}, 1 / beta {quantity(1 / beta, 'B/s')}: you returned",
    )


@oracle(
    values=[
        (
            ((1.0, 0.5), (3.0, 0.25), 8.0),
            ((1e-5, 1e-9), (1e-5, 1e-9), None),  # the same line
            ((3e-5, 4e-9), (1e-5, 1e-9), None),
            ((0.0, 2e-9), (1e-6, 1e-9), 1000.0),
            ((2e-6, 1 / 25e9), (1e-5, 1 / 50e9), 400_000.0),  # two network cards: betas far below a nanosecond
            ((2e-6, 1 / 400e9), (1.2e-5, 1 / 402e9), 8.04e8),  # hardly different
        )
    ]
)
def crossover(_: Draws, *pairs: tuple[Line, Line, float | None]) -> Case:
    """For each rank two lines, and the size at which they meet."""
    return side_by_side([meeting(*pair) for pair in pairs])


def meeting(one: Line, other: Line, right: float | None) -> Case:
    (alpha_one, beta_one), (alpha_other, beta_other) = one, other
    apart = abs(beta_one - beta_other)
    lost = (
        f"their betas differ by {apart:.1e}, and that counts. Test for equality with ==, without a tolerance"
        if apart <= 1e-9
        else "is the sign of one difference wrong?"
        if alpha_one < alpha_other
        else "the one with less latency may come first or second"
    )
    mistakes: dict[str, float | None] = {
        "0, and a size must be above 0: return None": 0.0,
        "infinite: with the same beta they never meet, so return None": math.inf,
    }
    if right:
        mistakes[f"None, but these lines do meet: {lost}"] = None
        mistakes["the fraction upside down: seconds divided by seconds per byte are bytes"] = 1 / right
        mistakes["the time that both take there: return the size"] = alpha_one + right * beta_one
        mistakes["the result of adding the betas: subtract them"] = right * apart / (beta_one + beta_other)
        rounded = (alpha_other - alpha_one) // (beta_one - beta_other)
        mistakes["the right size, rounded: return it as it comes out"] = rounded
        mistakes["the right size with the wrong sign"] = -right
    elif beta_one != beta_other and alpha_one != alpha_other:
        below = (alpha_other - alpha_one) / (beta_one - beta_other)
        mistakes[
            "the size without its sign, but these lines only meet below 0: keep the sign (no abs(), no larger minus "
            "smaller), and return None unless the size is above 0"
        ] = -below
        mistakes["a size below 0, which can't be sent: return None"] = below
    return Case(
        [[one], [other]],
        right=right,
        rtol=RTOL,
        mistakes=mistakes,
        seen=f"lines ({alpha_one:.4g}, {beta_one:.4g}) and ({alpha_other:.4g}, {beta_other:.4g}): you returned",
        advice={"ZeroDivisionError": "Two lines with the same beta are parallel: test for that before you divide."},
    )


held_out_errors = vary(
    visible.held_out_errors,
    values=[
        (([5, 3, 9, 1, 700], [0.2, 0.2, 0.7, 0.1, 3.0]),),
        (([8, 16, 16], [1.0, 2.0, 4.0]), ([1, 10, 100], [1e-6, 1e-5, 1e-4])),  # a size twice
    ],
)
recover_the_link = vary(
    visible.recover_the_link,
    values=[
        (2, 3e-6, 2e9, [400, 40_000, 4_000_000]),
        (3, 1e-5, 1e8, [1200, 6000, 12_000, 48_000]),
        (8, 2e-4, 5e7, [80_000, 160_000, 320_000]),
    ],
)


# ---- the challenge


def alphas_of_doubling(alpha: float, octave: float) -> float:
    """From one byte on, until a reading is ten times the first one."""

    def double(seconds_of: Any) -> Line:
        nbytes, smallest = 1, seconds_of(1)
        took = smallest
        while took < 10 * smallest:
            nbytes *= 2
            took = seconds_of(nbytes)
        return smallest, (took - smallest) / nbytes

    return float(visible.measure_links(double, visible.links_of(alpha, octave))["spent"])


shortest_benchmark = vary(visible.shortest_benchmark, par=alphas_of_doubling, score=[(3e-6, 10.05), (8e-3, 21.3)])

# ---- what the visible checks of the formulas know

RECORDED = (
    vary(visible.shortest_benchmark, par=alphas_of_doubling),
    vary(median_and_spread, values=[([1.0, 5.0, 2.0, 80.0, 3.0], [8.0, 2.0, 70.0, 3.0, 4.0, 6.0])]),
    vary(counted_bytes, values=[(four, [4000, 8000, 1200, 400]) for four in (OPS[:4], OPS[4:])]),
    vary(bandwidths, values=[(four, 600_000_000, 0.02) for four in (OPS[:4], OPS[4:])]),
    vary(
        sweep_sizes,
        values=[((5, 2000, 7, 4), (1024, 16384, 4, 4), (5, 300, 3, 8)), ((13, 2000, 3, 4), (50, 5000, 2, 8))],
    ),
    vary(size_for_share, values=[((0.8, 5e-6, 1e-9), (0.5, 1e-6, 1 / 450e9), (0.3, 2e-3, 1e-6))]),
    vary(
        crossover,
        values=[
            (
                ((10e-6, 3e-9), (50e-6, 1e-9), 20_000.0),
                ((50e-6, 1e-9), (10e-6, 3e-9), 20_000.0),
                ((10e-6, 1e-9), (50e-6, 3e-9), None),
                ((10e-6, 2e-9), (50e-6, 2e-9), None),
                ((2e-6, 1e-9), (2e-6, 3e-9), None),  # they meet at 0
                ((1e-6, 1 / 50e9), (9e-6, 1 / 450e9), 450_000.0),  # a network card, an NVLink
                ((1e-6, 1 / 450e9), (11e-6, 1 / 451e9), 2_029_500_000.0),  # two NVLinks
            )
        ],
    ),
)
