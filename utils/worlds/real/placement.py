"""Which backend and which device: NCCL with a GPU for each rank if enough are free, otherwise Gloo and the CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...text.units import plural
from .installed_gpus import find_gpus, spans

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Placement:
    """The backend of a world, and the environment variables that its ranks get besides those of the kernel."""

    backend: str
    environment: dict[str, str] = field(default_factory=dict)


def choose_backend(backend: str | None, world_size: int) -> Placement:
    """NCCL on the first free GPUs, rank r on the r-th of them, if there are enough; otherwise Gloo.

    Prints a line if some GPUs are busy or too few. Raises ValueError for an unknown backend, and for "nccl" without a
    free GPU for each rank.
    """
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f'backend must be "gloo" or "nccl"; got {backend!r}.')
    gpus = find_gpus() if backend != "gloo" else []
    busy, free = [gpu for gpu in gpus if gpu.is_busy], [gpu for gpu in gpus if not gpu.is_busy]
    ranks, all_gpus = plural(world_size, "rank"), plural(len(gpus), "GPU")
    of_them_busy = f", {len(busy)} of them busy ({spans(busy)})" if busy else ""
    if gpus and len(free) >= world_size:
        chosen = free[:world_size]
        if busy:
            print(f"{all_gpus}{of_them_busy}: {ranks} on {spans(chosen)}.")
        visible = ",".join(gpu.uuid for gpu in chosen)
        return Placement("nccl", {"CUDA_VISIBLE_DEVICES": visible} if chosen[0].uuid else {})
    if backend == "nccl":
        held = f" Held by others: {'; '.join(map(str, busy))}." if busy else ""
        raise ValueError(
            f'backend="nccl" needs a free GPU for each of {ranks}, and this machine has {len(gpus)}'
            f'{of_them_busy}.{held} Leave backend out, or use backend="gloo", to run on the CPU.'
        )
    if gpus:
        needs = "NCCL needs a free one for each rank, so this runs on the CPU."
        print(f"{ranks} and {all_gpus}{of_them_busy}: {needs}")
    return Placement("gloo")


def get_device(rank: int | None = None) -> torch.device:
    """The torch.device of `rank` (by default this rank): its GPU in an NCCL world, otherwise the CPU.

    In a world on several machines, the ranks of each machine start again at its GPU 0: LOCAL_WORLD_SIZE, which torchrun
    sets, says how many there are on each. Raises ValueError for a rank that does not exist.
    """
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or "nccl" not in dist.get_backend_config():
        return torch.device("cpu")
    if rank is None:
        return torch.device("cuda", torch.cuda.current_device())
    if not 0 <= rank < dist.get_world_size():
        raise ValueError(f"There is no rank {rank}: this world has {dist.get_world_size()} ranks, counted from 0.")
    return torch.device("cuda", rank % int(os.environ.get("LOCAL_WORLD_SIZE", torch.cuda.device_count())))
