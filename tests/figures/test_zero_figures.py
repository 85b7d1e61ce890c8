"""figures of ZeRO: how much of each kind of state is filled, and how a flat tensor is cut."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from utils import figures
from utils.figures.zero import PADDING


def filled(panel, colour: str) -> list[float]:
    """The widths of all rectangles of a colour."""
    return [
        patch.get_width()
        for patch in panel.patches
        if isinstance(patch, Rectangle) and to_hex(patch.get_facecolor()).upper() == colour.upper()
    ]


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_each_stage_cuts_one_kind_of_state_more(world_size):
    [panel] = figures.zero_stages(world_size).axes
    weights, gradients, states = (sorted(filled(panel, colour)) for colour in figures.COLOURS[:3])
    assert weights == pytest.approx([2 / world_size, 2, 2, 2])
    assert gradients == pytest.approx([2 / world_size, 2 / world_size, 2, 2])
    assert states == pytest.approx([12 / world_size] * 3 + [12])


@pytest.mark.parametrize(("numbers", "ranks"), [(10, 4), (3, 5), (8, 2)])
def test_pieces_are_equal_and_what_is_left_is_padding(numbers, ranks):
    [panel] = figures.recut(numbers, ranks, 1).axes
    piece = -(-numbers // ranks)
    held = [min(piece, max(0, numbers - rank * piece)) for rank in range(1, ranks)]
    assert [sum(filled(panel, figures.COLOURS[rank])) for rank in range(1, ranks)] == held
    assert filled(panel, PADDING) == [piece] * ranks + [numbers]


def test_a_step_gathers_each_layer_twice():
    [panel] = figures.gather_compute_free(3).axes
    names = [text.get_text() for text in panel.texts]
    assert [names.count(name) for name in ("gather", "forward", "backward", "reduce")] == [6, 3, 3, 3]
