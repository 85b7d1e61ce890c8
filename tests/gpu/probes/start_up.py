"""Part 4: where the time goes until a rank computes, and what ranks that are kept alive would save."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from tests.gpu.probe import Numbers, Setting
from utils import spawn

AGAIN = 4  # calls after the first


def moments(rank: int, world_size: int, device: str, called: float) -> dict[str, float]:
    """Seconds of each step on this rank. called: time.monotonic() when spawn was called; one clock for all here."""
    began = time.monotonic()
    x = torch.ones(1 << 20, device=device)
    x.sum().item()
    opened = time.monotonic()
    steps = {"process": began - called, "first tensor": opened - began}
    for name in ("first all-reduce", "second all-reduce"):
        before = time.monotonic()
        dist.all_reduce(x)
        x[0].item()  # waits for the GPU
        steps[name] = time.monotonic() - before
    return {**steps, "until here": time.monotonic() - called}


def step_by_step(device: str, backend: str, world_size: int) -> dict[str, float]:
    """Seconds of each step on the slowest rank, and of the whole call."""
    called = time.monotonic()
    run = spawn(moments, world_size, device, called, backend=backend)
    whole = time.monotonic() - called
    slowest = {name: max(result[name] for result in run.results) for name in run.results[0]}
    steps = {name: seconds for name, seconds in slowest.items() if name != "until here"}
    return {**steps, "way back": whole - slowest["until here"], "whole call": whole}


def table(setting: Setting, backend: str, sizes: list[int]) -> Numbers:
    """The first call and the median one after it, and what would be left if the ranks, their GPU and NCCL were kept."""
    found: Numbers = {}
    for size in sizes:
        first = step_by_step(setting.device, backend, size)
        later = [step_by_step(setting.device, backend, size) for _ in range(1 if setting.dry else AGAIN)]
        typical = sorted(later, key=lambda steps: steps["whole call"])[len(later) // 2]
        for name, steps in (("first", first), ("later", typical)):
            kept = steps["second all-reduce"] + steps["way back"]
            found[f"{size} ranks, {name}, s"] = {**steps, "would save": steps["whole call"] - kept}
    return found


def one_rank_a_gpu(setting: Setting) -> Numbers:
    """One rank a GPU, over NCCL"""
    return table(setting, setting.backend, setting.world_sizes)


def one_gpu(setting: Setting) -> Numbers:
    """Several ranks on one GPU, over Gloo"""
    return table(setting, "gloo", [1, 2] if setting.dry else [1, 2, 4])


CHECKS = [one_rank_a_gpu, one_gpu]
