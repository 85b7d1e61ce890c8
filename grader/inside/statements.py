"""The top-level statements of a notebook's cell, and which of the notebook's names each one binds, reads and changes.

    cell_statements(source) -> ([Statement], error)        error: why a part of the cell is not valid Python, or None

Nothing of the cell is executed.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager

WITH_A_BODY = {"time", "timeit", "capture", "prun"}  # cell magics whose cell is Python
CONTINUES = re.compile(r"(else|elif|except|finally)\b|[)\]}]")  # a line that can't begin a statement
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError, RuntimeError)
IMPORTS = (ast.Import, ast.ImportFrom)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SCOPES = (*DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Statement:
    """One top-level statement; an import of several names counts as several statements.

    line     its first line in the cell, from 1
    binds    names that it gives a value
    reads    names that it reads, or that a function in it reads
    changes  names into whose objects it stores, as in `TABLE[1] = 2` and `Model.forward = f`
    calls    names whose methods it calls for what they do, as in `sizes.append(3)`, or that decorate a definition
    """

    node: ast.stmt
    source: str
    line: int
    binds: set[str]
    reads: set[str]
    changes: set[str]
    calls: set[str]

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, IMPORTS)

    @property
    def is_always_needed(self) -> bool:
        """`from x import *`, whose names are unknown, or `from __future__ import`, which affects all that follows."""
        one = self.node
        return isinstance(one, ast.ImportFrom) and (one.module == "__future__" or one.names[0].name == "*")


def cell_statements(source: str) -> tuple[list[Statement], Exception | None]:
    """The statements of a cell. If it is not valid Python: those around the mistake, and the error."""
    body = without_cell_magics(source)
    try:
        return statements(body), None
    except SyntaxError as error:
        return list(statements_around_errors(body)), error
    except UNREADABLE as error:
        return [], error


def statements(body: str) -> list[Statement]:
    try:
        tree = ast.parse(body)
    except SyntaxError:
        body = without_magics(body)
        tree = ast.parse(body)
    lines = body.encode().split(b"\n")
    return [statement_of(one, lines) for node in tree.body for one in each_import(node)]


def without_cell_magics(source: str) -> str:
    """The cell without `%%time` and the like, line for line; nothing of a cell in a different language."""
    lines = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines):
        if line.startswith("%%"):
            if re.findall(r"%%(\w*)", line)[0] not in WITH_A_BODY:
                return ""
            lines[number] = ""
        elif line.strip():
            break
    return "\n".join(lines)


def without_magics(body: str) -> str:
    """The cell as IPython rewrites it: %magic, !command and thing? become calls, prompts and indentation disappear."""
    text = body.lstrip("\n")
    python: str = TransformerManager().transform_cell(text)
    return "\n" * (len(body) - len(text)) + python


def statements_around_errors(body: str) -> Iterator[Statement]:
    """Those statements of a cell that can be parsed on their own."""
    lines = body.split("\n")
    starts = [n for n, line in enumerate(lines) if line[:1].strip(" \t#") and not CONTINUES.match(line)]
    starts.append(len(lines))
    at = 0
    while at < len(starts) - 1:
        for end in range(at + 1, min(at + 40, len(starts))):  # a statement may look like several
            try:
                yield from statements("\n" * starts[at] + "\n".join(lines[starts[at] : starts[end]]))
            except UNREADABLE:
                continue
            at = end
            break
        else:
            at += 1


def each_import(node: ast.stmt) -> Iterator[ast.stmt]:
    """`from a import b, c` as two statements; any other statement as it is."""
    if not isinstance(node, IMPORTS):
        yield node
        return
    for alias in node.names:
        one = copy(node)
        one.names = [alias]
        yield one


# ---- what a statement does with names --------------------------------------------------------------------------------


def statement_of(node: ast.stmt, lines: list[bytes]) -> Statement:
    decorators = node.decorator_list if isinstance(node, DEFINITIONS) else []
    first = min([node.lineno, *(one.lineno for one in decorators)])
    source = ast.unparse(node) if isinstance(node, IMPORTS) else text_of(node, first, lines)
    binds, reads, changes = set(bound(node)), globals_read(source, first), set[str]()
    calls = {root(one.func if isinstance(one, ast.Call) else one) for one in decorators}
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute | ast.Subscript) and not isinstance(one.ctx, ast.Load):
            changes.add(root(one))
        elif isinstance(one, ast.AugAssign):
            reads |= {root(one.target)} & binds
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            calls.add(root(one.value))
    return Statement(node, source, first, binds, reads, reads & changes, reads & calls)


def text_of(node: ast.stmt, first: int, lines: list[bytes]) -> str:
    part = lines[first - 1 : node.end_lineno]
    part[-1] = part[-1][: node.end_col_offset]
    part[0] = part[0][node.col_offset if first == node.lineno else 0 :]
    return b"\n".join(part).decode()


def bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds outside of the functions, classes and comprehensions in it."""
    if isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    else:  # a definition, `except ... as`, a pattern
        yield from (name for name in (getattr(node, "name", 0), getattr(node, "rest", 0)) if isinstance(name, str))
    for one in () if isinstance(node, SCOPES) else ast.iter_child_nodes(node):
        yield from bound(one)


def globals_read(source: str, first: int) -> set[str]:
    """The names that a statement's text reads outside of functions, and those that functions in it don't bind."""
    names = set[str]()
    todo = [top := symtable.symtable("\n" * (first - 1) + source, "cell", "exec")]
    while todo:
        table = todo.pop()
        todo += table.get_children()
        everywhere = table is top or table.get_type() == "class"  # where a name may be the notebook's until it is bound
        for one in table.get_symbols():
            if one.is_referenced() and (everywhere or one.is_global()) or one.is_declared_global():
                names.add(one.get_name())
    return names


def root(node: ast.AST) -> str:
    """The name at the beginning of `name.a[1].b(c).d`; "" where it begins with a value or with `function(...)`."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func
        else:
            return ""
    return node.id
