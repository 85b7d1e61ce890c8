"""The hidden tests of lesson 10, and the oracles of the exercises whose answer is a formula or a plan."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, oracle, vary
from utils.kit.chain import peak_of_plan
from utils.kit.drivers import recomputed

visible: Any = import_module("utils.checks.10_activation_checkpointing")

kept_for_backward = vary(
    visible.kept_for_backward,
    values=[
        (visible.adds_only, 3, 4),
        (visible.view_of_input, 5, 3),
        (visible.slices, 2, 9),
        (visible.chain, 1, 2),
        (visible.other_dtypes, 3, 5),
    ],
)
checkpoint = vary(
    visible.checkpoint,
    values=[(piece, 5, 3, torch.float64) for piece in (recomputed.several, recomputed.nested)]
    + [(recomputed.one_of_two, 1, 2), (recomputed.frozen, 3, 4)],
    memory=[(recomputed.nested, 32, 16), (recomputed.frozen, 16, 32), (recomputed.one_of_two, 32, 16)],
)
replayable = vary(
    visible.replayable,
    values=[(3, False, True), (5, True, True, 0.25), (2, True, False, 0.9), (4, True, False, 0.5, torch.float16)],
)
forward_in_segments = vary(
    visible.forward_in_segments, values=[(1, 1), (5, 7), (7, 3), (6, 3)], memory=[(5, 1), (5, 5), (8, 3)]
)
best_segments = vary(
    visible.best_segments, values=[([3], [5]), (10,), (11,), ([50, 1, 1, 50, 1, 1], [60, 20, 20, 60, 2, 2])]
)
keep_expensive = vary(visible.keep_expensive, values=[(2,), (64,), (1000,)])
pieces_over = vary(
    visible.pieces_over,
    values=[([[0, 1, 2]], (7,)), ([[1, 0]], (2, 2, 3), torch.float64), ([[0]], (3,)), ([[0, 1, 2]], (2,))],
    memory=[([[0, 2], [1, 3]], (5, 13), torch.float64)],
    traffic=[([[0, 1, 2]], (5, 2))],
)


# ---- formulas


@oracle(values=[(7, 3, 2, 5), (12, 12, 3, 4), (9, 1, 4, 4), (5, 8, 1, 6), (64, 8, 32, 1088), (10, 4, 8, 9)])
def peak_bytes(_: Draws, layers: int, k: int, boundary: int, keeps: int) -> Case:
    """Layer by layer: what is alive while the backward pass goes through each segment."""
    starts = list(range(0, layers, k))
    alive = [
        sum(boundary for other in starts if other < start) + sum(keeps for n in range(start, start + k) if n < layers)
        for start in starts
    ]
    whole = -(-layers // k)
    mistakes = {
        "what is kept between forward and backward pass: while a segment is recomputed there is more": whole * boundary,
        "what one segment keeps: the inputs of the segments before it are alive, too": min(k, layers) * keeps,
        "a sum with the inputs of all layers before: a segment keeps the input of its first layer alone": max(
            start * boundary + (min(start + k, layers) - start) * keeps for start in starts
        ),
        "a sum with one layer recomputed at a time: all layers of a segment are recorded together": (whole - 1)
        * boundary
        + keeps,
        "a sum in which no layer keeps its input: only the segment's own would be counted twice": max(
            n * boundary + (min(start + k, layers) - start) * (keeps - boundary) for n, start in enumerate(starts)
        ),
        "what is alive with the last segment as long as the others: it may be shorter, and then an earlier one may "
        "count": (whole - 1) * boundary + k * keeps,
        "what is alive in the last segment's backward pass: if that is shorter, an earlier one may need more": alive[
            -1
        ],
        "what everything takes without checkpoints": layers * keeps,
    }
    if layers % k == 0:  # otherwise the two mistakes above it lead to the same
        mistakes |= {
            "a sum without the segment's own input: what a layer keeps includes it": max(alive) - boundary,
            "a sum that counts the segment's own input twice: its first layer keeps it": max(alive) + boundary,
        }
    return Case(
        [[layers], [k], [boundary], [keeps]],
        right=max(alive),
        mistakes=mistakes,
        seen=f"for {layers} layers, k = {k}, boundary {boundary} and keeps {keeps} it returned",
    )


@oracle(
    values=[(p, 5, m, 3, 2, 9, again) for p in (0, 2, 4) for m in (1, 3, 8) for again in (False, True)]
    + [(0, 1, 4, 1, 7, 7, True), (1, 64, 512, 2, 32, 1088, True)]
)
def stage_peak(
    _: Draws, stage: int, stages: int, microbatches: int, layers: int, boundary: int, keeps: int, recompute: bool
) -> Case:
    """Counted by going through the stage's steps, one at a time."""

    def most(warm_up: int) -> int:
        in_flight = sorted([*range(microbatches), *(m + warm_up + 0.5 for m in range(microbatches))])  # F1B's order
        alive = [sum(1 if isinstance(step, int) else -1 for step in in_flight[: n + 1]) for n in range(len(in_flight))]
        return max(alive)

    def held(live: int, again: bool = recompute) -> int:
        inside = sum(boundary if again else keeps for _ in range(layers))
        return live * inside + (keeps - boundary if again else 0)

    live = most(min(stages - stage, microbatches) - 1)
    mistakes = {
        "that of GPipe: 1F1B has at most P - p microbatches in flight": held(microbatches),
        "what P microbatches keep: stage p has only P - p of them in flight": held(min(stages, microbatches)),
        "what p + 1 microbatches keep: the first stage has most": held(min(stage + 1, microbatches)),
        "what P - p - 1 microbatches keep: the one that goes backward counts too": held(
            min(stages - stage - 1, microbatches)
        ),
        "more microbatches than there are": held(stages - stage),
        "what the other value of recompute leads to": held(live, not recompute),
        "a number that leaves out the layer that is being recomputed": live * layers * boundary,
        "a sum with the recomputed layer's input in it twice": live * layers * boundary + keeps,
        "a sum with one layer of each microbatch recomputed: only one microbatch goes backward at a time": live
        * (layers * boundary + keeps - boundary),
        "a sum with one input for each microbatch: every layer is a checkpoint, and keeps its own": live * boundary
        + keeps
        - boundary,
        "a number with a whole stage recomputed at once: every layer is a checkpoint of its own": (
            live * layers * boundary + layers * (keeps - boundary)
        ),
    }
    if not recompute:
        mistakes = dict(list(mistakes.items())[:6])
    return Case(
        [[stage], [stages], [microbatches], [layers], [boundary], [keeps], [recompute]],
        right=held(live),
        mistakes=mistakes,
        seen=f"for stage {stage} of {stages}, {microbatches} microbatches, {layers} layers, boundary {boundary}, keeps "
        f"{keeps}, recompute {recompute} it returned",
    )


# ---- the challenge


def seconds_of_recompute_plan(layers: int, seed: int, share: float) -> float:
    """Each layer by itself; those that cost most time per byte are kept, as long as they fit."""
    chain = visible.drawn_chain(layers, seed)
    boundaries, keeps, seconds = chain.boundaries, chain.keeps, chain.seconds
    again = [True] * layers

    def plan() -> list[tuple[int, int, bool]]:
        return [(number, number + 1, recompute) for number, recompute in enumerate(again)]

    for number in sorted(range(layers), key=lambda n: seconds[n] / (keeps[n] - boundaries[n]), reverse=True):
        again[number] = False
        again[number] = peak_of_plan(plan(), boundaries, keeps) > share * sum(keeps)
    return float(visible.seconds_of_step(chain, plan()))


recompute_plan = vary(visible.recompute_plan, par=seconds_of_recompute_plan, score=[(16, 2, 0.5), (30, 3, 0.35)])

RECORDED = (
    vary(visible.recompute_plan, par=seconds_of_recompute_plan),
    vary(peak_bytes, values=[(8, 2, 3, 7), (24, 4, 10, 20), (11, 4, 10, 25), (6, 6, 5, 7)]),
    vary(
        stage_peak,
        values=[
            (0, 4, 8, 6, 1, 4, False),
            (1, 4, 8, 6, 1, 5, True),
            (3, 4, 8, 2, 3, 10, True),
            (0, 4, 2, 3, 2, 7, True),
        ],
    ),
)
