"""A cell: one training step of each parallelism, and a function that measures the memory of its ranks."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from utils import spawn

BATCH, WIDTH, HIDDEN = 8, 64, 256


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


def train_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(BATCH, WIDTH)).square().mean().backward()
    optimizer.step()


def all_reduce(rank, world_size):
    x = torch.full((4,), float(rank))
    dist.all_reduce(x)


def ddp(rank, world_size):
    train_step(nn.parallel.DistributedDataParallel(mlp()))


def fsdp2(rank, world_size):
    train_step(fully_shard(mlp(), mesh=init_device_mesh("cpu", (world_size,))))


def tensor_parallel(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    train_step(parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


def pipelining(rank, world_size):
    stage = PipelineStage(nn.Linear(WIDTH, WIDTH), rank, world_size, torch.device("cpu"))
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    first = [torch.randn(BATCH, WIDTH)] if rank == 0 else []
    last = {"target": torch.zeros(BATCH, WIDTH)} if rank == world_size - 1 else {}
    schedule.step(*first, **last)
    optimizer.step()


def call(program, world_size):
    spawn(program, world_size)


def memory(program, world_size):
    """Each rank's memory in bytes, "private" and "pss", read when all ranks have run `program` and are still alive."""

    def measured(rank, world_size):
        program(rank, world_size)
        dist.barrier()  # all have run it
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
        dist.barrier()  # no rank exits before all have read
        sizes = {name: 1024 * int(kilobytes) for name, kilobytes, _ in (line.split() for line in lines)}
        return {"private": sizes["Private_Clean:"] + sizes["Private_Dirty:"], "pss": sizes["Pss:"]}

    return spawn(measured, world_size).results
