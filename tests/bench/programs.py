"""The competitors' program, for those that need it in a file. It imports only torch, to cost a fresh rank no more.

`spawn` sets up and tears down by itself; here the program does. It uses a FileStore, the fastest, which never stalls: a
TCPStore looks up host names.
"""

import os
import socket

import torch
import torch.distributed as dist


def all_reduce(rank: int, world_size: int, rendezvous: str) -> float:
    """init -> all-reduce -> result; `rendezvous` is the path of a file that does not exist yet."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world_size), rank=rank, world_size=world_size)
    x = torch.full((4,), float(rank))
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x[0].item()


def put_all_reduce(rank: int, world_size: int, rendezvous: str, results) -> None:
    """The same for launchers that return no results."""
    results.put(all_reduce(rank, world_size, rendezvous))


def free_port() -> int:
    """An unused port, for launchers that need one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


if __name__ == "__main__":  # a rank of torchrun
    result = all_reduce(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["RENDEZVOUS"])
    os.write(1, f"{result}\n".encode())  # in one piece; print writes a line and its end separately, so ranks could mix
