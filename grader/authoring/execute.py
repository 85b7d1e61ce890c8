"""Run a lesson's notebook from top to bottom and keep its outputs. `grader.authoring.build` calls this."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellExecutionError, DeadKernelError
from nbformat.notebooknode import NotebookNode
from traitlets.config import Config

from grader.authoring.lesson import BuildError, Cell, Lesson, Problem

TIMELINES = "RECORD_TIMELINES"  # as in utils/checks/timelines.py
CELL_TIMEOUT = 300  # seconds; a cell of a lesson takes a few
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def execute(lesson: Lesson, notebook: NotebookNode, folder: Path, after_cell: Callable[[], None]) -> None:
    """Run the notebook in a fresh kernel, in `folder`, and keep its outputs. Calls `after_cell` after each cell.

    A cell tagged raises-exception may raise. Raises BuildError with the lesson's line if any other cell fails, if a
    check cell prints to stderr or shows a value (nbgrader would give it 0 points), or if an output shows a path of
    this machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as sockets:
        run(lesson, notebook, folder, sockets, after_cell)
    tidy(notebook)
    problems = list(output_problems(lesson, notebook))
    if problems:
        raise BuildError(problems)


def run(lesson: Lesson, notebook: NotebookNode, folder: Path, sockets: str, after_cell: Callable[[], None]) -> None:
    """Run all cells. The kernel uses Unix sockets in `sockets`, since a free port could be taken before it starts."""
    started = []
    client = NotebookClient(
        notebook,
        config=Config(ConnectionFileMixin={"transport": "ipc", "ip": f"{sockets}/kernel"}),
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=50"],  # hides the kernel's own log of an interrupt
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=lambda cell, cell_index: stop_if_cancelled(),
        on_cell_execute=lambda cell, cell_index: started.append(cell_index),
        on_cell_executed=lambda cell, cell_index, execute_reply: after_cell(),
    )
    python_path = os.pathsep.join(filter(None, [str(lesson.root), os.environ.get("PYTHONPATH")]))
    timelines = lesson.room / "timelines.json"  # the solution's runs that failed checks of time show
    timelines.unlink(missing_ok=True)
    environment = {"PYTHONPATH": python_path, TIMELINES: str(timelines)}
    try:
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            runner.run(run_cells(client, os.environ | environment))
    except (CellControlSignal, DeadKernelError) as error:
        cell = lesson.cells[started[-1]] if started else lesson.cells[0]
        raise BuildError([failure(lesson, cell, error)]) from error


class EventLoop(asyncio.SelectorEventLoop):
    """Refuses nbclient's handler for Ctrl-C, and so leaves it to asyncio, which cancels `run_cells`.

    nbclient would start a second task, which ends the kernel while the first still uses it. Whichever came last failed,
    and Python printed its exception at exit, behind our last line.
    """

    def add_signal_handler(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("nbclient ignores this error: outside the main thread, handlers are refused too")


async def run_cells(client: NotebookClient, environment: dict[str, str]) -> None:
    """Run the notebook in a fresh kernel, and leave neither a kernel nor a task behind, even if this is cancelled."""
    try:
        await client.async_execute(env=environment)
    except Exception:
        stop_if_cancelled()  # which nbclient takes for the death of the kernel
        raise
    else:
        stop_if_cancelled()
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        if client.km is not None and client.km.has_kernel:  # it was still starting, and nbclient has not ended it
            await client.km.signal_kernel(signal.SIGKILL)
            await client.km.shutdown_kernel(now=True)


def stop_if_cancelled() -> None:
    """Raise CancelledError again if nbclient has lost it: between two cells, asyncio.wait_for may swallow it."""
    task = asyncio.current_task()
    if task and task.cancelling():
        raise asyncio.CancelledError


def failure(lesson: Lesson, cell: Cell, error: Exception) -> Problem:
    """What went wrong in a cell, and on which line of the lesson, or of its checks if the error is theirs."""
    if not isinstance(error, CellExecutionError):
        what = "did not finish" if isinstance(error, CellControlSignal) else "killed its kernel"
        return Problem(lesson.file, cell.line, f"this cell {what}: {str(error).splitlines()[0]}")
    traceback = ANSI.sub("", error.traceback)
    message = " / ".join(filter(None, map(str.strip, f"{error.ename}: {error.evalue}".splitlines())))
    in_checks = re.findall(rf"\b(solutions/{lesson.name}/checks_\d\d\.py):(\d+)", traceback)
    if cell.check and in_checks and error.ename != "CheckFailed":
        file, line = in_checks[-1]
        return Problem(file, int(line), f"{message} (in the check on line {cell.line} of {lesson.file})")
    frames = re.findall(r"Cell In\[\d+\], line (\d+)", traceback)  # the first is in this cell
    in_cell = cell.body_line + int(frames[0]) - 1 if frames else cell.body_line
    return Problem(lesson.file, min(in_cell, cell.body_line + cell.source.count("\n")), message)


def tidy(notebook: NotebookNode) -> None:
    """Remove everything that differs between runs: number the executions from 1, drop the kernel's version."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for count, cell in enumerate(code_cells(notebook), 1):
        cell.execution_count = count
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def output_problems(lesson: Lesson, notebook: NotebookNode) -> Iterator[Problem]:
    for cell, made in zip(lesson.cells, notebook.cells, strict=True):
        outputs = made.get("outputs", [])
        for output in outputs:
            kind = output.get("name", output.output_type)
            if cell.check and kind not in ("stdout", "display_data"):
                yield Problem(
                    lesson.file,
                    cell.line,
                    f"this check outputs {kind}, which nbgrader reads as points: only print or display",
                )
        if any(str(path) in str(outputs) for path in (lesson.root, sys.prefix)):
            yield Problem(lesson.file, cell.line, "the output shows a path on this machine: shorten it")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def take_outputs(notebook: NotebookNode, old: NotebookNode | None) -> bool:
    """Copy the outputs of an earlier build if the code is the same, so that editing text executes nothing.

    Returns whether they were copied.
    """
    if old is None or not executed(old):
        return False
    if what_runs(old) != what_runs(notebook):
        return False
    for new_cell, old_cell in zip(code_cells(notebook), code_cells(old), strict=True):
        new_cell.outputs, new_cell.execution_count = old_cell.outputs, old_cell.execution_count
    return True


def what_runs(notebook: NotebookNode) -> list[tuple[str, list[str]]]:
    return [(cell.source, cell.metadata.get("tags", [])) for cell in code_cells(notebook)]


def executed(notebook: NotebookNode) -> bool:
    counts = [cell.execution_count for cell in code_cells(notebook)]
    return counts == list(range(1, len(counts) + 1))


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """A copy without outputs, as before it ran."""
    bare = nbformat.from_dict(notebook)
    for cell in code_cells(bare):
        cell.outputs, cell.execution_count = [], None
    return bare
