"""What is wrong with the arguments of one rank's call, or of an all-to-all: Gloo and NCCL refuse it, and so do we.

Functions whose names end in `_error` return what is wrong as text, "" if nothing is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...events.collectives import POINT_TO_POINT, form_of
from ...recording.torch_calls import tensors_in

if TYPE_CHECKING:
    from .calls import VirtualCall


def argument_error(method: str, op: str, args: Sequence[Any], size: int, reduce_op: str) -> str:
    """Why the arguments of a call can't be right on a group of `size` ranks."""
    if error := tensors_error(method, op, args, size) or layout_error(method, op, args):
        return error
    if reduce_op and not can_reduce(reduce_op, first_dtype(args)):
        return f"{op} can't take the {reduce_op.upper()} of {str(first_dtype(args)).removeprefix('torch.')}."
    return ""


def layout_error(method: str, op: str, args: Sequence[Any]) -> str:
    """Which tensor's place in memory is refused. Where Gloo goes on with wrong numbers, diagnosis/silent_mistakes.py
    says so.
    """
    must_be_dense = args[0] if op in POINT_TO_POINT else args[1] if form_of(op, method).read == "rows" else ()
    if not all(tensor.is_contiguous() for tensor in tensors_in(must_be_dense)):
        return f"{op}: tensors must be contiguous. Hand in x.contiguous()."
    if op != "send" and any(map(overlaps_itself, tensors_in(args[:1]))):
        return (
            f"unsupported operation: more than one element of the tensor that {op} writes to refers to a single memory "
            "location. It was expanded: hand in x.clone()."
        )
    return ""


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements of an expanded tensor share their memory."""
    if tensor.layout is not torch.strided:
        return False
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def tensors_error(method: str, op: str, args: Sequence[Any], size: int) -> str:
    form = form_of(op, method)
    match form.filled, form.read:
        case ("lists", "tensors"):
            return lists_error(op, args[0], args[1], size)
        case ("tensors", "lists"):
            return lists_error(op, args[1], args[0], size)
        case ("whole", "tensor"):
            return whole_error(op, args[0], args[1], size)
        case ("tensor", "whole"):
            return whole_error(op, args[1], args[0], size)
        case ("tensors", ""):
            only_tensors = all(isinstance(tensor, torch.Tensor) for tensor in args[0])
            return "" if only_tensors else f"{op} takes tensors, not lists of them."
        case ("list", "list"):
            if len(args[0]) == len(args[1]) == size:
                return ""
            return (
                f"{op} on {size} ranks needs two lists of {size} tensors, one tensor per rank; it got {len(args[0])} "
                f"to receive into and {len(args[1])} to send."
            )
        case ("rows", "rows"):
            return split_error(op, args[1], args[3], size) or split_error(op, args[0], args[2], size)
    return ""  # torch itself checks what it puts together from several calls


def lists_error(op: str, lists: Any, like: Any, size: int) -> str:
    """lists: of a rank other than the root, []. like: what the tensors in them must be like."""
    return next(filter(None, (list_error(op, *pair, size) for pair in zip(lists, like, strict=False))), "")


def whole_error(op: str, whole: torch.Tensor, share: torch.Tensor, size: int) -> str:
    if whole.dtype != share.dtype:
        return (
            f"{op}: invalid tensor type: the tensor for all ranks is {whole.dtype}, the one for a single rank is "
            f"{share.dtype}."
        )
    if whole.numel() == size * share.numel():
        return ""
    return (
        f"{op} on {size} ranks got tensors of shapes {list(whole.shape)} and {list(share.shape)}: the one for all "
        f"ranks must have {size} times as many elements as the one for a single rank."
    )


def list_error(op: str, tensors: list[torch.Tensor], like: torch.Tensor | list[torch.Tensor], size: int) -> str:
    if len(tensors) != size:
        return f"{op} on {size} ranks needs a list of {size} tensors, one per rank; it got {len(tensors)}."
    shape = like[0].shape if isinstance(like, list) else like.shape
    for tensor in tensors:
        if tensor.shape != shape:
            return f"{op} needs a list of tensors of shape {list(shape)}; one of them has shape {list(tensor.shape)}."
    return ""


def split_error(op: str, tensor: torch.Tensor, rows: list[int], size: int) -> str:
    """rows: how many of the tensor's rows go to each rank, or come from it; all the same if empty."""
    here = tensor.shape[0] if tensor.dim() else 1
    if rows and (len(rows) != size or sum(rows) != here):
        return (
            f"{op} on {size} ranks: the split sizes {rows} don't fit a tensor of {here} rows. "
            "Give one size per rank; together they must make up all rows."
        )
    if not rows and here % size:
        return (
            f"{op} on {size} ranks: {here} rows can't be split evenly. Give input_split_sizes and output_split_sizes."
        )
    return ""


def first_dtype(args: Sequence[Any]) -> torch.dtype:
    value = args[0]
    while not isinstance(value, torch.Tensor):
        value = value[0]
    return value.dtype


@functools.cache
def can_reduce(reduce_op: str, dtype: torch.dtype) -> bool:
    """Whether Gloo can: it has no bitwise operations on floats and no mean of integers."""
    is_number = dtype.is_floating_point or dtype.is_complex
    if reduce_op in ("band", "bor", "bxor"):
        return not is_number
    return reduce_op in ("sum", "product", "min", "max") or (reduce_op == "avg" and is_number)


def exchange_error(calls: list[VirtualCall]) -> str:
    """Between which ranks of an all-to-all the sizes differ: one sends more or less than the other expects.

    calls   one per rank, in the order of the group
    """
    if reads(calls[0]) not in ("list", "rows") or are_even(calls):
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


def reads(call: VirtualCall) -> str:
    return form_of(call.event.op, call.method).read


def are_even(calls: list[VirtualCall]) -> bool:
    """Whether every rank sends the same amount to every other, the usual case."""
    if any(reads(call) == "list" or call.args[2] or call.args[3] for call in calls):
        return False
    return len({tensor.numel() for call in calls for tensor in call.args[:2]}) == 1


def elements(call: VirtualCall, size: int) -> tuple[list[int], list[int]]:
    """How many elements the caller sends to each rank, and how many it expects from each."""
    if reads(call) == "list":
        return [tensor.numel() for tensor in call.args[1]], [tensor.numel() for tensor in call.args[0]]
    into, given, into_rows, given_rows = call.args[:4]
    return elements_per_rank(given, given_rows, size), elements_per_rank(into, into_rows, size)


def elements_per_rank(tensor: torch.Tensor, rows: list[int], size: int) -> list[int]:
    if not rows:
        return [tensor.numel() // size] * size
    row = math.prod(tensor.shape[1:])
    return [row * count for count in rows]
