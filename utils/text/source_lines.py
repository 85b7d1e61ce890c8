"""Where a line of code is, in terms a student knows ("In[4], line 3"), and what the line says."""

from __future__ import annotations

import functools
import linecache
import os
import re
import stat
import sys

from .package import FOLDER, LESSONS

# Packages of any environment, even one this Python does not run in: .../lib/python3.12/site-packages/...
IN_ENVIRONMENT = re.compile(r".*[/\\](lib(32|64)?[/\\]python3(\.\d+t?)?|Lib)[/\\](site|dist)-packages[/\\]")

MOST_BYTES = 8 << 20  # largest source file


def lines_of(file: str) -> list[str]:
    """The lines of a file or a cell; [] if there are none to read.

    Names come from dumps as well, so a device, a pipe or a huge file is left alone.
    """
    try:
        found = os.stat(file)
    except (OSError, ValueError):  # a cell
        return linecache.getlines(file)
    linecache.checkcache(file)  # it may have been edited
    return linecache.getlines(file) if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES else []


def line_of(where: str) -> str:
    """The line "file:line", without the space around it; "" if it can't be read."""
    file, _, line = where.rpartition(":")
    lines, number = lines_of(file) if file else [], int(line or 0)
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def name_of_file(file: str) -> str:
    """A notebook cell as "In[4]", a file by its path from the working directory, a library's by that in its package."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        cell = getattr(shell.compile, "_filename_map", {}).get(file)
        if cell is not None:
            return f"In[{cell}]"
    if not is_students(file):
        return name_in_package(file)
    if "ipykernel_" in file or file.startswith("<"):
        return "a cell"
    inside = os.path.relpath(file)
    return file if inside.startswith("..") else inside


def name_in_package(file: str) -> str:
    """torch/autograd/graph.py, wherever on this machine that is."""
    folder = os.path.dirname(file)
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    return os.path.relpath(file, folder) if folder else file


def place(where: str) -> str:
    """ "file:line" as "In[4], line 3:  x = f(y)"; "" for ""."""
    file, _, line = where.rpartition(":")
    if not file:
        return ""
    source = line_of(where)
    return f"{name_of_file(file)}, line {line}" + (f":  {source}" if source else "")


def is_students(file: str) -> bool:
    """Whether the student wrote `file`: a notebook cell, or a file outside this package and all libraries.

    Decided by the beginning of the path, so a student's own folder may have any name and may contain an environment.
    """
    return not file.startswith(library_prefixes()) and not IN_ENVIRONMENT.match(file)


@functools.cache
def library_prefixes() -> tuple[str, ...]:
    """How the paths of files that no student wrote begin: of Python itself, installed packages, torch, this package.

    A folder of PYTHONPATH with packages that pip has put there (`pip install --target`) counts as well, unless the
    script is in it, whose folder Python puts first.
    """
    import importlib.util  # only here, so that importing the package is quick
    import site
    import sysconfig

    paths = sysconfig.get_paths()
    folders = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages(), FOLDER, LESSONS}
    torch = importlib.util.find_spec("torch")  # doesn't import it; it may be a build outside site-packages
    folders |= {*((torch and torch.submodule_search_locations) or ())}
    own = os.path.join(os.path.realpath(sys.path[0]), "")
    others = {folder for folder in sys.path[1:] if not own.startswith(os.path.join(os.path.realpath(folder), ""))}
    folders |= set(filter(holds_packages, others))
    real = {os.path.realpath(folder) for folder in folders}
    return (*sorted(os.path.join(folder, "") for folder in folders | real), "<frozen ")


def holds_packages(folder: str) -> bool:
    """Whether pip has installed packages there."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False
