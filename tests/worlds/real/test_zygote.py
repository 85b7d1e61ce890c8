"""The zygote while it is still importing: a stand-in makes ranks, which are the same as later ones."""

import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from tests.kernel import Notebook, processes_of_session, wait_until_alone, wait_until_gone
from utils import RankFailed, spawn
from utils.worlds.real.zygote import client
from utils.worlds.real.zygote.needs import AT_ONCE, WHEN_LOADED, when_to_make

pytestmark = pytest.mark.long

# Put in front of the zygote's program: it imports nothing besides torch until this file is written to.
WAITS = """
import {package}.forks as forks
load = forks.Forks.load_the_rest
def wait_and_load(self):
    open({file!r}).read()
    load(self)
forks.Forks.load_the_rest = wait_and_load
"""


class Loading:
    """A new zygote, which goes on importing when told to."""

    def __init__(self, folder):
        self.file = str(folder / "go on")
        os.mkfifo(self.file)
        self.prefix = WAITS.format(package=client.__package__, file=self.file)

    def go_on(self):
        with open(self.file, "w"):
            pass


@pytest.fixture
def loading(tmp_path, monkeypatch):
    zygote = Loading(tmp_path)
    monkeypatch.setattr(client, "PROGRAM", zygote.prefix + client.PROGRAM)
    client.zygote.stop()
    yield zygote
    client.zygote.stop()  # the next test's has no such file


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as threads:
        yield threads


def total(rank, world_size):
    x = torch.full((1,), float(rank))  # no `tensor`: cloudpickle takes that for torch.distributed.tensor, once imported
    dist.all_reduce(x)
    return x.item()


def has_compiler(rank, world_size):
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return "torch._dynamo" in sys.modules, os.getppid()


def test_ranks_before_all_is_imported(loading, thread):
    """Those that need nothing else are made at once; the others, when it is there, by the zygote itself."""
    assert spawn(total, 3).results == [3.0] * 3
    later = thread.submit(spawn, has_compiler, 2)
    assert spawn(total, 4).results == [6.0] * 4
    assert not later.done()
    loading.go_on()
    assert later.result().results == [(True, client.zygote.process.pid)] * 2
    assert spawn(total, 2).results == [1.0] * 2


def test_a_world_that_outlives_the_stand_in(loading, thread, tmp_path):
    """It has been made by the stand-in, which then waits for its end, while the zygote makes the next."""
    end = tmp_path / "end"
    os.mkfifo(end)

    def waits(rank, world_size):
        total(rank, world_size)
        end.open().read()
        return total(rank, world_size)

    assert spawn(total, 1).results == [0.0]  # the zygote is there
    first = thread.submit(spawn, waits, 1)
    while len(processes_of_session(client.zygote.process.pid)) < 3:
        time.sleep(0.01)
    loading.go_on()
    assert spawn(has_compiler, 1).results == [(True, client.zygote.process.pid)]
    assert not first.done()
    end.write_text("")
    assert first.result().results == [0.0]
    wait_until_alone(client.zygote.process.pid)


def numbers_and_surroundings(rank, world_size):
    import random

    import numpy
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    from torch.distributed._functional_collectives import all_reduce

    drawn = torch.rand(2).tolist(), random.random(), numpy.random.rand()
    return drawn, all_reduce(torch.ones(2), "sum", dist.group.WORLD), os.getcwd(), torch.get_num_threads()


def returns_a_part(rank, world_size):
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (world_size,))
    return distribute_tensor(torch.ones(4), mesh, [Shard(0)])


@pytest.mark.thorough
def test_ranks_are_the_same_before_and_after(loading, monkeypatch):
    """Whatever the kernel asks for, these are made by the stand-in: they import for themselves what they use."""
    monkeypatch.setattr("utils.worlds.real.zygote.needs.when_to_make", lambda program: AT_ONCE)

    def outcomes():
        with pytest.raises(RankFailed) as caught:
            spawn(returns_a_part, 2)
        run = spawn(numbers_and_surroundings, 1)
        whoever = re.sub(r"^ranks? [01](?: and 1)? raised", "raised", str(caught.value))  # in time, before it is ended
        return str(run.results), run.output, whoever, caught.value.output

    before = outcomes()
    loading.go_on()
    wait_until_alone(client.zygote.process.pid)
    assert "this rank holds only its part" in before[2]
    assert outcomes() == before


@pytest.mark.parametrize(
    "names, when",
    [
        ("dist.all_reduce(x); torch.nn.Linear(2, 2)", AT_ONCE),
        ("torch.optim.SGD(p)", WHEN_LOADED),
        ("nn.parallel.DistributedDataParallel(m)", WHEN_LOADED),
        ("fully_shard(m)", WHEN_LOADED),
    ],
)
def test_which_programs_wait_until_all_is_imported(names, when):
    from utils.worlds.common.program import pickle_program

    namespace = {"__name__": "__main__"}
    exec(f"def program(rank, n):\n    {names}", namespace)
    assert when_to_make(pickle_program(namespace["program"], (), {}, 2)) == when


def test_modules_of_ours_that_a_program_names_are_imported_once_for_all_ranks():
    """That is, those which the notebook has imported; no others."""
    import utils.kit.tied_mlp  # noqa: F401

    def program(rank, world_size):
        names = ["utils.kit.tied_mlp", "utils.worlds.jobs.notebook_script", "tests.kernel"]
        return [name for name in names if name in sys.modules]

    assert "utils.kit.tied_mlp" in program(0, 1)
    assert spawn(program, 2).results == [[name for name in program(0, 1) if name != "tests.kernel"]] * 2


@pytest.fixture
def notebook(tmp_path):
    """A kernel whose zygote never imports the rest, with four ranks that run, in a folder of its own."""
    notebook = Notebook()
    try:
        prefix = Loading(tmp_path).prefix
        notebook.run("from utils.worlds.real.zygote import client")
        notebook.run(f"client.zygote.stop(); client.PROGRAM = {prefix!r} + client.PROGRAM")
        (tmp_path / "worlds").mkdir()
        notebook.run(f"import tempfile, time; tempfile.tempdir = {str(tmp_path / 'worlds')!r}")
        notebook.run("from utils import spawn; spawn(lambda rank, n: rank, 2)")
        notebook.send(
            "def endless(rank, n):\n    print('begun', flush=True)\n    time.sleep(600)\nspawn(endless, 4, timeout=600)"
        )
        notebook.wait_for_output("begun")
        yield notebook
    finally:
        notebook.close()


@pytest.mark.parametrize(
    "victim", ["kernel", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("zygote", "stand-in"))]
)
def test_whoever_is_killed_meanwhile_nothing_is_left(notebook, victim, tmp_path):
    [zygote] = children(notebook.manager.provisioner.pid)
    [stand_in] = children(zygote)
    assert len(processes_of_session(zygote)) == 6
    pids = {"kernel": notebook.manager.provisioner.pid, "zygote": zygote, "stand-in": stand_in}
    os.kill(pids[victim], signal.SIGKILL)
    wait_until_gone(zygote)
    if victim == "kernel":
        assert not os.listdir(tmp_path / "worlds"), "the folder of the world is still there"


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
