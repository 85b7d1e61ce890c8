"""What a rank computes in a plan: a layer, the embeddings and the output, as programs for the virtual cluster.

Sizes only: each kernel reads and writes as much as the one that training frameworks use, so one operation may stand for
a fused one (`glu` for SwiGLU, a multiplication for rotary embeddings, `layer_norm` for any norm).

    x: (T / tp, width) between the parts that are cut by heads and columns; T: tokens of a microbatch on a rank of cp
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ...recording.torch_private import foreach_add, softmax_to_32_bits
from .attention import Attention, Heads, Place
from .model import Model
from .plan import Plan
from .products import DTYPE, ActivatedProduct, Product, RowProduct, Sum, applied, aten
from .weights import Weights


class Piece:
    """A part of a model that a rank has. Called, it takes and returns (T / tp, width).

    weights   all of them; experts have Weights of their own, since fewer ranks hold the same
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], place: Place, data: dist.ProcessGroup):
        self.place, self.weights = place, [Weights(shapes, data)]
        self.values, self.grads = dict(self.weights[0].values), dict(self.weights[0].grads)

    def __call__(self, x: Tensor | None) -> Tensor:
        raise NotImplementedError

    def norm(self, x: Tensor | None, number: int) -> Tensor:
        scale, shift = self.values[f"scale{number}"], self.values[f"shift{number}"]
        return applied(Norm, x, scale, shift, self.grads[f"scale{number}"], self.grads[f"shift{number}"])

    def product(self, x: Tensor, name: str) -> Tensor:
        """Columns of a weight times the tokens of all tp ranks."""
        return applied(Product, x, self.values[name], self.grads[name], self.place.tp)


class Layer(Piece):
    """Attention, and an MLP or experts or both, each behind a norm and added to what came in."""

    def __init__(self, model: Model, plan: Plan, place: Place, data: dist.ProcessGroup, experts: dist.ProcessGroup):
        self.model, self.plan = model, plan
        tp, width, into = plan.tp, model.width, model.matrices - 1
        self.heads = Heads(plan.micro, model.queries // tp, max(model.keys // tp, model.head_width), model.head_width)
        shapes: dict[str, tuple[int, ...]] = {f"{name}{n}": (width,) for name in ("scale", "shift") for n in (1, 2)}
        shapes |= {"qkv": (self.heads.queries + 2 * self.heads.keys, width), "out": (width, self.heads.queries)}
        if model.dense_ffn:
            inner = model.dense_ffn // tp
            shapes |= {"up": (into * inner, width), "down": (width, inner)}
        if model.experts:
            shapes |= {"router": (model.experts, width)}
        super().__init__(shapes, place, data)
        if model.experts:
            mine, inner = model.experts // plan.ep, model.ffn // tp
            both = {"experts_up": (mine, into * inner, width), "experts_down": (mine, width, inner)}
            self.weights.append(Weights(both, experts))
            self.values |= self.weights[1].values
            self.grads |= self.weights[1].grads

    def __call__(self, x: Tensor | None) -> Tensor:
        assert x is not None
        attended = applied(Attention, self.product(self.norm(x, 1), "qkv"), self.heads, self.place, self.plan.cp)
        x = x + applied(Sum, applied(RowProduct, attended, self.values["out"], self.grads["out"]), self.place.tp)
        normed = self.norm(x, 2)
        if self.model.dense_ffn:
            x = x + applied(Sum, self.activated(self.product(normed, "up"), "down"), self.place.tp)
        return x + self.mixture(normed) if self.model.experts else x

    def activated(self, inner: Tensor, name: str) -> Tensor:
        again = self.plan.recompute == "selective"
        return applied(ActivatedProduct, inner, self.values[name], self.grads[name], self.model.gated, again)

    def mixture(self, x: Tensor) -> Tensor:
        """Balanced: each expert gets as many tokens as any other."""
        scores = applied(RowProduct, x, self.values["router"], self.grads["router"])
        weights = softmax_to_32_bits(scores, -1).topk(self.model.top, -1)[0]
        rows = applied(Exchange, applied(Dispatch, x, self.model.top, self.plan.rows(self.model)), self.place.ep)
        inner = self.product(rows, "experts_up")
        rows = applied(Sum, self.activated(inner, "experts_down"), self.place.tp)
        return applied(Combine, applied(Exchange, rows, self.place.ep), weights)


class Embeddings(Piece):
    """A rank's rows of the table. Called, it looks up the tokens of a microbatch."""

    def __init__(self, model: Model, plan: Plan, place: Place, data: dist.ProcessGroup):
        super().__init__({"table": (model.vocabulary // plan.tp, model.width)}, place, data)
        self.tokens = plan.tokens(model)

    def __call__(self, _: Tensor | None) -> Tensor:
        return applied(Sum, applied(LookUp, self.values["table"], self.grads["table"], self.tokens), self.place.tp)


class Output(Piece):
    """The last norm, the logits and the loss. table: the Embeddings with the same one, if this rank has them."""

    def __init__(
        self, model: Model, plan: Plan, place: Place, data: dist.ProcessGroup, table: Embeddings | None = None
    ):
        shapes: dict[str, tuple[int, ...]] = {"scale1": (model.width,), "shift1": (model.width,)}
        if table is None:
            shapes |= {"table": (model.vocabulary // plan.tp, model.width)}
        super().__init__(shapes, place, data)
        if table is not None:
            self.values |= table.values
            self.grads |= table.grads

    def __call__(self, x: Tensor | None) -> Tensor:
        return applied(Loss, self.product(self.norm(x, 1), "table"), self.place.tp)


# ---- what they compute besides products and attention


class Norm(Function):
    """Over the last dimension; its weights' gradients are added to 32-bit ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, *grads: Tensor) -> Tensor:
        y, mean, deviation = torch.native_layer_norm(x, x.shape[-1:], scale, shift, 1e-5)
        ctx.save_for_backward(x, mean, deviation, scale, shift)
        ctx.grads = grads
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, deviation, scale, shift = ctx.saved_tensors
        dx, *of_weights = aten.native_layer_norm_backward(
            dy, x, x.shape[-1:], mean, deviation, scale, shift, [True] * 3
        )
        foreach_add(list(ctx.grads), of_weights)
        return dx, None, None, None, None


class LookUp(Function):
    """Rows of a table: (T, width)."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, grad: Tensor, tokens: int) -> Tensor:
        ctx.grad, ctx.tokens = grad, tokens
        return functional.embedding(torch.empty(tokens, dtype=torch.int64), table)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None]:
        ids = torch.empty(ctx.tokens, dtype=torch.int64)
        ctx.grad.add_(aten.embedding_dense_backward(dy, ids, len(ctx.grad), -1, False))
        return None, None, None


class Loss(Function):
    """Cross entropy of logits whose columns are spread over tp: (T, vocabulary / tp) -> ()."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, group: dist.ProcessGroup) -> Tensor:
        chances = softmax_to_32_bits(logits, -1)
        if dist.get_world_size(group) > 1:
            for _ in range(3):  # the largest logit, that of the target, the sum of exponentials
                dist.all_reduce(torch.empty(len(logits)), group=group)
        ctx.save_for_backward(chances)
        return torch.empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        [chances] = ctx.saved_tensors
        return chances.to(DTYPE), None


class Dispatch(Function):
    """Each token once for each of its experts, sorted by expert: (T / tp, width) -> (rows, width)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, top: int, rows: int) -> Tensor:
        ctx.tokens, ctx.top = len(x), top
        return x.index_select(0, torch.empty(rows, dtype=torch.int64))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return by_token(grad, ctx.tokens, ctx.top).sum(1), None, None


class Combine(Function):
    """What a token's experts returned, added up by their weights: (rows, width), (T / tp, top) -> (T / tp, width)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights)
        return by_token(rows, *weights.shape).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        rows, weights = ctx.saved_tensors
        dweights = by_token(rows, *weights.shape).sum(-1, dtype=weights.dtype)
        return grad.index_select(0, torch.empty(len(rows), dtype=torch.int64)), dweights


def by_token(rows: Tensor, tokens: int, top: int) -> Tensor:
    return rows[: tokens * top].view(tokens, top, -1)


class Exchange(Function):
    """All-to-all: rows to the ranks that have their experts, and back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        if dist.get_world_size(group) == 1:
            return rows.view_as(rows)
        arriving = torch.empty_like(rows)
        dist.all_to_all_single(arriving, rows, group=group)
        return arriving

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return applied(Exchange, grad, ctx.group), None
