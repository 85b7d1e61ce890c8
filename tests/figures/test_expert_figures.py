"""The picture of rows that travel to their experts."""

from __future__ import annotations

from utils import figures

CHOICES = [[[0, 2], [3, 2]], [[2, 0]]]


def test_each_row_stands_where_it_is_sent_from_where_it_arrives_and_where_it_is_computed() -> None:
    (panel,) = figures.dispatch(CHOICES, num_experts=4).axes
    rows = [(*text.get_position(), text.get_text()) for text in panel.texts if "expert " in text.get_text()]
    columns = [[text for x, _, text in sorted(rows, key=lambda row: row[1]) if x == left] for left in lefts(rows)]
    rows_of_0 = ["token 0, expert 0", "token 0, expert 2", "token 1, expert 2", "token 1, expert 3"]
    assert columns == [
        [*rows_of_0, "token 0, expert 0", "token 0, expert 2"],
        ["token 0, expert 0", "token 0, expert 0", *rows_of_0[1:], "token 0, expert 2"],
        ["token 0, expert 0", "token 0, expert 0", *rows_of_0[1:3], "token 0, expert 2", "token 1, expert 3"],
    ]


def test_shapes_stand_below_each_part() -> None:
    (panel,) = figures.dispatch(CHOICES, num_experts=4).axes
    shapes = [text.get_text() for text in panel.texts if text.get_text().startswith("(")]
    assert shapes == ["(4, D)", "(2, D)", "(2, D)", "(4, D)", "(2, D)", "(4, D)"]


def lefts(rows: list[tuple[float, float, str]]) -> list[float]:
    return sorted({x for x, _, _ in rows})
