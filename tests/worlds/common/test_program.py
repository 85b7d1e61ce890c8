"""A program on its way to the ranks: what travels, and what is refused, with which words, before a process starts."""

import functools
import io
import multiprocessing
import queue
import socket
import sys
import tempfile
import threading

import pytest
import torch
import torch.distributed as dist
import tqdm
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh

from tests.kernel import Notebook
from utils import spawn
from utils.worlds.common.program import LARGE, pickle_program

lock = threading.Lock()

# A warning would go to stderr, for which nbgrader gives 0 points.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")


@pytest.fixture
def no_process(monkeypatch):
    """No process may start, because the error comes first."""

    def start(*_):
        raise AssertionError("a world was made")

    monkeypatch.setattr("utils.worlds.real.world.RealWorld", start)


def refusal(fn, *args, **kwargs) -> str:
    with pytest.raises(TypeError) as caught:
        spawn(fn, 2, *args, **kwargs)
    assert str(caught.value).count("\n") == 0 and caught.value.__suppress_context__
    return str(caught.value)


# --- refused: the variable has its author's name


class Callback:
    def __init__(self, trainer):
        self.trainer = trainer


class Trainer:
    def __init__(self, **held):
        self.callback = Callback(self)  # a cycle: the search must neither loop in it nor blame it
        self.held = held

    def work(self, rank, world_size):
        return self.held

    def __call__(self, rank, world_size):
        return self.held


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


class Net(torch.nn.Module):
    def __init__(self, lock=None):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.guard = lock


def uses_the_lock():
    return lock


def with_decorator(function):
    @functools.wraps(function)
    def wrapper(rank, world_size):
        with lock:
            return function(rank, world_size)

    return wrapper


def programs_with_a_lock():
    mine, trainer, slotted = lock, Trainer(box=[1, {"key": lock}]), Slotted(lock)
    model = torch.nn.Sequential(Net(lock))

    class Guarded(Trainer):
        guard = lock

    class Child(Guarded):
        @property
        def odd(self):
            return 1

    def by_default(rank, world_size, guard=lock):
        return guard

    def in_a_comprehension(rank, world_size):
        return [lock for _ in range(2)]

    return {
        "`mine`, which a lambda uses,": lambda r, n: mine,
        "`lock`, which uses_the_lock uses,": lambda r, n: uses_the_lock(),
        "`lock`, which in_a_comprehension uses,": in_a_comprehension,
        "`lock`, which program uses,": with_decorator(lambda r, n: 1),
        "`guard`, a default of by_default,": by_default,
        "`trainer.held['box'][1]['key']`, which a lambda uses,": lambda r, n: trainer,
        "`self.held['box'][1]['key']`, which Trainer.work uses,": trainer.work,
        "`Trainer.held['box'][1]['key']`, the program itself,": trainer,
        "`slotted.inner`, which a lambda uses,": lambda r, n: slotted,
        "`model.0.guard`, which a lambda uses,": lambda r, n: model,
        "`Guarded.guard`, which a lambda uses,": lambda r, n: Child(),
        "`partial(a lambda).keywords['x']`, the program itself,": functools.partial(lambda r, n, x: x, x=lock),
    }


@pytest.mark.parametrize("name", programs_with_a_lock())
def test_the_variable_is_named_as_its_author_wrote_it(name, no_process):
    program = programs_with_a_lock()[name]
    if hasattr(program, "__wrapped__"):
        program.__qualname__ = "program"
    assert refusal(program) == (
        f"{name} (a lock) can't be sent to the ranks: cannot pickle '_thread.lock' object. "
        "Each rank is a process of its own: create it inside the function."
    )


def test_an_argument_is_named_too(no_process):
    def program(rank, world_size, batch, *rest, **options):
        return batch

    assert refusal(program, {"x": lock}).startswith("`batch['x']`, argument 0, (a lock) can't")
    assert refusal(program, 1, 2, (lock,)).startswith("`args[1][0]`, argument 2, (a lock) can't")
    assert refusal(program, 1, guard=lock).startswith("`guard`, an argument, (a lock) can't")


def deep_list():
    nested = []
    for _ in range(50_000):
        nested = [nested]
    return nested


UNPICKLABLE = {
    "a generator": lambda: (number for number in range(3)),
    "a Thread": lambda: threading.Thread(target=print),
    "an Event": threading.Event,
    "a socket": socket.socket,
    "a BufferedReader": lambda: open(__file__, "rb"),
    "a TextIOWrapper": lambda: open(tempfile.mkstemp()[1], "w"),
    "a SimpleQueue": multiprocessing.SimpleQueue,
    "a Queue": queue.Queue,
    "a tqdm": lambda: tqdm.tqdm(range(3), file=io.StringIO()),
    "a _SingleProcessDataLoaderIter": lambda: iter(torch.utils.data.DataLoader([1, 2])),
    "a frame": sys._getframe,
    "a list": deep_list,
}


@pytest.mark.parametrize("kind", UNPICKLABLE)
def test_objects_that_belong_to_a_process_are_refused(kind, no_process):
    settings = {"thing": UNPICKLABLE[kind]()}
    words = refusal(lambda rank, world_size: settings)
    name = "`settings`" if kind == "a list" else "`settings['thing']`"  # too deep to say where
    assert words.startswith(f"{name}, which a lambda uses, ({'a dict' if kind == 'a list' else kind}) can't be sent")
    assert "create it inside the function" in words


def test_a_process_group_and_a_mesh_of_the_notebook_are_refused(no_process):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group, mesh = dist.new_group([0]), init_device_mesh("cpu", (1,))
        assert refusal(lambda r, n: group).startswith("`group`, which a lambda uses, (a ProcessGroup) can't be sent")
        assert refusal(lambda r, n: mesh).startswith("`mesh`, which a lambda uses, (a DeviceMesh) can't be sent")
    finally:
        dist.destroy_process_group()


def programs_with_a_cuda_tensor():
    """Tensors without memory, on a GPU that need not exist."""
    with FakeTensorMode():
        x = torch.empty(3, device="cuda")
        weight = torch.nn.Parameter(torch.empty(3, device="cuda:1"))
    model = torch.nn.Module()
    model.layer = torch.nn.Module()
    model.layer.weight = weight
    batches = [{"input": x}]
    return {
        "`x`, which a lambda uses, ": lambda r, n: x,
        "`batches[0]['input']`, which a lambda uses, ": lambda r, n: batches,
        "`weight`, which a lambda uses, ": lambda r, n: weight,
        "`model.layer.weight`, which a lambda uses, ": lambda r, n: model,
        "`partial(a lambda).args[0]`, the program itself, ": functools.partial(lambda x, r, n: x, x),
    }


@pytest.mark.parametrize("name", programs_with_a_cuda_tensor())
def test_a_tensor_on_a_gpu_is_refused(name, no_process):
    words = refusal(programs_with_a_cuda_tensor()[name])
    assert words.startswith(name)
    assert "it is on cuda:" in words
    assert "Make it inside the function, on get_device(), or send it from the CPU: x.cpu()." in words


# --- large: said in one line


def test_a_large_program_says_what_makes_it_large(capfd, no_process):
    big, also_big = torch.ones(int(LARGE / 2)), bytearray(int(LARGE))
    small = [torch.ones(3)] * 5

    def helper():
        return big, small

    def program(rank, world_size, batch):
        return helper()

    size = 3 * LARGE / 1e6
    pickle_program(program, (also_big,), {}, world_size=4)
    out, err = capfd.readouterr()
    assert err == ""
    assert out == (
        f"This program carries {size:.0f} MB with it: `big`, which helper uses (100 MB), `batch`, argument 0 (50 MB); "
        "each of the 4 ranks gets its own copy. Make or load it inside the function.\n"
    )


def test_a_program_that_is_not_large_says_nothing(capfd):
    window = torch.ones(int(LARGE))[:3]  # a small view of a large storage is small
    program = pickle_program(lambda rank, world_size: window, (), {}, world_size=4)
    assert len(program) < 2000
    assert capfd.readouterr() == ("", "")


# --- what travels to the ranks, arrives as it was


def test_tensors_arrive_as_they_were():
    base = torch.arange(12.0).reshape(3, 4)
    weight = torch.nn.Parameter(torch.ones(2))
    sent = {
        "plain": base,
        "transposed": base.t(),
        "bf16": base.bfloat16(),
        "bool": base > 3,
        "conjugate": torch.complex(base, -base).conj(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "sparse": torch.eye(3).to_sparse(),
    }
    leaf, meta, tied = torch.ones(2, requires_grad=True), torch.empty(5, device="meta"), [weight, weight]

    def program(rank, world_size):
        (2 * leaf).sum().backward()
        tied_still = tied[0] is tied[1] and isinstance(tied[0], torch.nn.Parameter)
        seen = leaf.grad.tolist(), tuple(meta.shape), tied_still, sent["transposed"].stride()
        dense = {name: tensor.to_dense() for name, tensor in sent.items()}
        return dense, seen, sent["plain"].clone().resize_(20).numel(), sent["plain"].resize_(20).numel()

    arrived, *seen = spawn(program, 1).results[0]
    assert seen == [([2.0, 2.0], (5,), True, (1, 4)), 20, 20]
    for name, tensor in sent.items():
        assert arrived[name].dtype == tensor.dtype
        assert name == "plain" or torch.equal(arrived[name], tensor.to_dense()), name
    assert torch.equal(arrived["plain"][:12], base.reshape(-1))


def test_a_text_file_that_is_open_arrives_as_a_copy(tmp_path):
    (tmp_path / "data.txt").write_text("first\nsecond\n")
    with open(tmp_path / "data.txt") as file:
        file.readline()
        assert spawn(lambda rank, n: file.readline(), 2).results == ["second\n", "second\n"]
        assert file.readline() == "second\n"


def test_all_of_this_in_a_notebook():
    notebook = Notebook()
    try:
        notebook.run("import torch\nfrom utils import spawn\nbig = torch.ones(20_000_000)")
        shown = notebook.run("def work(rank, world_size):\n    !ls\nspawn(work, 2)")
        assert "`get_ipython`, which work uses, (a method) can't be sent to the ranks" in shown["error"]
        assert "Lines with % or ! work only in the notebook" in shown["error"]
        shown = notebook.run("run = spawn(lambda rank, n: big.sum().item(), 2)\nprint(run.results)")
        assert shown["stdout"].splitlines() == [
            "This program carries 80 MB with it: `big`, which a lambda uses (80 MB); "
            "each of the 2 ranks gets its own copy. Make or load it inside the function.",
            "[20000000.0, 20000000.0]",
        ]
        assert shown["stderr"] == "" and shown["error"] is None
    finally:
        notebook.close()
