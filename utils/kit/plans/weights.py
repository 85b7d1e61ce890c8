"""The parameters of a part of a model on one rank, and what ranks that have the same ones exchange (ZeRO-1)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from ...recording.torch_private import foreach_copy, foreach_norm, fused_adam
from .products import DTYPE, all_gather, reduce_scatter


class Weights:
    """Parameters in one buffer, their gradients in another; the group's ranks hold the same, and share Adam's state.

    values, grads   {name: tensor}, 16 and 32 bits: parts of the buffers
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], group: dist.ProcessGroup):
        self.group, size = group, dist.get_world_size(group)
        self.each = -(-sum(map(math.prod, shapes.values())) // size)  # parameters that this rank updates
        self.buffer = torch.empty(self.each * size, dtype=DTYPE)
        self.gradients = torch.empty(self.each * size)
        self.state = [torch.empty(self.each) for _ in range(3)]  # 32-bit parameters, and Adam's two averages
        self.values: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        first = 0
        for name, shape in shapes.items():
            where = slice(first, first + math.prod(shape))
            self.values[name] = self.buffer[where].view(shape).requires_grad_()
            self.grads[name] = self.gradients[where].view(shape)
            first = where.stop

    def gather(self) -> dist.Work | None:
        """Fetch the others' parts of the parameters, beside computing."""
        if self.each == len(self.buffer):
            return None
        work: dist.Work = all_gather(self.buffer, self.buffer[: self.each], group=self.group, async_op=True)
        return work

    def scatter(self) -> dist.Work | None:
        """Add up this rank's part of the gradients, beside computing."""
        if self.each == len(self.buffer):
            return None
        work: dist.Work = reduce_scatter(self.gradients[: self.each], self.gradients, group=self.group, async_op=True)
        return work


def update(every: list[Weights]) -> None:
    """One step of Adam on this rank's parts: the gradients' norm, the update, and the 16-bit copy."""
    grads = [weights.gradients[: weights.each] for weights in every]
    parameters, first, second = (list(part) for part in zip(*(weights.state for weights in every), strict=True))
    foreach_norm(grads)
    numbers = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}
    steps = [torch.ones(()) for _ in every]
    fused_adam(parameters, grads, first, second, [], steps, **numbers, amsgrad=False, maximize=False)
    foreach_copy([weights.buffer[: weights.each] for weights in every], parameters)
