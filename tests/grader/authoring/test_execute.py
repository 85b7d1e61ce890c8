"""grader/authoring/execute.py: a build that is interrupted ends its kernel, and its last line is ours."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.grader.authoring.tiny_lesson import ROOT, TINY, make_course, write_lesson

INTERRUPTS = "__import__('os').kill(__import__('os').getppid(), 2)\n__import__('threading').Event().wait()\n"
LEAVES_A_FILE = "open('late', 'w').close()\n"
COMMAND = """
import signal, sys
from pathlib import Path
from grader.authoring.build import command
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, a shell has it ignored
{surroundings}
sys.exit(command(root=Path(sys.argv[1])))
"""

# If nbclient ends the kernel in a task of its own, this task is always the last.
ANOTHER_TASK_ENDS_LAST = """
import asyncio
from contextlib import asynccontextmanager
from nbclient import NotebookClient
set_up, end = NotebookClient.async_setup_kernel, NotebookClient._async_cleanup_kernel
@asynccontextmanager
async def set_up_and_remember(self, **options):
    self.runs_cells, self.has_ended = asyncio.current_task(), asyncio.Event()
    async with set_up(self, **options):
        yield
async def end_last(self):
    await self.km.shutdown_kernel(now=True)
    if asyncio.current_task() is not self.runs_cells:
        await self.has_ended.wait()
    await end(self)
    self.has_ended.set()
NotebookClient.async_setup_kernel, NotebookClient._async_cleanup_kernel = set_up_and_remember, end_last
"""

WHILE_THE_KERNEL_STARTS = """
import os
from nbclient import NotebookClient
start_client = NotebookClient.async_start_new_kernel_client
async def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    return await start_client(self)
NotebookClient.async_start_new_kernel_client = interrupted
"""

BETWEEN_TWO_CELLS = """
import asyncio, os
from contextlib import suppress
from nbclient import NotebookClient
poll = NotebookClient._async_poll_for_reply
async def interrupted_and_swallowed(self, *args):
    reply = await poll(self, *args)
    if self.code_cells_executed == 1:
        os.kill(os.getpid(), signal.SIGINT)
    with suppress(asyncio.CancelledError):  # as asyncio.wait_for does in Python 3.11, if what it waits for is done
        await asyncio.sleep(0)
    return reply
NotebookClient._async_poll_for_reply = interrupted_and_swallowed
"""
CASES = {
    "in the last cell": (ANOTHER_TASK_ENDS_LAST, INTERRUPTS),
    "before the cells": (WHILE_THE_KERNEL_STARTS, LEAVES_A_FILE),
    "between two cells": (BETWEEN_TWO_CELLS, LEAVES_A_FILE),
}
RARE = list(CASES)[1:]


def processes_in(folder: Path) -> list[str]:
    """Processes whose working directory is in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is gone, or another user's
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append((process / "cmdline").read_text())
    return found


@pytest.mark.parametrize("when", [next(iter(CASES)), *(pytest.param(one, marks=pytest.mark.thorough) for one in RARE)])
def test_the_last_line_of_an_interrupted_build_is_ours(tmp_path, when):
    surroundings, cell = CASES[when]
    write_lesson(make_course(tmp_path), TINY.replace("# %%\nprint", f"# %%\n{cell}print"))
    build = [sys.executable, "-c", COMMAND.format(surroundings=surroundings), str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped; unfinished notebooks are unchanged\n"
    assert not processes_in(tmp_path)
    assert not list(tmp_path.rglob("late")), "a cell ran after the interrupt"
    assert not list(tmp_path.rglob("*.ipynb")), "nothing is written"
