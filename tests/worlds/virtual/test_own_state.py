"""Ranks of `simulate` are threads of one process, and must find what ranks of `spawn` find: state of their own."""

import io
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy
import pytest
import torch
import torch.distributed as dist

from utils import simulate, spawn
from utils.worlds.virtual import random_state

virtual = partial(simulate, device="cpu")
both = pytest.mark.parametrize("world", [spawn, virtual], ids=["spawn", "simulate"])

# A small project as many are laid out: who a rank is stands in a module, and others import that.
PROJECT = {
    "who/__init__.py": "",
    "who/manager.py": """
        import torch.distributed as dist

        manager = None


        class Manager:
            made = 0

            def __init__(self):
                Manager.made += 1
                self.rank = dist.get_rank()


        def setup():
            global manager
            manager = Manager()
    """,
    "who/layers.py": """
        import torch.distributed as dist

        import who.manager as pgm
        from who.manager import Manager

        SEEN = []


        def ask():
            SEEN.append(pgm.manager.rank)
            dist.barrier()
            return pgm.manager.rank, list(SEEN), Manager.made, isinstance(pgm.manager, Manager)
    """,
    "meets_on_import.py": """
        import torch
        import torch.distributed as dist

        TOTAL = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(TOTAL)
    """,
    "no_package/part.py": "NUMBER = 0",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@both
def test_each_rank_has_its_own_copy_of_the_programs_modules(world, project):
    def program(rank, world_size):
        from who import layers, manager

        manager.setup()
        dist.barrier()
        answers = [layers.ask(), layers.ask()]
        import no_package.part

        no_package.part.NUMBER += rank
        dist.barrier()
        return answers, no_package.part.NUMBER, sys.modules["who.manager"].manager.rank

    for rank, result in enumerate(world(program, 3).results):
        assert result == ([(rank, [rank], 1, True), (rank, [rank, rank], 1, True)], rank, rank)


def test_a_library_that_keeps_its_rank_in_a_class_is_each_ranks_own(tmp_path, monkeypatch):
    for name in ("accelerate", "other_library"):
        (tmp_path / f"{name}.py").write_text("class State:\n    shared = {}\n")
    (tmp_path / "accelerate-1.15.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    def program(rank, world_size):
        import accelerate
        import other_library

        dist.barrier()
        return [library.State.shared.setdefault("rank", rank) for library in (accelerate, other_library)]

    assert virtual(program, 2).results in ([[0, 0], [1, 0]], [[0, 1], [1, 1]])


@both
def test_a_module_may_communicate_while_it_is_imported(world, project):
    def program(rank, world_size):
        import meets_on_import

        return meets_on_import.TOTAL.item()

    assert world(program, 3).results == [3.0] * 3


@both
def test_a_module_is_read_anew_for_each_run(world, project):
    def program(rank, world_size):
        import no_package.part

        return no_package.part.NUMBER

    assert world(program, 2).results == [0, 0]
    (project / "no_package/part.py").write_text("NUMBER = 12345")
    assert world(program, 2).results == [12345] * 2


@both
def test_objects_of_a_module_travel_between_ranks(world, project):
    def program(rank, world_size):
        from who.manager import Manager

        objects = [Manager()]
        dist.broadcast_object_list(objects)
        return isinstance(objects[0], Manager), objects[0].rank

    assert world(program, 3).results == [(True, 0)] * 3


@dataclass
class Point:
    x: float


class Counter:
    count = 0


COUNTS: list[int] = []


@both
def test_a_cells_classes_and_globals_are_each_ranks_own(world):
    def program(rank, world_size):
        for _ in range(rank + 1):
            Counter.count += 1
            COUNTS.append(rank)
        dist.barrier()
        points = [None] * world_size
        dist.all_gather_object(points, Point(float(rank)))
        return Counter.count, COUNTS, all(isinstance(point, Point) for point in points), points

    for rank, (count, counts, all_points, points) in enumerate(world(program, 3).results):
        assert (count, counts, all_points) == (rank + 1, [rank] * (rank + 1), True)
        assert points == [Point(0.0), Point(1.0), Point(2.0)]


def has_own_settings(rank, world_size, folder):
    """What each rank sets for itself and finds again after others have had their turns."""
    mine = Path(folder, str(rank))
    mine.mkdir()
    os.chdir(mine)
    if rank:
        torch.set_default_dtype([torch.float32, torch.float64, torch.bfloat16][rank])
    os.environ["MINE"] = str(rank)
    if rank == 1:
        os.environ.pop("RANK")
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(rank)
    random.seed(rank)
    numpy.random.seed(rank)
    sys.argv = ["train.py", str(rank)]
    dist.barrier()
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ['MINE'])"], capture_output=True, text=True
    )
    without_variables = subprocess.run(["/usr/bin/env"], env={}, capture_output=True, text=True)
    return (
        Path.cwd().name,
        torch.ones(1).dtype,
        os.environ["MINE"],
        os.environ.get("RANK"),
        os.getenvb(b"MINE"),
        torch.are_deterministic_algorithms_enabled(),
        torch.rand(1, dtype=torch.float32).item(),
        random.random(),
        numpy.random.rand(),
        sys.argv,
        child.stdout.strip(),
        without_variables.stdout,
    )


def test_settings_of_the_process_are_each_ranks_own(tmp_path):
    results = [world(has_own_settings, 3, folder).results for world, folder in folders(tmp_path)]
    assert results[0] == results[1]
    assert [result[0] for result in results[0]] == ["0", "1", "2"]
    assert [result[1] for result in results[0]] == [torch.float32, torch.float64, torch.bfloat16]
    assert [result[-1] for result in results[0]] == ["", "", ""]


def folders(path):
    for name, world in (("real", spawn), ("virtual", virtual)):
        (path / name).mkdir()
        yield world, str(path / name)


def draws_across_turns(rank, world_size):
    """More than a generator has at hand, and an odd number of normal ones, which are made in pairs."""
    torch.manual_seed(rank)
    random.seed(rank)
    numpy.random.seed(rank)
    drawn = []
    for _ in range(3):
        drawn.append((random.gauss(0, 1), random.randbytes(4 * 700), torch.rand(700).tolist(), numpy.random.rand()))
        dist.barrier()
    return drawn


@both
def test_generators_go_on_where_they_were_when_the_last_turn_ended(world):
    for rank, drawn in enumerate(world(draws_across_turns, 3).results):
        pythons, torchs = random.Random(rank), torch.Generator().manual_seed(rank)
        numpys = numpy.random.RandomState(rank)
        assert drawn == [
            (pythons.gauss(0, 1), pythons.randbytes(4 * 700), torch.rand(700, generator=torchs).tolist(), numpys.rand())
            for _ in range(3)
        ]


@pytest.mark.parametrize("in_memory", [True, False])
def test_pythons_generator_is_put_back_exactly(in_memory, monkeypatch):
    assert random_state.lies_in_memory() == (sys.implementation.name == "cpython")
    if not in_memory:
        monkeypatch.setattr(random_state, "ADDRESS", None)
    random.seed(5)
    random.gauss(0, 1)
    before, state = random.getstate(), random_state.pythons_state()
    random.randbytes(5000)
    random.gauss(0, 1)
    random_state.set_pythons_state(state)
    assert random.getstate() == before


def test_each_ranks_default_dtype_holds_without_values_too():
    def program(rank, world_size):
        steps = torch.empty(3, dtype=torch.int32, device="meta")
        before = torch.empty(3).dtype, (steps / 2).dtype
        torch.set_default_dtype([torch.float64, torch.bfloat16][rank])
        dist.barrier()
        return *before, torch.empty(3).dtype, (steps / 2).dtype

    first, second = simulate(program, 2).results
    assert first == (torch.float32, torch.float32, torch.float64, torch.float64)
    assert second == (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16)


def patches_libraries(rank, world_size):
    """What a rank puts into a library's module is its own: a stub, or a wrapper that knows the rank."""
    gelu = torch.nn.functional.gelu
    torch.nn.functional.gelu = lambda x: gelu(x) + rank
    torch.cuda.current_device = lambda: rank
    torch.of_mine = rank
    kept, sys.stdout = sys.stdout, io.StringIO()
    dist.barrier()
    print("rank", rank)
    printed, sys.stdout = sys.stdout.getvalue(), kept
    if rank == 0:
        del torch.of_mine
    dist.barrier()
    return (
        torch.nn.functional.gelu(torch.zeros(1)).item(),
        torch.cuda.current_device(),
        printed,
        hasattr(torch, "of_mine"),
    )


@both
def test_what_a_rank_sets_in_a_librarys_module_is_its_own(world):
    assert world(patches_libraries, 3).results == [(float(r), r, f"rank {r}\n", r > 0) for r in range(3)]


def sets_flags_and_logs(rank, world_size):
    """torch's flags and its options for printing, Python's root logger, and a named one with a handler per rank."""
    level = logging.INFO if rank == 0 else logging.ERROR
    torch.backends.cudnn.benchmark = rank == 1
    torch.set_printoptions(precision=2 + rank)
    logging.basicConfig(level=level)
    log, written = logging.getLogger("of this test"), io.StringIO()
    log.addHandler(logging.StreamHandler(written))
    log.setLevel(level)
    log.propagate = False
    dist.barrier()
    log.info("started")
    log.error("rank %d", rank)
    dist.barrier()
    root = (
        logging.root.level == level,
        len(logging.root.handlers),
        logging.getLogger("train").isEnabledFor(logging.INFO),
    )
    return torch.backends.cudnn.benchmark, str(torch.tensor(0.123456)), root, written.getvalue()


@both
def test_flags_of_torch_print_options_and_loggers_are_each_ranks_own(world):
    assert world(sets_flags_and_logs, 3).results == [
        (False, "tensor(0.12)", (True, 1, True), "started\nrank 0\n"),
        (True, "tensor(0.123)", (True, 1, False), "rank 1\n"),
        (False, "tensor(0.1235)", (True, 1, False), "rank 2\n"),
    ]


def replaces_methods(rank, world_size):
    forward = torch.nn.Linear.forward
    torch.nn.Linear.forward = lambda layer, x: forward(layer, x) + 1  # <- this one
    with mock.patch.object(torch.nn.Tanh, "forward", lambda layer, x: rank):  # and nobody else's turn
        pass
    dist.barrier()
    return torch.nn.Linear(1, 1, bias=False)(torch.zeros(1)).item()


def test_the_program_is_told_that_it_replaces_a_method_for_all_ranks():
    run = virtual(replaces_methods, 3)
    assert run.results == [3.0] * 3  # with spawn, 1.0
    [remark] = [line for text in run.output for line in text.splitlines()]
    assert remark.startswith("The program replaces Linear.forward (") and "<- this one" in remark
    assert "Tanh" not in remark


def overrides_methods(rank, world_size):
    class Mine(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + rank

    mine, other = Mine(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    other.forward = lambda x: x - rank
    dist.barrier()
    return mine(torch.zeros(1)).item(), other(torch.zeros(1)).item()


def test_methods_of_ones_own_classes_and_objects_need_no_remark():
    run = virtual(overrides_methods, 2)
    assert run.results == [(0.0, 0.0), (1.0, -1.0)] and not any(run.output)


# As installed libraries keep who they are: in a global that a function sets, in an attribute that the program sets. On
# import it also adds something to torch, once for all ranks.
LIBRARY = """
import torch

torch.of_the_library = "everyone's"
number = count = None


def init(rank):
    global number, count
    number, count = rank, 0


def ask():
    global count
    count += 1
    return number, count
"""
KNOWS_RANKS = """
from torch.distributed import get_rank


class State:
    rank = None


def init():
    State.rank = get_rank()
"""


@pytest.fixture
def library(tmp_path):
    """Writes an installed library, and returns the folder that it is in."""

    def write(name, text):
        folder = tmp_path / "lib/python3.12/site-packages"
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(text)
        return str(folder)

    return write


def uses_library(rank, world_size, folder):
    sys.path.insert(0, folder)
    import library_of_ranks as library

    library.init(rank)
    library.of_mine = rank
    dist.barrier()
    answers = library.ask(), library.of_mine
    dist.barrier()
    return *answers, library.ask(), torch.of_the_library


@both
def test_what_an_installed_library_keeps_in_globals_is_each_ranks_own(world, library):
    run = world(uses_library, 3, library("library_of_ranks", LIBRARY))
    assert run.results == [((r, 1), r, (r, 2), "everyone's") for r in range(3)]
    assert not any(run.output)


def test_the_program_is_told_that_a_library_which_knows_ranks_may_mix_them_up(library):
    def program(rank, world_size, folder):
        sys.path.insert(0, folder)
        import knows_ranks  # here

        knows_ranks.init()
        dist.barrier()
        return knows_ranks.State.rank

    run = virtual(program, 2, library("knows_ranks", KNOWS_RANKS))
    assert run.results == [1, 1]
    [remark] = [line for text in run.output for line in text.splitlines()]
    assert remark.startswith("knows_ranks (imported by ") and "# here" in remark and "use spawn" in remark


@both
def test_a_program_in_a_module_and_its_classes_are_each_ranks_own(world, tmp_path, monkeypatch):
    """The program itself travels by value, and what it imports does not: both must be the rank's."""
    (tmp_path / "state_of_rank.py").write_text("rank = None\n\n\ndef ask():\n    return rank\n")
    (tmp_path / "program_of_rank.py").write_text(PROGRAM_OF_RANK)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("state_of_rank", "program_of_rank"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import program_of_rank

    assert world(program_of_rank.main, 3).results == [[rank, rank, rank] for rank in range(3)]


PROGRAM_OF_RANK = """
import torch.distributed as dist

import state_of_rank
from state_of_rank import ask


class Asker:
    def ask(self):
        return ask()


def main(rank, world_size):
    state_of_rank.rank = rank
    dist.barrier()
    return [state_of_rank.rank, ask(), Asker().ask()]
"""


def profiles(rank, world_size, folder):
    path = Path(folder, f"{rank}.json")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(2))
        profiler.step()
    profiler.export_chrome_trace(str(path))
    return "traceEvents" in path.read_text(), isinstance(profiler.key_averages().table(), str)


@both
def test_every_rank_may_start_a_profiler(world, tmp_path):
    assert world(profiles, 2, str(tmp_path)).results == [(True, True)] * 2


def handles_signals(rank, world_size):
    """A handler per rank, as scripts have one that their cluster may stop; only the rank itself sends the signal."""
    got = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: got.append((rank, signal.Signals(number).name)))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: got.append("too late"))
    signal.alarm(3600)
    dist.barrier()
    os.kill(os.getpid(), signal.SIGUSR2)
    signal.raise_signal(signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGHUP)
    dist.barrier()
    signal.signal(signal.SIGUSR2, before)
    return got, before == signal.SIG_DFL, signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


@both
def test_each_rank_has_its_own_signal_handlers(world):
    assert world(handles_signals, 2).results == [([(r, "SIGUSR2")] * 2, True, True) for r in range(2)]
