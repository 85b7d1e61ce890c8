"""The hidden tests of lesson 01: the visible checks with other inputs.

World sizes 1, 2, 3, 5 and 8; all kinds of roots; uneven and odd sizes; other dtypes; views with gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from utils.checks.marking import check
from utils.checks.runner import Runner
from utils.checks.traffic import expect_calls, expect_traffic

visible = import_module("utils.checks.01_collectives")


# ---- part 1


@check("predict-rooted")
def predict_rooted_values(run: Runner) -> None:
    for world_size, root, chunk in ((5, 3, 3), (2, 1, 1), (1, 0, 2)):
        for collective in visible.ROOTED:
            xs = visible.inputs_of(run.draws, collective, world_size, chunk, torch.int64)
            right = visible.lists(visible.rooted(collective, xs, root))
            [got] = run(1, [collective], [visible.lists(xs)], root=root).results
            visible.judge_prediction(collective, got, right, {})


@check("call-rooted")
def call_rooted_values(run: Runner) -> None:
    for world_size, root, dtype in ((5, 4, torch.int64), (3, 1, torch.bfloat16), (1, 0, torch.float32)):
        for collective in visible.ROOTED:
            xs = visible.inputs_of(run.draws, collective, world_size, 3, dtype)
            visible.judge_rooted_call(run, collective, xs, root)


# ---- part 2: (world size, root, shape, dtype)

BY_HAND = (
    (3, 1, (2, 3), torch.float64),
    (3, 0, 7, torch.bfloat16),
    (8, 3, 2, torch.int32),
    (5, 4, 1, torch.int64),
    (1, 0, 3, torch.float32),  # last: with one rank, or one number, different mistakes look the same
)


def by_hand(run: Runner, judge: Callable[..., Any]) -> None:
    for world_size, root, shape, dtype in BY_HAND:
        judge(run, run.draws.different_integers(world_size, shape, dtype, seed=3), root)


@check("broadcast-by-hand", if_stuck=visible.EACH_SIDE)
def broadcast_by_hand_values(run: Runner) -> None:
    by_hand(run, visible.judge_broadcast)


@check("gather-by-hand", if_stuck=visible.EACH_SIDE)
def gather_by_hand_values(run: Runner) -> None:
    by_hand(run, visible.judge_gather)


@check("reduce-by-hand", if_stuck=visible.EACH_SIDE)
def reduce_by_hand_values(run: Runner) -> None:
    by_hand(run, visible.judge_reduce)


@check("scatter-by-hand", if_stuck=visible.EACH_SIDE)
def scatter_by_hand_values(run: Runner) -> None:
    visible.judge_scatter(run, (3,), 0)
    visible.judge_scatter(run, (1, 4, 2), 1, torch.float64)
    visible.judge_scatter(run, (3, 1, 2, 5, 2), 4, torch.int64)
    visible.judge_scatter(run, (1,) * 8, 0, torch.bfloat16)


@check("broadcast-by-hand", judges="traffic", if_stuck=visible.EACH_SIDE)
def broadcast_by_hand_traffic(run: Runner) -> None:
    traffic_by_hand(run)


@check("gather-by-hand", judges="traffic", if_stuck=visible.EACH_SIDE)
def gather_by_hand_traffic(run: Runner) -> None:
    traffic_by_hand(run)


@check("reduce-by-hand", judges="traffic", if_stuck=visible.EACH_SIDE)
def reduce_by_hand_traffic(run: Runner) -> None:
    traffic_by_hand(run)


def traffic_by_hand(run: Runner) -> None:
    for world_size, root in ((5, 3), (1, 0)):
        answer = run(world_size, run.draws.different_integers(world_size, 5, torch.float64), root=root)
        expect_traffic(answer, messages=world_size - 1, nbytes=(world_size - 1) * 5 * 8)


@check("scatter-by-hand", judges="traffic", if_stuck=visible.EACH_SIDE)
def scatter_by_hand_traffic(run: Runner) -> None:
    for sizes, root in (((1, 3, 2, 4, 2), 3), ((2,), 0)):
        _, empty, held = visible.scatter_inputs(run.draws, sizes, root, torch.float64)
        answer = run(len(sizes), empty, held, root=root)
        expect_traffic(answer, messages=len(sizes) - 1, nbytes=(sum(sizes) - sizes[root]) * 8)


# ---- part 3


@check("predict-unrooted")
def predict_unrooted_values(run: Runner) -> None:
    for world_size, chunk in ((2, 3), (5, 1), (1, 2)):
        for collective in visible.UNROOTED:
            xs = visible.inputs_of(run.draws, collective, world_size, chunk, torch.int64)
            right = visible.lists(visible.unrooted(collective, xs))
            [got] = run(1, [collective], [visible.lists(xs)]).results
            visible.judge_prediction(collective, got, right, {})


@check("call-unrooted")
def call_unrooted_values(run: Runner) -> None:
    for world_size, dtype in ((3, torch.bfloat16), (5, torch.int64), (1, torch.float32)):
        for collective in visible.UNROOTED:
            visible.judge_unrooted_call(run, collective, visible.inputs_of(run.draws, collective, world_size, 3, dtype))


# ---- part 4


@check("all-gather-from-rooted")
def all_gather_from_rooted_values(run: Runner) -> None:
    for world_size, shape, dtype in ((3, (2, 2), torch.int64), (5, 1, torch.bfloat16), (1, 3, torch.float32)):
        visible.judge_all_gather(run, run.draws.different_integers(world_size, shape, dtype))


@check("all-gather-from-rooted", judges="traffic")
def all_gather_from_rooted_traffic(run: Runner) -> None:
    answer = run(3, run.draws.different_integers(3, 2, torch.float64))
    expect_calls(answer, ["gather", "broadcast"], [2 * 8, 3 * 2 * 8])


@check("all-reduce-from-halves")
def all_reduce_from_halves_values(run: Runner) -> None:
    for world_size, shape, dtype in (
        (5, (3, 4), torch.int64),
        (3, 4, torch.bfloat16),
        (8, 5, torch.float32),
        (3, 1, torch.float64),
        (1, 3, torch.float32),
    ):
        visible.judge_all_reduce(run, run.draws.different_integers(world_size, shape, dtype))
    visible.judge_all_reduce(run, [x.T for x in run.draws.different_integers(3, (2, 5))])


@check("all-reduce-from-halves", judges="traffic")
def all_reduce_from_halves_traffic(run: Runner) -> None:
    for world_size, numel, chunk in ((3, 7, 3), (5, 5, 1)):
        answer = run(world_size, run.draws.different_integers(world_size, numel, torch.float64))
        expect_calls(answer, ["reduce_scatter", "all_gather"], [world_size * chunk * 8, chunk * 8])


@check("distributed-transpose")
def distributed_transpose_values(run: Runner) -> None:
    for world_size, m, c, dtype in (
        (3, 4, 2, torch.float64),
        (5, 2, 1, torch.int64),
        (3, 1, 3, torch.bfloat16),
        (1, 2, 3, torch.float32),
    ):
        visible.judge_transpose(run, run.draws.different_integers(world_size, (m, world_size * c), dtype))
    visible.judge_transpose(run, [x.T for x in run.draws.different_integers(3, (6, 2))])


@check("distributed-transpose", judges="traffic")
def distributed_transpose_traffic(run: Runner) -> None:
    expect_calls(run(3, run.draws.different_integers(3, (2, 3), torch.float64)), ["all_to_all"], [6 * 8])


# ---- part 5


@check("global-statistics")
def global_statistics_values(run: Runner) -> None:
    for lengths, dtype in (((3,), torch.float32), ((5, 1, 2), torch.float64), ((1, 1, 7, 2, 3), torch.float32)):
        visible.judge_statistics(run, visible.shards_of(run.draws, lengths, dtype))
    visible.judge_statistics(run, [-x for x in visible.shards_of(run.draws, (2, 3, 1))])


@check("launch-then-wait")
def launch_then_wait_values(run: Runner) -> None:
    for world_size, sizes, dtype in (
        (1, (2, 3), torch.float32),
        (3, (1, 5, 2, 2), torch.float64),
        (5, (3,), torch.int64),
    ):
        visible.judge_launches(run, visible.lists_of_tensors(run.draws, world_size, sizes, dtype))
    visible.judge_launches(
        run, [[-x for x in tensors] for tensors in visible.lists_of_tensors(run.draws, 3, (2, 4), torch.float32)]
    )


@check("launch-then-wait", judges="traffic")
def launch_then_wait_traffic(run: Runner) -> None:
    visible.expect_launches(run(3, visible.lists_of_tensors(run.draws, 3, (2, 1, 4, 3, 1), torch.float32)), 5)


# ---- part 6


@check("all-reduce-any-view")
def all_reduce_any_view_values(run: Runner) -> None:
    for world_size, dtype in ((1, torch.float32), (3, torch.bfloat16), (5, torch.int64)):
        visible.judge_views(run, [x[1::3] for x in run.draws.different_integers(world_size, 10, dtype)])
    visible.judge_views(run, [x.T for x in run.draws.different_integers(3, (2, 3), torch.float64)])
    visible.judge_views(run, [x[:, 1, ::2] for x in run.draws.different_integers(3, (2, 3, 4))])


@check("agree-or-explain")
def agree_or_explain_values(run: Runner) -> None:
    for world_size in (1, 3):
        visible.judge_agreement(run, run.draws.different_integers(world_size, (2, 2), torch.int64))
    xs = run.draws.different_integers(3, (2, 3))
    visible.judge_disagreement(run, [xs[0], xs[1], xs[2].T], odd=[2])  # as many numbers, another shape
    visible.judge_disagreement(run, [xs[0].int(), xs[1], xs[2]], odd=[1, 2])  # rank 0 is the one that differs
    xs = run.draws.different_integers(5, 4)
    visible.judge_disagreement(run, [xs[0], xs[1].int(), xs[2], xs[3][:1], xs[4]], odd=[1, 3])
