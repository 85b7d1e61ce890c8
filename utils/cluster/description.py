"""A cluster as text: all its numbers and where they come from, for a terminal."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from ..text import tables
from ..text.units import plural, quantity

if TYPE_CHECKING:
    from .hardware import Cluster, Link


def cluster_text(cluster: Cluster) -> str:
    """All numbers of a cluster, for a terminal.

    A ridge point is how many FLOP a GPU must do per byte that it reads from memory, or receives from another GPU, for
    computing to take as long as moving. Between nodes, all GPUs of a node receive at once.
    """
    gpu, intra, inter = cluster.gpu, cluster.intra, cluster.inter
    share = inter.bandwidth / cluster.gpus_per_nic
    nics = cluster.nics or cluster.gpus_per_node
    peaks = [
        (dtype, quantity(peak, "FLOP/s"), *(ridge(peak, rate) for rate in (gpu.bandwidth, intra.bandwidth, share)))
        for dtype, peak in gpu.flops.items()
    ]
    ways = [
        ("GPU memory", quantity(gpu.bandwidth, "B/s"), "", f"{quantity(gpu.memory, 'B')} of it"),
        ("inside a node", quantity(intra.bandwidth, "B/s"), quantity(intra.alpha, "s"), adds(intra)),
        ("between nodes", quantity(inter.bandwidth, "B/s"), quantity(inter.alpha, "s"), adds(inter)),
    ]
    sharing = "one per GPU" if cluster.gpus_per_nic == 1 else f"one for {cluster.gpus_per_nic} GPUs"
    title = f"{cluster.name}: {plural(cluster.nodes, 'node')} x {plural(cluster.gpus_per_node, 'GPU')}"
    lines = [
        f"{title} = {plural(cluster.size, 'rank')}; {plural(nics, 'NIC')} per node, {sharing}",
        f"every operation takes at least {quantity(gpu.launch, 's')}",
        "",
        tables.text(["dtype", "dense peak", "FLOP/byte: memory", "inside a node", "between nodes"], peaks),
        "",
        tables.text(["", "one way", "latency", ""], ways),
    ]
    sources = [textwrap.fill(source, 110, initial_indent="- ", subsequent_indent="  ") for source in cluster.sources]
    return "\n".join([*lines, *([""] if sources else []), *sources])


def adds(link: Link) -> str:
    return "the switch adds up" if link.reduces else ""


def ridge(peak: float, rate: float) -> str:
    """FLOP/byte, to three digits."""
    if math.isinf(rate):
        return "0"  # bytes cost nothing
    return "infinite" if math.isinf(peak) else f"{float(f'{peak / rate:.3g}'):,.10g}"
