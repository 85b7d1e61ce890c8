"""Which backend and which device: NCCL and a GPU for each rank where there are enough, else Gloo and the CPU."""

from __future__ import annotations

import os


def choose_backend(backend: str | None, world_size: int) -> str:
    """NCCL where there are enough GPUs, else Gloo; says so in one line when a GPU stays unused."""
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f'backend is "gloo" or "nccl"; got {backend!r}.')
    gpus = count_gpus()
    if backend == "nccl" and gpus < world_size:
        raise ValueError(
            f'backend="nccl" needs a GPU for each of {world_size} ranks, and this machine has {gpus}. '
            'Leave backend out, or say backend="gloo", to run on the CPU.'
        )
    if backend is None:
        backend = "nccl" if gpus >= world_size else "gloo"
        if backend == "gloo" and gpus:
            print(f"{world_size} ranks and {gpus} GPU(s): NCCL needs one for each, so this runs on the CPU.")
    return backend


def count_gpus() -> int:
    """How many NVIDIA GPUs torch would use here, without opening one."""
    if not os.path.exists("/dev/nvidiactl"):
        return 0
    import torch

    return torch.cuda.device_count()


def get_device(rank: int | None = None):
    """The torch.device of `rank` (this rank unless given): its GPU in an NCCL world, else the CPU."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device() if rank is None else rank)
    return torch.device("cpu")
