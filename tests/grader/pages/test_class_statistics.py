"""Difficulty, discrimination and the times of hand-ins, and how the report shows them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from grader.classroom.grades import Grades
from grader.pages.class_statistics import COLUMNS, difficulty, discrimination, hand_ins
from grader.pages.report import Class, report

EXERCISES = {"a": ["a-values", "a-traffic"], "b": ["b-values"], "c": ["c"]}
POINTS = {"a-values": 2.0, "a-traffic": 2.0, "b-values": 4.0, "c": 4.0}
NOON = datetime(2026, 3, 2, 12)


def class_of(*rows, **more):
    """Students with these points in a (half for each check), b and c."""
    earned = {
        f"student-{at}": {"a-values": a / 2, "a-traffic": a / 2, "b-values": b, "c": c}
        for at, (a, b, c) in enumerate(rows)
    }
    return Grades("01_one", EXERCISES, POINTS, earned, **more)


def test_difficulty_is_the_share_of_points_lost():
    grades = class_of((4, 1, 0), (4, 2, 0))
    assert [difficulty(grades, name) for name in EXERCISES] == [0, 0.625, 1]
    assert difficulty(class_of(), "a") is None
    grades.waiting = {"student-0": {"c"}}
    grades.earned["student-1"]["c"] = 4.0
    assert difficulty(grades, "c") == 0, "nobody has graded the other answer"


def test_discrimination_is_the_correlation_with_the_other_exercises():
    grades = class_of(*((step, step, 4 - step) for step in (0, 1, 2, 3, 4)))
    # The others' points: b + c is always 4, a + c is 4, a + b grows while c falls.
    assert discrimination(grades, "a") is None, "all have 4 points elsewhere"
    assert discrimination(grades, "c") == pytest.approx(-1)
    assert discrimination(class_of(*((step, step, 0) for step in (0, 1, 2, 3, 4))), "a") == pytest.approx(1)
    assert discrimination(class_of(*((step, step, 0) for step in (0, 1, 2, 3))), "a") is None, "four say little"
    assert discrimination(class_of(*[(1, step, 0) for step in range(5)]), "a") is None, "all have the same"


def test_columns_cover_the_first_hand_in_the_last_and_the_deadline():
    times = [NOON, NOON + timedelta(minutes=5), NOON + timedelta(hours=5)]
    found = hand_ins(times, NOON + timedelta(hours=3))
    assert found.step == timedelta(hours=1)
    assert [column.count for column in found.columns] == [2, 0, 0, 0, 0, 1]
    assert [column.late for column in found.columns] == [False] * 3 + [True] * 3
    assert found.deadline == 3 and found.highest == 2
    assert hand_ins(times, None).deadline is None
    assert hand_ins([], NOON) is None


@given(st.lists(st.datetimes(), min_size=1, max_size=20), st.none() | st.datetimes())
def test_any_times_fit_into_a_picture(times, deadline):
    """A student can write any time into timestamp.txt."""
    found = hand_ins(times, deadline)
    assert len(found.columns) <= COLUMNS
    assert sum(column.count for column in found.columns) == len(times)
    assert deadline is None or 0 <= found.deadline <= len(found.columns)


def test_the_report_shows_them():
    rows = [(step, step, 0) for step in (0, 1, 2, 3, 4)]
    times = {f"student-{at}": NOON + timedelta(days=at) for at in range(4)}
    grades = class_of(*rows, handed_in=times, deadline=NOON + timedelta(days=2))
    one = Class(grades, links={student: {} for student in grades.earned})
    soup = BeautifulSoup(report([one]), "html.parser")
    stats = {row.th.text: [cell.text for cell in row.select("td.stat")] for row in soup.select("tr.exercise")}
    assert stats == {"a": ["0.50", "1.00"], "b": ["0.50", "1.00"], "c": ["1.00", "–"]}
    picture = soup.find("svg", {"aria-label": "how many submissions were handed in, and when"})
    assert [bar["class"][0] for bar in picture.find_all("rect")] == ["f-passed", "f-passed", "f-part", "f-part"]
    assert "deadline" in picture.text and "2026-03-02" in picture.text
    assert "1 more have no time stamp" in soup.text
    assert "No submission has a time stamp" in report([Class(class_of((1, 1, 1)), links={"student-0": {}})])
