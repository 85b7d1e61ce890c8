"""Whether two values are equal."""

from __future__ import annotations

from typing import Any

import torch


def alike(left: Any, right: Any, rtol: float = 0, strict: bool = False) -> bool:
    """Whether two values are equal; `strict` requires the same type and dtype as well."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(alike(a, b, rtol, strict) for a, b in zip(left, right, strict=True))
    if not isinstance(left, torch.Tensor):
        return bool(left == right)
    if left.shape != right.shape or left.is_meta or right.is_meta or strict and left.dtype != right.dtype:
        return False  # a meta tensor has no values
    wide_left, wide_right = widest(left, right)
    return torch.allclose(wide_left, wide_right, rtol=rtol, atol=0, equal_nan=True)


def widest(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in a dtype that can hold the numbers of all their dtypes."""
    dtype = torch.complex128 if any(tensor.is_complex() for tensor in tensors) else torch.float64
    return [tensor.to(dtype) for tensor in tensors]
