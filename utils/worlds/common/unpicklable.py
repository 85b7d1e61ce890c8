"""Which part of a program, or of a result, can't travel, named the way its author wrote it."""

from __future__ import annotations

import dis
import functools
import inspect
import reprlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...text import source_lines
from .pickling import CannotTravel

DEEPEST = 50  # levels of a structure that are searched; a longer name would be no help
CARRIERS = (types.FunctionType, types.MethodType, functools.partial)  # these take variables along
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
# Where a torch module keeps what it shows as attributes. Written out here, because torch may not be imported yet;
# recording/torch_private.py checks that torch still has them.
MODULE_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class Part:
    """A value that travels: what its author calls it, and why it comes along ("which train uses", "argument 0")."""

    value: Any
    name: str
    role: str = ""

    def __str__(self) -> str:
        return f"`{self.name}`, {self.role}, ({type_text(self.value)})"

    def inside(self, suffix: str, value: object) -> Part:
        return Part(value, self.name + suffix, self.role)


def type_text(value: object) -> str:
    """For example "a lock" or "an Event"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def name_of(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return f"partial({name_of(fn.func)})"
    name: str = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
    return "a lambda" if name == "<lambda>" else name


def parts_of_call(fn: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Part]:
    """What `spawn(fn, world_size, *args, **kwargs)` sends: the program and its arguments."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        parameters = []
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][2:]
    names = by_position + [f"args[{number}]" for number in range(len(args) - len(by_position))]
    return [
        Part(fn, name_of(fn), "the program itself"),
        *(Part(value, names[number], f"argument {number}") for number, value in enumerate(args)),
        *(Part(value, name, "an argument") for name, value in kwargs.items()),
    ]


def parts(part: Part) -> Iterator[Part]:
    """The named parts of `part`. An object from a library has none, because its insides mean nothing to a student."""
    value = part.value
    if isinstance(value, types.FunctionType):
        yield from variables(value)
    elif isinstance(value, types.MethodType) and students_wrote(value):
        yield Part(value.__self__, "self", f"which {name_of(value)} uses")
        function: Any = value.__func__
        yield from variables(function)
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
    elif isinstance(value, type) and students_wrote(value):
        yield from (Part(base, base.__name__, part.role) for base in value.__bases__)
        yield from (Part(item, f"{value.__name__}.{name}", part.role) for name, item in vars(value).items())
    elif is_module(value) or students_wrote(type(value)):
        yield from (part.inside(f".{name}", item) for name, item in attributes(value))
        yield Part(type(value), type(value).__name__, part.role)


def attributes(value: object) -> Iterator[tuple[str, object]]:
    """(name, value) of an object's attributes, among them the parameters, buffers and modules of a torch module."""
    held = getattr(value, "__dict__", {})
    if is_module(value):
        for table in MODULE_TABLES:
            yield from held[table].items()
    yield from ((name, item) for name, item in held.items() if name not in MODULE_TABLES)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))


def variables(function: types.FunctionType) -> Iterator[Part]:
    """What a function takes along: the outside variables that it uses, and the defaults of its parameters."""
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
    """The global names in a function's code, and in the code of the functions inside it."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname.endswith("_GLOBAL")}
    return own.union(*(globals_in(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def is_module(value: object) -> bool:
    """Whether it is a torch module, after its __init__."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module) and "_parameters" in vars(value)


def students_wrote(definition: object) -> bool:
    """Whether a class or function comes from the notebook, or from one of the student's own files."""
    module = getattr(definition, "__module__", None) or ""
    file = getattr(sys.modules.get(module), "__file__", None) or "<frozen "
    return module == "__main__" or source_lines.is_students(file)


def find_culprit(roots: list[Part], error_of: Callable[[object], Exception | None]) -> tuple[Part, Exception] | None:
    """The smallest part that can't travel, and its error. `error_of(value)` is the error of pickling it, or None.

    Inside a part that can't travel, we look for a smaller one that can't either; the last one found is the culprit. A
    part that only leads back to where the search has been (through `.parent`, say) is to blame only if nothing else is.
    """
    guilty: dict[int, Part] = {}  # {id: part}; holding the part keeps its id from being reused
    innocent: dict[int, Part] = {}
    second_best: list[tuple[Part, Exception]] = []

    def search(part: Part, depth: int) -> tuple[Part, Exception] | None:
        error = error_of(part.value)
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


def is_itself_to_blame(value: object, error: Exception) -> bool:
    """Whether it is not a part of `value` that is to blame: it was refused as a whole, or is nested too deeply."""
    too_deep = isinstance(error.__cause__, RecursionError) and not isinstance(value, CARRIERS)
    return too_deep or (isinstance(error, CannotTravel) and error.value is value)


def variables_of_call(roots: list[Part]) -> Iterator[Part]:
    """Every variable that comes along, once, including those of the functions that the program calls."""
    seen: dict[int, Part] = {}
    waiting = list(reversed(roots))
    while waiting:
        part = waiting.pop()
        if id(part.value) in seen or isinstance(part.value, ALWAYS_FINE):
            continue
        seen[id(part.value)] = part
        if not isinstance(part.value, CARRIERS):
            yield part
        elif isinstance(part.value, functools.partial) or students_wrote(part.value):
            waiting += reversed(list(parts(part)))
