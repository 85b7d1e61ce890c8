"""transformer.py: the serial layer, against torch's own attention and plain autograd."""

import torch
from torch import nn

from utils.kit import transformer
from utils.kit.mlp import normal

D, F, HEADS = 8, 12, 4


def test_weights_are_reproducible_and_have_the_right_shapes():
    first, again, other = (transformer.make_layer(D, F, seed=seed) for seed in (0, 0, 1))
    assert tuple(first) == transformer.NAMES
    for name in first:
        assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])
    shapes = {name: tuple(weight.shape) for name, weight in first.items()}
    assert shapes["w_qkv"] == (D, 3 * D) and shapes["w_out"] == (D, D)
    assert shapes["w_up"] == (D, F) and shapes["w_down"] == (F, D) and shapes["b_up"] == (F,)
    assert all(shapes[name] == (D,) for name in (*transformer.NORMS, "b_out", "b_down"))


def test_attention_matches_torch():
    weights, x = transformer.make_layer(D, F, dtype=torch.float64), normal(1, 2, 5, D)
    theirs = nn.MultiheadAttention(D, HEADS, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(weights["w_qkv"].T)
        theirs.out_proj.weight.copy_(weights["w_out"].T)
        wanted, _ = theirs(x, x, x)
    assert torch.allclose(transformer.attention(x, weights["w_qkv"], weights["w_out"], HEADS), wanted, rtol=1e-9)


def test_the_layer_matches_torch():
    weights, x = transformer.make_layer(D, F, dtype=torch.float64), normal(1, 2, 5, D)
    theirs = nn.TransformerEncoderLayer(D, HEADS, F, 0.0, "gelu", batch_first=True, norm_first=True).double()
    names = {
        "self_attn.in_proj_weight": weights["w_qkv"].T,
        "self_attn.in_proj_bias": torch.zeros(3 * D),
        "self_attn.out_proj.weight": weights["w_out"].T,
        "self_attn.out_proj.bias": weights["b_out"],
        "linear1.weight": weights["w_up"].T,
        "linear1.bias": weights["b_up"],
        "linear2.weight": weights["w_down"].T,
        "linear2.bias": weights["b_down"],
        **{f"norm{n}.{kind}": weights[f"norm{n}_{kind}"] for n in (1, 2) for kind in ("weight", "bias")},
    }
    theirs.load_state_dict(names)
    assert torch.allclose(transformer.transformer_layer(x, weights, HEADS), theirs(x), rtol=1e-9)


def test_serial_gradients_match_finite_differences_and_change_nothing():
    weights, x = transformer.make_layer(D, F, dtype=torch.float64), normal(1, 2, 5, D)
    before = {name: weight.clone() for name, weight in weights.items()}
    y, gradients = transformer.serial_layer_gradients(x, weights, HEADS, torch.ones_like(x))
    assert list(gradients) == ["x", *transformer.NAMES]
    assert torch.allclose(gradients["b_down"], torch.full((D,), 10.0, dtype=torch.float64))
    nudged = transformer.transformer_layer(x, weights | {"b_up": weights["b_up"] + 1e-6}, HEADS)
    assert torch.allclose((nudged - y).sum() / 1e-6, gradients["b_up"].sum(), rtol=1e-4)
    assert all(torch.equal(before[name], weights[name]) and not weights[name].requires_grad for name in weights)
