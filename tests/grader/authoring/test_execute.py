"""grader/authoring/execute.py: a build that is interrupted ends its kernel, and its last line is ours."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LESSON = """\
# %% [markdown]
# # Tiny

# %%
import os, signal, threading
os.kill(os.getppid(), signal.SIGINT)
threading.Event().wait()
"""
COMMAND = """
import sys
from pathlib import Path
from grader.authoring.build import command
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
import os, signal
from nbclient import NotebookClient
start_client = NotebookClient.async_start_new_kernel_client
async def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    return await start_client(self)
NotebookClient.async_start_new_kernel_client = interrupted
"""


def processes_in(folder: Path) -> list[str]:
    """Processes whose working directory is in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is gone, or another user's
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append((process / "cmdline").read_text())
    return found


@pytest.mark.parametrize("surroundings", [ANOTHER_TASK_ENDS_LAST, WHILE_THE_KERNEL_STARTS], ids=["in a cell", "before"])
def test_the_last_line_of_an_interrupted_build_is_ours(tmp_path, surroundings):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "01_tiny.py").write_text(LESSON)
    (tmp_path / "nbgrader_config.py").write_bytes((ROOT / "nbgrader_config.py").read_bytes())
    build = [sys.executable, "-c", surroundings + COMMAND, str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped; unfinished notebooks are unchanged\n"
    assert not processes_in(tmp_path)
