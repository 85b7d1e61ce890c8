"""`play`: run a pipeline schedule on a virtual cluster. A step sleeps for as long as it takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...cluster.hardware import Cluster, Gpu, Link
from ...kit.pipeline_schedule import Step, costs_of, needed, read
from ...recording.regions import region
from .launch import simulate

if TYPE_CHECKING:
    from ...report.run import Run

FREE = Link(alpha=0.0, bandwidth=float("inf"))


def free_messages(ranks: int) -> Cluster:
    """A virtual cluster on which messages take no time."""
    idle = Gpu(flops={"fp32": float("inf")}, memory=float("inf"), bandwidth=float("inf"))
    return Cluster("messages are free", nodes=1, gpus_per_node=ranks, gpu=idle, intra=FREE, inter=FREE)


def play(schedules: list[Any], costs: dict[str, float] | None = None, cluster: Cluster | None = None) -> Run:
    """Run a schedule: each step sleeps for as long as it takes, each message is a single number.

    schedules   the steps of each rank, as `read` takes them
    costs       {kind of step: seconds}; what `costs_of` says if left out
    cluster     one on which messages take no time if left out

    Raises WorldStuck, with a report, if the schedule gets stuck.
    """
    steps = read(schedules)
    cluster = cluster or free_messages(len(steps))
    return simulate(walk, len(steps), steps, costs or costs_of(steps), cluster=cluster)


def walk(rank: int, world_size: int, schedules: list[list[Step]], costs: dict[str, float]) -> None:
    """The rank program. For each of the rank's steps: receive its input, sleep, send its output without waiting."""
    last = world_size * (1 + max(step.chunk for steps in schedules for step in steps)) - 1
    sends = []
    for step in schedules[rank]:
        stage = step.chunk * world_size + rank
        for what in needed(step, stage, last):
            if what.stage % world_size != rank:
                dist.recv(torch.empty(1), src=what.stage % world_size, tag=tag(step.kind, step.microbatch, stage))
        with region(f"{step.kind}{step.microbatch}"):
            time.sleep(costs[step.kind])
        target = stage + {"F": 1, "B": -1, "W": 0}[step.kind]
        if 0 <= target <= last and target % world_size != rank:
            message = tag(step.kind, step.microbatch, target)
            sends.append(dist.isend(torch.empty(1), dst=target % world_size, tag=message))
    for handle in sends:
        assert handle is not None
        handle.wait()


def tag(kind: str, microbatch: int, stage: int) -> int:
    """The tag of the message that a step of a stage waits for: F of microbatch 3 on stage 2 has 200030, B has 200031.

    Raises ValueError for more than 9,999 microbatches.
    """
    if not 0 <= microbatch < 10_000:
        raise ValueError(f"there is no tag for microbatch {microbatch}: only microbatches 0 to 9,999 have one")
    return stage * 100_000 + microbatch * 10 + (kind == "B")
