"""What recording costs: the same all-reduce on a recorded group and on a plain one, by turns, in one run."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from utils import spawn

SMALL, LARGE = "4 bytes", "4 MB"
BLOCKS = 21  # of calls on one group, then on the other; the median block counts


def times(rank: int, world_size: int, elements: int, calls: int) -> dict[str, float]:
    """{"off": ..., "on": ...}: seconds a call, on rank 0."""
    from torch.distributed import distributed_c10d

    recorded = distributed_c10d.ProcessGroupGloo
    distributed_c10d.ProcessGroupGloo = (
        torch._C._distributed_c10d.ProcessGroupGloo
    )  # what spawn has put ours in front of
    groups = {"off": dist.new_group()}
    distributed_c10d.ProcessGroupGloo = recorded
    groups["on"] = dist.group.WORLD
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


def measure() -> dict[str, dict[str, float]]:
    """{"4 bytes": {"off": seconds a call, "on": ...}, "4 MB": ...}."""
    sizes = {SMALL: (1, 200), LARGE: (1 << 20, 8)}
    return {size: spawn(times, 2, *how, timeout=300).results[0] for size, how in sizes.items()}
