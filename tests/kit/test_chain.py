"""A plan for a chain of layers: peak and time, counted by hand and measured on the virtual cluster."""

from __future__ import annotations

import pytest

from utils import simulate
from utils.kit.chain import Chain, drawn_chain, peak_of, peak_of_plan, seconds_of_plan, train_chain


def test_one_segment_keeps_all_of_its_layers_at_once() -> None:
    assert peak_of([0], [8, 1, 4], [20, 30, 10]) == 60


def test_the_inputs_of_earlier_segments_stay_while_a_later_one_is_recomputed() -> None:
    assert peak_of([0, 1, 2], [8, 1, 4], [20, 30, 10]) == 8 + 30
    assert peak_of([0, 2], [8, 1, 40], [20, 30, 70]) == 8 + 70


def test_a_segment_that_is_not_recomputed_is_kept_from_the_forward_pass_on() -> None:
    boundaries, keeps = [8, 1, 4], [20, 30, 10]
    assert peak_of_plan([(0, 1, True), (1, 3, False)], boundaries, keeps) == 8 + 30 + 10
    assert peak_of_plan([(0, 1, False), (1, 3, True)], boundaries, keeps) == 20 + 30 + 10
    assert peak_of_plan([(0, 3, False)], boundaries, keeps) == 60


def test_the_end_of_the_forward_pass_can_be_the_peak() -> None:
    assert peak_of([0, 1, 2], [8, 9, 7], [8, 9, 7]) == 24


def test_a_recomputed_layer_runs_four_times_as_long_as_its_forward_pass() -> None:
    assert seconds_of_plan([(0, 2, True), (2, 3, False)], [0.5, 1.0, 2.0]) == 4 * 1.5 + 3 * 2.0


def test_a_step_keeps_what_the_plan_says() -> None:
    chain = Chain((256, 512, 128, 256, 64), (1024, 256, 512, 512), rows=64)
    for plan in ([(0, 4, False)], [(0, 2, True), (2, 4, True)], [(0, 2, True), (2, 3, False), (3, 4, True)]):
        memory = simulate(train_chain, 1, chain, plan, cluster="dgx-h100").memory()
        activations = max(nbytes for _, kind, nbytes in memory.samples[0] if kind == "activations")
        assert activations + chain.boundaries[0] == peak_of_plan(plan, chain.boundaries, chain.keeps)  # x is a leaf


def test_a_step_takes_about_as_long_as_the_plan_says() -> None:
    chain = drawn_chain(8, seed=1)
    plans = [(0, 8, False)], [(n, n + 1, True) for n in range(8)]
    plain, again = (simulate(train_chain, 1, chain, plan, cluster="dgx-h100").elapsed for plan in plans)
    assert again / plain == pytest.approx(4 / 3, rel=0.03)
