"""split_mlp.py: a step split by tensor and data parallelism, by its calls and its memory."""

from collections import Counter

import pytest

from utils import simulate
from utils.kit.split_mlp import step

DIM, LAYERS, ROWS = 64, 6, 24


@pytest.mark.parametrize(("dp", "tp"), [(2, 4), (1, 2), (3, 1)])
def test_activations_travel_in_tp_groups_and_gradients_in_dp_groups(dp, tp):
    run = simulate(step, dp * tp, dp, tp, ROWS, dim=DIM, layers=LAYERS)
    calls = Counter((event.group, event.rank, event.bytes) for event in run.events)
    assert set(calls.values()) == {LAYERS}
    together = {(group, nbytes): set() for group, _, nbytes in calls}
    for group, rank, nbytes in calls:
        together[group, nbytes].add(rank)
    by_bytes = {2 * ROWS // dp * DIM: [], 2 * DIM * DIM // tp: []}
    for (_, nbytes), ranks in together.items():
        by_bytes[nbytes].append(ranks)
    activations, gradients = by_bytes.values()
    assert activations == [set(range(group * tp, group * tp + tp)) for group in range(dp)]
    assert gradients == [set(range(place, dp * tp, tp)) for place in range(tp)]


def test_a_rank_holds_16_bytes_for_each_of_its_parameters_and_activations_beside():
    run = simulate(step, 2, 1, 2, ROWS, dim=DIM, layers=LAYERS)
    state = 16 * LAYERS * DIM * DIM // 2
    assert state < run.memory().peak[0] < state + LAYERS * 2 * ROWS * DIM * 4
