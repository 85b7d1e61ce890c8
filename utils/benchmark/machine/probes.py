"""What ranks find out about the machine that they share, and the Cluster that it makes.

    link      ping-pong of two ranks, from 8 bytes to 8 MB: half of a round trip is alpha + n / bandwidth
    peak      products of square matrices, for each dtype
    memory    a copy and a sum of tensors too large for the caches: of n bytes each, they read and write 5 n
    launch    a sum of two tensors of one number

All but the link with every rank at work at once, one thread each: a core has less to itself when the others are busy.
Ranks are those of `spawn`, so a message takes what recording it takes, too. Medians count: a moment in which the
machine did something else changes none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from ...cluster.hardware import Cluster, Gpu, Link
from ...text.units import plural, quantity
from ...worlds.real.placement import get_device

MESSAGES = [8 * 10**step for step in range(7)]  # bytes: 8 to 8 million
ROUNDS = 15  # how often each message is timed
WINDOW = 0.25  # seconds in which each of the other quantities is measured again and again
SAMPLE = 0.02  # seconds that a sample takes at least: ranks that share a core take turns of a few milliseconds
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {"gloo": "Gloo", "nccl": "NCCL"}
WIDTHS = [128 * 2**step for step in range(7)]  # of matrices: 128 to 8192


# ---- what the ranks do


def measure_rank(rank: int, world_size: int, window: float) -> dict:
    """{"memory": bytes of this rank; and lists of samples, "launch": [s], "bandwidth": [bytes/s], "fp32": [FLOP/s]}."""
    device = get_device()
    number = torch.zeros(1, device=device)
    return {
        "memory": memory_of(device, world_size),
        "launch": sample(lambda: number + number, device, window),
        "bandwidth": bandwidth_samples(device, window),
        **{name: peak_samples(dtype, device, window) for name, dtype in DTYPES.items()},
    }


def bandwidth_samples(device: torch.device, window: float) -> list[float]:
    """bytes/s of a copy, which reads one tensor and writes one, and a sum, which reads two and writes one."""
    nbytes = 64 << 20 if device.type == "cpu" else 1 << 30
    one = torch.ones(nbytes // 4, device=device)  # not zeros: the system hands those out without any memory
    other = one.clone()
    return [5 * nbytes / seconds for seconds in sample(lambda: other.copy_(one).add_(one), device, window)]


def peak_samples(dtype: torch.dtype, device: torch.device, window: float) -> list[float]:
    """FLOP/s of matrix products."""
    matrix = wide_matrix(dtype, device)
    return [2 * len(matrix) ** 3 / seconds for seconds in sample(lambda: matrix @ matrix, device, window)]


def sample(work: Callable[[], object], device: torch.device, window: float) -> list[float]:
    """Seconds that `work` takes, again and again for `window` seconds, on all ranks at once; three times at least."""
    calls = 1
    while (taken := seconds_of(work, calls, device) * calls) < SAMPLE:
        calls = max(2 * calls, int(calls * SAMPLE / max(taken, 1e-6)))
    dist.barrier()
    samples, end = [], time.perf_counter() + window
    while len(samples) < 3 or time.perf_counter() < end:
        samples.append(seconds_of(work, calls, device))
    return samples


def seconds_of(work: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds of one of `calls` calls in a row; of a GPU's own time, if it does them."""
    if device.type == "cuda":
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(calls):
            work()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3 / calls
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls


def wide_matrix(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The largest square matrix of WIDTHS whose product with itself takes less than a sample: small ones are slower for
    their FLOPs, and on a CPU without units for a dtype a large one would take seconds.
    """
    for width in WIDTHS:
        matrix = torch.ones(width, width, device=device).to(dtype)
        matrix @ matrix  # for the first product of a shape a kernel may have to be made
        if 8 * seconds_of(lambda matrix=matrix: matrix @ matrix, 1, device) > SAMPLE:  # what the next one would take
            break
    return matrix


def memory_of(device: torch.device, world_size: int) -> float:
    """Bytes: of the GPU, or this rank's part of the machine's RAM."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:  # a container's; "max" where there is none
            memory = min(memory, int(limit.read()))
    except (OSError, ValueError):
        pass
    return memory / world_size


def ping_pong(rank: int, world_size: int, rounds: int) -> dict[int, list[float]]:
    """{bytes of a message: [seconds one way]}; rank 0 sends first. All sizes by turns: what disturbs, disturbs all."""
    device = get_device()
    messages = {nbytes: torch.zeros(nbytes, dtype=torch.uint8, device=device) for nbytes in MESSAGES}
    times: dict[int, list[float]] = {nbytes: [] for nbytes in MESSAGES}
    for _ in range(rounds):
        for nbytes, message in messages.items():
            trips = min(10, max(1, (256 << 10) // nbytes))  # of a small message several to a sample
            trip = seconds_of(lambda message=message: there_and_back(message, rank), trips, device)
            times[nbytes].append(trip / 2)
    return times


def there_and_back(message: torch.Tensor, rank: int) -> None:
    for way in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        way(message, 1 - rank)


# ---- what is made of it


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_cluster(of_ranks: list[dict], times: dict[int, list[float]] | None, backend: str) -> Cluster:
    """What was measured as a Cluster. `times` of messages are None if there is nobody to send to."""
    size = len(of_ranks)
    found = {name: typical([rank[name] for rank in of_ranks]) for name in (*DTYPES, "bandwidth", "launch")}
    gpu = Gpu(
        flops={name: found[name] for name in DTYPES},
        memory=min(rank["memory"] for rank in of_ranks),
        bandwidth=found["bandwidth"],
        launch=found["launch"],
    )
    place = "a GPU each" if backend == "nccl" else "a core each" if size <= cores() else f"on {plural(cores(), 'core')}"
    sources = [f"measured with torch {torch.__version__}: medians of {plural(size, 'rank')} at once, {place}"]
    if times is None:
        link = Link(0.0, float("inf"))
        sources.append("links: one rank on one GPU has nobody to send to, so nothing was measured")
    else:
        one_way = {nbytes: median(samples) for nbytes, samples in times.items()}
        link = fit(one_way)
        sources += [
            f"inside a node: ping-pong of 2 ranks over {BACKENDS[backend]}, {quantity(min(one_way), 'B')} to "
            f"{quantity(max(one_way), 'B')}; latency + bytes / bandwidth misses what was measured by "
            f"{worst_miss(one_way, link):.0%} at most",
            "between nodes: there is one machine, so nothing was measured; the link inside stands there too",
        ]
    return Cluster("this machine", 1, size, gpu, link, link, nics=1, sources=tuple(sources))


def typical(of_ranks: list[list[float]]) -> float:
    """The median rank's median: one that was disturbed, or began late, decides nothing."""
    return median(map(median, of_ranks))


def fit(times: dict[int, float]) -> Link:
    """The link for which alpha + n beta comes closest to the measured {n bytes: seconds}.

    Closest by the squares of the RELATIVE errors, (alpha + n beta - t) / t: small messages then tell alpha and large
    ones beta. By absolute errors the largest message would decide almost alone. alpha is 0 where that fits best.

    Raises ValueError for fewer than two sizes, or if larger messages don't take longer.
    """
    if len(times) < 2:
        raise ValueError(f"a latency and a bandwidth need messages of two sizes or more; got {len(times)}")
    a = sum(1 / t**2 for t in times.values())  # the normal equations: a alpha + b beta = d, b alpha + c beta = e
    b = sum(n / t**2 for n, t in times.items())
    c = sum(n**2 / t**2 for n, t in times.items())
    d = sum(1 / t for t in times.values())
    e = sum(n / t for n, t in times.items())
    alpha, beta = (d * c - e * b) / (a * c - b * b), (a * e - b * d) / (a * c - b * b)
    if alpha < 0:
        alpha, beta = 0 * alpha, e / c
    if beta <= 0:
        slow, fast = (quantity(times[n], "s") for n in (min(times), max(times)))
        raise ValueError(
            f"larger messages don't take longer: {min(times):,} bytes {slow}, {max(times):,} bytes {fast}. Was the "
            "machine busy with something else? Measure again."
        )
    return Link(alpha, 1 / beta)


def worst_miss(times: dict[int, float], link: Link) -> float:
    """By how much of a measured time the link is off, where it is most."""
    return max(abs(link.seconds(n) / t - 1) for n, t in times.items())
