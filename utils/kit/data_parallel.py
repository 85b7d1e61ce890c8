"""Data parallelism in which a hook decides what becomes of the gradients, bucket by bucket, during the backward pass.

    replica = DataParallel(model, hook=all_reduce_mean, cap=25 * 2**20)
    replica.backward(loss_of(replica(rows)))          # each parameter's grad is now what the hook left in its bucket

A hook is called as soon as a bucket is complete and all buckets before it have been started. It starts the bucket's
communication without waiting for it, and returns a function that ends it. That one is called after the backward pass.
It leaves in `bucket.flat` what the gradients are to be:

    def all_reduce_mean(bucket):
        handle = dist.all_reduce(bucket.flat, async_op=True)
        def finish():
            handle.wait()
            bucket.flat.div_(dist.get_world_size())
        return finish
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..recording.regions import region


@dataclass
class Bucket:
    """Some neighbouring parameters' gradients.

    index      0 for the last parameters' bucket, which is complete first; the same in every step
    flat       (n,), all its gradients one after another; each step has a new one
    gradients  views of `flat` in the parameters' shapes
    """

    index: int
    flat: Tensor
    gradients: list[Tensor]


Finish = Callable[[], None]
Hook = Callable[[Bucket], Finish]


def all_reduce_mean(bucket: Bucket) -> Finish:
    """The hook of plain data parallelism: one all-reduce for each bucket, in its own dtype."""
    handle: Any = dist.all_reduce(bucket.flat, async_op=True)

    def finish() -> None:
        handle.wait()
        bucket.flat.div_(dist.get_world_size())

    return finish


class DataParallel(nn.Module):
    """A replica of `module` on each rank of the world, with the same weights to begin with.

    hook  what to do with a bucket, see above
    cap   bytes; a bucket is closed before it would grow larger. Only a parameter above the cap makes a larger one
    """

    def __init__(self, module: nn.Module, hook: Hook = all_reduce_mean, cap: float = 25 * 2**20) -> None:
        super().__init__()
        self.module, self.hook = module, hook
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.members = in_buckets(reversed(trained), cap)
        for number, members in enumerate(self.members):
            for parameter in members:
                parameter.register_post_accumulate_grad_hook(partial(self.one_more, number))

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def backward(self, loss: Tensor) -> None:
        """The backward pass, and whatever communication is still under way at its end.

        Raises RuntimeError if a parameter that is to be trained got no gradient.
        """
        self.outstanding = [len(members) for members in self.members]
        self.started: list[tuple[Bucket, Finish]] = []
        with region("backward"):
            loss.backward()
        if len(self.started) < len(self.members):
            raise RuntimeError(
                f"bucket {len(self.started)} of {len(self.members)} was never complete: the loss doesn't depend on one "
                "of its parameters. Freeze that parameter with requires_grad_(False)."
            )
        with region("finish"):
            for _, finish in self.started:
                finish()
        for (bucket, _), members in zip(self.started, self.members, strict=True):
            for parameter, gradient in zip(members, bucket.gradients, strict=True):
                parameter.grad = gradient

    def one_more(self, number: int, _: Tensor) -> None:
        """Called by autograd when a parameter of bucket `number` has its gradient."""
        self.outstanding[number] -= 1
        while len(self.started) < len(self.members) and not self.outstanding[len(self.started)]:
            index = len(self.started)
            bucket = filled(index, self.members[index])
            self.started.append((bucket, self.hook(bucket)))


def filled(index: int, members: list[nn.Parameter]) -> Bucket:
    """The bucket with a copy of its parameters' gradients."""
    held = [parameter.grad for parameter in members if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in held])
    pieces = flat.split([gradient.numel() for gradient in held])
    return Bucket(index, flat, [piece.view_as(gradient) for piece, gradient in zip(pieces, held, strict=True)])


def in_buckets(parameters: Iterable[nn.Parameter], cap: float) -> list[list[nn.Parameter]]:
    """Neighbours together, as many as fit into `cap` bytes; in each bucket all of one dtype."""
    buckets: list[list[nn.Parameter]] = []
    for parameter in parameters:
        last = buckets[-1] if buckets else []
        fits = sum(other.nbytes for other in last) + parameter.nbytes <= cap
        if last and fits and last[0].dtype == parameter.dtype:
            last.append(parameter)
        else:
            buckets.append([parameter])
    return buckets
