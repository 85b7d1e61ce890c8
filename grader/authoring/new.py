"""`python -m grader new`: the three files of a lesson, with exercises that work, for their author to replace.

    new_lesson("06_compression", ["top-k", "error-feedback"])   -> the files that it has written

The texts are templates in the folder `template`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grader.authoring.lesson import LESSON_NAME, NOT_A_NAME, ROOT, BuildError, function_of, read_lesson
from grader.authoring.markers import read_name

TEMPLATES = Path(__file__).with_name("template")
KINDS = ("lesson", "checks", "answers")


class Named(NamedTuple):
    """An exercise in the spellings that the files need."""

    name: str  # top-k
    function: str  # top_k
    heading: str  # Top k


def new_lesson(lesson: str, exercises: Sequence[str], root: Path = ROOT) -> list[Path]:
    """Write the lesson's three files. Raises BuildError if a name can't be used, or is taken."""
    made = texts(lesson, exercises)
    same_number = sorted(path.name for path in (root / "solutions").glob(f"{lesson[:2]}_*/"))
    if lesson in same_number:
        raise BuildError([f"solutions/{lesson} is there already, and stays as it is: choose another name"])
    if same_number:
        raise BuildError([f"solutions/{same_number[0]} has this number already: choose another one"])
    room = root / "solutions" / lesson
    room.mkdir(parents=True)
    for kind, text in made.items():
        Path(room, f"{kind}_{lesson[:2]}.py").write_text(text, encoding="utf-8")
    return sorted(room.iterdir())


def texts(lesson: str, exercises: Sequence[str]) -> dict[str, str]:
    """{"lesson": the text of lesson_NN.py, ...}. Raises BuildError if a name can't be used."""
    check_names(lesson, exercises)
    named = [Named(name, function_of(name), name.replace("-", " ").capitalize()) for name in exercises]
    title = lesson.partition("_")[2].replace("_", " ").capitalize()
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    made = {
        kind: environment.get_template(f"{kind}.py.j2").render(lesson=lesson, title=title, exercises=named)
        for kind in KINDS
    }
    must_be_readable(lesson, made["lesson"])
    return {kind: text if kind == "lesson" else formatted(text) for kind, text in made.items()}


def check_names(lesson: str, exercises: Sequence[str]) -> None:
    problems = [] if LESSON_NAME.fullmatch(lesson) else [NOT_A_NAME]
    if not exercises:
        problems.append("a lesson needs an exercise: --exercises top-k,error-feedback")
    for name, count in Counter(exercises).items():
        read_name({"exercise": name}, "exercise", problems.append)
        if count > 1:
            problems.append(f"{count} exercises are called {name!r}: rename one")
    if problems:
        raise BuildError(problems)


def must_be_readable(lesson: str, source: str) -> None:
    """What is left to find, the build's own reader finds, such as a name that is too long for the id of a cell."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, lesson, f"lesson_{lesson[:2]}.py")
        path.parent.mkdir()
        path.write_text(source, encoding="utf-8")
        try:
            read_lesson(path)
        except BuildError as error:  # without its lines: nobody has seen this text
            raise BuildError(getattr(problem, "text", problem) for problem in error.problems) from None


def formatted(text: str) -> str:
    """The text as `make lint` wants it: a long name can make a line too long."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "-"]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout


def command(lesson: str, exercises: Sequence[str], root: Path = ROOT) -> int:
    """`python -m grader new`: prints what it has written and what to do next, returns the exit code."""
    try:
        files = new_lesson(lesson, exercises, root)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    for path in files:
        print(f"wrote {path.relative_to(root)}")
    print(f"Now replace what they say. To see what students read, at each save: python -m grader try {lesson} --watch")
    return 0
