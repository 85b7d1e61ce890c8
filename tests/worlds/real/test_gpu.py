"""What can go wrong with CUDA in the ranks, and with CUDA in the notebook before them; and one GPU for several ranks.

Each test runs twice: first nothing has touched a GPU here, then this process, the notebook's, has. Most run in three
worlds: NCCL with one rank, NCCL with two where two GPUs are free, and Gloo with two ranks that compute on one GPU.
"""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from tests.kernel import Notebook, processes_of_session, wait_until_gone, zygote_here, zygote_of
from utils import RankCrashed, RankError, RankFailed, RankTimeout, WorldStuck, get_device, spawn
from utils.worlds.real.installed_gpus import BUSY, find_gpus
from utils.worlds.real.placement import choose_backend
from utils.worlds.real.zygote import client

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="needs a GPU")]

PATIENCE = 120  # seconds for a world that should end by itself: opening the first GPU may take a while
TOO_LONG = 20  # seconds for a world that should not


@pytest.fixture(scope="module", params=["cuda in the ranks", "cuda in the notebook too"], autouse=True)
def cuda_in_the_notebook(request):
    if request.param == "cuda in the notebook too":
        torch.ones(1, device="cuda").sum().item()
        assert torch.cuda.is_initialized()
    zygote_here()
    return request.param == "cuda in the notebook too"


@pytest.fixture(params=["nccl-1", "nccl-2", "gloo-2"])
def world(request):
    """{"world_size": ..., "backend": ...}: arguments for spawn."""
    backend, size = request.param.split("-")
    if backend == "nccl" and sum(not gpu.is_busy for gpu in find_gpus()) < int(size):
        pytest.skip(f"needs {size} free GPUs")
    return {"world_size": int(size), "backend": backend, "timeout": PATIENCE}


@pytest.fixture
def many(world):
    """A world of several ranks."""
    if world["world_size"] == 1:
        pytest.skip("a rank alone waits for nobody")
    return world


def works_after_all() -> bool:
    """Whether the next world works, and no process is left over from the last one."""
    pid = client.zygote.process.pid
    assert processes_of_session(pid) == [pid]
    run = spawn(lambda rank, n: torch.ones(3, device="cuda").sum().item(), 2, backend="gloo", timeout=PATIENCE)
    return run.results == [3.0, 3.0]


def wait_for_everyone():
    """A collective on the GPU, waiting for its result."""
    x = torch.ones(1000, device="cuda")
    dist.all_reduce(x)
    return x.sum().item()


# --- when all is well


def test_each_nccl_rank_has_its_own_gpu(world):
    def program(rank, world_size):
        x = torch.full((4,), float(rank), device=get_device())
        dist.all_reduce(x)
        uuid = str(torch.cuda.get_device_properties(get_device()).uuid) if get_device().type == "cuda" else rank
        return x, get_device(), torch.cuda.current_device(), uuid

    run = spawn(program, **world)
    sums, devices, current, uuids = zip(*run.results, strict=True)
    assert run.backend == world["backend"]
    assert all(x.tolist() == [sum(range(run.world_size))] * 4 for x in sums)
    if run.backend == "nccl":
        assert list(devices) == [torch.device("cuda", rank) for rank in range(run.world_size)]
        assert list(current) == list(range(run.world_size)) and len(set(uuids)) == run.world_size
    else:
        assert set(devices) == {torch.device("cpu")}


def test_tensors_on_a_gpu_arrive_on_the_cpu(world, cuda_in_the_notebook):
    was_open = torch.cuda.is_initialized()

    def program(rank, world_size):
        big = torch.arange(1_000_000.0, device="cuda")
        model = torch.nn.Linear(2, 2, device="cuda")
        tagged = big[5:7].as_subclass(torch.nn.Parameter)
        return [big[:3], model, {"sparse": torch.eye(2, device="cuda").to_sparse(), "p": tagged}, big.bfloat16()[1:3]]

    for first, model, more, half in spawn(program, **world).results:
        assert first.tolist() == [0, 1, 2] and half.dtype == torch.bfloat16
        assert more["sparse"].to_dense().tolist() == [[1, 0], [0, 1]] and more["p"].tolist() == [5, 6]
        for tensor in (first, half, *more.values(), *model.parameters()):
            assert tensor.device.type == "cpu"
        assert first.untyped_storage().nbytes() == 12
    assert torch.cuda.is_initialized() == was_open


def test_too_few_gpus_are_reported_in_one_line(capfd):
    assert spawn(lambda rank, n: rank, GPUS + 1).backend == "gloo"
    out, err = capfd.readouterr()
    assert re.fullmatch(rf"{GPUS + 1} ranks and {GPUS} GPUs?.*: NCCL needs .* so this runs on the CPU\.\n", out)
    assert err == ""


def test_worlds_leave_no_memory_behind(world):
    if any(gpu.is_busy for gpu in find_gpus()):
        pytest.skip("somebody else's memory comes and goes here")
    spawn(wait_on_the_gpu, **world)
    before = [gpu.held_by_others for gpu in find_gpus()]
    for _ in range(3):
        spawn(wait_on_the_gpu, **world)
    for then, now in zip(before, [gpu.held_by_others for gpu in find_gpus()], strict=True):
        assert now - then < 100e6


def wait_on_the_gpu(rank, world_size):
    return wait_for_everyone()


# --- the failure table


def test_an_exception_while_others_wait(many, capfd):
    def program(rank, world_size):
        wait_for_everyone()
        if rank == 1:
            raise ValueError("the batch is empty")
        wait_for_everyone()

    with pytest.raises(RankFailed, match="^rank 1 raised ValueError: the batch is empty") as caught:
        spawn(program, **many)
    shown = str(caught.value) + capfd.readouterr().out
    assert not re.search("[Ww]atchdog|terminate called|onnection closed", shown)
    assert works_after_all()


@pytest.mark.parametrize(
    "death, words",
    [
        (lambda: os._exit(7), "exited with code 7"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "killed by SIGSEGV"),
    ],
)
def test_a_death_while_others_wait(world, death, words):
    def program(rank, world_size):
        wait_for_everyone()
        if rank == world_size - 1:
            death()
        wait_for_everyone()

    with pytest.raises(RankCrashed, match=f"(?s)^rank {world['world_size'] - 1} .*{words}"):
        spawn(program, **world)
    assert works_after_all()


def launches_without_end():
    x = torch.ones(1000, 1000, device="cuda")
    while True:
        x = x @ x / 1000


def computes_without_end():
    torch.cuda._sleep(10**15)  # one kernel that runs for days
    torch.cuda.synchronize()


@pytest.mark.parametrize("work", [launches_without_end, computes_without_end])
def test_endless_work_is_timed_out(world, work):
    def program(rank, world_size):
        wait_for_everyone()
        if rank == world_size - 1:
            work()
        wait_for_everyone()

    last = world["world_size"] - 1
    with pytest.raises(RankTimeout, match=f"not finished after {TOO_LONG} s") as caught:
        spawn(program, **{**world, "timeout": TOO_LONG})
    assert re.search(rf"rank {last} .*test_gpu\.py, line \d+", str(caught.value))
    assert works_after_all()


def test_a_missing_collective_is_found(many):
    def program(rank, world_size):
        wait_for_everyone()
        if rank == 0:
            wait_for_everyone()

    with pytest.raises((WorldStuck, RankTimeout), match="rank 0"):
        spawn(program, **{**many, "timeout": TOO_LONG})
    assert works_after_all()


def test_out_of_memory_is_the_students_own_error(world):
    def program(rank, world_size):
        return torch.empty(10**13, dtype=torch.uint8, device="cuda")

    with pytest.raises(RankFailed, match=r"raised OutOfMemoryError: CUDA out of memory\. Tried to allocate"):
        spawn(program, **world)
    assert works_after_all()


@pytest.mark.parametrize("asked_by", ["the program", "the result"])
def test_an_assert_on_the_gpu_is_the_students_own_error(world, asked_by):
    def program(rank, world_size):
        x = torch.zeros(3, device="cuda")[torch.tensor([5], device="cuda")]
        if asked_by == "the program":
            torch.cuda.synchronize()
        return x

    with pytest.raises(RankFailed, match=r"raised AcceleratorError: CUDA error: device-side assert") as caught:
        spawn(program, **world)
    assert "CannotReturn" not in str(caught.value)
    assert works_after_all()


@pytest.mark.parametrize(
    "work", ["while True: x = x @ x / 1000", "torch.cuda._sleep(10**15); torch.cuda.synchronize()"]
)
@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_a_notebook_that_is_stopped_stops_its_ranks(work, how, cuda_in_the_notebook):
    notebook = Notebook()
    try:
        notebook.run("import torch, torch.distributed as dist\nfrom utils import spawn")
        if cuda_in_the_notebook:
            notebook.run("torch.ones(1, device='cuda').sum().item()")
        zygote = zygote_of(notebook)
        cell = notebook.send(
            "def endless(rank, world_size):\n"
            "    x = torch.ones(1000, 1000, device='cuda')\n"
            "    print('begun', flush=True)\n"
            f"    {work}\n"
            f"spawn(endless, 2, backend='gloo', timeout={10 * PATIENCE})"
        )
        notebook.wait_for_output("begun")
        if how == "interrupt":
            notebook.manager.interrupt_kernel()
            assert "KeyboardInterrupt" in notebook.outputs_of(cell)["error"]
            assert processes_of_session(zygote) == [zygote]
            again = "print(spawn(lambda rank, n: torch.ones(2, device='cuda').sum().item(), 2, backend='gloo').results)"
            assert notebook.run(again)["stdout"] == "[2.0, 2.0]\n"
        else:
            os.kill(notebook.manager.provisioner.pid, signal.SIGKILL)
            wait_until_gone(zygote, seconds=20)  # the driver takes a while to end a running kernel
    finally:
        notebook.close()


# --- what is on a GPU of the notebook stays there


def test_tensors_of_the_notebook_on_a_gpu_are_refused(cuda_in_the_notebook):
    if not cuda_in_the_notebook:
        pytest.skip("nothing is there")
    x, model = torch.ones(3, device="cuda"), torch.nn.Linear(2, 2).cuda()
    generator, stream, event = torch.Generator("cuda"), torch.cuda.Stream(), torch.cuda.Event()
    programs = {
        "`x`": lambda rank, n: x,
        "`model.weight`": lambda rank, n: model,
        "`generator`": lambda rank, n: generator,
        "`stream`": lambda rank, n: stream,
        "`event`": lambda rank, n: event,
    }
    for name, program in programs.items():
        with pytest.raises(TypeError, match=f"^{name}, which a lambda uses, .* can't be sent to the ranks"):
            spawn(program, 2)


# --- NVML, the real one


def test_the_gpus_that_nvml_sees_are_those_of_torch(capfd):
    seen = find_gpus()
    assert capfd.readouterr().out == "", "NVML does not answer here"
    assert len(seen) == GPUS
    for index, gpu in enumerate(seen):
        properties = torch.cuda.get_device_properties(index)
        assert gpu.uuid == f"GPU-{properties.uuid}"
        assert abs(gpu.memory - properties.total_memory) < 0.1 * gpu.memory


def test_memory_of_another_process_makes_a_gpu_busy_and_our_own_does_not(cuda_in_the_notebook):
    gpu = find_gpus()[0]
    if gpu.is_busy:
        pytest.skip("somebody works on it")
    size = int((BUSY + 0.05) * gpu.memory)
    if cuda_in_the_notebook:
        ours = torch.empty(size, dtype=torch.uint8, device="cuda:0")
        assert not find_gpus()[0].is_busy
        del ours
        torch.cuda.empty_cache()
    hold = (
        f"import torch; x = torch.empty({size}, dtype=torch.uint8, device='cuda'); print('held', flush=True); input()"
    )
    other = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        assert find_gpus()[0].is_busy
        with pytest.raises(ValueError, match="GPU 0: "):
            choose_backend("nccl", GPUS)
    finally:
        other.communicate("")
    assert not find_gpus()[0].is_busy


# --- one GPU, several ranks: what works is printed for whoever decides; only a hang fails


def exchange(rank, world_size, name, device, backend):
    """One collective of a sub-group over `backend`, on `device`. Returns what this rank holds afterwards."""
    group = dist.new_group(backend=backend)
    mine = torch.arange(4.0, device=device) + 10 * rank
    other = [torch.zeros(4, device=device) for _ in range(world_size)]
    flat = torch.zeros(4 * world_size, device=device)
    part = torch.zeros(4 // world_size, device=device)
    pieces = list(mine.chunk(world_size))
    own_pieces = [torch.zeros_like(piece) for piece in pieces]
    if name == "send, recv":
        neighbours = (rank + 1) % world_size, (rank - 1) % world_size
        work = dist.isend(mine, neighbours[0], group=group)
        dist.recv(other[0], neighbours[1], group=group)
        work.wait()
    elif name == "gather":
        dist.gather(mine, other if rank == 0 else None, dst=0, group=group)
    elif name == "scatter":
        dist.scatter(part, pieces if rank == 0 else None, src=0, group=group)
    else:
        {
            "all_reduce": lambda: dist.all_reduce(mine, group=group),
            "broadcast": lambda: dist.broadcast(mine, src=1, group=group),
            "reduce": lambda: dist.reduce(mine, dst=0, group=group),
            "all_gather": lambda: dist.all_gather(other, mine, group=group),
            "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(flat, mine, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter(part, pieces, group=group),
            "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, mine, group=group),
            "all_to_all": lambda: dist.all_to_all(own_pieces, pieces, group=group),
            "all_to_all_single": lambda: dist.all_to_all_single(flat[:4], mine, group=group),
            "barrier": lambda: dist.barrier(group=group),
        }[name]()
    held = {"other": other, "flat": flat, "part": part, "pieces": own_pieces}
    return held if name == "reduce" and rank != 0 else {**held, "mine": mine}  # undefined except on the root


COLLECTIVES = [
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "send, recv"),
]


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    pairs = zip(one.values(), other.values(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
    return all(same(*pair) for pair in pairs)


def try_all(world_size, device, backend, capsys) -> None:
    """Print a table of what each collective does on `device`, compared with Gloo on the CPU; fail if one hangs."""
    hung = []
    table = [f"{backend}, {world_size} ranks, {device} tensors"]
    for name in COLLECTIVES:
        expected = spawn(exchange, world_size, name, "cpu", "gloo", backend="gloo").results
        try:
            run = spawn(exchange, world_size, name, device, backend, backend="gloo", timeout=60)
            what = f"works, {run.elapsed:.1f} s" if same(run.results, expected) else f"WRONG VALUES {run.results}"
        except (RankTimeout, WorldStuck):
            what = "HANGS"
            hung.append(name)
        except RankError as error:
            what = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        table.append(f"  {name:24} {what}")
    with capsys.disabled():
        print("\n" + "\n".join(table))
    assert not hung


@pytest.mark.parametrize("world_size", [2, 4])
def test_gloo_with_tensors_on_one_gpu(world_size, capsys):
    try_all(world_size, "cuda", "gloo", capsys)


def nccl_version() -> tuple[int, int]:
    """The version of the installed library, which may be newer than the one torch was built with."""
    installed = [torch.cuda.nccl.version()[:2]]
    for distribution in importlib.metadata.distributions():
        if (distribution.name or "").startswith("nvidia-nccl-cu"):
            installed.append(tuple(int(number) for number in distribution.version.split(".")[:2]))
    return max(installed)


@pytest.mark.parametrize("world_size", [2, 4])
def test_nccl_with_several_ranks_on_one_gpu(world_size, capsys, monkeypatch):
    if nccl_version() < (2, 30):
        pytest.skip(f"NCCL {nccl_version()} refuses a GPU that two ranks use; 2.30 can be asked to take it")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    monkeypatch.setenv("NCCL_MAX_CTAS", str(max(1, 8 // world_size)))  # they share the GPU's processors
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    try_all(world_size, "cuda", "nccl", capsys)
