"""Where torch chooses an implementation by device, tensors without values get the GPU's.

There dropout is one kernel, which keeps a mask of one byte per element. (Attention: fused_attention.py.)
"""

from __future__ import annotations

import torch
from torch.nn import functional

plain_dropout = functional.dropout


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not (input.is_meta and training and 0 < p < 1) or inplace:
        return plain_dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]
