"""Notebooks to judge without a course: a lesson's cells, with answers that a test chooses."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from functools import cache

import pytest
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from grader.authoring.lesson import Lesson, find_lessons, read_lesson
from grader.judging.judge import judge
from grader.judging.verdict import Judgement
from tests.sample_class import as_student


@cache
def lesson(name: str) -> Lesson:
    return read_lesson(find_lessons([name])[0])


def notebook(name: str, answers: dict[str, str] | None = None, judged: Iterable[str] | None = None) -> NotebookNode:
    """The solution, except for `answers`, {exercise: its cell}. judged: the checks that it has; all if None."""
    cells = []
    for cell in lesson(name).cells:
        if cell.check and (judged is None or cell.check.id in judged):
            cells.append(check_cell(name, cell.check.id, cell.check.exercise, cell.check.judges, cell.check.points))
        elif cell.kind == "code" and not cell.check:
            cells.append(new_code_cell((answers or {}).get(cell.exercise, as_student(cell.source))))
    return new_notebook(cells=cells)


def check_cell(lesson: str, name: str, exercise: str, judges: str, points: float) -> NotebookNode:
    """A check as it stands in the gradebook, with its hidden test."""
    call = f'({exercise.replace("-", "_")}, judges="{judges}")'
    hidden = f'from grader.hidden import hidden_tests_for\nhidden_tests_for("{lesson}"){call}'
    kind = {"grade": True, "solution": False, "locked": True, "task": False, "schema_version": 3}
    return new_code_cell(f"check{call}\n{hidden}", metadata={"nbgrader": {"grade_id": name, "points": points, **kind}})


def judged(name: str, answers: dict[str, str] | None = None, checks: Iterable[str] | None = None, **how) -> Judgement:
    return judge(notebook(name, answers, checks), **how)


def points(judgement: Judgement) -> dict[str, float]:
    return {verdict.check: verdict.points for verdict in judgement.verdicts}


def answer(exercise: str, arguments: str, body: str, before: str = "") -> dict[str, str]:
    """{exercise: a cell with `before` and the function}"""
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return {exercise: f"{before}\ndef {exercise.replace('-', '_')}({arguments}):\n{lines}\n"}


def broadcast(body: str, before: str = "") -> dict[str, str]:
    return answer("broadcast-by-hand", "x, root, rank, world_size", body, before)


def some(cases: dict[str, object], *always: str) -> list:
    """Parameters for a test: these in any case, all others only if the tests are to be thorough."""
    marks = {name: () if name in always else pytest.mark.thorough for name in cases}
    return [pytest.param(case, id=name, marks=marks[name]) for name, case in cases.items()]
