"""Fingerprints of results: a few characters that tell two results apart, and hold neither of them.

A fingerprint is a hash of the form of a value (shapes, words, None) and two weighted sums of its numbers, so it can be
compared with the tolerance that its check allows. dtypes don't count: a mistake is the same in float32 and float64.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from .equality import is_number, largest_of

EXACT = 1e-9  # the relative error between two sums of the same numbers, on machines that add them up differently
ALMOST = 1e-6  # the relative error between two fingerprints of one value
DIGITS = 12  # significant digits of each sum
ENOUGH = 3  # significant digits beyond which a single number is hardly right by chance
FACTORS = (7.389056098930650, 12.18249396070347)  # times the roots of 2, 3, ...; the fractional parts are the weights


def fingerprint(value: Any) -> str:
    """`5f0c3a1b 12.0312 -3.55`: a hash of the form, and two sums if it holds numbers."""
    form, numbers = taken_apart(value)
    sums = sums_of(numbers) if len(numbers) else []
    return " ".join([form, *(f"{one:.{DIGITS}g}" for one in sums)])


def fits(print_of_other: str, value: Any, rtol: float = 0) -> bool:
    """Whether a value has this fingerprint, but for a relative error of its numbers (see equality.py)."""
    form, *others = print_of_other.split()
    own, numbers = taken_apart(value)
    if form != own or bool(others) != bool(len(numbers)):
        return False
    allowed = 2 * max(rtol, EXACT) * largest_of(numbers) * math.sqrt(len(numbers))
    return all(abs(float(a) - b) <= allowed for a, b in zip(others, sums_of(numbers), strict=True)) if others else True


def agree(one: str, other: str) -> bool:
    """Whether two fingerprints are those of the same value."""
    (form, *sums), (other_form, *other_sums) = one.split(), other.split()
    return form == other_form and all(
        math.isclose(float(a), float(b), rel_tol=ALMOST) for a, b in zip(sums, other_sums, strict=False)
    )


def is_telling(value: Any) -> bool:
    """Whether a value by itself says how it came about: several different numbers, or one with many digits."""
    _, numbers = taken_apart(value)
    if not len(numbers) or has_non_finite(value):
        return False
    if len(numbers) == 1:
        number = float(numbers)
        return float(f"{number:.{ENOUGH}g}") != number and not number.is_integer()
    of_floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return len(numbers.unique()) >= (2 if of_floats else 4)


def has_non_finite(value: Any) -> bool:
    return any(not bool(piece.isfinite().all()) for piece in pieces(value) if isinstance(piece, torch.Tensor))


def taken_apart(value: Any) -> tuple[str, torch.Tensor]:
    """(a hash of all but the finite numbers, those numbers one after the other)"""
    form, numbers = hashlib.blake2b(digest_size=4), [torch.empty(0, dtype=torch.float64)]
    for piece in pieces(value):
        if isinstance(piece, str):
            form.update(f"{piece}\0".encode())
            continue
        numbers.append(piece.nan_to_num(0.0, 0.0, 0.0))
        if not bool(piece.isfinite().all()):
            form.update(f"{piece[~piece.isfinite()].tolist()} at {(~piece.isfinite()).nonzero().tolist()}".encode())
    return form.hexdigest(), torch.cat(numbers)


def pieces(value: Any) -> Iterator[str | torch.Tensor]:
    """A value as words for its form and flat float64 tensors for its numbers."""
    if is_number(value):
        yield "number"
        yield torch.tensor([min(max(value, -1e300), 1e300) if math.isfinite(value) else value], dtype=torch.float64)
    elif isinstance(value, torch.Tensor):
        yield f"tensor {tuple(value.shape)}"
        if not value.is_meta:
            plain = value.detach().to_dense() if value.layout != torch.strided else value.detach()
            yield (torch.view_as_real(plain) if plain.is_complex() else plain).double().reshape(-1)
    elif isinstance(value, torch.nn.Module):
        yield from pieces({"a module": dict(value.state_dict())})
    elif isinstance(value, list | tuple):
        yield f"{len(value)} items"
        for item in value:
            yield from pieces(item)
    elif isinstance(value, dict):
        yield f"{len(value)} names"
        for name in sorted(value, key=str):
            yield str(name)
            yield from pieces(value[name])
    else:
        yield (
            f"{type(value).__name__} {value}" if isinstance(value, str | bool | None | Exception) else str(type(value))
        )


def sums_of(numbers: torch.Tensor) -> list[float]:
    """Two sums with weights that no whole numbers relate to each other, so different numbers give different sums."""
    roots = torch.arange(2, len(numbers) + 2, dtype=torch.float64).sqrt()
    return [float(((roots * factor).frac() + 0.5) @ numbers) for factor in FACTORS]
