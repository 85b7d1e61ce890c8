"""Where a line of code is, in words a student knows: "In[4], line 3", and what it says."""

from __future__ import annotations

import linecache
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def name_of_file(file: str) -> str:
    """A notebook cell as "In[4]", a file by its path from the working directory."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        cell = getattr(shell.compile, "_filename_map", {}).get(file)
        if cell is not None:
            return f"In[{cell}]"
    if "ipykernel_" in file or file.startswith("<"):
        return "a cell"
    inside = os.path.relpath(file)
    return file if inside.startswith("..") else inside


def place(where: str) -> str:
    """ "file:line" as "In[4], line 3:  what stands there"."""
    file, _, line = where.rpartition(":")
    if not file:
        return ""
    source = linecache.getline(file, int(line)).strip()
    return f"{name_of_file(file)}, line {line}" + (f":  {source}" if source else "")


def is_students(file: str) -> bool:
    """Whether `file` is the student's own: not a library's, not this package's."""
    libraries = ("site-packages", "dist-packages", os.path.dirname(os.__file__) + os.sep, _HERE, "<frozen ")
    return not any(part in file for part in libraries)
