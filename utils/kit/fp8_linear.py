"""A linear layer whose products are in 8 bits, as GPUs from Hopper on carry them out at twice the rate of 16 bits.

    layer = Fp8Linear(4096, 11008, dtype=torch.bfloat16)        # or, with the parameters of another layer:
    model.up = Fp8Linear.of(model.up)

8 bits cover few powers of two, so each tensor is multiplied by a scale that makes its largest number the largest that
the format has; the product is divided by both scales (Micikevicius et al. 2022, arXiv 2209.05433: e4m3 forward, e5m2,
which has a wider range, for gradients). Scales are of the tensor itself, not of earlier ones. Parameters, their
gradients and everything between products keep their dtype.

    forward     y  = x @ w.T     e4m3 by e4m3
    backward    dx = dy @ w      e5m2 by e4m3
                dw = dy.T @ x    e5m2 by e4m3

Backward needs the 8 bits of x and w: x takes half the memory that it takes in 16 bits, and w one byte more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..recording.torch_private import scaled_product

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # divisor of all sizes
SMALLEST = 1e-12  # stands for the largest number of a tensor of zeros


def quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x in 8 bits, and the float32 number, without dimensions, that they must be multiplied by."""
    largest = torch.finfo(dtype).max
    scale = largest / x.abs().max().float().clamp(min=SMALLEST)
    return (x * scale).clamp(-largest, largest).to(dtype), scale.reciprocal()


def product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b.T of (m, k) and (n, k) in 8 bits, (m, n). The kernel wants both with k as the last dimension in memory."""
    return scaled_product(a.contiguous(), b.contiguous().t(), scale_a=a_scale, scale_b=b_scale, out_dtype=dtype)


class Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """x: (m, k); weight: (n, k), of the same dtype. Returns (m, n)."""
        (low_x, x_scale), (low_weight, weight_scale) = quantized(x, FORWARD), quantized(weight, FORWARD)
        ctx.save_for_backward(low_x, x_scale, low_weight, weight_scale)
        return product(low_x, low_weight, x_scale, weight_scale, x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """grads: of the result, (m, n)."""
        low_x, x_scale, low_weight, weight_scale = ctx.saved_tensors
        grad, scale = quantized(grads[0], BACKWARD)
        dtype = grads[0].dtype
        of_x = product(grad, low_weight.t(), scale, weight_scale, dtype)
        return of_x, product(grad.t(), low_x.t(), scale, x_scale, dtype)


class Fp8Linear(nn.Linear):
    """nn.Linear with products in 8 bits. Features must be multiples of 16.

    Raises ValueError if they are not, and in forward if the number of rows is not.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **options: Any):
        """options: device and dtype, as for nn.Linear"""
        check_sizes(f"a layer from {in_features} to {out_features} features", in_features, out_features)
        super().__init__(in_features, out_features, bias, **options)

    @classmethod
    def of(cls, layer: nn.Linear) -> Fp8Linear:
        """With the parameters of `layer`, not copies."""
        made = cls(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        made.weight, made.bias = layer.weight, layer.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)"""
        rows = x.flatten(0, -2) if x.dim() > 1 else x[None]
        check_sizes(f"an input of {len(rows)} rows", len(rows))
        y: Tensor = Fp8Product.apply(rows, self.weight)  # type: ignore[no-untyped-call]
        return (y if self.bias is None else y + self.bias).view(*x.shape[:-1], self.out_features)


def check_sizes(what: str, *sizes: int) -> None:
    if any(size % MULTIPLE for size in sizes):
        raise ValueError(
            f"{what}: products in 8 bits take sizes that are multiples of {MULTIPLE}. Pad it, or leave this layer in "
            "16 bits, as is usual for the first and the last one."
        )
