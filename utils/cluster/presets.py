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

What is achieved (`rates="achieved"`) comes from measurements:

    matrix products   the best of many large shapes in bf16: A100 271 of 312 TFLOP/s, H100 794.5 of 989 (ml-engineering,
                      compute/accelerator, "maximum achievable matmul FLOPS")
    NVLink            an A100 reaches 235 of 300 GB/s (NCCL, src/graph/tuning.cc), an H100 367.6 of 450 (ml-engineering,
                      network/benchmarks, 8 x H200 with SHARP disabled; the same in nccl-tests, issue 212). LL reaches a
                      quarter of that in an all-reduce and LL128 0.92 (tuning.cc)
    in the switch     fitted to sweeps on 8 x H200 (ml-engineering, network/benchmarks/results) and 72 x GB200
                      (coreweave/nccl-tests, pull request 43), to the half of their sizes that is not reported
    InfiniBand        HDR 96 of 100 GB/s over four cards (nccl-tests, issue 119), NDR 46 to 48 of 50 (issue 290)
    latencies         start and steps of tuning.cc, except that the steps of LL are 0.8 µs and 6 µs, chosen as above:
                      8 x H200 in a node 18 µs, 2 x A100 on 2 nodes 19 µs, 16 nodes of H100 62 µs (nccl, issue 1469)
    attention         H100 at 16,384 tokens and 128 numbers per head, forward and backward, of 989 TFLOP/s:
                      FlashAttention 2 370 and 322, cuDNN 595 and 516, FlashAttention 3 648 and 561 (arXiv 2407.08608,
                      figures 5 and 6). On Hopper and Blackwell torch 2.13 takes cuDNN's kernel if cuDNN is newer than
                      9.15 (sdp_utils.cpp), else FlashAttention 2, as it always did before: replace(HOPPER, flash=2).
                      A100 has 2 only, at most 0.65 (arXiv 2307.08691); what it reaches here is fitted
    sustained, fill,  A100: fitted to the training steps in tests/accuracy (fill to an earlier, smaller set of them);
    memory, rows      H100: `sustained` only, the rest as on A100
    host              a call costs torch 2 to 7 µs before its kernel is launched (pytorch, issue 41383), and a launch
                      2 to 5; programs that are bound by the host need more: 45 µs per kernel in sam2, issue 768
    beside            an ESTIMATE: NCCL keeps about a tenth of the multiprocessors busy
    uncertainty       computing: in tests/accuracy, rates that were fitted to all other sources miss a source's rows by
                      so much that 8 of 10 of the next one are expected within 12 % on A100 and H100 (fit.py); on
                      H100, of which there are four sources, a little more is allowed. The other parts are ESTIMATES,
                      and so is everything on B200 and GB200, of which there are no rows

SITES are what a place adds to what its chips need, as a factor on matrix products and attention. The default is
"benchmark", since that is what most published times are:

    benchmark     nothing: a short run on a machine that somebody has just looked after
    production    1.13: what MegaScale's baseline (256 to 12,288 A100s) and Llama 3 405B (8,192 and 16,384 H100s) need
                  more than benchmarks, on average: stragglers, throttling, congestion. It is not the time that is lost
                  to failures and restarts, which comes on top
    500 W         1.12: an H100 that is limited to 500 of its 700 W, if power grows with the cube of the clock

For B200 and GB200, kernels reach the same parts of the peak as on H100: an ESTIMATE. An H200 is an H100 with another
memory. What Ethernet clouds achieve between nodes has not been published in a form that fits here, so they have no
achieved rates.

Left out, because one bandwidth per rank can't say what their links do: AMD MI300X, whose GPUs are joined in pairs at
64 GB/s, so that an all-reduce reaches 313 GB/s on all 8 of a node, but 48 on 2 of them (ml-engineering, network); and
TPUs, which are joined in a torus.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..text.units import nearest
from .achieved import KernelRates, LinkRates, Protocol, Uncertainty
from .hardware import Cluster, Gpu, Link, check_count

SITES = {"benchmark": 1.0, "production": 1.13, "500 W": 1.12}  # Cluster.site by name: see above

NVLINK_LATENCY, INFINIBAND_LATENCY, ETHERNET_LATENCY = 3e-6, 10e-6, 50e-6  # seconds; see above
LAUNCH = 4e-6  # seconds; an estimate: CUDA's launch and torch's own work for one small operation

ESTIMATES = "latencies and launch: estimates, see presets.py"

AMPERE = KernelRates(
    matmul=0.87,
    sustained=0.87,
    fill=192.0,
    units=108,
    memory=0.87,
    rows=0.87,
    attention=0.56,
    attention_backward=0.48,
    beside=0.1,
    host=10e-6,
    uncertainty=Uncertainty(computing=(0.88, 1.14), memory=(0.7, 1.5), communication=(0.6, 1.8), launch=(0.5, 4.0)),
)
HOPPER = replace(
    AMPERE,
    matmul=0.8,
    sustained=0.79,
    units=132,
    attention=0.37,
    attention_backward=0.32,
    attention_3=0.62,
    attention_3_backward=0.5,
    flash=3,
    uncertainty=Uncertainty(computing=(0.86, 1.17), memory=(0.7, 1.5), communication=(0.6, 1.8), launch=(0.5, 4.0)),
)
BLACKWELL = replace(
    HOPPER,
    units=148,
    uncertainty=Uncertainty(computing=(0.75, 1.35), memory=(0.6, 1.7), communication=(0.5, 2.0), launch=(0.5, 4.0)),
)


def protocols(steps: tuple[float, float, float], bandwidth: float) -> tuple[Protocol, ...]:
    """NCCL's three on a link of which Simple reaches this part; the steps are in microseconds."""
    names, starts, parts = ("LL", "LL128", "Simple"), (6.8e-6, 14e-6, 8.4e-6), (0.25, 0.92, 1.0)
    return tuple(
        Protocol(name, start, step * 1e-6, part * bandwidth)
        for name, start, step, part in zip(names, starts, steps, parts, strict=True)
    )


NVLINK_STEPS, NETWORK_STEPS = (0.8, 1.9, 3.4), (6.0, 8.5, 14.0)  # LL, LL128, Simple
NVLINK_3 = LinkRates(0.88, protocols(NVLINK_STEPS, 235 / 300))
NVLINK_4 = LinkRates(0.88, protocols(NVLINK_STEPS, 0.82), Protocol("NVLS", 25e-6, 5e-6, 0.605), at_least=5)
NVLINK_5 = replace(NVLINK_4, in_switch=Protocol("NVLS", 25e-6, 5e-6, 0.53))
RACK = replace(NVLINK_4, in_switch=Protocol("NVLS", 25e-6, 5e-6, 0.46))
HDR, NDR = (LinkRates(part, protocols(NETWORK_STEPS, part)) for part in (0.96, 0.94))

A100 = Gpu(
    flops={"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12, "fp64": 9.7e12, "int8": 624e12},
    memory=80e9,
    bandwidth=2.039e12,
    launch=LAUNCH,
    achieved=AMPERE,
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
    achieved=HOPPER,
)
H200 = replace(H100, memory=141e9, bandwidth=4.8e12)  # the same chip
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
    achieved=BLACKWELL,
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
    achieved=BLACKWELL,
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
            intra=Link(NVLINK_LATENCY, 300e9, achieved=NVLINK_3),
            inter=Link(INFINIBAND_LATENCY, 25e9, achieved=HDR),
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
            intra=Link(NVLINK_LATENCY, 450e9, achieved=NVLINK_4),
            inter=Link(INFINIBAND_LATENCY, 50e9, achieved=NDR),
            sources=(
                "GPU: NVIDIA H100 datasheet, H100 SXM; it prints figures with sparsity, these are half of them",
                "inside a node: NVLink 4, 900 GB/s both ways together (the same datasheet)",
                "between nodes: 8 ConnectX-7 of 400 Gb/s for compute (NVIDIA DGX H100 datasheet)",
                ESTIMATES,
            ),
        ),
        Cluster(
            "dgx-h200",
            nodes=1,
            gpus_per_node=8,
            gpu=H200,
            intra=Link(NVLINK_LATENCY, 450e9, achieved=NVLINK_4),
            inter=Link(INFINIBAND_LATENCY, 50e9, achieved=NDR),
            sources=(
                "GPU: NVIDIA H200 datasheet, H200 SXM: 141 GB and 4.8 TB/s; all peaks are those of H100 SXM",
                "inside a node: NVLink 4, 900 GB/s both ways together (the same datasheet)",
                "between nodes: 8 ConnectX-7 of 400 Gb/s for compute (NVIDIA DGX H200 datasheet)",
                ESTIMATES,
            ),
        ),
        Cluster(
            "dgx-b200",
            nodes=1,
            gpus_per_node=8,
            gpu=B200,
            intra=Link(NVLINK_LATENCY, 900e9, achieved=NVLINK_5),
            inter=Link(INFINIBAND_LATENCY, 50e9, achieved=NDR),
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
            intra=Link(NVLINK_LATENCY, 900e9, achieved=RACK),
            inter=Link(INFINIBAND_LATENCY, 50e9, achieved=NDR),
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
            intra=Link(NVLINK_LATENCY, 450e9, achieved=NVLINK_4),
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
            "gcp-a3-mega",
            nodes=1,
            gpus_per_node=8,
            gpu=H100,
            intra=Link(NVLINK_LATENCY, 450e9, achieved=NVLINK_4),
            inter=Link(ETHERNET_LATENCY, 25e9),
            sources=(
                "a3-megagpu-8g, 8 x H100 SXM: the GPUs and NVLink of dgx-h100",
                "between nodes: 8 NICs of 200 Gb/s for the GPUs, Ethernet (Google Cloud, Networking and GPU machines, "
                "A3 Mega); the latency is made to fit its smallest all-reduce",
                ESTIMATES,
            ),
        ),
        Cluster(
            "aws-p5",
            nodes=1,
            gpus_per_node=8,
            gpu=H100,
            intra=Link(NVLINK_LATENCY, 450e9, achieved=NVLINK_4),
            inter=Link(ETHERNET_LATENCY, 50e9),
            sources=(
                "p5.48xlarge, 8 x H100 SXM: the GPUs and NVLink of dgx-h100",
                "between nodes: 3,200 Gb/s of Elastic Fabric Adapter per node (Amazon EC2 P5 instances), 400 Gb/s per "
                "GPU; its latency is that of gcp-a3-mega, since none is published",
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


def site_factor(site: str | float) -> float:
    """How many times as long kernels take at a site, by its name or as it is. ValueError for an unknown name."""
    if not isinstance(site, str):
        return site
    if site not in SITES:
        raise ValueError(f"there is no site {site!r}{nearest(site, SITES)} There are {', '.join(SITES)}, or a number.")
    return SITES[site]


def find_cluster(cluster: str | Cluster, world_size: int, rates: str | None = None) -> Cluster:
    """A Cluster with room for `world_size` ranks: a preset by name, with as many nodes as that takes, or the Cluster
    that was passed, unchanged.

    rates   "achieved" or "datasheet", for everything that is asked of it; None: as the Cluster itself says

    Raises ValueError if the Cluster is too small or the name unknown, TypeError for anything else.
    """
    if rates is not None:
        return find_cluster(cluster, world_size).at_rates(rates)
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
