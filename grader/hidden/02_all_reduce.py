"""The hidden tests of lesson 02: the visible checks with other inputs.

World sizes 1, 2, 3, 5 and 8; fewer elements than ranks, and none; other dtypes; several teams at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from utils.checks.marking import check
from utils.checks.runner import Runner

visible = import_module("utils.checks.02_all_reduce")

World = tuple[list[list[int]], int, torch.dtype]  # teams, elements, dtype
# The small ones last: with few numbers, different mistakes look the same.
WORLDS: tuple[World, ...] = (
    ([[4, 2, 0, 1, 3]], 13, torch.float64),
    ([[5, 1, 3], [0, 2, 4]], 8, torch.int32),
    ([[1, 2, 0], [3]], 10, torch.bfloat16),
    ([list(range(8))], 3, torch.float32),
    ([[1, 0]], 1, torch.float64),
    ([[2, 1, 0]], 0, torch.float32),
)
POWERS: tuple[World, ...] = (
    ([[5, 2, 7, 0, 3, 6, 1, 4]], 21, torch.float64),
    ([[3, 1, 0, 5], [4, 2]], 9, torch.int32),
    ([[1, 0]], 5, torch.bfloat16),
    ([list(range(4))], 3, torch.float32),
    ([[2, 1, 3, 0]], 0, torch.float32),
    ([[0]], 3, torch.float32),
)


def in_all_worlds(
    run: Runner, worlds: Sequence[World] = WORLDS, judge: Callable[..., Any] = visible.judge_sums, **same: Any
) -> None:
    for teams, numel, dtype in worlds:
        judge(run, teams, numel, dtype, **same)


# ---- part 1


@check("naive-all-reduce", if_stuck=visible.EACH_SIDE)
def naive_all_reduce_values(run: Runner) -> None:
    in_all_worlds(run, [world for world in WORLDS if world[1]])  # Gloo can't receive an empty tensor from any source
    visible.judge_bits(run, 5)


@check("naive-all-reduce", judges="traffic", if_stuck=visible.EACH_SIDE)
def naive_all_reduce_traffic(run: Runner) -> None:
    visible.judge_naive_traffic(run, [3, 1, 4, 0, 2], 7)
    visible.judge_naive_traffic(run, [0], 3)


@check("tree-all-reduce", if_stuck=visible.EACH_SIDE)
def tree_all_reduce_values(run: Runner) -> None:
    in_all_worlds(run)
    visible.judge_bits(run, 5)


@check("tree-all-reduce", judges="traffic", if_stuck=visible.EACH_SIDE)
def tree_all_reduce_traffic(run: Runner) -> None:
    for size in (6, 3, 1):
        visible.expect_tree(visible.judge_sums(run, visible.in_order(size), 5), size, 5 * visible.BYTES)


@check("tree-all-reduce", judges="time", if_stuck=visible.EACH_SIDE)
def tree_all_reduce_time(run: Runner) -> None:
    for size in (5, 16):
        visible.judge_tree_time(run, size)


# ---- part 2


@check("ring-reduce-scatter", if_stuck=visible.ALL_AT_ONCE)
def ring_reduce_scatter_values(run: Runner) -> None:
    in_all_worlds(run, judge=visible.judge_reduce_scatter)


@check("ring-reduce-scatter", judges="traffic", if_stuck=visible.ALL_AT_ONCE)
def ring_reduce_scatter_traffic(run: Runner) -> None:
    ring_traffic(run, visible.judge_reduce_scatter, kept=0)


@check("ring-reduce-scatter", judges="time", if_stuck=visible.ALL_AT_ONCE)
def ring_reduce_scatter_time(run: Runner) -> None:
    ring_time(run, visible.judge_reduce_scatter)


@check("ring-all-gather", if_stuck=visible.ALL_AT_ONCE)
def ring_all_gather_values(run: Runner) -> None:
    in_all_worlds(run, judge=visible.judge_all_gather)


@check("ring-all-gather", judges="traffic", if_stuck=visible.ALL_AT_ONCE)
def ring_all_gather_traffic(run: Runner) -> None:
    ring_traffic(run, visible.judge_all_gather, kept=1)


@check("ring-all-gather", judges="time", if_stuck=visible.ALL_AT_ONCE)
def ring_all_gather_time(run: Runner) -> None:
    ring_time(run, visible.judge_all_gather)


def ring_traffic(run: Runner, judge: Callable[..., Any], kept: int) -> None:
    for team, numel in (([3, 1, 4, 0, 2], 12), ([1, 0], 3), ([0], 3)):
        visible.judge_ring_traffic(judge(run, [team], numel), team, numel, kept)


def ring_time(run: Runner, judge: Callable[..., Any]) -> None:
    for size in (5, 2):
        answer = judge(run, visible.in_order(size), size * 40, world=visible.on_virtual(run, size))
        visible.expect_ring_time(answer, size, size * 40)


@check("ring-all-reduce", if_stuck=visible.EACH_SIDE)
def ring_all_reduce_values(run: Runner) -> None:
    in_all_worlds(run, **visible.BLOCKS)
    visible.judge_bits(run, 5, **visible.BLOCKS)


@check("ring-all-reduce", judges="traffic", if_stuck=visible.EACH_SIDE)
def ring_all_reduce_traffic(run: Runner) -> None:
    for size, numel in ((5, 13), (1, 4)):
        visible.judge_halves_traffic(run, size, numel)


@check("ring-all-reduce", judges="time", if_stuck=visible.EACH_SIDE)
def ring_all_reduce_time(run: Runner) -> None:
    visible.judge_halves_time(run, 5, 5 * 100)


# ---- part 3


@check("halving-doubling", if_stuck=visible.IN_PAIRS)
def halving_doubling_values(run: Runner) -> None:
    in_all_worlds(run, POWERS)


@check("halving-doubling", judges="traffic", if_stuck=visible.IN_PAIRS)
def halving_doubling_traffic(run: Runner) -> None:
    for size in (8, 2, 1):
        answer = visible.judge_sums(run, visible.in_order(size), size * 3)
        visible.judge_halving_traffic(answer, size, size * 3)


@check("halving-doubling", judges="time", if_stuck=visible.IN_PAIRS)
def halving_doubling_time(run: Runner) -> None:
    for size in (16, 4):
        answer = visible.judge_sums(run, visible.in_order(size), size * 10, world=visible.on_virtual(run, size))
        visible.expect_halving_time(answer, size, size * 10)


@check("halving-doubling-any-size", if_stuck=visible.EACH_SIDE)
def halving_doubling_any_size_values(run: Runner) -> None:
    in_all_worlds(run, **visible.FOLDED)
    visible.judge_bits(run, 3, **visible.FOLDED)


@check("halving-doubling-any-size", judges="traffic", if_stuck=visible.EACH_SIDE)
def halving_doubling_any_size_traffic(run: Runner) -> None:
    for size in (7, 3, 4, 1):
        visible.judge_fold_traffic(run, size, 8)


@check("halving-doubling-any-size", judges="time", if_stuck=visible.EACH_SIDE)
def halving_doubling_any_size_time(run: Runner) -> None:
    for size in (11, 6, 8):
        visible.judge_fold_time(run, size)


# ---- part 4


@check("hierarchical-all-reduce", if_stuck=visible.WHO_MEETS)
def hierarchical_all_reduce_values(run: Runner) -> None:
    for team, local, numel, dtype in (
        ([5, 3, 1, 4, 0, 2], 2, 11, torch.float64),
        (list(range(8)), 4, 3, torch.int32),
        ([2, 1, 0], 3, 7, torch.bfloat16),
        ([1, 2, 0], 1, 5, torch.float32),
        ([0], 1, 3, torch.float32),
    ):
        visible.judge_sums(run, [team], numel, dtype, local=local, **visible.WITH_BLOCKS)
    visible.judge_sums(run, [[0, 5, 2, 3], [4, 1]], 9, local=2, **visible.WITH_BLOCKS)


@check("hierarchical-all-reduce", judges="traffic", if_stuck=visible.WHO_MEETS)
def hierarchical_all_reduce_traffic(run: Runner) -> None:
    for nodes, local in ((3, 2), (2, 4)):
        visible.judge_levels_traffic(run, nodes, local, 24)


@check("hierarchical-all-reduce", judges="time", if_stuck=visible.WHO_MEETS)
def hierarchical_all_reduce_time(run: Runner) -> None:
    for nodes, local in ((3, 2), (4, 4)):
        visible.judge_levels_time(run, nodes, local)


# ---- part 5


@check("pairwise-all-to-all", if_stuck=visible.IN_PAIRS)
def pairwise_all_to_all_values(run: Runner) -> None:
    in_all_worlds(run, judge=visible.judge_all_to_all)


@check("pairwise-all-to-all", judges="traffic", if_stuck=visible.IN_PAIRS)
def pairwise_all_to_all_traffic(run: Runner) -> None:
    for team, numel in (([3, 1, 4, 0, 2], 13), ([0], 3)):
        visible.judge_pairs_traffic(run, team, numel)


@check("pairwise-all-to-all", judges="time", if_stuck=visible.IN_PAIRS)
def pairwise_all_to_all_time(run: Runner) -> None:
    for size in (5, 8):
        visible.judge_pairs_time(run, size)


# ---- part 6


@check("all-reduce-seconds")
def all_reduce_seconds_values(run: Runner) -> None:
    for sizes, nbytes, alpha, bandwidth in (((2, 3, 5, 33, 1024), 12345, 3e-6, 25e9), ((1, 4, 7), 0, 1e-5, 1e9)):
        cases = [(name, size, nbytes) for name in visible.NAMES for size in sizes]
        visible.judge_seconds(run, cases, alpha, bandwidth)


@check("crossover")
def crossover_values(run: Runner) -> None:
    visible.judge_crossover(run, [2, 3, 5, 7, 64, 1000], alpha=3e-6, bandwidth=25e9)


def upside_down(algorithm: str, size: int, nbytes: int, alpha: float, bandwidth: float) -> float:
    """A different kind of cluster, with ties: the order of the names decides."""
    return {"naive": 1.0, "tree": 2.0, "ring": 1.0, "halving-doubling": 3.0}[algorithm] * alpha


@check("choose-algorithm")
def choose_algorithm_values(run: Runner) -> None:
    both, names = ("tree", "ring"), visible.NAMES
    cases = []
    for size in (4, 6, 64):
        crossing = visible.crossing_of(size, 2e-6, 5e9)
        cases += [(int(crossing * part), size, both) for part in (0.999, 1.001)]
    cases += [(nbytes, size, names) for nbytes in (8, 10**5, 10**8) for size in (3, 12, 32)]
    visible.judge_choices(run, cases, alpha=2e-6, bandwidth=5e9)
    visible.judge_choices(run, [(100, 4, names), (100, 4, names[::-1])], seconds=upside_down)


@check("all-reduce")
def all_reduce_values(run: Runner) -> None:
    visible.judge_shapes(run, [x[1::3] for x in run.draws.different_integers(4, 40, torch.bfloat16)])
    visible.judge_shapes(run, [x[:, 1, ::2] for x in run.draws.different_integers(4, (2, 3, 4), torch.int64)])
    visible.judge_shapes(run, [x.permute(2, 0, 1) for x in run.draws.different_integers(4, (2, 3, 4))])
    visible.judge_shapes(run, [x[0] for x in run.draws.different_integers(4, 3)])


@check("all-reduce", judges="traffic")
def all_reduce_traffic(run: Runner) -> None:
    visible.judge_choice_by_bytes(run, torch.float64, (7, 8))
    visible.judge_choice_by_bytes(run, torch.bfloat16, (31, 32), stride=3)
