"""What ranks do in a benchmark: make the tensors of a collective, call it again and again, see whether it was right.

One time: finish what the device still has to do -> all ranks begin together -> call -> wait until the device is done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..worlds.real.placement import get_device
from .nccl_conventions import TAKES_PARTS, count_of

ROOT = 0  # of broadcast, reduce, gather, scatter
IN_PLACE = ("all_reduce", "broadcast", "reduce")  # torch.distributed has no other form of these


@dataclass
class Measured:
    """What one rank found out about one size: seconds of each repeat, and how many of its elements were wrong."""

    seconds: list[float]
    wrong: int | None


def sweep(
    rank: int, world_size: int, op: str, sizes: list[int], dtype: str, warmup: int, repeats: int, look: bool, bar: bool
) -> list[Measured]:
    """The rank program: one Measured a size. look: compare values too, once a size; bar: rank 0 shows how far it is."""
    found = []
    for nbytes in progress(sizes, op, shown=bar and rank == 0):
        call = Call(op, nbytes, getattr(torch, dtype), rank, world_size)
        for _ in range(warmup):
            once(call)
        seconds = [once(call) for _ in range(repeats)]
        found.append(Measured(seconds, call.wrong() if look else None))
    return found


def progress(sizes: list[int], op: str, shown: bool):
    """The sizes, with tqdm's bar while they are worked through."""
    if not shown:
        return sizes
    from tqdm import tqdm

    return tqdm(sizes, desc=op, unit="size", file=sys.stdout, leave=False)


def once(call: Callable[[], object]) -> float:
    """Seconds of one call on this rank, from the moment when all ranks are ready."""
    settle()
    dist.barrier()
    before = time.perf_counter()
    call()
    settle()
    return time.perf_counter() - before


def settle() -> None:
    """Wait until the GPU, if there is one, has done all that it was told."""
    device = get_device()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


POISON = 127  # no rank hands it in, nor do a few dozen ranks' numbers come to it


class Call:
    """One collective on tensors of its own. Calling it runs it once; `wrong` counts elements that came out wrong."""

    def __init__(self, op: str, nbytes: int, dtype: torch.dtype, rank: int, world_size: int):
        self.op, self.rank, self.world_size = op, rank, world_size
        self.count = count_of(op, nbytes, dtype.itemsize, world_size)
        self.give = self.pattern(rank, dtype)
        whole = op == "gather" and rank == ROOT or op in ("all_gather", "all_to_all")
        self.get = torch.empty(self.count * (world_size if whole else 1), dtype=dtype, device=get_device())
        self.chunks = list((self.get if op in TAKES_PARTS and whole else self.give).chunk(world_size))

    def pattern(self, rank: int, dtype: torch.dtype) -> Tensor:
        """What a rank hands in: small whole numbers, so that their sums are exact, unlike on ranks side by side."""
        pieces = 1 if self.op in (*IN_PLACE, *TAKES_PARTS) else self.world_size
        numbers = torch.arange(self.count * pieces, dtype=torch.int32, device=get_device())
        return numbers.add_(rank).remainder_(3).to(dtype)

    def __call__(self) -> None:
        root = self.rank == ROOT
        match self.op:
            case "all_reduce":
                dist.all_reduce(self.give)
            case "broadcast":
                dist.broadcast(self.give, src=ROOT)
            case "reduce":
                dist.reduce(self.give, dst=ROOT)
            case "all_gather":
                dist.all_gather(self.chunks, self.give)
            case "reduce_scatter":
                dist.reduce_scatter(self.get, self.chunks)
            case "all_to_all":
                dist.all_to_all_single(self.get, self.give)
            case "gather":
                dist.gather(self.give, self.chunks if root else None, dst=ROOT)
            case "scatter":
                dist.scatter(self.get, self.chunks if root else None, src=ROOT)

    def wrong(self) -> int:
        """Run it once more on fresh numbers, and count what is not as it should be; 0 where nothing is promised."""
        self.give.copy_(self.pattern(self.rank, self.give.dtype))
        self.get.fill_(POISON)  # memory that was used before could hold the right numbers
        self()
        settle()
        got = self.give if self.op in IN_PLACE else self.get
        if self.op in ("reduce", "gather") and self.rank != ROOT:
            return 0
        return int((got != self.expected().to(got.dtype)).sum())

    def expected(self) -> Tensor:
        """What this rank should hold at the end, computed from what all ranks have handed in."""
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
                return added(self.chunk_from(rank) for rank in everyone)
        return added(self.pattern(rank, torch.int32) for rank in everyone)

    def chunk_from(self, rank: int) -> Tensor:
        """The chunk for this rank of what `rank` hands in."""
        return self.pattern(rank, torch.int32).chunk(self.world_size)[self.rank]


def added(tensors: Iterator[Tensor]) -> Tensor:
    """Their sum, with room for two of them."""
    total = next(tensors).clone()
    for tensor in tensors:
        total += tensor
    return total
