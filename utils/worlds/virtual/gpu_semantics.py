"""Where torch chooses by device how it does something, tensors without values get what a GPU would do.

Dropout is one kernel there, which keeps a mask of one byte an element; attention does not keep the scores.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ...recording.torch_private import flash_attention

plain_dropout = functional.dropout
plain_attention = functional.scaled_dot_product_attention
MOST_FLASH_DIMENSIONS = 256  # of a head


def dropout(input, p: float = 0.5, training: bool = True, inplace: bool = False):
    if not (input.is_meta and training and 0 < p < 1) or inplace:
        return plain_dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **others):
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
    return flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]


def take_over() -> None:
    functional.dropout = dropout
    functional.scaled_dot_product_attention = attention
