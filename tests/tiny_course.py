"""A course of one small lesson in a folder of its own, graded by the project's real nbgrader_config.py.

The tests of grading use it. The lesson has two exercises: `double`, plain arithmetic, and `total`, the sum over all
ranks. Its checks are in tests/tiny/.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PROJECT = Path(__file__).resolve().parent.parent
LESSON = "90_tiny"
POINTS = {"double-values": 2, "total-values": 3, "total-traffic": 1}

IMPORTS = f"""import torch
import torch.distributed as dist

from utils.checks import checks_for

check = checks_for("{LESSON}")"""
DOUBLE = """def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION"""
TOTAL = """def total(x, rank, world_size):
    ### BEGIN SOLUTION
    x = x.clone()
    dist.all_reduce(x)
    return x
    ### END SOLUTION"""
# What students write.
RIGHT = {
    "double": "def double(x):\n    return 2 * x",
    "total": "def total(x, rank, world_size):\n    x = x.clone()\n    dist.all_reduce(x)\n    return x",
}
WRONG = {
    "double": "def double(x):\n    return x * x",
    "total": "def total(x, rank, world_size):\n    return x * world_size",
}


def cell(source: str, name: str, **flags: object) -> NotebookNode:
    """A code cell that nbgrader tracks."""
    kind = {"grade": False, "solution": False, "locked": False, "task": False, "schema_version": 3, **flags}
    return new_code_cell(source, id=name, metadata={"nbgrader": {"grade_id": name, **kind}})


def essay(name: str, text: str, **more: object) -> NotebookNode:
    """A cell of 4 points that a person grades."""
    kind = {"grade": True, "solution": True, "locked": False, "task": False, "schema_version": 3, "points": 4, **more}
    return new_markdown_cell(text, id=name, metadata={"nbgrader": {"grade_id": name, **kind}})


def check_cell(exercise: str, judges: str, hidden: bool = True) -> NotebookNode:
    source = f'check({exercise}, judges="{judges}")'
    if hidden:
        source += f"""
### BEGIN HIDDEN TESTS
from grader.hidden import hidden_tests_for
hidden_tests_for("{LESSON}")({exercise}, judges="{judges}")
### END HIDDEN TESTS"""
    name = f"{exercise}-{judges}"
    return cell(source, name, grade=True, locked=True, points=POINTS[name])


def lesson(*more: NotebookNode) -> NotebookNode:
    """The instructor's notebook, with `more` cells at the end."""
    cells = [
        new_markdown_cell("# A tiny lesson", id="title"),
        cell(IMPORTS, "imports", locked=True),
        cell(DOUBLE, "double", solution=True),
        check_cell("double", "values"),
        cell(TOTAL, "total", solution=True),
        check_cell("total", "values"),
        check_cell("total", "traffic", hidden=False),
        *more,
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def make_course(root: Path, *more: NotebookNode) -> Path:
    """A course folder: the lesson in solutions/, and the project's configuration with its own checks."""
    folder = root / "solutions" / LESSON
    folder.mkdir(parents=True)
    nbformat.write(lesson(*more), folder / f"{LESSON}.ipynb")
    (root / "nbgrader_config.py").write_text(
        f"load_subconfig('nbgrader_config.py', path={str(PROJECT)!r})\n"
        "c = get_config()\n"
        "c.Judge.lessons = 'tests/tiny'\n"
    )
    return root


def nbgrader(folder: Path, *args: str) -> str:
    """Run `nbgrader ...` in `folder` as from a shell, which must not fail; returns all it printed."""
    return shell("nbgrader", *args, cwd=folder)


def grader(*args: object, **env: str) -> str:
    """Run `python -m grader ...` in the project's folder in the same way."""
    return shell("grader", *map(str, args), cwd=PROJECT, **env)


def shell(module: str, *args: str, cwd: Path, **more: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}
    command = [sys.executable, "-m", module, *args]
    how = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "timeout": 1200}
    done = subprocess.run(command, cwd=cwd, env={**env, **more}, **how)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def released(course: Path) -> NotebookNode:
    """The notebook as students get it."""
    return nbformat.read(course / "notebooks" / LESSON / f"{LESSON}.ipynb", as_version=4)


def with_answers(nb: NotebookNode, answers: dict[str, str]) -> NotebookNode:
    """The notebook with other text in the cells that are named."""
    for one in nb.cells:
        one.source = answers.get(one.metadata.get("nbgrader", {}).get("grade_id"), one.source)
    return nb


def autograded(course: Path, student: str) -> NotebookNode:
    return nbformat.read(course / "autograded" / student / LESSON / f"{LESSON}.ipynb", as_version=4)


def page(course: Path, student: str) -> str:
    """A student's feedback."""
    return (course / "feedback" / student / LESSON / f"{LESSON}.html").read_text()


def hand_in(course: Path, student: str, edit: Callable | None = None, **answers: str) -> Path:
    """Put a submission into submitted/: `answers` by name of the exercise, then `edit(notebook)` for the rest."""
    nb = with_answers(released(course), answers)
    if edit:
        edit(nb)
    return hand_in_file(course, student, nbformat.writes(nb).encode())


def hand_in_file(course: Path, student: str, content: bytes) -> Path:
    """Put any bytes into submitted/ under the lesson's name, replacing what is there."""
    path = course / "submitted" / student / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
