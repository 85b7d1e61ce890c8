"""Build both notebooks of a lesson from its source. Used by `make build` and tests/lessons/test_notebooks.py.

    solutions/NN_topic/lesson_NN.py         written by hand, read by grader.authoring.lesson
      -> solutions/NN_topic/NN_topic.ipynb    executed, outputs kept; hidden tests appended to the check cells
      -> notebooks/NN_topic/NN_topic.ipynb    the students' version, made from it by nbgrader's own preprocessors

    build(names, force) -> [name]    builds the lessons that have changed
    drift(names) -> [text]           lists what differs from the sources, without executing anything
    command(names, force, check)     the same for the command line: prints, returns the exit code

The ids of exercises and checks come from the exercises' names, all others from the cell's text, so building again
gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from tqdm import tqdm

from grader.authoring.best_scores import best_scores_drift, write_best_scores
from grader.authoring.check_files import files_of, lines_of_checks
from grader.authoring.execute import METADATA, code_cells, execute, executed, take_outputs, without_outputs
from grader.authoring.facts import readme_with, shown_cells
from grader.authoring.lesson import (
    ROOT,
    BuildError,
    Cell,
    Lesson,
    Problem,
    find_lessons,
    read_lesson,
)
from grader.authoring.messages import has_changed, message_drift, update_messages
from grader.authoring.mistakes import known_of, not_told_apart
from grader.authoring.predictions import only_reveals
from grader.authoring.records import record_drift, write_record
from grader.authoring.rules import broken_rules

FOLDED = "# What it really is, beside your guess\n"  # the line that JupyterLab shows of a folded cell
MADE = (
    "frozen_cases.json",
    "best_scores.json",
    "timelines.json",
    "mistakes.json",
    "hidden_mistakes.json",
    "messages.txt",
)  # by `make build`, in a lesson's room
HIDDEN_TESTS = """
### BEGIN HIDDEN TESTS
from grader.hidden import hidden_tests_for
hidden_tests_for("{lesson}")({function}, judges="{judges}")
### END HIDDEN TESTS"""


# ---- the instructor's notebook ---------------------------------------------------------------------------------------


def solution_path(lesson: Lesson) -> Path:
    return lesson.room / f"{lesson.name}.ipynb"


def release_path(lesson: Lesson) -> Path:
    return lesson.root / "notebooks" / lesson.name / f"{lesson.name}.ipynb"


def read_lessons(names: Iterable[str] = (), root: Path = ROOT) -> list[Lesson]:
    """Read the lessons called `names`, or all lessons. Raises BuildError with the problems of all of them."""
    lessons, problems = [], []
    for path in find_lessons(names, root):
        try:
            lessons.append(read_lesson(path))
        except BuildError as error:
            problems += error.problems
    if problems:
        raise BuildError(problems)
    return lessons


def read_lessons_by_the_rules(names: Iterable[str] = (), root: Path = ROOT) -> list[Lesson]:
    """As read_lessons. Raises BuildError with every breach of a rule."""
    lessons = read_lessons(names, root)
    problems = dict.fromkeys(problem for lesson in lessons for problem in broken_rules(lesson))
    if problems:
        raise BuildError(problems)
    return lessons


def notebook_of(lesson: Lesson) -> NotebookNode:
    """The lesson as the instructor's notebook, not yet executed. Its cell i is the lesson's cell i."""
    hidden = set(lines_of_checks(lesson, hidden=True))
    seen: Counter[str] = Counter()
    cells = [notebook_cell(cell, lesson, hidden, seen) for cell in shown_cells(lesson)]
    cells[0].metadata["made_from"] = lesson.file  # for authors: students don't see it
    return new_notebook(cells=cells, metadata=METADATA)


def notebook_cell(cell: Cell, lesson: Lesson, hidden: set[tuple[str, str]], seen: Counter[str]) -> NotebookNode:
    metadata: dict[str, Any] = {"tags": list(cell.marker.tags)} if cell.marker.tags else {}
    if cell.exercise:
        metadata["nbgrader"] = nbgrader_metadata(cell.exercise, solution=True)
        return new_code_cell(cell.source, id=cell.exercise, metadata=metadata)
    if cell.check:
        check = cell.check
        points = 0 if check.is_extra_credit else check.points  # beyond what nbgrader counts as the most
        metadata["nbgrader"] = nbgrader_metadata(check.id, grade=True, locked=True, points=points)
        source = cell.source
        if (check.exercise, check.judges) in hidden:
            function = lesson.exercises[check.exercise].function
            source += HIDDEN_TESTS.format(lesson=lesson.name, function=function, judges=check.judges)
        return new_code_cell(source, id=check.id, metadata=metadata)
    if cell.marker.essay:
        metadata["nbgrader"] = nbgrader_metadata(
            cell.marker.essay, grade=True, solution=True, points=cell.marker.points
        )
        return new_markdown_cell(cell.source, id=cell.marker.essay, metadata=metadata)
    if cell.kind == "code" and only_reveals(cell.source):
        metadata["jupyter"] = {"source_hidden": True}  # folded in JupyterLab, which still shows its first line
        return new_code_cell(FOLDED + cell.source, id=content_id(cell, seen), metadata=metadata)
    new_cell: Callable[..., NotebookNode] = getattr(nbformat.v4, f"new_{cell.kind}_cell")
    return new_cell(cell.source, id=content_id(cell, seen), metadata=metadata)


def nbgrader_metadata(
    grade_id: str, *, grade: bool = False, solution: bool = False, locked: bool = False, **points: float
) -> dict[str, Any]:
    flags = {"grade": grade, "solution": solution, "locked": locked, "task": False}
    return {"schema_version": 3, "grade_id": grade_id, **flags, **points}


def content_id(cell: Cell, seen: Counter[str]) -> str:
    """A stable id: `code-` or `text-` and a hash of the text. The second of two equal cells gets -2."""
    kind = "code" if cell.kind == "code" else "text"
    name = f"{kind}-{hashlib.sha256(cell.source.encode()).hexdigest()[:8]}"
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}-{seen[name]}"


def bytes_of(notebook: NotebookNode) -> bytes:
    """A notebook's bytes as written to disk."""
    return (nbformat.writes(notebook) + "\n").encode()


# ---- the release -----------------------------------------------------------------------------------------------------


def release_of(lesson: Lesson, notebook: NotebookNode) -> bytes:
    """The students' version: `nbgrader generate_assignment NN_topic --no-db` with the course's configuration.

    nbgrader runs in an empty folder, so no other file can end up in the release.
    """
    from nbgrader.converters import GenerateAssignment  # takes 1.7 s, so only when needed
    from nbgrader.converters.base import NbGraderException
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config.loader import PyFileConfigLoader

    messages = io.StringIO()
    log = logging.Logger("generate_assignment", logging.ERROR)  # not connected to any other logger
    log.addHandler(logging.StreamHandler(messages))
    with tempfile.TemporaryDirectory() as course, search_paths_restored():
        source = Path(course, "solutions", lesson.name, f"{lesson.name}.ipynb")
        write(source, bytes_of(notebook))
        config = PyFileConfigLoader("nbgrader_config.py", path=str(lesson.root)).load_config()
        config.CourseDirectory.source_directory = "solutions"
        config.CourseDirectory.release_directory = "notebooks"
        config.SaveCells.enabled = False  # this and no_database are what --no-db sets
        coursedir = CourseDirectory(config=config, root=course, assignment_id=lesson.name)
        converter = GenerateAssignment(coursedir=coursedir, config=config, no_database=True, log=log)
        try:
            converter.start()
        except NbGraderException as error:
            reasons = re.findall(r"^[\w.]+: .*", messages.getvalue(), re.MULTILINE) or [str(error)]
            raise BuildError([Problem(lesson.file, 1, f"nbgrader can't make the release: {reasons[-1]}")]) from error
        return Path(course, "notebooks", lesson.name, f"{lesson.name}.ipynb").read_bytes()


@contextmanager
def search_paths_restored() -> Iterator[None]:
    """Undo at the end of the `with` block what nbgrader_config.py adds to the search paths."""
    path, environment = sys.path[:], dict(os.environ)
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: after an interruption there is the old one or the new one, never half a file.

    The unfinished file is outside the lesson's folder, because nbgrader copies everything in that folder to students.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.parent.parent / f".{path.name}.unfinished"
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


# ---- build and drift -------------------------------------------------------------------------------------------------


def build(names: Iterable[str] = (), force: bool = False, root: Path = ROOT) -> list[str]:
    """Build the notebooks of the lessons called `names`, or of all, if they differ from their source.

    Also write their rows in README.md's table of lessons. force: execute and write the notebooks even if nothing has
    changed. Returns the names of the lessons that were built, and README.md if its table was.
    Raises BuildError with everything that must be fixed first; that lesson's notebooks then stay as they were.
    """
    names = list(names)
    scored_anew = set()  # lessons whose outputs show other scores now
    for lesson in read_lessons(names, root):
        write_record(lesson)
        if (force or has_changed(lesson)) and write_best_scores(lesson):
            scored_anew.add(lesson.name)
    lessons = read_lessons_by_the_rules(names, root)
    wanted = [(lesson, notebook_of(lesson)) for lesson in lessons]
    to_do = [pair for pair in wanted if force or pair[0].name in scored_anew or drift_of(*pair)]
    to_run = {
        lesson.name: len(code_cells(notebook))
        for lesson, notebook in to_do
        if force or lesson.name in scored_anew or not take_outputs(notebook, read_notebook(solution_path(lesson)))
    }
    with tqdm(total=sum(to_run.values()), unit="cell", disable=None if to_run else True, leave=False) as bar:
        for lesson, notebook in to_do:
            bar.set_description(lesson.name)
            if lesson.name in to_run:
                execute(lesson, notebook, solution_path(lesson).parent, bar.update)
            release = release_of(lesson, notebook)
            write(solution_path(lesson), bytes_of(notebook))
            write(release_path(lesson), release)
    return [lesson.name for lesson, _ in to_do] + write_table(lessons, root, others=bool(names))


def drift(names: Iterable[str] = (), root: Path = ROOT) -> list[str]:
    """Differences between the notebooks on disk and their sources, one line each. Executes nothing.

    Also reports their rows in README.md's table of lessons and, without names, folders without a source. Raises
    BuildError if a source can't be built.
    """
    names = list(names)
    lessons = read_lessons_by_the_rules(names, root)
    found = [
        text
        for lesson in lessons
        for text in (
            *strays(lesson),
            *record_drift(lesson),
            *best_scores_drift(lesson),
            *drift_of(lesson, notebook_of(lesson)),
        )
    ]
    return [*found, *table_drift(lessons, root, others=bool(names)), *([] if names else without_source(root))]


def drift_of(lesson: Lesson, notebook: NotebookNode) -> list[str]:
    """How a lesson's two notebooks on disk differ from `notebook`, which need not be executed."""
    root = lesson.root
    solution, release = solution_path(lesson), release_path(lesson)
    old = read_notebook(solution)
    missing = [path for path in (solution, release) if not path.exists()]
    found = [f"{path.relative_to(root)} is missing: run `make build`" for path in missing]
    if solution.exists():
        difference = first_difference(lesson, without_outputs(notebook), old, solution)
        if difference:
            found.append(f"{solution.relative_to(root)} {difference}: run `make build`")
    if release.exists() and release.read_bytes() != release_of(lesson, without_outputs(notebook)):
        found.append(f"{release.relative_to(root)} is not what nbgrader makes from {lesson.file}: run `make build`")
    return found


def first_difference(lesson: Lesson, wanted: NotebookNode, old: NotebookNode | None, path: Path) -> str | None:
    if old is None:
        return "can't be read"
    bare = without_outputs(old)
    if bytes_of(bare) != bytes_of(wanted):
        pairs = zip(wanted.cells, bare.cells, lesson.cells, strict=False)
        line = next((cell.line for new_cell, old_cell, cell in pairs if new_cell != old_cell), 1)
        return f"is not what {lesson.file}:{line} says"
    if not executed(old):
        return "was not executed from top to bottom"
    if bytes_of(old) != path.read_bytes():
        return "was not written by `make build`"
    return None


def write_table(lessons: list[Lesson], root: Path, others: bool) -> list[str]:
    """Write these lessons' rows in README.md's table if they're out of date. Returns the names of the files written."""
    if not table_drift(lessons, root, others):
        return []
    readme = root / "README.md"
    readme.write_text(readme_with(readme.read_text(encoding="utf-8"), lessons, others), encoding="utf-8")
    return [readme.name]


def table_drift(lessons: list[Lesson], root: Path, others: bool) -> list[str]:
    """A line if a row in README.md's table of lessons is out of date. A course without a README.md needs no table.

    others      allow rows of other lessons, and leave them as they are
    """
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    out_of_date = text and text != readme_with(text, lessons, others)
    return ["README.md's table of lessons is out of date: run `make build`"] if out_of_date else []


def read_notebook(path: Path) -> NotebookNode | None:
    """The notebook at `path`, or None if it is missing or damaged."""
    try:
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except Exception:  # no file, not JSON, or not a notebook
        return None


def strays(lesson: Lesson) -> Iterator[str]:
    """Files in the lesson's folders that don't belong there. nbgrader hands out what lies beside a notebook."""
    of_room = {path.name for path in files_of(lesson)} | {solution_path(lesson).name, *MADE}
    for folder, belong in ((lesson.room, of_room), (release_path(lesson).parent, {release_path(lesson).name})):
        for other in sorted(folder.glob("[!._]*")):
            if other.name not in belong:
                yield f"{other.relative_to(lesson.root)} does not belong there: remove it"


def without_source(root: Path = ROOT) -> Iterator[str]:
    """Folders of lessons that no longer have a source."""
    names = {path.parent.name for path in (root / "solutions").glob("*/lesson_*.py")}
    for folder in sorted([*(root / "solutions").glob("[!._]*/"), *(root / "notebooks").glob("[!._]*/")]):
        if folder.name not in names:
            source = f"solutions/{folder.name}/lesson_{folder.name[:2]}.py"
            yield f"{folder.relative_to(root)} has no source {source}: remove the folder"


# ---- the command line ------------------------------------------------------------------------------------------------


def command(names: Iterable[str] = (), force: bool = False, check: bool = False, root: Path = ROOT) -> int:
    """`python -m grader build`: build, or with `check` only compare. Prints the result and returns the exit code."""
    try:
        if not check:
            made = build(names, force, root) + update_messages(read_lessons(names, root), force)
            print(f"built {', '.join(made)}" if made else "nothing to build")
            for text in (text for lesson in read_lessons(names, root) for text in not_told_apart(*known_of(lesson))):
                print(text)
        stored = [text for lesson in read_lessons(names, root) for text in message_drift(lesson)]
        found = drift(names, root) + stored
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; unfinished notebooks are unchanged", file=sys.stderr)
        return 130
    print("\n".join(found) or "all notebooks match their sources")
    return int(bool(found))
