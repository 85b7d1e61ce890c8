"""A lesson as a page to read: the students' notebook, with the outputs of the cells that are given.

    lesson_page(name, released, executed, links) -> NotebookNode

All text and code is that of the students' notebook. Of the executed one, only the outputs of given cells are used.
Outputs that a student is asked to predict, and those that depend on an exercise, start closed.
"""

from __future__ import annotations

import re

from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_notebook

from grader.authoring.facts import PREDICTION
from grader.authoring.lesson import function_of
from grader.inside.statements import cell_statements

MADE_FROM = "made-from"  # the id of the cell that tells authors which file to edit
HEADING = re.compile(r"^#+ ", re.MULTILINE)
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
FOLDED = "<details>"  # starts a hint, or the answer to a prediction
PREDICT_FIRST = "Predict first. Then open the output."
YOUR_CODE_FIRST = "The output, once your code works"


def lesson_page(name: str, released: NotebookNode, executed: NotebookNode, links: str) -> NotebookNode:
    """The page of the lesson `name`. Under its title stands `links`, a line of HTML."""
    outputs = {cell.id: cell.outputs for cell in executed.cells if cell.cell_type == "code"}
    cells = [cell for cell in released.cells if cell.id != MADE_FROM]
    closed = closed_outputs(cells)
    for cell in cells:
        if cell.cell_type != "code":
            continue
        tags = [kind for kind in (kind_of(cell),) if kind]
        if not tags:
            cell.outputs = outputs[cell.id]
            if cell.id in closed:
                tags = ["hide-output"]
                cell.metadata["mystnb"] = {"code_prompt_show": closed[cell.id], "code_prompt_hide": "Close the output"}
        cell.metadata["tags"] = tags
    title, *rest = cells
    title.source = re.sub(r"^# ", f"# {name[:2]} · ", title.source, count=1)
    title.source = title.source.replace("\n\n", f"\n\n{links}\n\n", 1)
    nest_parts(rest)
    return new_notebook(cells=cells, metadata=released.metadata)


def kind_of(cell: NotebookNode) -> str:
    """`exercise` or `check`; nothing for a cell that is given."""
    graded = cell.metadata.get("nbgrader", {})
    return "exercise" if graded.get("solution") else "check" if graded.get("grade") else ""


def closed_outputs(cells: list[NotebookNode]) -> dict[str, str]:
    """{id of a given cell: what to say on its closed output}."""
    closed = {}
    predicting = False
    unwritten: set[str] = set()  # names whose values depend on an answer
    for cell in cells:
        if cell.cell_type != "code":
            if not cell.source.startswith(FOLDED):
                predicting = bool(PREDICTION.search(cell.source)) and FOLDED not in cell.source
        elif kind_of(cell) == "exercise":
            unwritten.add(function_of(cell.id))
        elif not kind_of(cell):
            if depends(cell.source, unwritten):
                closed[cell.id] = YOUR_CODE_FIRST
            if predicting:
                closed[cell.id] = PREDICT_FIRST
    return closed


def depends(source: str, unwritten: set[str]) -> bool:
    """Whether a cell reads one of the names in `unwritten`. Adds to these what the cell derives from them."""
    found = False
    for one in cell_statements(source)[0]:
        if (one.reads | one.reads_later) & unwritten:
            unwritten |= one.binds | one.changes
            found = True
        else:
            unwritten -= one.always_binds
    return found


def nest_parts(cells: list[NotebookNode]) -> None:
    """Make the page's title its only heading of the first level: parts go to the second, what is in them below."""
    in_part = False
    for cell in cells:
        if cell.cell_type != "markdown":
            continue
        in_part = in_part or cell.source.startswith("# ")
        if in_part:
            pieces = FENCED.split(cell.source)
            cell.source = "".join(HEADING.sub(r"#\g<0>", text) if not i % 2 else text for i, text in enumerate(pieces))


