"""A script to run: which file or module, with which arguments, and how a process becomes it."""

from __future__ import annotations

import builtins
import functools
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from ...recording import regions
from ...text import package
from ...text.source_lines import library_prefixes


class NoScript(ValueError):
    """There is nothing to run under this name."""


@dataclass(frozen=True)
class Script:
    """What `python name arguments...` runs, or `python -m name arguments...`.

    sys_path   as Python sets it up for that: the script's own folder comes first; for a module, the working directory
    source     the script's text, in which the zygote looks for what is slow to import; "" for a module
    """

    name: str
    arguments: list[str]
    is_module: bool
    sys_path: list[str]
    source: str = ""

    @classmethod
    def find(cls, name: str, arguments: list[str], is_module: bool) -> Script:
        """Raises NoScript if there is no such file, or if importing it would find this package instead of its own."""
        if is_module:
            folder, source = os.getcwd(), ""
        else:
            folder = os.path.dirname(os.path.realpath(name))
            try:
                with open(name, encoding="utf-8", errors="replace") as file:
                    source = file.read()
            except OSError as error:
                raise NoScript(f"{name} can't be read: {error.strerror}.") from None
        refuse_namesake(folder)
        own = sys.path if sys.flags.safe_path else sys.path[1:]  # without what Python has put there for us
        return cls(name, arguments, is_module, [folder, *own], source)

    def run(self) -> None:
        """Become this script: `__main__`, `sys.argv` and `sys.path` are as in a process of its own."""
        sys.path[:] = self.sys_path
        library_prefixes.cache_clear()
        main = ModuleType("__main__")
        code = self.load_module(main) if self.is_module else self.load_file(main)
        vars(main)["__builtins__"] = builtins
        sys.modules["__main__"] = main
        exec(code, vars(main))

    def load_file(self, main: ModuleType) -> CodeType:
        path = os.path.abspath(self.name)
        sys.argv = [self.name, *self.arguments]
        main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
        vars(main)["__cached__"] = None
        with io.open_code(path) as file:
            return compile(file.read(), path, "exec", dont_inherit=True)

    def load_module(self, main: ModuleType) -> CodeType:
        """Raises ImportError, as Python does for `-m`."""
        sys.argv = ["-m", *self.arguments]
        spec = self.find_module(self.name)
        code: CodeType | None = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
        if code is None or spec.origin is None:
            raise ImportError(f"there is no code for {self.name}")
        sys.argv[0] = main.__file__ = spec.origin
        main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
        vars(main)["__cached__"] = spec.cached
        return code

    def find_module(self, name: str) -> ModuleSpec:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            return self.find_module(f"{name}.__main__")
        if spec is None or not hasattr(spec.loader, "get_code"):
            raise ImportError(f"No module named {name}")
        return spec


def run_on_virtual_rank(rank: int, world_size: int, script: Script) -> None:
    """The rank program by which `simulate` runs a script. Ranks share a process; each has a `__main__` of its own."""
    world: Any = regions.recorder
    world.world.separate.modules["__main__"] = None
    show_gpus()
    script.run()


def show_gpus() -> None:
    """Whoever asks whether there are GPUs is told so, since scripts may refuse to run without, and libraries act on it;
    torch itself is not.
    """
    import torch

    cuda, accelerator = torch.cuda, torch.accelerator
    tell_scripts(cuda, "is_available", lambda *_: True)
    tell_scripts(accelerator, "is_available", lambda *_: True)
    tell_scripts(accelerator, "device_count", lambda *_: cuda.device_count())
    tell_scripts(accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
    for name in ("current_device_index", "current_device_idx"):
        tell_scripts(accelerator, name, lambda *_: cuda.current_device())
    for name in ("set_device_index", "set_device_idx", "synchronize"):
        tell_scripts(accelerator, name, lambda *_: None)


def tell_scripts(module: Any, name: str, answer: Callable[..., Any]) -> None:
    """Replace this function of torch's, except where torch calls it."""
    from ...recording.callers import HOME  # only now, in a rank: it takes torch, and the command starts quickly

    others: Callable[..., Any] = getattr(module, name)

    @functools.wraps(others)
    def asked(*args: Any, **kwargs: Any) -> Any:
        by_torch = sys._getframe(1).f_code.co_filename.startswith((HOME, package.FOLDER))
        return (others if by_torch else answer)(*args, **kwargs)

    setattr(module, name, asked)


def refuse_namesake(folder: str) -> None:
    """In a checkout of the course this package has a common name, and the ranks have already imported it."""
    for path in (os.path.join(folder, package.NAME), os.path.join(folder, package.NAME + ".py")):
        if os.path.exists(path) and os.path.realpath(path) != os.path.realpath(package.FOLDER):
            raise NoScript(
                f"the script's folder has its own {os.path.basename(path)}, and this package is called "
                f"{package.NAME} as well. Install the library (pip install . in the folder of the course), which has a "
                "different name, and start the script with python -m manyranks."
            )
