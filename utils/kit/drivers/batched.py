"""Run a student's function so that its record shows which messages were handed over in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from torch.distributed import distributed_c10d as c10d

from ...recording.regions import region

BATCH = "batch_isend_irecv"  # the name of a region without length: where such a call begins
# What that function of torch calls first. This one is wrapped, so that the student's line stays on the stack.
FIRST = "_check_p2p_op_list"


def marking_batches(
    function: Callable[..., Any], *given: Any, rank: int, world_size: int, counted: bool = False, **same: Any
) -> Any:
    """function(...), on real ranks; on virtual ones, which share torch, nothing is marked (`counted`)."""
    if counted:
        return function(*given, rank=rank, world_size=world_size, **same)
    first: Callable[[Any], None] = getattr(c10d, FIRST, ignore)

    def mark(operations: Any) -> None:
        with region(BATCH):
            first(operations)

    with mock.patch.object(c10d, FIRST, mark, create=True):
        return function(*given, rank=rank, world_size=world_size, **same)


def ignore(_: Any) -> None:
    """Where a later torch has no such function, no batch is marked."""
