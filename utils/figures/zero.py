"""ZeRO: what each stage leaves on a rank, a flat tensor and its pieces, and when a weight has memory."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from .collectives import enough_colours
from .picture import COLOURS, GREY, INK, PAPER, WIDEST, Picture, ground
from .work import WORK

STATE = (("weights", 2), ("gradients", 2), ("optimizer state", 12))  # bytes per parameter, mixed precision with AdamW
STAGES = ("no ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3")
PADDING = "#DDDDDD"


def zero_stages(world_size: int = 4) -> Picture:
    """For each stage, what rank 0 holds of the 16 bytes per parameter: filled; what others hold: an outline."""
    picture = Picture(8, 2.5, f"bytes per parameter on each of {world_size} ranks")
    panel = sheet(picture, (-2.4, 18.6), (4.0, -0.75))
    for row, name in enumerate(STAGES):
        panel.text(-0.25, row, name, ha="right", va="center", color=INK, fontsize=9)
        left, held = 0.0, 0.0
        for number, (kind, nbytes) in enumerate(STATE):
            part = nbytes / world_size if len(STATE) - number <= row else float(nbytes)
            block(panel, left, row, nbytes, PAPER, "")
            block(panel, left, row, part, COLOURS[number], "")
            if row == 0:
                panel.text(left + nbytes / 2, -0.6, kind, ha="center", va="center", color=INK, fontsize=9)
            left, held = left + nbytes, held + part
        panel.text(16.2, row, f"{held:g} bytes", ha="left", va="center", color=INK, fontsize=9)
    return picture


def flat_pieces(sizes: list[int], world_size: int) -> Picture:
    """Parameters of these sizes laid end to end, and below them the pieces of the ranks, with the padding in grey."""
    enough_colours(world_size)
    picture = Picture(8, 1.7, "parameters laid end to end, and cut into equal pieces")
    numbers, piece = sum(sizes), -(-sum(sizes) // world_size)
    panel = sheet(picture, (-0.16 * piece * world_size, piece * world_size * 1.01), (1.6, -0.6))
    left = 0
    panel.text(-0.2, 0, "parameters", ha="right", va="center", color=INK, fontsize=9)
    for number, size in enumerate(sizes):
        block(panel, left, 0, size, PAPER, f"{number}: {size}")
        left += size
    cut(panel, 1, "ranks", numbers, world_size)
    return picture


def recut(numbers: int, before: int, after: int) -> Picture:
    """A flat tensor of so many numbers, cut for two different numbers of ranks."""
    enough_colours(max(before, after))
    picture = Picture(8, 1.8, f"{numbers} numbers, saved by {before} ranks and read by {after}")
    widest = max(before * -(-numbers // before), after * -(-numbers // after))
    panel = sheet(picture, (-0.14 * widest, widest * 1.01), (1.6, -1.0))
    for number in range(numbers):
        panel.text(number + 0.5, -0.72, str(number), ha="center", va="center", color=INK, fontsize=9)
    cut(panel, 0, "saved", numbers, before)
    cut(panel, 1, "now", numbers, after)
    return picture


def gather_compute_free(layers: int = 3) -> Picture:
    """A step of ZeRO-3: for each layer, when it is gathered, used and reduced; in between its weight has no memory."""
    picture = Picture(WIDEST, 0.75 + 0.42 * layers, "one layer at a time has its whole weight")
    order = [*range(layers), *reversed(range(layers))]
    panel = sheet(picture, (-1.6, 5.9 * layers + 0.2), (layers - 0.4, -1.0))
    start = 0.0
    for turn, number in enumerate(order):
        is_forward = turn < layers
        parts = [("gather", 1.1, "all_gather"), ("forward", 1.2, "forward")]
        if not is_forward:
            parts = [("gather", 1.1, "all_gather"), ("backward", 1.4, "backward"), ("reduce", 1.1, "reduce_scatter")]
        for words, long, work in parts:
            block(panel, start, number, long, WORK[work], words)
            start += long
    for number in range(layers):
        panel.text(-0.15, number, f"layer {number}", ha="right", va="center", color=INK, fontsize=9)
    panel.annotate("", (5.9 * layers, -0.62), (0.0, -0.62), arrowprops={"arrowstyle": "->", "color": GREY})
    panel.text(2.95 * layers, -0.66, "time", ha="center", va="bottom", color=INK, fontsize=9)
    return picture


# ---- strokes


def sheet(picture: Picture, x: tuple[float, float], y: tuple[float, float]) -> Axes:
    return picture.bare_panel((0.01, 0.02, 0.98, 0.96 - 0.32 / picture.get_figheight()), x, y)


def block(panel: Axes, left: float, row: float, wide: float, colour: str, text: str) -> None:
    panel.add_patch(Rectangle((left, row - 0.36), wide, 0.72, facecolor=colour, edgecolor=INK, linewidth=1))
    panel.text(left + wide / 2, row, text, ha="center", va="center", color="black", fontsize=9, bbox=ground(colour))


def cut(panel: Axes, row: int, name: str, numbers: int, world_size: int) -> None:
    """A row of equal pieces, one per rank; what lies beyond `numbers` is padding."""
    piece = -(-numbers // world_size)
    panel.text(-0.2, row, name, ha="right", va="center", color=INK, fontsize=9)
    for rank in range(world_size):
        left, filled = rank * piece, min(piece, max(0, numbers - rank * piece))
        block(panel, left, row, piece, PADDING, "" if filled else "zeros")
        if filled:
            block(panel, left, row, filled, COLOURS[rank], f"rank {rank}")
