"""When two values are equal."""

import torch


def alike(left, right, rtol: float = 0, strict: bool = False) -> bool:
    """Whether two values are equal; `strict` wants the same type and dtype too."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(alike(a, b, rtol, strict) for a, b in zip(left, right, strict=True))
    if not isinstance(left, torch.Tensor):
        return left == right
    if left.shape != right.shape or left.is_meta or right.is_meta or strict and left.dtype != right.dtype:
        return False  # a meta tensor has no values
    return torch.allclose(*widest(left, right), rtol=rtol, atol=0, equal_nan=True)


def widest(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """In a dtype that holds the numbers of every dtype."""
    dtype = torch.complex128 if any(tensor.is_complex() for tensor in tensors) else torch.float64
    return [tensor.to(dtype) for tensor in tensors]
