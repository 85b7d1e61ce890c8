"""A run in which nothing is new reads no submission and makes no page; whatever changes is noticed."""

from __future__ import annotations

import os

import pytest

from grader.classroom import grade_class
from grader.classroom.course import Course
from grader.classroom.judgement_cache import MAX_FILES, stamp_of
from grader.classroom.one_submission import OneSubmission
from grader.sandbox import bubblewrap
from tests import stand_in_judge
from tests.stand_in_grader import released_course
from tests.stand_in_judge import earning
from tests.tiny_course import LESSON, hand_in, page


@pytest.fixture
def did(tmp_path, monkeypatch):
    """A graded class of three, and what each further run does: (course, run)."""
    course = released_course(tmp_path)
    monkeypatch.setattr(grade_class, "judge_all", stand_in_judge.judge_all)
    monkeypatch.setattr(bubblewrap, "why_not", lambda: None)
    read, nbgrader, done = OneSubmission.read, Course.nbgrader, []

    def note_read(self: OneSubmission) -> object:
        done.append(f"read {self.student}")
        return read(self)

    def note_step(self: Course, step: type, lesson: str, exclude: str = "", **options: object) -> str | None:
        done.append(f"{step.__name__} without {exclude}")
        return nbgrader(self, step, lesson, exclude, **options)

    def run() -> list[str]:
        done.clear()
        grade_class.grade_class(course, LESSON)
        return list(done)

    for student in ("ada", "bo", "cy"):
        hand_in(course.root, student, **earning(2, 3, 1))
    monkeypatch.setattr(OneSubmission, "read", note_read)
    monkeypatch.setattr(Course, "nbgrader", note_step)
    assert run() == ["GenerateAssignment without ", "read ada", "read bo", "read cy", "GenerateFeedback without "]
    return course, run


def test_nothing_new_is_nothing_done_and_each_change_only_what_it_takes(did):
    course, run = did
    assert run() == []
    with course.gradebook() as gradebook:
        gradebook.find_comment("double", LESSON, LESSON, "bo").manual_comment = "Well done."
        gradebook.db.commit()
    assert run() == ["GenerateFeedback without ada,cy"] and "Well done." in page(course.root, "bo")
    hand_in(course.root, "cy", **earning(0, 0, 1))
    assert run() == ["read cy", "GenerateFeedback without ada,bo"]
    path = course.folder("submitted", "ada", LESSON) / f"{LESSON}.ipynb"
    os.utime(path, (1, 1))
    assert run() == ["read ada"], "the same text again"
    assert run() == []
    (course.root / "gradebook.db").unlink()
    everything = ["GenerateAssignment without ", "GenerateFeedback without "]
    assert [one for one in run() if not one.startswith("read")] == everything, "as recorded anew"
    with (course.folder("source", ".", LESSON) / f"{LESSON}.ipynb").open("a") as file:
        file.write("\n")
    assert run()[0] == "GenerateAssignment without "


def test_a_stamp_follows_every_file_and_gives_up_on_too_many(tmp_path):
    (tmp_path / "a").write_text("x")
    first = stamp_of(tmp_path)
    assert first == stamp_of(tmp_path) != stamp_of(tmp_path, ["more"])
    (tmp_path / "a").write_text("y")
    os.utime(tmp_path / "a", (1, 1))
    second = stamp_of(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert len({first, second, stamp_of(tmp_path)}) == 3
    for number in range(MAX_FILES):
        (tmp_path / f"{number}").touch()
    assert stamp_of(tmp_path) == ""
