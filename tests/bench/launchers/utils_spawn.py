"""utils.spawn: ranks are forked from a process that has imported torch"""

import torch
import torch.distributed as dist

from utils import spawn


def all_reduce(rank, world_size):
    x = torch.full((4,), float(rank))
    dist.all_reduce(x)
    return x[0].item()


def call(world_size):
    return spawn(all_reduce, world_size).results
