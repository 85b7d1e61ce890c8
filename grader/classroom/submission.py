"""Rebuild a submission: put the student's text into the official cells, and keep nothing else.

    Submission (finds and reads the file) -> OfficialCells -> nbgrader's OverwriteCells

The text and the points of an official cell come from the gradebook, never from the submission. The order of the cells:

- The student's cells keep their order.
- A cell is the answer to an exercise if its metadata or its id says so; if several do, the last one that defines the
  function. If none does, or it has not been changed, the answer is the last cell that defines the function.
- A check stays where the student has it. If it was moved or deleted, or is above its answer, it goes to its place in
  the release: above the next cell of the release, and always below its answer. So a check sees its answer, every cell
  above that, and every cell above the check's own place.

Each repair is one line in the notebook's metadata (`problems`), which the feedback page and `python -m grader grade`
show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook, MissingEntry, Notebook, SourceCell
from nbgrader.preprocessors import NbGraderPreprocessor

from grader.classroom.notebook_file import LINKED, Folder, NotANotebook, count, is_link, names_in, printable

HIDDEN = re.compile(r"^[^\n]*### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS[^\n]*$", re.MULTILINE | re.DOTALL)
NO_ANSWER = "there is no answer to "  # and then their exercises
MAX_FILES = 10  # per folder
COPY = r"( ?[(\[]\d+[)\]]|[-_ ]\d{1,3}|[-_ ]*copy[-_ ]*(\(?\d*\)?))"  # NAME (1), NAME-1, NAME-Copy1, NAME - Copy (2)


# ---- what went wrong -------------------------------------------------------------------------------------------------


def add_problem(nb: NotebookNode, text: str) -> None:
    """Add one line about this submission to its notebook."""
    nb.metadata.setdefault("problems", []).append(text)


def problems(nb: NotebookNode) -> list[str]:
    """What went wrong while this submission was graded, one line per problem."""
    return list(nb.metadata.get("problems", []))


# ---- finding and reading the file ------------------------------------------------------------------------------------


class Submission(NotebookExporter):
    """Reads a submitted file. If it isn't a notebook, the result is an empty one, with the reason in `resources`."""

    def from_filename(self, filename: str, resources: dict[str, Any] | None = None, **kw: Any) -> tuple[Any, ...]:
        path, resources = Path(filename), {} if resources is None else resources
        resources.setdefault("metadata", {}).update(name=path.stem, path=str(path.parent))
        try:
            nb, resources["repairs"] = find_notebook(path, resources.get("nbgrader"))
        except NotANotebook as reason:
            nb, resources["not_a_notebook"] = new_notebook(), str(reason)
        return self.from_notebook_node(nb, resources=resources, **kw)  # type: ignore[no-untyped-call]


def find_notebook(path: Path, ids: dict[str, Any] | None) -> tuple[NotebookNode, list[str]]:
    """The lesson's notebook, and what had to be repaired. Raises NotANotebook.

    Several files may have the official name, since a browser or an LMS calls the second one `NAME (1)` or `NAME-1`.
    Of those that belong to the lesson, the newest counts. If there is none, but exactly one other notebook in the
    folder belongs to the lesson, that one is read instead.
    """
    if is_link(path.parent):
        raise NotANotebook(LINKED)
    others, folder = notebooks_beside(path), Folder()
    if ids is None or not others:
        try:
            nb, repairs = folder.read(path)
            return nb, [*repairs, *shared_file(path)]
        except NotANotebook as reason:
            raise reason if path.exists() or path.is_symlink() else NotANotebook(because(path, reason)) from None
    official = sorted([path, *(one for one in others if is_copy(one, path))], key=lambda one: -modified(one))
    reasons: dict[Path, NotANotebook] = {}
    for one in official:
        try:
            nb, repairs = read_of_lesson(one, ids, folder)
        except NotANotebook as reason:
            reasons[one] = reason
            continue
        rest = [other for other in [path, *others] if other != one and not (other == path and path in reasons)]
        return nb, [*why_this(one, path, reasons.get(path)), *repairs, *not_read(rest)]
    found = []
    for other in others:
        with suppress(NotANotebook):
            nb, repairs = read_of_lesson(other, ids, folder)
            found.append((nb, [*why_this(other, path, reasons[path]), *repairs]))
    if len(found) == 1:
        return found[0]
    if found:
        raise NotANotebook(
            f"{because(path, reasons[path])}, and {len(found)} other notebooks could be the right one: rename one"
        )
    raise reasons[path] if path.exists() or path.is_symlink() else NotANotebook(because(path, reasons[path]))


def read_of_lesson(path: Path, ids: dict[str, Any], folder: Folder) -> tuple[NotebookNode, list[str]]:
    """Read a notebook of this lesson. Raises NotANotebook for that of another one, too."""
    nb, repairs = folder.read(path)
    if not is_of_lesson(nb, ids):
        raise NotANotebook(f"none of its cells belongs to {ids['notebook']}: is it the notebook of another lesson?")
    return nb, [*repairs, *shared_file(path)]


def shared_file(path: Path) -> list[str]:
    """A line if the file has another name, too, which may lie in another student's folder."""
    return ["the file is in another place, too (a hard link)"] if path.lstat().st_nlink > 1 else []


def is_copy(other: Path, path: Path) -> bool:
    """Whether a file has the official name with what browsers, file managers and LMSs add to that of a second file."""
    return bool(re.fullmatch(re.escape(path.stem) + COPY, other.stem, re.IGNORECASE))


def modified(path: Path) -> float:
    """When the file was last changed, in seconds; the epoch if it doesn't exist."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return float("-inf")


def why_this(chosen: Path, path: Path, reason: NotANotebook | None) -> list[str]:
    """Why this file was read and not the one of the official name, if so."""
    if chosen == path:
        return []
    if reason:
        return [f"{printable(chosen.name)} was read instead, because {because(path, reason)}"]
    if not path.exists():
        return [f"{printable(chosen.name)} was read instead, because there is no {path.name}"]
    return [f"{printable(chosen.name)} was read, because it is newer than {path.name}"]


def not_read(others: list[Path]) -> list[str]:
    there = [path for path in others if path.exists()]
    return [f"not read: {', '.join(printable(path.name) for path in there)}"] if there else []


def because(path: Path, reason: NotANotebook) -> str:
    return f"{path.name}: {reason}" if path.exists() or path.is_symlink() else f"there is no {path.name}"


def notebooks_beside(path: Path) -> list[Path]:
    """The other notebooks in its folder that are regular files."""
    names = [name for name in names_in(path.parent) if name.endswith(".ipynb") and name[0] != "."]
    found = (path.with_name(name) for name in names if name != path.name)
    return [other for other in found if other.is_file() and not other.is_symlink()][:MAX_FILES]


def is_of_lesson(nb: NotebookNode, ids: dict[str, Any]) -> bool:
    with Gradebook(ids["db_url"]) as gradebook:
        try:
            lesson = Lesson(gradebook.find_notebook(ids["notebook"], ids["assignment"]))
        except MissingEntry:
            return False
        claims = any(claim(cell) in lesson.cells for cell in nb.cells)
        return claims or any(defines(cell.source, name) for cell in nb.cells for name in lesson.answers)


# ---- the lesson, as the gradebook knows it ---------------------------------------------------------------------------


class Lesson:
    """The release's cells that nbgrader tracks, in order."""

    def __init__(self, notebook: Notebook):
        self.cells = {cell.name: Official(cell, official_metadata(cell, notebook)) for cell in notebook.source_cells}
        self.order = list(self.cells)
        self.answers = [name for name, cell in self.cells.items() if cell.is_answer]

    def answer_of(self, check: str) -> str | None:
        """The exercise that a check judges: `ring-all-reduce-values` judges `ring-all-reduce`, not `ring`."""
        return max((name for name in self.answers if check.startswith(f"{name}-")), key=len, default=None)


@dataclass(frozen=True)
class Official:
    """One cell of the release."""

    source_cell: SourceCell
    metadata: dict[str, Any]

    @property
    def is_answer(self) -> bool:
        return self.metadata["solution"]

    @property
    def is_restored(self) -> bool:
        """Whether it is put back if missing. A plain answer isn't: its empty stub would override the real one."""
        return self.metadata["grade"] or self.metadata["locked"]

    @cached_property
    def given(self) -> str:
        """The text that students get."""
        return plain(HIDDEN.sub("", self.source_cell.source))

    def cell(self, source: str, number: str) -> NotebookNode:
        metadata = {"nbgrader": dict(self.metadata)}
        return new_cell(self.source_cell.cell_type, source=source, id=number, metadata=metadata)


def new_cell(kind: str, **content: Any) -> NotebookNode:
    return getattr(nbformat.v4, f"new_{kind}_cell")(**content)


def official_metadata(cell: SourceCell, notebook: Notebook) -> dict[str, Any]:
    """The nbgrader metadata of a cell of the release, from the gradebook."""
    points = {other.name: other.max_score for other in [*notebook.grade_cells, *notebook.task_cells]}
    metadata = {
        "grade_id": cell.name,
        "cell_type": cell.cell_type,
        "locked": cell.locked,
        "grade": any(cell.name == other.name for other in notebook.grade_cells),
        "solution": any(cell.name == other.name for other in notebook.solution_cells),
        "task": any(cell.name == other.name for other in notebook.task_cells),
        "schema_version": 3,
    }
    return {**metadata, "points": points[cell.name]} if cell.name in points else metadata


def defines(source: str, exercise: str) -> bool:
    """Whether a text defines an exercise's function, which is `ring_all_reduce` for `ring-all-reduce`."""
    name = re.escape(exercise.replace("-", "_"))
    definition = rf"^[ \t]*((async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*=[^=]"
    return bool(re.search(definition, source, re.MULTILINE))


def plain(source: str) -> str:
    """A text without the white space that editors change by themselves."""
    return "\n".join(line.rstrip() for line in source.strip().splitlines())


# ---- the student's text in the official cells ------------------------------------------------------------------------


class OfficialCells(NbGraderPreprocessor):
    """Keeps the text of each cell and nothing else; each cell's type and points come from the gradebook.

    The submission's tags (skip-execution!), points, flags and outputs are dropped. A copy of a check cell becomes an
    ordinary cell, and a deleted one is put back.
    """

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        ids = resources["nbgrader"]
        with Gradebook(ids["db_url"]) as gradebook:
            lesson = Lesson(gradebook.find_notebook(ids["notebook"], ids["assignment"]))
            taken = Taken(lesson, nb)
            clean = new_notebook(cells=taken.cells)
            wrong = resources.get("not_a_notebook")
            if not wrong and not taken.found:
                wrong = f"none of its cells belongs to {ids['notebook']}: {whose(nb, gradebook, ids['assignment'])}"
            lines = [*resources.get("repairs", []), *([wrong] if wrong else [*language(nb), *taken.repairs])]
            for line in lines:
                add_problem(clean, line)
            if wrong:
                clean.metadata["not_run"] = True
        return clean, resources


def claim(cell: NotebookNode) -> str | None:
    """The official name that a cell claims. A tool that drops metadata usually leaves the id."""
    name = cell.metadata.get("nbgrader", {}).get("grade_id")
    return name if isinstance(name, str) else cell.get("id")


def grade_id(cell: NotebookNode) -> str:
    """nbgrader's name for a cell; "" if it has none."""
    return str(cell.metadata.get("nbgrader", {}).get("grade_id") or "")


def whose(nb: NotebookNode, gradebook: Gradebook, lesson: str) -> str:
    """Which lesson a notebook belongs to, in words; as a question if that isn't known."""
    names = {claim(cell) for cell in nb.cells} - {None}
    for other in gradebook.assignments:
        if other.name != lesson and any(cell.name in names for one in other.notebooks for cell in one.source_cells):
            return f"it is the notebook of {other.name}"
    return "is it the notebook of another lesson?"


def language(nb: NotebookNode) -> list[str]:
    for place in ("kernelspec", "language_info"):
        about = nb.metadata.get(place)
        name = isinstance(about, dict) and about.get("language" if place == "kernelspec" else "name")
        if isinstance(name, str) and name and not name.lower().startswith(("python", "ipython")):
            return [f"its language was set to {name[:20]!r}, but it is graded as Python"]
    return []


@dataclass
class Item:
    """A cell of the submission: the student's text, and the official cell it turns out to be."""

    text: str
    kind: str
    number: int  # position in the submission, from 1
    claims: str | None = None
    name: str | None = None

    @cached_property
    def plain(self) -> str:
        """Its text as `plain` has it, made once: it is compared with each cell of the lesson, and may be long."""
        return plain(self.text)


class Taken:
    """The cells of a submission in the form in which they are graded, and one line per repair."""

    def __init__(self, lesson: Lesson, nb: NotebookNode):
        self.lesson = lesson
        self.repairs: list[str] = []
        self.items = [Item(cell.source, cell.cell_type, at, claim(cell)) for at, cell in enumerate(nb.cells, 1)]
        for name in lesson.answers:
            self.find_answer(name)
        for name, official in lesson.cells.items():
            if not official.is_answer:
                self.find_locked(name, official)
        self.found = any(item.name for item in self.items)
        self.report_changed_types()
        self.keep_edits()
        self.place()
        self.cells = [self.cell(item, f"cell-{at}") for at, item in enumerate(self.items)]

    # -- which cell is which

    def find_answer(self, name: str) -> None:
        given = self.lesson.cells[name].given
        claiming = [item for item in self.items if item.claims == name]
        written = [item for item in claiming if item.plain != given]
        defining = [item for item in written if defines(item.text, name)]
        code = [item for item in self.items if item.kind == "code"]
        elsewhere = [item for item in code if defines(item.text, name) and item.plain != given]
        elsewhere = [item for item in elsewhere if item.claims == name or item.claims not in self.lesson.cells]
        untouched = [item for item in code if item.plain == given]
        candidates = defining or written or elsewhere or claiming or untouched
        if not candidates:
            return
        chosen = candidates[-1]
        chosen.name = name
        if len(claiming) > 1:
            self.repairs.append(f"{name} has {len(claiming)} cells: cell {chosen.number} counts")
            self.items = [item for item in self.items if item not in claiming or item is chosen or item in written]
        elif chosen not in claiming and chosen in elsewhere:
            self.repairs.append(
                f"the answer to {name} was found in cell {chosen.number}, not in the exercise's own cell"
            )
            self.items = [item for item in self.items if item not in claiming]

    def find_locked(self, name: str, official: Official) -> None:
        claiming = [item for item in self.items if item.claims == name and item.name is None]
        same = [item for item in self.items if item.name is None and item.plain == official.given]
        same = [item for item in same if item.claims not in self.lesson.cells]
        for item in [*claiming, *same][:1]:
            item.name = name

    def report_changed_types(self) -> None:
        turned = [item for item in self.items if item.name and item.kind != self.kind_of(item.name)]
        if turned:
            kinds = " and ".join(sorted({item.kind for item in turned}))
            names = ", ".join(item.name for item in turned if item.name)
            self.repairs.append(f"{count(len(turned), 'cell')} had been turned into {kinds}: {names}")

    def kind_of(self, name: str) -> str:
        return self.lesson.cells[name].source_cell.cell_type

    def keep_edits(self) -> None:
        """Text that was written into a locked cell becomes a cell of its own, above the locked one."""
        edited = [item for item in self.items if item.name and self.is_edited(item, item.name)]
        for item in edited:
            if item.text.strip():
                at = self.items.index(item)
                self.items.insert(at, Item(item.text, item.kind, item.number))
        if edited:
            names = ", ".join(item.name for item in edited if item.name)
            self.repairs.append(f"the text of {count(len(edited), 'locked cell')} had been changed: {names}")

    def is_edited(self, item: Item, name: str) -> bool:
        official = self.lesson.cells[name]
        return official.metadata["locked"] and item.plain not in (
            official.given,
            plain(official.source_cell.source),
        )

    # -- the order of the cells

    def place(self) -> None:
        """Move checks back to their places, and put back missing cells."""
        rank = {name: number for number, name in enumerate(self.lesson.order)}
        here = {item.name: at for at, item in enumerate(self.items) if item.name}
        lost = [name for name, cell in self.lesson.cells.items() if cell.is_restored and name not in here]
        above = [name for name in here if here[name] < here.get(self.lesson.answer_of(name) or "", -1)]
        fixed = in_order([(rank[name], name) for name in here if name not in above], self.lesson.answers)
        astray = [name for name in here if name not in fixed and name not in self.lesson.answers]
        moving = {item.name: item for item in self.items if item.name and item.name in astray}
        self.items = [item for item in self.items if item.name not in astray]
        placed = fixed
        for name in sorted([*astray, *lost], key=rank.__getitem__):
            self.items.insert(self.place_of(name, rank, placed), moving.get(name) or Item("", "", 0, None, name))
            placed = placed | {name}
        if lost:
            self.repairs.append(f"put back {count(len(lost), 'missing cell')}: {', '.join(lost)}")
        if astray:
            self.repairs.append(f"moved {count(len(astray), 'cell')} back into place: {', '.join(astray)}")
        missing = [name for name in self.lesson.answers if name not in here and name not in lost]
        if missing:
            self.repairs.append(f"{NO_ANSWER}{', '.join(missing)}: no cell defines the function")

    def place_of(self, name: str, rank: dict[str, int], placed: set[str]) -> int:
        """Above the next cell of the release that is in place, but below its answer and that answer's checks."""
        answer = self.lesson.answer_of(name)
        at = next(
            (at for at, item in enumerate(self.items) if item.name in placed and rank[item.name] > rank[name]),
            len(self.items),
        )
        for other, item in enumerate(self.items):
            belongs = item.name == answer or item.name in placed and self.lesson.answer_of(item.name) == answer
            if answer and item.name and belongs and rank[item.name] < rank[name]:
                at = max(at, other + 1)
        return at

    # -- the result

    def cell(self, item: Item, number: str) -> NotebookNode:
        if item.name is None:
            return new_cell(item.kind, source=item.text, id=number)
        official = self.lesson.cells[item.name]
        keeps_official = official.metadata["locked"] or not item.kind
        return official.cell(official.source_cell.source if keeps_official else item.text, number)


def in_order(ranked: list[tuple[int, str]], heavy: Iterable[str]) -> set[str]:
    """The longest subsequence that is in order; one heavy name counts for more than all the light ones together."""
    best: list[tuple[int, list[str]]] = []
    for at, (rank, name) in enumerate(ranked):
        before = max((best[i] for i in range(at) if ranked[i][0] < rank), key=lambda one: one[0], default=(0, []))
        best.append((before[0] + (1000 if name in heavy else 1), [*before[1], name]))
    return set(max(best, key=lambda one: one[0], default=(0, []))[1])
