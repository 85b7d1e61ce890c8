"""How a matrix lies on a mesh of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from ..kit.placements import moved
from .curves import INKS
from .picture import COLOURS, INK, PAPER, TYPE, Picture
from .shardings import box, sheet


def layouts(names: Sequence[str], mesh: tuple[int, ...], side: int = 6) -> Picture:
    """A square matrix in several layouts, such as "S0 R": each part has the colour and the number of its rank.

    A part that several ranks have shows the numbers of all of them, in the colour of the first. side: its rows.
    """
    ranks = list(product(*map(range, mesh)))
    picture = Picture(8.8, 2.6, f"a matrix on a mesh of {' x '.join(map(str, mesh))} ranks")
    panel = sheet(picture, len(names) * (side + 1.4), side + 1.6)
    for number, name in enumerate(names):
        left = 0.7 + number * (side + 1.4)
        panel.text(left + side / 2, 0.5, name, ha="center", va="center", color=INK, fontsize=TYPE + 1)
        owners: dict[tuple[int, int, int, int], list[int]] = {}
        for rank, place in enumerate(ranks):
            owners.setdefault(box_of(name.split(), mesh, place, side), []).append(rank)
        for (top, bottom, start, end), of_ranks in owners.items():
            colour = PAPER if len(of_ranks) == len(ranks) else COLOURS[of_ranks[0]]
            panel.add_patch(
                Rectangle((left + start, 1 + top), end - start, bottom - top, facecolor=colour, edgecolor=INK)
            )
            words = "all ranks" if len(of_ranks) == len(ranks) else " ".join(map(str, of_ranks))
            middle = (left + (start + end) / 2, 1 + (top + bottom) / 2)
            panel.text(*middle, words, ha="center", va="center", color=INK, fontsize=TYPE)
    return picture


def summands(of_ranks: Sequence[Sequence[int]]) -> Picture:
    """A partial sum: what each rank has, in its colour, and the tensor that they add up to. of_ranks: numbers."""
    picture = Picture(8.8, 1.9, "a partial sum: the same shape on each rank, and a different summand")
    length, whole = len(of_ranks[0]), [sum(column) for column in zip(*of_ranks, strict=True)]
    panel = sheet(picture, (length + 1) * (len(of_ranks) + 1), 2.2)
    for number, values in enumerate([*of_ranks, whole]):
        is_whole = number == len(of_ranks)
        left, colour = 0.6 + number * (length + 1), PAPER if is_whole else COLOURS[number]
        words = "the tensor" if is_whole else f"rank {number}"
        panel.text(left + length / 2, 0.45, words, ha="center", va="center", color=INK, fontsize=TYPE)
        sign = "=" if is_whole else "+" if number else ""
        panel.text(left - 0.5, 1.5, sign, ha="center", va="center", color=INK, fontsize=TYPE + 4)
        for place, value in enumerate(values):
            panel.add_patch(Rectangle((left + place, 1), 1, 1, facecolor=colour, edgecolor=INK))
            panel.text(left + place + 0.5, 1.5, f"{value}", ha="center", va="center", color=INK, fontsize=TYPE)
    return picture


def box_of(
    layout: Sequence[str], mesh: tuple[int, ...], place: tuple[int, ...], side: int
) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of what the rank at this place has."""
    ends = [[0, side], [0, side]]
    for placement, n, at in zip(layout, mesh, place, strict=True):
        if placement[0] == "S":
            first, last = ends[int(placement[1:])]
            ends[int(placement[1:])] = [first + (last - first) * at // n, first + (last - first) * (at + 1) // n]
    (top, bottom), (left, right) = ends
    return top, bottom, left, right


ROWS, COLUMNS = ("R", "S1", "S0"), ("S0", "R", "S1")  # neighbours in the order in which ways go


def layout_ways(
    src: tuple[str, str], ways: Mapping[str, Sequence[tuple[int, str, str]]], mesh: tuple[int, int]
) -> Picture:
    """The map of a matrix's layouts on a mesh of two axes, and ways through it: which part of all each step sends.

    ways: {name: steps (axis, old placement, new placement) from src on}
    """
    picture = Picture(8.8, 3.9, "two ways between the same layouts")
    panel = sheet(picture, 13.2, 6.6)
    for row, column in product(range(3), repeat=2):
        box(panel, 1.2 + 4.2 * column, 0.2 + 2 * row, 2.4, 0.9, PAPER, f"{ROWS[row]}, {COLUMNS[column]}")
    for number, (name, steps) in enumerate(ways.items()):
        colour, at = INKS[number], list(src)
        panel.text(0.6 + 6 * number, 6.2, name, color=colour, fontsize=TYPE + 1, fontweight="bold")
        for axis, old, new in steps:
            start = middle(at)
            at[axis] = "R"
            together = math.prod(1 if placement == "R" else 1 / n for placement, n in zip(at, mesh, strict=True))
            at[axis] = new
            sent = moved(10**6, old, new, mesh[axis]) / 10**6 * together
            way(panel, start, middle(at), colour, f"{sent:.3f}" if sent else "nothing")
    return picture


def middle(layout: Sequence[str]) -> tuple[float, float]:
    return 2.4 + 4.2 * COLUMNS.index(layout[1]), 0.65 + 2 * ROWS.index(layout[0])


def way(panel: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, words: str) -> None:
    """An arrow from one box to another, around the box in between if there is one."""
    (x, y), (to_x, to_y) = start, end
    far = abs(to_x - x) > 5
    if far:
        start, end = (x, y + 0.48), (to_x, to_y + 0.48)
    elif x != to_x:
        start, end = (x + math.copysign(1.25, to_x - x), y), (to_x - math.copysign(1.25, to_x - x), y)
    else:
        start, end = (x, y + 0.48), (x, to_y - 0.48)
    style = f"arc3,rad={0.2 * far}"
    panel.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, color=colour, lw=2, connectionstyle=style)
    )
    place = (x / 2 + to_x / 2, y + 0.85) if far else (x / 2 + to_x / 2 + (x == to_x) * 0.7, y / 2 + to_y / 2 - 0.25)
    panel.text(*place, words, ha="center", va="center", color=INK, fontsize=TYPE)
