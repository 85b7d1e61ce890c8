"""What a student reads when ranks go wrong: in a real kernel, one row per failure.

Each row is run as a cell; the report must hold the words, and the next call must work, with nothing left of the world
before. `make BENCH_ARGS=reports bench` measures how soon.
"""

import os
import re
import signal
from dataclasses import dataclass

import pytest

from tests.kernel import Notebook, processes_of_session, wait_until_gone, zygote_of

pytestmark = pytest.mark.long


@dataclass
class Row:
    name: str
    body: str  # the program's, with `rank` and `world_size`
    reads: list[str]  # parts of the report, in this order
    never: tuple[str, ...] = ("onnection", "terminate called")  # words that must not appear at all
    options: str = ""  # spawn's


START = "import ctypes, os, time, torch, torch.distributed as dist\nfrom utils import spawn"
OTHERS_WAIT = ["(Ranks 0 and 2 were waiting in barrier"]
TABLE = [
    Row(
        "one-raises",
        "if rank == 1: raise ValueError('no luck')\ndist.barrier()",
        ["RankFailed: rank 1 raised ValueError: no luck", "line 2, in program", "raise ValueError('no luck')"]
        + OTHERS_WAIT,
    ),
    Row(
        "one-raises-others-in-a-message",
        "x = torch.ones(1)\nif rank == 1: raise KeyError('lr')\ndist.recv(x, src=1)",
        ["RankFailed: rank 1 raised KeyError: 'lr'", "raise KeyError('lr')", "(Ranks 0 and 2 were waiting in recv"],
    ),
    Row(
        "leaves",
        "if rank == 1: os._exit(7)\ndist.barrier()",
        ["RankCrashed: rank 1 exited with code 7: something called os._exit", "had not called the network yet"],
    ),
    Row(
        "segfault",
        "dist.barrier()\nif rank == 1: ctypes.string_at(0)\ndist.barrier()",
        ["RankCrashed: rank 1 was killed by SIGSEGV", "it was at In[", "line 3", "ctypes.string_at(0)", "barrier"],
    ),
    Row(
        "killed",
        "dist.barrier()\nif rank == 1: os.kill(os.getpid(), 9)\ndist.barrier()",
        [
            "RankCrashed: rank 1 was killed by SIGKILL",
            "ran out of memory",
            "its last call to the network, completed: barrier",
        ],
    ),
    Row(
        "abort-in-gloo-dtype",
        "dist.all_reduce(torch.ones(1000, dtype=[torch.float64, torch.float32][rank % 2]))",
        ["RankCrashed", "brought float64 [1000]", "So rank", "SIGABRT (a C++ library gave up)."],
    ),
    Row(
        "abort-in-gloo-size",
        "dist.all_reduce(torch.ones(5000 if rank else 1000))",
        ["RankCrashed", "rank 0 brought float32 [1000], rank 1 brought float32 [5000]", "SIGABRT"],
    ),
    Row(
        "out-of-memory",
        "if rank == 1: bytearray(10**15)\ndist.barrier()",
        ["RankFailed: rank 1 raised MemoryError", "line 2", "bytearray(10**15)"] + OTHERS_WAIT,
    ),
    Row(
        "out-of-memory-in-torch",
        "if rank == 1: torch.empty(10**15)\ndist.barrier()",
        ["RankFailed: rank 1 raised RuntimeError", "allocate memory", "torch.empty(10**15)"] + OTHERS_WAIT,
    ),
    Row(
        "endless-loop",
        "while rank == 1:\n    pass\ndist.barrier()",
        [
            "RankTimeout: ranks 0, 1 and 2 have not finished after 1 s",
            "rank 1  is running",
            "In[",
            "timeout=",
        ],
        options="timeout=1",
    ),
    Row(
        "loop-that-holds-the-GIL",
        "if rank == 1: sum(range(10**13))\ndist.barrier()",
        ["RankTimeout", "rank 0  waits in barrier", "rank 1  is running", "line 2", "sum(range(10**13))"],
        options="timeout=1",
    ),
    Row(
        "nobody-joins",
        "if rank == 1: dist.barrier()",
        ["WorldStuck: rank 1 can't move any more", "rank 1  waits in barrier", "line 2", "never called this barrier"],
    ),
    Row(
        "different-collectives",
        "x = torch.ones(1)\ndist.broadcast(x, 0) if rank else dist.all_reduce(x)",
        ["WorldStuck", "rank 0 called all_reduce, rank 1 called broadcast"],
    ),
    Row(
        "everyone-sends-first",
        "x = torch.ones(1)\ndist.send(x, (rank + 1) % world_size)\ndist.recv(x, (rank - 1) % world_size)",
        ["WorldStuck", "rank 0  waits in send to 1", "line 3", "Everyone sends first", "0 → 1 → 2 → 0", "isend"],
    ),
    Row(
        "asks-for-input",
        "input('name? ')",
        ["RankFailed: ranks 0, 1 and 2 raised EOFError", "line 2"],
    ),
    Row(
        "returns-a-lock",
        "import threading\nreturn threading.Lock() if rank == 2 else rank",
        ["RankFailed: rank 2 raised CannotReturn: it returned a lock, which can't be sent to the notebook"],
    ),
]
TABLE = {row.name: row for row in TABLE}


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook()
    notebook.run(START)
    assert works(notebook)
    yield notebook
    notebook.close()


def works(notebook: Notebook) -> bool:
    """Whether a call of spawn works, and nothing is left over from earlier calls."""
    shown = notebook.run("print(spawn(lambda rank, n: rank, 2).results)")
    zygote = zygote_of(notebook)
    return shown == {"stdout": "[0, 1]\n", "stderr": "", "error": None} and processes_of_session(zygote) == [zygote]


def cell(body: str, options: str = "") -> str:
    lines = "\n".join("    " + line for line in body.splitlines())
    return f"def program(rank, world_size):\n{lines}\nspawn(program, 3, {options})"


@pytest.mark.parametrize("name", TABLE)
def test_what_the_student_reads(notebook, name):
    row = TABLE[name]
    shown = notebook.run(cell(row.body, row.options))
    assert shown["stderr"] == ""
    assert in_order(row.reads, shown["error"]), shown["error"]
    assert not any(words in shown["error"] + shown["stdout"] for words in row.never)
    assert works(notebook)


def in_order(words: list[str], text: str) -> bool:
    at = 0
    for word in words:
        at = text.find(word, at) + 1
        if at == 0:
            return False
    return True


def test_two_ranks_that_raise_are_both_reported_the_first_one_first(notebook):
    body = (
        "if rank == 2:\n    raise ValueError('first')\n"
        "if rank == 1:\n    time.sleep(0.2)\n    raise TypeError('second')\n"
        "dist.barrier()"
    )
    shown = notebook.run(cell(body))
    assert in_order(["rank 2 raised ValueError: first", "rank 1 raised TypeError: second"], shown["error"])
    assert "(Rank 0 was waiting in barrier" in shown["error"]


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(600)",
        "while True: pass",
        "sum(range(10**13))",
        "dist.barrier() if rank == 0 else time.sleep(600)",
        "dist.recv(torch.ones(1), src=1) if rank == 0 else time.sleep(600)",
        "while True: print('x' * 1000)",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)",
    ],
)
def test_an_interrupt_ends_the_world(notebook, body):
    zygote = zygote_of(notebook)
    cell = notebook.send(
        "def endless(rank, world_size):\n    dist.barrier()\n    print('begun', flush=True)\n"
        f"    {body}\nspawn(endless, 3)"
    )
    notebook.wait_for_output("begun")  # after the barrier, all have
    notebook.manager.interrupt_kernel()
    shown = notebook.outputs_of(cell)
    assert shown["error"].startswith("KeyboardInterrupt: the ranks were ended.\n  rank 0  ")
    for line in shown["error"].splitlines()[1:]:
        assert re.search(r"  ranks? \d.*line [234]:  \S", line), shown["error"]
    assert "launcher" not in shown["error"]
    assert processes_of_session(zygote) == [zygote]
    assert works(notebook)


@pytest.mark.parametrize("death", ["restart", pytest.param("kill", marks=pytest.mark.thorough)])
def test_a_kernel_that_ends_leaves_nothing_behind(death, tmp_path):
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
        wait_until_gone(zygote)
        assert not os.listdir(tmp_path), "the folder of the world is still there"
        if death == "restart":
            notebook.client.wait_for_ready(timeout=60)
            assert notebook.run("from utils import spawn; print(spawn(lambda rank, n: rank, 2).results)")["stdout"]
    finally:
        notebook.close()


def test_ranks_of_a_killed_zygote_end_and_the_next_call_works(notebook):
    zygote = zygote_of(notebook)
    cell = notebook.send(
        "def endless(rank, world_size):\n    print('begun', flush=True)\n    time.sleep(600)\nspawn(endless, 4)"
    )
    notebook.wait_for_output("begun")
    os.kill(zygote, signal.SIGKILL)
    shown = notebook.outputs_of(cell)
    assert "the process that starts the ranks was killed" in shown["error"] and "Run the cell again" in shown["error"]
    wait_until_gone(zygote)
    assert works(notebook)
    os.kill(zygote_of(notebook), signal.SIGKILL)  # now between two calls
    assert works(notebook)
