"""What a rank runs where a check judges what a model's parameters hold in `grad`: no result brings that back by itself,
since a parameter leaves its gradient behind when it is sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from torch import Tensor, nn


class WithGradients(TypedDict):
    """What one rank computes. held: `grad` of each parameter after the call."""

    returned: Any
    held: list[Tensor | None]


def with_gradients(
    function: Callable[..., Any], model: nn.Module, data: Tensor, rank: int, world_size: int, **same: Any
) -> WithGradients | None:
    """Call the function with the rank's model and data, then read the model's gradients. None if it returned None."""
    returned = function(model, data, rank=rank, world_size=world_size, **same)
    if returned is None:
        return None
    return {"returned": returned, "held": [parameter.grad for parameter in model.parameters()]}
