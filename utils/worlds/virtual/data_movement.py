"""What a message or a collective does to the values, once all its ranks have called it.

A reduction adds in the order of the group's ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch

from ...events.collectives import ALL, COLLECTIVES, NOBODY, Collective, Method, form_of, not_known
from ...recording.torch_calls import tensors_in
from .calls import VirtualCall

REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "": torch.Tensor.add_,  # torch's default, for a call without options
    "sum": torch.Tensor.add_,
    "avg": torch.Tensor.add_,
    "product": torch.Tensor.mul_,
    "min": lambda total, x: total.copy_(torch.minimum(total, x)),
    "max": lambda total, x: total.copy_(torch.maximum(total, x)),
    "band": torch.Tensor.bitwise_and_,
    "bor": torch.Tensor.bitwise_or_,
    "bxor": torch.Tensor.bitwise_xor_,
}

ONE_WHOLE = Method("whole", "tensor")

Buffers = tuple[list[torch.Tensor], list[torch.Tensor]]  # (what a rank hands in, where it wants the result)


def deliver(
    calls: list[VirtualCall], of_all: Callable[[list[VirtualCall]], list[VirtualCall]] = lambda calls: calls
) -> None:
    """Write into each call's tensors what it receives. Tensors without values ("meta") have nothing to write.

    calls    of a message: the send, then the receive; of a collective: in the order of the group
    of_all   makes of a collective's calls one for each member, where some stand for others (alike.py)
    """
    event = calls[0].event
    if any(is_meta(call.args) for call in calls):
        return
    if event.op == "send":
        write(calls[1].args[0][0], calls[0].args[0][0])
        return
    collective = COLLECTIVES[event.op]
    if collective.gives == NOBODY:
        return
    forms = {form_of(event.op, call.method) for call in calls}
    if forms == {ONE_WHOLE} and collective.receives == ALL:
        if not any(call.args[1].is_meta for call in calls):  # put together once, not once per rank
            whole = torch.cat([flat(call.args[1]) for call in of_all(calls)])
            for call in calls:
                write(call.args[0], whole)
        return
    root = -1 if event.peer is None else event.members.index(event.peer)
    of_ranks = [buffers_of(call, rank) for call, rank in zip(of_all(calls), event.members, strict=True)]
    for part in zip(*of_ranks, strict=True):
        tensors = [tensor for given, taken in part for tensor in (*given, *taken)]
        if not any(tensor.is_meta for tensor in tensors):
            move(collective, list(part), root, event.reduce_op)
    for call in calls:
        copy_back(call, of_ranks[event.members.index(call.event.rank)])


def copy_back(call: VirtualCall, buffers: list[Buffers]) -> None:
    """Put together what went into the slices of a tensor with a part per rank: those of one with gaps are copies."""
    if form_of(call.event.op, call.method).filled in ("whole", "wholes"):
        for tensor, (_, taken) in zip(tensors_in(call.args[:1]), buffers, strict=True):
            if not tensor.is_meta and not tensor.is_contiguous():
                write(tensor, torch.cat([flat(part) for part in taken]))


def is_meta(args: tuple[Any, ...]) -> bool:
    """Whether the first tensor in nested lists has no values."""
    found = first_tensor(args)
    return found is not None and found.is_meta


def first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    for item in value if isinstance(value, (list, tuple)) else ():
        if (found := first_tensor(item)) is not None:
            return found
    return None


def move(collective: Collective, ranks: list[Buffers], root: int, reduce_op: str) -> None:
    """Carry out one collective on the Buffers of all ranks. root: its place in the group."""
    givers = [given for place, (given, _) in enumerate(ranks) if collective.gives == ALL or place == root]
    same = [] if collective.in_parts else [given[0] for given in givers]
    total = reduced(reduce_op, same) if same and collective.reduces else None  # computed once, not once per rank
    for place, (_, taken) in enumerate(ranks):
        if not collective.fills(place == root):
            continue
        pieces = same or [given[place] for given in givers]
        if collective.reduces:
            pieces = [reduced(reduce_op, pieces) if total is None else total]
        for into, piece in zip(taken, pieces, strict=True):
            write(into, piece)


def reduced(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Element by element in memory order; the tensors' shapes may differ."""
    values = [tensor.data if tensor.is_sparse else flat(tensor) for tensor in tensors]
    total = values[0].clone()
    for one in values[1:]:
        REDUCTIONS[op](total, one)
    if op == "avg":
        total.div_(len(tensors))
    return total if total.is_sparse else total.view(tensors[0].shape)


def write(into: torch.Tensor, what: torch.Tensor) -> None:
    """As Gloo does: as many bytes as fit, uninterpreted, and unseen by autograd."""
    if into.is_meta or what.is_meta:
        return
    if into.is_sparse:
        with torch.no_grad():
            into.copy_(what)
    elif into.shape == what.shape and into.dtype == what.dtype:
        into.data.copy_(what.data)
    elif not into.is_contiguous():
        dense = into.data.contiguous()
        write(dense, what)
        into.data.copy_(dense)
    else:
        into, what = flat(into).view(torch.uint8), flat(what).view(torch.uint8)
        length = min(len(into), len(what))
        into[:length].copy_(what[:length])


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data.contiguous().as_strided((tensor.numel(),), (1,))  # a single number may have any stride


# --- the tensors of a call: Buffers for each collective in it, since torch may put several into one call


def buffers_of(call: VirtualCall, rank: int) -> list[Buffers]:
    """What `rank` hands in and takes. If another one makes this call in its place, what it takes goes nowhere."""
    form, size = form_of(call.event.op, call.method), len(call.event.members)
    taken = tensors_of(form.filled, call.args, 0, size)
    given = tensors_of(form.read, call.args, 1, size) if form.read else taken
    buffers: list[Buffers] = list(zip_longest(given, taken, fillvalue=[]))  # only a root has a list
    if rank == call.event.rank:
        return buffers
    return [(given, [torch.empty_like(tensor) for tensor in taken]) for given, taken in buffers]


def tensors_of(form: str, args: tuple[Any, ...], place: int, size: int) -> list[list[torch.Tensor]]:
    """The tensors in an argument of this form, one list for each collective in the call (see Method)."""
    value = args[place]
    match form:
        case "tensor":
            return [[value]]
        case "tensors":
            return [[tensor] for tensor in value]
        case "whole":
            return [equal_slices(value, size)]
        case "wholes":
            return [equal_slices(tensor, size) for tensor in value]
        case "list":
            return [value]
        case "lists":
            return list(value)
        case "lists by rank":
            return [list(of_ranks) for of_ranks in zip(*value, strict=True)]
        case "rows":
            return [split_rows(value, args[place + 2], size)]
    raise not_known(form, "tensors_of in worlds/virtual/data_movement.py")


def equal_slices(tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    """A tensor's memory as one slice per rank."""
    return list(flat(tensor).chunk(size)) if tensor.numel() else [tensor] * size


def split_rows(tensor: torch.Tensor, rows: list[int], size: int) -> list[torch.Tensor]:
    """A tensor cut along its first dimension: rows[i] rows for rank i, the same number for each if `rows` is empty."""
    return list(tensor.data.split(rows)) if rows else list(tensor.data.chunk(size))
