"""What a rank runs where a check judges gradients: the student's function, and its backward pass.

The function gets its tensors by name, and whatever else it names in its signature: its group, or building blocks such
as f and g (see blocks_for).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict

import torch
import torch.distributed as dist

from ...recording.regions import region
from ..sharded_regions import blocks_for


def my_group(rank: int, groups: Sequence[list[int]] | None) -> dist.ProcessGroup | None:
    """The process group that `rank` is in, the whole world without `groups`; every rank must create all of them.

    Raises ValueError if it is in none, or in several.
    """
    if not groups:
        return dist.group.WORLD
    made: list[dist.ProcessGroup] = [dist.new_group(members) for members in groups]
    [mine] = [group for group, members in zip(made, groups, strict=True) if rank in members]
    return mine


class DriveResult(TypedDict):
    """What one rank computes. An input that the backward pass never reaches has None for a gradient."""

    output: Any
    gradients: dict[str, torch.Tensor | None]
    changed: list[str]  # names of the inputs that the function has changed
    repeats: bool  # whether a second call with the same inputs came to the same, if there was one


def drive(
    function: Callable[..., Any],
    given: dict[str, Any],
    grad: torch.Tensor | None,
    rank: int,
    world_size: int,
    groups: Sequence[list[int]] | None = None,
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    twice: bool = False,
    **for_all: Any,
) -> DriveResult:
    """What a rank runs: call `function` with its tensors, by name, then run backward from the gradient `grad`.

    given   {name: value} of this rank; floating point tensors become leaves
    grad    the gradient with respect to the function's result; None: no backward pass, the result is the answer
    groups  the ranks of each process group; this rank's group is the function's `tp_group` or `ep_group`
    around  wraps the function: around(function) -> function
    twice   call it a second time with equal inputs: a function that keeps something gets a different result
    """
    known = blocks_for(my_group(rank, groups))
    known = {name: value for name, value in known.items() if name in inspect.signature(function).parameters}
    function = partial(around(function) if around else function, **known, **for_all)
    leaves = fresh(given, grad)
    output, gradients = forward_and_backward(function, leaves, grad)
    touched, repeats = changed(leaves, given), True
    if twice:  # also if this rank's inputs have changed: the others may wait for it
        repeats = equal_values((output, gradients), forward_and_backward(function, fresh(given, grad), grad))
    return {"output": output, "gradients": gradients, "changed": touched, "repeats": repeats}


def fresh(given: dict[str, Any], grad: torch.Tensor | None) -> dict[str, Any]:
    """The inputs of one call."""
    return {name: leaf(value, grad is not None) for name, value in given.items()}


def forward_and_backward(
    function: Callable[..., Any], leaves: dict[str, Any], grad: torch.Tensor | None
) -> tuple[Any, dict[str, torch.Tensor | None]]:
    """The result of a function, and the gradients of the leaves that need one."""
    with region("forward"):
        output = function(**leaves)
    if grad is not None and isinstance(output, torch.Tensor):
        if output.requires_grad and output.shape == grad.shape:  # if it is wrong, only the output is judged
            output.backward(grad)
        output = output.detach()
    needed = {name: x for name, x in leaves.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    return output, {name: x.grad for name, x in needed.items()}


def equal_values(one: Any, other: Any) -> bool:
    """Whether two results are the same, to the digits that the order of additions leaves."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal_values(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal_values, one, other))
    return type(one) is type(other)


def leaf(value: Any, needs_grad: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)  # a view with gaps keeps its gaps
    copy.copy_(value)
    return copy.requires_grad_(needs_grad and value.is_floating_point())


def changed(leaves: dict[str, Any], given: dict[str, Any]) -> list[str]:
    return [
        name
        for name, x in leaves.items()
        if isinstance(x, torch.Tensor) and not x.is_meta and not torch.equal(x.detach(), given[name])
    ]
