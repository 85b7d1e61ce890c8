"""What kind of kernel an operation is, which decides the rate that it achieves (cluster/achieved.py), and its cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...cluster.achieved import KernelRates
from ...recording.torch_private import ATTENTION, ATTENTION_BACKWARD, ROWS, OpOverload, schema_of

aten = torch.ops.aten
# Where the two factors of a matrix product are among the arguments.
PRODUCTS = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}


class Work(NamedTuple):
    """What an operation costs.

    computing   seconds that its FLOPs take at the cluster's rates; moving: seconds that its bytes take
    seconds     in all
    at_peak     seconds that its FLOPs would take at the GPU's peak
    """

    computing: float = 0.0
    moving: float = 0.0
    launch: float = 0.0
    seconds: float = 0.0
    flops: int = 0
    at_peak: float = 0.0


class Product(NamedTuple):
    """`batch` matrix products (m, k) @ (k, n)."""

    batch: int
    m: int
    n: int
    k: int
    itemsize: int


class Kernel(NamedTuple):
    """What an operation asks of a GPU.

    flops    as torch counts them; moved: bytes read and written
    kind     "" or "rows", "attention", "attention_backward": the names in KernelRates
    product  the shape of a matrix product, None for anything else
    causal   whether half of an attention's FLOPs are of no use, because a token attends only to those before it
    """

    flops: int
    moved: float
    dtype: str = "float32"
    kind: str = ""
    product: Product | None = None
    causal: bool = False

    @property
    def needed_flops(self) -> int:
        return self.flops // 2 if self.causal else self.flops

    def computing(self, peak: float, rates: KernelRates) -> float:
        """Seconds that the FLOPs take at these rates."""
        if self.product is not None:
            return rates.matmul_seconds(*self.product, peak)
        part: float = getattr(rates, self.kind) if self.kind.startswith("attention") else rates.matmul
        return self.needed_flops / (peak * part * rates.sustained)

    def part_of_bandwidth(self, rates: KernelRates) -> float:
        part: float = getattr(rates, self.kind) if self.kind == "rows" else rates.memory
        return part


def kernel_of(
    function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], flops: int, moved: float
) -> Kernel:
    packet = function.overloadpacket
    if not flops:
        return Kernel(0, moved, kind="rows" if packet in ROWS else "")
    dtype = str(next(value for value in args if isinstance(value, torch.Tensor)).dtype).removeprefix("torch.")
    if packet in PRODUCTS:
        first, second = args[PRODUCTS[packet] :][:2]
        batch = first.shape[0] if first.dim() == 3 else 1
        dtype = str(first.dtype).removeprefix("torch.")  # not that of a wider sum which the product is added to
        return Kernel(flops, moved, dtype, product=Product(batch, *shape_of(first, second), first.element_size()))
    if packet in ATTENTION or packet in ATTENTION_BACKWARD:
        kind = "attention" if packet in ATTENTION else "attention_backward"
        return Kernel(flops, moved, dtype, kind, causal=bool(argument(function, "is_causal", args, kwargs)))
    return Kernel(flops, moved, dtype)


def shape_of(first: torch.Tensor, second: torch.Tensor) -> tuple[int, int, int]:
    """(m, n, k)"""
    return first.shape[-2], second.shape[-1], first.shape[-1]


def argument(function: OpOverload[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument of this name, wherever it was given; None if it was left out."""
    names = [each.name for each in schema_of(function).arguments]
    return kwargs.get(name, args[names.index(name)] if name in names[: len(args)] else None)
