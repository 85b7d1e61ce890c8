"""Sets of ranks: which ranks share a row, how it is labelled, and which are shown if there are too many."""

import pytest

from utils.text.rank_sets import FEW, format_ranks, group_alike, lane_name, spread


@pytest.mark.parametrize(
    "ranks, most, name",
    [
        ([0, 1, 2, 5, 7, 8], 8, "0-2, 5, 7-8"),
        (range(1024), 8, "0-1023"),
        (range(0, 16, 2), 8, "0, 2, 4, 6, 8, 10, 12, 14"),
        (range(0, 18, 2), 8, "0, 2, ... 16 (9 alike)"),
        ([r for r in range(64) if r % 16 < 4], 3, "0-3, 16-19, ... 48-51 (16 alike)"),
        ([0, 1, 3, 7, 20, 21, 22, 40], 3, "0-1, 3, 7 and 4 more"),
        ([0, 8, 16, 25], 3, "0, 8, 16 and 1 more"),
        ([0, 1, 4, 6, 8, 9], 3, "0-1, 4, 6 and 2 more"),
    ],
)
def test_ranks_are_named_by_stretches_and_many_stretches_by_their_step_or_number(ranks, most, name):
    assert format_ranks(list(ranks), most) == name


def test_a_lane_is_labelled_with_its_ranks():
    assert lane_name([7]) == "rank 7"
    assert lane_name([0, 1, 2]) == "ranks 0-2"
    assert lane_name(list(range(0, 64, 8))) == "ranks 0, 8, ... 56\n(8 alike)"


def test_ranks_that_look_alike_are_grouped_if_there_are_many():
    few, many = range(FEW), range(FEW + 1)
    assert group_alike(few, ["same"] * FEW) == [[rank] for rank in few]
    assert group_alike(many, [rank % 2 for rank in many]) == [list(many[::2]), list(many[1::2])]
    assert group_alike(many, many) == [[rank] for rank in many]


@pytest.mark.parametrize("always", [(), (0,), (1, 2), (500, 998)])
@pytest.mark.parametrize("number", [16, 17, 1000])
def test_a_selection_has_the_first_the_last_and_all_required_ones_and_no_wide_gap(number, always):
    always = [place for place in always if place < number]
    places = spread(number, 16, always)
    assert places == sorted(set(places)) and len(places) <= 16
    assert {0, number - 1, *always} <= set(places)
    assert max(b - a for a, b in zip(places, places[1:], strict=False)) <= number / 16 * 1.4 + 1
    assert spread(16, 16, always) == list(range(16))
