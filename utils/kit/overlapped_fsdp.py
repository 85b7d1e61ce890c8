"""ZeRO-3 with everything on: bfloat16, prefetch in both directions, reductions that overlap. For the virtual cluster.

    run = simulate(overlapped_step, 8, layers=16, dim=8192, rows=2048, cluster="dgx-h100")

The model is the course's MLP, in bfloat16, one shard of float32 for each layer; AdamW updates the shards.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..recording.regions import region
from .mlp import layer, loss_of


class ShardedLayer:
    """One layer on one rank. Its whole weight comes and goes; its shard stays."""

    def __init__(self, dim: int, world_size: int) -> None:
        self.weight = torch.empty(dim, dim, dtype=torch.bfloat16, requires_grad=True)
        self.nbytes = 2 * dim * dim
        self.free()
        self.shard = nn.Parameter(torch.empty(dim * dim // world_size))
        self.gathering: dist.Work | None = None
        self.reducing: tuple[dist.Work, Tensor, Tensor] | None = None  # (work, this rank's part, whole gradient)

    def free(self) -> None:
        self.weight.untyped_storage().resize_(0)

    def start_gathering(self) -> None:
        """Unless the weight is there, or on its way."""
        if not self.weight.untyped_storage().nbytes():
            self.weight.untyped_storage().resize_(self.nbytes)
            mine = self.shard.detach().to(torch.bfloat16)
            self.gathering = dist.all_gather_single(self.weight.data.view(-1), mine, async_op=True)

    def gathered(self) -> Tensor:
        self.start_gathering()
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None
        return self.weight

    def start_reducing(self) -> None:
        """Free the weight, and start to reduce its gradient."""
        assert self.weight.grad is not None
        self.free()
        whole, self.weight.grad = self.weight.grad.view(-1), None
        mine = whole.new_empty(self.shard.numel())
        handle = dist.reduce_scatter_single(mine, whole, op=dist.ReduceOp.AVG, async_op=True)
        self.reducing = handle, mine, whole

    def finish_reducing(self) -> None:
        """Add this rank's part of the gradient to the shard's, in float32."""
        if self.reducing is not None:
            handle, mine, _ = self.reducing
            handle.wait()
            self.shard.grad = mine.float() if self.shard.grad is None else self.shard.grad + mine
            self.reducing = None


def forward(x: Tensor, every: Sequence[ShardedLayer], keep: Container[int], recompute: Container[int]) -> Tensor:
    """The forward pass, with a hook on each layer's output that gathers for the backward pass. (B, D) -> (B, D)"""

    def before_backward(number: int, _: Tensor) -> None:
        every[number].gathered()
        if number > 0:
            every[number - 1].start_gathering()

    for number, one in enumerate(every):
        weight = one.gathered()
        if number + 1 < len(every):
            every[number + 1].start_gathering()
        x = checkpoint(layer, x, weight, use_reentrant=False) if number in recompute else layer(x, weight)
        if number not in keep:
            one.free()
        x.register_hook(partial(before_backward, number))
    return x


def overlapped_step(
    rank: int,
    world_size: int,
    layers: int,
    dim: int,
    rows: int,
    keep: Container[int] = (),
    recompute: Container[int] = (),
    microbatches: int = 1,
) -> None:
    """One training step on `microbatches` times `rows` rows per rank; P must divide dim * dim.

    It is any step but the first: AdamW's averages are there from its beginning.

    keep       numbers of the layers whose weights stay between their forward and their backward pass
    recompute  numbers of the layers of which only the input stays; their forward pass runs again in the backward pass
    """
    every = [ShardedLayer(dim, world_size) for _ in range(layers)]
    optimizer = torch.optim.AdamW([one.shard for one in every])
    for one in every:
        one.shard.grad = torch.empty_like(one.shard)
    optimizer.step()
    optimizer.zero_grad()

    def after_backward(number: int, _: Tensor) -> None:
        if number + 1 < layers:
            every[number + 1].finish_reducing()  # so that at most two whole gradients are alive
        every[number].start_reducing()

    for number, one in enumerate(every):
        one.weight.register_post_accumulate_grad_hook(partial(after_backward, number))
    with region("step"):
        for _ in range(microbatches):
            loss_of(forward(torch.empty(rows, dim, dtype=torch.bfloat16), every, keep, recompute)).backward()
            every[0].finish_reducing()
        optimizer.step()
