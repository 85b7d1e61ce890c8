"""overlapped_step: what it sends, what it holds, and that communication hides behind computing."""

import math

import pytest

from utils import simulate
from utils.cluster import Cluster, Gpu, Link
from utils.kit.overlapped_fsdp import overlapped_step

LAYERS, DIM, RANKS = 6, 64, 4
ONE_WAY = (RANKS - 1) / RANKS * LAYERS * DIM * DIM * 2  # bytes that a rank sends to gather, or to reduce, everything


def textbook(compute: float, gather: float) -> Cluster:
    """A product of 8 rows takes `compute` seconds, a gather of a layer `gather`, and all else nothing."""
    gpu = Gpu({"bf16": 2 * 8 * DIM**2 / compute}, memory=math.inf, bandwidth=math.inf)
    link = Link(0.0, ONE_WAY / LAYERS / gather)
    return Cluster("textbook", 1, RANKS, gpu=gpu, intra=link, inter=link)


def step(cluster="dgx-h100", **options):
    return simulate(overlapped_step, RANKS, LAYERS, DIM, cluster=cluster, **{"rows": 8, **options})


@pytest.mark.parametrize(
    ("options", "ways"),
    [({}, 3), ({"keep": range(LAYERS)}, 2), ({"recompute": range(LAYERS)}, 3), ({"microbatches": 2}, 6)],
)
def test_it_sends_two_gathers_and_a_reduction_per_microbatch(options, ways):
    assert step(**options).traffic().implied(0) == ways * ONE_WAY


def test_kept_weights_take_memory_and_recomputed_layers_save_it():
    rows = 64 * DIM
    plain, kept, recomputed = (
        max(step(rows=rows, **options).memory().peak)
        for options in ({}, {"keep": range(LAYERS)}, {"recompute": range(LAYERS)})
    )
    assert kept > plain + 3 * DIM * DIM * 2
    assert recomputed < 0.7 * plain


def test_what_takes_less_time_than_computing_is_hidden():
    """One product per layer forward, and two backward, but one in the first.

    Exposed are the first gather, the last layer's second one, and the last reduction.
    """
    computing = 3 * LAYERS - 1
    for gather in (0.5, 0.25):
        assert step(textbook(1.0, gather)).elapsed == pytest.approx(computing + 3 * gather)
