"""Who sent how many bytes to whom."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch

from .picture import BYTES, COLOURS, GREY, INK, TYPE, Look, Picture, fitting

if TYPE_CHECKING:
    from ..report.run import Run
    from ..report.traffic import Traffic

Matrix: TypeAlias = "numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]"
MAX_ROOMY = 8  # ranks; with more, cells are smaller
MAX_NUMBERS = 16  # ranks; with more, cells have shades instead of numbers
MAX_CELLS = 256  # cells per row; smaller ones would fall between pixels


def traffic(run: Run, title: str, implied: bool = False) -> Picture:
    """Bytes sent with send and isend in `run`: one row per source, one column per destination.

    implied   show what the collectives imply instead, also those of DDP: what a ring would send to each neighbour
    """
    return heatmap(run.traffic(), title, implied)


def heatmap(table: Traffic, title: str, implied: bool = False) -> Picture:
    """The same for a Traffic. The colour is that of the source, stronger the more bytes it sends."""
    matrix = table.implied_bytes if implied else table.bytes
    size = len(matrix)
    if size > MAX_NUMBERS:
        return heatmap_in_shades(matrix, title)
    most = max(max(row) for row in matrix) or 1
    wide = 0.85 if size <= MAX_ROOMY else 0.5  # inches of a column
    unit, nbytes = BYTES[-1] if len(f"{most:,}") <= 11 * wide else fitting(BYTES, most)
    picture = Picture(max(wide * size + 1.4, 0.095 * len(title)), 0.4 * size + 1.35, title)
    panel = picture.subplots()
    panel.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), xticks=range(size), yticks=range(size))
    panel.set_xlabel(f"to rank (numbers: {unit})", color=INK)
    panel.set_ylabel("from rank", color=INK)
    panel.tick_params(length=0, colors=INK)
    for source in range(size):
        for destination in range(size):
            sent = matrix[source][destination]
            colour = to_rgba(COLOURS[source % len(COLOURS)], alpha=0.15 + 0.75 * sent / most if sent else 0)
            corner, shape = (destination - 0.44, source - 0.4), "round,pad=0,rounding_size=0.08"
            panel.add_patch(FancyBboxPatch(corner, 0.88, 0.8, shape, facecolor=colour, edgecolor=GREY, linewidth=0.6))
            text = "" if not sent else f"{sent:,}" if unit == "bytes" else f"{sent / nbytes:.3g}"
            panel.text(destination, source, text, ha="center", va="center", color="black", fontsize=TYPE)
    panel.spines[:].set_visible(False)
    picture.subplots_adjust(
        left=0.75 / picture.get_figwidth(),
        right=0.98,
        bottom=0.52 / picture.get_figheight(),
        top=1 - 0.42 / picture.get_figheight(),
    )
    return picture


def heatmap_in_shades(matrix: list[list[int]], title: str) -> Picture:
    """The same without numbers, for many ranks; if there are very many, adjacent ranks share a cell."""
    picture = Picture(7.2, 6.4, title)
    picture.subplots_adjust(left=0.11, right=0.96, bottom=0.09, top=0.93)
    panel = picture.subplots()
    size = len(matrix)
    block = -(-size // MAX_CELLS)  # ranks per row and per column
    sent = most_of_blocks(numpy.array(matrix, dtype=float), block)
    unit, nbytes = fitting(BYTES, sent.max())
    edge = len(sent) * block - 0.5
    look: Look = {"cmap": "cividis_r", "vmin": 0, "vmax": sent.max() / nbytes or 1, "interpolation": "nearest"}
    cells = numpy.where(sent, sent / nbytes, numpy.nan)  # white if nothing was sent
    shades = panel.imshow(cells, extent=(-0.5, edge, edge, -0.5), **look)
    step = 2 ** math.ceil(math.log2(size / 8))
    frame = size / 100  # keeps the border from hiding the cells at the edge
    panel.set(xlim=(-0.5 - frame, size - 0.5 + frame), ylim=(size - 0.5 + frame, -0.5 - frame))
    panel.set(xticks=range(0, size, step), yticks=range(0, size, step))
    panel.set_xlabel("to rank", color=INK)
    panel.set_ylabel("from rank", color=INK)
    panel.tick_params(colors=INK, labelsize=9)
    label = unit if block == 1 else f"{unit}, the maximum over {block} x {block} ranks"
    picture.colorbar(shades, label=label, format="{x:,.4g}", shrink=0.75)
    return picture


def most_of_blocks(matrix: Matrix, block: int) -> Matrix:
    """(n, n) -> (n / block, n / block), rounded up: the maximum of each block."""
    cells = -(-len(matrix) // block)
    missing = cells * block - len(matrix)
    whole = numpy.pad(matrix, (0, missing))
    most: Matrix = whole.reshape(cells, block, cells, block).max(axis=(1, 3))
    return most
