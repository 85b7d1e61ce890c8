"""figures: all-reduce algorithms, and time against size; what is drawn, not its pixels."""

import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from utils import figures
from utils.figures.algorithms import held_in_ring
from utils.figures.curves import crossings


def texts(panel) -> list[str]:
    return [text.get_text() for text in panel.texts]


def arrows(panel) -> int:
    return sum(isinstance(patch, FancyArrowPatch) for patch in panel.patches)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_after_all_steps_of_a_ring_each_place_has_its_complete_chunk(size):
    held = held_in_ring(size, size - 1)
    complete = "+".join("abcdefgh"[:size])
    assert [[text == complete for text in chunks] for chunks in held] == [
        [chunk == place for chunk in range(size)] for place in range(size)
    ]


def test_a_step_of_a_ring_has_an_arrow_per_place_and_one_that_re_enters():
    before, after = figures.ring(4, step=1).axes
    assert (arrows(before), arrows(after)) == (5, 0)
    assert "c+d" in texts(before) and "a+c+d" not in texts(before)
    assert "a+c+d" in texts(after)


@pytest.mark.parametrize(("size", "step"), [(4, 3), (4, -1), (9, 0)])
def test_impossible_rings_are_refused(size, step):
    with pytest.raises(ValueError, match="steps 0 to 2, not|room for 1 to 8"):
        figures.ring(size, step)


@pytest.mark.parametrize(("size", "rounds"), [(2, 1), (5, 3), (6, 3), (8, 3)])
def test_a_tree_has_one_message_per_place_except_for_the_root(size, rounds):
    [panel] = figures.tree(size).axes
    assert arrows(panel) == size - 1
    assert sum(text.startswith("distance") for text in texts(panel)) == rounds


@pytest.mark.parametrize("size", [2, 4, 8])
def test_halving_pairs_all_places_in_each_round(size):
    [panel] = figures.halving(size).axes
    rounds = size.bit_length() - 1
    assert arrows(panel) == rounds * size // 2
    assert "at the end" in texts(panel)


def test_every_extra_place_sends_and_receives():
    [panel] = figures.folding(7).axes
    assert arrows(panel) == 2 * 3
    assert "all-reduce among 4" in texts(panel)


def test_teams_are_nodes_then_seats_then_nodes():
    framed = [
        sum(isinstance(patch, FancyBboxPatch) for patch in panel.patches) for panel in figures.two_levels(3, 4).axes
    ]
    assert framed == [3, 4, 3]


def test_in_each_step_of_a_pairwise_exchange_all_places_send():
    assert [arrows(panel) for panel in figures.pairwise(5).axes] == [5] * 4


SIZES = (1.0, 10.0, 100.0)
CURVES = {"flat": [(n, 10.0) for n in SIZES], "steep": [(n, n / 5) for n in SIZES], "worst": [(n, 99.0) for n in SIZES]}


def test_a_crossing_is_where_the_fastest_changes():
    assert crossings(CURVES) == [(50.0, "steep", "flat")]
    assert crossings({"flat": CURVES["flat"], "worst": CURVES["worst"]}) == []


def test_curves_are_logarithmic_and_the_dots_have_no_line():
    picture = figures.time_curves(CURVES, "three", dots="worst")
    [panel] = picture.axes
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert [line.get_linestyle() for line in panel.lines] == ["-", "-", "None", ":"]
    assert picture.png() == figures.time_curves(CURVES, "three", dots="worst").png()
