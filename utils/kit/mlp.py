"""The model that every parallelism in this course trains, and its training on one process: the oracle.

A deep MLP of square layers, x = gelu(x @ weight). The loss is the mean of the squared outputs, the optimizer AdamW.

    weights = make_weights(num_layers=4, num_dim=8)
    batch = make_batch(batch_size=6, num_dim=8)
    loss, gradients = serial_gradients(weights, batch)
    losses = train_serially(weights, [batch, batch], lr=0.01)      # two steps; the weights change in place
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from .generators import generator_of

BATCH_SIZE, NUM_DIM = 128, 1024  # sizes for measuring; checks use small ones


def make_weights(num_layers: int, num_dim: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The initial weights, (num_dim, num_dim) each: different for every layer, the same in every call, on every rank.

    Entries are normal with standard deviation 1 / sqrt(num_dim), so that activations keep their scale. A layer's weight
    does not depend on the number of layers.
    """
    return [normal(1000 * seed + layer, num_dim, num_dim).div(num_dim**0.5).to(dtype) for layer in range(num_layers)]


def make_batch(
    batch_size: int = BATCH_SIZE, num_dim: int = NUM_DIM, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The input of one step, (batch_size, num_dim), standard normal; the same in every call and on every rank."""
    return normal(1_000_000 + seed, batch_size, num_dim).to(dtype)


def normal(seed: int, *shape: int) -> Tensor:
    """Standard normal float64 numbers, from a generator of their own."""
    return torch.randn(shape, generator=generator_of(seed), dtype=torch.float64)


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """One layer: (B, D) @ (D, D) -> (B, D)."""
    return nn.functional.gelu(x @ weight)


def forward(weights: Iterable[Tensor], x: Tensor) -> Tensor:
    """All layers in order: (B, D) -> (B, D)."""
    for weight in weights:
        x = layer(x, weight)
    return x


def loss_of(output: Tensor) -> Tensor:
    """The mean of the squares of all entries, a scalar. The loss of two equal batches is the mean of their losses."""
    return output.square().mean()


def serial_gradients(weights: list[Tensor], batch: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(loss, gradient with respect to each weight) on the whole batch, by one process; changes nothing."""
    leaves = [weight.detach().clone().requires_grad_() for weight in weights]
    loss = loss_of(forward(leaves, batch))
    return loss.detach(), list(torch.autograd.grad(loss, leaves))


def train_serially(weights: list[Tensor], batches: list[Tensor], lr: float = 1e-3) -> list[float]:
    """Train with AdamW, one step per batch; updates `weights` in place. Returns each step's loss, before its update."""
    leaves = [weight.requires_grad_() for weight in weights]
    optimizer, losses = torch.optim.AdamW(leaves, lr=lr), []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(forward(leaves, batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for weight in weights:
        weight.requires_grad_(False)
        weight.grad = None
    return losses


class MLP(nn.Module):
    """The same model as a module, for torch's own wrappers. Copies `weights`, one parameter per layer."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(weight.detach().clone()) for weight in weights])

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)"""
        return forward(self.weights, x)
