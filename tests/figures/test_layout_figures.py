"""The pictures of layouts."""

from __future__ import annotations

from matplotlib.patches import FancyArrowPatch, Rectangle

from utils import figures


def test_each_part_is_drawn_once_with_the_ranks_that_have_it():
    (panel,) = figures.layouts(["S0 R", "S0 S1", "S0 S0"], mesh=(2, 3)).axes
    assert sum(isinstance(patch, Rectangle) for patch in panel.patches) == 2 + 6 + 6
    words = [text.get_text() for text in panel.texts]
    assert words[:3] == ["S0 R", "0 1 2", "3 4 5"]


def test_what_every_rank_has_says_so():
    (panel,) = figures.layouts(["R"], mesh=(3,)).axes
    assert [text.get_text() for text in panel.texts] == ["R", "all ranks"]


def test_summands_add_up_to_the_tensor():
    (panel,) = figures.summands([[3, -1], [-4, 5]]).axes
    words = [text.get_text() for text in panel.texts]
    assert words[words.index("the tensor") :] == ["the tensor", "=", "-1", "4"]
    assert len(panel.patches) == 6


def test_a_way_has_an_arrow_for_each_step_with_what_it_sends():
    steps = [(1, "S0", "R"), (0, "R", "S1"), (1, "R", "S1")]
    (panel,) = figures.layout_ways(("R", "S0"), {"default": steps}, mesh=(8, 8)).axes
    assert sum(isinstance(patch, FancyArrowPatch) for patch in panel.patches) == 3
    assert [text.get_text() for text in panel.texts][-3:] == ["0.875", "nothing", "nothing"]
