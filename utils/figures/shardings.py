"""What tensor parallelism shards: matrix products, an MLP, attention; and the doors around sharded regions.

A colour is a rank, as in the other pictures; white means that every rank has all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from .picture import COLOURS, GREY, INK, PAPER, Look, Picture

Point: TypeAlias = tuple[float, float]


def sharded_matmul(cut: str, tp_size: int = 2) -> Picture:
    """x @ w = y with w cut into "columns" or "rows": which parts each rank has, and what it computes.

    Raises KeyError for any other `cut`.
    """
    columns = {"columns": True, "rows": False}[cut]
    picture = Picture(7.4, 3.1, f"{cut[:-1]}-parallel: w is cut into {cut}")
    panel = sheet(picture, 15, 5.9)
    ranks, names = range(tp_size), [f"rank {rank}" for rank in range(tp_size)]
    colours = [COLOURS[rank] for rank in ranks]
    if columns:
        matrix(panel, 0.2, 1.2, 3, 3, [PAPER], True, "x", "whole on every rank\n(B, D)")
        matrix(panel, 4.2, 1.2, 4, 3, colours, True, "w", "columns\n(D, F/t) each", names)
        matrix(panel, 9.2, 1.2, 4, 3, colours, True, "y", "features, side by side\n(B, F/t) each", names)
    else:
        matrix(panel, 0.2, 1.2, 3.6, 3, colours, True, "x", "features\n(B, D/t) each", names)
        matrix(panel, 4.8, 1.0, 2.6, 3.4, colours, False, "w", "rows\n(D/t, F) each", names)
        for r in ranks:
            matrix(panel, 8.5 + 3.2 * r, 1.2, 2.5, 3, [COLOURS[r]], True, "y" if r == 0 else "", "", [names[r]])
            if r:
                panel.text(8.15 + 3.2 * r, 2.7, "+", ha="center", va="center", color=INK, fontsize=14)
        panel.text(8.5 + 1.6 * tp_size - 0.3, 4.35, "partial sums, to be added\n(B, F) each", **note_below())
    panel.text(3.7 if columns else 4.3, 2.7, "@", ha="center", va="center", color=INK, fontsize=12)
    panel.text(8.7 if columns else 7.95, 2.7, "=", ha="center", va="center", color=INK, fontsize=14)
    return picture


def sharded_mlp(tp_size: int = 2) -> Picture:
    """The Megatron MLP: columns of the first matrix, gelu, rows of the second; door f in front, door g behind."""
    picture = Picture(8.6, 1.0 + 0.6 * tp_size, "columns, then rows: one lane per rank, no communication inside")
    panel = sheet(picture, 17.4, 0.3 + 1.3 * tp_size)
    middle = 0.925 + 0.65 * (tp_size - 1)
    for x, name in ((1.6, "f"), (13.8, "g")):
        circle(panel, x, middle, name)
    stations = [
        (2.9, 2.2, "x @ columns\n(B, F/t)"),
        (6.0, 1.6, "+ b_up"),
        (8.1, 1.5, "gelu"),
        (10.1, 2.5, "h @ rows\n(B, D)"),
    ]
    for rank in range(tp_size):
        y = 0.55 + 1.3 * rank
        panel.text(7.8, y - 0.12, f"rank {rank}", **small())
        for x, wide, text in stations:
            box(panel, x, y, wide, 0.75, COLOURS[rank], text)
        for (x, wide, _), (following, _, _) in zip(stations, stations[1:], strict=False):
            arrow(panel, (x + wide, y + 0.375), (following, y + 0.375))
        arrow(panel, (1.95, middle), (2.9, y + 0.375))
        arrow(panel, (12.6, y + 0.375), (13.45, middle))
    panel.text(0.6, middle, "x", ha="center", va="center", color=INK, fontsize=12)
    arrow(panel, (0.8, middle), (1.25, middle))
    arrow(panel, (14.15, middle), (14.6, middle))
    box(panel, 14.6, middle - 0.375, 1.6, 0.75, PAPER, "+ b_down")
    arrow(panel, (16.2, middle), (16.65, middle))
    panel.text(16.95, middle, "y", ha="center", va="center", color=INK, fontsize=12)
    for x in (0.6, 16.95):
        panel.text(x, middle + 0.5, "(B, D)", **small())
    return picture


def doors(first: str, second: str) -> Picture:
    """What the two doors of a sharded region do in each direction."""
    picture = Picture(7.2, 2.3, "the two doors of a sharded region")
    panel = sheet(picture, 14, 4)
    box(panel, 4.6, 1.2, 4.8, 1.6, COLOURS[0], "sharded region:\neach rank has its own part")
    for x, name, there, back in ((3, first, "copy", "all-reduce"), (11, second, "all-reduce", "copy")):
        circle(panel, x, 2, name)
        panel.text(x, 0.95, there, **small())
        panel.text(x, 3.15, back, **small())
    for y, ends in ((1.6, [(0.6, 2.6), (3.4, 4.6), (9.4, 10.6), (11.4, 13.4)]), (2.4, [])):
        for start, end in ends:
            arrow(panel, (start, y), (end, y))
    for start, end in [(2.6, 0.6), (4.6, 3.4), (10.6, 9.4), (13.4, 11.4)]:
        arrow(panel, (start, 2.4), (end, 2.4), GREY)
    panel.text(1.2, 0.95, "forward", **small())
    panel.text(1.2, 3.15, "backward", **small())
    return picture


def qkv_columns(num_heads: int = 4, tp_size: int = 2) -> Picture:
    """The columns of w_qkv: which rank owns them if cut by heads, and if cut into contiguous blocks."""
    picture = Picture(8.0, 2.6, "the columns of w_qkv, (D, 3 D): one box per head")
    panel = sheet(picture, 3 * num_heads + 4.6, 4.4)
    total = 3 * num_heads
    by_heads = [column % num_heads * tp_size // num_heads for column in range(total)]
    in_blocks = [column * tp_size // total for column in range(total)]
    for y, title, owners in ((0.9, "by heads", by_heads), (2.9, "in blocks", in_blocks)):
        panel.text(3.9, y + 0.4, title, ha="right", va="center", color=INK, fontsize=9)
        for column, owner in enumerate(owners):
            name = f"{'qkv'[column // num_heads]}{column % num_heads}"
            box(panel, 4.2 + column, y, 1, 0.8, COLOURS[owner], name)
        note = "right: a rank has q, k and v of its heads" if y < 2 else "wrong: rank 0 has q0 but no v0"
        panel.text(4.2 + total / 2, y + 1.15, note, **small())
    for rank in range(tp_size):
        box(panel, 0.2, 0.9 + 0.75 * rank, 0.5, 0.5, COLOURS[rank], "")
        panel.text(0.85, 1.15 + 0.75 * rank, f"rank {rank}", ha="left", va="center", color=INK, fontsize=9)
    return picture


def layer_doors(sequence_parallel: bool) -> Picture:
    """A transformer layer from left to right: what is whole, sharded by features or by tokens, and the doors."""
    title = "with sequence parallelism" if sequence_parallel else "tensor parallelism alone"
    picture = Picture(8.8, 2.3, f"{title}: what each of two ranks stores")
    panel = sheet(picture, 20, 3.9)
    enter, leave = ("gather", "scatter") if sequence_parallel else ("f", "g")
    narrow = 0.8
    x = 0.4
    for name, wide, inside in (
        ("LayerNorm", 2.4, False),
        ("attention", 3.4, True),
        ("dropout, + x\nLayerNorm", 2.8, False),
        ("MLP", 3.4, True),
        ("dropout\n+ x", 2.0, False),
    ):
        tall = narrow if inside or sequence_parallel else 2 * narrow
        colour = COLOURS[0] if inside or sequence_parallel else PAPER
        panel.add_patch(Rectangle((x, 1.1), wide, 2 * narrow, facecolor=PAPER, edgecolor=GREY, linestyle=":"))
        box(panel, x, 1.1, wide, tall, colour, name)
        below, shape = ("tokens / t", "(B, S/t, D)") if sequence_parallel else ("whole", "(B, S, D)")
        if inside:
            below, shape = "features / t", f"(B, S, {'F' if name == 'MLP' else 'D'}/t)"
        panel.text(x + wide / 2, 3.0, below, **small())
        panel.text(x + wide / 2, 3.5, shape, **small())
        x += wide
        if x < 17:
            door = leave if inside else enter
            panel.text(x + 0.5, 0.7, door, ha="center", va="center", color=INK, fontsize=9, fontweight="bold")
            arrow(panel, (x + 0.1, 1.1 + narrow / 2), (x + 0.9, 1.1 + narrow / 2))
            x += 1.0
    return picture


# ---- strokes


def sheet(picture: Picture, wide: float, tall: float) -> Axes:
    """A panel without axes, with (0, 0) at its top left."""
    return picture.bare_panel((0.01, 0.02, 0.98, 1 - 0.4 / picture.get_figheight()), (0, wide), (tall, 0))


def small() -> Look:
    return {"ha": "center", "va": "center", "color": INK, "fontsize": 9}


def note_below() -> Look:
    return {**small(), "va": "top"}


def box(panel: Axes, x: float, y: float, wide: float, tall: float, colour: str, text: str) -> None:
    panel.add_patch(Rectangle((x, y), wide, tall, facecolor=colour, edgecolor=INK, linewidth=1))
    panel.text(x + wide / 2, y + tall / 2, text, ha="center", va="center", color="black", fontsize=9)


def circle(panel: Axes, x: float, y: float, name: str) -> None:
    panel.plot([x], [y], marker="o", markersize=22, markerfacecolor=PAPER, markeredgecolor=INK)
    panel.text(x, y, name, ha="center", va="center", color=INK, fontsize=11, fontweight="bold", style="italic")


def arrow(panel: Axes, start: Point, end: Point, colour: str = INK) -> None:
    panel.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=1))


def matrix(
    panel: Axes,
    x: float,
    y: float,
    wide: float,
    tall: float,
    colours: list[str],
    in_columns: bool,
    name: str,
    note: str,
    labels: Sequence[str] = (),
) -> None:
    """A rectangle with a stripe per colour, its name above and a note below it."""
    part = (wide if in_columns else tall) / len(colours)
    for index, colour in enumerate(colours):
        left, top = (x + index * part, y) if in_columns else (x, y + index * part)
        box(panel, left, top, *((part, tall) if in_columns else (wide, part)), colour, labels[index] if labels else "")
    panel.text(x + wide / 2, y - 0.35, name, ha="center", va="center", color=INK, fontsize=11, fontweight="bold")
    panel.text(x + wide / 2, y + tall + 0.15, note, **note_below())
