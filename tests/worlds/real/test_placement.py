"""Which backend and which GPUs the ranks get, on machines made up by a fake NVML; test_gpu.py tests a real one."""

import os
import sys
import types
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

from utils import get_device, spawn
from utils.worlds.real import installed_gpus
from utils.worlds.real.placement import Placement, choose_backend

GB = 10**9


@dataclass
class FakeGpu:
    uuid: str
    memory: int = 80 * GB
    used: int = 0
    processes: dict = field(default_factory=dict)  # pid -> bytes, None where the driver does not say
    name: str = "H100"
    sliced: bool | None = None  # None: MIG is not supported


class FakeNvml(types.ModuleType):
    """The part of pynvml that installed_gpus.py uses."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def __init__(self, machine):
        super().__init__("pynvml")
        self.machine = machine
        self.opened = 0

    def nvmlInit(self):
        self.opened += 1

    def nvmlDeviceGetCount(self):
        return len(self.machine)

    def nvmlDeviceGetHandleByIndex(self, number):
        return self.machine[number]

    def nvmlDeviceGetUUID(self, gpu):
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu):
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return types.SimpleNamespace(total=gpu.memory, used=gpu.used, free=gpu.memory - gpu.used)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in gpu.processes.items()]

    def nvmlDeviceGetMigMode(self, gpu):
        if gpu.sliced is None:
            raise self.NVMLError("Not Supported")
        return [int(gpu.sliced), int(gpu.sliced)]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(*busy)` makes a machine of 8 GPUs, on which others hold 61 GB of those named."""
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(installed_gpus, "DRIVER", str(driver))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)

    def make(*busy, size=8):
        fakes = [FakeGpu(f"GPU-{number}abc", used=61 * GB if number in busy else GB // 2) for number in range(size)]
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fakes))
        return fakes

    return make


def devices_of(placement: Placement) -> list[int]:
    """The numbers of the GPUs that the ranks see."""
    visible = placement.environment["CUDA_VISIBLE_DEVICES"]
    return [int(uuid.removeprefix("GPU-").removesuffix("abc")) for uuid in visible.split(",")]


# --- which backend, which GPUs, and what is said


def test_each_rank_gets_a_free_gpu_of_its_own(machine, capfd):
    machine()
    placement = choose_backend(None, 4)
    assert placement.backend == "nccl" and devices_of(placement) == [0, 1, 2, 3]
    assert capfd.readouterr() == ("", "")


def test_busy_gpus_are_left_alone_and_a_line_says_so(machine, capfd):
    machine(0, 1, 2, 4)
    assert devices_of(choose_backend(None, 3)) == [3, 5, 6]
    assert devices_of(choose_backend("nccl", 1)) == [3]
    out, err = capfd.readouterr()
    assert out == (
        "8 GPUs, 4 of them busy (0-2, 4): 3 ranks on 3, 5-6.\n8 GPUs, 4 of them busy (0-2, 4): 1 rank on 3.\n"
    )
    assert err == ""


@pytest.mark.parametrize(
    "busy, size, line",
    [
        (
            range(6),
            8,
            "4 ranks and 8 GPUs, 6 of them busy (0-5): NCCL needs a free one for each rank, so this runs on the CPU.\n",
        ),
        ((), 1, "4 ranks and 1 GPU: NCCL needs a free one for each rank, so this runs on the CPU.\n"),
        ((), 0, ""),
    ],
)
def test_with_too_few_free_gpus_the_cpu_is_used_and_a_line_says_so(machine, capfd, busy, size, line):
    machine(*busy, size=size)
    assert choose_backend(None, 4) == Placement("gloo")
    assert capfd.readouterr() == (line, "")


def test_asking_for_gloo_does_not_look_at_gpus(machine, capfd):
    machine()
    assert choose_backend("gloo", 2) == Placement("gloo")
    assert capfd.readouterr().out == "" and sys.modules["pynvml"].opened == 0


def test_asking_for_nccl_without_enough_gpus(machine):
    machine(0, 1, size=4)
    with pytest.raises(ValueError) as caught:
        choose_backend("nccl", 3)
    assert str(caught.value) == (
        'backend="nccl" needs a free GPU for each of 3 ranks, and this machine has 4, 2 of them busy (0-1). '
        "Held by others: GPU 0: 61 of 80 GB; GPU 1: 61 of 80 GB. "
        'Leave backend out, or use backend="gloo", to run on the CPU.'
    )


def test_every_call_looks_again_which_gpus_are_busy(machine):
    fakes = machine()
    assert devices_of(choose_backend(None, 1)) == [0]
    fakes[0].used = fakes[0].memory
    assert devices_of(choose_backend(None, 1)) == [1]


# --- whose memory it is


@pytest.mark.parametrize("used, is_free", [(15 * GB, True), (17 * GB, False)])
def test_a_gpu_is_busy_from_a_fraction_of_its_memory_on(machine, used, is_free):
    machine(size=1)[0].used = used
    assert (choose_backend(None, 1).backend == "nccl") == is_free


def test_memory_of_the_notebook_itself_does_not_make_a_gpu_busy(machine, monkeypatch):
    fake = machine(0, size=1)[0]
    fake.processes = {os.getpid(): 60 * GB, 1: None}
    assert choose_backend(None, 1).backend == "nccl"
    fake.processes = {1: 60 * GB}
    assert choose_backend(None, 1).backend == "gloo"
    # in a container its own pid is not among NVML's, but torch knows what it holds
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: [59 * GB][index])
    assert choose_backend(None, 1).backend == "nccl"


# --- CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize(
    "setting, expected",
    [
        ("5,1", [5, 1]),
        (" 5 , 1 ", [5, 1]),
        ("GPU-3abc,GPU-2", [3, 2]),
        ("1,8,2", [1]),  # CUDA stops at the first that does not exist
        ("1,-1,2", [1]),
        ("1,1", []),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-", []),  # which of them?
    ],
)
def test_only_visible_gpus_count(machine, monkeypatch, setting, expected):
    machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [gpu.number for gpu in installed_gpus.find_gpus()] == expected
    if expected:
        assert devices_of(choose_backend("nccl", len(expected))) == expected
    else:
        assert choose_backend(None, 1) == Placement("gloo")


def test_a_slice_of_a_gpu_counts_as_one_gpu_and_is_left_alone(machine, monkeypatch, capfd):
    fakes = machine(size=2)
    for setting, sliced in (("MIG-1234", None), (None, True)):
        fakes[0].sliced = sliced
        if setting:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
        else:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert choose_backend(None, 1) == Placement("nccl")
        assert choose_backend(None, 2) == Placement("gloo")
        assert "2 ranks and 1 GPU:" in capfd.readouterr().out


def test_gpus_of_different_kinds_are_not_mixed_up(machine, monkeypatch, capfd):
    """CUDA numbers GPUs fastest first, NVML by slot, so the numbers of one mean nothing to the other."""
    machine(size=2)[0].name = "GT 710"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices_of(choose_backend(None, 2)) == [0, 1]  # all of them, so no number is read
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert choose_backend(None, 1) == Placement("nccl")
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in capfd.readouterr().out
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert devices_of(choose_backend(None, 1)) == [0]


# --- without NVML


def test_if_nvml_does_not_answer_torch_counts_and_a_line_says_so(machine, monkeypatch, capfd):
    machine()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for broken, reason in (
        (None, "import of pynvml halted; None in sys.modules"),
        (FakeNvml(None), "Driver/library version mismatch"),
    ):
        if broken:
            broken.nvmlInit = lambda: (_ for _ in ()).throw(FakeNvml.NVMLError("Driver/library version mismatch"))
        monkeypatch.setitem(sys.modules, "pynvml", broken)
        assert choose_backend(None, 2) == Placement("nccl")
        assert capfd.readouterr() == (
            f"Can't tell which GPUs are busy ({reason}). Torch counts 2; all are assumed to be free.\n",
            "",
        )


def test_no_gpus_without_a_driver_or_with_a_torch_without_cuda(machine, monkeypatch, capfd):
    machine()
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert choose_backend(None, 1) == Placement("gloo")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(installed_gpus, "DRIVER", "/nonexistent")
    assert choose_backend(None, 1) == Placement("gloo")
    assert capfd.readouterr() == ("", "") and sys.modules["pynvml"].opened == 0


def test_the_fake_has_no_function_that_the_real_one_lacks():
    real = pytest.importorskip("pynvml")
    assert [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML")) and not hasattr(real, name)] == []


# --- the ranks


def test_the_ranks_see_the_gpus_that_were_chosen(monkeypatch):
    chosen = Placement("gloo", {"CUDA_VISIBLE_DEVICES": "GPU-3abc,GPU-5abc"})
    monkeypatch.setattr("utils.worlds.real.launch.choose_backend", lambda backend, world_size: chosen)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")

    def program(rank, world_size):
        return os.environ["CUDA_VISIBLE_DEVICES"]

    assert spawn(program, 2).results == ["GPU-3abc,GPU-5abc"] * 2
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_device_is_the_cpu_in_the_notebook_and_on_gloo():
    assert get_device() == get_device(3) == torch.device("cpu")
    assert spawn(lambda rank, n: (get_device(), get_device(1)), 2).results == [(torch.device("cpu"),) * 2] * 2


def test_a_device_is_the_ranks_own_gpu_on_nccl(monkeypatch):
    """Rank 5 of 8, on the second of two machines that torchrun gave four ranks each."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert get_device() == get_device(5) == torch.device("cuda", 1)
    assert get_device(3) == torch.device("cuda", 3)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")  # started by hand, with mpirun, say: one rank per GPU of each machine
    assert get_device(5) == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="There is no rank 8: this world has 8 ranks"):
        get_device(8)
