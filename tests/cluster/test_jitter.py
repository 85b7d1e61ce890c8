"""Jitter: slow nodes and late launches, the same in every run, and more of them where there are more ranks."""

import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from utils import simulate
from utils.cluster import Cluster, Gpu, Jitter, Link

LAUNCH, KERNEL, NUMBER = 1e-6, 1e-4, 100  # seconds; operations per step
LINK = Link(0.0, float("inf"))
GPU = Gpu(flops={"fp32": 2e6 / KERNEL}, memory=80e9, bandwidth=float("inf"), launch=LAUNCH)
CLUSTER = Cluster("alike", nodes=64, gpus_per_node=4, gpu=GPU, intra=LINK, inter=LINK)


def step(rank, world_size, number=NUMBER):
    """Products of 2 million FLOPs, each followed by a barrier; returns how long the products took this rank."""
    x, computed = torch.empty(100, 100), 0.0
    for _ in range(number):
        start = time.perf_counter()
        x @ x
        computed += time.perf_counter() - start
        dist.barrier()
    return computed


def test_without_jitter_all_ranks_are_alike():
    for jitter in (None, Jitter(seed=1)):
        run = simulate(step, 8, cluster=CLUSTER, jitter=jitter)
        assert run.results == [pytest.approx(NUMBER * (KERNEL + LAUNCH))] * 8


def test_on_a_slow_node_kernels_take_longer_and_launches_do_not():
    run = simulate(step, 8, cluster=CLUSTER, jitter=Jitter(seed=1, slow_nodes=1.0, slowdown=0.1))
    assert run.results == [pytest.approx(NUMBER * (1.1 * KERNEL + LAUNCH))] * 8
    assert run.computed[0].matmul == pytest.approx(NUMBER * 1.1 * KERNEL)


def test_all_gpus_of_a_node_are_slow_together_and_as_many_nodes_as_asked_for():
    number = 10
    run = simulate(step, 256, number, cluster=CLUSTER, jitter=Jitter(seed=1, slow_nodes=0.25, slowdown=0.1))
    slow = [seconds > number * (1.05 * KERNEL + LAUNCH) for seconds in run.results]
    nodes = [slow[first : first + 4] for first in range(0, 256, 4)]
    assert all(len(set(node)) == 1 for node in nodes)
    assert 8 <= sum(node[0] for node in nodes) <= 24
    assert run.elapsed == pytest.approx(number * (1.1 * KERNEL + LAUNCH))  # everyone waits for the slow ones


def test_launches_are_late_by_as_much_as_asked_for_on_average():
    run = simulate(step, 16, cluster=CLUSTER, jitter=Jitter(seed=1, launch=2e-5))
    late = [seconds / NUMBER - KERNEL - LAUNCH for seconds in run.results]
    assert sum(late) / 16 == pytest.approx(2e-5, rel=0.1) and len(set(late)) == 16
    assert [computed.launch for computed in run.computed] == pytest.approx([NUMBER * (LAUNCH + each) for each in late])
    assert all(sum(parts.values()) == pytest.approx(run.elapsed) for parts in run.breakdown().parts)


def test_it_costs_more_the_more_ranks_there_are():
    jitter = Jitter(seed=1, launch=2e-5)
    times = [simulate(step, ranks, cluster=CLUSTER, jitter=jitter).elapsed for ranks in (1, 4, 16, 64)]
    assert times == sorted(times) and times[-1] > times[0] + 3 * NUMBER * 2e-5


def test_the_seed_decides_everything():
    def elapsed(seed, cluster=CLUSTER):
        return simulate(step, 8, cluster=cluster, jitter=Jitter(seed, 0.5, 0.1, 2e-5)).results

    assert elapsed(1) == elapsed(1) != elapsed(2)
    in_the_cluster = replace(CLUSTER, jitter=Jitter(1, 0.5, 0.1, 2e-5))
    assert simulate(step, 8, cluster=in_the_cluster).results == elapsed(1)


@pytest.mark.parametrize(
    "numbers, error, words",
    [
        ({"seed": 1.5}, TypeError, "seed is 1.5; it must be a whole number"),
        ({"seed": 1, "slow_nodes": 2}, ValueError, "slow_nodes 2, .* is a probability"),
        ({"seed": 1, "slowdown": -0.1}, ValueError, "slowdown -0.1 .* must be 0 or more"),
        ({"seed": 1, "launch": -1e-6}, ValueError, "launch -1e-06; .* must be 0 or more"),
    ],
)
def test_impossible_jitter_is_refused(numbers, error, words):
    with pytest.raises(error, match=words):
        Jitter(**numbers)
