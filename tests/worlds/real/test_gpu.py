"""What can go wrong with CUDA in the ranks, and with CUDA in the notebook before them.

Each test runs twice: first nothing has touched a GPU here, then this process, the notebook's, has. Most run in several
worlds: NCCL with one rank, with two, four and eight where that many GPUs are free, and Gloo with two ranks that compute
on one GPU. `make gpu` runs them, those named test_failure_... apart. Rank programs are functions of this file, so that
they also travel where cloudpickle is missing.
"""

import os
import re
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.kernel import Notebook, processes_of_session, wait_until_gone, zygote_here, zygote_of
from utils import RankCrashed, RankFailed, RankTimeout, WorldStuck, get_device, spawn
from utils.worlds.real.installed_gpus import BUSY, find_gpus
from utils.worlds.real.placement import choose_backend
from utils.worlds.real.zygote import client

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="needs a GPU")]

PATIENCE = 120  # seconds for a world that should end by itself: opening the first GPU may take a while
TOO_LONG = 12  # seconds for a world that should not


@pytest.fixture(scope="module", params=["cuda-in-the-ranks", "cuda-in-the-notebook-too"], autouse=True)
def cuda_in_the_notebook(request):
    if request.param == "cuda-in-the-notebook-too":
        torch.ones(1, device="cuda").sum().item()
        assert torch.cuda.is_initialized()
    zygote_here()
    return request.param == "cuda-in-the-notebook-too"


@pytest.fixture(params=["nccl-1", "gloo-2", "nccl-2", "nccl-4", "nccl-8"])
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
    return spawn(three_ones, 2, backend="gloo", timeout=PATIENCE).results == [3.0, 3.0]


def three_ones(rank, world_size):
    return torch.ones(3, device="cuda").sum().item()


def wait_for_everyone():
    """A collective on the GPU, waiting for its result."""
    x = torch.ones(1000, device="cuda")
    dist.all_reduce(x)
    return x.sum().item()


# --- when all is well


def sum_and_device(rank, world_size):
    x = torch.full((4,), float(rank), device=get_device())
    dist.all_reduce(x)
    uuid = str(torch.cuda.get_device_properties(get_device()).uuid) if get_device().type == "cuda" else rank
    return x, get_device(), torch.cuda.current_device(), uuid


def test_each_nccl_rank_has_its_own_gpu(world):
    run = spawn(sum_and_device, **world)
    sums, devices, current, uuids = zip(*run.results, strict=True)
    assert run.backend == world["backend"]
    assert all(x.tolist() == [sum(range(run.world_size))] * 4 for x in sums)
    if run.backend == "nccl":
        assert list(devices) == [torch.device("cuda", rank) for rank in range(run.world_size)]
        assert list(current) == list(range(run.world_size)) and len(set(uuids)) == run.world_size
    else:
        assert set(devices) == {torch.device("cpu")}


def tensors_of_all_kinds(rank, world_size):
    big = torch.arange(1_000_000.0, device="cuda")
    model = torch.nn.Linear(2, 2, device="cuda")
    tagged = big[5:7].as_subclass(torch.nn.Parameter)
    return [big[:3], model, {"sparse": torch.eye(2, device="cuda").to_sparse(), "p": tagged}, big.bfloat16()[1:3]]


def test_tensors_on_a_gpu_arrive_on_the_cpu(world, cuda_in_the_notebook):
    was_open = torch.cuda.is_initialized()
    for first, model, more, half in spawn(tensors_of_all_kinds, **world).results:
        assert first.tolist() == [0, 1, 2] and half.dtype == torch.bfloat16
        assert more["sparse"].to_dense().tolist() == [[1, 0], [0, 1]] and more["p"].tolist() == [5, 6]
        for tensor in (first, half, *more.values(), *model.parameters()):
            assert tensor.device.type == "cpu"
        assert first.untyped_storage().nbytes() == 12
    assert torch.cuda.is_initialized() == was_open


def own_rank(rank, world_size):
    return rank


def test_too_few_gpus_are_reported_in_one_line(capfd):
    assert spawn(own_rank, GPUS + 1).backend == "gloo"
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


def raises(rank, world_size):
    wait_for_everyone()
    if rank == 1:
        raise ValueError("the batch is empty")
    wait_for_everyone()


def test_failure_exception_while_others_wait(many, capfd):
    with pytest.raises(RankFailed, match="^rank 1 raised ValueError: the batch is empty") as caught:
        spawn(raises, **many)
    shown = str(caught.value) + capfd.readouterr().out
    assert not re.search("[Ww]atchdog|terminate called|onnection closed", shown)
    assert works_after_all()


def last_rank_alone(rank, world_size, work):
    """The last rank goes off to `work`, and the others wait for it."""
    wait_for_everyone()
    if rank == world_size - 1:
        work()
    wait_for_everyone()


def killed_by(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "death, words",
    [
        (partial(os._exit, 7), "exited with code 7"),
        (partial(killed_by, signal.SIGKILL), "killed by SIGKILL"),
        (partial(killed_by, signal.SIGSEGV), "killed by SIGSEGV"),
    ],
)
def test_failure_death_while_others_wait(world, death, words):
    with pytest.raises(RankCrashed, match=f"(?s)^rank {world['world_size'] - 1} .*{words}"):
        spawn(last_rank_alone, work=death, **world)
    assert works_after_all()


def launches_without_end():
    x = torch.ones(1000, 1000, device="cuda")
    while True:
        x = x @ x / 1000


def computes_without_end():
    torch.cuda._sleep(10**15)  # one kernel that runs for days
    torch.cuda.synchronize()


@pytest.mark.parametrize("work", [launches_without_end, computes_without_end])
def test_failure_endless_work_is_timed_out(world, work):
    last = world["world_size"] - 1
    with pytest.raises(RankTimeout, match=f"not finished after {TOO_LONG} s") as caught:
        spawn(last_rank_alone, work=work, **{**world, "timeout": TOO_LONG})
    assert re.search(rf"rank {last} .*test_gpu\.py, line \d+", str(caught.value))
    assert works_after_all()


def only_rank_0_goes_on(rank, world_size):
    wait_for_everyone()
    if rank == 0:
        wait_for_everyone()


def test_failure_missing_collective_is_found(many):
    with pytest.raises((WorldStuck, RankTimeout), match="rank 0"):
        spawn(only_rank_0_goes_on, **{**many, "timeout": TOO_LONG})
    assert works_after_all()


def ten_terabytes(rank, world_size):
    return torch.empty(10**13, dtype=torch.uint8, device="cuda")


def test_failure_out_of_memory_is_the_students_own_error(world):
    with pytest.raises(RankFailed, match=r"raised OutOfMemoryError: CUDA out of memory\. Tried to allocate"):
        spawn(ten_terabytes, **world)
    assert works_after_all()


def index_out_of_range(rank, world_size, asked_by):
    x = torch.zeros(3, device="cuda")[torch.tensor([5], device="cuda")]
    if asked_by == "the program":
        torch.cuda.synchronize()
    return x


@pytest.mark.parametrize("asked_by", ["the program", "the result"])
def test_failure_assert_on_the_gpu_is_the_students_own_error(world, asked_by):
    with pytest.raises(RankFailed, match=r"raised AcceleratorError: CUDA error: device-side assert") as caught:
        spawn(index_out_of_range, asked_by=asked_by, **world)
    assert "CannotReturn" not in str(caught.value)
    assert works_after_all()


@pytest.mark.parametrize(
    "work", ["while True: x = x @ x / 1000", "torch.cuda._sleep(10**15); torch.cuda.synchronize()"]
)
@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_failure_notebook_that_is_stopped_stops_its_ranks(work, how, cuda_in_the_notebook):
    pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
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
            wait_until_gone(zygote)
    finally:
        notebook.close()


# --- what is on a GPU of the notebook stays there


def test_tensors_of_the_notebook_on_a_gpu_are_refused(cuda_in_the_notebook):
    if not cuda_in_the_notebook:
        pytest.skip("nothing is there")
    pytest.importorskip("cloudpickle")
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
