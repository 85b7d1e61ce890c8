"""What ranks measure on the machine that they share, and the Cluster made from it.

    link      ping-pong of two ranks, from 8 bytes to 8 MB: half a round trip takes alpha + n / bandwidth
    peak      products of square matrices, for each dtype
    memory    a copy and a sum of tensors too large for the caches; with n bytes each, they read and write 5 n
    launch    a sum of two one-element tensors
    gloo      what its collectives are made of (cluster/gloo_costs.py): an all-reduce of a rank with itself, a barrier,
              large messages that all ranks send to the next one at once, a sum of two tensors, copies

All but the link are measured on all ranks at once, one thread each: a core is slower while the others are busy. The
ranks are those of `spawn`, so the time of a message includes that of recording it. Results are medians, which a brief
disturbance does not change, except for the link and for gloo: there, measurements take turns and the quickest of each
counts, which is the same on a machine that is now and then busy with something else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TypedDict

import torch
import torch.distributed as dist

from ...cluster.achieved import AsMeasured, GlooRates
from ...cluster.hardware import Cluster, Gpu, Link
from ...cluster.layout import levels
from ...text.units import plural, quantity
from ...worlds.real.placement import get_device

MESSAGES = [8 * 10**step for step in range(7)]  # bytes: 8 to 8 million
ROUNDS = 15  # timings per message
SHIFTED, ADDED = 4 << 20, 256 << 10  # bytes of a large message, and of a sum that stays in a cache
WINDOW = 0.25  # seconds for repeated measurements of each of the other quantities
SAMPLE = 0.02  # seconds, at least, per sample: ranks that share a core take turns of a few milliseconds
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {"gloo": "Gloo", "nccl": "NCCL"}
WIDTHS = [128 * 2**step for step in range(7)]  # widths of the matrices: 128 to 8192


class RankSamples(TypedDict):
    """What one rank measured."""

    memory: float  # bytes
    launch: list[float]  # seconds
    bandwidth: list[float]  # bytes/s
    flops: dict[str, list[float]]  # {name of dtype: FLOP/s}


# ---- what the ranks run


def measure_rank(rank: int, world_size: int, window: float) -> RankSamples:
    device = get_device()
    number = torch.zeros(1, device=device)
    return {
        "memory": memory_of(device, world_size),
        "launch": sample(lambda: number + number, device, window),
        "bandwidth": bandwidth_samples(device, window),
        "flops": {name: peak_samples(dtype, device, window) for name, dtype in DTYPES.items()},
    }


def bandwidth_samples(device: torch.device, window: float) -> list[float]:
    """bytes/s of a copy, which reads and writes one tensor, and a sum, which reads two and writes one."""
    nbytes = 64 << 20 if device.type == "cpu" else 1 << 30
    source = torch.ones(nbytes // 4, device=device)  # not zeros, which the system provides without allocating memory
    target = source.clone()
    return [5 * nbytes / seconds for seconds in sample(lambda: target.copy_(source).add_(source), device, window)]


def peak_samples(dtype: torch.dtype, device: torch.device, window: float) -> list[float]:
    """FLOP/s of products of square matrices."""
    matrix = wide_matrix(dtype, device)
    return [2 * len(matrix) ** 3 / seconds for seconds in sample(lambda: matrix @ matrix, device, window)]


def sample(work: Callable[[], object], device: torch.device, window: float) -> list[float]:
    """Seconds that `work` takes, measured on all ranks at once for `window` seconds, and at least three times."""
    calls = 1
    while (taken := seconds_of(work, calls, device) * calls) < SAMPLE:
        calls = max(2 * calls, int(calls * SAMPLE / max(taken, 1e-6)))
    dist.barrier()
    samples: list[float] = []
    end = time.perf_counter() + window
    while len(samples) < 3 or time.perf_counter() < end:
        samples.append(seconds_of(work, calls, device))
    return samples


def seconds_of(work: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds per call, over `calls` calls in a row; on a GPU, by its own clock."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1e3 / calls
    before = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - before) / calls


def wide_matrix(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The largest square matrix of WIDTHS whose product with itself takes less than a sample. Small ones reach fewer
    FLOP/s; on a CPU without hardware for a dtype, large ones would take seconds.
    """
    for width in WIDTHS:
        matrix = torch.ones(width, width, device=device).to(dtype)
        matrix @ matrix  # the first product of a shape may have to compile a kernel
        seconds = seconds_of(partial(torch.matmul, matrix, matrix), 1, device)
        if 8 * seconds > SAMPLE:  # the next would take 8 times as long
            break
    return matrix


def memory_of(device: torch.device, world_size: int) -> float:
    """Bytes of the GPU, or of this rank's share of the machine's RAM."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:  # the container's limit; "max" without one
            memory = min(memory, int(limit.read()))
    except (OSError, ValueError):
        pass
    return memory / world_size


def ping_pong(rank: int, world_size: int, rounds: int) -> dict[int, list[float]]:
    """{bytes of a message: [seconds one way]}; rank 0 sends first. Sizes take turns, so a disturbance hits them all."""
    device = get_device()
    messages = {nbytes: torch.zeros(nbytes, dtype=torch.uint8, device=device) for nbytes in MESSAGES}
    times: dict[int, list[float]] = {nbytes: [] for nbytes in MESSAGES}
    for _ in range(rounds):
        for nbytes, message in messages.items():
            trips = min(10, max(1, (256 << 10) // nbytes))  # several per sample, if the message is small
            trip = seconds_of(partial(round_trip, message, rank), trips, device)
            times[nbytes].append(trip / 2)
    return times


def round_trip(message: torch.Tensor, rank: int) -> None:
    if rank == 0:
        dist.send(message, 1)
        dist.recv(message, 1)
    else:
        dist.recv(message, 0)
        dist.send(message, 0)


def gloo_samples(rank: int, world_size: int, rounds: int) -> dict[str, list[float]]:
    """{measurement: [seconds of a call]}. All ranks make each at the same time, one measurement after another."""
    alone = [dist.new_group([member]) for member in range(world_size)][rank]
    token, segment, other = torch.zeros(1), torch.ones(ADDED // 4), torch.ones(ADDED // 4)
    sent, received = torch.ones(SHIFTED // 4), torch.empty(SHIFTED // 4)
    calls = {
        "start": (20, lambda: dist.all_reduce(token, group=alone)),
        "barrier": (20, dist.barrier),
        "shift": (2, lambda: shift(sent, received, rank, world_size)),
        "add": (20, lambda: segment.add_(other)),
        "copy": (2, sent.clone),
        "move": (2, lambda: received.copy_(sent)),
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (number, call) in calls.items():
            dist.barrier()
            samples[name].append(seconds_of(call, number, token.device))
    return samples


def shift(sent: torch.Tensor, received: torch.Tensor, rank: int, world_size: int) -> None:
    """Send to the next rank, and receive from the one before."""
    work = dist.isend(sent, (rank + 1) % world_size)
    assert work is not None
    dist.recv(received, (rank - 1) % world_size)
    work.wait()


# ---- what the samples say


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_cluster(
    of_ranks: list[RankSamples],
    times: dict[int, list[float]] | None,
    backend: str,
    gloo: list[dict[str, list[float]]] | None = None,
) -> Cluster:
    """The measurements as a Cluster.

    times   those of ping_pong; None if a rank on the only GPU has no peer
    gloo    those of gloo_samples on each rank, if the ranks use it

    Raises ValueError if larger messages took no longer.
    """
    size = len(of_ranks)
    gpu = Gpu(
        flops={name: typical([rank["flops"][name] for rank in of_ranks]) for name in DTYPES},
        memory=min(rank["memory"] for rank in of_ranks),
        bandwidth=typical([rank["bandwidth"] for rank in of_ranks]),
        launch=typical([rank["launch"] for rank in of_ranks]),
        achieved=AsMeasured() if gloo else None,
    )
    place = "a GPU each" if backend == "nccl" else "a core each" if size <= cores() else f"on {plural(cores(), 'core')}"
    sources = [f"measured with torch {torch.__version__}: medians of {plural(size, 'rank')} at once, {place}"]
    if times is None:
        link = Link(0.0, float("inf"))
        sources.append("links: not measured, because a single rank has no one to send to")
    else:
        one_way = {nbytes: min(samples) for nbytes, samples in times.items()}
        link = fit(one_way)
        sources += [
            f"inside a node: ping-pong of 2 ranks over {BACKENDS[backend]}, {quantity(min(one_way), 'B')} to "
            f"{quantity(max(one_way), 'B')}; latency + bytes / bandwidth is off by at most "
            f"{worst_miss(one_way, link):.0%}",
            "between nodes: not measured, because there is only one machine; assumed equal to the link inside",
        ]
        if gloo:
            link = replace(link, achieved=gloo_rates(gloo))
            sources.append("collectives: Gloo's own algorithms, from the quickest of several short measurements")
    return Cluster("this machine", 1, size, gpu, link, link, nics=1, sources=tuple(sources))


def gloo_rates(of_ranks: list[dict[str, list[float]]]) -> GlooRates:
    """What gloo_samples says about Gloo's collectives."""
    size = len(of_ranks)
    names = ("start", "barrier", "shift", "add", "copy", "move")
    start, barrier, shifted, add, copy, move = (quickest([rank[name] for rank in of_ranks]) for name in names)
    step = max(0.0, barrier - start) / levels(size)
    return GlooRates(start, step, size * SHIFTED / shifted, ADDED / add, SHIFTED / copy, SHIFTED / move)


def quickest(of_ranks: list[list[float]]) -> float:
    """The best time of the slowest rank, over several measurements that all ranks made at the same time."""
    best: float = min(max(together) for together in zip(*of_ranks, strict=True))
    return best


def typical(of_ranks: list[list[float]]) -> float:
    """The median of the ranks' medians, which a disturbed or late rank does not change."""
    return median(map(median, of_ranks))


def fit(times: dict[int, float]) -> Link:
    """The link whose alpha + n beta is closest to the measured {n bytes: seconds}; alpha is at least 0.

    It minimizes the squared RELATIVE errors, (alpha + n beta - t) / t, so that small messages determine alpha and large
    ones beta. With absolute errors the largest message alone would decide almost everything.

    Raises ValueError for fewer than two sizes, or if larger messages don't take longer.
    """
    if len(times) < 2:
        raise ValueError(f"fitting a latency and a bandwidth takes messages of two or more sizes; got {len(times)}")
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
            f"larger messages don't take longer: {min(times):,} bytes {slow}, {max(times):,} bytes {fast}. The machine "
            "was probably busy with something else. Measure again."
        )
    return Link(alpha, 1 / beta)


def worst_miss(times: dict[int, float], link: Link) -> float:
    """The link's largest relative error over the measured times."""
    return max(abs(link.seconds(n) / t - 1) for n, t in times.items())
