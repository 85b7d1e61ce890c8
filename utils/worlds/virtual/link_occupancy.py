"""When each link is free: a message occupies its sender's outgoing link and its receiver's incoming one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ...cluster.hardware import Cluster

TIERS = ("intra", "inter")
Nic = tuple[int, int]  # (node, number on that node)
End = tuple[str, int | Nic]  # ("out" or "in", whose: a rank's, or a shared network card's)


class LinkOccupancy:
    """Until when each rank's links are taken, and the network cards that ranks share."""

    def __init__(self, cluster: Cluster, size: int):
        self.cluster = cluster
        self.outgoing = {tier: [0.0] * size for tier in TIERS}
        self.incoming = {tier: [0.0] * size for tier in TIERS}
        self.nodes = [cluster.node_of(rank) for rank in range(size)]
        shared = cluster.nics is not None and cluster.nics < cluster.gpus_per_node
        self.nics = [cluster.nic_of(rank) for rank in range(size)] if shared else None
        self.nic_outgoing: dict[Nic, float] = defaultdict(float)
        self.nic_incoming: dict[Nic, float] = defaultdict(float)

    def tier(self, ranks: Sequence[int]) -> str:
        first = self.nodes[ranks[0]]
        return "intra" if all(self.nodes[rank] == first for rank in ranks) else "inter"

    def free_for_message(self, sender: int, receiver: int) -> float:
        """The time from which the sender's outgoing links and the receiver's incoming ones are free, in seconds."""
        outgoing, incoming = self.outgoing, self.incoming
        intra = max(outgoing["intra"][sender], incoming["intra"][receiver])
        inter = max(outgoing["inter"][sender], incoming["inter"][receiver])
        if self.nics and self.nodes[sender] != self.nodes[receiver]:
            return max(intra, inter, self.nic_outgoing[self.nics[sender]], self.nic_incoming[self.nics[receiver]])
        return max(intra, inter)

    def last_free(self, sender: int, receiver: int) -> End:
        """Which of the ends of its links a message has to wait for longest."""
        free: dict[End, float] = {
            ("out", sender): max(self.outgoing[tier][sender] for tier in TIERS),
            ("in", receiver): self.free_to_receive(receiver),
        }
        if self.nics and self.nodes[sender] != self.nodes[receiver]:
            free["out", self.nics[sender]] = self.nic_outgoing[self.nics[sender]]
            free["in", self.nics[receiver]] = self.nic_incoming[self.nics[receiver]]
        return max(free, key=free.__getitem__)

    def free_to_receive(self, receiver: int) -> float:
        """The time from which the receiver's own incoming links are free."""
        return max(self.incoming["intra"][receiver], self.incoming["inter"][receiver])

    def take_for_message(self, sender: int, receiver: int, start: float, nbytes: int) -> float:
        """Returns when the message has arrived."""
        link = self.cluster.link(sender, receiver)
        end = start + link.seconds(nbytes)
        for tier in TIERS:
            self.outgoing[tier][sender] = self.incoming[tier][receiver] = end
        if self.nics and self.nodes[sender] != self.nodes[receiver]:
            nic_free = start + nbytes / link.bandwidth
            self.nic_outgoing[self.nics[sender]] = self.nic_incoming[self.nics[receiver]] = nic_free
        return end

    def free_for_collective(self, ranks: Sequence[int], tier: str) -> float:
        outgoing, incoming = self.outgoing[tier], self.incoming[tier]
        free = max(max(outgoing[rank] for rank in ranks), max(incoming[rank] for rank in ranks))
        if self.nics and tier == "inter":
            nics = {self.nics[rank] for rank in ranks}
            free = max(free, *(max(self.nic_outgoing[nic], self.nic_incoming[nic]) for nic in nics))
        return free

    def take_for_collective(self, ranks: Sequence[int], tier: str, end: float) -> None:
        outgoing, incoming = self.outgoing[tier], self.incoming[tier]
        for rank in ranks:
            outgoing[rank] = incoming[rank] = end
        if self.nics and tier == "inter":
            for rank in ranks:
                self.nic_outgoing[self.nics[rank]] = self.nic_incoming[self.nics[rank]] = end
