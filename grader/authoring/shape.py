"""An expression, compared by its shape: what its variables are called makes no difference, nor the order of operands
where that has no meaning, nor which way round a comparison or a condition is written."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence

KEPT = {*dir(builtins), "torch", "dist", "math"}  # names that are not variables
OPERATIONS = (
    *(ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call, ast.Subscript, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
COMMUTE = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)
NO_MATTER = {"ctx", "kind", "type_comment"}  # fields of a syntax tree


class Shape:
    """The shape of `node`, as text."""

    def __init__(self, node: ast.AST) -> None:
        self.variables: dict[str, str] = {}  # {name: its number}
        self.text = self.of(node)

    def of(self, node: object) -> str:
        match node:
            case ast.Name(name) | ast.arg(name):
                return name if name in KEPT else self.numbered(name)
            case ast.BinOp() | ast.BoolOp() | ast.Compare():
                return self.of_operation(node)
            case ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse):
                return self.of(ast.IfExp(test, orelse, body))
            case ast.IfExp(ast.Compare(left, [ast.NotEq()], right), body, orelse):
                return self.of(ast.IfExp(ast.Compare(left, [ast.Eq()], right), orelse, body))
            case ast.Call(ast.Name(name), args, keywords):  # what is called has a meaning of its own
                return f"{name}({self.all([*args, *sorted(keywords, key=lambda one: one.arg or '')])})"
            case ast.ListComp(element, generators) | ast.GeneratorExp(element, generators):
                return f"each({self.all([*generators, element])})"
            case list():
                return f"[{self.all(node)}]"
            case ast.AST():
                return self.of_any(node)
        return repr(node)

    def of_operation(self, node: ast.BinOp | ast.BoolOp | ast.Compare) -> str:
        match node:
            case ast.BinOp(_, op, _) if isinstance(op, COMMUTE):
                return f"{name_of(op)}({self.sorted(operands(node, type(op)))})"
            case ast.BoolOp(op, values):
                return f"{name_of(op)}({self.sorted(values)})"
            case ast.Compare(left, [ast.Eq() | ast.NotEq() as same], [right]):
                return f"{name_of(same)}({self.sorted([left, right])})"
            case ast.Compare(left, [ast.Gt()], [right]):
                return self.of_any(ast.Compare(right, [ast.Lt()], [left]))
            case ast.Compare(left, [ast.GtE()], [right]):
                return self.of_any(ast.Compare(right, [ast.LtE()], [left]))
        return self.of_any(node)

    def of_any(self, node: ast.AST) -> str:
        fields = (value for field, value in ast.iter_fields(node) if field not in NO_MATTER)
        return f"{name_of(node)}({self.all(fields)})"

    def all(self, nodes: Iterable[object]) -> str:
        return ", ".join(map(self.of, nodes))

    def sorted(self, nodes: Sequence[ast.AST]) -> str:
        """Operands in an order that doesn't depend on the names of variables."""
        in_order: list[ast.AST] = sorted(nodes, key=nameless)
        return self.all(in_order)

    def numbered(self, name: str) -> str:
        return self.variables.setdefault(name, f"v{len(self.variables)}")


class Nameless(Shape):
    """The shape without the numbers of variables."""

    def numbered(self, name: str) -> str:
        return "v"


def nameless(node: ast.AST) -> str:
    return Nameless(node).text


def operations_in(node: ast.AST) -> int:
    return sum(isinstance(one, OPERATIONS) for one in ast.walk(node))


def operands(node: ast.expr, op: type[ast.operator]) -> list[ast.expr]:
    """[a, b, c] of a + b + c."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, op):
        return [*operands(node.left, op), *operands(node.right, op)]
    return [node]


def name_of(node: ast.AST) -> str:
    return type(node).__name__


def names_in(node: ast.AST) -> frozenset[str]:
    """Every name in it, also those of attributes."""
    found = (getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node))
    return frozenset(name for name in found if name)
