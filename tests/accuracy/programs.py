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
AGAIN = {"full": 1.0, "half": 0.5}  # how much of a layer's forward is recomputed
Group = dist.ProcessGroup | None  # tensor-parallel ranks; None: all ranks
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Exchange:
    """What the ranks of a tensor-parallel group exchange.

    beside   whether a collective runs beside what follows, up to the next one: a product that begins with the part that
             is there, as Transformer Engine's do
    """

    def __init__(self, sequence: bool, group: Group, beside: bool):
        self.sequence, self.group, self.beside = sequence, group, beside
        self.size = dist.get_world_size(group)
        self.under_way: dist.Work | None = None

    def gathered(self, x: Tensor) -> Tensor:
        whole = torch.empty(x.shape[0] * self.size, *x.shape[1:], dtype=x.dtype)
        self.follow(all_gather(whole, x.contiguous(), group=self.group, async_op=self.beside))
        return whole

    def summed(self, x: Tensor) -> Tensor:
        if not self.sequence:
            self.follow(dist.all_reduce(x, group=self.group, async_op=self.beside))
            return x.view_as(x)
        part = torch.empty(x.shape[0] // self.size, *x.shape[1:], dtype=x.dtype)
        self.follow(reduce_scatter(part, x.contiguous(), group=self.group, async_op=self.beside))
        return part

    def follow(self, handle: dist.Work | None) -> None:
        if self.under_way is not None:
            self.under_way.wait()
        self.under_way = handle


class Gather(torch.autograd.Function):
    """Into a part that is split by weights: all-gather of the tokens, or nothing; backward sums."""

    @staticmethod
    def forward(ctx, x, exchange):
        ctx.exchange = exchange
        return exchange.gathered(x) if exchange.sequence else x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.exchange.summed(grad), None


class Sum(torch.autograd.Function):
    """Out of it: reduce-scatter of the tokens, or all-reduce; backward gathers."""

    @staticmethod
    def forward(ctx, x, exchange):
        ctx.exchange = exchange
        return exchange.summed(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.exchange.gathered(grad) if ctx.exchange.sequence else grad, None


class ToExperts(torch.autograd.Function):
    """Each token to the ranks with its experts, equally many to each; backward the same the other way round."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return exchanged(x, group)

    @staticmethod
    def backward(ctx, grad):
        return exchanged(grad, ctx.group), None


def exchanged(x: Tensor, group: Group) -> Tensor:
    arrived = torch.empty_like(x)
    dist.all_to_all_single(arrived, x.contiguous(), group=group)
    return arrived


class Layer:
    """One transformer layer's weights on a rank: its rows or columns of each matrix, and its experts."""

    def __init__(self, model: Model, setting: Setting, group: Group = None, expert_group: Group = None):
        self.model, self.setting, self.expert_group = model, setting, expert_group
        self.exchange = Exchange(setting.sequence, group, setting.beside)
        h, parts = model.hidden, setting.tensor
        keys = max(model.key_width // parts, h // model.heads)
        self.keys, self.queries = keys, h // parts
        width = model.mlp_width // parts
        adds = setting.adds
        self.norms = [weight(adds, h) for _ in range(4)]
        self.qkv, self.out = weight(adds, self.queries + 2 * keys, h), weight(adds, h, self.queries)
        mine = max(1, model.experts // setting.experts)
        self.ups = [weight(adds, width * (2 if model.gated else 1), h) for _ in range(mine)]
        self.downs = [weight(adds, h, width) for _ in range(mine)]
        self.router = [weight(adds, model.experts, h)] if model.experts else []
        self.mask = torch.empty(tokens(model, setting), h, dtype=DTYPE)
        self.turns = torch.empty(model.sequence, h // model.heads, dtype=DTYPE)
        self.compute: Callable[[Tensor], Tensor] = torch.compile(self.forward) if setting.fused else self.forward

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, h) -> (tokens, h)"""
        return self.compute(x)

    def forward(self, x: Tensor) -> Tensor:
        inside = Gather.apply(self.norm(x, 0), self.exchange)
        queries, keys, values = functional.linear(inside, self.qkv).split([self.queries, self.keys, self.keys], dim=-1)
        core = self.flash if self.setting.flash else self.core
        if self.setting.recompute == "core":
            attended = checkpoint(core, queries, keys, values, use_reentrant=False, preserve_rng_state=False)
        else:
            attended = core(queries, keys, values)
        x = self.added(x, Sum.apply(functional.linear(attended, self.out), self.exchange))
        inside = Gather.apply(self.norm(x, 2), self.exchange)
        mixed = self.experts(inside) if self.model.experts else self.mlp(inside, self.ups[0], self.downs[0])
        return self.added(x, Sum.apply(mixed, self.exchange))

    def added(self, x: Tensor, more: Tensor) -> Tensor:
        return torch.addcmul(x, more, self.mask) if self.setting.dropout else x + more

    def mlp(self, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        inside = functional.linear(x, up)
        if not self.model.gated:
            return functional.linear(functional.gelu(inside), down)
        gate, rest = inside.chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * rest, down)

    def experts(self, x: Tensor) -> Tensor:
        """Tokens go to their experts, `top` copies of each, spread evenly; what comes back is weighted and added."""
        top = self.model.top
        chances, _ = functional.linear(x, self.router[0]).float().softmax(-1).topk(top)
        arrived = ToExperts.apply(x.repeat_interleave(top, 0), self.expert_group)
        parts = arrived.chunk(len(self.ups))
        done = torch.cat([self.mlp(part, up, down) for part, up, down in zip(parts, self.ups, self.downs, strict=True)])
        back = ToExperts.apply(done, self.expert_group).unflatten(0, (-1, top))
        return (back * chances.to(DTYPE).unsqueeze(-1)).sum(1)

    def norm(self, x: Tensor, first: int) -> Tensor:
        if self.model.llama:
            return functional.rms_norm(x, (self.model.hidden,), self.norms[first])
        return functional.layer_norm(x, (self.model.hidden,), self.norms[first], self.norms[first + 1])

    def rotated(self, x: Tensor) -> Tensor:
        """Each pair of numbers of a head, turned by an angle that grows with the token's place."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        turns = torch.view_as_complex(self.turns.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2).to(DTYPE)

    def heads(self, x: Tensor) -> Tensor:
        """(tokens, heads * d) -> (batch, heads, sequence, d)"""
        d = self.model.hidden // self.model.heads
        return x.unflatten(0, (-1, self.model.sequence)).unflatten(-1, (-1, d)).transpose(1, 2)

    def flash(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = map(self.heads, (queries, keys, values))
        if self.model.llama:
            q, k = self.rotated(q), self.rotated(k)
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


def group_of(ranks: range) -> dist.ProcessGroup:
    return dist.new_group(list(ranks), use_local_synchronization=True)


def timed(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def layer_times(model: Model, setting: Setting, group: Group) -> tuple[float, float]:
    """Seconds of one layer, forward and backward, for one microbatch."""
    layer = Layer(model, setting, group)
    x = torch.empty(tokens(model, setting), model.hidden, dtype=DTYPE, requires_grad=True)
    grad = torch.empty_like(x)
    made: list[Tensor] = []
    if setting.beside:
        layer(x)  # the first is the only one beside which no collective runs
    forward = timed(lambda: made.append(layer(x)))
    backward = timed(lambda: made[0].backward(grad))
    layer.exchange.follow(None)
    return forward, backward + forward * AGAIN.get(setting.recompute, 0.0)


def weights_of(part: Layer | Embedding | Head) -> list[Tensor]:
    held = [each for value in vars(part).values() for each in (value if isinstance(value, list) else [value])]
    return [each for each in held if isinstance(each, Tensor) and each.requires_grad]


class Embedding:
    """A rank's rows of the table. Called, it looks up the tokens of a microbatch: (tokens, h)."""

    def __init__(self, model: Model, setting: Setting, group: Group = None):
        self.exchange = Exchange(setting.sequence, group, beside=False)
        self.table = weight(setting.adds, model.vocabulary // setting.tensor, model.hidden)
        self.ids = torch.empty(setting.micro * model.sequence, dtype=torch.int64)

    def __call__(self) -> Tensor:
        return Sum.apply(functional.embedding(self.ids, self.table), self.exchange)


class Head:
    """The last norm and a rank's rows of the output matrix. Called, it gives the loss of a microbatch."""

    def __init__(self, model: Model, setting: Setting, group: Group = None):
        self.model, self.setting = model, setting
        self.exchange = Exchange(setting.sequence, group, beside=False)
        self.table = weight(setting.adds, model.vocabulary // setting.tensor, model.hidden)
        self.scale, self.shift = weight(setting.adds, model.hidden), weight(setting.adds, model.hidden)
        self.ids = torch.empty(setting.micro * model.sequence, dtype=torch.int64)

    def __call__(self, x: Tensor) -> Tensor:
        normed = functional.layer_norm(x, (self.model.hidden,), self.scale, self.shift)
        inside = Gather.apply(normed, self.exchange)
        logits = functional.linear(inside, self.table).float()
        for _ in range(3):  # the largest logit, that of the target, the sum of exponentials: over all parts
            dist.all_reduce(torch.empty(len(self.ids)), group=self.exchange.group)
        return functional.cross_entropy(logits, self.ids)


def embedding_times(model: Model, setting: Setting, group: Group) -> float:
    """Seconds of looking up the tokens of a microbatch, forward and backward."""
    look_up = Embedding(model, setting, group)

    def run() -> None:
        x = look_up()
        x.backward(torch.empty_like(x))

    return timed(run)


def head_times(model: Model, setting: Setting, group: Group) -> float:
    """Seconds of the last norm, the logits and the loss of a microbatch, forward and backward."""
    head = Head(model, setting, group)
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
    group = group_of(range(rank, rank + 1)) if setting.experts > 1 else None  # then the world is that of the experts
    forward, backward = layer_times(model, setting, group)
    return {
        "forward": forward,
        "backward": backward,
        "embedding": embedding_times(model, setting, group),
        "head": head_times(model, setting, group),
    }
