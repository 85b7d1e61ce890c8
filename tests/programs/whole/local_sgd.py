"""Local SGD: each rank trains alone for some steps, then the ranks average their parameters.

The kind of huggingface/accelerate, src/accelerate/local_sgd.py.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD_SIZE = 2


class LocalSGD:
    def __init__(self, model, every):
        self.model, self.every, self.steps = model, every, 0

    def __enter__(self):
        self.alone = self.model.no_sync()
        self.alone.__enter__()
        return self

    def __exit__(self, *error):
        self.average()
        self.alone.__exit__(*error)

    def step(self):
        self.steps += 1
        if self.steps % self.every == 0:
            self.average()

    def average(self):
        dist.barrier()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


def main(rank, world_size, folder):
    dist.init_process_group()
    model = DDP(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    apart = []
    with LocalSGD(model, every=3) as local:
        for _ in range(7):
            loss = (model(torch.rand(4, 3)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            local.step()
            weights = [torch.empty(4, 3) for _ in range(world_size)]
            dist.all_gather(weights, model.module[0].weight.data)
            apart.append((weights[0] - weights[-1]).abs().max().item())
    assert [distance == 0 for distance in apart] == [False, False, True] * 2 + [False]
    return apart, loss.item(), list(model.module.parameters())
