"""What a collective costs with Gloo between processes that share one machine: Gloo's own algorithms.

There, a message is a copy, and cores make it. One that travels alone has a core at each end; if all ranks send at once
they share the cores. So a collective takes

    start + rounds x step + hops x latency + max(path / B, sent / A) + added / S + copied / C + moved / M

with P ranks, n bytes as nccl-tests count them, and f = (P-1)/P. In a round every rank waits for another; a hop is a
message from a rank that waits for nobody, so it takes the latency of a link.

    B   bytes/s of a message that travels alone       path     bytes that one rank has to move, one after another
    A   bytes/s of all ranks that send at once        sent     bytes that all ranks send together
    S   bytes/s added by each rank, in its cache      added    bytes of sums that a rank computes
    C   bytes/s copied by each into new memory        copied   bytes of a tensor that torch copies before it calls Gloo
    M   bytes/s copied by each into memory in use     moved    bytes that go to a tensor from another, or from a buffer

                                                           rounds   hops  path   sent         added  copied  moved
    all_reduce      ring: reduce-scatter, all-gather       2 (P-1)  0     2 f n  2 (P-1) n    f n    0       0
    reduce_scatter  an all-reduce of everything, in a copy 2 (P-1)  0     2 f n  2 (P-1) n    f n    n       0
    all_gather      ring, into a buffer                    P-1      0     f n    (P-1) n      0      0       n
    broadcast       binomial tree, L = ceil(log2 P) levels 0        L     L n    (P-1) n      0      0       0
    reduce          ring reduce-scatter, pieces to root    P        0     2 f n  (P-1 + f) n  f n    0       0
    gather          all others to the root, into a buffer  1        0     f n    f n          0      0       n
    scatter         the root to all others                 0        1     f n    f n          0      0       n/P
    all_to_all      all pairs at once                      1        0     f n    (P-1) n      0      0       n/P
    barrier         dissemination                          L        0     0      0            0      0       0

(gloo/allreduce.cc, allgather.cc, broadcast.cc, reduce.cc, alltoall.cc, barrier.cc; torch's ProcessGroupGloo.cpp. The
bytes sent are those that a loopback device counted. `dist.reduce_scatter`, which takes a list, makes an all-reduce for
each tensor in it, so it has P starts.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..events.collectives import not_known
from .achieved import GlooRates
from .hardware import Cluster, Link
from .layout import Layout, Part, levels


class Demand(NamedTuple):
    """What an algorithm needs: see the table above."""

    algorithm: str
    rounds: int = 0
    hops: int = 0
    path: float = 0.0
    sent: float = 0.0
    added: float = 0.0
    copied: float = 0.0
    moved: float = 0.0


def demand(op: str, n: float, ranks: int) -> Demand:
    others, own = ranks - 1, n / ranks
    part = n - own
    match op:
        case "all_reduce":
            return Demand("ring", 2 * others, path=2 * part, sent=2 * others * n, added=part)
        case "reduce_scatter":
            return Demand("all-reduce", 2 * others, path=2 * part, sent=2 * others * n, added=part, copied=n)
        case "all_gather":
            return Demand("ring", others, path=part, sent=others * n, moved=n)
        case "broadcast":
            return Demand("tree", hops=levels(ranks), path=levels(ranks) * n, sent=others * n)
        case "reduce":
            return Demand("ring + gather", ranks, path=2 * part, sent=others * n + part, added=part)
        case "gather":
            return Demand("direct", 1, path=part, sent=part, moved=n)
        case "scatter":
            return Demand("direct", hops=1, path=part, sent=part, moved=own)
        case "all_to_all":
            return Demand("all pairs", 1, path=part, sent=others * n, moved=own)
        case "barrier":
            return Demand("dissemination", levels(ranks))
    raise not_known(op, "demand in cluster/gloo_costs.py")


def algorithms(op: str, n: float, layout: Layout, cluster: Cluster, rates: GlooRates) -> dict[str, list[Part]]:
    """{algorithm: parts} for n bytes: the one that Gloo has."""
    needs = demand(op, n, layout.size)
    alone = cluster.intra.bandwidth * rates.bandwidth
    limited = needs.sent / rates.together > needs.path / alone  # the cores, which all ranks share, are the limit
    nbytes, bandwidth = (needs.sent, rates.together) if limited else (needs.path, alone)
    parts = [
        Part("start", 1, 0.0, Link(rates.start, math.inf)),
        Part(
            "messages of all ranks" if limited else "messages of one rank",
            needs.rounds,
            nbytes,
            Link(rates.step, bandwidth),
        ),
        Part("hops", needs.hops, 0.0, Link(cluster.intra.alpha, math.inf)),
        Part("adding", 0, needs.added, Link(0.0, rates.added)),
        Part("copying", 0, needs.copied, Link(0.0, rates.copied)),
        Part("moving", 0, needs.moved, Link(0.0, rates.moved)),
    ]
    return {needs.algorithm: parts}
