"""Which backend and which device: NCCL and a GPU for each rank where enough are free, else Gloo and the CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from .installed_gpus import InstalledGpu, find_gpus, spans


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a world run: over which backend, and what their environment has beside the kernel's."""

    backend: str
    environment: dict[str, str] = field(default_factory=dict)


def choose_backend(backend: str | None, world_size: int) -> Placement:
    """NCCL on the first free GPUs, rank r on the r-th, where there are enough; else Gloo. A line says what is special.

    Raises ValueError for an unknown backend, and for "nccl" without a free GPU for each rank.
    """
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f'backend is "gloo" or "nccl"; got {backend!r}.')
    gpus = find_gpus() if backend != "gloo" else []
    busy, free = [gpu for gpu in gpus if gpu.is_busy], [gpu for gpu in gpus if not gpu.is_busy]
    of_them_busy = f", {len(busy)} of them busy ({spans(busy)})" if busy else ""
    if gpus and len(free) >= world_size:
        mine = free[:world_size]
        if busy:
            print(f"{count(gpus)}{of_them_busy}: {ranks(world_size)} on {spans(mine)}.")
        return Placement("nccl", {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in mine)} if mine[0].uuid else {})
    if backend == "nccl":
        held = f" Held by others: {'; '.join(map(str, busy))}." if busy else ""
        raise ValueError(
            f'backend="nccl" needs a free GPU for each of {ranks(world_size)}, and this machine has {len(gpus)}'
            f'{of_them_busy}.{held} Leave backend out, or say backend="gloo", to run on the CPU.'
        )
    if gpus:
        needs = "NCCL needs a free one for each rank, so this runs on the CPU."
        print(f"{ranks(world_size)} and {count(gpus)}{of_them_busy}: {needs}")
    return Placement("gloo")


def count(gpus: list[InstalledGpu]) -> str:
    return "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"


def ranks(world_size: int) -> str:
    return "1 rank" if world_size == 1 else f"{world_size} ranks"


def get_device(rank: int | None = None):
    """The torch.device of `rank` (this rank unless given): its GPU in an NCCL world, else the CPU.

    Ranks of a world on many machines are counted anew on each: LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them.
    """
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or "nccl" not in dist.get_backend_config():
        return torch.device("cpu")
    if rank is None:
        return torch.device("cuda", torch.cuda.current_device())
    if not 0 <= rank < dist.get_world_size():
        raise ValueError(f"there is no rank {rank} among {dist.get_world_size()}.")
    return torch.device("cuda", rank % int(os.environ.get("LOCAL_WORLD_SIZE", torch.cuda.device_count())))
