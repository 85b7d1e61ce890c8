"""A course of one small lesson in a folder of its own, graded by the project's real nbgrader_config.py.

tests/test_grading_traps.py and test_grading_exchange.py use it. The lesson has two exercises: `double`, judged by a
check with a hidden half, and `score`, whose check cell gives back whatever the student's function returns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PROJECT = Path(__file__).resolve().parent.parent
LESSON = "90_tiny"
POINTS = {"double-values": 2, "score-values": 4}
HIDDEN = "SECRET = double(21) == 42"

DOUBLE = """def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION"""
SCORE = """def score():
    ### BEGIN SOLUTION
    return None
    ### END SOLUTION"""
CHECK_DOUBLE = f"""assert double(2) == 4, "double(2) is not 4"
### BEGIN HIDDEN TESTS
{HIDDEN}
assert SECRET, "it is wrong for a number that you did not see"
### END HIDDEN TESTS"""


def cell(source: str, name: str, **flags: object) -> nbformat.NotebookNode:
    """A code cell that nbgrader tracks."""
    kind = {"grade": False, "solution": False, "locked": False, "task": False, "schema_version": 3, **flags}
    return new_code_cell(source, id=name, metadata={"nbgrader": {"grade_id": name, **kind}})


def lesson() -> nbformat.NotebookNode:
    """The instructor's notebook."""
    cells = [
        new_markdown_cell("# A tiny lesson", id="title"),
        cell("import math", "imports", locked=True),
        cell(DOUBLE, "double", solution=True),
        cell(CHECK_DOUBLE, "double-values", grade=True, locked=True, points=2),
        cell(SCORE, "score", solution=True),
        cell("score()", "score-values", grade=True, locked=True, points=4),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def make_course(root: Path) -> Path:
    """A course folder with the lesson in solutions/ and a configuration that is the project's."""
    folder = root / "solutions" / LESSON
    folder.mkdir(parents=True)
    nbformat.write(lesson(), folder / f"{LESSON}.ipynb")
    config = f"load_subconfig('nbgrader_config.py', path={str(PROJECT)!r})\n"
    (root / "nbgrader_config.py").write_text(config)
    return root


def nbgrader(folder: Path, *args: str, fails: bool = False) -> str:
    """Run `nbgrader ...` in `folder` as from a shell; returns all it printed. `fails`: it has to exit with an error."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}
    command = [sys.executable, "-m", "nbgrader", *args]
    done = subprocess.run(command, cwd=folder, env=env, text=True, stdout=-1, stderr=subprocess.STDOUT, timeout=600)
    assert (done.returncode != 0) == fails, done.stdout[-4000:]
    return done.stdout


def released(course: Path) -> nbformat.NotebookNode:
    """The notebook as students get it."""
    return nbformat.read(course / "notebooks" / LESSON / f"{LESSON}.ipynb", as_version=4)


def hand_in(course: Path, student: str, edit: Callable | None = None, **answers: str) -> Path:
    """Put a submission into submitted/: `answers` by name of the exercise, then `edit(notebook)` for anything else."""
    nb = released(course)
    for one in nb.cells:
        name = one.metadata.get("nbgrader", {}).get("grade_id")
        one.source = answers.get(name, one.source)
    if edit:
        edit(nb)
    return hand_in_file(course, student, nbformat.writes(nb).encode())


def hand_in_file(course: Path, student: str, content: bytes) -> Path:
    """Put any bytes into submitted/ under the lesson's name."""
    folder = course / "submitted" / student / LESSON
    folder.mkdir(parents=True)
    path = folder / f"{LESSON}.ipynb"
    path.write_bytes(content)
    return path
