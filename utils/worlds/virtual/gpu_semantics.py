"""Where torch chooses an implementation by device, tensors without values get the GPU's.

There dropout is one kernel, which keeps a mask of one byte per element, and attention does not keep the scores.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn import functional

from ...recording.torch_private import flash_attention

plain_dropout = functional.dropout
plain_attention = functional.scaled_dot_product_attention
MOST_FLASH_DIMENSIONS = 256  # per head


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not (input.is_meta and training and 0 < p < 1) or inplace:
        return plain_dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **others: Any,
) -> torch.Tensor:
    can_flash = (
        query.is_meta
        and attn_mask is None
        and not others.get("enable_gqa")
        and query.dim() == 4
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] <= MOST_FLASH_DIMENSIONS
    )
    if not can_flash:
        return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **others)
    output: torch.Tensor = flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return output


def patch_functional() -> None:
    functional.dropout = dropout
    # A program that has imported the function itself arrives with a reference to where C++ put it.
    for module in (functional, sys.modules[plain_attention.__module__]):
        module.scaled_dot_product_attention = attention  # type: ignore[attr-defined]
