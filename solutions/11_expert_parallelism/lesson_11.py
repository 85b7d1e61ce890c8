# %% [markdown] question="How does a model get more weights for the same computing, and what must ranks send for it?"
# # Expert parallelism
# *you need: lesson 01 (all-to-all), lesson 05 (data parallelism) and lesson 08
# (autograd functions that communicate).*
#
# In a **mixture of experts**, a layer has many MLPs, the **experts**, and a small **router** picks a few of them for
# each token. The layer can have 64 times the weights of an ordinary one, and a token still pays for only two experts.
# With **expert parallelism** the experts live on different ranks, and tokens travel to them and back.
#
# By the end you will have written that layer with its backward pass, and what keeps it from being slow: balance.

# %%
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from utils import figures, region, simulate, spawn
from utils.checks import checks_for
from utils.cluster import find_cluster
from utils.kit.expert_placement import placed_layer, routing_statistic
from utils.kit.functional_collectives import all_reduce, all_to_all
from utils.kit.mixture import expert_mlp, make_experts, mixture
from utils.kit.mlp import make_batch
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.sharded_regions import blocks_for

check = checks_for("11_expert_parallelism")
# this lesson computes on the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# peaks and bandwidths as promised: times can be computed by hand
simulate = partial(simulate, rates="datasheet")
double, bf16 = torch.float64, torch.bfloat16

# %% [markdown]
# ## Why: one popular expert
# Eight virtual H100s have one expert each. Every rank has 4,096 tokens, sends each to the rank of its expert, computes
# what arrives, and sends the results back. `share` is the fraction of all tokens that want expert 0; the other
# experts divide the rest evenly. The total amount of computing is the same in each run.
#
# **Predict**: how many times as long does the layer take if half of all tokens want expert 0?

# %%
predict("times as long, half of all tokens to one of 8 experts", ...)

# %%
TOKENS, D, F = 4096, 4096, 16384

def counts_to(share, world_size):
    """How many of its tokens each rank sends to each expert."""
    rest = round((1 - share) * TOKENS / (world_size - 1))
    return [TOKENS - rest * (world_size - 1)] + [rest] * (world_size - 1)

def one_layer(rank, world_size, share):
    send = counts_to(share, world_size)
    receive = [send[rank]] * world_size
    x, w_up, w_down = (
        torch.empty(*shape, dtype=bf16) for shape in [(TOKENS, D), (D, F), (F, D)]
    )
    with region("dispatch"):
        arrived = all_to_all(x, send, receive)
    with region("expert"):
        y = expert_mlp(arrived, w_up, w_down)
    with region("combine"):
        all_to_all(y, receive, send)

shares = [1 / 8, 1 / 4, 1 / 2]
runs = [simulate(one_layer, 8, share) for share in shares]
slowdown = [run.elapsed / runs[0].elapsed for run in runs]
for share, times in zip(shares, slowdown):
    print(f"{share:5.1%} of the tokens want expert 0: {times:.2f} times as long")

# %%
reveal(
    "times as long, half of all tokens to one of 8 experts",
    slowdown[2],
    why="Everyone waits for the fullest rank.",
)

# %% [markdown]
# Seven GPUs wait for the eighth. The layer is as slow as its most popular expert: the rank that has it computes
# $8 \times \frac{1}{2} = 4$ times its fair share. First the balanced layer, then this one, on the same time axis:

# %%
titles = "Balanced: 8 virtual ranks", "Half of the tokens to expert 0"
runs[0].timeline(ranks=[0, 1, 7], beside=runs[2], title=titles)

# %% [markdown]
# ### Letters of this lesson
# - $T$ tokens, $D$ the width of the model, $F$ the hidden width of an expert.
# - $E$ experts; each token uses $k$ of them.
# - $P$ ranks in the expert-parallel group, in code `ep_group`. Rank $r$ has the experts
#   $r E / P$ to $(r + 1) E / P - 1$.

# %% [markdown]
# # Part 1 · The router
# The router is one small matrix. `x @ w_gate` gives each token $E$ **scores**. The $k$ experts with the highest scores
# are chosen, and their outputs are added up, each with a weight, its **gate**.

# %% [markdown]
# ## Router
#
# There are two ways to turn scores into gates:
#
# - **Softmax first**: a softmax over all $E$ scores, of which the $k$ largest stay as they are. A token's gates add up
#   to less than 1.
# - **Top-k first**: the $k$ largest scores, and a softmax over these alone. The gates add up to 1.
#
# Return the gates as a $(T, E)$ tensor with zeros for experts that weren't chosen. The choice itself has no gradient,
# so the gates are the router's only way to learn: autograd must be able to follow them.
#
# A router works in **float32**, even where the model is in bfloat16. With three significant digits many scores tie, and
# a rounding error can send a token to a different expert.
#
# **Predict** for $k = 1$ and top-k first: how large is the gradient of a gate with respect to the scores?

# %%
predict("gradient of the gate, top-1 first", ...)

# %% exercise="router" difficulty=2 minutes=10
def router(x: Tensor, w_gate: Tensor, k: int, softmax_first: bool) -> Tensor:
    """The gates of k experts for each token, (T, E) in float32; 0 where not chosen.

    x: (T, D) and w_gate: (D, E), in any dtype; scores and softmax are computed in
    float32; both left unchanged. softmax_first: softmax over all experts, then the k
    largest, unchanged. Otherwise the k largest scores, then a softmax over them. Of
    scores that tie, any may be chosen, but exactly k are. Gradients flow to x and
    w_gate.
    """
    ### BEGIN SOLUTION
    scores = x.float() @ w_gate.float()  # (T, E)
    if softmax_first:
        best, chosen = scores.softmax(-1).topk(k)
    else:
        best, chosen = scores.topk(k)
        best = best.softmax(-1)
    return torch.zeros_like(scores).scatter(1, chosen, best)
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# `Tensor.topk` returns values and their places, `Tensor.scatter` a new tensor with given values in given places.
# Autograd follows both.
# </details>

# %% check="router" judges="values" points=4
check(router, judges="values")

# %%
x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
w_gate = torch.eye(4).requires_grad_()
router(x, w_gate, k=1, softmax_first=False).square().sum().backward()
of_top_1 = w_gate.grad.abs().max().item()

# %%
reveal(
    "gradient of the gate, top-1 first",
    of_top_1,
    why="A softmax over one number is 1, whatever the number.",
)

# %% [markdown]
# So a model with $k = 1$ must take the softmax first, as the Switch Transformer does; otherwise its router never
# learns. Many routers also add **noise** to the scores in training, so that an expert with a slightly lower score gets
# a chance now and then:

# %%
scores = torch.tensor([1.0, 0.9]).expand(100_000, 2)
for scale in (0.0, 0.05, 0.2):
    noise = scale * torch.randn(
        scores.shape, generator=torch.Generator().manual_seed(0)
    )
    share = ((scores + noise).argmax(-1) == 1).double().mean()
    print(
        f"noise of {scale:.2f}: {share:.0%} of the tokens try the expert whose score "
        "is 0.1 lower"
    )

# %% [markdown]
# # Part 2 · Capacity
# Kernels and all-to-alls are simplest if every expert gets the same number of rows. So the first mixtures of experts
# gave each expert a **buffer** with a fixed **capacity**, for a capacity factor $c$ of 1 to 2:
#
# $$ C = \lceil c\, T\, k / E \rceil $$
#
# If more than $C$ tokens want an expert, the ones that come last are **dropped**: this expert adds nothing to them. A
# token that all of its experts drop leaves the layer with a zero, and only the residual connection around the layer
# carries it on. If fewer than $C$ want an expert, the rest of its buffer is padding.

# %% [markdown]
# ## Buffer positions
#
# Which row of its expert's buffer does each token get? The first choices of **all** tokens are placed before any
# second choice, so that nobody loses a first choice to somebody else's second. Within a choice, tokens come in their
# order. A place at or beyond the capacity means that the token is dropped there.
#
# On a GPU, a loop over tokens launches kernels for every single token. Use whole tensors: a one-hot matrix, and a
# cumulative sum over it.
#
# **Predict** for 3 tokens that choose experts `[[0, 1], [0, 1], [1, 0]]` and a capacity of 2: how many of the six
# choices are dropped?

# %%
predict("choices that are dropped", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Put all choices in one long list, in the order in which they are placed. A choice's position is the number of earlier
# choices in this list that want the same expert.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# A one-hot matrix has a row for each choice and a column for each expert. Its cumulative sum downwards counts, for each
# expert, the choices so far, this one included.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Flatten the transpose, so that first choices come first; take the cumulative sum over its one-hot rows, and pick each
# row's own column. Subtract one, replace what doesn't fit, and undo the flattening and the transpose.
# </details>

# %% exercise="buffer-positions" difficulty=3 minutes=12
def buffer_positions(experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    """The row of each choice in its expert's buffer, (T, k); -1 where it is full.

    experts: (T, k), whole numbers, the first choice of each token in column 0. First
    choices of all tokens come first, then second choices, and so on; within a choice,
    in the order of the tokens. A choice that is dropped takes no row.
    """
    ### BEGIN SOLUTION
    in_order = experts.T.flatten()  # (k * T,): all first choices, then all second ones
    one_hot = torch.nn.functional.one_hot(in_order, num_experts)  # (k * T, E)
    position = one_hot.cumsum(0).gather(1, in_order[:, None]).squeeze(1) - 1
    position = torch.where(position < capacity, position, -1)
    return position.view(experts.T.shape).T
    ### END SOLUTION

# %% check="buffer-positions" judges="values" points=4
check(buffer_positions, judges="values")

# %%
positions = buffer_positions(
    torch.tensor([[0, 1], [0, 1], [1, 0]]), num_experts=2, capacity=2
)
dropped = (positions == -1).sum().item()
positions

# %%
reveal(
    "choices that are dropped",
    dropped,
    why="Each expert is wanted three times and has two rows.",
)

# %% [markdown]
# How much is dropped? Here are 4,096 tokens with random scores and 64 experts, of which some are more popular.

# %%
generator = torch.Generator().manual_seed(0)
scores = torch.randn(4096, 64, generator=generator) + torch.linspace(-0.5, 0.5, 64)
choices = scores.topk(2).indices
for factor in (1.0, 1.25, 2.0):
    capacity = -(-int(factor * choices.numel()) // 64)
    share = (buffer_positions(choices, 64, capacity) == -1).float().mean().item()
    filled = (1 - share) * choices.numel() / (64 * capacity)
    print(
        f"capacity factor {factor:4.2f}: {share:5.1%} dropped, {filled:5.1%} of the "
        "buffers filled"
    )

# %% [markdown]
# Either tokens are lost or work is wasted on padding; usually both. Newer models are **dropless**: each rank receives
# as many rows as there are. Then sizes differ from rank to rank and from step to step, and the all-to-all has to cope.

# %% [markdown]
# # Part 3 · Dispatch and combine
# A rank has rows for every other rank, and a different number for each. To **dispatch** them, it sorts them by
# destination and calls one all-to-all with **split sizes**:
#
# ```python
# # receive, send: lists, the numbers of rows from each rank and to each rank
# dist.all_to_all_single(arrived, rows, receive, send, group=group)
# ```
#
# Zeros are allowed in both lists. But how does a rank know how much arrives? Only the sender knows. So the sizes go
# first, in a small all-to-all of their own.
#
# Below, rank 0 has three tokens and experts 0 and 1, rank 1 has two tokens and experts 2 and 3. Each token uses two
# experts, so it becomes two rows. A colour is the rank that a row comes from, and an arrow is a row that leaves
# its rank. To **combine**, all rows go back the way they came.

# %%
figures.dispatch([[[0, 2], [2, 3], [1, 2]], [[0, 2], [2, 3]]], num_experts=4)

# %% [markdown]
# ## Exchange of rows
#
# Write the exchange as an autograd function, as in lesson 08. The gradient of a row that travelled from rank 0 to
# rank 2 travels from rank 2 to rank 0. So the backward pass is an all-to-all too, with the two lists swapped. And in
# the backward pass all sizes are known.
#
# `all_to_all(rows, send, receive, group)` is a verb like those of lesson 08: it returns a new tensor, and autograd
# doesn't see it.
#
# **Predict** for one forward and one backward pass: how many all-to-alls does each rank call?

# %%
predict("all-to-alls of an exchange, forward and backward", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# `torch.tensor(send)` has one number for each rank. Where must each of them go?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# An all-to-all of that tensor, one number for each rank, gives every rank the list of what it will receive. Keep both
# lists in `ctx`.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Exchange the sizes with ones in both lists of splits, turn the result into a list, and exchange the rows. In the
# backward pass, call the verb with what was received as what is sent. Return one `None` for each other argument.
# </details>

# %% exercise="exchange-rows" difficulty=3 minutes=15
class ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, ep_group):
        ### BEGIN SOLUTION
        ones = [1] * len(send)
        receive = all_to_all(torch.tensor(send), ones, ones, ep_group).tolist()
        ctx.send, ctx.receive, ctx.ep_group = send, receive, ep_group
        return all_to_all(rows, send, receive, ep_group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        ### BEGIN SOLUTION
        return all_to_all(grad, ctx.receive, ctx.send, ctx.ep_group), None, None
        ### END SOLUTION

def exchange_rows(rows: Tensor, send: list[int], ep_group) -> Tensor:
    """Send rows to all ranks of the group; return those that arrive.

    rows: (sum(send), D), sorted by destination, left unchanged. send: how many go to
    each rank of the group, 0 allowed. Returns (R, D), those from the group's first rank
    first; gradients flow back to rows. Forward: one all-to-all of P sizes in int64, one
    of the rows. Backward: one of the rows.
    """
    return ExchangeRows.apply(rows, send, ep_group)

# %% check="exchange-rows" judges="values" points=4
check(exchange_rows, judges="values")

# %% check="exchange-rows" judges="traffic" points=2
check(exchange_rows, judges="traffic")

# %% tags=["notebook-only"]
def three_rows(rank, world_size):
    rows = torch.full((3, 1), float(rank)).requires_grad_()
    arrived = exchange_rows(rows, [2, 1] if rank == 0 else [0, 3], None)
    arrived.sum().backward()
    return arrived.flatten().tolist()

run = spawn(three_rows, 2)
calls = sum(event.op == "all_to_all" for event in run.events) // 2
run.results

# %%
reveal(
    "all-to-alls of an exchange, forward and backward",
    calls,
    why="Sizes and rows forward, rows backward.",
)

# %% [markdown]
# ## The expert-parallel layer
#
# Now the whole layer. Each rank has its own tokens and their gates, and $E / P$ experts. It must
#
# 1. make a row for each pair of a token and a chosen expert, sorted by expert
# 2. tell each rank how many rows **each of its experts** gets, and send the rows
# 3. run each expert on the rows that came for it, from all ranks
# 4. send the results back, and put them into the order in which the rows left
# 5. multiply each by its gate, and add up what belongs to one token
#
# Two orders meet in step 3: rows arrive by **source**, and within a source by expert, but an expert wants its rows
# from all sources together. An expert that nobody has chosen gets an empty tensor, and must still get a gradient:
# zeros.
#
# This time you exchange the sizes yourself, $E$ numbers on each rank. Then both lists of splits are known, and
# `exchange(rows, send, receive)` is what you have just written, without its exchange of sizes.
#
# **Predict**: each of $T$ tokens on a rank has a row of $b$ bytes and $k$ experts. If the choices are even, a fraction
# $(P-1)/P$ of the rows leaves the rank. Not counting that fraction and the sizes, how many times $T k b$ does a rank
# send in a forward and backward pass?

# %%
predict("times T k b, forward and backward", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# `nonzero(as_tuple=True)` lists the places where a table is not zero, row by row. Which way round must the table of
# gates be, so that the pairs come out sorted by expert? `torch.bincount` counts, and `index_add` adds rows up by token.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Seen as a table with a row for each rank, the counts that arrive say which expert each arriving row is for: repeat
# the experts' numbers by them. A stable `argsort` of that brings the rows into the experts' order, and the `argsort` of
# the order brings the results back.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Sum the counts within each rank to get the two lists of splits. Exchange the rows of `x` picked by token; reorder;
# split by the number of rows of each expert; run the experts; concatenate; undo the order; exchange with the lists
# swapped; multiply by the gates of the pairs; add up by token.
# </details>

# %% exercise="expert-layer" difficulty=5 minutes=20
def expert_layer(
    x: Tensor,
    gates: Tensor,
    w_up_local: Tensor,
    w_down_local: Tensor,
    exchange,
    ep_group,
) -> Tensor:
    """A mixture of experts over P ranks: rows go to their experts and back.

    x: (T, D), this rank's tokens; T may differ from rank to rank. gates: (T, E), 0
    where an expert isn't chosen. w_up_local: (E/P, D, F) and w_down_local: (E/P, F, D),
    of this rank's experts. exchange(rows, send, receive): all-to-all of rows; autograd
    follows it. Returns (T, D). Forward: one all-to-all of E counts in int64, two of
    rows; backward: two.
    """
    ### BEGIN SOLUTION
    num_local, size = len(w_up_local), dist.get_world_size(ep_group)
    # one entry for each row, sorted by expert
    expert, token = (gates.T > 0).nonzero(as_tuple=True)
    counts = torch.bincount(expert, minlength=gates.shape[1]).view(size, num_local)
    # (P, E/P): by source, by expert
    arriving = all_to_all(counts, [1] * size, [1] * size, ep_group)
    send, receive = counts.sum(1).tolist(), arriving.sum(1).tolist()
    rows = exchange(x[token], send, receive)

    owner = torch.arange(num_local).repeat(size).repeat_interleave(arriving.flatten())
    order = owner.argsort(stable=True)
    parts = rows[order].split(arriving.sum(0).tolist())
    results = [expert_mlp(*one) for one in zip(parts, w_up_local, w_down_local)]
    back = exchange(torch.cat(results)[order.argsort()], receive, send)
    return torch.zeros_like(x).index_add(0, token, gates[token, expert, None] * back)
    ### END SOLUTION

# %% check="expert-layer" judges="values" points=6
check(expert_layer, judges="values")

# %% check="expert-layer" judges="traffic" points=3
check(expert_layer, judges="traffic")

# %% [markdown]
# The layer on 4 ranks, compared with one process that computes every expert for every token, `mixture`: 24 tokens, 8
# experts, two for each token. No token is dropped, so the outputs agree to the last digits.

# %% tags=["notebook-only"]
tokens = make_batch(24, 6, dtype=double)
router_weight = make_batch(6, 8, seed=1, dtype=double)
w_up, w_down = make_experts(8, 6, 10)

def on_four_ranks(rank, world_size):
    x, up, down = (
        whole.chunk(world_size)[rank].clone().requires_grad_()
        for whole in (tokens, w_up, w_down)
    )
    gates = router(x, router_weight, 2, softmax_first=False).double()
    y = expert_layer(x, gates, up, down, blocks_for(None)["exchange"], None)
    y.square().sum().backward()
    return y.detach(), up.grad

run = spawn(on_four_ranks, 4)
experts = w_up.clone().requires_grad_()
y = mixture(
    tokens,
    router(tokens, router_weight, 2, softmax_first=False).double(),
    experts,
    w_down,
)
y.square().sum().backward()
together = [torch.cat(parts) for parts in zip(*run.results)]
print("outputs agree:           ", torch.allclose(together[0], y, rtol=1e-9))
print("experts' gradients agree:", torch.allclose(together[1], experts.grad, rtol=1e-9))

# %%
row_calls = [
    event
    for event in run.events
    if event.op == "all_to_all" and event.dtype == "float64"
]
in_all = sum(event.bytes for event in row_calls) / (24 * 2 * 6 * 8)

# %%
reveal(
    "times T k b, forward and backward",
    round(in_all),
    why="Dispatch and combine, and each of them again backward.",
)

# %% [markdown]
# ## Layer with fixed buffers
#
# Now the same layer with part 2's buffers. Every rank has a buffer of $C$ rows for **each** of the $E$ experts. It puts
# its rows there, at the positions that `buffer_positions` found, and leaves zeros everywhere else. Then each rank sends
# $E C / P$ rows to each other rank, however the router has chosen. That has three advantages:
#
# - no rank needs to know what the others send, so no sizes travel, and the CPU needn't wait for numbers from the GPU
# - all experts of a rank get the same number of rows, $P C$, so one **batched** product computes them all
# - shapes never change, so the step can be compiled, or recorded as a CUDA graph
#
# `expert_mlp(x, w_up, w_down)` multiplies in batches if all three have an extra dimension: (E/P, n, D), (E/P, D, F) and
# (E/P, F, D). The price is what you saw in part 2: some tokens are dropped, and zeros travel and are multiplied.
#
# **Predict** for a rank with 4,096 tokens, $k = 2$ and a capacity factor of 1.25: how many rows does it dispatch?

# %%
predict("rows that a rank dispatches, factor 1.25", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Lay the buffers of all experts end to end, as one tensor of $E C$ rows. Which of its rows belongs to a choice whose
# expert and position you know? And what does a position of -1 mean for it?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# That one number serves twice. It says where a token's row goes before the dispatch, and where its result is found
# after the combine. In between, rows lie by source and then by expert, as in the layer before. The batched product
# wants the expert first: two dimensions change places, and change back afterwards.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# List the choices that were kept, with token, expert and position. Write the tokens' rows into zeros; exchange with
# equal splits; view as source, expert, place, feature; transpose, flatten sources and places together; run the experts;
# undo it all; exchange again; pick the results of the kept choices, multiply by their gates, and add up by token.
# </details>

# %% exercise="capacity-layer" difficulty=4 minutes=15
def capacity_layer(
    x: Tensor,
    experts: Tensor,
    positions: Tensor,
    gates: Tensor,
    w_up_local: Tensor,
    w_down_local: Tensor,
    capacity: int,
    exchange,
    ep_group,
) -> Tensor:
    """A mixture of experts in which each rank sends `capacity` rows to every expert.

    x: (T, D), this rank's tokens; T may differ from rank to rank. experts, positions,
    gates: (T, k), the experts of each token, the row of each choice in that expert's
    buffer (-1: dropped), and its weight. w_up_local: (E/P, D, F) and w_down_local:
    (E/P, F, D). exchange(rows, send, receive) as before. Returns (T, D); a dropped
    choice adds nothing. Forward: two all-to-alls of E * capacity rows; backward: two.
    """
    ### BEGIN SOLUTION
    num_local, size = len(w_up_local), dist.get_world_size(ep_group)
    # of the choices that were kept
    token, choice = (positions >= 0).nonzero(as_tuple=True)
    place = experts[token, choice] * capacity + positions[token, choice]
    even = [num_local * capacity] * size
    # (E * C, D)
    buffers = x.new_zeros(sum(even), x.shape[1]).index_copy(0, place, x[token])

    arrived = exchange(buffers, even, even).view(size, num_local, capacity, -1)
    rows = arrived.transpose(0, 1).flatten(1, 2)  # (E/P, P * C, D)
    results = expert_mlp(rows, w_up_local, w_down_local).view(num_local, size, capacity, -1)
    # (E * C, D)
    back = exchange(results.transpose(0, 1).reshape(buffers.shape), even, even)
    return torch.zeros_like(x).index_add(0, token, gates[token, choice, None] * back[place])
    ### END SOLUTION

# %% check="capacity-layer" judges="values" points=4
check(capacity_layer, judges="values")

# %% check="capacity-layer" judges="traffic" points=2
check(capacity_layer, judges="traffic")

# %% [markdown]
# Which of the two layers is faster? Here is the work of each on 8 virtual H100s with 64 experts, 8 on each rank: once
# if all experts are equally popular, once with the routing of part 2, where some are more popular than others.

# %% tags=["notebook-only"]
NARROW = 2048  # the hidden width of each of the 64 experts

def weights_of(num_local):
    up = torch.empty(num_local, D, NARROW, dtype=bf16)
    return up, torch.empty(num_local, NARROW, D, dtype=bf16)

def dropless(rank, world_size, counts):
    """counts: how many rows each rank has for each of the experts."""
    mine, w = counts[8 * rank : 8 * rank + 8], weights_of(8)
    send = [sum(counts[8 * to : 8 * to + 8]) for to in range(world_size)]
    receive = [sum(mine)] * world_size
    arrived = all_to_all(torch.empty(sum(send), D, dtype=bf16), send, receive)
    for of_expert in zip(arrived.split([world_size * count for count in mine]), *w):
        expert_mlp(*of_expert)
    all_to_all(arrived, receive, send)

def buffered(rank, world_size, capacity):
    even = [8 * capacity] * world_size
    arrived = all_to_all(torch.empty(sum(even), D, dtype=bf16), even, even)
    expert_mlp(arrived.view(8, -1, D), *weights_of(8))
    all_to_all(arrived, even, even)

capacity = -(-5 * 2 * TOKENS // (4 * 64))  # a factor of 1.25, rounded up
with_buffers = simulate(buffered, 8, capacity).elapsed
for what, counts in {
    "even": [128] * 64,
    "uneven": torch.bincount(choices.flatten(), minlength=64).tolist(),
}.items():
    ratio = simulate(dropless, 8, counts).elapsed / with_buffers
    lost = sum(max(count - capacity, 0) for count in counts) / sum(counts)
    print(
        f"{what:6}: dropless takes {ratio:.2f} times as long; with buffers, {lost:.1%} "
        "of the choices are dropped"
    )

# %% [markdown]
# With buffers, time doesn't depend on the routing. Where all experts are equally popular, that is wasted work: a fifth
# of the rows are zeros. Where they aren't, the dropless layer waits for the fullest rank, and the one with buffers is
# faster because it throws tokens away.

# %%
reveal(
    "rows that a rank dispatches, factor 1.25",
    64 * capacity,
    why="64 buffers, full or not: 1.25 times T k rows.",
)

# %% [markdown]
# ### A loop over experts, or one product
# A loop launches its products expert by expert. With many small experts, launching takes most of a GPU's time. One
# **batched** product of equal buffers is launched once, but it multiplies the padding, too. A **grouped** product has
# neither problem. It takes the rows end to end, and the row at which each expert's part ends:

# %%
generator = torch.Generator().manual_seed(1)
rows, matrices = (
    torch.randn(*shape, generator=generator) for shape in ((7, 16), (3, 16, 16))
)
ends = torch.tensor([4, 4, 7], dtype=torch.int32)  # 4 rows, none and 3
grouped = torch.nn.functional.grouped_mm(rows, matrices, offs=ends)
looped = torch.cat(
    [part @ matrix for part, matrix in zip(rows.split([4, 0, 3]), matrices)]
)
print("a loop computes the same:", torch.allclose(grouped, looped, rtol=1e-5))

def product_by_product(rank, world_size, counts):
    parts = torch.empty(sum(counts), 2048, dtype=bf16).split(counts)
    matrices = torch.empty(64, 2048, 2048, dtype=bf16)
    for part, matrix in zip(parts, matrices):
        part @ matrix

def batched(rank, world_size, counts):
    torch.empty(64, max(counts), 2048, dtype=bf16) @ torch.empty(
        64, 2048, 2048, dtype=bf16
    )

for what, counts in {
    "32 rows each": [32] * 64,
    "64 rows each, but one has 4,096": [4096] + [64] * 63,
}.items():
    loop, batch = (
        simulate(program, 1, counts).elapsed
        for program in (product_by_product, batched)
    )
    print(
        f"64 experts, {what}: a loop takes {loop * 1e6:.0f} µs, a batched product "
        f"{batch * 1e6:.0f} µs"
    )

# %% [markdown]
# # Part 4 · Balance
# Nothing so far keeps a router from sending every token to one expert. In fact it tends to: an expert that is chosen
# often learns more, gets better, and is chosen more often. First the price, then two cures, then a training run with
# each.

# %% [markdown]
# ## Time of the slowest rank
#
# How much does imbalance cost? A row that reaches an expert is multiplied by two matrices, $D \times F$ and
# $F \times D$, and each product takes two operations for each number of the matrix. A rank computes the rows of **all**
# its experts, from all ranks, and the layer waits for the rank with the most.

# %% exercise="slowest-rank" difficulty=2 minutes=8
def slowest_rank(
    routing: list[list[int]], num_ranks: int, dim: int, hidden: int, flops: float
) -> tuple[float, float]:
    """Seconds of the experts' products on the fullest rank, and its load over the mean
    load.

    routing[source][expert]: how many rows each rank sends to each of E experts. Rank r
    has the experts r E/P to (r + 1) E/P - 1. dim, hidden: D and F of each expert.
    flops: operations per second of a rank. Communication is not counted.
    """
    ### BEGIN SOLUTION
    loads = torch.tensor(routing).sum(0).view(num_ranks, -1).sum(1)  # rows on each rank
    most = loads.max().item()
    return 4 * most * dim * hidden / flops, most / (loads.sum().item() / num_ranks)
    ### END SOLUTION

# %% check="slowest-rank" judges="values" points=3
check(slowest_rank, judges="values")

# %% [markdown]
# The opening's three runs, predicted and measured. The virtual GPU needs a little more than the products alone: it also
# launches kernels and computes gelu.

# %%
def seconds_in_expert(run):
    return max(part.end - part.start for part in run.regions if part.name == "expert")

for share, run in zip(shares, runs):
    predicted, ratio = slowest_rank(
        [counts_to(share, 8)] * 8, 8, D, F, find_cluster("dgx-h100", 8).gpu.peak("bf16")
    )
    measured = seconds_in_expert(run)
    print(
        f"{ratio:.1f} times the mean load: predicted {predicted * 1e3:.2f} ms, "
        f"measured {measured * 1e3:.2f} ms"
    )

# %% [markdown]
# ## Load-balancing loss
#
# The classic cure is an **auxiliary loss**, added to the model's own with a small factor. For each expert $i$, let
# $f_i$ be its share of all $T k$ choices, and $p_i$ the mean over all tokens of its probability in the router's
# softmax. Then
#
# $$ L = E \sum_i f_i\, p_i . $$
#
# If everything is even, $f_i = p_i = 1/E$ and $L = 1$. If all tokens choose the same $k$ experts, and are certain of
# them, $f_i = 1/k$ for these and $L = E/k$. The shares $f_i$ come from counting and have no gradient; $p_i$ has one.
#
# $L$ is a **product** of two means, so the mean of the ranks' own losses is not the loss of the global batch.
# **Predict**: 2 ranks, 2 experts, $k = 1$. All of rank 0's tokens choose expert 0 with probability 1, and all of rank
# 1's choose expert 1. What is $L$ over the global batch, and what is the mean of the two local losses?

# %%
predict("loss over the global batch", ...)
predict("mean of the local losses", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Three things must be summed over the ranks: how often each expert was chosen, each expert's probabilities, and the
# number of tokens, which may differ from rank to rank.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Sum first, over tokens and then over ranks; divide once, at the end. All sums fit into one tensor, so one call of `g`
# will do.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Concatenate the counts, the sums of the probabilities and the number of tokens, pass them through `g`, split the
# result again, and combine the parts as the formula says.
# </details>

# %% exercise="balance-loss" difficulty=3 minutes=12
def balance_loss(probabilities: Tensor, chosen: Tensor, g) -> Tensor:
    """The load-balancing loss over the tokens of all ranks: one scalar for all.

    probabilities: (t, E), the router's softmax over all experts for this rank's tokens;
    t may differ from rank to rank. chosen: (t, k), the experts of each token.
    g(x_partial): the sum over the ranks; in the backward pass it passes the gradient
    on, as in lesson 08.
    """
    ### BEGIN SOLUTION
    t, num_experts = probabilities.shape
    counts = torch.bincount(chosen.flatten(), minlength=num_experts).to(probabilities)
    sums = g(torch.cat([counts, probabilities.sum(0), counts.new_tensor([t])]))
    counts, mass, total = sums[:num_experts], sums[num_experts:-1], sums[-1]
    return num_experts * (counts / counts.sum() * mass / total).sum()
    ### END SOLUTION

# %% check="balance-loss" judges="values" points=4
check(balance_loss, judges="values")

# %% tags=["notebook-only"]
def two_specialists(rank, world_size):
    probabilities, chosen = torch.eye(2)[[rank] * 5], torch.full((5, 1), rank)
    everyone, alone = (lambda x: all_reduce(x)), (lambda x: x)
    return [balance_loss(probabilities, chosen, g).item() for g in (everyone, alone)]

run = spawn(two_specialists, 2)
over_all, local = run.results[0][0], sum(result[1] for result in run.results) / 2
over_all, local

# %%
reveal(
    "loss over the global batch",
    over_all,
    why="Both experts get half of all tokens: perfect balance.",
)
reveal(
    "mean of the local losses",
    local,
    why="On each rank, everything goes to one expert.",
)

# %% [markdown]
# The local loss punishes a router that is perfectly balanced. It forbids experts to specialise wherever a rank's tokens
# have something in common, such as coming from the same book.
#
# A second loss, the **z-loss**, keeps scores small: the mean over tokens of `scores.logsumexp(-1).square()`. A constant
# that is added to all scores of a token changes no gate. So nothing else keeps scores from drifting, until float32
# can't tell them apart. Here the second score is 0.01 higher:

# %%
for drift in (0.0, 1e4, 1e6):
    scores = torch.tensor([[0.0, 0.01]]) + drift
    gates, z_loss = scores.softmax(-1)[0], scores.logsumexp(-1).square().mean()
    print(
        f"drift {drift:9,.0f}: gates {gates[0]:.4f} and {gates[1]:.4f}, z-loss "
        f"{z_loss:.3g}"
    )

# %% [markdown]
# The z-loss is a plain mean over tokens, so here averaging the ranks' means is right, provided that all ranks have the
# same number of tokens.

# %% [markdown]
# ## Balance without a loss
#
# An auxiliary loss pulls the router away from what is best for the model. Newer models such as DeepSeek-V3 hardly need
# it: each expert has a **bias** that is added to its score when experts are **chosen**, but not when the gates are
# computed. After each step, the bias of an expert with less than the mean load goes up by a fixed `rate`, and that of
# one with more goes down. No gradient is involved.
#
# Every rank must end up with the same biases, so the load is that of the whole group.

# %% exercise="balance-bias" difficulty=2 minutes=8
def balance_bias(bias: Tensor, load_local: Tensor, rate: float, group) -> Tensor:
    """The biases after one step, (E,): up by `rate` below the mean load, down above.

    bias: (E,), the same on every rank. load_local: (E,), float: how many of this rank's
    tokens chose each expert. Both left unchanged. The load is the sum over the group. A
    bias with exactly the mean load stays. One all_reduce of E numbers.
    """
    ### BEGIN SOLUTION
    load = all_reduce(load_local, group)
    return bias + rate * (load.mean() - load).sign()
    ### END SOLUTION

# %% check="balance-bias" judges="values" points=3
check(balance_bias, judges="values")

# %% check="balance-bias" judges="traffic" points=1
check(balance_bias, judges="traffic")

# %% [markdown]
# ### A collapse, and its cures
# Now train a small mixture: 8 experts, two for each token, on tokens of 8 kinds, each with a matrix of its own to
# learn. One rank is enough, with 256 tokens per step: without a cure, with your loss (times 0.05), with your bias (rate
# 0.01), and with the bias reversed, so that popular experts go **up**. The last run is the control: if the bias is what
# helps, reversing it must not. Each run takes a second or two.
#
# **Predict**: with $k = 2$ of 8 experts, how many times the mean load can the fullest expert have at most? And which of
# the four runs ends with the lowest loss, not counting the auxiliary one?

# %%
predict("times the mean load, at most", ...)
predict(
    "lowest loss after training",
    ...,
    choices=["no cure", "loss", "bias", "bias reversed"],
)

# %%
def tokens_of(step):
    """256 tokens, which have a part in common, and what to learn of them: (256, 8)."""
    fixed, drawn = (torch.Generator().manual_seed(seed) for seed in (99, step))
    centres, maps = (
        torch.randn(8, *shape, generator=fixed) for shape in ((8,), (8, 8))
    )
    kind = torch.randint(8, (256,), generator=drawn)
    x = centres[kind] + 0.3 * torch.randn(256, 8, generator=drawn)
    return x + 2, torch.einsum("td,tde->te", x, maps[kind] / 8**0.5)

def train_mixture(rank, world_size, cure, seed=1, steps=250, k=2):
    """For each step: the fullest expert's load over the mean load, and the loss."""
    w_gate = 0.02 * torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
    weights = [w.float() for w in (w_gate, *make_experts(8, 8, 16, seed))]
    weights = [w.requires_grad_() for w in weights]
    optimizer, bias, seen = torch.optim.Adam(weights, lr=0.005), torch.zeros(8), []
    for step in range(steps):
        x, target = tokens_of(step)
        probabilities = (x @ weights[0]).softmax(-1)
        # the bias has a say in the choice, not in the gates
        chosen = (probabilities + bias).topk(k).indices
        mask = torch.zeros_like(probabilities).scatter(1, chosen, 1.0)
        y = mixture(x, probabilities * mask, *weights[1:])
        loss, load = (y - target).square().mean(), mask.sum(0)
        extra = 0.05 * balance_loss(probabilities, chosen, blocks_for(None)["g"])
        optimizer.zero_grad()
        (loss + extra if cure == "loss" else loss).backward()
        optimizer.step()
        if "bias" in cure:
            bias = balance_bias(bias, load, 0.01 if cure == "bias" else -0.01, None)
        seen.append(((load.max() / load.mean()).item(), loss.item()))
    return seen

# %% tags=["notebook-only", "nbval-ignore-output"]
fullest, final_loss = {}, {}
for cure in ("no cure", "loss", "bias", "bias reversed"):
    [seen] = spawn(train_mixture, 1, cure).results
    fullest[cure] = [load for load, _ in seen]
    load, final_loss[cure] = (sum(values) / 20 for values in zip(*seen[-20:]))
    print(
        f"{cure:>17}: fullest expert {load:.2f} times the mean, loss "
        f"{final_loss[cure]:.3f}"
    )

# %% tags=["notebook-only", "nbval-ignore-output"]
def in_tens(values):
    return {n: sum(values[n : n + 10]) / 10 for n in range(0, len(values), 10)}

of_ten_steps = {cure: in_tens(load) for cure, load in fullest.items()}
figures.over_steps(
    of_ten_steps, "the fullest expert, means of ten steps", "times the mean load"
)

# %%
reveal(
    "times the mean load, at most", 8 / 2, why="All tokens on the same 2 of 8 experts."
)
reveal(
    "lowest loss after training",
    min(final_loss, key=final_loss.get),
    why="In this run: with other seeds the three are closer to each other.",
)

# %% [markdown]
# In this run, two experts end up with all tokens if there is no cure, and the other six get none. The balancing loss
# spreads the load, and so does the bias; reversed, the bias balances nothing. Part of what stays above 1 is chance:
# with about 64 tokens for each expert, even a perfect router gives one of them more than the mean in nearly every step.
#
# But this is one small problem and one seed. Try others (`train_mixture` takes a `seed`): the balancing loss may leave
# its fullest expert at twice the mean or more, and neither cure lowers the training loss every time. Such runs can't
# tell you how much a cure gains or costs in a large model.

# %% [markdown]
# # Part 5 · Who reduces which gradient
# With 8 ranks and experts spread over groups of 4, there are two copies of each expert. The ranks form a grid: in each
# **expert-parallel group** all experts are different; the ranks that hold the **same** experts form a **replica group**
# (Megatron calls it expert-data-parallel). Everything else, attention and the router included, is on all 8 ranks, and
# each has different tokens. Here each row is an expert-parallel group and each column a replica group, for 8 experts:
#
# | experts | 0, 1 | 2, 3 | 4, 5 | 6, 7 |
# | --- | --- | --- | --- | --- |
# | **first copy** | rank 0 | rank 1 | rank 2 | rank 3 |
# | **second copy** | rank 4 | rank 5 | rank 6 | rank 7 |

# %% [markdown]
# ## Gradients of experts
#
# Suppose each rank has run its backward pass from the **sum** of the losses of its tokens. Then
#
# - a **dense** weight has, on each rank, the gradient of that rank's tokens: sum it over **all** ranks.
# - an **expert** has the gradient of all tokens that were sent to it, and these came from every rank of its
#   expert-parallel group. What is missing is the other replicas' tokens: sum it over the **replica group**.
#
# Both are then divided by the same number, the tokens of **all** ranks. A mean over the replica group instead would
# count an expert's tokens several times too much.
#
# **Predict**: 8 ranks, groups of 4 for experts, the same number of tokens everywhere. How many times too large are the
# experts' gradients if every rank's loss is the mean over its own tokens, and every gradient is averaged over the group
# that should sum it?

# %%
predict("times too large, averaged over the replica group", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Three sums are needed: of the dense gradient, of the expert's, and of the number of tokens. Over which group each?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# The number of tokens is global for both. Only the group that sums the gradients differs.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# A collective takes a tensor, so the count has to become one. Of the three sums, two are over the same group.
# </details>

# %% exercise="moe-gradients" difficulty=3 minutes=10
def moe_gradients(
    dense: Tensor, expert: Tensor, num_tokens: int, data_group, replica_group
) -> tuple[Tensor, Tensor]:
    """The gradients of the mean loss over all tokens, of a dense weight and an expert.

    dense, expert: this rank's gradients of the sum of the losses, left unchanged; the
    expert's includes all tokens of its expert-parallel group. num_tokens: of this rank;
    differs from rank to rank. data_group: all ranks. replica_group: those that hold the
    same experts.
    """
    ### BEGIN SOLUTION
    total = all_reduce(torch.tensor(num_tokens), data_group)
    return all_reduce(dense, data_group) / total, all_reduce(expert, replica_group) / total
    ### END SOLUTION

# %% check="moe-gradients" judges="values" points=4
check(moe_gradients, judges="values")

# %% tags=["notebook-only"]
def two_averages(rank, world_size):
    groups = [dist.new_group([number, number + 4]) for number in range(4)]
    tokens = 10
    right = moe_gradients(
        torch.ones(1), torch.full((1,), 4.0 * tokens), tokens, None, groups[rank % 4]
    )[1]
    averaged = all_reduce(torch.full((1,), 4.0 * tokens) / tokens, groups[rank % 4]) / 2
    return (averaged / right).item()

[too_large] = set(spawn(two_averages, 8).results)

# %%
reveal(
    "times too large, averaged over the replica group",
    too_large,
    why="One for each rank that sends it tokens.",
)

# %% [markdown]
# Adam would hide that mistake: it divides the scale of a gradient away. Gradient clipping would not.

# %% [markdown]
# # Part 6 · What travels, and how
# How does expert parallelism compare with lesson 08's way to share one large layer? Take a dense MLP with a hidden
# width of $k F$: a token pays for as many products as with $k$ experts. With tensor parallelism over the same $P$
# ranks, all of them work on all $P T$ tokens, and all-reduce the outputs.
#
# **Predict** for the forward pass, 8 ranks and $k = 2$: how many times as many bytes does a rank send with tensor
# parallelism?

# %%
predict("times as many bytes with tensor parallelism", ...)

# %% tags=["notebook-only"]
def with_experts(rank, world_size, k):
    rows = torch.empty(k * TOKENS, D, dtype=bf16)
    even = [k * TOKENS // world_size] * world_size
    all_to_all(all_to_all(rows, even, even), even, even)

def with_tensor_parallelism(rank, world_size):
    all_reduce(torch.empty(world_size * TOKENS, D, dtype=bf16))

experts_send, tensor_sends = (
    run.traffic().implied(0)
    for run in (simulate(with_experts, 8, 2), simulate(with_tensor_parallelism, 8))
)
print(
    f"experts: {experts_send / 1e6:.0f} MB, tensor parallelism: "
    f"{tensor_sends / 1e6:.0f} MB"
)

# %%
reveal(
    "times as many bytes with tensor parallelism",
    tensor_sends / experts_send,
    why="P / k: every rank sees all rows.",
)

# %% [markdown]
# ### Hidden behind other computing
# Many models have a **shared expert** as well, which every token uses. It needs no dispatch, so it can run while the
# rows travel. DeepSeek-V3 cuts its batch in two for the same purpose: the rows of one **microbatch** travel while the
# other is computed. At best, only the first dispatch and the last combine stay exposed.

# %% tags=["notebook-only"]
def with_shared_expert(rank, world_size, overlap):
    x, w_up, w_down = (
        torch.empty(*shape, dtype=bf16) for shape in [(TOKENS, D), (D, F), (F, D)]
    )
    arrived = torch.empty_like(x)
    handle = dist.all_to_all_single(arrived, x, async_op=True)
    if not overlap:
        handle.wait()
    with region("shared expert"):
        expert_mlp(x, w_up, w_down)
    handle.wait()

def two_microbatches(rank, world_size, overlap):
    x, w_up, w_down = (
        torch.empty(*shape, dtype=bf16) for shape in [(TOKENS, D), (D, F), (F, D)]
    )

    def start(rows):
        arrived = torch.empty_like(rows)
        handle = dist.all_to_all_single(arrived, rows, async_op=True)
        if not overlap:
            handle.wait()
        return arrived, handle

    back = []
    for arrived, handle in [start(half) for half in x.chunk(2)]:
        handle.wait()
        with region("expert"):
            y = expert_mlp(arrived, w_up, w_down)
        back.append(start(y))
    for _, handle in back:
        handle.wait()

for program in (with_shared_expert, two_microbatches):
    # all ranks do the same, so one of them runs (lesson 05)
    alone, hidden = (
        simulate(program, 64, each, alike=lambda rank: 0) for each in (False, True)
    )
    name, ratio = program.__name__.replace("_", " "), alone.elapsed / hidden.elapsed
    print(
        f"{name}: one after the other takes {ratio:.2f} times as long as side by side"
    )

# %% [markdown]
# The two microbatches, first one after the other, then side by side. Each dispatch is an all-to-all before its expert,
# each combine one after it:

# %% tags=["notebook-only"]
titles = "One after the other, on 64 virtual ranks", "Side by side"
alone.timeline(ranks=[0], beside=hidden, title=titles)

# %% [markdown]
# ### Fewer bytes per row
# Rows may travel in **8 bits**, as in DeepSeek-V3. Here each row has a scale of its own (in DeepSeek-V3, every 128
# numbers of it have one), chosen such that its largest number becomes the largest of float8, 448. The way back stays in
# bfloat16, since that is where results are added up.

# %%
rows = torch.randn(1024, D, generator=torch.Generator().manual_seed(0)).to(bf16)
rows[:, 0] *= 100  # one feature is much larger than the others, as in real models
scale = rows.float().abs().amax(1, keepdim=True) / 448
in_8_bits = (rows.float() / scale).to(torch.float8_e4m3fn)
restored = in_8_bits.float() * scale
error = (restored - rows.float())[:, 1:].norm() / rows.float()[:, 1:].norm()
nbytes = in_8_bits.nbytes + scale.nbytes
print(
    f"{nbytes / rows.nbytes:.3f} of the bytes, the small features are off by "
    f"{error:.1%}"
)

# %% [markdown]
# ### Fewer nodes per token
# A token with 8 experts sends 8 rows, most of them to other nodes. Two ideas save many of these. A row crosses to a
# node **once**, however many of the token's experts are there; inside the node it is copied. And with **node-limited
# routing** a token may choose experts on $M$ nodes only: those whose best scores have the largest sum. Here are 256
# experts on 8 nodes, as in DeepSeek-V3, with random scores.

# %%
scores = torch.rand(4096, 256, generator=torch.Generator().manual_seed(0))
best = scores.topk(8).values.sum(1)
for most in (8, 4, 2):
    # (T, nodes, experts of a node)
    of_node = scores.view(-1, 8, 32)
    strength = of_node.topk(8 // most, dim=2).values.sum(2)
    allowed = torch.zeros_like(strength).scatter(1, strength.topk(most).indices, 1.0)
    chosen = (of_node * allowed[:, :, None]).flatten(1).topk(8)
    nodes = (torch.zeros(4096, 8).scatter(1, chosen.indices // 32, 1.0)).sum(1).mean()
    kept = (chosen.values.sum(1) / best).mean()
    print(
        f"at most {most} nodes: rows to {nodes:.2f} nodes per token, not 8; {kept:.1%} "
        "of the best scores"
    )

# %% [markdown]
# ## Two-level all-to-all
#
# On 8 nodes with 8 GPUs each, a plain all-to-all sends 56 messages from each rank to other nodes. If each carries few
# bytes, their latency is what takes the time. In **two levels** it is 7:
#
# 1. inside each node: rank $l$ of the node gets everything that goes to the $l$-th rank of **any** node
# 2. between the nodes, among the $l$-th ranks of all nodes: one message for each node, with all that goes there
#
# Every row travels twice, but the first journey stays inside the node. Ranks are numbered node by node: rank $r$ is the
# $l$-th of its node with $l = r \bmod L$, for $L$ ranks in each node.
#
# **Predict** for 4 nodes of 2 ranks each: how many messages to other nodes does each rank save?

# %%
predict("messages saved by each rank, 4 nodes of 2", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Give `x` four dimensions: target node, target's number in its node, row, features. Each level exchanges one of the
# first two.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# An all-to-all cuts along dimension 0, so the dimension to be exchanged must come first. Afterwards this dimension says
# where the rows have come from.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# View, transpose the first two dimensions, exchange in the node; transpose back, exchange between the nodes. The verb
# counts along dimension 0, where there is now one entry for each rank.
# </details>

# %% exercise="two-level-exchange" difficulty=4 minutes=15
def two_level_exchange(x: Tensor, local_group, cross_group) -> Tensor:
    """An all-to-all of equal chunks over N nodes of L ranks, in two levels.

    x: (N * L * n, D), left unchanged: n rows for each rank, rank 0's first; ranks are
    numbered node by node. local_group: the L ranks of this node. cross_group: the N
    ranks, one of each node, that have this rank's place in their node. Returns (N * L *
    n, D), rank 0's first. Leaves no process group of its own behind.
    """
    ### BEGIN SOLUTION
    local, nodes = dist.get_world_size(local_group), dist.get_world_size(cross_group)
    # (L, N, n, D): by target's place
    chunks = x.view(nodes, local, -1, x.shape[-1]).transpose(0, 1)
    # by source's place, by node
    chunks = all_to_all(chunks, [1] * local, [1] * local, local_group)
    chunks = chunks.transpose(0, 1)  # (N, L, n, D): by target's node
    return all_to_all(chunks, [1] * nodes, [1] * nodes, cross_group).reshape(x.shape)
    ### END SOLUTION

# %% check="two-level-exchange" judges="values" points=4
check(two_level_exchange, judges="values")

# %% check="two-level-exchange" judges="traffic" points=2
check(two_level_exchange, judges="traffic")

# %% [markdown]
# Flat and in two levels on 32 virtual H100s, 4 nodes of 8, for a few rows per rank and for many.

# %% tags=["notebook-only"]
def flat(rank, world_size, rows):
    works = []
    for step in range(1, world_size):
        works.append(
            dist.isend(torch.empty(rows, D, dtype=bf16), (rank + step) % world_size)
        )
        works.append(
            dist.irecv(torch.empty(rows, D, dtype=bf16), (rank - step) % world_size)
        )
    for work in works:
        work.wait()

def in_two_levels(rank, world_size, rows):
    local = [dist.new_group(range(node * 8, node * 8 + 8)) for node in range(4)][
        rank // 8
    ]
    cross = [dist.new_group(range(place, 32, 8)) for place in range(8)][rank % 8]
    two_level_exchange(torch.empty(32 * rows, D, dtype=bf16), local, cross)

ratios = {}
for rows in (1, 128):
    ratios[rows] = (
        simulate(flat, 32, rows).elapsed / simulate(in_two_levels, 32, rows).elapsed
    )
    print(
        f"{rows:>3} rows for each rank: flat takes {ratios[rows]:.2f} times as long as "
        "two levels"
    )
nodes, local = 4, 2
# messages to other nodes from each rank: flat, in two levels
to_others = (nodes - 1) * local, nodes - 1

# %%
reveal(
    "messages saved by each rank, 4 nodes of 2",
    to_others[0] - to_others[1],
    why="Six other ranks, but three nodes.",
)

# %% [markdown]
# With one row for each rank, latency is all that counts, and saving messages pays. With many rows the bytes count, and
# those that cross between nodes are the same in both forms. A model that generates text one token at a time is in
# the first situation, training in the second.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - A **router** picks $k$ experts for each token. It works in float32, and the gates are its only way to learn.
# - With a **capacity**, tokens are dropped and buffers padded. **Dropless** layers exchange sizes first.
# - **Dispatch and combine** are all-to-alls with uneven splits; each one's backward pass has the splits swapped.
# - The layer is as slow as its fullest rank. A router left alone can **collapse** onto a few experts. Balance comes
#   from a loss over the **global** batch, or from a bias.
# - A rank sends $P / k$ times fewer bytes than with tensor parallelism. **Two levels** save messages between nodes,
#   node-limited routing and 8 bits save bytes, and a second microbatch hides them.
# - An expert's gradient is summed over its **replicas** only, and divided by the tokens of **all** ranks.
#
# **The papers.** Lepikhin and others: *GShard* (2020), which has capacity and the order of choices. Fedus and others:
# *Switch Transformers* (2021), for $k = 1$ and the loss. Gale and others: *MegaBlocks* (2022), for dropless layers.
# DeepSeek-AI: *DeepSeek-V3 Technical Report* (2024), for the bias, 8 bits, two microbatches and node-limited routing.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## Sixty-four experts on four nodes
# Four nodes with one H100 each, connected by InfiniBand. A routing statistic, `routing[node][expert]`, says how many
# tokens of each node want each expert. Some experts are more popular than others, and tokens of different nodes like
# different experts. You choose the node of each expert, 16 on each node. `placed_layer` dispatches the tokens in
# messages from node to node, runs the experts, and sends the results back.
#
# The score is the virtual time of the layer. Par spreads the load: experts by falling load, each to the node with the
# least so far that still has room. The limit is what four H100s need for the products alone, at their peak.

# %%
four_nodes = replace(
    find_cluster("dgx-h100", 4),
    name="4 nodes of one GPU",
    nodes=4,
    gpus_per_node=1,
    nics=None,
)
routing = routing_statistic(nodes=4, experts=64, tokens=8192)

def try_places(places):
    run = simulate(placed_layer, 4, routing, places, cluster=four_nodes)
    print(f"{run.elapsed * 1e3:.2f} ms")
    return run

in_order = try_places([expert // 16 for expert in range(64)])

# %% exercise="expert-placement" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def expert_placement(routing: list[list[int]]) -> list[int]:
    """The node of each of E experts, equally many on each of N nodes.

    routing[node][expert]: how many of the node's tokens want the expert. Judged for 64
    experts on 4 nodes, for the statistic above and for others of the same kind.
    """
    ### BEGIN SOLUTION
    load = [sum(counts) for counts in zip(*routing)]
    total, room = [0] * len(routing), [len(load) // len(routing)] * len(routing)
    places = [0] * len(load)
    for expert in sorted(range(len(load)), key=lambda expert: -load[expert]):
        node = min((node for node in range(len(routing)) if room[node]), key=lambda node: total[node])
        places[expert] = node
        total[node] += load[expert]
        room[node] -= 1
    return places
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint 1: what to look at</summary>
#
# Which node finishes its experts last, and how long do the messages before and after take? `try_places(...).timeline()`
# shows both.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# A list of totals, one for each node, and the experts from the most popular to the least. A node that is full is no
# longer a candidate.
# </details>
# <details><summary>Hint 3: beyond par</summary>
#
# A balanced load isn't everything: a token whose expert is on its own node sends nothing. Write down an estimate of the
# time with both parts, and swap pairs of experts for as long as that helps.
# </details>

# %% tags=["notebook-only"]
run = try_places(expert_placement(routing))

# %% check="expert-placement" judges="score" points=3
check(expert_placement, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
