"""Whether two values are equal: the one rule that all checks share.

Without `rtol`, exactly. With it, a number may be off by rtol times the right one, and each entry of a tensor by rtol
times the largest entry: a small entry of a sum is as uncertain as the large numbers that cancelled in it. Lists and
tuples are compared item by item, and a tuple will do for a list. NaN equals NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard

import torch


def equal_values(got: Any, right: Any, rtol: float = 0, strict: bool = False) -> bool:
    """Whether two values are equal; `strict` requires the same type and dtype as well.

    For numbers, 3 will do for 3.0, but not 3.0 for 3.
    """
    if is_number(got) and is_number(right):
        return (not strict or will_do(got, right)) and near(got, right, rtol)
    if isinstance(got, list | tuple) and isinstance(right, list | tuple):
        return len(got) == len(right) and all(equal_values(a, b, rtol, strict) for a, b in zip(got, right, strict=True))
    if type(got) is not type(right):
        return False
    if isinstance(got, dict):
        return got.keys() == right.keys() and all(equal_values(got[name], right[name], rtol, strict) for name in right)
    if not isinstance(got, torch.Tensor):
        return bool(got == right)
    return equal_tensors(got, right, rtol, strict)


def equal_tensors(got: torch.Tensor, right: torch.Tensor, rtol: float, strict: bool) -> bool:
    if got.shape != right.shape or got.is_meta or right.is_meta or strict and got.dtype != right.dtype:
        return False  # a meta tensor has no values
    wide_got, wide_right = widest(got, right)
    tolerance = rtol * largest_of(wide_right) if rtol else 0.0
    return torch.allclose(wide_got, wide_right, rtol=0, atol=tolerance, equal_nan=True)


def which_equal(several: Sequence[Any], right: Any, rtol: float = 0) -> list[bool]:
    """`equal_values` for each of several; in a few operations where all are plain tensors of one shape and dtype."""
    if not several or not all(comparable(one, right) for one in several):
        return [equal_values(one, right, rtol) for one in several]
    rows = torch.stack([one.detach() for one in several]).reshape(len(several), right.numel())
    wide_rows, wide_right = widest(rows, right.detach().reshape(right.numel()))
    close = torch.isclose(wide_rows, wide_right, rtol=0, atol=rtol * largest_of(wide_right), equal_nan=True)
    each: list[bool] = close.all(1).tolist()
    return each


def comparable(one: Any, right: Any) -> bool:
    return (
        type(one) is type(right) is torch.Tensor
        and (one.shape, one.dtype, one.layout) == (right.shape, right.dtype, torch.strided)
        and not (one.is_meta or right.is_meta)
    )


def largest_of(wide: torch.Tensor) -> float:
    """The largest entry that is finite, in absolute value; 0 if there is none."""
    largest: float = wide.abs().nan_to_num(posinf=0.0).max().item() if wide.numel() else 0.0
    return largest


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def will_do(got: object, right: object) -> bool:
    """Whether a number has the right type: only a whole number will do for a whole number."""
    return isinstance(got, Integral) or not isinstance(right, Integral)


def near(got: float, right: float, rtol: float) -> bool:
    if math.isinf(right):
        return got == right
    return got == right or abs(got - right) <= rtol * abs(right) or (math.isnan(got) and math.isnan(right))


def widest(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in a dtype that can hold the numbers of all their dtypes."""
    dtype = torch.complex128 if any(tensor.is_complex() for tensor in tensors) else torch.float64
    return [tensor.to(dtype) for tensor in tensors]
