"""calibrate.py, probes.py: the fit recovers a known link, and this machine, measured, can be simulated.

No test depends on how fast this machine is.
"""

from contextlib import suppress
from fractions import Fraction
from math import inf

import pytest
import torch

from utils import measure_this_machine, simulate
from utils.benchmark.machine import probes
from utils.benchmark.machine.probes import as_cluster, fit, gloo_rates, typical, worst_miss
from utils.cluster import Cluster, Gpu, Link
from utils.cluster.achieved import GlooRates
from utils.cluster.description import cluster_text

ALPHA, BETA = Fraction(3, 70_000), Fraction(1, 3_300_000_000)  # s, s/byte
SIZES = probes.MESSAGES


def test_the_fit_recovers_a_known_link_exactly():
    link = fit({n: ALPHA + n * BETA for n in SIZES})
    assert link == Link(ALPHA, 1 / BETA)  # rational numbers, so no rounding


def test_two_sizes_are_enough_for_a_line():
    assert fit({8: Fraction(2), 24: Fraction(4)}) == Link(Fraction(1), Fraction(8))


def test_every_size_has_the_same_weight():
    """If one size in seven takes 20 % longer, neither end of the line moves by more than that. With absolute errors
    the last message alone would determine alpha: 20 % of its 2.4 ms is eleven times alpha.
    """
    for disturbed in SIZES:
        times = {n: (ALPHA + n * BETA) * (Fraction(6, 5) if n == disturbed else 1) for n in SIZES}
        link = fit(times)
        assert 0.95 < link.alpha / ALPHA < 1.2 and 0.83 < link.bandwidth * BETA < 1.05


def test_the_fit_is_the_minimum_of_the_squared_relative_errors():
    times = {8: 5e-5, 800: 4e-5, 80_000: 7e-5, 8_000_000: 2e-3}

    def squares(alpha, beta):
        return sum(((alpha + n * beta) / t - 1) ** 2 for n, t in times.items())

    link = fit(times)
    least = squares(link.alpha, 1 / link.bandwidth)
    for nudge in (0.999, 1.001):
        assert squares(link.alpha * nudge, 1 / link.bandwidth) > least < squares(link.alpha, nudge / link.bandwidth)


def test_alpha_is_never_negative():
    times = {1: Fraction(1), 10: Fraction(20)}  # the line through both starts below zero
    link = fit(times)
    assert link.alpha == 0
    assert 1 / link.bandwidth == (1 + Fraction(1, 2)) / (1 + Fraction(1, 4))  # sum of n/t over sum of (n/t)^2


def test_times_that_no_link_could_have_are_refused():
    with pytest.raises(ValueError, match="two or more sizes; got 1"):
        fit({8: 1e-5})
    with pytest.raises(ValueError, match=r"don't take longer: 8 bytes 2 s, 80 bytes 1 s\. .*Measure again"):
        fit({8: 2.0, 80: 1.0})


def test_the_worst_miss_is_relative():
    assert worst_miss({10: 2.0, 30: 4.0}, Link(1.0, 10.0)) == 0.0
    assert worst_miss({10: 4.0, 30: 5.0}, Link(1.0, 10.0)) == 0.5


def test_typical_ignores_brief_disturbances_and_slow_ranks():
    assert typical([[1.0, 1.0, 90.0], [2.0, 2.0, 2.0], [3.0, 300.0, 300.0]]) == 2.0


MEASURED = {
    "launch": [2e-6, 1e-6, 9e-6],
    "bandwidth": [5e9] * 3,
    "flops": dict.fromkeys(probes.DTYPES, [1e9, 3e9, 2e9]),
}
TIMES = {n: [1.0, float(ALPHA + n * BETA), 2.0] for n in SIZES}


def test_the_ranks_samples_become_a_cluster(monkeypatch):
    monkeypatch.setattr(probes, "cores", lambda: 2)
    of_ranks = [{**MEASURED, "memory": 8e9}, {**MEASURED, "memory": 6e9, "bandwidth": [7e9] * 3}]
    cluster = as_cluster(of_ranks, TIMES, "gloo")
    gpu = Gpu(dict.fromkeys(probes.DTYPES, 2e9), memory=6e9, bandwidth=6e9, launch=2e-6)
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpu) == (1, 2, gpu)
    assert cluster.intra == cluster.inter == fit({n: float(ALPHA + n * BETA) for n in SIZES})
    words = cluster_text(cluster).replace("\n  ", " ")
    assert "medians of 2 ranks at once, a core each" in words
    assert "ping-pong of 2 ranks over Gloo, 8 B to 8 MB; latency + bytes / bandwidth is off by" in words
    assert "on 2 cores" in cluster_text(as_cluster(of_ranks * 2, TIMES, "gloo"))


def test_what_collectives_are_made_of_becomes_gloos_rates():
    """The slowest rank of each repeat counts, and of these the quickest repeat; a barrier consists of steps."""
    size, seconds = 4, {"start": 3e-5, "barrier": 7e-5, "shift": 8e-3, "add": 2e-5, "copy": 4e-3, "move": 1e-3}
    samples = [{name: [9.0, s if rank == 1 else s / 2, 1.0] for name, s in seconds.items()} for rank in range(size)]
    rates = gloo_rates(samples)
    assert (rates.start, rates.step) == (3e-5, pytest.approx(2e-5))  # 2 rounds among 4 ranks
    assert rates.together == size * probes.SHIFTED / 8e-3
    assert (rates.added, rates.copied) == (probes.ADDED / 2e-5, probes.SHIFTED / 4e-3)
    assert rates.moved == probes.SHIFTED / 1e-3
    cluster = as_cluster([{**MEASURED, "memory": 8e9}] * size, TIMES, "gloo", samples)
    assert cluster.intra.achieved == rates and cluster.at_rates().rates == "achieved"
    assert "collectives: Gloo's own algorithms" in cluster_text(cluster)


def test_a_single_gpu_has_no_link_and_says_so():
    cluster = as_cluster([{**MEASURED, "memory": 80e9}], None, "nccl")
    assert cluster.intra == Link(0.0, inf) and "links: not measured" in cluster_text(cluster)
    assert "a GPU each" in cluster_text(cluster)


def measured_on_two():
    """A short measurement on a busy machine may fail with ValueError; then a longer one follows."""
    for seconds in (0.1, 0.5, 2):
        with suppress(ValueError):
            return measure_this_machine(2, backend="gloo", seconds=seconds)
    return measure_this_machine(2, backend="gloo", seconds=8)


def test_this_machine_as_a_cluster_can_be_simulated(capfd):
    cluster = measured_on_two()
    assert capfd.readouterr() == ("", "")  # only describe() prints
    assert isinstance(cluster, Cluster) and cluster.size == 2
    assert set(cluster.gpu.flops) == {"fp64", "fp32", "fp16", "bf16"}
    assert 0 < cluster.gpu.launch < 1 and 0 < cluster.gpu.memory < inf and 0 < cluster.intra.bandwidth < inf
    run = simulate(lambda rank, world_size: torch.empty(1 << 20).mul_(2), 2, cluster=cluster)
    assert run.elapsed == cluster.gpu.launch + (2 << 22) / cluster.gpu.bandwidth
    assert run.rates == "achieved" and isinstance(cluster.intra.achieved, GlooRates)


def test_impossible_calls_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="at least 1, and got 0"):
        measure_this_machine(0, backend="gloo")
    with pytest.raises(ValueError, match="backend must be .* got 'mpi'"):
        measure_this_machine(1, backend="mpi")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}.items():  # torchrun's
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="on a rank of torchrun or SLURM"):
        measure_this_machine()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured_by_its_own_clock():
    cluster = measure_this_machine(1, backend="nccl", seconds=1)
    assert cluster.gpu.memory == torch.cuda.get_device_properties(0).total_memory
    # Plausible, so the clock waits for its work.
    assert 1e11 < cluster.gpu.bandwidth < 1e14 and 1e12 < cluster.gpu.flops["bf16"] < 1e17
    assert cluster.intra == Link(0.0, inf)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_have_a_link():
    cluster = measure_this_machine(2, backend="nccl", seconds=1)
    assert 0 < cluster.intra.alpha < 1e-2 and 1e8 < cluster.intra.bandwidth < inf
