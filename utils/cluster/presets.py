"""Machines that you can buy or rent, by name: find_cluster("dgx-h100", 64).

Peaks are dense, link bandwidths one way, all per GPU, from datasheets; real programs reach 70 to 90 % of them. No
datasheet gives latencies. Those here are ESTIMATES, chosen so that the cheapest all-reduce of a few bytes (the tree of
collective_costs.py) costs about what has been published:

    NVLink      3 µs    8 x H200 in one node, 32 KiB: 18 µs (nccl-tests; ml-engineering)          18 µs here
    InfiniBand  10 µs   2 x A100, one on each node, HDR, 8 bytes: 19 µs (nccl-tests, issue 150)   20 µs
                        16 x H20 on 2 nodes, NDR, 8 bytes: 46 µs (nccl, issue 1244)               38 µs
    Ethernet    50 µs   16 x H100 on 2 nodes of A3 Mega, 8 bytes: 123 µs (nccl-tests, a fork of create-a3mega)   118 µs

NCCL's own model has 0.6 µs per step over NVLink, 5 µs per step over a network, and 6.8 µs once per call (hwLat and
baseLat for a tree with the LL protocol, src/graph/tuning.cc). Here a single alpha stands for both, which is a limit of
this model.

No preset's switch `reduces`, although NVLink's switches can add from NVLink 4 on (NVLS in NCCL). If they did so
perfectly, an all-reduce of n bytes would take n / bandwidth. Published figures: 8 x H200 reach 61 % of that, 8 x B200
53 %, 72 x GB200 47 % (ml-engineering, network/benchmarks; coreweave/nccl-tests, pull request 43). A plain ring at the
links' full bandwidth comes within 8 % of all three, so that is what presets charge. NVLS also needs more than 4 GPUs
and large messages. For a perfect switch:

    perfect = dataclasses.replace(cluster, intra=dataclasses.replace(cluster.intra, reduces=True))
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..text.units import nearest
from .hardware import Cluster, Gpu, Link, check_count

NVLINK_LATENCY, INFINIBAND_LATENCY, ETHERNET_LATENCY = 3e-6, 10e-6, 50e-6  # seconds; see above
LAUNCH = 4e-6  # seconds; an estimate: CUDA's launch and torch's own work for one small operation

ESTIMATES = "latencies and launch: estimates, see presets.py"

A100 = Gpu(
    flops={"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12, "fp64": 9.7e12, "int8": 624e12},
    memory=80e9,
    bandwidth=2.039e12,
    launch=LAUNCH,
)
H100 = Gpu(
    flops={
        "fp8": 1979e12,
        "bf16": 989e12,
        "fp16": 989e12,
        "tf32": 494.5e12,
        "fp32": 67e12,
        "fp64": 34e12,  # 67 in tensor cores
        "int8": 1979e12,
    },
    memory=80e9,
    bandwidth=3.35e12,
    launch=LAUNCH,
)
B200 = Gpu(
    flops={
        "fp4": 9000e12,
        "fp8": 4500e12,
        "bf16": 2250e12,
        "fp16": 2250e12,
        "tf32": 1125e12,
        "fp32": 75e12,
        "fp64": 37e12,
        "int8": 4500e12,
    },
    memory=180e9,
    bandwidth=8e12,
    launch=LAUNCH,
)
GB200 = Gpu(
    flops={
        "fp4": 10000e12,
        "fp8": 5000e12,
        "bf16": 2500e12,
        "fp16": 2500e12,
        "tf32": 1250e12,
        "fp32": 80e12,
        "fp64": 40e12,
        "int8": 5000e12,
    },
    memory=186e9,
    bandwidth=8e12,
    launch=LAUNCH,
)
# One core of a laptop, with its share of what all cores share.
CORE = Gpu(flops={"fp32": 80e9, "fp64": 40e9}, memory=2e9, bandwidth=6e9, launch=5e-6)

PRESETS = {
    cluster.name: cluster
    for cluster in (
        Cluster(
            "dgx-a100",
            nodes=1,
            gpus_per_node=8,
            gpu=A100,
            intra=Link(NVLINK_LATENCY, 300e9),
            inter=Link(INFINIBAND_LATENCY, 25e9),
            sources=(
                "GPU: NVIDIA A100 datasheet, A100 80GB SXM, the figures without sparsity; fp64 without tensor cores",
                "inside a node: NVLink 3, 600 GB/s both ways together (the same datasheet)",
                "between nodes: 8 ConnectX-6 of 200 Gb/s for compute (NVIDIA DGX A100 datasheet)",
                ESTIMATES,
            ),
        ),
        Cluster(
            "dgx-h100",
            nodes=1,
            gpus_per_node=8,
            gpu=H100,
            intra=Link(NVLINK_LATENCY, 450e9),
            inter=Link(INFINIBAND_LATENCY, 50e9),
            sources=(
                "GPU: NVIDIA H100 datasheet, H100 SXM; it prints figures with sparsity, these are half of them",
                "inside a node: NVLink 4, 900 GB/s both ways together (the same datasheet)",
                "between nodes: 8 ConnectX-7 of 400 Gb/s for compute (NVIDIA DGX H100 datasheet)",
                ESTIMATES,
            ),
        ),
        Cluster(
            "dgx-b200",
            nodes=1,
            gpus_per_node=8,
            gpu=B200,
            intra=Link(NVLINK_LATENCY, 900e9),
            inter=Link(INFINIBAND_LATENCY, 50e9),
            sources=(
                "GPU: NVIDIA Blackwell datasheet, HGX B200, half of the figures with sparsity; tf32 is half of bf16 "
                "(the datasheet rounds it to 1.1 PFLOP/s)",
                "memory: 1,440 GB and 64 TB/s for 8 GPUs (NVIDIA DGX B200 datasheet); HGX B200's says 7.7 TB/s per GPU",
                "inside a node: NVLink 5, 1.8 TB/s both ways together (NVIDIA Blackwell datasheet)",
                "between nodes: 8 ConnectX-7 of 400 Gb/s (NVIDIA DGX B200 datasheet)",
                ESTIMATES,
            ),
        ),
        Cluster(
            "gb200-nvl72",
            nodes=1,
            gpus_per_node=72,  # 18 compute trays of 4
            gpu=GB200,
            intra=Link(NVLINK_LATENCY, 900e9),
            inter=Link(INFINIBAND_LATENCY, 50e9),
            sources=(
                "one node is one rack, all of it one NVLink domain: 18 compute trays x 4 GPUs",
                "GPU: NVIDIA Blackwell datasheet, GB200 NVL72, one of 72 GPUs, half of the figures with sparsity",
                "inside a node: NVLink 5, 1.8 TB/s both ways together (the same datasheet)",
                "between nodes: one ConnectX-7 of 400 Gb/s per GPU (NVIDIA DGX GB200 datasheet)",
                ESTIMATES,
            ),
        ),
        Cluster(
            "ethernet-cloud",
            nodes=1,
            gpus_per_node=8,
            gpu=H100,
            intra=Link(NVLINK_LATENCY, 450e9),
            inter=Link(ETHERNET_LATENCY, 25e9),
            nics=4,
            sources=(
                "a3-highgpu-8g, 8 x H100 SXM: the GPUs and NVLink of dgx-h100",
                "between nodes: 4 NICs of 200 Gb/s for the GPUs, TCP over Ethernet (Google Cloud, Networking and GPU "
                "machines, A3 High); its latency is that of A3 Mega",
                ESTIMATES,
            ),
        ),
        Cluster(
            "laptop",
            nodes=1,
            gpus_per_node=8,
            gpu=CORE,
            intra=Link(40e-6, 3.3e9),
            inter=Link(100e-6, 125e6),
            nics=1,
            sources=(
                "ROUGH, all of it: a present-day laptop with 8 cores and 16 GB, one rank per core",
                "peak: 2 AVX2 multiply-adds per cycle at 2.5 GHz; memory: 50 GB/s, shared by all; launch: an estimate",
                "inside: Gloo over loopback, 40 µs and 3.3 GB/s between 2 ranks, measured on 2 cores with torch 2.13",
                "between: gigabit Ethernet, its latency an estimate",
            ),
        ),
    )
}


def find_cluster(cluster: str | Cluster, world_size: int) -> Cluster:
    """A Cluster with room for `world_size` ranks: a preset by name, with as many nodes as that takes, or the Cluster
    that was passed, unchanged.

    Raises ValueError if the Cluster is too small or the name unknown, TypeError for anything else.
    """
    check_count("world_size", world_size, "ranks")
    if isinstance(cluster, Cluster):
        if world_size > cluster.size:
            needed = math.ceil(world_size / cluster.gpus_per_node)
            raise ValueError(
                f"{world_size} ranks don't fit on {cluster.name!r}: it has room for {cluster.size}, {cluster.nodes} x "
                f"{cluster.gpus_per_node} GPUs. Give it more nodes: dataclasses.replace(cluster, nodes={needed})"
            )
        return cluster
    if not isinstance(cluster, str):
        raise TypeError(f"cluster is {cluster!r}; it must be a Cluster or one of the names {', '.join(PRESETS)}")
    if cluster not in PRESETS:
        raise ValueError(f"there is no cluster {cluster!r}{nearest(cluster, PRESETS)} There are {', '.join(PRESETS)}.")
    return replace(PRESETS[cluster], nodes=math.ceil(world_size / PRESETS[cluster].gpus_per_node))
