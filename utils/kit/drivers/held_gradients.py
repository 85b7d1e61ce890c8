"""What a rank runs where a check judges what a model's parameters hold in `grad`: no result brings that back by itself,
since a parameter leaves its gradient behind when it is sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from torch import Tensor, nn

from ...recording.torch_private import backward_hooks_of, gradient_hooks_of


class WithGradients(TypedDict):
    """What one rank computes. held: `grad` of each parameter after the call; hooks: how many are left on parameters."""

    returned: Any
    held: list[Tensor | None]
    hooks: int


def with_gradients(
    function: Callable[..., Any], model: nn.Module, data: Tensor, rank: int, world_size: int, **for_all: Any
) -> WithGradients | None:
    """Call the function with the rank's model and data, then read the model's gradients. None if it returned None."""
    returned = function(model, data, rank=rank, world_size=world_size, **for_all)
    if returned is None:
        return None
    parameters = list(model.parameters())
    left = [hooks or {} for p in parameters for hooks in (backward_hooks_of(p), gradient_hooks_of(p))]
    ours = __name__.partition(".")[0]  # virtual ranks have hooks too, of a class of ours
    types = [type(hook).__module__.partition(".")[0] for hooks in left for hook in hooks.values()]
    return {"returned": returned, "held": [p.grad for p in parameters], "hooks": sum(one != ours for one in types)}
