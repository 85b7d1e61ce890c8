"""What a collective costs with Gloo between processes that share one machine: Gloo's own algorithms.

There, a message is a copy, and cores make it. One that travels alone has a core at each end; if all ranks send at once
they share the cores. So a collective takes

    start + rounds x step + max(path / B, sent / A) + added / S + copied / C

with P ranks, n bytes as nccl-tests count them, and f = (P-1)/P:

    B   bytes/s of a message that travels alone       path     bytes that one rank has to move, one after another
    A   bytes/s of all ranks that send at once        sent     bytes that all ranks send together
    S   bytes/s added by each rank, in its cache      added    bytes of sums that a rank computes
    C   bytes/s copied by each into new memory        copied   bytes between tensors and the buffers that Gloo sends

                                                                   rounds    path    sent          added   copied
    all_reduce      ring: reduce-scatter, all-gather               2 (P-1)   2 f n   2 (P-1) n     f n     0
    reduce_scatter  an all-reduce of everything, in a copy         2 (P-1)   2 f n   2 (P-1) n     f n     n
    all_gather      ring                                           P-1       f n     (P-1) n       0       n
    broadcast       binomial tree, L = ceil(log2 P) levels         L         L n     (P-1) n       0       0
    reduce          ring reduce-scatter, then pieces to the root   P         2 f n   (P-1 + f) n   f n     0
    gather, scatter the root with all others at once               1         f n     f n           0       n
    all_to_all      all pairs at once                              1         f n     (P-1) n       0       n/P
    barrier         dissemination                                  L         0       0             0       0

(gloo/allreduce.cc, allgather.cc, broadcast.cc, reduce.cc, alltoall.cc, barrier.cc; torch's ProcessGroupGloo.cpp. The
bytes sent are those that a loopback device counted. `dist.reduce_scatter`, which takes a list, makes an all-reduce for
each tensor in it, so it has P starts.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .achieved import GlooRates
from .hardware import Cluster, Link
from .layout import Layout, Part, levels


class Demand(NamedTuple):
    """What an algorithm needs: see the table above."""

    algorithm: str
    rounds: int
    path: float
    sent: float
    added: float
    copied: float


def demand(op: str, n: float, ranks: int) -> Demand:
    others, part = ranks - 1, (ranks - 1) / ranks * n
    match op:
        case "all_reduce":
            return Demand("ring", 2 * others, 2 * part, 2 * others * n, part, 0.0)
        case "reduce_scatter":
            return Demand("all-reduce", 2 * others, 2 * part, 2 * others * n, part, n)
        case "all_gather":
            return Demand("ring", others, part, others * n, 0.0, n)
        case "broadcast":
            return Demand("tree", levels(ranks), levels(ranks) * n, others * n, 0.0, 0.0)
        case "reduce":
            return Demand("ring + gather", ranks, 2 * part, others * n + part, part, 0.0)
        case "all_to_all":
            return Demand("all pairs", 1, part, others * n, 0.0, n / ranks)
        case "barrier":
            return Demand("dissemination", levels(ranks), 0.0, 0.0, 0.0, 0.0)
        case _:
            return Demand("direct", 1, part, part, 0.0, n)  # gather, scatter


def algorithms(op: str, n: float, layout: Layout, cluster: Cluster, rates: GlooRates) -> dict[str, list[Part]]:
    """{algorithm: parts} for n bytes: the one that Gloo has."""
    needs = demand(op, n, layout.size)
    alone = cluster.intra.bandwidth * rates.bandwidth
    limited = needs.sent / rates.together > needs.path / alone  # by the cores, which all ranks share
    nbytes, bandwidth = (needs.sent, rates.together) if limited else (needs.path, alone)
    parts = [
        Part("start", 1, 0.0, Link(rates.start, math.inf)),
        Part(
            "messages of all ranks" if limited else "messages of one rank",
            needs.rounds,
            nbytes,
            Link(rates.step, bandwidth),
        ),
        Part("adding", 0, needs.added, Link(0.0, rates.added)),
        Part("copying", 0, needs.copied, Link(0.0, rates.copied)),
    ]
    return {needs.algorithm: parts}
