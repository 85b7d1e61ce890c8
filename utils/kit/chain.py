"""A chain of uneven layers, cut into segments that are kept or recomputed: how much memory and time a step takes.

    boundaries = [8, 1, 4]      bytes of each layer's input
    keeps = [20, 30, 10]        bytes that each layer keeps if autograd records it, its input included
    peak_of([0, 2], boundaries, keeps)     with layers 0 and 1 in one segment, layer 2 in another, both recomputed
    peak_of_plan([(0, 2, True), (2, 3, False)], boundaries, keeps)         with layer 2 not recomputed
    seconds_of_plan([(0, 2, True), (2, 3, False)], [0.1, 0.3, 0.2])        whose forward passes take so long

What counts is what is kept for the backward pass: weights, gradients and buffers come on top.

    chain = drawn_chain(24, seed=1)                 MLPs of different widths; chain.boundaries, chain.keeps, ...
    simulate(train_chain, 1, chain, plan, cluster="dgx-h100")              one training step of them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .generators import generator_of
from .mixture import expert_mlp

PEAK = 989e12  # bfloat16 operations/s that an H100's datasheet promises
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
    """Time of a forward and a backward pass. seconds: each layer's forward pass; backward takes twice as long."""
    return sum(
        (4 if recompute else 3) * seconds[number] for start, end, recompute in plan for number in range(start, end)
    )


@dataclass(frozen=True)
class Chain:
    """MLPs in bfloat16. Layer i goes from widths[i] features through hidden[i] to widths[i + 1], for so many rows."""

    widths: tuple[int, ...]
    hidden: tuple[int, ...]
    rows: int = 4096

    @property
    def boundaries(self) -> list[int]:
        return [2 * self.rows * width for width in self.widths[:-1]]

    @property
    def keeps(self) -> list[int]:
        """An MLP keeps its input, and the GELU's argument and result."""
        return [
            boundary + 4 * self.rows * hidden for boundary, hidden in zip(self.boundaries, self.hidden, strict=True)
        ]

    @property
    def seconds(self) -> list[float]:
        """Time of each layer's two products, on an H100 at its peak."""
        ends = zip(self.widths, self.widths[1:], strict=False)
        return [
            2 * self.rows * hidden * (first + last) / PEAK
            for hidden, (first, last) in zip(self.hidden, ends, strict=True)
        ]


def drawn_chain(layers: int, seed: int) -> Chain:
    """Widths from 256 to 4,096, hidden widths from 512 to 8,192."""
    generator = generator_of(seed)
    widths = 256 * torch.randint(1, 17, (layers + 1,), generator=generator)
    hidden = 256 * torch.randint(2, 33, (layers,), generator=generator)
    return Chain(tuple(widths.tolist()), tuple(hidden.tolist()))


def train_chain(rank: int, world_size: int, chain: Chain, plan: Sequence[Segment]) -> None:
    """A forward and a backward pass. plan: all layers, in order; each recomputed segment is one checkpoint."""
    shapes = zip(chain.widths, chain.hidden, chain.widths[1:], strict=False)
    weights = [(weight(first, hidden), weight(hidden, last)) for first, hidden, last in shapes]
    x = weight(chain.rows, chain.widths[0])

    def run(start: int, end: int, x: Tensor) -> Tensor:
        for w_up, w_down in weights[start:end]:
            x = expert_mlp(x, w_up, w_down)
        return x

    for start, end, recompute in plan:
        x = checkpoint(run, start, end, x, use_reentrant=True) if recompute else run(start, end, x)
    x.sum().backward()


def weight(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16, requires_grad=True)
