"""What recording adds to an all-reduce: the same call on a recorded group and a plain one, in turns, in one run.

Both use the same Gloo connections. A second group would have its own threads, whose speed differs by more than the cost
measured here.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from tests.bench import Row
from utils import spawn

SIZES = {"4 bytes": (1, 200), "4 MB": (1 << 20, 8)}  # elements, calls in a block
BLOCKS = 21  # blocks of calls on one group, then on the other; the result is the median block
CASES = list(SIZES)


def measure(size: str, quick: bool = False) -> list[Row]:
    off, on = spawn(times, 2, *SIZES[size]).results[0]
    plain, recorded = f"all-reduce of {size}, 2 ranks", f"all-reduce of {size}, 2 ranks: recorded"
    return [{"name": plain, "values": [off]}, {"name": recorded, "values": [on], "beside": plain}]


def times(rank: int, world_size: int, elements: int, calls: int) -> list[float]:
    """Seconds per call, without and with recording."""
    groups = [dist.group.WORLD.inner, dist.group.WORLD]
    x, seconds = torch.zeros(elements), ([], [])
    for block in range(2 * BLOCKS):
        for number in (0, 1) if block % 2 else (1, 0):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(x, group=groups[number])
            seconds[number].append((time.perf_counter() - began) / calls)
    return [statistics.median(measured[2:]) for measured in seconds]
