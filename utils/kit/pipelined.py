"""The forward and backward pass of one pipeline stage in 1F1B: lesson 09's schedule, for any model.

    loss = pipelined(stage, count, like, pp_group)

    stage(number, x)   this rank's layers on microbatch `number`. On the first stage x is None: the stage has its own
                       input. The last stage returns its share of the loss, a scalar; the others return what goes on.
    count              how many microbatches
    like               a tensor that looks like what travels between stages: its shape and dtype count
    pp_group           the ranks of the pipeline, first stage first

Gradients pile up in the leaves that `stage` uses. The sum of the losses comes back on the last stage, None elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ..recording.regions import region

Stage = Callable[[int, Tensor | None], Tensor]


class Neighbours:
    """What a stage receives from the stages beside it, and what it sends them without waiting."""

    def __init__(self, like: Tensor, group: dist.ProcessGroup | None) -> None:
        self.like, self.group = like, group
        self.ranks = dist.get_process_group_ranks(group)
        self.place, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.on_the_way: list[tuple[dist.Work | None, Tensor]] = []

    def has(self, step: int) -> bool:
        """step: -1 for the stage before, 1 for the stage after."""
        return 0 <= self.place + step < self.size

    def peer(self, step: int) -> int:
        return self.ranks[self.place + step]

    def take(self, step: int) -> Tensor:
        arriving = torch.empty_like(self.like)
        dist.recv(arriving, src=self.peer(step))
        return arriving

    def give(self, what: Tensor, step: int) -> None:
        what = what.contiguous()
        self.on_the_way.append((dist.isend(what, dst=self.peer(step)), what))

    def finish(self) -> None:
        for handle, _ in self.on_the_way:
            assert handle is not None
            handle.wait()


def pipelined(stage: Stage, count: int, like: Tensor, pp_group: dist.ProcessGroup | None = None) -> Tensor | None:
    """All microbatches through this stage, forward and back; returns the sum of the losses on the last stage."""
    beside = Neighbours(like, pp_group)
    live: list[tuple[Tensor | None, Tensor]] = []
    loss, begun, done = None, 0, 0
    while done < count:
        if begun < count and len(live) < beside.size - beside.place:  # room for one more in flight
            live.append(forward(stage, begun, beside))
            begun += 1
            continue
        x, y = live.pop(0)
        if not beside.has(1):
            loss = y.detach() if loss is None else loss + y.detach()
        backward(x, y, done, beside)
        done += 1
    beside.finish()
    return loss


def forward(stage: Stage, number: int, beside: Neighbours) -> tuple[Tensor | None, Tensor]:
    """(input, output) of a microbatch; the output is on its way to the next stage."""
    x = beside.take(-1).requires_grad_() if beside.has(-1) else None
    with region(f"F{number}"):
        y = stage(number, x)
    if beside.has(1):
        beside.give(y.detach(), 1)
    return x, y


def backward(x: Tensor | None, y: Tensor, number: int, beside: Neighbours) -> None:
    """Backward through one microbatch; the gradient of the input is on its way to the stage before."""
    gradient = beside.take(1) if beside.has(1) else None
    with region(f"B{number}"):
        y.backward(gradient)
    if x is not None:
        assert x.grad is not None
        beside.give(x.grad, -1)
