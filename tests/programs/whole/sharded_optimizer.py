"""ZeroRedundancyOptimizer: each rank keeps the optimizer state of a part of the parameters; saved on one rank.

The kind of the tutorial "Shard Optimizer States with ZeroRedundancyOptimizer",
https://docs.pytorch.org/tutorials/recipes/zero_redundancy_optimizer.html
"""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD_SIZE = 2


def main(rank, world_size, folder):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = DDP(torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4))))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    torch.manual_seed(rank)
    for _ in range(3):
        loss = model(torch.rand(5, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    own = sum(len(state) for state in optimizer.optim.state.values())
    optimizer.consolidate_state_dict(to=0)
    saved = len(optimizer.state_dict()["state"]) if rank == 0 else None
    return loss.item(), own, saved, list(model.module.parameters())
