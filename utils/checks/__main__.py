"""`make check` and `make progress` in the students' bundle: what a lesson's checks say, and how far you are.

    python -m <this package>.checks NOTEBOOK ...            run notebooks from top to bottom, one line per check
    python -m <this package>.checks --saved NOTEBOOK ...    run nothing: one line per lesson, from the outputs you saved

Neither changes a notebook. The points are those of the visible checks; grading runs more tests on the same functions.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat.notebooknode import NotebookNode
from tqdm import tqdm
from traitlets.config import Config

from ..text.package import IMPORT_ROOT

CELL_TIMEOUT = 300  # seconds; a cell of a lesson takes a few
NOT_WRITTEN = "not written yet"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Line:
    """What one check says about one exercise."""

    exercise: str
    judges: str
    most: float  # points; 0 for a challenge, whose points are extra credit
    says: str  # "passed", or why not

    @property
    def passed(self) -> bool:
        return self.says == "passed"

    @property
    def points(self) -> float:
        return self.most if self.passed else 0

    @property
    def shown_points(self) -> str:
        return f"{self.points:g} of {self.most:g}" if self.most else "extra credit"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="What the checks of lessons say.")
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--saved", action="store_true", help="run nothing: judge by the outputs that were saved")
    given = parser.parse_args(arguments)
    try:
        lessons = {path: nbformat.read(path, as_version=4) for path in given.notebooks}
    except (OSError, nbformat.reader.NotJSONError) as error:
        print(f"check: can't read a notebook: {error}", file=sys.stderr)
        return 2
    found = {}
    for path, notebook in lessons.items():
        if not given.saved:
            run(notebook, path)
        name = f"{path.stem[:2]} · {title(notebook)}"
        lines = found[name] = list(lines_of(notebook))
        if not given.saved:
            print(report(name, lines), flush=True)
    if given.saved or len(found) > 1:
        print(progress(found))
    return 0


# --- running a notebook


def run(notebook: NotebookNode, path: Path) -> None:
    """Run the cells from top to bottom, past errors, except checks of exercises that are not written yet."""
    unwritten = {about(check)["grade_id"] for check, exercise in checks(notebook) if not is_written(exercise)}
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    runs = [cell for cell in notebook.cells if about(cell).get("grade_id") not in unwritten]
    environment = {**os.environ, "PYTHONPATH": IMPORT_ROOT}
    with (
        tqdm(total=len(runs), desc=path.stem, unit="cell", leave=False, disable=None) as bar,
        tempfile.TemporaryDirectory() as sockets,
    ):
        client = NotebookClient(
            nbformat.from_dict({**notebook, "cells": runs}),
            config=Config(ConnectionFileMixin={"transport": "ipc", "ip": f"{sockets}/kernel"}),  # no port to fight for
            extra_arguments=["--IPKernelApp.log_level=50"],
            timeout=CELL_TIMEOUT,
            interrupt_on_timeout=True,
            error_on_timeout={"ename": "Timeout", "evalue": f"stopped after {CELL_TIMEOUT} s", "traceback": []},
            allow_errors=True,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
            on_cell_start=lambda cell, cell_index: bar.update(cell_index - bar.n),
        )
        try:
            client.execute(env=environment)
        except DeadKernelError:
            print(f"{path}: Python itself died in a cell, so those after it did not run.", file=sys.stderr)
        for cell, ran in zip(runs, client.nb.cells, strict=True):
            cell.update(ran)


# --- reading what it said


def lines_of(notebook: NotebookNode) -> Iterator[Line]:
    """One line for each check, from its cell's outputs."""
    for cell, exercise in checks(notebook):
        name = about(exercise)["grade_id"]
        judges = about(cell)["grade_id"].removeprefix(f"{name}-")
        yield Line(name, judges, about(cell)["points"], what_it_says(cell) if is_written(exercise) else NOT_WRITTEN)


def checks(notebook: NotebookNode) -> Iterator[tuple[NotebookNode, NotebookNode]]:
    """(the cell of a check, the cell of the exercise that it judges), from top to bottom."""
    exercises: dict[str, NotebookNode] = {}
    for cell in code_cells(notebook):
        if about(cell).get("solution"):
            exercises[about(cell)["grade_id"]] = cell
        elif about(cell).get("grade"):
            names = [name for name in exercises if about(cell)["grade_id"].startswith(f"{name}-")]
            if names:
                yield cell, exercises[max(names, key=len)]


def what_it_says(cell: NotebookNode) -> str:
    """ "passed", or the first two lines of what went wrong as one."""
    for output in cell.outputs:
        if output.output_type == "error":
            text = [ANSI.sub("", line).strip() for line in output.evalue.splitlines() or output.traceback]
            is_checks_own = output.ename == "CheckFailed"  # a header, then what was seen
            said = " ".join(text[1:3]) if is_checks_own else f"{output.ename}: {output.evalue}".splitlines()[0]
            return said.rstrip(": ")
    shown = (output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    printed = "".join(shown)
    return "passed" if "passed" in printed else "not run yet"


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def about(cell: NotebookNode) -> Any:
    return cell.metadata.get("nbgrader", {})


def is_written(exercise: NotebookNode) -> bool:
    return "raise NotImplementedError()" not in exercise.source


def title(notebook: NotebookNode) -> str:
    headings = (line for cell in notebook.cells for line in cell.source.splitlines() if line.startswith("# "))
    return next(headings, "# a lesson").removeprefix("# ")


# --- tables


def report(lesson: str, lines: list[Line]) -> str:
    rows = [(line.exercise, line.judges, line.shown_points, line.says) for line in lines]
    return f"\n{lesson}: {score(lines)}\n{table(('exercise', 'judged by', 'points', 'says'), rows)}"


def progress(lessons: dict[str, list[Line]]) -> str:
    rows = []
    for lesson, lines in lessons.items():
        exercises = {line.exercise for line in lines if line.most}
        missing = {line.exercise for line in lines if not line.passed}
        rows.append((lesson, f"{len(exercises - missing)} of {len(exercises)}", score(lines), bar_of(lines)))
    return "\n" + table(("lesson", "exercises", "points", ""), rows)


def score(lines: Iterable[Line]) -> str:
    lines = list(lines)
    return f"{sum(line.points for line in lines):g} of {sum(line.most for line in lines):g} points"


def bar_of(lines: list[Line], width: int = 20) -> str:
    most = sum(line.most for line in lines) or 1
    done = int(width * sum(line.points for line in lines) / most)
    return "█" * done + "░" * (width - done)


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Left-aligned columns; the last may be of any length."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
    return "\n".join("  " + "  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
