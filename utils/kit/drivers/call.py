"""Call the function of an answer with one rank's inputs, and note what became of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .left_behind import LeftBehind, expect_none_left, held

Catch = type[Exception] | tuple[type[Exception], ...]  # as after `except`


class Returned(NamedTuple):
    """What comes back from one rank."""

    result: Any
    inputs_after: list[Any]  # in place of a tensor that autograd now treats differently, words that say how
    shared: bool  # the result shares memory with an input


def call_with(
    rank: int, world_size: int, function: Callable[..., Any], mine: list[Any], for_all: dict[str, Any], catch: Catch
) -> Returned:
    """Call a function with a rank's own inputs, and with its `rank` and the `world_size` if it has parameters for them.

    An error of a kind in `catch` is the result. Raises LeftBehind if the function holds tensors beyond its call.
    """
    signature = inspect.signature(function)
    given = signature.bind_partial(*mine, **for_all).arguments  # a check may hand out a world_size of its own, as data
    free = signature.parameters.keys() - given.keys()
    known = {name: value for name, value in [("rank", rank), ("world_size", world_size)] if name in free}
    before, held_before = [autograd_state(x) for x in mine], held(function)
    try:
        result = function(*mine, **for_all, **known)
        expect_none_left(held_before, function, [mine, for_all], result)
        after = [autograd_change(x, was) or value for x, was, value in zip(mine, before, plain(mine), strict=True)]
        return Returned(result, after, shares_memory(result, mine))
    except LeftBehind:  # no exception of the function's own
        raise
    except catch as error:
        return Returned(error, plain(mine), False)


def plain(inputs: list[Any]) -> list[Any]:
    """The same without autograd, as they are now: a tensor's `.data` may be another tensor's, of another dtype."""
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]


def autograd_state(x: Any) -> tuple[bool, torch.Tensor | None]:
    """Whether a tensor requires a gradient, and a copy of the one it has."""
    if not isinstance(x, torch.Tensor) or not x.is_leaf:
        return False, None
    return x.requires_grad, None if x.grad is None else x.grad.detach().clone()


def autograd_change(x: Any, before: tuple[bool, torch.Tensor | None]) -> str:
    """How a tensor differs from before for autograd, in words; "" if it does not."""
    (required, gradient), (requires, has) = before, autograd_state(x)
    if requires != required:
        return "requires a gradient" if requires else "no longer requires a gradient"
    if (has is None) != (gradient is None):
        return "has a .grad" if has is not None else "has lost its .grad"
    if has is not None and gradient is not None and not torch.equal(has, gradient):
        return "has a different .grad"
    return ""


def shares_memory(result: Any, inputs: list[Any]) -> bool:
    """Whether the result is a tensor, not empty and not on meta, in the memory of an input, or holds such a tensor."""
    if isinstance(result, list | tuple):
        return any(shares_memory(item, inputs) for item in result)
    if not isinstance(result, torch.Tensor) or not result.numel() or not result.untyped_storage().data_ptr():
        return False
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    return any(x.untyped_storage().data_ptr() == result.untyped_storage().data_ptr() for x in tensors)
