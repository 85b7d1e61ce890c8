"""What kind of kernel an operation is, which decides the rate that it achieves (cluster/achieved.py), and its cost."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from ...cluster.achieved import KernelRates
from ...recording.torch_private import (
    ATTENTION,
    ATTENTION_BACKWARD,
    GROUPED_PRODUCTS,
    ROWS,
    SCALED_PRODUCTS,
    OpOverload,
    schema_of,
)

aten = torch.ops.aten
# Where the two factors of a matrix product are among the arguments.
PRODUCTS = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}
PRODUCTS |= dict.fromkeys(SCALED_PRODUCTS | GROUPED_PRODUCTS, 0)
# Where torch.nn.attention.varlen has its operators: attention of several sequences, one after the other.
VARIABLE_LENGTHS = "torch_attn"


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
    needed   the FLOPs that are of use, which is what counts at achieved rates: half of causal attention's, because a
             token attends only to those before it. None for all
    generation  of an attention kernel, 2 or 3; None for the one that the rates say
    """

    flops: int
    moved: float
    dtype: str = "float32"
    kind: str = ""
    product: Product | None = None
    needed: int | None = None
    generation: int | None = None

    @property
    def needed_flops(self) -> int:
        return self.flops if self.needed is None else self.needed

    def computing(self, peak: float, rates: KernelRates) -> float:
        """Seconds that the FLOPs take at these rates."""
        if self.product is not None:
            return rates.matmul_seconds(*self.product, peak)
        part = rates.matmul
        if self.kind.startswith("attention"):
            part = rates.attention_part(self.kind == "attention_backward", self.generation or rates.flash)
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
        batch = first.shape[0] if first.dim() == second.dim() == 3 else 1
        dtype = str(first.dtype).removeprefix("torch.")  # not that of a wider sum which the product is added to
        return Kernel(flops, moved, dtype, product=Product(batch, *shape_of(first, second), first.element_size()))
    if packet in ATTENTION or packet in ATTENTION_BACKWARD:
        kind = "attention" if packet in ATTENTION else "attention_backward"
        causal = bool(argument(function, "is_causal", args, kwargs))
        query, key = args[:2] if packet in ATTENTION else args[1:3]  # behind the gradient of the output
        part = causal_part(query, key) if causal else 1.0
        return Kernel(flops, moved, dtype, kind, needed=int(flops * part))
    if function.namespace == VARIABLE_LENGTHS:
        kind = "attention_backward" if "backward" in packet.__name__ else "attention"
        causal = bool(argument(function, "is_causal", args, kwargs))
        return Kernel(flops, moved, dtype, kind, needed=flops // 2 if causal else None)
    return Kernel(flops, moved, dtype)


def product_flops(first: torch.Tensor, second: torch.Tensor) -> int:
    """Of first @ second. In a grouped product one of them, or both, have a dimension for the groups: with both, groups
    are multiplied one by one; with one or none, the groups share out a dimension of the others.
    """
    m, n, k = shape_of(first, second)
    return 2 * m * n * k * (first.shape[0] if first.dim() == second.dim() == 3 else 1)


def causal_part(query: torch.Tensor, key: torch.Tensor) -> float:
    """The share of all pairs of queries and keys (..., length, width) that a causal mask leaves: 1/2 for a square."""
    queries, keys = query.shape[-2], key.shape[-2]
    both = min(queries, keys)
    return (both * both / 2 + (queries - both) * keys) / (queries * keys) if both else 0.0


def attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, backward: bool) -> int:
    """Of softmax(query key') value, all (batch, heads, length, width): the products with the width of the keys are one
    forward and three backward (the scores once more, the gradients of query and key), those with that of the values one
    and two.
    """
    *heads, queries, width = query.shape
    widths = 3 * width + 2 * value.shape[-1] if backward else width + value.shape[-1]
    return 2 * math.prod(heads) * queries * key.shape[-2] * widths


def shape_of(first: torch.Tensor, second: torch.Tensor) -> tuple[int, int, int]:
    """(m, n, k)"""
    return first.shape[-2], second.shape[-1], first.shape[-1]


def argument(function: OpOverload[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument of this name, wherever it was given; None if it was left out."""
    names = [each.name for each in schema_of(function).arguments]
    return kwargs.get(name, args[names.index(name)] if name in names[: len(args)] else None)
