"""The sample class, graded once by `python -m grader grade`: every check of every student earns the roster's points."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import nbformat
import pytest

from grader.authoring.build import release_of
from grader.authoring.check_files import HIDDEN
from grader.authoring.lesson import find_lessons, read_lesson
from grader.classroom import grade_class, grades
from grader.classroom.course import ClassroomError, Course
from grader.classroom.grade_class import GradeOptions
from tests import sample_class
from tests.all_lessons import mutants_of
from tests.sample_class import LESSON, MUTANT_STUDENTS

pytestmark = [pytest.mark.long(minutes=4), pytest.mark.sandbox]
PROJECT = Path(__file__).resolve().parents[3]
ABOUT = ("last name", "first name", f"{LESSON}/days late", f"{LESSON}/late penalty")  # columns without points
HALF = ("student-02", "student-04", "student-06")  # nothing written, wrong answers, no notebook


def grader(*args: object) -> subprocess.CompletedProcess:
    """`python -m grader ...` in the project's folder, in a shell where the environment isn't activated."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = os.defpath
    command = [sys.executable, "-m", "grader", *map(str, args)]
    return subprocess.run(command, cwd=PROJECT, env=env, text=True, capture_output=True, timeout=1200)


@pytest.fixture(scope="session", params=["half", pytest.param("all", marks=pytest.mark.thorough)])
def graded(request, tmp_path_factory):
    """The sample class after grading: (folder, output of `python -m grader grade`, points by student and check)."""
    folder = tmp_path_factory.mktemp("sample") / "class"
    students = sample_class.make_class(folder, only=HALF if request.param == "half" else ())
    if request.param == "all":
        assert sample_class.make_class(folder) == students, "the class can be made twice in a row"
    done = grader("grade", "--course", folder, *(["--jobs", "1"] if request.param == "half" else []))
    assert done.returncode == 0, done.stderr
    with (folder / "grades.csv").open(newline="") as file:
        rows = {row.pop("student"): row for row in csv.DictReader(file)}
    return (
        folder,
        done,
        {student: {name: float(row[name]) for name in row if name not in ABOUT} for student, row in rows.items()},
    )


@pytest.fixture(scope="session")
def roster(graded):
    return json.loads((graded[0] / "roster.json").read_text())


def page(folder: Path, student: str) -> str:
    """A student's feedback as text, without spaces and marks."""
    html = (folder / "feedback" / student / LESSON / f"{LESSON}.html").read_text()
    return squeezed(re.sub(r"<[^>]*>", "", html))


def squeezed(text: str) -> str:
    return re.sub(r"\W+", "", unescape(text))


# ---- points ----------------------------------------------------------------------------------------------------------


def test_every_check_of_every_student_earns_what_it_should(graded, roster):
    _, _, points = graded
    for student, expected in roster.items():
        got = {name.removeprefix(f"{LESSON}/"): value for name, value in points[student].items()}
        total = got.pop("total")
        assert got.pop("total", total) == total == sum(expected["points"].values())
        wrong = {name: (got[name], wanted) for name, wanted in expected["points"].items() if got[name] != wanted}
        assert not wrong, f"{student} ({expected['who']}): (got, expected) {wrong}"
        assert got.keys() == expected["points"].keys()


def test_the_class_has_the_solution_a_blank_a_noisy_one_and_mutants():
    lesson = read_lesson(find_lessons([LESSON])[0])
    points = {student.who: student.points for student in sample_class.students_of(lesson)}
    full = {check.id: check.points for check in lesson.checks}
    assert points["the solution"] == points["right, with warnings and lines on stderr"] == full
    assert set(points["nothing written"].values()) == {0}
    mutants = {name for hand in MUTANT_STUDENTS for name in hand}
    assert {name.split("/")[0] for name in mutants} == set(lesson.exercises), "every exercise has a wrong answer"
    assert any(mutant.hidden for mutant in mutants_of(LESSON) if str(mutant) in mutants)


def test_table_and_problems(graded, roster):
    folder, done, points = graded
    lines = [line for line in done.stdout.splitlines() if ": judging: " not in line]  # once a minute, on a slow machine
    assert max(map(len, (line for line in lines if str(folder) not in line))) <= 100
    for student, row in points.items():
        line = next(line for line in lines if line.startswith(f"{student} "))
        assert float(line.split()[-1]) == row["total"]
        assert sum(map(float, line.split()[1:-1])) == row["total"]
    assert lines[0].startswith("student-06: the file is not a notebook: a PDF")
    assert lines[1] == f"{LESSON}: {len(points) - 1} judged, 1 judged before and taken over"
    assert done.stderr == "", "no bar where there is no terminal"


@pytest.mark.thorough
def test_grading_again_gives_the_same(graded):
    folder, _, _ = graded
    course = Course.at(folder)
    before = grades.read_grades(course, LESSON)
    this = grade_class.autograde(course, LESSON, ["student-04", "student-06"], GradeOptions(regrade=True))
    assert this.counts["judged"] == 1
    assert grades.read_grades(course, LESSON) == before


# ---- feedback --------------------------------------------------------------------------------------------------------


def test_feedback_tells_each_mutant_what_went_wrong(graded, roster):
    """But for what only a hidden test has seen: of that it gives the kind of case and of mistake."""
    folder, _, _ = graded
    kept = {str(mutant): mutant for mutant in mutants_of(LESSON)}
    for student, entry in roster.items():
        for name in entry["who"].split(", "):
            if name in kept and not kept[name].hidden:
                assert squeezed(kept[name].says) in page(folder, student), f"{student}: {name}"


def test_no_feedback_shows_a_hidden_test(graded, roster):
    folder, _, _ = graded
    checks = (PROJECT / "solutions" / LESSON / "checks_01.py").read_text()
    hidden = [line.strip() for line in "".join(HIDDEN.findall(checks)).splitlines()]
    telling = {
        squeezed(line) for line in hidden if line.startswith(("for ", "[got]", "by_hand(", "(")) and len(line) > 30
    }
    assert len(telling) > 3
    for student in roster:
        text = page(folder, student)
        assert "hidden_tests_for" not in text and "HIDDENTESTS" not in text
        assert [line for line in telling if line in text] == []


# ---- the class and its folder ----------------------------------------------------------------------------------------


def test_the_gradebook_learns_the_lesson_that_make_build_releases(graded):
    folder, _, _ = graded
    release = (folder / "notebooks" / LESSON / f"{LESSON}.ipynb").read_bytes()
    notebook = nbformat.read(folder / "solutions" / LESSON / f"{LESSON}.ipynb", as_version=4)
    assert release == release_of(read_lesson(find_lessons([LESSON])[0]), notebook)


def test_making_the_class_leaves_other_folders_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ClassroomError, match="is not empty and holds no sample class"):
        sample_class.make_class(tmp_path)
    assert (tmp_path / "thesis.txt").exists()
