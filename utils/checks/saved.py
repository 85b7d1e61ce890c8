"""What the checks of a notebook say, read from the outputs that are saved in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbformat.notebooknode import NotebookNode

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


def saved_passes(path: Path) -> set[tuple[str, str]]:
    """(exercise, judges) of each check that the notebook shows as passed; none if there is no such notebook."""
    try:
        import nbformat

        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, ModuleNotFoundError):  # or this is a script, on a machine without Jupyter
        return set()
    return {(line.exercise, line.judges) for line in lines_of(notebook) if line.passed}


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


def by_hand(notebook: NotebookNode) -> float:
    """Points that a person gives, for what is written in words."""
    given = (about(cell) for cell in notebook.cells if cell.cell_type == "markdown")
    return float(sum(one.get("points", 0) for one in given if one.get("solution")))


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
