"""The pictures of plans: bytes per stage, and bytes against seconds."""

from __future__ import annotations

from utils import figures


def test_stage_bytes_stacks_the_kinds_of_each_stage() -> None:
    picture = figures.stage_bytes({"stage 0": {"a": 1e9, "b": 2e9}, "stage 1": {"a": 3e9}}, memory=4e9)
    (panel,) = picture.axes
    bars = [[(bar.get_x(), bar.get_width()) for bar in group] for group in panel.containers]
    assert bars == [[(0, 1), (0, 3)], [(1, 2), (3, 0)]]
    assert list(panel.get_lines()[0].get_xdata()) == [4, 4]


def test_plan_cloud_draws_all_plans_and_names_those_that_are_marked() -> None:
    picture = figures.plan_cloud({"dp 2": (1e9, 3.0), "tp 2": (2e9, 4.0)}, {"tp 2": "published"}, memory=8e9)
    (panel,) = picture.axes
    everything, marked = panel.collections
    assert [list(point) for point in everything.get_offsets()] == [[1, 3], [2, 4]]
    assert [list(point) for point in marked.get_offsets()] == [[2, 4]]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["published"]
