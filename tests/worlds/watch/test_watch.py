"""The watchdog of a job: ranks that something else has started, on one machine and on two."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch.distributed as dist

from tests.worlds.conftest import DEADLINE

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
        common |= variables
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with ExitStack() as stack:
            started = []
            for rank in range(size):
                own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
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
    assert "never called this all_reduce" in zero and not one
    assert (tmp_path / "dumps/report.txt").read_text() == zero
    explain = [sys.executable, "-m", "utils", "explain", "dumps"]
    said = subprocess.run(explain, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert said.stdout.partition("\n\n")[2] == zero.partition("\n")[2]


def test_a_line_in_the_script_does_the_same_before_and_after_the_group_is_made(ranks):
    watch = "import utils\nutils.watch()\n"
    for text in (watch + HANGS, HANGS.replace("rank, x", watch + "rank, x")):
        codes, _, (zero, _) = ranks(text, command=())
        assert codes == [1, 1]
        assert zero.startswith(SAID.replace("line 6", "line 8"))
