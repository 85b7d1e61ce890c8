"""`python -m grader try LESSON --notebook`: the lesson as far as it is written, in JupyterLab.

    write_preview("05_data_parallelism")   -> build/preview/05_data_parallelism.ipynb, and the lesson's problems
    open_in_lab(path)

It works for a lesson that can't be built yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jupytext
import nbformat

from grader.authoring.build import bytes_of, notebook_of, write
from grader.authoring.execute import METADATA
from grader.authoring.lesson import ROOT, BuildError, Problem, find_lessons, read_lesson


def write_preview(name: str, root: Path = ROOT) -> tuple[Path, Sequence[Problem | str]]:
    """Write the instructor's notebook, not executed. Returns its path, and the problems that keep it from being built.

    With problems, the cells are as jupytext reads them, without hidden tests. Raises BuildError if it can't either.
    """
    [source] = find_lessons([name], root)
    problems: Sequence[Problem | str] = ()
    try:
        notebook = notebook_of(read_lesson(source))
    except BuildError as error:
        problems = error.problems
        try:
            notebook = jupytext.reads(source.read_text(encoding="utf-8-sig"), fmt="py:percent")
        except Exception:
            raise error from None
        notebook.metadata = nbformat.from_dict(METADATA)
    path = root / "build" / "preview" / f"{name}.ipynb"
    write(path, bytes_of(notebook))
    return path, problems


def open_in_lab(path: Path, root: Path = ROOT) -> None:
    """Become a JupyterLab that shows this notebook, and whose kernels import the packages below `root`."""
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    python_path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    address = f"--LabApp.default_url=/lab/tree/{path.relative_to(root).as_posix()}"  # also in the address it prints
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", address, *as_root]
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": python_path})
