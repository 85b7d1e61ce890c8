"""Which message each receive from any source gets: as if all messages competed for it, but without looking at all."""

import random

import pytest
import torch
import torch.distributed as dist

from utils import simulate
from utils.cluster.hardware import Cluster, Gpu, Link
from utils.events.event import Event
from utils.worlds.virtual.calls import VirtualCall
from utils.worlds.virtual.fair_network import FairNetwork
from utils.worlds.virtual.network import Network

SIZE = 8
LINKS = Link(2.0**-4, 2.0**10), Link(2.0**-2, 2.0**8)
GPU = Gpu(flops={"fp32": 1.0}, memory=2.0**40, bandwidth=2.0**20, launch=0.0)
CLUSTERS = {
    "one node": Cluster("c", 1, SIZE, GPU, *LINKS),
    "four nodes": Cluster("c", 4, 2, GPU, *LINKS),
    "a card for two ranks": Cluster("c", 4, 2, GPU, *LINKS, nics=1),
}


EVERYONE = tuple(range(SIZE))


def asynchronous(index, op, rank, peer, tag, nbytes, start):
    event = Event(rank, index, op, "world", EVERYONE, peer, tag, nbytes, "", (), "", True, start, None, "")
    return VirtualCall(event, op.replace("all_reduce", "allreduce"), ())


class AllCompete:
    """A network in which all the messages that a receive may get compete for it."""

    def compete(self, any_source):
        for message in any_source.messages():
            if message not in any_source.competing:
                any_source.competing.append(message)
                self.push(self.message_of(message, any_source.receives[0]))

    def is_held_back(self, message):
        return False


class AllCompeteInTurns(AllCompete, Network):
    pass


class AllCompeteFairly(AllCompete, FairNetwork):
    pass


PAIRS = {"in turns": (Network, AllCompeteInTurns), "fair": (FairNetwork, AllCompeteFairly)}


def random_calls(chance):
    """Asynchronous messages to two of the ranks, and their receives, half of which name nobody; in order of time."""
    clocks = [0] * SIZE
    events = []
    for _ in range(chance.choice([10, 40, 120])):
        receiver, tag = chance.randrange(2), chance.choice([0, 0, 0, 1])
        sender = chance.choice([rank for rank in range(SIZE) if rank != receiver])
        for op, rank, peer in (("send", sender, receiver), ("recv", receiver, sender)):
            clocks[rank] += chance.choice([0, 0, 1, 3])
            named = None if op == "recv" and chance.random() < 0.5 else peer
            events.append((op, rank, named, tag, chance.choice([4, 64, 300]), clocks[rank] / 8))
    events.sort(key=lambda event: event[-1])
    return [asynchronous(index, *event) for index, event in enumerate(events)]


def carried_out(network, calls):
    """[(index of each call, who sent what it received, when it ended)], as the scheduler has a network do it."""
    for call in calls:
        while network.earliest() <= call.event.start:
            network.commit()
        network.ask(call)
    while network.earliest() < float("inf"):
        network.commit()
    return [(call.event.index, call.source, call.end) for call in calls]


@pytest.mark.parametrize("kind, reference", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("seed", range(20))
def test_a_receive_gets_the_message_that_it_would_get_if_all_competed(kind, reference, name, seed):
    networks = [each(CLUSTERS[name], SIZE) for each in (kind, reference)]
    got, expected = (carried_out(network, random_calls(random.Random(seed))) for network in networks)
    assert got == expected
    assert any(end is not None for _, _, end in got)


def test_of_messages_that_are_there_the_first_of_its_program_comes_first_and_then_the_lowest_rank():
    def program(rank, world_size):
        x = torch.zeros(1)
        if rank:
            for _ in range(world_size - rank - 1):
                dist.isend(x, 0, tag=1)
            dist.isend(x, 0)
            return []
        for sender in range(1, world_size):
            for _ in range(world_size - sender - 1):
                dist.recv(x, sender, tag=1)
        return [dist.recv(x) for _ in range(1, world_size)]

    assert simulate(program, 5, cluster=CLUSTERS["one node"]).results[0] == [4, 3, 2, 1]


class Counting(Network):
    pushed = 0

    def push(self, transfer):
        self.pushed += 1
        super().push(transfer)


@pytest.mark.parametrize("senders_first", [True, False])
def test_the_work_grows_with_the_number_of_messages(senders_first):
    """Every sender's message is compared once or twice, not once for each receive."""
    size = 200
    network = Counting(Cluster("c", 1, size, GPU, *LINKS), size)
    sends = [("send", rank, 0, 0, 4, 0.0) for rank in range(1, size)]
    receives = [("recv", 0, None, 0, 4, float(n)) for n in range(size - 1)]
    in_order = sends + receives if senders_first else receives + sends
    calls = [asynchronous(index, *call) for index, call in enumerate(in_order)]
    assert all(end is not None for _, _, end in carried_out(network, calls))
    assert network.pushed < 3 * size
