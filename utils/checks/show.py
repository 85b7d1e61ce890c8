"""A value in a few characters."""

from __future__ import annotations

from typing import Any

import torch

from .equality import alike, widest


def show(value: Any, other: Any = None) -> str:
    """A value in a few characters, with its type, dtype or shape where those of `other` differ."""
    if isinstance(value, torch.Tensor):
        return show_tensor(value, other)
    items = list(value) if isinstance(value, list | tuple) else []
    parts = [show(item) if isinstance(item, torch.Tensor) else repr(item) for item in items]
    text = f"[{', '.join(parts)}]" if parts else repr(value)
    text = text if len(text) <= 120 else text[:117] + "..."
    name = type(value).__name__
    if value is None or type(value) is type(other):
        return text
    return f"{text} ({'an' if name[0] in 'aeiou' else 'a'} {name})"


def show_tensor(value: torch.Tensor, other: Any = None) -> str:
    if value.is_meta:
        return "a tensor on the device meta, which holds no values"
    if not isinstance(other, torch.Tensor):
        return numbers(value) + (" (a tensor)" if other is not None else "")
    remarks = [str(value.dtype)] * (value.dtype != other.dtype)
    remarks += [f"shape {tuple(value.shape)}"] * (value.shape != other.shape)
    if value.numel() > 16 and value.shape == other.shape and not other.is_meta:
        different = torch.ne(*widest(value, other)).nonzero().tolist()
        remarks += [f"first difference at index {', '.join(map(str, index))}" for index in different[:1]]
    too_short = not other.is_meta and numbers(value) == numbers(other) and not alike(value, other)
    return numbers(value, digits=12 if too_short else 6) + (f" ({', '.join(remarks)})" if remarks else "")


def numbers(tensor: torch.Tensor, digits: int = 6) -> str:
    """`[12 15 10]`; the first and last few numbers of a long tensor; `[]` of an empty one, which may have many rows."""
    if not tensor.numel():
        return "[]"
    if tensor.numel() > 16:
        flat = tensor.reshape(-1)
        return f"{numbers(flat[:6], digits)[:-1]} ... {numbers(flat[-2:], digits)[1:]}"
    if tensor.dim() == 0:
        return f"{tensor.item():.{digits}g}" if tensor.is_floating_point() else str(tensor.item())
    return "[" + " ".join(numbers(row, digits) for row in tensor) + "]"
