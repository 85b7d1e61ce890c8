"""A cell: the cost of recording. The same all-reduce on a recorded group and a plain one, in turns, in one run.

Both use the same Gloo connections. A second group would have its own threads, whose speed differs by more than the cost
measured here.
"""

import statistics
import time

import torch
import torch.distributed as dist

from utils import spawn

BLOCKS = 21  # of calls on one group, then on the other; the result is the median block


def call(elements: int, calls: int) -> dict[str, float]:
    return spawn(times, 2, elements, calls).results[0]


def times(rank: int, world_size: int, elements: int, calls: int) -> dict[str, float]:
    """{"off": ..., "on": ...}: seconds per call, on rank 0."""
    groups = {"off": dist.group.WORLD.inner, "on": dist.group.WORLD}
    x = torch.zeros(elements)
    seconds = {name: [] for name in groups}
    for block in range(2 * BLOCKS):
        for name in ("off", "on") if block % 2 else ("on", "off"):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(x, group=groups[name])
            seconds[name].append((time.perf_counter() - began) / calls)
    return {name: statistics.median(measured[2:]) for name, measured in seconds.items()}
