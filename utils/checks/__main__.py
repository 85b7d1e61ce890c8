"""`make check` and `make progress` in the students' bundle: what a lesson's checks say, and how far you are.

    python -m <this package>.checks NOTEBOOK ...            run notebooks from top to bottom, one line per check
    python -m <this package>.checks --saved NOTEBOOK ...    run nothing: one line per lesson, from the outputs you saved
    python -m <this package>.checks --page PAGE NOTEBOOK ...    the same as a page with links, which `make lab` opens

None changes a notebook. The points are those of the visible checks; grading runs more tests on the same functions.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat.notebooknode import NotebookNode
from tqdm import tqdm
from traitlets.config import Config

from ..text.package import IMPORT_ROOT
from .saved import Line, about, checks, code_cells, is_written, lines_of, title
from .start_page import bar_of, score, start_page

CELL_TIMEOUT = 300  # seconds; a cell of a lesson takes a few


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="What the checks of lessons say.")
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--saved", action="store_true", help="run nothing: judge by the outputs that were saved")
    parser.add_argument("--page", type=Path, help="run nothing: write a page about how far you are, with links")
    given = parser.parse_args(arguments)
    try:
        lessons = {path: nbformat.read(path, as_version=4) for path in given.notebooks}
    except (OSError, nbformat.reader.NotJSONError) as error:
        print(f"check: can't read a notebook: {error}", file=sys.stderr)
        return 2
    if given.page:
        given.page.write_text(start_page(lessons, given.page.parent), encoding="utf-8")
        return 0
    found = {}
    for path, notebook in lessons.items():
        if not given.saved:
            run(notebook, path)
        name = f"{path.stem[:2]} · {title(notebook)}"
        lines = found[name] = list(lines_of(notebook))
        if not given.saved:
            print(report(name, lines), flush=True)
    if given.saved or len(found) > 1:
        print(progress(found))
    return 0


# --- running a notebook


def run(notebook: NotebookNode, path: Path) -> None:
    """Run the cells from top to bottom, past errors, except checks of exercises that are not written yet."""
    unwritten = {about(check)["grade_id"] for check, exercise in checks(notebook) if not is_written(exercise)}
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    runs = [cell for cell in notebook.cells if about(cell).get("grade_id") not in unwritten]
    environment = {**os.environ, "PYTHONPATH": IMPORT_ROOT}
    with (
        tqdm(total=len(runs), desc=path.stem, unit="cell", leave=False, disable=None) as bar,
        tempfile.TemporaryDirectory() as sockets,
    ):
        client = NotebookClient(
            nbformat.from_dict({**notebook, "cells": runs}),
            config=Config(ConnectionFileMixin={"transport": "ipc", "ip": f"{sockets}/kernel"}),  # no port to fight for
            extra_arguments=["--IPKernelApp.log_level=50"],
            timeout=CELL_TIMEOUT,
            interrupt_on_timeout=True,
            error_on_timeout={"ename": "Timeout", "evalue": f"stopped after {CELL_TIMEOUT} s", "traceback": []},
            allow_errors=True,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
            on_cell_start=lambda cell, cell_index: bar.update(cell_index - bar.n),
        )
        try:
            client.execute(env=environment)
        except DeadKernelError:
            print(f"{path}: Python itself died in a cell, so those after it did not run.", file=sys.stderr)
        for cell, ran in zip(runs, client.nb.cells, strict=True):
            cell.update(ran)


# --- tables


def report(lesson: str, lines: list[Line]) -> str:
    rows = [(line.exercise, line.judges, line.shown_points, line.says) for line in lines]
    return f"\n{lesson}: {score(lines)}\n{table(('exercise', 'judged by', 'points', 'says'), rows)}"


def progress(lessons: dict[str, list[Line]]) -> str:
    rows = []
    for lesson, lines in lessons.items():
        exercises = {line.exercise for line in lines if line.most}
        missing = {line.exercise for line in lines if not line.passed}
        rows.append((lesson, f"{len(exercises - missing)} of {len(exercises)}", score(lines), bar_of(lines)))
    return "\n" + table(("lesson", "exercises", "points", ""), rows)


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Left-aligned columns; the last may be of any length."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
    return "\n".join("  " + "  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
