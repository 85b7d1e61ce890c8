"""What runs on the ranks of one tensor-parallel group: the pieces of a training step, each timed by the virtual clock.

A layer is Megatron's, written with torch's operations. Where Megatron has a fused kernel, one operation that reads and
writes as many bytes stands for it: gelu for bias and GELU, addcmul for bias, dropout and the residual, softmax for
scale, mask and softmax.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.accuracy.rows import Model, Setting

DTYPE = torch.bfloat16
Group = dist.ProcessGroup | None  # of tensor-parallel ranks; None: all ranks
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Gather(torch.autograd.Function):
    """Into a part that is split by weights: all-gather of the tokens, or nothing; backward sums."""

    @staticmethod
    def forward(ctx, x, sequence, group=None):
        ctx.sequence, ctx.group = sequence, group
        return gathered(x, group) if sequence else x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad, ctx.sequence, ctx.group), None, None


class Sum(torch.autograd.Function):
    """Out of it: reduce-scatter of the tokens, or all-reduce; backward gathers."""

    @staticmethod
    def forward(ctx, x, sequence, group=None):
        ctx.sequence, ctx.group = sequence, group
        return summed(x, sequence, group)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.group) if ctx.sequence else grad, None, None


def gathered(x: Tensor, group: Group) -> Tensor:
    whole = torch.empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:], dtype=x.dtype)
    all_gather(whole, x.contiguous(), group=group)
    return whole


def summed(x: Tensor, sequence: bool, group: Group) -> Tensor:
    if not sequence:
        dist.all_reduce(x, group=group)
        return x.view_as(x)
    part = torch.empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:], dtype=x.dtype)
    reduce_scatter(part, x.contiguous(), group=group)
    return part


class Layer:
    """One transformer layer's weights on a rank: its rows or columns of each matrix."""

    def __init__(self, model: Model, setting: Setting, group: Group = None):
        self.model, self.setting, self.group = model, setting, group
        h, parts = model.hidden, setting.tensor
        keys = max(model.key_width // parts, h // model.heads)
        self.keys, self.queries = keys, h // parts
        width = model.mlp_width // parts
        adds = setting.adds
        self.norms = [weight(adds, h) for _ in range(4)]
        self.qkv, self.out = weight(adds, self.queries + 2 * keys, h), weight(adds, h, self.queries)
        self.up, self.down = weight(adds, width * (2 if model.gated else 1), h), weight(adds, h, width)
        self.mask = torch.empty(tokens(model, setting), h, dtype=DTYPE)

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, h) -> (tokens, h)"""
        sequence = self.setting.sequence
        inside = Gather.apply(self.norm(x, 0), sequence, self.group)
        queries, keys, values = functional.linear(inside, self.qkv).split([self.queries, self.keys, self.keys], dim=-1)
        core = self.flash if self.setting.flash else self.core
        if self.setting.recompute == "core":
            attended = checkpoint(core, queries, keys, values, use_reentrant=False, preserve_rng_state=False)
        else:
            attended = core(queries, keys, values)
        x = torch.addcmul(x, Sum.apply(functional.linear(attended, self.out), sequence, self.group), self.mask)
        inside = functional.linear(Gather.apply(self.norm(x, 2), sequence, self.group), self.up)
        if self.model.gated:
            gate, up = inside.chunk(2, dim=-1)
            inside = functional.silu(gate) * up
        else:
            inside = functional.gelu(inside)
        return torch.addcmul(x, Sum.apply(functional.linear(inside, self.down), sequence, self.group), self.mask)

    def norm(self, x: Tensor, first: int) -> Tensor:
        return functional.layer_norm(x, (self.model.hidden,), self.norms[first], self.norms[first + 1])

    def heads(self, x: Tensor) -> Tensor:
        """(tokens, heads * d) -> (batch, heads, sequence, d)"""
        d = self.model.hidden // self.model.heads
        return x.unflatten(0, (-1, self.model.sequence)).unflatten(-1, (-1, d)).transpose(1, 2)

    def flash(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = map(self.heads, (queries, keys, values))
        repeat = q.shape[1] // k.shape[1]  # grouped queries: views, the kernel reads each key once
        k, v = (t.repeat_interleave(repeat, 1) if repeat > 1 else t for t in (k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, 1).flatten(1)

    def core(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = (self.heads(x).flatten(0, 1) for x in (queries, keys, values))
        scores = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
        mixed = torch.bmm(torch.native_dropout(scores, 0.1, True)[0], v)
        heads = queries.shape[-1] // q.shape[-1]
        return mixed.unflatten(0, (-1, heads)).transpose(1, 2).flatten(0, 1).flatten(1)


def weight(adds: bool, *shape: int) -> Tensor:
    """With a gradient already if backward is to add to it, as it does from the second microbatch on."""
    made = torch.empty(shape, dtype=DTYPE, requires_grad=True)
    if adds:
        made.grad = torch.empty(shape, dtype=DTYPE)
    return made


def tokens(model: Model, setting: Setting) -> int:
    """Of one microbatch, on a rank between the parts that are split by weights."""
    return setting.micro * model.sequence // (setting.tensor if setting.sequence else 1)


def timed(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def layer_times(model: Model, setting: Setting) -> tuple[float, float]:
    """Seconds of one layer, forward and backward, for one microbatch."""
    layer = Layer(model, setting)
    x = torch.empty(tokens(model, setting), model.hidden, dtype=DTYPE, requires_grad=True)
    grad = torch.empty_like(x)
    made: list[Tensor] = []
    forward = timed(lambda: made.append(layer(x)))
    backward = timed(lambda: made[0].backward(grad))
    return forward, backward + (forward if setting.recompute == "full" else 0.0)


class Embedding:
    """A rank's rows of the table. Called, it looks up the tokens of a microbatch: (tokens, h)."""

    def __init__(self, model: Model, setting: Setting, group: Group = None):
        self.setting, self.group = setting, group
        self.table = weight(setting.adds, model.vocabulary // setting.tensor, model.hidden)
        self.ids = torch.empty(setting.micro * model.sequence, dtype=torch.int64)

    def __call__(self) -> Tensor:
        return Sum.apply(functional.embedding(self.ids, self.table), self.setting.sequence, self.group)


class Head:
    """The last norm and a rank's rows of the output matrix. Called, it gives the loss of a microbatch."""

    def __init__(self, model: Model, setting: Setting, group: Group = None):
        self.model, self.setting, self.group = model, setting, group
        self.table = weight(setting.adds, model.vocabulary // setting.tensor, model.hidden)
        self.scale, self.shift = weight(setting.adds, model.hidden), weight(setting.adds, model.hidden)
        self.ids = torch.empty(setting.micro * model.sequence, dtype=torch.int64)

    def __call__(self, x: Tensor) -> Tensor:
        normed = functional.layer_norm(x, (self.model.hidden,), self.scale, self.shift)
        inside = Gather.apply(normed, self.setting.sequence, self.group)
        logits = functional.linear(inside, self.table).float()
        for _ in range(3):  # the largest logit, that of the target, the sum of exponentials: over all parts
            dist.all_reduce(torch.empty(len(self.ids)), group=self.group)
        return functional.cross_entropy(logits, self.ids)


def embedding_times(model: Model, setting: Setting) -> float:
    """Seconds of looking up the tokens of a microbatch, forward and backward."""
    look_up = Embedding(model, setting)

    def run() -> None:
        x = look_up()
        x.backward(torch.empty_like(x))

    return timed(run)


def head_times(model: Model, setting: Setting) -> float:
    """Seconds of the last norm, the logits and the loss of a microbatch, forward and backward."""
    head = Head(model, setting)
    x = torch.empty(tokens(model, setting), model.hidden, dtype=DTYPE, requires_grad=True)
    return timed(lambda: head(x).backward())


def optimizer(rank: int, world_size: int, parameters: int) -> float:
    """Seconds of a mixed-precision Adam on this many parameters: unscale, norm, Adam, and the 16-bit copy."""
    half = torch.empty(parameters, dtype=DTYPE)
    master, grad, first, second = (torch.empty(parameters) for _ in range(4))

    def run() -> None:
        grad.copy_(half)
        grad.norm()
        torch._fused_adam_(
            *([master], [grad], [first], [second], [], [torch.ones(())]),
            **{"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8},
            **{"amsgrad": False, "maximize": False},
        )
        half.copy_(master)

    return timed(run)


def pieces(rank: int, world_size: int, model: Model, setting: Setting) -> dict[str, float]:
    """Seconds of each piece of a step, on one rank of a tensor-parallel group."""
    forward, backward = layer_times(model, setting)
    return {
        "forward": forward,
        "backward": backward,
        "embedding": embedding_times(model, setting),
        "head": head_times(model, setting),
    }
