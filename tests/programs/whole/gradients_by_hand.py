"""A data set partitioned by hand, gradients averaged by hand, an evaluation on all ranks, results at rank 0.

The kind of the tutorial "Writing Distributed Applications with PyTorch",
https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html
"""

import random

import torch
import torch.distributed as dist

WORLD_SIZE = 2


class DataPartitioner:
    def __init__(self, data, sizes, seed=1234):
        self.data, self.partitions = data, []
        indices = list(range(len(data)))
        random.Random(seed).shuffle(indices)
        for share in sizes:
            count = int(share * len(data))
            self.partitions.append(indices[:count])
            indices = indices[count:]

    def use(self, partition):
        return self.data[self.partitions[partition]]


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= size


def main(rank, world_size, folder):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(1234)
    data = torch.rand(24, 3)
    mine = DataPartitioner(data, [1.0 / world_size] * world_size).use(rank)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    losses = []
    for _ in range(3):
        for x in mine.split(4):
            optimizer.zero_grad()
            loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
            loss.backward()
            average_gradients(model)
            optimizer.step()
            losses.append(loss.item())
    worst = torch.tensor(max(losses))
    dist.reduce(worst, dst=0, op=dist.ReduceOp.MAX)
    gathered = [None] * world_size if rank == 0 else None
    dist.gather_object({"rank": rank, "losses": losses}, gathered)
    return losses, gathered, worst.item() if rank == 0 else None
