"""A notebook's official check cells."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbformat.notebooknode import NotebookNode

CHECK = re.compile(r'^check\((\w+)(?:, judges="(\w+)")?(?:, extra_credit=(\d+(?:\.\d+)?))?\)$', re.MULTILINE)
LESSON = re.compile(r'^hidden_tests_for\("(\w+)"\)', re.MULTILINE)


@dataclass(frozen=True)
class CheckCell:
    """An official check cell: the function that it judges, in what respect, and for how many points.

    extra   whether these points are extra credit, which nbgrader's maximum does not contain
    before  the number of code cells before it, not counting checks
    """

    name: str
    function: str
    judges: str
    points: float
    extra: bool
    before: int


def read_notebook(nb: NotebookNode) -> tuple[list[str], list[CheckCell]]:
    """The sources of all code cells that are not checks, and the checks. Raises ValueError for a malformed check."""
    cells: list[str] = []
    official = []
    for cell in nb.cells:
        if cell.cell_type != "code":
            continue
        if not is_check(cell):
            cells.append(cell.source)
            continue
        name = cell.metadata.nbgrader["grade_id"]
        calls = CHECK.findall(cell.source)
        if len(calls) != 1:
            raise ValueError(f'the check cell {name} is not one call of check(function, judges="values")')
        [(function, judges, extra)] = calls
        official.append(CheckCell(name, function, judges or "values", worth(cell), bool(extra), len(cells)))
    return cells, official


def worth(cell: NotebookNode) -> float:
    """The most points that an official check cell can give: what nbgrader says, or its extra credit."""
    return extra_credit(cell.source) or float(cell.metadata.nbgrader["points"])


def extra_credit(source: str) -> float:
    """The extra credit that the text of a check cell offers; 0 for all but challenges."""
    return sum(float(extra or 0) for _, _, extra in CHECK.findall(source))


def is_check(cell: NotebookNode) -> bool:
    """A code cell with points that a person does not grade."""
    about = cell.metadata.get("nbgrader", {})  # importing nbgrader would take each process that judges a second or two
    return cell.cell_type == "code" and about.get("grade", False) and not about.get("solution", False)


def names_its_lesson(nb: NotebookNode) -> bool:
    """Whether a check cell names hidden tests, from which `lesson_of` knows the lesson. Some exercises have none."""
    return any(LESSON.search(cell.source) for cell in nb.cells if is_check(cell))


def lesson_of(nb: NotebookNode) -> str:
    """The lesson whose hidden tests the check cells name. Raises ValueError if they name none, or several."""
    text = "\n".join(cell.source for cell in nb.cells if is_check(cell))
    lessons = sorted(set(LESSON.findall(text)))
    if len(lessons) == 1 or not text:
        return "".join(lessons)
    raise ValueError(f"the check cells name the hidden tests of {', '.join(lessons) or 'no lesson'}")
