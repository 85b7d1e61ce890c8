"""The sample class, graded once by `python -m grader grade`: each check of each student earns what the roster says."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from grader import classroom
from grader.__main__ import main
from grader.build import find_lessons, read_lesson, release_of
from grader.classroom import ClassroomError, Course, Grades, by_exercise
from tests import sample_class
from tests.mutants import mutants_of
from tests.sample_class import LESSON, MUTANT_STUDENTS
from tests.tiny_course import LESSON as TINY
from tests.tiny_course import make_course, nbgrader, released

pytestmark = [pytest.mark.long, pytest.mark.sandbox]
PROJECT = Path(__file__).resolve().parent.parent


def grader(*args: object) -> subprocess.CompletedProcess:
    """`python -m grader ...` from the project's folder, in a shell without the environment activated."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = os.defpath
    command = [sys.executable, "-m", "grader", *map(str, args)]
    return subprocess.run(command, cwd=PROJECT, env=env, text=True, capture_output=True, timeout=1200)


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """The sample class after grading: (folder, what `python -m grader grade` said, points by student and check)."""
    folder = tmp_path_factory.mktemp("sample") / "class"
    assert sample_class.make_class(folder) == sample_class.make_class(folder), "the class can be made twice in a row"
    done = grader("grade", "--course", folder)
    assert done.returncode == 0, done.stderr
    with (folder / "grades.csv").open(newline="") as file:
        rows = {row.pop("student"): row for row in csv.DictReader(file)}
    return (
        folder,
        done,
        {student: {name: float(points) for name, points in row.items()} for student, row in rows.items()},
    )


@pytest.fixture(scope="session")
def roster(graded):
    return json.loads((graded[0] / "roster.json").read_text())


def page(folder: Path, student: str) -> str:
    """A student's feedback as text, spaces and marks left out."""
    html = (folder / "feedback" / student / LESSON / f"{LESSON}.html").read_text()
    return squeezed(re.sub(r"<[^>]*>", "", html))


def squeezed(text: str) -> str:
    return re.sub(r"\W+", "", text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


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


def test_the_roster_has_the_solution_a_blank_a_noisy_one_and_mutants(roster):
    points = {entry["who"]: entry["points"] for entry in roster.values()}
    lesson = read_lesson(find_lessons([LESSON])[0])
    full = {check.id: check.points for check in lesson.checks}
    assert points["the solution"] == points["right, with warnings and lines on stderr"] == full
    assert set(points["nothing written"].values()) == {0}
    mutants = {name for hand in MUTANT_STUDENTS for name in hand}
    assert {name.split("/")[0] for name in mutants} == set(lesson.exercises), "every exercise has a wrong answer"
    assert any(mutant.hidden for mutant in mutants_of(LESSON) if str(mutant) in mutants)


def test_table_and_troubles(graded, roster):
    folder, done, points = graded
    lines = done.stdout.splitlines()
    assert max(map(len, (line for line in lines if str(folder) not in line))) <= 100
    for student, row in points.items():
        line = next(line for line in lines if line.startswith(f"{student} "))
        assert float(line.split()[-1]) == row["total"]
        assert sum(map(float, line.split()[1:-1])) == row["total"]
    troubles = [line.strip() for line in lines if line.startswith("  student-")]
    assert troubles == ["student-06: the file is not a notebook: it starts with '%PDF-1.7'"]
    assert done.stderr == "", "no bar where there is no terminal"


def test_grading_again_gives_the_same(graded):
    folder, _, _ = graded
    course = Course.at(folder)
    before = classroom.read_grades(course, LESSON)
    classroom.autograde(course, LESSON, ["student-02", "student-06"])
    assert classroom.read_grades(course, LESSON) == before


# ---- feedback --------------------------------------------------------------------------------------------------------


def test_feedback_tells_each_mutant_what_is_wrong(graded, roster):
    folder, _, _ = graded
    kept = {str(mutant): mutant for mutant in mutants_of(LESSON)}
    for student, entry in roster.items():
        for name in entry["who"].split(", "):
            if name in kept:
                assert squeezed(kept[name].says) in page(folder, student), f"{student}: {name}"


def test_no_feedback_shows_a_hidden_test(graded, roster):
    folder, _, _ = graded
    hidden = [line.strip() for line in (PROJECT / "grader" / "hidden" / f"{LESSON}.py").read_text().splitlines()]
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


def test_the_class_spares_other_folders(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ClassroomError, match="is not empty and holds no sample class"):
        sample_class.make_class(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    course = make_course(tmp_path_factory.mktemp("tiny"))
    nbgrader(course, "generate_assignment", TINY)
    return course


def test_bad_input_is_one_line(tiny, tmp_path, monkeypatch):
    def refused(*args: object) -> str:
        """What a command that can't be done prints before it exits with 1."""
        monkeypatch.setattr(sys, "argv", ["grader", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert isinstance(stopped.value.code, str) and len(stopped.value.code.splitlines()) == 1
        return stopped.value.code

    assert "is no course: there is no nbgrader_config.py in it" in refused("grade", "--course", tmp_path)
    assert "nobody has handed in anything: submissions are expected as" in refused("grade", "--course", tiny)
    assert f"submitted/STUDENT/{TINY}/{TINY}.ipynb" in refused("grade", TINY, "--course", tiny)
    for command in ("grade", "table"):
        said = refused(command, "91_nothing", "--course", tiny)
        assert said == f"there is no lesson called '91_nothing'; there are: {TINY}"
    assert "there is no file" in refused("validate", tmp_path / "gone.ipynb", "--course", tiny)
    (tmp_path / "report.ipynb").write_bytes(b"%PDF-1.7\xff")
    said = refused("validate", tmp_path / "report.ipynb", "--course", tiny)
    assert "the file is not a notebook: it starts with '%PDF-1.7'" in said
    (tiny / "solutions" / "92_written.py").write_text("# %% [markdown]\n# # Not built\n")
    assert "92_written is written but not built" in refused("grade", "92_written", "--course", tiny)


@pytest.mark.parametrize("answer, tags, code", [("2 * x", [], 0), ("x", [], 1), ("x", ["skip-execution"], 1)])
def test_validate_says_by_its_exit_code_how_it_went(tiny, tmp_path, answer, tags, code):
    nb = released(tiny)
    for cell in nb.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name == "double":
            cell.source = f"import warnings\ndef double(x):\n    warnings.warn('noise')\n    return {answer}"
        elif name == "score":
            cell.source = "def score():\n    return None"
        elif name == "double-values":
            cell.metadata["tags"] = tags
    nbformat.write(nb, tmp_path / "mine.ipynb")
    done = grader("validate", tmp_path / "mine.ipynb", "--course", tiny)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("Success" if code == 0 else "VALIDATION FAILED ON 1 CELL") in done.stdout


def test_who_handed_in_no_notebook_is_told_and_has_0(tiny):
    folder = tiny / "submitted" / "forgetful" / TINY
    folder.mkdir(parents=True)
    (folder / "thoughts.docx").write_text("I did my best")
    done = grader("grade", TINY, "--course", tiny)
    assert done.returncode == 0, done.stderr
    assert f"forgetful: no {TINY}.ipynb was handed in; there is: thoughts.docx" in done.stdout
    assert (tiny / "grades.csv").read_text().splitlines()[1] == "forgetful,0,0,0,0"


def test_a_wide_table_is_broken_into_parts_that_fit():
    checks = {f"exercise-{number}-values": 10.0 for number in range(40)}
    exercises = by_exercise([f"exercise-{number}" for number in range(40)], checks)
    grades = Grades("01_wide", exercises, checks, {f"student-{number}": dict(checks) for number in range(3)})
    lines = classroom.table(grades).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[-1] for line in lines if line.startswith("student-1")][-1] == "400"


def test_checks_belong_to_the_exercise_with_the_longest_name():
    assert by_exercise(["ring", "ring-all"], ["ring-values", "ring-all-values", "ring-all-traffic", "alone"]) == {
        "ring": ["ring-values"],
        "ring-all": ["ring-all-values", "ring-all-traffic"],
        "alone": ["alone"],
    }
