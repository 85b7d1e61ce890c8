"""What was handed in, as far as it can be taken over: the student's text in the official cells, and nothing else.

    Submission (reads the file) -> OfficialCells -> nbgrader's OverwriteCells

What went wrong on the way is kept in the notebook, one line each (`troubles`): the feedback page and
`python -m grader grade` tell it.
"""

from __future__ import annotations

import os
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from nbgrader.api import Gradebook, Notebook, SourceCell
from nbgrader.preprocessors import NbGraderPreprocessor

NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}


# ---- what went wrong -------------------------------------------------------------------------------------------------


def add_trouble(nb: NotebookNode, text: str) -> None:
    """Note one line about this submission."""
    nb.metadata.setdefault("troubles", []).append(text)


def troubles(nb: NotebookNode) -> list[str]:
    """What went wrong while this submission was graded, one line each."""
    return list(nb.metadata.get("troubles", []))


# ---- taking over what was handed in ----------------------------------------------------------------------------------


class Submission(NotebookExporter):
    """Reads a submitted file. One that is no notebook becomes an empty one, with the reason in `resources`."""

    def from_filename(self, filename: str, resources: dict | None = None, **kw: Any) -> tuple:
        if not os.path.islink(filename):
            return super().from_filename(filename, resources=resources, **kw)
        resources["not_a_notebook"] = "the file is a link to another one, which is not read"
        return self.from_notebook_node(new_notebook(), resources=resources, **kw)

    def from_file(self, file_stream: Any, resources: dict | None = None, **kw: Any) -> tuple:
        try:
            nb = read_notebook(file_stream)
        except NotANotebook as reason:
            nb, resources["not_a_notebook"] = new_notebook(), str(reason)
        return self.from_notebook_node(nb, resources=resources, **kw)


class NotANotebook(Exception):
    """The file can't be graded at all; the text says why, in a line."""


def read_notebook(file_stream: Any) -> NotebookNode:
    """Read a notebook in the current format; raises NotANotebook, whatever the file holds instead."""
    text = ""
    try:
        text = file_stream.read().lstrip("\ufeff")
        nb = nbformat.reads(text, as_version=4)
        if all(cell.cell_type in NEW_CELL and isinstance(cell.source, str) for cell in nb.cells):
            return nb
        raise ValueError("a cell is damaged")
    except UnicodeDecodeError as error:
        start = error.object[:8].decode("ascii", "replace")
        raise NotANotebook(f"the file is not a notebook: it starts with {start!r}") from None
    except Exception as error:  # what nbformat raises for damaged files is not documented
        if not text.strip():
            raise NotANotebook("the file is empty") from None
        if not text.lstrip().startswith("{"):
            raise NotANotebook(f"the file is not a notebook: it starts with {text.lstrip()[:8]!r}") from None
        raise NotANotebook(f"the notebook is damaged and can't be read ({type(error).__name__})") from None


class OfficialCells(NbGraderPreprocessor):
    """Keeps the student's text, cell by cell, and nothing else; what a cell is and is worth comes from the gradebook.

    Tags (skip-execution!), points, flags and outputs of the submission are dropped, a copied check cell becomes an
    ordinary cell, a deleted one is put back. nbgrader's OverwriteCells then restores the text of the locked cells.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        ids = resources["nbgrader"]
        with Gradebook(ids["db_url"]) as gradebook:
            notebook = gradebook.find_notebook(ids["notebook"], ids["assignment"])
            official = {cell.name: (cell, official_metadata(cell, notebook)) for cell in notebook.source_cells}
            cells = [with_metadata(cell, official) for cell in plain_cells(nb)]
            clean = new_notebook(cells=cells)
            if "not_a_notebook" in resources:
                add_trouble(clean, resources["not_a_notebook"])
            elif not any(map(grade_id, cells)):
                add_trouble(clean, f"none of its cells is of {ids['notebook']}: is it the notebook of another lesson?")
            else:
                put_back_missing(clean, official)
                return clean, resources
        clean.metadata["not_run"] = True
        put_back_missing(clean, official, tell=False)
        return clean, resources


def official_metadata(cell: SourceCell, notebook: Notebook) -> dict[str, Any]:
    """The nbgrader metadata of a cell of the release, from the gradebook."""
    points = {one.name: one.max_score for one in [*notebook.grade_cells, *notebook.task_cells]}
    metadata = {
        "grade_id": cell.name,
        "cell_type": cell.cell_type,
        "locked": cell.locked,
        "grade": any(cell.name == one.name for one in notebook.grade_cells),
        "solution": any(cell.name == one.name for one in notebook.solution_cells),
        "task": any(cell.name == one.name for one in notebook.task_cells),
        "schema_version": 3,
    }
    return {**metadata, "points": points[cell.name]} if cell.name in points else metadata


def plain_cells(nb: NotebookNode) -> list[NotebookNode]:
    """The cells with their text, and in their metadata only the name they claim; of two with one name, the last."""
    seen, cells = set(), []
    for number, cell in reversed(list(enumerate(nb.cells))):
        nbgrader = cell.metadata.get("nbgrader")
        name = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
        name = name if isinstance(name, str) else cell.get("id")  # a tool that drops metadata leaves the id
        plain = NEW_CELL[cell.cell_type](source=cell.source, id=f"cell-{number}")
        if name not in seen:
            plain.metadata["claims"] = name
        seen.add(name)
        cells.insert(0, plain)
    return cells


def with_metadata(plain: NotebookNode, official: dict) -> NotebookNode:
    """The same text in a cell of the official kind, when its claimed name is one of the lesson's."""
    name = plain.metadata.pop("claims", None)
    if name not in official:
        return plain
    source_cell, metadata = official[name]
    return NEW_CELL[source_cell.cell_type](source=plain.source, id=plain.id, metadata={"nbgrader": metadata})


def put_back_missing(nb: NotebookNode, official: dict, tell: bool = True) -> None:
    """Insert every check and locked cell that is not there, behind the cell that precedes it in the release.

    Not an answer's cell: the answer may stand in another one, and its blank form would take its place.
    """
    position, missing = 0, []
    for name, (source_cell, metadata) in official.items():
        here = next((number for number, cell in enumerate(nb.cells) if grade_id(cell) == name), None)
        if here is None and (metadata["grade"] or metadata["locked"]):
            new = NEW_CELL[source_cell.cell_type]
            cell = new(source=source_cell.source, id=f"restored-{len(missing)}", metadata={"nbgrader": metadata})
            here = position
            nb.cells.insert(here, cell)
            missing.append(name)
        position = position if here is None else here + 1
    if missing and tell:
        add_trouble(nb, f"put back {count(len(missing), 'missing cell')}: {', '.join(missing)}")


def grade_id(cell: NotebookNode) -> str | None:
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
