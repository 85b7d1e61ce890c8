"""What plain nbgrader gives for each cheat: `python -m tests.cheats.plain [words of their names]`.

It runs them with all your rights: in a container that you can throw away, or by
    unshare --pid --fork --mount-proc --ipc --uts .venv/bin/python -m tests.cheats.plain
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_notebook

from tests.cheats import CHEATS
from tests.cheats.cheat import CHECKS, IMPORTS, Cheat
from tests.cheats.course import cell

PROJECT = Path(__file__).resolve().parents[2]
LESSON = "plain"
CONFIG = """c = get_config()
c.CourseDirectory.source_directory, c.CourseDirectory.release_directory = "solutions", "notebooks"
c.Execute.timeout = 8
"""
ASSERTS = {
    ("double", "values"): "assert double(2) == 4\nassert double(5) == 10\n"
    "### BEGIN HIDDEN TESTS\nSECRET = double(21) == 42\nassert SECRET\n### END HIDDEN TESTS",
    ("total", "values"): "run = spawn(total_of_mine, 3)\nassert all(torch.equal(got, torch.stack(different_integers(3, 4)).sum(0))"
    " for got in run.results)",
    ("total", "traffic"): "assert [e.op for e in spawn(total_of_mine, 4).events] == ['all_reduce'] * 4",
    ("broadcast_by_hand", "values"): "run = spawn(broadcast_of_mine, 4)\n"
    "assert all(torch.equal(got, different_integers(4, 3)[2]) for got in run.results)",
    ("broadcast_by_hand", "traffic"): "events = spawn(broadcast_of_mine, 4).events\n"
    "assert {e.op for e in events} == {'send', 'recv'} and sum(e.bytes for e in events if e.op == 'send') == 36",
    ("tree_all_reduce", "values"): "run = spawn(tree_of_mine, 4)\n"
    "assert all(torch.equal(got, torch.stack(different_integers(4, 50)).sum(0)) for got in run.results)",
    ("tree_all_reduce", "traffic"): "events = spawn(tree_of_mine, 4).events\n"
    "assert {e.op for e in events} == {'send', 'recv'} and sum(e.op == 'send' for e in events) == 6",
    ("tree_all_reduce", "time"): "run = simulate(tree_of_mine, 8, cluster=links(8, 1e-6, 1e9), device='cpu')\n"
    "assert all(torch.equal(got, torch.stack(different_integers(8, 50)).sum(0)) for got in run.results)\n"
    "assert run.elapsed < 7.3e-6",
}  # fmt: skip
FIRST = f"""{IMPORTS}
from utils import simulate, spawn
from utils.checks.inputs import Draws
from utils.cluster.hardware import links
different_integers = Draws().different_integers
def total_of_mine(rank, world_size):
    return total(different_integers(world_size, 4)[rank], rank, world_size)
def broadcast_of_mine(rank, world_size):
    return broadcast_by_hand(different_integers(world_size, 3)[rank], 2, rank, world_size)
def tree_of_mine(rank, world_size):
    return tree_all_reduce(different_integers(world_size, 50)[rank], list(range(world_size)), rank)"""


def notebook(exercise: str, answer: str, known: dict) -> nbformat.NotebookNode:
    words = [f"{name} = {value!r}" for name, value in known.items()]
    cells = [cell("\n".join([FIRST, *words]), "imports", locked=True), cell(answer, exercise, solution=True)]
    for judges in CHECKS[exercise]:
        flags = {"grade": True, "locked": True, "points": 1}
        cells.append(cell(ASSERTS[exercise, judges], f"{exercise}-{judges}", **flags))
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def nbgrader(folder: Path, *words: str, seconds: float = 120) -> None:
    env = {**os.environ, "PYTHONPATH": str(PROJECT), "GRADER_TOKEN": "PLANTED in the environment"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    command = [sys.executable, "-m", "nbgrader", *words]
    try:
        subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        pass


def measure(cheats: list[Cheat], exercise: str) -> dict[str, str]:
    """cheat -> "points/of all", or "no score"."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        folder = Path(root)
        (folder / "nbgrader_config.py").write_text(CONFIG)
        (folder / "planted.py").write_text("PLANTED = 'in the course'\n")
        known = {"COURSE": root, "LINE": 1}
        source = folder / "solutions" / LESSON / f"{LESSON}.ipynb"
        source.parent.mkdir(parents=True)
        nbformat.write(notebook(exercise, "pass", known), source)
        nbgrader(folder, "generate_assignment", LESSON)
        found = {}
        for number, cheat in enumerate(cheats):
            path = folder / "submitted" / f"s{number}" / LESSON / f"{LESSON}.ipynb"
            path.parent.mkdir(parents=True)
            nb = nbformat.read(folder / "notebooks" / LESSON / f"{LESSON}.ipynb", as_version=4)
            nb.cells[1].source = cheat.source()
            nbformat.write(nb, path)
            nbgrader(folder, "autograde", LESSON, f"--student=s{number}")
            found[cheat.name] = points(folder, f"s{number}", len(CHECKS[exercise]))
            print(f"{found[cheat.name]:10} {cheat.name}", flush=True)
    return found


def points(folder: Path, student: str, most: int) -> str:
    query = """select total(grade.auto_score) + total(grade.manual_score), count(grade.auto_score) from grade
        join submitted_notebook on submitted_notebook.id = grade.notebook_id
        join submitted_assignment assignment on assignment.id = submitted_notebook.assignment_id
        where assignment.student_id = ?"""
    with sqlite3.connect(folder / "gradebook.db") as db:
        [(score, count)] = db.execute(query, [student])
    if not (folder / "autograded" / student).exists() or not count:
        return "no score"
    return f"{score:g}/{most}"


def main() -> None:
    for exercise in CHECKS:
        chosen = [cheat for cheat in CHEATS if cheat.exercise == exercise and cheat.plain and not cheat.harm]
        measure(
            [cheat for cheat in chosen if not sys.argv[1:] or any(word in cheat.name for word in sys.argv[1:])],
            exercise,
        )


if __name__ == "__main__":
    main()
