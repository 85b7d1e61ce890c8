"""`spawn` in a process that already is a rank, because torchrun started it: the program runs in place."""

from __future__ import annotations

import os
import sys
import time

from utils.run import Run


def already_a_rank() -> bool:
    """Whether this process was started as one rank of many, by torchrun or by spawn itself."""
    from_spawn = sys.modules.get("utils.rank_process")
    if from_spawn is not None and from_spawn.rank_of_this_process is not None:
        raise RuntimeError(
            f"spawn was called on rank {from_spawn.rank_of_this_process}, inside a world that spawn made. "
            "Call it from the notebook, not from a rank program."
        )
    in_notebook = "ipykernel" in sys.modules  # where a tutorial's cell may have set these by hand
    return not in_notebook and all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def run_in_place(fn, args: tuple, kwargs: dict, backend: str | None) -> Run:
    """Run the program on this very process, a rank of the world that torchrun made; every rank gets all results."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        has_gpu = torch.cuda.device_count() > local_rank
        backend = backend or ("nccl" if has_gpu else "gloo")
        if backend == "nccl":
            torch.cuda.set_device(local_rank)
        dist.init_process_group(backend)
    began = time.monotonic()
    rank, size = dist.get_rank(), dist.get_world_size()
    result = fn(rank, size, *args, **kwargs)
    results = [None] * size
    dist.all_gather_object(results, result)
    return Run(size, "torchrun", dist.get_backend(), results, [""] * size, [], time.monotonic() - began)
