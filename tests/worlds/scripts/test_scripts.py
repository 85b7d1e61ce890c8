"""Scripts that know nothing of us: what they find, print and leave behind is what torchrun would have given them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from utils.worlds.scripts import command, torchrun
from utils.worlds.scripts.world import OutputAsItComes

pytestmark = pytest.mark.long
SECONDS = 240

PROCESS = """\
import atexit, json, os, random, sys, time
import numpy, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
import __main__

class Rows(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.ones(1) * i

if __name__ == "__main__":
    rank = os.environ["RANK"]
    atexit.register(lambda: open(f"exit-{rank}", "w").close())
    read = [[x.item() for x in DataLoader(Rows(), num_workers=1, multiprocessing_context=how)]
            for how in ("fork", "spawn")]
    found = {
        "argv": sys.argv, "file": __file__, "cwd": os.getcwd(), "path": sys.path[0], "read": read,
        "main": vars(__main__) is globals(), "joined": dist.is_initialized(),
        "elastic": dist.is_torchelastic_launched(),
        "threads": torch.get_num_threads(), "omp": os.environ.get("OMP_NUM_THREADS"),
        "ours": [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_NAME")],
        "drawn": [torch.rand(1).item(), random.random(), numpy.random.rand()],
    }
    left_open = open(f"found-{rank}", "w")
    left_open.write(json.dumps(found))
    if rank == "1":
        while not os.path.exists("found-0") or not os.path.getsize("found-0"):  # rank 0 has ended, and closed its file
            time.sleep(0.01)
        sys.exit(3)
"""

TRAINS = """\
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

@dataclass
class Settings:
    steps: int

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo", init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7 + rank)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        loss = model(torch.randn(5, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 or not options.hang:
            dist.all_reduce(loss := loss.detach())
    everyone = [None] * size
    dist.all_gather_object(everyone, Settings(step))
    assert everyone == [Settings(3)] * size and all(isinstance(one, Settings) for one in everyone)
    if rank == 0:
        print(f"loss {loss.item()!r}, weights {sum(p.double().sum().item() for p in net.parameters())!r}")
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""

STOPPED = """\
import os, signal, sys, time

def save(number, frame):
    print("saved on", signal.Signals(number).name)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("ready")
while True:
    time.sleep(0.01)
"""

ON_GPUS = """\
import os
import __main__
import asks
import torch
import torch.distributed as dist

if not asks.gpus() or not torch.accelerator.is_available() or torch.accelerator.device_count() < 2:
    raise SystemExit("no GPUs")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mine = dist.get_rank()
x = torch.ones(1000, device="cuda")
dist.all_reduce(x)
assert __main__.mine == dist.get_rank() == mine
if mine == 9:
    print("x of", tuple(x.shape), dist.get_world_size(), "ranks")
"""


@pytest.fixture
def start(root, tmp_path):
    """Starts Python with these arguments in a folder of its own, where this project can be imported."""

    def start(*arguments, **more):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment = {**environment, "PYTHONPATH": str(root), **more}
        command = [sys.executable, "-m", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)

    return start


@pytest.fixture
def run(start):
    def run(*arguments, **more):
        with start(*arguments, **more) as process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run


# --- real ranks


def test_a_script_finds_what_torchrun_gives_it(run, tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(PROCESS)
    done = run("utils", "--standalone", "--nproc_per_node=2", "scripts/train.py", "--lr", "3", "-m")
    assert done.returncode == 3, done.stderr
    assert "rank 1 raised SystemExit: 3\n  scripts/train.py, line 32\n" in done.stderr
    found = [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in range(2)]
    for rank, one in enumerate(found):
        assert one["argv"] == ["scripts/train.py", "--lr", "3", "-m"]
        assert one["file"] == str(tmp_path / "scripts" / "train.py") and one["path"] == str(tmp_path / "scripts")
        assert one["cwd"] == str(tmp_path) and one["main"] and not one["joined"] and one["elastic"]
        assert one["read"] == [[0.0, 1.0]] * 2
        assert one["ours"] == [str(rank), str(rank), "2", "0", "default"]
        assert (one["threads"], one["omp"]) == (1, "1")
        assert (tmp_path / f"exit-{rank}").exists()
    assert not set(found[0]["drawn"]) & set(found[1]["drawn"])  # nothing is seeded


def test_values_are_those_of_torchrun(run, tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    ours = run("utils", "--nproc-per-node", 2, "train.py")
    theirs = run("torch.distributed.run", "--standalone", "--nproc-per-node", 2, "train.py")
    assert ours.returncode == theirs.returncode == 0, ours.stderr + theirs.stderr
    assert ours.stderr == "" and re.fullmatch(r"loss \S+, weights \S+\n", theirs.stdout)
    assert ours.stdout == f"[rank 0] {theirs.stdout}"


def test_a_hang_ends_with_one_report_of_the_scripts_own_lines(run, tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    keep = ["--report", "said.txt", "--timeline", "run.html", "--trace", "run.json", "--traffic"]
    done = run("utils", "--nproc-per-node", 2, *keep, "train.py", "--hang")
    assert done.returncode == 1
    assert done.stderr.startswith("WorldStuck: no rank can move any more: each waits for another.\n")
    line = 1 + next(number for number, line in enumerate(TRAINS.splitlines()) if "dist.all_reduce(" in line)
    assert f"  rank 0  waits in all_reduce               train.py, line {line}:  dist.all_reduce(" in done.stderr
    assert "Traceback" not in done.stderr and "utils/" not in done.stderr and "runpy" not in done.stderr
    assert (tmp_path / "said.txt").read_text() == done.stderr
    assert "<img" in (tmp_path / "run.html").read_text() and json.loads((tmp_path / "run.json").read_text())
    assert "all_reduce" in done.stdout


def test_a_module_that_fails_shows_its_own_lines(run, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").touch()
    (tmp_path / "app" / "__main__.py").write_text("import sys\nfrom . import name\n")
    done = run("utils", "-m", "app", "--fast")
    assert done.returncode == 1
    assert "raised ImportError: cannot import name 'name' from 'app'" in done.stderr
    assert "\n  app/__main__.py, line 2\n      from . import name\n" in done.stderr
    assert "runpy" not in done.stderr and "utils/" not in done.stderr


def test_a_signal_is_passed_on_and_the_ranks_may_save(start, tmp_path):
    (tmp_path / "train.py").write_text(STOPPED)
    with start("utils", "--nproc-per-node", "2", "train.py") as process:
        lines = [process.stdout.readline() for _ in range(2)]  # as they come
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS)
    assert sorted(lines) == ["[rank 0] ready\n", "[rank 1] ready\n"]
    assert process.returncode == 128 + signal.SIGTERM
    assert sorted(out.splitlines()) == ["[rank 0] saved on SIGTERM", "[rank 1] saved on SIGTERM"]
    assert err.startswith("SIGTERM: the ranks were ended.\n") and "train.py, line 10:  time.sleep(0.01)" in err


QUIET = """\
import queue
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    queue.Queue().get()
dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_waits_for_something_of_its_own_is_told_of(start, tmp_path):
    (tmp_path / "train.py").write_text(QUIET)
    process = start("utils", "--nproc-per-node", "2", "--tell-after", "1", "train.py")
    give_up = threading.Timer(SECONDS, process.kill)  # or a notice that never comes would be waited for without end
    give_up.start()
    told = []
    for line in process.stderr:  # on a busy machine, the rank still computes in the first notices
        told.append(line)
        if line.startswith("No rank is computing"):
            break
    give_up.cancel()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    said, waits, is_idle, advice = told[-4:]
    assert "no rank has called or left torch.distributed for " in said
    assert "rank 0  waits in all_reduce" in waits and "train.py, line 8" in waits
    assert "rank 1  is idle" in is_idle and "train.py, line 7:  queue.Queue().get()" in is_idle
    assert advice.startswith("No rank is computing, so more time is unlikely to help.")


COMPUTES = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
while dist.get_rank() == 1:
    pass
dist.all_reduce(torch.ones(1))
"""


def test_while_a_rank_computes_the_notice_comes_again(start, tmp_path):
    (tmp_path / "train.py").write_text(COMPUTES)
    process = start("utils", "--nproc-per-node", "2", "--tell-after", "0.5", "train.py")
    give_up = threading.Timer(SECONDS, process.kill)
    give_up.start()
    told = [process.stderr.readline() for _ in range(6)]
    give_up.cancel()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert "no rank has called" in told[0] and "rank 1  is running" in told[2] and "rank 1  is running" in told[5]


def test_a_line_is_shown_as_soon_as_it_has_ended():
    output = OutputAsItComes(2)
    output.feed(1, b"first\nsec")
    assert list(output.ready()) == [(1, "first\n")]
    output.feed(1, b"ond\n")
    assert list(output.ready()) == [(1, "second\n")]
    assert output.text == [[], []]


# --- virtual ranks


def test_a_script_for_gpus_runs_on_a_virtual_cluster(run, root, tmp_path):
    (tmp_path / "train.py").write_text(ON_GPUS)
    (site := tmp_path / "site").mkdir()
    (site / "asks.py").write_text("import torch\ndef gpus():\n    return torch.cuda.is_available()\n")
    (site / "asks-1.0.dist-info").mkdir()
    path = os.pathsep.join([str(root), str(site)])
    done = run("utils", "--virtual", 16, "--cluster", "dgx-a100", "--memory", "train.py", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    said, took, header, row, *_ = done.stdout.splitlines()
    assert said == "[rank 9] x of (1000,) 16 ranks"
    assert re.fullmatch(r"utils: 16 virtual ranks of dgx-a100 took \S+ s, at achieved rates\.", took)
    assert "peak bytes" in header and "4,000" in row


# --- the command line


def parsed(*arguments):
    return command.make_parser().parse_args([*arguments, "train.py", "--nnodes", "3"])


def test_torchruns_options_are_accepted_or_answered(capsys):
    options = parsed(
        "--nnodes=1:1", "--nproc_per_node=4", "--rdzv_backend=c10d", "--rdzv-endpoint=localhost:0", "--standalone"
    )
    assert torchrun.number_of_ranks(options) == 4 and torchrun.remarks(options) == []
    assert options.arguments == ["--nnodes", "3"]
    [remark] = torchrun.remarks(parsed("--max_restarts", "3"))
    assert remark == "--max-restarts: the ranks are started once, and the report is about the first failure."
    assert torchrun.number_of_ranks(parsed("--nproc-per-node", "cpu")) == os.cpu_count()
    for wrong, said in [
        (["--nnodes", "2"], "--virtual"),
        (["--nproc-per-node", "many"], "got 'many'"),
        (["--nproc-per-node", "0"], "1 to 128"),
    ]:
        with pytest.raises(ValueError, match=said):
            torchrun.number_of_ranks(parsed(*wrong))
    with pytest.raises(SystemExit):
        parsed("--no_python")
    assert "start other programs with torchrun" in capsys.readouterr().err


def test_all_of_torchruns_options_are_known():
    from torch.distributed.run import get_args_parser

    theirs = {name for action in get_args_parser()._actions for name in action.option_strings}
    ours = {name for action in command.make_parser()._actions for name in action.option_strings}
    assert theirs - ours == set()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.py"], "nowhere.py can't be read: No such file or directory."),
        (["--timeline", "run.txt", "a.py"], "is not a format for pictures"),
        (["--report", "no/such/said.txt", "a.py"], "can't be written"),
    ],
)
def test_a_wrong_command_line_is_answered_before_any_rank_starts(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_namesake_beside_the_script_is_refused(capsys, tmp_path):
    (tmp_path / "utils.py").touch()
    (tmp_path / "train.py").touch()
    assert command.main([str(tmp_path / "train.py")]) == 2
    assert "has its own utils.py" in capsys.readouterr().err
