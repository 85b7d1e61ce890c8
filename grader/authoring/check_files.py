"""Load the files that go with a lesson's source, from its room. An error in one of them is reported at its own line.

lines_of_checks(lesson, hidden) gives {(exercise, judges): line of the check}. answers(lesson) gives the wrong and right
answers. for_students(lesson) gives the checks without what is hidden.
"""

from __future__ import annotations

import ast
import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from grader.authoring.lesson import BuildError, Lesson, Problem, checks_name, shown
from grader.authoring.variants import Answers, read_answers

CELL = re.compile(r"<(.*) from line (\d+)>")  # a cell of the lesson, as tracebacks name it
HIDDEN = re.compile(r"^### BEGIN HIDDEN TESTS\n.*?^### END HIDDEN TESTS\n", re.MULTILINE | re.DOTALL)
GAP = re.compile(r"\n{3,}")

Lines = dict[tuple[str, str], int]


def answers(lesson: Lesson) -> Answers:
    """The wrong and right answers. Raises BuildError if there is no file, or if it can't be loaded."""
    path = answers_file(lesson)
    must_exist(path, "wrong answers that the lesson's checks must catch, and right ones that they must not")
    with located(lesson, path):
        return read_answers(path)


def must_exist(path: Path, holds: str) -> None:
    if not path.exists():
        raise BuildError([Problem(shown(path), 1, f"there is no such file: it holds {holds}")])


def checks_file(lesson: Lesson) -> Path:
    return lesson.room / checks_name(lesson.room)


def answers_file(lesson: Lesson) -> Path:
    return lesson.room / f"answers_{lesson.name[:2]}.py"


def files_of(lesson: Lesson) -> list[Path]:
    """The lesson's three files."""
    return [lesson.path, checks_file(lesson), answers_file(lesson)]


def for_students(checks: Path) -> str:
    """The text of checks without what stands between BEGIN and END HIDDEN TESTS. Students get no more."""
    return GAP.sub("\n\n\n", HIDDEN.sub("", checks.read_text(encoding="utf-8")))


def lines_of_checks(lesson: Lesson, hidden: bool = False) -> Lines:
    """The line of each visible check, or hidden test. Raises BuildError if there is no file, or it can't be loaded."""
    from utils.checks.registry import Checks  # imports torch, so only when needed

    path = checks_file(lesson)
    must_exist(path, "the lesson's checks")
    with located(lesson, path):
        checks = Checks(lesson.room, hidden)
    lines = lines_of_names(path)
    return {pair: lines.get(name, 1) for pair, name in checks.names.items()}


def lines_of_names(path: Path) -> dict[str, int]:
    """The line of each function and variable of a module."""
    lines = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            lines[node.name] = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        elif isinstance(node, ast.Assign):
            lines |= {target.id: node.lineno for target in node.targets if isinstance(target, ast.Name)}
    return lines


@contextlib.contextmanager
def located(lesson: Lesson, otherwise: Path, otherwise_line: int = 1) -> Iterator[None]:
    """Turn an exception in the `with` block into a BuildError, with the last line of the lesson's files that led to it.

    otherwise, otherwise_line: the place to name if none of them did
    """
    try:
        yield
    except BuildError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        frames = [(frame.filename, frame.lineno or 1) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            text = f"not Python: {error.msg}"
            frames.append((error.filename, error.lineno or 1))
        places = [place for frame in frames for place in place_of(*frame, lesson)]
        file, line = places[-1] if places else (shown(otherwise), otherwise_line)
        raise BuildError([Problem(file, line, text)]) from error


def place_of(file: str, line: int, lesson: Lesson) -> Iterator[tuple[str, int]]:
    """A line of one of the lesson's files, or of a cell of its source, as messages name it; nothing for any other."""
    if cell := CELL.fullmatch(file):
        yield cell[1], int(cell[2]) + line - 1
    elif Path(file) in files_of(lesson):
        yield shown(Path(file)), line


def line_with(path: Path, *texts: str) -> int:
    """The first line that holds the first text, then the first from there on with the next; 1 if there is none."""
    found = 0
    lines = path.read_text(encoding="utf-8").split("\n")
    for text in texts:
        found = next((number for number, line in enumerate(lines) if number >= found and text in line), found)
    return found + 1
