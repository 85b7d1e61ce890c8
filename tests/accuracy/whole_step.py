"""A training step with all its parallelism, as one program: what step.py derives by closed forms, carried out.

Tensor x pipeline x data parallelism with an interleaved schedule (Megatron-LM's), sequence parallelism, and optimizer
and gradients sharded over the data axis. Parameters are gathered, gradients scattered and activations passed on beside
computing. With `alike`, one rank of each pipeline stage runs:

    simulate(step, 16384, model, setting, cluster=..., alike=stage_of(setting))
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

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
from utils import region

Task = tuple[bool, int, int]  # (whether it is a backward, chunk, microbatch)


def stage_of(setting: Setting) -> Callable[[int], int]:
    """What ranks differ by. Tensor-parallel ranks are neighbours, pipeline stages come next."""
    return lambda rank: rank // setting.tensor % setting.pipeline


def step(rank: int, world_size: int, model: Model, setting: Setting) -> None:
    """One step: forward and backward of all microbatches, then the optimizer."""
    t, p = setting.tensor, setting.pipeline
    first = rank - rank % (t * p) + rank % t  # the rank of the first stage that this one gets its tokens from
    tensor_group = group_of(range(rank - rank % t, rank - rank % t + t))
    data_group = group_of(range(rank % (t * p), world_size, t * p))
    mine = Stage(rank, stage_of(setting)(rank), first, model, setting, tensor_group, data_group)
    with region("step"):
        mine.gather_parameters()
        mine.run(schedule(mine.stage, p, setting.microbatches, setting.chunks))
        for handle in mine.under_way:
            handle.wait()
        optimizer(0, 1, mine.parameters // setting.data)


def schedule(stage: int, stages: int, microbatches: int, chunks: int) -> list[Task]:
    """The interleaved 1F1B schedule: arXiv 2104.04473, section 2.2. Microbatches go in groups of `stages`."""
    total = microbatches * chunks
    ahead = (stages - stage - 1) * (2 if chunks > 1 else 1) + (chunks - 1) * stages
    ahead = min(total, ahead)

    def task(number: int, back: bool) -> Task:
        group, place = divmod(number, stages * chunks)
        chunk, inside = divmod(place, stages)
        return back, chunks - 1 - chunk if back else chunk, group * stages + inside

    forwards, backwards = ([task(number, back) for number in range(total)] for back in (False, True))
    steady = [both for pair in zip(forwards[ahead:], backwards, strict=False) for both in pair]
    return forwards[:ahead] + steady + backwards[total - ahead :]


class Stage:
    """What one rank holds: a layer per chunk, but the embedding or the head in place of one on the first or last stage.

    under_way   handles of what need not be waited for before the end of the step
    """

    def __init__(
        self,
        rank: int,
        stage: int,
        first: int,
        model: Model,
        setting: Setting,
        tensor_group: dist.ProcessGroup,
        data_group: dist.ProcessGroup,
    ):
        self.rank, self.stage, self.first, self.setting, self.data_group = rank, stage, first, setting, data_group
        self.shape = tokens(model, setting), model.hidden
        self.chunks: list[Layer | Embedding | Head] = [
            Layer(model, setting, tensor_group) for _ in range(setting.chunks)
        ]
        if stage == 0:
            self.chunks[0] = Embedding(model, setting, tensor_group)
        if stage == setting.pipeline - 1:
            self.chunks[-1] = Head(model, setting, tensor_group)
        self.sizes = [sum(w.numel() for w in weights_of(chunk)) for chunk in self.chunks]
        self.parameters = sum(self.sizes)
        self.kept: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}  # by (chunk, microbatch)
        self.gathering: list[dist.Work] = []
        self.left = [setting.microbatches] * setting.chunks  # backwards still to come
        self.under_way: list[dist.Work] = []

    def gather_parameters(self) -> None:
        for size in self.sizes:
            part = size // self.setting.data
            whole, shard = (torch.empty(n, dtype=DTYPE) for n in (part * self.setting.data, part))
            self.gathering.append(all_gather(whole, shard, group=self.data_group, async_op=True))

    def run(self, tasks: list[Task]) -> None:
        """Each message is asked for before the task that comes before its own: it travels beside that one."""
        coming = self.ask_for(tasks[0])
        for task, following in pairwise([*tasks, None]):
            assert task is not None
            x, handle = coming
            coming = self.ask_for(following) if following is not None else (None, None)
            if handle is not None:
                handle.wait()
            (self.backward if task[0] else self.forward)(*task[1:], x)

    def ask_for(self, task: Task) -> tuple[Tensor | None, dist.Work | None]:
        """(where the message for this task arrives, its handle), if it needs one."""
        back, chunk, microbatch = task
        source = self.neighbour(chunk, 1 if back else -1)
        if source is None:
            return None, None
        x = torch.empty(self.shape, dtype=DTYPE)
        return x, dist.irecv(x, source, tag=self.tag(back, self.depth(chunk), microbatch))

    def depth(self, chunk: int) -> int:
        """The chunk's place in the whole model."""
        return chunk * self.setting.pipeline + self.stage

    def neighbour(self, chunk: int, way: int) -> int | None:
        """The rank with the chunk before this one (-1) or behind it (1); None at the ends."""
        there = self.depth(chunk) + way
        if not 0 <= there < self.setting.pipeline * self.setting.chunks:
            return None
        return self.first + there % self.setting.pipeline * self.setting.tensor

    def tag(self, back: bool, depth: int, microbatch: int) -> int:
        """Of the message that is for the chunk at this depth."""
        return (depth * self.setting.microbatches + microbatch) * 2 + back

    def forward(self, chunk: int, microbatch: int, x: Tensor | None) -> None:
        if microbatch == 0:
            self.gathering[chunk].wait()
        layer = self.chunks[chunk]
        y = layer() if isinstance(layer, Embedding) else layer(x.requires_grad_())
        self.kept[chunk, microbatch] = x, y
        self.send(False, chunk, microbatch, y.detach())

    def backward(self, chunk: int, microbatch: int, grad: Tensor | None) -> None:
        x, y = self.kept.pop((chunk, microbatch))
        y.backward(grad)
        self.left[chunk] -= 1
        if not self.left[chunk]:
            self.scatter_gradients(chunk)
        if x is not None:
            self.send(True, chunk, microbatch, x.grad)

    def send(self, back: bool, chunk: int, microbatch: int, x: Tensor) -> None:
        way = -1 if back else 1
        peer = self.neighbour(chunk, way)
        if peer is not None:
            self.under_way.append(dist.isend(x, peer, tag=self.tag(back, self.depth(chunk) + way, microbatch)))

    def scatter_gradients(self, chunk: int) -> None:
        part = self.sizes[chunk] // self.setting.data
        whole, mine = torch.empty(part * self.setting.data), torch.empty(part)
        self.under_way.append(reduce_scatter(mine, whole, group=self.data_group, async_op=True))
