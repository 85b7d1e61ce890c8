"""When each link is free: a message holds its sender's way out and its receiver's way in."""

from __future__ import annotations

from collections import defaultdict

from ...cluster.hardware import Cluster


class LinkOccupancy:
    """Until when each rank's links are taken, and the network cards that ranks share."""

    def __init__(self, cluster: Cluster, size: int):
        self.cluster = cluster
        self.out = {tier: [0.0] * size for tier in ("intra", "inter")}
        self.into = {tier: [0.0] * size for tier in ("intra", "inter")}
        self.nodes = [cluster.node_of(rank) for rank in range(size)]
        shared = cluster.nics is not None and cluster.nics < cluster.gpus_per_node
        self.cards = [cluster.nic_of(rank) for rank in range(size)] if shared else None
        self.card_out: dict[tuple, float] = defaultdict(float)
        self.card_in: dict[tuple, float] = defaultdict(float)

    def tier(self, ranks) -> str:
        first = self.nodes[ranks[0]]
        return "intra" if all(self.nodes[rank] == first for rank in ranks) else "inter"

    def free_for_message(self, sender: int, receiver: int) -> float:
        """From when on the sender's way out and the receiver's way in are free."""
        intra, inter = (max(self.out[tier][sender], self.into[tier][receiver]) for tier in ("intra", "inter"))
        if self.cards and self.nodes[sender] != self.nodes[receiver]:
            return max(intra, inter, self.card_out[self.cards[sender]], self.card_in[self.cards[receiver]])
        return max(intra, inter)

    def take_for_message(self, sender: int, receiver: int, start: float, nbytes: int) -> float:
        """Returns when the message has arrived."""
        link = self.cluster.link(sender, receiver)
        end = start + link.seconds(nbytes)
        for tier in ("intra", "inter"):
            self.out[tier][sender] = self.into[tier][receiver] = end
        if self.cards and self.nodes[sender] != self.nodes[receiver]:
            off_the_card = start + nbytes / link.bandwidth
            self.card_out[self.cards[sender]] = self.card_in[self.cards[receiver]] = off_the_card
        return end

    def free_for_collective(self, ranks, tier: str) -> float:
        out, into = self.out[tier], self.into[tier]
        free = max(max(out[rank] for rank in ranks), max(into[rank] for rank in ranks))
        if self.cards and tier == "inter":
            free = max(free, *(max(self.card_out[c], self.card_in[c]) for c in {self.cards[rank] for rank in ranks}))
        return free

    def take_for_collective(self, ranks, tier: str, end: float) -> None:
        out, into = self.out[tier], self.into[tier]
        for rank in ranks:
            out[rank] = into[rank] = end
        if self.cards and tier == "inter":
            for rank in ranks:
                self.card_out[self.cards[rank]] = self.card_in[self.cards[rank]] = end
