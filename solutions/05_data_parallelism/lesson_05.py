# %% [markdown] question="How do many replicas train as one, and how is their communication hidden?"
# # Data parallelism
# *you need: lesson 01 (all-reduce, broadcast, async handles), and how to train a
# network in PyTorch. The closed forms of lesson 04 help, but are not needed.*
#
# Every rank holds the whole model and computes on different rows of the batch. One all-reduce of the gradients, and
# they all carry on as one. It is the simplest way to train on many GPUs, and where everybody starts.
#
# By the end of this lesson you will have written PyTorch's `DistributedDataParallel` yourself: buckets, hooks,
# overlap. You will be able to say what it costs, what it silently gets wrong, and what its options do.

# %%
import math
from copy import deepcopy
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from utils import figures, region, simulate, spawn
from utils.checks import checks_for
from utils.kit.mlp import MLP, loss_of, make_batch, make_weights, serial_gradients
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.tied_mlp import AwkwardMLP

check = checks_for("05_data_parallelism")
# this lesson computes on the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# at the rates of the datasheet, so that times can be computed by hand
simulate = partial(simulate, rates="datasheet")
double = torch.float64  # enough digits to ask for equality with the serial run

# %% [markdown]
# ## Why: a lifetime, or three weeks
# Training takes about 6 floating point operations for each parameter and each token. One H100 does 989 TFLOP/s in
# bfloat16 at most, and a well-tuned program gets about 40 % of that. How long do 8 billion parameters and 15 trillion
# tokens take?

# %%
operations = 6 * 8e9 * 15e12
one_gpu = operations / (0.4 * 989e12)  # seconds
print(f"1 GPU: {one_gpu / 365 / 86400:.0f} years")
print(f"1,024 GPUs, if nothing is lost: {one_gpu / 1024 / 86400:.0f} days")

# %% [markdown]
# "If nothing is lost" is what this lesson is about. The ranks must exchange their gradients at every step. If that is
# done badly, they spend most of their time waiting for the network.

# %% [markdown]
# # Part 1 · Same weights, different rows
# Three terms:
#
# - **replica**: one rank's copy of the model. All replicas hold the same weights at every step.
# - **global batch**: all rows of one step. A rank's part of it is its **shard**.
# - **local gradient**: the gradient that a rank computes from its own shard. Local gradients differ from rank to rank.
#
# Each rank computes its local gradient; the all-reduce turns them into their mean; every rank updates its weights with
# that mean. Same weights before, same update, so the same weights after.

# %%
figures.data_parallel_step([3, 3, 2, 2])

# %% [markdown]
# ## Sharding the batch
#
# A batch of 10 rows, 4 ranks: who gets which rows? Neighbouring rows stay together and in order, and no two ranks
# differ by more than one row.
#
# **Predict**: how many rows are in each piece of `batch.chunk(4)`? Replace each `...` with a list of numbers and run
# the cell. Predictions earn no points, and you can skip them; but a guess that turns out wrong is what you'll
# remember.

# %%
predict("pieces of 10 rows", ...)
predict("pieces of 5 rows", ...)

# %%
pieces = [[len(rows) for rows in torch.zeros(number, 1).chunk(4)] for number in (10, 5)]

# %%
reveal("pieces of 10 rows", pieces[0], why="`chunk` rounds the size up to 3, and the last piece gets what is left.")
reveal("pieces of 5 rows", pieces[1], why="Rounded up, a piece has 2 rows. That makes three pieces; rank 3 gets none.")

# %% exercise="shard-the-batch" difficulty=1 minutes=6
def shard_the_batch(batch: Tensor, rank: int, world_size: int) -> Tensor:
    """This rank's rows of the global batch; no communication.

    batch: (B, D), the same on every rank; left unchanged.
    Returns (b, D): put together in rank order, the shards are the batch. The first
    B % P ranks have one row more than the others; a shard may be empty.
    """
    ### BEGIN SOLUTION
    # rows of every rank, and how many ranks have one more
    size, larger = divmod(len(batch), world_size)
    first = rank * size + min(rank, larger)
    return batch[first : first + size + (rank < larger)]
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# `divmod(10, 4)` is `(2, 2)`: everybody gets 2 rows, and the first 2 ranks one more. Where does rank $r$ begin? Each
# rank before it has taken 2 rows, and one more if it is among the first 2.
# </details>

# %% check="shard-the-batch" judges="values" points=3
check(shard_the_batch, judges="values")

# %% [markdown]
# ### By hand, in one process
# The model of this course is a deep MLP, `x = gelu(x @ weight)` in each layer; its loss is the mean of the squares of
# all outputs. `serial_gradients` computes loss and gradients in one process. It is our **oracle**: whatever we do with
# many ranks must give the same result.
#
# If all shards have the same size, the mean of their gradients is the gradient of the whole batch. Here it is with a
# list instead of ranks:

# %%
weights, batch = make_weights(3, 4, dtype=double), make_batch(8, 4, dtype=double)
loss, whole = serial_gradients(weights, batch)
shards = [serial_gradients(weights, rows)[1] for rows in batch.chunk(4)]
mean = [sum(gradients) / 4 for gradients in zip(*shards)]
print(
    "one shard's gradient is that of the batch:", torch.allclose(shards[0][0], whole[0])
)
print(
    "the mean of all shards' gradients is:     ",
    all(torch.allclose(a, b) for a, b in zip(mean, whole)),
)

# %% [markdown]
# ## Averaging the gradients
#
# Now with ranks. After `loss.backward()` each parameter has its local gradient in `parameter.grad`. Make it the mean
# over all ranks: one all-reduce for each parameter. This is the **naive** version, the baseline for all that follow.
#
# **Predict** for an MLP with 3 layers of 4 x 4 in float64:

# %%
predict("all-reduces for the small MLP", ...)
predict("bytes in each", ...)

# %% exercise="average-gradients" difficulty=2 minutes=8
def average_gradients(
    model: nn.Module, shard: Tensor, rank: int, world_size: int
) -> list[Tensor]:
    """Forward and backward on this rank's shard; every parameter's grad becomes the
    mean over all ranks.

    model: the same weights on every rank, left unchanged; every parameter gets a
    gradient.
    shard: (b, D), different rows on each rank, equally many.
    Returns the gradients in the order of model.parameters(). One all_reduce per
    parameter, no other communication.
    """
    loss_of(model(shard)).backward()
    for parameter in model.parameters():
        ### BEGIN SOLUTION
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
        ### END SOLUTION
    return [parameter.grad for parameter in model.parameters()]

# %% check="average-gradients" judges="values" points=3
check(average_gradients, judges="values")

# %% check="average-gradients" judges="traffic" points=1
check(average_gradients, judges="traffic")

# %% tags=["notebook-only"]
def one_step(rank, world_size, method=average_gradients):
    shard = make_batch(2, 4, seed=rank, dtype=double)
    return method(MLP(make_weights(3, 4, dtype=double)), shard, rank, world_size)

sent = [event for event in spawn(one_step, 4).events if event.rank == 0]

# %%
reveal("all-reduces for the small MLP", len(sent), why="One for each parameter, and each layer has one: its weight.")
reveal("bytes in each", sent[0].bytes, unit="B", why="4 x 4 numbers of 8 bytes each.")

# %% [markdown]
# ### A training run against the serial baseline
# Five steps with AdamW, on 4 ranks and in one process. A rank only sees the losses of its own shards, so we compare
# the weights at the end.

# %% tags=["notebook-only"]
def train(model, batches, average, rank, world_size):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        shard = shard_the_batch(batch, rank, world_size)
        average(model, shard, rank=rank, world_size=world_size)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]

def train_on_ranks(rank, world_size, average=average_gradients):
    batches = [make_batch(8, 4, seed=step, dtype=double) for step in range(5)]
    return train(
        MLP(make_weights(3, 4, dtype=double)), batches, average, rank, world_size
    )

serial = spawn(train_on_ranks, 1).results[0]
parallel = spawn(train_on_ranks, 4).results
[all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(serial, one)) for one in parallel]

# %% [markdown]
# A warning about such comparisons. AdamW divides each gradient by its own usual size, so gradients that are all 4 times
# too large train nearly as well: **a loss curve does not show a forgotten division**. Compare gradients.

# %% tags=["notebook-only"]
def sum_of_gradients(model, shard, rank, world_size):
    average_gradients(model, shard, rank, world_size)
    for parameter in model.parameters():
        parameter.grad *= world_size  # as if the division had been forgotten

wrong = spawn(train_on_ranks, 4, average=sum_of_gradients).results[0]

def distance(some, others):
    return torch.cat([(a - b).flatten() for a, b in zip(some, others)]).norm().item()

moved = distance(serial, make_weights(3, 4, dtype=double))
print(f"In five steps the right weights move by {moved:.4f}.")
print(
    f"With gradients 4 times too large, they end {distance(serial, wrong):.1e} from "
    "there."
)

# %% [markdown]
# ## Broadcasting the weights
#
# "The same weights before": who makes sure of that? If each rank draws its own weights, they differ forever. All ranks
# apply the same update, so a difference at the start never goes away: plain SGD keeps it to the last digit.

# %%
def different_starts(rank, world_size):
    # rank 0 starts at 0, rank 1 at 1
    weight = torch.tensor([float(rank)], dtype=double, requires_grad=True)
    for _ in range(100):
        weight.grad = None
        (weight - 5).square().backward()  # the best weight is 5
        dist.all_reduce(weight.grad)
        weight.data -= 0.1 * weight.grad / world_size
    return round(weight.item(), 6)

spawn(different_starts, 2).results

# %% [markdown]
# The mean of the two is right, but neither rank has it. So before the first step rank 0 broadcasts everything the model
# holds: its **parameters**, and its **buffers** too. Buffers are tensors that belong to the model but that no optimizer
# updates, such as the running statistics of a batch norm; `model.buffers()` yields them.
#
# **Predict** for a linear layer of 2 x 2 followed by a batch norm:

# %%
predict("tensors that are broadcast", ...)
predict("buffers among them", ...)

# %% exercise="broadcast-weights" difficulty=2 minutes=7
def broadcast_weights(model: nn.Module, rank: int, world_size: int) -> list[Tensor]:
    """Give every replica the parameters and buffers of rank 0, in place.

    model: the same shapes and dtypes on every rank, different values; no gradients yet.
    Returns all parameters, then all buffers, as they are now. Broadcasts only; each
    tensor is sent once.
    """
    tensors = [*model.parameters(), *model.buffers()]
    ### BEGIN SOLUTION
    for tensor in tensors:
        # detach: the same memory, without autograd
        dist.broadcast(tensor.detach(), src=0)
    ### END SOLUTION
    return [tensor.detach() for tensor in tensors]

# %% check="broadcast-weights" judges="values" points=3
check(broadcast_weights, judges="values")

# %% check="broadcast-weights" judges="traffic" points=1
check(broadcast_weights, judges="traffic")

# %%
normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
held = list(normed.state_dict())

# %%
reveal("tensors that are broadcast", len(held), why="Both layers have a weight and a bias; the rest are buffers.")
reveal(
    "buffers among them",
    len(list(normed.buffers())),
    why="The running mean, the running variance, and `num_batches_tracked`, which is easily forgotten.",
)

# %% [markdown]
# # Part 2 · Uneven batches and sampling
# The size of a batch is not always a multiple of the number of ranks, a shard does not always fit into memory, and
# rows come from a data set.

# %% [markdown]
# ## Weighting uneven shards
#
# The last batch of an epoch has 7 rows, and there are 4 ranks. Each rank's loss is the mean over **its own** rows. Is
# the mean of the gradients still the gradient of the batch? **Predict**, for one weight, two ranks, and a loss whose
# gradient is the mean of the rows: rank 0 has the rows 0, 0, 0, rank 1 has the row 12.

# %%
predict("the mean of the two ranks' gradients", ...)
predict("the gradient of the whole batch", ...)

# %%
mean_of_means, mean_of_all = (0.0 + 12.0) / 2, sum([0.0, 0.0, 0.0, 12.0]) / 4

# %%
reveal("the mean of the two ranks' gradients", mean_of_means, why="Rank 0's gradient is 0 and rank 1's is 12.")
reveal("the gradient of the whole batch", mean_of_all, why="12 is one row in four. Each row should count the same.")

# %% [markdown]
# A row on a short shard counts more than a row on a long one. Give every **row** the same weight, wherever it lies:
#
# $$ g = \frac{\sum_r n_r\, g_r}{\sum_r n_r} $$
#
# where $n_r$ is the number of rows of rank $r$. No rank knows the others' $n_r$.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# `backward` has given you $g_r$, a mean over your own rows. What does the formula still need that only the other
# ranks know?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# To get the total number of rows, put your own count into a tensor and all-reduce it. Then multiply each gradient by
# your share of the rows, before it is summed. After that there is nothing left to divide by.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# All-reduce a tensor of your number of rows; `.item()` is the sum as a plain number. (An int divided by an int64 tensor
# is rounded to float32.) Then, for each parameter, scale its gradient in place by your share, and all-reduce it.
# </details>

# %% exercise="weigh-uneven-shards" difficulty=3 minutes=10
def weigh_uneven_shards(
    model: nn.Module, shard: Tensor, rank: int, world_size: int
) -> list[Tensor]:
    """As average_gradients, for shards of different sizes: the gradient of the mean
    loss over all rows of all ranks.

    model: the same weights on every rank, left unchanged; every parameter gets a
    gradient.
    shard: (b, D), b >= 1, which may differ from rank to rank.
    Returns the gradients in the order of model.parameters(); every parameter's grad
    holds the same.
    """
    loss_of(model(shard)).backward()  # the mean over this rank's rows
    ### BEGIN SOLUTION
    rows = torch.tensor(len(shard))
    dist.all_reduce(rows)
    for parameter in model.parameters():
        parameter.grad *= len(shard) / rows.item()
        dist.all_reduce(parameter.grad)
    ### END SOLUTION
    return [parameter.grad for parameter in model.parameters()]

# %% check="weigh-uneven-shards" judges="values" points=3
check(weigh_uneven_shards, judges="values")

# %% [markdown]
# Language models have this problem at every step: the loss is a mean over **tokens**, and padding leaves each rank
# a different number of them. Then $n_r$ counts tokens.
#
# And a rank without any rows? Its loss is the mean of nothing, which is `nan`, and one `nan` in an all-reduce makes
# the result `nan` everywhere. Either such a rank takes part with gradients of zero, or the last batch is dropped.

# %% [markdown]
# ### Accumulating gradients
#
# A shard that does not fit into memory is cut into **microbatches**. `backward` **adds** to `parameter.grad`, so after
# the last microbatch it holds the sum over all of them: accumulation comes for free. Until then there is nothing to
# send.
#
# **Predict**: suppose you averaged after each of 8 microbatches, each time whatever `grad` holds by then. How many
# times the traffic would that be, and what would become of the gradient?

# %%
predict("times the traffic", ...)
predict("the gradient is then", ..., choices=["right", "too large", "too small"])

# %%
def accumulate_gradients(model, microbatches, rank, world_size):
    for microbatch in microbatches:
        # their sum is the mean over all rows
        (loss_of(model(microbatch)) / len(microbatches)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # once, when grad holds everything
        parameter.grad /= world_size
    return [parameter.grad for parameter in model.parameters()]

# %% tags=["notebook-only"]
def reduce_after_each(model, microbatches, rank, world_size):
    for microbatch in microbatches:
        (loss_of(model(microbatch)) / len(microbatches)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
    return [parameter.grad for parameter in model.parameters()]

def eight_microbatches(rank, world_size, method):
    seeds = range(8 * rank, 8 * rank + 8)
    microbatches = [make_batch(2, 4, seed=seed, dtype=double) for seed in seeds]
    return method(MLP(make_weights(3, 4, dtype=double)), microbatches, rank, world_size)

def length(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()

methods = (reduce_after_each, accumulate_gradients)
each, once = [spawn(eight_microbatches, 2, method) for method in methods]
became, right = length(each.results[0]), length(once.results[0])
becomes = (
    "right"
    if math.isclose(became, right)
    else "too large"
    if became > right
    else "too small"
)

# %%
reveal("times the traffic", len(each.events) / len(once.events), why="Each of the 8 all-reduces is of full size.")
reveal(
    "the gradient is then",
    becomes,
    why="What has been averaged is equal on all ranks, and the mean of equal numbers is that number. So averaging it "
    "again changes nothing: correct, but expensive. Had we summed and divided only at the end, it would be wrong.",
)

# %% [markdown]
# PyTorch's DDP reduces in every backward pass unless it is told not to: put `with model.no_sync():` around the forward
# and backward passes of all microbatches but the last.

# %% [markdown]
# ## Sampling an epoch
#
# So far each rank was handed its shard. In real life each rank reads its own samples from a data set, and a
# **sampler** says which. No messages are needed: every rank draws the same order and takes its part. For that to work,
#
# - all ranks shuffle with the same seed, and each epoch has a different order,
# - every rank gets the same number of samples, or else one rank takes a step more than the others and waits forever,
# - so the order is padded with samples from its beginning until its length is a multiple of $P$.
#
# **Predict** for 10 samples on 4 ranks:

# %%
predict("samples of each rank", ...)
predict("samples that are seen twice", ...)

# %% exercise="epoch-indices" difficulty=2 minutes=10
def epoch_indices(
    num_samples: int, epoch: int, seed: int, rank: int, world_size: int
) -> list[int]:
    """Which samples this rank sees in this epoch, in order; no communication.

    Returns ceil(num_samples / P) indices, as plain numbers: this rank's part of one
    shuffled order of all samples.
    Together the ranks see every sample; where P does not divide their number, some are
    seen once more than others.
    Each epoch is shuffled anew, so that a rank sees different samples; the same epoch
    and seed always give the same order, and another seed gives a different one.
    """
    # our own generator: nothing else draws from it
    generator = torch.Generator().manual_seed(seed + epoch)
    ### BEGIN SOLUTION
    order = torch.randperm(num_samples, generator=generator).tolist()
    each = math.ceil(num_samples / world_size)
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank::world_size]
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# `torch.randperm(n, generator=generator)` is a shuffled `range(n)`. It is the same on every rank, so each can take
# every $P$-th index, beginning with its own number.
# </details>

# %% check="epoch-indices" judges="values" points=3
check(epoch_indices, judges="values")

# %%
epochs = [
    [epoch_indices(10, epoch, 0, rank, 4) for rank in range(4)] for epoch in range(2)
]
epochs

# %%
reveal("samples of each rank", len(epochs[0][0]), why="10 / 4, rounded up.")
reveal("samples that are seen twice", sum(map(len, epochs[0])) - 10, why="3 on each of 4 ranks are 12: 2 too many.")

# %% [markdown]
# PyTorch's `DistributedSampler` does the same, with one trap: it learns of a new epoch only from
# `sampler.set_epoch(epoch)`. Forget that line, and every epoch has the order of the first.

# %% [markdown]
# # Part 3 · Fewer, larger messages
# The naive version is correct. Is it fast? Let's ask a virtual cluster: 16 GPUs in 2 nodes of type `dgx-h100`, an MLP
# of 48 layers with 1024 x 1024 weights in bfloat16, 4,096 rows on each rank. Tensors have sizes here and no values. One
# rank has nothing to exchange, so all of its time is computing. What 16 ranks need beyond that is called
# **exposed** communication.
#
# All 16 do the same, so it is enough to run one of them: of the ranks for which `alike` returns the same value,
# `simulate` runs only the first, and lets it stand for the others.

# %% tags=["notebook-only"]
def large_step(rank, world_size, method, layers=48, dim=1024, rows=4096, **more):
    model = MLP(make_weights(layers, dim, dtype=torch.bfloat16))
    shard = torch.empty(rows, dim, dtype=torch.bfloat16)
    with region("step"):
        method(model, shard, rank=rank, world_size=world_size, **more)

def compute_only(model, shard, rank, world_size):
    loss_of(model(shard)).backward()

def on_cluster(world_size, method, **more):
    run = simulate(
        large_step, world_size, method, cluster="dgx-h100", alike=lambda rank: 0, **more
    )
    steps = [each for each in run.regions if each.name == "step"]
    return run, max(each.end for each in steps) - min(each.start for each in steps)

_, alone = on_cluster(1, compute_only)
run, naive = on_cluster(16, average_gradients)
extra = naive - alone
print(f"computing {1e3 * alone:.2f} ms, exposed {1e3 * extra:.2f} ms:", end=" ")
print(f"{extra / alone:.1f} times as much")
print(f"gradients: 48 of {1024 * 1024 * 2 / 1e6:.1f} MB")

# %% [markdown]
# The network takes more time than computing does. Every all-reduce pays a **latency**, the $\alpha$ of lesson 04,
# whatever its size. Here is one of the 48. The last column says how its 75 µs are spent: the bytes take 13 of them,
# and the rest is latency. (What the bytes "decide" there is which algorithm is the fastest.)

# %% tags=["notebook-only"]
run.costs()

# %% [markdown]
# ### Flat gradients
#
# The fix: copy all gradients into one long tensor, all-reduce that, and cut it up again.
#
# **Predict** for 48 layers:

# %%
predict("latencies that a step pays", ...)
predict(
    "the all-reduce has to wait for",
    ...,
    choices=["the first gradient", "the last gradient"],
)

# %%
def flat_gradients(model, shard, rank, world_size):
    parameters = list(model.parameters())
    loss_of(model(shard)).backward()
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
    dist.all_reduce(flat)
    flat /= world_size
    pieces = flat.split([parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces):
        # a view of the long tensor: no copy back
        parameter.grad = piece.view_as(parameter)
    return [parameter.grad for parameter in parameters]

# %% tags=["notebook-only"]
flat_run, flat = on_cluster(16, flat_gradients)
print(
    f"exposed: naive {1e3 * (naive - alone):.2f} ms, flat {1e3 * (flat - alone):.2f} ms"
)

# %%
reveal("latencies that a step pays", sum(event.rank == 0 for event in flat_run.events), why="One for each all-reduce.")
reveal("the all-reduce has to wait for", "the last gradient", why="It is part of the long tensor, too.")

# %% [markdown]
# The latency is paid once, and what is left is mostly bytes. It could be hidden, though: the flat all-reduce starts
# when the **last** gradient is there, and until then the network has nothing to do.
#
# One trap before we go on. It is tempting to make the gradients views of one flat tensor once, at the start, and save
# the copy. But `zero_grad()` does not write zeros: it sets every `grad` to `None`. The next `backward` makes new
# tensors, and the flat one is no longer theirs. Nothing complains; you all-reduce zeros.

# %%
parameter = torch.ones(3, requires_grad=True)
once = torch.zeros(3)
parameter.grad = once.view(3)
torch.optim.SGD([parameter], lr=1).zero_grad()
parameter.sum().backward()
print("grad", parameter.grad.tolist(), "    flat tensor", once.tolist())

# %% [markdown]
# # Part 4 · Hidden behind the backward pass
# `backward` goes through the layers from the last to the first. The last layer's gradient is ready when most of the
# work is still to be done, so its all-reduce can run **meanwhile**. One all-reduce for each parameter costs too much
# latency; one for all hides nothing. In between lie **buckets**: a few neighbouring parameters each.

# %% [markdown]
# ## Buckets
#
# Which parameters go together? Those whose gradients are ready at about the same time: neighbours, from the last
# parameter to the first. The rule is PyTorch's: add parameters until the bucket has **reached** a cap, then close it.
# So a bucket may be larger than the cap, by up to one parameter. (PyTorch's default cap is 25 MiB.)
#
# **Predict** the buckets of the sizes 10, 10, 30 for a cap of 15, as a list of lists of indices. This picture has
# different sizes, and a cap of 400 bytes. When parameter 2 comes, 360 bytes are in the bucket, so it still goes in.

# %%
predict("buckets of [10, 10, 30]", ...)

# %%
figures.buckets(
    [[7, 6], [5, 4, 3, 2], [1, 0]], sizes=[40, 40, 450, 120, 120, 120, 200, 200]
)

# %% exercise="make-buckets" difficulty=2 minutes=8
def make_buckets(sizes: list[int], cap: int) -> list[list[int]]:
    """Put parameters in buckets, from the last parameter to the first.

    sizes: bytes of each parameter, in the order of model.parameters().
    Returns the buckets in the order in which they will be sent; each is a list of
    indices into `sizes`, in the order in which they were put in. A bucket is closed as
    soon as it holds `cap` bytes or more.
    """
    buckets, filled = [], 0
    for index in reversed(range(len(sizes))):
        ### BEGIN SOLUTION
        if not buckets or filled >= cap:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += sizes[index]
        ### END SOLUTION
    return buckets

# %% check="make-buckets" judges="values" points=3
check(make_buckets, judges="values")

# %%
reveal(
    "buckets of [10, 10, 30]",
    make_buckets([10, 10, 30], cap=15),
    why="From the last parameter to the first: number 2 alone is above the cap. 1 leaves room, so 0 goes in as well.",
)

# %% [markdown]
# ## All-reduce by buckets
#
# First without hooks: after `backward`, one flat tensor and one all-reduce for each bucket. Start all of them before
# you wait for the first. **Predict**: compared with one flat all-reduce, what does this cost?

# %%
predict("buckets after backward cost", ..., choices=["more time", "less time"])

# %% exercise="bucketed-gradients" difficulty=2 minutes=8
def bucketed_gradients(
    model: nn.Module,
    shard: Tensor,
    buckets: list[list[int]],
    rank: int,
    world_size: int,
) -> list[Tensor]:
    """As average_gradients, with one all_reduce for each bucket, in order, all started
    before the first is waited for.

    model: the same weights on every rank, left unchanged; every parameter gets a
    gradient, all of one dtype.
    buckets: indices of parameters, as make_buckets returns them; every parameter is in
    one bucket.
    Returns the gradients in the order of model.parameters(); every parameter's grad
    holds its mean too.
    """
    parameters = list(model.parameters())
    loss_of(model(shard)).backward()
    flights = []  # (flat tensor, handle) of each bucket
    for bucket in buckets:
        ### BEGIN SOLUTION
        flat = torch.cat([parameters[index].grad.reshape(-1) for index in bucket])
        flights.append((flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION
    for bucket, (flat, handle) in zip(buckets, flights):
        ### BEGIN SOLUTION
        handle.wait()
        flat /= world_size
        for index, piece in zip(bucket, flat.split([parameters[index].numel() for index in bucket])):
            parameters[index].grad = piece.view_as(parameters[index])
        ### END SOLUTION
    return [parameter.grad for parameter in parameters]

# %% check="bucketed-gradients" judges="values" points=2
check(bucketed_gradients, judges="values")

# %% check="bucketed-gradients" judges="traffic" points=2
check(bucketed_gradients, judges="traffic")

# %% [markdown]
# ## When communication ends
#
# Before we let them overlap: what is there to gain? Bucket $i$ is **ready** at some moment of the backward pass, and
# its all-reduce takes a while: a latency, and a time for its bytes. The network does one at a time, in order. In the
# picture below, the bytes of all gradients take 3.6 ms, and each all-reduce has a latency of 0.4 ms. Before you look
# at it, **predict** which is done first: 1, 4 or 24 buckets?

# %%
predict("the best number of buckets", ..., choices=["1", "4", "24"])

# %%
def plan(buckets, latency=0.4, transfer=3.6, backward=10.0):  # milliseconds
    ready = [backward * (number + 1) / buckets for number in range(buckets)]
    return ready, [latency + transfer / buckets] * buckets

plans = {"one bucket": plan(1), "four": plan(4), "twenty-four": plan(24)}
figures.overlap(plans, backward=10.0)

# %% exercise="communication-end" difficulty=2 minutes=6
def communication_end(ready: list[float], took: list[float]) -> float:
    """When the last all-reduce is over; one process, no torch.

    ready: when each bucket is ready, in the order in which they are sent; took: how
    long its all-reduce takes. Both in seconds, and equally long; they may be empty.
    An all-reduce starts as soon as its bucket is ready and the one before it has ended.
    Returns the second at which the last one ends; 0.0 if there is none.
    """
    end = 0.0
    ### BEGIN SOLUTION
    for is_ready, takes in zip(ready, took):
        end = max(end, is_ready) + takes
    ### END SOLUTION
    return end

# %% check="communication-end" judges="values" points=2
check(communication_end, judges="values")

# %%
reveal(
    "the best number of buckets",
    min(["1", "4", "24"], key=lambda number: communication_end(*plan(int(number)))),
    why="One bucket can only start when backward ends, and 24 latencies are more than the network has time for.",
)

# %% [markdown]
# The last bucket is ready when backward ends. So **at least its all-reduce stays exposed**, however well the others
# are hidden; if the network keeps up, nothing else does.

# %% [markdown]
# ### The bucket cap, by sliders
# 48 layers of 2 MiB each, with the times of the picture above. If all $k$ buckets are equal, each is ready $b$ after
# the one before and takes $t$, and what stays exposed is
#
# $$ t + (k - 1) \max(0,\, t - b) $$
#
# Your own numbers come from `make_buckets` and `communication_end`, and the triangle is your end. Find the best cap at
# a latency of 0.4 ms. What does it look like if the cap is one step too small, and if it is one too large?
#
# **Predict** first, then look it up: at half that latency, 0.2 ms, which cap is the best?

# %%
predict("the best cap at 0.2 ms, in MiB", ...)

# %%
def with_bucket_cap(cap, latency):
    layers = [2] * 48  # MiB of each
    count = 96 // cap  # buckets
    ready, took = plan(count, 1e3 * latency)  # milliseconds
    exposed = took[0] + (count - 1) * max(0, took[0] - ready[0])

    def yours():
        return (communication_end(ready, took) - 10) / 1e3

    def draw(right):
        rows = {f"cap {cap} MiB": (ready, took), "one bucket": plan(1, 1e3 * latency)}
        picture = figures.overlap(rows, backward=10.0)
        if "exposed" in right:
            picture.axes[0].plot(10 + 1e3 * right["exposed"], -0.12, "v", color="black")
        return picture

    buckets = count, lambda: len(make_buckets(layers, cap)), ""
    return {"buckets": buckets, "exposed": (exposed / 1e3, yours, "s")}, draw

caps = (2, 4, 6, 8, 12, 16, 24, 32, 48, 96)
latencies = (1e-4, 2e-4, 4e-4, 8e-4, 16e-4)
units = {"cap": "MiB", "latency": "s"}
figures.explore(with_bucket_cap, units, cap=caps, latency=latencies)

# %%
reveal(
    "the best cap at 0.2 ms, in MiB",
    min(caps, key=lambda cap: communication_end(*plan(96 // cap, 0.2))),
    why="The smallest cap with which the network keeps up, $t \\le b$. Any smaller, and buckets queue; any larger, and "
    "the last one takes longer.",
)

# %% [markdown]
# ## Overlap with hooks
#
# How do we get into the middle of `loss.backward()`? A **hook** is a function that autograd calls. There are two, with
# names that are easily confused:
#
# ```python
# p.register_hook(f)                       # f(gradient), before p.grad holds it
# p.register_post_accumulate_grad_hook(f)  # f(p), when p.grad holds it
# ```
#
# The second gets the **parameter**. If you all-reduce that, you average the weights, and the gradients stay local.
#
# The plan: count for each bucket how many of its gradients are missing. When none is, make the flat tensor and start
# its all-reduce; don't wait for it, so that backward can continue. Wait when backward is over.
#
# One rule decides between right and silently wrong: **all ranks start the buckets in the same order.** A model may use
# its layers in a different order on each rank, so bucket 1 may be complete before bucket 0 on some. Then it has to wait
# for its turn. (Part 6 of lesson 01 showed what happens otherwise.)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Which bucket may be started next, and how do you know its number? One gradient may complete the bucket that all were
# waiting for, and the ones after it may be complete already.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# `len(flights)` is the number of the next bucket to be started. Start buckets for as long as the next one has nothing
# missing: a `while`, not an `if`. A hook gets the parameter and nothing else, but yours needs the bucket's number:
# `partial(one_more_is_ready, 3)` is a function that calls `one_more_is_ready(3, ...)`. A `lambda` in a loop looks up
# `number` when it is called, not when it is made, so all hooks would belong to the last bucket.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# While there is a next bucket and nothing of it is missing: concatenate its gradients, each of them flattened, start an
# all-reduce with `async_op=True`, and append the flat tensor with its handle. At the end: wait, divide by `world_size`,
# `split` by the parameters' `numel()`, and view each piece as its parameter.
# </details>

# %% exercise="overlap-by-hooks" difficulty=4 minutes=20
def overlap_by_hooks(
    model: nn.Module,
    shard: Tensor,
    buckets: list[list[int]],
    rank: int,
    world_size: int,
) -> list[Tensor]:
    """As bucketed_gradients, but each bucket's all_reduce starts in backward, as soon
    as that bucket is complete and all buckets before it have been started.

    model, buckets: as there; the gradients of a model may be ready in a different order
    on each rank. No hooks are left on the model.
    """
    parameters = list(model.parameters())
    missing = [len(bucket) for bucket in buckets]  # gradients that are not there yet
    flights = []  # (flat tensor, handle) of the buckets that have been started

    # called in backward, for each parameter of bucket `number`
    def one_more_is_ready(number: int, parameter: Tensor) -> None:
        missing[number] -= 1
        ### BEGIN SOLUTION
        while len(flights) < len(buckets) and missing[len(flights)] == 0:
            flat = torch.cat([parameters[index].grad.reshape(-1) for index in buckets[len(flights)]])
            flights.append((flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION

    hooks = []  # so that they can be removed at the end
    for number, bucket in enumerate(buckets):
        for index in bucket:
            ### BEGIN SOLUTION
            hook = partial(one_more_is_ready, number)  # autograd adds the parameter
            hooks.append(parameters[index].register_post_accumulate_grad_hook(hook))
            ### END SOLUTION
    loss = loss_of(model(shard))
    with region("backward"):
        loss.backward()
    for bucket, (flat, handle) in zip(buckets, flights):
        ### BEGIN SOLUTION
        handle.wait()
        flat /= world_size
        for index, piece in zip(bucket, flat.split([parameters[index].numel() for index in bucket])):
            parameters[index].grad = piece.view_as(parameters[index])
        ### END SOLUTION
    for hook in hooks:
        hook.remove()
    return [parameter.grad for parameter in parameters]

# %% check="overlap-by-hooks" judges="values" points=3
check(overlap_by_hooks, judges="values")

# %% check="overlap-by-hooks" judges="traffic" points=2
check(overlap_by_hooks, judges="traffic")

# %% check="overlap-by-hooks" judges="time" points=3
check(overlap_by_hooks, judges="time")

# %% [markdown]
# ### Measured, beside the prediction
# The step of part 3 again, on 16 virtual GPUs. What is exposed, without hooks, and with them for different caps?
# Remember the prediction: at least the last bucket's all-reduce.

# %% tags=["notebook-only"]
sizes = [1024 * 1024 * 2] * 48  # bytes of each weight in bfloat16

def with_cap(cap):
    return on_cluster(16, overlap_by_hooks, buckets=make_buckets(sizes, cap))

_, late = on_cluster(16, bucketed_gradients, buckets=make_buckets(sizes, 10 * 2**20))
took = {"naive": naive, "one flat tensor": flat, "10 MiB, but after backward": late}
for name, step in took.items():
    print(f"{name:26} {1e3 * (step - alone):.2f} ms exposed")
runs, steps = {}, {}
for cap in (2, 10, 25, 110):
    runs[cap], steps[cap] = with_cap(cap * 2**20)
    last = [event for event in runs[cap].events if event.rank == 0][-1]
    count = len(make_buckets(sizes, cap * 2**20))
    name = f"{cap:3} MiB, {count:2} bucket" + "s" * (count > 1)
    left, took = steps[cap] - alone, last.end - last.start
    print(f"{name:26} {1e3 * left:.2f} ms exposed, last all-reduce {1e3 * took:.2f} ms")

# %%
reveal(
    "buckets after backward cost",
    "more time" if late > flat else "less time",
    why="Nothing overlaps yet, and each bucket pays a latency. Buckets help only once they start during backward.",
)

# %% [markdown]
# Too small, and the latencies add up until the network can't keep up: the last bucket waits for those before it. Too
# large, and the last bucket itself is long. In between, its all-reduce is most of what is left; the rest is copying
# gradients into flat tensors and dividing those, which takes a little time as well. This is how it looks on one rank,
# and below it, on the same scale, the naive version:

# %% tags=["notebook-only"]
titles = "Overlapped: buckets of 10 MiB", "Naive: an all-reduce for each gradient"
runs[10].timeline(within="step", ranks=[0], beside=run, title=titles)

# %% [markdown]
# # Part 5 · Tied, frozen and unused parameters
# Real models have parameters that the story so far leaves out:
#
# - **tied**: one parameter used in two places, such as the embedding and the output layer of a language model. It is
#   **one** tensor with **one** gradient, the sum of both uses. `model.parameters()` yields it once.
# - **frozen**: `requires_grad` is False. It never gets a gradient; a bucket that waits for it is never complete.
# - **unused**: this step's forward pass did not touch it, so its `grad` is `None`. And perhaps only on this rank:
#   another rank's data took a different branch.
#
# `AwkwardMLP` has all three. Each replica is told which of its branches to use.

# %%
def who_has_a_gradient(rank, world_size):
    model = AwkwardMLP(make_weights(5, 4, dtype=double), order=[[0, 2], [2]][rank % 2])
    loss_of(model(make_batch(2, 4, seed=rank, dtype=double))).backward()
    return {
        name: parameter.grad is not None for name, parameter in model.named_parameters()
    }

for rank, has in enumerate(spawn(who_has_a_gradient, 2).results):
    print(f"rank {rank}:", has)

# %% [markdown]
# `last`, the second name of `first`, is not in the list. Branch 0 has a gradient on rank 0 only, branch 1 nowhere.
# **Predict** what happens here if each rank all-reduces the gradients that it has, one after another, and skips those
# that are `None`.

# %%
predict(
    "skipping None ends in", ..., choices=["an error", "a deadlock", "a wrong number"]
)

# %% tags=["raises-exception"]
def skipping_none(rank, world_size):
    model = AwkwardMLP(make_weights(5, 4, dtype=double), order=[[0, 2], [2]][rank % 2])
    loss_of(model(make_batch(2, 4, seed=rank, dtype=double))).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:  # the obvious fix
            dist.all_reduce(parameter.grad)

spawn(skipping_none, 2)

# %%
reveal(
    "skipping None ends in",
    "a deadlock",
    why="Two all-reduces pair up, with the wrong gradients in the second; the third never finds a partner.",
)

# %% [markdown]
# Rank 0 all-reduces three gradients, rank 1 two: rank 0's gradient of branch 0 meets rank 1's of branch 2, and the last
# call finds no partner. With one more branch in use on rank 1, nothing would even hang.

# %% [markdown]
# ## Averaging only what is used
#
# So all ranks first agree on **which** parameters any of them has used. Every rank all-reduces those; a rank without a
# gradient contributes zeros. What no rank has used stays `None`: with zeros instead, AdamW would keep moving it, by
# its momentum and its weight decay.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Every rank must make the same all-reduces in the same order. So the decision about which ones may depend only on
# something that all ranks know. What could that be?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# After an all-reduce of `users` every rank holds the same list of counts. If each decides from that list alone, all
# decide the same. A rank that has no gradient still takes part, with zeros.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `dist.all_reduce(users)`, then go through `zip(trained, users.tolist())`. Where the count is 0, do nothing.
# Otherwise, if `parameter.grad is None`, make it `torch.zeros_like(parameter)`; then all-reduce it and divide by
# `world_size`.
# </details>

# %% exercise="average-what-is-used" difficulty=3 minutes=14
def average_what_is_used(
    model: nn.Module, shard: Tensor, rank: int, world_size: int
) -> list[Tensor | None]:
    """As average_gradients, for a model with frozen and tied parameters, and others
    that some ranks do not use.

    model: the same weights on every rank, left unchanged.
    shard: (b, D), different rows on each rank, equally many.
    Returns for each of model.parameters() the mean over all ranks, where a rank that
    has not used it counts as zero; None if it is frozen, or if no rank has used it. The
    same in every parameter's grad.
    """
    loss_of(model(shard)).backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    users = torch.tensor([int(parameter.grad is not None) for parameter in trained])
    ### BEGIN SOLUTION
    dist.all_reduce(users)  # how many ranks have used each
    for parameter, count in zip(trained, users.tolist()):
        if count:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
    ### END SOLUTION
    return [parameter.grad for parameter in model.parameters()]

# %% check="average-what-is-used" judges="values" points=4
check(average_what_is_used, judges="values")

# %% [markdown]
# That first all-reduce costs a latency at every step, and until it is known what has been used, a bucket with a
# missing gradient can't be sent. PyTorch wants to be told: `find_unused_parameters=True`.

# %% [markdown]
# ## A reusable replica
#
# Now all of it in one class that trains any model, step after step, as `DistributedDataParallel` does. When it is
# made, it broadcasts everything rank 0 holds and registers the hooks, once. Then a training step looks like this:
#
# ```python
# for number, microbatch in enumerate(microbatches):
#     loss = loss_of(model(microbatch)) / len(microbatches)
#     model.backward(loss, last=number == len(microbatches) - 1)
# optimizer.step()
# optimizer.zero_grad()
# ```
#
# Only the backward pass of the **last** microbatch communicates. In it, each bucket starts as soon as all its gradients
# are complete; by then they hold the sum over all microbatches. (PyTorch's `with model.no_sync():` around all
# microbatches but the last does the same.)
#
# What about parameters that this rank has not used? Their hooks never run, so their bucket is still waiting when the
# backward pass is over. Then fill in zeros, and start what is left, in order. One more thing must be agreed on: a
# parameter that **no** rank has used gets `None`.
#
# **Predict**: where in the order of all-reduces must the one that counts the users come?

# %%
choices = ["before all buckets", "right after backward", "after all buckets"]
predict("the users come", ..., choices=choices)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The hooks stay registered, so they run in every backward pass: those of earlier microbatches too, and those of the
# next step. What must be reset, and when?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# At the beginning of the last backward pass, reset the counts of missing gradients and the list of flights; in any
# other, let the hooks do nothing. After it, start the buckets that are left: a gradient that is None contributes zeros.
# Count a rank as a user if it has a gradient **before** the zeros are filled in.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# One method starts the next bucket; the hook calls it while the next bucket is complete, and `backward` calls it at
# its end until no bucket is left. Then all-reduce the users, wait for each flight, and give every parameter its
# piece, or None where the sum of the users is 0.
# </details>

# %% exercise="replica" difficulty=5 minutes=20
class Replica(nn.Module):
    def __init__(self, module: nn.Module, buckets: list[list[int]]) -> None:
        super().__init__()
        self.module, self.buckets = module, buckets
        self.trained = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        # whether hooks should communicate: in the backward pass of a last microbatch
        self.active = False
        ### BEGIN SOLUTION
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        for number, bucket in enumerate(self.buckets):
            for index in bucket:
                self.trained[index].register_post_accumulate_grad_hook(partial(self.one_more, number))
        ### END SOLUTION

    def forward(self, *inputs):
        return self.module(*inputs)

    def one_more(self, number: int, parameter: Tensor) -> None:
        """Called in backward when a parameter of bucket `number` has its gradient."""
        ### BEGIN SOLUTION
        if self.active:
            self.missing[number] -= 1
            while len(self.flights) < len(self.buckets) and not self.missing[len(self.flights)]:
                self.start_next()
        ### END SOLUTION

    def start_next(self) -> None:
        """Start the all-reduce of the next bucket; a parameter without a gradient
        counts as zeros.
        """
        ### BEGIN SOLUTION
        members = [self.trained[index] for index in self.buckets[len(self.flights)]]
        held = [torch.zeros_like(p) if p.grad is None else p.grad for p in members]
        flat = torch.cat([gradient.detach().reshape(-1) for gradient in held])
        self.flights.append((flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION

    def backward(self, loss: Tensor, last: bool) -> None:
        """The backward pass of one microbatch; after the last one, every grad is the
        mean over the ranks.
        """
        self.active = last
        ### BEGIN SOLUTION
        self.missing = [len(bucket) for bucket in self.buckets]
        self.flights = []
        ### END SOLUTION
        loss.backward()
        ### BEGIN SOLUTION
        if not last:
            return
        users = torch.tensor([int(parameter.grad is not None) for parameter in self.trained])
        while len(self.flights) < len(self.buckets):
            self.start_next()
        dist.all_reduce(users)
        for bucket, (flat, handle) in zip(self.buckets, self.flights):
            handle.wait()
            flat /= dist.get_world_size()
            members = [self.trained[index] for index in bucket]
            for index, p, piece in zip(bucket, members, flat.split([p.numel() for p in members])):
                p.grad = piece.view_as(p) if users[index] else None
        ### END SOLUTION

def replica(module: nn.Module, buckets: list[list[int]]) -> Replica:
    """A model like `module` whose ranks train as one, step after step.

    module: the same shapes on every rank; it may have frozen, tied and unused
    parameters. At once, every rank gets rank 0's parameters and buffers.
    buckets: as make_buckets returns them, index 0 being the first trained parameter.
    In each step every bucket is all-reduced once, in order; where that is possible, it
    starts during the last backward pass, which waits for nothing. Then the numbers of
    users are all-reduced, once. Earlier microbatches send nothing. A grad is the mean
    over the ranks, or None where no rank has used the parameter.
    """
    return Replica(module, buckets)

# %% check="replica" judges="values" points=5
check(replica, judges="values")

# %% check="replica" judges="traffic" points=3
check(replica, judges="traffic")

# %%
reveal(
    "the users come",
    "after all buckets",
    why="One rank starts all buckets in its hooks, another has some left when its backward pass ends. An all-reduce "
    "in between would come at a different place on each.",
)

# %% [markdown]
# ### Three steps
# The awkward model, two ranks with different branches, three steps of two microbatches each. Rank 1 starts with
# weights of its own, and no rank uses branch 1.

# %% tags=["notebook-only"]
def three_steps(rank, world_size):
    weights = make_weights(5, 4, seed=rank, dtype=double)
    model = replica(AwkwardMLP(weights, order=[[0, 2], [2]][rank]), [[3, 2], [1], [0]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(3):
        for number in range(2):
            rows = make_batch(2, 4, seed=10 * step + 2 * rank + number, dtype=double)
            model.backward(loss_of(model(rows)) / 2, last=number == 1)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]

first, second = spawn(three_steps, 2).results
print("equal on both ranks:", all(torch.equal(a, b) for a, b in zip(first, second)))
moved = [not torch.equal(a, b) for a, b in zip(first, make_weights(5, 4, dtype=double))]
print("trained (tied, frozen, branches 0 to 2):", moved)

# %% [markdown]
# ### Clipping, and the dtype of a sum
# Here are two things that nearly every real program does. **Gradient clipping** shortens the gradient if its norm is
# too large. After the all-reduce every rank holds the same gradient, so each computes the same norm, and no message is
# needed. But if you clip too early, while the gradients are local, each rank shortens its own by a different factor.

# %%
def norms_before_and_after(rank, world_size):
    model = MLP(make_weights(3, 4, dtype=double))
    shard = make_batch(2, 4, seed=rank, dtype=double)
    local = torch.autograd.grad(loss_of(model(shard)), list(model.parameters()))
    before = torch.cat([gradient.flatten() for gradient in local]).norm()
    average_gradients(model, shard, rank, world_size)
    # returns the norm that it found
    after = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.01)
    return round(before.item(), 4), round(after.item(), 4)

for rank, (before, after) in enumerate(spawn(norms_before_and_after, 4).results):
    print(f"rank {rank}: norm of its own gradient {before}, of the mean {after}")

# %% [markdown]
# The other is a choice of dtype. Weights in bfloat16 have gradients in bfloat16, with 8 significant bits. If you sum
# many of them, small ones vanish beside a sum that has grown. Here are 1,024 ranks in one process, all with the same
# gradient, added one after another as in a ring:

# %%
gradient = torch.tensor(0.01, dtype=torch.bfloat16)
total = torch.zeros((), dtype=torch.bfloat16)
for _ in range(1024):
    total += gradient
exact = 1024 * gradient.float()
print(f"summed in bfloat16: {total.item():.3f}     in float32: {exact.item():.3f}")

# %% [markdown]
# So large runs compute gradients in bfloat16, but send and add them in **float32**, at twice the bytes. Here are both
# on 8 ranks, with the gradients of a model in bfloat16: how far is each from the exact sum?

# %%
def sum_in(rank, world_size, dtype):
    model = MLP(make_weights(3, 64, dtype=torch.bfloat16))
    loss_of(model(make_batch(2, 64, seed=rank, dtype=torch.bfloat16))).backward()
    exact = torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters()]
    ).double()
    flat = exact.to(dtype)  # bfloat16 to begin with, so nothing is lost
    dist.all_reduce(flat)
    dist.all_reduce(exact)
    return flat.nbytes, ((flat.double() - exact).norm() / exact.norm()).item()

for dtype in (torch.bfloat16, torch.float32):
    nbytes, error = spawn(sum_in, 8, dtype).results[0]
    print(f"{dtype}: {nbytes:,} bytes sent, relative error {error:.0e}")

# %% [markdown]
# # Part 6 · Batch norm across ranks
# Everything so far rests on one sentence: the gradient of the batch is the mean over the shards. It holds if each row
# is computed by itself. **Batch norm** breaks it: it subtracts from each column its mean over **the batch**, and
# divides by the standard deviation. In a replica, "the batch" is the shard.

# %%
figures.norms(world_size=2)

# %% [markdown]
# **Predict**: with which of these two norms does our naive version get the gradients of the serial run? And how far off
# is the other, as a fraction of the right gradient's length?

# %%
predict("equal to the serial run is", ..., choices=["batch norm", "layer norm"])
predict("the other is off by", ...)

# %% tags=["notebook-only"]
def with_norm(norm, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), norm, nn.GELU(), nn.Linear(6, 3)).double()

# how far apart, as a fraction of the right gradient's length
def off_by(model, ours, rows):
    oracle = deepcopy(model)
    loss_of(oracle(rows)).backward()
    right = torch.cat([parameter.grad.flatten() for parameter in oracle.parameters()])
    got = torch.cat([gradient.flatten() for gradient in ours])
    return ((got - right).norm() / right.norm()).item()

def gradients_with(rank, world_size, model):
    shard = shard_the_batch(rows, rank, world_size)
    return average_gradients(model, shard, rank, world_size)

rows, errors = make_batch(8, 4, dtype=double), {}
for name, norm in (("batch norm", nn.BatchNorm1d(6)), ("layer norm", nn.LayerNorm(6))):
    model = with_norm(norm)
    errors[name] = off_by(model, spawn(gradients_with, 4, model).results[0], rows)

# %%
reveal("equal to the serial run is", min(errors, key=errors.get), why="Layer norm looks at one row at a time.")
reveal("the other is off by", max(errors.values()), why="Not small: this is a different model, not a rounding error.")

# %% [markdown]
# Nothing is broken here: 4 batch norms over 2 rows each are simply a different model from one over 8. The smaller the
# shards, the worse it gets: means over a few rows are mostly noise. There are two ways out. One is a norm that looks
# at one row at a time, **layer norm**; this is one reason why you see no batch norm in language models. The other is
# to compute the statistics over all ranks. For that, both passes need a collective.

# %% [markdown]
# ## Synchronised batch norm: forward pass
#
# For each column: mean $\mu$ and variance $\sigma^2$ over **all** rows of all ranks, then
# $\hat x = (x - \mu) / \sqrt{\sigma^2 + \epsilon}$. The variance divides by the number of rows, not by one less.
#
# **Predict**: how many numbers must be summed over the ranks if shards have different sizes? The rows themselves stay
# where they are.

# %%
predict("numbers to be summed, for 6 columns", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Which sums over rows does a mean need, and which does a variance need? Shards differ in size, so means of means are
# wrong.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# The variance is the mean of the squares minus the square of the mean. So three sums are enough: of the rows, of
# their squares, and how many there are. (With two all-reduces you can also take the mean first, then the squares of
# the differences from it. That loses fewer digits.)
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Concatenate the sums of `x` over the rows, those of its squares, and `x.new_tensor([len(x)])`. After the all-reduce,
# divide all but the last number by the last, and `chunk(2)` gives the two means.
# </details>

# %% exercise="normalise-globally" difficulty=3 minutes=12
def normalise_globally(
    x: Tensor, eps: float, rank: int, world_size: int
) -> tuple[Tensor, Tensor]:
    """Batch norm's forward pass over the rows of all ranks, without weight and bias.

    x: (b, F), b >= 1 rows that may differ in number from rank to rank; left unchanged.
    Returns (x_hat, var): (b, F) of this rank's rows, and (F,), the variance, the same
    on every rank. All-reduces only, two at most, none of more than 2 F + 1 numbers.
    """
    ### BEGIN SOLUTION
    # (2 F + 1,)
    sums = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])
    dist.all_reduce(sums)
    mean, mean_of_squares = (sums[:-1] / sums[-1]).chunk(2)
    var = mean_of_squares - mean.square()
    ### END SOLUTION
    return (x - mean) / torch.sqrt(var + eps), var

# %% check="normalise-globally" judges="values" points=3
check(normalise_globally, judges="values")

# %% check="normalise-globally" judges="traffic" points=1
check(normalise_globally, judges="traffic")

# %%
reveal(
    "numbers to be summed, for 6 columns",
    2 * 6 + 1,
    why="For each column the sum of its numbers and the sum of their squares; and once, how many rows there are.",
)

# %% [markdown]
# ## Synchronised batch norm: backward pass
#
# Now the backward pass. Every output depends on every row of every rank, by way of $\mu$ and $\sigma$. So the gradient
# of a row depends on the incoming gradients $g$ of all rows everywhere. Worked out, for each column:
#
# $$ \frac{\partial L}{\partial x} =
# \frac{g - \overline{g} - \hat x \cdot \overline{g\,\hat x}}{\sqrt{\sigma^2 + \epsilon}} $$
#
# where a bar is the mean over **all rows of all ranks**, and $L$ is the sum of the ranks' losses. **Predict**: if
# each rank took these means over its own rows, would anything complain? (`True` or `False`)

# %%
predict("something would complain", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Two means over all rows appear in the formula. Which tensors do you have to sum to get them?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# It is the previous exercise with different tensors: the sum of `g`, the sum of `g * x_hat`, and the number of rows.
# The last line is given and wants `mean_g` and `mean_gx`, each of shape (F,).
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Put the sums of `g` and of `g * x_hat` over the rows, and the number of rows, into one tensor of 2 F + 1 numbers.
# All-reduce it once. Divide all but the last by the last, and cut the result in two.
# </details>

# %% exercise="normalise-backward" difficulty=4 minutes=15
def normalise_backward(
    g: Tensor, x_hat: Tensor, var: Tensor, eps: float, rank: int, world_size: int
) -> Tensor:
    """The gradient with respect to `x` of normalise_globally, from the gradient `g`
    with respect to `x_hat`.

    g, x_hat: (b, F), b >= 1 rows that may differ in number from rank to rank; var:
    (F,); all left unchanged.
    Returns (b, F). All-reduces only, two at most, none of more than 2 F + 1 numbers.
    """
    ### BEGIN SOLUTION
    # (2 F + 1,)
    sums = torch.cat([g.sum(0), (g * x_hat).sum(0), g.new_tensor([len(g)])])
    dist.all_reduce(sums)
    mean_g, mean_gx = (sums[:-1] / sums[-1]).chunk(2)
    ### END SOLUTION
    return (g - mean_g - x_hat * mean_gx) / torch.sqrt(var + eps)

# %% check="normalise-backward" judges="values" points=3
check(normalise_backward, judges="values")

# %% check="normalise-backward" judges="traffic" points=1
check(normalise_backward, judges="traffic")

# %%
reveal(
    "something would complain",
    False,
    why="Shapes and dtypes are right and no call is missing. Only the gradient is wrong, and training goes on with it.",
)

# %% [markdown]
# ### The two together
# An `autograd.Function` ties a forward pass to its backward pass, so that `loss.backward()` calls yours. Here is the
# model that was off before:

# %% tags=["notebook-only"]
class Synchronised(torch.autograd.Function):
    @staticmethod
    def forward(context, x, eps):
        x_hat, var = normalise_globally(x, eps, dist.get_rank(), dist.get_world_size())
        context.save_for_backward(x_hat, var)
        context.eps = eps
        return x_hat

    @staticmethod
    def backward(context, g):
        x_hat, var = context.saved_tensors
        rank, world_size = dist.get_rank(), dist.get_world_size()
        # one gradient for x, none for eps
        return normalise_backward(g, x_hat, var, context.eps, rank, world_size), None

class SyncNorm(nn.BatchNorm1d):
    def forward(self, x):
        return Synchronised.apply(x, self.eps) * self.weight + self.bias

right, synchronised = with_norm(nn.BatchNorm1d(6)), with_norm(SyncNorm(6))
error = off_by(right, spawn(gradients_with, 4, synchronised).results[0], rows)
print("equal to the serial batch norm:", error < 1e-9)

# %% [markdown]
# It is correct, but each such layer costs a small all-reduce in both passes, and nothing hides it. PyTorch's own is
# `nn.SyncBatchNorm.convert_sync_batchnorm(model)`, for GPUs only. DDP leaves batch norms as they are; it broadcasts
# rank 0's **running** statistics before each forward pass, so that all replicas evaluate alike.

# %% [markdown]
# # Part 7 · Compared with PyTorch's DDP
# `DistributedDataParallel(model)` is what you have built: broadcast, buckets, hooks. `spawn` records its calls too, so
# we can look at what its options do. Here is a model with 8 layers of 64 kB each on 2 ranks, three steps with each
# option. (A cap is in MiB: 0.15 MiB is 157,286 bytes.)

# %%
def calls_of_ddp(rank, world_size, options):
    model = DistributedDataParallel(MLP(make_weights(8, 128)), **options)
    for step in range(3):
        model.zero_grad()
        with region(f"step {step}"):
            loss_of(
                model(shard_the_batch(make_batch(8, 128), rank, world_size))
            ).backward()

def shown(event):
    return f"{event.op} of {event.bytes:,}" if event.op == "all_reduce" else event.op

def show_calls(**options):
    run = spawn(calls_of_ddp, 2, options)
    mine = [event for event in run.events if event.rank == 0]
    steps = {each.name: each for each in run.regions if each.rank == 0}
    print(options or "default options")
    first = steps["step 0"].start
    print("  before:", ", ".join(shown(event) for event in mine if event.start < first))
    for name, step in steps.items():
        calls = [event for event in mine if step.start <= event.start <= step.end]
        print(f"  {name}:", ", ".join(map(shown, calls)))

# %% tags=["notebook-only"]
show_calls()
show_calls(bucket_cap_mb=0.15)

# %% [markdown]
# Before the first step come a check that all ranks have the same parameters, and the broadcast of part 1. In the first
# step DDP sends one bucket with everything; in the second it **rebuilds** the buckets in the order in which gradients
# really came, and broadcasts that order from rank 0, so that all ranks agree. From then on the buckets are the ones
# you know.

# %% tags=["notebook-only"]
show_calls(find_unused_parameters=True)
show_calls(static_graph=True)

# %% [markdown]
# - `find_unused_parameters=True`: one more all-reduce at every step, of 32 bytes: your `users`. The buckets are never
#   rebuilt. It also walks through the graph after each forward pass. Use it only for models that need it.
# - `static_graph=True`: you promise that every step uses the same parameters. DDP looks once, in the first step, and
#   then knows. Right for models whose unused parameters are always the same ones.
# - `gradient_as_bucket_view=True`: the gradients are views of the buckets, as in your version. That saves one copy, and
#   the memory of one set of gradients. (`zero_grad` detaches them, as in part 3, and DDP attaches them again.)
# - `bucket_cap_mb`: the cap. Without it the **first** bucket is only 1 MiB, so that the network starts early; if
#   you write `bucket_cap_mb=25`, the default, that is switched off.
#
# A look at one gradient's memory shows the views: is it 64 kB of its own, or does it lie in the bucket of 512 kB?

# %%
def memory_of_a_gradient(rank, world_size, options):
    model = DistributedDataParallel(MLP(make_weights(8, 128)), **options)
    for _ in range(2):
        model.zero_grad()
        loss_of(model(make_batch(8, 128))).backward()
    return next(model.parameters()).grad.untyped_storage().nbytes()

for options in ({}, {"gradient_as_bucket_view": True}):
    print(options, spawn(memory_of_a_gradient, 2, options).results[0])

# %% [markdown]
# ### Which one is faster?
# Yours, DDP and the naive version side by side, in one run: an MLP of 16 layers of 512 x 512 (16.8 MB of gradients),
# 32 rows on each of 2 ranks, buckets of 4 MiB. Their steps take turns, and we compare medians.

# %%
def race(rank, world_size, layers=16, dim=512, rows=32, cap=4, rounds=9):
    weights = make_weights(layers, dim)
    mine = MLP(weights)
    torchs = DistributedDataParallel(MLP(weights), bucket_cap_mb=cap)
    shard = shard_the_batch(make_batch(rows * world_size, dim), rank, world_size)
    buckets = make_buckets([weight.nbytes for weight in weights], cap * 2**20)

    def step(name):
        if name == "torch":
            loss_of(torchs(shard)).backward()
        elif name == "yours":
            overlap_by_hooks(mine, shard, buckets, rank, world_size)
        else:
            average_gradients(mine, shard, rank, world_size)

    times = {"naive": [], "yours": [], "torch": []}
    for _ in range(3 + rounds):  # the first three warm up
        for name in times:
            mine.zero_grad()
            torchs.zero_grad()
            dist.barrier()
            start = perf_counter()
            step(name)
            dist.barrier()
            times[name].append(perf_counter() - start)
    return {name: median(every[3:]) for name, every in times.items()}

# %% tags=["nbval-ignore-output"]
took = spawn(race, 2).results[0]
print(f"throughput, yours to torch's DDP: {took['torch'] / took['yours']:.2f}")
print(f"throughput, yours to naive:       {took['naive'] / took['yours']:.2f}")

# %% [markdown]
# The first number is usually near 1. The second changes from run to run; on a busy machine it can well be 2. Don't
# read much into either: on one machine "the network" is the same processor that computes, so there is little to hide
# behind, and both numbers move whenever other programs run. (One difference is real: your gradients stay views of the
# flat tensors, while DDP by default copies them back.) For ranks with a real network between them, the virtual cluster
# is the better guide. Here is DDP there, with its default options and the step of part 3:


# %% tags=["notebook-only"]
def torchs_ddp(model, shard, rank, world_size):
    model = DistributedDataParallel(model)
    for step in range(3):  # the buckets are rebuilt in the second
        # or backward would add to the last step's gradients, which takes time as well
        model.zero_grad()
        with region(f"step {step}"):
            loss_of(model(shard)).backward()

run, _ = on_cluster(16, torchs_ddp)
last = [each for each in run.regions if each.name == "step 2"]
torchs = max(each.end for each in last) - min(each.start for each in last)
for name, took in {"computing alone": alone, "DDP": torchs, "yours": steps[25]}.items():
    print(f"{name:15} {1e3 * took:.2f} ms")

# %% [markdown]
# Both hide most of the communication. What DDP adds is many small operations: it copies each gradient into its bucket
# separately, and copies each back at the end. Yours makes one `cat` for each bucket, and never copies back.

# %% [markdown]
# # Part 8 · The limits of data parallelism
# Three limits remain that no bucket can remove.
#
# **The batch.** More ranks mean a larger global batch, or smaller shards. The mean over more rows has less noise, so
# fewer steps are needed; but only until there is hardly any noise left. The **critical batch size** says when: about
# there, the noise in the gradient is as large as the gradient. To first order (McCandlish and others, 2018)
#
# $$ \text{steps} = S_{min} \left(1 + \frac{B_{crit}}{B}\right) \qquad
# B_{crit} \approx \frac{\text{variance of one row's gradient}}{|g|^2} $$
#
# Data parallelism lets you estimate both for free: a local gradient has the noise of $b$ rows, their mean that of
# $P\,b$ rows.

# %%
def noise_scale(rank, world_size, rows=16):
    model = MLP(make_weights(3, 16, dtype=double))
    shard = shard_the_batch(
        make_batch(rows * world_size, 16, dtype=double), rank, world_size
    )
    loss_of(model(shard)).backward()
    local = sum(parameter.grad.square().sum() for parameter in model.parameters())
    dist.all_reduce(local)
    gradients = average_gradients(deepcopy(model), shard, rank, world_size)
    mean = sum(gradient.square().sum() for gradient in gradients)
    # squared lengths: |g|² + variance / b, and |g|² + variance / (P b)
    small, large = local / world_size, mean
    variance = (small - large) / (1 / rows - 1 / (rows * world_size))
    return (variance / (large - variance / (rows * world_size))).item()

critical = spawn(noise_scale, 8).results[0]
print(f"critical batch of this toy at its start: about {critical:.0f} rows")
for batch_size in (1, 4, 16, 64):
    fewer = (1 + critical / batch_size) / (1 + critical / (2 * batch_size))
    print(
        f"from {batch_size:2} rows to {2 * batch_size:3}: {fewer:.2f} times fewer steps"
    )

# %% [markdown]
# Far below the critical batch, twice the ranks take half the steps. Far above, twice the ranks take the same steps at
# twice the price. In large language models estimates of it reach millions of tokens, and it grows during training.
#
# **The data.** Each rank needs its rows in time. A sampler like yours needs no communication, but the rows must be
# read from somewhere: how many bytes a second, for images of 110 kB, if each GPU takes 2,500 of them?

# %%
per_gpu = 2500 * 110e3
for gpus in (8, 1024):
    print(f"{gpus:5,} GPUs read {gpus * per_gpu / 1e9:.3g} GB/s")

# %% [markdown]
# So several worker processes decode for each rank (`num_workers` of PyTorch's `DataLoader`), while the GPU computes. A
# copy from memory to the GPU only overlaps with computing if the memory is **pinned**, that is, the system may not move
# it: `pin_memory=True`, then `x.to(device, non_blocking=True)`. And the slowest rank sets the pace, here as everywhere.
#
# **Failures.** All ranks wait in every all-reduce, so one GPU that fails stops them all. During 54 days of training
# Llama 3 on 16,384 GPUs, Meta counted 419 unexpected interruptions (*The Llama 3 Herd of Models*, 2024).

# %%
between = 54 * 24 / 419  # hours between two interruptions
print(f"one interruption every {between:.1f} hours;", end=" ")
print(f"one GPU alone: every {between * 16384 / 24 / 365:.0f} years")
for gpus in (1024, 16384):
    mtbf = between * 16384 / gpus * 3600  # seconds
    interval = math.sqrt(2 * 60 * mtbf)  # if a checkpoint takes 60 s
    lost = 60 / interval + interval / 2 / mtbf  # writing, and what is computed twice
    print(f"{gpus:6,} GPUs: a checkpoint every {interval / 60:.0f} minutes,", end=" ")
    print(f"{lost:.0%} of the time lost to failures")

# %% [markdown]
# A GPU that fails once in six years is a good one, and 16,384 of them still stop the training several times a day. How
# often to write a checkpoint is Young's formula: the square root of twice the time to write one, times the time between
# two failures. In data parallelism every rank holds the same weights, so rank 0 writes alone; and to continue with the
# data where you stopped, you only need your sampler's epoch, step and seed.

# %% [markdown]
# ## In words: is it right?
# A colleague has written data parallelism by hand. With four ranks and Adam, the loss falls just as it did in one
# process, so "it works, we can scale it up".
#
# In about six sentences: name a mistake that this curve can't show, say why it can't, and describe a test that would
# find it. Then name a second mistake, one that appears only with some batches or some models. No function checks this
# one. A person reads it.

# %% [markdown] essay="is-it-right" points=4 minutes=8
# ### BEGIN SOLUTION
# Suppose the ranks add up their gradients and nobody divides by four. Adam divides each gradient by a running average
# of its size, so the factor all but cancels, and the curve looks the same. Plain SGD, gradient clipping or weight decay
# in the loss would give it away. The test: the same weights and the same global batch, once in one process and once on
# four ranks, in double precision; compare gradients rather than losses, and give the ranks different rows, since with
# equal rows every rank's own gradient is already the mean. The second mistake: averaging with equal weights although
# the last batch doesn't divide evenly, so that each row of a smaller shard counts for more. (Also right: a tied
# parameter reduced twice, an unused parameter that some ranks wait for, buckets started in a different order, batch
# norm that sees only its own rows.)
#
# **Rubric**
#
# - 1 point: a mistake that scales or skews the gradient, such as a sum instead of a mean
# - 1 point: why the curve hides it: Adam divides the scale out, or a curve is too coarse to tell
# - 1 point: a test that compares gradients with one process on the same global batch, with rows that differ
# - 1 point: a second mistake, and the batches or models with which it appears
# ### END SOLUTION

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - Same weights, different rows, and the **mean** of the gradients. It is exact if the loss is a mean over rows and
#   shards are equal; otherwise weight by rows. Divide once.
# - One all-reduce for each parameter pays the latency each time. One for all hides nothing. **Buckets**, started by
#   hooks in backward, pay little and hide nearly all: what stays exposed is at least the last bucket.
# - All ranks start the same buckets in the same order. Tied parameters count once, frozen ones never, unused ones must
#   be agreed on.
# - Accumulate without the network; reduce once.
# - Batch norm looks at the whole batch: synchronise it, forward **and** backward, or use layer norm.
# - A loss curve hides a wrong scale. Compare gradients with the serial run.
#
# **The library.** `torch.nn.parallel.DistributedDataParallel`; `torch.utils.data.DistributedSampler`;
# `torch.nn.SyncBatchNorm`. DDP's communication hooks let you replace the all-reduce: lesson 06 does.
#
# **The paper.** Li and others: *PyTorch Distributed: Experiences on Accelerating Data Parallel Training* (VLDB 2020).
# Its section 3.2 follows the same path as this lesson: naive, buckets, overlap, accumulation.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## The best buckets
# `make_buckets` takes one cap for all buckets. But buckets are not alike. While the backward pass is young, there is
# plenty of time to hide a large one; at its end, every byte is exposed. And if the network falls behind early, it stays
# behind.
#
# You get the bytes of each parameter, and the second at which its gradient is ready. An all-reduce of $n$ bytes takes
# `latency` plus $n$ divided by `bandwidth`, and the network does one at a time, in order. The score is the exposed
# time: from the last gradient to the end of the last all-reduce. Par is what the best **single cap** reaches, in whole
# MiB. The limit is what no plan can beat: whatever has been sent before, the bytes of the last gradients still have to
# follow.
#
# The model is a transformer of 24 blocks on a slow network. Its all-reduces take nearly as long as its backward pass.

# %%
# bytes: qkv, output, and two of the MLP
sizes = [2 * 1024 * 1024 * part for part in [3, 1, 4, 4] * 24]
ready, now = [0.0] * len(sizes), 0.0
for index in reversed(range(len(sizes))):
    # computing a gradient takes time in proportion to its size
    now += sizes[index] / 36.8e9
    ready[index] = now
network = {"latency": 2e-4, "bandwidth": 40e9}

# %% exercise="best-buckets" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def best_buckets(
    sizes: list[int], ready: list[float], latency: float, bandwidth: float
) -> list[list[int]]:
    """The buckets, in the order in which they are sent; each is a list of indices.

    sizes: bytes of each parameter, in the order of model.parameters().
    ready: the second at which each gradient is there; the last parameter's comes first.
    latency, bandwidth: seconds for each all-reduce, and bytes per second.
    """
    ### BEGIN SOLUTION
    def plan(cap):
        buckets, filled = [], 0
        for index in reversed(range(len(sizes))):
            if not buckets or filled >= cap:
                buckets.append([])
                filled = 0
            buckets[-1].append(index)
            filled += sizes[index]
        return buckets

    def end(buckets):
        now = 0.0
        for bucket in buckets:
            took = latency + sum(sizes[index] for index in bucket) / bandwidth
            now = max(now, *(ready[index] for index in bucket)) + took
        return now

    return min((plan(mib * 2**20) for mib in range(1, 101)), key=end)
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint 1: what to look at</summary>
#
# The picture below shows your plan. Where does the network wait for a bucket, and where does a bucket wait for the
# network?
# </details>
# <details><summary>Hint 2: the idea of par</summary>
#
# Try all caps. For each, `communication_end` says when the last all-reduce is over.
# </details>
# <details><summary>Hint 3: beyond par</summary>
#
# Suppose you know the earliest end for the last $k$ gradients, for every smaller $k$. Then the best plan for one
# more gradient has some last bucket, and before it one of the plans that you know already.
# </details>

# %% tags=["notebook-only"]
plan = best_buckets(sizes, ready, **network)
starts = [max(ready[index] for index in bucket) for bucket in plan]
nbytes = [sum(sizes[index] for index in bucket) for bucket in plan]
took = [network["latency"] + size / network["bandwidth"] for size in nbytes]
exposed = communication_end(starts, took) - max(ready)
print(f"{len(plan)} buckets, {1e3 * exposed:.3f} ms exposed")
milliseconds = [[1e3 * seconds for seconds in column] for column in (starts, took)]
figures.overlap({"your plan": tuple(milliseconds)}, backward=1e3 * max(ready))

# %% check="best-buckets" judges="score" points=3
check(best_buckets, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
