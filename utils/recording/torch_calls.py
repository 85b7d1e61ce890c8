"""torch's calls to a process group: which operation each method is, and what its arguments mean."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, strided

from ..events.matching import POINT_TO_POINT
from .torch_private import check_calls

# torch's method -> the operation in an Event. Some names changed from 2.11 to 2.13; both are here.
OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
check_calls(OPERATIONS)
# These take (outputs, inputs); the others take their inputs first.
OUTPUT_FIRST = {"gather", "scatter", "all_gather", "reduce_scatter", "all_to_all"}
WITHOUT_HANDLE = {"monitored_barrier"}  # these return when the call is complete
ASYNCHRONOUS = ("isend", "irecv", "batch_isend_irecv")
# Which arguments of a method hold tensors that Gloo reads or writes as if they were contiguous.
TAKEN_AS_DENSE = {
    **dict.fromkeys(["allreduce", "allreduce_coalesced", "broadcast", "reduce"], (0,)),
    **dict.fromkeys(["scatter"], (0, 1)),
    **dict.fromkeys(["reduce_scatter", "alltoall_base", "all_to_all_single"], (0,)),
}


def tensors_in(value: object) -> Sequence[Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        return []
    if len(value) == 1 and isinstance(value[0], Tensor):  # the usual case: no need to search
        return value
    return [tensor for item in value for tensor in tensors_in(item)]


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
