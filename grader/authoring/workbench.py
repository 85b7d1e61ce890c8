"""One lesson with everything that judges it, loaded from its four files.

    bench = Workbench.load("01_collectives")
    answer = bench.answer("broadcast-by-hand", clear_solution)
    bench.judge(answer, "broadcast-by-hand", Way("values"))     -> whether it passes, and what a student reads

`python -m grader try`, the stored messages and tests/lessons/test_lessons.py all judge answers with it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grader.authoring.check_files import (
    answers,
    checks_file,
    hidden_file,
    hidden_tests,
    load,
    located,
    must_exist,
    name_of,
    visible_checks,
)
from grader.authoring.lesson import ROOT, BuildError, Cell, Lesson, Problem, find_lessons, read_lesson
from grader.authoring.records import write_record
from grader.authoring.variants import Answers
from grader.hidden import hidden_tests_for
from utils.checks import CheckFailed, Checks, checks_for
from utils.checks.runner import Runner

Function = Callable[..., Any]


class Way(NamedTuple):
    """One way to judge an exercise: a visible check, or the hidden test behind it."""

    judges: str
    hidden: bool = False

    def __str__(self) -> str:
        return f"the {'hidden test' if self.hidden else 'check'} of {self.judges}"


class Judged(NamedTuple):
    """What a check says about an answer. `words`: exactly what the student reads."""

    passed: bool
    words: str


class AnswerError(Exception):
    """An answer that can't be judged: it doesn't fit the solution, or its cell doesn't run."""


@dataclass(frozen=True)
class Workbench:
    """A lesson as it is on disk: its cells, its visible checks and hidden tests, its wrong and right answers."""

    lesson: Lesson
    visible: Checks
    hidden: Checks | None
    answers: Answers
    namespace: dict[str, Any]  # a kernel's, after the first code cell and all solutions
    lines: dict[tuple[str, Way], int]  # where the check of an exercise stands in its file

    @classmethod
    def load(cls, name: str, root: Path = ROOT, *, record: bool = False) -> Workbench:
        """Read the four files, even if they were read before. The hidden tests may be missing.

        record: first write down what hidden oracles say of visible cases, as `make build` does (records.py).
        Raises BuildError with file and line if a file can't be read.
        """
        [path] = find_lessons([name], root)
        lesson = read_lesson(path)
        visible, hidden = checks_file(lesson), hidden_file(lesson)
        must_exist(visible, "the lesson's visible checks")
        forget(name)
        with located(lesson, visible):
            load(visible, "utils.checks")
            if record:
                write_record(lesson)
            if hidden.exists():
                load(hidden, "grader.hidden")
            return cls(
                lesson,
                checks_for(name),
                hidden_tests_for(name) if hidden.exists() else None,
                answers(lesson),
                namespace_of(lesson),
                {
                    (exercise, Way(judges, kind is hidden_tests)): line
                    for kind in (visible_checks, hidden_tests)
                    for (exercise, judges), line in kind(lesson).items()
                },
            )

    def ways(self, exercise: str) -> list[Way]:
        """All ways in which an exercise is judged: each visible check, then its hidden test if there is one."""
        hidden = self.hidden.registered if self.hidden else ()
        ways = []
        for check in self.lesson.checks_of(exercise):
            ways.append(Way(check.judges))
            if (exercise, check.judges) in hidden:
                ways.append(Way(check.judges, hidden=True))
        return ways

    def answer(self, exercise: str, change: Callable[[str], str] = str) -> Function:
        """The exercise's function, from its cell as `change` leaves it; all other exercises are solved.

        Raises AnswerError if `change` raises ValueError, or if the cell doesn't run.
        """
        one = self.lesson.exercises[exercise]
        namespace = dict(self.namespace)
        try:
            cell = change(one.source)
        except ValueError as error:
            raise AnswerError(str(error)) from error
        try:
            run_cell(cell, namespace, f"<the answer to {exercise}>")
            function: Function = namespace[one.function]
        except Exception as error:
            raise AnswerError(f"its cell raises {type(error).__name__}: {error}") from error
        return function

    def judge(self, answer: Function, exercise: str, way: Way) -> Judged:
        """Judge a function. What its ranks print is dropped.

        Raises BuildError, with file and line, if the check is missing or fails itself.
        """
        checks = self.hidden if way.hidden else self.visible
        file = hidden_file(self.lesson) if way.hidden else checks_file(self.lesson)
        if checks is None or (exercise, way.judges) not in checks.registered:
            raise BuildError([Problem(name_of(file), 1, f"here is no check of the {way.judges!r} of {exercise!r}")])
        with located(self.lesson, file, self.lines[exercise, way]), contextlib.redirect_stdout(io.StringIO()):
            try:
                return Judged(True, checks.judge(answer, way.judges, Runner))
            except CheckFailed as failed:
                return Judged(False, str(failed))


# ---- reading ---------------------------------------------------------------------------------------------------------


def forget(name: str) -> None:
    """Make Python read the lesson's modules again when they are imported next."""
    for package in ("utils.checks", "grader.hidden"):
        sys.modules.pop(f"{package}.{name}", None)
    importlib.invalidate_caches()
    linecache.checkcache()


def cells_that_run(lesson: Lesson) -> list[Cell]:
    """The first code cell, which holds the imports, and all solutions."""
    code = [cell for cell in lesson.cells if cell.kind == "code"]
    return [cell for cell in code if cell is code[0] or cell.exercise]


def namespace_of(lesson: Lesson) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells_that_run(lesson):
        run_cell(cell.source, namespace, f"<{lesson.file} from line {cell.body_line}>")
    return namespace


def run_cell(source: str, namespace: dict[str, Any], name: str) -> None:
    """Run a cell as a notebook does, so that tracebacks and the ranks' reports can show its lines."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)
