"""What a rank runs where a check judges sharded training: the student's function, several steps, and live bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...recording.storages import Storages
from ...recording.torch_calls import tensors_in
from ...recording.track_memory import track_memory
from ..mlp import layer, loss_of
from .backward import my_group
from .left_behind import leaving_no_groups


def most_between(storages: Storages, first: int, last: int | None = None) -> int:
    """The most bytes alive at any time from change number `first` to change number `last`."""
    live = sum(difference for _, _, difference in storages.changes[:first])
    most = live
    for _, _, difference in storages.changes[first:last]:
        live += difference
        if live > most:
            most = live
    return most


def train(
    function: Callable[..., Any],
    model: nn.Module,
    shards: Tensor | list[Tensor],
    batches: Sequence[Any],
    rank: int,
    world_size: int,
    options: Mapping[str, float],
    clear: bool,
    **for_all: Any,
) -> dict[str, Any]:
    """Make a step with `function`, and take one with each of `batches`.

    options  of AdamW, for the `make_optimizer` that the function gets
    clear    whether to drop the model's gradients after each step

    Returns what the rank has at the end: the `weights` of the model and the `shards`; and bytes: `held`, the most
    between two steps, without the model's gradients; `peak`, the most from the first step on until the first update.
    The batches don't count.
    """
    updates: list[int] = []  # how many changes of memory had been noted at each update
    parameters = list(model.parameters())
    with track_memory(model, *tensors_in(batches)) as storages:
        besides = storages.live - sum(p.nbytes for p in parameters)  # the batches, and on virtual ranks more

        def make_optimizer(tensors: Iterable[Tensor]) -> torch.optim.Optimizer:
            optimizer = torch.optim.AdamW(tensors, **options)  # type: ignore[arg-type]
            optimizer.register_step_pre_hook(lambda *_: updates.append(len(storages.changes)))
            return optimizer

        given = shards.clone() if isinstance(shards, Tensor) else [shard.clone() for shard in shards]
        step = function(model, given, make_optimizer=make_optimizer, rank=rank, world_size=world_size, **for_all)
        first, held = len(storages.changes), 0
        for batch in batches:
            step(batch)
            for parameter in parameters:
                parameter.grad = None if clear else parameter.grad
            gradients = sum(p.grad.nbytes for p in parameters if p.grad is not None)
            held = max(held, storages.live - besides - gradients)
        peak = most_between(storages, first, updates[0] if updates else None) - besides
    whole = [p.detach().clone() if p.untyped_storage().nbytes() else None for p in parameters]
    pieces = [given] if isinstance(given, Tensor) else given
    return {"weights": whole, "shards": [x.detach().clone() for x in pieces], "held": held, "peak": peak}


def measure(function: Callable[..., Any], *given: Any, rank: int, world_size: int, **for_all: Any) -> dict[str, Any]:
    """What `function` returns, and the bytes alive besides `given`: `held` after the call, `peak` during it.

    tracked: whether autograd follows the result. parameters: what those of the given models have become.
    """
    models = [x for x in given if isinstance(x, nn.Module)]
    with track_memory(*models, *tensors_in(given)) as storages:
        before, first = storages.live, len(storages.changes)
        result = function(*given, rank=rank, world_size=world_size, **for_all)
        held, peak = storages.live - before, most_between(storages, first) - before
    tracked = isinstance(result, Tensor) and result.requires_grad
    result = result.detach() if isinstance(result, Tensor) else result
    parameters = [p.detach() for model in models for p in model.parameters()]
    return {"result": result, "held": held, "peak": peak, "tracked": tracked, "parameters": parameters}


def gather_and_go_back(
    function: Callable[..., Any], weight: Tensor, shard: Tensor, rows: Tensor, world_size: int, there: bool = False
) -> dict[str, Any]:
    """Use a weight in a forward pass, take away its memory, have `function` give it back, and go backward.

    there: leave the memory where it is
    """
    parameter = nn.Parameter(weight.clone())
    x = rows.clone().requires_grad_()  # so that autograd saves the weight
    loss = loss_of(layer(x, parameter.view(rows.shape[1], -1)))
    if not there:
        parameter.untyped_storage().resize_(0)
    returned = function(parameter, shard, world_size)
    is_there = parameter.untyped_storage().nbytes() > 0
    if is_there:
        loss.backward()
    return {
        "the weight": parameter.detach().clone() if is_there else None,
        "its gradient": parameter.grad,
        "whether the weight itself was returned": returned is parameter,
    }


def through_backward(
    function: Callable[..., Any], shard: Tensor, gradient: Tensor, rank: int, world_size: int
) -> dict[str, Any]:
    """What `function` makes of a shard, and the shard's gradient if the gradient of that is `gradient`."""
    leaf = shard.clone().requires_grad_()
    whole = function(leaf, tuple(gradient.shape), rank, world_size)
    if isinstance(whole, Tensor) and whole.requires_grad and whole.shape == gradient.shape:
        whole.backward(gradient.to(whole.dtype))
    return {
        "the weight": whole.detach() if isinstance(whole, Tensor) else whole,
        "the gradient of the shard": leaf.grad,
    }


def in_groups(
    function: Callable[..., Any],
    *given: Any,
    rank: int,
    world_size: int,
    groups: Mapping[str, Sequence[list[int]]],
    **for_all: Any,
) -> Any:
    """Call `function(*given, ...)` with this rank's groups, by name.

    groups: {name of the argument: the members of all such groups, in the order in which they are made}
    """
    return function(*given, **for_all, **{name: my_group(rank, of_all) for name, of_all in groups.items()})


def backward_in_groups(
    function: Callable[..., Any], given: Tensor, rank: int, world_size: int, **for_all: Any
) -> dict[str, Any]:
    """As in_groups, and go backward from the first of the results: "result", and the "gradient" of what was given."""
    leaf = given.clone().requires_grad_()
    result = in_groups(function, leaf, rank=rank, world_size=world_size, **for_all)
    results = list(result) if isinstance(result, tuple | list) else [result]
    loss = results[0] if results else None
    if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
        loss.backward()
    results = [x.detach() if isinstance(x, Tensor) else x for x in results]
    return {"result": tuple(results) if isinstance(result, tuple) else results[0], "gradient": leaf.grad}


def in_groups_alone(
    function: Callable[..., Any],
    *given: Any,
    rank: int,
    world_size: int,
    groups: Mapping[str, Sequence[list[int]]],
    **for_all: Any,
) -> Any:
    """As `in_groups`, for a function that promises to leave no process group of its own behind."""
    watched = partial(leaving_no_groups, function)
    return in_groups(watched, *given, rank=rank, world_size=world_size, groups=groups, **for_all)
