"""How a matrix lies on a mesh of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from matplotlib.patches import FancyArrowPatch, Rectangle

from ..kit.placements import moved
from .picture import COLOURS, INK, KINDS, PAPER, TYPE, Picture
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


def box_of(
    layout: Sequence[str], mesh: tuple[int, ...], place: tuple[int, ...], side: int
) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of what the rank at this place has."""
    ends = [[0, side], [0, side]]
    for placement, n, at in zip(layout, mesh, place, strict=True):
        if placement[0] == "S":
            first, last = ends[int(placement[1:])]
            ends[int(placement[1:])] = [first + (last - first) * at // n, first + (last - first) * (at + 1) // n]
    return (*ends[0], *ends[1])


def layout_ways(src: tuple[str, str], ways: Mapping[str, Sequence[tuple[int, str, str]]], mesh: tuple[int, int]) -> Picture:
    """The map of a matrix's layouts on a mesh of two axes, and ways through it: what each step sends, of the whole.

    ways: {name: steps (axis, old placement, new placement) from src on}
    """
    names = ["R", "S0", "S1"]
    picture = Picture(8.8, 4.2, "two ways between the same layouts")
    panel = sheet(picture, 13.2, 6.4)
    for row, column in product(range(3), repeat=2):
        box(panel, 1.2 + 4 * column, 0.6 + 2 * row, 2.2, 0.9, PAPER, f"{names[row]}, {names[column]}")
    for number, (name, steps) in enumerate(ways.items()):
        at, colour = list(src), KINDS[(1, 5)[number]]
        panel.text(0.6 + 6 * number, 6.2, f"— {name}", color=colour, fontsize=TYPE + 1, fontweight="bold")
        for axis, old, new in steps:
            start = middle(names, at)
            at[axis] = "R"
            held = 1.0
            for placement, n in zip(at, mesh, strict=True):
                held /= n if placement[0] == "S" else 1
            at[axis] = new
            end = middle(names, at)
            straight_on = abs(start[0] - end[0]) + abs(start[1] - end[1]) < 5
            bend = 0.0 if straight_on else -0.25
            panel.add_patch(
                FancyArrowPatch(
                    start, end, arrowstyle="-|>", mutation_scale=14, shrinkA=26, shrinkB=26, color=colour, linewidth=2,
                    connectionstyle=f"arc3,rad={bend}",
                )
            )
            sent = moved(10_000, old, new, mesh[axis]) / 10_000 * held
            beside = (start[0] + end[0]) / 2 + 0.15, (start[1] + end[1]) / 2 - 0.25
            panel.text(*beside, f"{sent:.3f}" if sent else "nothing", color=INK, fontsize=TYPE)
    return picture


def middle(names: Sequence[str], layout: Sequence[str]) -> tuple[float, float]:
    return 2.3 + 4 * names.index(layout[1]), 1.05 + 2 * names.index(layout[0])
