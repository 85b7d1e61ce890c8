"""A class with notebooks that are made to stall or fill the machine of whoever grades them, beside an honest one."""

from __future__ import annotations

import csv
import os
from html import unescape
from pathlib import Path

import pytest
from nbformat.v4 import new_markdown_cell

from tests.tiny_course import (
    LESSON,
    POINTS,
    RIGHT,
    autograded,
    grader,
    hand_in,
    hand_in_file,
    make_course,
    nbgrader,
    page,
)

pytestmark = [pytest.mark.long(minutes=3), pytest.mark.sandbox, pytest.mark.thorough]
ALL = sum(POINTS.values())
FLOOD = """def total(x, rank, world_size):
    x = x.clone()
    dist.all_reduce(x)
    for number in range(10**6):
        dist.all_reduce(torch.ones(1))
        print("x" * 1000)
    return x"""


def chained(how: str) -> str:
    """Statements that take time quadratic or worse in their number to parse, compile or read, before the answer."""
    lines = {
        "branches": "if 0: x = 0\n" + "\n".join(f"elif {number}: x = {number}" for number in range(1000)),
        "names": "x = 0\n"
        + "\n".join(f"x{number} = {'x' if not number else f'x{number - 1}'}" for number in range(1000)),
        "attributes": "x = 0" + ".real" * 1000,
        "brackets": "x = " + "(" * 150 + "0" + ")" * 150,
        "sum": "x = " + "+".join("1" * 1000),
    }[how]
    return f"{lines}\n{RIGHT['double']}"


def many_cells(nb):
    nb.cells += [new_markdown_cell(" " * 18_000 + "x") for _ in range(5000)]


def heavy_metadata(nb):
    for cell in nb.cells:
        if "nbgrader" in cell.metadata:
            cell.metadata.nbgrader["more"] = [[]] * 1_000_000


def half_a_character(nb):
    nb.metadata.kernelspec.name = "HALF"
    nb.cells[0].metadata["nbgrader"] = {"grade_id": "HALF"}


def hand_in_attacks(course: Path) -> None:
    hand_in(course, "honest", **RIGHT)
    hand_in(course, "cells", many_cells, **RIGHT)
    hand_in(course, "metadata", heavy_metadata, **RIGHT)
    path = hand_in(course, "half", half_a_character, **RIGHT)
    path.write_text(path.read_text().replace("HALF", "\\ud800"))
    for how in ("branches", "names", "attributes", "brackets", "sum"):
        hand_in(course, how, **{**RIGHT, "double": chained(how)})
    hand_in(course, "flood", **{**RIGHT, "total": FLOOD})
    path = hand_in_file(course, "gigabyte", b'{"cells": [')
    os.truncate(path, 1 << 30)
    hand_in_file(course, "lists", b'{"nbformat": 4, "cells": [' + b"[[[]]]," * 12_000_000 + b"0]}")
    path = hand_in_file(course, "pipe", b"")
    path.unlink()
    os.mkfifo(path)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The class's folder and {student: its points}."""
    course = make_course(tmp_path_factory.mktemp("stalling") / "course")
    with (course / "nbgrader_config.py").open("a") as file:
        file.write("c.Judge.seconds = 120\n")
    nbgrader(course, "generate_assignment", LESSON)
    hand_in_attacks(course)
    grader("grade", LESSON, "--course", course)
    with (course / "grades.csv").open(newline="") as file:
        return course, {row["student"]: float(row[f"{LESSON}/total"]) for row in csv.DictReader(file)}


def test_the_honest_student_gets_all_points(graded):
    course, points = graded
    assert points["honest"] == ALL
    assert all(
        verdict["kind"] == "passed" for verdict in autograded(course, "honest").metadata["judgement"]["verdicts"]
    )


@pytest.mark.parametrize("student", ["cells", "metadata", "half", "names", "attributes", "brackets"])
def test_right_answers_in_a_heavy_notebook_earn_all_points(graded, student):
    assert graded[1][student] == ALL


@pytest.mark.parametrize("student", ["branches", "sum"])
def test_a_cell_that_is_nested_too_deeply_costs_only_its_own_exercise(graded, student):
    course, points = graded
    assert points[student] == ALL - POINTS["double-values"]
    assert "cell of double can't be read as Python (RecursionError" in unescape(page(course, student))


@pytest.mark.parametrize(
    "student, says",
    [
        ("gigabyte", "the file is too large to be read (1,073,741,824 bytes)"),
        ("lists", "the file can't be read: that needs too much memory"),
        ("pipe", "what has the notebook's name is not a regular file"),
    ],
)
def test_what_can_not_be_read_earns_nothing_and_says_so(graded, student, says):
    course, points = graded
    assert points[student] == 0
    assert says in unescape(page(course, student))


def test_a_flood_of_calls_earns_nothing_for_its_check_alone(graded):
    assert graded[1]["flood"] == POINTS["double-values"]


def test_every_page_and_the_graded_notebooks_stay_small(graded):
    course, points = graded
    for student in points:
        judged = course / "autograded" / student / LESSON / f"{LESSON}.ipynb"
        assert judged.stat().st_size < 5 << 20
        assert len(page(course, student)) < 5 << 20
