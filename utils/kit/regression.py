"""A small problem to train on, where one can see whether a step goes in the right direction: imitate a teacher.

student, (inputs, targets) = make_student(), make_lessons(rank)     # each rank has rows of its own
loss = imitation(student(inputs), targets)                           # about 0.4 untrained, below 0.05 trained
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
