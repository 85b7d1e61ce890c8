"""The pictures of lesson 06: what is drawn, not its pixels."""

import pytest

from utils import figures


def test_each_compressor_has_a_panel_with_the_gradient_and_what_arrives():
    picture = figures.compressed([0.5, -1.5, 0.0], {"int4": [0, -1, 0], "1 bit": [1, -1, 1]})
    heights = [[bar.get_height() for bar in panel.patches] for panel in picture.axes]
    assert heights == [[0.5, -1.5, 0.0, 0, -1, 0], [0.5, -1.5, 0.0, 1, -1, 1]]
    assert [panel.get_ylabel() for panel in picture.axes] == ["int4", "1 bit"]


def test_over_steps_draws_a_line_per_name_in_different_looks():
    curves = {f"method {number}": [1.0, 0.5, number + 0.1] for number in range(8)}
    (panel,) = figures.over_steps(curves, "loss", "loss of rank 0").axes
    assert [line.get_label() for line in panel.lines] == list(curves)
    assert [list(line.get_ydata()) for line in panel.lines] == list(curves.values())
    assert len({(line.get_color(), line.get_linestyle()) for line in panel.lines}) == 8
    assert (panel.get_xlabel(), panel.get_ylabel(), panel.get_yscale()) == ("step", "loss of rank 0", "log")


def test_over_steps_puts_numbers_of_some_steps_where_they_belong():
    (panel,) = figures.over_steps({"seldom": {0: 1.0, 10: 0.5}}, "loss", "loss").axes
    assert list(panel.lines[0].get_xdata()) == [0, 10] and list(panel.lines[0].get_ydata()) == [1.0, 0.5]


def test_over_steps_draws_several_runs_as_their_median_and_a_band():
    runs = [[1.0, 0.2], [3.0, 0.1], [2.0, 0.4]]
    (panel,) = figures.over_steps({"often": runs, "once": [1.0, 1.0]}, "loss", "loss").axes
    assert [list(line.get_ydata()) for line in panel.lines] == [[2.0, 0.2], [1.0, 1.0]]
    (band,) = panel.collections
    assert {tuple(corner) for corner in band.get_paths()[0].vertices} == {(0, 1), (0, 3), (1, 0.1), (1, 0.4)}


def test_numbers_of_the_axis_are_plain_and_few():
    (panel,) = figures.over_steps({"a": [0.05, 0.4]}, "loss", "loss").axes
    words = panel.yaxis.get_major_formatter()
    assert [words(value, 0) for value in (0.05, 0.2, 1.0, 0.3, 100.0)] == ["0.05", "0.2", "1", "", "100"]


@pytest.mark.parametrize("numbers", [[0.31, 0.38], [2.4, 2.31, 2.3], [0.4, 0.95], [1.0, 100.0]])
def test_at_least_two_ticks_have_their_number(numbers):
    (panel,) = figures.over_steps({"a": numbers}, "loss", "loss").axes
    low, high = panel.get_ylim()
    ticks = [*panel.get_yticks(), *panel.get_yticks(minor=True)]
    words = [panel.yaxis.get_major_formatter()(tick, 0) for tick in ticks if low <= tick <= high]
    assert len(set(filter(None, words))) >= 2


def test_names_and_values_must_fit_together():
    with pytest.raises(ValueError):
        figures.compressed([1.0, 2.0], {"int4": [1.0, 2.0, 3.0]})
