"""What Gloo's collectives cost on one machine: its algorithms' own counts, and the closed form made of them."""

from itertools import product

import pytest
import torch
import torch.distributed as dist

from utils import simulate
from utils.cluster import Cluster, Gpu, Layout, Link, cost
from utils.cluster.achieved import AsMeasured, GlooRates
from utils.events.collectives import COLLECTIVES

START, STEP, ALPHA, ALONE, TOGETHER = 5e-5, 2e-5, 1e-5, 2.0**31, 2.0**32
ADDED, COPIED, MOVED = 2.0**34, 2.0**32, 2.0**33
RATES = GlooRates(START, STEP, TOGETHER, ADDED, COPIED, MOVED)
CPU = Gpu(flops={"fp32": 1e11}, memory=8e9, bandwidth=5e9, launch=2e-6, achieved=AsMeasured())


def machine(ranks, rates=RATES):
    link = Link(ALPHA, ALONE, achieved=rates)
    return Cluster("this machine", 1, ranks, CPU, link, link).at_rates()


def seconds(op, nbytes, ranks, rates=RATES):
    cluster = machine(ranks, rates)
    return cost(op, nbytes, cluster, Layout.of(cluster, range(ranks))).seconds


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_an_all_reduce_is_a_ring_that_all_ranks_turn_at_once(ranks):
    n = 2**20
    sent = 2 * (ranks - 1) * n / TOGETHER  # 2 (P-1)/P n by each rank
    path = 2 * (ranks - 1) / ranks * n / ALONE  # if every rank had cores for itself
    added = (ranks - 1) / ranks * n / ADDED
    assert seconds("all_reduce", n, ranks) == pytest.approx(START + 2 * (ranks - 1) * STEP + max(sent, path) + added)


def test_a_reduce_scatter_is_an_all_reduce_of_a_copy():
    n = 2**20
    assert seconds("reduce_scatter", n, 4) == pytest.approx(seconds("all_reduce", n, 4) + n / COPIED)


def test_a_tree_waits_for_each_level_unless_the_cores_are_the_limit():
    n, plenty = 2**24, GlooRates(START, STEP, float("inf"), ADDED, COPIED, MOVED)
    assert seconds("broadcast", n, 8, plenty) == pytest.approx(START + 3 * (ALPHA + n / ALONE))
    assert seconds("broadcast", n, 8) == pytest.approx(START + 3 * ALPHA + 7 * n / TOGETHER)


def test_a_gather_moves_everything_out_of_a_buffer_and_a_scatter_the_part_of_the_root():
    n, sent = 2**24, 3 / 4 * 2**24 / ALONE
    assert seconds("gather", n, 4) == pytest.approx(START + STEP + sent + n / MOVED)
    assert seconds("scatter", n, 4) == pytest.approx(START + ALPHA + sent + n / 4 / MOVED)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_small_ones_cost_their_messages_and_large_ones_their_bytes(op):
    for ranks in (2, 5):
        small, large = seconds(op, 0, ranks), seconds(op, 2**30, ranks)
        assert small >= START + ALPHA and (op == "barrier" or large > 2**29 / TOGETHER)
    assert seconds(op, 2**20, 8) >= seconds(op, 2**20, 2)


def test_what_the_loopback_counted_on_2_and_4_ranks():
    """Bytes that all ranks sent together, by /proc/net/dev, for n = 4 MB; in units of n."""
    counted = {"all_reduce": (2, 6), "broadcast": (1, 3), "reduce": (1.5, 3.75), "all_gather": (1, 3)}
    counted |= {"reduce_scatter": (2, 6), "gather": (0.5, 0.75), "scatter": (0.5, 0.75), "all_to_all": (1, 3)}
    only_cores = GlooRates(0.0, 0.0, 1.0, float("inf"), float("inf"), float("inf"))
    for (op, of), (place, ranks) in product(counted.items(), enumerate((2, 4))):
        assert seconds(op, 2.0**30, ranks, only_cores) == pytest.approx(of[place] * 2**30)


def test_simulate_charges_it_and_says_which_algorithm():
    def program(rank, world_size):
        dist.all_reduce(torch.empty(2**18))

    run = simulate(program, 4, cluster=machine(4))
    assert run.elapsed == pytest.approx(seconds("all_reduce", 2**20, 4))
    assert run.rates == "achieved" and "ring" in repr(run.costs())


def test_impossible_rates_are_refused():
    with pytest.raises(ValueError, match="start and step must be 0 or more"):
        GlooRates(-1.0, STEP, TOGETHER, ADDED, COPIED, MOVED)
    with pytest.raises(ValueError, match="the others above 0"):
        GlooRates(START, STEP, 0.0, ADDED, COPIED, MOVED)
