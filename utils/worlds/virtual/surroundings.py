"""What a rank would have to itself if it were a process: its environment variables, its copy of the program's modules,
its default dtype, its working directory.

The ranks of a virtual cluster are threads of one process. Only one runs at a time, so all of this is exchanged when a
rank's turn begins and ends. Modules that the program's author wrote are imported once per rank, because programs keep
in them who they are: `process_group_manager.tp_rank`. Those of libraries are imported once for all ranks. A rank has to
itself whatever it assigns to their attributes, and the globals that their functions assign; it shares their classes,
objects and containers (shared_libraries.py says so when that matters), but not those of KNOW_WHO_THEY_ARE.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, ClassVar

import torch

from ...recording.torch_private import PRINT_OPTIONS
from ...text import source_lines
from .python_private import let_modules_travel, set_dynamic_classes, set_import_locks, set_variables, variables

KNOW_WHO_THEY_ARE = ("accelerate",)  # libraries that keep their rank in objects of their classes
NOTHING = object()  # the value of a name that is not there
GLOBAL = re.compile(r"^[ \t]+global[ \t]+([\w, \t]+)", re.MULTILINE)
set_level = logging.Logger.setLevel


class Place:
    """Something that ranks do not share, and how to exchange it. at_first: its value when it was first set, of which
    each rank gets a copy if it is a dictionary.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object]):
        self.read, self.write, self.at_first = read, write, read()

    def first(self) -> Any:
        return self.at_first.copy() if type(self.at_first) is dict else self.at_first


class Surroundings:
    """One rank's process state. `enter` installs it at the start of a turn; `leave` saves it at the end.

    own   the environment variables in which the ranks differ
    """

    def __init__(self, separate: SeparateState, own: Mapping[str, str]):
        self.separate = separate
        self.variables = {**variables(), **{os.fsencode(name): os.fsencode(value) for name, value in own.items()}}
        self.classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()  # from notebook cells
        self.modules: dict[str, ModuleType] = {}
        self.import_locks: dict[str, Any] = {}
        self.values: list[Any] = []  # one per place

    def enter(self) -> None:
        set_variables(self.variables)
        set_dynamic_classes(self.classes)
        if self.separate.modules:
            sys.modules.update(self.modules)
            set_import_locks(self.import_locks)
        for number, place in enumerate(self.separate.places.values()):
            place.write(self.values[number] if number < len(self.values) else place.first())

    def leave(self) -> None:
        if self.separate.modules:
            self.modules = {name: sys.modules.pop(name) for name in self.separate.modules if name in sys.modules}
        self.values = [place.read() for place in self.separate.places.values()]


class SeparateState(MetaPathFinder):
    """What the ranks of a virtual cluster do not share.

    modules   the program's, of which each rank has its own copy once it has imported them
    places    what ranks have set so far: nothing else need be exchanged
    """

    def __init__(self, in_rank: Callable[[], bool], on_import: Callable[[str, str], None]) -> None:
        """in_rank: whether a rank is running, rather than what sets up the world.
        on_import: called with the name and the source of each module of a library that a rank imports.
        """
        self.in_rank, self.on_import = in_rank, on_import
        self.modules: dict[str, None] = {}
        self.places: dict[Hashable, Place] = {}
        self.of_process: set[str] = set()  # packages that were there before the ranks
        self.imports = 0  # imports of libraries under way: what these set is for all ranks
        self.on_library: Callable[[ModuleType], None] = lambda module: None  # called with each that is imported

    def install(self) -> None:
        """From now on, each rank imports the program's modules for itself, and has its own settings."""
        sys.meta_path.insert(0, self)
        start_children_with_own_variables()
        self.of_process = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names
        self.watched = watched_module(self)
        for module in [*sys.modules.values()]:
            self.watch(module)
        deterministic = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
        self.separate(os, "chdir", os.getcwd)
        self.separate(torch, "set_default_dtype", torch.get_default_dtype)
        self.separate(torch, "set_default_tensor_type", torch.get_default_dtype, torch.set_default_dtype)
        self.separate(torch, "set_float32_matmul_precision", torch.get_float32_matmul_precision)
        self.separate(torch, "use_deterministic_algorithms", *deterministic)
        self.separate(torch, "set_deterministic_debug_mode", *deterministic)
        self.separate(torch, "set_num_threads", torch.get_num_threads)
        self.separate(torch, "set_printoptions", print_options, lambda options: vars(PRINT_OPTIONS).update(options))
        for flag in flags_of_backends():
            self.separate(flag, "setter", flag.getter)
        for name in ("setLevel", "addHandler", "removeHandler"):
            self.separate_loggers(name)

    def watch(self, module: ModuleType) -> None:
        if type(module) is ModuleType:
            module.__class__ = self.watched

    def own(self, key: Hashable, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        """From now on, each rank has a value of its own."""
        if key not in self.places:
            self.places[key] = Place(read, write)

    def own_name(self, owner: ModuleType | type, name: str) -> None:
        """The same for a name in a library's module or class."""
        if isinstance(owner, type):
            self.own((owner, name), lambda: getattr(owner, name), lambda value: setattr(owner, name, value))
        else:
            names = vars(owner)
            self.own((owner, name), lambda: names.get(name, NOTHING), lambda value: set_name(names, name, value))

    def rank_sets(self) -> bool:
        """Whether what is set now is a rank's doing, not an import's or ours."""
        return not self.imports and self.in_rank()

    def separate(
        self, owner: Any, name: str, read: Callable[[], Any], write: Callable[[Any], object] | None = None
    ) -> None:
        """Once a rank has called the function `name`, what it sets is that rank's own."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def set_for_this_rank(*args: Any, **kwargs: Any) -> Any:
            if self.rank_sets():
                self.own(read, read, write or function)
            return function(*args, **kwargs)

        setattr(owner, name, set_for_this_rank)

    def separate_loggers(self, name: str) -> None:
        """Once a rank has called the method `name` of a logger, that logger is that rank's own."""
        method = getattr(logging.Logger, name)

        @functools.wraps(method)
        def set_for_this_rank(logger: logging.Logger, *args: Any, **kwargs: Any) -> Any:
            if self.rank_sets():
                self.own(logger, lambda: read_log(logger), lambda setting: write_log(logger, setting))
            return method(logger, *args, **kwargs)

        setattr(logging.Logger, name, set_for_this_rank)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                programs = is_programs(spec)
                if programs:
                    self.modules[fullname] = None
                if type(spec.loader) is SourceFileLoader:
                    name, file = spec.loader.name, spec.loader.path
                    spec.loader = OnceCompiled(name, file) if programs else LibraryLoader(self, name, file)
                return spec
        return None

    @contextmanager
    def importing(self) -> Iterator[None]:
        self.imports += 1
        try:
            yield
        finally:
            self.imports -= 1


def set_name(names: MutableMapping[str, Any], name: str, value: Any) -> None:
    if value is NOTHING:
        names.pop(name, None)
    else:
        names[name] = value


def is_programs(spec: ModuleSpec) -> bool:
    """Whether each rank imports the module for itself: the program's author wrote it, in Python, or it acts as if."""
    if spec.name.partition(".")[0] in KNOW_WHO_THEY_ARE:
        return True
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


class LibraryLoader(SourceFileLoader):
    """Runs a library's module for all ranks."""

    def __init__(self, separate: SeparateState, name: str, path: str):
        super().__init__(name, path)
        self.separate = separate

    def exec_module(self, module: ModuleType) -> None:
        with self.separate.importing():
            super().exec_module(module)
        self.separate.watch(module)
        self.separate.on_library(module)
        if module.__name__.partition(".")[0] not in self.separate.of_process:
            source = self.get_source(module.__name__) or ""
            for name in re.findall(r"\w+", " ".join(GLOBAL.findall(source))):
                self.separate.own_name(module, name)
            self.separate.on_import(module.__name__, source)


def watched_module(separate: SeparateState) -> type[ModuleType]:
    """The class of modules that note which of their attributes a rank sets: from then on, these are each rank's own."""

    def note(module: ModuleType, name: str) -> None:
        if separate.rank_sets() and module.__name__ not in separate.modules:
            separate.own_name(module, name)

    class WatchedModule(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            note(self, name)
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            note(self, name)
            super().__delattr__(name)

    let_modules_travel(WatchedModule)
    return WatchedModule


def flags_of_backends() -> Iterator[Any]:
    """The flags that are set as attributes: `torch.backends.cudnn.benchmark = True`."""
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
        if bound.arguments.get("env") is None:
            bound.arguments["env"] = dict(os.environ)
        init(*bound.args, **bound.kwargs)

    subprocess.Popen.__init__ = init_with_variables  # type: ignore[method-assign,assignment]
