"""The checks of lesson 04. Where the answer is a formula, the oracle is hidden.

What can be confirmed by a run is: times by the clock of virtual GPUs and links, memory by the bytes that are alive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from utils import RankError, track_memory
from utils.checks.answer import Answer, CheckFailed
from utils.checks.equality import equal_values, is_number
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, as_tuple, every, oracle, side_by_side, vary
from utils.checks.runner import simulate
from utils.checks.scores import Measure
from utils.checks.show import show
from utils.cluster.hardware import Cluster, Gpu, Link
from utils.cluster.presets import find_cluster
from utils.kit import gpu_topology, split_mlp
from utils.kit.message_rounds import Round, play
from utils.kit.slow_memory import Load, SlowMemory, unwritten
from utils.text.units import plural, quantity

ROOM = Path(__file__).parent

bandwidth_of_levels = frozen_cases(ROOM, "bandwidth-of-levels")


### BEGIN HIDDEN TESTS
LEVELS = {"L1": 1000.0, "L2": 4000.0, "L3": 10_000.0, "memory": math.inf}
FIXED = 0.25  # seconds


@oracle(
    values=[
        ([(9000, 3.0), (100, 50.0), (400, 70.0), (500, 20.0), (200, 10.0), (6000, 5.0)], LEVELS),
        ([(10**9, 2e10)], {"memory": math.inf}),
        ([(1500, 8.0), (2000, 6.0), (2001, 4.0), (5000, 3.0), (5001, 1.0), (40, math.inf), (600, 1e5)], LEVELS),
    ]
)
def hidden_bandwidth_of_levels(_: Draws, copies: list[tuple[int, float]], levels: dict[str, float]) -> Case:
    """copies: the bytes and the bytes/s of each, infinite for one that took the fixed cost alone."""
    seconds = [2 * n / rate + FIXED for n, rate in copies]
    lower, right = 0.0, dict[str, float]()
    for name, size in levels.items():
        here = [
            rate for (n, rate), t in zip(copies, seconds, strict=True) if lower < 2 * n <= size and t >= 1.1 * FIXED
        ]
        right |= {name: median(here)} if here else {}
        lower = size
    same = {"nbytes": [n for n, _ in copies], "seconds": seconds, "fixed": FIXED, "levels": levels}
    return Case(for_all=same, right=every(right), rtol=1e-9, seen="you returned")


### END HIDDEN TESTS
roofline_time = frozen_cases(ROOM, "roofline-time")


### BEGIN HIDDEN TESTS
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
def hidden_roofline_time(_: Draws, gpu: Gpu, dtype: str, flops: float, moved: float) -> Case:
    computing, moving, launch = flops / gpu.peak(dtype), moved / gpu.bandwidth, gpu.launch
    with_launch = "memory" if moving + launch > computing else "compute"
    return Case(
        for_all={"flops": flops, "moved": moved, "gpu": gpu, "dtype": dtype},
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
                f"the other one: computing takes {quantity(computing, 's')} and moving {quantity(moving, 's')}, and "
                "memory binds if moving takes longer": "compute" if moving > computing else "memory",
            },
        },
        seen=f"{quantity(flops, 'FLOP')} and {quantity(moved, 'B')} in {dtype}: {{part}} is",
    )


### END HIDDEN TESTS
collective_costs = frozen_cases(ROOM, "collective-costs")


### BEGIN HIDDEN TESTS
ALL = [
    *("flat scatter", "flat gather", "tree broadcast", "tree reduce", "ring all-gather", "ring reduce-scatter"),
    *("pairwise all-to-all", "ring all-reduce", "tree all-reduce", "halving-doubling all-reduce"),
]


@oracle(values=[(ALL, 16), (ALL[:-1], 5), (ALL, 1), (ALL[:-1], 7), (ALL, 2)])
def hidden_collective_costs(_: Draws, algorithms: list[str], ranks: int) -> Case:
    return side_by_side([costs_of(name, ranks) for name in algorithms])


def costs_of(name: str, ranks: int) -> Case:
    levels, others = (ranks - 1).bit_length(), (ranks - 1) / ranks
    kind, _, collective = name.partition(" ")
    phases = 2 if collective == "all-reduce" else 1
    adds = collective in ("reduce", "reduce-scatter", "all-reduce")
    messages = phases * (levels if kind in ("tree", "halving-doubling") else ranks - 1)
    sent: float = phases * (levels if kind == "tree" else others)
    added: float = (levels if kind == "tree" else others) if adds else 0
    in_levels = {
        "log2 P rounded down: the last ranks are left out": phases * (ranks.bit_length() - 1),
        "log2 P without rounding: rounds are whole": phases * math.log2(ranks),
        "one round too many for each phase: log2 P, rounded up, are enough": messages + phases,
    }
    in_turn: dict[str, float] = {
        "one message too many for each phase: there are P - 1 other ranks": messages + phases,
        "a single message for each phase: messages that wait for each other all count": phases,
    }
    by_tree = {
        "the whole once for each phase: a tree sends it in every round": float(phases),
    }
    by_chunks = {
        "the whole in each round: a chunk is a P-th of it": float(messages),
        "a single chunk for each phase: there are P - 1 of them": phases / ranks,
    }
    if kind == "halving-doubling":
        by_chunks["half of the whole in each round: the next one exchanges half as much"] = phases * levels / 2
    return Case(
        [[name]],
        for_all={"P": ranks},
        right={"the number of messages": messages, "what is sent": float(sent), "what is added": float(added)},
        rtol=1e-9,
        mistakes={
            "the number of messages": {
                **(in_levels if kind in ("tree", "halving-doubling") else in_turn),
                **({"half of it: an all-reduce has two phases": messages / 2} if phases == 2 else {}),
                "twice as many: a message sent and one received at the same time count once": messages * 2,
            },
            "what is sent": {
                **({"half of it: an all-reduce has two phases": sent / 2} if phases == 2 else {}),
                **(by_tree if kind == "tree" else by_chunks),
            },
            "what is added": {
                "what is sent: the rounds that only pass results on add nothing": float(sent),
                "nothing: what arrives in a reduce is added": 0.0,
                "the whole once: a tree adds it in every round": 1.0 if kind == "tree" else float(added),
                "the whole in each round: a chunk is a P-th of it": float(messages / phases),
            }
            if adds
            else {"what is sent: nothing is added here, chunks are only passed on": float(sent)},
        },
        seen=f"{name} on {ranks} ranks: {{part}} is",
    )


### END HIDDEN TESTS
tuning_table = frozen_cases(ROOM, "tuning-table")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ({"a": (1.0, 4.0), "b": (3.0, 3.0), "c": (4.0, 1.0), "d": (4.5, 0.9)},),
        ({"only": (3e-6, 1e-9)},),
        ({"z": (5.0, 1.0), "y": (1.0, 1.0), "x": (1.0, 2.0)},),
        ({"r": (2.0, 7.0), "q": (2.0, 3.0), "p": (2.0, 5.0), "o": (3.0, 2.0)},),
        ({"e": (30e-6, 1e-11), "a": (3e-6, 9e-10), "d": (12e-6, 1e-10), "b": (5e-6, 4e-10), "c": (6.5e-6, 3.9e-10)},),
    ]
)
def hidden_tuning_table(_: Draws, lines: dict[str, tuple[float, float]]) -> Case:
    right = [(0.0, min(lines, key=lambda name: lines[name]))]
    while flatter := [name for name in lines if lines[name][1] < lines[right[-1][1]][1]]:
        latency, slope = lines[right[-1][1]]
        right.append(min(((lines[name][0] - latency) / (slope - lines[name][1]), name) for name in flatter))
    return Case(
        for_all={"lines": lines},
        right=every(right),
        rtol=1e-9,
        mistakes={
            "a table in which sizes are rounded, or tried one by one: compute where two lines cross": every(
                [(float(round(at)), name) for at, name in right]
            ),
        },
        seen=f"for {len(lines)} lines you returned",
    )


### END HIDDEN TESTS
critical_batch = frozen_cases(ROOM, "critical-batch")


### BEGIN HIDDEN TESTS


Wire = tuple[float, float]  # alpha in seconds, bandwidth in bytes/s


@oracle(
    values=[
        (1_000_003, 4, 67e12, 1, 5, (1e-5, 25e9), (5e-5, 1e9)),
        (540_000_000_000, 2, 275e12, 2, 1, (1e-6, 70e9), (2e-6, 7e9)),
        (1000, 4, 1e12, 3, 16, (5e-5, 1e9), (7e-5, 3e8)),
        (7_000_000, 2, 989e12, 1, 1, (3e-6, 450e9), (1e-5, 50e9)),
        (70_000_000_000, 2, 989e12, 64, 8, (3e-6, 450e9), (1e-5, 50e9)),
    ]
)
def hidden_critical_batch(
    _: Draws, parameters: int, itemsize: int, peak: float, nodes: int, local: int, intra: Wire, inter: Wire
) -> Case:
    shard, communicating = parameters * itemsize / local, 0.0  # bytes of a GPU's part in the node's sum
    for ranks, chunk, (alpha, bandwidth) in ((local, shard, intra), (nodes, shard / nodes, inter)):
        communicating += 2 * (ranks - 1) * (alpha + chunk / bandwidth)
    exact = communicating * peak / (4 * parameters)
    return Case(
        for_all={
            **{"parameters": parameters, "itemsize": itemsize, "peak": peak},
            **{"nodes": nodes, "local": local, "intra": intra, "inter": inter},
        },
        right=math.ceil(exact),
        mistakes={
            "rounded down, or to the nearest: then backward is a little too short": math.floor(exact),
            "not rounded: tokens are whole, so round up": exact,
            **({"one token: a single GPU has nothing to send": 1} if nodes * local == 1 else {}),
        },
        seen=f"{parameters:,} parameters of {itemsize} bytes, {plural(nodes, 'node')} of {local}: you returned",
    )


### END HIDDEN TESTS
scaling_efficiency = frozen_cases(ROOM, "scaling-efficiency")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ({4: 3.0, 16: 1.0, 32: 0.75}, "the same"),
        ({32: 3.0, 4: 2.5, 16: 2.75}, "per GPU"),
        ({1: 8.0}, "the same"),
        ({6: 5.0, 3: 9.0}, "the same"),
    ]
)
def hidden_scaling_efficiency(_: Draws, seconds: dict[int, float], work: str) -> Case:
    fewest = min(seconds)
    ideal = {gpus: seconds[fewest] * (fewest / gpus if work == "the same" else 1) for gpus in seconds}
    return Case(
        for_all={"seconds": seconds, "work": work},
        right=every({gpus: ideal[gpus] / took for gpus, took in seconds.items()}),
        rtol=1e-9,
        seen=f"{len(seconds)} numbers of GPUs, work {work!r}: you returned",
    )


### END HIDDEN TESTS
activation_bytes = frozen_cases(ROOM, "activation-bytes")


### BEGIN HIDDEN TESTS


@oracle(values=[(128, 3, 64, 4, False), (128, 3, 64, 4, True), (4096, 1, 8192, 64, True), (7, 5, 6, 3, False)])
def hidden_activation_bytes(_: Draws, s: int, b: int, h: int, a: int, flash: bool) -> Case:
    scores = 4 * a * s * b if flash else 5 * a * s * s * b
    return Case(
        for_all={"s": s, "b": b, "h": h, "a": a, "flash": flash},
        right=34 * s * b * h + 16 * s * b + scores,
        seen=f"s {s}, b {b}, h {h}, a {a}, {'FlashAttention' if flash else 'stored scores'}: you returned",
    )


### END HIDDEN TESTS
mfu_and_hfu = frozen_cases(ROOM, "mfu-and-hfu")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        (2e5, 540.35e9, 118, 12288, 2048, 6144, 275e12, 0.75),
        (1.0, 1e9, 0, 0, 1, 1, 1e11, 0.0),
        (40e3, 70e9, 80, 8192, 8192, 256, 989e12, 1.0),
    ]
)
def hidden_mfu_and_hfu(
    _: Draws, rate: float, parameters: float, layers: int, width: int, sequence: int, gpus: int, peak: float, r: float
) -> Case:
    forward = rate * (2 * parameters + 4 * layers * width * sequence) / (gpus * peak)
    return Case(
        for_all={
            **{"tokens_per_second": rate, "parameters": parameters, "layers": layers, "width": width},
            **{"sequence": sequence, "gpus": gpus, "peak": peak, "recomputed": r},
        },
        right={"MFU": 3 * forward, "HFU": (3 + r) * forward},
        rtol=1e-9,
        seen=f"{rate:,.0f} tokens/s, {gpus:,} GPUs, {r:g} of forward recomputed: {{part}} is",
    )


### END HIDDEN TESTS


# ---- part 2

GPU = Gpu(flops={"bf16": 400e12, "fp32": 50e12}, memory=80e9, bandwidth=2e12, launch=3e-6)
INPUTS = {"add": 2, "matmul": 2, "relu": 1}


def operate(rank: int, world_size: int, name: str, n: int, dtype: torch.dtype) -> None:
    getattr(torch, name)(*(torch.empty(n, n, dtype=dtype) for _ in range(INPUTS[name])))


@oracle("roofline-time", time=[(torch.bfloat16, ("add", 3000), ("relu", 1000), ("matmul", 64), ("matmul", 2048))])
def roofline_on_the_clock(_: Draws, dtype: torch.dtype, *operations: tuple[str, int]) -> Case:
    """Each rank predicts an operation on (n, n) matrices. What is right, the clock of a virtual GPU says."""
    nowhere = Link(0, math.inf)
    one = Cluster("one GPU", 1, 1, gpu=GPU, intra=nowhere, inter=nowhere)
    took = [simulate(operate, 1, name, n, dtype, cluster=one).elapsed for name, n in operations]
    said = ", ".join(f"{name} {n:,}: {quantity(s, 's')}" for (name, n), s in zip(operations, took, strict=True))
    flops = [float({"add": n**2, "matmul": 2 * n**3}.get(name, 0)) for name, n in operations]
    moved = [float((INPUTS[name] + 1) * n**2 * dtype.itemsize) for name, n in operations]
    return Case(
        [flops, moved],
        for_all={"gpu": GPU, "dtype": str(dtype).removeprefix("torch.")},
        right={"seconds": took},
        rtol=1e-6,
        seen=[f"{name} of size {n:,}: you predict" for name, n in operations],
        in_order=True,
        unpack=lambda got, rank: as_tuple(got, ["seconds", "the bound"], rank),
        values_first=True,
        time=lambda _: f"the virtual GPU took what you predicted: {said}.",
    )


### BEGIN HIDDEN TESTS
hidden_roofline_on_the_clock = vary(
    roofline_on_the_clock, time=[(torch.float32, ("add", 111), ("relu", 3), ("matmul", 100), ("matmul", 1000))]
)
### END HIDDEN TESTS


# ---- part 3


@oracle(values=[(20, 16), (10, 16)], traffic=[(1000, 256)])
def fused_chain(
    draws: Draws, numel: int, room: int, dtype: torch.dtype = torch.float32, scale: float = 2.0, shift: float = 3.0
) -> Case:
    x = draws.different_integers(1, numel, dtype)[0] - 15
    right, empty = (x * scale + shift).clamp(min=0), unwritten(numel, dtype=dtype)
    whole = numel - numel % (room // 4)
    mistakes = {
        "what y held at first: store each number, and don't load what is there": empty,
        "without the last, shorter block": torch.cat([right[:whole], empty[whole:]]),
        "without the relu: numbers below 0 become 0": x * scale + shift,
        "with the shift first: scale, then shift": ((x + shift) * scale).clamp(min=0),
        "with the relu first: it comes last": x.clamp(min=0) * scale + shift,
    }
    return Case(
        [[SlowMemory({"x": x, "y": empty}, room)]],
        for_all={"numel": numel, "scale": scale, "shift": shift},
        right={"y": right, "x": x},
        mistakes={"y": mistakes},
        seen="afterwards {part} is",
        unpack=lambda got, rank: memory_of(got).arrays,
        unchanged=False,
        traffic=lambda answer: expect_moved(
            answer,
            loaded=(x.nbytes, x.nbytes, "What is already on the chip need not go back to memory and be loaded again."),
            stored=(x.nbytes, x.nbytes, "Compute all three operations before you store."),
            without=f"as three operations it would be {6 * x.nbytes:,}.",
        ),
    )


### BEGIN HIDDEN TESTS
hidden_fused_chain = vary(
    fused_chain,
    values=[
        (13, 16, torch.float64, 1 + 2**-30, -1.0),  # products that float32 can't hold
        (1, 16, torch.float32, 0.5, -1.0),
        (9, 40, torch.bfloat16, 0.5, -1.0),
        (17, 4, torch.int64, 3, 2),
        (16, 16, torch.float32, -2.0, 5.0),
    ],
    traffic=[(1001, 64), (3, 64), (64, 4)],
)
### END HIDDEN TESTS


@oracle(values=[(4, 4, 4, 2), (4, 8, 6, 2)], traffic=[(16, 16, 16, 4)])
def tiled_matmul(draws: Draws, m: int, k: int, n: int, tile: int, dtype: torch.dtype = torch.float32) -> Case:
    """Small whole numbers: every product is exact, in bfloat16 too."""
    [a], [b] = draws.different_integers(1, (m, k)), draws.different_integers(1, (k, n), seed=1)
    a, b, empty = (a % 4).to(dtype), (b % 3).to(dtype), unwritten(m, n, dtype=dtype)
    last = slice((k - 1) // tile * tile, k)
    mistakes = {
        "what c held at first: store each number, and don't load what is there": empty,
        "the last product of tiles: add them up along the inner dimension": a[:, last] @ b[last],
    }
    mistakes |= {
        f"the sum over the first {steps} places of the inner dimension, which has {k}": a[:, :steps] @ b[:steps]
        for steps in range(tile, k, tile)
    }
    if m == n == k and m % tile == 0:
        in_tiles = (m // tile, tile, m // tile, tile)  # row of tiles, row of a tile, column of tiles, column of a tile
        tiles = a.reshape(in_tiles), b.reshape(in_tiles)
        swapped = torch.einsum("IrKk, JkKc -> IrJc", *tiles).reshape(m, n)
        mistakes |= {
            "a times b transposed": a @ b.T,
            "a product element by element: use @": torch.einsum("IrKc, KrJc -> IrJc", *tiles).reshape(m, n),
            "made with the wrong tiles of b: its rows go along the inner dimension, its columns are C's": swapped,
        }
    most = a.itemsize * (m * k * math.ceil(n / tile) + k * n * math.ceil(m / tile))
    return Case(
        [[SlowMemory({"a": a, "b": b, "c": empty}, room=4 * tile * tile)]],
        for_all={"m": m, "k": k, "n": n},
        right={"c": a @ b, "a": a, "b": b},
        mistakes={"c": mistakes},
        seen="afterwards {part} is",
        unpack=lambda got, rank: memory_of(got).arrays,
        unchanged=False,
        traffic=lambda answer: expect_met(
            answer,
            (m, k, n),
            expect_moved(
                answer,
                loaded=(a.nbytes + b.nbytes, most, "Each step takes one tile of a and one of b."),
                stored=(empty.nbytes, empty.nbytes, "A tile of c stays on the chip until it is complete."),
                without=f"number by number it would be {a.itemsize * (2 * m * k * n + m * n):,}.",
            ),
        ),
    )


### BEGIN HIDDEN TESTS
hidden_tiled_matmul = vary(
    tiled_matmul,
    values=[
        (5, 7, 3, 2),
        (1, 9, 4, 4, torch.float64),
        (6, 1, 6, 3, torch.bfloat16),
        (3, 2, 3, 8, torch.int64),
        (4, 3, 5, 1),
    ],
    traffic=[(10, 7, 9, 4), (3, 3, 3, 8), (8, 20, 4, 2), (5, 5, 5, 1)],
)
### END HIDDEN TESTS


def expect_met(answer: Answer, sizes: tuple[int, int, int], said: str) -> str:
    """Raise CheckFailed unless all numbers of a and b that are multiplied were on the chip at the same time.

    What was computed from a tile, in a different dtype, say, may outlive it until `room` more numbers have been loaded.
    Returns `said`.
    """
    m, k, n = sizes
    memory, met = memory_of(answer.results[0]), torch.zeros(m, k, n, dtype=torch.bool)
    before = list(accumulate((load.numbers for load in memory.loads), initial=0))  # how many numbers came before each
    present: list[Load] = []
    for moment, load in enumerate(memory.loads):
        there = [one for one in present if one.until is None or before[moment] <= before[one.until] + memory.room]
        present = [*there, load]
        for one in there:
            tiles = {part.name: (*part.where, slice(None))[:2] for part in (one, load)}
            if tiles.keys() == {"a", "b"}:
                (rows, left), (right, columns) = tiles["a"], tiles["b"]
                inner = torch.zeros(2, k, dtype=torch.bool)
                inner[0, left] = inner[1, right] = True
                met[rows, :, columns] |= inner.all(0)[:, None]
    if not met.all():
        row, at, column = (~met).nonzero()[0].tolist()
        raise CheckFailed(
            f"a[{row}, {at}] and b[{at}, {column}] were never on the chip at the same time",
            "all that you multiply to be there together",
            "Multiply tiles while both are loaded. Numbers that you keep in variables of your own aren't on the chip.",
        )
    return said


def memory_of(got: Any) -> SlowMemory:
    if not isinstance(got, SlowMemory):
        raise CheckFailed(f"you returned {show(got)}", "the memory")
    return got


def expect_moved(answer: Answer, without: str, **moved: tuple[int, int, str]) -> str:
    """Raise CheckFailed unless so many bytes were loaded and stored: (at least, at most, words for too many)."""
    memory = memory_of(answer.results[0])
    for verb, (least, most, too_many) in moved.items():
        got = getattr(memory, verb)
        if not least <= got <= most:
            few = f"Some numbers were never {verb}: only memory.load and memory.store move what is in memory.arrays."
            wanted = f"{most:,}: each number once" if least == most else f"{least:,} to {most:,}"
            many = f"{got / most:.3g} times what is needed. {too_many}"
            raise CheckFailed(f"you {verb} {got:,} bytes", wanted, many if got > most else few)
    return f"{memory.moved:,} bytes moved; {without}"


# ---- part 4

Matrix = list[list[str]]
CUBE_MESH_EDGES = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 6), (3, 7), (4, 7), (5, 6)], "NV2"),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 3), (4, 5), (4, 6), (5, 7), (6, 7)], "NV1"),
}


def links_of(size: int, edges: dict[tuple[int, int], str], other: str = "SYS") -> Matrix:
    """The matrix in which edges[i, j], i < j, join GPUs, and `other` those that have no edge."""
    return [["X" if i == j else edges.get((min(i, j), max(i, j)), other) for j in range(size)] for i in range(size)]


BRIDGED, PCIE = links_of(2, {(0, 1): "NV4"}), links_of(4, {(0, 2): "PIX", (1, 3): "NODE"})


@oracle(values=[(gpu_topology.recorded("two-bridged"), BRIDGED), (gpu_topology.recorded("four-pcie"), PCIE)])
def read_topology(_: Draws, text: str, matrix: Matrix) -> Case:
    gpus = len(matrix)

    def rows(got: Any, rank: int) -> dict[str, Any]:
        if not isinstance(got, list) or not all(isinstance(row, list) for row in got):
            raise CheckFailed(f"you returned {show(got)}", "a list of lists of strings")
        if len(got) != gpus:
            fewer = "A name may have two digits: GPU10." if len(got) == 10 else ""
            words = "Only rows of GPUs count: no header, no NICs, no legend." if len(got) > gpus else fewer
            raise CheckFailed(f"{gpus} GPUs: you returned {plural(len(got), 'row')}", str(gpus), words)
        return {f"row {gpu}": row for gpu, row in enumerate(got)}

    def mistakes(gpu: int, right: list[str]) -> dict[str, Any]:
        return {
            "with the GPU's name in front": every([f"GPU{gpu}", *right]),
            "shifted: the first word of a line is its name": every([f"GPU{gpu}", *right[:-1]]),
            "with columns that are not GPUs but NICs or affinities": lambda row: row[:gpus] == right,
            "empty: columns may be separated by spaces; line.split() splits at any white space": (
                lambda row: row == [] and "\t" not in text
            ),
            "without the last columns: there are as many as GPUs": lambda row: row == right[: len(row)],
            "with white space around the labels": lambda row: [str(label).strip() for label in row] == right,
        }

    return Case(
        [[text]],
        right={f"row {gpu}": every(row) for gpu, row in enumerate(matrix)},
        mistakes={f"row {gpu}": mistakes(gpu, row) for gpu, row in enumerate(matrix)},
        seen=f"{gpus} GPUs: {{part}} is",
        unpack=rows,
    )


### BEGIN HIDDEN TESTS


def printed(gpus: int, edges: dict[tuple[int, int], str]) -> tuple[str, list[list[str]]]:
    """A matrix as the tool prints it, with an underlined header and a NIC; and the matrix."""
    matrix, names = links_of(gpus, edges), [f"GPU{gpu}" for gpu in range(gpus)]
    head = "\t\x1b[4m" + "\t".join([*names, "NIC0", "CPU Affinity", "NUMA Affinity"]) + "\x1b[0m"
    rows = ["\t".join([name, *row, "PIX", "0-31", "0"]) for name, row in zip(names, matrix, strict=True)]
    nic = "\t".join(["NIC0", *["PIX"] * gpus, " X "])
    legend = ["", "Legend:", "", "  X    = Self", "", "NIC Legend:", "", "  NIC0: mlx5_0", ""]
    return "\n".join([head, *rows, nic, *legend]), matrix


hidden_read_topology = vary(
    read_topology,
    values=[
        (gpu_topology.recorded("eight-nvlink"), links_of(8, {}, other="NV18")),
        (gpu_topology.recorded("eight-cube-mesh"), links_of(8, CUBE_MESH_EDGES)),
        (gpu_topology.recorded("four-pcie").replace("\t", "     "), PCIE),
        printed(1, {}),
        printed(12, {(0, 11): "PXB", (3, 4): "NV6", (10, 11): "PHB"}),
    ],
)
### END HIDDEN TESTS


# ---- part 5: collective-costs on the clock

LINK, ADDS = Link(alpha=2e-6, bandwidth=1e10), Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=6e10)
GAMMA = 3 / ADDS.bandwidth  # to add m bytes reads two chunks and writes one
HALVES = [([(0, 2), (2, 0), (1, 3), (3, 1)], 1 / 2), ([(0, 1), (1, 0), (2, 3), (3, 2)], 1 / 4)]
ROUNDS: dict[tuple[str, int], list[Round]] = {
    ("flat gather", 3): [Round([(1, 0)], 1 / 3, False), Round([(2, 0)], 1 / 3, False)],
    ("flat scatter", 3): [Round([(0, 1)], 1 / 3, False), Round([(0, 2)], 1 / 3, False)],
    ("tree broadcast", 3): [Round([(0, 1)], 1, False), Round([(0, 2)], 1, False)],
    ("tree reduce", 4): [Round([(1, 0), (3, 2)], 1, True), Round([(2, 0)], 1, True)],
    ("ring reduce-scatter", 3): [Round([(0, 1), (1, 2), (2, 0)], 1 / 3, True)] * 2,
    ("ring all-gather", 4): [Round([(0, 1), (1, 2), (2, 3), (3, 0)], 1 / 4, False)] * 3,
    ("halving-doubling all-reduce", 4): [
        *[Round(pairs, share, True) for pairs, share in HALVES],
        *[Round(pairs, share, False) for pairs, share in reversed(HALVES)],
    ],
}


@oracle(
    "collective-costs",
    time=[(("flat gather", 3), ("tree reduce", 4), ("ring reduce-scatter", 3), ("halving-doubling all-reduce", 4))],
)
def collective_costs_on_the_clock(_: Draws, *runs: tuple[str, int]) -> Case:
    """Each rank predicts an algorithm for some number of ranks. What is right, a run of its messages says."""
    nbytes = 12_000_000
    took = [
        simulate(play, ranks, ROUNDS[name, ranks], nbytes, cluster=Cluster("lab", 1, ranks, ADDS, LINK, LINK)).elapsed
        for name, ranks in runs
    ]

    def seconds(got: Any, rank: int) -> dict[str, Any]:
        costs = as_tuple(got, ["the messages", "what is sent", "what is added"], rank)
        for part, one in costs.items():
            if not is_number(one):
                raise CheckFailed(f"{runs[rank][0]}: {part} is {show(one)}", "a number")
        messages, sent, added = costs.values()
        return {"seconds": messages * LINK.alpha + nbytes * (sent / LINK.bandwidth + added * GAMMA)}

    said = ", ".join(f"{name}: {quantity(s, 's')}" for (name, _), s in zip(runs, took, strict=True))
    return Case(
        [[name for name, _ in runs], [ranks for _, ranks in runs]],
        right={"seconds": took},
        rtol=1e-9,
        seen=[f"{name} of 12 MB on {ranks} ranks: by your numbers it takes, in seconds," for name, ranks in runs],
        in_order=True,
        unpack=seconds,
        values_first=True,
        time=lambda _: f"the virtual cluster took what you predicted: {said}.",
    )


### BEGIN HIDDEN TESTS
hidden_collective_costs_on_the_clock = vary(
    collective_costs_on_the_clock,
    time=[(("tree broadcast", 3), ("ring all-gather", 4), ("flat scatter", 3), ("tree reduce", 4))],
)
### END HIDDEN TESTS


# ---- two-lines

Line = tuple[float, float]  # alpha in seconds, beta in seconds per byte


def fit(sizes: list[int], seconds: list[float]) -> Line:
    """The line through the first and the last point: a student's function gets it as `fit`, and has to use it.

    It refuses parts that are too small.
    """
    if len(sizes) < 3 or len(sizes) != len(seconds):  # a rank in grading has no CheckFailed
        given = f"fit was given {len(sizes)} sizes and {len(seconds)} times"
        raise ValueError(f"{given}: a part has three at least, and as many of both")
    beta = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    return seconds[0] - sizes[0] * beta, beta


def misses(line: Line, sizes: list[int], seconds: list[float]) -> list[float]:
    alpha, beta = line
    return [(alpha + n * beta) / t - 1 for n, t in zip(sizes, seconds, strict=True)]


DRAWS = 200  # at most, until each other way to choose the cut chooses another one


@oracle(values=[(10, 5, (20e-6, 1e-10), (90e-6, 2e-11), 0.3), (6, 3, (1e-5, 1e-9), (1e-4, 1e-10), 0.0)])
def two_lines(draws: Draws, count: int, cut: int, left: Line, right: Line, noise: float) -> Case:
    """`count` sizes, four times as large each; from size number `cut` on they follow the second line."""
    sizes, generator = [4**power * 1024 for power in range(count)], draws.generator()
    lines = [left] * cut + [right] * (count - cut)
    shaken = 1 + noise * (2 * torch.rand(DRAWS, count, generator=generator, dtype=torch.float64) - 1)
    exact = [alpha + n * beta for (alpha, beta), n in zip(lines, sizes, strict=True)]
    found = []
    for factors in shaken.tolist() if noise else [[1.0] * count]:
        seconds = [t * factor for t, factor in zip(exact, factors, strict=True)]
        others = cuts_by(sizes, seconds)
        best = others.pop(RIGHTLY)
        found.append((sum(other == best for other in others.values()), seconds))
        if found[-1][0] == 0:
            break
    return case_of_lines(sizes, min(found)[1])


### BEGIN HIDDEN TESTS
hidden_two_lines = vary(
    two_lines,
    values=[
        (12, 8, (5e-5, 1e-10), (3e-4, 4e-11), 0.15),
        (12, 5, (20e-6, 1e-9), (90e-6, 2e-10), 0.15),
        (7, 3, (5e-6, 1e-9), (1e-4, 1e-11), 0.01),
        (8, 5, (1e-5, 1e-9), (1e-3, 1e-10), 0.0),
    ],
)
### END HIDDEN TESTS


RIGHTLY = "squared relative errors"
WAYS: dict[str, tuple[Callable[[float, float], float], Callable[[list[float]], float]]] = {
    RIGHTLY: (lambda miss, _: miss**2, sum),
    "absolute errors": (lambda miss, t: (miss * t) ** 2, sum),
    "errors relative to the line": (lambda miss, _: (miss / (1 + miss)) ** 2, sum),
    "relative errors that aren't squared": (lambda miss, _: abs(miss), sum),
    "its largest error": (lambda miss, _: abs(miss), max),
    "errors that cancel": (lambda miss, _: miss, sum),
}


Cut = tuple[int, Line, Line]  # the first size of the second part, and the two lines


def cut_at(sizes: list[int], seconds: list[float], at: int, shared: int = 0) -> Cut:
    """shared: how many sizes from the cut on belong to the first part, too."""
    return sizes[at], fit(sizes[: at + shared], seconds[: at + shared]), fit(sizes[at:], seconds[at:])


def cuts_by(sizes: list[int], seconds: list[float], shared: int = 0) -> dict[str, Cut]:
    """{words: the cut that is chosen so}. WAYS are of (relative error, seconds) of each size, and of all of them."""
    cuts = {at: cut_at(sizes, seconds, at, shared) for at in range(3, len(sizes) - 2)}
    errors = {
        at: misses(below, sizes[:at], seconds[:at]) + misses(above, sizes[at:], seconds[at:])
        for at, (_, below, above) in cuts.items()
    }
    found = dict[str, Cut]()
    for words, (error, of_all) in WAYS.items():
        totals = {
            at: of_all([error(miss, t) for miss, t in zip(each, seconds, strict=True)]) for at, each in errors.items()
        }
        found[words] = cuts[min(totals, key=totals.__getitem__)]
    return found


def squares(sizes: list[int], seconds: list[float], cut: Cut) -> float:
    """The sum of squared relative errors."""
    at = sizes.index(cut[0])
    parts = misses(cut[1], sizes[:at], seconds[:at]) + misses(cut[2], sizes[at:], seconds[at:])
    return sum(miss**2 for miss in parts)


def case_of_lines(sizes: list[int], seconds: list[float]) -> Case:
    cuts, one = cuts_by(sizes, seconds), fit(sizes, seconds)
    first, below, above = right = cuts.pop(RIGHTLY)
    at = sizes.index(first)
    lines = [
        one,
        *(line for n in range(3, len(sizes) - 2) for k in (0, 1) for line in cut_at(sizes, seconds, n, k)[1:]),
    ]

    def fits_otherwise(got: Any) -> bool:
        if not isinstance(got, tuple | list) or len(got) != 3:
            return False
        return not any(equal_values(mine, line, 1e-9) for mine in got[1:] for line in lines)

    def seen_of(cut: Cut) -> str:
        """What can be said of another cut for sure, and not how it came about."""
        yours, best = (squares(sizes, seconds, one) for one in (cut, right))
        ways = [words for words, chosen in cuts.items() if chosen == cut]
        said = f"a cut whose squared relative errors add up to {yours:.3g}; the smallest sum is {best:.3g}"
        return f"{said}. It is the best by {' or by '.join(ways)}" if 0 < len(ways) < 3 else said

    others = [cut_at(sizes, seconds, n) for n in range(3, len(sizes) - 2)]
    mistakes = {
        "the two lines in the wrong order": (first, above, below),
        "the last size of the first part: return the first one of the second": (sizes[at - 1], below, above),
        "the place of the cut: return the size in bytes": (at, below, above),
        "one line for all sizes": (first, one, one),
        "made with lines that share a size: the second part begins after the first": (
            cuts_by(sizes, seconds, shared=1)[RIGHTLY]
        ),
        **{seen_of(cut): cut for cut in others if cut != right},
        "not what the `fit` that you are given says of these parts": fits_otherwise,
    }
    return Case(
        for_all={"sizes": sizes, "seconds": seconds, "fit": fit},
        right={"the first size of the second part": first, "the first line": below, "the second line": above},
        rtol=1e-9,
        mistakes={"": mistakes},
        seen=f"{len(sizes)} sizes: {{part}} is",
        advice={"is an empty sequence|is empty": "No cut was tried: with six sizes there is one, at place 3."},
    )


# ---- part 6: critical-batch on the clock


def backward_beside(rank: int, world_size: int, dim: int, tokens: int) -> float:
    """Backward through one layer during an all-reduce of its gradient; returns seconds that are waited for."""
    weight, gradient, x = torch.empty(dim, dim), torch.empty(dim, dim), torch.empty(tokens, dim)
    handle = dist.all_reduce(gradient, async_op=True)
    _ = x @ weight, x.T @ x  # as many FLOP as the gradients of x and of the weight
    computed = time.perf_counter()
    handle.wait()
    return time.perf_counter() - computed


@oracle("critical-batch", time=[(2000, 1, 3, Link(2e-6, 2e10)), (1000, 3, 2, Link(1.37e-6, 5e10))])
def critical_batch_on_the_clock(_: Draws, dim: int, nodes: int, local: int, link: Link) -> Case:
    gpu, slow = Gpu(flops={"fp32": 2e13}, memory=math.inf, bandwidth=math.inf), Link(3 * link.alpha, link.bandwidth / 4)
    lab = Cluster("lab", nodes, local, gpu, link, slow)

    def waits(tokens: int) -> float:
        return float(max(simulate(backward_beside, nodes * local, dim, tokens, cluster=lab).results))

    def expect_no_waiting(answer: Answer) -> str:
        tokens = answer.results[0]
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens < 10**7:
            raise CheckFailed(f"you returned {show(tokens)}", "a whole number of tokens", "Round up: math.ceil(...).")
        waited, with_less = waits(tokens), waits(tokens - 1)
        if waited > 1e-12:
            raise CheckFailed(
                f"with {tokens:,} tokens each GPU waits {quantity(waited, 's')} for the all-reduce",
                "no waiting",
                "With one token more nobody waits: round up." if waits(tokens + 1) <= 1e-12 else "",
            )
        if with_less <= 1e-12:
            raise CheckFailed(
                f"with {tokens - 1:,} tokens nobody waits either; you returned {tokens:,}", "the smallest"
            )
        return f"with {tokens:,} tokens no GPU waits, with {tokens - 1:,} each waits {quantity(with_less, 's')}."

    return Case(
        for_all={
            **{"parameters": dim * dim, "itemsize": 4, "peak": gpu.peak("float32"), "nodes": nodes, "local": local},
            **{name: (one.alpha, one.bandwidth) for name, one in (("intra", link), ("inter", slow))},
        },
        time=expect_no_waiting,
    )


### BEGIN HIDDEN TESTS
hidden_critical_batch_on_the_clock = vary(
    critical_batch_on_the_clock, time=[(512, 1, 4, Link(5e-6, 1e10)), (1500, 2, 4, Link(1e-6, 3e10))]
)
### END HIDDEN TESTS


# ---- part 7: sharded-state

BYTES = "bytes of what is returned"


def hold(function: Callable[..., Any], recipe: dict[str, str], **given: Any) -> dict[str, Any]:
    """What a rank holds, {name: its shape and dtype}, and the bytes of all of it."""
    dtypes = {name: getattr(torch, dtype) for name, dtype in recipe.items()}
    with track_memory():
        state = function(recipe=dtypes, **given)
        if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
            return {"it": repr(state)[:100]}
        shapes = {name: f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for name, one in state.items()}
        return {**shapes, BYTES: sum(one.nbytes for one in state.values())}


sharded_state = frozen_cases(ROOM, "sharded-state", driver=hold)


### BEGIN HIDDEN TESTS
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
def hidden_sharded_state(_: Draws, parameters: int, recipe: dict[str, str], stage: int, ranks: int) -> Case:
    shard, down = -(-parameters // ranks), parameters // ranks

    def of(name: str) -> tuple[str, dict[str, str]]:
        starts = {"parameters": 3, "gradients": 2}.get(name, 1)
        sharded, dtype = stage >= starts, recipe[name]
        mistakes = {
            f"all of it: this is sharded from stage {starts} on": f"({parameters},) {dtype}",
            "rounded down: then some numbers are on no rank": f"({down},) {dtype}",
            "one number too many": f"({down + 1},) {dtype}",
            "on two dimensions: flat tensors are wanted": f"({ranks}, {shard}) {dtype}",
        }
        if not sharded:
            mistakes = {
                f"a shard: this is sharded from stage {starts} on": f"({shard},) {dtype}",
                "padded though it is whole": f"({shard * ranks},) {dtype}",
            }
        mistakes |= {
            f"in the dtype of something else: its dtype is {dtype}": f"({shard if sharded else parameters},) {other}"
            for other in {BF16, FP32} - {dtype}
        }
        return f"({shard if sharded else parameters},) {dtype}", mistakes

    return Case(
        for_all={"parameters": parameters, "recipe": recipe, "stage": stage, "world_size": ranks},
        right={name: of(name)[0] for name in recipe},
        mistakes={name: of(name)[1] for name in recipe},
        driver=hold,
        seen=f"{parameters} parameters, stage {stage}, {ranks} ranks: {{part}} is",
    )


### END HIDDEN TESTS


@oracle("sharded-state", memory=[(1_000_000, {"parameters": "bfloat16", "m": "float32"}, 3, 8)])
def sharded_state_memory(_: Draws, parameters: int, recipe: dict[str, str], stage: int, ranks: int) -> Case:
    def expect_nothing_larger(answer: Answer) -> str:
        returned, peak = answer.results[0].get(BYTES), answer.run.memory().peak[0]
        if returned is None:
            raise CheckFailed(f"you returned {answer.results[0]['it']}", "a dict of tensors")
        if peak is None or peak > returned:
            raise CheckFailed(
                f"at the peak {peak:,} bytes were alive, to return {returned:,}",
                f"{returned:,}",
                "Make each tensor in its final size. A slice of a whole tensor is a view and keeps the whole alive.",
            )
        return f"{returned:,} bytes, and no more at any time."

    return Case(
        for_all={"parameters": parameters, "recipe": recipe, "stage": stage, "world_size": ranks},
        driver=hold,
        memory=expect_nothing_larger,
    )


### BEGIN HIDDEN TESTS
hidden_sharded_state_memory = vary(
    sharded_state_memory, memory=[(9_001, MIXED, 1, 7), (500, {"gradients": FP32, "parameters": FP32}, 2, 3)]
)
### END HIDDEN TESTS


# ---- the challenge

DIM, LAYERS, PER_MACHINE = 16384, 16, 8


def seconds_per_row_that_counts(plan: tuple[int, int, int], critical: int) -> float:
    """By a run of it. Raises CheckFailed if it fails: if the plan needs too much memory, say."""
    dp, tp, rows = plan
    try:
        run = simulate(split_mlp.step, dp * tp, dp, tp, rows, dim=DIM, layers=LAYERS, cluster="dgx-h100")
    except RankError as error:
        said = str(error).splitlines()[0]
        raise CheckFailed(
            f"the run of your plan {plan} fails: {said}", mistake="Does it fit into the memory?"
        ) from None
    return float(max(run.results) / rows * (1 + rows / critical))


@oracle(score=[(2, 32768)], par=frozen_par(ROOM, "best-plan"))
def best_plan(_: Draws, machines: int, critical: int) -> Case:
    gpus = PER_MACHINE * machines

    def expect_plan(answer: Answer) -> None:
        plan = answer.results[0]
        numbers = as_tuple(plan, ["dp", "tp", "rows"], 0)
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise CheckFailed(f"{name} is {show(number)}", "a whole number, 1 or more")
        dp, tp, rows = numbers.values()
        if dp * tp > gpus:
            raise CheckFailed(f"dp {dp} times tp {tp} is {dp * tp} GPUs", f"{gpus} at most")
        if tp & (tp - 1):
            raise CheckFailed(f"tp is {tp}", "a power of two")
        if rows % dp:
            raise CheckFailed(
                f"{rows:,} rows for {dp} groups", "a multiple of dp", "Each group has the same number of rows."
            )

    return Case(
        for_all={"machines": machines, "critical": critical},
        also=expect_plan,
        score=Measure(
            lambda answer: seconds_per_row_that_counts(tuple(answer.results[0]), critical), "s", "per row that counts"
        ),
        limit=6 * LAYERS * DIM**2 / (gpus * find_cluster("dgx-h100", gpus).gpu.peak("bfloat16")),
    )


### BEGIN HIDDEN TESTS
PLANS = {(2, 32768): (4, 4, 19456), (1, 8192): (2, 4, 2048), (4, 65536): (8, 4, 56320)}  # by the lesson's formulas


def seconds_of_the_formulas_plan(machines: int, critical: int) -> float:
    seconds: float = seconds_per_row_that_counts(PLANS[machines, critical], critical)
    return seconds


hidden_best_plan = vary(best_plan, par=seconds_of_the_formulas_plan, score=[(1, 8192), (4, 65536)])
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
FROZEN = (
    vary(best_plan, par=seconds_of_the_formulas_plan),
    vary(
        hidden_bandwidth_of_levels,
        values=[
            ([(n, rate / 1e9) for n, rate in COPIES], {"L1": 32768.0, "L2": 1_000_000.0, "memory": math.inf}),
            ([(20, 10.0), (24, 240.0), (50, 20.0), (60, 2.0)], {"L1": 100.0, "memory": math.inf}),
        ],
    ),
    vary(
        hidden_roofline_time,
        values=[
            (GPU, "bfloat16", 4e9, 2e9),
            (GPU, "float32", 4e12, 2e9),
            (GPU, "float32", 0.0, 4e6),
            (GPU, "bfloat16", 8e8, 2e6),
        ],
    ),
    vary(hidden_collective_costs, values=[(ALL[:-1], 6), (ALL, 8)]),
    vary(
        hidden_tuning_table,
        values=[
            ({"ring": (14.0, 1.75), "tree": (6.0, 6.0)},),
            ({"one": (1.0, 9.0), "four": (7.0, 1.0), "two": (3.0, 4.0), "three": (6.0, 3.0)},),
            ({"steep": (2.0, 5.0), "flat": (2.0, 3.0), "late": (4.0, 1.0)},),
        ],
    ),
    vary(
        hidden_critical_batch,
        values=[
            (70_000_001, 8, 989e12, 4, 8, (3e-6, 450e9), (1.3e-5, 50e9)),
            (1_200_007, 2, 1e12, 1, 4, (5e-4, 1e10), (2e-3, 1e9)),
        ],
    ),
    vary(
        hidden_scaling_efficiency,
        values=[
            ({1: 8.0, 2: 5.0, 8: 2.0}, "the same"),
            ({8: 2.0, 2: 1.0, 16: 2.5}, "per GPU"),
            ({16: 3.0, 4: 6.0}, "the same"),
        ],
    ),
    vary(hidden_sharded_state, values=[(10, MIXED, stage, 4) for stage in range(4)]),
    vary(hidden_activation_bytes, values=[(23, 3, 20, 5, False), (23, 3, 20, 5, True)]),
    vary(
        hidden_mfu_and_hfu,
        values=[(1e4, 7e9, 32, 4096, 4096, 8, 989e12, 0.0), (1e3, 1e10, 10, 1000, 2000, 4, 1e14, 0.5)],
    ),
)
### END HIDDEN TESTS
