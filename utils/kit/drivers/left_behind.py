"""What a function leaves behind when it has returned: tensors that it still holds, and process groups.

It may hold tensors in a global variable, a default or an attribute. A rank that keeps the tensors of one step has less
memory in the next. So what an answer holds before a call is compared with what it holds after it. A table that a
function fills once, such as a mask, may stay.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ...recording.torch_private import address_of, groups_of_process

DEPTH = 4  # levels of containers within containers to search


class LeftBehind(RuntimeError):
    """A rank holds a tensor or a process group of a call that is over."""


def held(function: Callable[..., Any]) -> list[tuple[str, torch.Tensor]]:
    """(the variable, a tensor in it) for all that a function holds between its calls, with the helpers that it sees."""
    function = function.args[0] if isinstance(function, partial) and function.args else function
    if not isinstance(function, types.FunctionType):
        return []
    found = []
    for name, value in [*function.__globals__.items(), (function.__name__, function)]:
        if not name.startswith("__"):
            found += [(name, tensor) for tensor in tensors_of(value)]
    return found


def tensors_of(value: Any, depth: int = DEPTH) -> Iterator[torch.Tensor]:
    """The tensors in a container, and those that a function holds as defaults or attributes."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, types.FunctionType):
        yield from tensors_of([value.__defaults__, value.__kwdefaults__, vars(value)], depth)
    elif depth and isinstance(value, dict | list | tuple | set):
        for item in list(value.values() if isinstance(value, dict) else value):
            yield from tensors_of(item, depth - 1)


def expect_none_left(
    before: list[tuple[str, torch.Tensor]], function: Callable[..., Any], inputs: list[Any], result: Any
) -> None:
    """Raise LeftBehind if a function holds more than `before` the call, of this call's graph, inputs or results.

    before  what `held` said
    """
    known = {id(tensor) for _, tensor in before}
    of_call = [*tensors_of(inputs), *tensors_of(result)]
    storages = {address_of(tensor.untyped_storage()) for tensor in of_call}
    shapes = {tensor.shape for tensor in of_call if tensor.numel() > 1}
    for name, tensor in held(function):
        if id(tensor) in known:
            continue
        of_this_call = address_of(tensor.untyped_storage()) in storages or tensor.shape in shapes
        if of_this_call or tensor.grad_fn is not None:
            raise LeftBehind(
                f"{name!r} still holds a tensor of shape {tuple(tensor.shape)} after the call. It takes memory as long "
                "as the program runs, and more with each call: keep a call's tensors in local variables."
            )


def leaving_no_groups(function: Callable[..., Any], *given: Any, **for_all: Any) -> Any:
    """What a function returns that promises to leave no process group behind. Raises LeftBehind if it does."""
    before = groups_of_process()
    result = function(*given, **for_all)
    for group in groups_of_process():
        if group not in before:
            raise LeftBehind(
                f"a process group of the ranks {dist.get_process_group_ranks(group)} is left after the call. It holds "
                "its connections as long as the program runs, and each call adds another one: use the groups that you "
                "are given, or end your own with dist.destroy_process_group(group)."
            )
    return result
