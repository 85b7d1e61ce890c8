"""The gradebook holds all of a submission's new grades or none, no matter who writes them and when they are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest
from nbgrader.api import Gradebook

from grader.classroom import grade_class
from grader.classroom.course import Course
from grader.classroom.grade_class import GradeOptions, autograde
from grader.classroom.gradebook import one_transaction, replace_file
from tests import stand_in_judge
from tests.stand_in_grader import released_course
from tests.stand_in_judge import earning
from tests.tiny_course import LESSON, POINTS, autograded, hand_in

STUDENTS = ["ada", "late"]
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    config = "c.LateSubmissionPlugin.penalty_method = 'zero'\n"
    course = released_course(tmp_path_factory.mktemp("course"), config=config)
    with course.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate="2026-01-01 12:00:00 UTC")
    return course


@pytest.fixture
def course(made, monkeypatch):
    monkeypatch.setattr(grade_class, "judge_all", stand_in_judge.judge_all)
    return made


def points_of_round(number: int) -> tuple[float, ...]:
    """Different points in every round."""
    return (number % 8 / 4, number % 12 / 4, number % 5 / 4)


def hand_in_round(course: Course, number: int) -> None:
    for student in STUDENTS:
        path = hand_in(course.root, student, **earning(*points_of_round(number)))
        if student == "late":
            path.with_name("timestamp.txt").write_text("2026-01-02 12:00:00 UTC")


def in_the_gradebook(course: Course) -> dict[str, tuple[float | None, ...]]:
    """student -> points of each check and the penalty, read with plain SQL."""
    query = """select student_id, base_cell.name, grade.auto_score, late_submission_penalty from grade
        join submitted_notebook on submitted_notebook.id = grade.notebook_id
        join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id
        join base_cell on base_cell.id = grade.cell_id"""
    found: dict[str, dict[str, float | None]] = {}
    with closing(sqlite3.connect(course.root / "gradebook.db")) as db:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        for student, check, points, penalty in db.execute(query):
            found.setdefault(student, {}).update({check: points, "penalty": penalty})
    return {student: tuple(row[name] for name in (*POINTS, "penalty")) for student, row in found.items()}


def expected(number: int) -> dict[str, tuple[float | None, ...]]:
    points = points_of_round(number)
    return {student: (*points, sum(points) if student == "late" else None) for student in STUDENTS}


def forked(act: Callable[[], object]) -> multiprocessing.Process:
    process = FORK.Process(target=act)
    process.start()
    return process


# ---- one transaction -------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_the_end_or_after_an_error(tmp_path, course):
    db_url = f"sqlite:///{tmp_path}/gradebook.db"

    def students() -> list[str]:
        with Gradebook(db_url) as gradebook:
            return sorted(student.id for student in gradebook.students)

    assert students() == []
    with one_transaction(db_url) as gradebook:
        gradebook.add_student("ada")
        gradebook.update_or_create_student("bo")
        assert gradebook.find_student("ada").id == "ada"
        assert students() == []
    assert students() == ["ada", "bo"]
    with pytest.raises(ZeroDivisionError), one_transaction(db_url) as gradebook:
        gradebook.add_student("cy")
        raise ZeroDivisionError
    with pytest.raises(ValueError), one_transaction(db_url) as gradebook:
        gradebook.add_student("cy")
        gradebook.add_student("ada")  # nbgrader itself rolls back
    assert students() == ["ada", "bo"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "notebook.ipynb"
    replace_file(path, b"old", 0o444)
    replace_file(path, b"new", 0o444)
    assert path.read_bytes() == b"new"

    def fails(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError):
        replace_file(path, b"half")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("notebook.ipynb", b"new")]


# ---- killed ----------------------------------------------------------------------------------------------------------


def killed_at_call(number: int, act: Callable[[], object]) -> None:
    """Run `act` and die at some function call; if it ends first, print how many calls there were."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    act()
    sys.setprofile(None)
    Path("calls").write_text(str(calls))


@pytest.mark.parametrize("times", [4, pytest.param(50, marks=pytest.mark.thorough)])
def test_when_killed_at_random_points_it_is_never_half_written(course, tmp_path, monkeypatch, times):
    """Killed at a random function call and after a random time, in turn. Rounds that finish first don't count."""
    monkeypatch.chdir(tmp_path)

    def grade() -> None:
        autograde(course, LESSON, STUDENTS)

    hand_in_round(course, 0)
    started = monotonic()
    forked(lambda: killed_at_call(0, grade)).join()
    seconds, calls = monotonic() - started, int(Path("calls").read_text())
    assert in_the_gradebook(course) == expected(0)
    killed = number = 0
    while killed < times:
        number += 1
        assert number <= 2 * times, f"only {killed} of {number - 1} graders were killed"
        dice = random.Random(number)
        hand_in_round(course, number)
        if number % 2:
            call = dice.randint(1, calls)
            grader = forked(lambda call=call: killed_at_call(call, grade))
            grader.join()
            calls = int(Path("calls").read_text())  # it may be fewer than it was
        else:
            grader, started = forked(grade), monotonic()
            grader.join(dice.uniform(0, seconds / 2))
            if not grader.is_alive():
                seconds = min(seconds, monotonic() - started)
            grader.kill()
            grader.join()
        killed += grader.exitcode == -signal.SIGKILL
        before, after = expected(number - 1), expected(number)
        found, notebooks = in_the_gradebook(course), in_the_notebooks(course)
        for student in STUDENTS:
            assert found[student] in (before[student], after[student]), (number, found)
            assert notebooks[student] in (before[student][:3], found[student][:3]), "no notebook is ahead of its grades"
        assert autograde(course, LESSON, STUDENTS).failed == {}
        assert in_the_gradebook(course) == after
        assert in_the_notebooks(course) == {student: points[:3] for student, points in after.items()}


def in_the_notebooks(course: Course) -> dict[str, tuple[float, ...]]:
    there = {student: autograded(course.root, student).metadata["judgement"]["verdicts"] for student in STUDENTS}
    return {student: tuple(one["points"] for one in verdicts) for student, verdicts in there.items()}


def test_finished_judgements_are_not_repeated_after_a_kill(course, monkeypatch):
    """Killed as soon as the first of two is in the gradebook. The next run judges only the second."""
    judged = []

    def judge_all(lesson: str, work: dict, *how: object) -> object:
        for one in stand_in_judge.judge_all(lesson, work):
            judged.append(one[0])
            yield one

    def dies_at_the_second(lesson: str, work: dict, *how: object) -> object:
        for number, one in enumerate(stand_in_judge.judge_all(lesson, work)):
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield one

    hand_in_round(course, 111)
    monkeypatch.setattr(grade_class, "judge_all", dies_at_the_second)
    grader = forked(lambda: autograde(course, LESSON, STUDENTS))
    grader.join()
    assert grader.exitcode == -signal.SIGKILL
    monkeypatch.setattr(grade_class, "judge_all", judge_all)
    assert str(autograde(course, LESSON, STUDENTS)) == "1 judged, 1 unchanged"
    assert judged == STUDENTS[1:]
    assert in_the_gradebook(course) == expected(111)
    autograde(course, LESSON, STUDENTS, GradeOptions(regrade=True))
    assert judged == STUDENTS[1:] + STUDENTS


# ---- concurrency -----------------------------------------------------------------------------------------------------


def test_two_graders_and_a_person_write_at_the_same_time_and_nothing_is_lost(course):
    """Two processes grade the same students over and over while somebody enters points and comments in formgrader."""
    hand_in_round(course, 112)
    autograde(course, LESSON, STUDENTS)

    def grader() -> None:
        for _ in range(4):
            autograde(course, LESSON, STUDENTS, GradeOptions(regrade=True))

    def person() -> None:
        for number in range(1, 21):
            for student in STUDENTS:
                with course.gradebook() as gradebook:  # as formgrader does, one for each request
                    comment = gradebook.find_comment("total", LESSON, LESSON, student)
                    assert comment.manual_comment in (None, str(number - 1))
                    comment.manual_comment = str(number)
                    gradebook.find_grade("total-values", LESSON, LESSON, student).extra_credit = number
                    gradebook.db.commit()

    processes = [forked(grader), forked(grader), forked(person)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    points = {one: row[:3] for one, row in in_the_gradebook(course).items()}
    assert points == {one: points_of_round(112) for one in STUDENTS}
    with course.gradebook() as gradebook:
        for student in STUDENTS:
            assert gradebook.find_comment("total", LESSON, LESSON, student).manual_comment == "20"
            assert gradebook.find_grade("total-values", LESSON, LESSON, student).extra_credit == 20


def test_a_process_that_finds_the_gradebook_locked_waits(course):
    """Longer than SQLite's default of five seconds, for every engine created after gradebook.py was loaded."""
    with Gradebook(course.directories.db_url) as gradebook:
        [[milliseconds]] = gradebook.db.connection().exec_driver_sql("pragma busy_timeout").fetchall()
    assert milliseconds >= 60_000
