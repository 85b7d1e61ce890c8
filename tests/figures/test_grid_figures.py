"""The pictures of rank grids and of ring attention's blocks."""

from __future__ import annotations

from collections import defaultdict

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from utils import figures
from utils.figures import COLOURS


def boxes(panel) -> list[tuple[float, float, str, str]]:
    """(left, top, colour, text) of each box."""
    found = []
    for patch in panel.patches:
        if isinstance(patch, Rectangle):
            x, y = patch.get_xy()
            inside = [text.get_text() for text in panel.texts if contains(patch, *text.get_position())]
            found.append((x, y, to_hex(patch.get_facecolor()).upper(), "".join(inside)))
    return found


def contains(patch: Rectangle, x: float, y: float) -> bool:
    left, top = patch.get_xy()
    return left < x < left + patch.get_width() and top < y < top + patch.get_height()


def test_ranks_of_one_colour_are_a_group_along_the_axis_above() -> None:
    (panel,) = figures.rank_grid({"dp": 2, "pp": 2, "tp": 3}).axes
    drawn = boxes(panel)
    grids = [drawn[start : start + 12] for start in (0, 12, 24)]
    groups = []
    for grid in grids:
        of_colour = defaultdict(list)
        for _, _, colour, rank in grid:
            of_colour[colour].append(int(rank))
        groups.append(sorted(of_colour.values()))
    assert groups == [
        [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]],
        [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]],
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]],
    ]
    assert [text.get_text() for text in panel.texts if "along" in text.get_text()] == [
        "along dp",
        "along pp",
        "along tp",
    ]


def test_blocks_have_the_hop_of_their_keys_and_none_where_they_are_masked() -> None:
    (panel,) = figures.ring_blocks({"neighbours": [[0, 1], [2, 3]], "zigzag": [[0, 3], [1, 2]]}).axes
    drawn = sorted((x, y, text) for x, y, _, text in boxes(panel))
    columns = ["".join(text or "." for _, _, text in drawn[start : start + 4]) for start in range(0, 32, 4)]
    assert columns == ["0011", ".011", "..00", "...0"] + ["0110", ".001", "..01", "...0"]
    lower = {colour for x, y, colour, text in boxes(panel) if text and colour != "#FFFFFF"}
    assert lower == {COLOURS[0].upper(), COLOURS[1].upper()}
    names = [text.get_text() for text in panel.texts if text.get_text().startswith("rank")]
    assert names == ["rank 0", "rank 0", "rank 1", "rank 1", "rank 0", "rank 1", "rank 1", "rank 0"]
