"""Under torchrun and SLURM a process already is a rank, and spawn runs the program in place: on one machine and on two.

Two machines are two network namespaces joined by a cable. Where none can be made, two agents still meet on loopback.
"""

import ast
import io
import re
import sys
from contextlib import redirect_stdout

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell

from tests.worlds.conftest import TORCHRUN
from utils.worlds.jobs.marked_output import MarkedStream, marked_output
from utils.worlds.jobs.notebook_script import main as make_script

pytestmark = pytest.mark.long

# --- one machine

SAME_AS_SPAWN = """
import random, sys
from dataclasses import dataclass
import torch, torch.distributed as dist
from utils import SilentMistake, get_device, spawn
from utils.worlds.jobs.in_place import only_first_process_prints

only_first_process_prints()

@dataclass
class Point:
    x: int

calls = 0

def work(rank, world_size, factor, mine):
    global calls
    calls += 1
    mine.append(rank)
    print("hello", end=" ")
    print("from", rank)
    for _ in range(rank):
        print("\\r10%\\r20%", end="", file=sys.stderr)
    x = torch.full((2,), float(rank), device=get_device()) * factor
    dist.all_reduce(x)
    dist.broadcast(x[:1], src=0, group=dist.new_group([0, 1]))
    if rank == 0:
        dist.isend(x, dst=1).wait()
    else:
        dist.recv(x, src=0)
    points = [None] * world_size
    dist.all_gather_object(points, Point(rank))
    try:
        spawn(work, 1, 10, [])
    except RuntimeError as refused:
        mine.append(str(refused).partition(",")[0])
    if rank == 1 and factor == 20:
        sys.exit(0)
    return x.view(2, 1)[1], calls, mine, Point(7), points == [Point(0), Point(1)], torch.rand(1), random.random()

torch.manual_seed(1)
mine = []
for factor in (10, 20):
    run = spawn(work, 2, factor, mine, backend="gloo")
    print("results", run.results, calls, mine, run.results[0][3] == Point(7), torch.rand(1))
    print("output", run.output)
    for e in run.events:
        if e.dtype != "uint8":  # a pickled object: a class of the script travels by its name here, by value in spawn
            print(e.rank, e.index, e.op, e.members, e.peer, e.bytes, e.dtype, e.shape, e.is_async, e.where[-20:])
    print(run.traffic().messages, run.traffic().bytes)
    assert all(0 <= e.start <= e.end <= run.elapsed for e in run.events)

def at_odds(rank, world_size):
    dist.all_reduce(torch.ones(2), dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX)
    return rank

try:
    spawn(at_odds, 2, backend="gloo")
except SilentMistake as error:
    said = str(error), error.results, error.output, [(e.rank, e.reduce_op) for e in error.events]
print("silent", spawn(lambda rank, world_size: said, 2, backend="gloo").results)
print(run.world)
for _ in range(2):
    spawn(lambda rank, world_size: None, int(sys.argv[1]))
"""


def test_what_a_run_holds_is_what_it_holds_after_spawn(run, tmp_path):
    """Results, prints, events, traffic, random numbers, the script's own variables, and what a silent mistake says on
    every rank: all are as without torchrun.
    """
    (tmp_path / "script.py").write_text(SAME_AS_SPAWN)
    spawned = run(sys.executable, "script.py", "1")
    in_place = run(*TORCHRUN, "--standalone", "--nproc-per-node=2", "script.py", "3")
    assert (spawned.returncode, in_place.returncode) == (0, 0), spawned.stderr + in_place.stderr

    def of_script(text):
        return [line for line in text.splitlines() if not line.startswith("[rank ")]

    asked = "spawn: you asked for 3 ranks; under torchrun all 2 ranks of the job take part."
    assert of_script(in_place.stdout)[-2:] == ["torchrun", asked]
    assert of_script(in_place.stdout)[:-2] == of_script(spawned.stdout)[:-1]
    assert "0 0 all_reduce (0, 1) None 8 float32 (2,) False" in in_place.stdout
    assert len(re.findall("^silent.*rank 0 asked for sum, rank 1 asked for max", in_place.stdout, re.M)) == 1
    printed = ["[rank 0] hello from 0"] * 2 + ["[rank 1] hello from 1"] * 2
    assert sorted(re.findall(r"^\[rank.*", in_place.stdout, re.M)) == printed
    assert "spawn was called on rank 0" in in_place.stdout
    assert in_place.stderr.count("[rank 1] 20%\n") == 2
    assert not re.search("Traceback|destroy_process_group", in_place.stderr)


def test_prints_are_marked_shown_at_once_and_recorded():
    screen = io.StringIO()
    with redirect_stdout(screen), marked_output(3) as kept:
        print("a", 1)
        assert screen.getvalue() == "[rank 3] a 1\n"
        print("begun", end="")
        assert screen.getvalue() == "[rank 3] a 1\n"  # another process may be printing
        print(end="", flush=True)
        print(", ended\nb", end="")
    assert screen.getvalue() == "[rank 3] a 1\n[rank 3] begun, ended\n[rank 3] b\n"
    assert kept == ["a 1\n", "begun, ended\n", "b\n"]
    bar = MarkedStream(io.StringIO(), 0, kept := [])
    for state in ("\r10%", "\r20%", "\n"):
        bar.write(state)
        bar.flush()
    assert (bar.stream.getvalue(), kept) == ("[rank 0] \r[rank 0] 10%\r[rank 0] 20%\n", ["20%\n"])


# --- what goes wrong

FAILS = """
import torch, torch.distributed as dist
from utils import RankFailed, spawn

def work(rank, world_size):
    if rank == 1:
        raise ValueError("boom")
    dist.all_reduce(torch.ones(1))

spawn(lambda rank, world_size: None, 2)
try:
    spawn(work, 2)
except RankFailed as failed:
    print(failed)
spawn(work, 2)
"""


def test_a_rank_that_raises_ends_the_job_and_is_named(on_loopback, tmp_path):
    (tmp_path / "script.py").write_text(FAILS)
    one, other = on_loopback.torchrun("--nproc-per-node=1", "script.py")
    innocent, guilty = (one, other) if one.stdout else (other, one)
    assert guilty.returncode != 0
    assert "[rank1]: ValueError: boom" in guilty.stderr
    said = 'rank 1 raised ValueError: boom\n  script.py, line 7, in work\n      raise ValueError("boom")\n'
    assert innocent.stdout == said
    assert "[rank0]: RankFailed: This job's world has ended: rank 1 raised" in innocent.stderr


WAITED_FOR = """
import threading
import torch, torch.distributed as dist
from utils import spawn

def work(rank, world_size):
    if rank == 0:
        threading.Event().wait()  # busy forever, and not using the network
    left_alone = dist.all_reduce(torch.ones(1), async_op=True)
    raise ValueError("boom")

spawn(work, 2)
"""


@pytest.mark.thorough
def test_a_rank_that_raises_leaves_at_once(run, tmp_path):
    """Gloo's threads would wait for its last call at exit, and torchrun for its exit."""
    (tmp_path / "script.py").write_text(WAITED_FOR)
    done = run(*TORCHRUN, "--standalone", "--nproc-per-node=2", "script.py")
    assert done.returncode != 0
    assert "[rank1]: ValueError: boom" in done.stderr


@pytest.mark.thorough
def test_an_unfinished_lesson_stops_where_the_answer_is_missing(run, root, tmp_path):
    make_script([str(root / "notebooks/00_ranks/00_ranks.ipynb"), "-o", str(tmp_path / "lesson.py")])
    done = run(*TORCHRUN, "--standalone", "--nproc-per-node=2", "lesson.py")
    assert done.returncode != 0
    assert re.search(r"\[rank[01]\]:   File .*lesson.py., line \d+, in smallest_cluster", done.stderr)
    assert "[rank 1] Hello, I am 1 of 2\n" in done.stdout


# --- two machines

FACTS = """
import os

def facts(rank, world_size):
    last, x = world_size - 1, torch.zeros(3)
    if rank == 0:
        dist.send(x, dst=last)
    elif rank == last:
        dist.recv(x, src=0)
    dist.all_reduce(x)
    print(os.environ["GLOO_SOCKET_IFNAME"])
    return os.environ.get("GROUP_RANK")

run = spawn(facts, 4)
traffic = run.traffic()
[run.results, run.output, [(e.rank, e.op) for e in run.events], traffic.sent(0), traffic.received(run.world_size - 1)]
"""


@pytest.mark.thorough
def test_a_lesson_runs_on_two_machines_as_it_is(two_nodes, root, tmp_path):
    lesson = nbformat.read(root / "solutions/01_collectives/01_collectives.ipynb", as_version=4)
    lesson.cells.append(new_code_cell(FACTS))
    nbformat.write(lesson, tmp_path / "lesson.ipynb")
    make_script([str(tmp_path / "lesson.ipynb"), "-o", str(tmp_path / "lesson.py")])
    both = two_nodes.torchrun("--nproc-per-node=2", "lesson.py")
    assert [done.returncode for done in both] == [0, 0], both[0].stderr + both[1].stderr
    text = both[0].stdout + both[1].stdout
    results, output, events, sent, received = ast.literal_eval(re.findall(r"^\[\[.*", text, re.M)[-1])
    assert results == ["0", "0", "1", "1"]
    assert output == [f"{two_nodes.interface}\n"] * 4
    assert events == [
        (0, "send"),
        (0, "all_reduce"),
        (1, "all_reduce"),
        (2, "all_reduce"),
        (3, "recv"),
        (3, "all_reduce"),
    ]
    assert sent == received == (1, 12)


UNDER_SLURM = f"""
import torch, torch.distributed as dist
from utils import spawn
from utils.worlds.jobs.in_place import only_first_process_prints

only_first_process_prints()
{FACTS.rpartition(chr(10) + "[")[0]}
print(run, run.results, run.output, traffic.sent(0), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
"""


def test_tasks_of_srun_on_two_machines(two_machines, tmp_path):
    """SLURM's variables are set by hand. There, the first machine's name is 127.0.1.1, which the other can't reach."""
    (tmp_path / "script.py").write_text(UNDER_SLURM)
    step = "SLURM_JOB_ID=4321 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST='gpu[03-04]' SLURM_LOCALID=0"
    both = two_machines.both(*(f"{step} SLURM_PROCID={rank} {sys.executable} script.py" for rank in range(2)))
    assert [done.returncode for done in both] == [0, 0], both[0].stderr + both[1].stderr
    said = "spawn: you asked for 4 ranks; under slurm all 2 ranks of the job take part.\n[rank 0] cable\n"
    run = "Run(2 ranks, slurm, gloo) [None, None] ['cable\\n', 'cable\\n'] (1, 12) gpu03 24321\n"
    assert [done.stdout for done in both] == [said + run, "[rank 1] cable\n"]


# --- GPUs

ON_GPUS = """
import torch, torch.distributed as dist
from utils import get_device, spawn

def work(rank, world_size):
    x = torch.ones(2, device=get_device())
    dist.all_reduce(x)
    return x

run = spawn(work, 1)
print(run, run.results)
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_nccl_where_each_rank_has_a_gpu_of_its_own(run, tmp_path):
    (tmp_path / "script.py").write_text(ON_GPUS)
    count = torch.cuda.device_count()
    alone = run(*TORCHRUN, "--standalone", f"--nproc-per-node={count}", "script.py")
    assert f"{'1 rank' if count == 1 else f'{count} ranks'}, torchrun, nccl) [tensor([" in alone.stdout, alone.stderr
    shared = run(*TORCHRUN, "--standalone", f"--nproc-per-node={count + 1}", "script.py")
    assert f"({count + 1} ranks, torchrun, gloo)" in shared.stdout, shared.stderr
    assert f"There is no GPU for each of {count + 1} ranks" in shared.stdout
