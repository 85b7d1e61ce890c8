"""A roster and a zip as Canvas and Moodle make them, graded, and the feedback in a zip with their names."""

from __future__ import annotations

import zipfile
from pathlib import Path

import nbformat
import pytest

from grader.classroom.course import ClassroomError, Course
from grader.classroom.grades import read_grades
from grader.classroom.lms import collect_zip
from grader.classroom.roster import import_roster
from tests.stand_in_grader import grader, released_course
from tests.stand_in_judge import earning
from tests.tiny_course import LESSON, released, with_answers

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Quiz (77)
    Points Possible,,,,,10
"Lovelace, Ada",1201,u1,ada,A,
"Bohr, Bo",1202,u2,bo,A,7
"Curie, Cy",1203,u3,cy,A,
"Curie, Cyd",1204,u4,cyd,A,
"""
MOODLE = (
    "\ufeffFirst name;Last name;Username;ID number;Email address\nAda;Lovelace;ada;1;ada@example.org\nBo;Bohr;bo;2;\n"
)
NBGRADER = "id,first_name,last_name,email,lms_user_id\nada,Ada,Lovelace,,1201\nbo,Bo,Bohr,,1202\n"
FROM = {
    "canvas": {
        f"lovelaceada_1201_555_{LESSON}-1.ipynb": (2, 3, 1),
        f"bohrbo_LATE_1202_556_{LESSON}.ipynb": (2, 0, 0),
        f"nobody_9999_557_{LESSON}.ipynb": (2, 3, 1),
        "lovelaceada_1201_558_notes.pdf": (),
    },
    "moodle": {
        f"Ada Lovelace_31_assignsubmission_file_/{LESSON}.ipynb": (2, 3, 1),
        f"Bo Bohr_32_assignsubmission_file_{LESSON}.ipynb": (2, 0, 0),
        f"Cy Curie_33_assignsubmission_file_/{LESSON}.ipynb": (2, 3, 1),
        "Ada Lovelace_31_assignsubmission_file_/notes.pdf": (),
    },
}
PAGES = {
    "canvas": {f"lovelaceada_1201_555_{LESSON}.html", f"bohrbo_LATE_1202_556_{LESSON}.html"},
    "moodle": {
        f"Ada Lovelace_31_assignsubmission_file_/{LESSON}.html",
        f"Bo Bohr_32_assignsubmission_file_{LESSON}.html",
    },
}


@pytest.fixture
def course(tmp_path):
    return released_course(tmp_path / "course")


def zip_of(course: Course, path: Path, files: dict[str, tuple[float, ...]]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, points in files.items():
            nb = with_answers(released(course.root), earning(*points))
            info = zipfile.ZipInfo(name, (2026, 10, 5, 14, 30, 0))
            archive.writestr(info, nbformat.writes(nb) if points else b"%PDF")
    return path


@pytest.mark.parametrize("platform, roster", [("canvas", CANVAS), ("moodle", MOODLE)])
def test_from_a_platforms_files_to_its_feedback(course, tmp_path, capsys, platform, roster):
    (tmp_path / "list.csv").write_text(roster, encoding="utf-8")
    there = ("--course", course.root)
    grader("roster", tmp_path / "list.csv", *there)
    file = zip_of(course, tmp_path / "all.zip", FROM[platform])
    grader("collect", LESSON, file, "--from", platform, *there)
    said = capsys.readouterr().out
    assert f"{LESSON}: 2 new, 0 changed, 0 unchanged\n" in said
    assert ("late, as canvas says: bo\n" in said) == (platform == "canvas")
    assert said.count("left out: ") == 2 and "notes.pdf: not a notebook" in said and "nobody in the gradebook" in said
    grader("collect", LESSON, file, "--from", platform, *there)
    assert "0 new, 0 changed, 2 unchanged" in capsys.readouterr().out
    grader("grade", *there)
    grades = read_grades(course, LESSON)
    assert {student: grades.total(student) for student in grades.earned} == {"ada": 6, "bo": 2}
    assert grades.people["ada"].last_name == "Lovelace" and not any(grades.problems["bo"])
    grader("hand-back", *there)
    with zipfile.ZipFile(course.root / f"feedback-{LESSON}.zip") as archive:
        assert set(archive.namelist()) == PAGES[platform]
        assert all(
            b"Where you lost points" in archive.read(name) for name in PAGES[platform] if name.lower().startswith("bo")
        )


def test_a_second_zip_replaces_what_its_students_had_handed_in(course, tmp_path):
    (tmp_path / "list.csv").write_text(NBGRADER)
    assert import_roster(course, tmp_path / "list.csv") == (2, 2) != import_roster(course, tmp_path / "list.csv")
    names = list(FROM["canvas"])
    collect_zip(course, LESSON, zip_of(course, tmp_path / "1.zip", {names[0]: (1,), names[1]: (1,)}), "canvas")
    again = {names[0].replace("-1", "-2"): (2,)}
    said = collect_zip(course, LESSON, zip_of(course, tmp_path / "2.zip", again), "canvas", times=True)
    assert "0 new, 1 changed, 0 unchanged" in said
    folder = course.folder("submitted", "ada", LESSON)
    assert sorted(path.name for path in folder.iterdir()) == [f"{LESSON}-2.ipynb", "timestamp.txt"]
    assert (folder / "timestamp.txt").read_text() == "2026-10-05 14:30:00 UTC\n"
    assert [path.name for path in course.folder("submitted", "bo", LESSON).iterdir()] == [f"{LESSON}.ipynb"]


def test_no_name_in_a_zip_leads_out_of_the_students_folder(course, tmp_path):
    (tmp_path / "list.csv").write_text(MOODLE)
    import_roster(course, tmp_path / "list.csv")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    names = ["../../../x", "/y", "..", ".hidden", "sub/folder/z"]
    there = {f"Ada Lovelace_31_assignsubmission_file_/{name}.ipynb": (1.0,) for name in names}
    collect_zip(course, LESSON, zip_of(course, tmp_path / "z.zip", there), "moodle")
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    folder = course.folder("submitted", "ada", LESSON)
    expected = {folder / f"{name}.ipynb" for name in ("x", "y", "z")} | {folder / "hidden.ipynb"}
    assert {path for path in new if path.suffix == ".ipynb"} == expected


@pytest.mark.parametrize(
    "text, why",
    [("name\nAda\n", "no column for students' ids"), ("id\n../x\n", "line 2: '../x' can't be"), ("id\n\n.\n", "'.'")],
)
def test_a_roster_that_is_none_changes_nothing(course, tmp_path, text, why):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(ClassroomError, match=why):
        import_roster(course, tmp_path / "list.csv")
    with course.gradebook() as gradebook:
        assert gradebook.students == []


def test_two_students_of_one_name_are_not_guessed_and_a_zip_must_be_one(course, tmp_path):
    (tmp_path / "list.csv").write_text("id,first_name,last_name\nada,Ada,Lovelace\nada2,Ada,Lovelace\n")
    import_roster(course, tmp_path / "list.csv")
    file = zip_of(course, tmp_path / "z.zip", {f"Ada Lovelace_31_assignsubmission_file_/{LESSON}.ipynb": (1,)})
    assert "more than one, is Ada Lovelace" in collect_zip(course, LESSON, file, "moodle")
    assert course.students(LESSON) == []
    with pytest.raises(ClassroomError, match="can't be read as a zip"):
        collect_zip(course, LESSON, tmp_path / "list.csv", "moodle")
    with pytest.raises(ClassroomError, match="named_regexp has to say"):
        collect_zip(course, LESSON, file, "other")
