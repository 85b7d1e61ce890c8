"""What the cost of a collective is made of: how a group lies on a cluster, and the parts of an algorithm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .hardware import Cluster, Link


@dataclass(frozen=True)
class Layout:
    """How the ranks of a group are placed on a cluster: all that a cost depends on. Groups placed alike are equal.

    size           number of ranks
    nodes          number of nodes that they are on
    per_node       ranks on each of these nodes, None if the numbers differ
    most, least    ranks on the fullest and on the emptiest of these nodes
    sharing        the largest number of the group's ranks that share one NIC
    """

    size: int
    nodes: int
    per_node: int | None
    most: int
    least: int
    sharing: int

    @classmethod
    def of(cls, cluster: Cluster, ranks: Iterable[int]) -> Layout:
        """Raises ValueError if there are no ranks, one is there twice, or the cluster doesn't have one."""
        ranks = tuple(ranks)
        if not ranks or len(set(ranks)) < len(ranks):
            raise ValueError(f"ranks are {ranks}; a group has at least one rank, and each rank only once")
        for rank in (min(ranks), max(ranks)):
            cluster.node_of(rank)  # raises if there is no such rank
        nodes = Counter(rank // cluster.gpus_per_node for rank in ranks).values()
        nics = Counter(rank // cluster.gpus_per_nic for rank in ranks).values()  # numbered through all nodes
        most, least = max(nodes), min(nodes)
        return cls(len(ranks), len(nodes), most if most == least else None, most, least, max(nics))


class Part(NamedTuple):
    """A phase of an algorithm, on its busiest rank.

    messages   how many, one after another
    nbytes     bytes of all of them together
    sharing    how many ranks send over the same NIC at the same time
    """

    name: str
    messages: int
    nbytes: float
    link: Link
    sharing: int = 1

    @property
    def latency(self) -> float:
        return self.messages * self.link.alpha

    @property
    def transfer(self) -> float:
        return self.sharing * self.nbytes / self.link.bandwidth

    @property
    def seconds(self) -> float:
        return self.latency + self.transfer


def levels(ranks: int) -> int:
    """Levels of a binomial tree: ceil(log2 ranks)."""
    return (ranks - 1).bit_length()
