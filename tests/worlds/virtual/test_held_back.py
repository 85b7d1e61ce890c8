"""Asynchronous messages that wait for links: carried out as if all were looked at, but without looking at all."""

import random

import pytest

from tests.worlds.virtual.test_any_source import CLUSTERS, GPU, LINKS, SIZE, Counting, asynchronous, carried_out
from utils.cluster.hardware import Cluster
from utils.worlds.virtual.network import Network


class AllWait:
    """Nothing is put aside: each message competes all the time."""

    def add(self, message):
        return [message]

    def remove(self, message):
        return []


class AllLookedAt(Network):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.held_back = AllWait()


def random_calls(chance):
    """Messages between all ranks, and barriers of all or of some; in order of time, which often stands still."""
    clocks = [0] * SIZE
    events = []
    hubs = chance.sample(range(SIZE), chance.choice([1, 2, SIZE]))  # one end of each message
    for _ in range(chance.choice([10, 60, 200])):
        hub = chance.choice(hubs)
        other = chance.choice([rank for rank in range(SIZE) if rank != hub])
        sender, receiver = chance.choice([(hub, other), (other, hub)])
        calls = [("send", sender, receiver), ("recv", receiver, sender)]
        if chance.random() < 0.05:
            calls = [("barrier", rank, None) for rank in range(SIZE)]
        for op, rank, peer in chance.sample(calls, len(calls)):
            clocks[rank] += chance.choice([0, 0, 0, 1, 20])
            named = None if op == "recv" and chance.random() < 0.1 else peer
            events.append((op, rank, named, 0, chance.choice([4, 64, 300]), clocks[rank] / 8))
    chance.shuffle(events)  # at one moment, turns come in any order
    events.sort(key=lambda event: event[-1])
    return [asynchronous(index, *event) for index, event in enumerate(events)]


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("seed", range(40))
def test_messages_are_carried_out_as_if_all_were_looked_at(name, seed):
    networks = [kind(CLUSTERS[name], SIZE) for kind in (Network, AllLookedAt)]
    got, expected = (carried_out(network, random_calls(random.Random(seed))) for network in networks)
    assert got == expected
    assert any(end is not None for _, _, end in got)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("op", ["send", "recv"])
def test_the_work_grows_with_the_number_of_messages(op, backwards):
    """However many wait for rank 0's link, each is looked at a few times."""
    size = 200
    network = Counting(Cluster("c", 1, size, GPU, *LINKS), size)
    other = {"send": "recv", "recv": "send"}[op]
    ends = [(index, op, 0, 1 + index, 0, 4, 0.0) for index in range(size - 1)]
    others = [(0, other, 1 + index, 0, 0, 4, 0.0) for index in range(size - 1)]
    calls = [asynchronous(*call) for call in ends + (others[::-1] if backwards else others)]
    assert all(end is not None for _, _, end in carried_out(network, calls))
    assert network.pushed < 6 * size


def test_the_work_grows_with_the_number_of_collectives():
    """However many of a group have been called, only the first is looked at."""
    count = 200
    network = Counting(Cluster("c", 1, SIZE, GPU, *LINKS), SIZE)
    calls = [asynchronous(n, "all_reduce", rank, None, 0, 64, 0.0) for n in range(count) for rank in range(SIZE)]
    assert all(end is not None for _, _, end in carried_out(network, calls))
    assert network.pushed == count
