"""A folder that a student hands in: every byte is read by one reader, once, and all of it within one limit."""

from __future__ import annotations

import os
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from grader.classroom import notebook_file, submission
from grader.classroom.grades import Grades, find_problems, table
from grader.classroom.notebook_file import Folder, NotANotebook, names_in, read_file
from grader.classroom.one_submission import OneSubmission
from grader.sandbox.bounded import TooMuch

LESSON = "01_tiny"


@pytest.fixture
def folder(tmp_path):
    """Eleven copies of a notebook, in submitted/ada/01_tiny."""
    folder = tmp_path / "submitted" / "ada" / LESSON
    folder.mkdir(parents=True)
    for name in (LESSON, *(f"{LESSON} ({number})" for number in range(1, 11))):
        nbformat.write(new_notebook(cells=[new_code_cell("x = 1")]), folder / f"{name}.ipynb")
    return folder


@pytest.fixture
def reads(monkeypatch):
    """The files that are read, none of which belongs to the lesson."""
    found = []
    monkeypatch.setattr(submission, "is_of_lesson", lambda nb, ids: False)
    real = notebook_file.call_in_child
    monkeypatch.setattr(notebook_file, "call_in_child", lambda *args: found.append(args[2].name) or real(*args))
    return found


def find(folder):
    submission.find_notebook(folder / f"{LESSON}.ipynb", {"notebook": LESSON, "assignment": LESSON, "db_url": ""})


def test_each_file_is_read_once(folder, reads):
    with pytest.raises(NotANotebook, match="none of its cells belongs"):
        find(folder)
    assert len(reads) == len(set(reads)) == 11


def test_nothing_is_read_after_a_file_that_took_too_much(folder, monkeypatch):
    tried = []

    def too_much(seconds, function, path):
        tried.append(path.name)
        raise TooMuch("takes more than 20 s of computing")

    monkeypatch.setattr(notebook_file, "call_in_child", too_much)
    with pytest.raises(NotANotebook):
        find(folder)
    assert len(tried) == 1


def test_files_that_each_stay_below_the_limit_share_it(folder, monkeypatch):
    """Each read computes 8 s: a third one may take what is left, and there is no fourth."""
    allowed, work = [], iter(range(0, 10_000, 8))

    def slow(seconds, function, path):
        allowed.append(seconds)
        raise NotANotebook("damaged")

    monkeypatch.setattr(notebook_file, "work_in_child", lambda: next(work))
    monkeypatch.setattr(notebook_file, "call_in_child", slow)
    with pytest.raises(NotANotebook):
        find(folder)
    assert allowed == [20, 12, 4]


def test_the_limit_of_a_folder_ends_a_read_in_the_child(tmp_path):
    path = tmp_path / "large.ipynb"
    path.write_bytes(b'{"nbformat": 4, "cells": [' + b"[[[]]]," * 3_000_000 + b"0]}")
    one = Folder()
    one.left = 0.3
    for _ in range(2):
        with pytest.raises(NotANotebook, match=r"takes more than 0\.3 s"):
            one.read(path)
    assert one.left <= 0
    with pytest.raises(NotANotebook, match="was not read, because the files beside it took too long"):
        one.read(tmp_path / "another.ipynb")


def test_a_folder_of_many_files_is_not_listed_to_its_end(folder, monkeypatch):
    monkeypatch.setattr(notebook_file, "MAX_LISTED", 5)
    assert len(names_in(folder)) == 5 and names_in(folder / "none") == []


# ---- links -----------------------------------------------------------------------------------------------------------


def submission_of(root, student):
    def folder(step, student, lesson):
        return root / step / student / lesson

    course = SimpleNamespace(folder=folder, log_file=lambda lesson, student: "log")
    return course, OneSubmission(course, LESSON, student)


@pytest.mark.parametrize("what", ["the student's folder", "the lesson's folder"])
def test_a_link_to_another_students_folder_is_no_submission(folder, tmp_path, what):
    if what == "the student's folder":
        (tmp_path / "submitted" / "eve").symlink_to("ada")
    else:
        (tmp_path / "submitted" / "eve").mkdir()
        (tmp_path / "submitted" / "eve" / LESSON).symlink_to(f"../ada/{LESSON}")
    course, eve = submission_of(tmp_path, "eve")
    assert not eve.holds_a_notebook
    assert find_problems(course, LESSON, "eve") == ["the folder is a link, and links are not followed"]
    with pytest.raises(NotANotebook, match="the folder is a link"):  # as formgrader's own commands read it
        submission.find_notebook(tmp_path / "submitted" / "eve" / LESSON / f"{LESSON}.ipynb", None)
    assert submission_of(tmp_path, "ada")[1].holds_a_notebook


def test_a_file_that_is_in_two_folders_is_named(folder, tmp_path):
    other = tmp_path / "submitted" / "eve" / LESSON / f"{LESSON}.ipynb"
    other.parent.mkdir(parents=True)
    os.link(folder / f"{LESSON}.ipynb", other)
    _, repairs = submission.find_notebook(other, None)
    assert repairs == ["the file is in another place, too (a hard link)"]
    _, repairs = submission.find_notebook(folder / f"{LESSON} (1).ipynb", None)
    assert repairs == []


def test_a_linked_file_is_not_read(folder, tmp_path):
    (tmp_path / "linked.ipynb").symlink_to(folder / f"{LESSON}.ipynb")
    with pytest.raises(NotANotebook, match="is a link"):
        read_file(tmp_path / "linked.ipynb")


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x" * 200, "ada\u202egnp", "a\nb: 100 points", "\x1b[31mred", "\u200b" * 100])
def test_a_name_neither_widens_the_table_nor_turns_it_around(name):
    points = {"double-values": 2.0}
    grades = Grades(LESSON, {"double": ["double-values"]}, points, {"ada": {**points}, name: {**points}})
    lines = table(grades).splitlines()
    assert max(map(len, lines)) < 80 and all(line.isprintable() for line in lines)
    assert lines[2].startswith("ada ") and len({len(line) for line in lines[2:5]}) == 1


def test_the_names_of_other_files_do_not_fill_the_screen(tmp_path):
    folder = tmp_path / "submitted" / "ada" / LESSON
    folder.mkdir(parents=True)
    for number in range(100):
        (folder / f"{number}{'x' * 100}.txt").touch()
    course, _ = submission_of(tmp_path, "ada")
    [line] = find_problems(course, LESSON, "ada")
    assert len(line) < 600
