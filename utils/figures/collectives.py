"""What each rank holds before and after a collective. A colour stands for the rank that a value came from; so does its
letter, for the colour-blind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from .picture import COLOURS, GREY, INK, PAPER, Picture

LETTERS = "abcdefgh"  # rank 0's numbers are a, rank 1's are b, ...
MAX_RANKS = len(LETTERS)
State: TypeAlias = list[list[str]]  # each rank's cells


def collective(name: str, world_size: int = 4, root: int = 0) -> Picture:
    """What each rank holds before and after the collective `name`, such as "broadcast" or "all_gather".

    Raises ValueError for more than 8 ranks.
    """
    enough_colours(world_size)
    before, after = cells_of(name, world_size, root)
    rooted = name in ("broadcast", "scatter", "gather", "reduce")
    title = f"{name.replace('_', '-')}, root {root}" if rooted else name.replace("_", "-")
    return stages([before, after], ["before", "after"], title)


def cells_of(name: str, world_size: int, root: int) -> tuple[State, State]:
    """(before, after) of a collective: each rank's cells from top to bottom.

    A cell is a text such as "b" (rank 1's tensor), "b2" (chunk 2 of it) or "a2+b2" (a sum); "" is an empty buffer.
    """
    ranks = range(world_size)
    whole = [[LETTERS[rank]] for rank in ranks]
    chunks = [[f"{LETTERS[rank]}{chunk}" for chunk in ranks] for rank in ranks]
    everything = [LETTERS[rank] for rank in ranks]
    total = "+".join(everything)
    sums = ["+".join(f"{LETTERS[rank]}{chunk}" for rank in ranks) for chunk in ranks]

    def only_root(cells: list[str]) -> State:
        return [cells if rank == root else [""] for rank in ranks]

    return {
        "broadcast": (only_root(whole[root]), [whole[root] for _ in ranks]),
        "scatter": (only_root(chunks[root]), [[chunks[root][rank]] for rank in ranks]),
        "gather": (whole, only_root(everything)),
        "reduce": (whole, only_root([total])),
        "all_gather": (whole, [everything for _ in ranks]),
        "reduce_scatter": (chunks, [[sums[rank]] for rank in ranks]),
        "all_reduce": (whole, [[total] for _ in ranks]),
        "all_to_all": (chunks, [[chunks[source][rank] for source in ranks] for rank in ranks]),
    }[name]


def halves(world_size: int = 4) -> Picture:
    """An all-reduce in two steps: reduce-scatter, then all-gather."""
    enough_colours(world_size)
    before, between = cells_of("reduce_scatter", world_size, 0)
    after = [[cell for [cell] in between] for _ in range(world_size)]
    names = ["before", "after reduce-scatter", "after all-gather"]
    return stages([before, between, after], names, "all-reduce = reduce-scatter + all-gather")


def stages(states: list[State], names: list[str], title: str) -> Picture:
    """One panel per state of the world, side by side; a state is each rank's cells (see `cells_of`)."""
    states = [[[in_two_lines(cell) for cell in cells] for cells in state] for state in states]
    world_size, deepest = len(states[0]), max(len(cells) for state in states for cells in state)
    lines = [cell.split("\n") for state in states for cells in state for cell in cells]
    longest, tall = max(len(line) for cell in lines for line in cell), 0.12 + 0.22 * max(map(len, lines))
    wide = 0.55 + 0.05 * max(0, longest - 2)  # inches of a column, with room for a sum such as a0+b0+c0+d0
    picture = Picture(len(states) * (world_size * wide + 0.5) + 0.2, 1.25 + tall * deepest, title)
    panels = picture.subplots(1, len(states), squeeze=False)[0]
    for panel, state, name in zip(panels, states, names, strict=True):
        panel.set(xlim=(-0.6, world_size - 0.4), ylim=(deepest - 0.3, -1.1))
        panel.set_title(name, color=INK, fontsize=10)
        panel.axis("off")
        for rank, cells in enumerate(state):
            label = f"rank {rank}" if world_size < 5 else str(rank)
            panel.text(rank, -0.75, label, ha="center", va="center", color=INK, fontsize=9)
            for depth, cell in enumerate(cells):
                draw_cell(panel, rank, depth, cell)
    picture.subplots_adjust(left=0.02, right=0.98, bottom=0.04, top=1 - 0.62 / picture.get_figheight(), wspace=0.12)
    return picture


def in_two_lines(cell: str) -> str:
    """a0+b0 above +c0+d0: a sum that is too long for its box in one."""
    parts = cell.split("+")
    half = len(parts) // 2
    return cell if len(cell) < 10 else "\n+".join(["+".join(parts[:half]), "+".join(parts[half:])])


def draw_cell(panel: Axes, x: float, y: float, text: str) -> None:
    """A box around (x, y), striped in the colours of the ranks whose letters are in `text`; dotted if it is empty."""
    sources = [LETTERS.index(letter) for letter in text if letter in LETTERS]
    left, top, width, height = x - 0.46, y - 0.42, 0.92, 0.84
    for stripe, source in enumerate(sources):
        part = width / len(sources)
        panel.add_patch(Rectangle((left + stripe * part, top), part, height, color=COLOURS[source], linewidth=0))
    colour, line = (INK, "-") if text else (GREY, ":")
    panel.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=colour, linestyle=line, linewidth=1))
    panel.text(x, y, text, ha="center", va="center", color="black", fontsize=9, linespacing=1)


def transpose(world_size: int = 2, rows: int = 2, columns: int = 3) -> Picture:
    """A matrix and its transpose, cut into bands: a rank has `rows` rows of one and `columns` rows of the other."""
    enough_colours(world_size)
    tall, wide = world_size * rows, world_size * columns
    numbers = [[10 * row + column for column in range(wide)] for row in range(tall)]
    turned = [list(column) for column in zip(*numbers, strict=True)]
    title = "transpose: a colour shows which rank held it before"
    picture = Picture(0.42 * (wide + tall) + 3.2, 0.34 * max(tall, wide) + 1.2, title)
    left, right = picture.subplots(1, 2, width_ratios=[wide + 2, tall + 2])
    draw_bands(left, numbers, rows, source=lambda row, column: row // rows, name="A")
    draw_bands(right, turned, columns, source=lambda row, column: column // rows, name="A transposed")
    for panel in (left, right):
        panel.set_ylim(max(tall, wide) - 0.3, -0.7)
    picture.subplots_adjust(left=0.01, right=0.99, bottom=0.03, top=1 - 0.62 / picture.get_figheight(), wspace=0.05)
    return picture


def draw_bands(panel: Axes, matrix: list[list[int]], band: int, source: Callable[[int, int], int], name: str) -> None:
    """A matrix whose rows are framed in bands, one per rank. source(row, column): whose colour a number has."""
    width = len(matrix[0])
    panel.set(xlim=(-2.5, width - 0.4))
    panel.set_title(name, color=INK, fontsize=10)
    panel.axis("off")
    for y, row in enumerate(matrix):
        for x, number in enumerate(row):
            colour = COLOURS[source(y, x)]
            panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=PAPER, linewidth=0.8))
            panel.text(x, y, str(number), ha="center", va="center", color="black", fontsize=9)
    for rank in range(len(matrix) // band):
        top = rank * band - 0.5
        panel.add_patch(Rectangle((-0.5, top), width, band, fill=False, edgecolor=INK, linewidth=1.6))
        panel.text(-0.75, top + band / 2, f"rank {rank}", ha="right", va="center", color=INK, fontsize=9)


def enough_colours(world_size: int) -> None:
    """Raises ValueError if there are more ranks than letters and colours."""
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"a picture has room for 1 to {MAX_RANKS} ranks, not {world_size}")
