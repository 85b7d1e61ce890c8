"""Which statements of a notebook a function needs, and that function, with nothing else of the notebook executed.

    read(cells, wanted) -> [answer]        reads; runs nothing
    load(answer) -> function               executes the answer's statements in a fresh __main__

Needed is what gives the function its value at the place of its check, what that reads, and so on: imports, helper
functions, classes, tables, and statements that change one of them (`TABLE[1] = 2`, `sizes.append(3)`,
`Model.forward = f`, `@register`). All as a notebook would have it that was run from top to bottom up to the check.
Not needed are demos, prints, figures and calls of spawn: they may be slow, noisy or wrong.

Errors name a line as "cell of ring-all-reduce, line 7": that is the file's name of the code of this cell, in tracebacks
too, and linecache knows its text. Cells that hold no wanted function are "cell 12", counted among those given.
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

from grader.inside.statements import Statement, all_arguments, cell_statements

BUILTINS = set(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}
WORLDS = ("spawn", "simulate")
NO_WORLD = (
    "grading loads your answer on a rank, and a rank can't start other ranks: compute the value inside the function, "
    "or write it down as a number"
)


class LoadError(Exception):
    """The function can't be had; the text is for the student."""


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(cells: list[str], wanted: list[tuple[str, int]], labels: list[str] | None = None) -> list[dict]:
    """What each wanted function needs: plain data, in the order of `wanted`.

    cells   the sources of the code cells that are no checks, in the notebook's order
    wanted  (the function's name, how many of the cells stand before its check)
    labels  how errors name the cells, unless as said above

    An answer: {"name", "parameters": their names, or None if there is no such function, "problem": why there is none,
    "pieces": the statements that it needs, "rest": those to try if one of them fails or a name is "missing": earlier
    values of the same names, as a cell that fails leaves them, and whatever may bind names unseen}.
    A piece: {"cell": number from 0, "line": its first line in the cell, "label", "source", "binds": names}.
    """
    notebook = Notebook(cells, wanted, labels)
    return [notebook.answer(name, before) for name, before in wanted]


class Notebook:
    """All statements of a notebook, in order, and who binds and changes which name."""

    def __init__(self, cells: list[str], wanted: list[tuple[str, int]], labels: list[str] | None):
        self.cells, self.errors = cells, {}
        self.statements: list[Statement] = []
        self.cell_of: list[int] = []
        for number, source in enumerate(cells):
            found, error = cell_statements(source)
            self.statements += found
            self.cell_of += [number] * len(found)
            if error is not None:
                self.errors[number] = error
        self.binders, self.changers = defaultdict(list), defaultdict(list)
        for number, one in enumerate(self.statements):
            for name in one.binds:
                self.binders[name].append(number)
        self.effects: dict[str, tuple[set[str], bool]] = {}
        self.aliases = defaultdict(set)
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
        """The names that a statement changes: itself, or by calling functions of the notebook that do."""
        names = one.changes | self.not_imported(one.methods)
        for function, given in one.calls:
            touched, changes_arguments = self.effects_of(function)
            names |= touched | (set(given) if changes_arguments else set())
        todo = list(names)
        while todo:
            new = self.aliases.get(todo.pop(), set()) - names
            names |= new
            todo += new
        return names

    def not_imported(self, names: set[str]) -> set[str]:
        """Without modules, of which calling a function changes nothing of the notebook."""
        return {name for name in names if not all(self.statements[one].is_import for one in self.binders.get(name, []))}

    def effects_of(self, function: str) -> tuple[set[str], bool]:
        """The names that a function of the notebook changes when it is called, and whether it changes an argument."""
        if function not in self.effects:
            touched, changes_arguments, seen, todo = set(), False, {function}, [function]
            while todo:
                for number in self.binders.get(todo.pop(), ()):
                    one = self.statements[number]
                    touched |= one.touches | self.not_imported(one.asks)
                    changes_arguments |= one.arguments
                    todo += (one.now | one.later) - seen
                    seen |= one.now | one.later
            self.effects[function] = touched, changes_arguments
        return self.effects[function]

    # -- one answer

    def answer(self, name: str, before: int) -> dict:
        end = next((number for number, cell in enumerate(self.cell_of) if cell >= before), len(self.statements))
        answer = {"name": name, "parameters": None, "problem": "", "pieces": [], "rest": [], "missing": []}
        if not any(number < end for number in [*self.binders.get(name, []), *self.changers.get(name, [])]):
            return {**answer, "problem": self.why_missing(name, before)}
        needed, missing = self.needed(name, end)
        rest, _ = self.needed(name, end, all_values=True)
        if missing and any(cell < before for cell in self.errors) | any(one.dynamic for one in self.statements[:end]):
            rest |= {number for number, one in enumerate(self.statements[:end]) if is_definition(one)}
        answer["parameters"], answer["missing"] = self.parameters(name, end), sorted(missing)
        answer["pieces"] = [self.piece(number) for number in sorted(needed)]
        answer["rest"] = [self.piece(number) for number in sorted(rest)] if rest != needed else []
        return answer

    def piece(self, number: int) -> dict:
        one, cell = self.statements[number], self.cell_of[number]
        label = self.labels[cell]
        return {"cell": cell, "line": one.line, "label": label, "source": one.source, "binds": sorted(one.binds)}

    def needed(self, name: str, end: int, all_values: bool = False) -> tuple[set[int], set[str]]:
        """The statements that `name` needs at `end`, and the names among theirs that nothing binds. Those that bind
        names in a way that can't be read off them (exec, globals, setattr) are needed where they mention one. With
        `all_values` all that give a name a value are, not only those whose value it still has.

        A name is needed as it is when a statement reads it (`at`), and what a function in it reads as that is when
        the function runs: at any time up to `until`.
        """
        always = {number for number, one in enumerate(self.statements[:end]) if one.is_always_needed}
        dynamic = [number for number, one in enumerate(self.statements[:end]) if one.dynamic]
        chosen, missing = set(always), set()
        todo, seen = [(name, end, end)], set()
        while todo:
            name, at, until = todo.pop()
            if (name, at, until) in seen:
                continue
            seen.add((name, at, until))
            found = self.reaching(name, at, all_values)
            found += between(self.changers.get(name, []), found[0] + 1 if found else 0, until)
            if not found and name not in BUILTINS:
                missing.add(name)
            found += [number for number in dynamic if self.mentions(number, name)]
            has_functions = any(self.statements[number].later for number in found)
            for number in found:
                chosen.add(number)
                one = self.statements[number]
                adds = number < at and name not in one.sure and not has_functions  # to a value that is found already
                read = one.now - {name} if adds else one.now
                todo += [(other, number, when) for other in read for when in (number, until)]
                todo += [(other, until, until) for other in one.later]
        return chosen, missing

    def reaching(self, name: str, at: int, all_values: bool) -> list[int]:
        """The statements that may have given a name the value that it has at `at`, in order."""
        binders = self.binders.get(name, [])
        end = first = bisect_left(binders, at)
        while first > 0:
            first -= 1
            if name in self.statements[binders[first]].sure and not all_values:
                break
        return binders[first:end]

    def mentions(self, number: int, name: str) -> bool:
        return re.search(rf"\b{re.escape(name)}\b", self.statements[number].source) is not None

    # -- what is known without running anything

    def parameters(self, name: str, at: int, depth: int = 10) -> list[str]:
        """The names of a function's parameters, as far as they can be read; of `noisily(f)` those of f."""
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
    """Of numbers in order those from `first` to before `end`."""
    return numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]


def is_definition(one: Statement) -> bool:
    """Whether a statement only defines something, and starts no ranks, checks or figures for it."""
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    if one.dynamic or isinstance(one.node, kinds):
        return True
    demo = {*WORLDS, "check", "checks_for", "figures", "plt", "print", "display", "input"}
    return isinstance(one.node, ast.Assign | ast.AnnAssign) and not one.now & demo


def defines(source: str, name: str) -> bool:
    """Whether a text that may be no Python looks as if it defined a function."""
    return re.search(rf"\b(def|class)\s+{re.escape(name)}\b|^{re.escape(name)}\s*=", source, re.MULTILINE) is not None


def unreadable(error: Exception, label: str) -> str:
    """Why a cell is no Python, as Python says it: with the line, and a caret below."""
    if not isinstance(error, SyntaxError):
        return f"{label} can't be read as Python ({type(error).__name__}: {error})."
    said = traceback.TracebackException(type(error), error, None)
    text = (error.text or "").rstrip("\n")
    lines = "".join(said.format_exception_only()).splitlines()
    return "\n".join([f"{label}, line {error.lineno}: {lines[-1]}", *(lines[1:-1] if text.strip() else [])])


# ---- loading ---------------------------------------------------------------------------------------------------------


def load(answer: dict, namespace_name: str = "__main__") -> Callable:
    """The function of an answer, in a module of its own that becomes `sys.modules[namespace_name]`.

    A statement that raises is passed over: it matters when the function is not there then, or when it reads a name that
    is not; then it says which statement should have given it. Raises LoadError.
    """
    if answer["problem"]:
        raise LoadError(answer["problem"])
    name, pieces = answer["name"], answer["pieces"]
    with no_worlds():
        module, failures = execute(pieces, namespace_name)
        wanting = [name, *answer["missing"], *(one for piece, _ in failures for one in piece["binds"])]
        if answer["rest"] and not all(hasattr(module, one) for one in wanting):
            pieces = answer["rest"]
            module, failures = execute(pieces, namespace_name)
        lost = {one: words for piece, words in failures for one in piece["binds"] if not hasattr(module, one)}
        if lost:
            module, failures = execute(pieces, namespace_name, explain=lost)
    if not hasattr(module, name):
        told = [words for piece, words in failures if name in piece["binds"]] or [words for _, words in failures]
        raise LoadError(told[-1] if told else f"Nothing gives `{name}` a value when its cell runs.")
    function = getattr(module, name)
    if not callable(function):
        of = type(function).__name__
        where = next(f"{piece['label']}, line {piece['line']}" for piece in reversed(pieces) if name in piece["binds"])
        raise LoadError(f"{where}: `{name}` is a value of type {of} here, not a function: give the value another name.")
    return function


def execute(pieces: list[dict], namespace_name: str, explain: dict | None = None) -> tuple[types.ModuleType, list]:
    """Execute statements in a fresh module. Returns it, and (piece, words) of each that raised."""
    module = types.ModuleType(namespace_name)
    sys.modules[namespace_name] = module
    if explain:
        module.__builtins__ = Explained(explain)
    remember_text(pieces)
    failures, flags = [], ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for piece in pieces:
        try:
            text = "\n" * (piece["line"] - 1) + piece["source"]
            code = compile(text, piece["label"], "exec", flags, dont_inherit=True)
            flags |= code.co_flags & FUTURE  # `from __future__ import` holds for all that follows, as in a notebook
            result = eval(code, vars(module))
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(result)
        except BaseException as error:
            failures.append((piece, why_failed(error, piece)))
    return module, failures


FUTURE = 0
for feature in __import__("__future__").all_feature_names:
    FUTURE |= getattr(__import__("__future__"), feature).compiler_flag


class Lost(NameError):
    """A name has no value, because the statement that gives it one raised."""


Lost.__name__ = "NameError"  # what students know it by


class Explained(dict):
    """The builtins, for a module in which statements failed: who reads a name that one of them binds learns why."""

    def __init__(self, explanations: dict[str, str]):
        super().__init__(vars(builtins))
        self.explanations = explanations

    def __missing__(self, name: str):
        if name in self.explanations:
            raise Lost(f"name {name!r} is not defined, because of {self.explanations[name]}", name=name)
        raise KeyError(name)


class NoWorld(RuntimeError):
    """A notebook's statement wanted ranks while it was loaded on one."""


@contextlib.contextmanager
def no_worlds() -> Iterator[None]:
    """While statements are loaded, spawn and simulate say that they can't be had; afterwards they are the real ones."""
    import utils  # only here: what reads notebooks needs none of it

    real = {name: getattr(utils, name) for name in WORLDS}
    loading = [True]

    def guarded(name: str) -> Callable:
        def world(*args, **kwargs):
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


def remember_text(pieces: list[dict]) -> None:
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


def why_failed(error: BaseException, piece: dict) -> str:
    """In words: where, what, and what usually causes it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == piece["label"]]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None) or piece["line"]
    source = linecache.getline(piece["label"], line).strip()
    try:
        said = str(error)[:1000]
    except Exception:  # a student's __str__ may raise
        said = ""
    words = f"{piece['label']}, line {line}:  {source}\n  raised {type(error).__name__}" + (f": {said}" if said else "")
    cause = usual_cause(error)
    return f"{words}\n  {cause}" if cause else words


def usual_cause(error: BaseException) -> str:
    if isinstance(error, Lost):
        return ""  # it says so itself
    if isinstance(error, ModuleNotFoundError):
        return "That module is not installed where grading runs: do without it, or use what requirements.txt names."
    if isinstance(error, NameError):
        return "Is it defined in a cell below, or in one that was deleted? Restart the kernel and run all cells."
    if isinstance(error, FileNotFoundError):
        return "Files beside the notebook are not there in grading: put what the function needs into the notebook."
    if isinstance(error, EOFError):
        return "Nobody can type anything in grading: write the value down."
    if isinstance(error, SystemExit):
        return "It leaves Python: remove it."
    return ""
