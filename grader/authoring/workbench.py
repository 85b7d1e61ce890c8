"""One lesson with everything that judges it, loaded from its room.

    bench = Workbench.load("01_collectives")
    answer = bench.answer("broadcast-by-hand", clear_solution)
    bench.judge(answer, "broadcast-by-hand", Way("values"))     -> whether it passes, and what a student reads

`python -m grader try`, the stored messages and tests/lessons/test_lessons.py all judge answers with it.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grader.authoring.check_files import answers, checks_file, lines_of_checks, located, must_exist
from grader.authoring.lesson import ROOT, BuildError, Cell, Lesson, Problem, find_lessons, read_lesson, shown
from grader.authoring.records import write_record
from grader.authoring.variants import Answers
from utils.checks import CheckFailed, Checks
from utils.checks.answer import Outcome
from utils.checks.runner import Runner

Function = Callable[..., Any]


class Way(NamedTuple):
    """One way to judge an exercise: a visible check, or the hidden test behind it."""

    judges: str
    hidden: bool = False

    def __str__(self) -> str:
        return f"the {'hidden test' if self.hidden else 'check'} of {self.judges}"


class Judged(NamedTuple):
    """What a check says about an answer.

    words    exactly what the student reads
    outcome  all that was found wrong, if the check could judge what came back
    """

    passed: bool
    words: str
    outcome: Outcome | None = None


class AnswerError(Exception):
    """An answer that can't be judged: it doesn't fit the solution, or its cell doesn't run."""


@dataclass(frozen=True)
class Workbench:
    """A lesson as it is on disk: its cells, its visible checks and hidden tests, its wrong and right answers."""

    lesson: Lesson
    visible: Checks
    hidden: Checks
    answers: Answers
    namespace: dict[str, Any]  # a kernel's, after the first code cell and all solutions
    lines: dict[tuple[str, Way], int]  # where the check of an exercise stands in its file

    @classmethod
    def load(cls, name: str, root: Path = ROOT, *, record: bool = False) -> Workbench:
        """Read the three files, even if they were read before.

        record: first write down what hidden oracles say of visible cases, as `make build` does (records.py).
        Raises BuildError with file and line if a file can't be read.
        """
        [path] = find_lessons([name], root)
        lesson = read_lesson(path)
        must_exist(checks_file(lesson), "the lesson's checks")
        forget(lesson)
        with located(lesson, checks_file(lesson)):
            if record:
                write_record(lesson)
            visible, hidden = Checks(lesson.room), Checks(lesson.room, hidden=True)
            lines = {
                (exercise, Way(judges, is_hidden)): line
                for is_hidden in (False, True)
                for (exercise, judges), line in lines_of_checks(lesson, is_hidden).items()
            }
            return cls(lesson, visible, hidden, answers(lesson), namespace_of(lesson), lines)

    def ways(self, exercise: str) -> list[Way]:
        """All ways in which an exercise is judged: each visible check, then its hidden test if there is one."""
        ways = []
        for check in self.lesson.checks_of(exercise):
            ways.append(Way(check.judges))
            if (exercise, check.judges) in self.hidden.checks:
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
        if (exercise, way.judges) not in checks.checks:
            kind = "hidden test" if way.hidden else "check"
            what = f"here is no {kind} of the {way.judges!r} of {exercise!r}"
            raise BuildError([Problem(shown(checks_file(self.lesson)), 1, what)])
        place = checks_file(self.lesson), self.lines[exercise, way]
        with located(self.lesson, *place), contextlib.redirect_stdout(io.StringIO()):
            try:
                return Judged(True, checks.judge(answer, way.judges, Runner))
            except CheckFailed as failed:
                return Judged(False, str(failed), failed.outcome)


# ---- reading ---------------------------------------------------------------------------------------------------------


def forget(lesson: Lesson) -> None:
    """Make Python read the lesson's checks again when they are loaded next."""
    sys.modules.pop(checks_file(lesson).stem, None)
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
