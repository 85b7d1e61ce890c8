"""A small problem to train on, where one can see whether a step goes in the right direction: imitate a teacher.

student, (inputs, targets) = make_student(), make_lessons(rank)     # each rank has rows of its own
loss = imitation(student(inputs), targets)                           # about 0.4 untrained, below 0.05 trained
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .data_parallel import DataParallel, Hook
from .mlp import normal

DIM, HIDDEN = 16, 32


def make_student(seed: int = 0) -> nn.Sequential:
    """An MLP of three linear layers with 2,128 parameters, the same in every call and on every rank."""
    sizes = [(DIM, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, DIM)]
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(sizes):
        linear = nn.Linear(inputs, outputs)
        linear.weight.data = (normal(1000 * seed + number, outputs, inputs) / (3 * inputs) ** 0.5).float()
        linear.bias.data = torch.zeros(outputs)
        layers += [linear, nn.GELU()]
    return nn.Sequential(*layers[:-1])


def make_lessons(rank: int, rows: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of one rank, (rows, 16) each: different rows on each rank, all from the same teacher."""
    teacher = normal(2_000_000 + seed, DIM, DIM) / DIM**0.5
    inputs = normal(3_000_000 + 1000 * seed + rank, rows, DIM)
    return inputs.float(), torch.tanh(inputs @ teacher).float()


def imitation(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared difference, a scalar."""
    return (outputs - targets).square().mean()


def train_student(
    rank: int,
    world_size: int,
    make_hook: Callable[..., Hook],
    steps: int = 60,
    seed: int = 0,
    lessons: tuple[Tensor, Tensor] | None = None,
) -> tuple[float, Tensor]:
    """Train with SGD, at a learning rate of 1, and with the hook that make_hook(rank=..., world_size=...) returns.

    lessons: this rank's rows; by default those of make_lessons.

    Returns the loss over this rank's rows after the last step, and the weights, (2128,).
    """
    hook = make_hook(rank=rank, world_size=world_size)
    replica, (inputs, targets) = DataParallel(make_student(seed), hook), lessons or make_lessons(rank, seed=seed)
    optimizer = torch.optim.SGD(replica.parameters(), lr=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        replica.backward(imitation(replica(inputs), targets))
        optimizer.step()
    with torch.no_grad():
        loss = imitation(replica(inputs), targets).item()
    return loss, nn.utils.parameters_to_vector(replica.parameters()).detach()
