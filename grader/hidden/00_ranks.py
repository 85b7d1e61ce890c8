"""The hidden tests of lesson 00, and the oracles of the exercises whose answer is a formula.

World sizes 1 to 5; empty lists; sizes that do not divide evenly; other dtypes; other machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from statistics import mean, median
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary
from utils.cluster import Gpu
from utils.kit import gpu_topology
from utils.text.units import quantity

visible: Any = import_module("utils.checks.00_ranks")
links_of = visible.links_of


# ---- parts 1 and 2

hello_ranks = vary(visible.hello_ranks, values=[(3,), (5,), (1,)])
rendezvous_by_hand = vary(visible.rendezvous_by_hand, values=[([3, 8, 1], 1), ([6, 2, 9, 4, 5], 3), ([7], 2)])
take_turns = vary(
    visible.take_turns,
    values=[([2, 1, 0],), ([4, 0, 2, 1, 3],), ([0],)],
    traffic=[([2, 1, 0],), ([0, 1, 2, 3, 4],), ([1, 0],), ([0],)],
)
one_failing_rank = vary(
    visible.one_failing_rank, values=[((0, 0, 3),), ((3, 0, 1, 2, 4), -30), ((2,), 0.75), ((1, 1), -0.5)]
)
one_deadlock = vary(
    visible.one_deadlock,
    values=[
        ([2.0, 3.0],),
        ([9.0, 0.5, 7.0, 0.1], [0.0, 9.0, 0.2, 0.1], [0.0, 2.5, 0.3, 8.8], [3.0] * 4, [3.0] * 4),
        ([0.5, 4.0], [0.5, 4.0], [1.0, 4.0]),
        ([1.0, 0.5, 0.25], [1.0, 0.75, 0.5]),  # exactly 1 is not below 1
    ],
)


# ---- part 3


@oracle(values=[(1e9, 80e9, 16), (405e9, 141e9, 18), (3e9, 24e9, 16), (10e9, 80e9, 2), (1e6, 1e9, 4)])
def memory_wall(_: Draws, parameters: float, memory: float, each: float) -> Case:
    state = parameters * each
    gpus = math.ceil(state / memory)
    return Case(
        same={"parameters": parameters, "gpu_memory": memory, "bytes_per_parameter": each},
        right={"the state in bytes": state, "the number of GPUs": gpus},
        rtol=1e-9,
        mistakes={
            "the state in bytes": {
                "the parameters alone": 2 * parameters,
                "in GB: return bytes": state / 1e9,
                "in GiB: return bytes": state / 2**30,
                "the number of GPUs: the bytes come first": gpus,
            },
            "the number of GPUs": {
                "rounded down: then a part fits nowhere": int(state // memory),
                "one too many: a state that fits exactly needs no extra GPU": gpus + (gpus * memory == state),
                "not a whole number of GPUs: round up": state / memory,
                "rounded to the nearest: round up, or a part fits nowhere": round(state / memory),
            },
        },
        seen=f"{parameters / 1e9:g} billion parameters, {each} bytes each, GPUs of {memory / 1e9:g} GB: {{part}} is",
    )


# ---- part 4

Average = Callable[[list[float]], float]
LEVELS = {"L1": 1000.0, "L2": 4000.0, "L3": 10_000.0, "memory": math.inf}


@oracle(
    values=[
        ([(9000, 3.0), (100, 50.0), (400, 70.0), (500, 20.0), (200, 10.0), (6000, 5.0)], LEVELS),
        ([(10**9, 2e10)], {"memory": math.inf}),
        ([(1500, 8.0), (2000, 6.0), (2001, 4.0), (5000, 3.0), (5001, 1.0)], LEVELS),
    ]
)
def bandwidth_of_levels(_: Draws, copies: list[tuple[int, float]], levels: dict[str, float]) -> Case:
    """copies: the bytes and the bytes/s of each; some touch exactly as many bytes as a level holds."""

    def rates(
        touched: float = 2, each: Callable[[float], float] = float, of_all: Average = median, first: bool = True
    ) -> dict[str, float]:
        """By level, if a copy touches `touched` times its bytes; `first`: it belongs to the first that has room."""
        lower, found = 0.0, dict[str, float]()
        for name, size in levels.items():
            inside = [each(rate) for n, rate in copies if lower < touched * n <= size]
            found |= {name: of_all(inside)} if inside else {}
            lower = size if first else 0.0
        return found

    mistakes = {
        "half of it: a copy of n bytes reads n and writes n": rates(each=lambda rate: rate / 2),
        "what you get if copies of n bytes touch n bytes: they touch 2 n, which must fit": rates(touched=1),
        "half of what you get if copies touch n bytes: they touch and move 2 n": rates(1, each=lambda rate: rate / 2),
        "what you get if a copy must leave some room: one that fills a level belongs to it": rates(touched=2 + 1e-9),
        "the mean: take the median": rates(of_all=mean),
        "the best: take the median": rates(of_all=max),
        "the time per byte: bandwidth is bytes per second": rates(each=lambda rate: 1 / rate),
        "in GB/s: return bytes/s": rates(each=lambda rate: rate / 1e9),
        "of all copies that fit: each belongs to the first level that has room, and to no other": rates(first=False),
        "a dict with levels to which no copy belongs: leave them out": dict.fromkeys(levels, 0.0) | rates(),
    }
    same = {"nbytes": [n for n, _ in copies], "seconds": [2 * n / rate for n, rate in copies], "levels": levels}
    return Case(same=same, right=every(rates()), rtol=1e-9, mistakes=mistakes, seen="you returned")


@oracle(values=[(1, 4096, 4096, 1), (7, 1, 5, 8), (1, 1, 1, 1), (3, 5, 2, 8)])
def arithmetic_intensity(_: Draws, m: int, k: int, n: int, element_size: int) -> Case:
    numbers, flops = m * k + k * n + m * n, 2 * m * k * n
    right = flops / (numbers * element_size)
    return Case(
        same={"m": m, "k": k, "n": n, "element_size": element_size},
        right=right,
        rtol=1e-9,
        mistakes={
            "FLOP per NUMBER moved: divide by bytes": flops / numbers,
            "half of it: k multiplications AND k additions for each result": right / 2,
            "without the output, which is written too": flops / (m * k + k * n) / element_size,
            "the inverse: FLOP divided by bytes": 1 / right,
        },
        seen=f"({m}, {k}) @ ({k}, {n}), {element_size} bytes per number: you returned",
    )


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
                "the shorter of the two: the longer one counts": min(computing, moving) + launch,
                "computing alone": computing + launch,
                "moving alone": moving + launch,
            },
            "the bound": {"the bound if the launch counts as moving: it counts as neither": with_launch},
        },
        seen=f"{quantity(flops, 'FLOP')} and {quantity(moved, 'B')} in {dtype}: {{part}} is",
    )


roofline_on_the_clock = vary(
    visible.roofline_on_the_clock, time=[(torch.float32, ("add", 111), ("relu", 3), ("matmul", 100), ("matmul", 1000))]
)


# ---- part 5

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


# ---- part 6


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
RING = {tuple(sorted(pair)): "PXB" for pair in [(0, 3), (3, 5), (5, 1), (1, 4), (4, 2), (2, 0)]}
best_ring = vary(
    visible.best_ring,
    values=[
        (links_of(2, {(0, 1): "PHB"}),),
        (links_of(3, {(0, 1): "NV1"}),),
        (links_of(6, RING | {(0, 1): "NV12", (2, 3): "NV12"}, other="NODE"),),
        # the wide links alone do not make a ring; the best order must use one of medium speed
        (links_of(5, {(0, 1): "NV9", (1, 2): "NV9", (2, 3): "NV9", (0, 4): "PIX", (3, 4): "PHB"}),),
    ],
)


# ---- what the visible checks of the formulas know

COPIES = [(2048, 64e9), (8192, 96e9), (16384, 128e9), (32768, 48e9), (65536, 40e9), (500_000, 12e9), (10**7, 10e9)]
RECORDED = (
    vary(memory_wall, values=[(7e9, 80e9, 16), (5e9, 80e9, 16), (70e9, 180e9, 16)]),
    vary(
        bandwidth_of_levels,
        values=[
            (COPIES, {"L1": 32768.0, "L2": 1_000_000.0, "memory": math.inf}),
            ([(20, 10.0), (50, 20.0), (60, 2.0)], {"L1": 100.0, "memory": math.inf}),
        ],
    ),
    vary(arithmetic_intensity, values=[(8, 4, 2, 2), (8, 4, 2, 4), (256, 256, 256, 2)]),
    vary(
        roofline_time,
        values=[
            (visible.GPU, "bfloat16", 4e9, 2e9),
            (visible.GPU, "float32", 4e12, 2e9),
            (visible.GPU, "float32", 0.0, 4e6),
            (visible.GPU, "bfloat16", 8e8, 2e6),
        ],
    ),
)
