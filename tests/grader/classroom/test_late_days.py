"""Deadlines and penalties by day from the configuration: the same points wherever an instructor or a student looks."""

from __future__ import annotations

import csv
import re
from datetime import datetime

import pytest
from bs4 import BeautifulSoup
from nbgrader.apps.api import NbGraderAPI
from traitlets.config import Config

from grader.classroom.course import ClassroomError
from grader.classroom.extensions import set_deadline
from grader.classroom.grades import read_grades, table
from grader.classroom.late_days import DAY, HOUR, LateByDay, read_deadline
from tests.grader.classroom.test_challenge import CHECK, FAST, text_of
from tests.stand_in_grader import grader, released_course
from tests.stand_in_judge import earning
from tests.tiny_course import LESSON, PROJECT, cell, hand_in, page

[POLICY] = re.findall(
    r"^```python config\n(.*?)^```",
    (PROJECT / "docs" / "instructors.md").read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)
# Handed in (UTC, when the deadline is 16:00), earned, and the total: 10 % a day after two hours, at most 50 %.
CLASS = {
    "ada": ("2026-10-05 15:59:00 UTC", (2, 3, 1, 3), 9),
    "bo": ("2026-10-05 17:59:00 UTC", (2, 3, 1, 3), 9),
    "cy": ("2026-10-05 18:01:00 UTC", (2, 3, 0, 0), 4.5),
    "di": ("2026-10-06 18:01:00 UTC", (2, 3, 1, 3), 7.2),
    "eve": ("2026-10-19 12:00:00 UTC", (2, 3, 1, 0), 3),
    "fay": ("2026-10-19 12:00:00 UTC", (0, 0, 0, 0), 0),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    config = POLICY.replace("01_collectives", LESSON)
    folder = tmp_path_factory.mktemp("course")
    course = released_course(folder, cell(FAST, "fast", solution=True), CHECK, config=config)
    for student, (when, points, _) in CLASS.items():
        path = hand_in(course.root, student, **earning(*points), fast="def fast(x):\n    return x")
        path.with_name("timestamp.txt").write_text(when)
    grader("grade", "--course", course.root)
    return course


def totals() -> dict[str, float]:
    return {student: total for student, (_, _, total) in CLASS.items()}


def test_the_table_and_the_exports_have_the_same_points(course):
    grades = read_grades(course, LESSON)
    assert {student: pytest.approx(grades.total(student)) for student in CLASS} == totals()
    rows = [line.split() for line in table(grades).splitlines() if line.startswith(tuple(CLASS))]
    assert {row[0]: float(row[-1]) for row in rows} == totals()
    assert all(sum(map(float, row[1:-1])) == pytest.approx(float(row[-1])) for row in rows), "with the penalty"
    with (course.root / "grades.csv").open(newline="") as file:
        assert {row["student"]: float(row[f"{LESSON}/total"]) for row in csv.DictReader(file)} == totals()


def test_formgraders_lists_have_the_same_points(course):
    api = NbGraderAPI(course.directories, config=course.config)
    assert {one["student"]: one["score"] for one in api.get_submissions(LESSON)} == pytest.approx(totals())
    assert {one["student"]: one["score"] for one in api.get_notebook_submissions(LESSON, LESSON)} == pytest.approx(
        totals()
    )
    assert {one["id"]: one["score"] for one in api.get_students()} == pytest.approx(totals())
    [of_one] = api.get_student_submissions("di")
    [notebook] = api.get_student_notebook_submissions("di", LESSON)
    assert of_one["score"] == notebook["score"] == pytest.approx(7.2)
    mean = sum(totals().values()) / len(CLASS)
    assert api.get_assignment(LESSON)["average_score"] == pytest.approx(mean)
    assert api.get_notebooks(LESSON)[0]["average_score"] == pytest.approx(mean)


@pytest.mark.parametrize("student", CLASS)
def test_feedback_has_the_same_points(course, student):
    text = text_of(page(course.root, student))
    assert f" {totals()[student]:g} of 6 points" in text
    assert ("Handing in late costs" in text) == (student in ("cy", "di", "eve"))
    if student == "di":
        assert "You earned 9 points, 3 of them extra credit. Handing in late costs 1.8 of them." in text


def test_statistics_are_of_the_lessons_own_points(course):
    """9, 9, 5, 9, 6 and 0 were earned, of which 3 three times are extra credit."""
    facts = BeautifulSoup((course.root / "report.html").read_text(), "html.parser").select_one(".facts")
    text = " ".join(facts.get_text(" ").split())
    assert "6 median, of 6 points 4.83 mean 0 to 6 lowest to highest" in text
    assert "3 with extra credit, 3 in the mean 3 lost points by being late, 1.77 in the mean" in text


@pytest.mark.parametrize("hours, percent", [(0.5, 0), (2, 0), (2.1, 20), (26, 20), (26.1, 40), (50.1, 50), (10**6, 50)])
def test_a_day_begins_after_the_grace_and_the_maximum_holds(hours, percent):
    policy = LateByDay(percent_per_day=20, grace_hours=2, most_percent=50)
    assert (policy.late_submission_penalty("ada", 10, hours * HOUR) or 0) == pytest.approx(percent / 10)


def test_nbgraders_own_method_holds_without_a_percentage():
    config = Config(LateSubmissionPlugin={"penalty_method": "zero"})
    assert LateByDay(config=config).late_submission_penalty("ada", 7, DAY) == 7
    assert LateByDay().late_submission_penalty("ada", 7, DAY) is None


def test_a_deadline_is_a_day_a_time_and_a_place():
    assert read_deadline("2026-10-05 18:00 Europe/Berlin") == datetime(2026, 10, 5, 16)
    assert read_deadline("2026-11-05 18:00 Europe/Berlin") == datetime(2026, 11, 5, 17), "in winter"
    assert read_deadline("2026-10-05 18:00:30 UTC") == datetime(2026, 10, 5, 18, 0, 30)
    for text in ("2026-10-05", "2026-10-05 18:00", "2026-13-05 18:00 UTC", "2026-10-05 18:00 Mars", "a b c", "", 5):
        with pytest.raises(ValueError, match=f"^{re.escape(repr(text))} is not a deadline, such as '2026-10-05 18:00"):
            read_deadline(text)


@pytest.mark.parametrize(
    "deadlines, why",
    [({LESSON: "tomorrow"}, f"deadlines, {LESSON}: 'tomorrow' is not"), ({"91_x": "x"}, r"doesn't have: \['91_x'\]")],
)
def test_a_deadline_that_is_none_is_one_line_before_anything_is_judged(course, monkeypatch, deadlines, why):
    monkeypatch.setitem(course.config.SaveGrades, "deadlines", deadlines)
    with pytest.raises(ClassroomError, match=why):
        set_deadline(course, LESSON)
