"""Compare what the ranks returned with what is right, and say in words what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .answer import Answer, CheckFailed
from .equality import alike
from .show import show

Mistakes = Mapping[str, Any]  # {a common mistake, in words: the wrong value that it leads to}


def expect(got: Any, expected: Any, rank: int | str, recognise: Mistakes | None = None, rtol: float = 0) -> None:
    """Raise CheckFailed unless `got` is exactly `expected`: same type, dtype, shape and values (NaN equals NaN).

    rank       the rank that returned it; or the words to put in front of it, such as "the input is"
    recognise  {a common mistake, in words: the wrong value that it leads to}
    rtol       the relative error to allow, for results that depend on the order of additions
    """
    if alike(got, expected, rtol, strict=True):
        return
    seen = f"rank {rank} returned" if isinstance(rank, int) else rank
    usual = {
        "the right numbers in a different dtype: create buffers with the dtype of the input": expected,
        **(recognise or {}),
    }
    mistake = next((words for words, wrong in usual.items() if alike(got, wrong, rtol)), "")
    raise CheckFailed(f"{seen} {show(got, expected)}", show(expected, got), mistake and f"That is {mistake}.")


def expect_unchanged(answer: Answer, *inputs: Sequence[Any]) -> None:
    """Raise CheckFailed if a rank's inputs are not what they were before the call."""
    for rank, after in enumerate(answer.inputs_after):
        before = [one_per_rank[rank] for one_per_rank in inputs]
        for was, has_become in zip(before, after, strict=True):
            if not alike(has_become, was):
                seen = f"rank {rank}: the input is {show(has_become, was)} after the call"
                raise CheckFailed(seen, show(was, has_become), "The input must stay as it was: work on a copy.")


def expect_own_memory(answer: Answer) -> None:
    """Raise CheckFailed if a rank's result shares memory with its input."""
    for rank, shared in enumerate(answer.shared):
        if shared:
            raise CheckFailed(
                f"rank {rank} returned a tensor that shares memory with its input",
                "memory of its own",
                "Changing one of the two later would change the other. Start from a copy: x.clone().",
            )


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)
