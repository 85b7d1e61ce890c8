"""A value in a few characters."""

import torch

from .equality import alike, widest


def show(value, other=None) -> str:
    """A value in a few characters; with its type, dtype or shape where `other` has another."""
    if isinstance(value, torch.Tensor):
        return show_tensor(value, other)
    parts = [show(item) if isinstance(item, torch.Tensor) else repr(item) for item in items(value)]
    text = f"[{', '.join(parts)}]" if parts else repr(value)
    text = text if len(text) <= 120 else text[:117] + "..."
    name = type(value).__name__
    return (
        text
        if value is None or type(value) is type(other)
        else f"{text} ({'an' if name[0] in 'aeiou' else 'a'} {name})"
    )


def items(value) -> list:
    """The items of a list or tuple; none of anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def show_tensor(value: torch.Tensor, other=None) -> str:
    if value.is_meta:
        return "a tensor on the device meta, which holds no values"
    if not isinstance(other, torch.Tensor):
        return numbers(value) + (" (a tensor)" if other is not None else "")
    remarks = [str(value.dtype)] * (value.dtype != other.dtype)
    remarks += [f"shape {tuple(value.shape)}"] * (value.shape != other.shape)
    if value.numel() > 16 and value.shape == other.shape and not other.is_meta:
        first, *_ = [*torch.ne(*widest(value, other)).nonzero().tolist(), None]
        remarks += [f"first difference at index {', '.join(map(str, first))}"] if first else []
    too_short = not other.is_meta and numbers(value) == numbers(other) and not alike(value, other)
    return numbers(value, digits=12 if too_short else 6) + (f" ({', '.join(remarks)})" if remarks else "")


def numbers(tensor: torch.Tensor, digits: int = 6) -> str:
    """`[12 15 10]`; of a long tensor the first and last few, of an empty one nothing: it may have a billion rows."""
    if not tensor.numel():
        return "[]"
    if tensor.numel() > 16:
        flat = tensor.reshape(-1)
        return f"{numbers(flat[:6], digits)[:-1]} ... {numbers(flat[-2:], digits)[1:]}"
    if tensor.dim() == 0:
        return f"{tensor.item():.{digits}g}" if tensor.is_floating_point() else str(tensor.item())
    return "[" + " ".join(numbers(row, digits) for row in tensor) + "]"
