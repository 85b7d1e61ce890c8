# %% [markdown] question="How do many GPUs share one model by its layers, and what keeps them busy?"
# # Pipeline parallelism
# *you need: lesson 01 (send, receive, handles), and `backward()` in PyTorch.*
#
# A model that is too large for one GPU can be cut by its layers: the first GPU has the first layers, the next GPU has
# the next ones. It sounds like the simplest method of all. Then you look at the GPUs, and nearly all of them are idle.
#
# In this lesson you cut a model into stages, send activations forward and gradients back, and get exactly the gradients
# that one process computes. Then you write the schedules that keep the GPUs busy: GPipe, 1F1B and interleaved 1F1B.
# Here a schedule is a plain list, which you can draw, check, count and run.

# %%
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from utils import figures, region, simulate, spawn
from utils.checks import checks_for
from utils.cluster import Cluster, Gpu, Link, find_cluster
from utils.kit import mlp
from utils.kit.pipeline_schedule import problem, timed
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.worlds.virtual.play_schedule import FREE, play

check = checks_for("09_pipeline_parallelism")
# this lesson computes on the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# peaks and bandwidths as promised: times can be computed by hand
simulate = partial(simulate, rates="datasheet")

# %% [markdown]
# ## Why: a model that no GPU can hold
# Training with Adam in mixed precision takes 16 bytes per parameter: weight and gradient in 16 bits (2 + 2), and a
# master copy of the weight and two averages in 32 bits (4 + 4 + 4). How many 80 GB GPUs does it take to hold that and
# nothing else?

# %%
for billions in (7, 70, 530):
    nbytes = billions * 1e9 * 16
    print(
        f"{billions:>4} billion parameters: {nbytes / 1e9:6,.0f} GB, at least "
        f"{-(-nbytes // 80e9):.0f} GPUs"
    )

# %% [markdown]
# So the weights must be spread over many GPUs. If you cut by layers, only one thing ever crosses from one GPU to the
# next: the activations between two layers and, in the backward pass, their gradient. No weight is ever sent. For layers
# of width $D$ and a batch of $B$ rows, that is $2 B D$ numbers per step and boundary. Data parallelism makes every rank
# send nearly two numbers for every weight. For 16 layers of width 8,192, 16,384 rows and 8 ranks:

# %%
layers, dim, rows, ranks = 16, 8192, 16384, 8
# activations one way, their gradient the other: what crosses one boundary in a step
boundary = 2 * rows * dim
all_reduce = 2 * (ranks - 1) / ranks * layers * dim * dim
print(f"across a boundary: {boundary:.3g} numbers")
print(
    f"by each rank that all-reduces the gradients: {all_reduce:.3g}, "
    f"{all_reduce / boundary:.0f} times as many"
)

# %% [markdown]
# That is why people use pipelines between nodes, where the network is slow.
#
# ## Words
# - **stage**: some consecutive layers, on one rank. With $P$ ranks there are $P$ stages (until part 7).
# - **microbatch**: some rows of the batch. A training step goes through $M$ of them. Here one row's output never
#   depends on another row, so a batch may be cut anywhere.
# - **bubble**: time in which a rank has nothing to do.
#
# The model is the course's MLP, in `utils/kit/mlp.py`: a layer is `gelu(x @ weight)`, and the loss is the mean of the
# squared outputs. `mlp.forward(weights, x)` applies some layers. `mlp.serial_gradients(weights, batch)` is what one
# process computes, and your results must equal it.

# %%
weights = mlp.make_weights(num_layers=4, num_dim=8)
batch = mlp.make_batch(batch_size=6, num_dim=8)
loss, gradients = mlp.serial_gradients(weights, batch)
loss, [tuple(gradient.shape) for gradient in gradients]

# %% [markdown]
# # Part 1 · Stages
# Eight layers on four ranks: each rank has two of them. A stage's output, $y$, is the input of the next one. What comes
# back is the subject of part 3.

# %%
figures.pipeline(["layers 0, 1", "layers 2, 3", "layers 4, 5", "layers 6, 7"])

# %% [markdown]
# First you decide who gets which layers. Then you send a batch through them.

# %% [markdown]
# ## Splitting the layers
#
# Rank 0 gets the first layers, rank 1 the next, and so on. If the number of ranks doesn't divide the number of layers,
# some ranks get one more. All others wait for the slowest stage, so the sizes may differ by **one** at most.
#
# **Predict** how many layers each of 4 ranks gets if you cut pieces of `ceil(layers / 4)`, as `torch.chunk` does.
# Replace each `...` with a list of four numbers, and run the cell. Predictions earn no points, and you can skip them;
# but a guess that turns out to be wrong is what you'll remember.

# %%
predict("10 layers in pieces", ...)
predict("9 layers in pieces", ...)

# %% exercise="split-layers" difficulty=1 minutes=5
def split_layers(weights: list, rank: int, world_size: int) -> list:
    """The layers of one rank: consecutive, in order, each layer on one rank.

    The numbers of layers of two ranks differ by one at most; the first ranks have the
    larger number. With fewer layers than ranks the last ranks get an empty list.
    """
    ### BEGIN SOLUTION
    # the first `more` ranks have one layer more
    size, more = divmod(len(weights), world_size)
    start = rank * size + min(rank, more)
    return weights[start : start + size + (rank < more)]
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# `divmod(10, 4)` is `(2, 2)`: every rank gets 2, and the first 2 ranks get one more. Where does rank $r$ begin? After
# $r$ times 2 layers, and one more for each earlier rank that has one more.
# </details>

# %%
[split_layers(list(range(10)), rank, 4) for rank in range(4)]

# %% check="split-layers" judges="values" points=2
check(split_layers, judges="values")

# %%
pieces = {
    layers: [len(range(layers)[3 * rank : 3 * rank + 3]) for rank in range(4)]
    for layers in (10, 9)
}

# %%
reveal("10 layers in pieces", pieces[10], why="The slowest stage is no slower than in 3, 3, 2, 2, so where's the harm?")
reveal("9 layers in pieces", pieces[9], why="Here is the harm: the fourth rank has nothing to do at all.")

# %% [markdown]
# ## Naive forward pass
#
# Now send a batch through the stages. Rank 0 has the input. Every other rank receives the activations of the rank
# before it, applies its own layers, and sends the result to the rank after it. The last rank has the output.
#
# A receiver must know the shape of what it will receive. Here that is the shape of the batch, on every boundary.
#
# **Predict** for 4 ranks: how many messages are sent in all? And while rank 2 computes, how many of the other ranks do
# something useful?

# %%
predict("messages of the naive forward pass", ...)
predict("ranks that work while rank 2 computes", ...)

# %% exercise="naive-forward" difficulty=1 minutes=7
def naive_forward(
    batch: Tensor, weights: list[Tensor], rank: int, world_size: int
) -> Tensor | None:
    """Send the batch through all stages; return the output on the last rank, None
    elsewhere.

    batch: (B, D) on every rank, but only rank 0's values count; left unchanged.
    weights: this rank's layers, (D, D) each.
    Only send and recv: P - 1 messages of the size of the batch in all.
    """
    x = batch if rank == 0 else torch.empty_like(batch)
    ### BEGIN SOLUTION
    if rank > 0:
        dist.recv(x, src=rank - 1)
    ### END SOLUTION
    with region("forward"):  # a name for the timeline below
        y = mlp.forward(weights, x)
    ### BEGIN SOLUTION
    if rank < world_size - 1:
        dist.send(y, dst=rank + 1)
    ### END SOLUTION
    return y if rank == world_size - 1 else None

# %% check="naive-forward" judges="values" points=2
check(naive_forward, judges="values")

# %% check="naive-forward" judges="traffic" points=1
check(naive_forward, judges="traffic")

# %% [markdown]
# ### Your pipeline, measured
# We want to see time, not the noise of this machine. So we use a **virtual cluster**: your function runs unchanged on
# four virtual GPUs, and `simulate` adds up how long each operation would take there. On this one, 128 rows take 1 ms
# through one layer, and messages take no time. All times that follow are exact, and the same on every machine.

# %% tags=["notebook-only"]
def gpus(ranks, link=FREE):
    """128 rows of 1,024 numbers take 1 ms in a layer; memory is infinitely fast."""
    gpu = Gpu(
        flops={"fp32": 2 * 128 * 1024**2 / 1e-3}, memory=80e9, bandwidth=float("inf")
    )
    return Cluster(
        "128 rows a millisecond",
        nodes=1,
        gpus_per_node=ranks,
        gpu=gpu,
        intra=link,
        inter=link,
    )

def forward_program(rank, world_size, forward, **options):
    layers = [torch.empty(1024, 1024)] * 2  # two layers on each rank
    forward(torch.empty(128, 1024), layers, rank=rank, world_size=world_size, **options)

naive = simulate(forward_program, 4, naive_forward, cluster=gpus(4))
naive.timeline(title="The whole batch on 4 virtual ranks")

# %%
reveal("messages of the naive forward pass", sum(map(sum, naive.traffic().messages)), why="One across each boundary.")
reveal("ranks that work while rank 2 computes", 0, why="Ranks 0 and 1 are done, and rank 3 waits for its input.")

# %% [markdown]
# At any time one rank works and three wait. Four GPUs take as long as one GPU with enough memory would: 8 ms for 8
# layers. With $P$ GPUs each one is busy for $1/P$ of the time, so it gets worse with each GPU you add.

# %% [markdown]
# # Part 2 · Microbatches
# Cut the batch. When rank 0 is done with the first microbatch, it sends it on and starts on the second while rank 1
# computes the first. It's a bucket brigade: no bucket reaches the fire sooner, but all hands are busy.

# %% [markdown]
# ## Forward pass in microbatches
#
# `batch.split(micro_batch_size)` cuts a tensor into pieces of that many rows. **The last piece may be shorter**: 10
# rows in microbatches of 4 are 4, 4 and 2.
#
# **Predict** for 4 ranks and 4 microbatches: the naive forward pass took 8 ms, which is 16 slots. (A slot is the time
# that one microbatch takes on one stage.) How many slots does this take?

# %%
predict("slots with 4 microbatches", ...)

# %% exercise="microbatch-forward" difficulty=2 minutes=10
def microbatch_forward(
    batch: Tensor,
    weights: list[Tensor],
    micro_batch_size: int,
    rank: int,
    world_size: int,
) -> Tensor | None:
    """As naive_forward, but microbatch by microbatch; the last rank returns all
    outputs, in order, as one tensor.

    batch: (B, D) on every rank, but only rank 0's values count; left unchanged. The
    last microbatch may be shorter. Only send and recv: each rank but the last sends one
    message per microbatch, before it receives the next microbatch.
    """
    outputs = []
    for microbatch in batch.split(micro_batch_size):
        # here: x, the input of this rank's layers
        ### BEGIN SOLUTION
        x = microbatch if rank == 0 else torch.empty_like(microbatch)
        if rank > 0:
            dist.recv(x, src=rank - 1)
        ### END SOLUTION
        with region("forward"):
            y = mlp.forward(weights, x)
        ### BEGIN SOLUTION
        if rank < world_size - 1:
            dist.send(y, dst=rank + 1)
        ### END SOLUTION
        outputs.append(y)
    return torch.cat(outputs) if rank == world_size - 1 else None

# %% check="microbatch-forward" judges="values" points=2
check(microbatch_forward, judges="values")

# %% check="microbatch-forward" judges="time" points=2
check(microbatch_forward, judges="time")

# %% tags=["notebook-only"]
run = simulate(
    forward_program, 4, microbatch_forward, micro_batch_size=32, cluster=gpus(4)
)
print(f"{run.elapsed * 1e3:.2f} ms instead of {naive.elapsed * 1e3:.2f} ms")
run.timeline(title="4 microbatches on 4 virtual ranks")

# %%
reveal(
    "slots with 4 microbatches",
    run.elapsed / 0.5e-3,
    why="The first microbatch needs 4 slots to get through, and each of the 3 others comes out one slot later.",
)

# %% [markdown]
# In general it takes $M + P - 1$ slots, and a rank works in $M$ of them.

# %% [markdown]
# ## Bubble fractions
#
# So a rank is idle in $P - 1$ slots. Here the literature disagrees with itself, because there are two things to divide
# by:
#
# - share of the **total** time: idle slots divided by all slots. "43 % of the time nothing is done."
# - share of the **ideal** time: idle slots divided by working slots. "It takes 75 % longer than without a bubble."
#
# Both are called "the bubble". 43 % and 75 % are the same pipeline: $P = 4$, $M = 4$. Say which one you mean.
#
# Return both, and how many microbatches it takes to bring the share of the total time down to `most`.

# %% exercise="bubble-shares" difficulty=2 minutes=7
def bubble_shares(
    num_stages: int, num_microbatches: int, most: float
) -> tuple[float, float, int]:
    """(bubble by total time, bubble by ideal time, the smallest M whose bubble by total
    time is `most` or less).

    All stages take equally long and messages take no time. 0 < most < 1. With one stage
    there is no bubble, and one microbatch is enough.
    """
    ### BEGIN SOLUTION
    idle = num_stages - 1
    enough = 1
    while idle / (enough + idle) > most:
        enough += 1
    return idle / (num_microbatches + idle), idle / num_microbatches, enough
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint for the last one</summary>
#
# Start with one microbatch and add one at a time until there are enough. You don't need a formula.
# </details>

# %% check="bubble-shares" judges="values" points=2
check(bubble_shares, judges="values")

# %%
for stages in (4, 8, 64):
    total, ideal, enough = bubble_shares(stages, 4 * stages, most=0.05)
    shares = f"{total:.1%} of the total, {ideal:.1%} of the ideal"
    print(f"P = {stages:>2}, M = 4 P: {shares}; for 5 %: M = {enough:,}")

# %% [markdown]
# The rule of thumb is $M = 4 P$, and that leaves up to a fifth. For 5 % it takes $M = 19 (P - 1)$. But a batch can't be
# cut into as many pieces as we like, as part 8 shows.

# %% [markdown]
# # Part 3 · Backward across the boundary
# `loss.backward()` knows nothing about other processes. On each rank, autograd's graph begins at what was received and
# ends at what was sent. You stitch the pieces together.
#
# The chain rule says what has to travel. A stage computes $y = f(x, w)$. To get the gradient with respect to its
# weights, it needs one thing from outside: the gradient of the loss with respect to its **output** $y$. That is also
# the gradient with respect to the **input** of the next stage, which the next stage can compute. So each stage, once it
# is done, sends back the gradient with respect to its **input**.
#
# ```python
# y.backward(gradient)  # gradient: of the loss with respect to y, in y's shape. Fills .grad
# x.grad                # the gradient with respect to x, a leaf that requires one
# ```
#
# A received tensor is just numbers: it requires no gradient unless you say so.

# %%
x, w = torch.ones(1, 2), torch.ones(2, 2, requires_grad=True)
(x @ w).backward(torch.ones(1, 2))
print("not asked for: ", x.grad)
x.requires_grad_()
(x @ w).backward(torch.ones(1, 2))
print("asked for:     ", x.grad)

# %% [markdown]
# ## Backward pass across stages
#
# The whole batch at once, forward and backward. **Predict** what rank 1 of 4 sends:

# %%
predict("messages that rank 1 sends", ...)
predict("their receivers, a list in order", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Three holes: what a received tensor needs so that backward can reach it, where the gradient of `y` comes from, and
# what the rank before needs.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# (1) Receive `x`; it is a leaf, and must require a gradient before it is used. (2) Receive a tensor of the shape of `y`
# from the next rank, and call backward with it. (3) The gradient of `y` on the rank before is the gradient of your `x`.
# Rank 0 has nobody to send to.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# (1) If there is a rank before: `dist.recv(x, ...)`, then `x.requires_grad_()`. (2) An empty tensor like `y`, a
# `dist.recv` from the next rank, and `y.backward(...)` with it. (3) If there is a rank before: send it `x.grad`.
# </details>

# %% exercise="backward-across" difficulty=3 minutes=15
def backward_across(
    batch: Tensor, weights: list[Tensor], rank: int, world_size: int
) -> list[Tensor]:
    """The gradients of this rank's layers: those of
    mlp.loss_of(output of the last stage) for the whole batch.

    batch: (B, D) on every rank, but only rank 0's values count; left unchanged, like
    the weights. Only send and recv: P - 1 messages forward and P - 1 back, each with
    the size and dtype of the batch.
    """
    leaves = [weight.detach().clone().requires_grad_() for weight in weights]
    x = batch.clone() if rank == 0 else torch.empty_like(batch)
    # here: the input of every rank but rank 0 arrives
    ### BEGIN SOLUTION
    if rank > 0:
        dist.recv(x, src=rank - 1)
        # before it is used: autograd notes what to differentiate by as it goes forward
        x.requires_grad_()
    ### END SOLUTION
    y = mlp.forward(leaves, x)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        # here: the gradient of y arrives, and backward begins with it
        ### BEGIN SOLUTION
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
        ### END SOLUTION
    else:
        mlp.loss_of(y).backward()
    # here: the rank before gets what it needs
    ### BEGIN SOLUTION
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)
    ### END SOLUTION
    return [leaf.grad for leaf in leaves]

# %% check="backward-across" judges="values" points=3
check(backward_across, judges="values")

# %% check="backward-across" judges="traffic" points=1
check(backward_across, judges="traffic")

# %% [markdown]
# Compared with the serial program, on real processes:

# %% tags=["notebook-only"]
def compare(rank, world_size):
    mine = backward_across(
        batch, split_layers(weights, rank, world_size), rank, world_size
    )
    right = split_layers(gradients, rank, world_size)
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(mine, right, strict=True)
    )

compared = spawn(compare, 4)
compared.results

# %%
to = [event.peer for event in compared.events if event.rank == 1 and event.op == "send"]

# %%
reveal("messages that rank 1 sends", len(to), why="Its output forward, and a gradient backward.")
reveal("their receivers, a list in order", to, why="Each has the shape of the batch: activations, then their gradient.")

# %% [markdown]
# ## Gradient accumulation
#
# With microbatches, `backward()` is called once for each, and PyTorch **adds** to `.grad`. So far so good. But the loss
# is a **mean**. The sum of $M$ means is $M$ times too large, and so is the gradient. Divide each by $M$?
#
# Only if all microbatches have the same length. With 4, 4 and 2 rows, a row of the last one would count twice as much
# as the others. **Predict**: by which factors must you multiply the three losses, so that their sum is the mean over
# all 10 rows? No communication here, just one process.

# %%
predict("the three factors", ...)

# %% exercise="accumulate-gradients" difficulty=2 minutes=10
def accumulate_gradients(
    batch: Tensor, weights: list[Tensor], micro_batch_size: int
) -> tuple[Tensor, list[Tensor]]:
    """(loss, gradient of each weight) of the whole batch, by one forward and one
    backward() for each microbatch: the activations of only one are held at a time.

    batch: (B, D); the last microbatch may be shorter. Batch and weights are left
    unchanged. The loss is a scalar.
    """
    leaves = [weight.detach().clone().requires_grad_() for weight in weights]
    total = torch.zeros((), dtype=batch.dtype)
    for microbatch in batch.split(micro_batch_size):
        ### BEGIN SOLUTION
        loss = mlp.loss_of(mlp.forward(leaves, microbatch)) * (len(microbatch) / len(batch))
        loss.backward()
        total += loss.detach()
        ### END SOLUTION
    return total, [leaf.grad for leaf in leaves]

# %% check="accumulate-gradients" judges="values" points=2
check(accumulate_gradients, judges="values")

# %% check="accumulate-gradients" judges="memory" points=1
check(accumulate_gradients, judges="memory")

# %%
factors = [len(part) / 10 for part in torch.empty(10, 1).split(4)]

# %%
reveal("the three factors", factors, why="Its rows divided by all rows: then each row counts 1 / 10.")

# %% [markdown]
# You'd think that a gradient $M$ times too large would be noticed at once. Adam hides it, because it divides the
# gradient by a running average of its size. Here are two training runs, one with the right gradients and one with 8
# times too large. The losses agree almost to the last digit. That is why this lesson compares gradients, never loss
# curves.

# %%
def train(factor, steps=5):
    leaves = [weight.clone().requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(leaves, lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mlp.loss_of(mlp.forward(leaves, batch))
        (factor * loss).backward()
        optimizer.step()
    return loss.item()

print(
    f"right: {train(1):.5f}     8 times too large: {train(8):.5f}     before training: "
    f"{loss:.5f}"
)

# %% [markdown]
# # Part 4 · Schedules
# Now every rank has $2 M$ things to do: the forward and backward passes of each microbatch. In which order? That is a
# **schedule**, and from here on it is data: a list of steps for each rank.
#
# ```python
# [("F", 0), ("F", 1), ("B", 0), ("B", 1)]  # forward of microbatch 0 and of 1, backward of both
# ```
#
# The `F` of a microbatch needs the `F` of the previous stage; its `B` needs the `B` of the next stage, and what the
# stage's own `F` has kept. A step that can't begin yet makes its rank wait. **Predict** for each of these two whether
# it can run (`True` or `False`).

# %%
first = [
    [("F", 0), ("F", 1), ("B", 0), ("B", 1)],
    [("F", 0), ("B", 0), ("F", 1), ("B", 1)],
]
second = [
    [("F", 0), ("B", 0), ("F", 1), ("B", 1)],
    [("F", 0), ("F", 1), ("B", 0), ("B", 1)],
]
predict("the first can run", ...)
predict("the second can run", ...)

# %%
for name, schedules in (("first", first), ("second", second)):
    print(f"{name}:", problem(schedules) or "it can run")

# %%
reveal("the first can run", not problem(first), why="Rank 1 goes backward early, but rank 0 only needs that later.")
reveal("the second can run", not problem(second), why="Rank 0 waits for rank 1's B0, and that waits for rank 0's F1.")

# %% [markdown]
# `problem` follows the steps of all ranks and says who waits for whom. It needs no process and no GPU. A schedule that
# gets stuck can also be drawn: the red boxes wait forever.

# %%
figures.schedule(first, "first", beside=second)

# %%
figures.schedule(second, "second", beside=first)

# %% [markdown]
# In these pictures a backward pass takes twice as long as a forward pass. For each matrix product of the forward pass
# it has two: one for the gradient with respect to the input, and one for the gradient with respect to the weight.

# %% [markdown]
# ## GPipe
#
# The simplest schedule: all forward passes, then all backward passes, both in the order of the microbatches, on every
# rank. It is named after the system that introduced it (GPipe, 2019).
#
# **Predict** for $M = 8$, $P = 4$, F = 1 s and B = 2 s: how long does it take, and what share of that is the bubble?

# %%
predict("seconds of GPipe", ...)
predict("the bubble's share of the total", ...)

# %% exercise="gpipe" difficulty=1 minutes=5
def gpipe(rank: int, world_size: int, num_microbatches: int) -> list[tuple]:
    """The steps of one rank: all forwards, in the order of the microbatches, then all
    backwards, in the same order.

    A step is ("F", microbatch) or ("B", microbatch).
    """
    ### BEGIN SOLUTION
    return [(kind, m) for kind in ("F", "B") for m in range(num_microbatches)]
    ### END SOLUTION

# %% check="gpipe" judges="values" points=2
check(gpipe, judges="values")

# %% check="gpipe" judges="time" points=1
check(gpipe, judges="time")

# %%
gpipe_of_4 = [gpipe(rank, 4, num_microbatches=8) for rank in range(4)]
figures.schedule(gpipe_of_4, "GPipe, 4 ranks, 8 microbatches")

# %% [markdown]
# `play` runs a schedule on a virtual cluster, with real messages, but sleeps instead of computing. Each rank works for
# 24 s, 3 s for each of 8 microbatches. Is the bubble what `bubble_shares` says?

# %% tags=["notebook-only"]
elapsed = play(gpipe_of_4).elapsed
print(
    f"{elapsed} s, bubble {1 - 24 / elapsed:.4f} of the total; (P - 1) / (M + P - 1) = "
    f"{3 / 11:.4f}"
)

# %%
reveal("seconds of GPipe", elapsed, why="$M + P - 1 = 11$ slots of 3 s: one F and one B each.")
reveal("the bubble's share of the total", 1 - 24 / elapsed, why="3 of 11 slots.")

# %% [markdown]
# ## Live microbatches
#
# Time isn't everything. A forward pass **keeps** its activations until the backward pass has used them. A microbatch is
# **live** on a rank from the beginning of its F to the end of its B. The largest number that is live at one time
# decides how much memory a rank needs.
#
# Count it from the steps. **Predict** it for GPipe with $M = 8$.

# %%
predict("live microbatches of GPipe", ...)

# %% exercise="live-microbatches" difficulty=2 minutes=7
def live_microbatches(steps: list[tuple]) -> int:
    """The most microbatches that are live at one time on the rank that takes these
    steps, one after another.

    steps: such as [("F", 0), ("F", 1), ("B", 0), ("B", 1)], any order that can run;
    left unchanged.
    """
    live = most = 0
    for kind, *_ in steps:
        ### BEGIN SOLUTION
        live += 1 if kind == "F" else -1
        most = max(most, live)
        ### END SOLUTION
    return most

# %% check="live-microbatches" judges="values" points=2
check(live_microbatches, judges="values")

# %%
live = [live_microbatches(steps) for steps in gpipe_of_4]
live

# %%
reveal("live microbatches of GPipe", max(live), why="All of them, on every rank: the first B comes after the last F.")

# %% [markdown]
# So GPipe has to choose: with many microbatches the bubble is small, but the memory is large.

# %% [markdown]
# ## 1F1B
#
# A backward pass frees memory, so do it as soon as possible. The last rank can do its first B right after its first F.
# Rank $r$ can't: its first B has to wait until microbatch 0 has gone forward through all later stages and back again.
# So it does some forward passes ahead, and then it alternates: **one forward, one backward**. 1F1B has three phases:
#
# 1. **warm-up**: `ahead` forward passes
# 2. **steady**: one forward, one backward, again and again, while there are forward passes left
# 3. **cool-down**: the backward passes that are left
#
# How many are `ahead`? The last rank needs 0, and each rank before it needs one more. And there are never more than
# $M$. (In the steady phase the forward pass comes first, so one more microbatch is live than were done ahead.)
#
# **Predict** for $P = 4$ and $M = 8$: how many microbatches are live on ranks 0, 1, 2 and 3? And how does the bubble
# compare with GPipe's?

# %%
predict("live microbatches of 1F1B, by rank", ...)
predict("the bubble of 1F1B is", ..., choices=["smaller", "the same", "larger"])

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Write down the steps of the last rank of 4, then those of the one before it. How many forwards come before the first
# backward?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# `ahead` is $P - 1 - r$, but no more than $M$. After the warm-up, pair the forwards that are left with the first
# backwards; when no forwards are left, the last backwards remain.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Three slices: the first `ahead` forwards; then pairs, a `zip` of the other forwards with the backwards, which stops
# when there are no forwards left; then the last `ahead` backwards. (If `ahead` is 0, `backward[-ahead:]` would be all
# of them.)
# </details>

# %% exercise="one-f-one-b" difficulty=3 minutes=15
def one_f_one_b(rank: int, world_size: int, num_microbatches: int) -> list[tuple]:
    """The steps of one rank in 1F1B: warm-up, then one forward and one backward in
    turn, then the backwards that are left.

    At most min(M, P - rank) microbatches are live. Forwards and backwards each go in
    the order of the microbatches. The time of the whole schedule is judged, too.
    """
    forward = [("F", m) for m in range(num_microbatches)]
    backward = [("B", m) for m in range(num_microbatches)]
    # here: the list `steps`
    ### BEGIN SOLUTION
    ahead = min(world_size - 1 - rank, num_microbatches)
    steps = forward[:ahead]
    # as many pairs as there are forwards left
    for f, b in zip(forward[ahead:], backward):
        steps += [f, b]
    steps += backward[num_microbatches - ahead :]
    ### END SOLUTION
    return steps

# %% [markdown]
# Look at yours before it is judged. If the first line reports a problem, the picture shows where it is.

# %%
one_of_4 = [one_f_one_b(rank, 4, num_microbatches=8) for rank in range(4)]
print(problem(one_of_4) or "it can run")
figures.schedule(one_of_4, "1F1B, 4 ranks, 8 microbatches")

# %% check="one-f-one-b" judges="values" points=2
check(one_f_one_b, judges="values")

# %% check="one-f-one-b" judges="memory" points=2
check(one_f_one_b, judges="memory")

# %% check="one-f-one-b" judges="time" points=1
check(one_f_one_b, judges="time")

# %% tags=["notebook-only"]
seconds = {}
for name, schedules in (("GPipe", gpipe_of_4), ("1F1B", one_of_4)):
    live, seconds[name] = (
        [live_microbatches(steps) for steps in schedules],
        play(schedules).elapsed,
    )
    print(f"{name:>5}: {seconds[name]} s, live {live}")
compares = {-1: "smaller", 0: "the same", 1: "larger"}

# %%
reveal("live microbatches of 1F1B, by rank", live, why="$P - r$: those done ahead, and one more.")
reveal(
    "the bubble of 1F1B is",
    compares[(seconds["1F1B"] > seconds["GPipe"]) - (seconds["1F1B"] < seconds["GPipe"])],
    why="Each rank still waits for the first microbatch to reach it, and at the end for the last one to come back.",
)

# %% [markdown]
# A sentence that you'll often read: "1F1B has a smaller bubble than GPipe." It has **the same** bubble, to the last
# digit. What it saves is memory: at most $P - r$ live microbatches instead of $M$. The memory no longer grows with $M$,
# so you can afford more microbatches, and those make the bubble smaller.

# %% [markdown]
# # Part 5 · Running a schedule
# Now you write the engine that runs any schedule, with real tensors and real gradients. But first, a trap. So far every
# send has waited for its receive. Below, two ranks are in the middle of 1F1B: rank 0 has an activation for rank 1, and
# rank 1 has a gradient for rank 0. **Predict** what happens.

# %%
predict(
    "two blocking sends end in",
    ...,
    choices=["an exchange", "a deadlock", "wrong values"],
)

# %% tags=["raises-exception"]
def steady_phase(rank, world_size):
    outgoing, incoming = torch.ones(2), torch.empty(2)
    # rank 0: the activation of F1. rank 1: the gradient of B0
    dist.send(outgoing, dst=1 - rank)
    dist.recv(incoming, src=1 - rank)

spawn(steady_phase, 2)

# %%
reveal("two blocking sends end in", "a deadlock", why="Each waits in its send until the other receives.")

# %% [markdown]
# The schedule was correct, and it got stuck all the same: a blocking send adds a dependency that isn't in the schedule.
# So sends must not wait: `dist.isend` starts one and returns a **handle**. Three rules come with it:
#
# - Keep the handle **and the tensor**. Until the message has arrived, the tensor's memory must not be changed or freed.
# - Call `wait()` once on every handle, at the end at the latest.
# - When the message has arrived, forget both. Otherwise every message of the step stays in memory, and the memory that
#   1F1B saves is lost again. `handle.is_completed()` tells, without waiting, on NCCL and on the virtual cluster. (Gloo
#   doesn't know before `wait()`, so there the tensors stay until the end.)
#
# ### Order instead of labels
# How does a receiver know which microbatch has arrived? Gloo lets you put a number on a message, its `tag`. **NCCL
# ignores tags**: between two ranks, the first message sent is the first one received, and that's all there is.
# **Predict** what rank 1 finds in the buffer that it means for microbatch 0:

# %%
predict(
    "in the buffer for microbatch 0",
    ...,
    choices=["microbatch 0", "microbatch 1", "an error"],
)

# %% tags=["notebook-only"]
def in_a_different_order(rank, world_size):
    if rank == 0:
        for m in (0, 1):
            dist.send(torch.tensor([m]), dst=1)
        return None
    buffers = torch.empty(2, 1, dtype=torch.int64)
    for m in (1, 0):  # wants microbatch 1 first
        dist.recv(buffers[m], src=0)
    return buffers[0].item()

found = spawn(in_a_different_order, 2).results[1]

# %%
reveal(
    "in the buffer for microbatch 0",
    f"microbatch {found}",
    why="The shapes agree, so nobody notices. Both sides must go through the microbatches in the same order.",
)

# %% [markdown]
# A good schedule takes care of that: in GPipe, 1F1B and interleaved 1F1B all ranks take the microbatches in the same
# order. (With two ranks and several chunks, activations and gradients travel in the same direction between the same
# two ranks, and their orders mix. So the engine below asks for three ranks if there are chunks.)
#
# ### Exchanges in one call
# There is a second catch. NCCL works through the calls between two ranks **one after another**, and a send ends when
# the other side receives. In 1F1B's steady phase a rank sends an activation to the next rank, then wants a gradient
# from it; the next rank sends that gradient, then wants the activation. If both start their send first, both are
# stuck, even with `isend`: each receive is queued behind a send. So an exchange is handed over as **one** call, a
# list of `dist.P2POp`, and then neither waits for the other. This is the exchange that got stuck above:

# %% tags=["notebook-only"]
def exchange(rank, world_size):
    outgoing, incoming = torch.full((2,), float(rank)), torch.empty(2)
    pair = [
        dist.P2POp(dist.isend, outgoing, 1 - rank),
        dist.P2POp(dist.irecv, incoming, 1 - rank),
    ]
    # with Gloo a handle for each; with NCCL one for all
    for handle in dist.batch_isend_irecv(pair):
        handle.wait()
    return incoming.tolist()

spawn(exchange, 2).results

# %% [markdown]
# ## A schedule engine
#
# A rank may have several stages, its **chunks**; until part 7 it has one, chunk 0. The stage number, the neighbours and
# the computation are given. All communication is up to you. **Between two steps there is one call**: it hands over what
# the step before has to send, together with what the next step needs to receive. Then wait for the receive alone: the
# rank that you send to may have more steps to take before it receives.
#
# **F of a stage.** It needs its input `x` from the rank before, and `x` must require a gradient; stage 0 has its input
# already. Afterwards `x` and `y` are kept for the backward. `y`, without its graph, is to be sent to the rank after;
# the last stage sends nothing.
#
# **B of a stage.** It takes `x` and `y` out of what was kept, and nothing of this microbatch stays behind. It needs
# `gradient`, the gradient of `y`, from the rank after; the last stage has the loss instead. Afterwards the gradient of
# `x` is to be sent to the rank before; stage 0 sends nothing.
#
# After the last step there may still be something to send. Then wait for all sends.
#
# **Predict** for 4 ranks and 16 microbatches: how many messages does rank 1 send? And rank 3?

# %%
predict("messages that rank 1 sends, 16 microbatches", ...)
predict("messages that rank 3 sends, 16 microbatches", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# You have written most of it before: part 3 has the receive with `requires_grad_()`, the backward pass with a received
# gradient, and the sending of `x.grad`. What is new is when a message starts. Follow rank 0 of 2 through F0, F1, B0, B1
# on paper: which messages are in the call before each step?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# A step doesn't send: it leaves a `P2POp` in a list, `outgoing`. The next step hands that over together with its
# receive, if it needs one. From then on the handles of the sends and their tensors are in `sends`. For a B, take `x`
# and `y` out first: `gradient` looks like `y`.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `hand_over` calls `batch_isend_irecv` once, unless there is nothing to hand over; with the receive last in its list,
# the last handle is the one to wait for. First hole below: set up `x`, or `x`, `y` and `gradient`. If something has to
# arrive, describe the receive by a `P2POp`; hand over; an input that has arrived gets its `requires_grad_()`. Second
# hole: keep what B needs, and describe the next send. Third hole: hand over once more, and do all the waiting.
# </details>

# %% exercise="run-schedule" difficulty=4 minutes=20
def hand_over(outgoing: list, receive: list, sends: list) -> None:
    """Start all these P2POps, if there are any, as one call, and wait for the
    receive alone.

    receive: a list of one P2POp, or of none. `sends` gets (handle, P2POp) of each
    outgoing message; the caller empties `outgoing`.
    """
    ### BEGIN SOLUTION
    if outgoing or receive:
        handles = dist.batch_isend_irecv(outgoing + receive)
        sends += zip(handles, outgoing)
        if receive:
            handles[-1].wait()
    ### END SOLUTION

def run_schedule(
    batch: Tensor,
    weights: list[list[Tensor]],
    steps: list,
    micro_batch_size: int,
    rank: int,
    world_size: int,
) -> tuple[Tensor | None, list[list[Tensor]]]:
    """Take the steps of this rank: (loss, gradients), those of the whole batch. The
    loss is None except on the last rank.

    batch: (B, D) on every rank, but only rank 0's values count; the last microbatch may
    be shorter. Left unchanged, like the weights. weights: for each chunk its layers;
    the gradients have the same form. steps: ("F", m) or ("B", m), or with the chunk:
    ("F", m, c). All ranks take the microbatches of a chunk in the same order. With
    several chunks there are three ranks or more. Messages by batch_isend_irecv, without
    tags: one call before a step starts all that the step before sends and this one
    receives. At most one message is sent for each step. Every handle is waited for,
    once. A microbatch's tensors are dropped after its backward, and a message's when it
    has arrived.
    """
    leaves = [
        [weight.detach().requires_grad_() for weight in chunk] for chunk in weights
    ]
    microbatches = batch.split(micro_batch_size)
    before, after = (rank - 1) % world_size, (rank + 1) % world_size
    last = world_size * len(weights) - 1  # the number of the last stage
    total = torch.zeros((), dtype=batch.dtype) if rank == world_size - 1 else None
    kept = {}  # microbatches that wait for their backward
    # P2POps not handed over yet; (handle, P2POp) of sends on their way
    outgoing, sends = [], []
    for kind, m, *chunk in steps:
        c = chunk[0] if chunk else 0
        stage = c * world_size + rank
        # here: x for an F; x, y and gradient for a B. Hand over what is outgoing and
        # what this step receives.
        ### BEGIN SOLUTION
        if kind == "F":
            x = microbatches[m] if stage == 0 else torch.empty_like(microbatches[m])
            receive = [dist.P2POp(dist.irecv, x, before)] if stage > 0 else []
            hand_over(outgoing, receive, sends)
            x.requires_grad_(stage > 0)
        else:
            x, y = kept.pop((c, m))
            gradient = torch.empty_like(y)
            receive = [dist.P2POp(dist.irecv, gradient, after)] if stage < last else []
            hand_over(outgoing, receive, sends)
        ### END SOLUTION
        with region(f"{kind}{m}"):
            if kind == "F":
                y = mlp.forward(leaves[c], x)
            elif stage == last:
                # a shorter microbatch counts less
                loss = mlp.loss_of(y) * (len(y) / len(batch))
                total += loss.detach()
                loss.backward()
            else:
                y.backward(gradient)
        # here: what is kept after an F, and what is outgoing after an F or a B
        ### BEGIN SOLUTION
        if kind == "F":
            kept[c, m] = x, y
            outgoing = [dist.P2POp(dist.isend, y.detach(), after)] if stage < last else []
        else:
            outgoing = [dist.P2POp(dist.isend, x.grad, before)] if stage > 0 else []
        ### END SOLUTION
        # given: what nobody needs any more is dropped, so that its memory can be used
        # again
        del x, y
        for handle, sent in [pair for pair in sends if pair[0].is_completed()]:
            handle.wait()
            sends.remove((handle, sent))
    # here: hand over what is left, and wait for every send
    ### BEGIN SOLUTION
    hand_over(outgoing, [], sends)
    for handle, _ in sends:
        handle.wait()
    ### END SOLUTION
    return total, [[leaf.grad for leaf in chunk] for chunk in leaves]

# %% check="run-schedule" judges="values" points=4
check(run_schedule, judges="values")

# %% check="run-schedule" judges="traffic" points=1
check(run_schedule, judges="traffic")

# %% check="run-schedule" judges="memory" points=1
check(run_schedule, judges="memory")

# %% [markdown]
# ### Shape and dtype exchange
# In this lesson the receiver knows the shape. In a real model a stage may change shape or dtype, so before the first
# step each stage tells the next one what it will send. A few numbers are enough: how many dimensions, the dtype as an
# index into a list that both have, and the sizes.

# %% tags=["notebook-only"]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]

def announce(x, dst):
    dist.send(
        torch.tensor([x.dim(), DTYPES.index(x.dtype), *x.shape, *[0] * (8 - x.dim())]),
        dst,
    )

def expect_like(src):
    # of a fixed size, so that it can be received unseen
    header = torch.empty(10, dtype=torch.int64)
    dist.recv(header, src)
    dims, dtype, *shape = header.tolist()
    return torch.empty(shape[:dims], dtype=DTYPES[dtype])

def two_stages(rank, world_size):
    if rank == 0:
        announce(torch.empty(4, 7, 3, dtype=torch.bfloat16), dst=1)
        return None
    buffer = expect_like(src=0)
    return tuple(buffer.shape), str(buffer.dtype)

spawn(two_stages, 2).results[1]

# %% [markdown]
# ### Your engine, measured
# GPipe and 1F1B once more, now with your own engine and all its tensors: 4 virtual GPUs, 8 layers, 16 microbatches of
# 8 rows. For each, the time; and for each rank, the most bytes of activations and of messages that it holds.

# %% tags=["notebook-only"]
def training_step(rank, world_size, schedule, num_microbatches=16):
    layers = [torch.empty(1024, 1024)] * 2
    steps = schedule(rank, world_size, num_microbatches)
    run_schedule(
        torch.empty(128, 1024),
        [layers],
        steps,
        128 // num_microbatches,
        rank,
        world_size,
    )

runs = {}
for schedule in (gpipe, one_f_one_b):
    name = schedule.__name__
    run = runs[name] = simulate(training_step, 4, schedule, cluster=gpus(4))
    print(f"{name}: {run.elapsed * 1e3:.3f} ms")
    # for each rank: (seconds, kind of tensor, live bytes of that kind from then on)
    samples = run.memory().samples
    for kind in ("activations", "communication"):
        most = [
            max(nbytes for _, this, nbytes in of_rank if this == kind) / 1e6
            for of_rank in samples
        ]
        print(f"{kind:>17}, in MB: {[round(mb, 2) for mb in most]}")

# %% tags=["notebook-only"]
runs["one_f_one_b"].timeline(title="1F1B on 4 virtual ranks")

# %%
sent = [sum(row) for row in runs["one_f_one_b"].traffic().messages]

# %%
reveal("messages that rank 1 sends, 16 microbatches", sent[1], why="16 activations to rank 2, 16 gradients to rank 0.")
reveal("messages that rank 3 sends, 16 microbatches", sent[3], why="Only gradients: nobody comes after it.")

# %% [markdown]
# The time is the same. Now look at the activations of ranks 1 and 2: $\min(M, P - r)$ is 3 and 2 of 16 microbatches,
# and that is exactly how their bytes compare with GPipe's. (Rank 0 also holds the batch itself, and the last rank what
# the loss keeps.) Most of what counts as communication is outputs `y` that have been sent but live until their B.
# In the picture, rank 0's backward passes are shorter than the others, because nobody needs the gradient of the batch.
#
# ### Compared with torch.distributed.pipelining
# PyTorch has all this as a library: a `PipelineStage` for your layers, and a `Schedule1F1B` for the order. Same
# weights, same batch, same virtual cluster, now with values: are the gradients the same, and is the time?

# %% tags=["notebook-only"]
deep = mlp.make_weights(num_layers=8, num_dim=64)
wide = mlp.make_batch(batch_size=16, num_dim=64)

def with_torch(rank, world_size):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(
        mlp.MLP(split_layers(deep, rank, world_size)),
        rank,
        world_size,
        torch.device("cpu"),
    )
    schedule = Schedule1F1B(
        stage, n_microbatches=8, loss_fn=lambda output, target: mlp.loss_of(output)
    )
    for step in ("learns the shapes", "step"):
        stage.submod.zero_grad()
        dist.barrier()
        with region(step):
            schedule.step(
                *[wide] * (rank == 0),
                **{"target": wide} if rank == world_size - 1 else {},
            )
    return [parameter.grad for parameter in stage.submod.parameters()]

def with_yours(rank, world_size):
    steps = one_f_one_b(rank, world_size, num_microbatches=8)
    with region("step"):
        _, [grads] = run_schedule(
            wide, [split_layers(deep, rank, world_size)], steps, 2, rank, world_size
        )
    return grads

def took(run):
    spans = [r for r in run.regions if r.name == "step"]
    return max(r.end for r in spans) - min(r.start for r in spans)

theirs, yours = (
    simulate(program, 4, cluster=gpus(4), device="cpu")
    for program in (with_torch, with_yours)
)
pairs = [pair for both in zip(theirs.results, yours.results) for pair in zip(*both)]
same = all(torch.allclose(a, b, atol=1e-7) for a, b in pairs)
print(
    f"gradients alike: {same}     torch's time / yours: "
    f"{took(theirs) / took(yours):.4f}"
)

# %% [markdown]
# In torch's source the warm-up of `Schedule1F1B` is one forward pass longer than yours, and its pairs are "one B, one
# F". Write both down for one rank, and you'll see the same list, cut in a different place.

# %% [markdown]
# ### What else crosses stages
# Three things in a real model concern several stages at once. The first is **clipping**. Each stage has some of the
# gradients. The norm of all of them is the root of the sum of all stages' squares, which takes one all-reduce of a
# single number. If each stage clipped by its own norm, the step would change its direction.

# %% tags=["notebook-only"]
def norm_of_all(rank, world_size):
    steps = one_f_one_b(rank, world_size, num_microbatches=8)
    _, [grads] = run_schedule(
        wide, [split_layers(deep, rank, world_size)], steps, 2, rank, world_size
    )
    squares = sum(gradient.square().sum() for gradient in grads)
    own = squares.sqrt().item()
    dist.all_reduce(squares)
    return own, squares.sqrt().item()

for rank, (own, of_all) in enumerate(spawn(norm_of_all, 4).results):
    print(f"stage {rank}: its own norm {own:.5f}, that of all {of_all:.5f}")
_, of_one_process = mlp.serial_gradients(deep, wide)
squares = sum(gradient.square().sum() for gradient in of_one_process)
print(f"one process: {squares.sqrt().item():.5f}")

# %% [markdown]
# The second is a **tied embedding**. Language models often use one table twice: in the first stage as the embedding, in
# the last one as the output layer. Then both stages have a copy, and each computes a part of its gradient. Sum the two
# parts before the optimizer steps, and the copies stay equal.

# %% tags=["notebook-only"]
def tied(rank, world_size):
    table = torch.eye(3, dtype=torch.float64).requires_grad_()
    x = torch.tensor([0, 2, 2])
    if rank == 0:  # the embedding
        y = table[x]
        dist.send(y.detach(), dst=1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=1)
        y.backward(gradient)
    else:  # the output layer
        y = torch.empty(3, 3, dtype=torch.float64)
        dist.recv(y, src=0)
        mlp.loss_of(y.requires_grad_() @ table.T).backward()
        dist.send(y.grad, dst=0)
    dist.all_reduce(table.grad)  # in a group of the first and the last stage
    return table.grad

table = torch.eye(3, dtype=torch.float64).requires_grad_()
mlp.loss_of(table[torch.tensor([0, 2, 2])] @ table.T).backward()
print(
    "as in one process:",
    [torch.allclose(gradient, table.grad) for gradient in spawn(tied, 2).results],
)

# %% [markdown]
# The third is an **uneven last stage**. The output layer and the loss take time, too. A stage that takes longer than
# the others holds up every microbatch: once the pipeline is full, one comes out each time the slowest stage is done. So
# the last stage should get fewer layers. With 32 layers on 4 ranks, and an output layer that costs as much as two:

# %% tags=["notebook-only"]
def slots(layers, num_microbatches=16):
    slowest = max(count + 2 * (stage == 3) for stage, count in enumerate(layers))
    # the first microbatch; then one each time the slowest stage is done
    return sum(layers) + 2 + (num_microbatches - 1) * slowest

for layers in ([8, 8, 8, 8], [9, 9, 8, 6]):
    print(
        f"{layers}: a forward pass of 16 microbatches takes as long as {slots(layers)} "
        "layers"
    )

# %% [markdown]
# # Part 6 · Hiding the messages
# Until now messages were free. Now let each take two thirds of the time that a stage computes. With `recv`, compute,
# `send`, one after another, a rank can't do anything while its message travels. But a GPU can compute and communicate
# **at the same time**, if the program lets it.

# %% tags=["notebook-only"]
# a message takes a third of a millisecond; a stage takes half a millisecond for 32 rows
slow = Link(alpha=0.001 / 3, bandwidth=float("inf"))
run = simulate(
    forward_program, 4, microbatch_forward, micro_batch_size=32, cluster=gpus(4, slow)
)
print(f"{run.elapsed * 1e3:.2f} ms instead of 3.50 ms")
run.timeline(title="4 microbatches and slow links, on 4 virtual ranks")

# %% [markdown]
# ## Overlapped forward pass
#
# Two changes make the messages disappear behind the computing:
#
# - **Send without waiting**: `isend`, carry on with the next microbatch, wait at the very end.
# - **Receive ahead**: before a rank computes microbatch $m$, it starts receiving microbatch $m + 1$. That needs a
#   second buffer, because the one in use must not be overwritten.
#
# `dist.irecv(buffer, src=...)` starts a receive and returns a handle; `buffer` may be read after its `wait()`.
#
# **Predict**: if a microbatch takes $c$ on one stage and a message takes $t < c$, how many times does $t$ add to the
# total for 4 ranks and 4 microbatches?

# %%
predict("times that a message's time adds", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# When microbatch $m$ is about to be computed, which receive must be over, and which one may begin?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Wait for the receive of $m$, then start the receive of $m + 1$ at once, if there is one: it travels while you compute.
# A send is started and not waited for; keep its handle, and wait for all of them at the very end.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Before computing: wait for receive number `m`, then start the next one, into its own buffer, unless `m` was the last.
# After it: start the send of `y` and append its handle to `sends`, except on the last rank.
# </details>

# %% exercise="overlapped-forward" difficulty=3 minutes=15
def overlapped_forward(
    batch: Tensor,
    weights: list[Tensor],
    micro_batch_size: int,
    rank: int,
    world_size: int,
) -> Tensor | None:
    """As microbatch_forward, but messages travel while this rank computes.

    batch: (B, D) on every rank, but only rank 0's values count; left unchanged. The
    last microbatch may be shorter. Each rank but the last sends one message per
    microbatch. The receive of the next microbatch starts before this one is computed,
    and no send is waited for before the next microbatch is computed. Every handle is
    waited for, once, before the function returns.
    """
    microbatches = batch.split(micro_batch_size)
    buffers = (
        microbatches
        if rank == 0
        else [torch.empty_like(microbatch) for microbatch in microbatches]
    )
    outputs, receives, sends = [], [], []
    if rank > 0:
        receives.append(dist.irecv(buffers[0], src=rank - 1))
    for m in range(len(microbatches)):
        ### BEGIN SOLUTION
        if rank > 0:
            receives[m].wait()
            if m + 1 < len(microbatches):
                receives.append(dist.irecv(buffers[m + 1], src=rank - 1))
        ### END SOLUTION
        with region("forward"):
            y = mlp.forward(weights, buffers[m])
        ### BEGIN SOLUTION
        if rank < world_size - 1:
            sends.append(dist.isend(y, dst=rank + 1))
        ### END SOLUTION
        outputs.append(y)  # keeps y alive while it is on its way
    ### BEGIN SOLUTION
    for handle in sends:
        handle.wait()
    ### END SOLUTION
    return torch.cat(outputs) if rank == world_size - 1 else None

# %% check="overlapped-forward" judges="values" points=2
check(overlapped_forward, judges="values")

# %% check="overlapped-forward" judges="time" points=2
check(overlapped_forward, judges="time")

# %% tags=["notebook-only"]
run = simulate(
    forward_program, 4, overlapped_forward, micro_batch_size=32, cluster=gpus(4, slow)
)
print(f"{run.elapsed * 1e3:.2f} ms; without messages it is 3.50 ms")
run.timeline(title="Overlapped messages on 4 virtual ranks")

# %%
reveal(
    "times that a message's time adds",
    round((run.elapsed - 3.5e-3) / slow.alpha, 6),
    why="Once for each boundary that the first microbatch crosses. Nothing can hide that: there is no other work yet.",
)

# %% [markdown]
# In all, that is $(M + P - 1) c + (P - 1) t$.
#
# Training works the same way, with gradients coming back as well. Your `run_schedule` sends without waiting, but it
# receives late: it asks for a message only when it needs it. Part 8 shows what that costs.

# %% [markdown]
# # Part 7 · Interleaved 1F1B
# The bubble is $P - 1$ slots. With more microbatches it is a smaller share of the total. There is another way: make the
# **slots** shorter. Give each rank $v$ small stages, its **chunks**, instead of one large stage. A microbatch then goes
# around the ranks $v$ times. Filling the pipeline takes $P - 1$ slots as before, but each is only $1/v$ as long.
#
# For that, chunk $c$ of rank $r$ must be stage $c P + r$: **round robin**. With 8 layers, 2 ranks and $v = 2$, a stage
# has two layers: rank 0 has layers 0, 1 and 4, 5; rank 1 has 2, 3 and 6, 7. Some figures give rank 0 the layers 0 to 3,
# cut in two. That gains nothing: the next stage is then on the same rank, and the pipeline fills no sooner.

# %% [markdown]
# ## Round-robin chunks
#
# **Predict** which layers rank 1 has, for 8 layers, 4 ranks and 2 chunks, as a list of numbers:

# %%
predict("rank 1's layers", ...)

# %% exercise="interleaved-layers" difficulty=2 minutes=6
def interleaved_layers(
    weights: list, num_chunks: int, rank: int, world_size: int
) -> list[list]:
    """For each chunk of this rank, the list of its layers; chunk c of rank r is stage
    c P + r.

    The number of layers is divisible by P * num_chunks. All stages have the same number
    of consecutive layers, in order.
    """
    size = len(weights) // (world_size * num_chunks)  # layers of one stage
    ### BEGIN SOLUTION
    stages = [c * world_size + rank for c in range(num_chunks)]
    return [weights[stage * size : (stage + 1) * size] for stage in stages]
    ### END SOLUTION

# %%
of_ranks = [interleaved_layers(list(range(8)), 2, rank, 4) for rank in range(4)]
of_ranks

# %%
reveal("rank 1's layers", sum(of_ranks[1], []), why="Stages 1 and 5, of one layer each.")

# %% check="interleaved-layers" judges="values" points=2
check(interleaved_layers, judges="values")

# %% [markdown]
# ## Interleaved schedule
#
# Which chunk comes when? Megatron-LM's order, for $M$ divisible by $P$, takes the microbatches in **groups of $P$**.
# All $P$ of a group go through chunk 0, then all through chunk 1, and so on. Then comes the next group. For 2 ranks, 4
# microbatches and 2 chunks, the forward passes of every rank are
#
# ```
# microbatch   0 1 0 1   2 3 2 3
# chunk        0 0 1 1   0 0 1 1
# ```
#
# The backward passes follow the same order, but start with the **last** chunk. So number $k$ of the $M v$ forward
# passes has:
#
# - chunk: $k$ divided by $P$, rounded down, modulo $v$
# - microbatch: the group is $k$ divided by $P v$, rounded down; its place in the group is $k$ modulo $P$
#
# Then warm-up, steady phase and cool-down as in 1F1B. The warm-up is longer. A microbatch must first have gone through
# the first $v - 1$ chunks of all ranks, and for each rank further from the end, getting there and back takes two steps
# more. So there are $2 (P - 1 - r) + (v - 1) P$ forward passes ahead, and never more than $M v$.
#
# **Predict** the bubble's share of the total for $P = 4$, $M = 8$ and $v = 2$. For 1F1B it was 0.27.

# %%
predict("the bubble of interleaved 1F1B", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Write down `k`, chunk and microbatch for 2 ranks, 4 microbatches and 2 chunks, and compare them with the two
# formulas above.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# The backward pass has the same microbatch and the chunk counted from the other end: `num_chunks - 1 - chunk`. With
# both lists made, the three phases are the same as in 1F1B; only `ahead` is a different number.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# In a block of P times the chunks, P steps in a row belong to one chunk: divide k by P for the chunk. The microbatch is
# P for each whole block before, and then the place among the P. How many run ahead: the formula above, but never more
# than there are.
# </details>

# %% exercise="interleaved" difficulty=4 minutes=20
def interleaved(
    rank: int, world_size: int, num_microbatches: int, num_chunks: int
) -> list[tuple]:
    """The steps of one rank in interleaved 1F1B: ("F", microbatch, chunk) and
    ("B", microbatch, chunk).

    num_microbatches is divisible by world_size. Judged: that the schedule can run and
    goes in groups of P; that at most 2 (P - 1 - rank) + (v - 1) P + 1 chunks of
    microbatches are live; and that a rank idles for no more than P - 1 slots.
    """
    count = num_microbatches * num_chunks
    forward, backward = [], []
    for k in range(count):
        # here: append number k to forward and to backward
        ### BEGIN SOLUTION
        chunk = k // world_size % num_chunks
        microbatch = k // (world_size * num_chunks) * world_size + k % world_size
        forward.append(("F", microbatch, chunk))
        backward.append(("B", microbatch, num_chunks - 1 - chunk))
        ### END SOLUTION
    # here: the list `steps`
    ### BEGIN SOLUTION
    ahead = min(2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size, count)
    steps = forward[:ahead]
    for f, b in zip(forward[ahead:], backward):
        steps += [f, b]
    steps += backward[count - ahead :]
    ### END SOLUTION
    return steps

# %%
interleaved_of_4 = [
    interleaved(rank, 4, num_microbatches=8, num_chunks=2) for rank in range(4)
]
print(problem(interleaved_of_4) or "it can run")
half = {"F": 0.5, "B": 1.0}  # seconds: a chunk has half the layers
figures.schedule(
    interleaved_of_4, "interleaved 1F1B, 4 ranks, 8 microbatches, 2 chunks", half
)

# %% check="interleaved" judges="values" points=2
check(interleaved, judges="values")

# %% check="interleaved" judges="memory" points=1
check(interleaved, judges="memory")

# %% check="interleaved" judges="time" points=2
check(interleaved, judges="time")

# %% [markdown]
# Measured beside 1F1B. A chunk has half the layers, so its F takes 0.5 s and its B 1 s.

# %% tags=["notebook-only"]
plain, chunked = play(one_of_4), play(interleaved_of_4, costs=half)
for name, run in (("1F1B", plain), ("interleaved", chunked)):
    messages = sum(map(sum, run.traffic().messages))
    print(
        f"{name:>11}: {run.elapsed} s, bubble {1 - 24 / run.elapsed:.4f} of the total, "
        f"{messages} messages"
    )
print(
    f"(P - 1) / (M + P - 1) = {3 / 11:.4f}     (P - 1) / (v M + P - 1) = {3 / 19:.4f}"
)

# %%
reveal(
    "the bubble of interleaved 1F1B",
    1 - 24 / chunked.elapsed,
    why="Still $P - 1$ slots of filling, each half as long: $(P - 1) / (v M + P - 1)$.",
)

# %% [markdown]
# Is the long warm-up needed? As long as messages are free, it isn't. With one step more for each rank further from the
# end, instead of two, the schedule takes the same time and holds less:

# %% tags=["notebook-only"]
def shorter_warm_up(rank, world_size, num_microbatches, num_chunks):
    steps = interleaved(rank, world_size, num_microbatches, num_chunks)
    forward, backward = ([step for step in steps if step[0] == kind] for kind in "FB")
    ahead = min((world_size - 1 - rank) + (num_chunks - 1) * world_size, len(forward))
    pairs = [step for pair in zip(forward[ahead:], backward) for step in pair]
    return forward[:ahead] + pairs + backward[len(forward) - ahead :]

shorter = [shorter_warm_up(rank, 4, 8, 2) for rank in range(4)]
for name, schedules in (("Megatron's", interleaved_of_4), ("shorter", shorter)):
    times = [
        play(
            schedules,
            costs=half,
            cluster=gpus(4, Link(alpha=alpha, bandwidth=float("inf"))),
        ).elapsed
        for alpha in (0.0, 0.25)
    ]
    live = [live_microbatches(steps) for steps in schedules]
    print(
        f"{name:>10}: {times[0]:.2f} s, with messages of 0.25 s {times[1]:.2f} s, live "
        f"{live}"
    )

# %% [markdown]
# Where messages take time, the way to the last stage and back takes longer, and with the longer warm-up a rank still
# has work to do meanwhile. So Megatron pays with memory to hide messages.
#
# As a share of the ideal time, the bubble is divided by $v$. The price: more messages, since there are $P v - 1$
# boundaries instead of $P - 1$; more live activations on each rank; and smaller pieces to compute. Your `run_schedule`
# runs this one too, unchanged:

# %% tags=["notebook-only"]
def interleaved_step(rank, world_size):
    layers = interleaved_layers(deep, 2, rank, world_size)
    loss, grads = run_schedule(
        wide, layers, interleaved(rank, world_size, 8, 2), 2, rank, world_size
    )
    _, right = mlp.serial_gradients(deep, wide)
    pairs = zip(
        sum(grads, []),
        sum(interleaved_layers(right, 2, rank, world_size), []),
        strict=True,
    )
    return all(torch.allclose(a, b, atol=1e-7) for a, b in pairs)

spawn(interleaved_step, 4).results

# %% [markdown]
# ### A schedule, by sliders
# Your `one_f_one_b`, or with chunks your `interleaved`, for any $P$, $M$ and $v$: how long it takes, its bubble as a
# share of the total, and how many microbatches' activations rank 0 keeps at most. If its time isn't right yet, or if it
# has too many steps to draw, there is a bar from each rank's first step to its last, and a dot where it could stop if
# it never waited. Let $M$ grow, then $v$: what does each do to the bubble, and what does it cost?
#
# **Predict** first, then look it up: 8 ranks, 16 microbatches. With how many chunks is the bubble less than a tenth?

# %%
predict("chunks for less than a tenth", ...)

# %%
def schedule_of(P, M, v):
    costs = {"F": 1 / v, "B": 2 / v}  # seconds of a chunk
    end = 3 * (M + (P - 1) / v)
    live = min(P, M) if v == 1 else min(2 * P - 1 + (v - 1) * P, M * v)

    def mine(rank):
        return one_f_one_b(rank, P, M) if v == 1 else interleaved(rank, P, M, v)

    def seconds():
        return max(slot.end for slot in timed([mine(rank) for rank in range(P)], costs))

    def draw(right):
        title = f"P = {P}, M = {M}, v = {v}"
        if "time" in right and P * M * v <= 256:  # no more than can be drawn quickly
            return figures.schedule([mine(rank) for rank in range(P)], title, costs)
        bars = {f"rank {r}": (r / v, r / v + 3 * M, end - 2 * r / v) for r in range(P)}
        return figures.intervals(bars, title, "seconds")

    bubble = (P - 1) / (v * M + P - 1), lambda: 1 - 3 * M / seconds(), ""
    kept = live / v, lambda: live_microbatches(mine(0)) / v, ""
    return {"time": (end, seconds, "s"), "bubble": bubble, "kept by rank 0": kept}, draw

chunks = (1, 2, 4)
figures.explore(schedule_of, P=(2, 4, 8), M=(8, 16), v=chunks)

# %%
reveal(
    "chunks for less than a tenth",
    next(v for v in chunks if 7 / (v * 16 + 7) < 0.1),
    why="$(P - 1) / (v M + P - 1)$ is 7 / 71. The price: rank 0 keeps nearly 10 microbatches' activations, not 8, and "
    "each crosses four times as many boundaries.",
)

# %% [markdown]
# # Part 8 · Data, tensor or pipeline parallelism
# Three ways to train one model on several GPUs. Which one, and when? We ask the virtual cluster: 16 layers of width
# 8,192 in bfloat16, a batch of 16,384 rows, and the 8 GPUs of an H100 machine. Data and tensor parallelism appear here
# in their shortest form; lessons 05 and 08 build them properly.
#
# - **data**: every rank has all layers and an eighth of the rows. Each gradient is summed over the ranks as soon as it
#   is there.
# - **tensor**: every rank has an eighth of each matrix and all rows. Of each two layers, the first is cut by columns
#   and the second by rows; then the partial results are summed. So there is one all-reduce for every two layers in the
#   forward pass, and one in the backward pass.
# - **pipeline**: yours, 1F1B with 16 microbatches.

# %%
LAYERS, DIM, ROWS = 16, 8192, 16384

def empty(*shape):
    return torch.empty(*shape, dtype=torch.bfloat16)

def data_parallel(rank, world_size, rows=ROWS):
    weights, handles = [empty(DIM, DIM).requires_grad_() for _ in range(LAYERS)], []

    def reduce(weight):
        handles.append(dist.all_reduce(weight.grad, async_op=True))

    for weight in weights:
        weight.register_post_accumulate_grad_hook(reduce)
    mlp.loss_of(mlp.forward(weights, empty(rows // world_size, DIM))).backward()
    for handle in handles:
        handle.wait()

class SumForward(torch.autograd.Function):  # all-reduce forward, nothing backward
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.clone())
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class SumBackward(torch.autograd.Function):  # nothing forward, all-reduce backward
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.clone())
        return gradient

def tensor_parallel(rank, world_size, rows=ROWS):
    shape = DIM, DIM // world_size
    pairs = [
        (empty(*shape).requires_grad_(), empty(*shape[::-1]).requires_grad_())
        for _ in range(LAYERS // 2)
    ]
    x = empty(rows, DIM)
    for columns, rows_of_next in pairs:
        x = mlp.layer(SumBackward.apply(x), columns)  # (rows, DIM / P)
        x = torch.nn.functional.gelu(SumForward.apply(x @ rows_of_next))  # (rows, DIM)
    mlp.loss_of(x).backward()

def pipeline_parallel(rank, world_size, rows=ROWS, num_microbatches=16):
    weights = [empty(DIM, DIM) for _ in range(LAYERS // world_size)]
    steps = one_f_one_b(rank, world_size, num_microbatches)
    run_schedule(
        empty(rows, DIM), [weights], steps, rows // num_microbatches, rank, world_size
    )

# %% [markdown]
# Each runs twice: in one machine, whose GPUs are connected by NVLink, and with one GPU in each of 8 machines, connected
# by InfiniBand. We measure the time of a step, the most that a rank sends, and the most that it holds.
# **Predict** which is fastest on each, and which needs the least memory.

# %%
predict("fastest in one machine", ..., choices=["data", "tensor", "pipeline"])
predict("fastest on 8 machines", ..., choices=["data", "tensor", "pipeline"])
predict("least memory", ..., choices=["data", "tensor", "pipeline"])

# %% tags=["notebook-only"]
one_node = find_cluster("dgx-h100", 8)
eight_nodes = replace(
    one_node, name="8 nodes with one GPU each", nodes=8, gpus_per_node=1, nics=None
)
STRATEGIES = {
    "data": data_parallel,
    "tensor": tensor_parallel,
    "pipeline": pipeline_parallel,
}

def most_sent(run):
    traffic = run.traffic()
    collectives = [
        sum(calls.implied for calls in rank.values()) for rank in traffic.collectives
    ]
    return max(
        traffic.sent(rank)[1] + collectives[rank] for rank in range(run.world_size)
    )

alone = simulate(data_parallel, 1, cluster=one_node)
print(
    f"one GPU alone: {alone.elapsed * 1e3:.2f} ms, "
    f"{max(alone.memory().peak) / 1e9:.2f} GB\n"
)
print(
    f"{'':>9}  one node   8 nodes   sent by a rank   held by a rank   with AdamW's "
    "state"
)
found = {}
for name, program in STRATEGIES.items():
    inside, across = (
        simulate(program, 8, cluster=cluster) for cluster in (one_node, eight_nodes)
    )
    found[name] = inside.elapsed, across.elapsed, max(inside.memory().peak)
    times = f"{inside.elapsed * 1e3:6.2f} ms {across.elapsed * 1e3:6.2f} ms"
    weights_held = LAYERS * DIM * DIM // (1 if name == "data" else 8)
    state = 12 * weights_held / 1e9  # weights and two averages, in float32
    held = found[name][2] / 1e9
    print(
        f"{name:>9} {times} {most_sent(inside) / 1e9:13.2f} GB {held:13.2f} GB "
        f"{held + state:16.2f} GB"
    )
best = [min(found, key=lambda name: found[name][column]) for column in range(3)]

# %%
reveal("fastest in one machine", best[0], why="With this many rows its sums hide behind the computing.")
reveal("fastest on 8 machines", best[1], why="It sends least, and across the slow network that is what counts.")
reveal("least memory", best[2], why="An eighth of the layers, and the activations of a few microbatches.")

# %% [markdown]
# What does a rank hold? The fourth column is what the step itself needs, in bfloat16. With data parallelism, that is
# all weights and all gradients. With tensor parallelism it is an eighth of them, but the activations of the whole
# batch. In the pipeline it is an eighth of them, and the activations of a few microbatches.
#
# Training with AdamW needs another 12 bytes per weight, which changes the order: the last column is the one to plan
# with. (ZeRO, in lesson 07, spreads that state over the replicas.)
#
# Here are three claims that you'll hear in every lecture, each put to the test.
#
# **"Data parallelism scales nearly linearly."** Efficiency is $T_1 / T_P$ if each rank has as many rows as the single
# one had. (In some texts the fraction is upside down; an efficiency above 1 should make you suspicious.)

# %% tags=["notebook-only"]
for rows in (4096, 512):
    single = simulate(data_parallel, 1, rows=rows, cluster="dgx-h100").elapsed
    for ranks in (8, 64):
        # all ranks do the same, so one of them runs (lesson 05)
        run = simulate(
            data_parallel,
            ranks,
            rows=ranks * rows,
            cluster="dgx-h100",
            alike=lambda rank: 0,
        )
        together = run.elapsed
        print(
            f"{rows:>5} rows on each GPU, {ranks:>2} GPUs: efficiency "
            f"{single / together:.0%}"
        )

# %% [markdown]
# True where each GPU has enough rows: the sums hide behind the computing. With few rows there is nothing to hide
# behind, and it is false. What counts is the number of rows on **one GPU**, not the size of the batch.
#
# **"Tensor parallelism only inside a node."** Here is how much communication adds to a step, inside a node and across:

# %% tags=["notebook-only"]
computing = simulate(
    tensor_parallel, 8, cluster=replace(one_node, name="free", intra=FREE, inter=FREE)
).elapsed
for cluster in (one_node, eight_nodes):
    elapsed = simulate(tensor_parallel, 8, cluster=cluster).elapsed
    print(
        f"{cluster.name:>25}: {elapsed / computing:.2f} times as long as without "
        "communication"
    )

# %% [markdown]
# True, and there is more to it: the sums come in the middle of the computation, and nothing else can be done meanwhile,
# so they cost time inside a node, too. In the table above, the pipeline lost least on the slower network; across nodes
# it is the fastest of the three, although its receives still wait for messages (part 6).
#
# **"The bubble shrinks with the number of microbatches."**

# %% tags=["notebook-only"]
for num_microbatches in (4, 8, 16, 32, 64):
    run = simulate(
        pipeline_parallel, 8, num_microbatches=num_microbatches, cluster=eight_nodes
    )
    bubble = 7 / (num_microbatches + 7)
    print(
        f"M = {num_microbatches:>3}: bubble by the formula {bubble:5.1%}, "
        f"{run.elapsed * 1e3:6.2f} ms a step"
    )

# %% [markdown]
# The bubble does. The **time** shrinks only for a while, and then grows again. A microbatch of few rows can't keep a
# GPU busy: each one reads all the weights from memory, launches all the kernels and pays every message's latency again.
# So there is a best $M$, and you find it as we did here: by trying.
#
# | | use it when | it costs |
# |---|---|---|
# | **data** | the model fits on one GPU, and each GPU has enough rows | the memory of the whole model on each rank |
# | **tensor** | one layer is too large for a GPU; inside a node | sums in the middle, which nothing can hide |
# | **pipeline** | the model doesn't fit on a node; slow links | the bubble, and the work of managing microbatches |
#
# Large training runs use all three at once: tensor inside a node, pipeline across a few nodes, data across the rest.

# %% [markdown]
# ## In words: a plan for eight machines
# A team has eight machines of 8 GPUs, with a fast network inside each and a slow one between them. Their model needs
# the memory of three machines. Somebody proposes tensor parallelism over 32 GPUs, "because then there is no bubble".
#
# In about six sentences: what is wrong with that, what would you propose for the 64 GPUs, and what does your own plan
# cost? No function checks this one. A person reads it.

# %% [markdown] essay="a-plan-for-eight-machines" points=4 minutes=8
# ### BEGIN SOLUTION
# Tensor parallelism sums activations in the middle of the computation, for every two layers, forward and backward,
# and nothing can be done meanwhile. Over 32 GPUs those sums would cross the slow network, and cost far more than a
# bubble would. I would keep tensor parallelism inside each machine and cut the model into four stages, one per
# machine: between stages, only the activations at the boundary travel, once per microbatch and direction, and they
# can be hidden. Two such pipelines use all eight machines, as data parallelism of two. The plan costs a bubble of
# $(P-1)/(M+P-1)$: with four stages and 16 microbatches, 16 % of the time. More microbatches shrink it, but only until
# each has too few rows to keep a GPU busy, so I would try several. With 1F1B the first stage holds up to four
# microbatches' activations, which has to fit, and the two replicas have to sum their gradients over the slow network,
# once per step.
#
# **Rubric**
#
# - 1 point: the sums of tensor parallelism are many, in the middle of the computation, and would cross the slow
#   network
# - 1 point: a plan that uses the 64 GPUs and fits: tensor inside a machine, pipeline over at least three, data for
#   the rest
# - 1 point: why a pipeline suits the slow network: only boundary activations travel
# - 1 point: what it costs: the bubble and how microbatches change it, or live activations, or the gradients' sum
# ### END SOLUTION

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - A **stage** is some consecutive layers. Activations travel forward; the gradient with respect to the **input**
#   travels back.
# - A received tensor needs `requires_grad_()` before it is used. `y.backward(gradient)` continues where the next stage
#   left off.
# - The loss of a microbatch is weighted by its share of the rows. Test gradients; Adam hides a wrong factor.
# - **Bubble**: $(P-1)/(M+P-1)$ of the total time, $(P-1)/M$ of the ideal time. GPipe and 1F1B have the same.
# - **Live microbatches**: GPipe $M$, 1F1B $\min(M, P - r)$.
# - **Interleaved**: $v$ chunks per rank, round robin; the bubble as a share of ideal time is divided by $v$, and the
#   messages are multiplied by about as much.
# - Sends must not block, or a correct schedule gets stuck. Keep the handle and the tensor; receive ahead.
# - **Order**, not tags, tells messages apart: NCCL ignores tags. An exchange goes into one `batch_isend_irecv`, or both
#   ranks wait in their sends.
#
# **The library.** `torch.distributed.pipelining`: `PipelineStage`, `ScheduleGPipe`, `Schedule1F1B`,
# `ScheduleInterleaved1F1B`, `ScheduleInterleavedZeroBubble`. It divides the gradients by the number of microbatches
# itself (`scale_grads=True`), as if all were equally long.
#
# **The papers.** Huang and others: *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*
# (2019). Narayanan and others: *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*
# (2021), which has interleaved 1F1B. Qi and others: *Zero Bubble Pipeline Parallelism* (2023), for the challenge.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## Splitting the backward pass
# A backward pass computes two things: the gradient with respect to the **input** (B), which the previous rank waits
# for, and the gradient with respect to the **weights** (W), which nobody waits for. Split them, and W can fill holes.
# How much of 1F1B's bubble can you fill?
#
# Steps are ("F", m), ("B", m) and ("W", m). Each W comes after its own B. A microbatch stays **live** until its W, and
# no rank may hold more than `most_live`. Messages are free.
#
# The score is the time of the whole schedule. Par is 1F1B with each W right after its B: that alone is better than
# 1F1B, since the previous rank no longer waits for W. The limit is the last rank's: it can't start before the first
# microbatch arrives, and then it has all of its work to do.

# %%
seconds = {"F": 1.0, "B": 1.25, "W": 0.75}

# %% exercise="split-backward" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def split_backward(
    rank: int,
    world_size: int,
    num_microbatches: int,
    most_live: int,
    seconds: dict[str, float],
) -> list[tuple]:
    """The steps of one rank: ("F", m), ("B", m) and ("W", m), once for each microbatch.

    most_live: microbatches between the beginning of their F and the end of their W, on
    each rank; world_size at least. seconds: how long an F, a B and a W take.
    """
    ### BEGIN SOLUTION
    ahead = min(world_size - 1 - rank, num_microbatches)
    steps = [("F", m) for m in range(ahead)]
    for m in range(num_microbatches):
        if ahead + m < num_microbatches:
            steps.append(("F", ahead + m))
        steps += [("B", m), ("W", m)]
    return steps
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint 1: what to look at</summary>
#
# The picture below. Where are the holes at the end, and where are W's that nobody needs yet?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Keep the order of 1F1B, but hold back some W's. While the last gradients come in, one after another, there is time
# for them. Rank 0 can hold back none without holding more than 1F1B; each rank after it can hold back one more.
# </details>
# <details><summary>Hint 3: beyond that</summary>
#
# Where `most_live` allows more, a longer warm-up fills the holes at the beginning too. And nothing forces you to write
# the order down by a rule: follow all ranks in time, and let each take the most urgent step that it can.
# </details>

# %% tags=["notebook-only"]
split = [split_backward(rank, 4, 8, most_live=4, seconds=seconds) for rank in range(4)]
end = max(slot.end for slot in timed(split, seconds))
print(
    problem(split)
    or f"it can run: {end} s, of which a rank works {8 * sum(seconds.values())} s"
)
figures.schedule(split, "yours", seconds)

# %% check="split-backward" judges="score" points=3
check(split_backward, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
