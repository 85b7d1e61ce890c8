"""What can't be right in one rank's call, or in those of an all-to-all: Gloo and NCCL refuse it, and so do we."""

from __future__ import annotations

import functools
import math

import torch

LISTS = {  # method -> (which argument is a list with a tensor for each rank, which holds the tensors they must be like)
    "allgather": (0, 1),
    "gather": (0, 1),
    "scatter": (1, 0),
    "reduce_scatter": (1, 0),
}
WHOLES = {  # method -> (which argument is the whole, which is one rank's share of it)
    "_allgather_base": (0, 1),
    "all_gather_single": (0, 1),
    "_reduce_scatter_base": (1, 0),
    "reduce_scatter_single": (1, 0),
}


def misfit(method: str, op: str, args: tuple, size: int, reduce_op: str) -> str:
    """Why the arguments of a call can't be right on a group of `size` ranks; "" if they can."""
    if method in LISTS:
        lists, like = (args[place] for place in LISTS[method])
        for tensors, one in zip(lists, like, strict=False):  # on ranks that are not the root there is no list
            if said := list_misfit(op, tensors, one, size):
                return said
    elif method in WHOLES:
        whole, share = (args[place] for place in WHOLES[method])
        if whole.numel() != size * share.numel():
            return (
                f"{op} on {size} ranks: the tensor of all is {size} times as large as the one of a rank, "
                f"and got {list(whole.shape)} and {list(share.shape)}."
            )
    elif method == "alltoall":
        if len(args[0]) != size or len(args[1]) != size:
            return (
                f"{op} on {size} ranks needs two lists of {size} tensors, one for each rank, "
                f"and got {len(args[0])} to receive into and {len(args[1])} to send."
            )
    elif op == "all_to_all":
        return rows_misfit(op, args[1], args[3], size) or rows_misfit(op, args[0], args[2], size)
    if reduce_op and not can_reduce(reduce_op, first_dtype(args)):
        return f"{op} can't take the {reduce_op.upper()} of {str(first_dtype(args)).removeprefix('torch.')}."
    return ""


def list_misfit(op: str, tensors: list[torch.Tensor], one: torch.Tensor | list[torch.Tensor], size: int) -> str:
    if len(tensors) != size:
        return f"{op} on {size} ranks needs a list of {size} tensors, one for each rank, and got {len(tensors)}."
    one = one[0] if isinstance(one, list) else one
    for tensor in tensors:
        if tensor.shape != one.shape:
            return f"{op} needs tensors of one shape in its list, {list(one.shape)}, and got {list(tensor.shape)}."
    return ""


def rows_misfit(op: str, tensor: torch.Tensor, rows: list[int], size: int) -> str:
    """rows: how many of the tensor's go to each rank or come from it; alike if empty."""
    here = tensor.shape[0] if tensor.dim() else 1
    if rows and (len(rows) != size or sum(rows) != here):
        return f"{op} on {size} ranks: the split sizes {rows} are not those of {here} rows."
    if not rows and here % size:
        return f"{op} on {size} ranks: {here} rows can't be split alike. Give input_split_sizes and output_split_sizes."
    return ""


def first_dtype(args: tuple) -> torch.dtype:
    value = args[0]
    while not isinstance(value, torch.Tensor):
        value = value[0]
    return value.dtype


@functools.cache
def can_reduce(reduce_op: str, dtype: torch.dtype) -> bool:
    """Whether Gloo can: no bits of floats, no mean of integers."""
    is_number = dtype.is_floating_point or dtype.is_complex
    if reduce_op in ("band", "bor", "bxor"):
        return not is_number
    return reduce_op in ("sum", "product", "min", "max") or (reduce_op == "avg" and is_number)


def disagreement(calls: list) -> str:
    """Between which ranks of an all-to-all the sizes differ, one sending what the other does not expect; "" if none.

    calls   one of each rank, in the order of the group
    """
    if calls[0].event.op != "all_to_all" or all_alike(calls):
        return ""
    sent, expected = zip(*(elements(call, len(calls)) for call in calls), strict=True)
    for source, call in enumerate(calls):
        for destination, other in enumerate(calls):
            given, taken = sent[source][destination], expected[destination][source]
            if given != taken:
                return (
                    f"all_to_all: rank {call.event.rank} sends {given} elements to rank {other.event.rank}, "
                    f"which expects {taken} from it."
                )
    return ""


def all_alike(calls: list) -> bool:
    """Whether every rank sends every other equally much, as most do."""
    if any(call.method == "alltoall" or call.args[2] or call.args[3] for call in calls):
        return False
    return len({tensor.numel() for call in calls for tensor in call.args[:2]}) == 1


def elements(call, size: int) -> tuple[list[int], list[int]]:
    """How many of them the rank of `call` sends to each rank, and expects from each."""
    if call.method == "alltoall":
        return [tensor.numel() for tensor in call.args[1]], [tensor.numel() for tensor in call.args[0]]
    into, given, into_rows, given_rows = call.args[:4]
    return shares(given, given_rows, size), shares(into, into_rows, size)


def shares(tensor: torch.Tensor, rows: list[int], size: int) -> list[int]:
    if not rows:
        return [tensor.numel() // size] * size
    row = math.prod(tensor.shape[1:])
    return [row * count for count in rows]
