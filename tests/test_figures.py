"""utils/figures: what is drawn (cells, letters, colours), not its pixels."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, Rectangle

from utils import figures
from utils.run import Event, Run

NAMES = ("broadcast", "scatter", "gather", "reduce", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def texts(panel) -> list[str]:
    return [text.get_text() for text in panel.texts]


def stripes(panel) -> list[str]:
    """The colours of all filled rectangles."""
    return [
        to_hex(patch.get_facecolor()).upper() for patch in panel.patches if isinstance(patch, Rectangle) and patch.fill
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_every_collective_has_a_before_and_an_after_with_all_ranks(name, world_size):
    before, after = figures.collective(name, world_size, root=world_size - 1).axes
    for panel in (before, after):
        assert len(texts(panel)[: world_size * 9]) > world_size
        for rank in range(world_size):
            assert (f"rank {rank}" if world_size < 5 else str(rank)) in texts(panel)


def test_a_broadcast_paints_every_rank_in_the_colour_of_the_root():
    before, after = figures.collective("broadcast", 4, root=2).axes
    assert stripes(before) == [figures.COLOURS[2]]
    assert stripes(after) == [figures.COLOURS[2]] * 4
    assert texts(before).count("") == 3


def test_a_sum_has_a_stripe_of_every_rank():
    _, after = figures.collective("reduce", 4, root=1).axes
    assert stripes(after) == figures.COLOURS[:4]
    assert "a+b+c+d" in texts(after)


def test_an_all_to_all_is_drawn_as_a_transpose():
    before, after = figures.cells_of("all_to_all", 3, root=0)
    assert [list(row) for row in zip(*before, strict=True)] == after
    assert before[1] == ["b0", "b1", "b2"]
    assert after[1] == ["a1", "b1", "c1"]


def test_the_two_halves_make_an_all_reduce():
    before, between, after = figures.halves(4).axes
    assert texts(between).count("a2+b2+c2+d2") == 1
    assert texts(after).count("a2+b2+c2+d2") == 4
    assert [panel.get_title() for panel in (before, between, after)][1:] == ["after reduce-scatter", "after all-gather"]


def test_a_transpose_keeps_the_colour_of_the_rank_that_had_the_number():
    matrix, turned = figures.transpose(world_size=2, rows=2, columns=3).axes
    assert len(stripes(matrix)) == len(stripes(turned)) == 24
    colour_in_matrix = dict(zip(texts(matrix), stripes(matrix), strict=False))
    colour_in_turned = dict(zip(texts(turned), stripes(turned), strict=False))
    assert all(colour_in_turned[number] == colour for number, colour in colour_in_matrix.items())


def test_traffic_shows_the_bytes_of_each_source_and_destination():
    sends = [
        Event(1, i, "send", "world", (0, 1, 2), peer, 0, 4000, "float32", (1000,), "", False, 0.0, 1.0, "cell:1")
        for i, peer in enumerate((0, 2, 2))
    ]
    [panel] = figures.traffic(Run(3, "real", "gloo", [], [], sends, 0.0), "who sends").axes
    assert sorted(filter(None, texts(panel))) == ["4,000", "8,000"]
    assert sum(isinstance(patch, FancyBboxPatch) for patch in panel.patches) == 9
    figures.traffic(Run(2, "real", "gloo", [], [], [], 0.0), "silence")._repr_png_()


def test_a_picture_is_a_small_png_with_the_same_bytes_each_time():
    first, second = (figures.collective("all_gather")._repr_png_() for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG")
    assert len(first) < 30_000
    assert b"Software" not in first
    assert repr(figures.collective("all_gather")) == "Picture('all-gather')"


def test_black_letters_can_be_read_on_every_colour():
    for colour in figures.COLOURS:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        assert 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.25  # contrast of 6 to 1 or more


@pytest.mark.parametrize("world_size", [0, 9])
def test_too_many_ranks_are_refused(world_size):
    with pytest.raises(ValueError, match="1 to 8 ranks"):
        figures.collective("broadcast", world_size)
