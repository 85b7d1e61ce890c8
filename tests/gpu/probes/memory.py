"""Part 7: the memory of a training step, by the GPU's allocator, by track_memory on the CPU, and by `simulate`."""

from __future__ import annotations

import torch
from torch import nn

from tests.gpu.probe import Numbers, Setting
from utils import region, simulate, spawn, track_memory

BLOCK = 512  # bytes: CUDA's allocator rounds up to it
OFF_BY = 0.02  # how far two ways of counting may be apart, relative; cuBLAS also takes a workspace of its own


def live_bytes(device: str, tracked: object = None) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else getattr(tracked, "live", 0)


def step(rank: int, world_size: int, device: str, width: int) -> dict[str, int]:
    """{moment: live bytes} of a training step; what cuBLAS takes for itself is there before it begins."""
    if device == "cuda":
        torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
        before = torch.cuda.memory_allocated()
    else:
        before = 0
    found: dict[str, int] = {}
    with track_memory() as tracked:

        def note(moment: str) -> None:
            found[moment] = live_bytes(device, tracked) - before

        model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(256, width, device=device)
        note("model and batch")
        with region("forward"):
            loss = model(x).square().mean()
        note("after forward")
        with region("backward"):
            loss.backward()
        del loss
        note("after backward")
        with region("optimizer"):
            optimizer.step()
        note("after the optimizer")
    return found


def three_ways(setting: Setting) -> Numbers:
    """Live bytes of a training step, counted in three ways"""
    width = 64 if setting.dry else 2048
    ways = {
        f"allocator on {setting.device}": spawn(step, 1, setting.device, width, backend=setting.backend).results[0],
        "track_memory on the CPU": spawn(step, 1, "cpu", width, backend="gloo").results[0],
        "simulate": simulate(step, 1, "cpu", width).results[0],
    }
    moments = list(next(iter(ways.values())))
    table: Numbers = {moment: {way: counted[moment] for way, counted in ways.items()} for moment in moments}
    for moment, counted in table.items():
        apart = max(counted.values()) - min(counted.values())
        allowed = OFF_BY * max(counted.values()) + 64 * BLOCK
        assert apart <= allowed, f"{moment}: {apart:,} bytes apart, more than {allowed:,.0f}: {table}"
    return table


def peak_of_run(setting: Setting) -> Numbers:
    """The peak that a Run reports"""
    width = 64 if setting.dry else 2048
    memory = spawn(step, 1, setting.device, width, backend=setting.backend).memory()
    setting.draw("memory", memory.figure)
    found = {"device": memory.device[0], "peak": memory.peak[0], "samples": len(memory.at[0])}
    assert memory.device[0] == setting.device, f"{found}"
    assert memory.peak[0] and memory.peak[0] >= max(nbytes for _, nbytes in memory.at[0])
    return found


CHECKS = [three_ways, peak_of_run]
