"""What plain nbgrader lacks. `nbgrader_config.py` plugs these pieces in; each closes a trap.

A submission goes   Submission (reads the file) -> OfficialCells -> RunCells -> SaveGrades -> ShortOutputs
with nbgrader's own steps in between; grader/feedback.py has the way back.

What went wrong on the way is kept in the autograded notebook, one line each (`troubles`): the feedback page and
`python -m grader grade` tell it.
"""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.preprocessors import (
    CheckCellMetadata,
    ClearOutput,
    Execute,
    LimitOutput,
    SaveAutoGrades,
)
from nbgrader.validator import Validator
from traitlets import Bool, Integer, List

from grader import sandbox
from grader.sandboxed_kernel import SandboxedKernel
from grader.submission import add_trouble, count, grade_id

GRADER = Path(__file__).resolve().parent
CUT = "\n... the rest of this output was cut off ..."


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
