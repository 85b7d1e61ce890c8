"""A pipeline of torch.distributed.pipelining: the same model by GPipe and by 1F1B.

The kind of the documentation, https://pytorch.org/docs/stable/distributed.pipelining.html
"""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

WORLD_SIZE = 2


def main(rank, world_size, folder):
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)
    results = []
    for schedule_class in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(rank)
        layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
        stage = PipelineStage(layer, rank, world_size, torch.device("cpu"))
        schedule = schedule_class(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        torch.manual_seed(5)
        x, target, losses = torch.rand(8, 8), torch.rand(8, 8), []
        for _ in range(2):
            if rank == 0:
                schedule.step(x)
            elif rank == world_size - 1:
                schedule.step(target=target, losses=losses)
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()
        results.append((losses, layer[0].weight.detach()))
    assert torch.equal(results[0][1], results[1][1])
    return results
