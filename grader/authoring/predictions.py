"""The predictions of a lesson: calls of `predict` and `reveal` (utils/kit/predictions.py) in its cells.

prediction_calls(lesson) -> [PredictionCall]
only_reveals(source) -> bool       cells whose code notebooks hide, because it holds the answers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from grader.authoring.lesson import Cell, Lesson, parse

PREDICT, REVEAL = "predict", "reveal"


class PredictionCall(NamedTuple):
    """One call: `question` is None if it isn't a string that stands in the call; `line` is one of the lesson's."""

    name: str  # PREDICT or REVEAL
    question: str | None
    line: int
    cell: Cell


def prediction_calls(lesson: Lesson) -> list[PredictionCall]:
    """All calls, in order; none in a lesson that doesn't import `predict` and may define its own."""
    code = [cell for cell in lesson.cells if cell.kind == "code"]
    imports = (one for cell in code for one in ast.walk(parse(cell.source)) if isinstance(one, ast.ImportFrom))
    if not any(one.module == "utils.kit.predictions" for one in imports):
        return []
    return [call for cell in code for call in calls_in(cell)]


def calls_in(cell: Cell) -> Iterator[PredictionCall]:
    for node in ast.walk(parse(cell.source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in (PREDICT, REVEAL):
            question = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            line = cell.body_line + node.lineno - 1
            yield PredictionCall(node.func.id, question if isinstance(question, str) else None, line, cell)


def only_reveals(source: str) -> bool:
    """Whether a cell consists of calls of `reveal`, each shown, and nothing else."""
    body = parse(source).body
    return bool(body) and all(is_reveal(statement) for statement in body)


def is_reveal(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == REVEAL
