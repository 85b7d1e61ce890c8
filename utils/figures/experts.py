"""How rows travel in expert parallelism. A colour is the rank that a row comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from matplotlib.axes import Axes

from .picture import COLOURS, GREY, INK, Picture
from .shardings import arrow, box, sheet

Row: TypeAlias = tuple[int, int, int]  # source, expert, token
TALL, WIDE, GAP = 0.62, 2.3, 3.1  # a row's height and width; GAP: space between two columns
TITLES = ("sorted by expert", "after the all-to-all: by source", "grouped by expert")


def dispatch(choices: Sequence[Sequence[Sequence[int]]], num_experts: int) -> Picture:
    """Where each row is before the all-to-all of a mixture of experts, after it, and when the experts run.

    choices[rank][token]: the experts that a rank's token uses. Rank r of P has num_experts / P experts.
    """
    size = len(choices)
    rows = [
        (source, expert, token)
        for source, tokens in enumerate(choices)
        for token, experts in enumerate(tokens)
        for expert in experts
    ]
    sent = [sorted(row for row in rows if row[0] == rank) for rank in range(size)]
    arrived = [sorted(row for row in rows if row[1] * size // num_experts == rank) for rank in range(size)]
    grouped = [sorted(lane, key=lambda row: (row[1], row[0], row[2])) for lane in arrived]
    lane_tall = TALL * (max(map(len, [*sent, *arrived])) + 2.4)
    picture = Picture(8.6, 0.7 + 0.36 * size * lane_tall, "dispatch: one row for each token and expert")
    panel = sheet(picture, 3 * WIDE + 2 * GAP + 2.6, 0.9 + size * lane_tall)
    columns = [stack(panel, number, lanes, lane_tall) for number, lanes in enumerate((sent, arrived, grouped))]
    for left, right, number in ((0, 1, 0), (1, 2, 1)):
        edge = left_of(number) + WIDE
        for row in rows:
            stays = columns[left][row][0] == columns[right][row][0]
            ends = ((edge, columns[left][row][1]), (edge + GAP, columns[right][row][1]))
            arrow(panel, *ends, GREY if stays else INK)
    return picture


def left_of(column: int) -> float:
    return 1.9 + column * (WIDE + GAP)


def stack(panel: Axes, column: int, lanes: Sequence[Sequence[Row]], lane_tall: float) -> dict[Row, tuple[int, float]]:
    """Draw a column of rows, rank below rank. Returns {row: (its rank, the height of its middle)}."""
    left, places = left_of(column), dict[Row, tuple[int, float]]()
    panel.text(left + WIDE / 2, 0.35, TITLES[column], ha="center", va="center", color=INK, fontsize=9.5)
    for rank, lane in enumerate(lanes):
        top = 0.9 + rank * lane_tall
        if column == 0:
            panel.text(0.1, top + TALL * len(lane) / 2, f"rank {rank}", ha="left", va="center", color=INK, fontsize=10)
        for number, row in enumerate(lane):
            source, expert, token = row
            box(panel, left, top + number * TALL, WIDE, TALL, COLOURS[source], "")
            middle = top + (number + 0.5) * TALL
            name = f"token {token}, expert {expert}"
            panel.text(left + WIDE / 2, middle, name, ha="center", va="center_baseline", color="black", fontsize=9)
            places[row] = rank, middle
        shape = f"({len(lane)}, D)"
        under = top + (len(lane) + 0.6) * TALL
        panel.text(left + WIDE / 2, under, shape, ha="center", va="center", color=INK, fontsize=9)
    return places
