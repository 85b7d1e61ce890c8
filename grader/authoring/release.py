"""Pack the students' bundle, `dist/distributed-training.zip`. `make release` calls this.

A class's bundle holds no answer. The one for self-study, `dist/distributed-training-self-study.zip`, has each answer in
a cell of its own, folded, below the checks of its exercise, and nowhere else.

    bundle(root) -> Path     refuses if a notebook differs from its source, or if an answer would be in it (leaks.py)
    command(root)            the same for the command line: prints, returns the exit code
"""

from __future__ import annotations

import io
import os
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell

from grader.authoring.build import bytes_of, drift, read_lessons, release_path
from grader.authoring.facts import students_table
from grader.authoring.leaks import SOLUTION_CELL, leaks, room_files, shipped_files, telling_lines
from grader.authoring.lesson import ROOT, BuildError, Lesson
from grader.authoring.markers import REGION

NAME = "distributed-training"
SELF_STUDY = f"{NAME}-self-study"
FOLDED_TEXT = "<details><summary>An answer, for self-study, and what it has to say</summary>\n\n{text}\n\n</details>"
FOLDED = """<details><summary>A solution, for self-study: try first, then read the hints</summary>

```python
{code}
```
</details>"""
DATE = (2020, 1, 1, 0, 0, 0)  # for every file in the zip, so that the same content gives the same bytes
FOR_TEACHERS = "# For teachers"  # ends the students' part of requirements.txt


# ---- contents --------------------------------------------------------------------------------------------------------


def contents(lessons: Iterable[Lesson], root: Path = ROOT, solutions: bool = False) -> dict[str, bytes]:
    """The bundle's files, {path in the bundle: content}. Raises BuildError if one is missing.

    solutions: with the folded answers of self-study
    """
    lessons = list(lessons)
    templates = root / "grader" / "bundle"
    files = {path.relative_to(root).as_posix(): path for path in map(release_path, lessons)} | shipped_files(root)
    wanted = {*files.values(), templates / "README.md", templates / "Makefile", root / "utils" / "__init__.py"}
    missing = sorted(path for path in wanted if not path.is_file())
    if missing:
        raise BuildError(f"the bundle needs {path.relative_to(root)}, but there is no such file" for path in missing)
    entries = {name: path.read_bytes() for name, path in files.items()}
    for lesson in lessons:
        entries |= room_files(lesson.room)
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


def with_solutions(notebook: bytes, lesson: Lesson) -> bytes:
    """A lesson as students get it, with each answer folded: below its exercise's last check, or its essay."""
    nb = nbformat.reads(notebook.decode(), as_version=4)
    below = {checks[-1].id: name for name in lesson.exercises if (checks := lesson.checks_of(name))}
    cells = []
    for cell in nb.cells:
        cells.append(cell)
        if cell.id in below:
            exercise = lesson.exercises[below[cell.id]]
            code = "\n".join(line for line in exercise.source.split("\n") if not REGION.fullmatch(line))
            cells.append(new_markdown_cell(FOLDED.format(code=code), id=f"{SOLUTION_CELL}{exercise.name}"[:64]))
        elif essay := lesson.essays.get(cell.id):
            cells.append(new_markdown_cell(FOLDED_TEXT.format(text=essay.text), id=f"{SOLUTION_CELL}{essay.name}"[:64]))
    nb.cells = cells
    return bytes_of(nb)


def version(root: Path) -> str:
    """The course's version: pyproject.toml is the only place that says it."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


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


# ---- making the bundle -----------------------------------------------------------------------------------------------


def bundle(root: Path = ROOT, solutions: bool = False) -> Path:
    """Make dist/distributed-training.zip, or with the solutions that of self-study, and return its path.

    Raises BuildError if a notebook differs from its source, if a file is missing, or if the bundle holds an answer.
    """
    drifted = drift(root=root)
    if drifted:
        raise BuildError(drifted)
    lessons = read_lessons(root=root)
    files = contents(lessons, root, solutions)
    found = leaks(files, telling_lines(lesson.path for lesson in lessons), solutions)
    if found:
        raise BuildError([f"the bundle was not made: {leak}" for leak in found])
    path = root / "dist" / f"{SELF_STUDY if solutions else NAME}.zip"
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(zipped(files))
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
    return 0
