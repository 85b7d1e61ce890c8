"""Run a student's function so that its record shows which messages were handed over in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from torch.distributed import distributed_c10d as c10d

from ...recording.regions import region

BATCH = "batch_isend_irecv"  # the name of a region, without length, where such a call begins
CHECK = "_check_p2p_op_list"  # what that function of torch calls first; wrapped, it leaves the student's line on the stack


def marking_batches(
    function: Callable[..., Any], *given: Any, rank: int, world_size: int, counted: bool = False, **same: Any
) -> Any:
    """function(...), on real ranks; on virtual ones, which share torch, nothing is marked (`counted`)."""

    def mark(operations: Any) -> None:
        with region(BATCH):
            check(operations)

    check = getattr(c10d, CHECK, None)
    if counted or check is None:
        return function(*given, rank=rank, world_size=world_size, **same)
    with mock.patch.object(c10d, CHECK, mark):
        return function(*given, rank=rank, world_size=world_size, **same)
