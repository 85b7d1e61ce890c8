"""The committed notebooks match their sources, and give the same outputs when they run again."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from grader.authoring import build
from grader.authoring.lesson import find_lessons, read_lesson, source_file
from grader.sandbox.bubblewrap import why_not

pytestmark = pytest.mark.long(minutes=9)
ROOT = Path(__file__).resolve().parents[2]
LESSONS = [path.parent.name for path in find_lessons(root=ROOT)]
HIDDEN_TEST = re.compile(r"^### BEGIN HIDDEN TESTS$.*?^### END HIDDEN TESTS$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_rule_is_kept_and_the_notebooks_match_their_source(lesson):
    drifted = build.drift([lesson], root=ROOT)
    assert not drifted, "\n" + "\n".join(drifted)


def test_no_folder_of_a_lesson_is_without_a_source():
    assert list(build.without_source(ROOT)) == []


@pytest.mark.parametrize("lesson", LESSONS)
@pytest.mark.parametrize("folder", ["solutions", "notebooks"])
def test_the_first_cell_names_the_source(folder, lesson):
    notebook = nbformat.read(ROOT / folder / lesson / f"{lesson}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].metadata.made_from == f"solutions/{lesson}/lesson_{lesson[:2]}.py"


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_students_notebook_holds_nothing_of_the_grader(lesson):
    text = (ROOT / "notebooks" / lesson / f"{lesson}.ipynb").read_text(encoding="utf-8")
    assert not re.search(r"(BEGIN|END) SOLUTION|HIDDEN TESTS|grader\.hidden", text)
    assert not any(cell.get("outputs") for cell in json.loads(text)["cells"])


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_graded_cell_has_its_points(lesson):
    source = read_lesson(source_file(ROOT / "solutions" / lesson))
    notebook = nbformat.read(build.release_path(source), as_version=4)
    points = {
        cell.id: cell.metadata.nbgrader.points
        for cell in notebook.cells
        if "points" in cell.metadata.get("nbgrader", {})
    }
    checks = {check.id: 0 if check.is_extra_credit else check.points for check in source.checks}
    assert points == checks | {essay.name: essay.points for essay in source.essays.values()}


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_solution_gives_the_same_outputs_when_it_runs_again(lesson, tmp_path):
    """nbval compares every output of every cell, except for times, addresses and device names.

    Where there is a sandbox, the hidden tests are left to it: tests/grader/judging runs them there, as grading does.
    """
    notebook = nbformat.read(ROOT / "solutions" / lesson / f"{lesson}.ipynb", as_version=4)
    if why_not() is None:
        leave_out_hidden_tests(notebook)
    path = tmp_path / f"{lesson}.ipynb"
    nbformat.write(notebook, path)
    done = nbval(path)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def leave_out_hidden_tests(notebook):
    for cell in notebook.cells:
        visible = HIDDEN_TEST.sub("", cell.source)
        if visible != cell.source:
            said = [
                output for output in cell.outputs if " · hidden test" in output.get("data", {}).get("text/plain", "")
            ]
            assert said
            cell.source, cell.outputs = visible, [output for output in cell.outputs if output not in said]


@pytest.mark.parametrize(("messages", "exit_code"), [(3, 0), (4, 1)])
def test_nbval_ignores_only_times_addresses_and_devices(tmp_path, messages, exit_code):
    output = nbformat.v4.new_output("stream", text=f"{messages} messages in 12 ms on cuda:1 at 0x8b, In[5]\n")
    cell = nbformat.v4.new_code_cell("print('3 messages in 0.31 s on cuda:0 at 0x7f3a, In[7]')", outputs=[output])
    cell.execution_count = 1
    path = tmp_path / "01_one.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=build.METADATA), path)
    assert nbval(path).returncode == exit_code


def nbval(notebook):
    """Run a notebook in a separate pytest and compare all its outputs."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-cell-timeout=120"]
    here = ["--nbval-current-env", "-c", ROOT / "pyproject.toml", "-p", "conftest"]
    for _ in range(3):  # a kernel whose free port was taken by another process never starts: that says nothing
        done = subprocess.run([*command, *here, notebook], cwd=ROOT, capture_output=True, text=True, timeout=1200)
        if "Kernel died before replying to kernel_info" not in done.stdout:
            break
    return done
