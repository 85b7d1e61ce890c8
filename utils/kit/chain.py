"""A chain of uneven layers, cut into segments that are kept or recomputed: how much memory and time a step takes.

    boundaries = [8, 1, 4]      bytes of each layer's input
    keeps = [20, 30, 10]        bytes that each layer keeps if autograd records it, its input included
    peak_of([0, 2], boundaries, keeps)     with layers 0 and 1 in one segment, layer 2 in another, both recomputed
    peak_of_plan([(0, 2, True), (2, 3, False)], boundaries, keeps)         with layer 2 not recomputed
    seconds_of_plan([(0, 2, True), (2, 3, False)], [0.1, 0.3, 0.2])        whose forward passes take so long

What counts is what is kept for the backward pass: weights, gradients and buffers come on top.
"""

from __future__ import annotations

from collections.abc import Sequence

Segment = tuple[int, int, bool]  # the first layer, the one behind the last, and whether it is recomputed


def peak_of(starts: Sequence[int], boundaries: Sequence[int], keeps: Sequence[int]) -> int:
    """The most bytes alive in one forward and backward pass, in which every segment is recomputed.

    starts  the number of each segment's first layer, rising, the first 0
    """
    ends = [*starts[1:], len(boundaries)]
    return peak_of_plan([(start, end, True) for start, end in zip(starts, ends, strict=True)], boundaries, keeps)


def peak_of_plan(plan: Sequence[Segment], boundaries: Sequence[int], keeps: Sequence[int]) -> int:
    """The most bytes alive in one forward and backward pass. plan: all layers, in order."""
    alive = peak = 0
    for start, end, recompute in plan:
        for number in range(start, start + 1 if recompute else end):
            alive += boundaries[number] if recompute else keeps[number]
        peak = max(peak, alive)
    for start, end, recompute in reversed(plan):
        alive -= boundaries[start] if recompute else 0  # the first layer of the segment keeps it from now on
        for number in range(start, end):
            alive += keeps[number] if recompute else 0
        peak = max(peak, alive)
        for number in range(start, end):
            alive -= keeps[number]
    return peak


def seconds_of_plan(plan: Sequence[Segment], seconds: Sequence[float]) -> float:
    """Of a forward and a backward pass. seconds: of each layer's forward pass; backward takes twice as long."""
    return sum(
        (4 if recompute else 3) * seconds[number] for start, end, recompute in plan for number in range(start, end)
    )
