"""The student bundle, `dist/distributed-training.zip`. `make release`, `python -m grader release` call it.

    bundle(root) -> Path             refuses when a notebook drifts from its source, or when an answer is in the bundle
    leaks(file, lessons) -> [Leak]   the proof: every line of an answer, or of the graders' own, that stands in a bundle
    command(root)                    the same for a command line: prints, returns the exit code

A line of an answer **tells** something when it
  - has at least 16 characters, spaces and the comment at its end not counted;
  - is more than the head of a block (`for peer in range(world_size):`) or a `return` of plain names;
  - stands nowhere in what the lessons give anyway: their text, their other cells, the frames of their exercises.
A telling line leaks when it stands in any line of the bundle, spaces not counted, as code, in a comment or in a string.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from grader.authoring.build import drift, read_lessons, release_path
from grader.authoring.lesson import ROOT, BuildError, Lesson
from grader.authoring.markers import clear_solution, solution_lines

NAME = "distributed-training"
DATE = (2020, 1, 1, 0, 0, 0)  # of every file in the zip: the same content gives the same bytes
FROM_ROOT = ("LICENSE", "setup_env.py")
FOR_TEACHERS = "# For teachers"  # the line of requirements.txt where the students' part ends
SHORTEST = 16
SAYS_NOTHING = re.compile(r"(for|if|elif|else|while|with|try|except|finally)\b.*:|return [\w., ]+")
NOT_FOR_STUDENTS = re.compile(r"(BEGIN|END) SOLUTION|HIDDEN TESTS|grader\.hidden|tests\.mutants")


# ---- what goes in ----------------------------------------------------------------------------------------------------


def contents(lessons: Iterable[Lesson], root: Path = ROOT) -> dict[str, bytes]:
    """The files of the bundle by their path in it. Raises BuildError when a part is missing."""
    templates = root / "grader" / "bundle"
    files = {path.relative_to(root): path for path in (release_path(lesson) for lesson in lessons)}
    files |= {path.relative_to(root): path for path in kept_files(root / "utils")}
    files |= {path.relative_to(templates): path for path in kept_files(templates)}
    files |= {Path(name): root / name for name in FROM_ROOT}
    files[Path("requirements.txt")] = root / "requirements.txt"
    wanted = {*files.values(), templates / "README.md", templates / "Makefile", root / "utils" / "__init__.py"}
    missing = sorted(path for path in wanted if not path.is_file())
    if missing:
        raise BuildError(f"the bundle needs {path.relative_to(root)}: there is no such file" for path in missing)
    entries = {name.as_posix(): path.read_bytes() for name, path in files.items()}
    entries["requirements.txt"] = student_requirements(entries["requirements.txt"].decode()).encode()
    return entries


def kept_files(folder: Path) -> Iterator[Path]:
    """The files below a folder, without caches and hidden ones."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
        if path.is_file() and path.suffix != ".pyc" and not hidden:
            yield path


def student_requirements(text: str) -> str:
    """The part of requirements.txt above its line `# For teachers ...`. Raises BuildError when it has none."""
    students, line, _ = text.partition(f"\n{FOR_TEACHERS}")
    if not line:
        raise BuildError([f"requirements.txt has no line {FOR_TEACHERS!r}: what follows it is left out of the bundle"])
    return students.rstrip() + "\n"


def zipped(entries: dict[str, bytes]) -> bytes:
    """The entries as a zip file, in one folder; the same entries give the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in sorted(entries):
            info = zipfile.ZipInfo(f"{NAME}/{name}", DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o100644 << 16
            info.create_system = 3  # Unix, wherever it is made
            bundle.writestr(info, entries[name])
    return packed.getvalue()


# ---- the proof -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leak:
    """A line of a bundle that no student may see: where it stands, and what it is."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def leaks(file: str | Path | IO[bytes], lessons: Iterable[Lesson]) -> list[Leak]:
    """Everything in the zip `file` that tells an answer of `lessons`, or belongs to the graders."""
    answers = telling_lines(lessons)
    found = []
    with zipfile.ZipFile(file) as bundle:
        for name in bundle.namelist():
            inside = name.removeprefix(f"{NAME}/")
            if inside.startswith(("solutions/", "grader/", "tests/", "submitted/", "autograded/", "feedback/")):
                found.append(Leak(inside, 1, "this file is not for students"))
            for number, line in lines_of(inside, bundle.read(name)):
                found += [Leak(inside, number, what) for what in leaks_of(line, answers)]
    return found


def leaks_of(line: str, answers: dict[str, str]) -> Iterator[str]:
    mark = NOT_FOR_STUDENTS.search(line)
    if mark:
        yield f"holds {mark[0]!r}"
    squeezed = squeeze(line)
    for answer, exercise in answers.items():
        if answer in squeezed:
            yield f"holds a line of the answer of {exercise!r}: {line.strip()}"


def telling_lines(lessons: Iterable[Lesson]) -> dict[str, str]:
    """{line of an answer, spaces left out: exercise} for the lines that tell something (see the top of this file)."""
    lessons = list(lessons)
    given = "\n".join(squeeze(line) for lesson in lessons for line in given_lines(lesson))
    telling = {}
    for exercise in (exercise for lesson in lessons for exercise in lesson.exercises.values()):
        for _, line in solution_lines(exercise.source):
            line = without_comment(line).strip()
            if len(squeeze(line)) >= SHORTEST and not SAYS_NOTHING.fullmatch(line) and squeeze(line) not in given:
                telling[squeeze(line)] = exercise.name
    return telling


def given_lines(lesson: Lesson) -> Iterator[str]:
    for cell in lesson.cells:
        yield from clear_solution(cell.source).split("\n")


def without_comment(line: str) -> str:
    """The line without a comment at its end; a line that is a comment stays."""
    return re.sub(r"(?<=\S)\s+# .*$", "", line)


def squeeze(line: str) -> str:
    return re.sub(r"\s+", "", line)


def lines_of(name: str, content: bytes) -> Iterator[tuple[int, str]]:
    """The lines of a file and their numbers; of a notebook the lines in its cells, whose number is that of the cell."""
    text = content.decode("utf-8", errors="replace")
    if name.endswith(".ipynb"):
        for number, cell in enumerate(json.loads(text)["cells"], 1):
            yield from ((number, line) for string in strings_in(cell) for line in string.split("\n"))
    else:
        yield from enumerate(text.split("\n"), 1)


def strings_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value; a list of lines counts as lines, not as one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)


# ---- making it -------------------------------------------------------------------------------------------------------


def bundle(root: Path = ROOT) -> Path:
    """Make dist/distributed-training.zip and return its path.

    Raises BuildError when a notebook is not what its source says, when a part is missing, and when an answer is in it.
    """
    drifted = drift(root=root)
    if drifted:
        raise BuildError(drifted)
    lessons = read_lessons(root=root)
    packed = zipped(contents(lessons, root))
    found = leaks(io.BytesIO(packed), lessons)
    if found:
        raise BuildError([f"the bundle was not made: {leak}" for leak in found])
    path = root / "dist" / f"{NAME}.zip"
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(packed)
    os.replace(unfinished, path)
    return path


def command(root: Path = ROOT) -> int:
    """`python -m grader release`: make the bundle, say what is in it, return the exit code."""
    try:
        path = bundle(root)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    with zipfile.ZipFile(path) as made:
        files = made.namelist()
    lessons = sum(name.endswith(".ipynb") for name in files)
    plural = "s" * (lessons != 1)
    print(f"{path.relative_to(root)}: {lessons} lesson{plural}, {len(files)} files, no answer in it")
    return 0
