"""A transformer layer on one process: the oracle for everything that shards one.

    weights = make_layer(width=8, hidden=32, seed=0)             {name: tensor}, see NAMES
    y = transformer_layer(x, weights, num_heads=4)               (B, S, D) -> (B, S, D)
    y, gradients = serial_layer_gradients(x, weights, 4, grad)   by autograd, including that of "x"

x -> LayerNorm -> attention -> + x -> LayerNorm -> MLP -> + x: pre-norm, as in GPT-2 and GPT-3. Every position
attends to all positions; with `look=causal_attention` (attention_blocks.py) only to those up to itself.

A small language model of such layers, causal, with an embedding table that is the output layer too:

    model = make_language_model(vocabulary=16, length=8, width=8, hidden=32, layers=2)
    loss = language_model_loss(model, tokens, num_heads=4)       tokens: (B, length + 1), int64
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .attention_blocks import causal_attention
from .mlp import normal

NORMS = ("norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias")
NAMES = (*NORMS, "w_qkv", "w_out", "b_out", "w_up", "b_up", "w_down", "b_down")


def make_layer(width: int, hidden: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The weights of a layer with D = width and F = hidden; the same in every call and on every rank.

    norm*_weight, norm*_bias, b_out, b_down (D,); b_up (F,); w_qkv (D, 3 D), the columns of Q, then K, then V;
    w_out (D, D); w_up (D, F); w_down (F, D). Matrices are normal with standard deviation 1 / sqrt(rows).
    """
    shapes = {"w_qkv": (width, 3 * width), "w_out": (width, width), "w_up": (width, hidden), "w_down": (hidden, width)}
    weights = {}
    for index, name in enumerate(NAMES):
        shape = shapes.get(name) or (hidden if name == "b_up" else width,)
        noise = normal(1000 * seed + 500 + index, *shape)
        scale = shape[0] ** -0.5 if name in shapes else 0.1
        weights[name] = (noise * scale + (name in ("norm1_weight", "norm2_weight"))).to(dtype)
    return weights


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(d)) v for each head separately: three times (B, heads, S, d) -> (B, heads, S, d)."""
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5  # (B, heads, S, S)
    return nn.functional.dropout(scores.softmax(-1), dropout) @ v


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, S, heads * d) -> (B, heads, S, d)"""
    heads: Tensor = x.unflatten(-1, (num_heads, -1))
    return heads.transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, S, d) -> (B, S, heads * d)"""
    return x.transpose(1, 2).flatten(2)


Look = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v -> what attend returns


def attention(x: Tensor, w_qkv: Tensor, w_out: Tensor, num_heads: int, look: Look = attend) -> Tensor:
    """(B, S, D) -> (B, S, D), without biases. A head's columns in Q, K and V, and its rows of w_out, are adjacent."""
    q, k, v = (split_heads(part, num_heads) for part in (x @ w_qkv).chunk(3, dim=-1))
    return merge_heads(look(q, k, v)) @ w_out


def mlp(x: Tensor, w_up: Tensor, b_up: Tensor, w_down: Tensor, b_down: Tensor) -> Tensor:
    """(..., D) -> (..., F) -> (..., D)"""
    return nn.functional.gelu(x @ w_up + b_up) @ w_down + b_down


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalizes each token over its D features: (..., D) -> (..., D)."""
    return nn.functional.layer_norm(x, weight.shape, weight, bias)


def transformer_layer(x: Tensor, weights: dict[str, Tensor], num_heads: int, look: Look = attend) -> Tensor:
    """(B, S, D) -> (B, S, D), without dropout."""
    w = weights
    h = layer_norm(x, w["norm1_weight"], w["norm1_bias"])
    x = x + attention(h, w["w_qkv"], w["w_out"], num_heads, look) + w["b_out"]
    h = layer_norm(x, w["norm2_weight"], w["norm2_bias"])
    return x + mlp(h, w["w_up"], w["b_up"], w["w_down"], w["b_down"])


def serial_layer_gradients(
    x: Tensor, weights: dict[str, Tensor], num_heads: int, grad: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """(y, {name: gradient}) of one layer, given the gradient `grad` with respect to y; "x" is one of the names.

    Changes nothing.
    """
    leaves = {name: value.detach().clone().requires_grad_() for name, value in {"x": x, **weights}.items()}
    y = transformer_layer(leaves["x"], leaves, num_heads)
    return y.detach(), dict(zip(leaves, torch.autograd.grad(y, list(leaves.values()), grad), strict=True))


def make_language_model(
    vocabulary: int,
    length: int,
    width: int,
    hidden: int,
    layers: int,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """{name: weight}, the same in every call and on every rank: "table" (V, D), "positions" (length, D), those of
    layer n as "n.w_qkv" and so on, "norm_weight" and "norm_bias" (D,) of the last LayerNorm.
    """
    model = {
        "table": normal(2000 + seed, vocabulary, width).mul(width**-0.5).to(dtype),
        "positions": normal(3000 + seed, length, width).mul(0.1).to(dtype),
    }
    for n in range(layers):
        model |= {f"{n}.{name}": weight for name, weight in make_layer(width, hidden, 100 * seed + n, dtype).items()}
    return model | {"norm_weight": torch.ones(width, dtype=dtype), "norm_bias": torch.zeros(width, dtype=dtype)}


def of_layer(model: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """The weights of one layer, by the names of NAMES."""
    return {name: model[f"{number}.{name}"] for name in NAMES}


def language_model_loss(model: dict[str, Tensor], tokens: Tensor, num_heads: int) -> Tensor:
    """The mean cross-entropy of each next token, a scalar. tokens: (B, S + 1), int64; S at most the model's length."""
    given, wanted = tokens[:, :-1], tokens[:, 1:]
    x = model["table"][given] + model["positions"][: given.shape[1]]
    for number in range(sum(name.endswith(".w_qkv") for name in model)):
        x = transformer_layer(x, of_layer(model, number), num_heads, causal_attention)
    logits = layer_norm(x, model["norm_weight"], model["norm_bias"]) @ model["table"].T
    return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
