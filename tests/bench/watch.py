"""What `watch` adds to a training step: the same step on a recorded group and on a plain one, in turns, in one job.

The thread that watches runs beside both, so its processor time is added to the step that is watched.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from tests.bench import Row

STEP = "training step of 8 layers, 4 all-reduces, 2 ranks"
BLOCKS, STEPS = 15, 2  # blocks of steps on one group, then on the other; the result is the median block
CASES = [STEP]


def measure(case: str, quick: bool = False) -> list[Row]:
    off, on = times_in_a_job()
    return [{"name": case, "values": [off]}, {"name": f"{case}: watched", "values": [on], "beside": case}]


def times_in_a_job() -> list[float]:
    """Seconds per step, without and with `watch`."""
    return json.loads(said_in_a_job("-m", "tests.bench.watch")[0].splitlines()[-1])


def said_in_a_job(*program: str) -> list[str]:
    """What each of two watched ranks of a program prints."""
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [sys.executable, "-m", "utils.watch", *program]
    ranks = []
    for rank in ("0", "1"):
        own = {**os.environ, **meet, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True))
    return [process.communicate(timeout=300)[0] for process in ranks]


def rank_program() -> None:
    from utils.worlds.watch.start import watcher

    dist.init_process_group("gloo")
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    x, seconds = torch.randn(256, 512), ([], [])
    world: Any = dist.group.WORLD
    groups, began_all = [world.inner, world], time.perf_counter()
    for block in range(2 * BLOCKS):
        for number in (0, 1) if block % 2 else (1, 0):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                step(model, x, groups[number])
            seconds[number].append((time.perf_counter() - began) / STEPS)
    share = watcher.processor_seconds / (time.perf_counter() - began_all)
    off, on = (statistics.median(measured[2:]) for measured in seconds)
    if dist.get_rank() == 0:
        print(json.dumps([off, on * (1 + share)]))


def step(model: torch.nn.Module, x: torch.Tensor, group: Any) -> None:
    model.zero_grad()
    model(x).square().mean().backward()
    gradients = [p.grad for p in model.parameters()]
    for first in range(0, len(gradients), 4):
        bucket = torch.cat([gradient.flatten() for gradient in gradients[first : first + 4]])
        dist.all_reduce(bucket, group=group)


if __name__ == "__main__":
    rank_program()
