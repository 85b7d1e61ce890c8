"""What each rank runs in a benchmark: it makes the tensors of a collective, times many calls and checks the result.

One timed call: wait for the device -> barrier -> call -> wait for the device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

from ..events.collectives import COLLECTIVES, not_known
from ..worlds.real.placement import get_device
from .nccl_conventions import count_of

ROOT = 0  # root rank of broadcast, reduce, gather, scatter


@dataclass
class Measurement:
    """One rank's result for one size. wrong: how many elements came out wrong; None if the values weren't checked."""

    seconds: list[float]
    wrong: int | None


def sweep(
    rank: int, world_size: int, op: str, sizes: list[int], dtype: str, warmup: int, repeats: int, check: bool, bar: bool
) -> list[Measurement]:
    """The rank program: one Measurement per size. check: also check the values; bar: rank 0 shows a progress bar."""
    found = []
    if bar and rank == 0:
        from tqdm import tqdm

        sizes = tqdm(sizes, desc=op, unit="size", file=sys.stdout, leave=False)
    for nbytes in sizes:
        call = Call(op, nbytes, getattr(torch, dtype), rank, world_size)
        for _ in range(warmup):
            time_once(call)
        seconds = [time_once(call) for _ in range(repeats)]
        found.append(Measurement(seconds, call.count_wrong() if check else None))
    return found


def time_once(call: Callable[[], object]) -> float:
    """Seconds of one call on this rank, from the moment when all ranks are ready."""
    wait_for_device()
    dist.barrier()
    before = time.perf_counter()
    call()
    wait_for_device()
    return time.perf_counter() - before


def wait_for_device() -> None:
    """Wait until the GPU, if there is one, has finished all its work."""
    device = get_device()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


POISON = 127  # larger than any correct sum: pattern values are 0, 1, 2


class Call:
    """One collective with its own tensors. Calling it runs it once; `count_wrong` runs and checks it.

    own: this rank's input, or its tensor in place; received: where the result goes if not in place
    """

    def __init__(self, op: str, nbytes: int, dtype: torch.dtype, rank: int, world_size: int) -> None:
        self.op, self.rank, self.world_size, self.kind = op, rank, world_size, COLLECTIVES[op]
        self.count = count_of(op, nbytes, dtype.itemsize, world_size)
        self.own = self.pattern(rank, dtype)
        whole = op == "gather" and rank == ROOT or op in ("all_gather", "all_to_all")
        self.received = torch.empty(self.count * (world_size if whole else 1), dtype=dtype, device=get_device())
        self.chunks = list((self.received if self.kind.input_is_chunk and whole else self.own).chunk(world_size))

    def pattern(self, rank: int, dtype: torch.dtype) -> Tensor:
        """A rank's input, different from its neighbours': small whole numbers, so that sums are exact."""
        pieces = self.world_size if self.kind.in_parts else 1
        numbers = torch.arange(self.count * pieces, dtype=torch.int32, device=get_device())
        return numbers.add_(rank).remainder_(3).to(dtype)

    def __call__(self) -> None:
        root = self.rank == ROOT
        match self.op:
            case "all_reduce":
                dist.all_reduce(self.own)
            case "broadcast":
                dist.broadcast(self.own, src=ROOT)
            case "reduce":
                dist.reduce(self.own, dst=ROOT)
            case "all_gather":
                dist.all_gather(self.chunks, self.own)
            case "reduce_scatter":
                dist.reduce_scatter(self.received, self.chunks)
            case "all_to_all":
                dist.all_to_all_single(self.received, self.own)
            case "gather":
                dist.gather(self.own, self.chunks if root else None, dst=ROOT)
            case "scatter":
                dist.scatter(self.received, self.chunks if root else None, src=ROOT)
            case _:
                raise not_known(self.op, "Call in benchmark/rank_program.py")

    def count_wrong(self) -> int:
        """Run it on fresh numbers and count the wrong elements; 0 on ranks that should receive nothing."""
        self.own.copy_(self.pattern(self.rank, self.own.dtype))
        self.received.fill_(POISON)  # reused memory could already hold the right numbers
        self()
        wait_for_device()
        result = self.own if self.kind.in_place else self.received
        if self.op in ("reduce", "gather") and self.rank != ROOT:
            return 0
        return int((result != self.expected().to(result.dtype)).sum())

    def expected(self) -> Tensor:
        """What this rank should hold at the end, computed from the inputs of all ranks."""
        everyone = range(self.world_size)
        match self.op:
            case "broadcast":
                return self.pattern(ROOT, torch.int32)
            case "scatter":
                return self.chunk_from(ROOT)
            case "all_gather" | "gather":
                return torch.cat([self.pattern(rank, torch.int32) for rank in everyone])
            case "all_to_all":
                return torch.cat([self.chunk_from(rank) for rank in everyone])
            case "reduce_scatter":
                return reduce(Tensor.add_, map(self.chunk_from, everyone))  # no more than two tensors at a time
        return reduce(Tensor.add_, (self.pattern(rank, torch.int32) for rank in everyone))

    def chunk_from(self, rank: int) -> Tensor:
        """The chunk of `rank`'s input that is for this rank."""
        return self.pattern(rank, torch.int32).chunk(self.world_size)[self.rank]
