"""The same rank programs on real ranks and on a virtual copy of this machine, and how long their regions took.

`region` measures both worlds: its times are real in one and virtual in the other. Predicted is what Gloo's algorithms
take. The ranks share the cores that carry the messages, and no two have a link to themselves; in backward, messages
need the cores that compute, so little overlaps; the overhead of autograd and DDP is not modelled.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tests.bench import Row
from utils import measure_this_machine, region, simulate, spawn

SIZES = {16 << 10: "16 KiB", 4 << 20: "4 MiB"}  # as nccl-tests count: of the whole
MODELS = [(8, 256), (4, 1024)]  # layers, width
REPEATS = 15  # on real ranks, after a first one that doesn't count
BATCH = 128
CASES = ["2", "4"]  # ranks

reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13


def measure(ranks: str, quick: bool = False) -> list[Row]:
    world_size = int(ranks)
    cluster = measure_this_machine(world_size, backend="gloo")
    repeats = REPEATS // 3 if quick else REPEATS
    measured = seconds_of(spawn(sweep, world_size, repeats + 1, backend="gloo"))
    predicted = seconds_of(simulate(sweep, world_size, 2, cluster=cluster))
    for model in MODELS:
        measured |= seconds_of(spawn(train, world_size, *model, repeats + 1, backend="gloo"))
        predicted |= seconds_of(simulate(train, world_size, *model, 2, cluster=cluster))
    rows: list[Row] = []
    for region_name, seconds in measured.items():
        name = f"{region_name}, {ranks} ranks"
        rows.append({"name": name, "values": [seconds]})
        rows.append({"name": f"  predicted: {name}", "values": [predicted[region_name]], "beside": name})
    return rows


# ---- collectives


def collectives(rank, world_size, nbytes):
    """{name: a function that calls it}, with their own tensors."""
    whole, other = torch.ones(nbytes // 4), torch.ones(nbytes // 4)
    parts, part = list(other.chunk(world_size)), torch.ones(nbytes // 4 // world_size)
    there_and_back = {0: (dist.send, dist.recv), 1: (dist.recv, dist.send)}.get(rank, ())
    return {
        "ping-pong": lambda: [way(whole, 1 - rank) for way in there_and_back],
        "all_reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX),  # a sum would grow with every call
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather(parts, part),
        "reduce_scatter": lambda: reduce_scatter(part, other, dist.ReduceOp.MAX),
        "reduce": lambda: dist.reduce(other, 0, dist.ReduceOp.MAX),
        "gather": lambda: dist.gather(part, parts if rank == 0 else None),
        "scatter": lambda: dist.scatter(part, parts if rank == 0 else None),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }


def calls_in_a_row(nbytes):
    return max(2, min(10, (1 << 20) // nbytes))


def sweep(rank, world_size, turns):
    """Every collective at every size, some calls in a row, as in benchmarks; all of that `turns` times."""
    programs = {nbytes: collectives(rank, world_size, nbytes) for nbytes in SIZES}
    for _ in range(turns):
        for nbytes, calls in programs.items():
            for name, call in calls.items():
                dist.barrier()
                with region(f"{calls_in_a_row(nbytes)} x {name} of {SIZES[nbytes]}"):
                    for _ in range(calls_in_a_row(nbytes)):
                        call()


def seconds_of(run):
    """{region: seconds from its last start on any rank to its last end, the quickest of all but the first time}.

    On a machine that does other things as well, the quickest of many says most about the machine itself.
    """
    spans = {}
    for span in run.regions:
        spans.setdefault(span.name, {}).setdefault(span.rank, []).append(span)
    seconds = {}
    for name, ranks in spans.items():
        together = list(zip(*ranks.values(), strict=True))[1:]
        seconds[name] = min(max(one.end for one in all) - max(one.start for one in all) for all in together)
    return seconds


# ---- a training step


class MLP(nn.Module):
    """`layers` square matrices, each followed by a GELU."""

    def __init__(self, layers, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x


def train(rank, world_size, layers, width, steps):
    """Steps of torch's DDP, each after a barrier."""
    model = nn.parallel.DistributedDataParallel(MLP(layers, width))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(BATCH, width)
    for _ in range(steps):
        dist.barrier()
        with region(f"DDP step of an MLP, {layers} x {width}"):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
