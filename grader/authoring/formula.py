"""A formula, compared by its values: how it's written, and what its variables are called, make no difference.

Two formulas are the same if they give the same numbers for the same samples. Anything that isn't arithmetic, such as
`len(xs)` or `link.alpha`, counts as a variable.
"""

from __future__ import annotations

import ast
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from types import CodeType

from grader.authoring.shape import names_in

FEWEST_VALUES = 6  # different ones; a formula that gives fewer, such as `rank == 0`, is equal to many
MOST_VARIABLES = 6
NUMBERS = random.Random(0)
SAMPLES = [[NUMBERS.randrange(1, 60) for _ in range(MOST_VARIABLES)] for _ in range(16)]  # a value per variable
SIGNS: dict[type[ast.AST], str] = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"},
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
    **{ast.USub: "-", ast.UAdd: "+"},
}
FUNCTIONS: dict[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in ("ceil", "floor", "sqrt", "log2", "log", "exp")},
    "power": lambda base, exponent: float(base) ** exponent,  # a float overflows, where an integer takes forever
    **{"min": min, "max": max, "abs": abs, "round": round, "int": int, "float": float},
}


Definitions = Mapping[str, ast.expr]


def formulas(node: ast.expr, definitions: Definitions) -> Iterator[Formula]:
    """The node as a formula, if it's one: as it is, and with the definitions of its variables put in."""
    if isinstance(node, ast.BinOp | ast.IfExp | ast.Call):
        for known in ({}, definitions) if definitions else ({},):
            formula = Formula(node, known)
            if all_numbers(formula.variables):
                yield formula


def all_numbers(variables: list[ast.expr]) -> bool:
    """Whether these may be numbers: no strings, for example."""
    return not any(isinstance(one, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple) for one in variables)


def is_arithmetic(node: ast.expr) -> bool:
    """Whether it's a formula of plain variables, so that its shape says no more than its values."""
    return all(isinstance(one, ast.Name | ast.Attribute) for one in Formula(node, {}).variables)


class Formula:
    """`node` as a formula, where names in `definitions` stand for their values."""

    def __init__(self, node: ast.expr, definitions: Definitions) -> None:
        self.definitions = dict(definitions)
        self.places: dict[str, int] = {}  # of each variable, by its text
        self.variables: list[ast.expr] = []
        self.signs: list[str] = []
        self.code = self.code_of(node)

    @property
    def operations(self) -> int:
        """0 for a sum or a product: a + b + c is in every program."""
        return len(self.signs) if len(set(self.signs)) > 1 else 0

    @property
    def names(self) -> frozenset[str]:
        return frozenset[str]().union(*map(names_in, self.variables))

    def code_of(self, node: ast.expr) -> str:
        """Python for `node`, with `v[0]`, `v[1]`, ... for its variables."""
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return repr(number)
            case ast.BinOp(left, op, right) if type(op) in SIGNS:
                return f"({self.code_of(left)} {self.sign(op)} {self.code_of(right)})"
            case ast.BinOp(left, ast.Pow(), right):
                self.signs.append("**")
                return f"power({self.code_of(left)}, {self.code_of(right)})"
            case ast.UnaryOp(op, operand) if type(op) in SIGNS:
                return f"({self.sign(op)}{self.code_of(operand)})"
            case ast.Compare(left, [op], [right]) if type(op) in SIGNS:
                return f"({self.code_of(left)} {self.sign(op)} {self.code_of(right)})"
            case ast.IfExp(test, body, orelse):
                self.signs.append("if")
                return f"({self.code_of(body)} if {self.code_of(test)} else {self.code_of(orelse)})"
            case ast.Call(ast.Name(name) | ast.Attribute(ast.Name("math"), name), args, []) if (
                name in FUNCTIONS and args
            ):
                self.signs.append(name)
                return f"{name}({', '.join(map(self.code_of, args))})"
            case ast.Name(name) if name in self.definitions:
                value = self.definitions.pop(name)  # not inside itself
                code = self.code_of(value)
                self.definitions[name] = value
                return code
        return self.variable(node)

    def sign(self, op: ast.AST) -> str:
        self.signs.append(SIGNS[type(op)])
        return SIGNS[type(op)]

    def variable(self, node: ast.expr) -> str:
        text = ast.dump(node)
        if text not in self.places:
            self.places[text] = len(self.variables)
            self.variables.append(node)
        return f"v[{self.places[text]}]"

    def keys(self, any_order: bool) -> frozenset[str]:
        """What it gives for the samples, for its variables in the order of the text or in any order.

        Nothing if that tells too little, or if there are too many variables to try.
        """
        count = len(self.variables)
        if count > MOST_VARIABLES:
            return frozenset()
        program = compile(self.code, "formula", "eval")
        orders = itertools.permutations(range(count)) if any_order else iter([tuple(range(count))])
        found = (values_of(program, order) for order in orders)
        return frozenset(" ".join(values) for values in found if len(set(values)) >= FEWEST_VALUES)


def values_of(program: CodeType, order: tuple[int, ...]) -> list[str]:
    return [value_of(program, [sample[place] for place in order]) for sample in SAMPLES]


def value_of(program: CodeType, variables: list[int]) -> str:
    """To nine digits, because the order of operations changes the last ones."""
    try:
        return f"{float(eval(program, {'__builtins__': {}, **FUNCTIONS, 'v': variables})):.9g}"
    except (ArithmeticError, ValueError, TypeError):
        return "none"
