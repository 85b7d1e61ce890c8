"""Call the function of an answer with one rank's inputs, and note what became of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Catch = type[Exception] | tuple[type[Exception], ...]  # as after `except`


class Returned(NamedTuple):
    """What comes back from one rank."""

    result: Any
    inputs_after: list[Any]
    shared: bool  # the result shares memory with an input


def call_with(
    rank: int, world_size: int, function: Callable[..., Any], mine: list[Any], same: dict[str, Any], catch: Catch
) -> Returned:
    """Call a function with a rank's own inputs, and with its `rank` and the `world_size` if it has parameters for them.

    An error of a kind in `catch` is the result.
    """
    signature = inspect.signature(function)
    given = signature.bind_partial(*mine, **same).arguments  # a check may hand out a world_size of its own, as data
    free = signature.parameters.keys() - given.keys()
    known = {name: value for name, value in [("rank", rank), ("world_size", world_size)] if name in free}
    kept = [x.detach() if isinstance(x, torch.Tensor) else x for x in mine]
    try:
        result = function(*mine, **same, **known)
        return Returned(result, kept, shares_memory(result, mine))
    except catch as error:
        return Returned(error, kept, False)


def shares_memory(result: Any, inputs: list[Any]) -> bool:
    """Whether the result is a tensor, not empty and not on meta, in the memory of an input, or holds such a tensor."""
    if isinstance(result, list | tuple):
        return any(shares_memory(item, inputs) for item in result)
    if not isinstance(result, torch.Tensor) or not result.numel() or not result.untyped_storage().data_ptr():
        return False
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    return any(x.untyped_storage().data_ptr() == result.untyped_storage().data_ptr() for x in tensors)
