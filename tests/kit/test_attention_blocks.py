"""attention_blocks.py, against torch's own causal attention."""

import torch
from torch import nn

from utils.kit.attention_blocks import attention_block, attention_block_backward, causal_attention
from utils.kit.mlp import normal

POSITIONS = torch.arange(6)


def whole() -> list[torch.Tensor]:
    return [normal(seed, 2, 3, 6, 4).requires_grad_() for seed in range(3)]


def test_causal_attention_matches_torch():
    q, k, v = whole()
    theirs = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(causal_attention(q, k, v), theirs, rtol=1e-9)


def test_a_query_that_sees_no_key_has_zeros_and_minus_infinity():
    q, k, v = whole()
    out, lse = attention_block(q, k[:, :, 3:], v[:, :, 3:], POSITIONS, POSITIONS[3:])
    assert torch.equal(out[:, :, :3], torch.zeros(2, 3, 3, 4, dtype=torch.float64))
    assert lse[:, :, :3].eq(-torch.inf).all() and lse[:, :, 3:].isfinite().all()


def test_the_gradients_of_blocks_add_up_to_torchs():
    q, k, v = whole()
    grad = normal(3, 2, 3, 6, 4)
    theirs = torch.autograd.grad(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), grad)
    with torch.no_grad():
        out, lse = attention_block(q, k, v, POSITIONS, POSITIONS)
        blocks = [
            attention_block_backward(q, k[:, :, at], v[:, :, at], out, lse, grad, POSITIONS, POSITIONS[at])
            for at in (slice(0, 2), slice(2, 6))
        ]
    dq, dk, dv = zip(*blocks, strict=True)
    mine = sum(dq), torch.cat(dk, dim=2), torch.cat(dv, dim=2)
    assert all(torch.allclose(one, other, rtol=1e-9) for one, other in zip(mine, theirs, strict=True))
