"""`make check` and `make progress`: utils/checks/__main__.py."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from utils.checks import __main__ as command
from utils.checks.saved import saved_passes

HEAD = """
class CheckFailed(AssertionError):
    def _render_traceback_(self):
        return ["add · values · 2 ranks      not passed", "  rank 0 returned 2, expected 3", "  That is a product."]
"""


def exercise(name, source):
    about = {"grade_id": name, "solution": True, "grade": False, "locked": False, "schema_version": 3}
    return new_code_cell(source, metadata={"nbgrader": about})


def check(name, source, points=2):
    about = {"grade_id": name, "solution": False, "grade": True, "points": points, "schema_version": 3}
    return new_code_cell(source, metadata={"nbgrader": about})


def saved(folder, *cells):
    path = folder / "07_sums" / "07_sums.ipynb"
    path.parent.mkdir()
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Sums\nand more"), *cells]), path)
    return path


LESSON = [
    new_code_cell(HEAD),
    exercise("add", "def add(): pass"),
    check("add-values", "raise CheckFailed"),
    check("add-virtual-time", "print('add · virtual time · passed')", points=1),
    exercise("add-up", "def add_up():\n    # YOUR CODE HERE\n    raise NotImplementedError()"),
    check("add-up-values", "print('add-up · values · passed')"),
    exercise("last", "def last(): pass"),
    check("last-values", "last(1)", points=3),
]


def test_a_notebook_is_run_past_its_errors_and_not_changed(tmp_path, capsys):
    path = saved(tmp_path, *LESSON)
    before = path.read_bytes()
    assert command.main([str(path)]) == 0
    assert path.read_bytes() == before
    title, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert title == "07 · Sums: 1 of 8 points"
    assert [row.split(maxsplit=2) for row in rows] == [
        ["add", "values", "0 of 2  rank 0 returned 2, expected 3 That is a product."],
        ["add", "virtual-time", "1 of 1  passed"],
        ["add-up", "values", "0 of 2  not written yet"],
        ["last", "values", "0 of 3  TypeError: last() takes 0 positional arguments but 1 was given"],
    ]


def test_a_cell_that_kills_python_ends_the_run_but_not_the_report(tmp_path, capsys):
    path = saved(tmp_path, *LESSON[:4], new_code_cell("import os; os._exit(1)"), *LESSON[6:])
    assert command.main([str(path)]) == 0
    shown = capsys.readouterr()
    assert "Python itself died" in shown.err
    assert "1 of 1  passed" in shown.out and "0 of 3  not run yet" in shown.out


@pytest.fixture
def no_kernel(monkeypatch):
    monkeypatch.setattr(command, "NotebookClient", None)


def test_progress_is_read_from_saved_outputs(tmp_path, capsys, no_kernel):
    done = check("add-values", "...")
    done.outputs = [nbformat.v4.new_output("stream", text="add · values · passed\n")]
    path = saved(tmp_path, exercise("add", "def add(): pass"), done, *LESSON[4:])
    assert command.main(["--saved", str(path)]) == 0
    _, row = capsys.readouterr().out.strip().splitlines()
    assert "1 of 3" in row and "2 of 7 points" in row and row.count("█") == 5 and row.count("░") == 15


def test_a_file_that_is_no_notebook_is_named(tmp_path, capsys):
    (tmp_path / "x.ipynb").write_text("hello")
    assert command.main([str(tmp_path / "x.ipynb")]) == 2
    assert "can't read a notebook" in capsys.readouterr().err


def test_the_start_page_links_to_each_lesson_and_says_where_to_go_on(tmp_path):
    path = saved(tmp_path, *LESSON)
    page = tmp_path / "start.md"
    assert command.main(["--page", str(page), str(path)]) == 0
    said = page.read_text()
    assert "**[Begin with 07 · Sums](07_sums/07_sums.ipynb)**" in said and "0 of 8 points, 0 of 3 exercises" in said
    notebook = nbformat.read(path, as_version=4)
    about = {"grade_id": "why", "grade": True, "solution": True, "points": 4}
    notebook.cells.append(nbformat.v4.new_markdown_cell("YOUR ANSWER HERE", metadata={"nbgrader": about}))
    [cell] = [cell for cell in notebook.cells if "virtual time" in cell.source]
    cell.outputs = [nbformat.v4.new_output("stream", text="add · virtual time · passed\n")]
    nbformat.write(notebook, path)
    command.main(["--page", str(page), str(path)])
    said = page.read_text()
    assert "**[Continue at `add` in 07 · Sums](07_sums/07_sums.ipynb)**" in said
    assert "1 of 8 points, 0 of 3 exercises, and 4 points by hand" in said
    assert saved_passes(path) == {("add", "virtual-time")} and saved_passes(tmp_path / "none.ipynb") == set()
