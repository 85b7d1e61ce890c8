"""Gradient accumulation: no_sync() spares all-reduces, and the gradients are those of one large batch.

The kind of the documentation of DistributedDataParallel.no_sync,
https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD_SIZE = 2


def main(rank, world_size, folder):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = DDP(torch.nn.Linear(5, 3), gradient_as_bucket_view=True)
    torch.manual_seed(rank)
    batches = torch.rand(2, 3, 4, 5)
    gradients = []
    for step in batches:
        for number, x in enumerate(step):
            with nullcontext() if number == len(step) - 1 else model.no_sync():
                model(x).square().mean().div(len(step)).backward()
        gradients.append(model.module.weight.grad.clone())
        model.zero_grad()
    everyones = [torch.empty_like(batches) for _ in range(world_size)]
    dist.all_gather(everyones, batches)
    model.module(torch.cat(everyones, 2)[0].flatten(0, 1)).square().mean().backward()
    torch.testing.assert_close(model.module.weight.grad, gradients[0])
    return gradients
