"""Ranks on a grid, and which of them computes which part of a causal mask, and when."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from .picture import COLOURS, INK, PAPER, Picture
from .shardings import box, sheet

TYPE = 10  # points


def rank_grid(sizes: dict[str, int]) -> Picture:
    """All ranks of a grid of three axes, once for each axis: ranks of the same colour are a group along it.

    sizes: {axis: its size}, the outermost first; the last one is innermost. Colours repeat after eight groups.
    """
    blocks, rows, columns = sizes.values()
    wide, tall = columns + 0.8, blocks * (rows + 0.5)
    title = "the groups of " + " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    picture = Picture(8.8, 0.8 + 0.36 * tall, title)
    panel = sheet(picture, 2.2 + 3 * wide, tall + 0.9)
    outer, middle, _ = sizes
    for block, row in numpy.ndindex(blocks, rows):
        name = f"{outer} {block}, {middle} {row}"
        panel.text(2.0, top_of(block, row, rows) + 0.5, name, ha="right", va="center", color=INK, fontsize=TYPE)
    for number, axis in enumerate(sizes):
        left = 2.2 + number * wide
        panel.text(left + columns / 2, 0.4, f"along {axis}", ha="center", va="center", color=INK, fontsize=TYPE)
        groups_along(panel, left, sizes, number)
    return picture


def top_of(block: int, row: int, rows: int) -> float:
    return 0.8 + block * (rows + 0.5) + row


def groups_along(panel: Axes, left: float, sizes: dict[str, int], axis: int) -> None:
    """The whole grid once, with a colour for each group along axis number `axis`."""
    grid = numpy.arange(prod(sizes.values())).reshape(*sizes.values())
    firsts = sorted(grid.min(axis=axis).flat)  # the first rank of each group
    for (block, row, column), rank in numpy.ndenumerate(grid):
        place = [block, row, column]
        place[axis] = 0
        colour = COLOURS[firsts.index(grid[tuple(place)]) % len(COLOURS)]
        square(panel, left + column, top_of(block, row, grid.shape[1]), colour, str(rank))


def ring_blocks(shares: dict[str, Sequence[Sequence[int]]]) -> Picture:
    """The blocks of a causal mask in ring attention: whose queries they are, and at which hop their keys are there.

    shares: {title: the chunks of the sequence that each rank has}; the ranks of each title have all chunks 0 to n - 1.
    """
    chunks = max(chunk for owned in next(iter(shares.values())) for chunk in owned) + 1
    wide = chunks + 3.2
    picture = Picture(8.8, 0.9 + 8.0 / (len(shares) * wide) * (chunks + 1.6), "the hop at which each block is computed")
    panel = sheet(picture, len(shares) * wide, chunks + 1.7)
    for number, (title, owned) in enumerate(shares.items()):
        left = number * wide + 2.4
        owner = {chunk: rank for rank, of_rank in enumerate(owned) for chunk in of_rank}
        panel.text(left + chunks / 2, 0.3, title, ha="center", va="center", color=INK, fontsize=TYPE)
        panel.text(left + chunks / 2, chunks + 1.2, "keys", ha="center", va="center", color=INK, fontsize=TYPE)
        for query in range(chunks):
            queries(panel, left, 0.7 + query, query, owner)
    return picture


def queries(panel: Axes, left: float, top: float, query: int, owner: dict[int, int]) -> None:
    """One chunk of queries: all of the earlier keys, half of its own, none of the later ones."""
    rank, size = owner[query], max(owner.values()) + 1
    panel.text(left - 0.2, top + 0.5, f"rank {rank}", ha="right", va="center", color=INK, fontsize=TYPE)
    for key in range(len(owner)):
        hop = (rank - owner[key]) % size
        square(panel, left + key, top, COLOURS[rank] if key < query else PAPER, str(hop) if key < query else "")
    own = left + query
    half = [(own, top), (own, top + 1), (own + 1, top + 1)]
    panel.add_patch(Polygon(half, facecolor=COLOURS[rank], edgecolor=INK, linewidth=1, zorder=1.1))
    panel.text(own + 0.3, top + 0.72, "0", ha="center", va="center_baseline", color="black", fontsize=TYPE)


def square(panel: Axes, x: float, y: float, colour: str, text: str) -> None:
    box(panel, x, y, 1, 1, colour, "")
    panel.text(x + 0.5, y + 0.5, text, ha="center", va="center_baseline", color="black", fontsize=TYPE)
