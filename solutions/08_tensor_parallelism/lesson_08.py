# %% [markdown] question="How do several GPUs compute one layer together, and when does it pay?"
# # Tensor parallelism
# *you need: lesson 01 (all-reduce, all-gather, reduce-scatter), matrix products and
# how PyTorch's autograd is used. Writing your own autograd functions is explained here.*
#
# Data parallelism gives each GPU different examples and the whole model. But what if a single **layer** is too large,
# or a single example? Then the matrices themselves are cut, and several GPUs compute one matrix product together.
#
# By the end of this lesson you will be able to cut every part of a transformer, from embedding to loss, so that its
# result and all gradients are those of a single GPU. You will know how many bytes that moves, how much memory it saves,
# and why nobody does it across slow links.

# %%
import warnings
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import dropout, gelu

from utils import figures, region, simulate, spawn, track_memory
from utils.checks import checks_for
from utils.cluster import find_cluster
from utils.kit import mlp, transformer
from utils.kit.functional_collectives import all_gather, all_reduce, reduce_scatter
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.transformer import attend, layer_norm, merge_heads, split_heads
from utils.text import tables

check = checks_for("08_tensor_parallelism")
# this lesson computes on the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# peaks and bandwidths of the datasheets: you can work out the times by hand
simulate = partial(simulate, rates="datasheet")

# %% [markdown]
# ## Why: what data parallelism can't cut
# Take one layer of GPT-3: width $D = 12288$, 96 heads, sequences of $S = 2048$ tokens. Training it with Adam in mixed
# precision takes 16 bytes per weight. The backward pass also needs the **activations**, the intermediate results of the
# forward pass. The well-known count (Korthikanti et al., 2022) is $S B D\,(34 + 5 a S / D)$ bytes per layer, for $B$
# sequences and $a$ heads. You will measure it in part 6.

# %%
D, S, a, layers = 12288, 2048, 96, 96
# attention: q, k, v, output, D x D each; MLP: D x 4 D and 4 D x D
weights_of_a_layer = 12 * D * D
activations = S * 1 * D * (34 + 5 * a * S / D)  # bytes of one sequence
for count in (1, layers):
    states, kept = count * 16 * weights_of_a_layer / 1e9, count * activations / 1e9
    print(
        f"{count:2} layers: {states:7,.1f} GB for weights, gradients, optimizer; "
        f"{kept:7,.3f} GB of activations"
    )

# %% [markdown]
# Data parallelism copies the weights and can't cut one sequence in two. ZeRO (lesson 07) spreads the weights, but each
# GPU still computes whole layers, with all their activations. Pipelines (lesson 09) spread the layers. **Tensor
# parallelism** cuts inside the layer, which brings down both numbers, even for a single layer.
#
# ### Words and letters of this lesson
# - $t$, in code `tp_size`: how many ranks share each layer; `tp_rank`: which of them this one is; `tp_group`: the
#   process group that they form. Here it is often the whole world, but never rely on that: pass it to every call.
# - $B$ sequences · $S$ tokens in each · $D$ the width of the model · $F$ the hidden width of its MLP, usually $4 D$.
# - `x` is whole on every rank. `x_local` is this rank's shard. `x_partial` has the full shape, but holds only this
#   rank's summand: the true value is the sum over the ranks.
# - Weights are used as `x @ w`, so `w` has the shape (inputs, outputs). (`nn.Linear` stores the transpose.)

# %% [markdown]
# # Part 1 · Two ways to cut a matrix
# A matrix product can be shared by cutting the weight into **columns** or into **rows**. Do it by hand first, in one
# process with lists. **Predict** before you run it: which of the two needs all of `x` on each rank?
# Which leaves results that must be added up? Predictions earn no points, and you can skip them; but a guess that turns
# out wrong is what you'll remember.

# %%
predict("all of x is needed by", ..., choices=["columns", "rows"])
predict("results to add up are left by", ..., choices=["columns", "rows"])

# %%
x, w = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(3, 4)
by_columns = [x @ part for part in w.chunk(2, dim=1)]  # (2, 3) @ (3, 2) -> (2, 2) each
torch.equal(torch.cat(by_columns, dim=1), x @ w)

# %%
x, w = torch.arange(8.0).view(2, 4), torch.arange(12.0).view(4, 3)
# (2, 2) @ (2, 3) each
by_rows = [
    x_part @ w_part for x_part, w_part in zip(x.chunk(2, dim=1), w.chunk(2, dim=0))
]
torch.equal(by_rows[0] + by_rows[1], x @ w), by_rows[0].shape

# %%
reveal("all of x is needed by", "columns", why="Each output feature is made of all input features.")
reveal(
    "results to add up are left by",
    "columns" if by_columns[0].shape == (x @ w).shape else "rows",
    why="Each product has the full shape, (2, 3), but holds only one summand of each number.",
)

# %% [markdown]
# As pictures, for 2 ranks:

# %%
figures.sharded_matmul("columns", tp_size=2)

# %%
figures.sharded_matmul("rows", tp_size=2)

# %% [markdown]
# - **Column-parallel**: each rank needs the whole `x` and gets a slice of the output's features. Nothing is sent.
# - **Row-parallel**: each rank needs only its slice of the input's features. Its result has the full shape, but is a
#   **partial sum**. (You may read elsewhere that the inputs must be gathered first. They needn't be: each rank already
#   has the slice that it needs. It is the outputs that must be added up.)
#
# The three collectives of this lesson come as **verbs**: functions that return a new tensor, leave their input
# unchanged, and are invisible to autograd.

# %% tags=["notebook-only"]
def three_verbs(rank, world_size):
    x = torch.tensor([[1.0, 2.0]]) * 10**rank
    return {
        "all_reduce": all_reduce(x).tolist(),
        "all_gather": all_gather(x, dim=1).tolist(),
        "reduce_scatter": reduce_scatter(x, dim=1).tolist(),
    }

spawn(three_verbs, 2).results

# %% [markdown]
# Each takes the group as its second argument, as in `all_reduce(x, tp_group)`; without one, it takes in all ranks.
# `dim` is the dimension along which the shards lie, and $t$ must divide its size.

# %% [markdown]
# ## Sharding a weight
#
# A sharded model should be **the same model**: its shards, put together, are the weight that one process would have
# drawn. Otherwise you can't compare anything, and the number of GPUs changes what you train. Three things go wrong in
# practice:
#
# - All ranks draw a shard with the same seed: all shards are equal, and the layer computes the same features $t$ times.
# - Each rank draws with a seed of its own: good numbers, but a different model for each $t$.
# - The scale comes from the **shard's** shape. A row-shard has fewer inputs than the layer, so $1/\sqrt{\text{inputs}}$
#   is too large.
#
# The simple fix: every rank draws the whole weight with the same seed, and keeps its part. There is one more trap in
# "keeps": a slice of a tensor is a view, and a view keeps **all** of the tensor's memory alive.

# %% exercise="shard-of-weight" difficulty=2 minutes=10
def shard_of_weight(
    fan_in: int, fan_out: int, dim: int, seed: int, tp_rank: int, tp_size: int
) -> Tensor:
    """Return this rank's part of a weight (fan_in, fan_out), cut along `dim` into
    tp_size consecutive parts.

    The whole weight is what one process draws: torch.randn(fan_in, fan_out,
    generator=generator) / sqrt(fan_in).
    dim: 0 (rows) or 1 (columns); tp_size divides that dimension.
    Returns float32 of shape (fan_in / tp_size, fan_out) or (fan_in, fan_out / tp_size),
    which keeps no more memory alive than its own size.
    """
    generator = torch.Generator().manual_seed(seed)
    ### BEGIN SOLUTION
    whole = torch.randn(fan_in, fan_out, generator=generator) / fan_in**0.5
    # a clone: the view would keep the whole weight
    return whole.chunk(tp_size, dim)[tp_rank].clone()
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# `tensor.chunk(parts, dim)` cuts into a tuple of views. `.clone()` copies a view into memory of its own.
# </details>

# %% check="shard-of-weight" judges="values" points=2
check(shard_of_weight, judges="values")

# %% check="shard-of-weight" judges="memory" points=1
check(shard_of_weight, judges="memory")

# %% [markdown]
# For a moment, this takes the memory of the whole weight. Megatron does the same when asked to initialise on the CPU.
# On the GPU, it draws each shard separately, from a generator of its own, and accepts that a different $t$ gives a
# different model.

# %% [markdown]
# ## Column-parallel layer
#
# First, both passes by hand, without autograd. The layer is $y = x w + b$, and each rank has some columns of $w$ and
# the matching entries of $b$. `grad_local` is the gradient of the loss with respect to `y_local`. In one process you
# would write
#
# ```python
# grad_x = grad_y @ w.T           # (B, F) @ (F, D)
# grad_w = x.T @ grad_y           # (D, B) @ (B, F)
# grad_b = grad_y.sum(0)
# ```
#
# **Predict**: three of the four results can be computed without any message. Which one is only a partial sum?

# %%
predict(
    "a partial sum is",
    ...,
    choices=["y_local", "grad_x", "grad_w_local", "grad_b_local"],
)

# %% exercise="column-parallel" difficulty=2 minutes=12
def column_parallel(
    x: Tensor, w_local: Tensor, b_local: Tensor, grad_local: Tensor, tp_group
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward and backward pass of y = x @ w + b, where this rank has some columns of
    w; one all_reduce in all, of as many bytes as x has.

    x (B, D), the same on every rank; w_local (D, F/t); b_local (F/t,); grad_local
    (B, F/t), the gradient of y_local.
    Returns (y_local, grad_x, grad_w_local, grad_b_local), each gradient with the shape
    of its tensor; grad_x is the same on every rank. Inputs are left unchanged.
    """
    ### BEGIN SOLUTION
    y_local = x @ w_local + b_local
    # each rank only knows what its own columns did with x
    grad_x = all_reduce(grad_local @ w_local.T, tp_group)
    grad_w_local = x.T @ grad_local
    grad_b_local = grad_local.sum(0)
    ### END SOLUTION
    return y_local, grad_x, grad_w_local, grad_b_local

# %% check="column-parallel" judges="values" points=3
check(column_parallel, judges="values")

# %% check="column-parallel" judges="traffic" points=1
check(column_parallel, judges="traffic")

# %%
reveal(
    "a partial sum is",
    "grad_x",
    why="Its product has the shape of x, but covers only the outputs that this rank computed. Every column of w used "
    "x, so x's gradient is the sum over all columns, on all ranks.",
)

# %% [markdown]
# ## Row-parallel layer
#
# Now each rank has some rows of $w$ and the matching features of $x$. In the end `y` must be whole on every rank, and
# so its gradient, `grad`, is the same on every rank too.
#
# The bias is the trap. It belongs to the **whole** `y`. **Predict** for $t = 4$: if every rank adds the bias $b$ to its
# own product, before the sum, how many extra $b$ does `y` contain?

# %%
predict("extra b in y", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Write down the shapes: `x_local @ w_local` is (B, D) on every rank already. What is missing in it, and where does
# the bias belong?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# In the forward pass, the products are partial sums: all-reduce them, then add the bias. In the backward pass, every
# rank already has all of `grad`, so no rank needs anything from another.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Forward: `all_reduce` the product, then add the bias. The gradients are those of an ordinary linear layer. The input's
# is `grad` times the transposed weight, the weight's is the transposed input times `grad`, and the bias's is the sum of
# `grad` over the rows.
# </details>

# %% exercise="row-parallel" difficulty=3 minutes=12
def row_parallel(
    x_local: Tensor, w_local: Tensor, bias: Tensor, grad: Tensor, tp_group
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward and backward pass of y = x @ w + bias, where this rank has some rows of
    w; one all_reduce in all, of as many bytes as y has.

    x_local (B, F/t); w_local (F/t, D); bias (D,), the same on every rank; grad (B, D),
    the gradient of y, the same on every rank. Returns (y, grad_x_local, grad_w_local,
    grad_bias), each gradient with the shape of its tensor; y and grad_bias are the same
    on every rank. Inputs are left unchanged.
    """
    ### BEGIN SOLUTION
    # the bias once, after the sum, on every rank
    y = all_reduce(x_local @ w_local, tp_group) + bias
    grad_x_local = grad @ w_local.T
    grad_w_local = x_local.T @ grad
    grad_bias = grad.sum(0)  # every rank has all of grad: nothing to add
    ### END SOLUTION
    return y, grad_x_local, grad_w_local, grad_bias

# %% check="row-parallel" judges="values" points=3
check(row_parallel, judges="values")

# %% check="row-parallel" judges="traffic" points=1
check(row_parallel, judges="traffic")

# %%
terms, b = [1.0, 2.0, 3.0, 4.0], 10.0  # the products of 4 ranks, and a bias

# %%
reveal(
    "extra b in y",
    (sum(term + b for term in terms) - (sum(terms) + b)) / b,
    why="It is added 4 times instead of once. If only rank 0 added it, after the sum, rank 0's y would differ from the "
    "others'. If only rank 0 added it, before the sum, y would be right, but autograd would give only rank 0's bias a "
    "gradient, and the copies would drift apart. So: once, after the sum, on every rank.",
)

# %% [markdown]
# Side by side, this is what the two send:
#
# | | forward | backward |
# |---|---|---|
# | column-parallel | nothing | all-reduce of `grad_x` |
# | row-parallel | all-reduce of `y` | nothing |
#
# Each is the other one run backwards.

# %% [markdown]
# # Part 2 · f and g
# Nobody wants to write every backward pass by hand. So the communication goes into two tiny functions that autograd
# knows, and the matrix products stay ordinary PyTorch. Megatron's paper calls them $f$ and $g$. Think of them as the
# **doors** of a sharded region:
#
# | | forward | backward | where it belongs |
# |---|---|---|---|
# | $f$ | nothing: pass `x` on | all-reduce | where a whole `x` enters a sharded region |
# | $g$ | all-reduce | nothing: pass the gradient on | where partial sums leave it |

# %%
figures.doors("f", "g")

# %% [markdown]
# ### An autograd function of your own
# It is a class with two static methods. `forward` computes; `backward` gets the gradient of the output and returns the
# gradient of **each argument of forward**, None for those that have none. `ctx` carries whatever backward will need.

# %%
class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, times):
        ctx.times = times
        return x * times

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.times, None  # for x, for times

x = torch.ones(2, requires_grad=True)
Triple.apply(x, 3.0).sum().backward()
x.grad

# %% [markdown]
# ## Entering a sharded region: f
#
# This is $f$. Its forward pass passes `x` on as it is. Its backward pass sums the gradients that come back from the
# sharded regions of all ranks.
#
# One trap here costs people days. The gradient that `backward` gets is **not yours**: autograd may use the same tensor
# elsewhere. After `z = f(x) + s`, the gradients of `f(x)` and of `s` are one and the same tensor, and if you all-reduce
# it in place, you change the gradient of `s` too.
#
# `x.view_as(x)` is a new tensor in the same memory: to autograd it is a result of its own, and it costs nothing.

# %% exercise="copy-to-shards" difficulty=2 minutes=8
class CopyToShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tp_group):
        ctx.tp_group = tp_group
        ### BEGIN SOLUTION
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_partial):
        ### BEGIN SOLUTION
        # the verb returns a new tensor: grad_partial is not ours
        return all_reduce(grad_partial, ctx.tp_group), None
        ### END SOLUTION

def copy_to_shards(x: Tensor, tp_group) -> Tensor:
    """f: forward x itself, backward the sum of the gradients of all ranks of the group.

    x: any shape, the same on every rank. One all_reduce, in the backward pass; the
    gradient that backward is given is left unchanged.
    """
    return CopyToShards.apply(x, tp_group)

# %% check="copy-to-shards" judges="values" points=3
check(copy_to_shards, judges="values")

# %% check="copy-to-shards" judges="traffic" points=1
check(copy_to_shards, judges="traffic")

# %% [markdown]
# What if you forget $f$? The forward pass does not change at all, so the loss looks right. Here is the gradient of `x`
# on each rank, for a column-parallel layer with $f$ and without it:

# %% tags=["notebook-only"]
def with_and_without_f(rank, world_size):
    w_local = torch.eye(4).chunk(world_size, dim=1)[rank]  # y = x, in two halves
    gradients = {}
    for name, f in (
        ("with f", partial(copy_to_shards, tp_group=None)),
        ("without", lambda x: x),
    ):
        x = torch.ones(1, 4, requires_grad=True)
        (f(x) @ w_local).sum().backward()
        gradients[name] = x.grad.tolist()
    return gradients

spawn(with_and_without_f, 2).results

# %% [markdown]
# Without $f$ each rank believes that only its own columns matter. All layers below would learn from a wrong gradient, a
# different one on each rank.
#
# And here is the trap, sprung: an $f$ that all-reduces in place, added to a product with `w`. The gradient of `w`
# should be `[1, 2, 3]`.

# %% tags=["notebook-only"]
class Careless(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad)  # overwrites what is not ours
        return grad

def beside_a_product(rank, world_size):
    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = w * torch.tensor([1.0, 2.0, 3.0]) + Careless.apply(x)
    y.backward(torch.ones(3))
    return w.grad.tolist()

spawn(beside_a_product, 2).results

# %% [markdown]
# ## Leaving a sharded region: g
#
# This is $g$. Its forward pass sums the partial results; its backward pass passes the gradient on unchanged. Why
# unchanged? After $g$ all ranks hold the same `y` and compute the same loss, which is **one** loss and not $t$ of them.
# Each summand enters `y` once, with factor 1, so its gradient is `y`'s gradient.

# %% exercise="reduce-from-shards" difficulty=2 minutes=7
class ReduceFromShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_partial, tp_group):
        ### BEGIN SOLUTION
        return all_reduce(x_partial, tp_group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        ### BEGIN SOLUTION
        return grad, None
        ### END SOLUTION

def reduce_from_shards(x_partial: Tensor, tp_group) -> Tensor:
    """g: forward the sum over all ranks of the group, backward the gradient unchanged.

    x_partial: any shape, left unchanged. It may be a transpose or another view, on some
    of the ranks or on all. One all_reduce, in the forward pass.
    """
    return ReduceFromShards.apply(x_partial, tp_group)

# %% check="reduce-from-shards" judges="values" points=2
check(reduce_from_shards, judges="values")

# %% check="reduce-from-shards" judges="traffic" points=1
check(reduce_from_shards, judges="traffic")

# %% [markdown]
# PyTorch has an all-reduce that autograd knows, in `torch.distributed.nn.functional`. The loss below is the sum itself,
# so the right gradient of `x_partial` is 1, and yours gives that. **Predict** what PyTorch's gives on 4 ranks.

# %%
predict("the gradient with torch's all-reduce", ...)

# %%
def another_all_reduce(rank, world_size):
    from torch.distributed.nn.functional import all_reduce as all_reduce_of_torch

    gradients = []
    for g in (partial(reduce_from_shards, tp_group=None), all_reduce_of_torch):
        x_partial = torch.ones(1, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated
            g(x_partial).sum().backward()
        gradients.append(x_partial.grad.item())
    return gradients

both = spawn(another_all_reduce, 4).results
both

# %%
reveal("the gradient with torch's all-reduce", both[0][1], why="Its backward is an all-reduce of four 1's.")

# %% [markdown]
# On 4 ranks, that is four times too much. The backward pass of PyTorch's all-reduce is an all-reduce again, its dual in
# lesson 01, which is right where each rank has a loss **of its own** and the true loss is their sum. Here all ranks
# compute the same loss, and it counts once. Adam would even hide the mistake, because it divides out a gradient's
# scale. So compare gradients, never loss curves.

# %% [markdown]
# ## Gathering the shards
#
# There is a simpler way to use several GPUs for an MLP, which is often shown first: every layer is column-parallel, and
# after each one the slices are **gathered**, so that the next layer has a whole `x` again:
#
# ```python
# for w_local in weights_local:
#     x = gather(gelu(x @ w_local))      # (B, D) @ (D, D/t) -> (B, D/t) -> (B, D)
# ```
#
# A plain `dist.all_gather` breaks autograd's graph: the tensors that it fills know nothing of `x_local`. So this, too,
# becomes a function with a backward pass. Features are the last dimension. Think of the backward pass first: the whole
# `y` has the same gradient on every rank. Which part of it belongs to this rank's shard?

# %% exercise="gather-from-shards" difficulty=2 minutes=10
class GatherFromShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_local, tp_group):
        ctx.tp_group = tp_group
        ### BEGIN SOLUTION
        return all_gather(x_local, tp_group, dim=-1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        tp_rank = dist.get_rank(ctx.tp_group)
        tp_size = dist.get_world_size(ctx.tp_group)
        ### BEGIN SOLUTION
        return grad.chunk(tp_size, dim=-1)[tp_rank], None
        ### END SOLUTION

def gather_from_shards(x_local: Tensor, tp_group) -> Tensor:
    """Forward the shards of all ranks side by side, backward this rank's slice of the
    gradient.

    x_local: (..., F/t), contiguous or not, left unchanged. Returns (..., F), rank 0's
    shard first. The gradient of the result is the same on every rank.
    One all_gather, in the forward pass.
    """
    return GatherFromShards.apply(x_local, tp_group)

# %% check="gather-from-shards" judges="values" points=3
check(gather_from_shards, judges="values")

# %% check="gather-from-shards" judges="traffic" points=1
check(gather_from_shards, judges="traffic")

# %% [markdown]
# With $f$ before each product and this gather after it, the course's MLP trains on 4 ranks. `mlp.serial_gradients`
# computes the same in one process: the loss and every gradient should agree.

# %% tags=["notebook-only"]
def gathered_mlp(rank, world_size, weights, batch):
    f = partial(copy_to_shards, tp_group=None)
    gather = partial(gather_from_shards, tp_group=None)
    weights_local = [
        w.chunk(world_size, dim=1)[rank].clone().requires_grad_() for w in weights
    ]
    x = batch.clone().requires_grad_()  # as if there were layers before it
    for w_local in weights_local:
        x = gather(gelu(f(x) @ w_local))
    loss = mlp.loss_of(x)
    loss.backward()
    return loss.detach(), [w_local.grad for w_local in weights_local]

weights = mlp.make_weights(4, 16, dtype=torch.float64)
batch = mlp.make_batch(8, 16, dtype=torch.float64)
loss, gradients = mlp.serial_gradients(weights, batch)
run = spawn(gathered_mlp, 4, weights, batch)
for layer, gradient in enumerate(gradients):
    together = torch.cat([result[1][layer] for result in run.results], dim=1)
    print(
        f"layer {layer}: gradients agree: "
        f"{torch.allclose(together, gradient, rtol=1e-9)}"
    )
print(
    "losses agree:",
    all(torch.allclose(result[0], loss, rtol=1e-9) for result in run.results),
)

# %% [markdown]
# # Part 3 · The Megatron MLP
# Gathering after each layer is one collective too many. gelu treats each number separately, so a slice of the features
# is enough for it. And that slice is just what a row-parallel layer needs. So: **columns first, then rows, and nothing
# in between**.

# %% [markdown]
# ## Columns, then rows
#
# $y = \text{gelu}(x\, w_{up} + b_{up})\, w_{down} + b_{down}$. You are given `f` and `g` as functions, to be called as
# `f(x)` and `g(x_partial)`: they already know their group. Where does each belong, and where is each bias added? The
# time is judged on a virtual cluster where computing is free and only messages take time.
#
# **Predict**: how many all-reduces are there, in both passes together? And why can't you cut the two matrices the other
# way round, rows first, without one more collective?

# %%
predict("all-reduces, forward and backward", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Which of the two matrices is cut into columns, and which into rows? The first table of part 2 says where `f` and `g`
# belong.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# `f` goes before the first product, `g` after the second. In between, each rank works on its own columns, gelu
# included. `b_down` is the bias of a row-parallel layer: you know where that goes.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Three lines: gelu of `f(x)` times the columns, plus their bias; that times the rows; and `g` of the product, plus
# `b_down`.
# </details>

# %% exercise="megatron-mlp" difficulty=3 minutes=12
def megatron_mlp(
    x: Tensor,
    w_up_local: Tensor,
    b_up_local: Tensor,
    w_down_local: Tensor,
    b_down: Tensor,
    f,
    g,
) -> Tensor:
    """An MLP of two layers, the first cut into columns, the second into rows; one
    all_reduce in the forward pass, one in the backward pass.

    x (..., D), the same on every rank; w_up_local (D, F/t); b_up_local (F/t,);
    w_down_local (F/t, D); b_down (D,), the same on every rank. Returns y (..., D), the
    same on every rank. After y.backward, all gradients are right: those of x and b_down
    on every rank, and those of the shards on their own rank.
    """
    ### BEGIN SOLUTION
    h_local = gelu(f(x) @ w_up_local + b_up_local)  # (..., F/t)
    y_partial = h_local @ w_down_local  # (..., D), a partial sum
    return g(y_partial) + b_down
    ### END SOLUTION

# %% check="megatron-mlp" judges="values" points=3
check(megatron_mlp, judges="values")

# %% check="megatron-mlp" judges="traffic" points=2
check(megatron_mlp, judges="traffic")

# %% check="megatron-mlp" judges="time" points=1
check(megatron_mlp, judges="time")

# %% [markdown]
# As a picture, with both doors in their places:

# %%
figures.sharded_mlp(tp_size=2)

# %% [markdown]
# ### Measured: gathering against Megatron
# Here are two layers of the course's MLP, with a batch of (128, 1024) numbers, once as gathered layers and once as
# columns, then rows. The tables show what each rank calls in one forward and backward pass, and what a ring would send
# for it: gathered layers first.

# %% tags=["notebook-only"]
def columns_then_rows(rank, world_size, weights, batch):
    f = partial(copy_to_shards, tp_group=None)
    g = partial(reduce_from_shards, tp_group=None)
    columns = weights[0].chunk(world_size, dim=1)[rank].clone().requires_grad_()
    rows = weights[1].chunk(world_size, dim=0)[rank].clone().requires_grad_()
    zero = torch.zeros(1)
    y = megatron_mlp(batch.clone().requires_grad_(), columns, zero, rows, zero, f, g)
    mlp.loss_of(gelu(y)).backward()

weights, batch = mlp.make_weights(2, 1024), mlp.make_batch()
gathered = simulate(gathered_mlp, 4, weights, batch)
megatron = simulate(columns_then_rows, 4, weights, batch)
calls = sum(event.rank == 0 for event in megatron.events)
print(
    "gathered layers send "
    f"{gathered.traffic().implied(0) / megatron.traffic().implied(0):.2f} times as much"
)

# %% tags=["notebook-only"]
reveal(
    "all-reduces, forward and backward",
    calls,
    why="One in each pass, of x's full size. Rows first would leave partial sums before gelu, and the gelu of a sum is "
    "not the sum of the gelus, so they would have to be added up before it.",
)

# %% tags=["notebook-only"]
gathered.traffic()

# %% tags=["notebook-only"]
megatron.traffic()

# %% [markdown]
# The gathered form pays for one gather per layer in the forward pass, and for one whole all-reduce per layer in the
# backward pass, although the layer below then keeps only its own slice of the sum. An all-reduce of which you keep one
# slice is a reduce-scatter, at half the price: remember that for part 5. Megatron's form also has half the calls.

# %% [markdown]
# # Part 4 · The rest of a transformer
# A transformer has three more kinds of weights. The **embedding**, a table with $V$ rows, turns token numbers into
# vectors. The **output layer** turns vectors into $V$ scores, the logits, which the **loss** compares with the next
# token. $V$ is often above 100,000, so both tables are large, and so are the logits. And there is **attention**, of
# course.

# %% [markdown]
# ## Vocabulary-parallel embedding
#
# Cut the table along the vocabulary: rank $r$ has the rows from $r\,V/t$ up to but not including $(r+1)\,V/t$. Each
# token is on exactly one rank. That rank looks it up, the others contribute **zeros**, and $g$ adds everything up.
#
# Looking up row 7 of a table with 5 rows is an error, so a rank first needs an index that exists. Then it must zero out
# what it has looked up for another rank's token. ($t$ must divide $V$. If it doesn't, libraries add rows that no token
# uses.)
#
# **Predict** for $V = 10$, $t = 2$ and the tokens `[4, 5, 9]`: which rows of its **own** table does rank 1 look up for
# the tokens that are its own? Give a list.

# %%
predict("rank 1's rows for its tokens", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# There are three steps: count each token's number from this rank's first row; make a mask of this rank's tokens; look
# up rows, with zeros where the mask is False.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Another rank's token gives an index that is negative or too large. First make it legal and look up any row, then
# replace that row by zeros. Two calls help: `index.clamp(0, rows - 1)`, and
# `torch.where(mask.unsqueeze(-1), a, b)`, which takes from `a` where the mask is True, else from `b`.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# The index is the token minus this rank's first row. A token is this rank's if its index is at least 0 and less than
# `rows`. Look the clamped index up in `table_local`; where the mask is False, take 0.0 instead.
# </details>

# %% exercise="parallel-embedding" difficulty=3 minutes=12
def parallel_embedding(tokens: Tensor, table_local: Tensor, g, tp_rank: int) -> Tensor:
    """Look up tokens in a table whose rows are spread over the ranks; one all_reduce,
    in the forward pass.

    tokens (...), int64, from 0 to V - 1, the same on every rank, left unchanged;
    table_local (V/t, D), the table's rows from tp_rank * V/t on.
    Returns (..., D) in the table's dtype, the same on every rank; the gradient of
    table_local is right on every rank.
    """
    rows = table_local.shape[0]
    ### BEGIN SOLUTION
    index = tokens - tp_rank * rows
    mine = (index >= 0) & (index < rows)
    # (..., D); for another rank's token any row that exists
    found = table_local[index.clamp(0, rows - 1)]
    y_partial = torch.where(mine.unsqueeze(-1), found, 0.0)
    ### END SOLUTION
    return g(y_partial)

# %% check="parallel-embedding" judges="values" points=3
check(parallel_embedding, judges="values")

# %% check="parallel-embedding" judges="traffic" points=1
check(parallel_embedding, judges="traffic")

# %%
reveal(
    "rank 1's rows for its tokens",
    [token - 5 for token in (4, 5, 9) if token >= 5],
    why="Rank 1 has rows 5 to 9 of the table, and counts them from 0. For token 4 it contributes zeros.",
)

# %% [markdown]
# ## Vocabulary-parallel cross-entropy
#
# The output layer is column-parallel, so each rank has the logits of $V/t$ words. Gathering them would be the largest
# message of the whole model. What does the loss of one token need?
#
# $$\text{loss} = \log \sum_{v} e^{z_v - m} - (z_\text{target} - m), \qquad m = \max_v z_v$$
#
# Three numbers, each a reduction over the vocabulary: the maximum, the sum of exponentials, the target's logit. So
# three all-reduces of **one number per token**, however large $V$ is.
#
# - $m$ cancels out and only prevents overflow, so it needs no gradient: use the verb `all_reduce`, with
#   `op=dist.ReduceOp.MAX`. But every rank must subtract the **same** $m$.
# - The sum and the target's logit go through `g`. Then autograd finds the right gradient by itself.
# - The target is on one rank only: the others contribute 0, as in the embedding.
#
# **Predict** for 4,096 tokens, $V$ = 128,000, $t$ = 8, in float32: a rank could gather the logits, or all-reduce three
# numbers per token. How many times as many bytes does it send if it gathers?

# %%
predict("how many times as much gathering sends", ...)

# %%
tokens, V, t = 4096, 128_000, 8
gathering = (t - 1) * tokens * V // t * 4
three_numbers = 3 * 2 * (t - 1) * tokens * 4 // t
print(
    f"gathering: {gathering / 1e6:,.0f} MB     three numbers per token: "
    f"{three_numbers / 1e6:.3f} MB"
)

# %%
reveal(
    "how many times as much gathering sends",
    gathering / three_numbers,
    why="V / 6 times: per token, a gather sends (t - 1) V / t numbers, and three all-reduces send 3 · 2 (t - 1) / t.",
)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The last line needs `total`, the sum over all words of $e^{z - m}$, and `of_target`, the target's $z - m$. Both are
# (N,) and whole on every rank. Which of the three reductions needs a gradient?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# First find the largest logit of each token, by `all_reduce` with `op=dist.ReduceOp.MAX`, and subtract it everywhere.
# Then come two sums through `g`. For the target, make the index legal and zero out what is not this rank's, as in the
# embedding.
# `x.gather(-1, index.unsqueeze(-1)).squeeze(-1)` takes from each row of `x` the entry at `index`.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Subtract the largest from this rank's logits, in a dimension of its own. Sum their exponentials, and let `g` add the
# ranks' sums. Then the target's logit: each rank gathers one per token, puts 0 where the target isn't its own, and `g`
# adds these too.
# </details>

# %% exercise="parallel-cross-entropy" difficulty=4 minutes=20
def parallel_cross_entropy(
    logits_local: Tensor, targets: Tensor, g, tp_group
) -> Tensor:
    """The mean cross-entropy over all tokens, for logits whose words are spread over
    the ranks.

    logits_local (N, V/t), the words from tp_rank * V/t on; targets (N,), int64, from 0
    to V - 1, the same on every rank. Both are left unchanged.
    Returns a scalar, the same on every rank; the gradient of logits_local is right on
    every rank. Large logits must not overflow. The forward pass makes all_reduces of
    3 N numbers in all, the backward pass none.
    """
    words = logits_local.shape[-1]
    first = dist.get_rank(tp_group) * words  # the first of this rank's words
    ### BEGIN SOLUTION
    # (N,)
    largest = all_reduce(logits_local.max(dim=-1).values, tp_group, op=dist.ReduceOp.MAX)
    shifted = logits_local - largest.unsqueeze(-1)
    total = g(shifted.exp().sum(-1))
    index = targets - first
    mine = (index >= 0) & (index < words)
    found = shifted.gather(-1, index.clamp(0, words - 1).unsqueeze(-1)).squeeze(-1)
    of_target = g(torch.where(mine, found, 0.0))
    ### END SOLUTION
    return (total.log() - of_target).mean()

# %% check="parallel-cross-entropy" judges="values" points=4
check(parallel_cross_entropy, judges="values")

# %% check="parallel-cross-entropy" judges="traffic" points=2
check(parallel_cross_entropy, judges="traffic")

# %% [markdown]
# ## Parallel attention
#
# Attention is made for this. Each **head** works on its own: it makes its own q, k and v, attends, and fills its own
# columns of the merged result. So a rank takes whole heads, $a/t$ of them. `w_qkv` is column-parallel, `w_out` is
# row-parallel, and in between nothing is sent. Again there is one $f$ and one $g$.
#
# The trap is the order of the columns. `w_qkv` is (D, 3 D): first the columns of all q, then those of all k, then those
# of all v. What does rank 0 of 3 get if you simply cut that into 3 blocks of neighbouring columns? (All of q, and
# nothing else.) For 2 ranks:

# %%
figures.qkv_columns(num_heads=4, tp_size=2)

# %% [markdown]
# Three functions are given, from `utils.kit.transformer`, which also has the whole layer for one process:
#
# ```python
# split_heads(x, heads)      # (B, S, heads * d) -> (B, heads, S, d)
# attend(q, k, v)            # (B, heads, S, d) three times -> (B, heads, S, d), each head by itself
# merge_heads(x)             # (B, heads, S, d) -> (B, S, heads * d)
# ```
#
# In this exercise each rank gets the whole `w_qkv` and `w_out`, and your function cuts out its part. A real program
# cuts once, when the model is made.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The columns of `w_qkv` are those of q, then of k, then of v. Which columns does one rank need, and why are they not
# one block?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Cut `w_qkv` in 3 first, then each of the three in `tp_size`. The heads of a rank are neighbours, so their columns in
# q are one chunk, and so are their rows in `w_out`. Call `f` once and use its result three times.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Take this rank's chunk of each of `w_qkv.chunk(3, dim=1)`: three local weights. Multiply `h = f(x)` by each of them,
# and split each product into `heads_local` heads. Attend, merge the heads, multiply by this rank's rows of `w_out`, and
# pass the product through `g`.
# </details>

# %% exercise="parallel-attention" difficulty=3 minutes=15
def parallel_attention(
    x: Tensor,
    w_qkv: Tensor,
    w_out: Tensor,
    num_heads: int,
    f,
    g,
    tp_rank: int,
    tp_size: int,
) -> Tensor:
    """Attention of which this rank computes num_heads / tp_size heads, those from
    tp_rank * num_heads / tp_size on, and no others: its matrix products are counted.

    x (B, S, D), the same on every rank. w_qkv (D, 3 D): the columns of q, of k, of v,
    in each of them head after head; w_out (D, D): its rows are the columns of the
    merged heads. Both whole; only this rank's parts of them are used.
    Returns (B, S, D), the same on every rank; x's gradient is right on every rank. One
    all_reduce in the forward pass, one in the backward pass.
    """
    heads_local = num_heads // tp_size
    ### BEGIN SOLUTION
    # of q, of k, of v: (D, D/t)
    w_local = [part.chunk(tp_size, dim=1)[tp_rank] for part in w_qkv.chunk(3, dim=1)]
    h = f(x)
    q, k, v = (split_heads(h @ part, heads_local) for part in w_local)
    found = merge_heads(attend(q, k, v))  # (B, S, D/t)
    return g(found @ w_out.chunk(tp_size, dim=0)[tp_rank])
    ### END SOLUTION

# %% check="parallel-attention" judges="values" points=4
check(parallel_attention, judges="values")

# %% check="parallel-attention" judges="traffic" points=1
check(parallel_attention, judges="traffic")

# %% [markdown]
# $t$ must divide the number of heads. With **grouped-query attention** (GQA) k and v have fewer heads than q, and each
# of them serves a group of q's heads. A rank needs the k and v heads that serve its own q heads. If $t$ divides their
# number, they are cut like those of q. If $t$ is larger, several ranks hold a **copy** of the same head, and its
# gradient must be summed over these ranks.

# %%
def heads_of(rank, tp_size, q_heads, kv_heads):
    mine = range(q_heads // tp_size * rank, q_heads // tp_size * (rank + 1))
    return list(mine), sorted({head * kv_heads // q_heads for head in mine})

for tp_size in (4, 16):
    q, kv = heads_of(1, tp_size, q_heads=32, kv_heads=8)
    holders = sum(kv[0] in heads_of(rank, tp_size, 32, 8)[1] for rank in range(tp_size))
    print(
        f"t = {tp_size:2}: rank 1 has q heads {q[0]} to {q[-1]}, kv heads {kv}; copies "
        f"of a kv head: {holders}"
    )

# %% [markdown]
# The same trap waits in today's MLPs. **SwiGLU** computes $\text{silu}(x\,w_{gate}) \odot (x\,w_{up})$, and many
# programs store the two matrices as one, (D, 2 F), to compute both in one product. Cut that into $t$ blocks, and half
# of the ranks get nothing but gates. As with q, k and v, first cut it in two, then each half into $t$ parts.

# %%
x, fused = mlp.normal(1, 3, 8), mlp.normal(2, 8, 2 * 12)

def swiglu(x, weight):
    gate, up = (x @ weight).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up

blocks = [swiglu(x, fused.chunk(2, dim=1)[rank]) for rank in range(2)]
halves = [
    torch.cat([half.chunk(2, 1)[rank] for half in fused.chunk(2, 1)], 1)
    for rank in range(2)
]
for name, parts in (
    ("in blocks", blocks),
    ("each half", [swiglu(x, weight) for weight in halves]),
):
    right = torch.allclose(torch.cat(parts, dim=1), swiglu(x, fused))
    print(f"cut {name}: right? {right}")

# %% [markdown]
# # Part 5 · Sequence parallelism
# Between the sharded regions every rank does the same work: LayerNorm, dropout, the residual sum, each on the whole
# `x`. That is not much computing, but every rank holds the activations in full. **Sequence parallelism** cuts these
# regions along the sequence, since each token is treated separately there. A rank then has `x_local`, (B, S/t, D).
#
# To enter a sharded region, the ranks now **gather** the tokens. On the way out, the partial sums are added up and each
# rank keeps only its own tokens: a **reduce-scatter**.

# %%
figures.layer_doors(sequence_parallel=False)

# %%
figures.layer_doors(sequence_parallel=True)

# %% [markdown]
# **Predict**: $f$ and $g$ each communicate in one of the two passes, by an all-reduce. The new doors communicate in
# both. What happens to the bytes that a layer sends for its activations? (Part 6 counts them.)

# %%
predict(
    "with sequence parallelism a layer sends",
    ...,
    choices=["less", "about the same", "more"],
)

# %% [markdown]
# ## Gather and scatter along the sequence
#
# Write both doors. The backward pass of each is the forward pass of the other. Why does the gather's backward pass
# **add**, when the one in part 2 only took a slice? There, every rank had the same gradient of the whole. Here, what
# comes back has only been through this rank's columns: it is a partial sum.
#
# The sequence is dimension 1 of (B, S, D).

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# There are two classes, with four lines to write and two verbs to use. Which verb turns few tokens into many, and which
# turns many into few while adding them up?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# If the forward pass gathers, the backward pass scatters, and the other way round. What comes back through a gather is
# a partial sum, so backward must add: a plain slice would lose the other ranks' contributions to these tokens.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `GatherSequence` calls the verb that gathers, along dimension 1; its backward pass calls the one that adds and
# scatters, along the same dimension. In the other class the two verbs change places. Each backward pass also returns
# `None`, for `tp_group`, which has no gradient.
# </details>

# %% exercise="across-sequence" difficulty=3 minutes=12
class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_local, tp_group):
        ctx.tp_group = tp_group
        ### BEGIN SOLUTION
        return all_gather(x_local, tp_group, dim=1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_partial):
        ### BEGIN SOLUTION
        return reduce_scatter(grad_partial, ctx.tp_group, dim=1), None
        ### END SOLUTION

class ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_partial, tp_group):
        ctx.tp_group = tp_group
        ### BEGIN SOLUTION
        return reduce_scatter(x_partial, tp_group, dim=1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_local):
        ### BEGIN SOLUTION
        return all_gather(grad_local, ctx.tp_group, dim=1), None
        ### END SOLUTION

def across_sequence(x: Tensor, direction: str, tp_group) -> Tensor:
    """The doors of sequence parallelism, both with the right backward pass; one
    collective in each pass. x is left unchanged.

    "gather": x_local (B, S/t, D) -> (B, S, D), the tokens of all ranks, rank 0's first.
    The gradient that comes back is a partial sum on every rank.
    "scatter": x_partial (B, S, D) -> (B, S/t, D), this rank's tokens of the sum over
    the ranks.
    """
    door = {"gather": GatherSequence, "scatter": ScatterSequence}[direction]
    return door.apply(x, tp_group)

# %% check="across-sequence" judges="values" points=3
check(across_sequence, judges="values")

# %% check="across-sequence" judges="traffic" points=1
check(across_sequence, judges="traffic")

# %% [markdown]
# ## Sequence-parallel MLP
#
# Half a transformer layer: $y = x + \text{mlp}(\text{LayerNorm}(x))$, with `x` and `y` cut along the sequence.
#
# There is one new question. LayerNorm's weight and bias, and `b_down`, are whole on every rank. Are their gradients
# right? Each rank has used them for its own tokens only, so each has a partial sum, and nothing has added these up yet.
# If you forget to, the copies slowly drift apart: the loss goes on falling, and weeks later somebody wonders why.
#
# You already have a function with "forward nothing, backward all-reduce". It works for weights as well as for
# activations.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Follow one token: which lines see only this rank's tokens, and which see all of them? LayerNorm comes **before** the
# gather, so that it keeps only S/t tokens for the backward pass.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Everything between `gather` and `scatter` is the MLP that you know, without `f` and `g`. Three vectors are whole on
# every rank, but each rank uses them for its own tokens only. Their gradients must be summed, which is what `f` does in
# the backward pass. `b_down` is added after the scatter, to this rank's tokens.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# LayerNorm of this rank's tokens, with `f` of its weight and of its bias; gather; the two matrices with gelu between
# them; scatter. Then add `x_local` and `f(b_down)`.
# </details>

# %% exercise="sequence-parallel-mlp" difficulty=4 minutes=18
def sequence_parallel_mlp(
    x_local: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    w_up_local: Tensor,
    b_up_local: Tensor,
    w_down_local: Tensor,
    b_down: Tensor,
    f,
    gather,
    scatter,
) -> Tensor:
    """y = x + mlp(layer_norm(x)) with x and y cut along the sequence; LayerNorm sees
    this rank's tokens only.

    x_local (B, S/t, D); norm_weight, norm_bias, b_down (D,), the same on every rank;
    w_up_local (D, F/t); b_up_local (F/t,); w_down_local (F/t, D). f(x),
    gather(x_local), scatter(x_partial): the doors, which already know their group.
    Returns y_local (B, S/t, D). After backward, all gradients are right: those of
    norm_weight, norm_bias and b_down are sums over all tokens, the same on every rank.
    One gather and one scatter, and f for weights only. Autograd keeps only this rank's
    tokens for LayerNorm.
    """
    ### BEGIN SOLUTION
    h_local = layer_norm(x_local, f(norm_weight), f(norm_bias))  # (B, S/t, D)
    h = gather(h_local)  # (B, S, D)
    # (B, S, D), a partial sum
    y_partial = gelu(h @ w_up_local + b_up_local) @ w_down_local
    return x_local + scatter(y_partial) + f(b_down)
    ### END SOLUTION

# %% check="sequence-parallel-mlp" judges="values" points=4
check(sequence_parallel_mlp, judges="values")

# %% check="sequence-parallel-mlp" judges="traffic" points=1
check(sequence_parallel_mlp, judges="traffic")

# %% check="sequence-parallel-mlp" judges="memory" points=2
check(sequence_parallel_mlp, judges="memory")

# %% [markdown]
# ## Random numbers for dropout
#
# Dropout sets randomly chosen numbers to zero. A random number generator chooses them, and now it matters which rank
# draws what.
#
# - Where `x` is **whole** on every rank, all ranks must drop the **same** numbers, or their copies differ from then on.
# - Where each rank has **its own** shard, each must draw **its own** mask. Otherwise the first head of rank 0 and the
#   first head of rank 1 lose the same entries, a pattern that one process would never have.
#
# So a rank has two generators. **Predict** for sequence parallelism: which one is for the dropout after `scatter`?

# %%
predict(
    "after scatter, dropout draws from the generator for",
    ...,
    choices=["whole tensors", "shards"],
)

# %% exercise="dropout-generators" difficulty=2 minutes=8
def dropout_generators(
    seed: int, tp_rank: int
) -> tuple[torch.Generator, torch.Generator]:
    """Return a generator for whole tensors, which draws the same numbers on every rank,
    and one for shards, which draws different numbers on each.

    seed: the same on every rank, from 0 to 2**31. A rank's two generators draw
    different numbers, too. With the same arguments, they draw the same again; with a
    different seed, they don't.
    """
    whole, sharded = torch.Generator(), torch.Generator()
    ### BEGIN SOLUTION
    whole.manual_seed(seed)
    # 2718 more than for `whole`, or rank 0's two would be alike
    sharded.manual_seed(seed + 2718 + tp_rank)
    ### END SOLUTION
    return whole, sharded

# %% check="dropout-generators" judges="values" points=2
check(dropout_generators, judges="values")

# %%
reveal(
    "after scatter, dropout draws from the generator for",
    "shards",
    why="After scatter each rank has different tokens, so each needs a mask of its own.",
)

# %% [markdown]
# Here are the masks of 2 ranks: first for a whole tensor, then for shards.

# %%
def masks(rank, world_size):
    whole, sharded = dropout_generators(0, rank)
    return [
        (torch.rand(10, generator=generator) < 0.8).int().tolist()
        for generator in (whole, sharded)
    ]

spawn(masks, 2).results

# %% [markdown]
# # Part 6 · Traffic and memory of one layer
# Now build a whole layer from your own parts. The two doors are arguments: `f` and `g` make it tensor-parallel,
# `gather` and `scatter` make it sequence-parallel as well. Weights that are whole on every rank pass through `shared`,
# which sums their gradients where ranks see different tokens.

# %%
def cut_layer(weights, rank, size):
    """This rank's part of the weights of `transformer.make_layer`."""
    whole = (*transformer.NORMS, "b_out", "b_down")
    local = {name: w for name, w in weights.items() if name in whole}
    w_qkv = torch.cat(
        [part.chunk(size, 1)[rank] for part in weights["w_qkv"].chunk(3, 1)], dim=1
    )
    columns = {name: weights[name].chunk(size, -1)[rank] for name in ("w_up", "b_up")}
    rows = {name: weights[name].chunk(size, 0)[rank] for name in ("w_out", "w_down")}
    parts = {**local, "w_qkv": w_qkv, **columns, **rows}
    return {name: w.clone().requires_grad_() for name, w in parts.items()}

def parallel_layer(x, w, heads_local, enter, leave, shared, p=0.0):
    """(B, S, D) -> (B, S, D), or (B, S/t, D) -> (B, S/t, D); p is the probability of
    dropout.

    Its dropout draws from torch's own generator, which is enough for counting; training
    needs the two generators from above.
    """
    h = enter(layer_norm(x, shared(w["norm1_weight"]), shared(w["norm1_bias"])))
    q, k, v = (
        split_heads(part, heads_local) for part in (h @ w["w_qkv"]).chunk(3, dim=-1)
    )
    x = x + dropout(
        leave(merge_heads(attend(q, k, v, p)) @ w["w_out"]) + shared(w["b_out"]), p
    )
    h = enter(layer_norm(x, shared(w["norm2_weight"]), shared(w["norm2_bias"])))
    return x + dropout(
        leave(gelu(h @ w["w_up"] + w["b_up"]) @ w["w_down"]) + shared(w["b_down"]), p
    )

def nothing(x):
    return x

def doors(sequence_parallel):
    if sequence_parallel:
        gather, scatter = (
            partial(across_sequence, direction=way, tp_group=None)
            for way in ("gather", "scatter")
        )
        return gather, scatter, partial(copy_to_shards, tp_group=None)
    f = partial(copy_to_shards, tp_group=None)
    g = partial(reduce_from_shards, tp_group=None)
    return f, g, nothing

# %% [markdown]
# First: is it the same layer? Compare its output and all gradients, LayerNorm's included, with those of
# `transformer.transformer_layer` in one process.

# %% tags=["notebook-only"]
def layer_on_ranks(rank, world_size, x, weights, grad, sequence_parallel):
    def mine(tensor):  # a rank's tokens, if the sequence is cut
        return tensor.chunk(world_size, dim=1)[rank] if sequence_parallel else tensor

    w, x = cut_layer(weights, rank, world_size), mine(x).clone().requires_grad_()
    y = parallel_layer(x, w, 4 // world_size, *doors(sequence_parallel))
    y.backward(mine(grad))
    return {
        "y": y.detach(),
        "x": x.grad,
        **{name: leaf.grad for name, leaf in w.items()},
    }

B, S, D, F = 2, 8, 16, 64
weights = transformer.make_layer(D, F, dtype=torch.float64)
x, grad = (mlp.normal(seed, B, S, D) for seed in (1, 2))
y, serial = transformer.serial_layer_gradients(x, weights, 4, grad)
for sequence_parallel in (False, True):
    results = spawn(layer_on_ranks, 4, x, weights, grad, sequence_parallel).results
    agree = []
    for rank, got in enumerate(results):
        right = cut_layer(serial, rank, 4)  # this rank's part of each gradient
        for name, whole in (("x", serial["x"]), ("y", y)):
            right[name] = whole.chunk(4, dim=1)[rank] if sequence_parallel else whole
        agree += [
            torch.allclose(got[name], right[name], rtol=1e-9, atol=1e-12)
            for name in right
        ]
    print(
        f"sequence parallel: {sequence_parallel}   {sum(agree)} of {len(agree)} "
        "tensors agree"
    )

# %% [markdown]
# ### The norm of all gradients
# Gradient clipping needs the norm of the whole gradient. Here some tensors are cut, and some are the same on every
# rank. Sum the squares of the **shards** over the ranks, and count those of the **copies** once. If you all-reduce the
# sum of all squares that a rank has, the copies count $t$ times.

# %% tags=["notebook-only"]
def squares(got, names):
    return sum(got[name].square().sum() for name in names)

names = [name for name in results[0] if name not in ("x", "y")]
copies = [
    name for name in names if name.startswith("norm") or name in ("b_out", "b_down")
]
cut = [name for name in names if name not in copies]
# sum over ranks: one all-reduce
once = sum(squares(got, cut) for got in results) + squares(results[0], copies)
everything = sum(squares(got, names) for got in results)
for name, total in (
    ("one process", squares(serial, names)),
    ("copies once", once),
    ("t times", everything),
):
    print(f"{name}: {total.sqrt():.6f}")

# %% [markdown]
# ### Traffic: what a layer sends
# Take a layer of GPT-3 with $t = 8$ and one sequence of 2,048 tokens, in bfloat16. There are four all-reduces, two in
# each pass, of $B S D$ numbers each. Each sends $2 (t-1)/t$ times its bytes:
#
# $$4 \cdot \frac{2 (t-1)}{t} \cdot B S D \cdot 2 \text{ bytes}$$
#
# The virtual cluster runs the layer at its real size, without values.

# %% tags=["notebook-only"]
def layer_step(rank, world_size, width=12288, heads=96, sequence_parallel=False):
    """Forward and backward pass of one layer with 1 sequence of 2,048 tokens; returns
    the bytes that autograd keeps.
    """
    def of(*shape):
        return torch.empty(*shape, dtype=torch.bfloat16, requires_grad=True)

    t, D = world_size, width
    w = {name: of(D) for name in (*transformer.NORMS, "b_out", "b_down")}
    w |= {"w_qkv": of(D, 3 * D // t), "w_out": of(D // t, D)}
    w |= {
        "w_up": of(D, 4 * D // t),
        "b_up": of(4 * D // t),
        "w_down": of(4 * D // t, D),
    }
    # from the layer before
    x = of(1, 2048 // t if sequence_parallel else 2048, D).clone()
    with track_memory(torch.nn.ParameterList(w.values())) as memory:
        with region("forward"):
            y = parallel_layer(x, w, heads // t, *doors(sequence_parallel), p=0.1)
        kept = memory.by_kind()["activations"]
        with region("backward"):
            y.backward(torch.empty_like(y))
    return kept

S, D = 2048, 12288
formula = 4 * 2 * (8 - 1) / 8 * 1 * S * D * 2
run = simulate(layer_step, 8)
sequence_run = simulate(layer_step, 8, sequence_parallel=True)
print(
    f"formula {formula / 1e6:.1f} MB   counted {run.traffic().implied(0) / 1e6:.1f} MB"
)
print(f"with sequence parallelism {sequence_run.traffic().implied(0) / 1e6:.1f} MB")
ratio = sequence_run.traffic().implied(0) / run.traffic().implied(0)

# %% tags=["notebook-only"]
reveal(
    "with sequence parallelism a layer sends",
    "less" if ratio < 0.99 else "more" if ratio > 1.01 else "about the same",
    why="An all-reduce is a reduce-scatter and an all-gather, with half of the bytes each. In the forward pass, g's "
    "all-reduce becomes a reduce-scatter, and an all-gather at the next entrance. The backward pass does the same.",
)

# %% tags=["notebook-only"]
run.traffic()

# %% tags=["notebook-only"]
sequence_run.traffic()

# %% [markdown]
# The second also sends small all-reduces, for the gradients of six vectors. (Texts that give half as much for this
# layer count the forward pass alone.)

# %% [markdown]
# ### Memory: what a layer keeps
# On one GPU, a layer keeps $S B D\,(34 + 5 a S / D)$ bytes, the formula that this lesson began with, for 16-bit numbers
# and dropout masks of one byte. The second term is the attention scores, which are cut by heads. Of the 34, tensor
# parallelism divides only what lies between the doors by $t$.
#
# **Predict**: how many of the 34 do not shrink under tensor parallelism alone, however large $t$ is? (Count the tensors
# of width $D$ outside the doors, and those just inside.)

# %%
predict("of 34, don't shrink", ...)

# %% tags=["notebook-only"]
def formulas(t, S=2048, B=1, D=12288, a=96):
    scores = 5 * a * S / D
    return {
        False: S * B * D * (10 + 24 / t + scores / t),
        True: S * B * D * (34 + scores) / t,
    }

# %% tags=["notebook-only"]
reveal(
    "of 34, don't shrink",
    round(formulas(10**9)[False] / (2048 * 12288)),
    why="The inputs of two LayerNorms and their outputs, which the products just inside the doors keep, take 2 bytes "
    "per number each. The masks of two dropouts take 1 byte each. That is 4 · 2 + 2 · 1.",
)

# %% [markdown]
# So these are the formulas; below, they are compared with the count:
#
# | | bytes of activations per layer |
# |---|---|
# | one GPU | $S B D\,(34 + 5 a S / D)$ |
# | tensor parallel | $S B D\,(10 + 24/t + 5 a S / (D t))$ |
# | tensor and sequence parallel | $S B D\,(34 + 5 a S / D)\,/\,t$ |

# %% tags=["notebook-only"]
rows = []
for t in (1, 2, 4, 8):
    for sequence_parallel in (False, True) if t > 1 else (False,):
        # all ranks do the same, so it is enough to run one
        run = simulate(
            layer_step, t, sequence_parallel=sequence_parallel, alike=lambda rank: 0
        )
        kept = run.results[0]
        formula = formulas(t)[sequence_parallel]
        numbers = f"{formula / 1e6:,.1f}", f"{kept / 1e6:,.1f}", f"{kept / formula:.3f}"
        rows.append((t, "yes" if sequence_parallel else "no", *numbers))
print(
    tables.text(
        ["t", "sequence parallel", "formula, MB", "counted, MB", "counted / formula"],
        rows,
    )
)

# %% [markdown]
# Without sequence parallelism, the count is what the formula says (and a mean and a variance per token for each
# LayerNorm, too few bytes to show here). With it, your layer keeps more than the formula says, and the excess grows
# with $t$: the two **gathered** tensors are inputs of matrix products, so autograd keeps them whole. Megatron keeps
# only the shard and gathers once more in the backward pass. In the challenge at the end you build that.
#
# For all 96 layers of GPT-3, the formulas give:

# %% tags=["notebook-only"]
whole_model = {
    t: {name: 96 * nbytes / 1e9 for name, nbytes in formulas(t).items()} for t in (1, 8)
}
scores = 5 * 96 * 2048 / 12288
of_scores = scores / (34 + scores)
print(
    f"one GPU: {whole_model[1][False]:.2f} GB, {of_scores:.0%} of it for the scores "
    "and their dropout"
)
print(
    f"t = 8: {whole_model[8][False]:.1f} GB, with sequence parallelism "
    f"{whole_model[8][True]:.1f} GB"
)
without = whole_model[1][False] * 34 / (34 + scores)
print(
    f"without scores: one GPU {without:.1f} GB; t = 8, with sequence parallelism "
    f"{without / 8:.1f} GB"
)

# %% [markdown]
# Most of that is the **scores** of attention, $S \times S$ numbers for each head. Today nobody keeps them.
# **FlashAttention** computes attention block by block and never writes the scores to memory; in the backward pass it
# computes them once more. In PyTorch, `torch.nn.functional.scaled_dot_product_attention` uses it wherever it can. The
# term $5 a S / D$ is then gone, whatever the sequence length, and tensor parallelism has less to save.

# %% [markdown]
# # Part 7 · Where it stops paying off
# Data parallelism's all-reduces overlap with the backward pass. Those of this lesson can't: the next product needs
# their result, so the GPU has nothing to compute in the meantime. The 8 GPUs of a node are connected by NVLink, at
# 450 GB/s each way, and the nodes by network cards, one per GPU, at 50 GB/s. **Predict**: how many times as fast is a
# layer on 16 GPUs as on 8?

# %%
predict("speed-up from 8 to 16 GPUs", ...)

# %% tags=["notebook-only"]
def layer_on(cluster, t, *sizes):
    return simulate(layer_step, t, *sizes, cluster=cluster, alike=lambda rank: 0)

runs = {t: layer_on("dgx-h100", t) for t in (1, 2, 4, 8, 16)}

def share(run):
    """The share of rank 0's time in which it waits for collectives."""
    return (
        sum(event.end - event.start for event in run.events if event.rank == 0)
        / run.elapsed
    )

rows = []
for t, run in runs.items():
    speed_up = runs[1].elapsed / run.elapsed
    shares = f"{share(run):.0%}", f"{speed_up:.2f}", f"{speed_up / t:.0%}"
    rows.append((t, f"{1e3 * run.elapsed:.3f}", *shares))
print(
    tables.text(["t", "ms per layer", "communicating", "speed-up", "efficiency"], rows)
)

# %% tags=["notebook-only"]
reveal(
    "speed-up from 8 to 16 GPUs",
    runs[8].elapsed / runs[16].elapsed,
    why="Each GPU computes half as much, but the all-reduces are as large as before and now cross slower links.",
)

# %% [markdown]
# Within the node each doubling helps, but a little less each time: the products shrink with $t$, the bytes of an
# all-reduce don't. A second node with eight more GPUs shortens the step by about a fifth. As a replica with data of its
# own, it would have nearly doubled the throughput. Here is the step as a timeline, first on 8 GPUs, then on 16.
# Each lane shows the all-reduces below; above, it is striped where the rank waits for one. (Only one rank was run: all
# do the same.)

# %% tags=["notebook-only"]
titles = "A step on 8 virtual GPUs", "A step on 16 virtual GPUs"
runs[8].timeline(ranks=[0, -1], beside=runs[16], title=titles)

# %% [markdown]
# Is it the number of GPUs, or the link? You can't buy a node with 16 of these GPUs, but here it takes one line. And
# what about a narrower layer, with $D = 4096$ and 32 heads, or nodes that are connected by Ethernet?

# %% tags=["notebook-only"]
box = find_cluster("dgx-h100", 16)
one_node = replace(box, name="one node of 16", nodes=1, gpus_per_node=16)
rows = []
for width, heads in ((12288, 96), (4096, 32)):
    # within one node, GPUs and links are the same on all three
    eight = layer_on("dgx-h100", 8, width, heads)
    for cluster in (one_node, "dgx-h100", "ethernet-cloud"):
        sixteen = layer_on(cluster, 16, width, heads)
        faster = eight.elapsed / sixteen.elapsed
        name = getattr(cluster, "name", cluster)
        rows.append((width, name, f"{faster:.2f}", f"{share(sixteen):.0%}"))
print(
    tables.text(["D", "cluster", "speed-up from 8 to 16 GPUs", "communicating"], rows)
)

# %% [markdown]
# Below 1 is a slow-down: across Ethernet, eight more GPUs make each step **longer**. InfiniBand, between
# the nodes of `dgx-h100`, costs less: these nodes have a network card for each GPU, and the hierarchical all-reduce
# uses all of them at once. A plain ring across the two nodes would be much worse:

# %% tags=["notebook-only"]
runs[16].costs()

# %% [markdown]
# Even within one node the gain shrinks, and sooner for a narrow layer: each rank's share of the computing becomes so
# small that communicating takes as long. So the rule of thumb is: tensor parallelism inside a node, and no more of it
# than you need for the model to fit. Leave the other GPUs to pipelines (lesson 09) and data parallelism, which send
# less, or send while the GPUs compute.

# %% [markdown]
# ### Hiding a gather behind its product
# Is there no way to hide these messages? With sequence parallelism there is. The product after a gather can start with
# the tokens that are already there: while a rank multiplies one piece, it passes that piece on and receives the next
# one, around a ring. This is called **asynchronous tensor parallelism**. (On GPUs, PyTorch's compiler can do it for
# you.) Below is one such product on 8 GPUs: first the gather, then the product; and then piece by piece.

# %% tags=["notebook-only"]
def tensors(world_size, S=2048, D=12288):
    shapes = (S // world_size, D), (D, 4 * D // world_size)
    return [torch.empty(*shape, dtype=torch.bfloat16) for shape in shapes]

def gather_first(rank, world_size):
    x_local, w_local = tensors(world_size)
    with region("product"):
        all_gather(x_local, dim=0) @ w_local

def piece_by_piece(rank, world_size):
    piece, w_local = tensors(world_size)
    for step in range(world_size):
        coming, handles = torch.empty_like(piece), []
        if step < world_size - 1:
            handles.append(dist.isend(piece, dst=(rank - 1) % world_size))
            handles.append(dist.irecv(coming, src=(rank + 1) % world_size))
        with region("product"):
            piece @ w_local  # some rows of y
        for handle in handles:
            handle.wait()
        piece = coming

whole, pieces = (
    simulate(program, 8, cluster="dgx-h100")
    for program in (gather_first, piece_by_piece)
)
print(
    f"gather first: {1e6 * whole.elapsed:.0f} µs, piece by piece: "
    f"{1e6 * pieces.elapsed:.0f} µs"
)
whole.timeline(ranks=[0, 1], beside=pieces, title=("Gather first", "Piece by piece"))

# %% [markdown]
# # Part 8 · PyTorch's own tensor parallelism
# PyTorch does all this for ordinary modules. You give `parallelize_module` a plan that says how each module is cut, and
# it makes the collective calls for you. The plan below cuts the first layer into columns and the second into rows.
# **Predict**: how many all-reduces does it make, in both passes together?

# %%
predict("all-reduces of torch's plan", ...)

# %% tags=["notebook-only"]
def torch_mlp(rank, world_size, weights, x, grad):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)
    ).double()
    with torch.no_grad():
        for parameter, name in zip(
            model.parameters(), ("w_up", "b_up", "w_down", "b_down")
        ):
            parameter.copy_(weights[name].t())  # nn.Linear stores (outputs, inputs)
    mesh = init_device_mesh("cpu", (world_size,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = x.clone().requires_grad_()
    with region("step"):
        y = model(x)
        y.backward(grad)
    of_up, _, of_down, of_bias = (
        parameter.grad.to_local() for parameter in model.parameters()
    )
    return [y.detach(), x.grad, of_up.T, of_down.T, of_bias]

def our_mlp(rank, world_size, weights, x, grad):
    w = cut_layer(weights, rank, world_size)
    x = x.clone().requires_grad_()
    f, g, _ = doors(sequence_parallel=False)
    with region("step"):
        y = megatron_mlp(x, w["w_up"], w["b_up"], w["w_down"], w["b_down"], f, g)
        y.backward(grad)
    return [y.detach(), x.grad, w["w_up"].grad, w["w_down"].grad, w["b_down"].grad]

ours, torchs = (spawn(program, 4, weights, x, grad) for program in (our_mlp, torch_mlp))
for theirs, mine in zip(torchs.results, ours.results):
    same = [torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(mine, theirs)]
    print("the same values and gradients:", same)

# %% tags=["notebook-only"]
def called(run):
    start = next(step.start for step in run.regions if step.rank == 0)
    return [
        (event.op, event.bytes)
        for event in run.events
        if event.rank == 0 and event.start >= start
    ]

{"ours": called(ours), "torch": called(torchs)}

# %% [markdown]
# There is one all-reduce in each pass, of as many bytes as yours. (Before the step, `parallelize_module` sent rank 0's
# weights to all ranks.)

# %%
reveal(
    "all-reduces of torch's plan",
    sum(op == "all_reduce" for op, _ in called(torchs)),
    why="Columns, then rows: one in each pass, as in your own MLP.",
)

# %% [markdown]
# Sequence parallelism is a plan, too. `Shard(1)` says that a tensor is cut along dimension 1, the tokens, and
# `Replicate()` that it is whole on every rank. Where a tensor is needed in a different form, PyTorch calls a
# collective.

# %% tags=["notebook-only"]
def torch_sequence_parallel(rank, world_size, x):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    two_layers = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)
    )
    model = torch.nn.Sequential(torch.nn.LayerNorm(16), two_layers).double()
    plan = {
        "0": SequenceParallel(),
        "1": PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate()
        ),
        "1.0": ColwiseParallel(),
        "1.2": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, init_device_mesh("cpu", (world_size,)), plan)
    with region("step"):
        y_local = model(x.chunk(world_size, dim=1)[rank])
        y_local.backward(torch.ones_like(y_local))
    return model[0].weight.grad.placements

sequence_plan = spawn(torch_sequence_parallel, 4, x)
print("the gradient of LayerNorm's weight is", sequence_plan.results[0])
called(sequence_plan)

# %% [markdown]
# There is a gather and a reduce-scatter in the forward pass, and the same in the backward pass: your two doors. The
# gradients of LayerNorm's weights are still partial sums; PyTorch marks them as `Partial`, and adds them up
# when an operation needs the sum.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - **Column-parallel**: whole input, sharded output, nothing forward, all-reduce of the input's gradient backward.
#   **Row-parallel**: sharded input, partial sums, all-reduce forward, nothing backward; the bias once, after the sum.
# - **f and g** hold the communication; everything else is ordinary PyTorch. Columns, then rows: one all-reduce in each
#   pass, for an MLP and for attention by heads.
# - **Vocabulary**: embedding and loss work on shards, with masks and three numbers per token.
# - **Sequence parallelism** splits each all-reduce into its two halves: the same bytes, less memory. Weights that see
#   only some of the tokens need their gradients summed.
# - A layer sends $8 (t-1)/t \cdot B S D$ numbers while the GPUs wait. So tensor parallelism stays inside the node.
# - Compare **gradients** with one process, name by name. With a forgotten $f$, a bias added $t$ times, or the same mask
#   on all ranks, the loss falls all the same.
#
# **The library.** `torch.distributed.tensor.parallel`: `parallelize_module` with `ColwiseParallel`, `RowwiseParallel`,
# `SequenceParallel`, and `loss_parallel` for the cross-entropy. It is built on `DTensor`, which knows how a tensor is
# cut. Megatron-LM's `tensor_parallel` is the original, with names like those here.
#
# **The papers.** Shoeybi et al.: *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
# Parallelism* (2019). Korthikanti et al.: *Reducing Activation Recomputation in Large Transformer Models* (2022), for
# sequence parallelism and the formulas.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## Keeping only the shard
# In part 6 your layer kept the **gathered** tokens for its backward pass. Write a product that doesn't keep them: it
# gathers the tokens of all ranks and multiplies them by this rank's columns, in one function that autograd knows.
#
# It is judged in a stack of 4 such products, each with tokens and a weight of its own: all forward passes, then all
# backward passes. The score is the most bytes that are alive on a rank at any moment, besides what it was given. Par
# keeps the shards and gathers once more in the backward pass, as Megatron does. The limit is what must be there in the
# end: the results, and the gradients of tokens and weights.
#
# In an autograd function, `ctx.save_for_backward(a, b)` keeps tensors for the backward pass, where they are
# `ctx.saved_tensors`.

# %% exercise="gathered-product" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

class GatheredProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_local, w_local, tp_group):
        ctx.tp_group = tp_group
        ### BEGIN SOLUTION
        ctx.save_for_backward(x_local, w_local)
        return all_gather(x_local, tp_group, dim=1) @ w_local
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        ### BEGIN SOLUTION
        x_local, w_local = ctx.saved_tensors
        x = all_gather(x_local, ctx.tp_group, dim=1)
        grad_w = x.flatten(0, 1).T @ grad.flatten(0, 1)
        del x  # before the next large tensor is made
        return reduce_scatter(grad @ w_local.T, ctx.tp_group, dim=1), grad_w, None
        ### END SOLUTION

def gathered_product(x_local: Tensor, w_local: Tensor, tp_group) -> Tensor:
    """The tokens of all ranks times this rank's columns, with the right gradients for
    both.

    x_local: (B, S/t, D), this rank's tokens; w_local: (D, F/t). Returns (B, S, F/t).
    The gradient of the result is that of this rank's columns alone.
    """
    return GatheredProduct.apply(x_local, w_local, tp_group)

# %% [markdown]
# <details><summary>Hint 1: what to look at</summary>
#
# What does `across_sequence(x_local, "gather", tp_group) @ w_local` keep, and for which of the two gradients?
# </details>
# <details><summary>Hint 2: the idea of par</summary>
#
# The weight's gradient needs the gathered tokens, but only for a moment: gather them again in the backward pass. The
# gradient of the tokens is a partial sum, which goes through a reduce-scatter.
# </details>
# <details><summary>Hint 3: beyond par</summary>
#
# For a moment, all tokens are there, gathered, and then the partial sums of all their gradients. Must all of them be
# there at the same time? Gather only the first few tokens of each rank, and you get tokens of the result that aren't
# neighbours: rank $r$'s token $i$ is token $r\,S/t + i$ of the result, and of its gradient.
# </details>

# %% tags=["notebook-only"]
def kept_by(rank, world_size, product):
    x_local = torch.empty(1, 2048 // world_size, 12288)
    w_local = torch.nn.Parameter(torch.empty(12288, 6144))
    with track_memory(torch.nn.ParameterList([w_local])) as memory:
        y = product(x_local.requires_grad_() * 1, w_local, None)
        kept = memory.by_kind()["activations"]
    del y  # alive until here: what it needs for its backward is what we count
    return kept

def as_before(x_local, w_local, tp_group):
    return across_sequence(x_local, "gather", tp_group) @ w_local

for product in (as_before, gathered_product):
    print(
        f"{product.__name__:>16} keeps "
        f"{simulate(kept_by, 8, product).results[0] / 1e6:.1f} MB"
    )

# %% check="gathered-product" judges="score" points=3
check(gathered_product, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
