"""Remarks on what virtual ranks share and processes would not: the classes, objects and containers of libraries.

Python tells nobody that an attribute of a class is set. So the methods that a program has replaced are looked for at
the end of the run, in the classes that programs patch: modules, optimizers, tensors.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from ...recording.callers import who_called
from ...text.source_lines import is_students, place

KNOWS_RANKS = re.compile(r"\btorch\.distributed\b|\bget_rank\(|\bget_world_size\(")
PATCHED = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)


def about_import(module: str, source: str) -> str:
    """On a module of a library that a rank has just imported; "" if nothing in it depends on the rank."""
    if not KNOWS_RANKS.search(source):
        return ""
    where = place(who_called()[0])
    return (
        f"{module.partition('.')[0]}{f' (imported by {where})' if where else ''} works with torch.distributed. Virtual "
        "ranks share the classes and objects of libraries, so it may take one rank for another. If it does, use spawn."
    )


def about_patches() -> str:
    """On methods of libraries that the program has replaced and not put back; "" if there are none."""
    found = sorted({f"{kind.__qualname__}.{name} ({place(where)})" for kind, name, where in replaced_methods()})
    if not found:
        return ""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"The program replaces {', '.join(found[:3])}{more}. Virtual ranks share the classes of libraries: the last "
        "replacement holds for all of them, and one that calls the method it replaces calls other ranks' replacements, "
        "too. Override the method in a class of your own instead."
    )


def replaced_methods() -> Iterator[tuple[type, str, str]]:
    """(class, method, "file:line" of the function that the program has put there)."""
    for kind in set().union(*map(subclasses, PATCHED)):
        if is_librarys(kind):
            for name, value in [*vars(kind).items()]:
                if where := students_line(value):
                    yield kind, name, where


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def is_librarys(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ != "__main__" and file is not None and not is_students(file)


def students_line(value: Any) -> str:
    """Where the program's author wrote this function or what it decorates; "" for any other value."""
    function = getattr(value, "__func__", value)
    if isinstance(function, FunctionType):
        for one in (function, inspect.unwrap(function)):
            code = getattr(one, "__code__", None)
            if code is not None and code.co_filename != "<string>" and is_students(code.co_filename):
                return f"{code.co_filename}:{code.co_firstlineno}"
    return ""
