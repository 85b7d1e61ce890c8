"""Load the three files that go with a lesson's source. An error in one of them is reported at its own line.

visible_checks(lesson) and hidden_tests(lesson) give {(exercise, judges): line of the check}, from utils/checks and
grader/hidden. answers(lesson) gives the wrong and right answers from tests/mutants.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from grader.authoring.lesson import BuildError, Lesson, Problem
from grader.authoring.variants import Answers, read_answers

CELL = re.compile(r"<(.*) from line (\d+)>")  # a cell of the lesson, as tracebacks name it

Lines = dict[tuple[str, str], int]


def visible_checks(lesson: Lesson) -> Lines:
    """The line of each visible check. Raises BuildError if there is no file, or if it can't be loaded."""
    must_exist(checks_file(lesson), "the lesson's visible checks")
    return registered(lesson, checks_file(lesson), "utils.checks")


def hidden_tests(lesson: Lesson) -> Lines:
    """The line of each hidden test. Raises BuildError if they can't be loaded."""
    return registered(lesson, hidden_file(lesson), "grader.hidden") if hidden_file(lesson).exists() else {}


def answers(lesson: Lesson) -> Answers:
    """The wrong and right answers. Raises BuildError if there is no file, or if it can't be loaded."""
    path = answers_file(lesson)
    must_exist(path, "wrong answers that the lesson's checks must catch, and right ones that they must not")
    with located(lesson, path):
        return read_answers(path)


def must_exist(path: Path, holds: str) -> None:
    if not path.exists():
        raise BuildError([Problem(name_of(path), 1, f"there is no such file: it holds {holds}")])


def checks_file(lesson: Lesson) -> Path:
    return lesson.root / "utils" / "checks" / f"{lesson.name}.py"


def hidden_file(lesson: Lesson) -> Path:
    return lesson.root / "grader" / "hidden" / f"{lesson.name}.py"


def answers_file(lesson: Lesson) -> Path:
    return lesson.root / "tests" / "mutants" / f"{lesson.name}.py"


def files_of(lesson: Lesson) -> list[Path]:
    """The lesson's four files."""
    return [lesson.path, checks_file(lesson), hidden_file(lesson), answers_file(lesson)]


def name_of(path: Path) -> str:
    """`utils/checks/01_collectives.py`, the name in messages."""
    return "/".join(path.parts[-3:])


def registered(lesson: Lesson, path: Path, package: str) -> Lines:
    from utils.checks.registry import checks_in  # imports torch, so only when needed

    with located(lesson, path):
        module = load(path, package)
    lines = lines_of_names(path)
    return {
        (one.exercise, one.judges): lines.get(name, 1) for name, item in vars(module).items() for one in checks_in(item)
    }


def lines_of_names(path: Path) -> dict[str, int]:
    """The line of each function and variable of a module."""
    lines = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            lines[node.name] = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        elif isinstance(node, ast.Assign):
            lines |= {target.id: node.lineno for target in node.targets if isinstance(target, ast.Name)}
    return lines


def load(path: Path, package: str) -> ModuleType:
    """The module at `path`, as a part of `package`, even if the course is in a folder other than this project's."""
    importlib.import_module(package)
    name = f"{package}.{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:  # without Python's cache, which takes a file for the old one if its size and second are the same
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


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
        file, line = places[-1] if places else (name_of(otherwise), otherwise_line)
        raise BuildError([Problem(file, line, text)]) from error


def place_of(file: str, line: int, lesson: Lesson) -> Iterator[tuple[str, int]]:
    """A line of one of the lesson's files, or of a cell of its source, as messages name it; nothing for any other."""
    if cell := CELL.fullmatch(file):
        yield cell[1], int(cell[2]) + line - 1
    elif Path(file) in files_of(lesson):
        yield name_of(Path(file)), line


def line_with(path: Path, *texts: str) -> int:
    """The first line that holds the first text, then the first from there on with the next; 1 if there is none."""
    found = 0
    lines = path.read_text(encoding="utf-8").split("\n")
    for text in texts:
        found = next((number for number, line in enumerate(lines) if number >= found and text in line), found)
    return found + 1
