"""The hidden tests of lesson 05: the visible checks, with other values.

World sizes 1, 3, 4 and 5; other models, seeds and shards; buckets of other sizes; other orders; slower networks.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import nn

from utils.checks.marking import check
from utils.checks.runner import Runner

visible = import_module("utils.checks.05_data_parallelism")


# ---- part 1


@check("shard-the-batch")
def shard_the_batch_values(run: Runner) -> None:
    for world_size, rows in ((3, 11), (5, 3), (1, 4), (4, 0)):
        visible.judge_shards(run, world_size, torch.arange(rows * 3).reshape(rows, 3))


@check("average-gradients", if_stuck="every rank must make the same all-reduces, in the same order.")
def average_gradients_values(run: Runner) -> None:
    visible.judge_average(run, visible.mixed_models(5, seed=3), visible.rows_of(run.draws, [1] * 5, seed=4))
    visible.judge_average(run, visible.mlps(1), visible.rows_of(run.draws, [3]))


@check("average-gradients", judges="traffic")
def average_gradients_traffic(run: Runner) -> None:
    models = visible.mlps(3, layers=5)
    visible.expect_all_reduces(run(3, models, visible.rows_of(run.draws, [2] * 3)), visible.bytes_of(models[0]))


@check("broadcast-weights", if_stuck="every rank must broadcast the same tensors, in the same order, from rank 0.")
def broadcast_weights_values(run: Runner) -> None:
    visible.judge_broadcast(run, visible.different_models(4, features=5))
    visible.judge_broadcast(run, [frozen(model) for model in visible.different_models(2)])
    visible.judge_broadcast(run, visible.different_models(1))


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


@check("broadcast-weights", judges="traffic")
def broadcast_weights_traffic(run: Runner) -> None:
    visible.expect_broadcasts(
        run(3, visible.different_models(3, features=4)), visible.different_models(1, features=4)[0]
    )


# ---- part 2


@check("weigh-uneven-shards", if_stuck="every rank must make the same all-reduces, of the same shapes.")
def weigh_uneven_shards_values(run: Runner) -> None:
    visible.judge_uneven(run, [5, 1, 1, 2], visible.mixed_models(4, seed=1))
    visible.judge_uneven(run, [2, 2, 2])
    visible.judge_uneven(run, [3])


@check("accumulate-gradients", if_stuck="every rank must make the same all-reduces, in the same order.")
def accumulate_gradients_values(run: Runner) -> None:
    visible.judge_accumulation(run, visible.mixed_models(3), visible.microbatches_of(run.draws, 3, 4, rows=1))
    visible.judge_accumulation(run, visible.mlps(2), visible.microbatches_of(run.draws, 2, 1))
    visible.judge_accumulation(run, visible.mlps(1), visible.microbatches_of(run.draws, 1, 2))


@check("accumulate-gradients", judges="traffic")
def accumulate_gradients_traffic(run: Runner) -> None:
    models = visible.mixed_models(3)
    visible.expect_reduced_once(run(3, models, visible.microbatches_of(run.draws, 3, 5)), models[0])


@check("epoch-indices")
def epoch_indices_values(run: Runner) -> None:
    visible.judge_epochs(run, 3, 40, seed=5)
    for world_size, num_samples in ((5, 2), (1, 7), (4, 9)):
        visible.judge_cover(run(world_size, num_samples=num_samples, epoch=2, seed=9).results, num_samples)


# ---- part 3


@check("flat-gradients", if_stuck="every rank must make one all-reduce, with a tensor of the same size.")
def flat_gradients_values(run: Runner) -> None:
    visible.judge_average(run, visible.mlps(4, layers=3), visible.rows_of(run.draws, [1] * 4))
    visible.judge_average(run, visible.mixed_models(1, seed=2), visible.rows_of(run.draws, [2]))


@check("flat-gradients", judges="traffic")
def flat_gradients_traffic(run: Runner) -> None:
    models = visible.mlps(3, layers=4)
    visible.expect_all_reduces(run(3, models, visible.rows_of(run.draws, [2] * 3)), [sum(visible.bytes_of(models[0]))])


# ---- part 4


@check("make-buckets")
def make_buckets_values(run: Runner) -> None:
    for sizes, cap in (
        ([5], 10),
        ([100, 1, 100], 10),
        ([4, 4, 4, 4, 4, 4, 4], 12),
        ([7, 3, 5, 5, 1, 9, 10, 11, 2], 10),
        ([1, 2, 3], 100),
        ([], 8),
    ):
        visible.judge_buckets(run, sizes, cap)


@check("bucketed-gradients", if_stuck="every rank must start the same all-reduces in the same order.")
def bucketed_gradients_values(run: Runner) -> None:
    buckets = [[4], [3, 2, 1], [0]]
    visible.judge_average(run, visible.mlps(4, layers=5), visible.rows_of(run.draws, [1] * 4), buckets=buckets)
    visible.judge_average(run, visible.mixed_models(2), visible.rows_of(run.draws, [2, 2]), buckets=[[3, 2, 1, 0]])
    visible.judge_average(run, visible.mixed_models(1), visible.rows_of(run.draws, [2]), buckets=visible.IN_BUCKETS)


@check("bucketed-gradients", judges="traffic")
def bucketed_gradients_traffic(run: Runner) -> None:
    models, buckets = visible.mixed_models(3), [[3, 2], [1], [0]]
    answer = run(3, models, visible.rows_of(run.draws, [2] * 3), buckets=buckets)
    visible.expect_bucket_calls(answer, models[0], buckets)


@check("communication-end")
def communication_end_values(run: Runner) -> None:
    for ready, took in (
        ([2.0], [0.5]),
        ([1.0, 1.5, 6.0, 6.5], [3.0, 3.0, 0.5, 2.0]),
        ([3.0, 2.0, 4.0], [0.25, 0.5, 0.25]),  # not ready in the order in which they are sent
        ([0.5, 1.0, 1.5], [0.0, 4.0, 0.0]),
    ):
        visible.judge_end(run, ready, took)


@check("overlap-by-hooks", if_stuck=visible.SAME_ORDER)
def overlap_by_hooks_values(run: Runner) -> None:
    with visible.naming_the_wrong_hook():
        visible.judge_orders(run, [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
        visible.judge_orders(run, [[0, 1, 2], [2, 1, 0]], buckets=[[4, 2], [3], [1, 0]])
        visible.judge_average(run, visible.mixed_models(1), visible.rows_of(run.draws, [2]), buckets=visible.IN_BUCKETS)
        visible.judge_average(run, visible.mlps(5, layers=3), visible.rows_of(run.draws, [1] * 5), buckets=[[2, 1, 0]])


@check("overlap-by-hooks", judges="traffic", if_stuck=visible.SAME_ORDER)
def overlap_by_hooks_traffic(run: Runner) -> None:
    with visible.naming_the_wrong_hook():
        models, buckets, cluster, _ = visible.overlap_case(3, 5, [[4, 3], [2], [1], [0]])
        shards = visible.rows_of(run.draws, [2] * 3)
        answer = run.virtual(3, models, shards, buckets=buckets, cluster=cluster, device="cpu")
    visible.expect_starts_in_backward(answer, models[0], buckets)


@check("overlap-by-hooks", judges="time", if_stuck=visible.SAME_ORDER)
def overlap_by_hooks_time(run: Runner) -> None:
    visible.judge_overlap(run, 4, 6, [[5, 4], [3, 2], [1], [0]], latency=0.05, transfer=2.5)
    visible.judge_overlap(run, 2, 3, [[2, 1, 0]])
    visible.judge_overlap(run, 2, 6, [[5, 4, 3], [2], [1], [0]])
    visible.judge_overlap(run, 2, 5, [[4], [3], [2], [1], [0]], transfer=4.0)


# ---- part 5


@check("average-what-is-used", if_stuck="all ranks must first agree on which parameters have been used anywhere.")
def average_what_is_used_values(run: Runner) -> None:
    visible.judge_used(run, [[3], [0, 1], [1], [3, 1]], branches=5)
    visible.judge_used(run, [[], [0], []], branches=2, freeze=False)
    visible.judge_used(run, [[1]], branches=2)


# ---- part 6


@check("normalise-globally", if_stuck="every rank must make the same all-reduces, of the same shapes.")
def normalise_globally_values(run: Runner) -> None:
    visible.judge_normalise(run, visible.rows_of(run.draws, [1, 5, 2], dim=2, seed=3), eps=1e-5)
    visible.judge_normalise(run, visible.rows_of(run.draws, [2, 2, 2, 1, 1], dim=4, seed=4))
    visible.judge_normalise(run, visible.rows_of(run.draws, [4], dim=3))


@check("normalise-globally", judges="traffic")
def normalise_globally_traffic(run: Runner) -> None:
    visible.expect_small_all_reduces(run(3, visible.rows_of(run.draws, [12, 9, 30], dim=2), eps=0.1), features=2)


@check("normalise-backward", if_stuck="every rank must make the same all-reduces, of the same shapes.")
def normalise_backward_values(run: Runner) -> None:
    visible.judge_backward(run, visible.rows_of(run.draws, [1, 5, 2], dim=2, seed=3), eps=1e-5)
    visible.judge_backward(run, visible.rows_of(run.draws, [2, 2, 2, 1, 1], dim=4, seed=4))
    visible.judge_backward(run, visible.rows_of(run.draws, [4], dim=3))


@check("normalise-backward", judges="traffic")
def normalise_backward_traffic(run: Runner) -> None:
    g, x_hat, var = visible.backward_inputs(run.draws, visible.rows_of(run.draws, [12, 9, 30], dim=2), 0.1)
    visible.expect_small_all_reduces(run(3, g, x_hat, var, eps=0.1), features=2)
