"""What a program can write into libraries, which its ranks share: here it is found, so that each rank can have its own.

Python tells nobody that an attribute of a class or an object is set. So the places that a program could write to are
compared at the end of each turn. They are few: those that its code names (`torch.nn.Linear.forward = mine`), and in
libraries that ranks import themselves the global names, classes and containers that hold state.
"""

from __future__ import annotations

import dis
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

import torch

from ...text.source_lines import is_students

NOTHING = object()  # what a place holds that is not there
LARGE = 64  # entries; a larger container is a table, not state
MOST_PLACES = 1_000  # to compare at the end of each turn
WRITES_BY_NAME = {"setattr", "delattr", "patch", "monkeypatch"}
TYPE_OF = {"type", "__class__"}


class Place(Protocol):
    """Something that processes do not share, and how to exchange it. at_first: what it was when the world began."""

    at_first: Any

    def read(self) -> Any: ...

    def write(self, value: Any) -> None: ...


class Setting:
    """What two functions read and write."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object]):
        self.read, self.set, self.at_first = read, write, read()

    def write(self, value: Any) -> None:
        self.set(value)


class Name:
    """A name in a module's or an object's dictionary."""

    def __init__(self, holder: MutableMapping[str, Any], name: str):
        self.holder, self.name = holder, name
        self.at_first = self.read()

    def read(self) -> Any:
        return self.holder.get(self.name, NOTHING)

    def write(self, value: Any) -> None:
        if value is NOTHING:
            self.holder.pop(self.name, None)
        else:
            self.holder[self.name] = value

    def has_changed(self) -> bool:
        return self.read() is not self.at_first


class ClassAttribute(Name):
    """A name in a class, whose dictionary can only be read."""

    def __init__(self, owner: type, name: str):
        self.owner = owner
        super().__init__(vars(owner), name)  # type: ignore[arg-type]

    def write(self, value: Any) -> None:
        if value is self.read():
            return
        if value is NOTHING:
            type.__delattr__(self.owner, self.name)
        else:
            type.__setattr__(self.owner, self.name, value)


class Contents:
    """All that a dictionary, a list or a set holds."""

    def __init__(self, container: Any):
        self.container, self.at_first = container, container.copy()

    def read(self) -> Any:
        return self.container.copy()

    def write(self, value: Any) -> None:
        if isinstance(self.container, list):
            self.container[:] = value
        else:
            self.container.clear()
            self.container.update(value)

    def has_changed(self) -> bool:
        now, before = self.container, self.at_first
        if isinstance(now, set):
            return bool(now != before)
        if isinstance(now, dict):
            if now.keys() != before.keys():
                return True
            now, before = now.values(), before.values()
        return len(now) != len(before) or not all(map(operator.is_, now, before))


Comparable = Name | Contents


class Names:
    """The names that a program's code uses.

    set           of the attributes that it sets
    set_on_types  those that it may set on the type of an object, which it need not name: `type(layer).forward = mine`
    """

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.set: set[str] = set()
        self.set_on_types: set[str] = set()

    def read(self, code: CodeType) -> None:
        for part in codes_in(code):
            self.used.update(part.co_names)
            attributes = attributes_set(part)
            self.set.update(attributes)
            if not TYPE_OF.isdisjoint(part.co_names):
                self.set_on_types.update(attributes)
            if not WRITES_BY_NAME.isdisjoint(part.co_names):
                self.set.update(filter(str.isidentifier, strings_in(part.co_consts)))


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_in(const)


def strings_in(constants: tuple[Any, ...]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, tuple):
            yield from strings_in(constant)
        elif isinstance(constant, str):
            yield constant


def attributes_set(code: CodeType) -> set[str]:
    """The attributes that this code sets, but for those of `self`."""
    found, before = set(), None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR") and not is_self(before):
            found.add(instruction.argval)
        before = instruction.argval
    return found


def is_self(loaded: Any) -> bool:
    return loaded == "self" or (isinstance(loaded, tuple) and loaded[-1:] == ("self",))  # one instruction may load two


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def globals_set(code: CodeType) -> set[str]:
    """The global names that functions set."""
    return {
        instruction.argval
        for part in codes_in(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
    }


def functions_of(program: Any) -> list[FunctionType]:
    """The functions that the program's author wrote and that it names, in classes, too."""
    found: dict[int, FunctionType] = {}
    seen: set[int] = set()
    left = [program]
    while left:
        thing = left.pop()
        thing = getattr(thing, "__func__", getattr(thing, "func", thing))  # of a method, of a partial
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, type) and thing.__module__ == "__main__":
            left += vars(thing).values()
        elif isinstance(thing, FunctionType) and is_students(thing.__code__.co_filename):
            found[id(thing)] = thing
            left += [thing.__globals__.get(name) for code in codes_in(thing.__code__) for name in code.co_names]
            left += inspect.getclosurevars(thing).nonlocals.values()
    return list(found.values())


class LibraryState:
    """The places in libraries to which the ranks of one world may write.

    is_library   whether a module of this name is one: installed, and not the program's
    """

    def __init__(self, is_library: Callable[[str], bool]):
        self.is_library = is_library
        self.names = Names()
        self.namespaces: list[Mapping[str, Any]] = []  # of functions that came by value
        self.seen: set[tuple[int, str]] = set()
        self.places: list[Comparable] = []

    def changed(self) -> list[Comparable]:
        """The places that have changed since the world began. They are not compared any more."""
        found = [place for place in self.places if place.has_changed()]
        if found:
            self.places = [place for place in self.places if place not in found]
        return found

    def read_program(self, program: Any) -> None:
        """Before a program runs that has come by value."""
        for function in functions_of(program):
            self.names.read(function.__code__)
            self.namespaces += function.__globals__, inspect.getclosurevars(function).nonlocals
        self.look()

    def read_module(self, code: CodeType) -> None:
        """Before a module of the program runs."""
        self.names.read(code)
        self.look()

    def read_library(self, module: ModuleType, code: CodeType) -> None:
        """After a rank has imported a library, which keeps its state in ways of its own."""
        for name in globals_set(code):
            self.add(Name, vars(module), name)
        set_by_it = {name for part in codes_in(code) for name in attributes_set(part)}
        for name, value in [*vars(module).items()]:
            if isinstance(value, type) and value.__module__ == module.__name__:
                for attribute in set_by_it & vars(value).keys():
                    self.add(ClassAttribute, value, attribute)
                self.add_contents(vars(value))
            elif not name.startswith("__"):
                self.add_contents({name: value})
        self.look()

    def add_contents(self, namespace: Mapping[str, Any]) -> None:
        """The containers of a namespace, and its objects of libraries' classes with theirs."""
        for name, value in namespace.items():
            if type(value) in (dict, list, set):
                self.add(Contents, value)
            elif not name.startswith("__") and self.is_object(value) and self.add(Contents, vars(value)):
                self.add_contents(vars(value))

    def add(self, kind: Callable[..., Comparable], holder: Any, name: str = "") -> bool:
        """Compare this place from now on. False if that is done already, or would take too long."""
        key = id(holder), name
        large = not name and len(holder) > LARGE
        if key in self.seen or large or len(self.places) == MOST_PLACES:
            return False
        self.seen.add(key)
        self.places.append(kind(holder, name) if name else kind(holder))
        return True

    def look(self) -> None:
        """Add what the program's names lead to: from modules to classes and objects, and on to their attributes."""
        names = self.names.used
        left = [sys.modules[name] for name in names if name in sys.modules]
        for namespace in self.namespaces:
            left += [namespace[name] for name in names if isinstance(namespace.get(name), (ModuleType, type))]
        seen: set[int] = set()
        while left:
            thing = left.pop()
            if id(thing) not in seen:
                seen.add(id(thing))
                namespace = self.look_at(thing)
                left += [namespace[name] for name in names if name in namespace]
        if self.names.set_on_types:
            for layer in subclasses(torch.nn.Module):
                for name in self.names.set_on_types if self.is_library(layer.__module__) else ():
                    self.add(ClassAttribute, layer, name)

    def look_at(self, thing: Any) -> Mapping[str, Any]:
        """Add the places of one thing. Returns where its names lead to further ones."""
        if type(thing) in (dict, list, set):
            self.add(Contents, thing)
            return {}
        if isinstance(thing, ModuleType):
            return vars(thing) if self.is_library(thing.__name__) else {}
        if isinstance(thing, type):
            if not self.is_library(thing.__module__):
                return {}
            for name in self.names.set:
                self.add(ClassAttribute, thing, name)
            return vars(thing)
        if not self.is_object(thing):
            return {}
        namespace: Mapping[str, Any] = vars(thing)
        for name in self.names.set:
            self.add(Name, namespace, name)
        return namespace

    def is_object(self, value: Any) -> bool:
        """Whether it is an object with attributes, of a class that a library defines."""
        return (
            not isinstance(value, (type, ModuleType, FunctionType, torch.nn.Module, torch.Tensor))
            and isinstance(getattr(value, "__dict__", None), dict)
            and self.is_library(str(type(value).__module__))
        )
