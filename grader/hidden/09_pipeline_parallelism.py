"""The hidden tests of lesson 09: the visible checks with other values, and the oracles of what is recorded.

World sizes 1, 2, 3, 5 and 8; fewer layers than ranks; one microbatch, one row; a short last microbatch; other dtypes;
other schedules.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary

visible: Any = import_module("utils.checks.09_pipeline_parallelism")
F32 = torch.float32


# ---- which layers a rank has, and how large the bubble is


@oracle(values=[(11, 8), (13, 5), (3, 5), (7, 3), (1, 1)])
def split_layers(_: Draws, layers: int, ranks: int) -> Case:
    items = [f"layer {number}" for number in range(layers)]
    (size, more), ceil = divmod(layers, ranks), -(-layers // ranks)
    own, starts = zip(*((size + (rank < more), rank * size + min(rank, more)) for rank in range(ranks)), strict=True)
    even = [rank * layers // ranks for rank in range(ranks + 1)]

    def cut(begin: Iterable[int], lengths: Iterable[int]) -> list[list[str]]:
        return [items[first : first + length] for first, length in zip(begin, lengths, strict=True)]

    def by(step: int) -> list[int]:
        return [rank * step for rank in range(ranks)]

    mistakes = {
        "a cut into pieces of ceil(layers / P): the last ranks get less, or nothing": cut(by(ceil), [ceil] * ranks),
        "a cut into pieces of layers // P: the leftover layers belong to no rank": cut(by(size), [size] * ranks),
        "a cut with all leftover layers on the last rank: then it is slower than all others": cut(
            by(size), [size] * (ranks - 1) + [layers]
        ),
        "sizes that differ by one, but the larger ones are not on the first ranks": [
            items[first:end] for first, end in pairwise(even)
        ],
        "every P-th layer: a stage has consecutive layers": [items[rank::ranks] for rank in range(ranks)],
    }
    return Case(
        [[items] * ranks],
        right=cut(starts, own),
        mistakes=mistakes if layers >= ranks else {},  # with fewer layers, different mistakes look the same
        seen=f"{layers} layers: rank {{rank}} got",
    )


@oracle(values=[(16, 64, 0.0625), (3, 1, 0.9), (5, 7, 0.013), (1, 4, 0.2), (2, 3, 0.5)])
def bubble_shares(_: Draws, ranks: int, microbatches: int, most: float) -> Case:
    idle = ranks - 1
    total, ideal = idle / (microbatches + idle), idle / microbatches
    enough, enough_for_ideal = (next(m for m in range(1, 100_000) if idle / (m + slots) <= most) for slots in (idle, 0))
    share, ideal_share = "the share of the total time", "the share of the ideal time"
    one_fewer = "one fewer would do"
    if idle / (enough + idle) == most:
        one_fewer = (
            f"with {enough} the share is exactly `most`, which is enough. A loop must go on only while the share is "
            "larger; a formula must round up, and int(...) + 1 goes past a whole number"
        )
    smallest = "the smallest M that keeps the share of the total time at `most` or less"
    p_slots = "the share of P slots of bubble: the first microbatch fills one of them"
    return Case(
        [[ranks], [microbatches], [most]],
        right={share: total, ideal_share: ideal, smallest: enough},
        rtol=1e-9,
        seen=f"for P = {ranks}, M = {microbatches}, most = {most}: {{part}} is",
        mistakes={
            "": {"the right pair the wrong way round: the share of the total time comes first": (ideal, total, enough)},
            share: {
                "the busy share: the bubble is the rest": 1 - total,
                p_slots: ranks / (microbatches + ranks),
                "the share of M + P slots: there are M + P - 1 slots": idle / (microbatches + ranks),
                "the share of the ideal time": ideal,
                "a percentage: a share lies between 0 and 1": 100 * total,
            },
            ideal_share: {"the share of the total time": total, p_slots: ranks / microbatches},
            smallest: {
                "the smallest M for the share of the ideal time; here the total counts": enough_for_ideal,
                f"one too many: {one_fewer}": enough + 1,
                "one too few: with that number the bubble is still larger than `most`": enough - 1,
                "num_microbatches: begin with one, and add one at a time": microbatches,
            },
        },
    )


@oracle(values=[(12, 3, 2), (30, 5, 3), (4, 2, 1), (3, 1, 3), (24, 2, 4)])
def interleaved_layers(_: Draws, layers: int, ranks: int, chunks: int) -> Case:
    items, numbers, size = [f"layer {number}" for number in range(layers)], range(ranks), layers // (ranks * chunks)
    stages = visible.cut(items, [size] * ranks * chunks)
    right = [stages[rank::ranks] for rank in numbers]
    return Case(
        [[items] * ranks],
        same={"num_chunks": chunks},
        right=right,
        seen=f"{layers} layers, {chunks} chunks: rank {{rank}} got",
        mistakes={
            "contiguous: chunks next to each other give plain pipelining. Chunk c of rank r is stage c P + r": [
                stages[rank * chunks : (rank + 1) * chunks] for rank in numbers
            ],
            "the right layers in one list: return one list for each chunk": [sum(mine, []) for mine in right],
            "the stages of all ranks: return those of this rank": every(stages),
            "the chunks in reverse order": [mine[::-1] for mine in right],
            "one chunk too many: count the chunks from 0": [[*mine, []] for mine in right],
        },
    )


# ---- the challenge


def seconds_of_split_1f1b(ranks: int, microbatches: int, _: int, seconds: dict[str, float]) -> float:
    """1F1B, with each W right after its B."""
    schedule = []
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, microbatches)
        steps = [("F", m) for m in range(ahead)]
        for m in range(microbatches):
            steps += [("F", ahead + m)] * (ahead + m < microbatches) + [("B", m), ("W", m)]
        schedule.append(steps)
    end: float = visible.end_of(schedule, seconds)
    return end


split_backward = vary(
    visible.split_backward,
    par=seconds_of_split_1f1b,
    score=[
        (3, 7, 6, {"F": 1.0, "B": 1.0, "W": 1.0}),
        (8, 16, 8, {"F": 2.0, "B": 2.5, "W": 1.5}),
        (4, 2, 4, {"F": 1.0, "B": 1.5, "W": 1.0}),
    ],
)

RECORDED = (
    vary(visible.split_backward, par=seconds_of_split_1f1b),
    vary(split_layers, values=[(10, 4), (9, 4), (8, 2)]),
    vary(bubble_shares, values=[(4, 8, 0.11), (4, 4, 0.25), (8, 20, 0.5)]),
    vary(interleaved_layers, values=[(8, 4, 2), (12, 2, 3)]),
)


# ---- forward

naive_forward = vary(
    visible.naive_forward,
    values=[((2, 1, 1, 1, 1), 1), ((2, 1), 7, F32), ((1, 1, 0), 2), ((2,), 3)],
    traffic=[((1,) * 5, 2), ((5,), 2)],
)
microbatch_forward = vary(
    visible.microbatch_forward,
    values=[((1,) * 5, 9, 2), ((1,) * 3, 4, 1, F32), ((2, 2), 5, 8), ((2,), 5, 2)],
    time=[((1,) * 3, 14, 2), ((1,) * 8, 2, 1)],
)
overlapped_forward = vary(
    visible.overlapped_forward,
    values=[((1,) * 5, 9, 2), ((1,) * 3, 4, 1, 0.0, F32), ((2, 2), 5, 8), ((2,), 5, 2)],
    time=[((1,) * 5, 6, 2, 1.5), ((1,) * 2, 32, 4, 4.0), ((1,) * 4, 6, 1, 0.25)],
)


# ---- gradients

steps_of = visible.steps_of
GPIPE = [steps_of("F0 F1 F2 F3 B0 B1 B2 B3")] * 3
ALTERNATING = [
    steps_of("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 F9 B6 F10 B7 F11 B8 B9 B10 B11"),
    steps_of("F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 F8 B6 F9 B7 F10 B8 F11 B9 B10 B11"),
    steps_of("F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 F8 B7 F9 B8 F10 B9 F11 B10 B11"),
    steps_of("F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8 F9 B9 F10 B10 F11 B11"),
]
REVERSED = [steps_of("F0 F1 F2 F3 B3 B2 B1 B0")] * 3

backward_across = vary(
    visible.backward_across,
    values=[((2, 2, 1, 1, 1), 2), ((2, 1), 1, F32), ((3,), 4)],
    traffic=[((2, 1, 1), 5)],
)
accumulate_gradients = vary(
    visible.accumulate_gradients,
    values=[(1, 7, 3), (3, 5, 5), (2, 4, 9), (2, 9, 1, F32)],
    memory=[(3, 21, 3), (1, 9, 4)],
)
run_schedule = vary(
    visible.run_schedule,
    values=[
        (GPIPE, (2, 2, 1), 11, 3),
        (REVERSED, (1, 1, 1), 4, 1, F32),
        (visible.CHUNKED, (2, 1, 1, 1, 2, 1), 3, 2),
        ([steps_of("F0 B0 F1 B1")], (2,), 3, 2),
        ([steps_of("F0 B0")] * 2, (1, 1), 3, 5),
    ],
    traffic=[(visible.CHUNKED, (1,) * 6, 5, 4), (ALTERNATING, (1,) * 4, 24, 2)],
    memory=[(ALTERNATING, (2,) * 4, 24, 2), (GPIPE, (2,) * 3, 4, 1)],
)


# ---- schedules

live_microbatches = vary(
    visible.live_microbatches,
    values=[
        ("F0 B0",),
        ("F0 F1 F2 F3 F4 B0 B1 B2 B3 B4",),
        ("F0 F1 F2 B0 B1 F3 F4 B2 F5 F6 B3 B4 B5 B6",),
        ("F1 F0 B0 F2 B2 B1",),
        ("F0 F1 B1 F2 B2 B0",),
        ("F0.0 F0.1 F1.0 B0.1 F1.1 B0.0 B1.1 B1.0",),
        ("",),
    ],
)
gpipe = vary(visible.gpipe, values=[(3, 7), (5, 2), (1, 3)], time=[(8, 3), (2, 9)])
one_f_one_b = vary(
    visible.one_f_one_b,
    values=[(5, 7), (3, 3), (8, 1), (1, 4), (2, 6)],
    memory=[(5, 9), (4, 2), (8, 3), (1, 5), (3, 3)],
    time=[(5, 9), (8, 3), (3, 3), (2, 1)],
)
interleaved = vary(
    visible.interleaved,
    values=[(3, 6, 3), (5, 5, 2), (2, 8, 3), (3, 6, 1)],
    memory=[(3, 9, 3), (2, 2, 2), (8, 16, 2)],
    time=[(3, 6, 3), (8, 16, 2), (5, 5, 2)],
)
