"""What a rank would have to itself if it were a process: its environment variables, its copy of the program's modules,
its default dtype, its working directory.

The ranks of a virtual cluster are threads of one process. Only one runs at a time, so all of this is exchanged when a
rank's turn begins and ends. Modules of libraries are shared, except for what a rank writes into them
(library_state.py); those that the program's author wrote are imported once per rank, because programs keep in them who
they are: `process_group_manager.tp_rank`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, ClassVar

import torch

from ...recording.torch_private import PRINT_OPTIONS
from ...text import source_lines
from ...text.package import NAME
from .library_state import LibraryState, Name, Place, Setting
from .python_private import let_modules_travel, set_dynamic_classes, set_import_locks, set_variables, variables

set_level = logging.Logger.setLevel


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
        self.values: list[Any] = []  # what it has at the places that ranks do not share

    def enter(self) -> None:
        set_variables(self.variables)
        set_dynamic_classes(self.classes)
        if self.process.names:
            sys.modules.update(self.modules)
            set_import_locks(self.import_locks)
        for number, place in enumerate(self.process.places):
            place.write(self.values[number] if number < len(self.values) else place.at_first)

    def leave(self) -> None:
        if self.process.names:
            self.modules = {name: sys.modules.pop(name) for name in self.process.names if name in sys.modules}
        self.process.places += self.process.libraries.changed()
        if self.process.places:
            self.values = [place.read() for place in self.process.places]


class Process(MetaPathFinder):
    """The process of a virtual cluster, and what its ranks do not share.

    names       modules that ranks have imported and each has its own copy of
    places      what a rank has changed and its ranks do not share: all else need not be exchanged
    libraries   where ranks may have written to
    """

    def __init__(self, in_rank: Callable[[], bool]) -> None:
        """in_rank: whether a rank is running, rather than what sets up the world."""
        self.in_rank = in_rank
        self.names: dict[str, None] = {}
        self.places: list[Place] = []
        self.separated: list[Any] = []  # what is among the places: functions that read a setting, attributes of modules
        self.of_process: set[str] = set()  # packages that were there before the ranks
        self.libraries = LibraryState(self.is_library)
        self.imports = 0  # of libraries, under way: what these set is for all ranks

    def install(self) -> None:
        """From now on, each rank imports the program's modules for itself, and has its own settings."""
        sys.meta_path.insert(0, self)
        start_children_with_own_variables()
        self.of_process = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names
        self.watched = watched_module(self)
        for module in [*sys.modules.values()]:
            self.watch(module)
        self.separate(os, "chdir", os.getcwd)
        self.separate(torch, "set_default_dtype", torch.get_default_dtype)
        self.separate(torch, "set_float32_matmul_precision", torch.get_float32_matmul_precision)
        deterministic = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
        for name in ("use_deterministic_algorithms", "set_deterministic_debug_mode"):
            self.separate(torch, name, *deterministic)
        self.separate(torch, "set_default_tensor_type", torch.get_default_dtype, torch.set_default_dtype)
        self.separate(torch, "set_num_threads", torch.get_num_threads)
        for flag in flags_of_backends():
            self.separate(flag, "setter", flag.getter)
        self.separate(torch, "set_printoptions", print_options, lambda options: vars(PRINT_OPTIONS).update(options))
        for name in ("setLevel", "addHandler", "removeHandler"):
            self.separate_loggers(name)

    def watch(self, module: ModuleType) -> None:
        if type(module) is ModuleType:
            module.__class__ = self.watched

    def is_library(self, module: str) -> bool:
        """Whether a module is shared by the ranks, and not our own."""
        return module not in self.names and module != "__main__" and not module.startswith(NAME + ".")

    def separate(
        self, owner: Any, name: str, read: Callable[[], Any], write: Callable[[Any], object] | None = None
    ) -> None:
        """Once a rank has called the function `name`, what it sets is that rank's own."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def set_for_this_rank(*args: Any, **kwargs: Any) -> Any:
            if read not in self.separated:
                self.separated.append(read)
                self.places.append(Setting(read, write or function))
            return function(*args, **kwargs)

        setattr(owner, name, set_for_this_rank)

    def separate_loggers(self, name: str) -> None:
        """Once a rank has called the method `name` of a logger, that logger is that rank's own."""
        method = getattr(logging.Logger, name)

        @functools.wraps(method)
        def set_for_this_rank(logger: logging.Logger, *args: Any, **kwargs: Any) -> Any:
            if self.in_rank() and not self.imports and logger not in self.separated:
                self.separated.append(logger)
                self.places.append(Setting(lambda: read_log(logger), lambda setting: write_log(logger, setting)))
            return method(logger, *args, **kwargs)

        setattr(logging.Logger, name, set_for_this_rank)

    def separate_attribute(self, module: ModuleType, name: str) -> None:
        """The running rank is about to set an attribute of a library's module: from now on, it is each rank's own."""
        ours = self.imports or not self.in_rank() or module.__name__ in self.names
        if not ours and (module, name) not in self.separated:
            self.separated.append((module, name))
            self.places.append(Name(vars(module), name))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                if is_programs(spec):
                    self.names[fullname] = None
                if type(spec.loader) is SourceFileLoader:
                    loader = OnceCompiled if is_programs(spec) else OfLibrary
                    spec.loader = loader(self, spec.loader.name, spec.loader.path)
                return spec
        return None

    @contextmanager
    def importing(self) -> Iterator[None]:
        self.imports += 1
        try:
            yield
        finally:
            self.imports -= 1


def is_programs(spec: ModuleSpec) -> bool:
    """Whether the program's author wrote the module, in Python."""
    if spec.origin is None:  # a folder without __init__.py
        return any(map(source_lines.is_students, spec.submodule_search_locations or ()))
    return isinstance(spec.loader, SourceFileLoader) and source_lines.is_students(spec.origin)


class Loader(SourceFileLoader):
    """Of the modules that ranks import."""

    def __init__(self, process: Process, name: str, path: str):
        super().__init__(name, path)
        self.process = process


class OnceCompiled(Loader):
    """Reads a module's file for the first rank; the others run the same code."""

    codes: ClassVar[dict[str, CodeType | None]] = {}

    def get_code(self, fullname: str) -> CodeType | None:
        if self.path not in self.codes:
            self.codes[self.path] = code = super().get_code(fullname)
            if code is not None:
                self.process.libraries.read_module(code)
        return self.codes[self.path]


class OfLibrary(Loader):
    """Runs a library's module for all ranks."""

    def exec_module(self, module: ModuleType) -> None:
        with self.process.importing():
            super().exec_module(module)
        self.process.watch(module)
        code = self.get_code(module.__name__)
        if code is not None and module.__name__.partition(".")[0] not in self.process.of_process:
            self.process.libraries.read_library(module, code)


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


def flags_of_backends() -> Iterator[Any]:
    """Those that are set as attributes: `torch.backends.cudnn.benchmark = True`."""
    for module in [*vars(torch.backends).values()]:
        for flag in vars(type(module)).values():
            if isinstance(flag, torch.backends.ContextProp):
                yield flag


def print_options() -> dict[str, Any]:
    """What `torch.set_printoptions` sets."""
    return vars(PRINT_OPTIONS).copy()


def read_log(logger: logging.Logger) -> tuple[int, bool, bool, list[logging.Handler]]:
    """What a program sets on a logger: its level, whether it is disabled and passes on, its handlers."""
    return logger.level, logger.disabled, logger.propagate, logger.handlers.copy()


def write_log(logger: logging.Logger, setting: tuple[int, bool, bool, list[logging.Handler]]) -> None:
    level, logger.disabled, logger.propagate, logger.handlers[:] = setting
    if level != logger.level:
        set_level(logger, level)


def start_children_with_own_variables() -> None:
    """A rank's variables are not those of the process: hand them to the programs that it starts."""
    init = subprocess.Popen.__init__

    @functools.wraps(init)
    def init_with_variables(popen: Any, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(init).bind(popen, *args, **kwargs)
        bound.arguments["env"] = bound.arguments.get("env") or dict(os.environ)
        init(*bound.args, **bound.kwargs)

    subprocess.Popen.__init__ = init_with_variables  # type: ignore[method-assign,assignment]
