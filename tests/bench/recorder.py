"""What recording costs: the same all-reduce on a recorded group and on a plain one, by turns, in one run."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from utils import spawn

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


def main() -> list[tuple[str, float, float]]:
    """Print, for a small and a large tensor, a call's time without and with the recorder."""
    print("all_reduce on 2 ranks, Gloo: a call on a plain group and on a recorded one")
    rows = []
    for elements, calls in ((1, 200), (1 << 20, 8)):
        seconds = spawn(times, 2, elements, calls, timeout=300).results[0]
        off, on = seconds["off"], seconds["on"]
        size = f"{4 * elements:,} bytes"
        rows.append((size, off, on))
        more = f"{(on - off) * 1e6:+7.1f} µs   {on / off - 1:+.1%}"
        print(f"{size:>16}  off {off * 1e6:9.1f} µs   on {on * 1e6:9.1f} µs   {more}")
    print("goals: at most 20 µs more at 4 bytes, and 3 % at 4 MB")
    return rows


if __name__ == "__main__":
    main()
