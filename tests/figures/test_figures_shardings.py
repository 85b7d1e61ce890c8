"""figures/shardings.py: who owns which part, and that pictures have the same bytes each time."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from utils import figures
from utils.figures.picture import COLOURS


def texts(picture) -> list[str]:
    return [text.get_text() for text in picture.axes[0].texts]


def boxes(picture) -> dict[str, list[str]]:
    """The colours of the boxes, by the text inside them."""
    panel, found = picture.axes[0], {}
    for patch in panel.patches:
        if isinstance(patch, Rectangle):
            middle = (patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2)
            for text in panel.texts:
                if abs(text.get_position()[0] - middle[0]) < 1e-9 and abs(text.get_position()[1] - middle[1]) < 1e-9:
                    found.setdefault(text.get_text(), []).append(to_hex(patch.get_facecolor()).upper())
    return found


def test_a_rank_owns_whole_heads_but_a_block_of_columns_splits_them():
    owners = boxes(figures.qkv_columns(num_heads=4, tp_size=2))
    for head in range(4):
        by_heads = {owners[f"{kind}{head}"][0] for kind in "qkv"}
        assert by_heads == {COLOURS[head // 2]}
    assert [owners["q0"][1], owners["v0"][1]] == [COLOURS[0], COLOURS[1]]


@pytest.mark.parametrize("cut", ["columns", "rows"])
@pytest.mark.parametrize("tp_size", [2, 4])
def test_every_rank_has_its_part_of_the_weight(cut, tp_size):
    owners = boxes(figures.sharded_matmul(cut, tp_size))
    for rank in range(tp_size):
        assert set(owners[f"rank {rank}"]) == {COLOURS[rank]}


def test_sequence_parallelism_has_different_doors_and_nothing_whole():
    alone, sequence = (figures.layer_doors(flag) for flag in (False, True))
    assert [text for text in texts(alone) if text in ("f", "g")] == ["f", "g"] * 2
    assert [text for text in texts(sequence) if text in ("gather", "scatter")] == ["gather", "scatter"] * 2
    assert "whole" in texts(alone) and "whole" not in texts(sequence)


def test_the_mlp_has_a_lane_per_rank():
    assert [text for text in texts(figures.sharded_mlp(4)) if text.startswith("rank")] == [
        f"rank {r}" for r in range(4)
    ]


@pytest.mark.parametrize("draw", [figures.sharded_mlp, figures.qkv_columns, lambda: figures.doors("f", "g")])
def test_pictures_have_the_same_bytes_each_time(draw):
    assert draw().png() == draw().png()
