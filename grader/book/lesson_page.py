"""A lesson as a page to read: the students' notebook, with the outputs of the cells that are given.

    lesson_page(lesson, released, executed, links) -> NotebookNode

All text and code is that of the students' notebook. Of the executed one, only the outputs of given cells are used, and
in these a report may quote a line of an answer, which is left out. Outputs that a student is asked to predict, and
those that depend on an exercise, start closed.
"""

from __future__ import annotations

import re

from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_notebook

from grader.authoring.facts import PREDICTION
from grader.authoring.lesson import BuildError, Lesson
from grader.authoring.markers import clear_solution, solution_lines
from grader.inside.statements import cell_statements

HEADING = re.compile(r"^#+ ", re.MULTILINE)
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
FOLDED = "<details>"  # starts a hint, or the answer to a prediction
PREDICT_FIRST = "Predict first. Then open the output."
YOUR_CODE_FIRST = "The output, once your code works"
A_LINE_OF_YOURS = "(a line of your code)"
SHORTEST_LINE = 8  # characters; one like `else:` is no answer


def lesson_page(lesson: Lesson, released: NotebookNode, executed: NotebookNode, links: str) -> NotebookNode:
    """The page of a lesson, from its two notebooks. Under its title stands `links`, a line of HTML."""
    answers = answer_lines(lesson)
    outputs = {cell.id: cell.outputs for cell in executed.cells if cell.cell_type == "code"}
    cells = released.cells
    closed = closed_outputs(cells)
    for cell in cells:
        if cell.cell_type != "code":
            continue
        tags = [kind for kind in (kind_of(cell),) if kind]
        if not tags:
            if cell.id not in outputs:
                raise BuildError([f"the two notebooks of {lesson.name} differ: run `make build`"])
            cell.outputs = [without_answers(output, answers) for output in outputs[cell.id]]
            if cell.id in closed:
                tags = ["hide-output"]
                cell.metadata["mystnb"] = {"code_prompt_show": closed[cell.id], "code_prompt_hide": "Close the output"}
        cell.metadata["tags"] = tags
    title, *rest = cells
    heading, _, text = title.source.partition("\n\n")
    title.source = f"# {lesson.name[:2]} · {heading.removeprefix('# ')}\n\n{links}\n\n{text}"
    nest_parts(rest)
    return new_notebook(cells=cells, metadata=released.metadata)


def kind_of(cell: NotebookNode) -> str:
    """`exercise` or `check`, also of all; nothing for a cell that is given, or answered in words."""
    graded = cell.metadata.get("nbgrader", {}) if cell.cell_type == "code" else {}
    is_check = graded.get("grade") or cell.source.strip() == "check.summary()"
    return "exercise" if graded.get("solution") else "check" if is_check else ""


def closed_outputs(cells: list[NotebookNode]) -> dict[str, str]:
    """{id of a given cell: what to say on its closed output}."""
    closed = {}
    predicting = False
    unwritten: set[str] = set()  # names whose values depend on an answer
    imported: set[str] = set()
    for cell in cells:
        if cell.cell_type != "code":
            if not cell.source.startswith(FOLDED):
                predicting = bool(PREDICTION.search(cell.source)) and FOLDED not in cell.source
        elif kind_of(cell) == "exercise":
            unwritten |= {name for statement in cell_statements(cell.source)[0] for name in statement.binds}
        elif not kind_of(cell):
            if depends(cell.source, unwritten, imported):
                closed[cell.id] = YOUR_CODE_FIRST
            if predicting:
                closed[cell.id] = PREDICT_FIRST
    return closed


def depends(source: str, unwritten: set[str], imported: set[str]) -> bool:
    """Whether a cell reads one of the names in `unwritten`. Adds to these what the cell derives from them.

    imported: names that are imported, which the cell adds to; calling a module's function leaves the module as it is
    """
    found = False
    for statement in cell_statements(source)[0]:
        imported |= statement.binds if statement.is_import else set()
        if statement.reads & unwritten:
            unwritten |= statement.binds | statement.changes | (statement.calls - imported)
            found = True
        else:
            unwritten -= statement.binds
    return found


def answer_lines(lesson: Lesson) -> list[str]:
    """The lines of the answers that say something, the longest first, without those that the lesson gives away."""
    given = {line.strip() for cell in lesson.cells for line in clear_solution(cell.source).split("\n")}
    sources = [exercise.source for exercise in lesson.exercises.values()]
    lines = {line.strip() for source in sources for _, line in solution_lines(source)} - given
    return sorted((line for line in lines if len(line) >= SHORTEST_LINE), key=len, reverse=True)


def without_answers(output: NotebookNode, answers: list[str]) -> NotebookNode:
    """The output; if it's text, without the lines of answers that it quotes."""

    def cleared(text: str) -> str:
        return "\n".join(without_answer(line, answers) for line in text.split("\n"))

    if output.output_type == "error":
        output.traceback = [cleared(text) for text in output.traceback]
    elif output.output_type == "stream":
        output.text = cleared(output.text)
    else:
        output.data = {kind: cleared(data) if kind == "text/plain" else data for kind, data in output.data.items()}
    return output


def without_answer(line: str, answers: list[str]) -> str:
    """The line; if it ends in a line of an answer, as reports quote them, with words in place of that."""
    found = next((answer for answer in answers if line.endswith(answer)), "")
    return f"{line.removesuffix(found)}{A_LINE_OF_YOURS}" if found else line


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
