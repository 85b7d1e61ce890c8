"""Rank programs for the virtual cluster, without values, and how long `simulate` takes to run them."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.bench import Row
from utils import simulate

LAYERS, WIDTH, BATCH = 8, 8192, 128


def sums(rank, world_size, times):
    x = torch.empty(1000)
    for _ in range(times):
        x + x


def all_reduces(rank, world_size, times):
    x = torch.empty(1000)
    for _ in range(times):
        dist.all_reduce(x)


def ddp(rank, world_size):
    """One step of an MLP without an optimizer: forward, backward, and an all-reduce per gradient."""
    weights = [torch.empty(WIDTH, WIDTH, requires_grad=True) for _ in range(LAYERS)]
    x = torch.empty(BATCH, WIDTH)
    for w in weights:
        x = torch.nn.functional.gelu(x @ w)
    x.square().mean().backward()
    for w in weights:
        dist.all_reduce(w.grad)


def fsdp2(rank, world_size):
    """One step of torch's FSDP2, each layer sharded for itself: forward, backward and AdamW."""
    mesh = init_device_mesh("cpu", (world_size,))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.empty(BATCH, WIDTH)).square().mean().backward()
    optimizer.step()


class Stage:
    """This rank's layer of a pipeline, its microbatches in flight and the messages that it has sent.

    distance   from its rank to that of the same place in the next stage
    part       the part of the layer that this rank holds is one of so many; the ranks of `group` hold the others
    """

    def __init__(self, rank, world_size, distance=1, part=1, group=None):
        self.previous = rank - distance if rank >= distance else None
        self.next = rank + distance if rank + distance < world_size else None
        self.w = torch.empty(WIDTH, WIDTH // part, requires_grad=True)
        self.back = torch.empty(WIDTH // part, WIDTH, requires_grad=True) if part > 1 else None
        self.group = group
        self.in_flight, self.sent = [], []

    def forward(self):
        x = torch.empty(BATCH, WIDTH)
        if self.previous is not None:
            dist.recv(x, self.previous)
            x.requires_grad_()
        y = torch.nn.functional.gelu(x @ self.w)
        if self.group is not None:
            y = y @ self.back
            dist.all_reduce(y.detach(), group=self.group)
        if self.next is not None:
            self.sent.append(dist.isend(y.detach(), self.next))
        self.in_flight.append((x, y))

    def backward(self):
        x, y = self.in_flight.pop(0)
        if self.next is not None:
            gradient = torch.empty_like(y)
            dist.recv(gradient, self.next)
            y.backward(gradient)
        else:
            y.square().mean().backward()
        if self.previous is not None:
            if self.group is not None:
                dist.all_reduce(x.grad, group=self.group)
            self.sent.append(dist.isend(x.grad, self.previous))


def one_f_one_b(rank, world_size, microbatches):
    """One layer per rank: as many forwards first as ranks follow, then alternately one forward and one backward."""
    run_one_f_one_b(Stage(rank, world_size), world_size - 1 - rank, microbatches)


def run_one_f_one_b(stage, following, microbatches):
    ahead = min(microbatches, following)
    for _ in range(ahead):
        stage.forward()
    for _ in range(microbatches - ahead):
        stage.forward()
        stage.backward()
    for _ in range(ahead):
        stage.backward()
    for handle in stage.sent:
        handle.wait()


def grid(rank, world_size, tensor, pipeline, microbatches):
    """Tensor, pipeline and data parallelism: 1F1B, then the all-reduces of the gradients."""
    data = world_size // (tensor * pipeline)
    names = ("pipeline", "data", "tensor")
    mesh = init_device_mesh("cpu", (pipeline, data, tensor), mesh_dim_names=names)
    distance = data * tensor
    stage = Stage(rank, world_size, distance, tensor, mesh.get_group("tensor"))
    run_one_f_one_b(stage, pipeline - 1 - rank // distance, microbatches)
    for weight in (stage.w, stage.back):
        dist.all_reduce(weight.grad, group=mesh.get_group("data"))


LOOP = "a fixed loop"  # says how fast the machine is now, with what else it does
PROGRAMS = {
    "64 ranks x 1,000 small sums": (sums, 64, 1000),
    "64 ranks x 200 all-reduces": (all_reduces, 64, 200),
    **{f"{ranks:,} ranks, DDP step": (ddp, ranks) for ranks in (64, 256, 1024)},
    "64 ranks, 1F1B, 64 microbatches": (one_f_one_b, 64, 64),
    **{f"{ranks} ranks, FSDP2 step": (fsdp2, ranks) for ranks in (64, 128)},
    **{f"{ranks} ranks, tensor 8 x pipeline 8 x data {ranks // 64}": (grid, ranks, 8, 8, 16) for ranks in (64, 128)},
}
ALIKE = {  # only one rank of each kind runs: so many kinds
    "4,096 ranks, DDP step, 1 rank of all": (1, ddp, 4096),
    "16,384 ranks, DDP step, 1 rank of all": (1, ddp, 16384),
    "1,024 ranks, FSDP2 step, 1 rank of all": (1, fsdp2, 1024),
    "1,024 ranks, tensor 8 x pipeline 8 x data 16, 1 rank of each stage": (8, grid, 1024, 8, 8, 16),
    "16,384 ranks, tensor 8 x pipeline 16 x data 128, 1 rank of each stage": (16, grid, 16384, 8, 16, 32),
}
CASES = ["all"]


def measure(case: str, quick: bool = False) -> list[Row]:
    seconds(ddp, 2)  # the first call pays for imports
    rows: list[Row] = [{"name": LOOP, "values": [fixed_loop()]}]
    for name, program in PROGRAMS.items():
        rows.append({"name": f"simulate: {name}", "values": [seconds(*program)], "beside": LOOP})
    for name, (kinds, *program) in ALIKE.items():
        rows.append({"name": f"simulate: {name}", "values": [seconds(*program, kinds=kinds)], "beside": LOOP})
    return rows


def fixed_loop() -> float:
    began = time.perf_counter()
    total = 0
    for number in range(5_000_000):
        total += number
    return time.perf_counter() - began


def seconds(program, world_size, *args, kinds=None) -> float:
    """Real time of one call of `simulate`. kinds: if given, only the first rank of each of so many stages runs."""
    began = time.perf_counter()
    simulate(program, world_size, *args, alike=kinds and (lambda rank: rank // (world_size // kinds)))
    return time.perf_counter() - began
