# %% [markdown] question="How do thousands of GPUs train one model, and how do you know it is still the same model?"
# # 3D parallelism
# *you need: lessons 05 (data), 08 (tensor) and 09 (pipeline parallelism). Lessons 07 and 11 help.*
#
# You know how to cut a batch, a matrix, a stack of layers and a sequence. Each cut has a limit of its own, and large
# runs reach all of them at once. So they use all cuts together, on a **grid** of ranks.
#
# No new algorithm is needed for that, but plenty of bookkeeping: who talks to whom, in which group, about what, and
# how often does each number count? Most of the mistakes are silent. The loss goes down anyway, a little worse than it
# should. So everything in this lesson is compared with one process that computes the same step.

# %%
import ast
import inspect
import math
import os
import subprocess
import sys
import tempfile
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import gelu, scaled_dot_product_attention

from utils import RankError, figures, region, simulate, spawn
from utils.checks import checks_for
from utils.cluster import find_cluster
from utils.kit import grid_transformer, mlp, transformer
from utils.kit.attention_blocks import (
    attention_block,
    attention_block_backward,
    causal_attention,
    flash_block,
)
from utils.kit.pipelined import pipelined
from utils.kit.plans import Model, Plan, bytes_of, problem_of, seconds_of
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.sharded_regions import blocks_for

check = checks_for("12_3d_parallelism")
# this lesson computes on the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# peaks and bandwidths as promised: times can be computed by hand
simulate = partial(simulate, rates="datasheet")
double = torch.float64

# %% [markdown]
# ## Why: every axis runs out
# A model of 96 layers of width 12,288, the size of GPT-3, with sequences of 2,048 tokens and a batch of 1,536 of
# them. How far does each way of cutting go by itself?
#
# - **data**: at most one rank per sequence. But each rank holds the whole model.
# - **tensor**: at most one rank per head, 96. In practice 8, the GPUs of a node, because it communicates in the middle
#   of every layer.
# - **pipeline**: at most one rank per layer, 96. And the bubble grows with every stage.
#
# How much does a GPU have to hold, at 16 bytes per parameter?

# %%
parameters = 12 * 96 * 12288**2
for name, ways in {
    "data, 1536 ways": 1,
    "tensor, 8 ways": 8,
    "pipeline, 96 ways": 96,
    "tensor 8 x pipeline 8": 64,
}.items():
    print(f"{name:>21}: {16 * parameters / ways / 1e9:7,.0f} GB on each GPU")

# %% [markdown]
# The first two don't fit into the 80 GB of a GPU. The third does, but its pipeline is long. With 9,216 GPUs, 96 such
# pipelines share the batch: 16 sequences each, for 96 stages, so that 95 / (16 + 95) = 86 % of a step is bubble. Tensor
# and pipeline parallelism together fit with 8 ways each, and both in the range where they work well.
#
# ### Words and letters of this lesson
# - **grid**: all ranks, arranged along **axes**. Here `dp` (data), `pp` (pipeline), `cp` (context), `tp` (tensor).
# - **coordinates** of a rank: its place on each axis.
# - **group along an axis**: the ranks that differ only in this coordinate. Every rank is in one group of each axis.
# - `dp_size`, `dp_rank`, `dp_group`, and likewise for the other axes.

# %% [markdown]
# # Part 1 · The grid
# Twelve ranks as dp 2 x pp 2 x tp 3. The last axis is the **innermost**: along it, ranks are neighbours.

# %%
grid = torch.arange(12).view(2, 2, 3)  # (dp, pp, tp)
print(grid)
print("rank 7 is at dp, pp, tp =", tuple((grid == 7).nonzero()[0].tolist()))
figures.rank_grid({"dp": 2, "pp": 2, "tp": 3})

# %% [markdown]
# The same twelve ranks three times. Boxes of one colour are a group along the axis above them.

# %% [markdown]
# ## Groups of a grid
#
# Write down **all** groups along some axes. Along `("tp",)`, above, these are `[0, 1, 2]`, `[3, 4, 5]` and so on. A
# group may also lie along several axes: ranks that differ in any of these coordinates, and agree in all of the others.
# Along `("dp", "tp")` there are two groups, one for each stage. You'll need such groups in part 6, for means over all
# ranks that hold the same part of the model.
#
# **Predict** for dp 4 x pp 2 x tp 8: how many groups are there along `tp`, how many along `dp`, and which rank comes
# after rank 0 in its group along `dp`?

# %%
predict("groups along tp", ...)
predict("groups along dp", ...)
predict("the rank after rank 0 along dp", ...)

# %% exercise="axis-groups" difficulty=2 minutes=10
def axis_groups(sizes: dict[str, int], axes: tuple[str, ...]) -> list[list[int]]:
    """All groups of ranks that differ only in their coordinates on `axes`.

    sizes: {axis: its size}, the outermost axis first; the last one is innermost. axes:
    one or more of these names, in any order. Each rank is in one group. Ranks of a
    group in ascending order; groups by their first rank.
    """
    ### BEGIN SOLUTION
    grid = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values())
    order = [n for n, name in enumerate(sizes) if name not in axes] + [
        n for n, name in enumerate(sizes) if name in axes
    ]
    each = torch.Size(size for name, size in sizes.items() if name in axes).numel()
    return sorted(grid.permute(order).reshape(-1, each).tolist())
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two ways. With tensors: number the ranks in a tensor of the grid's shape, move the wanted axes to the end, and flatten
# twice. With plain Python: compute each rank's coordinates, and collect the ranks that agree in all other coordinates
# in a dictionary.
# </details>

# %% check="axis-groups" judges="values" points=4
check(axis_groups, judges="values")

# %%
sizes = {"dp": 4, "pp": 2, "tp": 8}
along = {axis: axis_groups(sizes, (axis,)) for axis in sizes}
for axis, groups in along.items():
    print(f"{axis}: {len(groups):>2} groups, the first is {groups[0]}")

# %%
reveal(
    "groups along tp",
    len(along["tp"]),
    why="One for each pair of the other coordinates: 4 x 2.",
)
reveal(
    "groups along dp",
    len(along["dp"]),
    why="2 x 8: one for each stage and each slice of a layer.",
)
reveal(
    "the rank after rank 0 along dp",
    along["dp"][0][1],
    why="A whole replica of 2 x 8 ranks lies in between.",
)

# %% [markdown]
# **Expert parallelism** needs no new machinery. Attention is replicated over all of `dp`. Experts are spread over a
# part of it, so for them the same ranks have a second grid, in which `dp` is split into two axes: `edp`, over which an
# expert is replicated, and `ep`, over which the experts are spread. For 16 ranks, dp 8 x tp 2, with 4 ranks sharing the
# experts:

# %%
dense, experts = {"dp": 8, "tp": 2}, {"edp": 2, "ep": 4, "tp": 2}
print("gradients of attention are averaged over", axis_groups(dense, ("dp",))[0])
print("tokens travel to their experts within   ", axis_groups(experts, ("ep",))[0])
print("gradients of experts are averaged over  ", axis_groups(experts, ("edp",))[0])

# %% [markdown]
# ## Process groups
#
# `dist.new_group(ranks)` makes a process group. It has a rule that surprises everybody once: **all** ranks of the world
# must call it, for **all** groups, in the **same order**, also for groups that they aren't in. Here each rank creates
# only its own group, which seems so much tidier.

# %% tags=["notebook-only", "nbval-ignore-output"]
def only_my_own(rank, world_size):
    pair = [0, 1] if rank < 2 else [2, 3]
    # ranks 0 and 1 make one group, ranks 2 and 3 a different one
    mine = dist.new_group(pair)
    x = torch.tensor(float(rank))
    dist.all_reduce(x, group=mine)
    return x.item()

try:
    print(spawn(only_my_own, 4, timeout=5).results)
except RankError as error:
    print(str(error)[:1500])

# %% [markdown]
# Make all groups, on every rank, and keep the ones that this rank is in.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Two loops, one inside the other: over the names, and over the groups with that name. Which call has to happen in every
# round, on every rank, and which assignment only in some?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Every rank has the same dictionary in the same order, so if all ranks walk through all of it, they make the same
# calls. A rank keeps a group if it is one of its members.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# In the cell that failed, an `if` decides whether a group is made. It may only decide whether it is kept.
# </details>

# %% exercise="process-groups" difficulty=3 minutes=10
def process_groups(
    members: dict[str, list[list[int]]], rank: int
) -> dict[str, dist.ProcessGroup]:
    """{name: the process group of this name that `rank` is in}. All ranks call it.

    members: {name: the ranks of each group with this name}, the same on every rank;
    each rank is in exactly one group of each name.
    """
    ### BEGIN SOLUTION
    mine = {}
    for name, groups in members.items():
        for ranks in groups:
            group = dist.new_group(ranks)  # on every rank, whether it is in it or not
            if rank in ranks:
                mine[name] = group
    return mine
    ### END SOLUTION

# %% check="process-groups" judges="values" points=4
check(process_groups, judges="values")

# %% [markdown]
# `DeviceMesh` does both steps for you: `mesh.get_group("tp")` is this rank's group, `mesh.get_coordinate()` its place.
# Are its groups yours?

# %%
def place_of(rank, sizes):
    grid = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values())
    return dict(zip(sizes, (grid == rank).nonzero()[0].tolist()))

def groups_of(rank, sizes):
    return process_groups({axis: axis_groups(sizes, (axis,)) for axis in sizes}, rank)

# %% tags=["notebook-only"]
def beside_device_mesh(rank, world_size, sizes):
    mine = groups_of(rank, sizes)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    ranks = dist.get_process_group_ranks
    return all(
        ranks(mine[axis]) == ranks(mesh.get_group(axis)) for axis in sizes
    ), mesh.get_coordinate()

spawn(beside_device_mesh, 8, {"dp": 2, "pp": 2, "tp": 2}).results

# %% [markdown]
# ## Which axis is innermost?
# The grid says which ranks share a group; the **order** of the axes says where they are. Ranks 0 to 7 are the GPUs of
# one node, connected by NVLink. All other connections go through the network, 9 times slower here. So only the
# innermost axis, or a part of it, has fast connections.
#
# We measure it: 32 GPUs on 4 nodes, dp 2 x pp 2 x tp 8, and nothing but the communication of a training step. Each
# rank has 3 layers of width 8,192 and takes 6 microbatches of 4,096 tokens. **Predict** which order is fastest, and
# how many times as long the slowest takes.

# %%
predict(
    "the fastest order, outermost axis first",
    ...,
    choices=["dp pp tp", "tp dp pp", "tp pp dp", "pp tp dp"],
)
predict("slowest order over fastest", ...)

# %% tags=["notebook-only"]
def only_communication(
    rank, world_size, sizes, layers=3, width=8192, microbatches=6, tokens=4096
):
    groups = groups_of(rank, sizes)
    x = torch.empty(tokens, width, dtype=torch.bfloat16)
    gradients = torch.empty(12 * layers * width**2 // sizes["tp"], dtype=torch.bfloat16)
    stages = dist.get_process_group_ranks(groups["pp"])
    with region("step"):
        for _ in range(microbatches):
            # two all-reduces per layer, forward and backward
            for _ in range(2 * 2 * layers):
                dist.all_reduce(x, group=groups["tp"])
            if rank == stages[0]:
                dist.send(x, dst=stages[1])
            else:
                dist.recv(x, src=stages[0])
        dist.all_reduce(gradients, group=groups["dp"])

sizes, took = {"dp": 2, "pp": 2, "tp": 8}, {}
for order in ("dp pp tp", "tp dp pp", "tp pp dp", "pp tp dp"):
    took[order] = simulate(
        only_communication, 32, {axis: sizes[axis] for axis in order.split()}
    ).elapsed
    print(f"{order}: {took[order] * 1e3:6.1f} ms")

# %%
reveal(
    "the fastest order, outermost axis first",
    min(took, key=took.get),
    why="Tensor parallelism communicates most, and nothing can be done meanwhile: it gets the fastest links.",
)
reveal(
    "slowest order over fastest",
    max(took.values()) / min(took.values()),
    why="Less than 9: where tp loses, another axis gains.",
)

# %% [markdown]
# So: `tp` innermost, within a node. Then `pp` or `dp`. Stages send little, so they could be farthest apart; but the
# all-reduce of the gradients is a large message that can be hidden behind the backward pass. Megatron-LM's default is
# tp, cp, ep, dp, pp from the inside outwards.

# %% [markdown]
# # Part 2 · Three axes, one step
# The course's MLP on a grid of dp x pp x tp. What does the rank at (d, p, t) do?
#
# - **data**: of the batch it takes chunk d of the rows, and cuts it into microbatches.
# - **pipeline**: it has the layers of stage p. `pipelined` from `utils/kit/pipelined.py` runs lesson 09's 1F1B for any
#   stage: you write what the stage computes, and it sends, receives, and goes forward and back.
# - **tensor**: of each pair of layers it has some columns of the first weight and the matching rows of the second, as
#   in lesson 08. `f` and `g` are the doors that you wrote there, ready-made.
#
# ```python
# blocks = blocks_for(tp_group)
# f, g = blocks["f"], blocks["g"]  # f: all-reduce in the backward pass; g: in the forward pass
# loss = pipelined(stage, count, like, pp_group)
# # stage(number, x) -> y, for microbatch `number`; on the first stage x is None
# # like: a tensor of the shape that travels between stages
# # The last stage's y must be a loss; their sum comes back there, and None elsewhere.
# ```
#
# Here is the cut, given the coordinates. Each stage has as many pairs of layers as the others.

# %%
def cut_weights(weights, place, sizes):
    """The weights of one rank: of its stage's layers in turn some columns, some rows."""
    mine = [
        weights[n]
        for n in range(len(weights))
        if n * sizes["pp"] // len(weights) == place["pp"]
    ]
    return [
        w.chunk(sizes["tp"], dim=1 - n % 2)[place["tp"]].clone()
        for n, w in enumerate(mine)
    ]

sizes = {"dp": 2, "pp": 2, "tp": 2}
weights = mlp.make_weights(num_layers=8, num_dim=8, dtype=double)
[tuple(w.shape) for w in cut_weights(weights, {"dp": 0, "pp": 1, "tp": 0}, sizes)]

# %% [markdown]
# ## A training step on the grid
#
# The result must be what one process computes for the whole batch: the loss is the mean over all rows, and so are the
# gradients. Each factor is yours to think about: how much does one microbatch count within this rank's rows, and these
# rows within the batch? What must be added up over which axis, and what is already right?
#
# **Predict** before you write it, for dp 2 x pp 2 x tp 2 with 4 microbatches and two pairs of layers on each stage: how
# many all-reduces does a rank of the last stage call along tp, and how many messages does it send?

# %%
predict("all-reduces along tp, last stage", ...)
predict("messages that a rank of the last stage sends", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Three holes. What does a stage do with `x`, and where does the first stage get it from? What does only the last stage
# do? And after `pipelined`: which of the three groups has something left to agree on?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# A pair of layers is lesson 08's MLP: enter through `f`, leave through `g`, and the second gelu comes after the sum. A
# microbatch is one of `num_microbatches` equal parts of the mean. Along tp everything is right when the backward pass
# is done, because of `f`. Along pp nobody shares weights. Along dp each rank has seen only its own rows.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# In the stage, walk over the leaves two at a time. On the last stage return the loss divided by the number of
# microbatches. Afterwards, average each gradient over the data axis, and the loss too, where there is one.
# </details>

# %% exercise="grid-step" difficulty=4 minutes=20
def grid_step(
    batch: Tensor,
    weights: list[Tensor],
    num_microbatches: int,
    dp_group,
    pp_group,
    tp_group,
) -> tuple[Tensor | None, list[Tensor]]:
    """(loss, gradients of this rank's weights), those of the whole batch. Loss: None
    except on the last stage.

    batch: (B, D), the same on every rank. Chunk dp_rank of its rows is this rank's, in
    num_microbatches chunks of equal size.
    weights: in turn (D, D/t) columns and (D/t, D) rows of this stage's layers, as from
    cut_weights; left unchanged. A layer is gelu(x @ weight), the loss is mlp.loss_of.
    """
    dp_rank, dp_size = dist.get_rank(dp_group), dist.get_world_size(dp_group)
    last = dist.get_rank(pp_group) == dist.get_world_size(pp_group) - 1
    blocks = blocks_for(tp_group)
    f, g = blocks["f"], blocks["g"]
    leaves = [weight.detach().clone().requires_grad_() for weight in weights]
    microbatches = batch.chunk(dp_size)[dp_rank].chunk(num_microbatches)

    def stage(number: int, x: Tensor | None) -> Tensor:
        ### BEGIN SOLUTION
        x = microbatches[number] if x is None else x
        for columns, rows in zip(leaves[::2], leaves[1::2]):
            x = gelu(g(gelu(f(x) @ columns) @ rows))
        return mlp.loss_of(x) / num_microbatches if last else x
        ### END SOLUTION

    loss = pipelined(stage, num_microbatches, microbatches[0], pp_group)
    gradients = [leaf.grad for leaf in leaves]
    ### BEGIN SOLUTION
    for x in [*gradients, loss] if last else gradients:
        dist.all_reduce(x, op=dist.ReduceOp.AVG, group=dp_group)
    ### END SOLUTION
    return loss, gradients

# %% check="grid-step" judges="values" points=5
check(grid_step, judges="values")

# %% check="grid-step" judges="traffic" points=2
check(grid_step, judges="traffic")

# %% [markdown]
# ### One step, eight grids
# The same step on 8 virtual GPUs, with the batch, the model and the microbatches unchanged. What differs is the grid:
# how many bytes travel along each axis, how many bytes a rank holds at most, and how long it takes. 16 layers of width
# 4,096 in bfloat16, 4,096 rows. **Predict** which of the three pure grids needs the least memory, and which is fastest.

# %%
predict("least memory of the pure grids", ..., choices=["dp 8", "pp 8", "tp 8"])
predict("fastest of the pure grids", ..., choices=["dp 8", "pp 8", "tp 8"])

# %% tags=["notebook-only"]
def step_program(rank, world_size, sizes, layers=16, count=4, dim=4096, rows=4096):
    groups = groups_of(rank, sizes)
    shapes = [(dim, dim // sizes["tp"]), (dim // sizes["tp"], dim)] * (
        layers // sizes["pp"] // 2
    )
    weights = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
    batch = torch.empty(rows, dim, dtype=torch.bfloat16)
    with region("step"):
        grid_step(batch, weights, count, *(groups[axis] for axis in sizes))

def bytes_along(run, sizes):
    """{axis: bytes that rank 0 hands in to calls along it}, none to itself alone"""
    axis_of = {
        tuple(axis_groups(sizes, (axis,))[0]): axis for axis in sizes if sizes[axis] > 1
    }
    found = dict.fromkeys(sizes, 0)
    for event in run.events:
        if event.rank == 0 and event.op == "all_reduce" and event.members in axis_of:
            found[axis_of[event.members]] += event.bytes
        elif event.rank == 0 and event.op == "send":
            found["pp"] += event.bytes
    return found

runs = {}
print(
    f"{'dp x pp x tp':>12}  {'dp':>9} {'pp':>9} {'tp':>9}  {'holds':>9}  {'takes':>9}"
)
for dp, pp, tp in (
    (8, 1, 1),
    (1, 8, 1),
    (1, 1, 8),
    (4, 2, 1),
    (4, 1, 2),
    (2, 2, 2),
    (2, 1, 4),
    (1, 2, 4),
):
    sizes = {"dp": dp, "pp": pp, "tp": tp}
    run = runs[dp, pp, tp] = simulate(step_program, 8, sizes)
    sent = " ".join(f"{n / 1e6:6.0f} MB" for n in bytes_along(run, sizes).values())
    print(
        f"{f'{dp} x {pp} x {tp}':>12}  {sent}  {max(run.memory().peak) / 1e6:6.0f} MB  "
        f"{run.elapsed * 1e3:6.2f} ms"
    )

# %% tags=["notebook-only"]
pure = {"dp 8": runs[8, 1, 1], "pp 8": runs[1, 8, 1], "tp 8": runs[1, 1, 8]}
run = simulate(step_program, 8, {"dp": 2, "pp": 2, "tp": 2}, layers=8)
of_last = [event for event in run.events if event.rank == 6]

# %%
reveal(
    "all-reduces along tp, last stage",
    sum(event.op == "all_reduce" and event.members == (6, 7) for event in of_last),
    why="4 microbatches, 2 pairs, one in each direction.",
)
reveal(
    "messages that a rank of the last stage sends",
    sum(event.op == "send" for event in of_last),
    why="It sends only gradients back, one message per microbatch.",
)
reveal(
    "least memory of the pure grids",
    min(pure, key=lambda name: max(pure[name].memory().peak)),
    why="An eighth of the weights, and between the doors an eighth of the activations.",
)
reveal(
    "fastest of the pure grids",
    min(pure, key=lambda name: pure[name].elapsed),
    why="It sends least. Data parallelism leaves 128 rows per microbatch, and each reads all weights from memory.",
)

# %% [markdown]
# # Part 3 · Context parallelism
# One thing is still whole on every rank of a tensor group: the **sequence**. Sequence parallelism cuts it for LayerNorm
# and dropout, but before attention it is gathered again, since a token looks at all tokens before it. With a million
# tokens, no GPU can hold even one layer's activations. **Context parallelism** (cp) keeps the sequence cut everywhere.
# A rank has some tokens, and all weights. Only attention has to communicate: the rank's queries must meet the keys and
# values of **all** tokens.
#
# The idea of **ring attention**: a query need not see all keys at once. Keys and values travel round the ring. At each
# step a rank attends to the block that is there, and merges the result into what it has so far.

# %% [markdown]
# ## Merging two blocks
#
# For one query, let block A of the keys have the scores $s_i$ and the values $v_i$. By itself, it gives
#
# $$\text{out}_A = \sum_{i \in A} e^{s_i - L_A}\, v_i, \qquad L_A = \log \sum_{i \in A} e^{s_i}.$$
#
# $L$ is called `lse`, log-sum-exp. You have $(\text{out}_A, L_A)$ and $(\text{out}_B, L_B)$, and want the same for all
# keys of both. This is the **running softmax** of FlashAttention.
#
# Two traps. Scores of several hundred are not unusual, and $e^{800}$ is infinite in float32 and in float64. And if a
# query may look at no key of a block, then $L = -\infty$ and out $= 0$; but never for both blocks.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Write down the softmax over both blocks, and split its sum into A and B. By which factor does the first half differ
# from A's out?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# The new lse is the logarithm of the sum of both blocks' sums of exponentials. Each block's out is weighted by the
# exponential of its own lse minus the new one, a number between 0 and 1, so nothing can overflow.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# torch has a function that adds two numbers given by their logarithms, without overflow, and it knows minus infinity.
# An lse has no dimension for the width of a head: `unsqueeze(-1)` makes one.
# </details>

# %% exercise="merge-attention" difficulty=3 minutes=12
def merge_attention(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """(out, lse) of attention to the keys of both blocks, from those of each block.

    out_a, out_b: (B, heads, S, d). lse_a, lse_b: (B, heads, S), of any size; -inf where
    a query may look at no key of that block (its out is 0), but for no query in both.
    All four are left unchanged.
    """
    ### BEGIN SOLUTION
    lse = torch.logaddexp(lse_a, lse_b)
    out = out_a * (lse_a - lse).exp().unsqueeze(-1) + out_b * (lse_b - lse).exp().unsqueeze(-1)
    return out, lse
    ### END SOLUTION

# %% check="merge-attention" judges="values" points=4
check(merge_attention, judges="values")

# %% [markdown]
# The block itself is given, in `utils/kit/attention_blocks.py`: `attention_block(q, k, v, q_positions, k_positions)`
# returns `(out, lse)`. The positions are those in the whole sequence, since a query may look only at keys up to its own
# position. Which block is where doesn't matter: merged in any order, the result is the same.

# %%
generator = torch.Generator().manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 8, 4, generator=generator, dtype=double)
positions = torch.arange(8)
out, lse = attention_block(q, k[:, :, 5:], v[:, :, 5:], positions, positions[5:])
for part in (slice(0, 2), slice(2, 5)):
    out, lse = merge_attention(
        out,
        lse,
        *attention_block(q, k[:, :, part], v[:, :, part], positions, positions[part]),
    )
print("three blocks, last one first:", torch.allclose(out, causal_attention(q, k, v)))

# %% [markdown]
# ## Ring attention
#
# Now the ring. Rank r of the group begins with its own keys and values. Then, P - 1 times, it passes on what it has to
# the next rank, receives from the one before, and attends to that. Keys and values travel together, as one tensor.
#
# Whose keys are here after `step` hops? Their positions are needed for the causal mask. Every rank knows who began with
# what: `positions_of[r]` are the positions of rank r of the group.
#
# **Predict** for 8 ranks, a sequence of 131,072 tokens and grouped-query attention with 8 key heads of width 128, in
# bfloat16: how many MB does a rank send in one layer's forward pass?

# %%
predict("MB that a rank sends forward", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Four things per hop: send on, receive, work out whose keys have arrived, merge. Lesson 02's ring all-gather has the
# first two.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Start with the rank's own block. In each hop, start the send without waiting, receive into a buffer of its own, and
# only then let go of what was sent. After the first hop the keys of the rank before are here, after the second hop
# those of the one before that.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# In hop number step, counted from 0: isend to `after`, recv from `before`, wait for the isend. The arrived keys belong
# to the rank step + 1 places before this one, counted round the ring. Attend to them with their positions, and merge.
# </details>

# %% exercise="ring-attention" difficulty=4 minutes=20
def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, positions_of: list[Tensor], merge, cp_group
) -> tuple[Tensor, Tensor]:
    """(out, lse) of this rank's queries among the whole group's keys, causal.

    q, k, v: (B, heads, S/P, d), this rank's tokens. positions_of: for each rank of the
    group the positions of its tokens, (S/P,). merge: merge_attention. P - 1 messages of
    k and v per rank. Inputs are left unchanged.
    """
    cp_rank, cp_size = dist.get_rank(cp_group), dist.get_world_size(cp_group)
    after, before = (
        dist.get_global_rank(cp_group, (cp_rank + step) % cp_size) for step in (1, -1)
    )
    kv = torch.stack([k, v])  # travels as one tensor: kv[0] are keys, kv[1] values
    out, lse = attention_block(q, k, v, positions_of[cp_rank], positions_of[cp_rank])
    for step in range(cp_size - 1):
        ### BEGIN SOLUTION
        incoming = torch.empty_like(kv)
        sending = dist.isend(kv, dst=after)
        dist.recv(incoming, src=before)
        sending.wait()
        kv, theirs = incoming, positions_of[(cp_rank - step - 1) % cp_size]
        out, lse = merge(out, lse, *attention_block(q, kv[0], kv[1], positions_of[cp_rank], theirs))
        ### END SOLUTION
    return out, lse

# %% check="ring-attention" judges="values" points=4
check(ring_attention, judges="values")

# %% check="ring-attention" judges="traffic" points=2
check(ring_attention, judges="traffic")

# %%
tokens_of_a_rank = 131_072 // 8

# %%
reveal(
    "MB that a rank sends forward",
    round(7 * 2 * tokens_of_a_rank * 8 * 128 * 2 / 1e6),
    why="P - 1 hops, each with the keys and the values of S / P tokens, at 2 bytes a number.",
)

# %% [markdown]
# ## A balanced cut
# With a causal mask, the ring has a flaw. Cut the sequence into P neighbouring chunks, and the first rank's queries may
# look at its own keys only: P - 1 of its P blocks are masked entirely. The last rank's queries look at everything. All
# ranks wait for the slowest, so half of the computing power is wasted.
#
# The remedy is called **zigzag**. Cut the sequence into 2P chunks, and give rank r two of them: number r from the front
# and number r from the back. For P = 4: chunks 0 and 7, 1 and 6, 2 and 5, 3 and 4.
#
# **Predict** for 4 ranks and 64 tokens in neighbouring chunks of 16: how many pairs of a query and a visible key does
# rank 0 have, how many rank 3, and how many each rank with zigzag? (A token sees itself.)

# %%
predict("pairs on rank 0, rank 3, and each with zigzag", ...)

# %%
def zigzag_positions(tokens, cp_rank, cp_size):
    """The positions of this rank's tokens, ascending: an early chunk, then a late one.
    (tokens / P,)
    """
    chunks = torch.arange(tokens).chunk(2 * cp_size)
    return torch.cat([chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]])

def pairs(positions):
    return sum(positions + 1).item()

chunked = [pairs(chunk) for chunk in torch.arange(64).chunk(4)]
zigzag = [pairs(zigzag_positions(64, rank, 4)) for rank in range(4)]
print(f"neighbouring chunks: {chunked}\nzigzag:              {zigzag}")
cuts = {"neighbouring chunks": [[2 * r, 2 * r + 1] for r in range(4)]}
cuts["zigzag"] = [zigzag_positions(8, rank, 4).tolist() for rank in range(4)]
figures.ring_blocks(cuts)

# %% [markdown]
# Rows are chunks of queries, with the rank that has them; columns are chunks of keys. The number is the hop at which
# these keys have arrived.

# %%
reveal(
    "pairs on rank 0, rank 3, and each with zigzag",
    [chunked[0], chunked[3], zigzag[0]],
    why="What the early chunk lacks, the late one has: the sum over both is the same for every rank.",
)

# %% [markdown]
# ## Leaving out what is masked
#
# So far nothing is gained: `attention_block` computes every score of a block, and then hides half of them. A kernel
# such as FlashAttention leaves out what a causal mask hides, but it knows two masks only. With `causal=True`, query
# number i sees keys 0 to i; otherwise all queries see all keys. `flash_block` behaves like that. Look at the figure:
# what does zigzag have at hop 0, and what at all other hops? Two kinds of blocks, and each is a single call of the
# kernel, on some of the queries or some of the keys.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Take rank 1 of the figure on the right: its two rows. Find the columns of rank 1 itself, then those of rank 0, then
# those of rank 3. Each time two by two squares: which of them are coloured?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# A rank's own keys are a causal block, since positions ascend in both. The early chunk of a rank before you comes
# before both of your chunks, its late one after both. With a rank behind you, your own chunks differ: your early one
# comes before everything that it has, your late one after.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Three cases, one call of `attend` in each: with the mask; without it, on the first half of the keys and values; and
# without it, on the second half of the queries. There, the first half of both results is what an empty block gives.
# </details>

# %% exercise="zigzag-block" difficulty=3 minutes=12
def zigzag_block(
    q: Tensor, k: Tensor, v: Tensor, queries_of: int, keys_of: int, attend
) -> tuple[Tensor, Tensor]:
    """(out, lse) of one rank's queries among one rank's keys, no score computed in
    vain.

    q, k, v: (B, heads, 2 n, d), cut zigzag: n tokens of an early chunk, then n of a
    late one. queries_of, keys_of: the ranks in the cp group that q comes from, and k
    and v. attend: as flash_block(q, k, v, causal=False), for any numbers of queries and
    keys. Queries that see none of the keys have out 0 and lse -inf. Inputs are left
    unchanged.
    """
    n = q.shape[2] // 2
    ### BEGIN SOLUTION
    if keys_of == queries_of:
        return attend(q, k, v, causal=True)
    if keys_of < queries_of:
        return attend(q, k[:, :, :n], v[:, :, :n])
    out, lse = torch.zeros_like(q), torch.full_like(q[..., 0], float("-inf"))
    out[:, :, n:], lse[:, :, n:] = attend(q[:, :, n:], k, v)
    return out, lse
    ### END SOLUTION

# %% check="zigzag-block" judges="values" points=4
check(zigzag_block, judges="values")

# %% [markdown]
# Merged over all ranks' keys, that is attention to the whole sequence, and the same work for every rank:

# %%
computed = []

def counting(q, k, v, causal=False):
    computed.append(q.shape[2] * (k.shape[2] + causal) // (1 + causal))
    return flash_block(q, k, v, causal)

q, k, v = torch.randn(3, 1, 2, 64, 4, generator=generator, dtype=double)
whole = causal_attention(q, k, v)
cut = [zigzag_positions(64, rank, 4) for rank in range(4)]
for rank, own in enumerate(cut):
    computed.clear()
    for hop in range(4):
        keys_of = (rank - hop) % 4
        theirs = cut[keys_of]
        block = zigzag_block(
            q[:, :, own], k[:, :, theirs], v[:, :, theirs], rank, keys_of, counting
        )
        out, lse = merge_attention(out, lse, *block) if hop else block
    print(
        f"rank {rank}: {sum(computed)} scores per head, correct: "
        f"{torch.allclose(out, whole[:, :, own])}"
    )

# %% [markdown]
# ## Ring attention, backward
#
# Training needs the gradients of q, k and v. `attention_block_backward` gives a block's part of them, from the final
# `out` and `lse`, which know about all keys. The gradient of q belongs to the rank's own queries, so it stays where it
# is and is added up. The gradients of k and v belong to keys that are **passing through**. So they travel along with
# these keys, and every rank adds its part.
#
# ```python
# # q, out, lse, grad: of the queries; k, v: of the block of keys
# dq, dk, dv = attention_block_backward(q, k, v, out, lse, grad, q_positions, k_positions)
# ```
#
# **Predict**: when the last block has been computed, where are a rank's own dk and dv? How many messages does a rank
# send in the backward pass on 4 ranks, if keys with values, and their gradients, are one message each?

# %%
predict("messages backward, 4 ranks", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Follow the keys of rank 0 round a ring of three. Who has computed with them after each hop, and on which rank is the
# sum complete?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Two tensors travel: the keys with values, and the gradients of those. In each of P rounds add this block's part to the
# gradients that are here, then pass them on. Keys and values need one hop fewer, since the last rank has no use for
# sending them home.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Start with zeros for dq and for the travelling gradients. In round number step the keys of the rank step places before
# this one are here. Pass the keys on in all rounds except the last, and the gradients in every round, after adding.
# </details>

# %% exercise="ring-attention-backward" difficulty=4 minutes=18
def ring_attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions_of: list[Tensor],
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    cp_group,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv): the gradients with respect to this rank's q, k and v.

    q, k, v, positions_of, out, lse: as in ring_attention. grad: with respect to this
    rank's out. P - 1 messages of k and v, P of their gradients; none if P is 1. Inputs
    are left unchanged.
    """
    cp_rank, cp_size = dist.get_rank(cp_group), dist.get_world_size(cp_group)
    after, before = (
        dist.get_global_rank(cp_group, (cp_rank + step) % cp_size) for step in (1, -1)
    )

    def passed_on(x: Tensor) -> Tensor:
        """x goes to the next rank; returns what comes from the one before."""
        if cp_size == 1:
            return x
        arriving = torch.empty_like(x)
        works = [dist.isend(x, dst=after), dist.irecv(arriving, src=before)]
        for work in works:
            work.wait()
        return arriving

    ### BEGIN SOLUTION
    kv = torch.stack([k, v])
    dq, dkv = torch.zeros_like(q), torch.zeros_like(kv)
    for step in range(cp_size):
        if step > 0:
            kv, dkv = passed_on(kv), passed_on(dkv)
        part = attention_block_backward(
            q, kv[0], kv[1], out, lse, grad, positions_of[cp_rank], positions_of[(cp_rank - step) % cp_size]
        )
        dq += part[0]
        dkv += torch.stack(part[1:])
    dkv = passed_on(dkv)
    return dq, *dkv
    ### END SOLUTION

# %% check="ring-attention-backward" judges="values" points=4
check(ring_attention_backward, judges="values")

# %% check="ring-attention-backward" judges="traffic" points=1
check(ring_attention_backward, judges="traffic")

# %% [markdown]
# Both halves in one autograd function, on zigzag positions, against one process with the whole sequence:

# %%
class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, positions_of, cp_group):
        out, lse = ring_attention(q, k, v, positions_of, merge_attention, cp_group)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.positions_of, ctx.cp_group = positions_of, cp_group
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        grads = ring_attention_backward(
            q, k, v, ctx.positions_of, out, lse, grad.contiguous(), ctx.cp_group
        )
        return *grads, None, None

# %% tags=["notebook-only"]
def whole_tensors(tokens):
    return torch.randn(
        4, 1, 2, tokens, 4, generator=torch.Generator().manual_seed(1), dtype=double
    )

def with_the_ring(rank, world_size, tokens=24):
    positions_of = [zigzag_positions(tokens, r, world_size) for r in range(world_size)]
    *qkv, grad = whole_tensors(tokens)[..., positions_of[rank], :]
    leaves = [x.clone().requires_grad_() for x in qkv]
    RingAttention.apply(*leaves, positions_of, dist.group.WORLD).backward(grad)
    return positions_of[rank], [leaf.grad for leaf in leaves]

run = spawn(with_the_ring, 4)
*qkv, grad = whole_tensors(24)
leaves = [x.clone().requires_grad_() for x in qkv]
causal_attention(*leaves).backward(grad)
for name, number in (("dq", 0), ("dk", 1), ("dv", 2)):
    right = all(
        torch.allclose(grads[number], leaves[number].grad[:, :, at])
        for at, grads in run.results
    )
    print(f"{name} agrees with one process: {right}")
of_backward = [event for event in run.events if event.rank == 0 and event.op == "send"]

# %%
reveal(
    "messages backward, 4 ranks",
    len(of_backward) - 3,
    why="Three hops of keys and values, four of gradients: the fourth brings them home.",
)

# %% [markdown]
# ## Exchanging heads for tokens
#
# There is a different way, known as **DeepSpeed-Ulysses**: attention works on each head by itself. So swap: from "some
# tokens, all heads" to "all tokens, some heads". An all-to-all does just that. Then each rank computes ordinary
# attention for its heads, and a second all-to-all swaps back. P must divide the number of heads, so this way ends where
# tensor parallelism does; the ring knows no such limit.
#
# Here a rank's tokens are **neighbouring** ones, chunk r of the sequence, so that the gathered sequence is in order.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Twice the same exchange, along different dimensions. Which dimension is cut before it, and which one grows by it? In
# which order do the parts arrive?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# There: cut the heads into P parts and send part r to rank r. What arrives are the tokens of all ranks for the heads of
# this one: join them along the tokens. Back: cut the tokens, and join along the heads.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Give `exchange` the list of chunks along dimension 1, and concatenate the answer along dimension 2, for q, k and v.
# After the attention, exchange chunks along dimension 2 and concatenate along dimension 1.
# </details>

# %% exercise="ulysses-attention" difficulty=3 minutes=12
def ulysses_attention(q: Tensor, k: Tensor, v: Tensor, cp_group) -> Tensor:
    """This rank's tokens of causal attention over the sequence of the whole group.

    q, k, v: (B, heads, S/P, d), chunk cp_rank of the sequence; P divides heads. Returns
    (B, heads, S/P, d). Only all-to-alls: q, k and v there, the result back, once each.
    Inputs are left unchanged.
    """
    cp_size = dist.get_world_size(cp_group)

    def exchange(parts: list[Tensor]) -> list[Tensor]:
        """parts[r] goes to rank r of the group; what comes back has one part from each
        rank.
        """
        there = torch.stack(list(parts))
        arrived = torch.empty_like(there)
        dist.all_to_all_single(arrived, there, group=cp_group)
        return list(arrived)

    ### BEGIN SOLUTION
    q, k, v = (torch.cat(exchange(x.chunk(cp_size, dim=1)), dim=2) for x in (q, k, v))
    out = causal_attention(q, k, v)
    parts = out.chunk(cp_size, dim=2)
    return torch.cat(exchange(parts), dim=1)
    ### END SOLUTION

# %% check="ulysses-attention" judges="values" points=3
check(ulysses_attention, judges="values")

# %% check="ulysses-attention" judges="traffic" points=1
check(ulysses_attention, judges="traffic")

# %% [markdown]
# ### Three ways, measured
# The third way is the plainest: **all-gather** the keys and values, and attend at once. Three programs, one layer's
# forward pass, on the 8 GPUs of a node: bytes that a rank hands to the network, what it holds at most, and time.
# Llama 3 was trained with the all-gather, since with grouped-query attention keys and values are small.
#
# Memory here counts the scores as well, because our plain attention writes them out. FlashAttention doesn't; then the
# ring holds two blocks of keys, and the all-gather holds all keys.

# %%
def gathered_attention(q, k, v, cp_group):
    size = dist.get_world_size(cp_group)
    whole = []
    for x in (k, v):
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x, group=cp_group)
        whole.append(torch.cat(parts, dim=2))
    tokens = torch.arange(q.shape[2] * size)
    return attention_block(
        q, *whole, tokens.chunk(size)[dist.get_rank(cp_group)], tokens
    )[0]

def one_layer(rank, world_size, way, tokens, heads=16, width=128):
    q, k, v = (
        torch.empty(1, heads, tokens // world_size, width, dtype=torch.bfloat16)
        for _ in range(3)
    )
    with region("attention"):
        if way == "ring":
            at = [
                torch.empty(tokens // world_size, dtype=torch.int64)
                for _ in range(world_size)
            ]
            ring_attention(q, k, v, at, merge_attention, dist.group.WORLD)
        else:
            {"all-gather": gathered_attention, "all-to-all": ulysses_attention}[way](
                q, k, v, dist.group.WORLD
            )

predict("way with the least memory", ..., choices=["ring", "all-gather", "all-to-all"])
predict("way that sends least", ..., choices=["ring", "all-gather", "all-to-all"])

# %% tags=["notebook-only"]
def sent_by_a_rank(run):
    traffic = run.traffic()
    return traffic.sent(0)[1] + sum(
        calls.implied for calls in traffic.collectives[0].values()
    )

ways = {
    way: simulate(one_layer, 8, way, 32_768)
    for way in ("ring", "all-gather", "all-to-all")
}
for way, run in ways.items():
    sent, held = sent_by_a_rank(run) / 1e6, max(run.memory().peak) / 1e9
    print(
        f"{way:>10}: sends {sent:5.0f} MB, holds {held:5.2f} GB, takes "
        f"{run.elapsed * 1e3:6.2f} ms"
    )

# %%
reveal(
    "way with the least memory",
    min(ways, key=lambda w: max(ways[w].memory().peak)),
    why="Two blocks at a time.",
)
reveal(
    "way that sends least",
    min(ways, key=lambda w: sent_by_a_rank(ways[w])),
    why="Each rank keeps what it needs for its own heads: q, k, v and the result, but of S / P tokens, not of S.",
)

# %% [markdown]
# # Part 4 · One model on all axes
# A step is not finished when its backward pass is. What follows is where programs go wrong without any error message:
# gradients that lack a part, or have one twice. We use the small transformer now, with sequence parallelism: between
# the sharded regions a rank of a tensor group has only its own tokens. The first stage has the embedding table, and the
# last stage uses **the same** table to compute the scores of the next token.
#
# So there are three kinds of weights. **Predict** for each which groups have to add something up: a matrix that is cut
# along tp; LayerNorm's weight, which all tp ranks have in full; and the embedding table.

# %%
groups_to_choose = ["dp", "dp and tp", "dp, tp, and both ends of the pipeline"]
predict("a matrix that is cut along tp", ..., choices=groups_to_choose)
predict("LayerNorm's weight", ..., choices=groups_to_choose)
predict("the embedding table", ..., choices=groups_to_choose)

# %% [markdown]
# ## Finishing the gradients
#
# Each tensor in `gradients` is what this rank's backward pass has found. For each, do what is missing:
#
# - **partial**: the weight is whole on all tp ranks, and each has used it for its own tokens. The parts are summed.
# - **tied**: the first and the last stage have a copy each, used in different places. Both gradients are summed. These
#   two ranks form the `embedding_group`; on a stage in between, the group has one member, and no such weight.
# - **all**: the mean over the data axis, which has seen different sequences.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The three sentences above are three calls. Which of them apply to every tensor, and which depend on its name?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Sums and means may be taken in any order, since each is over different ranks. But all ranks of a group must come with
# the same tensors in the same order: they do, since all ranks of a group have the same names, or use the table alone.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# For each name: clone the gradient, so that the input stays as it was. Two conditions, each with an all-reduce in the
# group that its sentence names. After both, an averaging all-reduce along the data axis.
# </details>

# %% exercise="finish-gradients" difficulty=3 minutes=12
def finish_gradients(
    gradients: dict[str, Tensor],
    partial: list[str],
    tied: list[str],
    dp_group,
    tp_group,
    embedding_group,
) -> dict[str, Tensor]:
    """{name: the finished gradient}, the same on all ranks that have the same weight.

    gradients: of this rank's weights, in the same order on all ranks of a group; left
    unchanged. partial, tied: names; some are not among this rank's weights, some are in
    both lists.
    """
    finished = {}
    ### BEGIN SOLUTION
    for name, gradient in gradients.items():
        finished[name] = gradient.clone()
        if name in partial:
            dist.all_reduce(finished[name], group=tp_group)
        if name in tied:
            dist.all_reduce(finished[name], group=embedding_group)
        dist.all_reduce(finished[name], op=dist.ReduceOp.AVG, group=dp_group)
    ### END SOLUTION
    return finished

# %% check="finish-gradients" judges="values" points=4
check(finish_gradients, judges="values")

# %% check="finish-gradients" judges="traffic" points=1
check(finish_gradients, judges="traffic")

# %%
reveal(
    "a matrix that is cut along tp",
    groups_to_choose[0],
    why="Its columns met all tokens of the group.",
)
reveal(
    "LayerNorm's weight",
    groups_to_choose[1],
    why="Each tp rank has applied it to its own tokens only.",
)
reveal(
    "the embedding table",
    groups_to_choose[2],
    why="It is used for looking up, and once more for the scores.",
)

# %% [markdown]
# ## The norm of all gradients
#
# To clip, one needs the norm of **the** gradient: that of the whole model, as if one process had it. Over the grid,
# some numbers are there once, and some several times. A norm that counts LayerNorm eight times is too large, so the
# steps become too small. It also changes with the grid, so that a resumed run behaves differently.
#
# After `finish_gradients`, all data ranks have the same, so `dp` is not needed. Within one replica, count a **sharded**
# gradient on every rank, a **replicated** one once per tp group, and a tied one on one of its stages.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Add up squares, as in lesson 07. For each name, ask: how many ranks of this replica hold the very same numbers?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# What is replicated along tp would come in tp_size times. Either one rank of the group counts it, or each counts its
# share of it. What is in `elsewhere` is counted by another stage. Then the sums are added along tp and along pp.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# A float64 zero to start with. For each gradient that isn't elsewhere, add its sum of squares, divided by the size of
# the tp group if its name is in `replicated`. Two all-reduces, then the root.
# </details>

# %% exercise="grid-norm" difficulty=3 minutes=12
def grid_norm(
    gradients: dict[str, Tensor],
    replicated: list[str],
    elsewhere: list[str],
    pp_group,
    tp_group,
) -> float:
    """The norm of the whole model's gradient, the same on every rank.

    gradients: finished, of this rank's weights; left unchanged. replicated: names of
    those that all ranks of tp_group have in full; the others are cut along tp.
    elsewhere: names that another stage counts.
    """
    total = torch.zeros((), dtype=torch.float64)
    ### BEGIN SOLUTION
    for name, gradient in gradients.items():
        if name in elsewhere:
            continue
        square = gradient.double().square().sum()
        total += square / dist.get_world_size(tp_group) if name in replicated else square
    for group in (tp_group, pp_group):
        dist.all_reduce(total, group=group)
    return total.sqrt().item()
    ### END SOLUTION

# %% check="grid-norm" judges="values" points=4
check(grid_norm, judges="values")

# %% check="grid-norm" judges="traffic" points=1
check(grid_norm, judges="traffic")

# %% [markdown]
# ## The mean over tokens
#
# Sequences have different lengths, and padding doesn't count. So ranks have different numbers of tokens, and the loss
# of a batch is the mean over **all** its tokens. A mean of the ranks' means would give a token more weight if it
# happens to sit on a rank with few others.
#
# The gradients will be **averaged** over the P data ranks. So which loss must a rank go backward from, such that the
# average comes out right? With gradient accumulation, `count` runs over all microbatches of the step: it must be known
# before the first backward pass.

# %% exercise="token-mean" difficulty=2 minutes=8
def token_mean(losses: Tensor, dp_group) -> tuple[Tensor, Tensor]:
    """(loss to go backward from, mean loss over all tokens of all ranks): scalars.

    losses: (n,), one for each of this rank's tokens; n differs between ranks, and may
    be 0; left unchanged. Gradients of the first one, averaged over the ranks of the
    group, are those of the mean.
    """
    ### BEGIN SOLUTION
    both = torch.stack([losses.detach().sum(), torch.tensor(float(len(losses)), dtype=losses.dtype)])
    dist.all_reduce(both, group=dp_group)
    total, count = both
    local = losses.sum() * dist.get_world_size(dp_group) / count
    return local, total / count
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two numbers travel: a sum and a count. The average over ranks divides by P, so multiply by P before.
# </details>

# %% check="token-mean" judges="values" points=3
check(token_mean, judges="values")

# %% check="token-mean" judges="traffic" points=1
check(token_mean, judges="traffic")

# %% [markdown]
# ### And the rest
# - **Random states.** Two ranks must draw the **same** dropout mask where they hold the same activations, and different
#   masks where they hold different ones. So a seed is made from coordinates: those of the axes along which the
#   activations differ. Along `dp`, `cp` and `pp` they always differ. Along `tp` they differ inside a sharded region
#   and, with sequence parallelism, between regions too; without it they are equal between regions.
# - **Gradient accumulation** is what the pipeline's microbatches are. The data axis communicates once, at the end.
# - **Mixed precision**: weights and activations in bfloat16, and everything that is summed over many ranks or steps in
#   float32: master weights, gradients that accumulate, the norm, the loss, and softmax's sums.
# - **FSDP over the data axis**: instead of an all-reduce along `dp`, a reduce-scatter, and each data rank updates its
#   own part (lesson 07). With a pipeline, ZeRO-1 is the usual choice: ZeRO-3 would gather all weights again for every
#   microbatch.

# %%
def dropout_seed(place, sizes, axes, step):
    """A seed that differs between ranks if their coordinates on `axes` differ."""
    number = step
    for axis in axes:
        number = number * sizes[axis] + place[axis]
    return number

sizes = {"dp": 2, "pp": 2, "tp": 2}
for where, axes in (
    ("inside a sharded region", ("dp", "pp", "tp")),
    ("between them, without sp", ("dp", "pp")),
):
    seeds = [
        dropout_seed(place_of(rank, sizes), sizes, axes, step=5) for rank in range(8)
    ]
    print(f"{where:>25}: {seeds}")

# %% [markdown]
# # Part 5 · Data and checkpoints
# A long run is stopped many times: a GPU fails, a job's time runs out, a cluster gets larger. It has to go on as if
# nothing had happened, perhaps on a **different grid**. That concerns the data as well as the weights.

# %% [markdown]
# ## Rows of a batch
#
# All ranks of one replica, that is of one model-parallel group, work on **the same** rows, and different replicas on
# different rows. So the sampler knows only `dp_rank` and `dp_size`. If it used the rank, tensor-parallel partners would
# multiply slices of different sequences. Nothing would crash.
#
# And it must be **resumable**: step number `step` has the same batch, whatever happened before, and however many data
# ranks there are. Then a checkpoint needs to store one number only. Lesson 05's sampler deals out the whole data set
# first, so its batches depend on the number of ranks.
#
# **Predict** for 20 samples and batches of 4: in which epoch is step 13?

# %%
predict("the epoch of step 13", ...)

# %% exercise="batch-rows" difficulty=2 minutes=8
def batch_rows(
    step: int, batch_size: int, num_samples: int, seed: int, dp_rank: int, dp_size: int
) -> list[int]:
    """The samples of this data rank in step `step`, counted from 0 over all epochs.

    An epoch has num_samples // batch_size steps; samples left over are not used in it.
    Its order is torch.randperm(num_samples) by a generator with the seed
    `seed + epoch`. A batch is the next batch_size samples of it, and each data rank has
    an equal chunk of that, in order.
    """
    ### BEGIN SOLUTION
    epoch, place = divmod(step, num_samples // batch_size)
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    batch = order[place * batch_size : (place + 1) * batch_size]
    each = batch_size // dp_size
    return batch[dp_rank * each : (dp_rank + 1) * each]
    ### END SOLUTION

# %% check="batch-rows" judges="values" points=3
check(batch_rows, judges="values")

# %%
whole = batch_rows(13, 4, 20, 0, 0, 1)
[batch_rows(13, 4, 20, 0, dp_rank, 2) for dp_rank in range(2)], whole

# %%
reveal(
    "the epoch of step 13",
    13 // (20 // 4),
    why="Five steps in each epoch; the first one is number 0.",
)

# %% [markdown]
# On GPUs the rows also have to get there. `DataLoader(pin_memory=True)` puts batches into **pinned** memory, which the
# operating system never moves, so that `batch.to("cuda", non_blocking=True)` can overlap with computing.

# %% [markdown]
# ## Reading a checkpoint on another grid
#
# Each rank saves its own shards, at the same time as all others. To load on a different grid, a rank needs a part of
# each tensor that may lie across several files. Both are **boxes**: for each dimension, where it starts and where it
# ends in the whole tensor. Say what to read from which file, and where it goes.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Begin with one dimension: the wanted part is 3 to 9, a file has 0 to 5. What do they have in common? Where is that in
# the file, counted from the file's own start, and where in the wanted part?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# What two boxes have in common is a box again: in each dimension from the later start to the earlier end. If it is
# empty in any dimension, nothing has to be read.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# For each file: the common box from maxima and minima. Skip the file unless start is below end in all dimensions. Then
# shift the box twice: by the starts of the file's box, and by the starts of the wanted one.
# </details>

# %% exercise="pieces-to-read" difficulty=3 minutes=14
def pieces_to_read(wanted: tuple, saved: dict[str, tuple]) -> dict[str, tuple]:
    """{file: (what to read from it, where it goes)} for all files that hold part of
    what is wanted.

    wanted: ((first, end), ...), a pair for each dimension: this rank's part of a
    tensor, as places in the whole tensor. saved: {file: what it holds of this tensor,
    in the same form}. What to read is in places of the file, where it goes in places of
    the wanted part: both in the form ((first, end), ...). No more is read than is
    needed.
    """
    plan = {}
    ### BEGIN SOLUTION
    for name, box in saved.items():
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, box)]
        if all(first < end for first, end in common):
            in_file, in_mine = (
                tuple((start - first, stop - first) for (start, stop), (first, _) in zip(common, origin))
                for origin in (box, wanted)
            )
            plan[name] = (in_file, in_mine)
    ### END SOLUTION
    return plan

# %% check="pieces-to-read" judges="values" points=4
check(pieces_to_read, judges="values")

# %% [markdown]
# # Part 6 · The whole program
# Now everything together: the transformer on a grid, with your groups, sampler, gradients and norm. The model's cut and
# its stages are in `utils/kit/grid_transformer.py`, about 120 lines made of what lessons 08 and 09 have taught. There
# are four axes now: along `cp` a rank has its two chunks of every sequence, and its attention is your ring.

# %%
VOCABULARY, LENGTH, WIDTH, HIDDEN, LAYERS, HEADS = 16, 16, 16, 64, 2, 4
BATCH, SAMPLES = 8, 64

def text_of(samples=SAMPLES, length=LENGTH):
    """Generated text: each token is the sum of the two before it, sometimes one more.
    (samples, length + 1)
    """
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(VOCABULARY, (samples, length + 1), generator=generator)
    for n in range(2, length + 1):
        noise = torch.randint(4, (samples,), generator=generator) == 0
        tokens[:, n] = (tokens[:, n - 1] + tokens[:, n - 2] + noise) % VOCABULARY
    return tokens

def new_model():
    return transformer.make_language_model(
        VOCABULARY, LENGTH, WIDTH, HIDDEN, LAYERS, dtype=double
    )

def clip(gradients, norm, max_norm=1.0):
    return [gradient * min(1.0, max_norm / norm) for gradient in gradients]

def serial_losses(steps):
    weights = {name: w.requires_grad_() for name, w in new_model().items()}
    optimizer, losses = torch.optim.AdamW(weights.values(), lr=0.01), []
    for step in range(steps):
        loss = transformer.language_model_loss(
            weights, text_of()[batch_rows(step, BATCH, SAMPLES, 0, 0, 1)], HEADS
        )
        gradients = torch.autograd.grad(loss, list(weights.values()))
        norm = torch.cat([g.flatten() for g in gradients]).norm().item()
        for w, g in zip(weights.values(), clip(gradients, norm)):
            w.grad = g
        optimizer.step()
        losses.append(loss.item())
    return losses

# %% [markdown]
# ## Groups of the whole program
#
# Now the same on a grid. First the groups. Along `cp` as along `dp`, ranks have the same weights and different tokens,
# so the gradients are averaged over both. And the first and the last stage of each pipeline share the embedding table.
# Write down all groups that the program needs, with `along(sizes, axes)`, which is your `axis_groups`.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Four of the five names are groups along one axis or two. For the fifth, look at one pipeline: which of its ranks
# belong together, and what is left?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# `process_groups` wants every rank in exactly one group of each name. So a stage in between is alone in a group of its
# own. And if there is only one stage, the first is the last.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# A dictionary of four calls of `along`. Then a loop over the pipelines: one list of its first and its last rank,
# without duplicates, and one list for each other rank. Sort all of these lists.
# </details>

# %% exercise="program-groups" difficulty=3 minutes=10
def program_groups(sizes: dict[str, int], along) -> dict[str, list[list[int]]]:
    """{name: all groups of ranks of this name} for a training step on a grid.

    sizes: of the axes dp, pp, cp and tp, the outermost first. along(sizes, axes): as
    axis_groups. Names: "pp", "cp" and "tp", along these axes; "mean", the ranks over
    which a gradient is averaged; "ends", the first and the last stage of a pipeline, a
    stage in between alone. Each rank is in one group of each name. Ranks in ascending
    order, groups by their first rank.
    """
    ### BEGIN SOLUTION
    groups = {axis: along(sizes, (axis,)) for axis in ("pp", "cp", "tp")}
    groups["mean"] = along(sizes, ("dp", "cp"))
    ends = []
    for ranks in groups["pp"]:
        ends.append(sorted({ranks[0], ranks[-1]}))
        ends += [[rank] for rank in ranks[1:-1]]
    groups["ends"] = sorted(ends)
    return groups
    ### END SOLUTION

# %% check="program-groups" judges="values" points=3
check(program_groups, judges="values")

# %% [markdown]
# Now the trainer. Read it from top to bottom: you have met almost every part of it before.

# %%
class Trainer:
    """The model, the optimizer and the groups of one rank. train_step(step) returns the
    loss of the whole batch.
    """

    def __init__(self, rank, sizes, microbatches=2):
        self.rank, self.sizes, self.microbatches = rank, sizes, microbatches
        members = program_groups(sizes, axis_groups) | {
            "dp": axis_groups(sizes, ("dp",))
        }
        self.groups = process_groups(members, rank)
        self.place = place_of(rank, sizes)
        self.positions_of = [
            zigzag_positions(LENGTH, r, sizes["cp"]) for r in range(sizes["cp"])
        ]
        cut = grid_transformer.cut_model(new_model(), self.place, sizes)
        self.weights = {name: w.requires_grad_() for name, w in cut.items()}
        self.partial = [
            name for name in self.weights if grid_transformer.needs_tp_sum(name)
        ]
        self.tied = [
            name
            for name in self.weights
            if grid_transformer.is_tied(name) and sizes["pp"] > 1
        ]
        self.elsewhere = self.tied if self.place["pp"] == sizes["pp"] - 1 else []
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=0.01)
        self.text = text_of()

    def train_step(self, step):
        rows = batch_rows(step, BATCH, SAMPLES, 0, self.place["dp"], self.sizes["dp"])
        parts = self.text[rows].chunk(self.microbatches)
        mean, pp, tp, ends = (
            self.groups[name] for name in ("mean", "pp", "tp", "ends")
        )
        own = self.positions_of[self.place["cp"]]
        stage = grid_transformer.make_stage(
            self.weights, parts, own, self.place, self.sizes, HEADS, tp, self.attention
        )
        like = grid_transformer.between_stages(
            self.weights, parts[0], self.sizes, WIDTH
        )
        self.optimizer.zero_grad()
        loss = pipelined(stage, len(parts), like, pp)
        done = finish_gradients(
            self.gradients(), self.partial, self.tied, mean, tp, ends
        )
        norm = grid_norm(done, self.partial, self.elsewhere, pp, tp)
        self.update(clip(done.values(), norm))
        return self.mean_loss(loss)

    def attention(self, q, k, v):
        return RingAttention.apply(q, k, v, self.positions_of, self.groups["cp"])

    def gradients(self):
        return {name: w.grad for name, w in self.weights.items()}

    def update(self, gradients):
        for w, g in zip(self.weights.values(), gradients):
            w.grad = g
        self.optimizer.step()

    def mean_loss(self, loss):
        """Each tp rank of the last stage has the losses of its tokens; the first stages
        have none.
        """
        total = (
            torch.zeros((), dtype=double)
            if loss is None
            else loss.double() / self.sizes["dp"] / self.sizes["cp"]
        )
        dist.all_reduce(total)
        return total.item()

def train(rank, world_size, plans):
    """The losses of each plan, a grid and a number of steps."""
    losses = []
    for sizes, steps in plans:
        trainer = Trainer(rank, sizes)
        losses.append([trainer.train_step(step) for step in range(steps)])
    return losses

# %% [markdown]
# Eight real ranks, dp 2 x pp 2 x tp 2, then pp 2 x cp 2 x tp 2, and one process, in float64. **Predict**: in how many
# digits do the losses agree?

# %%
predict("losses agree to a relative error of 1e-9", ..., choices=["yes", "no"])

# %% tags=["notebook-only"]
STEPS = 12
with_data = {"dp": 2, "pp": 2, "cp": 1, "tp": 2}
with_context = {"dp": 1, "pp": 2, "cp": 2, "tp": 2}
serial = serial_losses(STEPS)
losses, of_context = spawn(train, 8, [(with_data, STEPS), (with_context, 3)]).results[0]
for step in (0, 2, 5, STEPS - 1):
    cp = f", pp x cp x tp {of_context[step]:.6f}" if step < len(of_context) else ""
    print(
        f"step {step:>2}: one process {serial[step]:.6f}, dp x pp x tp "
        f"{losses[step]:.6f}{cp}"
    )

# %%
def agree(mine):
    return torch.allclose(
        torch.tensor(mine), torch.tensor(serial[: len(mine)]), rtol=1e-9, atol=0
    )

# %%
reveal(
    "losses agree to a relative error of 1e-9",
    "yes" if agree(losses) and agree(of_context) else "no",
    why="The same sums in a different order: only the last of 16 digits differ. 200 steps agree as well, in a test.",
)

# %% [markdown]
# If one line is missing, the loss still goes down. Here the sum of the LayerNorm gradients along tp is left out, on a
# grid of tp 2 alone: nobody would notice from the loss.

# %% tags=["notebook-only"]
def train_with_a_mistake(rank, world_size, sizes, steps):
    trainer = Trainer(rank, sizes)
    trainer.partial = [name for name in trainer.partial if "norm" not in name]
    return [trainer.train_step(step) for step in range(steps)]

wrong = spawn(
    train_with_a_mistake, 2, {"dp": 1, "pp": 1, "cp": 1, "tp": 2}, STEPS
).results[0]
for step in (0, 5, STEPS - 1):
    print(
        f"step {step:>2}: one process {serial[step]:.6f}, with the mistake "
        f"{wrong[step]:.6f}"
    )

# %% [markdown]
# ### Adam along the data axis, and two precisions
# In this trainer all data ranks do the same update, and each has all of Adam's averages. ZeRO-1 (lesson 07) cuts them
# along dp: each rank updates its own part of the weights and gathers the others. These parts, the **master weights**,
# can have more digits than the weights that the stages compute with. So can the gradients that microbatches add up: as
# soon as one is there, a hook takes it away. Nothing else in the trainer has to change.

# %%
class ShardedTrainer(Trainer):
    """ZeRO-1 along dp. Stages compute in `dtype`; all that is summed or updated is
    float64.
    """

    def __init__(self, rank, sizes, dtype):
        super().__init__(rank, sizes)
        mine = self.part_of(w.detach() for w in self.weights.values()).clone()
        self.master = torch.nn.Parameter(mine)
        self.optimizer = torch.optim.AdamW([self.master], lr=0.01)
        self.summed = {
            name: torch.zeros_like(w, requires_grad=False)
            for name, w in self.weights.items()
        }
        for name, w in self.weights.items():
            w.data = w.data.to(dtype)
            w.register_post_accumulate_grad_hook(partial(self.take_away, name))

    def part_of(self, tensors):
        """This data rank's chunk of all tensors, one after the other, padded to equal
        chunks.
        """
        flat = torch.cat([x.flatten() for x in tensors])
        padded = torch.nn.functional.pad(flat, (0, -len(flat) % self.sizes["dp"]))
        return padded.chunk(self.sizes["dp"])[self.place["dp"]]

    def take_away(self, name, w):
        self.summed[name] += w.grad
        w.grad = None

    def gradients(self):
        return self.summed

    def update(self, gradients):
        self.master.grad = self.part_of(gradients)
        self.optimizer.step()
        whole = torch.empty(len(self.master) * self.sizes["dp"], dtype=double)
        dist.all_gather_single(whole, self.master.detach(), group=self.groups["dp"])
        start = 0
        for name, w in self.weights.items():
            w.data.copy_(whole[start : start + w.numel()].view_as(w))
            start += w.numel()
            self.summed[name].zero_()

# %% tags=["notebook-only"]
def train_sharded(rank, world_size, sizes, plans):
    found = []
    for dtype, steps in plans:
        trainer = ShardedTrainer(rank, sizes, dtype)
        losses = [trainer.train_step(step) for step in range(steps)]
        found.append(
            (
                dtype,
                losses,
                sum(w.numel() for w in trainer.weights.values()),
                trainer.master.numel(),
            )
        )
    return found

two_by_two = {"dp": 2, "pp": 1, "cp": 1, "tp": 2}
for dtype, cut, weights, updated in spawn(
    train_sharded, 4, two_by_two, [(double, 3), (torch.bfloat16, 10)]
).results[0]:
    print(
        f"{dtype}: rank 0 computes with {weights:,} weights and has Adam's averages of "
        f"{updated:,}"
    )
    error = max(abs(a / b - 1) for a, b in zip(cut, serial))
    bound = 1e-9 if error < 1e-9 else 0.01  # bfloat16 rounds differently on other CPUs
    print(
        f"  {len(cut)} steps, losses off by less than {bound:g} of them: "
        f"{error < bound}"
    )

# %% [markdown]
# In float64 it is the same training. In bfloat16 each weight that is used has only 3 digits, but the master weights
# keep what the small steps add to it.

# %% [markdown]
# ### Stopped, and resumed on another grid
# Eight ranks train 3 steps, save, and a rank **dies** in step 4. Then the run goes on from the checkpoint: on the same
# grid, and on a different one. Each rank saves its weights and Adam's two averages, which have the same shapes, and
# with each of them its box in the whole tensor. `pieces_to_read` does the rest.

# %% [markdown]
# ## Boxes of a shard
#
# Most weights are cut into columns or rows, and a shard is one box. But `w_qkv` is three matrices side by side, each
# cut by heads. With tp 2 its columns are, from left to right, q0 q1 k0 k1 v0 v1, and rank 1 has q1 k1 v1: **three**
# boxes. Take it for one, and every shape still fits. On the same grid you even read back what you saved. Only with
# another tp size does a rank get columns of k where its q should be.

# %% exercise="shard-boxes" difficulty=2 minutes=8
def shard_boxes(cut: str, shape: tuple, tp_rank: int, tp_size: int) -> list[tuple]:
    """The boxes that a shard has in its whole weight, in the order of its own columns.

    cut: "columns" (the last dimension), "rows" (the first), "qkv" (three matrices side
    by side, each cut into columns) or "no" (each rank has all of it). shape: of the
    shard, of one dimension or more. A box: ((first, end), ...), a pair for each
    dimension.
    """
    ### BEGIN SOLUTION
    box = [(0, n) for n in shape]
    if cut == "no":
        return [tuple(box)]
    dim = 0 if cut == "rows" else len(shape) - 1
    pieces = 3 if cut == "qkv" else 1
    each, boxes = shape[dim] // pieces, []
    for piece in range(pieces):
        first = (piece * tp_size + tp_rank) * each
        box[dim] = first, first + each
        boxes.append(tuple(box))
    return boxes
    ### END SOLUTION

# %% check="shard-boxes" judges="values" points=3
check(shard_boxes, judges="values")

# %% [markdown]
# One copy is enough, so only the ranks with dp and cp coordinate 0 write.

# %%
CUTS = {"w_qkv": "qkv"}
CUTS |= dict.fromkeys(grid_transformer.COLUMNS, "columns")
CUTS |= dict.fromkeys(grid_transformer.ROWS, "rows")

def states_of(trainer):
    """{name: tensor} of the weights and of both averages of Adam."""
    found = {}
    for name, w in trainer.weights.items():
        state = trainer.optimizer.state[w]
        if not state:  # before the first step
            state.update(
                step=torch.tensor(0.0),
                exp_avg=torch.zeros_like(w),
                exp_avg_sq=torch.zeros_like(w),
            )
        found |= {
            name: w.data,
            f"first of/{name}": state["exp_avg"],
            f"second of/{name}": state["exp_avg_sq"],
        }
    return found

def saved_boxes(trainer):
    for name, x in states_of(trainer).items():
        cut = CUTS.get(name.split(".")[-1], "no")
        boxes = shard_boxes(cut, x.shape, trainer.place["tp"], trainer.sizes["tp"])
        for box, part in zip(boxes, x.chunk(len(boxes), -1)):
            yield name, box, part

def save(trainer, folder, step):
    if trainer.place["dp"] == trainer.place["cp"] == 0:
        pieces = [(name, box, part.clone()) for name, box, part in saved_boxes(trainer)]
        torch.save((step, pieces), folder / f"rank-{trainer.rank}.pt")
    dist.barrier()

def load(trainer, folder):
    """Fills this rank's tensors from the files of any grid; returns the number of steps
    that were made.
    """
    files = [torch.load(path) for path in sorted(folder.glob("rank-*.pt"))]
    step = files[0][0]
    every = {}
    for number, (_, pieces) in enumerate(files):
        for name, box, part in pieces:
            every.setdefault(name, {})[number, box] = box, part
    for name, wanted, mine in saved_boxes(trainer):
        for key, (there, here) in pieces_to_read(
            wanted, {key: box for key, (box, _) in every[name].items()}
        ).items():
            target = tuple(slice(*pair) for pair in here)
            mine[target] = every[name][key][1][tuple(slice(*pair) for pair in there)]
    for w in trainer.weights.values():
        trainer.optimizer.state[w]["step"].fill_(step)
    return step

def train_and_save(rank, world_size, sizes, folder, save_after, until, dies_in=None):
    trainer, losses = Trainer(rank, sizes), []
    first = load(trainer, folder) if any(folder.iterdir()) else 0
    for step in range(first, until):
        if step == dies_in and rank == 5:
            os._exit(1)
        losses.append(trainer.train_step(step))
        if step + 1 == save_after:
            save(trainer, folder, step + 1)
    return first, losses

# %% tags=["notebook-only"]
other = {"dp": 1, "pp": 1, "cp": 1, "tp": 4}
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder)
    try:
        spawn(train_and_save, 8, with_data, path, save_after=3, until=5, dies_in=4)
    except RankError as error:
        print(str(error).split("\n")[0])
    first, resumed = spawn(train_and_save, 8, with_data, path, None, until=5).results[0]
    _, elsewhere = spawn(train_and_save, 4, other, path, None, until=5).results[0]
print("resumed after step", first)
print("same grid, bit-equal to the run that was never stopped:", resumed == losses[3:5])
print(
    "on tp 4, to 9 digits:",
    torch.allclose(torch.tensor(elsewhere), torch.tensor(serial[3:5]), rtol=1e-9),
)

# %% [markdown]
# On the same grid, the training that follows is equal to the last **bit**. On another grid the loaded numbers are equal
# to the last bit, too, but sums are then taken in a different order, so the losses differ in the last digits.
#
# ### Restarted by torchrun
# Something has to notice the death, and start all ranks again. `torchrun --max-restarts=1` does: when a rank dies, its
# agent ends the others and starts all of them once more, with `TORCHELASTIC_RESTART_COUNT` one higher. The program
# looks for a checkpoint first, and that is all that it takes. Here is one that needs nothing but torch. `spawn` runs it
# without a failure. Then the cell writes it into a file, torchrun runs that, and rank 1 dies in step 5, once.

# %%
def run_or_resume(checkpoint, dies_in=None):
    """Data-parallel training with momentum. Returns (restarts, the first step of this
    attempt, the losses).
    """
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    rank = dist.get_rank()
    weight, momentum = torch.zeros(2, 4, dtype=torch.float64)
    first, losses = 0, []
    if checkpoint.exists():
        first, weight, momentum, losses = torch.load(checkpoint)
    for step in range(first, 8):
        if (rank, step, restarts) == (1, dies_in, 0):
            os._exit(1)
        generator = torch.Generator().manual_seed(100 * step + rank)
        x, noise = torch.randn(2, 16, 4, generator=generator, dtype=torch.float64)
        error = x @ weight - x.sum(1) - 0.1 * noise[:, 0]
        both = (
            torch.cat([error @ x / 16, error.square().mean(0, keepdim=True)])
            / dist.get_world_size()
        )
        dist.all_reduce(both)
        momentum = 0.9 * momentum + both[:4]
        weight = weight - 0.1 * momentum
        losses.append(both[4].item())
        if rank == 0 and step == 3:
            torch.save(
                (step + 1, weight, momentum, losses), checkpoint.with_suffix(".part")
            )
            # all of the file is there, or nothing
            checkpoint.with_suffix(".part").rename(checkpoint)
    return restarts, first, losses

SCRIPT = f"""
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist

{inspect.getsource(run_or_resume)}

dist.init_process_group("gloo")
result = run_or_resume(Path(sys.argv[1]), dies_in=5)
if dist.get_rank() == 0:
    print(result)
dist.destroy_process_group()
"""

# %% tags=["notebook-only"]
def uninterrupted(rank, world_size, folder):
    return run_or_resume(folder / "never-needed.pt")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder)
    (path / "script.py").write_text(SCRIPT)
    options = [
        "--standalone",
        "--local-addr=127.0.0.1",
        "--max-restarts=1",
        "--nproc-per-node=2",
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options]
    command = [*torchrun, path / "script.py", path / "checkpoint.pt"]
    # Without it, restarted ranks may find the addresses of those that died:
    # github.com/pytorch/pytorch/issues/135712
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100
    )
    never_stopped = spawn(uninterrupted, 2, path).results[0]
assert done.returncode == 0, done.stderr
restarts, first, resumed = ast.literal_eval(done.stdout)
print(f"{restarts} restart, which went on with step {first}")
print(
    "losses equal to those of the uninterrupted run, to the last bit:",
    resumed == never_stopped[2],
)

# %% [markdown]
# **While training goes on.** Writing takes a long time, and meanwhile nobody trains.
# `torch.distributed.checkpoint.async_save` copies the tensors and lets a thread write the copy. Give it a process group
# of its own, so that its messages don't mix with those of training, and wait for one checkpoint before you begin the
# next.

# %% [markdown]
# ### Many GPUs
# The same stages and the same `pipelined` on 1,024 virtual GPUs: dp 32 x pp 4 x tp 8. The model is as wide as GPT-3,
# but has only 4 layers. Attention is `torch`'s own now, which runs as FlashAttention on a GPU.
#
# One thing has to change. Every rank creates every group: on 1,024 ranks those are hundreds of calls each, and hundreds
# of thousands together. `new_group(..., use_local_synchronization=True)` is called by the members alone.

# %%
def my_groups(rank, sizes):
    groups = {}
    for axis in sizes:
        [mine] = [ranks for ranks in axis_groups(sizes, (axis,)) if rank in ranks]
        groups[axis] = dist.new_group(mine, use_local_synchronization=True)
    return groups

def big_step(
    rank, world_size, sizes, layers=4, width=12_288, heads=96, length=2048, count=4
):
    groups, place = my_groups(rank, sizes), place_of(rank, sizes)
    half = torch.bfloat16
    part = width // sizes["tp"]
    norms = "norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias"
    shapes = dict.fromkeys((*norms, "b_out", "b_down"), (width,)) | {
        "w_qkv": (width, 3 * part),
        "w_out": (part, width),
        "w_up": (width, 4 * part),
        "b_up": (4 * part,),
        "w_down": (4 * part, width),
    }
    each = layers // sizes["pp"]
    w = {
        f"{place['pp'] * each + n}.{name}": torch.empty(
            shape, dtype=half, requires_grad=True
        )
        for n in range(each)
        for name, shape in shapes.items()
    }
    like = torch.empty(1, length // sizes["tp"], width, dtype=half)
    flash = partial(scaled_dot_product_attention, is_causal=True)
    last = place["pp"] == sizes["pp"] - 1

    def stage(number, x):
        x = torch.empty_like(like) if x is None else x
        for n in range(each):
            layer = transformer.of_layer(w, place["pp"] * each + n)
            x = grid_transformer.sharded_layer(
                x, layer, heads // sizes["tp"], groups["tp"], flash
            )
        return mlp.loss_of(x) if last else x

    with region("step"):
        pipelined(stage, count, like, groups["pp"])
        flat = torch.cat([x.grad.flatten() for x in w.values()])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=groups["dp"])

narrow_gpt = Model(layers=4, width=12_288, heads=96, length=2048, vocabulary=0)

# %% [markdown]
# Running 1,024 ranks takes a minute or two. But along dp and tp, all ranks do the same: they make the same calls, with
# the same sizes, at the same times. If you say so with `alike`, `simulate` runs only the first rank of each stage, and
# lets it stand for the others. On 8 GPUs, with all ranks and with two of them:

# %% tags=["notebook-only"]
def simulated(sizes, **options):
    gpus = math.prod(sizes.values())
    return simulate(
        big_step, gpus, sizes, alike=lambda rank: place_of(rank, sizes)["pp"], **options
    )

few = {"dp": 2, "pp": 2, "tp": 2}
every, first = simulate(big_step, 8, few), simulated(few)
print(
    every,
    first,
    f"the same time, to the last bit: {every.elapsed == first.elapsed}",
    sep="\n",
)

# %% tags=["notebook-only"]
big = {"dp": 32, "pp": 4, "tp": 8}
run = simulated(big)
tokens = big["dp"] * 4 * 2048
parts = run.breakdown(tokens=tokens, model_flops=tokens * narrow_gpt.flops_per_token)
print(
    f"{run.elapsed * 1e3:.1f} ms a step, {parts.tokens_per_second / 1e6:.2f} million "
    f"tokens/s, MFU {parts.mfu:.1%}"
)
parts

# %% tags=["notebook-only"]
run.timeline(ranks=[0, 8, 16, 24])

# %% [markdown]
# MFU, model FLOPs utilisation, is the share of the GPUs' peak that goes into the model's own FLOPs. Megatron-LM's paper
# of 2021 reports 52 % of the peak of A100s, but counts the forward pass that activation checkpointing repeats: four
# passes' worth of FLOPs where the model needs three, so about 39 % as MFU. This run has one layer on each stage, four
# microbatches of one sequence, and an all-reduce along dp that waits until all backward passes are done; the breakdown
# says what each of these costs.
#
# For many grids, or a whole model, there is a shorter way: a closed form with the same costs, in
# `utils/kit/plans`. It adds up computing, tensor-parallel sums, messages between stages, the bubble and
# what is exposed along dp. How far is it from this run?

# %%
def closed_form(model, plan, batch):
    cluster = find_cluster("dgx-h100", plan.gpus, rates="datasheet")
    costs = seconds_of(plan, model, batch, cluster)
    at_peak = (
        model.flops_per_token
        * batch
        * model.length
        / (plan.gpus * cluster.gpu.peak("bfloat16"))
    )
    return costs, at_peak / sum(costs.values())

# %% tags=["notebook-only"]
costs, mfu = closed_form(narrow_gpt, Plan(**big), 4 * big["dp"])
seconds = sum(costs.values())
print(
    f"{seconds * 1e3:.1f} ms, MFU {mfu:.1%}, {seconds / run.elapsed:.0%} of the time "
    "of the run"
)

# %% [markdown]
# The two can't agree to the digit. The closed form has gradients in 32 bits, scattered beside the last backward pass,
# and an optimizer; the program has 16-bit gradients and one all-reduce at the end.
#
# A model of 175 billion parameters on 1,024 GPUs, with 1,536 sequences of 2,048 tokens per step:

# %%
plan = Plan(dp=16, pp=8, tp=8)
gpt = Model(layers=96, width=12_288, heads=96, length=2048, vocabulary=51_200)
costs, mfu = closed_form(gpt, plan, 1536)
seconds, nbytes = sum(costs.values()), sum(bytes_of(plan, gpt, 1536).values())
for part, of_it in costs.items():
    print(f"{part:>9}: {of_it / seconds:6.1%} of the step")
print(f"{seconds:.2f} s per step, {nbytes / 1e9:.1f} GB per GPU, MFU {mfu:.1%}")

# %% [markdown]
# That is an upper limit, since matrix products reach a GPU's full peak on datasheets only.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - A rank's **coordinates** say what it has; a **group** along an axis says whom it talks to. Every rank makes every
#   group in the same order. `tp` is innermost.
# - Along tp activations are summed, within each layer; along pp they are passed on; along cp keys and values go round;
#   along dp gradients are averaged, once per step.
# - **Ring attention** merges blocks by their log-sum-exp. Gradients of keys travel with the keys, and one hop more.
#   Zigzag balances the causal mask. All-to-all swaps tokens for heads.
# - Each gradient has to be **finished** along all axes along which its weight was used apart: sequence-parallel norms,
#   tied tables. In the norm, each number counts once.
# - A batch depends on the step, not on the grid. A checkpoint consists of boxes, so any grid can read it.
# - Test gradients and losses against one process, in float64, to nine digits. A falling loss proves nothing.
#
# **The library.** `init_device_mesh`, `torch.distributed.checkpoint`; torchtitan combines PyTorch's own parts;
# Megatron-LM has all axes, and picotron shows them in a few hundred lines each.
#
# **The papers.** Narayanan and others: *Efficient Large-Scale Language Model Training on GPU Clusters Using
# Megatron-LM* (2021). Liu, Zaharia and Abbeel: *Ring Attention with Blockwise Transformers for Near-Infinite Context*
# (2023). Jacobs and others: *DeepSpeed Ulysses* (2023). Korthikanti and others: *Reducing Activation Recomputation in
# Large Transformer Models* (2022), for sequence parallelism.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## The best grid for 512 GPUs
# A transformer of 100 billion parameters, 64 nodes with 8 H100s each, a batch of 1,024 sequences. Which grid? You
# choose dp, tp, pp, cp, the number of sequences in a microbatch, how many chunks of layers a stage has (interleaving),
# and what to recompute: a `Plan` from `utils/kit/plans`. Of that package, `seconds_of` says how long a step takes, by
# the costs that `simulate` charges, `bytes_of` what a GPU must hold, and `problem_of` whether a plan works and fits.
#
# Par is what this lesson has taught: tensor parallelism over a node, the fewest stages that fit, one sequence per
# microbatch. The limit is what 512 GPUs need if they do nothing but multiply matrices, at their peak.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Look at the parts that `seconds_of` returns for par. Which is the largest, after the computing?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Every part trades against another one: tp against pp against the size of a microbatch, and all against memory.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# There are only a few thousand plans, and `plans` from `utils.kit.plans` lists them. `problem_of` says which don't fit.
# </details>

# %% exercise="best-grid" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def best_grid(
    layers: int, width: int, heads: int, length: int, batch: int, gpus: int
) -> dict:
    """What to make a Plan of: {"dp", "tp", "pp"}, and any other size that isn't 1.

    "recompute" is one of the words that Plan's docstring names. Judged on nodes of 8
    H100s at the datasheet's rates, for the model above and for others.
    """
    model = Model(layers, width, heads, length, vocabulary=0)
    cluster = find_cluster("dgx-h100", gpus, rates="datasheet")
    ### BEGIN SOLUTION
    for recompute, pp in product(("none", "full"), range(1, layers + 1)):
        plan = {"dp": gpus // (8 * pp), "tp": 8, "pp": pp, "recompute": recompute}
        if not problem_of(Plan(**plan), model, batch, cluster):
            return plan
    ### END SOLUTION

# %% tags=["notebook-only"]
plan = best_grid(80, 10_240, 80, 2048, 1024, 512)
costs, mfu = closed_form(Model(80, 10_240, 80, 2048, vocabulary=0), Plan(**plan), 1024)
print(plan)
print({part: round(seconds, 2) for part, seconds in costs.items()}, f"MFU {mfu:.1%}")

# %% check="best-grid" judges="score" points=3
check(best_grid, judges="score", extra_credit=3)

# %% [markdown]
# ### A plan's axes, by sliders
# The grey dots are all plans that these sliders reach. One is the plan that they are at, and one the plan of your
# `best_grid`. Left of the dashed line, a plan fits. Which slider moves the dot to the left, and what does that cost?
# Could you have found your plan by hand?
#
# **Predict** first, then look it up: with tp 8, pp 8 and one sequence in a microbatch, how many times as long is a step
# with full recomputing as without?

# %%
predict("a step with full recomputing takes, times", ...)

# %%
hundred = Model(80, 10_240, 80, 2048, vocabulary=0)
axes = {
    "tp": (2, 4, 8),
    "pp": (2, 4, 8, 16),
    "micro": (1, 2, 4),
    "recompute": ("none", "selective", "full"),
}
try:
    best = Plan(**best_grid(80, 10_240, 80, 2048, 1024, 512))
except Exception:  # not written yet
    best = None

def at(tp, pp, micro, recompute):
    return Plan(512 // (tp * pp), tp, pp, micro=micro, recompute=recompute)

def drawn_at(plan):
    """(bytes of a GPU, seconds of a step)"""
    nbytes = sum(bytes_of(plan, hundred, 1024).values())
    return nbytes, sum(closed_form(hundred, plan, 1024)[0].values())

cloud = {
    plan: drawn_at(plan) for plan in (at(*place) for place in product(*axes.values()))
}

def plan_at(**place):
    plan = at(**place)
    nbytes, seconds = cloud[plan]

    def draw(right):
        marked = {plan: "the sliders' plan"} | ({best: "your plan"} if right else {})
        dots = cloud | {one: drawn_at(one) for one in marked}
        return figures.plan_cloud(dots, marked, 80e9)

    forms = {"bytes of a GPU": (nbytes, None, "B"), "a step": (seconds, None, "s")}
    return forms | {"your best_grid": (None, lambda: drawn_at(best)[1], "s")}, draw

figures.explore(plan_at, **axes)

# %%
reveal(
    "a step with full recomputing takes, times",
    cloud[at(8, 8, 1, "full")][1] / cloud[at(8, 8, 1, "none")][1],
    why="Four passes instead of three, in the parts of a step that compute and that sum along tp.",
)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
