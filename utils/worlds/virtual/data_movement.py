"""What a message or a collective does to the values, once all its ranks have called it.

A reduction adds in the order of the group's ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

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

ONE_TENSOR_GATHERS = ("_allgather_base", "all_gather_single")

Buffers = tuple[list[torch.Tensor], list[torch.Tensor]]  # (what a rank hands in, where it wants the result)


def deliver(
    calls: list[VirtualCall], of_all: Callable[[list[VirtualCall]], list[VirtualCall]] = lambda calls: calls
) -> None:
    """Write into each call's tensors what it receives. Tensors without values ("meta") have nothing to write.

    calls    of a message: the send, then the receive; of a collective: in the order of the group
    of_all   makes of a collective's calls one for each member, where some stand for others (alike.py)
    """
    event = calls[0].event
    if event.op == "barrier" or any(is_meta(call.args) for call in calls):
        return
    if event.op == "send":
        write(calls[1].args[0][0], calls[0].args[0][0])
    elif all(call.method in ONE_TENSOR_GATHERS for call in calls):  # put together once, not once per rank
        if not any(call.args[1].is_meta for call in calls):
            whole = torch.cat([flat(call.args[1]) for call in of_all(calls)])
            for call in calls:
                write(call.args[0], whole)
    else:
        root = -1 if event.peer is None else event.members.index(event.peer)
        of_ranks = [buffers_of(call, rank) for call, rank in zip(of_all(calls), event.members, strict=True)]
        for part in zip(*of_ranks, strict=True):
            tensors = [tensor for given, taken in part for tensor in (*given, *taken)]
            if not any(tensor.is_meta for tensor in tensors):
                COLLECTIVES[event.op](list(part), root, event.reduce_op)


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


# --- the collectives, each on the Buffers of all ranks; root: its place in the group


def all_reduce(ranks: list[Buffers], root: int, reduce_op: str) -> None:
    total = reduced(reduce_op, [given[0] for given, _ in ranks])
    for _, taken in ranks:
        write(taken[0], total)


def reduce(ranks: list[Buffers], root: int, reduce_op: str) -> None:
    write(ranks[root][1][0], reduced(reduce_op, [given[0] for given, _ in ranks]))


def broadcast(ranks: list[Buffers], root: int, reduce_op: str) -> None:
    for place, (_, taken) in enumerate(ranks):
        if place != root:
            write(taken[0], ranks[root][0][0])


def gather(ranks: list[Buffers], root: int, reduce_op: str) -> None:
    """All-gather too: only the ranks that take the result have tensors for it."""
    for _, taken in ranks:
        for into, (given, _) in zip(taken, ranks, strict=False):
            write(into, given[0])


def scatter(ranks: list[Buffers], root: int, reduce_op: str) -> None:
    for given, (_, taken) in zip(ranks[root][0], ranks, strict=True):
        write(taken[0], given)


def reduce_scatter(ranks: list[Buffers], root: int, reduce_op: str) -> None:
    for place, (_, taken) in enumerate(ranks):
        write(taken[0], reduced(reduce_op, [given[place] for given, _ in ranks]))


def all_to_all(ranks: list[Buffers], root: int, reduce_op: str) -> None:
    for place, (_, taken) in enumerate(ranks):
        for into, (given, _) in zip(taken, ranks, strict=True):
            write(into, given[place])


COLLECTIVES: dict[str, Callable[[list[Buffers], int, str], None]] = {
    "all_reduce": all_reduce,
    "reduce": reduce,
    "broadcast": broadcast,
    "all_gather": gather,
    "gather": gather,
    "scatter": scatter,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
}


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
    else:
        into, what = flat(into).view(torch.uint8), flat(what).view(torch.uint8)
        length = min(len(into), len(what))
        into[:length].copy_(what[:length])


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data.view(-1) if tensor.is_contiguous() else tensor.data.flatten()


# --- the tensors of a call: Buffers for each collective in it, since torch may put several into one call


def buffers_of(call: VirtualCall, rank: int) -> list[Buffers]:
    """What `rank` hands in and takes. If another one makes this call in its place, what it takes goes nowhere."""
    buffers = [*BUFFERS[call.method](call.args, len(call.event.members))]
    if rank == call.event.rank:
        return buffers
    return [(given, [torch.empty_like(tensor) for tensor in taken]) for given, taken in buffers]


def in_place(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return (([tensor], [tensor]) for tensor in args[0])


def tensor_to_list(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return (([given], taken) for given, taken in zip(args[1], args[0], strict=True))


def tensor_to_list_coalesced(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return (([given], [of_rank[number] for of_rank in args[0]]) for number, given in enumerate(args[1]))


def tensor_to_whole(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return (([given], equal_slices(taken, size)) for given, taken in zip(args[1], args[0], strict=True))


def tensor_to_one_whole(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return [([args[1]], equal_slices(args[0], size))]


def gathered(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return [([args[1][0]], args[0][0] if args[0] else [])]


def scattered(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return [(args[1][0] if args[1] else [], [args[0][0]])]


def list_to_tensor(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return ((given, [taken]) for given, taken in zip(args[1], args[0], strict=True))


def whole_to_tensor(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return [(equal_slices(args[1], size), [args[0]])]


def whole_to_tensor_coalesced(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return ((equal_slices(given, size), [taken]) for given, taken in zip(args[1], args[0], strict=True))


def list_to_list(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    return [(args[1], args[0])]


def rows_to_rows(args: tuple[Any, ...], size: int) -> Iterable[Buffers]:
    out, given, out_rows, given_rows = args[:4]
    return [(split_rows(given, given_rows, size), split_rows(out, out_rows, size))]


BUFFERS: dict[str, Callable[[tuple[Any, ...], int], Iterable[Buffers]]] = {
    **dict.fromkeys(["allreduce", "allreduce_coalesced", "broadcast", "reduce"], in_place),
    "allgather": tensor_to_list,
    "allgather_coalesced": tensor_to_list_coalesced,
    **dict.fromkeys(["allgather_into_tensor_coalesced", "all_gather_single_coalesced"], tensor_to_whole),
    **dict.fromkeys(ONE_TENSOR_GATHERS, tensor_to_one_whole),
    "gather": gathered,
    "scatter": scattered,
    "reduce_scatter": list_to_tensor,
    **dict.fromkeys(["_reduce_scatter_base", "reduce_scatter_single"], whole_to_tensor),
    **dict.fromkeys(["reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"], whole_to_tensor_coalesced),
    "alltoall": list_to_list,
    **dict.fromkeys(["alltoall_base", "all_to_all_single"], rows_to_rows),
}


def equal_slices(tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    """A tensor's memory as one slice per rank."""
    return list(flat(tensor).chunk(size)) if tensor.numel() else [tensor] * size


def split_rows(tensor: torch.Tensor, rows: list[int], size: int) -> list[torch.Tensor]:
    """A tensor cut along its first dimension: rows[i] rows for rank i, the same number for each if `rows` is empty."""
    return list(tensor.data.split(rows)) if rows else list(tensor.data.chunk(size))
