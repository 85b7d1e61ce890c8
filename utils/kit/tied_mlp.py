"""A model with the parameters that data parallelism must allow for: tied, frozen, unused, used in a different order.

model = AwkwardMLP(make_weights(5, 4), order=[2, 0])     # uses branch 2, then branch 0; not branch 1
model(batch)                                             # (B, D) -> (B, D)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .mlp import layer


class AwkwardMLP(nn.Module):
    """An input layer, a frozen layer, a sum of branches, and an output layer whose weight is the input layer's.

    weights   two or more, (D, D) each, copied: the tied weight, the frozen one, then one per branch
    order     the branches that this replica uses, in the order in which it computes them; may differ between ranks
    freeze    False: train the frozen layer like any other
    """

    def __init__(self, weights: list[Tensor], order: list[int], freeze: bool = True) -> None:
        super().__init__()
        tied, frozen, *branches = [nn.Parameter(weight.detach().clone()) for weight in weights]
        self.first = tied
        self.frozen = frozen.requires_grad_(not freeze)
        self.branches = nn.ParameterList(branches)
        self.last = tied  # the same parameter under a second name
        self.order = list(order)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)"""
        x = layer(layer(x, self.first), self.frozen)
        total = torch.zeros_like(x)
        for branch in self.order:
            total = total + layer(x, self.branches[branch])
        return (x + total) @ self.last.T
