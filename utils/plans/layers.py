"""What a rank computes in a plan: a layer, the embeddings and the output, as programs for the virtual cluster.

Sizes only: each kernel reads and writes as much as the one that training frameworks use, so one operation may stand for
a fused one (`glu` for SwiGLU, a multiplication for rotary embeddings, `layer_norm` for any norm). Megatron-LM's choices
where there are several: what tensor parallelism gathers is gathered again in backward instead of kept, beside the
product that doesn't need it; products of gradients add to 32-bit gradients themselves.

    x: (tokens / tp, width) between the parts that are cut by heads and columns     T: tokens of a microbatch on a rank
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from .model import Model
from .plan import Plan

DTYPE = torch.bfloat16
aten = torch.ops.aten
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Place(NamedTuple):
    """Whom a rank talks to inside a layer: groups of its axes, and its neighbours along cp."""

    tp: dist.ProcessGroup
    ep: dist.ProcessGroup
    before: int
    after: int


# ---- weights


class Weights:
    """Parameters in one buffer, their gradients in another; the group's ranks hold the same, and share Adam's state.

    values, grads   {name: tensor}, 16 and 32 bits: parts of the buffers
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], group: dist.ProcessGroup):
        self.group, size = group, dist.get_world_size(group)
        self.each = -(-sum(map(math.prod, shapes.values())) // size)  # parameters that this rank updates
        self.buffer = torch.empty(self.each * size, dtype=DTYPE)
        self.gradients = torch.empty(self.each * size)
        self.state = [torch.empty(self.each) for _ in range(3)]  # 32-bit parameters, and Adam's two averages
        self.values, self.grads, first = {}, {}, 0
        for name, shape in shapes.items():
            where = slice(first, first + math.prod(shape))
            self.values[name] = self.buffer[where].view(shape).requires_grad_()
            self.grads[name] = self.gradients[where].view(shape)
            first = where.stop

    def gather(self) -> dist.Work | None:
        """Fetch the others' parts of the parameters, beside computing."""
        if self.each == len(self.buffer):
            return None
        work: dist.Work = all_gather(self.buffer, self.buffer[: self.each], group=self.group, async_op=True)
        return work

    def scatter(self) -> dist.Work | None:
        """Add up this rank's part of the gradients, beside computing."""
        if self.each == len(self.buffer):
            return None
        work: dist.Work = reduce_scatter(self.gradients[: self.each], self.gradients, group=self.group, async_op=True)
        return work


def update(every: list[Weights]) -> None:
    """One step of Adam on this rank's parts: the gradients' norm, the update, and the 16-bit copy."""
    grads = [weights.gradients[: weights.each] for weights in every]
    parameters, first, second = (list(part) for part in zip(*(weights.state for weights in every), strict=True))
    torch._foreach_norm(grads)
    torch._fused_adam_(
        *(parameters, grads, first, second, [], [torch.ones(()) for _ in every]),
        **{"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8},
        **{"amsgrad": False, "maximize": False},
    )
    torch._foreach_copy_([weights.buffer[: weights.each] for weights in every], parameters)


# ---- products


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x: (n, in), weight: (out, in), or (experts, out, in): then each has n / experts rows. Returns (n, out)."""
    if weight.dim() == 2:
        return x @ weight.t()
    return torch.bmm(x.view(len(weight), -1, x.shape[-1]), weight.transpose(1, 2)).flatten(0, 1)


def add_product(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    """grad += dy.T @ x, for each expert by itself. grad: 32 bits."""
    if grad.dim() == 2:
        torch.addmm(grad, dy.t(), x, out_dtype=grad.dtype, out=grad)
        return
    for of_expert, rows, inputs in zip(grad, dy.chunk(len(grad)), x.chunk(len(grad)), strict=True):
        add_product(of_expert, rows, inputs)


def gathered(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, dist.Work | None]:
    """(all ranks' rows, the handle to wait for)."""
    size = dist.get_world_size(group)
    if size == 1:
        return x, None
    whole = x.new_empty(len(x) * size, *x.shape[1:])
    return whole, all_gather(whole, x.contiguous(), group=group, async_op=True)


def summed(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, dist.Work | None]:
    """(this rank's rows of the sum, the handle to wait for)."""
    size = dist.get_world_size(group)
    if size == 1:
        return x, None
    mine = x.new_empty(len(x) // size, *x.shape[1:])
    return mine, reduce_scatter(mine, x.contiguous(), group=group, async_op=True)


def arrived(pair: tuple[Tensor, dist.Work | None]) -> Tensor:
    tensor, handle = pair
    if handle is not None:
        handle.wait()
    return tensor


class Product(torch.autograd.Function):
    """Columns of a weight times the tokens of all tp ranks: (T / tp, in) -> (T, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.grad, ctx.group = grad, group
        return multiply(arrived(gathered(x, group)), weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight = ctx.saved_tensors
        coming = gathered(x, ctx.group)  # beside the product for dx
        dx = multiply(dy, weight.transpose(-1, -2))
        whole = arrived(coming)
        going = summed(dx, ctx.group)  # beside the product for the weight's gradient
        add_product(ctx.grad, dy, whole)
        return arrived(going), None, None, None


class ActivatedProduct(torch.autograd.Function):
    """The MLP's second half, activation function and rows of a weight: (T, 2 or 1 x in) -> (T, out), a partial sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor, gated: bool, again: bool) -> Tensor:
        active = functional.glu(x, -1) if gated else functional.gelu(x)
        ctx.save_for_backward(x, weight, *([] if again else [active]))
        ctx.grad, ctx.gated = grad, gated
        return multiply(active, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, weight, *kept = ctx.saved_tensors
        active = kept[0] if kept else functional.glu(x, -1) if ctx.gated else functional.gelu(x)
        add_product(ctx.grad, dy, active)
        del active, kept
        dactive = multiply(dy, weight.transpose(-1, -2))
        dx = aten.glu_backward(dactive, x, -1) if ctx.gated else aten.gelu_backward(dactive, x)
        return dx, None, None, None, None


class RowProduct(torch.autograd.Function):
    """Rows of a weight: (T, in) -> (T, out), a partial sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.grad = grad
        return multiply(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        add_product(ctx.grad, dy, x)
        return multiply(dy, weight.transpose(-1, -2)), None, None


class Sum(torch.autograd.Function):
    """Partial sums to this rank's tokens of the sum: (T, n) -> (T / tp, n)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return arrived(summed(x, group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return arrived(gathered(grad, ctx.group)), None


# ---- attention


class Heads(NamedTuple):
    """Sequences of a microbatch, widths of this rank's queries and keys all together, and the width of a head."""

    sequences: int
    queries: int
    keys: int
    width: int

    def apart(self, x: Tensor) -> Tensor:
        """(T, heads x width) -> (sequences, heads, tokens, width), in the same memory."""
        return x.unflatten(-1, (-1, self.width)).unflatten(0, (self.sequences, -1)).transpose(1, 2)

    def together(self, x: Tensor) -> Tensor:
        """(sequences, heads, tokens, width) -> (T, heads x width)"""
        return x.transpose(1, 2).flatten(0, 1).flatten(1)

    def rotate(self, qkv: Tensor) -> None:
        """Rotary embeddings of queries and keys, in place."""
        qkv[:, : self.queries + self.keys].unflatten(-1, (-1, self.width)).mul_(qkv.new_empty(len(qkv), 1, self.width))


class Attention(torch.autograd.Function):
    """Rotary embeddings and causal attention, keys and values going round the ring of cp: (T, q + 2 k) -> (T, q).

    Tokens lie in zigzag, so a rank uses its own block causally, and half of each other one. The keys and values that
    arrive are not kept; in backward they go round again, and their gradients behind them.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: Heads, place: Place, size: int) -> Tensor:
        heads.rotate(qkv)
        q, k, v = (heads.apart(part) for part in qkv.split([heads.queries, heads.keys, heads.keys], -1))
        coming = pass_on(qkv[:, heads.queries :].contiguous(), place) if size > 1 else None
        out, lse, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
        for step in range(1, size):
            block = coming()
            coming = pass_on(block, place) if step < size - 1 else None
            more, its_lse, *_ = aten._scaled_dot_product_flash_attention(q, *first_half(block, heads), 0.0, False)
            out.lerp_(more, its_lse.unsqueeze(-1).to(out.dtype))
        ctx.save_for_backward(qkv, out, lse)
        ctx.heads, ctx.place, ctx.size, ctx.rest = heads, place, size, rest
        return heads.together(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        qkv, out, lse = ctx.saved_tensors
        heads, place, size, rest = ctx.heads, ctx.place, ctx.size, ctx.rest
        q, k, v = (heads.apart(part) for part in qkv.split([heads.queries, heads.keys, heads.keys], -1))

        def backward_of(k: Tensor, v: Tensor, causal: bool) -> list[Tensor]:
            found: list[Tensor] = aten._scaled_dot_product_flash_attention_backward(
                heads.apart(grad), q, k, v, out, lse, *rest[:4], 0.0, causal, *rest[4:6]
            )
            return found

        coming = pass_on(qkv[:, heads.queries :].contiguous(), place) if size > 1 else None
        dq, *dkv = backward_of(k, v, True)
        if size > 1:
            going = pass_on(heads.together(torch.cat(dkv, 1)), place)
        for step in range(1, size):
            block = coming()
            coming = pass_on(block, place) if step < size - 1 else None
            more, *of_half = backward_of(*first_half(block, heads), False)
            dq += more
            dblock = going()
            heads.apart(dblock)[:, :, : dblock.shape[0] // heads.sequences // 2] += torch.cat(of_half, 1)
            going = pass_on(dblock, place)
        parts = [going()] if size > 1 else map(heads.together, dkv)
        dqkv = torch.cat([heads.together(dq), *parts], -1)
        heads.rotate(dqkv)
        return dqkv, None, None, None


def pass_on(x: Tensor, place: Place) -> Callable[[], Tensor]:
    """Send x to the next rank of the ring. Returns a function that waits for what the one before sends."""
    comes = torch.empty_like(x)
    works = [dist.isend(x, place.after), dist.irecv(comes, place.before)]

    def wait() -> Tensor:
        for work in works:
            assert work is not None
            work.wait()
        return comes

    return wait


def first_half(block: Tensor, heads: Heads) -> list[Tensor]:
    """(T, 2 keys) -> keys and values of the first half of each sequence's tokens: (sequences, heads, tokens / 2, d)."""
    half: Tensor = heads.apart(block)
    return list(half[:, :, : half.shape[2] // 2].chunk(2, 1))


# ---- experts


class Dispatch(torch.autograd.Function):
    """Each token once for each of its experts, sorted by expert: (T / tp, width) -> (rows, width)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, top: int, rows: int) -> Tensor:
        ctx.tokens, ctx.top = len(x), top
        return x.index_select(0, torch.empty(rows, dtype=torch.int64))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return by_token(grad, ctx.tokens, ctx.top).sum(1), None, None


class Combine(torch.autograd.Function):
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


class Exchange(torch.autograd.Function):
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
        return Exchange.apply(grad, ctx.group), None


# ---- pieces of a model


class Piece:
    """A part of a model that a rank has. Called, it takes and returns (T / tp, width).

    weights   all of them; experts have Weights of their own, since fewer ranks hold the same
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], place: Place, data: dist.ProcessGroup):
        self.place, self.weights = place, [Weights(shapes, data)]
        self.values, self.grads = dict(self.weights[0].values), dict(self.weights[0].grads)

    def norm(self, x: Tensor, number: int) -> Tensor:
        scale, shift = self.values[f"scale{number}"], self.values[f"shift{number}"]
        return Norm.apply(x, scale, shift, self.grads[f"scale{number}"], self.grads[f"shift{number}"])

    def product(self, x: Tensor, name: str) -> Tensor:
        """Columns of a weight times the tokens of all tp ranks."""
        return Product.apply(x, self.values[name], self.grads[name], self.place.tp)


class Norm(torch.autograd.Function):
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
        dx, *of_weights = aten.native_layer_norm_backward(dy, x, x.shape[-1:], mean, deviation, scale, shift, [True] * 3)
        torch._foreach_add_(list(ctx.grads), of_weights)
        return dx, None, None, None, None


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

    def __call__(self, x: Tensor) -> Tensor:
        attended = Attention.apply(self.product(self.norm(x, 1), "qkv"), self.heads, self.place, self.plan.cp)
        x = x + Sum.apply(RowProduct.apply(attended, self.values["out"], self.grads["out"]), self.place.tp)
        normed = self.norm(x, 2)
        if self.model.dense_ffn:
            x = x + Sum.apply(self.activated(self.product(normed, "up"), "down"), self.place.tp)
        return x + self.mixture(normed) if self.model.experts else x

    def activated(self, inner: Tensor, name: str) -> Tensor:
        again = self.plan.recompute == "selective"
        return ActivatedProduct.apply(inner, self.values[name], self.grads[name], self.model.gated, again)

    def mixture(self, x: Tensor) -> Tensor:
        """Balanced: each expert gets as many tokens as any other."""
        scores = RowProduct.apply(x, self.values["router"], self.grads["router"])
        weights = aten._softmax(scores, -1, True).topk(self.model.top, -1)[0]
        rows = Exchange.apply(Dispatch.apply(x, self.model.top, self.plan.rows(self.model)), self.place.ep)
        inner = self.product(rows, "experts_up")
        rows = Sum.apply(self.activated(inner, "experts_down"), self.place.tp)
        return Combine.apply(Exchange.apply(rows, self.place.ep), weights)


class Embeddings(Piece):
    """A rank's rows of the table. Called, it looks up the tokens of a microbatch."""

    def __init__(self, model: Model, plan: Plan, place: Place, data: dist.ProcessGroup):
        super().__init__({"table": (model.vocabulary // plan.tp, model.width)}, place, data)
        self.tokens = plan.tokens(model)

    def __call__(self, _: None) -> Tensor:
        return Sum.apply(LookUp.apply(self.values["table"], self.grads["table"], self.tokens), self.place.tp)


class LookUp(torch.autograd.Function):
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


class Output(Piece):
    """The last norm, the logits and the loss. `table`: that of Embeddings, if this rank has it and the model ties them."""

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

    def __call__(self, x: Tensor) -> Tensor:
        return Loss.apply(self.product(self.norm(x, 1), "table"), self.place.tp)


class Loss(torch.autograd.Function):
    """Cross entropy of logits whose columns are spread over tp: (T, vocabulary / tp) -> ()."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, group: dist.ProcessGroup) -> Tensor:
        chances = aten._softmax(logits, -1, True)  # to 32 bits
        if dist.get_world_size(group) > 1:
            for _ in range(3):  # the largest logit, that of the target, the sum of exponentials
                dist.all_reduce(torch.empty(len(logits)), group=group)
        ctx.save_for_backward(chances)
        return chances.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        [chances] = ctx.saved_tensors
        return chances.to(DTYPE), None
