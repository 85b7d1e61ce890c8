"""Call the function of an answer that returns a model's gradients, and look at what it leaves in the model, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn


class Gradients(NamedTuple):
    """What one rank returned, and what it left in `grad` of its model's parameters, which is not sent with a model."""

    returned: Any
    left: list[Tensor | None]


def with_gradients_left(
    function: Callable[..., Any], model: nn.Module, shard: Tensor, rank: int, world_size: int, **same: Any
) -> Gradients | None:
    """None if the function returned nothing."""
    returned = function(model, shard, **same, rank=rank, world_size=world_size)
    if returned is None:
        return None
    return Gradients(returned, [parameter.grad for parameter in model.parameters()])
