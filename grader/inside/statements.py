"""A notebook's cell -> its top-level statements, and of each: which names it binds, reads and changes. Runs nothing.

    cell_statements(source) -> ([Statement], error)        error: why a part of the cell is no Python, or None

A name is one of the notebook's own, so a global: what is local to a function, class or comprehension never shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from IPython.core.inputtransformer2 import TransformerManager

MAX_CELL = 1_000_000  # characters; nobody writes so much
WITH_A_BODY = {"time", "timeit", "capture", "prun"}  # cell magics whose cell is Python
CONTINUES = re.compile(r"(else|elif|except|finally)\b|[)\]}]")  # a line that no statement starts with

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# Methods that change what they are called on, functions that change what they are given (and `zero_`, torch's own way
# to say so), functions that give out parts of what
# they are given, and names by which more can happen than can be read.
CHANGING_METHOD = re.compile(
    r"append|appendleft|extend|insert|pop|popitem|popleft|remove|clear|update|setdefault|add|discard|sort|reverse|put"
    r"|\w+_update|register\w*|load_state_dict|\w*[^\W_]_"
)
CHANGING_FUNCTION = re.compile(r"setattr|delattr|shuffle|heap\w+|insort\w*|update_wrapper|\w*[^\W_]_")
PASSING_ON = {"enumerate", "zip", "reversed", "sorted", "list", "tuple", "iter", "next", "filter"}
DYNAMIC = {"exec", "eval", "globals", "locals", "vars", "setattr", "delattr", "__dict__", "modules", "import_module"}


@dataclass
class Statement:
    """One top-level statement; an import of several names counts as several.

    line      its first line in the cell, from 1
    binds     names that it gives a value; sure: those that get one whatever happens, and lose their old one
    now       names that are read when it runs; later: when a function in it runs
    changes   names whose objects it changes; methods: whose objects it may change, unless they are modules
    touches   names that a function in it binds or changes; asks: that one may change, unless they are modules
    arguments whether a function in it changes what it is given
    aliases   pairs (name, other): what changes the first may change the second, as after `table = TABLES[1]`
    calls     the functions that are called by name when it runs, each with the names that it is given
    """

    node: ast.stmt
    source: str
    line: int
    binds: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    now: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    touches: set[str] = field(default_factory=set)
    asks: set[str] = field(default_factory=set)
    arguments: bool = False
    aliases: set[tuple[str, str]] = field(default_factory=set)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    dynamic: bool = False

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def is_always_needed(self) -> bool:
        """An import of nobody knows which names, or one that says how all that follows is to be read."""
        if not isinstance(self.node, ast.ImportFrom):
            return False
        return self.node.module == "__future__" or self.node.names[0].name == "*"


# ---- from text to statements -----------------------------------------------------------------------------------------


def cell_statements(source: str) -> tuple[list[Statement], Exception | None]:
    """The statements of a cell. Of one that is no Python, those before and after what is wrong, and the error."""
    if len(source) > MAX_CELL:
        return [], ValueError(f"the cell holds {len(source):,} characters, too many to be read")
    try:
        body = without_cell_magics(source)
        return statements(body) if body is not None else [], None
    except SyntaxError as error:
        return list(statements_around_errors(body)), error
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return [], error


def statements(body: str) -> list[Statement]:
    text, tree = parse(body)
    lines = text.encode().split(b"\n")
    return [statement for node in tree.body for statement in of_node(node, lines)]


def parse(body: str) -> tuple[str, ast.Module]:
    """A cell's Python, and its tree. IPython's own lines (%magic, !command, thing?) become `pass`."""
    try:
        return body, ast.parse(body)
    except SyntaxError:
        text = without_magics(body)
        return text, compile(text, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def without_cell_magics(source: str) -> str | None:
    """The cell with `%%time` and its like as empty lines; None for a cell in another language."""
    lines = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines):
        if line.startswith("%%"):
            if re.match(r"%%(\w*)", line)[1] not in WITH_A_BODY:
                return None
            lines[number] = ""
        elif line.strip():
            break
    return "\n".join(lines)


def without_magics(body: str) -> str:
    """What IPython makes of a cell, line for line."""
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
        new[same + 1 : same + 1] = ["\n"] * (len(old) - len(new))  # it had gone over several lines
    text = "\n" * first + "".join(new)
    return re.sub(r"^([ \t]*)get_ipython\(\)\.\w+\(.*\)[ \t]*$", r"\1pass", text, flags=re.MULTILINE)


def statements_around_errors(body: str) -> Iterator[Statement]:
    """The statements of a cell that can be read one by one."""
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
        statement.sure = sure_names(one)
        yield statement


def each_import(node: ast.stmt) -> list[ast.stmt]:
    """`from a import b, c` as two statements; any other one as it is."""
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


def sure_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name for alias in node.names if alias.asname or "." not in alias.name}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) and node.value else targets
    return {name.id for target in targets for name in ast.walk(target) if is_stored(name)}


def is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


@dataclass
class Scope:
    """What a name can mean inside a function, class or comprehension."""

    names: set[str]
    parameters: set[str] = field(default_factory=set)
    declared_global: set[str] = field(default_factory=set)
    is_class: bool = False
    aliases: dict[str, set[str]] = field(default_factory=dict)


class Names(ast.NodeVisitor):
    """Fills a Statement. It goes into functions, with a scope for each, and notes what is not local there."""

    def __init__(self, statement: Statement):
        self.to, self.scopes, self.depth = statement, [], 0  # depth: of functions, whose lines run later

    # -- what is noted

    def scope_of(self, name: str) -> Scope | None:
        for scope in reversed(self.scopes):
            if name in scope.declared_global:
                return None
            if name in scope.names:
                return scope
        return None

    def read(self, name: str) -> None:
        if self.scope_of(name) is None:
            (self.to.later if self.depth else self.to.now).add(name)

    def bind(self, name: str) -> None:
        inner = self.scopes[-1] if self.scopes else None
        if inner is not None and name not in inner.declared_global:
            if inner.is_class:
                inner.names.add(name)
        else:
            (self.to.touches if self.depth else self.to.binds).add(name)

    def change(self, node: ast.AST, for_sure: bool = True) -> None:
        """Note that the object which `node` is a part of changes; not for sure where a method of it is called."""
        hard, soft = (self.to.touches, self.to.asks) if self.depth else (self.to.changes, self.to.methods)
        first = root(node)
        todo, seen = [first], {None}
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            scope = self.scope_of(name)
            if scope is None:
                (hard if for_sure and name == first else soft).add(name)
            else:
                self.to.arguments |= name in scope.parameters
                todo += scope.aliases.get(name, ())

    def alias(self, target: ast.AST, value: ast.AST) -> None:
        others = roots(value)
        for name in [one.id for one in ast.walk(target) if is_stored(one)] if others else ():
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
        """What it names, in quotes too; an annotation that can't be read later is no harm."""
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
        own = {every[0].arg} if of_class and every else set()  # an object may change itself
        type_parameters = {one.name for one in getattr(node, "type_params", ())}
        kept = self.scopes
        self.scopes = [scope for scope in kept if not scope.is_class]
        self.scopes.append(Scope(names | parameters | type_parameters, parameters - own, declared))
        self.depth += 1
        for one in body:
            self.visit(one)
        self.depth -= 1
        self.scopes = kept

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

    def comprehension(self, node: ast.AST) -> None:
        targets = {n.id for one in node.generators for n in ast.walk(one.target) if is_stored(n)}
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


def bound_in(body: list[ast.AST]) -> tuple[set[str], set[str]]:
    """The names that are local to a scope, and those that it declares global."""
    names, elsewhere, declared = set(), set(), set()
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
    """The names whose objects, or parts of them, a value may be."""
    if isinstance(node, ast.Tuple | ast.List):
        return set().union(*map(roots, node.elts))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PASSING_ON:
        return set().union(*map(roots, node.args))
    return {name for name in [root(node)] if name}
