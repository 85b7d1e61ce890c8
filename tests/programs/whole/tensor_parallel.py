"""Tensor parallelism by a plan: an MLP split by columns and rows, checked against the whole model.

The kind of pytorch/examples, distributed/tensor_parallelism/tensor_parallel_example.py.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WORLD_SIZE = 2


class ToyModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.out_proj = torch.nn.Linear(6, 16), torch.nn.Linear(16, 3)

    def forward(self, x):
        return self.out_proj(torch.relu(self.in_proj(x)))


def train(model, steps=4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True)
    torch.manual_seed(7)  # the same input on every rank
    losses = []
    for _ in range(steps):
        loss = model(torch.rand(5, 6)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(rank, world_size, folder):
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    whole = ToyModel()
    torch.manual_seed(0)
    plan = {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
    split = parallelize_module(ToyModel(), mesh, plan)
    assert split.in_proj.weight.to_local().shape == (16 // world_size, 6)
    losses = train(split)
    torch.testing.assert_close(losses, train(whole))
    assert dist.get_rank() == rank
    return losses, split.out_proj.weight.to_local()
