"""What one collective costs on a cluster, by the textbooks' closed forms, and which algorithm is the cheapest.

    layout = Layout.of(cluster, ranks)
    cost("all_reduce", 25e6, cluster, layout)     # a table: every algorithm, its messages, its bytes, its time

The model: a message of m bytes takes alpha + m beta, where beta = 1 / bandwidth. A rank can send one message and
receive one at the same time (single port, full duplex). Adding is free, and nothing else uses the network. With P ranks
connected by one kind of link, and n bytes as nccl-tests count them (see `cost`):

    all_reduce       ring                     2 (P-1) alpha + 2 (P-1)/P n beta
                     tree                     2 ceil(log2 P) (alpha + n beta)               to a root and back
                     in-switch                2 alpha + n beta                              up, added, and back down
    all_gather,      ring                     (P-1) alpha + (P-1)/P n beta
    reduce_scatter   tree                     2 ceil(log2 P) alpha + ((P-1)/P + ceil(log2 P)) n beta    through a root
                     in-switch                alpha + (P-1)/P n beta                        reduce_scatter only
    broadcast,       tree                     ceil(log2 P) (alpha + n beta)
    reduce           scatter + all-gather     (ceil(log2 P) + P-1) alpha + 2 (P-1)/P n beta
                     in-switch                alpha + n beta                                reduce only
    gather,          tree                     ceil(log2 P) alpha + (P-1)/P n beta
    scatter          straight                 (P-1) alpha + (P-1)/P n beta                  root with each other rank
    all_to_all       pairwise                 (P-1) alpha + (P-1)/P n beta
    barrier          an all_reduce of 0 bytes

(Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005; Chan, Heimlich,
Purkayastha and van de Geijn, Collective communication: theory, practice, and experience, 2007. Recursive halving and
doubling, with few messages AND few bytes, is left out because NCCL does not have it for all-reduce.)

On M nodes with up to L ranks each, ranks are first sorted by node, as libraries do. Then

    ring             every step waits for its slowest message, which crosses nodes: each step pays for the slow link
    tree             ceil(log2 L) levels inside the nodes, ceil(log2 M) between them
    hierarchical     (all L equal, L > 1) part of the work inside each node; then each rank works with the ranks at the
                     same place in the other nodes, all of them at once, on about n/L bytes: see `hierarchical`

Ring and tree send one message at a time out of each node. In `hierarchical` and `pairwise` all ranks of a node send at
once, and those that share a NIC share its bandwidth: k of them take k times as long for their bytes, but not for alpha.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ..events.collectives import COLLECTIVES, not_known
from ..text import tables
from ..text.units import nearest, plural, quantity
from . import gloo_costs, nccl_costs
from .achieved import GlooRates
from .hardware import Cluster, Link, check_number
from .layout import Layout, Part, levels

__all__ = ["Cost", "Group", "Layout", "Part", "cost"]


@dataclass(frozen=True)
class Group:
    """`size` ranks on `nodes` nodes, as the algorithms see them: `intra` links inside nodes, `inter` between them.

    most, least     ranks on the fullest and on the emptiest node
    sharing_one     ranks that send over the same NIC when one rank of each node sends
    sharing_all     the same when all ranks send
    """

    size: int
    nodes: int
    most: int
    least: int
    intra: Link
    inter: Link
    sharing_one: int = 1
    sharing_all: int = 1

    def ring(self, nbytes: float, name: str = "around the ring") -> list[Part]:
        """Reduce-scatter or all-gather: P-1 steps of n/P bytes, each as slow as its slowest message."""
        links = [self.intra] * (self.most > 1) + [self.inter] * (self.nodes > 1)
        slowest = max(links, key=lambda link: link.seconds(nbytes / self.size))
        return [Part(name, self.size - 1, (self.size - 1) * nbytes / self.size, slowest, self.sharing_one)]

    def tree(self, nbytes: float, name: str = "tree") -> list[Part]:
        """Reduce or broadcast: all n bytes at each level."""
        inside, between = levels(self.most), levels(self.nodes)
        return self.parts(name, inside, inside * nbytes, between, between * nbytes, self.sharing_one)

    def fan(self, nbytes: float, name: str = "tree") -> list[Part]:
        """Gather or scatter along a tree: each level moves half as many bytes as the one nearer the root."""
        piece = nbytes / self.size
        inside, between = (self.most - 1) * piece, (self.size - self.least) * piece
        return self.parts(name, levels(self.most), inside, levels(self.nodes), between, self.sharing_one)

    def straight(self, nbytes: float, sharing: int, name: str = "straight") -> list[Part]:
        """One message of n/P bytes to each other rank, or from it. The slowest rank is on the emptiest node."""
        piece, inside, between = nbytes / self.size, self.least - 1, self.size - self.least
        return self.parts(name, inside, inside * piece, between, between * piece, sharing)

    def parts(
        self, name: str, inside: int, inside_bytes: float, between: int, between_bytes: float, sharing: int
    ) -> list[Part]:
        """The messages inside the nodes and those between them, where there are any."""
        both = [Part(name, inside, inside_bytes, self.intra)] * (inside > 0)
        both += [Part(name, between, between_bytes, self.inter, sharing)] * (between > 0)
        if len(both) == 2:
            both = [both[0]._replace(name=f"{name}, inside nodes"), both[1]._replace(name=f"{name}, between nodes")]
        return both

    @property
    def switch(self) -> Link | None:
        """The link whose switch adds up, if a single one connects the whole group."""
        link = self.intra if self.nodes == 1 else self.inter if self.most == 1 else None
        return link if link is not None and link.reduces else None


def algorithms(op: str, n: float, group: Group) -> dict[str, list[Part]]:
    """{name: parts} for n bytes of every algorithm in the table above, that is, all but `hierarchical`."""
    match op:
        case "all_reduce" | "barrier":
            found = {
                "ring": [*group.ring(n, "reduce-scatter"), *group.ring(n, "all-gather")],
                "tree": [*group.tree(n, "reduce"), *group.tree(n, "broadcast")],
            }
        case "all_gather":
            found = {"ring": group.ring(n), "tree": [*group.fan(n, "gather"), *group.tree(n, "broadcast")]}
        case "reduce_scatter":
            found = {"ring": group.ring(n), "tree": [*group.tree(n, "reduce"), *group.fan(n, "scatter")]}
        case "broadcast":
            long = [*group.fan(n, "scatter"), *group.ring(n, "all-gather")]
            found = {"tree": group.tree(n), "scatter + all-gather": long}
        case "reduce":
            long = [*group.ring(n, "reduce-scatter"), *group.fan(n, "gather")]
            found = {"tree": group.tree(n), "reduce-scatter + gather": long}
        case "gather" | "scatter":
            found = {"tree": group.fan(n), "straight": group.straight(n, group.sharing_one)}
        case "all_to_all":
            found = {"pairwise": group.straight(n, group.sharing_all, "pairwise")}
        case _:
            raise not_known(op, "algorithms in cluster/collective_costs.py")
    if group.switch is not None:
        others = (group.size - 1) * n / group.size
        hops = {"all_reduce": (2, n), "barrier": (2, n), "reduce": (1, n), "reduce_scatter": (1, others)}
        if op in hops:
            found["in-switch"] = [Part("the switch adds up", *hops[op], group.switch, group.sharing_one)]
    return found


def hierarchical(op: str, nbytes: float, layout: Layout, cluster: Cluster) -> list[Part]:
    """Part of the work inside each node, the rest between the ranks at the same place in their nodes, all at once.

    Inside nodes by rings (trees for scatter and gather) or in the switch; between nodes by the cheapest algorithm.
    """
    local = layout.most  # the number on every node
    inner = Group(local, 1, local, local, cluster.intra, cluster.inter)
    outer = Group(layout.nodes, layout.nodes, 1, 1, cluster.intra, cluster.inter, layout.sharing, layout.sharing)
    [reduce_scatter] = algorithms("reduce_scatter", nbytes, inner).get("in-switch") or inner.ring(nbytes)
    reduce_scatter = reduce_scatter._replace(name="reduce-scatter inside nodes")
    [all_gather] = inner.ring(nbytes, "all-gather inside nodes")
    [scatter] = inner.fan(nbytes, "scatter inside nodes")
    [gather] = inner.fan(nbytes, "gather inside nodes")
    [all_to_all] = inner.straight(nbytes, 1, "all-to-all inside nodes")

    found = algorithms(op, nbytes if op == "all_to_all" else nbytes / local, outer)
    best = cheapest(found)
    between = total(f"{op.replace('_', '-')} between nodes, {best}", found[best])
    by_op = {
        "all_reduce": [reduce_scatter, between, all_gather],
        "barrier": [reduce_scatter, between, all_gather],
        "reduce_scatter": [reduce_scatter, between],
        "all_gather": [between, all_gather],
        "broadcast": [scatter, between, all_gather],
        "reduce": [reduce_scatter, between, gather],
        "gather": [between, gather],
        "scatter": [scatter, between],
        "all_to_all": [all_to_all, between],
    }
    if op not in by_op:
        raise not_known(op, "hierarchical in cluster/collective_costs.py")
    return by_op[op]


def total(name: str, parts: list[Part]) -> Part:
    """Parts over the same link, as one Part."""
    return parts[0]._replace(
        name=name, messages=sum(part.messages for part in parts), nbytes=sum(part.nbytes for part in parts)
    )


def seconds_of(parts: list[Part]) -> float:
    return sum(part.seconds for part in parts)


def cheapest(found: dict[str, list[Part]]) -> str:
    """The name of the cheapest; the first of several that cost the same."""
    return min(found, key=lambda name: seconds_of(found[name]))


@dataclass(frozen=True)
class Cost:
    """What a collective costs.

    algorithm, seconds    of the cheapest
    candidates            {algorithm: seconds} of all
    parts                 {algorithm: its Parts}
    """

    algorithm: str
    seconds: float
    candidates: dict[str, float]
    parts: dict[str, list[Part]] = field(repr=False)
    title: str = field(repr=False)

    @property
    def why(self) -> str:
        """One sentence: what it costs, what the others would cost, and what makes the difference."""
        if len(self.candidates) == 1:
            return f"{self.algorithm}: {quantity(self.seconds, 's')}, the only algorithm here"
        others = sorted((name for name in self.candidates if name != self.algorithm), key=self.candidates.__getitem__)
        rest = ", ".join(f"{name} {quantity(self.candidates[name], 's')}" for name in others)
        return f"{self.algorithm}: {quantity(self.seconds, 's')}; {rest}: {self.reason(others[0])}"

    def reason(self, second: str) -> str:
        """Why the cheapest is cheaper than the second cheapest."""
        best, other = self.parts[self.algorithm], self.parts[second]
        latency, latency_2 = (sum(part.latency for part in parts) for parts in (best, other))
        transfer, transfer_2 = (sum(part.transfer for part in parts) for parts in (best, other))
        if self.seconds == self.candidates[second]:
            return f"a tie with {second}, so the one listed first is taken"
        if latency < latency_2 and transfer < transfer_2:
            return f"both its latency and its bytes take less time than those of {second}"
        if latency < latency_2 and transfer == transfer_2:
            return f"less latency than {second}, and its bytes take no longer"
        if latency < latency_2:
            seconds = f"{quantity(latency, 's')} in {self.algorithm}, {quantity(latency_2, 's')} in {second}"
            return f"latency decides, {seconds}"
        if latency > latency_2:
            seconds = f"{quantity(transfer, 's')} in {self.algorithm}, {quantity(transfer_2, 's')} in {second}"
            return f"the bytes decide, {seconds}"
        return f"the same latency as {second}, but its bytes take less time"

    def __repr__(self) -> str:
        rows = []
        for name, parts in self.parts.items():
            mark = "* " if name == self.algorithm else ""
            whole = quantity(self.candidates[name], "s")
            if len(parts) != 1:
                rows.append((mark + name, "", "", "", whole))
            for part in parts:
                latency = f"{part.messages:,} x {quantity(part.link.alpha, 's')}"
                shared = f"{part.sharing} x " if part.sharing > 1 else ""
                transfer = f"{shared}{quantity(part.nbytes, 'B')} / {quantity(part.link.bandwidth, 'B/s')}"
                names = (mark + name, "") if len(parts) == 1 else ("", part.name)
                rows.append((*names, latency, transfer, quantity(part.seconds, "s")))
        header = ["algorithm", "part", "messages x latency", "bytes / bandwidth", "time"]
        return f"{self.title}\n\n{tables.text(header, rows)}\n\n{self.why}"


@lru_cache(maxsize=4096)
def cost(op: str, nbytes: float, cluster: Cluster, layout: Layout) -> Cost:
    """What one collective costs, from when the last rank calls it until the last rank has its result.

    nbytes      as nccl-tests count: the tensor for all_reduce, broadcast and reduce; the WHOLE result, of all ranks,
                for all_gather and gather; the WHOLE input for reduce_scatter and scatter; for all_to_all the largest
                input of any rank, including the part that it keeps; ignored for barrier

    At the cluster's rates: these closed forms for "datasheet"; for "achieved" those of nccl_costs.py, or gloo_costs.py.
    If it names none, at those that `simulate` would take.

    Raises ValueError for an unknown op or an impossible number of bytes, TypeError if nbytes is not a number.
    """
    if op not in COLLECTIVES:
        raise ValueError(f"there is no collective {op!r}{nearest(op, COLLECTIVES)} There are {', '.join(COLLECTIVES)}.")
    check_number("nbytes", nbytes, "bytes", "25e6", may_be_zero=True)
    cluster = cluster if cluster.rates else cluster.at_rates()
    nbytes = 0 * nbytes if op == "barrier" else nbytes
    title = (
        f"{op} of {quantity(nbytes, 'B')}, {plural(layout.size, 'rank')}, "
        f"{plural(layout.nodes, 'node')} of {cluster.name}"
    )
    if layout.size == 1:
        return Cost("nothing to do", 0.0, {"nothing to do": 0.0}, {"nothing to do": []}, title)
    if cluster.rates != "achieved":
        found = best_case(op, nbytes, layout, cluster)
    elif isinstance(cluster.intra.achieved, GlooRates):
        found = gloo_costs.algorithms(op, nbytes, layout, cluster, cluster.intra.achieved)
    else:
        found = nccl_costs.algorithms(op, nbytes, layout, cluster)
    seconds = {name: seconds_of(parts) for name, parts in found.items()}
    best = cheapest(found)
    return Cost(best, seconds[best], seconds, found, title)


def best_case(op: str, nbytes: float, layout: Layout, cluster: Cluster) -> dict[str, list[Part]]:
    """{name: parts} of every algorithm that the group can use, at the datasheet's rates."""
    placement = (layout.size, layout.nodes, layout.most, layout.least)
    found = algorithms(op, nbytes, Group(*placement, cluster.intra, cluster.inter, sharing_all=layout.sharing))
    if layout.nodes > 1 and layout.per_node is not None and layout.per_node > 1:
        found["hierarchical"] = hierarchical(op, nbytes, layout, cluster)
    return found
