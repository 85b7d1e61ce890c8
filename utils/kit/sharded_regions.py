"""The operators at the edges of tensor- and sequence-parallel regions, ready to use; and a group's rank and size.

blocks = blocks_for(tp_group)
y = blocks["g"](h_local @ w_down_local)        f, g: lesson 08's; gather, scatter: along dimension 1
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .functional_collectives import all_gather, all_reduce, all_to_all, reduce_scatter

Verb = Callable[[torch.Tensor], torch.Tensor]


class ThereAndBack(torch.autograd.Function):
    """`there` in the forward pass, `back` in the backward pass: the building block that some exercises are given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Verb, back: Verb) -> torch.Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(grad), None, None


def blocks_for(group: dist.ProcessGroup | None) -> dict[str, Any]:
    """{name: value}: what a layer may ask for by name. That is the group, with its rank and size; f, g, gather and
    scatter of lesson 08; and exchange(x, send, receive), lesson 11's all-to-all of rows.
    """

    def same(x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    def block(there: Verb, back: Verb) -> Verb:
        return lambda x: ThereAndBack.apply(x, there, back)  # type: ignore[no-untyped-call]

    def exchange(x: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
        there, back = partial(all_to_all, send=send, receive=receive), partial(all_to_all, send=receive, receive=send)
        return block(partial(there, group=group), partial(back, group=group))(x)

    summed = partial(all_reduce, group=group)
    gathered, scattered = (partial(verb, group=group, dim=1) for verb in (all_gather, reduce_scatter))
    return {
        "ep_group": group,
        "tp_group": group,
        "tp_rank": dist.get_rank(group),
        "tp_size": dist.get_world_size(group),
        "f": block(same, summed),
        "g": block(summed, same),
        "exchange": exchange,
        "gather": block(gathered, scattered),
        "scatter": block(scattered, gathered),
    }
