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
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grader.authoring.lesson import ROOT, BuildError, Cell, Lesson, Problem, find_lessons, read_lesson
from grader.authoring.variants import Answers, read_answers
from grader.hidden import hidden_tests_for
from utils.checks import CheckFailed, Checks, checks_for

PACKAGES = ("utils.checks", "grader.hidden", "tests.mutants")  # each has a module per lesson
CELL = re.compile(r"<(.*) from line (\d+)>")  # a cell of the lesson, as tracebacks name it

Function = Callable[..., Any]


class Way(NamedTuple):
    """One way to judge an exercise: a visible check, or the hidden test behind it."""

    judges: str
    hidden: bool = False

    def __str__(self) -> str:
        return f"the {'hidden test' if self.hidden else 'visible check'} of {self.judges!r}"


class Judged(NamedTuple):
    """What a check says about an answer. `words`: exactly what the student reads."""

    passed: bool
    words: str


class AnswerError(Exception):
    """An answer that can't be judged: it does not fit the solution, or its cell does not run."""


@dataclass(frozen=True)
class Workbench:
    """A lesson as it is on disk: its cells, its visible checks and hidden tests, its wrong and right answers."""

    lesson: Lesson
    visible: Checks
    hidden: Checks | None
    answers: Answers
    namespace: dict[str, Any]  # a kernel's, after the first code cell and all solutions

    @classmethod
    def load(cls, name: str) -> Workbench:
        """Read the four files, even if they were read before. The last two may be missing.

        Raises BuildError with file and line if one of them can't be read.
        """
        [path] = find_lessons([name])
        lesson = read_lesson(path)
        forget(name)
        _, checks, hidden, answers = files_of(name)
        if not checks.exists():
            raise BuildError([Problem(shown(checks), 1, "there is no such file: it holds the lesson's visible checks")])
        with located():
            return cls(
                lesson,
                checks_for(name),
                hidden_tests_for(name) if hidden.exists() else None,
                read_answers(answers) if answers.exists() else Answers(),
                namespace_of(lesson),
            )

    def ways(self, exercise: str) -> list[Way]:
        """All ways in which an exercise is judged: each visible check, then its hidden test if there is one."""
        hidden = self.hidden.registered if self.hidden else ()
        asked = [check.judges for check in self.lesson.checks if check.exercise == exercise]
        return [
            Way(judges, is_hidden)
            for judges in asked
            for is_hidden in (False, True)
            if not is_hidden or (exercise, judges) in hidden
        ]

    def answer(self, exercise: str, change: Callable[[str], str] = str) -> Function:
        """The exercise's function, from its cell as `change` leaves it; all other exercises are solved.

        Raises AnswerError if the cell can't be changed so, or does not run.
        """
        one = self.lesson.exercises[exercise]
        namespace = dict(self.namespace)
        try:
            cell = change(one.source)
        except ValueError as error:
            raise AnswerError(str(error)) from error
        try:
            run_cell(cell, namespace, f"<the answer to {exercise}>")
            return namespace[one.function]
        except SyntaxError as error:
            line = (error.text or "").strip()
            raise AnswerError(f"its cell is not Python: {error.msg}, line {error.lineno}: {line}") from error
        except Exception as error:
            raise AnswerError(f"its cell raises {type(error).__name__}: {error}") from error

    def judge(self, answer: Function, exercise: str, way: Way) -> Judged:
        """Judge a function. What its ranks print is dropped.

        Raises BuildError, with file and line, if the check is missing or fails itself.
        """
        checks = self.hidden if way.hidden else self.visible
        if checks is None or (exercise, way.judges) not in checks.registered:
            file = files_of(self.lesson.name)[2 if way.hidden else 1]
            raise BuildError([Problem(shown(file), 1, f"no function is marked as {way} of {exercise!r}")])
        with located(), contextlib.redirect_stdout(io.StringIO()) as said:
            try:
                checks(answer, judges=way.judges)
            except CheckFailed as failed:
                return Judged(False, str(failed))
        return Judged(True, said.getvalue().rstrip())


# ---- reading -----------------------------------------------------------------------------------------------------


def files_of(name: str) -> list[Path]:
    """The four files of a lesson: its source, its visible checks, its hidden tests, its wrong and right answers."""
    folders = ["solutions", *(package.replace(".", "/") for package in PACKAGES)]
    return [ROOT / folder / f"{name}.py" for folder in folders]


def shown(path: Path) -> str:
    """The file's name in messages."""
    return path.relative_to(ROOT).as_posix()


def forget(name: str) -> None:
    """Make Python read the modules of a lesson again when they are imported next."""
    for package in PACKAGES:
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


@contextlib.contextmanager
def located() -> Iterator[None]:
    """Turn an exception in the `with` block into a BuildError that names the lesson's file and line."""
    try:
        yield
    except BuildError:
        raise
    except Exception as error:
        raise BuildError([problem_of(error)]) from error


def problem_of(error: Exception) -> Problem:
    """Where in a lesson's files an exception comes from: the last line there that led to it."""
    text = f"{type(error).__name__}: {error}"
    frames = [(frame.filename, frame.lineno or 1) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        text = f"not Python: {error.msg}"
        frames.append((error.filename, error.lineno or 1))
    places = [place for place in (place_of(*frame) for frame in frames) if place]
    file, line = places[-1] if places else ("", 1)
    return Problem(file or "the lesson", line, text)


def place_of(file: str, line: int) -> tuple[str, int] | None:
    """A line of one of the lesson's four files, or of a cell of its source; None for any other."""
    if cell := CELL.fullmatch(file):
        return cell[1], int(cell[2]) + line - 1
    path = Path(file)
    if path.stem[:1].isdigit() and path.is_relative_to(ROOT):
        return shown(path), line
    return None
