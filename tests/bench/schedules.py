"""Pictures of two pipeline schedules on eight virtual stages, GPipe and 1F1B, which have the same bubble."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from utils import region, simulate
from utils.cluster import Cluster, Gpu, Link

STAGES, MICROBATCHES, WIDTH = 8, 16, 1000
# Forward is one product of 1 ms, backward two; messages take no time, so that only the schedule shows.
FREE = Link(alpha=0.0, bandwidth=float("inf"))
GPU = Gpu(flops={"fp32": 2 * WIDTH**3 / 1e-3}, memory=80e9, bandwidth=float("inf"))
CLUSTER = Cluster("messages are free", nodes=1, gpus_per_node=STAGES, gpu=GPU, intra=FREE, inter=FREE)


def gpipe(rank: int, stages: int) -> list[str]:
    return ["forward"] * MICROBATCHES + ["backward"] * MICROBATCHES


def one_f_one_b(rank: int, stages: int) -> list[str]:
    ahead = min(MICROBATCHES, stages - 1 - rank)
    return ["forward"] * ahead + ["forward", "backward"] * (MICROBATCHES - ahead) + ["backward"] * ahead


def stage(rank: int, world_size: int, schedule) -> None:
    """Take the steps of a schedule, a list of "forward" and "backward"; each kind takes the microbatches in order."""
    weights, sent, number = torch.empty(WIDTH, WIDTH), [], {"forward": 0, "backward": 0}
    for step in schedule(rank, world_size):
        x = torch.empty(WIDTH, WIDTH)
        source, target = (rank - 1, rank + 1) if step == "forward" else (rank + 1, rank - 1)
        if 0 <= source < world_size:
            dist.recv(x, source)
        with region(f"{step} {number[step]}"):
            for _ in range(1 if step == "forward" else 2):
                x = x @ weights
        number[step] += 1
        if 0 <= target < world_size:
            sent.append(dist.isend(x, target))
    for handle in sent:
        handle.wait()


def draw(folder: Path) -> list[Path]:
    """Save a timeline of each in `folder`, and print which part of the time is bubble."""
    saved = []
    for name, schedule in (("gpipe", gpipe), ("1f1b", one_f_one_b)):
        run = simulate(stage, STAGES, schedule, cluster=CLUSTER)
        bubble = 1 - MICROBATCHES * 3e-3 / run.elapsed
        print(f"{name:>5}: {run.elapsed * 1e3:.0f} ms, of which {bubble:.1%} bubble, which is (P-1)/(M+P-1)")
        saved.append(folder / f"{name}.png")
        run.timeline().savefig(saved[-1])
    return saved
