"""A pipeline by send and recv, with data parallel replicas of it: all forwards, then all backwards, then all-reduces.

The kind of siboehm/ShallowSpeed, train.py.
"""

import torch
import torch.distributed as dist

WORLD_SIZE = 4
STAGES, MICROBATCHES, WIDTH = 2, 4, 6


class Worker:
    """One stage of one replica."""

    def __init__(self, rank, world_size):
        self.stage, self.replica = rank % STAGES, rank // STAGES
        stages = [dist.new_group([r for r in range(world_size) if r % STAGES == s]) for s in range(STAGES)]
        self.peers = stages[self.stage]
        self.before, self.after = rank - 1, rank + 1
        torch.manual_seed(self.stage)
        self.layer = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
        self.kept = []

    def forward(self, x, target):
        if self.stage > 0:
            x = torch.empty(2, WIDTH)
            dist.recv(x, self.before)
            x.requires_grad_()
        y = self.layer(x)
        if self.stage < STAGES - 1:
            dist.send(y.detach(), self.after)
            self.kept.append((x, y))
            return None
        loss = torch.nn.functional.mse_loss(y, target)
        self.kept.append((x, loss))
        return loss.item()

    def backward(self):
        x, y = self.kept.pop()
        if self.stage < STAGES - 1:
            gradient = torch.empty_like(y)
            dist.recv(gradient, self.after)
            y.backward(gradient)
        else:
            y.backward()
        if self.stage > 0:
            dist.send(x.grad, self.before)


def main(rank, world_size, folder):
    dist.init_process_group()
    worker = Worker(rank, world_size)
    optimizer = torch.optim.SGD(worker.layer.parameters(), lr=0.05)
    torch.manual_seed(10 + worker.replica)
    data = torch.rand(MICROBATCHES, 2, WIDTH)
    losses = []
    for _ in range(3):
        losses += [worker.forward(x, x.flip(1)) for x in data]
        for _ in data:
            worker.backward()
        for parameter in worker.layer.parameters():
            dist.all_reduce(parameter.grad, group=worker.peers)
        optimizer.step()
        optimizer.zero_grad()
    return losses, list(worker.layer.parameters())
