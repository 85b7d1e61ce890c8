"""The top-level statements of a notebook's cell, and the names that each of them binds, reads and changes.

    cell_statements(source) -> ([Statement], error)        error: why a part of the cell is not valid Python, or None

All names are globals of the notebook. Names that are local to a function, class or comprehension don't count. Nothing
of the cell is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from IPython.core.inputtransformer2 import TransformerManager

MAX_CELL = 1_000_000  # characters, far more than anybody writes
WITH_A_BODY = {"time", "timeit", "capture", "prun"}  # cell magics whose cell is Python
CONTINUES = re.compile(r"(else|elif|except|finally)\b|[)\]}]")  # a line that can't begin a statement

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# Methods that change their object and functions that change their arguments (by torch's convention also `zero_` and the
# like), functions that return parts of their arguments, and names through which code can do more than can be read.
CHANGING_METHOD = re.compile(
    r"append|appendleft|extend|insert|pop|popitem|popleft|remove|clear|update|setdefault|add|discard|sort|reverse|put"
    r"|\w+_update|register\w*|load_state_dict|\w*[^\W_]_"
)
CHANGING_FUNCTION = re.compile(r"setattr|delattr|shuffle|heap\w+|insort\w*|update_wrapper|\w*[^\W_]_")
PASSING_ON = {"enumerate", "zip", "reversed", "sorted", "list", "tuple", "iter", "next", "filter"}
DYNAMIC = {"exec", "eval", "globals", "locals", "vars", "setattr", "delattr", "__dict__", "modules", "import_module"}


@dataclass
class Statement:
    """One top-level statement; an import of several names counts as several statements.

    line               its first line in the cell, from 1
    binds              names that it gives a value
    always_binds       those that certainly get a new value, so that earlier definitions don't reach beyond it
    reads              names that it reads when it runs
    reads_later        names that a function in it reads, so when that runs
    changes            names whose objects it changes
    may_change         names whose objects it may change, unless they are modules
    changes_later      names that a function in it binds, or whose objects one changes
    may_change_later   names whose objects a function in it may change, unless they are modules
    changes_arguments  whether a function in it changes its arguments
    aliases            pairs (name, other): changing the first may change the second, as after `table = TABLES[1]`
    calls              the functions that it calls by name, each with the names among the arguments
    dynamic            whether it can bind and change names in ways that can't be read
    """

    node: ast.stmt
    source: str
    line: int
    binds: set[str] = field(default_factory=set)
    always_binds: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    reads_later: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    may_change: set[str] = field(default_factory=set)
    changes_later: set[str] = field(default_factory=set)
    may_change_later: set[str] = field(default_factory=set)
    changes_arguments: bool = False
    aliases: set[tuple[str, str]] = field(default_factory=set)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    dynamic: bool = False

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def is_always_needed(self) -> bool:
        """`from x import *`, whose names are unknown, or `from __future__ import`, which affects all that follows."""
        if not isinstance(self.node, ast.ImportFrom):
            return False
        return self.node.module == "__future__" or self.node.names[0].name == "*"


# ---- from text to statements -----------------------------------------------------------------------------------------


def cell_statements(source: str) -> tuple[list[Statement], Exception | None]:
    """The statements of a cell. If it is not valid Python: those around the mistake, and the error."""
    if len(source) > MAX_CELL:
        return [], ValueError(f"the cell holds {len(source):,} characters, too many to be read")
    body = without_cell_magics(source)
    if body is None:
        return [], None
    try:
        return statements(body), None
    except SyntaxError as error:
        return list(statements_around_errors(body)), error
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return [], error


def statements(body: str) -> list[Statement]:
    text, tree = parse(body)
    lines = text.encode().split(b"\n")
    return [statement for node in tree.body for statement in of_node(node, lines)]


def parse(body: str) -> tuple[str, ast.Module]:
    """A cell's Python and its syntax tree. Lines for IPython (%magic, !command, thing?) become `pass`."""
    try:
        return body, ast.parse(body)
    except SyntaxError:
        text = without_magics(body)
        return text, compile(text, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def without_cell_magics(source: str) -> str | None:
    """The cell with `%%time` and the like replaced by empty lines; None if it is in a different language."""
    lines = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines):
        if line.startswith("%%"):
            if re.findall(r"%%(\w*)", line)[0] not in WITH_A_BODY:
                return None
            lines[number] = ""
        elif line.strip():
            break
    return "\n".join(lines)


def without_magics(body: str) -> str:
    """What IPython turns a cell into, line for line."""
    manager = TransformerManager()
    lines = body.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    new = [line + "\n" for line in lines[first:]]
    for transform in manager.cleanup_transforms + manager.line_transforms:
        new = transform(new)
    for _ in range(len(new)):
        old = new
        changed, new = manager.do_one_token_transform(list(old))
        if not changed:
            break
        same = next((number for number, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
        new[same + 1 : same + 1] = ["\n"] * (len(old) - len(new))  # the command spanned several lines
    text = "\n" * first + "".join(new)
    return re.sub(r"^([ \t]*)get_ipython\(\)\.\w+\(.*\)[ \t]*$", r"\1pass", text, flags=re.MULTILINE)


def statements_around_errors(body: str) -> Iterator[Statement]:
    """Those statements of a cell that can be parsed on their own."""
    lines = body.split("\n")
    starts = [n for n, line in enumerate(lines) if line[:1].strip(" \t#") and not CONTINUES.match(line)]
    starts.append(len(lines))
    at = 0
    while at < len(starts) - 1:
        for end in range(at + 1, min(at + 40, len(starts))):  # a statement may look like several
            part = "\n" * starts[at] + "\n".join(lines[starts[at] : starts[end]])
            try:
                yield from statements(part)
            except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
                continue
            at = end
            break
        else:
            at += 1


# ---- what a statement does with names --------------------------------------------------------------------------------


def of_node(node: ast.stmt, lines: list[bytes]) -> Iterator[Statement]:
    for one in each_import(node):
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        source = ast.unparse(one) if one is not node else text_of(node, first, lines)
        statement = Statement(one, source, first)
        Names(statement).visit(one)
        statement.always_binds = always_bound(one)
        yield statement


def each_import(node: ast.stmt) -> list[ast.stmt]:
    """`from a import b, c` as two statements; any other statement as it is."""
    if isinstance(node, ast.Import) and len(node.names) > 1:
        return [ast.Import([alias]) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and len(node.names) > 1:
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [node]


def text_of(node: ast.stmt, first: int, lines: list[bytes]) -> str:
    part = lines[first - 1 : node.end_lineno]
    part[-1] = part[-1][: node.end_col_offset]
    part[0] = part[0][node.col_offset if first == node.lineno else 0 :]
    return b"\n".join(part).decode()


def always_bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name for alias in node.names if alias.asname or "." not in alias.name}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) and node.value else targets
    return {name for target in targets for name in stored_names(target)}


def stored_names(node: ast.AST) -> list[str]:
    """The names that are assigned to in a target."""
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]


@dataclass
class Scope:
    """The local names of a function, class or comprehension."""

    names: set[str]
    parameters: set[str] = field(default_factory=set)
    declared_global: set[str] = field(default_factory=set)
    is_class: bool = False
    aliases: dict[str, set[str]] = field(default_factory=dict)


class Names(ast.NodeVisitor):
    """Fills in a Statement. Descends into functions, with a scope for each, and notes the names that are not local."""

    def __init__(self, statement: Statement):
        self.to, self.depth = statement, 0  # depth: how many functions we are inside of, whose lines run later
        self.scopes: list[Scope] = []

    # -- notes

    def scope_of(self, name: str) -> Scope | None:
        for scope in reversed(self.scopes):
            if name in scope.declared_global:
                return None
            if name in scope.names:
                return scope
        return None

    def read(self, name: str) -> None:
        if self.scope_of(name) is None:
            (self.to.reads_later if self.depth else self.to.reads).add(name)

    def bind(self, name: str) -> None:
        inner = self.scopes[-1] if self.scopes else None
        if inner is not None and name not in inner.declared_global:
            if inner.is_class:
                inner.names.add(name)
        else:
            (self.to.changes_later if self.depth else self.to.binds).add(name)

    def change(self, node: ast.AST, for_sure: bool = True) -> None:
        """Note that the object changes that `node` is a part of. Where a method of it is called, that is not sure."""
        to = self.to
        certain, possible = (to.changes_later, to.may_change_later) if self.depth else (to.changes, to.may_change)
        first = root(node)
        todo, seen = [first] if first else [], set[str]()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            scope = self.scope_of(name)
            if scope is None:
                (certain if for_sure and name == first else possible).add(name)
            else:
                self.to.changes_arguments |= name in scope.parameters
                todo += scope.aliases.get(name, ())

    def alias(self, target: ast.AST, value: ast.AST) -> None:
        others = roots(value)
        for name in stored_names(target) if others else ():
            if self.scopes:
                self.scopes[-1].aliases.setdefault(name, set()).update(others)
            else:
                self.to.aliases.update((name, other) for other in others)

    # -- names

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read(node.id)
            self.to.dynamic |= node.id in DYNAMIC
        else:
            self.bind(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.alias(target, node.value)
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self.alias(node.target, node.value)
            self.visit(node.target)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.alias(node.target, node.iter)
        self.generic_visit(node)

    visit_AsyncFor = visit_For

    def visit_withitem(self, node: ast.withitem) -> None:
        if node.optional_vars is not None:
            self.alias(node.optional_vars, node.context_expr)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self.change(node.target)  # a list or a tensor stays the same object
        if isinstance(node.target, ast.Name):
            self.read(node.target.id)
        self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.alias(node.target, node.value)
        self.bind(node.target.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.to.dynamic |= node.attr in DYNAMIC
        self.stored_into(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.stored_into(node)

    def stored_into(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.change(node)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        if node.name != "*":
            self.bind(node.asname or node.name.partition(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bind(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.bind(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.bind(node.rest)
        self.generic_visit(node)

    def annotation(self, node: ast.expr | None) -> None:
        """Note the names in it, in quotes too. A name too many does no harm."""
        for one in ast.walk(node) if node is not None else ():
            if isinstance(one, ast.Name):
                self.read(one.id)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                for name in re.findall(r"[^\W\d]\w*", one.value[:1000]):
                    self.read(name)

    # -- calls

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            self.change(call.func, for_sure=False)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Attribute) and CHANGING_METHOD.fullmatch(called):
            self.change(node.func)
        if CHANGING_FUNCTION.fullmatch(called):
            for one in given:
                self.change(one)
        if isinstance(node.func, ast.Name) and not self.depth:
            self.to.calls.append((node.func.id, [one.id for one in given if isinstance(one, ast.Name)]))
        self.generic_visit(node)

    # -- scopes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.decorators(node)
        self.function(node)
        self.bind(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef

    def decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
            maker = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(maker, ast.Name):
                self.called(maker.id, node.name)
            else:
                self.change(maker, for_sure=False)

    def called(self, function: str, argument: str) -> None:
        if not self.depth:
            self.to.calls.append((function, [argument]))

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.function(node)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
            self.visit(default)
        every = all_arguments(arguments)
        for argument in every:
            self.annotation(argument.annotation)
        self.annotation(getattr(node, "returns", None))
        body = node.body if isinstance(node.body, list) else [node.body]
        names, declared = bound_in(body)
        parameters = {argument.arg for argument in every}
        of_class = bool(self.scopes) and self.scopes[-1].is_class
        own = {every[0].arg} if of_class and every else set()  # `self`: an object may change itself
        type_parameters = {one.name for one in getattr(node, "type_params", ())}
        outer = self.scopes
        self.scopes = [scope for scope in outer if not scope.is_class]
        self.scopes.append(Scope(names | parameters | type_parameters, parameters - own, declared))
        self.depth += 1
        for one in body:
            self.visit(one)
        self.depth -= 1
        self.scopes = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.decorators(node)
        for base in [*node.bases, *(keyword.value for keyword in node.keywords)]:
            self.visit(base)
            if isinstance(base, ast.Name):
                self.called(base.id, node.name)  # __init_subclass__
        declared = bound_in(node.body)[1]
        self.scopes.append(Scope({one.name for one in getattr(node, "type_params", ())}, set(), declared, True))
        for one in node.body:
            self.visit(one)
        self.scopes.pop()
        self.bind(node.name)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        targets = {name for one in node.generators for name in stored_names(one.target)}
        self.visit(node.generators[0].iter)
        for walrus in ast.walk(node):
            if isinstance(walrus, ast.NamedExpr):
                self.bind(walrus.target.id)
        self.scopes.append(Scope(targets))
        for number, one in enumerate(node.generators):
            self.visit(one.target)
            for part in [*([one.iter] if number else []), *one.ifs]:
                self.visit(part)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(part)
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension


def all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    """In the order of inspect.signature."""
    stars = [arguments.vararg], arguments.kwonlyargs, [arguments.kwarg]
    return [*arguments.posonlyargs, *arguments.args, *(one for part in stars for one in part if one)]


def bound_in(body: Sequence[ast.AST]) -> tuple[set[str], set[str]]:
    """The names that are local to a scope, and those that it declares global."""
    names: set[str] = set()
    elsewhere: set[str] = set()
    declared: set[str] = set()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Global | ast.Nonlocal):
            elsewhere.update(node.names)
            declared.update(node.names if isinstance(node, ast.Global) else ())
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, COMPREHENSIONS):
            names.update(one.target.id for one in ast.walk(node) if isinstance(one, ast.NamedExpr))
        elif not isinstance(node, ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return names - elsewhere, declared


def root(node: ast.AST) -> str | None:
    """The name at the beginning of `name.a[1].b`; None where it begins with a call or a value."""
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func
        else:
            return None


def roots(node: ast.AST) -> set[str]:
    """The names whose objects, or parts of whose objects, a value may be."""
    if isinstance(node, ast.Tuple | ast.List):
        return set().union(*map(roots, node.elts))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PASSING_ON:
        return set().union(*map(roots, node.args))
    return {name for name in [root(node)] if name}
