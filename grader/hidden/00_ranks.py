"""The hidden tests of lesson 00: the visible checks with other inputs.

World sizes 1, 3, 5 and 8; empty lists; sizes that do not divide evenly; other dtypes; other machines.
"""

from __future__ import annotations

import math
import re
from importlib import import_module

import torch

from utils.checks.marking import check
from utils.checks.runner import Runner
from utils.cluster import Gpu
from utils.kit.gpu_topology import recorded

visible = import_module("utils.checks.00_ranks")


# ---- part 1


@check("hello-ranks")
def hello_ranks_values(run: Runner) -> None:
    for world_size in (3, 5, 1):
        visible.judge_hello(run(world_size).results)


@check("rendezvous-by-hand", if_stuck=visible.MEET)
def rendezvous_by_hand_values(run: Runner) -> None:
    visible.judge_rendezvous(run, [3, 8, 1], meetings=1)
    visible.judge_rendezvous(run, [6, 2, 9, 4, 5], meetings=3)
    visible.judge_rendezvous(run, [7], meetings=2)


@check("take-turns", if_stuck=visible.TURNS)
def take_turns_values(run: Runner) -> None:
    for order in ([2, 1, 0], [4, 0, 2, 1, 3], [0]):
        visible.judge_lines(run, order)


@check("take-turns", judges="traffic", if_stuck=visible.TURNS)
def take_turns_traffic(run: Runner) -> None:
    for order in ([2, 1, 0], [0, 1, 2, 3, 4], [1, 0], [0]):
        visible.expect_barriers_between(visible.turns(run, order), order)


# ---- part 2


@check("one-failing-rank", if_stuck=visible.CALLS_ALL)
def one_failing_rank_values(run: Runner) -> None:
    for lists in ([[], [], [8, 4, 3]], [[2, -6, 1], [], [5], [7, 7], [1, 2, 3, 4]], [[3.75, 4.5]], [[-4], [4]]):
        visible.judge_average(run, lists)


@check("one-deadlock", if_stuck=visible.STOPS)
def one_deadlock_values(run: Runner) -> None:
    visible.judge_training(run, [[2.0, 3.0]])
    visible.judge_training(
        run, [[9.0, 0.5, 7.0, 0.1], [0.0, 9.0, 0.2, 0.1], [0.0, 2.5, 0.3, 8.8], [3.0] * 4, [3.0] * 4]
    )
    visible.judge_training(run, [[0.5, 4.0], [0.5, 4.0], [1.0, 4.0]])
    visible.judge_training(run, [[1.5, 1.0, 0.5], [0.5, 1.0, 0.75]])  # exactly 1 is not below 1


# ---- part 3


@check("memory-wall")
def memory_wall_values(run: Runner) -> None:
    for parameters, memory, each in (
        (1e9, 80e9, 16),
        (405e9, 141e9, 18),
        (3e9, 24e9, 16),
        (10e9, 80e9, 2),
        (1e6, 1e9, 4),
    ):
        visible.judge_wall(run, parameters, memory, each)


# ---- part 4


@check("bandwidth-of-levels")
def bandwidth_of_levels_values(run: Runner) -> None:
    levels = {"L1": 1000.0, "L2": 4000.0, "L3": 10_000.0, "memory": math.inf}
    visible.judge_levels(run, [(9000, 3.0), (100, 50.0), (400, 70.0), (500, 20.0), (200, 10.0), (6000, 5.0)], levels)
    visible.judge_levels(run, [(10**9, 2e10)], {"memory": math.inf})
    copies = [(1500, 8.0), (2000, 6.0), (2001, 4.0), (5000, 3.0), (5001, 1.0)]
    visible.judge_levels(run, copies, levels)


@check("arithmetic-intensity")
def arithmetic_intensity_values(run: Runner) -> None:
    for shape in ((1, 4096, 4096), (7, 1, 5), (1, 1, 1), (3, 5, 2)):
        for element_size in (1, 8):
            visible.judge_intensity(run, shape, element_size)


SLOW = Gpu(flops={"fp32": 1e12, "fp64": 4e11}, memory=8e9, bandwidth=1e11, launch=0.0)


@check("roofline-time")
def roofline_time_values(run: Runner) -> None:
    for flops, moved in ((1e9, 1e9), (1e12, 1e9), (1e13, 1e12), (5e9, 0.0)):
        for dtype in ("float32", "float64", "float16"):
            visible.judge_roofline(run, flops, moved, SLOW, dtype)


@check("roofline-time", judges="time")
def roofline_time_time(run: Runner) -> None:
    visible.judge_clock(run, [("add", 12_345), ("relu", 7), ("matmul", 100), ("matmul", 1000)], torch.float32)


# ---- part 5


@check("fused-chain")
def fused_chain_values(run: Runner) -> None:
    for numel, room, dtype in (
        (13, 16, torch.float64),
        (1, 16, torch.float32),
        (9, 40, torch.bfloat16),
        (17, 4, torch.int64),
    ):
        [x] = run.draws.different_integers(1, numel, dtype)
        visible.judge_chain(run, x - 15, room, *((3, 2) if dtype == torch.int64 else (0.5, -1.0)))
    visible.judge_chain(run, torch.arange(-8.0, 8.0), 16, scale=-2.0, shift=5.0)


@check("fused-chain", judges="traffic")
def fused_chain_traffic(run: Runner) -> None:
    for numel, room in ((1001, 64), (3, 64), (64, 4)):
        visible.judge_chain_traffic(run, numel, room)


@check("tiled-matmul")
def tiled_matmul_values(run: Runner) -> None:
    for m, k, n, tile, dtype in (
        (5, 7, 3, 2, torch.float32),
        (1, 9, 4, 4, torch.float64),
        (6, 1, 6, 3, torch.bfloat16),
        (3, 2, 3, 8, torch.int64),
        (4, 3, 5, 1, torch.float32),
    ):
        visible.judge_product(run, m, k, n, tile, dtype)


@check("tiled-matmul", judges="traffic")
def tiled_matmul_traffic(run: Runner) -> None:
    for m, k, n, tile in ((10, 7, 9, 4), (3, 3, 3, 8), (8, 20, 4, 2), (5, 5, 5, 1)):
        visible.judge_product_traffic(run, m, k, n, tile)


# ---- part 6


@check("read-topology")
def read_topology_values(run: Runner) -> None:
    visible.judge_topology(run, recorded("eight-nvlink"), visible.links_of(8, {}, other="NV18"))
    cube_mesh = visible.links_of(8, visible.CUBE_MESH_EDGES)
    visible.judge_topology(run, recorded("eight-cube-mesh"), cube_mesh)
    spaces = re.sub(r"\t", "     ", recorded("four-pcie"))
    visible.judge_topology(run, spaces, visible.PCIE)
    visible.judge_topology(run, printed(1, {}), [["X"]])
    edges = {(0, 11): "PXB", (3, 4): "NV6", (10, 11): "PHB"}
    visible.judge_topology(run, printed(12, edges), visible.links_of(12, edges))


def printed(gpus: int, edges: dict[tuple[int, int], str], nics: int = 1) -> str:
    """A matrix as the tool prints it, with an underlined header."""
    matrix = visible.links_of(gpus, edges)
    names = [*(f"GPU{gpu}" for gpu in range(gpus)), *(f"NIC{nic}" for nic in range(nics))]
    head = "\t\x1b[4m" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"]) + "\x1b[0m"
    rows = ["\t".join([f"GPU{gpu}", *row, *["PIX"] * nics, "0-31", "0"]) for gpu, row in enumerate(matrix)]
    rows += ["\t".join([f"NIC{nic}", *["PIX"] * gpus, *[" X "] * nics]) for nic in range(nics)]
    return "\n".join([head, *rows, "", "Legend:", "", "  X    = Self", "", "NIC Legend:", "", "  NIC0: mlx5_0", ""])


@check("best-ring")
def best_ring_values(run: Runner) -> None:
    visible.judge_ring(run, [["X", "PHB"], ["PHB", "X"]])
    visible.judge_ring(run, visible.links_of(3, {(0, 1): "NV1"}))
    path = [0, 3, 5, 1, 4, 2]
    ring = {tuple(sorted(joint)): "PXB" for joint in zip(path, [*path[1:], 0], strict=True)}
    visible.judge_ring(run, visible.links_of(6, ring | {(0, 1): "NV12", (2, 3): "NV12"}, other="NODE"))
    # the wide links alone do not make a ring; the best order must use one of medium speed
    visible.judge_ring(
        run, visible.links_of(5, {(0, 1): "NV9", (1, 2): "NV9", (2, 3): "NV9", (0, 4): "PIX", (3, 4): "PHB"})
    )
