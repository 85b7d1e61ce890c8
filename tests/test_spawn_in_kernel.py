"""`spawn` as a student meets it: in a real kernel, with real interrupts, restarts and kills."""

import os
import queue
import signal
import time

import pytest
from jupyter_client.manager import KernelManager


class Notebook:
    """A kernel that runs one cell after another and keeps what each showed."""

    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def send(self, source: str) -> str:
        return self.client.execute(source)

    def outputs_of(self, message_id: str, timeout: float = 60) -> dict:
        """{"stdout": ..., "stderr": ..., "error": ...} of a cell, once it is done."""
        shown = {"stdout": "", "stderr": "", "error": None}
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=0.5)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown[content["name"]] += content["text"]
            elif kind == "error":
                shown["error"] = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return shown
        raise TimeoutError("the cell did not end")

    def run(self, source: str) -> dict:
        return self.outputs_of(self.send(source))

    def wait_for_output(self, text: str) -> None:
        while True:
            message = self.client.get_iopub_msg(timeout=30)
            if message["msg_type"] == "stream" and text in message["content"]["text"]:
                return

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook()
    notebook.run("import os, time, torch, torch.distributed as dist\nfrom utils import spawn")
    yield notebook
    notebook.close()


def processes_of_session(zygote: int) -> list[int]:
    """Pids of the zygote and its ranks: they share a session of their own. Zombies do not count."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                state, _, _, session = stat.read().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == zygote and state != "Z":
            found.append(int(pid))
    return found


def wait_until_gone(zygote: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while processes_of_session(zygote):
        assert time.monotonic() < deadline, f"still there: {processes_of_session(zygote)}"
        time.sleep(0.02)


def zygote_of(notebook: Notebook) -> int:
    return int(notebook.run("import utils.zygote_client; print(utils.zygote_client.zygote.process.pid)")["stdout"])


def test_a_function_of_a_cell_runs_on_ranks(notebook):
    shown = notebook.run(
        "def work(rank, world_size):\n"
        "    x = torch.tensor([float(rank)])\n"
        "    dist.all_reduce(x)\n"
        "    print('sum', x.item())\n"
        "    return x.item()\n"
        "print(spawn(work, 3).results)"
    )
    assert shown == {
        "stdout": "[rank 0] sum 3.0\n[rank 1] sum 3.0\n[rank 2] sum 3.0\n[3.0, 3.0, 3.0]\n",
        "stderr": "",
        "error": None,
    }


def test_the_report_shows_the_line_of_the_cell_and_nothing_of_ours(notebook):
    shown = notebook.run(
        "def broken(rank, world_size):\n    if rank == 1:\n        raise ValueError('no luck')\nspawn(broken, 2)"
    )
    count = int(notebook.run("print(len(In) - 2)")["stdout"])
    assert shown["error"] == (
        "RankFailed: rank 1 raised ValueError: no luck\n"
        f"  In[{count}], line 3, in broken\n"
        "      raise ValueError('no luck')"
    )
    assert shown["stderr"] == ""


def test_a_stuck_world_shows_the_lines_of_the_cell(notebook):
    shown = notebook.run("def early(rank, world_size):\n    if rank == 0:\n        dist.barrier()\nspawn(early, 2)")
    assert "line 3:  dist.barrier()" in shown["error"]
    assert "Rank 1 never called this barrier and has finished" in shown["error"]


def test_what_ranks_write_to_stderr_is_not_the_cells_stderr(notebook):
    shown = notebook.run(
        "def noisy(rank, world_size):\n"
        "    import warnings, sys\n"
        "    warnings.warn('careful')\n"
        "    print('oh', file=sys.stderr)\n"
        "    os.system('echo child >&2')\n"
        "run = spawn(noisy, 2)"
    )
    assert shown["stderr"] == ""
    assert "[rank 1] oh" in shown["stdout"] and "[rank 1] child" in shown["stdout"] and "careful" in shown["stdout"]


def test_after_the_kernel_itself_has_computed(notebook):
    """A fork of the kernel would hang here; the zygote has not computed anything."""
    shown = notebook.run(
        "w = torch.randn(600, 600, requires_grad=True); (w @ w).sum().backward()\n"
        "print(spawn(lambda rank, n: (torch.ones(600, 600) @ torch.ones(600, 600))[0, 0].item(), 2).results)"
    )
    assert shown["stdout"] == "[600.0, 600.0]\n"


def test_a_rank_set_by_hand_in_the_notebook_does_not_make_it_one(notebook):
    notebook.run("os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='localhost', MASTER_PORT='29500')")
    try:
        assert notebook.run("print(spawn(lambda rank, n: rank, 3).results)")["stdout"] == "[0, 1, 2]\n"
    finally:
        notebook.run("for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'): del os.environ[name]")


@pytest.mark.parametrize(
    "body",
    ["time.sleep(60)", "while True: pass", "dist.barrier() if rank == 0 else time.sleep(60)", "sum(range(10**13))"],
)
def test_interrupt_ends_the_world_at_once(notebook, body):
    zygote = zygote_of(notebook)
    cell = notebook.send(
        f"def endless(rank, world_size):\n    print('begun', flush=True)\n    {body}\nspawn(endless, 2)"
    )
    notebook.wait_for_output("begun")
    began = time.monotonic()
    notebook.manager.interrupt_kernel()
    shown = notebook.outputs_of(cell)
    assert time.monotonic() - began < 2
    assert "KeyboardInterrupt" in shown["error"]
    assert processes_of_session(zygote) == [zygote]
    assert notebook.run("print(spawn(lambda rank, n: rank, 2).results)")["stdout"] == "[0, 1]\n"


@pytest.mark.parametrize("death", ["kill", "restart"])
def test_a_kernel_that_goes_leaves_nothing(death, tmp_path):
    notebook = Notebook()
    try:
        notebook.run("from utils import spawn; import tempfile, time")
        notebook.run(f"tempfile.tempdir = {str(tmp_path)!r}")
        zygote = zygote_of(notebook)
        notebook.run("spawn(lambda rank, n: rank, 2)")
        notebook.send(
            "def endless(rank, n):\n    print('begun', flush=True)\n    time.sleep(600)\nspawn(endless, 4, timeout=600)"
        )
        notebook.wait_for_output("begun")
        assert len(processes_of_session(zygote)) == 5
        if death == "kill":
            os.kill(notebook.manager.provisioner.pid, signal.SIGKILL)
        else:
            notebook.manager.restart_kernel(now=True)
        wait_until_gone(zygote, seconds=3)
        assert not os.listdir(tmp_path), "the folder of the world is still there"
    finally:
        notebook.close()
