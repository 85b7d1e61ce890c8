"""Products with weights that are cut along tp, with what Megatron-LM does around them (arXiv 2205.05198).

What is gathered for a product is not kept: in backward it is gathered again, beside the product that doesn't need it.
The gradients of weights are added to 32-bit ones by the products themselves.

    T: tokens of a microbatch on a rank of cp; between the products each rank of tp has T / tp of them
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

DTYPE = torch.bfloat16
aten = torch.ops.aten
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def applied(function: type[Function], *args: Any) -> Tensor:
    """`function.apply(...)`, which has no types."""
    result: Tensor = function.apply(*args)
    return result


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x: (n, in), weight: (out, in), or (experts, out, in): then each has n / experts rows. Returns (n, out)."""
    if weight.dim() == 2:
        return x @ weight.t()
    return torch.bmm(x.view(len(weight), -1, x.shape[-1]), weight.transpose(1, 2)).flatten(0, 1)


def add_product(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    """grad += dy.T @ x, for each expert by itself. grad: 32 bits."""
    if grad.dim() == 2:
        torch.addmm(grad, dy.t(), x, out_dtype=grad.dtype, out=grad)
        return
    for of_expert, rows, inputs in zip(grad, dy.chunk(len(grad)), x.chunk(len(grad)), strict=True):
        add_product(of_expert, rows, inputs)


def gathered(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, dist.Work | None]:
    """(all ranks' rows, the handle to wait for)."""
    size = dist.get_world_size(group)
    if size == 1:
        return x, None
    whole = x.new_empty(len(x) * size, *x.shape[1:])
    return whole, all_gather(whole, x.contiguous(), group=group, async_op=True)


def summed(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, dist.Work | None]:
    """(this rank's rows of the sum, the handle to wait for)."""
    size = dist.get_world_size(group)
    if size == 1:
        return x, None
    mine = x.new_empty(len(x) // size, *x.shape[1:])
    return mine, reduce_scatter(mine, x.contiguous(), group=group, async_op=True)


def arrived(pair: tuple[Tensor, dist.Work | None]) -> Tensor:
    tensor, handle = pair
    if handle is not None:
        handle.wait()
    return tensor


class Product(Function):
    """Columns of a weight times the tokens of all tp ranks: (T / tp, in) -> (T, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.grad, ctx.group = grad, group
        return multiply(arrived(gathered(x, group)), weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight = ctx.saved_tensors
        coming = gathered(x, ctx.group)  # beside the product for dx
        dx = multiply(dy, weight.transpose(-1, -2))
        whole = arrived(coming)
        going = summed(dx, ctx.group)  # beside the product for the weight's gradient
        add_product(ctx.grad, dy, whole)
        return arrived(going), None, None, None


class ActivatedProduct(Function):
    """The MLP's second half, activation function and rows of a weight: (T, 2 or 1 x in) -> (T, out), a partial sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor, gated: bool, again: bool) -> Tensor:
        active = functional.glu(x, -1) if gated else functional.gelu(x)
        ctx.save_for_backward(x, weight, *([] if again else [active]))
        ctx.grad, ctx.gated = grad, gated
        return multiply(active, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, weight, *kept = ctx.saved_tensors
        active = kept[0] if kept else functional.glu(x, -1) if ctx.gated else functional.gelu(x)
        add_product(ctx.grad, dy, active)
        del active, kept
        dactive = multiply(dy, weight.transpose(-1, -2))
        dx = aten.glu_backward(dactive, x, -1) if ctx.gated else aten.gelu_backward(dactive, x)
        return dx, None, None, None, None


class RowProduct(Function):
    """Rows of a weight: (T, in) -> (T, out), a partial sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.grad = grad
        return multiply(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        add_product(ctx.grad, dy, x)
        return multiply(dy, weight.transpose(-1, -2)), None, None


class Sum(Function):
    """Partial sums to this rank's tokens of the sum: (T, n) -> (T / tp, n)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return arrived(summed(x, group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return arrived(gathered(grad, ctx.group)), None
