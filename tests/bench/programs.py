"""The programs that launchers are timed with. Imports torch alone, so that no launcher pays for another's imports."""

import torch
import torch.distributed as dist


def all_reduce(rank: int, world_size: int) -> float:
    x = torch.full((4,), float(rank))
    dist.all_reduce(x)
    return x[0].item()


def all_reduce_by_hand(rank: int, world_size: int, port: int, results) -> None:
    """The same for a launcher that leaves set-up, results and tear-down to its user."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    results.put(all_reduce(rank, world_size))
    dist.destroy_process_group()
