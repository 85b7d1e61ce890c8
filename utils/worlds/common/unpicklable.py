"""Which part of a program, or of a result, is the one that can't travel: named as its author wrote it."""

from __future__ import annotations

import dis
import functools
import inspect
import reprlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...text import source_lines
from .pickling import CannotTravel

DEEPEST = 50  # levels of a structure that are searched; a longer name would help nobody
CARRIERS = (types.FunctionType, types.MethodType, functools.partial)  # they take variables along
ALWAYS_FINE = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
# What a torch module has as attributes, and keeps in these. Written out, since torch need not be imported here; that
# torch still has them is checked in recording/torch_private.py.
MODULE_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class Part:
    """A value that travels: what its author calls it, and how it comes along ("which train uses", "argument 0")."""

    value: object
    name: str
    role: str = ""

    def __str__(self) -> str:
        return f"`{self.name}`, {self.role}, ({a_type(self.value)})"

    def inside(self, suffix: str, value) -> Part:
        return Part(value, self.name + suffix, self.role)


def a_type(value) -> str:
    """ "a lock", "an Event"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def name_of(fn) -> str:
    if isinstance(fn, functools.partial):
        return f"partial({name_of(fn.func)})"
    name = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
    return "a lambda" if name == "<lambda>" else name


def parts_of_call(fn, args: tuple, kwargs: dict) -> list[Part]:
    """What `spawn(fn, world_size, *args, **kwargs)` sends: the program and its arguments."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have none
        parameters = ()
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][2:]
    names = by_position + [f"args[{number}]" for number in range(len(args) - len(by_position))]
    return [
        Part(fn, name_of(fn), "the program itself"),
        *(Part(value, names[number], f"argument {number}") for number, value in enumerate(args)),
        *(Part(value, name, "an argument") for name, value in kwargs.items()),
    ]


def parts(part: Part) -> Iterator[Part]:
    """The named parts of `part`; a library's thing has none, as its insides mean nothing to a student."""
    value = part.value
    if isinstance(value, types.FunctionType):
        yield from variables(value)
    elif isinstance(value, types.MethodType) and is_students(value):
        yield Part(value.__self__, "self", f"which {name_of(value)} uses")
        yield from variables(value.__func__)
    elif isinstance(value, functools.partial):
        yield part.inside(".func", value.func)
        yield from (part.inside(f".args[{number}]", argument) for number, argument in enumerate(value.args))
        yield from (part.inside(f".keywords[{name!r}]", argument) for name, argument in value.keywords.items())
    elif isinstance(value, (staticmethod, classmethod)):
        yield part.inside("", value.__func__)
    elif isinstance(value, property):
        yield from (part.inside("", function) for function in (value.fget, value.fset, value.fdel) if function)
    elif isinstance(value, dict):
        yield from (part.inside(f"[{reprlib.repr(key)}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from (part.inside(f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, type) and is_students(value):
        yield from (Part(base, base.__name__, part.role) for base in value.__bases__)
        yield from (Part(item, f"{value.__name__}.{name}", part.role) for name, item in vars(value).items())
    elif is_module(value) or is_students(type(value)):
        yield from (part.inside(f".{name}", item) for name, item in attributes(value))
        yield Part(type(value), type(value).__name__, part.role)


def attributes(value) -> Iterator[tuple[str, object]]:
    """(name, value) of what an object holds; a torch module's parameters, buffers and modules under their own names."""
    held = getattr(value, "__dict__", {})
    if is_module(value):
        for table in MODULE_TABLES:
            yield from held[table].items()
    yield from ((name, item) for name, item in held.items() if name not in MODULE_TABLES)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))


def variables(function: types.FunctionType) -> Iterator[Part]:
    """What a function takes along: variables from outside that it uses, and the defaults of its parameters."""
    uses = f"which {name_of(function)} uses"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Part(cell.cell_contents, name, uses)
        except ValueError:  # it has no value yet
            pass
    for name in sorted(globals_in(function.__code__) & function.__globals__.keys()):
        yield Part(function.__globals__[name], name, uses)
    for parameter in inspect.signature(function, follow_wrapped=False).parameters.values():
        if parameter.default is not parameter.empty:
            yield Part(parameter.default, parameter.name, f"a default of {name_of(function)}")
    for name, value in vars(function).items():
        yield Part(value, f"{name_of(function)}.{name}", uses)


def globals_in(code: types.CodeType) -> set[str]:
    """The global names that a function's code mentions, and the code of the functions inside it."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname.endswith("_GLOBAL")}
    return own.union(*(globals_in(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def is_module(value) -> bool:
    """Whether it is a torch module, ready to use."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module) and "_parameters" in vars(value)


def is_students(thing) -> bool:
    """Whether a class or function comes from the notebook, or from a file of the student's."""
    module = getattr(thing, "__module__", None) or ""
    file = getattr(sys.modules.get(module), "__file__", None) or "<frozen "
    return module == "__main__" or source_lines.is_students(file)


def find_culprit(roots: list[Part], why_not: Callable[[object], Exception | None]) -> tuple[Part, Exception] | None:
    """The smallest part that can't travel, and why. `why_not(value)` is the error that it gives, or None.

    A part that can't travel is searched for one that can't either; the last is the culprit. A part that only leads back
    to where the search has been (its `.parent`, say) is to blame only if nothing else is.
    """
    guilty: dict[int, Part] = {}  # kept alive, so that no id is used twice
    innocent: dict[int, Part] = {}
    second_best = []

    def search(part: Part, depth: int) -> tuple[Part, Exception] | None:
        error = why_not(part.value)
        if error is None:
            innocent[id(part.value)] = part
            return None
        guilty[id(part.value)] = part
        leads_back = False
        for inner in () if is_itself_to_blame(part.value, error) or depth == DEEPEST else parts(part):
            if id(inner.value) in guilty:
                leads_back = True
            elif not isinstance(inner.value, ALWAYS_FINE) and id(inner.value) not in innocent:
                found = search(inner, depth + 1)
                if found:
                    return found
        if leads_back:
            second_best.append((part, error))
            return None
        return part, error

    for root in roots:
        if found := search(root, 0):
            return found
    return second_best[0] if second_best else None


def is_itself_to_blame(value, error: Exception) -> bool:
    """Whether no part of `value` is to blame: it was refused as a whole, or it is a structure without end."""
    too_deep = isinstance(error.__cause__, RecursionError) and not isinstance(value, CARRIERS)
    return too_deep or (isinstance(error, CannotTravel) and error.value is value)


def variables_of_call(roots: list[Part]) -> Iterator[Part]:
    """Every variable that comes along, once: also those of the functions that the program calls."""
    seen: dict[int, Part] = {}
    waiting = list(reversed(roots))
    while waiting:
        part = waiting.pop()
        if id(part.value) in seen or isinstance(part.value, ALWAYS_FINE):
            continue
        seen[id(part.value)] = part
        if not isinstance(part.value, CARRIERS):
            yield part
        elif isinstance(part.value, functools.partial) or is_students(part.value):
            waiting += reversed(list(parts(part)))
