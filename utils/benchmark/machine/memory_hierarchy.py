"""How fast this machine moves bytes, from its caches to its network, measured.

nbytes, seconds = time_copies()      # copies of 4 kB to 64 MB by one core; small ones stay in its caches
levels()                             # {"L1": 49152, "L2": ..., "memory": inf}: how many bytes fit in each
links()                              # {"loopback": bytes/s, ...}; with GPUs also HBM, PCIe and the link between them
one_core()                           # (FLOP/s, bytes/s) of one core: float32 products, and its memory
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from statistics import median

import torch

from ...worlds.real.installed_gpus import find_gpus
from ...worlds.real.launch import spawn
from . import probes

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
SIZES = [2**power for power in range(12, 27)]  # bytes of a copy: 4 kB to 64 MB
SAMPLE = 1e-4  # seconds of copies in a row: in more, something else often comes in between
UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}


def levels(folder: Path = CACHES) -> dict[str, float]:
    """{level: how many bytes fit in it}, smallest first; "memory" is infinite. Without Linux it is the only one."""
    found = {}
    for cache in sorted(folder.glob("index*")):
        if (cache / "type").read_text().strip() != "Instruction":
            size = (cache / "size").read_text().strip()
            found[f"L{(cache / 'level').read_text().strip()}"] = float(int(size[:-1]) * UNITS[size[-1]])
    return {**found, "memory": math.inf}


def time_copies(sizes: list[int] = SIZES) -> tuple[list[int], list[float]]:
    """(bytes, seconds) of copies by one core, in a process of its own; each time is the best of several."""
    return sizes, spawn(copy_seconds, 1, sizes, backend="gloo").results[0]


def copy_seconds(rank: int, world_size: int, sizes: list[int], rounds: int = 8) -> list[float]:
    """The best time of each size. Sizes take turns, since a core may be slow for a while."""
    sources = [torch.ones(nbytes // 4) for nbytes in sizes]
    times = [[quickest_copy(source, window=0.01) for source in sources] for _ in range(rounds)]
    return [min(of_size) for of_size in zip(*times, strict=True)]


def quickest_copy(source: torch.Tensor, window: float) -> float:
    """Seconds of one copy of `source`: the best sample in `window` seconds."""
    copy, device = torch.empty_like(source), source.device
    once = max(1e-7, probes.seconds_of(lambda: copy.copy_(source), 2, device))
    calls, end, best = max(1, int(SAMPLE / once)), time.perf_counter() + window, once
    while time.perf_counter() < end:
        best = min(best, probes.seconds_of(lambda: copy.copy_(source), calls, device))
    return best


def links(rounds: int = 5, window: float = 0.5) -> dict[str, float]:
    """{name: bytes/s one way} beyond a core's own memory: "loopback" and, with free GPUs, "HBM" (reads and writes
    together), "PCIe" (host to GPU) and "GPU to GPU".

    rounds    of a ping-pong for each link between ranks
    window    seconds for each of the others
    """
    found = {"loopback": link_bandwidth("gloo", rounds)}
    free = sum(not gpu.is_busy for gpu in find_gpus())
    if free:
        found |= spawn(gpu_links, 1, window, backend="nccl").results[0]
    if free > 1:
        found["GPU to GPU"] = link_bandwidth("nccl", rounds)
    return found


def link_bandwidth(backend: str, rounds: int) -> float:
    """bytes/s one way between two ranks, by the message with the highest rate."""
    times: dict[int, list[float]] = spawn(probes.ping_pong, 2, rounds, backend=backend).results[0]
    return max(nbytes / min(samples) for nbytes, samples in times.items())


def one_core(window: float = 0.25) -> tuple[float, float]:
    """(FLOP/s of float32 matrix products, bytes/s of its memory) of one core; `window` seconds for each."""
    rates: tuple[float, float] = spawn(core_rates, 1, window, backend="gloo").results[0]
    return rates


def core_rates(rank: int, world_size: int, window: float) -> tuple[float, float]:
    device = torch.device("cpu")
    peak = median(probes.peak_samples(torch.float32, device, window))
    return peak, median(probes.bandwidth_samples(device, window))


def gpu_links(rank: int, world_size: int, window: float) -> dict[str, float]:
    device = torch.device("cuda")
    on_host = torch.ones(2**26).pin_memory()
    on_gpu = on_host.to(device)
    copies = probes.sample(lambda: on_gpu.copy_(on_host, non_blocking=True), device, window)
    return {
        "HBM": max(probes.bandwidth_samples(device, window)),
        "PCIe": on_host.numel() * on_host.element_size() / min(copies),
    }
