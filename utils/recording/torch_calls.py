"""torch's calls to a process group: which operation each method is, and what its arguments mean."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, strided

from ..events.collectives import COLLECTIVES, POINT_TO_POINT
from ..events.event import Event
from .torch_private import check_calls

# torch's method -> the operation in an Event
OPERATIONS = {method: one.name for one in COLLECTIVES.values() for method in one.methods}
OPERATIONS |= {"send": "send", "recv": "recv", "recv_anysource": "recv"}
check_calls(OPERATIONS)
WITHOUT_HANDLE = {"monitored_barrier"}  # these return when the call is complete
ASYNCHRONOUS = ("isend", "irecv", "batch_isend_irecv")


def reads_second(op: str) -> bool:
    """Whether a call takes (result, input); the others take their input first."""
    return op not in POINT_TO_POINT and COLLECTIVES[op].in_chunks


def handed_in(op: str, args: Sequence[Any]) -> Sequence[Tensor]:
    """The tensors that a rank hands in with a call; their bytes count."""
    return tensors_in(args[1] if len(args) > 1 and reads_second(op) else args[:1])


class CallOptions(NamedTuple):
    """What a call asks for besides its tensors: fields of its Event."""

    peer: int | None
    tag: int
    reduce_op: str


def options_of(method: str, args: Sequence[Any], options: object, members: Sequence[int]) -> CallOptions:
    """Raises ValueError if the group has no rank that the call names."""
    op = OPERATIONS[method]
    tag = (args[1] if method == "recv_anysource" else args[2]) if op in POINT_TO_POINT else 0
    return CallOptions(peer_of(op, method, args, options, members), tag, reduce_op_name(options))


def new_event(
    method: str,
    tensors: Sequence[Tensor],
    options: CallOptions,
    *,
    rank: int,
    index: int,
    group: str,
    members: tuple[int, ...],
    is_async: bool,
    start: float,
    where: str,
    wrapper: str,
    callers: tuple[str, ...] = (),
    part: str = "",
    thread: str = "",
) -> Event:
    """A call of a ProcessGroup's method that begins, as an Event. tensors: those that it hands in."""
    return Event(
        rank,
        index,
        op=OPERATIONS[method],
        group=group,
        members=members,
        peer=options.peer,
        tag=options.tag,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        dtype=name_of_member(tensors[0].dtype) if tensors else "",
        shape=tuple(tensors[0].shape) if tensors else (),
        reduce_op=options.reduce_op,
        is_async=is_async,
        start=start,
        end=None,
        where=where,
        wrapper=wrapper,
        callers=callers,
        part=part,
        thread=thread,
    )


def tensors_in(value: object) -> Sequence[Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        return []
    if len(value) == 1 and isinstance(value[0], Tensor):  # the usual case: no need to search
        return value
    return [tensor for item in value for tensor in tensors_in(item)]


def splits_of(args: Sequence[Any], ranks: int) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """(received, sent, elements per row) of an all-to-all, in rows per rank; None if its arguments don't say.

    args   of `alltoall`, two lists of tensors, each element a row; of `alltoall_base`, two tensors, and the rows of
           each per rank: none given means equal parts
    """
    result, given = args[:2]
    if not isinstance(result, Tensor):
        return tuple(t.numel() for t in result), tuple(t.numel() for t in given), 1
    if len(args) < 4:
        return None
    if not all(side.dim() and side.shape[0] for side in (result, given)):
        return None
    row = given.numel() // given.shape[0]
    received, sent = (
        tuple(rows) or (len(side) // ranks,) * ranks for side, rows in zip(args[:2], args[2:4], strict=True)
    )
    return received, sent, row


def check_memory(tensors: Sequence[Tensor]) -> None:
    """Raises RuntimeError if the memory of a tensor has been freed: a backend would read or write at address 0."""
    for tensor in tensors:
        if not tensor.numel() or tensor.layout is not strided or tensor.untyped_storage().nbytes():
            continue
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was resized to 0 bytes. Resize it "
            "before a call fills the tensor; to send its values, send a copy from before they were freed."
        )


def peer_of(op: str, method: str, args: Sequence[Any], options: object, members: Sequence[int]) -> int | None:
    """The other rank of a message or the root of a collective, as a global rank; None if there is none.

    Raises ValueError if the group has no such rank.
    """
    if op in POINT_TO_POINT:
        return None if method == "recv_anysource" else global_rank_of(args[1], members)
    root = getattr(options, "rootRank", None)
    return None if root is None else global_rank_of(root, members)


def global_rank_of(group_rank: int, members: Sequence[int]) -> int:
    if not 0 <= group_rank < len(members):
        ring = " In a ring, the right-hand neighbour is (rank + 1) % world_size." * (group_rank == len(members))
        raise ValueError(
            f"rank {group_rank} does not exist here: the ranks are numbered 0 to {len(members) - 1}.{ring}"
        )
    return members[group_rank]


def reduce_op_name(options: object) -> str:
    """ "sum", "max" and so on; "" for calls without a reduce op."""
    op = getattr(options, "reduceOp", None)
    return "" if op is None else name_of_member(getattr(op, "op", op)).lower()


@functools.cache
def name_of_member(member: object) -> str:
    """ "float32" for torch.float32, "SUM" for RedOpType.SUM."""
    return str(member).rpartition(".")[2]
