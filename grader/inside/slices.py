"""A program slicer for notebooks: which statements a function needs, and the function, with nothing else executed.

    read(cells, wanted) -> [Slice]        reads; runs nothing
    load(slice) -> function               executes the slice's statements in a fresh __main__

A slice holds what gives the function its value at the place of its check, whatever that reads, and so on: imports,
helper functions, classes, tables, and statements that change one of them (`TABLE[1] = 2`, `sizes.append(3)`,
`Model.forward = f`, `@register`), all as in a notebook that was run from top to bottom up to the check. Demos, prints,
figures and calls of spawn stay out: they may be slow, noisy or wrong.

Errors name a line as "cell of ring-all-reduce, line 7". That is also the file name of the cell's code in tracebacks,
and linecache knows its text. Cells that define no wanted function are called "cell 12", counting the cells given.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import difflib
import inspect
import linecache
import re
import sys
import traceback
import types
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

from grader.inside.statements import Statement, all_arguments, cell_statements

BUILTINS = set(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}
WORLDS = ("spawn", "simulate")
NO_WORLD = (
    "grading loads your answer on a rank, and a rank can't start other ranks. Compute the value inside the function, "
    "or write it as a number"
)


class LoadError(Exception):
    """The function can't be loaded; the text tells the student why."""


class Piece(TypedDict):
    """One statement of a slice.

    cell, line   where it begins: the cell's number from 0, and the line in that cell
    label        what errors call the cell
    binds        the names that it binds
    """

    cell: int
    line: int
    label: str
    source: str
    binds: list[str]


class Slice(TypedDict):
    """A function, with the statements that it needs. Plain data: it travels from the sandbox to the judge and back.

    parameters   its parameters' names; None if there is no such function
    problem      why there is none
    pieces       the statements that it needs
    rest         the statements to try if one of those fails or a name is missing: also earlier definitions of the same
                 names, as a cell that fails leaves them, and statements that may bind names in ways that can't be read
    missing      names that it needs and that nothing binds
    """

    name: str
    parameters: list[str] | None
    problem: str
    pieces: list[Piece]
    rest: list[Piece]
    missing: list[str]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(cells: list[str], wanted: list[tuple[str, int]], labels: list[str] | None = None) -> list[Slice]:
    """The slice of each wanted function, in the order of `wanted`.

    cells    the sources of the code cells that are not checks, in the notebook's order
    wanted   (the function's name, how many of the cells stand before its check)
    labels   what errors call the cells, if not as described above
    """
    notebook = Notebook(cells, wanted, labels)
    return [notebook.slice_of(name, before) for name, before in wanted]


class Notebook:
    """All statements of a notebook, in order, and which of them bind and change each name."""

    def __init__(self, cells: list[str], wanted: list[tuple[str, int]], labels: list[str] | None):
        self.cells = cells
        self.errors: dict[int, Exception] = {}
        self.statements: list[Statement] = []
        self.cell_of: list[int] = []
        for number, source in enumerate(cells):
            found, error = cell_statements(source)
            self.statements += found
            self.cell_of += [number] * len(found)
            if error is not None:
                self.errors[number] = error
        self.binders: dict[str, list[int]] = defaultdict(list)  # name -> the statements that bind it, in order
        self.changers: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(self.statements):
            for name in one.binds:
                self.binders[name].append(number)
        self.effects: dict[str, tuple[set[str], bool]] = {}
        self.aliases: dict[str, set[str]] = defaultdict(set)
        for name, other in set().union(*(one.aliases for one in self.statements)):
            self.aliases[name] |= self.not_imported({other})
        for number, one in enumerate(self.statements):
            for name in self.changed_by(one):
                self.changers[name].append(number)
        self.labels = labels or [f"cell {number}" for number in range(1, len(cells) + 1)]
        if labels is None:
            self.name_cells(wanted)

    def name_cells(self, wanted: list[tuple[str, int]]) -> None:
        for name, before in reversed(wanted):
            cells = [self.cell_of[number] for number in self.binders.get(name, []) if self.cell_of[number] < before]
            if not cells:
                cells = [cell for cell in self.errors if cell < before and defines(self.cells[cell], name)]
            if cells:
                self.labels[cells[-1]] = f"cell of {name.replace('_', '-')}"

    # -- effects

    def changed_by(self, one: Statement) -> set[str]:
        """The names whose objects a statement changes, also through functions of the notebook that it calls."""
        names = one.changes | self.not_imported(one.may_change)
        for function, given in one.calls:
            changed, changes_arguments = self.effects_of(function)
            names |= changed | (set(given) if changes_arguments else set())
        todo = list(names)
        while todo:
            new = self.aliases.get(todo.pop(), set()) - names
            names |= new
            todo += new
        return names

    def not_imported(self, names: set[str]) -> set[str]:
        """All but modules: calling a module's function changes nothing in the notebook."""
        return {name for name in names if not all(self.statements[one].is_import for one in self.binders.get(name, []))}

    def effects_of(self, function: str) -> tuple[set[str], bool]:
        """The names whose objects a function of the notebook changes when called; whether it changes an argument."""
        if function not in self.effects:
            changed: set[str] = set()
            changes_arguments, seen, todo = False, {function}, [function]
            while todo:
                for number in self.binders.get(todo.pop(), ()):
                    one = self.statements[number]
                    changed |= one.changes_later | self.not_imported(one.may_change_later)
                    changes_arguments |= one.changes_arguments
                    todo += (one.reads | one.reads_later) - seen
                    seen |= one.reads | one.reads_later
            self.effects[function] = changed, changes_arguments
        return self.effects[function]

    # -- one slice

    def slice_of(self, name: str, before: int) -> Slice:
        end = next((number for number, cell in enumerate(self.cell_of) if cell >= before), len(self.statements))
        made = Slice(name=name, parameters=None, problem="", pieces=[], rest=[], missing=[])
        if not any(number < end for number in [*self.binders.get(name, []), *self.changers.get(name, [])]):
            made["problem"] = self.why_missing(name, before)
            return made
        needed, missing = self.needed(name, end)
        rest, _ = self.needed(name, end, all_definitions=True)
        if missing and (
            any(cell < before for cell in self.errors) or any(one.dynamic for one in self.statements[:end])
        ):
            rest |= {number for number, one in enumerate(self.statements[:end]) if is_definition(one)}
        made["parameters"], made["missing"] = self.parameters(name, end), sorted(missing)
        made["pieces"] = [self.piece(number) for number in sorted(needed)]
        made["rest"] = [self.piece(number) for number in sorted(rest)] if rest != needed else []
        return made

    def piece(self, number: int) -> Piece:
        one, cell = self.statements[number], self.cell_of[number]
        return Piece(cell=cell, line=one.line, label=self.labels[cell], source=one.source, binds=sorted(one.binds))

    def needed(self, name: str, end: int, all_definitions: bool = False) -> tuple[set[int], set[str]]:
        """The statements that `name` needs at `end`, and the names they use that nothing binds.

        Follows def-use chains backwards. A use is (name, at, until). `at` is the statement that reads the name: the
        definitions that reach it are needed. A function reads its names only when it runs, which may be at any time up
        to `until`, so changes of the object are needed up to there. Statements that bind names in a way that can't be
        read off them (exec, globals, setattr) are needed if they mention the name.

        all_definitions: needed are all definitions of a name before `at`, not only those that reach it
        """
        chosen = {number for number, one in enumerate(self.statements[:end]) if one.is_always_needed}
        dynamic = [number for number, one in enumerate(self.statements[:end]) if one.dynamic]
        missing: set[str] = set()
        uses, seen = [(name, end, end)], set()
        while uses:
            use = name, at, until = uses.pop()
            if use in seen:
                continue
            seen.add(use)
            found = self.reaching_definitions(name, at, all_definitions)
            found += between(self.changers.get(name, []), found[0] + 1 if found else 0, until)
            if not found and name not in BUILTINS:
                missing.add(name)
            found += [number for number in dynamic if self.mentions(number, name)]
            chosen.update(found)
            has_functions = any(self.statements[number].reads_later for number in found)
            for number in found:
                one = self.statements[number]
                adds = number < at and name not in one.always_binds and not has_functions  # to a value found elsewhere
                reads = one.reads - {name} if adds else one.reads
                uses += [(other, number, when) for other in reads for when in (number, until)]
                uses += [(other, until, until) for other in one.reads_later]
        return chosen, missing

    def reaching_definitions(self, name: str, at: int, all_definitions: bool) -> list[int]:
        """The statements that may have given a name the value that it has at `at`, in order."""
        binders = self.binders.get(name, [])
        end = first = bisect_left(binders, at)
        while first > 0:
            first -= 1
            if name in self.statements[binders[first]].always_binds and not all_definitions:
                break
        return binders[first:end]

    def mentions(self, number: int, name: str) -> bool:
        return re.search(rf"\b{re.escape(name)}\b", self.statements[number].source) is not None

    # -- what can be told without running anything

    def parameters(self, name: str, at: int, depth: int = 10) -> list[str]:
        """The names of a function's parameters, as far as they can be read; for `noisily(f)` those of f."""
        found = [number for number in self.binders.get(name, []) if number < at]
        node = self.statements[found[-1]].node if found and depth else None
        inner = [one for one in ast.walk(node) if getattr(one, "name", None) == name] if node else []
        if inner and isinstance(inner[-1], ast.FunctionDef | ast.AsyncFunctionDef):
            return [one.arg for one in all_arguments(inner[-1].args)]
        if inner and isinstance(inner[-1], ast.ClassDef):
            return self.method(inner[-1], "__init__")
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return self.parameters_of(node.value, found[-1], depth - 1)
        return []

    def parameters_of(self, value: ast.expr, at: int, depth: int) -> list[str]:
        if isinstance(value, ast.Lambda):
            return [one.arg for one in all_arguments(value.args)]
        if isinstance(value, ast.Name):
            return self.parameters(value.id, at, depth)
        if not isinstance(value, ast.Call):
            return []
        function = value.func.id if isinstance(value.func, ast.Name) else ""
        makers = [self.statements[number].node for number in self.binders.get(function, []) if number < at]
        if makers and isinstance(makers[-1], ast.ClassDef):
            return self.method(makers[-1], "__call__")
        of = self.parameters_of(value.args[0], at, depth) if value.args else []
        is_partial = function == "partial" or getattr(value.func, "attr", "") == "partial"
        return of[len(value.args) - 1 :] if is_partial else of

    def method(self, node: ast.ClassDef, name: str) -> list[str]:
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name:
                return [argument.arg for argument in all_arguments(one.args)[1:]]
        return []

    def why_missing(self, name: str, before: int) -> str:
        for cell in reversed([cell for cell in self.errors if cell < before]):
            if defines(self.cells[cell], name):
                return unreadable(self.errors[cell], self.labels[cell])
        later = [number for number in self.binders.get(name, []) if self.cell_of[number] >= before]
        if later:
            return (
                f"`{name}` is defined only below its check, in {self.labels[self.cell_of[later[0]]]}, line "
                f"{self.statements[later[0]].line}: move it above the check."
            )
        near = difflib.get_close_matches(name, [n for n in self.binders if n.islower()], n=1, cutoff=0.8)
        if near:
            number = self.binders[near[0]][-1]
            where = f"{self.labels[self.cell_of[number]]}, line {self.statements[number].line}"
            return f"No cell above its check defines `{name}`, but {where} defines `{near[0]}`: was it renamed?"
        return f"No cell above its check defines `{name}`: was its cell deleted, or turned into text?"


def between(numbers: list[int], first: int, end: int) -> list[int]:
    """The part of sorted numbers from `first` to before `end`."""
    return numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]


def is_definition(one: Statement) -> bool:
    """Whether a statement only defines something, without starting ranks, checks or figures."""
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    if one.dynamic or isinstance(one.node, kinds):
        return True
    demo = {*WORLDS, "check", "checks_for", "figures", "plt", "print", "display", "input"}
    return isinstance(one.node, ast.Assign | ast.AnnAssign) and not one.reads & demo


def defines(source: str, name: str) -> bool:
    """Whether a text, which need not be valid Python, looks as if it defines this function."""
    return re.search(rf"\b(def|class)\s+{re.escape(name)}\b|^{re.escape(name)}\s*=", source, re.MULTILINE) is not None


def unreadable(error: Exception, label: str) -> str:
    """Why a cell is not valid Python, in Python's words: with the line, and a caret below it."""
    if not isinstance(error, SyntaxError):
        return f"{label} can't be read as Python ({type(error).__name__}: {error})."
    said = traceback.TracebackException(type(error), error, None)
    text = (error.text or "").rstrip("\n")
    lines = "".join(said.format_exception_only()).splitlines()
    return "\n".join([f"{label}, line {error.lineno}: {lines[-1]}", *(lines[1:-1] if text.strip() else [])])


# ---- loading ---------------------------------------------------------------------------------------------------------


def load(code: Slice, namespace_name: str = "__main__") -> Callable[..., Any]:
    """The function of a slice, in a module of its own that becomes `sys.modules[namespace_name]`.

    A statement that raises is skipped. That matters only if the function is missing afterwards, or if it reads a
    missing name: then the error says which statement should have bound it. Raises LoadError.
    """
    if code["problem"]:
        raise LoadError(code["problem"])
    name, pieces = code["name"], code["pieces"]
    with no_worlds():
        module, failures = execute(pieces, namespace_name)
        expected = [name, *code["missing"], *(one for piece, _ in failures for one in piece["binds"])]
        if code["rest"] and not all(hasattr(module, one) for one in expected):
            pieces = code["rest"]
            module, failures = execute(pieces, namespace_name)
        lost = {one: words for piece, words in failures for one in piece["binds"] if not hasattr(module, one)}
        if lost:
            module, failures = execute(pieces, namespace_name, explain=lost)
    if not hasattr(module, name):
        reasons = [words for piece, words in failures if name in piece["binds"]] or [words for _, words in failures]
        raise LoadError(reasons[-1] if reasons else f"Nothing gives `{name}` a value when its cell runs.")
    function: Any = getattr(module, name)
    if not callable(function):
        kind = type(function).__name__
        where = next(f"{piece['label']}, line {piece['line']}" for piece in reversed(pieces) if name in piece["binds"])
        raise LoadError(
            f"{where}: `{name}` is a value of type {kind} here, not a function. Give the value a different name."
        )
    return function  # type: ignore[no-any-return]


def execute(
    pieces: list[Piece], namespace_name: str, explain: dict[str, str] | None = None
) -> tuple[types.ModuleType, list[tuple[Piece, str]]]:
    """Execute statements in a fresh module. Returns the module, and (piece, what happened) for each that raised.

    explain: why names are missing, for the error of a statement that reads one
    """
    module = types.ModuleType(namespace_name)
    sys.modules[namespace_name] = module
    if explain:
        vars(module)["__builtins__"] = ExplainingBuiltins(explain)
    remember_text(pieces)
    failures: list[tuple[Piece, str]] = []
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for piece in pieces:
        try:
            text = "\n" * (piece["line"] - 1) + piece["source"]
            code = compile(text, piece["label"], "exec", flags, dont_inherit=True)
            flags |= code.co_flags & FUTURE  # `from __future__ import` holds for all that follows, as in a notebook
            result = eval(code, vars(module))
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(result)
        except BaseException as error:
            failures.append((piece, what_happened(error, piece)))
    return module, failures


FUTURE = 0
for feature in __import__("__future__").all_feature_names:
    FUTURE |= getattr(__import__("__future__"), feature).compiler_flag


class LostName(NameError):
    """A name has no value because the statement that binds it raised."""


LostName.__name__ = "NameError"  # the name that students know


class ExplainingBuiltins(dict[str, Any]):
    """Builtins for a module in which statements failed: reading a name that one of them binds raises the reason."""

    def __init__(self, explanations: dict[str, str]):
        super().__init__(vars(builtins))
        self.explanations = explanations

    def __missing__(self, name: str) -> Any:
        if name in self.explanations:
            raise LostName(f"name {name!r} is not defined, because of {self.explanations[name]}", name=name)
        raise KeyError(name)


class NoWorld(RuntimeError):
    """A statement of the notebook called spawn or simulate while it was loaded on a rank."""


@contextlib.contextmanager
def no_worlds() -> Iterator[None]:
    """While statements are loaded, spawn and simulate raise NoWorld; afterwards they are the real ones again."""
    import utils  # only here: reading notebooks does not need it

    real = {name: getattr(utils, name) for name in WORLDS}
    loading = [True]

    def guarded(name: str) -> Callable[..., Any]:
        def world(*args: Any, **kwargs: Any) -> Any:
            if loading:
                raise NoWorld(f"{name} was called: {NO_WORLD}")
            return real[name](*args, **kwargs)

        world.__name__ = name
        return world

    for name in WORLDS:
        setattr(utils, name, guarded(name))
    try:
        yield
    finally:
        loading.clear()
        for name in WORLDS:
            setattr(utils, name, real[name])


def remember_text(pieces: list[Piece]) -> None:
    """Give linecache the cells' lines, so that tracebacks show them and inspect.getsource finds them."""
    cells: dict[str, list[str]] = {}
    for piece in pieces:
        lines = cells.setdefault(piece["label"], [])
        new = piece["source"].split("\n")
        lines += [""] * (piece["line"] - 1 + len(new) - len(lines))
        for number, line in enumerate(new, piece["line"] - 1):
            lines[number] = f"{lines[number]}; {line}" if lines[number] else line
    for label, lines in cells.items():
        linecache.cache[label] = (len(lines), None, [line + "\n" for line in lines], label)


def what_happened(error: BaseException, piece: Piece) -> str:
    """Where a statement raised, what, and the usual cause."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == piece["label"]]
    line: int = (frames[-1].lineno if frames else getattr(error, "lineno", None)) or piece["line"]
    source = linecache.getline(piece["label"], line).strip()
    try:
        said = str(error)[:1000]
    except Exception:  # a student's __str__ may raise
        said = ""
    words = f"{piece['label']}, line {line}:  {source}\n  raised {type(error).__name__}" + (f": {said}" if said else "")
    cause = usual_cause(error)
    return f"{words}\n  {cause}" if cause else words


def usual_cause(error: BaseException) -> str:
    if isinstance(error, LostName):
        return ""  # it says so itself
    if isinstance(error, ModuleNotFoundError):
        return "That module is not installed where grading runs: use only what requirements.txt lists."
    if isinstance(error, NameError):
        return "Is it defined in a cell further down, or in one that was deleted? Restart the kernel and run all cells."
    if isinstance(error, FileNotFoundError):
        return "Grading does not have the files next to the notebook: put what the function needs into the notebook."
    if isinstance(error, EOFError):
        return "Nobody can type an answer during grading: write the value in the code."
    if isinstance(error, SystemExit):
        return "It exits Python: remove that line."
    return ""
