"""The hidden tests of lesson 09: the visible checks, with other values.

World sizes 1, 2, 3, 5 and 8; fewer layers than ranks; one microbatch, one row; a short last microbatch; other dtypes;
other schedules.
"""

from __future__ import annotations

from importlib import import_module

import torch

from utils.checks.marking import check
from utils.checks.runner import Runner
from utils.checks.traffic import expect_each_sent, expect_only_messages

visible = import_module("utils.checks.09_pipeline_parallelism")


# ---- part 1


@check("split-layers")
def split_layers_values(run: Runner) -> None:
    for layers, ranks in ((11, 8), (13, 5), (3, 5), (7, 3), (1, 1)):
        visible.judge_split(run, layers, ranks)


@check("naive-forward", if_stuck=visible.EACH_BOUNDARY)
def naive_forward_values(run: Runner) -> None:
    for ranks, layers, rows, dtype in ((5, 6, 1, torch.float64), (2, 3, 7, torch.float32), (3, 2, 2, torch.float64)):
        visible.judge_forward(run, ranks, layers, rows, dtype)
    visible.judge_forward(run, ranks=1, layers=2, rows=3)


@check("naive-forward", judges="traffic", if_stuck=visible.EACH_BOUNDARY)
def naive_forward_traffic(run: Runner) -> None:
    for ranks in (5, 1):
        answer, nbytes = visible.judge_forward(run, ranks=ranks, layers=5, rows=2)
        expect_each_sent(answer, [1] * (ranks - 1) + [0], [nbytes] * (ranks - 1) + [0])


# ---- part 2


@check("microbatch-forward", if_stuck=visible.EACH_BOUNDARY)
def microbatch_forward_values(run: Runner) -> None:
    for ranks, layers, rows, size, dtype in (
        (5, 5, 9, 2, torch.float64),
        (3, 3, 4, 1, torch.float32),
        (2, 4, 5, 8, torch.float64),
    ):
        visible.judge_forward(run, ranks, layers, rows, dtype, micro_batch_size=size)
    visible.judge_forward(run, ranks=1, layers=2, rows=5, micro_batch_size=2)


@check("microbatch-forward", judges="time", if_stuck=visible.EACH_BOUNDARY)
def microbatch_forward_time(run: Runner) -> None:
    for ranks, microbatches, rows in ((3, 7, 2), (8, 2, 1)):
        visible.judge_streaming(run, ranks, microbatches, rows)


@check("bubble-shares")
def bubble_shares_values(run: Runner) -> None:
    for ranks, microbatches, most in ((16, 64, 0.06), (3, 1, 0.9), (5, 7, 0.013), (1, 4, 0.2), (2, 3, 0.5)):
        visible.judge_shares(run, ranks, microbatches, most)


# ---- part 3


@check("backward-across", if_stuck=visible.BACK_AND_FORTH)
def backward_across_values(run: Runner) -> None:
    for ranks, layers, rows, dtype in ((5, 7, 2, torch.float64), (2, 3, 1, torch.float32), (1, 3, 4, torch.float64)):
        visible.judge_backward(run, ranks, layers, rows, dtype)


@check("backward-across", judges="traffic", if_stuck=visible.BACK_AND_FORTH)
def backward_across_traffic(run: Runner) -> None:
    answer, nbytes = visible.judge_backward(run, ranks=3, layers=4, rows=5)
    expect_each_sent(answer, [1, 2, 1], [nbytes, 2 * nbytes, nbytes])


@check("accumulate-gradients")
def accumulate_gradients_values(run: Runner) -> None:
    for layers, rows, size, dtype in (
        (1, 7, 3, torch.float64),
        (3, 5, 5, torch.float64),
        (2, 4, 9, torch.float64),
        (2, 9, 1, torch.float32),
    ):
        visible.judge_accumulation(run, layers, rows, size, dtype)


# ---- part 4


@check("gpipe")
def gpipe_values(run: Runner) -> None:
    for ranks, microbatches in ((3, 7), (5, 2), (1, 3)):
        visible.judge_gpipe(run, ranks, microbatches)


@check("gpipe", judges="time")
def gpipe_time(run: Runner) -> None:
    for ranks, microbatches in ((8, 3), (2, 9)):
        visible.judge_bubble(visible.all_ranks(run, ranks, microbatches), microbatches)


@check("live-microbatches")
def live_microbatches_values(run: Runner) -> None:
    for text in ("F0 B0", "F0 F1 F2 B0 B1 F3 F4 B2 F5 F6 B3 B4 B5 B6", "F1 F0 B0 F2 B2 B1", "F0 F1 B1 F2 B2 B0"):
        visible.judge_live(run, visible.step_list(text))
    visible.judge_live(run, visible.step_list("F0.0 F0.1 F1.0 B0.1 F1.1 B0.0 B1.1 B1.0"))
    visible.judge_live(run, [])


@check("one-f-one-b")
def one_f_one_b_values(run: Runner) -> None:
    for ranks, microbatches in ((5, 7), (3, 3), (8, 1), (1, 4), (2, 6)):
        visible.judge_1f1b(run, ranks, microbatches)


@check("one-f-one-b", judges="memory")
def one_f_one_b_memory(run: Runner) -> None:
    for ranks, microbatches in ((5, 9), (8, 3), (1, 5), (3, 3)):
        visible.judge_live_1f1b(visible.all_ranks(run, ranks, microbatches), microbatches)


@check("one-f-one-b", judges="time")
def one_f_one_b_time(run: Runner) -> None:
    for ranks, microbatches in ((5, 9), (8, 3), (3, 3), (2, 1)):
        visible.judge_bubble(visible.all_ranks(run, ranks, microbatches), microbatches)


# ---- part 5


@check("run-schedule", if_stuck=visible.STUCK_STAGE)
def run_schedule_values(run: Runner) -> None:
    visible.judge_run(run, visible.GPIPE, layers=5, rows=11, size=3)
    visible.judge_run(run, visible.REVERSED, layers=3, rows=4, size=1, dtype=torch.float32)
    visible.judge_run(run, visible.CHUNKED, layers=6, rows=3, size=2, chunks=2)
    visible.judge_run(run, [visible.step_list("F0 B0 F1 B1")], layers=2, rows=3, size=2)
    visible.judge_run(run, [visible.step_list("F0 B0")] * 2, layers=2, rows=3, size=5)


@check("run-schedule", judges="traffic", if_stuck=visible.STUCK_STAGE)
def run_schedule_traffic(run: Runner) -> None:
    answer, nbytes = visible.judge_run(run, visible.CHUNKED, layers=4, rows=6, size=3, chunks=2)
    expect_each_sent(answer, 6, 3 * nbytes)


@check("run-schedule", judges="memory", if_stuck=visible.STUCK_STAGE)
def run_schedule_memory(run: Runner) -> None:
    visible.judge_memory(run, visible.in_pairs(ranks=4, microbatches=12), rows=24)
    visible.judge_memory(run, visible.GPIPE, rows=4)


# ---- part 6


@check("overlapped-forward", if_stuck=visible.OVERLAP_STUCK)
def overlapped_forward_values(run: Runner) -> None:
    for ranks, layers, rows, size, dtype in (
        (5, 5, 9, 2, torch.float64),
        (3, 3, 4, 1, torch.float32),
        (2, 4, 5, 8, torch.float64),
        (1, 2, 5, 2, torch.float64),
    ):
        answer, _ = visible.judge_forward(run, ranks, layers, rows, dtype, micro_batch_size=size)
        expect_only_messages(answer)


@check("overlapped-forward", judges="time", if_stuck=visible.OVERLAP_STUCK)
def overlapped_forward_time(run: Runner) -> None:
    for ranks, microbatches, rows, message in ((5, 3, 2, 1.5), (2, 8, 4, 4.0), (4, 6, 1, 0.25)):
        visible.judge_overlap(run, ranks, microbatches, rows, message)


# ---- part 7


@check("interleaved-layers")
def interleaved_layers_values(run: Runner) -> None:
    for layers, ranks, chunks in ((12, 3, 2), (30, 5, 3), (4, 2, 1), (3, 1, 3), (24, 2, 4)):
        visible.judge_interleaved_layers(run, layers, ranks, chunks)


@check("interleaved")
def interleaved_values(run: Runner) -> None:
    for ranks, microbatches, chunks in ((3, 6, 3), (5, 5, 2), (2, 8, 3)):
        visible.judge_interleaved(run, ranks, microbatches, chunks)


@check("interleaved", judges="memory")
def interleaved_memory(run: Runner) -> None:
    for ranks, microbatches, chunks in ((3, 9, 3), (2, 2, 2), (8, 16, 2)):
        visible.judge_live_interleaved(visible.all_ranks(run, ranks, microbatches, chunks), microbatches, chunks)


@check("interleaved", judges="time")
def interleaved_time(run: Runner) -> None:
    for ranks, microbatches, chunks in ((3, 6, 3), (8, 16, 2), (5, 5, 2)):
        visible.judge_bubble(visible.all_ranks(run, ranks, microbatches, chunks), microbatches, chunks)
