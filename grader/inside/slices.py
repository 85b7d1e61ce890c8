"""What a function of a notebook needs, and the function, with nothing else executed.

    read(cells, wanted) -> [Slice]        reads; runs nothing
    load(slice) -> function               executes the slice's statements in a fresh __main__

A slice holds, in the notebook's order, the statements above the check that bind or change a name which the function
reads, directly or through others: imports, helper functions, classes and tables, also `TABLE[1] = 2`,
`sizes.append(3)`, `Model.forward = f` and `@register`. A function call for its own sake, such as a demo, a print or a
figure, stays out: it may be slow, noisy or wrong. So a list that such a call fills stays empty.

Errors name a line as "cell of ring-all-reduce, line 7". That is also the file name of the cell's code in tracebacks,
and linecache knows its text. Cells that define no wanted function are called "cell 12", counting the cells given.
"""

from __future__ import annotations
import __future__

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
from functools import reduce
from operator import or_
from typing import Any, TypedDict

from grader.inside.statements import DEFINITIONS, Statement, cell_statements

FUTURE = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
WORLDS = ("spawn", "simulate")
NO_WORLD = (
    "grading loads your answer on a rank, and a rank can't start other ranks. Compute the value inside the function, "
    "or write it as a number"
)


class LoadError(Exception):
    """The function can't be loaded; the text tells the student why."""


class Piece(TypedDict):
    """One statement of a slice.

    label  what errors call its cell
    line   its first line in that cell, from 1
    binds  the names that it binds
    """

    label: str
    line: int
    source: str
    binds: list[str]


class Slice(TypedDict):
    """A function, with the statements that it needs. Plain data: it travels from the sandbox to the judge and back.

    parameters   its parameters' names; None if there is no such function
    problem      why there is none
    pieces       the statements that it needs
    """

    name: str
    parameters: list[str] | None
    problem: str
    pieces: list[Piece]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(cells: list[str], wanted: list[tuple[str, int]]) -> list[Slice]:
    """The slice of each wanted function, in the order of `wanted`.

    cells    the sources of the code cells that are not checks, in the notebook's order
    wanted   (the function's name, how many of the cells stand before its check)
    """
    notebook = Notebook(cells, wanted)
    return [notebook.slice_of(name, before) for name, before in wanted]


class Notebook:
    """All statements of a notebook, in order, and which of them bind or change each name."""

    def __init__(self, cells: list[str], wanted: list[tuple[str, int]]):
        self.cells = cells
        self.errors: dict[int, Exception] = {}
        self.statements: list[Statement] = []
        self.cell_of: list[int] = []  # the cell of each statement
        for number, source in enumerate(cells):
            found, error = cell_statements(source)
            self.statements += found
            self.cell_of += [number] * len(found)
            if error is not None:
                self.errors[number] = error
        self.binders: dict[str, list[int]] = defaultdict(list)  # name -> the statements that bind it, in order
        for number, one in enumerate(self.statements):
            for name in one.binds:
                self.binders[name].append(number)
        self.changers: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(self.statements):
            for name in one.changes | {name for name in one.calls if not self.is_imported(name)}:
                self.changers[name].append(number)
        self.labels = [f"cell {number}" for number in range(1, len(cells) + 1)]
        for name, before in reversed(wanted):
            self.name_cell(name, before)

    def name_cell(self, name: str, before: int) -> None:
        found = [self.cell_of[number] for number in self.binders_above(name, self.end_of(before))]
        found = found or [cell for cell in self.errors if cell < before and defines(self.cells[cell], name)]
        if found:
            self.labels[found[-1]] = f"cell of {name.replace('_', '-')}"

    def is_imported(self, name: str) -> bool:
        """Whether a name is only ever imported: calling a module's function changes nothing in the notebook."""
        return all(self.statements[number].is_import for number in self.binders.get(name, ()))

    def end_of(self, cells: int) -> int:
        """How many statements the first `cells` cells hold."""
        return bisect_left(self.cell_of, cells)

    def binders_above(self, name: str, end: int) -> list[int]:
        return [number for number in self.binders.get(name, ()) if number < end]

    def slice_of(self, name: str, before: int) -> Slice:
        end = self.end_of(before)
        if not self.binders_above(name, end):
            return Slice(name=name, parameters=None, problem=self.why_missing(name, before), pieces=[])
        pieces = [self.piece(number) for number in self.needed(name, end)]
        return Slice(name=name, parameters=self.parameters(name, end), problem="", pieces=pieces)

    def piece(self, number: int) -> Piece:
        one = self.statements[number]
        return Piece(label=self.labels[self.cell_of[number]], line=one.line, source=one.source, binds=sorted(one.binds))

    def needed(self, name: str, end: int) -> list[int]:
        """Those of the first `end` statements that `name` needs, in order."""
        kept = {number for number, one in enumerate(self.statements[:end]) if one.is_always_needed}
        names, todo = {name}, [name]
        while todo:
            name = todo.pop()
            for number in {*self.binders.get(name, ()), *self.changers.get(name, ())} - kept:
                if number < end:
                    kept.add(number)
                    one = self.statements[number]
                    new = one.reads | (one.binds if isinstance(one.node, DEFINITIONS) else set())
                    todo += new - names
                    names |= new
        return sorted(kept)

    # -- what can be told without running anything

    def parameters(self, name: str, end: int) -> list[str]:
        """The names of a function's parameters, as far as they can be read; for `noisily(f)` those of f."""
        found = self.binders_above(name, end)
        if not found:
            return []
        node = self.statements[found[-1]].node
        for one in ast.walk(node):
            if isinstance(one, DEFINITIONS) and one.name == name:
                return parameters_of(one)
        value, given = getattr(node, "value", None), 0
        while isinstance(value, ast.Call) and value.args:
            if "partial" in (getattr(value.func, "id", ""), getattr(value.func, "attr", "")):
                given += len(value.args) - 1
            value = value.args[0]
        if isinstance(value, ast.Lambda):
            return parameters_of(value)[given:]
        return self.parameters(value.id, found[-1])[given:] if isinstance(value, ast.Name) else []

    def why_missing(self, name: str, before: int) -> str:
        for cell in sorted(self.errors, reverse=True):
            if cell < before and defines(self.cells[cell], name):
                return unreadable(self.errors[cell], self.labels[cell])
        if name in self.binders:
            return f"`{name}` is defined only below its check, in {self.place(name, 0)}: move it above the check."
        for near in difflib.get_close_matches(name, [n for n in self.binders if n.islower()], n=1, cutoff=0.8):
            where = self.place(near, -1)
            return f"No cell above its check defines `{name}`, but {where} defines `{near}`: was it renamed?"
        return f"No cell above its check defines `{name}`: was its cell deleted, or turned into text?"

    def place(self, name: str, which: int) -> str:
        number = self.binders[name][which]
        return f"{self.labels[self.cell_of[number]]}, line {self.statements[number].line}"


def parameters_of(node: ast.AST) -> list[str]:
    """The parameters of a function, or of the function that makes an object of a class."""
    if isinstance(node, ast.ClassDef):
        return next((parameters_of(one)[1:] for one in node.body if getattr(one, "name", "") == "__init__"), [])
    arguments = getattr(node, "args", node)
    return [one.arg for one in ast.iter_child_nodes(arguments) if isinstance(one, ast.arg)]


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
