"""What a collective costs at achieved rates: the model that NCCL itself chooses its algorithms by.

A collective has a start, steps from rank to rank, and bytes that flow through all of them at once, in many small pieces
over several channels. Inside and between nodes they flow at the same time, so the slower of the two counts:

    B = the link's bandwidth inside a node, or that of all network cards of a node together if that is less
    n = bytes as nccl-tests count them

    ring        start + steps inside a node + steps between nodes + m / B
                all_reduce: 2 (P-1) steps, 2 (M-1) of them between nodes, m = 2 (P-1)/P n; all_gather and
                reduce_scatter: half of everything; broadcast and reduce: P-1 steps, m = n
    tree        all_reduce only: up and down a chain of L ranks in each node and a binary tree over the M nodes,
                m = 2 n, at 0.9 B
    in-switch   all_reduce only, on a single node: start + P steps + n / B, since each rank has its own part added up
    direct      all_to_all, gather, scatter: all messages at once

A protocol says what start, step and B are: LL has short steps and a quarter of the bandwidth, Simple long steps and all
of it, LL128 is between them. The cheapest pair of algorithm and protocol counts.

(NCCL, src/graph/tuning.cc. Left out: its factors for medium sizes, and in-switch reduction that spans nodes.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..events.collectives import COLLECTIVES, not_known
from .achieved import LinkRates, Protocol
from .hardware import Cluster, Link
from .layout import Layout, Part, levels

TREE = 0.9  # the share of the ring's bandwidth that a tree reaches: tuning.cc


class Route(NamedTuple):
    """How a group talks in one protocol.

    start            seconds once
    inside, between  links between two ranks of a node, and from one whole node to the next
    """

    start: float
    inside: Link
    between: Link

    @classmethod
    def of(cls, within: Protocol, across: Protocol, layout: Layout, cluster: Cluster) -> Route:
        cards = math.ceil(layout.least / layout.sharing)  # on the emptiest node
        inside = Link(within.step, within.bandwidth * cluster.intra.bandwidth)
        between = Link(across.step, across.bandwidth * cluster.inter.bandwidth * cards)
        return cls(max(within.start, across.start) if layout.nodes > 1 else within.start, inside, between)

    def parts(self, inside: int, between: int, nbytes: float) -> list[Part]:
        """So many steps inside and between nodes, while `nbytes` flow through the slowest link."""
        links = [self.inside] * (inside > 0) + [self.between] * (between > 0)
        bandwidth = min(link.bandwidth for link in links)
        found = [Part("start", 1, 0.0, Link(self.start, math.inf))]
        if len(links) == 2:
            found.append(Part("steps inside nodes", inside, 0.0, self.inside))
        return [*found, Part("flow", between or inside, nbytes, Link(links[-1].alpha, bandwidth))]


def algorithms(op: str, n: float, layout: Layout, cluster: Cluster) -> dict[str, list[Part]]:
    """{"algorithm, protocol": parts} for n bytes, at the achieved rates of the cluster's links."""
    inner, outer = cluster.intra.achieved, cluster.inter.achieved
    assert isinstance(inner, LinkRates) and isinstance(outer, LinkRates)
    found: dict[str, list[Part]] = {}
    for within, across in zip(inner.protocols, outer.protocols, strict=True):
        route = Route.of(within, across, layout, cluster)
        match op:
            case "all_to_all" | "gather" | "scatter":
                found[f"direct, {within.name}"] = direct(op, n, route, layout)
            case "all_reduce" | "barrier":
                found[f"ring, {within.name}"] = ring("all_reduce", n, route, layout)
                found[f"tree, {within.name}"] = tree(n, route, layout)
            case "all_gather" | "reduce_scatter" | "broadcast" | "reduce":
                found[f"ring, {within.name}"] = ring(op, n, route, layout)
            case _:
                raise not_known(op, "algorithms in cluster/nccl_costs.py")
    if op == "all_reduce" and layout.nodes == 1 and layout.size >= inner.at_least and inner.in_switch is not None:
        route = Route.of(inner.in_switch, inner.in_switch, layout, cluster)
        found["in-switch"] = route.parts(layout.size, 0, n)
    return found


def ring(op: str, n: float, route: Route, layout: Layout) -> list[Part]:
    collective, between = COLLECTIVES[op], layout.nodes - 1
    steps = collective.laps * (layout.size - 1 - between)
    return route.parts(steps, collective.laps * between, float(collective.ring_share(layout.size)) * n)


def tree(n: float, route: Route, layout: Layout) -> list[Part]:
    return route.parts(2 * (layout.most - 1), 2 * levels(layout.nodes), 2 * n / TREE)


def direct(op: str, n: float, route: Route, layout: Layout) -> list[Part]:
    """Every rank, or the root, exchanges n/P bytes with each other rank; what stays in a node flows meanwhile."""
    piece = n / layout.size
    if layout.nodes == 1:
        return route.parts(1, 0, (layout.size - 1) * piece)
    ranks = layout.least if op == "all_to_all" else 1  # how many of a node send through its network cards
    return route.parts(0, 1, ranks * (layout.size - layout.least) * piece)
