"""The files of grades: sums that add up, nothing that a spreadsheet calculates, and the columns that imports expect."""

from __future__ import annotations

import csv

import pytest

from grader.classroom import grade_class
from grader.classroom.grades import Grades, Person, read_grades
from grader.classroom.grades_csv import STARTS, harmless, write_csv
from tests import stand_in_judge
from tests.stand_in_grader import grader, released_course
from tests.stand_in_judge import earning
from tests.tiny_course import LESSON, essay, hand_in, nbgrader


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def written(tmp_path, *all_grades, form="csv"):
    write_csv(list(all_grades), tmp_path / "grades.csv", form)
    return rows(tmp_path / "grades.csv")


def grades(lesson="01_one", **more):
    points = {"a-values": 1.0, "b-values": 2.0}
    return Grades(lesson, {"a": ["a-values"], "b": ["b-values"]}, points, **{"earned": {}, **more})


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty, left", [(0, 1.0), (0.25, 0.75), (1, 0), (7, 0)])
def test_points_less_the_late_penalty_are_the_total(tmp_path, penalty, left):
    thirds = {"ada": {"a-values": 1 / 3, "b-values": 2 / 3}}
    one = grades(earned=thirds, penalty={"ada": penalty}, days_late={"ada": 1.5} if penalty else {})
    other = grades("02_two", earned={"ada": {"a-values": 1e6, "b-values": 0.0}})
    header, row = written(tmp_path, one, other)
    found = dict(zip(header, row, strict=True))
    a, b, off, total = (float(found[f"01_one/{name}"]) for name in ("a-values", "b-values", "late penalty", "total"))
    assert (a, b) == pytest.approx((1 / 3, 2 / 3), abs=1e-3)
    assert a + b - off == pytest.approx(total, abs=1e-9) and total == pytest.approx(left, abs=1e-3)
    assert found["01_one/days late"] == ("1.5" if penalty else "0")
    assert found["02_two/total"] == "1000000", "in full, for a spreadsheet that reads 1e+06 as text"
    assert float(found["total"]) == pytest.approx(total + 1e6)


def test_who_handed_in_one_lesson_has_0_in_the_other(tmp_path):
    one = grades(earned={"ada": {"a-values": 1.0, "b-values": 2.0}})
    header, ada, bo = written(tmp_path, one, grades("02_two", earned={"bo": {"a-values": 0.5, "b-values": 0.0}}))
    assert dict(zip(header, ada, strict=True))["02_two/total"] == "0"
    assert [ada[-1], bo[-1]] == ["3", "0.5"]


# ---- names -----------------------------------------------------------------------------------------------------------

WIDE = "\N{FULLWIDTH EQUALS SIGN}"  # some spreadsheets take it for a formula, too
FORMULAS = [f"{start}cmd|' /C calc'!A0" for start in (*STARTS, "\t=", "\r=", "\n=", " =", WIDE)]


@pytest.mark.parametrize("form", ["csv", "canvas", "moodle"])
@pytest.mark.parametrize("name", [*FORMULAS, "ada;=1+1", 'ada",=1+1,"'])
def test_no_name_is_a_formula(tmp_path, form, name):
    """Whether the spreadsheet splits lines at commas, semicolons or tabs."""
    person = Person(name, name, name, name)
    one = grades(earned={name: {"a-values": 1.0, "b-values": 2.0}}, people={name: person})
    write_csv([one], tmp_path / "grades.csv", form)
    for separator in ",;\t":
        with (tmp_path / "grades.csv").open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file, delimiter=separator) for cell in row]
        if separator != ",":  # text after a separator inside quotation marks belongs to the same cell
            assert not [cell for cell in cells if cell.strip(' "').startswith(STARTS)]
        else:
            assert not [cell for cell in cells if cell.startswith((*STARTS, WIDE, "\t", "\r"))]


def test_an_ordinary_name_stays_as_it_is():
    for name in ("ada", "Ada Lovelace", "van 't Hoff", "o-brien", "x=y", "42"):
        assert harmless(name) == name


# ---- imports ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_lessons():
    ada, bo = {"a-values": 1.0, "b-values": 1.5}, {"a-values": 0.0, "b-values": 0.0}
    people = {"ada": Person("Ada", "Lovelace", "ada@example.org", "4711")}
    first = grades(earned={"ada": ada, "bo": bo}, people=people, penalty={"ada": 0.5})
    return first, grades("02_two", earned={"ada": ada}, waiting={"ada": {"a-values"}})


def test_what_canvas_imports(tmp_path, two_lessons):
    """Its importer wants Student, ID, SIS User ID, SIS Login ID and Section first, and finds the points by the row."""
    assert written(tmp_path, *two_lessons, form="canvas") == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "01_one", "02_two"],
        ["    Points Possible", "", "", "", "", "3", "3"],
        ["Lovelace, Ada", "4711", "", "ada", "", "2", ""],
        ["bo", "", "", "bo", "", "0", ""],
    ]


def test_what_moodle_imports(tmp_path, two_lessons):
    assert written(tmp_path, *two_lessons, form="moodle") == [
        ["Username", "First name", "Last name", "Email address", "01_one", "02_two"],
        ["ada", "Ada", "Lovelace", "ada@example.org", "2", ""],
        ["bo", "", "", "", "0", ""],
    ]


# ---- from a gradebook ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    config = "c.LateSubmissionPlugin.penalty_method = 'zero'\n"
    course = released_course(tmp_path_factory.mktemp("course"), essay("why", "Why?"), config=config)
    with course.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate="2026-01-01 12:00:00 UTC")
        gradebook.update_or_create_student("late", first_name="Lena", last_name="=Late", email="late@example.org")
    hand_in(course.root, "ada", lambda nb: nb.cells[-1].update(source="Because of the ring."), **earning(2, 3, 1))
    hand_in(course.root, "late", **earning(2, 1, 1)).with_name("timestamp.txt").write_text("2026-01-03 00:00:00 UTC")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grade_class, "judge_all", stand_in_judge.judge_all)
        grade_class.autograde(course, LESSON, ["ada", "late"])
    return course


def test_the_files_of_a_class(made, capsys):
    found = read_grades(made, LESSON)
    assert found.waiting == {"ada": {"why"}, "late": set()}, "an essay left as it was has its 0 points already"
    assert found.days_late["late"] == 1.5 and list(found.handed_in) == ["late"]
    grader("export", "--course", made.root)
    assert "1 of the students have an answer that nobody has graded yet" in capsys.readouterr().out
    header, ada, late = rows(made.root / "grades-csv.csv")
    assert header[:3] == ["student", "last name", "first name"]
    assert ada[3:] == ["2", "3", "1", "", "0", "0", "6", "6"]
    assert late == ["late", "'=Late", "Lena", "2", "1", "1", "0", "1.5", "4", "0", "0"]
    grader("export", "--format", "canvas", "--course", made.root)
    assert capsys.readouterr().out.endswith("grades-canvas.csv\n")
    assert rows(made.root / "grades-canvas.csv")[2:] == [
        ["ada", "", "", "ada", "", ""],
        ["'=Late, Lena", "", "", "late", "", "0"],
    ]


def test_nbgraders_own_export_leaves_ours_alone(made):
    (made.root / "grades.csv").write_text("ours")
    nbgrader(made.root, "export")
    assert (made.root / "grades.csv").read_text() == "ours"
    assert rows(made.root / "nbgrader-grades.csv")[0][:2] == ["assignment", "duedate"]
