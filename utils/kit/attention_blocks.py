"""Causal attention in blocks: some queries look at some keys. What ring attention computes at each of its steps.

    out, lse = attention_block(q, k, v, q_positions, k_positions)
    out, lse = flash_block(q, k, v, causal=True)               where no positions are needed
    dq, dk, dv = attention_block_backward(q, k, v, out, lse, grad, q_positions, k_positions)

`lse` is the logarithm of the sum of a query's exponentials, -inf for a query that may look at none of these keys; its
`out` is 0. With `out` and `lse` of ALL keys, the backward of a block gives that block's part of the gradients.

q, k, v, out, grad: (B, heads, S, d), lse: (B, heads, S); S may differ between queries and keys. The positions, (S,),
int64, are those in the whole sequence: a query looks at keys up to its own position.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scores_of(q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """(B, heads, Sq, Sk), with -inf where a query may not look."""
    hidden = k_positions[None, :] > q_positions[:, None]
    scores: Tensor = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
    return scores


def attention_block(q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) of these queries among these keys alone."""
    scores = scores_of(q, k, q_positions, k_positions)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0.0)  # -inf minus -inf: such a query looks at nothing
    return weights @ v, lse


def flash_block(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """(out, lse) as FlashAttention's kernels give them: all queries among all keys, or query i among keys 0 to i."""
    last = torch.full((q.shape[2],), k.shape[2] - 1, device=q.device)  # the last key that each query sees
    keys = torch.arange(k.shape[2], device=q.device)
    return attention_block(q, k, v, keys[: q.shape[2]] if causal else last, keys)


def attention_block_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv): this block's part of the gradients. out, lse: those of all keys; grad: with respect to out."""
    weights = (scores_of(q, k, q_positions, k_positions) - lse.unsqueeze(-1)).exp()
    dv = weights.transpose(-1, -2) @ grad
    dscores = weights * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    return dscores @ k, dscores.transpose(-1, -2) @ q, dv


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in one process, over the whole sequence: (B, heads, S, d) three times -> (B, heads, S, d)."""
    positions = torch.ones_like(q[0, 0, :, 0], dtype=torch.int64).cumsum(0)  # q's device, which may have no real memory
    return attention_block(q, k, v, positions, positions)[0]
