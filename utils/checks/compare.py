"""Compare what the ranks returned with what is right, and say in words what differs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..kit.witness import Witness
from ..recording import in_flight
from .answer import Answer, CheckFailed
from .equality import equal_values, is_number, near
from .show import digits_of, rounded, show
from .wording import named

Mistakes = Mapping[str, Any]  # {a common mistake, in words: the wrong value that it leads to, or got -> whether it is}
OF_A_COPY = "Start from a copy: {name}.detach().clone().requires_grad_()."
ADVICE_ON_AUTOGRAD = {
    "has a .grad": f"Your function called backward() on the caller's own tensor, which keeps the gradient. {OF_A_COPY}",
    "requires a gradient": f"Your function called requires_grad_() on the caller's own tensor. {OF_A_COPY}",
}  # advice on a change of an input that autograd sees, by how call_with puts it
LARGE = 1000  # a factor from here on is within ROUGHLY of a whole number by chance
ROUGHLY = 1e-6  # the relative error with which a mistake is recognised, where the right value may have an error at all


def expect(got: Any, expected: Any, rank: int | str, recognise: Mistakes | None = None, rtol: float = 0) -> None:
    """Raise CheckFailed unless `got` is `expected`: same type, dtype, shape and values (see equality.py).

    rank       the rank that returned it; or the words to put in front of it, such as "the input is"
    recognise  {a common mistake, in words: the wrong value that it leads to}; or a function of what came back, which
               says whether it is that mistake. The one that fits is named, or the first two. One that is not a mistake
               here, because it leads to the right value, is passed over.
    rtol       the relative error to allow, for results that depend on the order of additions
    """
    if equal_values(got, expected, rtol, strict=True):
        return
    seen = f"rank {rank} returned" if isinstance(rank, int) else rank
    words = read_in_flight(got, expected) or wrong_type(got, expected, rtol)
    words = words or recognised(got, expected, recognise or {}, rtol) or almost(got, expected, max(rtol, ROUGHLY))
    digits = digits_of(rtol) if rtol else None
    shown = f"{seen} {show(got, expected, digits)}"
    raise CheckFailed(shown, rounded(expected, got, rtol), words, lead=len(seen) + 1)


def read_in_flight(got: Any, expected: Any) -> str:
    """What to do about numbers that were read before their call had delivered them; "" if there are none."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple) and len(got) == len(expected):
        return next(filter(None, map(read_in_flight, got, expected)), "")
    if type(got) is torch.Tensor and in_flight.holds_poison(got):
        return (
            f"It holds numbers that were read while their tensor was still in flight (shown as NaN). {in_flight.ADVICE}"
        )
    return ""


def wrong_type(got: Any, expected: Any, rtol: float) -> str:
    """What to do about the right value in the wrong type, or the right word misspelled; "" if that is not it."""
    if is_number(expected) and isinstance(got, torch.Tensor) and got.numel() == 1:
        right = equal_values(got.item(), expected, max(rtol, ROUGHLY) if rtol else 0)
        return "That is a tensor: return its number, with .item()." if right else ""
    if (
        holds_tensors(got)
        and not holds_tensors(expected)
        and equal_values(without_tensors(got), expected, max(rtol, ROUGHLY))
    ):
        return "That holds tensors where plain numbers are wanted: take .item() of one number, .tolist() of several."
    if isinstance(got, str) and isinstance(expected, str):
        same = re.match(rf"\s*{re.escape(expected)}(?!\w|\S*\d)", got, re.IGNORECASE)  # not "cpus" or "cpu:0" for "cpu"
        return f"The right answer, spelled differently: return {expected!r}, as the docstring does." if same else ""
    if not equal_values(got, expected, rtol):
        return ""
    if holds_tensors(expected):
        usual = not isinstance(expected, torch.Tensor) or expected.dtype in (torch.float32, torch.float64)
        advice = "create buffers with the dtype of the input, and convert back what you have converted"
        return f"The numbers are right but not their dtype: {advice if usual else f'{expected.dtype} is wanted'}."
    return "The value is right but not its type: return whole numbers, with int(...), or by dividing with //."


def without_tensors(value: Any) -> Any:
    """The same with plain numbers and lists in place of tensors, where these have values."""
    if isinstance(value, list | tuple):
        return [without_tensors(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) and not value.is_meta else value


def holds_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or isinstance(value, list | tuple) and any(map(holds_tensors, value))


def recognised(got: Any, expected: Any, mistakes: Mistakes, rtol: float) -> str:
    """The mistake that leads to `got`, as a sentence; "" if there is none.

    Where two lead to it, both are named: the numbers can't tell which of them was made. A function that recognises a
    mistake is only asked if no value has fitted before it.
    """
    roughly = max(rtol, ROUGHLY) if rtol else 0
    fitting: list[str] = []
    for words, wrong in mistakes.items():
        if callable(wrong):
            fits = not fitting and wrong(got)
        else:
            fits = equal_values(got, wrong, roughly) and not equal_values(wrong, expected, rtol)
        if fits:
            fitting.append(words)
            if callable(wrong):
                break
    return named(fitting[:2])


def almost(got: Any, expected: Any, rtol: float) -> str:
    """How a value that no mistake leads to is related to the right one; "" if it isn't, or if that can be chance."""
    if not isinstance(expected, torch.Tensor):
        whole = not isinstance(expected, float) or not isinstance(got, float)  # whole numbers are multiples by chance
        return "" if whole else almost(torch.tensor([got]), torch.tensor([expected]), rtol)
    plain = type(got) is torch.Tensor and got.layout == torch.strided and not (got.is_meta or got.is_complex())
    if not plain or expected.is_meta or not expected.is_floating_point():
        return ""
    if got.shape != expected.shape:
        same = got.numel() == expected.numel() > 1 and equal_values(got.reshape(-1), expected.reshape(-1), rtol)
        return f"These are the right numbers in a different shape: {tuple(expected.shape)} is wanted." * same
    wide, right = got.detach().double(), expected.detach().double()
    factor = ((wide * right).sum() / right.square().sum()).item()
    if not factor or not math.isfinite(factor) or not equal_values(wide, factor * right, rtol):
        return ""
    size = max(abs(factor), 1 / abs(factor))
    chance = right[right != 0].unique().numel() < 2 and not tells(size)  # one number is a multiple of any
    if chance or round(size, 3) == 1 and factor > 0:
        return ""
    times = f"{factor:.6g} times the right one" if abs(factor) >= 1 else f"the right one divided by {1 / factor:.6g}"
    return f"Every number is {times}." if right.numel() > 1 else f"That is {times}."


def tells(factor: float) -> bool:
    """Whether a factor of one number, 1 or more, is hardly chance: a small whole number, or a power of 10 or of 2."""
    simple = [round(factor)] if factor < LARGE else [10 ** round(math.log10(factor)), 2 ** round(math.log2(factor))]
    return any(near(factor, one, ROUGHLY) for one in simple)


def expect_unchanged(answer: Answer, *inputs: Sequence[Any]) -> None:
    """Raise CheckFailed if a rank's inputs are not what they were before the call, for autograd too."""
    for rank, after in enumerate(answer.inputs_after):
        before = [one_per_rank[rank] for one_per_rank in inputs]
        for number, (was, has_become) in enumerate(zip(before, after, strict=True), 1):
            # Strictly: through `.data`, a tensor can get another dtype.
            if isinstance(was, Witness) or equal_values(has_become, was, strict=True):
                continue
            name = answer.names[number - 1] if answer.names else ""
            which = name or ("the input" if len(inputs) == 1 else f"input {number} of {len(inputs)}")
            if isinstance(was, torch.Tensor) and isinstance(has_become, str):  # see call_with
                advice = ADVICE_ON_AUTOGRAD.get(has_become, "Work on a copy: {name}.detach().clone().")
                raise CheckFailed(
                    f"rank {rank}: {which} {has_become} after the call",
                    "an unchanged input, for autograd too",
                    advice.format(name=name or "x"),
                )
            seen = f"rank {rank}: {which} is {show(has_become, was)} after the call"
            raise CheckFailed(seen, rounded(was, has_become, 0), "The input must stay as it was: work on a copy.")


def expect_possible(rank: int, held: int, least: int) -> None:
    """Raise CheckFailed if a rank claims to hold less than any right answer must. Only the rank knows what it holds."""
    if held < least:
        raise CheckFailed(
            f"rank {rank} claims to hold {held:,} bytes in tensors",
            f"{least:,} at least",
            "Keep numbers in tensors, where they count.",
            impossible=True,
        )


def expect_own_memory(answer: Answer) -> None:
    """Raise CheckFailed if a rank's result shares memory with its input."""
    for rank, shared in enumerate(answer.shared):
        if shared:
            raise CheckFailed(
                f"rank {rank} returned a tensor that shares memory with its input",
                "memory of its own",
                "Changing one of the two later would change the other. Start from a copy: x.clone().",
            )
