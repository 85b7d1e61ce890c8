"""Contracts of a well-known assignment on data parallelism, held against the lessons' own solutions.

The kind of Stanford's CS336, assignment 2 (systems): DDP whose communication overlaps, a sharded optimizer, and fully
sharded data parallelism, each against one process that trains on all rows. Written afresh. One contract is added: a
sharded optimizer must hold less, or plain AdamW on every rank would pass.

A thin adapter stands between: the lessons' functions bring their loss, so a contract's `step` takes rows alone.
"""

from copy import deepcopy
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import nn

from grader.authoring.lesson import read_lesson, source_file
from utils import spawn, track_memory
from utils.kit.mlp import MLP, loss_of, make_weights

pytestmark = pytest.mark.long

SOLUTIONS = Path(__file__).parents[2] / "solutions"
ROWS, DIM, STEPS = 12, 6, 4
double = torch.float64
adamw = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)


@cache
def lesson(name):
    """{name: value} after the first code cell of a lesson, which imports, and the cells of all exercises."""
    cells = read_lesson(source_file(SOLUTIONS / name)).cells
    code = [cell for cell in cells if cell.kind == "code"]
    names = {"__name__": name}
    for cell in [code[0], *(cell for cell in code if cell.exercise)]:
        exec(cell.source, names)
    return names


class Tied(nn.Module):
    """The last layer's weight is the first one's, and the one between them is frozen."""

    def __init__(self, seed):
        super().__init__()
        first, middle = (nn.Parameter(weight) for weight in make_weights(2, DIM, seed, double))
        self.first, self.middle, self.last = first, middle.requires_grad_(False), first

    def forward(self, x):
        return torch.relu(x @ self.first + x @ self.middle) @ self.last.T


def toy(seed):
    return MLP(make_weights(3, DIM, seed, double))


def rows_of(step):
    return torch.randn(ROWS, DIM, dtype=double, generator=torch.Generator().manual_seed(step))


# ---- the adapter: (model, rank, world_size) -> step(rows)


def ddp(model, rank, world_size):
    solution = lesson("05_data_parallelism")
    solution["broadcast_weights"](model, rank, world_size)
    trained = [p for p in model.parameters() if p.requires_grad]
    buckets, optimizer = solution["make_buckets"]([p.nbytes for p in model.parameters()], 400), adamw(trained)
    for bucket in buckets:
        bucket[:] = [number for number in bucket if list(model.parameters())[number].requires_grad]

    def step(rows):
        optimizer.zero_grad()
        solution["overlap_by_hooks"](model, rows, [bucket for bucket in buckets if bucket], rank, world_size)
        optimizer.step()

    return step


def sharded_optimizer(model, rank, world_size):
    solution = lesson("07_zero_fsdp")
    lesson("05_data_parallelism")["broadcast_weights"](model, rank, world_size)
    shard = solution["flat_shard"](model, rank, world_size)
    return solution["zero_1"](model, shard, adamw, rank, world_size)


def fsdp(model, rank, world_size):
    solution = lesson("07_zero_fsdp")
    lesson("05_data_parallelism")["broadcast_weights"](model, rank, world_size)
    shards = [solution["flat_shard"](nn.ParameterList([p]), rank, world_size) for p in model.parameters()]
    step = solution["zero_3"](model, shards, adamw, solution["gather_weight"], True, rank, world_size)

    def step_and_gather(rows):
        step(rows)
        if step_and_gather.last:
            for p, shard in zip(model.parameters(), shards, strict=True):
                solution["gather_weight"](p, shard, world_size)

    step_and_gather.last = False
    return step_and_gather


# ---- the contracts


def train(rank, world_size, wrapper, make):
    """Every rank starts from weights of its own; rank 0's count. Returns the weights, and the bytes held at the end."""
    model = make(seed=rank)
    with track_memory(model) as storages:
        step = wrapper(model, rank, world_size)
        for number in range(STEPS):
            if number == STEPS - 1 and hasattr(step, "last"):
                step.last = True
            step(rows_of(number).chunk(world_size)[rank].clone())
        for p in model.parameters():
            p.grad = None
        held = storages.live
    return [p.detach().clone() for p in model.parameters()], held


def in_one_process(make):
    model = deepcopy(make(seed=0))
    optimizer = adamw([p for p in model.parameters() if p.requires_grad])
    for number in range(STEPS):
        optimizer.zero_grad()
        loss_of(model(rows_of(number))).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    ("wrapper", "make"), [(ddp, toy), (ddp, Tied), (sharded_optimizer, toy), (sharded_optimizer, Tied), (fsdp, toy)]
)
def test_it_trains_as_one_process_does(wrapper, make):
    right = in_one_process(make)
    for weights, _ in spawn(train, 3, wrapper, make, backend="gloo").results:
        for got, expected in zip(weights, right, strict=True):
            assert torch.allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_a_sharded_optimizer_holds_less_than_a_plain_one():
    """Bytes: of AdamW's two averages, and the shard itself."""
    numbers, ranks = 3 * DIM * DIM, 3
    [(_, plain), *_] = spawn(train, ranks, ddp, toy, backend="gloo").results
    [(_, sharded), *_] = spawn(train, ranks, sharded_optimizer, toy, backend="gloo").results
    assert plain >= 8 * 3 * numbers  # weights and two averages
    assert sharded <= 8 * (numbers + 4 * numbers / ranks) + 8 * STEPS * ROWS * DIM
