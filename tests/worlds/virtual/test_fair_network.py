"""A network with shared links does the same, to the bit, in whatever order it looks at the flows that share them."""

import random

import pytest

from tests.worlds.virtual.test_any_source import CLUSTERS, GPU, SIZE, asynchronous, carried_out
from utils.cluster.hardware import Cluster, Link
from utils.worlds.virtual.fair_network import FairNetwork

ODD = Link(3e-6, 4.5e10), Link(7e-6, 2.3e10)  # rates whose quotients have to be rounded
WHERE = {
    **CLUSTERS,
    "odd rates": Cluster("c", 1, SIZE, GPU, *ODD),
    "odd rates, a card for two ranks": Cluster("c", 4, 2, GPU, *ODD, nics=1),
}


class InOrder(FairNetwork):
    """Takes the flows in the order of their transfers, and counts anew how many are on each of their ports."""

    def settle(self):
        self.unsettled = {}
        flows = {flow for on_port in self.on_port.values() for flow in on_port}
        for flow in sorted(flows, key=lambda each: each.transfer.order):
            share = max(sum(any(port is one for one in each.ports) for each in flows) for port in flow.ports)
            if share != flow.share:
                flow.remaining -= (self.now - flow.since) / flow.share if flow.share else 0
                flow.since, flow.share = self.now, share
                self.foresee_end(flow)


def random_calls(chance, unit):
    """Messages and barriers, many of them at the same moment, most with one rank; in order of time."""
    clocks = [0.0] * SIZE
    hubs = chance.sample(range(SIZE), chance.choice([1, 2, SIZE]))
    events = []
    for _ in range(chance.choice([10, 60])):
        hub = chance.choice(hubs)
        sender, receiver = chance.sample([hub, chance.choice([rank for rank in range(SIZE) if rank != hub])], 2)
        size = chance.choice([4, 300, 10**5, 10**7])
        calls = [("send", sender, receiver), ("recv", receiver, sender)]
        if chance.random() < 0.1:
            calls = [("all_reduce", rank, None) for rank in range(SIZE)]
        for op, rank, peer in chance.sample(calls, len(calls)):
            clocks[rank] += chance.choice([0, 0, 0, 1, chance.random()]) * unit
            named = None if op == "recv" and chance.random() < 0.2 else peer
            events.append((op, rank, named, 0, size, clocks[rank]))
    events.sort(key=lambda event: event[-1])
    return [asynchronous(index, *event) for index, event in enumerate(events)]


@pytest.mark.parametrize("name", WHERE)
@pytest.mark.parametrize("seed", range(15))
def test_the_order_in_which_flows_change_their_speed_does_not_matter(name, seed):
    networks = [kind(WHERE[name], SIZE) for kind in (FairNetwork, InOrder)]
    unit = 1e-4 if "odd" in name else 1 / 8
    got, expected = (carried_out(network, random_calls(random.Random(seed), unit)) for network in networks)
    assert got == expected
    assert any(end is not None for _, _, end in got)


@pytest.mark.parametrize("hub_sends", [True, False])
def test_messages_at_one_end_of_all_share_its_bandwidth(hub_sends):
    """Whether one rank sends to all others or they send to it: `others` times the bytes pass its link."""
    others, nbytes, (link, _) = SIZE - 1, 2**20, ODD
    ends = [(0, rank) if hub_sends else (rank, 0) for rank in range(1, SIZE)]
    sends = [asynchronous(n, "send", sender, receiver, 0, nbytes, 0.0) for n, (sender, receiver) in enumerate(ends)]
    receives = [asynchronous(n, "recv", receiver, sender, 0, nbytes, 0.0) for n, (sender, receiver) in enumerate(ends)]
    for _, _, end in carried_out(FairNetwork(WHERE["odd rates"], SIZE), sends + receives):
        assert end == pytest.approx(link.alpha + others * nbytes / link.bandwidth)
