"""A solution is graded again as soon as anything changes that its grading depends on."""

from types import SimpleNamespace

import pytest

from tests import graded_solutions

SHARED = ["utils/worlds/real/world.py", "utils/checks/oracles.py", "grader/judging/judge.py", "grader/sandbox/box.py"]
OWN = ["solutions/{}/lesson_00.py", "solutions/{}/checks_00.py", "solutions/{}/frozen_cases.json"]
LESSONS = ["01_one", "02_two", "03_three"]


@pytest.fixture
def course(tmp_path, monkeypatch):
    for file in [*SHARED, *(file.format(name) for file in OWN for name in LESSONS)]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("before")
    monkeypatch.setattr(graded_solutions, "ROOT", tmp_path)
    lessons = {name: SimpleNamespace(room=tmp_path / "solutions" / name) for name in LESSONS}
    monkeypatch.setattr(graded_solutions, "LESSONS", lessons)
    forget_keys()
    yield tmp_path
    forget_keys()


def forget_keys():
    graded_solutions.key_of.cache_clear()
    graded_solutions.code.cache_clear()


def keys() -> list[str]:
    forget_keys()
    return [graded_solutions.key_of(name) for name in LESSONS]


@pytest.mark.parametrize("file", SHARED)
def test_every_key_changes_with_code_that_judges_every_lesson(course, file):
    before = keys()
    (course / file).write_text("after")
    assert all(one != other for one, other in zip(before, keys(), strict=True))


@pytest.mark.parametrize("file", OWN)
def test_one_key_changes_with_a_lessons_own_files(course, file):
    before = keys()
    (course / file.format("02_two")).write_text("after")
    assert [one != other for one, other in zip(before, keys(), strict=True)] == [False, True, False]


@pytest.mark.parametrize("stored, skipped", [("the key", True), ("another", False), (None, False)])
def test_what_has_not_been_graded_as_it_is_now_is_graded(course, monkeypatch, stored, skipped):
    record = {"02_two": keys()[1] if stored == "the key" else stored}
    monkeypatch.setattr(graded_solutions, "record", lambda: record)
    assert graded_solutions.can_be_skipped("02_two") == skipped
    monkeypatch.setattr(graded_solutions, "ALWAYS", ["02_two"])
    assert not graded_solutions.can_be_skipped("02_two")
