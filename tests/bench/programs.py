"""The program of the competitors, for those that need it in a file. Imports torch alone: a fresh rank pays for no more.

`spawn` sets up and tears down by itself; for all others that is in the program. A FileStore, because it is the quickest
and never stalls: a TCPStore asks for host names.
"""

import os
import socket

import torch
import torch.distributed as dist


def all_reduce(rank: int, world_size: int, rendezvous: str) -> float:
    """init -> all-reduce -> result; `rendezvous` is the path of a file that is not there yet."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world_size), rank=rank, world_size=world_size)
    x = torch.full((4,), float(rank))
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x[0].item()


def put_all_reduce(rank: int, world_size: int, rendezvous: str, results) -> None:
    """The same for launchers that bring no result back."""
    results.put(all_reduce(rank, world_size, rendezvous))


def free_port() -> int:
    """A port that nobody listens on now, for launchers that want one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


if __name__ == "__main__":  # a rank of torchrun
    result = all_reduce(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["RENDEZVOUS"])
    os.write(1, f"{result}\n".encode())  # in one piece: print's line and its end may have another rank's between them
