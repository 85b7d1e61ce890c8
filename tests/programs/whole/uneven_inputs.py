"""Ranks with different numbers of batches: the Join context lets those that are through shadow the others.

The kind of the tutorial "Distributed Training with Uneven Inputs Using the Join Context Manager",
https://docs.pytorch.org/tutorials/advanced/generic_join.html
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD_SIZE = 2


def main(rank, world_size, folder):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    losses = []
    with Join([model]):
        for _ in range(2 + 2 * rank):
            loss = model(torch.rand(3, 4)).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, list(model.module.parameters())
