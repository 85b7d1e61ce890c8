"""The peak and the time of a plan for a chain of layers, in cases small enough to count by hand."""

from __future__ import annotations

from utils.kit.chain import peak_of, peak_of_plan, seconds_of_plan


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
