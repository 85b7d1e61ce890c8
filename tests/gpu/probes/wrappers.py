"""Part 5: a few training steps under each of torch's parallel wrappers, compared with one process on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.gpu.probe import Numbers, Setting
from utils import RankError, get_device, spawn

STEPS, BATCH, WIDTH, HIDDEN = 3, 16, 64, 256
RTOL = 1e-4  # sums in another order, in float32


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


def batch() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(BATCH, WIDTH)


def losses_of(model: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], x: Tensor) -> list[float]:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def device_here(device: str) -> torch.device:
    """In a world of NCCL this rank's own GPU; over Gloo whatever `device` says."""
    return get_device() if get_device().type == "cuda" else torch.device(device)


def ddp(rank: int, world_size: int, device: str) -> list[float]:
    where = device_here(device)
    model = nn.parallel.DistributedDataParallel(mlp().to(where))
    return losses_of(model, list(model.parameters()), batch().to(where))


def fsdp2(rank: int, world_size: int, device: str) -> list[float]:
    where = device_here(device)
    model = fully_shard(mlp().to(where), mesh=init_device_mesh(where.type, (world_size,)))
    return losses_of(model, list(model.parameters()), batch().to(where))


def tensor_parallel(rank: int, world_size: int, device: str) -> list[float]:
    where = device_here(device)
    mesh = init_device_mesh(where.type, (world_size,))
    model = parallelize_module(mlp().to(where), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return losses_of(model, list(model.parameters()), batch().to(where))


def layers(count: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(count)]


def square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def pipelining(rank: int, world_size: int, device: str) -> list[float]:
    """One layer per rank; the last rank's losses, the others' lists are empty."""
    where = device_here(device)
    stage = PipelineStage(layers(world_size)[rank].to(where), rank, world_size, where)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=square)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses: list[Tensor] = []
        first = [batch().to(where)] if rank == 0 else []
        last = {"target": torch.zeros(BATCH, WIDTH, device=where), "losses": losses} if rank == world_size - 1 else {}
        schedule.step(*first, **last)
        optimizer.step()
        if losses:
            found.append(torch.stack(losses).mean().item())
    return found


def expected_of(program: Callable[..., object], world_size: int) -> list[float]:
    """The same steps in one process on the CPU."""
    model = nn.Sequential(*layers(world_size)) if program is pipelining else mlp()
    return losses_of(model, list(model.parameters()), batch())


def compared(program: Callable[..., object], setting: Setting) -> Numbers:
    """Over NCCL with one rank a GPU, and over Gloo with two ranks on one GPU."""
    table: Numbers = {}
    problems = []
    worlds = [(setting.backend, size) for size in setting.world_sizes]
    for backend, size in dict.fromkeys([*worlds, ("gloo", 2)]):
        name, expected = f"{backend}, {size} ranks", expected_of(program, size)
        try:
            run = spawn(program, size, setting.device, backend=backend, timeout=30)
        except RankError as error:  # the next world is tried all the same
            if backend == "gloo" and setting.device == "cuda":  # what Gloo can't do with CUDA tensors is not our fault
                table[name] = {"losses": str(error).splitlines()[0], "one process": expected, "calls recorded": 0}
            else:
                problems.append(f"{name}: {type(error).__name__}: {error}")
            continue
        got = [losses for losses in run.results if losses]
        table[name] = {"losses": got[0], "one process": expected, "calls recorded": len(run.events)}
        if not all(torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=RTOL) for losses in got):
            problems.append(f"{name}: losses {got}, expected {expected}")
    assert not problems, "\n".join(problems)
    return table


def ddp_steps(setting: Setting) -> Numbers:
    """DistributedDataParallel"""
    return compared(ddp, setting)


def fsdp2_steps(setting: Setting) -> Numbers:
    """FSDP2"""
    return compared(fsdp2, setting)


def tensor_parallel_steps(setting: Setting) -> Numbers:
    """Tensor parallelism by DTensor"""
    return compared(tensor_parallel, setting)


def pipelining_steps(setting: Setting) -> Numbers:
    """Pipelining"""
    return compared(pipelining, setting)


CHECKS = [ddp_steps, fsdp2_steps, tensor_parallel_steps, pipelining_steps]
