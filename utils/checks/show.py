"""A value in a few characters."""

from __future__ import annotations

import math
from typing import Any

import torch

from .equality import equal_values, is_number, largest_of, widest, will_do

LONGEST = 120  # characters of a value that is not a tensor
LONGEST_TENSOR = 80  # characters of a tensor that is shown whole


def show(value: Any, other: Any = None, digits: int | None = None, expected: bool = False) -> str:
    """A value in a few characters, with its type, dtype or shape where those of `other` differ.

    digits    of a float; all of them by default, and where the two values differ only later
    expected  whether it stands below the other one, which says where the first difference is
    """
    if isinstance(value, torch.Tensor):
        return show_tensor(value, other, digits, expected)
    text = plain(value, digits)
    if digits and text == plain(other, digits):
        text = plain(value)
    text = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    name = type(value).__name__
    if value is None or other is None or same_kind(value, other):
        return text
    return f"{text} ({'an' if name[0] in 'aeiou' else 'a'} {name})"


def same_kind(value: Any, other: Any) -> bool:
    """Whether the type of `value` will do where `other` is right."""
    if isinstance(value, list | tuple):
        return isinstance(other, list | tuple)
    return type(value) is type(other) or is_number(value) and is_number(other) and will_do(value, other)


def plain(value: Any, digits: int | None = None) -> str:
    """`[0.25, [12 15 10]]`: as Python writes it, but for tensors and for floats that are cut to `digits`."""
    if isinstance(value, torch.Tensor):
        return show_tensor(value, None)
    if isinstance(value, list | tuple) and value:
        items = ", ".join(plain(item, digits) for item in value)
        return f"[{items}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {plain(item, digits)}" for name, item in value.items()) + "}"
    if digits and isinstance(value, float):
        return f"{value:.{digits}g}"
    return repr(value)


def rounded(value: Any, other: Any, rtol: float) -> str:
    """What is expected, where a relative error is allowed: `153.6 to 12 digits`."""
    if not rtol or not holds_floats(value):
        return show(value, other, expected=True)
    digits = digits_of(rtol)
    other = None if is_number(other) else other  # a whole number will do for a float
    return f"{show(value, other, digits, expected=True)} to {digits} digits"


def digits_of(rtol: float) -> int:
    """How many digits of a number must be right."""
    return max(1, round(-math.log10(rtol)))


def holds_floats(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(holds_floats, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_floats, value))
    if isinstance(value, torch.Tensor):
        return value.is_floating_point()
    return isinstance(value, float)


def show_tensor(value: torch.Tensor, other: Any = None, right_digits: int | None = None, expected: bool = False) -> str:
    if value.is_meta:
        return "a tensor without values: its memory was freed, or it is on the device meta"
    if not isinstance(other, torch.Tensor):
        return numbers(value) + (" (a tensor)" if other is not None else "")
    remarks = [str(value.dtype)] * (value.dtype != other.dtype)
    remarks += [f"shape {tuple(value.shape)}"] * (value.shape != other.shape)
    digits = 6
    if value.shape == other.shape and not other.is_meta:
        if is_long(value) or is_long(other):
            remarks += first_difference(value, other, right_digits, expected)
        else:
            digits = enough_digits(value, other)
    return numbers(value, digits) + (f" ({', '.join(remarks)})" if remarks else "")


def first_difference(value: torch.Tensor, other: torch.Tensor, right_digits: int | None, expected: bool) -> list[str]:
    """Where two tensors begin to differ, and the number there; of the expected one only the number."""
    here, there = widest(value, other)
    tolerance = 10.0**-right_digits * max(largest_of(here), largest_of(there)) if right_digits else 0.0
    for atol in (tolerance, 0.0):
        for index in (~torch.isclose(here, there, rtol=0, atol=atol, equal_nan=True)).nonzero().tolist():
            at, other_at = value[tuple(index)], other[tuple(index)]
            number = every_number(at, enough_digits(at, other_at))
            return [f"{number} there" if expected else f"first difference at {index}: {number}"]
    return []


def enough_digits(value: torch.Tensor, other: torch.Tensor) -> int:
    """6, or 12 for numbers that differ later."""
    return 12 if every_number(value, 6) == every_number(other, 6) and not equal_values(value, other) else 6


def numbers(tensor: torch.Tensor, digits: int = 6) -> str:
    """`[12 15 10]`; the first and last few numbers of a long tensor; `[]` of an empty one, which may have many rows."""
    if not is_long(tensor):
        return every_number(tensor, digits)
    flat = tensor.reshape(-1)
    return f"{every_number(flat[:6], digits)[:-1]} ... {every_number(flat[-2:], digits)[1:]}"


def is_long(tensor: torch.Tensor) -> bool:
    """Whether all numbers of a tensor would be too many to read."""
    return tensor.numel() > 16 or len(every_number(tensor, 6)) > LONGEST_TENSOR


def every_number(tensor: torch.Tensor, digits: int) -> str:
    if not tensor.numel():
        return "[]"
    if tensor.dim() == 0:
        return f"{tensor.item():.{digits}g}" if tensor.is_floating_point() else str(tensor.item())
    return "[" + " ".join(every_number(row, digits) for row in tensor) + "]"
