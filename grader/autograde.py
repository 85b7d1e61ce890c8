"""What plain nbgrader lacks. `nbgrader_config.py` plugs these pieces in; each closes a trap.

A submission goes   Submission (reads the file) -> OfficialCells -> RunCells -> SaveGrades -> ShortOutputs
with nbgrader's own steps in between; grader/feedback.py has the way back.

What went wrong on the way is kept in the autograded notebook, one line each (`troubles`): the feedback page and
`python -m grader grade` tell it.
"""

from __future__ import annotations

import copy
import math
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbconvert.exporters import NotebookExporter
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from nbgrader import utils
from nbgrader.api import Gradebook, Notebook, SourceCell
from nbgrader.preprocessors import (
    CheckCellMetadata,
    ClearOutput,
    Execute,
    LimitOutput,
    NbGraderPreprocessor,
    SaveAutoGrades,
)
from nbgrader.validator import Validator
from traitlets import Bool, Integer, List

from grader import sandbox
from grader.sandboxed_kernel import SandboxedKernel

GRADER = Path(__file__).resolve().parent
NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}
CUT = "\n... the rest of this output was cut off ..."


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


# ---- running it ------------------------------------------------------------------------------------------------------


class RunCells(Execute):
    """Runs the cells in an empty folder, so that no file beside the notebook is ever imported; survives dead kernels.

    A kernel that dies, or can't be interrupted, ends this submission's run: what was not run earns nothing.
    """

    sandbox = Bool(True, help="run submissions in a sandbox; without one they have the rights of who grades").tag(
        config=True
    )
    submission_timeout = Integer(600, help="seconds that one submission may take in all").tag(config=True)
    max_output = Integer(2_000_000, help="characters kept of what a cell shows while it runs").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict, **kw: Any) -> tuple[NotebookNode, dict]:
        if nb.metadata.pop("not_run", False):
            return nb, resources
        if self.sandbox:
            sandbox.require()
        self.kernel_manager_class = SandboxedKernel if self.sandbox else AsyncKernelManager
        self.deadline = monotonic() + self.submission_timeout
        self.stopped, self.received = "", 0
        with TemporaryDirectory(prefix="submission-", ignore_cleanup_errors=True) as folder:
            super().preprocess(nb, {**resources, "metadata": {**resources.get("metadata", {}), "path": folder}})
        if self.stopped:
            add_trouble(nb, self.stopped)
        return nb, resources

    def create_kernel_manager(self) -> AsyncKernelManager:
        manager = super().create_kernel_manager()
        if self.sandbox:
            manager.read_only = [sandbox.UTILS, *hidden_tests_in(self.nb)]
        return manager

    def timeout_func(self, cell: NotebookNode) -> int:
        """Seconds for this cell: nbclient calls it before each one."""
        return max(1, min(self.timeout, math.ceil(self.deadline - monotonic())))

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if not self.stopped and monotonic() > self.deadline:
            self.stopped = f"took more than {self.submission_timeout} s: cells from number {index + 1} on were not run"
        if self.stopped:
            return cell, resources
        self.received = 0
        try:
            return super().preprocess_cell(cell, resources, index)
        except DeadKernelError:
            self.stop(cell, index, "the kernel died in")
        except CellTimeoutError:
            self.stop(cell, index, "there was no way to interrupt")
        return cell, resources

    def stop(self, cell: NotebookNode, index: int, what: str) -> None:
        where = f"cell {grade_id(cell)}" if grade_id(cell) else f"cell number {index + 1}"
        why = self.km.why_ended() if self.sandbox else ""
        self.stopped = f"{what} {where}: {f'it {why}; ' if why else ''}the cells after it were not run"
        cell.outputs.append(new_output("error", ename="Stopped", evalue=self.stopped, traceback=[self.stopped]))

    def output(self, outs: list, msg: dict, display_id: str | None, cell_index: int) -> NotebookNode | None:
        """Keep what a cell shows, until it floods; results and errors, which earn or cost points, always."""
        if msg["msg_type"] in ("stream", "display_data"):
            self.received += len(str(msg["content"].get("text") or msg["content"].get("data")))
            if self.received > self.max_output and outs:
                return None
        return super().output(outs, msg, display_id, cell_index)


def hidden_tests_in(nb: NotebookNode) -> list[Path]:
    """The files that the notebook's check cells import hidden tests from; no other lesson's."""
    text = "\n".join(cell.source for cell in nb.cells if is_check(cell))
    lessons = set(re.findall(r'^hidden_tests_for\("(\w+)"\)', text, re.MULTILINE))
    found = [GRADER / "hidden" / f"{lesson}.py" for lesson in sorted(lessons)]
    return [GRADER / "__init__.py", GRADER / "hidden" / "__init__.py", *found] if found else []


# ---- points ----------------------------------------------------------------------------------------------------------


def points_of(cell: NotebookNode) -> tuple[float, str]:
    """The points that a check cell has earned, and why they are not all of them ("" when they are).

    All of them when it ran without an error and gave nothing back, as our checks do; what it gave back when that is a
    number from 0 to the cell's points; 0 otherwise. Warnings and anything else that was printed cost nothing.
    """
    maximum = float(cell.metadata.nbgrader["points"])
    if "shell.execute_reply" not in cell.metadata.get("execution", {}):
        return 0.0, "was not run"
    if any(output.output_type == "error" for output in cell.outputs):
        return 0.0, "raised an error"
    results = [output.data.get("text/plain", "") for output in cell.outputs if output.output_type == "execute_result"]
    if not results:
        return maximum, ""
    try:
        points = float(results[0]) if len(results) == 1 else math.nan
    except ValueError:
        points = math.nan
    if not 0 <= points <= maximum:  # nan is not
        return 0.0, f"gave back {results[0][:40]!r}, which is no number from 0 to {maximum:g}"
    return points, "" if points == maximum else "gave part of the points"


def is_check(cell: NotebookNode) -> bool:
    """A code cell with points that a person does not grade."""
    return cell.cell_type == "code" and utils.is_grade(cell) and not utils.is_solution(cell)


class SaveGrades(SaveAutoGrades):
    """nbgrader's SaveAutoGrades, with `points_of` deciding about check cells. It never stops a submission."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        nb, resources = super().preprocess(nb, resources)
        checks = {grade_id(cell): points_of(cell)[1] for cell in nb.cells if is_check(cell)}
        for name, reason in checks.items():
            if reason.startswith("gave back"):
                add_trouble(nb, f"check {name} {reason}: 0 points")
        not_run = [name for name, reason in checks.items() if reason == "was not run"]
        if not_run and len(not_run) < len(checks):
            add_trouble(nb, f"{count(len(not_run), 'check')} not run: 0 points")
        return nb, resources

    def _add_score(self, cell: NotebookNode, resources: dict) -> None:
        if is_check(cell):
            points, reason = points_of(cell)
            if reason:
                self.log.warning("check %s %s: %g points", grade_id(cell), reason, points)
            cell = copy.deepcopy(cell)  # nbgrader reads the points off what the cell gave back
            cell.outputs = [new_output("execute_result", data={"text/plain": repr(points)})]
        super()._add_score(cell, resources)


class ShortOutputs(LimitOutput):
    """Limits a cell's output by characters too: nbgrader counts lines, and a line can be 30 MB long."""

    max_characters = Integer(500_000, help="characters of output that are kept of one cell").tag(config=True)

    def preprocess_cell(self, cell: NotebookNode, resources: dict, cell_index: int) -> tuple[NotebookNode, dict]:
        cell, resources = super().preprocess_cell(cell, resources, cell_index)
        if cell.cell_type == "code":
            left, outputs = self.max_characters, []
            for output in cell.outputs:
                output = shortened(output, max(left, 0))
                outputs.append(output)
                left -= size(output)
            cell.outputs = [output for output in outputs if output]
        return cell, resources


def size(output: NotebookNode | None) -> int:
    return len(str(output)) if output else 0


def shortened(output: NotebookNode, limit: int) -> NotebookNode | None:
    """The same output in about `limit` characters; None for what is no text and too long."""
    if size(output) <= limit:
        return output
    if output.output_type == "stream":
        return NotebookNode(output, text=output.text[:limit] + CUT) if limit else None
    if output.output_type == "error":
        room = max(limit, 10_000)  # why points were lost is always told
        text = "\n".join(output.traceback)[:room] + CUT
        return NotebookNode(output, evalue=output.evalue[:room], traceback=[text])
    text = output.data.get("text/plain", "")
    return NotebookNode(output, data={"text/plain": str(text)[:limit] + CUT}) if limit else None


# ---- the student's own look at it ------------------------------------------------------------------------------------


class CheckedValidator(Validator):
    """`nbgrader validate` with the points that grading gives: noise costs nothing, a skipped check earns nothing."""

    preprocessors = List([CheckCellMetadata, ClearOutput, RunCells])

    def _get_failed_cells(self, nb: NotebookNode) -> list[NotebookNode]:
        return [cell for cell in nb.cells if is_check(cell) and points_of(cell)[1]]
