"""A mixture of experts in one process: the oracle of expert parallelism.

experts = make_experts(num_experts=4, num_dim=8, num_hidden=16)
y = mixture(x, gates, *experts)               # gates (T, E): the weight of each expert for each token, 0 if not chosen
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .mlp import normal


def make_experts(
    num_experts: int, num_dim: int, num_hidden: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """The weights of all experts, (E, D, F) and (E, F, D): the same in every call and on every rank."""
    w_up = normal(2_000_000 + 2 * seed, num_experts, num_dim, num_hidden) / num_dim**0.5
    w_down = normal(2_000_001 + 2 * seed, num_experts, num_hidden, num_dim) / num_hidden**0.5
    return w_up.to(dtype), w_down.to(dtype)


def expert_mlp(x: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """One expert: (n, D) @ (D, F) @ (F, D) -> (n, D). n may be 0. With weights of E experts: (E, n, D)."""
    return nn.functional.gelu(x @ w_up) @ w_down


def mixture(x: Tensor, gates: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """The layer, with every expert computed for every token: slow, and hard to get wrong.

    x: (T, D). gates: (T, E). w_up: (E, D, F). w_down: (E, F, D). Returns (T, D).
    """
    return torch.einsum("te,etd->td", gates, expert_mlp(x, w_up, w_down))
