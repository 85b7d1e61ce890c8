"""What decides whether a line of code runs: the `if`s, loops and handlers around it, and the exits before it.

Read from the source, for reports that show why one rank made a call and another did not.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import NamedTuple

from .source_lines import lines_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
EXITS = (ast.Return, ast.Continue, ast.Break, ast.Raise)
LONGEST = 80  # characters of a condition that are shown


class Decision(NamedTuple):
    """Something that decides whether a line runs.

    kind   "if", "else", "loop", "except", "exit" (an `if` whose body leaves before the line), "decorator" or "try"
           (one with a handler that goes on, so that a rank on which something is raised skips the line)
    text   as code: "if rank == 0", "for step in range(3)", "except OSError"
    names  what its condition reads: "rank", "bar.n", "batch['x']"
    exits  of a loop: the `if`s inside that may end it, as "if done (line 3)"
    key    the same for two lines that the same decision lets run
    """

    kind: str
    text: str
    line: int
    names: tuple[str, ...]
    key: tuple[str, int, str]
    exits: tuple[str, ...] = ()

    @property
    def is_about_rank(self) -> bool:
        return self.kind in ("if", "else", "exit") and any("rank" in name for name in self.names)


class Place(NamedTuple):
    """What surrounds a line: decisions, outermost first, all in the function (or file) that the line is in."""

    function: str  # "" outside of all
    begins: int  # the function's line
    decisions: tuple[Decision, ...]


NOWHERE = Place("", 0, ())


def place_of(where: str) -> Place:
    """What surrounds the line "file:line"; NOWHERE if its source can't be read."""
    file, _, line = where.rpartition(":")
    tree = tree_of(file) if file else None
    return NOWHERE if tree is None else place_in(tree, file, int(line))


def tree_of(file: str) -> ast.Module | None:
    return parsed("".join(lines_of(file)))


@functools.lru_cache(maxsize=64)  # by the text: a file may have been edited since, and a name given to another cell
def parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):  # a cell with an IPython magic
        return None


def place_in(tree: ast.Module, file: str, line: int) -> Place:
    function, begins, decisions = "", 0, list[Decision]()
    body: list[ast.stmt] = tree.body
    while body:
        inside = next((node for node in body if node.lineno <= line <= (node.end_lineno or 0)), None)
        if inside is None:
            starts = [node for node in body if isinstance(node, Function) and first_line(node) <= line < node.lineno]
            return Place(function, begins, tuple(decisions)) if not starts else Place("", 0, ())
        decisions += exits_before(body, inside, file)
        if isinstance(inside, SCOPES):
            function, begins = getattr(inside, "name", ""), inside.lineno
            decisions = [decorated(one, file, inside.lineno) for one in getattr(inside, "decorator_list", ())]
            body = inside.body if isinstance(inside.body, list) else []
            continue
        arm, decision = arm_with(inside, file, line)
        decisions += [decision] if decision is not None else []
        body = arm
    return Place(function, begins, tuple(decisions))


def first_line(node: Function) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def arm_with(node: ast.stmt, file: str, line: int) -> tuple[list[ast.stmt], Decision | None]:
    """The statements inside `node` among which the line is, and what decides whether they run."""
    for name, arm in ast.iter_fields(node):
        if name == "handlers":
            for handler in arm:
                if handler.lineno <= line <= (handler.end_lineno or 0):
                    key = file, handler.lineno, name
                    return handler.body, Decision("except", caught_by(handler), handler.lineno, (), key)
        elif name == "cases":
            for case in arm:
                if case.pattern.lineno <= line <= (case.body[-1].end_lineno or 0):
                    what = f"case {ast.unparse(case.pattern)}"
                    names = names_in(node.subject) if isinstance(node, ast.Match) else ()
                    return case.body, Decision("if", what, case.pattern.lineno, names, (file, case.pattern.lineno, ""))
        elif isinstance(arm, list) and arm and isinstance(arm[0], ast.stmt) and arm[0].lineno <= line <= end_of(arm):
            return arm, decision_of(node, name, file)
    return [], None


def end_of(body: list[ast.stmt]) -> int:
    return body[-1].end_lineno or 0


def decision_of(node: ast.stmt, arm: str, file: str) -> Decision | None:
    key = file, node.lineno, arm
    if isinstance(node, ast.If):
        kind = "if" if arm == "body" else "else"
        return Decision(kind, f"if {shown(node.test)}", node.lineno, names_in(node.test), key)
    if isinstance(node, ast.While) and arm == "body":
        return Decision("loop", f"while {shown(node.test)}", node.lineno, names_in(node.test), key, exits_of(node.body))
    if isinstance(node, ast.For) and arm == "body":
        text = f"for {ast.unparse(node.target).strip('()')} in {shown(node.iter)}"
        return Decision("loop", text, node.lineno, names_in(node.iter), key, exits_of(node.body))
    if isinstance(node, ast.Try) and arm == "body":
        swallow = [caught_by(handler) for handler in node.handlers if goes_on(handler)]
        return Decision("try", swallow[0], node.lineno, (), key) if swallow else None
    return None


def goes_on(handler: ast.ExceptHandler) -> bool:
    leaves = any(isinstance(node, ast.Continue | ast.Break | ast.Return) for node in ast.walk(handler))
    return leaves or not isinstance(handler.body[-1], ast.Raise)


def caught_by(handler: ast.ExceptHandler) -> str:
    return f"except {ast.unparse(handler.type)}" if handler.type else "except"


def exits_of(body: list[ast.stmt]) -> tuple[str, ...]:
    """The `if`s among these statements, and in those that they let run, that end the loop around them."""
    found: list[str] = []
    for node in body:
        if isinstance(node, ast.If):
            if isinstance(node.body[-1], ast.Break | ast.Return | ast.Raise):
                found.append(f"`if {shown(node.test)}` (line {node.lineno})")
            found += (*exits_of(node.body), *exits_of(node.orelse))
        elif isinstance(node, ast.With | ast.Try):
            found += exits_of(node.body)
    return tuple(found)


def exits_before(body: list[ast.stmt], inside: ast.stmt, file: str) -> Iterator[Decision]:
    """The `if`s among these statements that leave before `inside` is reached."""
    for node in body[: body.index(inside)]:
        if isinstance(node, ast.If):
            last = node.body[-1]
            if isinstance(last, EXITS):
                key = file, node.lineno, ""
                yield Decision("exit", f"if {shown(node.test)}", node.lineno, names_in(node.test), key)


def decorated(decorator: ast.expr, file: str, line: int) -> Decision:
    return Decision("decorator", f"@{shown(decorator)}", line, (), (file, line, ast.unparse(decorator)))


def shown(expression: ast.expr) -> str:
    text = ast.unparse(expression)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def names_in(expression: ast.expr) -> tuple[str, ...]:
    """The names, attributes, and items at a constant or a name that it reads; not what it calls, as in `f(x)`."""
    called = {id(node.func) for node in ast.walk(expression) if isinstance(node, ast.Call)}
    inner = {id(child) for node in ast.walk(expression) if is_path(node) for child in ast.iter_child_nodes(node)}
    found = [
        ast.unparse(node)
        for node in ast.walk(expression)
        if is_path(node) and id(node) not in inner and not (id(node) in called and isinstance(node, ast.Name))
    ]
    return tuple(dict.fromkeys(found))


def is_path(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return is_path(node.value)
    if isinstance(node, ast.Subscript):
        return is_path(node.value) and isinstance(node.slice, ast.Constant | ast.Name)
    return isinstance(node, ast.Name)


def names_read_in(file: str, function: str) -> tuple[str, ...]:
    """What the conditions and loops of all functions of this name read ("<module>" for the file itself)."""
    tree = tree_of(file)
    if tree is None:
        return ()
    tops: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, Function) and node.name == function]
    names: dict[str, None] = {}
    for top in tops or [tree]:
        for node in ast.walk(top):
            read = (
                node.test if isinstance(node, ast.If | ast.While) else node.iter if isinstance(node, ast.For) else None
            )
            names |= dict.fromkeys(names_in(read) if read is not None else ())
    return tuple(names)
