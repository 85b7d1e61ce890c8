"""The watchdog of a job: ranks that something else has started, on one machine and on two."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch.distributed as dist

from tests.worlds.conftest import DEADLINE
from utils.worlds.real.process_world import free_port

pytestmark = pytest.mark.long

START = """\
import torch, torch.distributed as dist
dist.init_process_group('gloo')
rank, x = dist.get_rank(), torch.ones(3)
"""
HANGS = START + "dist.all_reduce(x)\nif rank == 0:\n    dist.all_reduce(x)\n"
SAID = """\
WorldStuck: rank 0 can't move any more, and the other has finished.
  rank 0  waits in all_reduce               train.py, line 6:  dist.all_reduce(x)
  rank 1  has finished
"""


@pytest.fixture
def ranks(root, tmp_path):
    """Starts ranks as torchrun's agent does, which has the job's store, but without waiting for an agent to be there.

    Returns (exit codes, stdout, stderr), each a list by rank.
    """

    def run(text, *options, size=2, command=("-m", "utils.watch"), meanwhile=None, **variables):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (tmp_path / "train.py").write_text(text)
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        common = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size), **meet}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with ExitStack() as stack:
            started = []
            for rank in range(size):
                own = {**common, **dict.fromkeys(("RANK", "LOCAL_RANK", "SLURM_PROCID"), str(rank)), **variables}
                own = {name: value for name, value in own.items() if value is not None}
                line = [sys.executable, *command, *map(str, options), "train.py"]
                process = stack.enter_context(subprocess.Popen(line, cwd=tmp_path, env=own, **pipes))
                stack.callback(process.kill)
                started.append(process)
            if meanwhile:
                meanwhile(started)
            said = [process.communicate(timeout=DEADLINE) for process in started]
            return [process.returncode for process in started], *map(list, zip(*said, strict=True))

    return run


# --- what it says


def test_a_hang_ends_every_rank_with_the_report_of_spawn_and_leaves_dumps_that_explain_reads(ranks, tmp_path):
    codes, _, (zero, one) = ranks(HANGS, "--save", "dumps")
    assert codes == [1, 1]
    assert zero.startswith(SAID) and "Rank 1 has finished after 1 call of this all_reduce" not in zero
    assert "called all_reduce in the whole world only from other lines" in " ".join(zero.split()) and not one
    assert (tmp_path / "dumps/report.txt").read_text() == zero
    explain = [sys.executable, "-m", "utils", "explain", "dumps"]
    said = subprocess.run(explain, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert said.stdout.partition("\n\n")[2] == zero.partition("\n")[2]


def test_a_line_in_the_script_does_the_same_after_the_group_is_made(ranks):
    """The command calls the same function before it is made."""
    codes, _, (zero, _) = ranks(HANGS.replace("rank, x", "import utils\nutils.watch()\nrank, x"), command=())
    assert codes == [1, 1]
    assert zero.startswith(SAID.replace("line 6", "line 8"))


TIMED_OUT = """\
import time, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group('gloo', timeout=timedelta(seconds=8))
if dist.get_rank() == 1:
    time.sleep(30)
dist.barrier()
"""


def test_a_time_out_of_a_group_is_preceded_by_what_the_slow_rank_does(ranks):
    codes, _, (zero, _) = ranks(TIMED_OUT)
    assert codes[0] == 1
    said, torchs = zero.find("RankTimeout: rank 0 has waited in barrier for"), zero.find("Traceback")
    assert 0 <= said < torchs, zero
    assert re.search(r"^  rank 1  is running +train.py, line 5:  time.sleep\(30\)$", zero, re.MULTILINE)
    assert "WorldStuck" not in zero


LEAVES = """\
import atexit, sys, time, torch, torch.distributed as dist
atexit.register(lambda: print("exit handlers"))
dist.init_process_group()
rank, group = dist.get_rank(), dist.new_group([0, 1])
dist.all_reduce(torch.ones(3), group=group)
if rank == 0:
    time.sleep(6)  # a slow checkpoint, say
dist.barrier(group)
if rank == 1:
    sys.exit(3 if sys.argv[1:] == ["fails"] else 0)
if sys.argv[1:]:
    dist.barrier()
dist.destroy_process_group()
print(__name__, __file__[-8:], sys.argv)
"""


def test_a_job_that_ends_well_ends_as_without_us_and_a_slow_rank_is_not_accused(ranks):
    codes, (zero, one), errors = ranks(LEAVES)
    assert (codes, errors) == ([0, 0], ["", ""])
    assert (zero, one) == ("__main__ train.py ['train.py']\nexit handlers\n", "exit handlers\n")


def slurm(port):
    """The variables of a step, and the variables that torchrun would set, unset."""
    unset = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE"))
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_LOCALID": "0"}
    return {**unset, **step, "SLURM_JOB_ID": "7", "MASTER_PORT": str(port)}


def test_under_slurm_rank_0_has_the_store_and_leaves_first(ranks):
    """A rank of its own that ends early is what the others wait for; it stays until that has been said."""
    text = HANGS.replace("if rank == 0", "if rank == 1") + "dist.destroy_process_group()\n"
    codes, _, (zero, one) = ranks(text, **slurm(free_port()))
    assert codes == [1, 1] and not one
    assert zero.startswith(
        "WorldStuck: rank 1 can't move any more, and the other has finished.\n  rank 0  has finished"
    )


def test_an_exit_code_is_kept_and_the_others_are_told(ranks):
    text = LEAVES.replace("sys.argv[1:]", "['fails']")
    codes, _, (zero, one) = ranks(text)
    assert codes == [1, 3] and not one
    assert zero.startswith("RankFailed: rank 1 raised SystemExit: 3\n  train.py, line 10\n"), zero


def test_with_keep_going_the_report_is_printed_and_the_ranks_go_on(ranks):
    def until_reported(started):
        line = started[0].stderr.readline()
        assert line.startswith("WorldStuck: "), line
        assert [process.poll() for process in started] == [None, None]
        for process in started:
            process.send_signal(signal.SIGTERM)

    codes, *_ = ranks(HANGS, "--keep-going", meanwhile=until_reported)
    assert codes == [-signal.SIGTERM] * 2


# --- two machines


def test_a_hang_on_two_machines_is_explained(two_nodes, tmp_path):
    (tmp_path / "train.py").write_text(HANGS)
    both = two_nodes.torchrun("--nproc-per-node=2", "-m", "utils.watch", "--save", "dumps", "train.py")
    assert all(done.returncode for done in both)
    said = both[0].stderr + both[1].stderr
    assert said.count("WorldStuck: rank 0 can't move any more, and the others have finished.") == 1, said
    assert said.count("  has finished\n") == 3
    assert (tmp_path / "dumps/report.txt").exists()
    assert json.loads((tmp_path / "dumps/rank_3.json").read_text())["watch"]["finished"]


# --- the command line


def test_the_command_line_explains_itself(root, tmp_path):
    def said(*options):
        command = [sys.executable, "-m", "utils.watch", *options]
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        return subprocess.run(command, capture_output=True, text=True, cwd=root, env=env, timeout=DEADLINE)

    assert "torchrun --nproc-per-node 8 -m utils.watch train.py" in said("--help").stdout
    alone = said("train.py")
    assert alone.returncode == 2 and "this process is not a rank of a job" in alone.stderr


def test_the_name_of_the_package_is_a_function_and_what_python_m_runs(root):
    """In a process of its own, whose groups are recorded from then on."""
    outside_a_job = "assert utils.watch is module and utils.watch(end=False) is None"  # it waits until there is one
    code = f"import utils\nimport utils.watch as module\n{outside_a_job}"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=DEADLINE)
