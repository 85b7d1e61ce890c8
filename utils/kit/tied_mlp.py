"""A model with the parameters that data parallelism has to think about: tied, frozen, unused, used in another order.

model = AwkwardMLP(make_weights(5, 4), order=[2, 0])     # uses branch 2, then branch 0; not branch 1
model(batch)                                             # (B, D) -> (B, D)
"""

import torch
from torch import Tensor, nn

from .mlp import layer


class AwkwardMLP(nn.Module):
    """An input layer, one frozen layer, the sum of some branches, and an output layer that is the input layer again.

    weights   (D, D) each, two or more, copied: the tied one, the frozen one, then one a branch
    order     the branches that this replica uses, in the order in which it computes them; may differ between ranks
    freeze    False: the frozen layer is trained like any other
    """

    def __init__(self, weights: list[Tensor], order: list[int], freeze: bool = True):
        super().__init__()
        tied, frozen, *branches = [nn.Parameter(weight.detach().clone()) for weight in weights]
        self.first = tied
        self.frozen = frozen.requires_grad_(not freeze)
        self.branches = nn.ParameterList(branches)
        self.last = tied  # the same parameter under a second name
        self.order = list(order)

    def forward(self, x: Tensor) -> Tensor:
        x = layer(layer(x, self.first), self.frozen)
        total = torch.zeros_like(x)
        for branch in self.order:
            total = total + layer(x, self.branches[branch])
        return (x + total) @ self.last.T
