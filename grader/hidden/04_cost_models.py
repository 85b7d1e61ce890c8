"""The hidden tests of lesson 04, and the oracles of the exercises whose answer is a formula.

Other machines, other numbers of ranks, sizes that don't divide evenly, other dtypes, other recipes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from statistics import mean, median
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, side_by_side, vary
from utils.cluster import Gpu, Link
from utils.kit import gpu_topology
from utils.text.units import quantity

visible: Any = import_module("utils.checks.04_cost_models")
links_of = visible.links_of


# ---- part 1

Average = Callable[[list[float]], float]
LEVELS = {"L1": 1000.0, "L2": 4000.0, "L3": 10_000.0, "memory": math.inf}
FIXED = 0.25  # seconds


@oracle(
    values=[
        ([(9000, 3.0), (100, 50.0), (400, 70.0), (500, 20.0), (200, 10.0), (6000, 5.0)], LEVELS),
        ([(10**9, 2e10)], {"memory": math.inf}),
        ([(1500, 8.0), (2000, 6.0), (2001, 4.0), (5000, 3.0), (5001, 1.0), (40, math.inf), (600, 1e5)], LEVELS),
    ]
)
def bandwidth_of_levels(_: Draws, copies: list[tuple[int, float]], levels: dict[str, float]) -> Case:
    """copies: the bytes and the bytes/s of each, infinite for one that took the fixed cost alone."""
    seconds = [2 * n / rate + FIXED for n, rate in copies]

    def rates(
        touched: float = 2,
        each: Callable[[float], float] = float,
        of_all: Average = median,
        first: bool = True,
        fixed: float = FIXED,
        strict: bool = True,
        together: bool = False,
    ) -> dict[str, float]:
        """By level, if a copy touches `touched` times its bytes; `first`: it belongs to the first that has room."""
        lower, found = 0.0, dict[str, float]()
        for name, size in levels.items():
            here = [
                (2 * n, t - fixed)
                for (n, _), t in zip(copies, seconds, strict=True)
                if lower < touched * n <= size and t >= (1.1 * FIXED if strict else FIXED * (1 + 1e-9))
            ]
            if together and here:
                here = [(sum(n for n, _ in here), sum(t for _, t in here))]
            inside = [each(n / t) for n, t in here]
            found |= {name: of_all(inside)} if inside else {}
            lower = size if first else 0.0
        return found

    mistakes = {
        "with the fixed cost still in: subtract it from each time": rates(fixed=0.0),
        "with the fixed cost added: subtract it from each time": rates(fixed=-FIXED),
        "with copies that took less than 1.1 times the fixed cost: leave them out": rates(strict=False),
        "half of it: a copy of n bytes reads n and writes n": rates(each=lambda rate: rate / 2),
        "what you get if copies of n bytes touch n bytes: they touch 2 n, which must fit": rates(touched=1),
        "half of what you get if copies touch n bytes: they touch and move 2 n": rates(1, each=lambda rate: rate / 2),
        "what you get if a copy must leave some room: one that fills a level belongs to it": rates(touched=2 + 1e-9),
        "the mean: take the median": rates(of_all=mean),
        "the best: take the median": rates(of_all=max),
        "all bytes of a level divided by all of their seconds: take the median of the copies' rates": rates(
            together=True
        ),
        "the time per byte: bandwidth is bytes per second": rates(each=lambda rate: 1 / rate),
        "in GB/s: return bytes/s": rates(each=lambda rate: rate / 1e9),
        "of all copies that fit: each belongs to the first level that has room, and to no other": rates(first=False),
        "a dict with levels to which no copy belongs: leave them out": dict.fromkeys(levels, 0.0) | rates(),
    }
    same = {"nbytes": [n for n, _ in copies], "seconds": seconds, "fixed": FIXED, "levels": levels}
    return Case(same=same, right=every(rates()), rtol=1e-9, mistakes=mistakes, seen="you returned")


# ---- part 2

SLOW = Gpu(flops={"fp32": 1e12, "fp64": 4e11}, memory=8e9, bandwidth=1e11, launch=0.0)


@oracle(
    values=[
        (SLOW, "float32", 1e9, 1e9),
        (SLOW, "float64", 1e12, 1e9),
        (SLOW, "float32", 1e13, 1e12),  # both take equally long
        (SLOW, "float64", 1e13, 1e12),
        (SLOW, "float16", 5e9, 0.0),
    ]
)
def roofline_time(_: Draws, gpu: Gpu, dtype: str, flops: float, moved: float) -> Case:
    computing, moving, launch = flops / gpu.peak(dtype), moved / gpu.bandwidth, gpu.launch
    with_launch = "memory" if moving + launch > computing else "compute"
    return Case(
        same={"flops": flops, "moved": moved, "gpu": gpu, "dtype": dtype},
        right={"the time": max(computing, moving) + launch, "the bound": "memory" if moving > computing else "compute"},
        rtol=1e-9,
        mistakes={
            "the time": {
                "the sum of computing and moving: they overlap, so the longer one counts": computing + moving + launch,
                "without the launch, which comes on top of the longer one": max(computing, moving),
                **{
                    f"what the peak of {other} leads to: gpu.peak(dtype)": max(flops / gpu.peak(other), moving) + launch
                    for other in ("float32", "bfloat16")
                },
                "the shorter of the two, or just one of them: the longer one counts": min(computing, moving) + launch,
            },
            "the bound": {
                "the bound if the launch counts as moving: it counts as neither": with_launch,
                "what takes less time: the longer of computing and moving binds, and they take "
                f"{quantity(computing, 's')} and {quantity(moving, 's')}": (
                    "compute" if moving > computing else "memory"
                ),
            },
        },
        seen=f"{quantity(flops, 'FLOP')} and {quantity(moved, 'B')} in {dtype}: {{part}} is",
    )


roofline_on_the_clock = vary(
    visible.roofline_on_the_clock, time=[(torch.float32, ("add", 111), ("relu", 3), ("matmul", 100), ("matmul", 1000))]
)


# ---- part 3

fused_chain = vary(
    visible.fused_chain,
    values=[
        (13, 16, torch.float64, 0.5, -1.0),
        (1, 16, torch.float32, 0.5, -1.0),
        (9, 40, torch.bfloat16, 0.5, -1.0),
        (17, 4, torch.int64, 3, 2),
        (16, 16, torch.float32, -2.0, 5.0),
    ],
    traffic=[(1001, 64), (3, 64), (64, 4)],
)
tiled_matmul = vary(
    visible.tiled_matmul,
    values=[
        (5, 7, 3, 2),
        (1, 9, 4, 4, torch.float64),
        (6, 1, 6, 3, torch.bfloat16),
        (3, 2, 3, 8, torch.int64),
        (4, 3, 5, 1),
    ],
    traffic=[(10, 7, 9, 4), (3, 3, 3, 8), (8, 20, 4, 2), (5, 5, 5, 1)],
)


# ---- part 4


def printed(gpus: int, edges: dict[tuple[int, int], str]) -> tuple[str, list[list[str]]]:
    """A matrix as the tool prints it, with an underlined header and a NIC; and the matrix."""
    matrix, names = links_of(gpus, edges), [f"GPU{gpu}" for gpu in range(gpus)]
    head = "\t\x1b[4m" + "\t".join([*names, "NIC0", "CPU Affinity", "NUMA Affinity"]) + "\x1b[0m"
    rows = ["\t".join([name, *row, "PIX", "0-31", "0"]) for name, row in zip(names, matrix, strict=True)]
    nic = "\t".join(["NIC0", *["PIX"] * gpus, " X "])
    legend = ["", "Legend:", "", "  X    = Self", "", "NIC Legend:", "", "  NIC0: mlx5_0", ""]
    return "\n".join([head, *rows, nic, *legend]), matrix


read_topology = vary(
    visible.read_topology,
    values=[
        (gpu_topology.recorded("eight-nvlink"), links_of(8, {}, other="NV18")),
        (gpu_topology.recorded("eight-cube-mesh"), links_of(8, visible.CUBE_MESH_EDGES)),
        (gpu_topology.recorded("four-pcie").replace("\t", "     "), visible.PCIE),
        printed(1, {}),
        printed(12, {(0, 11): "PXB", (3, 4): "NV6", (10, 11): "PHB"}),
    ],
)


# ---- part 5

ALL = [
    *("flat scatter", "flat gather", "tree broadcast", "tree reduce", "ring all-gather", "ring reduce-scatter"),
    *("pairwise all-to-all", "ring all-reduce", "tree all-reduce", "halving-doubling all-reduce"),
]


@oracle(values=[(ALL, 16), (ALL[:-1], 5), (ALL, 1), (ALL[:-1], 7), (ALL, 2)])
def collective_costs(_: Draws, algorithms: list[str], ranks: int) -> Case:
    return side_by_side([costs_of(name, ranks) for name in algorithms])


def costs_of(name: str, ranks: int) -> Case:
    levels, others = (ranks - 1).bit_length(), (ranks - 1) / ranks
    kind, _, collective = name.partition(" ")
    phases = 2 if collective == "all-reduce" else 1
    adds = collective in ("reduce", "reduce-scatter", "all-reduce")
    messages = phases * (levels if kind in ("tree", "halving-doubling") else ranks - 1)
    sent: float = phases * (levels if kind == "tree" else others)
    added: float = (levels if kind == "tree" else others) if adds else 0
    down = phases * (ranks.bit_length() - 1)
    return Case(
        [[name]],
        same={"P": ranks},
        right={"the number of messages": messages, "what is sent": float(sent), "what is added": float(added)},
        rtol=1e-9,
        mistakes={
            "the number of messages": {
                "one message too many: a ring has one round fewer than there are ranks": messages + phases,
                "log2 P rounded down: the last ranks are left out": down,
                "half of it: an all-reduce has two phases": messages / 2,
                "log2 P without rounding: rounds are whole": phases * math.log2(ranks),
                "what all ranks send together: count what is sent at the same time once": messages * ranks,
            },
            "what is sent": {
                "half of it: an all-reduce has two phases": sent / 2,
                "the whole in each round: a chunk is a P-th of it": float(messages),
                "a chunk in each round: a tree sends all of it": levels * phases / ranks,
                "the whole, once: nobody sends the chunk that stays": float(phases),
                "what the rounds send that halve: a tree sends all of it in each": phases * others,
            },
            "what is added": {
                "what is sent: the rounds that only pass results on add nothing": float(sent),
                "nothing: what arrives in a reduce is added": 0.0,
                "the whole in each round: a chunk is a P-th of it": float(messages / phases),
            }
            if adds
            else {"what is sent: nothing is added here, chunks are only passed on": float(sent)},
        },
        seen=f"{name} on {ranks} ranks: {{part}} is",
    )


collective_costs_on_the_clock = vary(
    visible.collective_costs_on_the_clock,
    time=[(("tree broadcast", 3), ("ring all-gather", 4), ("flat scatter", 3), ("tree reduce", 4))],
)


@oracle(
    values=[
        ({"a": (1.0, 4.0), "b": (3.0, 3.0), "c": (4.0, 1.0), "d": (4.5, 0.9)},),
        ({"only": (3e-6, 1e-9)},),
        ({"z": (5.0, 1.0), "y": (1.0, 1.0), "x": (1.0, 2.0)},),
        ({"e": (30e-6, 1e-11), "a": (3e-6, 9e-10), "d": (12e-6, 1e-10), "b": (5e-6, 4e-10), "c": (6.5e-6, 3.9e-10)},),
    ]
)
def tuning_table(_: Draws, lines: dict[str, tuple[float, float]]) -> Case:
    def crossing(one: str, other: str) -> float:
        (a, b), (c, d) = lines[one], lines[other]
        return (c - a) / (b - d)

    def table(start: str, nearest: Callable[..., Any] = min, least: float = 0.0) -> list[tuple[float, str]]:
        found = [(0.0, start)]
        while flatter := [name for name in lines if lines[name][1] < lines[found[-1][1]][1]]:
            found.append(nearest((crossing(found[-1][1], name), name) for name in flatter))
        return found

    right = table(min(lines, key=lambda name: lines[name]))
    by_latency = sorted(lines, key=lambda name: lines[name])
    in_turn = [(0.0, by_latency[0])]
    in_turn += [
        (crossing(one, other), other)
        for one, other in zip(by_latency, by_latency[1:], strict=False)
        if lines[one][1] > lines[other][1]
    ]
    least = lines[right[0][1]][1]
    of_first = [right[0]] + sorted(
        (crossing(right[0][1], name), name) for name, (_, slope) in lines.items() if slope < least
    )
    first, last = right[0], right[-1]
    ends = [first] + ([(crossing(first[1], last[1]), last[1])] if len(right) > 1 else [])
    return Case(
        same={"lines": lines},
        right=every(right),
        rtol=1e-9,
        mistakes={
            "each line against the next one by latency: a line that is nowhere lowest gets an entry": every(in_turn),
            "the first line and the flattest one: those between them are lowest somewhere, too": every(ends),
            "the crossing that is farthest away: the nearest one comes first": every(table(right[0][1], max)),
            "where each line crosses the first one: go on from the line that is lowest there": every(of_first),
            "the line with the fewest seconds per byte, for all sizes: it wins for large ones only": every(
                [(0, min(lines, key=lambda name: lines[name][1]))]
            ),
            "with sizes upside down: lines cross at a difference in seconds, divided by one in seconds per byte": every(
                [first, *((1 / at, name) for at, name in right[1:])]
            ),
            "without the first entry, at size 0": every(right[1:]),
            "in the wrong order: sizes rise": every(right[::-1]),
            "the names alone: an entry has the size from which on, and the name": every([name for _, name in right]),
            "the sizes alone: an entry has the size from which on, and the name": every([at for at, _ in right]),
            "name and size exchanged: (bytes, name)": every([(name, at) for at, name in right]),
            "a table in which sizes are rounded, or tried one by one: compute where two lines cross": every(
                [(float(round(at)), name) for at, name in right]
            ),
        },
        seen=f"for {len(lines)} lines you returned",
    )


two_lines = vary(
    visible.two_lines,
    values=[
        (12, 8, (5e-5, 1e-10), (3e-4, 4e-11), 0.15),
        (12, 5, (20e-6, 1e-9), (90e-6, 2e-10), 0.15),
        (7, 3, (5e-6, 1e-9), (1e-4, 1e-11), 0.01),
        (8, 5, (1e-5, 1e-9), (1e-3, 1e-10), 0.0),
    ],
)


# ---- part 6


@oracle(
    values=[
        (1_000_003, 4, 67e12, 1e-5, 25e9, 5),
        (540_000_000_000, 2, 275e12, 1e-6, 70e9, 2),
        (1000, 4, 1e12, 5e-5, 1e9, 16),
        (7_000_000, 2, 989e12, 3e-6, 450e9, 1),
    ]
)
def critical_batch(
    _: Draws, parameters: int, itemsize: int, peak: float, alpha: float, bandwidth: float, ranks: int
) -> Case:
    nbytes, rounds = parameters * itemsize, 2 * (ranks - 1)

    def tokens(seconds: float, flop: int = 4) -> float:
        return seconds * peak / (flop * parameters)

    exact = tokens(rounds * (alpha + nbytes / ranks / bandwidth))
    others = {
        "without the latency: each of the 2 (P - 1) messages has one": rounds * nbytes / ranks / bandwidth,
        "with a single latency: each of the 2 (P - 1) messages has one": alpha + rounds * nbytes / ranks / bandwidth,
        "with a whole tensor in each message: a chunk is a P-th of it": rounds * (alpha + nbytes / bandwidth),
        "the tokens for one phase: an all-reduce has two": rounds / 2 * (alpha + nbytes / ranks / bandwidth),
        "the tokens if gradients had one byte each": rounds * (alpha + parameters / ranks / bandwidth),
        "the tokens if gradients had two bytes each: they have `itemsize`": rounds
        * (alpha + 2 * parameters / ranks / bandwidth),
        "the tokens for P rounds: a ring has P - 1 in each phase": 2 * ranks * (alpha + nbytes / ranks / bandwidth),
        "the tokens if a bandwidth of both directions counted: they leave a GPU in one": rounds
        * (alpha + nbytes / ranks / bandwidth / 2),
    }
    mistakes = {words: math.ceil(tokens(seconds)) for words, seconds in others.items()} | {
        "rounded down, or to the nearest: then backward is a little too short": math.floor(exact),
        "not rounded: tokens are whole, so round up": exact,
        "for the whole step: only backward, 4 FLOP, overlaps": math.ceil(exact * 4 / 6),
        "for 2 FLOP per parameter: backward has 4": math.ceil(exact * 2),
        "the tokens of all GPUs together: return those of one": math.ceil(exact * ranks),
    }
    return Case(
        same={
            **{"parameters": parameters, "itemsize": itemsize, "peak": peak},
            **{"alpha": alpha, "bandwidth": bandwidth, "P": ranks},
        },
        right=math.ceil(exact),
        mistakes=mistakes,
        seen=f"{parameters:,} parameters of {itemsize} bytes, {ranks} GPUs, {quantity(bandwidth, 'B/s')}: you returned",
    )


critical_batch_on_the_clock = vary(
    visible.critical_batch_on_the_clock, time=[(512, 4, Link(5e-6, 1e10)), (1500, 5, Link(1e-6, 3e10))]
)


@oracle(
    values=[
        ({4: 3.0, 16: 1.0, 32: 0.75}, "the same"),
        ({32: 3.0, 4: 2.5, 16: 2.75}, "per GPU"),
        ({1: 8.0}, "the same"),
        ({6: 5.0, 3: 9.0}, "the same"),
    ]
)
def scaling_efficiency(_: Draws, seconds: dict[int, float], work: str) -> Case:
    fewest = min(seconds)
    strong = {gpus: seconds[fewest] * fewest / (gpus * took) for gpus, took in seconds.items()}
    weak = {gpus: seconds[fewest] / took for gpus, took in seconds.items()}
    right, other = (strong, weak) if work == "the same" else (weak, strong)
    of_one = {gpus: seconds[fewest] / (gpus * took) for gpus, took in seconds.items()}
    named = "strong" if work == "the same" else "weak"
    return Case(
        same={"seconds": seconds, "work": work},
        right=every(right),
        rtol=1e-9,
        mistakes={
            "upside down: an efficiency is what would be ideal, divided by what was measured": every(
                {gpus: 1 / one for gpus, one in right.items()}
            ),
            f"the speed-up or the other kind of efficiency: this is {named} scaling": every(other),
            "relative to the first number of GPUs: compare with the smallest": every(
                {gpus: one / next(iter(right.values())) for gpus, one in right.items()}
            ),
            "relative to the longest time: compare with the smallest number of GPUs": every(
                {gpus: one * max(seconds.values()) / seconds[fewest] for gpus, one in right.items()}
            ),
            f"relative to one GPU: the smallest number here is {fewest}": every(of_one),
            "in percent: 1 is 100 %": every({gpus: 100 * one for gpus, one in right.items()}),
            "a list: return {GPUs: efficiency}": every(list(right.values())),
        },
        seen=f"{len(seconds)} numbers of GPUs, work {work!r}: you returned",
    )


# ---- part 7

BF16, FP32, INT8 = "bfloat16", "float32", "int8"
MIXED = {"parameters": BF16, "gradients": BF16, "master": FP32, "m": FP32, "v": FP32}


@oracle(
    values=[
        (17, {"v": INT8, "parameters": FP32, "gradients": FP32, "momentum": BF16}, 2, 5),
        (12, MIXED, 1, 4),
        (3, MIXED, 3, 8),
        (9, MIXED, 0, 3),
        (11, {"parameters": BF16, "sum": FP32}, 3, 1),
    ]
)
def sharded_state(_: Draws, parameters: int, recipe: dict[str, str], stage: int, ranks: int) -> Case:
    shard, down = -(-parameters // ranks), parameters // ranks

    def of(name: str) -> tuple[str, dict[str, str]]:
        starts = {"parameters": 3, "gradients": 2}.get(name, 1)
        sharded, dtype = stage >= starts, recipe[name]
        mistakes = {
            "a shard: this is sharded from stage " + str(starts) + " on": f"({shard},) {dtype}",
            "all of it: this is sharded from stage " + str(starts) + " on": f"({parameters},) {dtype}",
            "rounded down: then some numbers are on no rank": f"({down},) {dtype}",
            "padded though it is whole": f"({shard * ranks},) {dtype}",
            "one number too many": f"({down + 1},) {dtype}",
            "on two dimensions: flat tensors are wanted": f"({ranks}, {shard}) {dtype}",
        }
        mistakes |= {
            f"in the dtype of something else: its dtype is {dtype}": f"({shard if sharded else parameters},) {other}"
            for other in {BF16, FP32} - {dtype}
        }
        return f"({shard if sharded else parameters},) {dtype}", mistakes

    return Case(
        same={"parameters": parameters, "recipe": recipe, "stage": stage, "world_size": ranks},
        right={name: of(name)[0] for name in recipe},
        mistakes={name: of(name)[1] for name in recipe},
        through=visible.hold,
        seen=f"{parameters} parameters, stage {stage}, {ranks} ranks: {{part}} is",
    )


sharded_state_memory = vary(
    visible.sharded_state_memory, memory=[(9_001, MIXED, 1, 7), (500, {"gradients": FP32, "parameters": FP32}, 2, 3)]
)


@oracle(values=[(128, 3, 64, 4, False), (128, 3, 64, 4, True), (4096, 1, 8192, 64, True), (7, 5, 6, 3, False)])
def activation_bytes(_: Draws, s: int, b: int, h: int, a: int, flash: bool) -> Case:
    linear, norms = 34 * s * b * h, 16 * s * b
    scores, log_sum = 5 * a * s * s * b, 4 * a * s * b
    right = linear + norms + (log_sum if flash else scores)
    of_other = linear + norms + (scores if flash else log_sum)
    return Case(
        same={"s": s, "b": b, "h": h, "a": a, "flash": flash},
        right=right,
        mistakes={
            f"what {'stored scores' if flash else 'FlashAttention'} would keep": of_other,
            "without the mean and the deviation of LayerNorm, 16 s b": right - norms,
            "half of LayerNorm's 16 s b: there are two of them": right - norms // 2,
            f"without {'the logarithms that FlashAttention keeps' if flash else 'the scores'}": linear + norms,
            "with scores of one head: there are a of them": linear + norms + (4 * s * b if flash else 5 * s * s * b),
            "without the mask of the scores, 1 byte each": right - (0 if flash else a * s * s * b),
            "without the mask of the scores and the result of their dropout": right
            - (0 if flash else 3 * a * s * s * b),
            "with scores of one sequence: there are b of them": (
                linear + norms + (4 * a * s if flash else 5 * a * s * s)
            ),
            "with one of GELU's two tensors: its input and its output both stay": right - 8 * s * b * h,
            "without the result of the scores' dropout": right - (0 if flash else 2 * a * s * s * b),
            "without the scores that softmax returns": right - (0 if flash else 2 * a * s * s * b) - 0,
            "with a mask of the scores: FlashAttention draws it again": right + (a * s * s * b if flash else 0),
            "with the logarithms in 16 bits: they are float32": right - (log_sum // 2 if flash else 0),
            "for 1 sequence: there are b of them": right // b,
            "without the two masks of dropout behind the matrices": right - 2 * s * b * h,
        },
        seen=f"s {s}, b {b}, h {h}, a {a}, {'FlashAttention' if flash else 'stored scores'}: you returned",
    )


# ---- part 8


@oracle(
    values=[
        (2e5, 540.35e9, 118, 12288, 2048, 6144, 275e12, 0.75),
        (1.0, 1e9, 0, 0, 1, 1, 1e11, 0.0),
        (40e3, 70e9, 80, 8192, 8192, 256, 989e12, 1.0),
    ]
)
def mfu_and_hfu(
    _: Draws, rate: float, parameters: float, layers: int, width: int, sequence: int, gpus: int, peak: float, r: float
) -> Case:
    every_second, dense, attention = rate / (gpus * peak), 2 * parameters, 4 * layers * width * sequence
    forward = every_second * (dense + attention)
    mfu, hfu = 3 * forward, (3 + r) * forward

    def mistakes(passes: float, other: float) -> dict[str, float]:
        return {
            "without attention: 12 L w s FLOP per token come on top": passes * every_second * dense,
            "with the FLOP of attention forward only: backward has twice as many": every_second
            * (passes * dense + attention),
            "for one GPU: divide by the peak of all of them": passes * forward * gpus,
            "the forward pass only": forward,
            "in percent: 1 is 100 %": 100 * passes * forward,
            "the other one: MFU leaves out what is recomputed, HFU counts it": other,
            "with attention once for all layers: each layer has it": passes
            * (dense + 4 * width * sequence)
            * every_second,
            "with causal attention counted half: by convention it isn't": passes
            * (dense + attention / 2)
            * every_second,
        }

    recomputed = {
        "with the recomputed share of the whole step: only forward is computed again": mfu * (1 + r),
        "divided by what is recomputed: HFU is never below MFU": mfu / (1 + r / 3),
        "without the attention that is computed again": mfu + r * every_second * dense,
    }
    return Case(
        same={
            **{"tokens_per_second": rate, "parameters": parameters, "layers": layers, "width": width},
            **{"sequence": sequence, "gpus": gpus, "peak": peak, "recomputed": r},
        },
        right={"MFU": mfu, "HFU": hfu},
        rtol=1e-9,
        mistakes={"MFU": mistakes(3, hfu), "HFU": mistakes(3 + r, mfu) | recomputed},
        seen=f"{rate:,.0f} tokens/s, {gpus:,} GPUs, {r:g} of forward recomputed: {{part}} is",
    )


# ---- the challenge

PLANS = {(2, 32768): (2, 8, 13312), (1, 8192): (2, 4, 2048), (4, 65536): (4, 8, 39936)}  # by the lesson's formulas


def seconds_of_the_formulas_plan(machines: int, critical: int) -> float:
    seconds: float = visible.seconds_per_row_that_counts(PLANS[machines, critical], critical)
    return seconds


best_plan = vary(visible.best_plan, par=seconds_of_the_formulas_plan, score=[(1, 8192), (4, 65536)])


# ---- what the visible checks of the formulas know

COPIES = [
    (4096, 4e14),
    (2048, 64e9),
    (8192, 96e9),
    (16384, 128e9),
    (32768, 48e9),
    (65536, 40e9),
    (500_000, 12e9),
    (10**7, 10e9),
]
RECORDED = (
    vary(visible.best_plan, par=seconds_of_the_formulas_plan),
    vary(
        bandwidth_of_levels,
        values=[
            ([(n, rate / 1e9) for n, rate in COPIES], {"L1": 32768.0, "L2": 1_000_000.0, "memory": math.inf}),
            ([(20, 10.0), (50, 20.0), (60, 2.0)], {"L1": 100.0, "memory": math.inf}),
        ],
    ),
    vary(
        roofline_time,
        values=[
            (visible.GPU, "bfloat16", 4e9, 2e9),
            (visible.GPU, "float32", 4e12, 2e9),
            (visible.GPU, "float32", 0.0, 4e6),
            (visible.GPU, "bfloat16", 8e8, 2e6),
        ],
    ),
    vary(collective_costs, values=[(ALL[:-1], 6), (ALL, 8)]),
    vary(
        tuning_table,
        values=[
            ({"ring": (14.0, 1.75), "tree": (6.0, 6.0)},),
            ({"one": (1.0, 9.0), "four": (7.0, 1.0), "two": (3.0, 4.0), "three": (6.0, 3.0)},),
        ],
    ),
    vary(critical_batch, values=[(1_200_007, 8, 1e12, 5e-4, 1e10, 4), (70_000_000, 2, 989e12, 3e-6, 450e9, 8)]),
    vary(
        scaling_efficiency,
        values=[
            ({1: 8.0, 2: 5.0, 8: 2.0}, "the same"),
            ({8: 2.0, 2: 1.0, 16: 2.5}, "per GPU"),
            ({16: 3.0, 4: 6.0}, "the same"),
        ],
    ),
    vary(sharded_state, values=[(10, MIXED, stage, 4) for stage in range(4)]),
    vary(activation_bytes, values=[(24, 3, 20, 5, False), (24, 3, 20, 5, True)]),
    vary(mfu_and_hfu, values=[(1e4, 7e9, 32, 4096, 4096, 8, 989e12, 0.0), (1e3, 1e10, 10, 1000, 2000, 4, 1e14, 0.5)]),
)
