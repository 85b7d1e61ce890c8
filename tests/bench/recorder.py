"""A cell: what recording costs. The same all-reduce on a recorded group and on a plain one, by turns, in one run.

Both go over the same Gloo connections: a second group has its own threads, and is slower or quicker for reasons of its
own, by more than is to be measured here.
"""

import statistics
import time

import torch
import torch.distributed as dist

from utils import spawn

BLOCKS = 21  # of calls on one group, then on the other; the median block counts


def call(elements: int, calls: int) -> dict[str, float]:
    return spawn(times, 2, elements, calls).results[0]


def times(rank: int, world_size: int, elements: int, calls: int) -> dict[str, float]:
    """{"off": ..., "on": ...}: seconds a call, on rank 0."""
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
