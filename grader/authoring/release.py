"""Pack the students' bundle, `dist/distributed-training.zip`. `make release` calls this.

A class's bundle holds no answer. The one for self-study, `dist/distributed-training-self-study.zip`, has each answer in
a cell of its own, folded, below the checks of its exercise, and nowhere else.

    bundle(root) -> Path             refuses if a notebook differs from its source, or if an answer is in the bundle
    leaks(file, lessons) -> [Leak]   the proof: every line of a bundle that holds part of an answer, or grader code
    leaks_in_other_words(file, lessons) -> [Leak]     code that means the same as part of an answer (meaning.py)
    command(root)                    the same for the command line: prints, returns the exit code

A line of an answer is **telling** if it
  - has at least 16 characters, not counting spaces and a comment at its end;
  - is more than the head of a block (`for peer in range(world_size):`) or a `return` of plain names;
  - appears nowhere in what the lessons give away: their text, their other cells, the frames of their exercises.
A telling line leaks if any line of the bundle contains it, ignoring spaces, as code, in a comment or in a string.
Other names, or another way to write a formula, are found by their meaning; meaning.UNSEEN says what is not.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nbformat
from nbformat.v4 import new_markdown_cell

from grader.authoring.build import bytes_of, drift, read_lessons, release_path
from grader.authoring.check_files import checks_file, for_students
from grader.authoring.facts import students_table
from grader.authoring.lesson import ROOT, BuildError, Lesson, parse
from grader.authoring.markers import REGION, clear_solution, solution_lines
from grader.authoring.meaning import UNSEEN, Piece, pieces, pieces_in_text

NAME = "distributed-training"
SELF_STUDY = f"{NAME}-self-study"
SOLUTION_CELL = "answer-to-"  # how the id of such a cell begins
FOLDED = """<details><summary>A solution, for self-study: try first, then read the hints</summary>

```python
{code}
```
</details>"""
DATE = (2020, 1, 1, 0, 0, 0)  # for every file in the zip, so that the same content gives the same bytes
FROM_ROOT = ("LICENSE", "LICENSE-TEXT", "setup_env.py")
ROOMS = Path("utils/checks/rooms")  # of the checks: utils/checks/rooms.py
FOR_TEACHERS = "# For teachers"  # ends the students' part of requirements.txt
MIN_TELLING = 16  # characters
NOT_TELLING = re.compile(r"(for|if|elif|else|while|with|try|except|finally)\b.*:|return [\w., ]+")
NO_ANSWER = "# no answer: "  # ends a line of code that may mean the same as an answer
NOT_FOR_STUDENTS = re.compile(r"(BEGIN|END) SOLUTION|HIDDEN TESTS|grader\.hidden")


# ---- contents --------------------------------------------------------------------------------------------------------


def contents(lessons: Iterable[Lesson], root: Path = ROOT, solutions: bool = False) -> dict[str, bytes]:
    """The bundle's files, {path in the bundle: content}. Raises BuildError if one is missing.

    solutions: with the folded answers of self-study
    """
    lessons = list(lessons)
    templates = root / "grader" / "bundle"
    files = {path.relative_to(root): path for path in (release_path(lesson) for lesson in lessons)}
    files |= {path.relative_to(root): path for path in visible_files(root / "utils")}
    files |= {ROOMS / lesson.name / name: lesson.room / name for lesson in lessons for name in recorded(lesson)}
    files |= {path.relative_to(templates): path for path in visible_files(templates)}
    files |= {Path(name): root / name for name in FROM_ROOT}
    files[Path("requirements.txt")] = root / "requirements.txt"
    wanted = {*files.values(), templates / "README.md", templates / "Makefile", root / "utils" / "__init__.py"}
    missing = sorted(path for path in wanted if not path.is_file())
    if missing:
        raise BuildError(f"the bundle needs {path.relative_to(root)}, but there is no such file" for path in missing)
    entries = {name.as_posix(): path.read_bytes() for name, path in files.items()}
    for lesson in lessons:
        entries[(ROOMS / lesson.name / checks_file(lesson).name).as_posix()] = for_students(lesson).encode()
    for lesson in lessons if solutions else ():
        name = release_path(lesson).relative_to(root).as_posix()
        entries[name] = with_solutions(entries[name], lesson)
    entries["requirements.txt"] = student_requirements(entries["requirements.txt"].decode()).encode()
    readme = entries["README.md"].decode()
    for place, text in {"<!-- lessons -->": students_table(lessons), "<!-- version -->": version(root)}.items():
        if place not in readme:
            raise BuildError([f"grader/bundle/README.md:1: nothing says where this goes: {place}"])
        readme = readme.replace(place, text)
    entries["README.md"] = readme.encode()
    return entries


def recorded(lesson: Lesson) -> list[str]:
    """What visible checks read, of what `make build` has written into the lesson's room."""
    return [name for name in ("recorded.json", "timelines.json", "mistakes.json") if (lesson.room / name).exists()]


def with_solutions(notebook: bytes, lesson: Lesson) -> bytes:
    """A lesson as students get it, with each answer in a folded cell below the last check of its exercise."""
    nb = nbformat.reads(notebook.decode(), as_version=4)
    below = {checks[-1].id: name for name in lesson.exercises if (checks := lesson.checks_of(name))}
    cells = []
    for cell in nb.cells:
        cells.append(cell)
        if cell.id in below:
            exercise = lesson.exercises[below[cell.id]]
            code = "\n".join(line for line in exercise.source.split("\n") if not REGION.fullmatch(line))
            cells.append(new_markdown_cell(FOLDED.format(code=code), id=f"{SOLUTION_CELL}{exercise.name}"[:64]))
    nb.cells = cells
    return bytes_of(nb)


def version(root: Path) -> str:
    """The course's version: pyproject.toml is the only place that says it."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def visible_files(folder: Path) -> Iterator[Path]:
    """All files below a folder, except hidden ones and caches."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
        if path.is_file() and path.suffix != ".pyc" and not hidden:
            yield path


def student_requirements(text: str) -> str:
    """The part of requirements.txt above the line `# For teachers ...`. Raises BuildError if that line is missing."""
    students, line, _ = text.partition(f"\n{FOR_TEACHERS}")
    if not line:
        raise BuildError(
            [f"requirements.txt has no line {FOR_TEACHERS!r}, which separates what is left out of the bundle"]
        )
    return students.rstrip() + "\n"


def zipped(entries: dict[str, bytes]) -> bytes:
    """The entries as a zip file with one top folder. The same entries give the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in sorted(entries):
            info = zipfile.ZipInfo(f"{NAME}/{name}", DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o100644 << 16
            info.create_system = 3  # Unix, on any machine
            bundle.writestr(info, entries[name])
    return packed.getvalue()


# ---- the proof -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leak:
    """A line of a bundle that no student may see: where it is, and what is wrong with it."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def leaks(file: str | Path | IO[bytes], lessons: Iterable[Lesson], solutions: bool = False) -> list[Leak]:
    """Everything in the zip `file` that gives away an answer of `lessons`, or belongs to the grader.

    solutions: the cells that `with_solutions` adds don't count
    """
    answers = telling_lines(lessons)
    found = []
    with zipfile.ZipFile(file) as bundle:
        for name in bundle.namelist():
            inside = name.removeprefix(f"{NAME}/")
            if inside.startswith(("solutions/", "grader/", "tests/", "submitted/", "autograded/", "feedback/")):
                found.append(Leak(inside, 1, "this file is not for students"))
            lines = list(lines_of(inside, bundle.read(name), solutions))
            text = "\n".join(squeeze(line) for _, line in lines)
            here = {answer: exercise for answer, exercise in answers.items() if answer in text}  # quicker than by line
            for number, line in lines:
                found += [Leak(inside, number, what) for what in leaks_of(line, here)]
    return found


def leaks_of(line: str, answers: dict[str, str]) -> Iterator[str]:
    mark = NOT_FOR_STUDENTS.search(line)
    if mark:
        yield f"holds {mark[0]!r}"
    squeezed = squeeze(line)
    for answer, exercise in answers.items():
        if answer in squeezed:
            yield f"holds a line of the answer of {exercise!r}: {line.strip()}"


def leaks_in_other_words(file: str | Path | IO[bytes], lessons: Iterable[Lesson]) -> list[Leak]:
    """Code in the zip `file` that means the same as part of an answer of `lessons`. Of each line, the largest piece."""
    answers = telling_pieces(lessons)
    found: dict[tuple[str, int, str], Piece] = {}
    with zipfile.ZipFile(file) as bundle:
        for name in bundle.namelist():
            inside = name.removeprefix(f"{NAME}/")
            for piece in pieces_of(inside, bundle.read(name)):
                for exercise, answer in (known for key in piece.keys for known in answers.get(key, [])):
                    place = (inside, piece.line, exercise)
                    if piece.means(answer) and (place not in found or len(found[place].text) < len(piece.text)):
                        found[place] = piece
    return [
        Leak(inside, line, f"means the same as part of the answer of {exercise!r}: {piece.text}")
        for (inside, line, exercise), piece in sorted(found.items(), key=lambda item: item[0])
    ]


def pieces_of(name: str, content: bytes) -> Iterator[Piece]:
    """The pieces of a Python file, with what its comments say, or of a page of text. (Notebooks are given.)

    A line that ends in `# no answer: why` has none: the course's own tools need some of the formulas, too.
    """
    if not name.endswith((".py", ".md")):
        return
    text = content.decode("utf-8", errors="replace")
    excused = {number for number, line in enumerate(text.split("\n"), 1) if NO_ANSWER in line}
    found = [*pieces_in_text(text)]
    if name.endswith(".py"):
        with suppress(SyntaxError):
            found += pieces(ast.parse(text))
    yield from (piece for piece in found if piece.line not in excused)


def telling_pieces(lessons: Iterable[Lesson]) -> dict[str, list[tuple[str, Piece]]]:
    """{key: the exercises whose answers have such a piece, with the piece}, without what the lessons give away."""
    lessons = list(lessons)
    given = {key for lesson in lessons for piece in given_pieces(lesson) for key in piece.keys}
    telling: dict[str, list[tuple[str, Piece]]] = {}
    for exercise in (exercise for lesson in lessons for exercise in lesson.exercises.values()):
        inside = {number + 1 for number, _ in solution_lines(exercise.source)}
        for piece in pieces(parse(exercise.source), any_order=True):
            if piece.line in inside and given.isdisjoint(piece.keys):
                for key in piece.keys:
                    telling.setdefault(key, []).append((exercise.name, piece))
    return telling


def given_pieces(lesson: Lesson) -> Iterator[Piece]:
    for cell in lesson.cells:
        source = clear_solution(cell.source)
        yield from pieces_in_text(source)
        if cell.kind == "code":
            yield from pieces(parse(source))


def telling_lines(lessons: Iterable[Lesson]) -> dict[str, str]:
    """{line of an answer without spaces: exercise} for the telling lines (see the top of this file)."""
    lessons = list(lessons)
    given = "\n".join(squeeze(line) for lesson in lessons for line in given_lines(lesson))
    telling = {}
    for exercise in (exercise for lesson in lessons for exercise in lesson.exercises.values()):
        for _, line in solution_lines(exercise.source):
            line = without_comment(line).strip()
            if len(squeeze(line)) >= MIN_TELLING and not NOT_TELLING.fullmatch(line) and squeeze(line) not in given:
                telling[squeeze(line)] = exercise.name
    return telling


def given_lines(lesson: Lesson) -> Iterator[str]:
    for cell in lesson.cells:
        yield from clear_solution(cell.source).split("\n")


def without_comment(line: str) -> str:
    """The line without a comment at its end. A line that is only a comment stays."""
    return re.sub(r"(?<=\S)\s+# .*$", "", line)


def squeeze(line: str) -> str:
    return "".join(line.split())


def lines_of(name: str, content: bytes, solutions: bool = False) -> Iterator[tuple[int, str]]:
    """The numbered lines of a file; for a notebook, the lines in its cells, with the cell's number."""
    text = content.decode("utf-8", errors="replace")
    if name.endswith(".ipynb"):
        for number, cell in enumerate(json.loads(text)["cells"], 1):
            if solutions and str(cell.get("id", "")).startswith(SOLUTION_CELL):
                continue
            yield from ((number, line) for string in strings_in(cell) for line in string.split("\n"))
    else:
        yield from enumerate(text.split("\n"), 1)


def strings_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value. A list of lines gives its lines, not one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)


# ---- making the bundle -----------------------------------------------------------------------------------------------


def bundle(root: Path = ROOT, solutions: bool = False) -> Path:
    """Make dist/distributed-training.zip, or with the solutions that of self-study, and return its path.

    Raises BuildError if a notebook differs from its source, if a file is missing, or if the bundle holds an answer.
    """
    drifted = drift(root=root)
    if drifted:
        raise BuildError(drifted)
    lessons = read_lessons(root=root)
    packed = zipped(contents(lessons, root, solutions))
    found = leaks(io.BytesIO(packed), lessons, solutions) + leaks_in_other_words(io.BytesIO(packed), lessons)
    if found:
        raise BuildError([f"the bundle was not made: {leak}" for leak in found])
    path = root / "dist" / f"{SELF_STUDY if solutions else NAME}.zip"
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(packed)
    os.replace(unfinished, path)
    return path


def command(root: Path = ROOT, solutions: bool = False) -> int:
    """`python -m grader release`: make the bundle, print what is in it, return the exit code."""
    try:
        path = bundle(root, solutions)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    with zipfile.ZipFile(path) as made:
        files = made.namelist()
    lessons = sum(name.endswith(".ipynb") for name in files)
    plural = "s" * (lessons != 1)
    answers = "each answer folded below its exercise, not for a class" if solutions else "no answer in it"
    print(f"{path.relative_to(root)}: {lessons} lesson{plural}, {len(files)} files, {answers}")
    print(f"The proof compares text, formulas by value and other expressions by shape. It can't see {UNSEEN}.")
    return 0
