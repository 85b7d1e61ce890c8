"""Which NVIDIA GPUs this machine has, and which of them are free right now. Opens none of them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from ...text.rank_sets import format_ranks

DRIVER = "/dev/nvidiactl"  # exists where NVIDIA's driver is installed
BUSY = 0.2  # a GPU is busy if processes other than this kernel hold more than this fraction of its memory


@dataclass(frozen=True)
class InstalledGpu:
    """A GPU that torch may use here. Sizes are in bytes. Without a uuid, it can't be told apart from the others."""

    number: int  # nvidia-smi's number
    uuid: str = ""
    memory: int = 0
    held_by_others: int = 0

    @property
    def is_busy(self) -> bool:
        return self.held_by_others > BUSY * self.memory

    def __str__(self) -> str:
        return f"GPU {self.number}: {self.held_by_others / 1e9:.0f} of {self.memory / 1e9:.0f} GB"


def find_gpus() -> list[InstalledGpu]:
    """The GPUs that torch would use here, in torch's order, as they are right now. Opens none."""
    if not os.path.exists(DRIVER):
        return []
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_nccl_available()):  # a torch for the CPU
        return []
    try:
        return look_at_gpus()
    except Exception as error:  # NVML is missing, not permitted, of a different version than the driver, ...
        gpus = [InstalledGpu(number) for number in range(torch.cuda.device_count())]
        print(f"Can't tell which GPUs are busy ({error}). Torch counts {len(gpus)}; all are assumed to be free.")
        return gpus


def look_at_gpus() -> list[InstalledGpu]:
    """What NVML reports about the GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
    import pynvml as nvml

    nvml.nvmlInit()  # it counts its calls; only the first costs anything
    handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = visible(setting, uuids)
    if (setting or "").startswith("MIG-") or any(is_sliced(nvml, handles[number]) for number in numbers):
        return [InstalledGpu(0)]  # a process can open one slice, and CUDA knows which
    by_number = (setting or "-")[0].isdigit() and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    if by_number and len({nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1:
        raise RuntimeError("CUDA_VISIBLE_DEVICES counts the fastest GPU first; set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    gpus = []
    for index, number in enumerate(numbers):
        memory = nvml.nvmlDeviceGetMemoryInfo(handles[number])
        held_here = held_by_this_process(nvml, handles[number], index)
        gpus.append(InstalledGpu(number, uuids[number], memory.total, memory.used - held_here))
    return gpus


def visible(setting: str | None, uuids: list[str]) -> list[int]:
    """The numbers of the GPUs that CUDA_VISIBLE_DEVICES=`setting` names, read as CUDA reads it."""
    if setting is None:
        return list(range(len(uuids)))
    numbers = []
    for entry in map(str.strip, setting.split(",")):
        if entry.startswith("GPU-"):  # the first few characters of a uuid are enough
            found = [number for number, uuid in enumerate(uuids) if uuid.startswith(entry)]
        else:
            found = [int(entry)] if entry.isdecimal() and int(entry) < len(uuids) else []
        if len(found) != 1:  # CUDA reads no further
            break
        numbers += found
    return numbers if len(set(numbers)) == len(numbers) else []


def is_sliced(nvml: Any, handle: object) -> bool:
    """Whether the GPU is split into MIG slices."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:  # most GPUs can't be split
        return False


def held_by_this_process(nvml: Any, handle: object, index: int) -> int:
    """Bytes of a GPU that this kernel holds itself.

    In a container, NVML knows processes by different numbers than the container does, so torch is asked as well.
    """
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    by_number = sum(process.usedGpuMemory or 0 for process in processes if process.pid == os.getpid())
    cuda = sys.modules["torch"].cuda
    by_torch = cuda.memory_reserved(index) if cuda.is_initialized() and index < cuda.device_count() else 0
    return max(by_number, by_torch)


def spans(gpus: list[InstalledGpu]) -> str:
    """Their numbers, as in "0-5, 7"."""
    return format_ranks(sorted(gpu.number for gpu in gpus), most=len(gpus))
