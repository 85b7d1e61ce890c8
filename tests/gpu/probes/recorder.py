"""Part 3: what the recorder writes on a GPU, and what that costs."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.probe import NotHere, Numbers, Setting
from utils import get_device, region, spawn

CALLS = 20
OFF_BY = 0.05  # how far a region timed by CUDA events may be from the profiler's kernels in it, relative


def same_calls(rank: int, world_size: int, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Collectives of every kind that NCCL and Gloo share, on numbers that make rounding visible."""
    device = get_device()
    torch.manual_seed(rank)
    x = torch.randn(1 << 16, device=device)
    total, copy = x.clone(), x.clone()
    gathered = torch.empty(world_size * x.numel(), device=device)
    part = torch.empty(x.numel() // world_size, device=device)
    dist.all_reduce(total, group=group)
    work = dist.all_reduce(copy, dist.ReduceOp.MAX, group=group, async_op=True)
    dist.all_gather_into_tensor(gathered, x, group=group)
    work.wait()
    dist.reduce_scatter_tensor(part, x, group=group)
    dist.broadcast(x, group_src=0, group=group)
    return [total, copy, gathered, part, x]


def recorded_and_plain(rank: int, world_size: int) -> bool:
    """Whether the same calls on the recorded group and on the one behind it give the same bits."""
    world: Any = dist.group.WORLD
    pairs = zip(same_calls(rank, world_size, world), same_calls(rank, world_size, world.inner), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def counts_and_values(setting: Setting) -> Numbers:
    """Every call is recorded once, and recording changes no bit of any result"""
    table: Numbers = {}
    expected = ["all_reduce", "all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    for size in setting.world_sizes:
        run = spawn(recorded_and_plain, size, backend=setting.backend)
        for rank in range(size):
            events = [event for event in run.events if event.rank == rank]
            found = [event.op for event in events]
            assert found == expected, f"rank {rank} of {size} recorded {found}, expected {expected}"
            assert all(event.end is not None and event.start <= event.end for event in events), f"{events}"
        assert run.results == [True] * size, f"bits differ on ranks: {run.results}"
        table[f"{size} ranks"] = {"calls recorded": len(run.events), "bit-equal": all(run.results)}
    return table


def profiled(rank: int, world_size: int, trace: str) -> dict[str, list[float]]:
    """{"products": [...], "copies": [...]}: seconds of each kernel of a kind, by the profiler; rank 0 saves a trace."""
    from torch.profiler import ProfilerActivity, profile

    device = get_device()
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    big, all_of_it = torch.randn(1 << 24, device=device), torch.empty(world_size << 24, device=device)
    for _ in range(3):
        matrix @ matrix
        dist.all_gather_into_tensor(all_of_it, big)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as measured:
        for number in range(CALLS):
            with region(f"product {number}"):
                for _ in range(10):
                    matrix @ matrix
            dist.all_gather_into_tensor(all_of_it, big)
        torch.cuda.synchronize()
    if rank == 0 and trace:
        measured.export_chrome_trace(trace)
    return {
        "products": on_gpu(measured, "gemm", "cutlass", "nvjet", "xmma"),
        "copies": on_gpu(measured, "nccl", "memcpy"),
    }


def on_gpu(measured: Any, *words: str) -> list[float]:
    """Seconds of the kernels and copies whose name has one of the words."""
    from torch.autograd import DeviceType

    return [
        event.time_range.elapsed_us() / 1e6
        for event in measured.events()
        if event.device_type == DeviceType.CUDA and any(word in event.name.lower() for word in words)
    ]


def event_times(setting: Setting) -> Numbers:
    """Times from CUDA events, against a profiler's trace"""
    if setting.dry:
        raise NotHere("a CPU has no CUDA events")
    table: Numbers = {}
    for size in setting.world_sizes:
        trace = setting.file("traces", f"profiler-{size}-ranks.json")
        run = spawn(profiled, size, str(trace), backend="nccl")
        run.save_trace(setting.file("traces", f"recorder-{size}-ranks.json"))
        setting.draw(f"timeline-{size}-ranks", run.timeline)
        products = run.results[0]["products"]
        copies = run.results[0]["copies"]
        regions = [one.end - one.start for one in run.regions if one.rank == 0]
        calls = [event.end - event.start for event in run.events if event.rank == 0 and event.op == "all_gather"][3:]
        table[f"{size} ranks"] = {
            "regions, s": sum(regions),
            "their kernels by the profiler, s": sum(products),
            "all-gathers, s": sum(calls),
            "their kernels and copies by the profiler, s": sum(copies),
        }
        off = abs(sum(regions) / sum(products) - 1)
        assert off < OFF_BY, f"regions are off by {off:.1%} from the profiler's kernels: {table}"
    return table


def times(rank: int, world_size: int, elements: int, calls: int) -> dict[str, float]:
    """{"off": ..., "on": ...}: seconds per all-reduce on the plain group and on the recorded one, in turns."""
    world: Any = dist.group.WORLD
    groups = {"off": world.inner, "on": world}
    x = torch.zeros(elements, device=get_device())
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    for block in range(22):
        for name in ("off", "on") if block % 2 else ("on", "off"):
            dist.barrier()
            wait_for_gpu()
            began = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(x, group=groups[name])
            wait_for_gpu()
            seconds[name].append((time.perf_counter() - began) / calls)
    return {name: median(measured[2:]) for name, measured in seconds.items()}


def wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def overhead(setting: Setting) -> Numbers:
    """What recording costs, per all-reduce"""
    table: Numbers = {}
    for size in setting.world_sizes:
        for elements in (1, 1 << (10 if setting.dry else 22)):
            taken = spawn(times, size, elements, 10 if setting.dry else 100, backend=setting.backend).results[0]
            table[f"{size} ranks, {4 * elements:,} bytes"] = {
                "off, µs": 1e6 * taken["off"],
                "on, µs": 1e6 * taken["on"],
                "more, µs": 1e6 * (taken["on"] - taken["off"]),
            }
    return table


CHECKS = [counts_and_values, event_times, overhead]
