"""A training step with FSDP, and tensor parallelism if a setting has it, as one program.

Each layer's weights are gathered from all data-parallel ranks before they are used, in forward and again in backward,
while the layer before computes; gradients are scattered beside backward, in every microbatch. All ranks do the same:

    simulate(step, 128, model, setting, 2, cluster=..., alike=lambda rank: 0)
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor

from tests.accuracy.programs import (
    DTYPE,
    Embedding,
    Head,
    Layer,
    all_gather,
    group_of,
    optimizer,
    reduce_scatter,
    tokens,
    weights_of,
)
from tests.accuracy.rows import Model, Setting
from utils.cluster import find_cluster


def step(rank: int, world_size: int, model: Model, setting: Setting, microbatches: int) -> list[float]:
    """Forward and backward of so many microbatches, then the optimizer: when each microbatch ended, and the step."""
    t = setting.tensor
    tensor_group = group_of(range(rank - rank % t, rank - rank % t + t))
    node = find_cluster(setting.cluster, 1).gpus_per_node if setting.hybrid else world_size
    shards = Shards(
        *(model, setting, tensor_group),
        group_of(range(rank - rank % node + rank % t, rank - rank % node + node, t)),
        group_of(range(rank % node, world_size, node)),
    )
    ends = []
    for _ in range(microbatches):
        shards.run()
        ends.append(time.perf_counter())
    for handle in shards.scattering:
        handle.wait()
    optimizer(0, 1, shards.parameters // shards.split)
    return [*ends, time.perf_counter()]


class Shards:
    """A rank's part of the model. Its parts are the embedding, the layers and the head.

    All layers are one object: they take the same time, and FSDP frees the weights of each after use.
    """

    def __init__(
        self,
        model: Model,
        setting: Setting,
        tensor_group: dist.ProcessGroup,
        data_group: dist.ProcessGroup,
        copies: dist.ProcessGroup,
    ) -> None:
        self.setting, self.data_group, self.copies = setting, data_group, copies
        self.split = dist.get_world_size(data_group)
        self.embedding = Embedding(model, setting, tensor_group)
        self.layer, self.head = Layer(model, setting, tensor_group), Head(model, setting, tensor_group)
        self.parts: list[Embedding | Layer | Head] = [self.embedding, *[self.layer] * model.layers, self.head]
        self.sizes = [sum(w.numel() for w in weights_of(part)) for part in self.parts]
        self.parameters = sum(self.sizes)
        self.shape = tokens(model, setting), model.hidden
        self.scattering: list[dist.Work] = []

    def run(self) -> None:
        """One microbatch."""
        x, kept = self.forward()
        self.backward(x, kept)

    def forward(self) -> tuple[Tensor, list[tuple[Tensor, Tensor | None]]]:
        """(what the head gets, [(each layer's input, its result unless that is recomputed)])"""
        coming = self.gather(0)
        coming, _ = self.gather(1), coming.wait()
        x = self.embedding().detach()
        kept: list[tuple[Tensor, Tensor | None]] = []
        for place in range(1, len(self.parts) - 1):
            following, _ = self.gather(place + 1), coming.wait()
            coming = following
            x = x.detach().requires_grad_()
            again = self.recomputed(place)
            with torch.set_grad_enabled(not again):
                y = self.layer(x)
            kept.append((x, None if again else y))
            x = y
        coming.wait()
        return x.detach().requires_grad_(), kept

    def recomputed(self, place: int) -> bool:
        how = self.setting.recompute
        return how == "full" or (how == "half" and place % 2 == 0)

    def backward(self, x: Tensor, kept: list[tuple[Tensor, Tensor | None]]) -> None:
        last = len(self.parts) - 1
        coming = self.gather(last - 1)
        self.head(x).backward()
        self.scatter(last)
        grad = x.grad
        for place in range(last - 1, 0, -1):
            following, _ = self.gather(place - 1), coming.wait()
            coming = following
            x, y = kept.pop()
            (self.layer(x) if y is None else y).backward(grad)
            self.scatter(place)
            grad = x.grad
        coming.wait()
        self.embedding().backward(grad)
        self.scatter(0)

    def gather(self, place: int) -> dist.Work:
        part = self.sizes[place] // self.split
        whole, shard = (torch.empty(n, dtype=DTYPE) for n in (part * self.split, part))
        return all_gather(whole, shard, group=self.data_group, async_op=True)

    def scatter(self, place: int) -> None:
        """Add up and split the gradients of a part, which it then no longer has."""
        part, dtype = self.sizes[place] // self.split, DTYPE if self.setting.gradient_bytes == 2 else torch.float
        whole, mine = torch.empty(part * self.split, dtype=dtype), torch.empty(part, dtype=dtype)
        self.scattering.append(reduce_scatter(mine, whole, group=self.data_group, async_op=True))
        if self.setting.hybrid:
            self.scattering.append(dist.all_reduce(mine, group=self.copies, async_op=True))
        for w in weights_of(self.parts[place]):
            w.grad = None
