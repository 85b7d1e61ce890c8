"""What a rank would have to itself if it were a process: its environment variables, its copy of the program's modules,
its default dtype, its working directory.

The ranks of a virtual cluster are threads of one process. Only one runs at a time, so all of this is exchanged when a
rank's turn begins and ends. Modules of libraries are shared; those that the program's author wrote are imported once
per rank, because programs keep in them who they are: `process_group_manager.tp_rank`.
"""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, ClassVar, NamedTuple

import torch

from ...text import source_lines
from .python_private import let_modules_travel, set_dynamic_classes, set_import_locks, set_variables, variables

Attribute = tuple[ModuleType, str]
NOTHING = object()  # an attribute that a module does not have


class Setting(NamedTuple):
    """Something that a process has one of: how to read it, how to set it, and what it was when the world began."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    at_first: Any


class Surroundings:
    """Those of one rank. `enter` makes them the process's when its turn begins, `leave` saves them when it ends.

    own   the environment variables in which the ranks differ
    """

    def __init__(self, process: Process, own: Mapping[str, str]):
        self.process = process
        self.variables = {**variables(), **{os.fsencode(name): os.fsencode(value) for name, value in own.items()}}
        self.classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()  # of notebook cells
        self.modules: dict[str, ModuleType] = {}
        self.import_locks: dict[str, Any] = {}
        self.settings: list[Any] = []
        self.attributes: dict[Attribute, Any] = {}

    def enter(self) -> None:
        set_variables(self.variables)
        set_dynamic_classes(self.classes)
        if self.process.names:
            sys.modules.update(self.modules)
            set_import_locks(self.import_locks)
        for place, setting in enumerate(self.process.settings):
            setting.write(self.settings[place] if place < len(self.settings) else setting.at_first)
        for (module, name), at_first in self.process.attributes.items():
            put(module, name, self.attributes.get((module, name), at_first))

    def leave(self) -> None:
        if self.process.names:
            self.modules = {name: sys.modules.pop(name) for name in self.process.names if name in sys.modules}
        if self.process.settings:
            self.settings = [setting.read() for setting in self.process.settings]
        if self.process.attributes:
            self.attributes = {
                (module, name): vars(module).get(name, NOTHING) for module, name in self.process.attributes
            }


class Process(MetaPathFinder):
    """The process of a virtual cluster, and what its ranks do not share.

    names       modules that ranks have imported and each has its own copy of
    settings    those that a rank has changed: the others need not be exchanged
    attributes  of libraries' modules, those that a rank has set: {(module, name): what it was before}
    """

    def __init__(self, in_rank: Callable[[], bool]) -> None:
        """in_rank: whether a rank is running, rather than what sets up the world."""
        self.in_rank = in_rank
        self.names: dict[str, None] = {}
        self.settings: list[Setting] = []
        self.attributes: dict[Attribute, Any] = {}

    def install(self) -> None:
        """From now on, each rank imports the program's modules for itself, and has its own settings."""
        sys.meta_path.insert(0, self)
        start_children_with_own_variables()
        watched = watched_module(self)
        for module in [*sys.modules.values()]:
            if type(module) is ModuleType:
                module.__class__ = watched
        self.separate(os, "chdir", os.getcwd)
        self.separate(torch, "set_default_dtype", torch.get_default_dtype)
        self.separate(torch, "set_float32_matmul_precision", torch.get_float32_matmul_precision)
        deterministic = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
        for name in ("use_deterministic_algorithms", "set_deterministic_debug_mode"):
            self.separate(torch, name, *deterministic)

    def separate(
        self, owner: Any, name: str, read: Callable[[], Any], write: Callable[[Any], object] | None = None
    ) -> None:
        """Once a rank has called the function `name`, what it sets is that rank's own."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def set_for_this_rank(*args: Any, **kwargs: Any) -> Any:
            if all(setting.read is not read for setting in self.settings):
                self.settings.append(Setting(read, write or function, read()))
            return function(*args, **kwargs)

        setattr(owner, name, set_for_this_rank)

    def separate_attribute(self, module: ModuleType, name: str) -> None:
        """The running rank is about to set an attribute of a library's module: from now on, it is each rank's own."""
        if self.in_rank() and module.__name__ not in self.names:
            self.attributes.setdefault((module, name), vars(module).get(name, NOTHING))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                if is_programs(spec):
                    self.names[fullname] = None
                    if type(spec.loader) is SourceFileLoader:
                        spec.loader = OnceCompiled(spec.loader.name, spec.loader.path)
                return spec
        return None


def is_programs(spec: ModuleSpec) -> bool:
    """Whether the program's author wrote the module, in Python."""
    if spec.origin is None:  # a folder without __init__.py
        return any(map(source_lines.is_students, spec.submodule_search_locations or ()))
    return isinstance(spec.loader, SourceFileLoader) and source_lines.is_students(spec.origin)


class OnceCompiled(SourceFileLoader):
    """Reads a module's file for the first rank; the others run the same code."""

    codes: ClassVar[dict[str, CodeType | None]] = {}

    def get_code(self, fullname: str) -> CodeType | None:
        if self.path not in self.codes:
            self.codes[self.path] = super().get_code(fullname)
        return self.codes[self.path]


def watched_module(process: Process) -> type[ModuleType]:
    """The class of modules that note which of their attributes a rank sets: from then on, these are each rank's own."""

    class WatchedModule(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            process.separate_attribute(self, name)
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            process.separate_attribute(self, name)
            super().__delattr__(name)

    let_modules_travel(WatchedModule)
    return WatchedModule


def put(module: ModuleType, name: str, value: Any) -> None:
    if value is NOTHING:
        vars(module).pop(name, None)
    else:
        vars(module)[name] = value


def start_children_with_own_variables() -> None:
    """A rank's variables are not those of the process: hand them to the programs that it starts."""
    init = subprocess.Popen.__init__

    @functools.wraps(init)
    def init_with_variables(popen: Any, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(init).bind(popen, *args, **kwargs)
        bound.arguments["env"] = bound.arguments.get("env") or dict(os.environ)
        init(*bound.args, **bound.kwargs)

    subprocess.Popen.__init__ = init_with_variables  # type: ignore[method-assign,assignment]
