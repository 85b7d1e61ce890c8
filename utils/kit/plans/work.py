"""How long a layer, the embeddings and the output of a plan take for one microbatch, at the rates of a cluster.

The kernels and messages of layers.py one by one, each at the price that `simulate` charges for it. What runs beside a
product counts only as far as it lasts longer.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ...cluster.collective_costs import Layout, cost
from ...cluster.hardware import Cluster, Gpu, Link
from ...worlds.virtual.gpu import bound_by
from ...worlds.virtual.kernels import Kernel, Product
from .model import Model
from .plan import Plan


class Seconds(NamedTuple):
    """By part: products and attention, kernels that memory limits, and what can be seen of communication."""

    compute: float = 0.0
    memory: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0

    def times(self, number: float) -> Seconds:
        compute, memory, tp, cp, ep = self
        return Seconds(number * compute, number * memory, number * tp, number * cp, number * ep)

    def plus(self, other: Seconds) -> Seconds:
        compute, memory, tp, cp, ep = other
        return Seconds(self[0] + compute, self[1] + memory, self[2] + tp, self[3] + cp, self[4] + ep)


class Pass(NamedTuple):
    """A piece's forward and backward."""

    forward: Seconds = Seconds()
    backward: Seconds = Seconds()

    @property
    def whole(self) -> Seconds:
        return self.forward.plus(self.backward)


@lru_cache(maxsize=65536)
def collective_seconds(op: str, nbytes: float, size: int, stride: int, cluster: Cluster) -> float:
    """Of one collective among `size` ranks, every `stride`-th; 0 for one rank. nbytes: as `cost` counts."""
    if size == 1:
        return 0.0
    return cost(op, nbytes, cluster, Layout.of(cluster, range(0, size * stride, stride))).seconds


class Ledger:
    """Adds up what a piece of a rank's step takes."""

    def __init__(self, model: Model, plan: Plan, cluster: Cluster):
        self.model, self.plan, self.cluster = model, plan, cluster
        self.gpu: Gpu = cluster.gpu
        self.rates = cluster.kernel_rates
        self.compute = self.memory = self.tp = self.cp = self.ep = 0.0
        self.tokens, self.own = plan.tokens(model), plan.tokens(model) // plan.tp
        self.stream = 2 * self.own * model.width  # bytes of this rank's part of the residual stream
        self.whole = self.stream * plan.tp

    def done(self) -> Seconds:
        """The sum; counting starts anew."""
        seconds = Seconds(self.compute, self.memory, self.tp, self.cp, self.ep)
        self.compute = self.memory = self.tp = self.cp = self.ep = 0.0
        return seconds

    # ---- kernels

    def moves(self, nbytes: float, kind: str = "", number: int = 1) -> None:
        self.memory += number * bound_by(Kernel(0, nbytes, kind=kind), self.gpu, self.rates).seconds

    def product(self, m: int, n: int, k: int, batch: int = 1, number: int = 1, adds: bool = False) -> float:
        """Count `number` times `batch` products (m, k) @ (k, n), whose results may be added to 32-bit ones. Returns
        their seconds.
        """
        moved = batch * (2 * (m * k + k * n) + (12 if adds else 2) * m * n)
        kernel = Kernel(2 * batch * m * n * k, moved, "bfloat16", product=Product(batch, m, n, k, 2))
        seconds = number * bound_by(kernel, self.gpu, self.rates).seconds
        self.compute += seconds
        return seconds

    def attention(self, keys: int, causal: bool, backward: bool) -> float:
        """Seconds of fused attention of this rank's queries with so many keys per sequence. Doesn't count them."""
        model, plan = self.model, self.plan
        flops = 4 * self.tokens * keys * model.queries // plan.tp * (5 if backward else 2) // 2
        if causal and self.rates is not None:
            flops //= 2
        kernel = Kernel(flops, 0, "bfloat16", "attention_backward" if backward else "attention")
        return bound_by(kernel, self.gpu, self.rates).seconds

    # ---- communication

    def gathers(self, nbytes: float) -> float:
        return collective_seconds("all_gather", nbytes, self.plan.tp, 1, self.cluster)

    def scatters(self, nbytes: float) -> float:
        return collective_seconds("reduce_scatter", nbytes, self.plan.tp, 1, self.cluster)

    def beside(self, communication: float, product: float) -> float:
        """What communication adds to a product that runs meanwhile."""
        slowed = self.rates.beside * product if self.rates is not None and communication else 0.0
        return max(slowed, communication - product)

    def column_forward(self, nbytes: float, m: int, n: int, k: int, experts: int = 1) -> None:
        """Of (m, k) @ (k, n): the input is gathered first."""
        self.tp += self.gathers(nbytes)
        self.product(m, n, k, experts)

    def column_backward(self, nbytes: float, m: int, n: int, k: int, experts: int = 1) -> None:
        """Of (m, k) @ (k, n): the input is gathered beside the product for its gradient, which is scattered beside
        that of the weights.
        """
        self.tp += self.beside(self.gathers(nbytes), self.product(m, k, n, experts))
        self.tp += self.beside(self.scatters(nbytes), self.product(n, k, m, number=experts, adds=True))

    def row_backward(self, m: int, n: int, k: int, experts: int = 1) -> None:
        self.product(m, k, n, experts)
        self.product(n, k, m, number=experts, adds=True)

    # ---- parts of a layer

    def norm(self, backward: bool) -> None:
        own, width = self.own, self.model.width
        self.moves((3 if backward else 2) * self.stream + 8 * own + (8 if backward else 4) * width, "rows")
        if backward:
            self.moves(28 * width if self.rates is not None else 12 * width)

    def adds(self) -> None:
        self.moves(3 * self.stream)

    def heads(self) -> tuple[int, int]:
        """Widths of this rank's queries and keys."""
        return self.model.queries // self.plan.tp, max(self.model.keys // self.plan.tp, self.model.head_width)

    def attention_forward(self) -> None:
        queries, keys = self.heads()
        width, tokens = self.model.width, self.tokens
        self.norm(False)
        self.column_forward(self.whole, tokens, queries + 2 * keys, width)
        self.moves(2 * tokens * (2 * (queries + keys) + self.model.head_width))
        self.ring(False)
        self.product(tokens, width, queries)
        self.tp += self.scatters(self.whole)
        self.adds()

    def attention_backward(self) -> None:
        queries, keys = self.heads()
        width, tokens = self.model.width, self.tokens
        self.tp += self.gathers(self.whole)
        self.row_backward(tokens, width, queries)
        self.ring(True)
        self.moves(4 * tokens * (queries + 2 * keys))
        self.moves(2 * tokens * (2 * (queries + keys) + self.model.head_width))
        self.column_backward(self.whole, tokens, queries + 2 * keys, width)
        self.norm(True)
        self.adds()

    def ring(self, backward: bool) -> None:
        """Attention by blocks: the next keys and values travel meanwhile, in backward gradients of the last, too."""
        plan, tokens = self.plan, self.tokens
        length = tokens // plan.micro
        first = self.attention(length, True, backward)
        self.compute += first
        if plan.cp == 1:
            return
        queries, keys = self.heads()
        other, before = self.attention(length // 2, False, backward), self.memory
        self.compute += (plan.cp - 1) * other
        block = 4 * tokens * keys
        if backward:
            self.moves(2 * block)
            self.moves(6 * tokens * queries, number=plan.cp - 1)  # dq
            self.moves(block, number=plan.cp - 1)
            self.moves(1.5 * block, number=plan.cp - 1)
        else:
            self.moves(2 * block)
            lse = tokens * queries // self.model.head_width
            self.moves(6 * lse, number=plan.cp - 1)
            self.moves(6 * tokens * queries + 2 * lse, number=plan.cp - 1)
        step = (self.memory - before) / plan.cp
        hop = slowest_link(self.cluster, plan.cp, plan.tp).seconds(block) * (2 if backward else 1)
        self.cp += max(0.0, hop - first) + (plan.cp - 2) * max(0.0, hop - other - step)
        if backward:
            self.cp += max(0.0, hop / 2 - other - step) + hop / 2

    def active(self, tokens: int, inner: int, backward: bool) -> None:
        """The activation function: of rows with this inner width."""
        into = self.model.matrices - 1
        self.moves(2 * tokens * inner * ((1 + 2 * into) if backward else (1 + into)))

    def mlp_forward(self) -> None:
        tokens, width, inner = self.tokens, self.model.width, self.model.dense_ffn // self.plan.tp
        self.column_forward(self.whole, tokens, (self.model.matrices - 1) * inner, width)
        self.active(tokens, inner, False)
        self.product(tokens, width, inner)
        self.tp += self.scatters(self.whole)
        self.adds()

    def mlp_backward(self) -> None:
        tokens, width, inner = self.tokens, self.model.width, self.model.dense_ffn // self.plan.tp
        self.tp += self.gathers(self.whole)
        if self.plan.recompute == "selective":
            self.active(tokens, inner, False)
        self.row_backward(tokens, width, inner)
        self.active(tokens, inner, True)
        self.column_backward(self.whole, tokens, (self.model.matrices - 1) * inner, width)

    # ---- experts

    def exchange(self) -> None:
        """Rows to the experts' ranks, or back."""
        nbytes = 2 * self.plan.rows(self.model) * self.model.width
        self.ep += collective_seconds("all_to_all", nbytes, self.plan.ep, self.plan.tp, self.cluster)

    def experts(self) -> tuple[int, int, int]:
        """(how many a rank has, rows of each, inner width)"""
        mine = self.model.experts // self.plan.ep
        return mine, self.plan.rows(self.model) * self.plan.tp // mine, self.model.ffn // self.plan.tp

    def mixture_forward(self) -> None:
        model, own, rows = self.model, self.own, self.plan.rows(self.model)
        mine, each, inner = self.experts()
        sent, width, into = 2 * rows * model.width, model.width, model.matrices - 1
        self.product(own, model.experts, width)
        self.moves(6 * own * model.experts, "rows")
        self.moves(own * (4 * model.experts + 12 * model.top))
        self.moves(2 * sent + 8 * rows)
        self.exchange()
        self.column_forward(sent * self.plan.tp, each, into * inner, width, mine)
        self.active(mine * each, inner, False)
        self.product(each, width, inner, mine)
        self.tp += self.scatters(sent * self.plan.tp)
        self.exchange()
        self.moves(self.stream * (1 + model.top))
        self.adds()

    def mixture_backward(self) -> None:
        model, own, rows = self.model, self.own, self.plan.rows(self.model)
        mine, each, inner = self.experts()
        sent, width, into = 2 * rows * model.width, model.width, model.matrices - 1
        self.moves(self.stream * model.top + 4 * own * model.top)
        self.moves(2 * sent + 8 * rows)
        self.exchange()
        self.tp += self.gathers(sent * self.plan.tp)
        if self.plan.recompute == "selective":
            self.active(mine * each, inner, False)
        self.row_backward(each, width, inner, mine)
        self.active(mine * each, inner, True)
        self.column_backward(sent * self.plan.tp, each, into * inner, width, mine)
        self.exchange()
        self.moves(self.stream * (1 + model.top))
        self.moves(4 * own * model.experts, number=2)  # from the chosen scores to all
        self.moves(10 * own * model.experts, "rows")
        self.row_backward(own, model.experts, width)
        self.adds()
        if model.shared:
            self.adds()


def slowest_link(cluster: Cluster, size: int, stride: int) -> Link:
    """That a ring of neighbours crosses, at the cluster's rates."""
    return cluster.link(0, stride if (size - 1) * stride < cluster.gpus_per_node else (size - 1) * stride)


@lru_cache(maxsize=65536)
def layer_seconds(model: Model, plan: Plan, cluster: Cluster) -> Pass:
    """A layer's. Nothing of it depends on dp, pp or chunks, so plans that differ in these are asked for with 1."""
    ledger = Ledger(model, plan, cluster)
    ledger.attention_forward()
    ledger.norm(False)
    if model.dense_ffn:
        ledger.mlp_forward()
    if model.experts:
        ledger.mixture_forward()
    forward = ledger.done()
    if model.experts:
        ledger.mixture_backward()
    if model.dense_ffn:
        ledger.mlp_backward()
    ledger.norm(True)
    ledger.adds()
    ledger.attention_backward()
    backward = ledger.done()
    return Pass(forward, backward.plus(forward) if plan.recompute == "full" else backward)


@lru_cache(maxsize=65536)
def embedding_seconds(model: Model, plan: Plan, cluster: Cluster) -> Pass:
    ledger, table = Ledger(model, plan, cluster), model.vocabulary // plan.tp * model.width
    ledger.moves(2 * ledger.whole + 8 * ledger.tokens)
    ledger.tp += ledger.scatters(ledger.whole)
    forward = ledger.done()
    ledger.tp += ledger.gathers(ledger.whole)
    ledger.moves(2 * table + ledger.whole + 8 * ledger.tokens)
    ledger.moves(10 * table)
    return Pass(forward, ledger.done())


@lru_cache(maxsize=65536)
def output_seconds(model: Model, plan: Plan, cluster: Cluster) -> Pass:
    """The last norm, the logits and the loss."""
    ledger, columns = Ledger(model, plan, cluster), model.vocabulary // plan.tp
    ledger.norm(False)
    ledger.column_forward(ledger.whole, ledger.tokens, columns, model.width)
    ledger.moves(6 * ledger.tokens * columns, "rows")
    ledger.tp += 3 * collective_seconds("all_reduce", 4 * ledger.tokens, plan.tp, 1, cluster)
    forward = ledger.done()
    ledger.moves(6 * ledger.tokens * columns)
    ledger.column_backward(ledger.whole, ledger.tokens, columns, model.width)
    ledger.norm(True)
    return Pass(forward, ledger.done())


def optimizer_seconds(parameters: float, cluster: Cluster) -> float:
    """Adam on this many: the gradients' norm, the update, the 16-bit copy. Achieved rates count writing, too."""
    gpu, rates = cluster.gpu, cluster.kernel_rates
    moved = (4, 16, 6) if rates is None else (4, 28, 8)
    return math.fsum(bound_by(Kernel(0, nbytes * parameters), gpu, rates).seconds for nbytes in moved)
