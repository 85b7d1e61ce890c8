"""The hidden tests of lesson 03: the visible checks, with other values.

World sizes 1, 2, 3, 5 and 8; one repeat; no warm-up; ties, unsorted and single times; other sizes and units.
"""

from __future__ import annotations

from importlib import import_module

from utils.benchmark import nccl_conventions
from utils.checks.marking import check
from utils.checks.runner import Runner
from utils.checks.traffic import expect_calls

visible = import_module("utils.checks.03_benchmarking")
Device = visible.Device


@check("time-once", if_stuck="every rank must call the barrier and the operation, once and in this order.")
def time_once_values(run: Runner) -> None:
    every = [Device(3000, queued=0.3 * (rank == 1), kernel=0.01 * rank) for rank in range(5)]
    visible.judge_time_once(run, every, "earlier work on rank 1, different new work on each rank")
    alone = [Device(50, queued=0.2, handle=True)]
    visible.judge_time_once(run, alone, "one rank, with earlier work")
    both = [Device(3000, queued=0.3 * (rank == 1), handle=True) for rank in range(2)]
    visible.judge_time_once(run, both, "a handle, and earlier work on rank 1")


@check("time-once", judges="traffic", if_stuck="every rank must call the barrier and the operation, once each.")
def time_once_traffic(run: Runner) -> None:
    answer = visible.time_devices(run, [Device(10, kernel=0.1) for _ in range(3)])
    expect_calls(answer, ["barrier", "all_reduce"])


@check("times-of-the-slowest", if_stuck="every rank must call time_one the same number of times, then all_reduce once.")
def times_of_the_slowest_values(run: Runner) -> None:
    for world_size, warmup, repeats in ((5, 0, 6), (2, 3, 1), (1, 1, 2)):
        visible.judge_slowest(run, world_size, warmup, repeats, seed=1)


@check("times-of-the-slowest", judges="traffic", if_stuck="every rank calls all_reduce once.")
def times_of_the_slowest_traffic(run: Runner) -> None:
    answer = run(3, [visible.Stopwatch(rank, 3, 0) for rank in range(3)], warmup=0, repeats=7)
    expect_calls(answer, ["all_reduce"], [7 * 8])


@check("median-and-spread")
def median_and_spread_values(run: Runner) -> None:
    visible.judge_median(run, [[3e-5], [2.0, 2.0, 2.0, 9.0], [7e-3, 1e-3], [4.0, 3.0, 2.0, 1.0, 9.0, 60.0, 5.0]])


@check("counted-bytes")
def counted_bytes_values(run: Runner) -> None:
    visible.judge_bytes(run, ["gather", "reduce_scatter", "all_gather"], [12, 24, 1000])
    visible.judge_bytes(run, ["all_gather", "scatter", "all_to_all", "reduce", "broadcast"], [40] * 5)
    visible.judge_bytes(run, ["all_gather"], [64])
    visible.judge_bytes(run, list(nccl_conventions.OPS), [800] * 8)


@check("bandwidths")
def bandwidths_values(run: Runner) -> None:
    for size in (2, 3, 5):
        visible.judge_bandwidths(run, list(nccl_conventions.OPS)[:size], 1 << 20, 3e-5)
    visible.judge_bandwidths(run, list(nccl_conventions.OPS)[3:], 12_345_678, 0.5)
    visible.judge_bandwidths(run, list(nccl_conventions.OPS), 64, 1e-3)
    visible.judge_bandwidths(run, ["all_reduce"], 4096, 1e-6)  # one rank sends nothing


@check("find-the-mistakes")
def find_the_mistakes_values(run: Runner) -> None:
    visible.judge_review(
        run,
        [
            ("all_reduce", ["GiB", "one chunk", "algbw"], 0.005),
            ("all_gather", ["GiB", "both ways"], -0.005),
            ("all_to_all", ["one chunk"], 0),
            ("gather", None, 0.03),
            ("all_reduce", ["GiB", "one chunk", "both ways", "algbw"], 0),
        ],
    )
    visible.judge_review(run, [("reduce_scatter", ["GiB"], 0.007), ("all_reduce", [], -0.007), ("broadcast", [], 0)])


@check("sweep-sizes")
def sweep_sizes_values(run: Runner) -> None:
    visible.judge_sizes(run, [(1, 100, 2, 1), (7, 7, 3, 2), (100, 5000, 3, 8), (24, 24, 10, 4), (9, 3, 2, 4)])
    visible.judge_sizes(run, [(1, 70, 2, 8)])
    visible.judge_sizes(run, [(33, 4000, 2, 4), (64, 1 << 20, 16, 2)])


@check("fit")
def fit_values(run: Runner) -> None:
    sizes = [8, 100, 3000, 50_000, 2_000_000]
    visible.judge_fit(
        run,
        [
            (sizes, visible.disturbed(1e-6, 4.5e11, sizes, 0.1)),
            (sizes[::-1], visible.disturbed(5e-5, 1e9, sizes, 0.3)[::-1]),
            ([1000, 9000], [0.001, 0.005]),
            ([1000, 8000, 64_000], [1e-6, 2e-5, 1.9e-4]),  # the best line begins below 0
        ],
    )


@check("size-for-share")
def size_for_share_values(run: Runner) -> None:
    visible.judge_share(run, [(0.9, 4e-5, 1 / 5e9), (0.99, 1e-6, 1e-11), (0.1, 3.0, 2.0), (0.5, 0.0, 1e-9)])


@check("crossover")
def crossover_values(run: Runner) -> None:
    visible.judge_crossover(
        run,
        [
            ((1.0, 0.5), (3.0, 0.25), 8.0),
            ((2e-6, 1e-9), (2e-6, 3e-9), None),  # they meet at 0
            ((1e-5, 1e-9), (1e-5, 1e-9), None),  # the same line
            ((3e-5, 4e-9), (1e-5, 1e-9), None),
            ((0.0, 2e-9), (1e-6, 1e-9), 1000.0),
        ],
    )


@check("held-out-errors")
def held_out_errors_values(run: Runner) -> None:
    visible.judge_held_out(run, [([5, 3, 9, 1, 700], [0.2, 0.2, 0.7, 0.1, 3.0])])
    visible.judge_held_out(run, [([8, 16, 16], [1.0, 2.0, 4.0]), ([1, 10, 100], [1e-6, 1e-5, 1e-4])])  # a size twice


@check(
    "recover-the-link",
    if_stuck="every rank must call seconds_of for every size, with an operation that calls all_reduce.",
)
def recover_the_link_values(run: Runner) -> None:
    visible.judge_link(run, 2, 3e-6, 2e9, [400, 40_000, 4_000_000])
    visible.judge_link(run, 3, 1e-5, 1e8, [1200, 6000, 12_000, 48_000])
    visible.judge_link(run, 8, 2e-4, 5e7, [80_000, 160_000, 320_000])
