"""The picture of memory against time."""

from __future__ import annotations

from utils import figures


def test_memory_and_time_draws_a_line_per_name_and_labels_each_point() -> None:
    curves = {"some": [("0", 3e9, 1.0), ("4", 2e9, 1.1)], "every": [("k=2", 1e9, 1.3)]}
    picture = figures.memory_and_time(curves, "a step")
    (panel,) = picture.axes
    assert [list(line.get_xdata()) for line in panel.get_lines()] == [[3e9, 2e9], [1e9]]
    assert [text.get_text() for text in panel.texts] == ["0", "4", "k=2"]
    assert len({line.get_color() for line in panel.get_lines()}) == 2
