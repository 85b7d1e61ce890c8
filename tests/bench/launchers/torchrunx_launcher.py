"""torchrunx: an agent that starts fresh interpreters"""

import torch
import torch.distributed as dist
from torchrunx import Launcher


def all_reduce():
    x = torch.full((4,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x[0].item()


def call(world_size):
    launcher = Launcher(hostnames=["localhost"], workers_per_host=world_size, backend="gloo")
    return launcher.run(all_reduce).results["localhost"]
