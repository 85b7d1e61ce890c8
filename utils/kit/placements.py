"""Where a tensor lies, as text: one placement for each axis of a mesh of ranks. A tuple of them is a layout.

    "R"         replicated: every rank has all of it
    "S0", "S1"  sharded: cut along this dimension, by the rule of torch.chunk: the last parts may be shorter, or empty
    "P"         a partial sum: every rank has a summand
    "I"         as "R", and every rank does the same with it, so that each of them has its whole gradient

Where two axes cut one dimension, the first axis cuts first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .functional_collectives import all_gather, all_reduce, all_to_all, reduce_scatter

Layout = tuple[str, ...]
# How x, w and y of y = x @ w lie if a label is cut: b (rows of x), f (columns of w) or d, which is summed over.
USES = {"b": ("S0", "R", "S0"), "f": ("R", "S1", "S1"), "d": ("S1", "S0", "P")}


def cut_dim(placement: str) -> int | None:
    """The dimension along which a placement cuts; None if it doesn't."""
    return int(placement[1:]) if placement[0] == "S" else None


def chunks(x: Tensor, n: int, dim: int) -> list[Tensor]:
    """n parts of x, as torch.chunk cuts; the last ones may be empty."""
    found = list(x.chunk(n, dim))
    return found + [x.narrow(dim, 0, 0)] * (n - len(found))


def part(x: Tensor, layout: Sequence[str], mesh: Sequence[int], coordinates: Sequence[int]) -> Tensor:
    """What the rank at these coordinates has of x; a view. "P" doesn't cut."""
    for placement, n, place in zip(layout, mesh, coordinates, strict=True):
        dim = cut_dim(placement)
        x = x if dim is None else chunks(x, n, dim)[place]
    return x


def local_shape(
    shape: Sequence[int], layout: Sequence[str], mesh: Sequence[int], coordinates: Sequence[int]
) -> tuple[int, ...]:
    """The shape of what the rank at these coordinates has of a tensor of this shape."""
    lengths = []
    for dim, length in enumerate(shape):
        along = torch.empty(length, device="meta")
        for placement, n, place in zip(layout, mesh, coordinates, strict=True):
            along = chunks(along, n, 0)[place] if cut_dim(placement) == dim else along
        lengths.append(along.numel())
    return tuple(lengths)


def moved(size: int, old: str, new: str, n: int) -> int:
    """How much each of n ranks along an axis sends to get from one placement to the other, in the unit of `size`.

    size: of the tensor that they have together. All parts are equal. The fewest bytes that a collective can do with.
    """
    if old == new:
        return 0
    others = size * (n - 1) // n
    kind = (old[0] + new[0]).replace("I", "R")
    return {"PR": 2 * others, "PS": others, "SR": others, "SS": others // n}.get(kind, 0)


def both_passes(size: int, old: str, new: str, n: int) -> int:
    """As `moved`, of the value forward and of its gradient backward."""
    return moved(size, old, new, n) + moved(size, turned(new), turned(old), n)


def convert(x: Tensor, old: str, new: str, shape: Sequence[int], group: dist.ProcessGroup | None = None) -> Tensor:
    """What this rank has if the tensor that the group shares goes from one placement to the other.

    shape: of the tensor that the group has together; parts may be uneven. At most one collective.
    """
    n, me = dist.get_world_size(group), dist.get_rank(group)
    old, new = old.replace("I", "R"), new.replace("I", "R")
    there, here = cut_dim(old), cut_dim(new)
    if old == new:
        return x
    if new == "P":
        return placed(x, there, shape, n, me)
    if there is None and here is None:
        return all_reduce(x, group)
    if old == "R":
        return chunks(x, n, here or 0)[me].clone()
    if there is None:
        to = here or 0
        even = reduce_scatter(pad_to(x, n * -(-x.shape[to] // n), to), group, to)
        return even.narrow(to, 0, chunks(x, n, to)[me].shape[to]).clone()
    if here is None:
        longest = -(-shape[there] // n)
        gathered = all_gather(pad_to(x, longest, there), group, there)
        return gathered.narrow(there, 0, shape[there]).clone()
    whole = torch.empty(*shape, device="meta")
    sizes = [chunks(chunks(whole, n, there)[rank], n, here)[me].shape for rank in range(n)]
    leaving = [piece.flatten() for piece in chunks(x, n, here)]
    numbers = [size.numel() for size in sizes]
    arriving = all_to_all(torch.cat(leaving), [piece.numel() for piece in leaving], numbers, group)
    return torch.cat([flat.view(size) for flat, size in zip(arriving.split(numbers), sizes, strict=True)], there)


def pad_to(x: Tensor, length: int, dim: int) -> Tensor:
    """x with zeros behind it, so that dimension `dim` has this length."""
    zeros = x.new_zeros([length - x.shape[dim] if d == dim else size for d, size in enumerate(x.shape)])
    return torch.cat([x, zeros], dim)


def placed(x: Tensor, dim: int | None, shape: Sequence[int], n: int, me: int) -> Tensor:
    """A summand of the whole: this rank's part in its place and zeros elsewhere, or all of it on the first rank."""
    if dim is None:
        return x if me == 0 else torch.zeros_like(x)
    whole = x.new_zeros(*shape)
    chunks(whole, n, dim)[me].copy_(x)
    return whole


class Conversion(torch.autograd.Function):
    """`convert`, through which autograd goes: a gradient lies as the dual of its value does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, old: str, new: str, shape: Sequence[int], group: Any) -> Tensor:
        ctx.back, ctx.shape, ctx.group = (turned(new), turned(old)), shape, group
        there = convert(x, old, new, shape, group)
        return there.clone() if there is x else there

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        old, new = ctx.back
        return convert(grads[0], old, new, ctx.shape, ctx.group), None, None, None, None


def turned(placement: str) -> str:
    """The placement of the gradient of a value that lies like this."""
    return placement.translate(str.maketrans("RP", "PR"))


def converter(group: dist.ProcessGroup | None = None) -> Callable[[Tensor, str, str], Tensor]:
    """The function `to(x, old, new)` for even parts along one axis, through which autograd goes."""
    n = dist.get_world_size(group)

    def to(x: Tensor, old: str, new: str) -> Tensor:
        shape = [length * (n if d == cut_dim(old) else 1) for d, length in enumerate(x.shape)]
        converted: Tensor = Conversion.apply(x, old, new, shape, group)  # type: ignore[no-untyped-call]
        return converted

    return to
