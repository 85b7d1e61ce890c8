"""What bounds a collective on this machine, in bytes/s: copies of its memory, and one link between two ranks."""

from __future__ import annotations

from statistics import median

import torch

from ...cluster.hardware import Cluster
from ...worlds.jobs.in_place import already_a_rank
from ...worlds.real.launch import spawn
from ...worlds.real.placement import get_device
from . import probes

WINDOW = 0.2  # seconds of copying
ROUNDS = 7  # ping-pong rounds


def machine_limits(world_size: int, backend: str | None = None) -> dict[str, float]:
    """{what it is: bytes/s}, measured now, in about a second. Empty on a rank of torchrun or SLURM.

    memory copy   what each of `world_size` ranks copies while all the others copy too
    one link      the best message of a ping-pong between two ranks, one way: loopback with Gloo, GPU to GPU with NCCL
    """
    if already_a_rank():
        return {}
    copies = spawn(copy_memory, world_size, WINDOW, backend=backend).results
    limits = {f"memory copy, {world_size} at once": probes.typical(copies)}
    if world_size > 1:
        run = spawn(probes.ping_pong, 2, ROUNDS, backend=backend)
        name = "loopback, 2 ranks" if run.backend == "gloo" else "one link, 2 ranks"
        limits[name] = max(nbytes / median(samples) for nbytes, samples in run.results[0].items())
    return limits


def copy_memory(rank: int, world_size: int, window: float) -> list[float]:
    """Samples of bytes/s copied; each byte is read once and written once."""
    device = get_device()
    nbytes = 32 << 20 if device.type == "cpu" else 1 << 30
    source = torch.ones(nbytes // 4, device=device)
    target = source.clone()
    return [nbytes / seconds for seconds in probes.sample(lambda: target.copy_(source), device, window)]


def cluster_limits(cluster: Cluster, world_size: int) -> dict[str, float]:
    """The same for a virtual cluster: {the link inside a node, and the one between nodes if it is used: bytes/s}."""
    inside = {"link inside a node": cluster.intra.bandwidth}
    return inside if world_size <= cluster.gpus_per_node else inside | {"link between nodes": cluster.inter.bandwidth}
