"""Recognise a piece of an answer by its meaning, however it's written. The proof in release.py looks for such pieces.

    pieces(tree) -> [Piece]            the expressions in Python code that say enough to be compared
    pieces_in_text(text) -> [Piece]    those in backticks, in prose, comments and docstrings

A formula counts by its values (formula.py): `(p - 1) / (m + p - 1)`, `1 - m / (m + p - 1)`, and `idle / total` after
`idle, total = p - 1, p - 1 + m` are the same. Any other expression counts by its shape (shape.py).
UNSEEN says what goes unnoticed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from grader.authoring.formula import Definitions, formulas, is_arithmetic
from grader.authoring.shape import OPERATIONS, Shape, names_in, operations_in

FEWEST = 3  # operations, if the names are the same too
TELLING = 4  # operations, whatever the names
UNSEEN = (
    "an answer that takes other steps, such as a loop for a comprehension, or other calls for the same values; "
    "one spread over statements that are more than assignments; one in words, in LaTeX, or as the numbers that it "
    "leads to; an expression of fewer than four operations under other names, or of fewer than three"
)


@dataclass(frozen=True)
class Piece:
    """An expression: its line and text, how many operations it has, its names, and keys that equal pieces share."""

    line: int
    text: str
    operations: int
    names: frozenset[str]
    keys: frozenset[str]

    def means(self, other: Piece) -> bool:
        """Whether two pieces say the same, and enough for that to be no accident."""
        enough = FEWEST if self.names == other.names else TELLING
        return min(self.operations, other.operations) >= enough and not self.keys.isdisjoint(other.keys)


def pieces(tree: ast.AST, any_order: bool = False) -> Iterator[Piece]:
    """The expressions in `tree` of three operations or more, with two variables or more.

    any_order: give a formula a key for each order of its variables, which is slow. Of two pieces, one must have them.
    """
    for node, definitions in expressions(tree, {}):
        for formula in formulas(node, definitions):
            if formula.operations >= FEWEST and len(formula.variables) >= 2:
                keys = formula.keys(any_order)
                yield Piece(node.lineno, ast.unparse(node), formula.operations, formula.names, keys)
        operations = operations_in(node)
        if operations >= FEWEST and not is_arithmetic(node):
            shape = Shape(node)
            if len(shape.variables) >= 2:
                yield Piece(node.lineno, ast.unparse(node), operations, names_in(node), frozenset([shape.text]))


def pieces_in_text(text: str) -> Iterator[Piece]:
    """The pieces of what stands in backticks or fenced blocks, where that is Python."""
    for found in re.finditer(r"```python\n(.*?)```|`([^`\n]+)`", text, re.DOTALL):
        group = found.lastindex or 1
        try:
            tree = ast.parse(found[group].strip())
        except SyntaxError:
            continue
        line = text.count("\n", 0, found.start(group))
        for piece in pieces(tree):
            yield Piece(line + piece.line, piece.text, piece.operations, piece.names, piece.keys)


def expressions(node: ast.AST, definitions: Definitions) -> Iterator[tuple[ast.expr, Definitions]]:
    """Every expression that does something, with the variables that its function defines once."""
    if isinstance(node, ast.FunctionDef):
        definitions = definitions_in(node)
    if isinstance(node, OPERATIONS):
        yield node, definitions
    for child in ast.iter_child_nodes(node):
        yield from expressions(child, definitions)


def definitions_in(function: ast.FunctionDef) -> Definitions:
    """{name: value} of the variables that a function assigns once and that are not arguments."""
    nodes = list(ast.walk(function))
    stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    stored.update(node.arg for node in nodes if isinstance(node, ast.arg))
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=False)
            pairs.append((target, value))
    return {name.id: value for name, value in pairs if isinstance(name, ast.Name) and stored[name.id] == 1}
