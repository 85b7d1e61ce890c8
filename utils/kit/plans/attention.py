"""Attention on a rank of tp and cp: fused kernels, and keys and values that go round the ring of cp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from ...recording.torch_private import flash_backward, flash_forward


class Place(NamedTuple):
    """Whom a rank talks to inside a layer: groups of its axes, and its neighbours along cp."""

    tp: dist.ProcessGroup
    ep: dist.ProcessGroup
    before: int
    after: int


class Heads(NamedTuple):
    """Sequences of a microbatch, widths of this rank's queries and keys all together, and the width of a head."""

    sequences: int
    queries: int
    keys: int
    width: int

    def apart(self, x: Tensor) -> Tensor:
        """(T, heads x width) -> (sequences, heads, tokens, width), in the same memory."""
        heads: Tensor = x.unflatten(-1, (-1, self.width)).unflatten(0, (self.sequences, -1)).transpose(1, 2)
        return heads

    def together(self, x: Tensor) -> Tensor:
        """(sequences, heads, tokens, width) -> (T, heads x width)"""
        merged: Tensor = x.transpose(1, 2).flatten(0, 1).flatten(1)
        return merged

    def rotate(self, qkv: Tensor) -> None:
        """Rotary embeddings of queries and keys, in place."""
        qkv[:, : self.queries + self.keys].unflatten(-1, (-1, self.width)).mul_(qkv.new_empty(len(qkv), 1, self.width))


class Attention(Function):
    """Rotary embeddings and causal attention, keys and values going round the ring of cp: (T, q + 2 k) -> (T, q).

    Tokens lie in zigzag, so a rank uses its own block causally, and half of each other one. The keys and values that
    arrive are not kept; in backward they go round again, and their gradients behind them.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: Heads, place: Place, size: int) -> Tensor:
        heads.rotate(qkv)
        q, k, v = (heads.apart(part) for part in qkv.split([heads.queries, heads.keys, heads.keys], -1))
        if size > 1:
            coming = pass_on(qkv[:, heads.queries :].contiguous(), place)
        out, lse, *rest = flash_forward(q, k, v, 0.0, True)
        for step in range(1, size):
            block = coming()
            if step < size - 1:
                coming = pass_on(block, place)
            more, its_lse, *_ = flash_forward(q, *first_half(block, heads), 0.0, False)
            out.lerp_(more, its_lse.unsqueeze(-1).to(out.dtype))
        ctx.save_for_backward(qkv, out, lse)
        ctx.heads, ctx.place, ctx.size, ctx.rest = heads, place, size, rest
        return heads.together(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        qkv, out, lse = ctx.saved_tensors
        heads, place, size, rest = ctx.heads, ctx.place, ctx.size, ctx.rest
        q, k, v = (heads.apart(part) for part in qkv.split([heads.queries, heads.keys, heads.keys], -1))

        def backward_of(causal: bool, k: Tensor, v: Tensor) -> list[Tensor]:
            found: list[Tensor] = flash_backward(
                heads.apart(grad), q, k, v, out, lse, *rest[:4], 0.0, causal, *rest[4:6]
            )
            return found

        if size > 1:
            coming = pass_on(qkv[:, heads.queries :].contiguous(), place)
        dq, *dkv = backward_of(True, k, v)
        if size > 1:
            going = pass_on(heads.together(torch.cat(dkv, 1)), place)
        for step in range(1, size):
            block = coming()
            if step < size - 1:
                coming = pass_on(block, place)
            more, *of_half = backward_of(False, *first_half(block, heads))
            dq += more
            dblock = going()
            heads.apart(dblock)[:, :, : dblock.shape[0] // heads.sequences // 2] += torch.cat(of_half, 1)
            going = pass_on(dblock, place)
        parts = [going()] if size > 1 else map(heads.together, dkv)
        dqkv = torch.cat([heads.together(dq), *parts], -1)
        heads.rotate(dqkv)
        return dqkv, None, None, None


def pass_on(x: Tensor, place: Place) -> Callable[[], Tensor]:
    """Send x to the next rank of the ring. Returns a function that waits for what the one before sends."""
    comes = torch.empty_like(x)
    works = [dist.isend(x, place.after), dist.irecv(comes, place.before)]

    def wait() -> Tensor:
        for work in filter(None, works):
            work.wait()
        return comes

    return wait


def first_half(block: Tensor, heads: Heads) -> list[Tensor]:
    """(T, 2 keys) -> keys and values of the first half of each sequence's tokens: (sequences, heads, tokens / 2, d)."""
    half: Tensor = heads.apart(block)
    return list(half[:, :, : half.shape[2] // 2].chunk(2, 1))
