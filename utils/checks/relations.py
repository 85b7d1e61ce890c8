"""How a wrong result is related to the inputs and to what the other ranks should return, in any exercise.

These are the words for an answer that nobody has thought of. They hold no formula of any exercise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .equality import equal_values
from .fingerprints import is_telling


def relation(got: Any, rank: int, rights: Sequence[Any], inputs: Sequence[Sequence[Any]], rtol: float) -> str:
    """In words that follow "That is"; "" if there is none, or if it can be chance.

    rights  what each rank should return
    inputs  as in a Case: for each argument, a list with one entry per rank
    """
    if not is_telling(got):
        return ""
    candidates = [*of_ranks(rank, rights), *of_inputs(rank, inputs), *transposed(rights[rank])]
    return next((words for words, value in candidates if equal_values(got, value, rtol)), "")


def of_ranks(rank: int, rights: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"what rank {other} should return", right) for other, right in enumerate(rights) if other != rank)


def of_inputs(rank: int, inputs: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """A rank's own input, that of another rank, and their sum and mean, for each input."""
    for name, values in by_name(inputs):
        yield f"this rank's own {name}", values[rank]
        yield from ((f"rank {other}'s {name}", value) for other, value in enumerate(values) if other != rank)
        tensors = [value.double() for value in values if type(value) is torch.Tensor and not value.is_complex()]
        if len(tensors) == len(values) > 1 and len({tensor.shape for tensor in tensors}) == 1:
            total = torch.stack(tensors).sum(0)
            yield f"the sum of all ranks' {name}", total
            yield f"the mean of all ranks' {name}", total / len(tensors)


def by_name(inputs: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Sequence[Any]]]:
    """(what to call an input, each rank's): an input that is a dict holds arguments by their names."""
    for values in inputs:
        if isinstance(values[0], dict):
            yield from ((str(name), [of_rank[name] for of_rank in values]) for name in values[0])
        else:
            yield "input", values


def transposed(right: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(right, torch.Tensor) and right.dim() == 2 and right.layout == torch.strided:
        yield "the right one, transposed", right.T
