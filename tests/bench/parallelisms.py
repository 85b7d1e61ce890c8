"""One training step of each parallelism in `spawn`: its time from start to end, and the memory of its ranks."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.bench import Row
from tests.bench.launchers import WORLD_SIZE
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


PROGRAMS = [all_reduce, ddp, fsdp2, tensor_parallel, pipelining]
CASES = ["all"]


def measure(case: str, quick: bool = False) -> list[Row]:
    spawn(all_reduce, WORLD_SIZE)  # everything that `import utils` has started is idle from now on
    rows: list[Row] = []
    for program in PROGRAMS:
        name = program.__name__
        rows.append({"name": f"{name}, 4 ranks", "values": [seconds_of(program) for _ in range(4)]})
        sizes = spawn(memory_after, WORLD_SIZE, program).results
        rows.append({"name": f"{name}: private memory of a rank", "values": [max(sizes)], "unit": "byte"})
    time.sleep(2)
    kept = sum(child.memory_full_info().pss for child in psutil.Process().children(recursive=True))
    return [*rows, {"name": "kept between calls, shared memory in parts", "values": [kept], "unit": "byte"}]


def seconds_of(program) -> float:
    began = time.perf_counter()
    spawn(program, WORLD_SIZE)
    return time.perf_counter() - began


def memory_after(rank, world_size, program):
    """This rank's private memory in bytes, read when all ranks have run `program` and are still alive."""
    program(rank, world_size)
    dist.barrier()  # all have run it
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    dist.barrier()  # no rank exits before all have read
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
