# %% [markdown] question="How little of a gradient must a rank send for training to go as well as before?"
# # Gradient compression
# *you need: lesson 05 (buckets and hooks). Useful: lesson 02 (what a ring sends).*
#
# In data parallelism every rank sends its whole gradient at every step. Much of that is wasted: a gradient is noisy, so
# nobody needs seven digits of it, and most of its entries hardly matter. So send less. Round it, send a few entries
# only, or send two thin matrices in place of a thick one.
#
# In this lesson you write the well-known methods, count their bytes, and run them inside the backward pass. You will
# see the trick without which most of them fail, and learn to work out beforehand whether any of them is worth it.

# %%
import math
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from utils import figures, region, simulate, spawn
from utils.checks import checks_for
from utils.cluster import Cluster, Link, find_cluster
from utils.kit.data_parallel import DataParallel, all_reduce_mean
from utils.kit.mlp import MLP, loss_of, make_batch, make_weights
from utils.kit.packing import pack_bits, pack_nibbles, unpack_bits, unpack_nibbles
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.regression import imitation, make_lessons, make_student, train_student

check = checks_for("06_gradient_compression")
# this lesson computes on the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# peaks and bandwidths as promised: times can be computed by hand
simulate = partial(simulate, rates="datasheet")

# %% [markdown]
# ## Why: one second of computing, minutes of sending
# A model with 8 billion parameters, 8,192 tokens on each of 8 GPUs. How long does a step spend computing, and how long
# does the ring of lesson 02 take to sum the gradients, 2 bytes per parameter?

# %%
parameters, tokens, ranks = 8e9, 8192, 8
# seconds, at 40 % of an H100's peak
computing = 6 * parameters * tokens / (0.4 * 989e12)
sent = 2 * (ranks - 1) / ranks * 2 * parameters  # bytes that each rank sends
print(f"computing: {computing:.2f} s")
networks = {
    "NVLink": 450e9,
    "InfiniBand": 50e9,
    "10 Gb/s Ethernet": 1.25e9,
    "1 Gb/s Ethernet": 0.125e9,
}
for name, bandwidth in networks.items():
    print(f"{name:17} {sent / bandwidth:7.2f} s")

# %% [markdown]
# Inside a node the network is a detail. Over ordinary Ethernet the GPUs would compute one second in every 23, or one in
# every four minutes. No overlap hides that. Either the network gets faster or the gradients get smaller.

# %% [markdown]
# # Part 1 · Fewer bits
# The simplest way to make a gradient smaller is to spend fewer bits on each number.

# %% [markdown]
# ## Means in 16 bits
#
# Two formats have 16 bits. **float16** has 11 bits for the digits, but nothing above 65,504. **bfloat16** has the range
# of float32 and only 8 bits for the digits. Both can be added, so an all-reduce works as before, and moves half the
# bytes.
#
# **Predict** the sum of two float16 numbers of 40,000, and what you get if you halve both of them first. (Replace each
# `...` with your guess and run the cell. Predictions earn no points, and you can skip them; but a guess that turns out
# wrong is what you'll remember. For infinity, write `math.inf`.)

# %%
predict("40,000 + 40,000 in float16", ...)
predict("20,000 + 20,000 in float16", ...)

# %%
two = torch.tensor(40_000.0, dtype=torch.float16)
sums = [(two + two).item(), (two / 2 + two / 2).item()]

# %%
reveal("40,000 + 40,000 in float16", sums[0], why="Nothing above 65,504 fits. The mean would have fitted.")
reveal("20,000 + 20,000 in float16", sums[1], why="Divide first, and the sum never grows larger than the mean.")

# %% exercise="mean-in-half" difficulty=2 minutes=6
def mean_in_half(
    gradient: Tensor, dtype: torch.dtype, rank: int, world_size: int
) -> Tensor:
    """The mean of `gradient` over all ranks, summed in a 16-bit dtype.

    gradient: (n,), the same shape on every rank; left unchanged. Its entries fit into
    `dtype`; their sum may not.
    dtype: torch.float16 or torch.bfloat16. Returns the mean in the dtype of `gradient`.
    One all_reduce of 2 n bytes.
    """
    ### BEGIN SOLUTION
    half = (gradient / world_size).to(dtype)
    dist.all_reduce(half)
    return half.to(gradient.dtype)
    ### END SOLUTION

# %% check="mean-in-half" judges="values" points=2
check(mean_in_half, judges="values")

# %% check="mean-in-half" judges="traffic" points=1
check(mean_in_half, judges="traffic")

# %% [markdown]
# That is all it takes to halve the bytes, and nearly everybody does it. From here on, things get harder: with fewer
# bits, rounding does real harm.

# %% [markdown]
# ## Stochastic rounding
#
# Say only whole numbers can be sent, and a gradient is 0.3 in each of 1,000 steps. **Predict** the sum of what arrives
# if every step rounds to the nearest whole number. The true sum is 300.

# %%
predict("the sum of 1,000 roundings of 0.3", ...)

# %% [markdown]
# Rounding to nearest makes the same mistake every time, and a thousand of them add up. **Stochastic rounding** rounds
# 0.3 up with probability 0.3, and down otherwise. Every single result is worse, but the mean is right: the rounding is
# **unbiased**. Over many steps, and over many ranks, the errors cancel.
#
# In general, $y$ becomes $\lfloor y \rfloor + 1$ with probability $y - \lfloor y \rfloor$, and otherwise
# $\lfloor y \rfloor$. Each entry draws for itself. And each rank needs a seed of its own: if all ranks round up
# together, nothing cancels.

# %% [markdown]
# <details><summary>Hint</summary>
#
# `torch.rand(y.shape, generator=generator)` draws a number $u$ from 0 to 1 for each entry. How likely is it that $u$ is
# below 0.3? Compare $u$ with the fraction. Don't add it to $y$, since that sum is rounded too: in float32, 300,001 plus
# a $u$ just below 1 is 300,002. And note that `floor(-0.3)` is -1, while converting -0.3 to an integer gives 0.
# </details>

# %% exercise="stochastic-round" difficulty=2 minutes=6
def stochastic_round(y: Tensor, seed: int) -> Tensor:
    """Whole numbers whose expected values are those of `y`; each entry is rounded up or
    down independently.

    y: (n,), floating point, any sign; left unchanged. Returns (n,) in the dtype of `y`;
    whole numbers stay as they are.
    seed: the same seed gives the same result, a different seed a different one.
    """
    generator = torch.Generator().manual_seed(seed)
    ### BEGIN SOLUTION
    below = torch.floor(y)
    # from 0 to 1, without 1, in float32
    u = torch.rand(y.shape, generator=generator)
    return below + (u < y - below)
    ### END SOLUTION

# %% check="stochastic-round" judges="values" points=3
check(stochastic_round, judges="values")

# %% [markdown]
# "Unbiased" can't be seen in one number, so we test it with many. Each rounding is $\lfloor y \rfloor$ plus a coin that
# falls on 1 with probability $p = y - \lfloor y \rfloor$. The mean of $N$ coins has a standard deviation of
# $\sqrt{p (1 - p) / N}$. By chance it is more than six of these away from the truth once in 500 million times. So if
# that happens, it wasn't chance.

# %%
thousand = torch.full((1000,), 0.3)
nearest = thousand.round().sum().item()
stochastic = stochastic_round(thousand, seed=0).sum().item()
bound = 6 * math.sqrt(0.3 * 0.7 * 1000)  # a bound for the sum
print(
    f"stochastic: {stochastic:.0f}, and within {bound:.0f} of 300: "
    f"{abs(stochastic - 300) < bound}"
)

# %%
reveal("the sum of 1,000 roundings of 0.3", nearest, why="Each one is 0. A bias doesn't cancel; it accumulates.")

# %% [markdown]
# ## Quantisation in blocks
#
# An int8 holds whole numbers from -128 to 127, and gradients are nothing like whole numbers. So find the entry with the
# largest magnitude, and choose a **scale** such that it becomes 127: $s = \max |x| / 127$. Send $x / s$, rounded, and
# $s$. (-128 stays unused, so that $x$ and $-x$ are treated alike.) With 4 bits the largest code is 7. In
# the code it is called `levels`: there are so many above 0, and as many below.
#
# One scale for the whole tensor has a weakness: a single large entry makes the scale so coarse that all the others
# become 0. So cut the tensor into **blocks**, each with a scale of its own.
#
# The scale itself is rounded, to the dtype of $x$. In bfloat16, 2.75 divided by its scale 2.75 / 127 comes out as
# 127.5, and that is rounded to 128. An int8 has no 128: it wraps around to -128, and the largest entry changes its
# sign. So **clamp** the rounded numbers to $\pm$ levels before you convert them.
#
# **Predict** the bytes for 1,000 float32 numbers in int8, with blocks of 100 and scales in float32:

# %%
predict("bytes of 1,000 numbers", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# `blocks` has one row per block, so a scale is a maximum along each row: `amax(1)`. To divide each row by its own
# scale, the scales must be a column: `scales[:, None]`.
# </details>
# <details><summary>Hint 2: the zeros</summary>
#
# 0 / 0 is `nan`, and `nan` as int8 is garbage. Divide such a block by 1 instead: `torch.where(scales > 0, scales, 1)`.
# </details>
# <details><summary>Hint 3: the end</summary>
#
# The codes of the padding must go: flatten, and keep the first `len(x)`.
# </details>

# %% exercise="quantise" difficulty=3 minutes=10
def quantise(x: Tensor, block: int, levels: int, to_whole) -> tuple[Tensor, Tensor]:
    """(codes, scales): each block of x is about its codes times its scale.

    x: (n,), n >= 1, floating point; left unchanged. Blocks are `block` neighbours; the
    last one may be shorter.
    levels: the largest code, 127 or 7. to_whole: rounds a tensor to whole numbers, as
    torch.round does. Returns codes, (n,) int8 from -levels to levels, and scales,
    (ceil(n / block),) in the dtype of x. A block of zeros has scale 0 and codes 0.
    """
    # zeros at the end, until it divides
    padded = nn.functional.pad(x, (0, -len(x) % block))
    blocks = padded.view(-1, block)
    ### BEGIN SOLUTION
    scales = blocks.abs().amax(1) / levels
    divisors = torch.where(scales > 0, scales, 1)
    codes = to_whole(blocks / divisors[:, None]).clamp(-levels, levels)
    return codes.to(torch.int8).flatten()[: len(x)], scales
    ### END SOLUTION

# %% check="quantise" judges="values" points=4
check(quantise, judges="values")

# %% [markdown]
# Going back takes a line: repeat each scale for its block and multiply. So what do blocks buy? Here are 4,096 normal
# numbers, four of them a hundred times as large as usual. The error is a fraction of the length of the rest.

# %%
def dequantise(codes: Tensor, scales: Tensor, block: int) -> Tensor:
    return codes.to(scales.dtype) * scales.repeat_interleave(block)[: len(codes)]

generator = torch.Generator().manual_seed(0)
spiky = torch.randn(4096, generator=generator)
large = torch.randperm(4096, generator=generator)[:4]
usual = torch.ones(4096, dtype=torch.bool).index_fill(0, large, False)
spiky[large] *= 100

for levels, bits in ((127, 8), (7, 4)):
    for block in (4096, 256, 32):
        codes, scales = quantise(spiky, block, levels, torch.round)
        off = (dequantise(codes, scales, block) - spiky)[usual].norm()
        off = off / spiky[usual].norm()
        nbytes = len(codes) * bits // 8 + scales.nbytes
        print(
            f"int{bits}, blocks of {block:4}: error {off:6.1%}, "
            f"{4 * len(spiky) / nbytes:.1f} times fewer bytes"
        )

# %%
codes, scales = quantise(torch.ones(1000), 100, 127, torch.round)

# %%
reveal("bytes of 1,000 numbers", codes.nbytes + scales.nbytes, unit="B", why="1 for each number, 4 for each scale.")

# %% [markdown]
# Four numbers in 4,096 ruin int8 with one scale, and leave nothing of the rest in int4. In blocks of 32 the same
# outliers spoil four blocks, and all others hardly notice. (PyTorch has no int4. Two codes share a byte: `pack_nibbles`
# in the course's kit does that.)

# %% [markdown]
# ## Gathering what can't be summed
#
# Now send it. An all-reduce adds whatever it is given. **Predict** what it makes of the int8 codes 100 and 100:

# %%
predict("100 + 100 in int8", ...)

# %%
hundred = torch.tensor([100], dtype=torch.int8)
overflown = (hundred + hundred).item()

# %%
reveal("100 + 100 in int8", overflown, why="200 is too large and wraps around: 200 - 256.")

# %% [markdown]
# Even with room for the sum it would be nonsense. Each rank has **its own scales**, so equal codes mean different
# numbers. Most compressed gradients are like that: they can't be added before they are decompressed. So every rank
# **gathers** what all others have, decompresses it all, and adds up itself.
#
# That costs something. In a ring all-reduce of $n$ bytes each rank sends $2\frac{P-1}{P} n$, however many ranks there
# are. In an all-gather of $m$ bytes from each rank it passes on all but one: $(P-1)\,m$. **Predict**: with how many
# ranks does gathering int8 (forget the scales) send as much as an all-reduce in float32?

# %%
predict("ranks at which int8 saves nothing", ...)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `gathered` is sorted by tensor: `[[codes of rank 0, codes of rank 1], [scales of rank 0, scales of rank 1]]`. A
# payload is sorted by rank. `zip(*gathered)` turns one into the other.
# </details>

# %% exercise="mean-of-gathered" difficulty=2 minutes=7
def mean_of_gathered(
    payload: tuple[Tensor, ...], numel: int, decompress, rank: int, world_size: int
) -> Tensor:
    """The mean over all ranks of the gradients that their payloads stand for.

    payload: what this rank's compressor made of its gradient, one tensor or several;
    the same shapes and dtypes on every rank, different values. Left unchanged.
    decompress(payload, numel): the (numel,) gradient that a payload stands for. One
    all_gather for each tensor of the payload, no other communication.
    """
    gathered = []  # for each tensor of the payload, a list with those of all ranks
    for tensor in payload:
        ### BEGIN SOLUTION
        parts = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(parts, tensor)
        gathered.append(parts)
        ### END SOLUTION
    ### BEGIN SOLUTION
    return sum(decompress(of_rank, numel) for of_rank in zip(*gathered)) / world_size
    ### END SOLUTION

# %% check="mean-of-gathered" judges="values" points=3
check(mean_of_gathered, judges="values")

# %% check="mean-of-gathered" judges="traffic" points=1
check(mean_of_gathered, judges="traffic")

# %% [markdown]
# A **compressor** is now a pair of functions: `compress(x)` makes a payload, a tuple of tensors; `decompress(payload,
# numel)` turns it back into a gradient. Here are int8 and int4, with the bytes that real ranks send, counted from the
# record. "Handed in" is what a rank gives to the collective, "sent" is what a ring makes of it.

# %%
BLOCK = 256

def compress_int8(x):
    return quantise(x, BLOCK, 127, torch.round)

def decompress_int8(payload, numel):
    return dequantise(*payload, BLOCK)

def compress_int4(x):
    codes, scales = quantise(x, BLOCK, 7, torch.round)
    return pack_nibbles(codes), scales

def decompress_int4(payload, numel):
    return dequantise(unpack_nibbles(payload[0], numel), payload[1], BLOCK)

# %% tags=["notebook-only"]
def exchange(rank, world_size, how, numel=4096):
    x = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
    return how(x, rank=rank, world_size=world_size)

def gathered_mean(x, compress, decompress, rank, world_size):
    return mean_of_gathered(compress(x), len(x), decompress, rank, world_size)

def show_bytes(methods, ranks=4):
    for name, how in methods.items():
        traffic = spawn(exchange, ranks, how).traffic()
        handed_in = sum(each.handed_in for each in traffic.collectives[0].values())
        called = ", ".join(traffic.collectives[0])
        print(
            f"{name:15} {called:10} {handed_in:6,} bytes handed in, "
            f"{traffic.implied(0):6,} sent"
        )

def dense(x, rank, world_size):
    dist.all_reduce(x)
    return x / world_size

show_bytes({
    "float32": dense,
    "bfloat16": partial(mean_in_half, dtype=torch.bfloat16),
    "int8": partial(gathered_mean, compress=compress_int8, decompress=decompress_int8),
    "int4": partial(gathered_mean, compress=compress_int4, decompress=decompress_int4),
})

# %%
equal = next(
    ranks for ranks in range(2, 100) if (ranks - 1) * 1 >= 2 * (ranks - 1) / ranks * 4
)

# %%
reveal(
    "ranks at which int8 saves nothing",
    equal,
    why="A number costs $P - 1$ bytes in one and $8 (P-1)/P$ in the other. With more ranks, gathering int8 is worse.",
)

# %% [markdown]
# On 4 ranks int8 sends no less than bfloat16: a quarter of the bytes, gathered instead of reduced. Large systems
# therefore work in two phases, as a ring does. Each rank decompresses and adds only **one chunk** (an all-to-all),
# compresses the sum again, and gathers the chunks. That sends $2\frac{P-1}{P} m$, at the price of rounding twice.

# %% [markdown]
# ## Majority of signs
#
# One bit per number is enough for its sign. Its size is lost: each rank casts one vote, and the **majority** decides in
# which direction a weight moves. (Bernstein and others, *signSGD*, 2018.) PyTorch has no tensors of bits. The kit's
# `pack_bits(flags)` puts 8 flags into each byte, and `unpack_bits(packed, numel)` takes them out again.

# %% exercise="majority" difficulty=2 minutes=7
def majority(x: Tensor, rank: int, world_size: int) -> Tensor:
    """For each entry +1 if it is positive on more than half of the ranks, -1 if on
    fewer, 0 if on exactly half.

    x: (n,), different values on each rank, none 0; left unchanged. Returns (n,) in
    the dtype of x. One all_gather of ceil(n / 8) bytes, no other communication.
    """
    mine = pack_bits(x > 0)
    ### BEGIN SOLUTION
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    votes = sum(unpack_bits(part, len(x)).to(x.dtype) for part in parts)
    return torch.sign(2 * votes - world_size)
    ### END SOLUTION

# %% check="majority" judges="values" points=3
check(majority, judges="values")

# %% check="majority" judges="traffic" points=1
check(majority, judges="traffic")

# %% [markdown]
# As a compressor, signs need one more number, a typical size: the mean of $|x|$. Below are 48 entries of a made-up
# gradient, most of them small and a few large, as in real ones, and what arrives of them.

# %%
def compress_sign(x):
    return pack_bits(x > 0), x.abs().mean().view(1)

def decompress_sign(payload, numel):
    return (2 * unpack_bits(payload[0], numel).to(payload[1].dtype) - 1) * payload[1]

sample = torch.randn(48, generator=torch.Generator().manual_seed(1)) ** 3
arrives = {
    "int8": decompress_int8(compress_int8(sample), 48),
    "int4": decompress_int4(compress_int4(sample), 48),
    "1 bit and the mean": decompress_sign(compress_sign(sample), 48),
}
figures.compressed(sample.tolist(), {name: x.tolist() for name, x in arrives.items()})

# %% [markdown]
# # Part 2 · Fewer numbers
# Most entries of a gradient are small. Why send them at all?

# %% [markdown]
# ## Top-k
#
# Each rank sends its $k$ entries of largest magnitude, with their **indices**, since the others can't know which they
# are. The rest count as zero.
#
# **Predict** the bytes that a rank hands in for 10 float32 numbers with int32 indices. And say what would happen if you
# all-reduced the 10 values instead of gathering them:

# %%
predict("bytes for k = 10", ...)
predict(
    "all-reduced values are",
    ...,
    choices=["the sum of the gradients", "sums of unrelated numbers"],
)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# `x[indices]` are the values, with their signs. Two ranks may send the same index. What should `mean` hold there?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# `mean[places] = values` and `mean[places] += values` both keep only **one** of several values with the same index.
# `mean.index_add_(0, places, values)` adds them all.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Gather values and indices into lists, and join each list with `torch.cat`: that is one long list of (place, value)
# pairs from all ranks. Add the pairs to zeros, then divide by the number of ranks.
# </details>

# %% exercise="top-k-mean" difficulty=3 minutes=10
def top_k_mean(x: Tensor, k: int, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """(mean, sent): the mean over all ranks of what they send, and what this rank
    sends, both dense.

    x: (n,), float32, different on each rank; left unchanged. Each rank sends its k
    entries of largest magnitude and their indices as int32, in two all_gathers; no
    other communication. In `sent`, (n,), all other entries are 0.
    """
    indices = x.abs().topk(k).indices
    ### BEGIN SOLUTION
    mine = (x[indices], indices.to(torch.int32))
    gathered = []
    for tensor in mine:
        parts = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(parts, tensor)
        gathered.append(torch.cat(parts))
    values, places = gathered
    mean = torch.zeros_like(x).index_add(0, places, values) / world_size
    sent = torch.zeros_like(x).index_add(0, *reversed(mine))
    ### END SOLUTION
    return mean, sent

# %% check="top-k-mean" judges="values" points=4
check(top_k_mean, judges="values")

# %% check="top-k-mean" judges="traffic" points=2
check(top_k_mean, judges="traffic")

# %% tags=["notebook-only"]
handed_in = (
    spawn(exchange, 2, partial(top_k_mean, k=10))
    .traffic()
    .collectives[0]["all_gather"]
    .handed_in
)

# %%
reveal("bytes for k = 10", handed_in, unit="B", why="4 for each value, 4 for each index: an index costs as much.")
reveal(
    "all-reduced values are",
    "sums of unrelated numbers",
    why="The first value of rank 0 may be entry 17, and that of rank 1 entry 4,000. An all-reduce adds by position.",
)

# %% [markdown]
# ### A threshold instead of k
# To find the $k$ largest, everything has to be sorted, at least roughly. It is cheaper to send all entries above a
# fixed **threshold**. But then each rank has a different number of them, and a gather wants equal sizes. So first
# everybody gathers the counts, then pads to the largest:

# %%
def threshold_mean(x, threshold, rank, world_size):
    indices = (x.abs() > threshold).nonzero().flatten().to(torch.int32)
    counts = [torch.zeros(1, dtype=torch.int32) for _ in range(world_size)]
    dist.all_gather(counts, torch.tensor([len(indices)], dtype=torch.int32))
    room = max(count.item() for count in counts)
    mean = torch.zeros_like(x)
    values, places = [
        nn.functional.pad(mine, (0, room - len(mine))) for mine in (x[indices], indices)
    ]
    all_values, all_places = [
        [torch.empty_like(mine) for _ in counts] for mine in (values, places)
    ]
    dist.all_gather(all_values, values)
    dist.all_gather(all_places, places)
    for theirs, where in zip(all_values, all_places):
        mean.index_add_(0, where, theirs / world_size)  # the padding adds 0 at place 0
    return mean

# %% tags=["notebook-only"]
run = spawn(exchange, 4, partial(threshold_mean, threshold=2.5))
for rank in range(4):
    print(
        f"rank {rank}:",
        [event.bytes for event in run.events if event.rank == rank],
        "bytes",
    )

# %% [markdown]
# Three gathers, and every rank sends as much as the one with the most. Worse, gradients shrink as training goes on. A
# threshold that sends 1 % today sends nothing next week, so it has to follow them.

# %% [markdown]
# ## Random-k
#
# What if all ranks choose **the same** $k$ entries? Then nobody has to send indices, and the values can be
# **all-reduced** after all. Entries chosen at random will do, if all ranks draw them with the same seed, a new one in
# each step. Draw $k$ different entries, not a window of neighbours, which are often alike. Each entry arrives
# in only $k$ of $n$ steps, so multiply by $n / k$, and the result is unbiased.

# %% exercise="random-k-mean" difficulty=2 minutes=6
def random_k_mean(x: Tensor, k: int, seed: int, rank: int, world_size: int) -> Tensor:
    """An unbiased estimate of the mean over all ranks: k entries, any k of them equally
    likely, times n / k; all others are 0.

    x: (n,), different on each rank; left unchanged. seed: the same on every rank, a
    different one in each step; it alone decides which entries are sent. One all_reduce
    of k numbers, no other communication.
    """
    generator = torch.Generator().manual_seed(seed)
    ### BEGIN SOLUTION
    indices = torch.randperm(len(x), generator=generator)[:k]
    values = x[indices]
    dist.all_reduce(values)
    mean = torch.zeros_like(x)
    mean[indices] = values * (len(x) / k / world_size)
    return mean
    ### END SOLUTION

# %% check="random-k-mean" judges="values" points=3
check(random_k_mean, judges="values")

# %% check="random-k-mean" judges="traffic" points=1
check(random_k_mean, judges="traffic")

# %% [markdown]
# How good are they at the same number of bytes? Here, the share of a gradient's squared length that arrives (for
# random-k without the factor $n/k$), for a gradient whose entries have very different sizes, as real ones have:

# %%
uneven = torch.randn(10_000, generator=torch.Generator().manual_seed(2)) ** 3
for k in (50, 500):
    best = uneven.abs().topk(k).values.square().sum() / uneven.square().sum()
    print(
        f"k = {k}, 8 bytes each: top-k {best:.1%}     k = {2 * k}, 4 bytes each: "
        f"random-k {2 * k / 10_000:.1%}"
    )

# %% [markdown]
# Top-k sends half as many numbers for the same bytes, and yet far more of what counts.

# %% [markdown]
# # Part 3 · What isn't sent now is sent later
# Two ranks, two weights, and top-1. Rank 0's loss is $\frac12 |w|^2 + 10 w_0 + w_1$, and rank 1's is
# $\frac12 |w|^2 - 10 w_0 + w_1$. In the mean the tens cancel, and the best weights are $(0, -1)$. Start at $(0, 0)$:

# %% tags=["notebook-only"]
def tug_of_war(rank, world_size):
    w = torch.zeros(2)
    for _ in range(600):
        gradient = w + torch.tensor([10.0 if rank == 0 else -10.0, 1.0])
        mean, sent = top_k_mean(gradient, 1, rank, world_size)
        w -= 0.01 * mean
    return [round(each, 2) for each in w.tolist()]

spawn(tug_of_war, 2).results[0]

# %% [markdown]
# After 600 steps nothing has moved. Each rank sends its largest entry, the 10 or the -10; they cancel; and the small
# entry on which both agree never gets a turn. Top-k is **biased**, and patience doesn't help.
#
# The cure is to forget nothing. Each rank keeps what it didn't send, its **residual**, and adds it to the next
# gradient. The 1 that isn't sent today is a 2 tomorrow, and sooner or later it is larger than the 10. This is called
# **error feedback**:
#
# $$ c_t = g_t + e_t \qquad \text{send } \hat c_t \qquad e_{t+1} = c_t - \hat c_t $$

# %% [markdown]
# ## Error feedback
#
# Each rank has a residual of its own. So subtract what **this rank** has sent, not the mean that everybody receives.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Three quantities per step: what the rank would like to send, what it does send, and the difference between them.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# What it would like to send is not just the gradient. It still owes the residual.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Hand the sum of the two to `compressed_mean`. The new residual is that sum without what this rank has sent; the
# mean doesn't come into it.
# </details>

# %% exercise="feedback-step" difficulty=3 minutes=8
def feedback_step(
    gradient: Tensor, residual: Tensor, compressed_mean, rank: int, world_size: int
) -> tuple[Tensor, Tensor]:
    """(mean, residual): the mean of what all ranks send, and this rank's new residual.

    gradient, residual: (n,), this rank's; left unchanged. In the first step the
    residual is 0. compressed_mean(x, rank=rank, world_size=world_size) returns (mean,
    sent), as top_k_mean does. All ranks must call it once; this function makes no other
    communication.
    """
    ### BEGIN SOLUTION
    corrected = gradient + residual
    mean, sent = compressed_mean(corrected, rank=rank, world_size=world_size)
    return mean, corrected - sent
    ### END SOLUTION

# %% check="feedback-step" judges="values" points=4
check(feedback_step, judges="values")

# %% tags=["notebook-only"]
def with_feedback(rank, world_size):
    w, residual = torch.zeros(2), torch.zeros(2)
    for _ in range(600):
        gradient = w + torch.tensor([10.0 if rank == 0 else -10.0, 1.0])
        mean, residual = feedback_step(
            gradient, residual, partial(top_k_mean, k=1), rank, world_size
        )
        w -= 0.01 * mean
    return [round(each, 2) for each in w.tolist()]

spawn(with_feedback, 2).results[0]

# %% [markdown]
# ### A network that needs it
# Two weights are a toy. Here is an MLP with 2,128 parameters that learns to imitate a teacher, on 2 ranks with
# different rows, with plain SGD, 200 steps. We send 1 % of the entries: 21 of 2,128. One run proves little, so we train
# three times, each time from different weights and with a different teacher, and print the median loss with the lowest
# and the highest. Each method takes a few seconds.
#
# **Predict** the loss at the end without feedback. It starts at about 0.4; with whole gradients it ends at about 0.022.

# %%
predict(
    "without feedback the loss ends",
    ...,
    choices=["below 0.05", "between 0.05 and 0.15", "above 0.15"],
)

# %% tags=["notebook-only"]
# With seed 2, which is left out, the loss jumps at a step that depends on rounding.
STEPS, SEEDS = 200, (0, 1, 4)

def train(rank, world_size, method, feedback, seed):
    """Returns this rank's losses, and how far what arrived is behind the true sum, in
    every twentieth step.
    """
    model, (inputs, targets) = make_student(seed), make_lessons(rank, seed=seed)
    parameters = list(model.parameters())
    weights = nn.utils.parameters_to_vector(parameters).detach()
    nn.utils.vector_to_parameters(weights, parameters)  # now views of `weights`
    losses, behind, mine, arrived, residual = [], {}, 0, 0, torch.zeros(2128)
    for number in range(STEPS):
        loss = imitation(model(inputs), targets)
        gradients = torch.autograd.grad(loss, parameters)
        gradient = torch.cat([each.flatten() for each in gradients])
        if feedback:
            mean, residual = feedback_step(gradient, residual, method, rank, world_size)
        else:
            mean, _ = method(gradient, rank=rank, world_size=world_size)
        mine, arrived = mine + gradient, arrived + mean
        if number % 20 == 0:  # only to compare
            true = mine.clone()
            dist.all_reduce(true)
            behind[number] = (true / world_size - arrived).norm().item()
        weights -= mean  # SGD at a learning rate of 1
        losses.append(loss.item())
    return losses, behind

def train_often(rank, world_size, method, feedback):
    return [train(rank, world_size, method, feedback, seed) for seed in SEEDS]

def whole(x, rank, world_size):
    return dense(x.clone(), rank, world_size), x

found = {}

def compare(name, method, feedback):
    found[name] = spawn(train_often, 2, method, feedback).results[0]
    losses = [losses for losses, _ in found[name]]
    for step in (60, 140, STEPS):
        low, middle, high = sorted(each[step - 1] for each in losses)
        print(f"{name:17} after {step:3} steps:", end=" ")
        print(f"loss {middle:.3f} ({low:.3f} to {high:.3f})")

top = partial(top_k_mean, k=21)
compare("whole gradients", whole, feedback=False)
compare("top 1 %", top, feedback=False)
compare("top 1 %, feedback", top, feedback=True)

stuck = sorted(losses[-1] for losses, _ in found["top 1 %"])[1]
ends = "below 0.05" if stuck < 0.05 else "between 0.05 and 0.15"
ends = "above 0.15" if stuck > 0.15 else ends

# %%
reveal(
    "without feedback the loss ends",
    ends,
    why="The largest entries take all the turns. What is small but points the same way in every step never arrives.",
)

# %% [markdown]
# Signs are biased, too. Do they need feedback as badly?

# %% tags=["notebook-only"]
def signs(x, rank, world_size):
    payload = compress_sign(x)
    sent = decompress_sign(payload, len(x))
    return mean_of_gathered(payload, len(x), decompress_sign, rank, world_size), sent

compare("signs", signs, feedback=False)
compare("signs, feedback", signs, feedback=True)

# %% tags=["notebook-only"]
losses_of = {name: [losses for losses, _ in runs] for name, runs in found.items()}
figures.over_steps(losses_of, "loss on rank 0: median and range of three runs", "loss")

# %% [markdown]
# What do these runs show, and what don't they? Top 1 % without feedback stays far above the rest in all three. With
# feedback it gets there, but later: after 60 steps its loss is about twice that of whole gradients, and after 200 it is
# about where theirs was after 140. Signs lose less: even without feedback they train, though more slowly, and with it
# the range of their three losses after 200 steps overlaps that of whole gradients. So here feedback decides whether
# top-k works, but for signs only how fast. This is one small problem with a fixed batch and plain SGD. How much a large
# model would lose, you only learn by training it.
#
# The **accumulated** error shows why: how far the sum of all that has arrived lags behind the sum of the true
# gradients.

# %% tags=["notebook-only"]
lags = {
    name: [behind for _, behind in runs]
    for name, runs in found.items()
    if name != "whole gradients"
}
figures.over_steps(
    lags,
    "what hasn't arrived yet: median and range of three runs",
    "length of the accumulated error",
)

# %% [markdown]
# Without feedback the errors of all steps add up. With it, the accumulated error **is** the mean of the residuals, and
# residuals stop growing: an entry that has waited a long time is large, and gets sent. So nothing is lost; it only
# arrives late. (For an unbiased compressor, such as stochastic rounding, errors cancel without feedback as well, but
# only on average: their length still grows like the square root of the number of steps.)

# %% [markdown]
# # Part 4 · Thin matrices
# The gradient of a layer is a matrix, and a matrix of low rank can hold much of it. One of rank $r$ is a product
# $P Q^T$ of two thin ones, with $P$ of shape $(m, r)$ and $Q$ of shape $(n, r)$. **PowerSGD** (Vogels and others, 2019)
# sends these. And it sends them by **all-reduce**, since both are linear in the gradient $M$ as long as the other is
# fixed:
#
# 1. $P = M Q$, with last step's $Q$: sum over the ranks
# 2. make the columns of $P$ **orthonormal**
# 3. $Q = M^T P$: mean over the ranks
# 4. every rank has the same $\hat M = P Q^T$
#
# This is one step of the power iteration, which finds the best $P$ and $Q$ if repeated often enough. PowerSGD takes one
# step per training step, starting from the last $Q$ (**warm start**): gradients change slowly, so the iteration keeps
# up with them. What $\hat M$ lacks stays in the residual.
#
# **Predict** for a 1024 x 1024 matrix and $r = 4$: how many times fewer numbers are handed in?

# %%
predict("times fewer numbers", ...)

# %% [markdown]
# ## PowerSGD
#
# Now write one such step, for one matrix, with the residual added before it and returned after it.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The four steps above, in this order. Where a product of the local matrix is formed, a sum over the ranks follows.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# `torch.linalg.qr(p)` returns two matrices. The first has orthonormal columns that span what the columns of `p` span.
# Do it after the all-reduce: afterwards all ranks must hold the same `p`.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# `P` needs no division by the number of ranks, since its length is lost in step 2. `Q` does, since it carries the
# length. `all_reduce` wants a contiguous tensor and works in place; `corrected.T @ p` makes a new one.
# </details>

# %% exercise="power-sgd" difficulty=4 minutes=15
def power_sgd(
    gradient: Tensor, q: Tensor, residual: Tensor, rank: int, world_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(approximation, q, residual): one step of PowerSGD.

    gradient, residual: (m, n), this rank's. q: (n, r), the same on every rank, r <= m
    and r <= n, full rank. All are left unchanged. Returns the approximation of the mean
    of gradient + residual over all ranks, (m, n), of rank r, the same on every rank; q
    for the next step, (n, r); and what the approximation lacks of this rank's own
    gradient + residual. Two all_reduces, of m r and of n r numbers.
    """
    corrected = gradient + residual
    ### BEGIN SOLUTION
    p = corrected @ q
    dist.all_reduce(p)
    p, _ = torch.linalg.qr(p)  # orthonormal columns that span the same space
    q = corrected.T @ p
    dist.all_reduce(q)
    q /= world_size
    ### END SOLUTION
    approximation = p @ q.T
    return approximation, q, corrected - approximation

# %% check="power-sgd" judges="values" points=5
check(power_sgd, judges="values")

# %% check="power-sgd" judges="traffic" points=2
check(power_sgd, judges="traffic")

# %% tags=["notebook-only"]
def thin(rank, world_size, dim=1024, r=4):
    return power_sgd(
        torch.randn(dim, dim),
        torch.randn(dim, r),
        torch.zeros(dim, dim),
        rank,
        world_size,
    )[0].shape

traffic = spawn(thin, 2).traffic().collectives[0]["all_reduce"]

# %%
reveal("times fewer numbers", 1024 * 1024 * 4 / traffic.handed_in, why="$m n / (r (m + n))$, here 1024 / 8.")

# %% [markdown]
# ### How much a low rank can hold
# How much of a real gradient does a matrix of rank $r$ hold? The gradient of the middle layer of our MLP, 32 x 32,
# after ten steps with the same gradient (so that the iteration has converged), compared with the best that is possible,
# from the singular values:

# %% tags=["notebook-only"]
def middle_layer(rank, world_size):
    model, (inputs, targets) = make_student(), make_lessons(0)
    imitation(model(inputs), targets).backward()
    matrix = model[2].weight.grad
    singular = torch.linalg.svdvals(matrix)
    rows = []
    for r in (1, 2, 4, 8):
        q = torch.randn(32, r, generator=torch.Generator().manual_seed(0))
        errors = []
        for _ in range(10):
            approximation, q, _ = power_sgd(
                matrix, q, torch.zeros_like(matrix), rank, world_size
            )
            errors.append(((matrix - approximation).norm() / matrix.norm()).item())
        rows.append(
            (r, errors[0], errors[-1], (singular[r:].norm() / singular.norm()).item())
        )
    return rows

for r, first, last, best in spawn(middle_layer, 1).results[0]:
    print(
        f"rank {r}: error {first:.0%} after one step, {last:.0%} after ten, {best:.0%} "
        "is the least possible"
    )

# %% [markdown]
# In this small layer a matrix of rank 4 misses almost half of the gradient. Without feedback that would be far too
# much; with it, the other half is only late. And ten steps find the best matrix that there is, to the digits shown.
#
# ### All of them, side by side
# A 64 x 64 gradient in float32 on 4 real ranks, each method with what it hands in and what a ring makes of that:

# %% tags=["notebook-only"]
def thin_mean(x, rank, world_size, r=2):
    q = torch.randn(64, r, generator=torch.Generator().manual_seed(0))
    return power_sgd(x.view(64, 64), q, torch.zeros(64, 64), rank, world_size)[0]

show_bytes({
    "float32": dense,
    "bfloat16": partial(mean_in_half, dtype=torch.bfloat16),
    "int8": partial(gathered_mean, compress=compress_int8, decompress=decompress_int8),
    "int4": partial(gathered_mean, compress=compress_int4, decompress=decompress_int4),
    "majority": majority,
    "top 1 %": partial(top_k_mean, k=41),
    "above 2.5": partial(threshold_mean, threshold=2.5),
    "random 1 %": partial(random_k_mean, k=41, seed=0),
    "PowerSGD, r = 2": thin_mean,
})

# %% [markdown]
# # Part 5 · In the backward pass
# Lesson 05 started the all-reduce of a bucket as soon as its gradients were there, and let the backward pass continue.
# Compression belongs in the same place. The kit's `DataParallel` is that lesson's result, with a **hook** in place of
# the all-reduce:
#
# ```python
# replica = DataParallel(model, hook=all_reduce_mean, cap=25 * 2**20)
# loss = loss_of(replica(rows))
# replica.backward(loss)              # each p.grad is then what the hook left in its bucket
# ```
#
# A hook is called with a bucket that is complete: `bucket.index` is its number, `bucket.flat` its gradients in one
# tensor. It **starts** the communication and returns a function `finish()`, which will be called after the backward
# pass. `finish` waits, and writes into `bucket.flat` the gradients that the optimizer is to use. Here is the hook for
# 16 bits:

# %%
def half_hook(bucket, world_size):
    half = (bucket.flat / world_size).to(torch.float16)
    handle = dist.all_reduce(half, async_op=True)

    def finish():
        handle.wait()
        bucket.flat.copy_(half)

    return finish

# %% [markdown]
# ## A hook for any compressor
#
# One hook for all compressors of parts 1 and 2, with error feedback. Each bucket has a residual of its own, which must
# live from one step to the next.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# It is `feedback_step` and `mean_of_gathered` in one, cut in two where the waiting begins. What must happen before
# `return finish`, and what can only happen after the last message has arrived?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# The residual doesn't depend on other ranks. It can be computed at once, while the network is busy. Look it up by
# `bucket.index`; in the first step there is none, and `residuals.get(bucket.index, 0)` gives 0.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# `dist.all_gather(parts, tensor, async_op=True)` returns a handle. Keep `parts` and the handle; `finish` sees them,
# because it is defined inside. Write with `bucket.flat.copy_(...)`. With `bucket.flat = ...` the gradients, which are
# views of the old tensor, would stay as they were.
# </details>

# %% exercise="compressed-hook" difficulty=4 minutes=15
def compressed_hook(
    bucket, compress, decompress, residuals: dict, rank: int, world_size: int
):
    """A hook for DataParallel: compress, gather, decompress, average; error feedback.

    bucket.flat: (n,), this rank's gradients; finish() writes into it the mean of what
    all ranks have sent. compress(x) makes a payload of (n,) numbers, a tuple of
    tensors; decompress(payload, n) makes (n,) numbers of it.
    residuals: {bucket.index: (n,)}, kept from step to step, empty in the first. One
    all_gather for each tensor of the payload, without blocking; all of them start
    before this returns.
    """
    numel = len(bucket.flat)
    ### BEGIN SOLUTION
    corrected = bucket.flat + residuals.get(bucket.index, 0)
    payload = compress(corrected)
    residuals[bucket.index] = corrected - decompress(payload, numel)
    gathered, handles = [], []
    for tensor in payload:
        gathered.append([torch.empty_like(tensor) for _ in range(world_size)])
        handles.append(dist.all_gather(gathered[-1], tensor, async_op=True))
    ### END SOLUTION

    def finish() -> None:
        ### BEGIN SOLUTION
        for handle in handles:
            handle.wait()
        total = sum(decompress(theirs, numel) for theirs in zip(*gathered))
        bucket.flat.copy_(total / world_size)
        ### END SOLUTION

    return finish

# %% check="compressed-hook" judges="values" points=4
check(compressed_hook, judges="values")

# %% check="compressed-hook" judges="traffic" points=2
check(compressed_hook, judges="traffic")

# %% check="compressed-hook" judges="time" points=2
check(compressed_hook, judges="time")

# %% [markdown]
# Top-k is a compressor now, too:

# %%
def compress_top(x, share=0.01):
    k = max(1, round(share * len(x)))
    indices = x.abs().topk(k).indices
    return x[indices], indices.to(torch.int32)

def decompress_top(payload, numel):
    values, indices = payload
    return torch.zeros(numel, dtype=values.dtype, device=values.device).index_add(
        0, indices, values
    )

COMPRESSORS = {
    "int8": (compress_int8, decompress_int8),
    "1 bit": (compress_sign, decompress_sign),
    "top 1 %": (compress_top, decompress_top),
}

# %% [markdown]
# PowerSGD doesn't fit into that hook, since it reduces twice. Here it is as a hook of its own. The sum of $P$ starts in
# the backward pass. That of $Q$ can only start when $P$ is there, so it is not hidden. Biases aren't matrices, and
# travel whole.

# %%
class PowerHook:
    def __init__(self, r):
        self.r, self.qs, self.owed = r, {}, {}  # the last two by bucket

    def thin(self, gradient):
        return gradient.ndim == 2 and self.r * sum(gradient.shape) < gradient.numel()

    def __call__(self, bucket):
        matrices = [each for each in bucket.gradients if self.thin(each)]
        others = [each for each in bucket.gradients if not self.thin(each)]
        if bucket.index not in self.qs:
            first = [
                torch.randn(
                    m.shape[1], self.r, generator=torch.Generator().manual_seed(0)
                )
                for m in matrices
            ]
            self.qs[bucket.index] = [q.to(m) for q, m in zip(first, matrices)]
        bucket.flat += self.owed.get(bucket.index, 0)
        corrected = bucket.flat.clone()
        ps = [matrix @ q for matrix, q in zip(matrices, self.qs[bucket.index])]
        travels = torch.cat([each.flatten() for each in (*ps, *others)])
        handle = dist.all_reduce(travels, async_op=True)

        def finish():
            handle.wait()
            pieces = travels.split([each.numel() for each in (*ps, *others)])
            for whole, piece in zip(others, pieces[len(ps) :]):
                whole.copy_(piece.view_as(whole) / dist.get_world_size())
            bases = [
                torch.linalg.qr(piece.view_as(p).float())[0].to(p)
                for p, piece in zip(ps, pieces)
            ]
            qs = [matrix.T @ p for matrix, p in zip(matrices, bases)]
            if qs:
                together = torch.cat([q.flatten() for q in qs])
                dist.all_reduce(together)
                together /= dist.get_world_size()
                qs = [
                    part.view_as(q)
                    for q, part in zip(qs, together.split([q.numel() for q in qs]))
                ]
            for matrix, p, q in zip(matrices, bases, qs):
                matrix.copy_(p @ q.T)
            self.qs[bucket.index], self.owed[bucket.index] = qs, corrected - bucket.flat

        return finish

# %% [markdown]
# All of them at work, in buckets of 4 kB, over 50 steps:

# %% tags=["notebook-only"]
def train_with(rank, world_size, hook, steps=50):
    replica, (inputs, targets) = (
        DataParallel(make_student(), hook, cap=4096),
        make_lessons(rank),
    )
    optimizer = torch.optim.SGD(replica.parameters(), lr=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = imitation(replica(inputs), targets)
        replica.backward(loss)
        optimizer.step()
    return loss.item()

def hook_of(name, rank, world_size):
    if name == "PowerSGD":
        return PowerHook(r=4)
    if name == "whole":
        return all_reduce_mean
    if name == "half":
        return partial(half_hook, world_size=world_size)
    compress, decompress = COMPRESSORS[name]
    more = {"compress": compress, "decompress": decompress, "residuals": {}}
    return partial(compressed_hook, **more, rank=rank, world_size=world_size)

def train_named(rank, world_size, name):
    return train_with(rank, world_size, hook_of(name, rank, world_size))

METHODS = ("whole", *COMPRESSORS, "PowerSGD")
for name in ("half", *METHODS):
    run = spawn(train_named, 2, name)
    handed_in = sum(each.handed_in for each in run.traffic().collectives[0].values())
    print(
        f"{name:8} loss {run.results[0]:.3f}, {handed_in / 50:8,.0f} bytes handed in "
        "per step"
    )

# %% [markdown]
# ### Compared with torch's own hooks
# PyTorch's DDP takes hooks as well: `model.register_comm_hook(state, hook)`. Its hooks get a `GradBucket` and return a
# **future**, which does the job of `finish`. Two come with it: `fp16_compress_hook`, and `powerSGD_hook` with a
# `PowerSGDState`. Do they compute what yours do? One layer of 16 x 16 in float64, two ranks, three steps with the same
# weights and new rows.

# %% tags=["notebook-only"]
double = torch.float64

def torchs(rank, world_size, state, hook, steps=3):
    model = DistributedDataParallel(MLP(make_weights(1, 16, dtype=double)))
    model.register_comm_hook(state, hook)
    found = []
    for step in range(steps):
        model.zero_grad()
        loss_of(
            model(make_batch(4, 16, seed=10 * step + rank, dtype=double))
        ).backward()
        found.append(model.module.weights[0].grad.clone())
    return found

def torchs_half(rank, world_size):
    return torchs(rank, world_size, None, fp16_compress_hook)

def torchs_power(rank, world_size):
    # its first steps are ordinary ones: it must not start earlier
    state = PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=7
    )
    return torchs(rank, world_size, state, powerSGD_hook, steps=5)[2:]

def local_gradient(step, rank):
    model = MLP(make_weights(1, 16, dtype=double))
    loss_of(model(make_batch(4, 16, seed=10 * step + rank, dtype=double))).backward()
    return model.weights[0].grad

def our_half(rank, world_size):
    return [
        mean_in_half(local_gradient(step, rank), torch.float16, rank, world_size)
        for step in range(3)
    ]

def our_power(rank, world_size):
    import numpy

    # torch's way to draw the first Q
    torch.manual_seed(numpy.random.RandomState(7).randint(1_000_000_000))
    q = torch.randn(16, 2, dtype=double)
    residual = torch.zeros(16, 16, dtype=double)
    found = []
    for step in range(2, 5):
        approximation, q, residual = power_sgd(
            local_gradient(step, rank), q, residual, rank, world_size
        )
        found.append(approximation)
    return found

for name, theirs, ours in (
    ("fp16", torchs_half, our_half),
    ("PowerSGD", torchs_power, our_power),
):
    pairs = zip(spawn(theirs, 2).results[0], spawn(ours, 2).results[0])
    print(
        f"{name:8} same values:",
        [torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs],
    )

# %% [markdown]
# And the other way round: your hook, unchanged, inside torch's DDP. The adapter waits at once for what the hook has
# started, so nothing overlaps. To overlap, it would have to return a future that isn't complete yet.

# %% tags=["notebook-only"]
class TorchBucket:
    def __init__(self, bucket):
        self.index, self.flat = bucket.index(), bucket.buffer()

def for_torch(hook, bucket):
    mine = TorchBucket(bucket)
    hook(mine)()
    done = torch.futures.Future()
    done.set_result(mine.flat)
    return done

def one_step(rank, world_size, wrap):
    hook = hook_of("top 1 %", rank, world_size)
    inputs, targets = make_lessons(rank)
    model = make_student()
    if wrap == "torch":
        replica = DistributedDataParallel(model)
        replica.register_comm_hook(hook, for_torch)
        imitation(replica(inputs), targets).backward()
    else:
        replica = DataParallel(model, hook)
        replica.backward(imitation(replica(inputs), targets))
    # the two put parameters into a bucket in different orders
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return torch.cat(gradients).sort().values

ours, theirs = [spawn(one_step, 2, wrap).results[0] for wrap in ("ours", "torch")]
print("the same gradients:", torch.allclose(ours, theirs))

# %% [markdown]
# # Part 6 · When it pays
# Compressing itself takes time. Dividing, sorting and packing all read and write the whole gradient, on the same GPU
# that should be computing. Is the time saved on the network larger?

# %% [markdown]
# ## The break-even bandwidth
#
# Without compression a rank sends $2 \frac{P-1}{P} n$ bytes, in $2 (P-1)$ messages. With a payload of $m$ bytes in two
# tensors, as for int8 or top-k, it sends $(P-1)\, m$ bytes, in $2 (P-1)$ messages as well. So the latencies are equal,
# and what remains is the time for the bytes saved against the time $c$ for compressing and decompressing. At one
# bandwidth the two are equal: the **break-even bandwidth**. On slower networks compression pays, on faster ones it
# costs.

# %% exercise="break-even" difficulty=2 minutes=6
def break_even(
    dense_bytes: float, payload_bytes: float, codec_seconds: float, world_size: int
) -> float:
    """The bandwidth in bytes/s below which gathering payloads is faster than a ring
    all-reduce of whole gradients.

    dense_bytes: a whole gradient. payload_bytes: what one rank hands in. codec_seconds:
    for compressing and decompressing together, above 0. world_size: 2 or more.
    Latencies are equal. 0.0 if compression never pays.
    """
    ### BEGIN SOLUTION
    # bytes that each rank sends
    dense = 2 * (world_size - 1) / world_size * dense_bytes
    compressed = (world_size - 1) * payload_bytes
    return max(0.0, (dense - compressed) / codec_seconds)
    ### END SOLUTION

# %% check="break-even" judges="values" points=3
check(break_even, judges="values")

# %% [markdown]
# First the prediction, then the measurement. Eight H100 GPUs exchange 64 MB of gradients in bfloat16, whole or top 1 %.
# First on a network that costs nothing: that is the time for compressing and decompressing. From it, `break_even`
# predicts the bandwidth. Then on a network that is twice as slow, exactly as fast, and twice as fast.
#
# **Predict** first: on which side is the break-even?

# %%
predict(
    "break-even of top 1 %",
    ...,
    choices=["below 1 GB/s", "1 to 50 GB/s", "above 50 GB/s"],
)

# %% tags=["notebook-only"]
h100 = find_cluster("dgx-h100", 8).gpu

def connected(link, name="8 GPUs, one per node"):
    return Cluster(name, nodes=8, gpus_per_node=1, gpu=h100, intra=link, inter=link)

def exchange_once(rank, world_size, name, numel=32_000_000):
    gradient = torch.zeros(numel, dtype=torch.bfloat16)
    if name == "whole":
        dense(gradient, rank, world_size)
    else:
        gathered_mean(gradient, *COMPRESSORS[name], rank, world_size)

def simulated(program, name, cluster):
    # all ranks do the same, so one of them runs (lesson 05)
    return simulate(program, 8, name, cluster=cluster, alike=lambda rank: 0)

def seconds(name, bandwidth, alpha=5e-6):
    return simulated(exchange_once, name, connected(Link(alpha, bandwidth))).elapsed

nothing = {name: seconds(name, math.inf, alpha=0) for name in ("whole", *COMPRESSORS)}
codec = nothing["top 1 %"] - nothing["whole"]
at = break_even(64e6, 320_000 * (2 + 4), codec, 8)
print(
    f"compressing and decompressing takes {codec * 1e3:.2f} ms; break-even at "
    f"{at / 1e9:.0f} GB/s"
)
for factor in (0.5, 1, 2):
    whole, top = seconds("whole", factor * at), seconds("top 1 %", factor * at)
    print(
        f"{factor:3} times that bandwidth: whole {whole * 1e3:.2f} ms, top 1 % "
        f"{top * 1e3:.2f} ms"
    )

# %%
reveal(
    "break-even of top 1 %",
    "below 1 GB/s" if at < 1e9 else "above 50 GB/s" if at > 50e9 else "1 to 50 GB/s",
    why="The codec reads and writes the gradient many times, but at the 3.35 TB/s of the GPU's memory.",
)

# %% [markdown]
# A word of caution. The virtual GPU charges an operation for the bytes that it reads and writes, and a launch. A real
# top-k also has to sort, and takes several times as long; so this is the best case for the codec.
#
# ### Three networks
# Now a whole training step: 4 layers of 4096 x 4096 in bfloat16, 4,096 rows on each of 8 GPUs, hooks in the backward
# pass, a bucket for each layer. What counts here is not how long the exchange takes, but how much longer the **step**
# gets.

# %% tags=["notebook-only"]
def large_step(rank, world_size, name, layers=4, dim=4096, rows=4096):
    model = MLP(make_weights(layers, dim, dtype=torch.bfloat16))
    replica = DataParallel(model, hook_of(name, rank, world_size))
    shard = torch.empty(rows, dim, dtype=torch.bfloat16)
    with region("step"):
        replica.backward(loss_of(replica(shard)))

node = find_cluster("dgx-h100", 8)
CLUSTERS = {
    "NVLink, 450 GB/s": node,
    "InfiniBand, 50 GB/s": connected(node.inter),
    "Ethernet, 10 Gb/s": connected(Link(30e-6, 1.25e9)),
}
free = simulated(large_step, "whole", connected(Link(0, math.inf))).elapsed
print(f"computing alone {free * 1e3:.2f} ms. Exposed on top of it, in ms:")
print(f"{'':20}" + "".join(f"{name:>10}" for name in METHODS))
runs = {}
for network, cluster in CLUSTERS.items():
    runs[network] = [simulated(large_step, name, cluster) for name in METHODS]
    print(
        f"{network:20}"
        + "".join(f"{1e3 * (run.elapsed - free):10.2f}" for run in runs[network])
    )

# %% [markdown]
# Inside a node, compression makes the step **longer**. The whole gradients were hidden behind the backward pass anyway,
# except for the last bucket, so there was hardly anything to gain. The codec isn't hidden: it runs on the GPU that
# should be computing. Over slow Ethernet it is the other way round. There the network is all that counts, and without
# compression training would be hopeless.
#
# The int8 column teaches something else: on 8 ranks, gathering int8 sends **more** than reducing bfloat16. PowerSGD
# wins everywhere else: it reduces, sends least, and most of its codec consists of matrix products, which is what GPUs
# do best.
#
# Here is rank 0 inside the node, with top 1 % and, below it, with whole gradients. Most of the time is lost in
# `finish`, where each rank decompresses what all eight have sent.

# %% tags=["notebook-only"]
whole = runs["NVLink, 450 GB/s"][0]
top = runs["NVLink, 450 GB/s"][METHODS.index("top 1 %")]
titles = "A step with top 1 %", "A step with whole gradients"
top.timeline(within="step", ranks=[0], beside=whole, title=titles)

# %% [markdown]
# ### Outlook: exchange less often
# The largest factor of all comes from not exchanging gradients at every step. In **local SGD** each rank trains on its
# own for $H$ steps; then the ranks average their **weights**. **DiLoCo** (Douillard and others, 2023) does so with
# AdamW inside. It treats the averaged change of $H$ steps as a gradient, for a second optimizer with Nesterov momentum
# outside, and trains language models with $H = 500$ over ordinary internet connections. Here is the plain form, with
# $H = 100$, on our student:

# %% tags=["notebook-only"]
def local_sgd(rank, world_size, every, steps=300):
    model, (inputs, targets) = make_student(), make_lessons(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        imitation(model(inputs), targets).backward()
        optimizer.step()
        if step % every == 0:
            weights = nn.utils.parameters_to_vector(model.parameters()).detach()
            dist.all_reduce(weights)
            nn.utils.vector_to_parameters(weights / world_size, model.parameters())
    inputs, targets = [
        torch.cat(both)
        for both in zip(*(make_lessons(each) for each in range(world_size)))
    ]
    return imitation(model(inputs), targets).item()  # over the rows of all ranks

for every in (1, 100):
    run = spawn(local_sgd, 2, every)
    handed_in = run.traffic().collectives[0]["all_reduce"].handed_in
    print(f"every {every:3} steps: {handed_in:9,} bytes, loss {run.results[0]:.4f}")

# %% [markdown]
# A hundred times fewer bytes, and on this problem a loss that is only a little higher. It doesn't always go that well:
# the longer the ranks go without averaging, and the more their data differ, the worse the mean of their weights.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - **16 bits** can be summed on the way: divide first, then all-reduce. Half the bytes, and hardly any risk.
# - **int8 and int4** need scales, preferably one per block. Codes with different scales can't be summed: gather,
#   decompress, add. That costs $(P-1)\,m$ bytes in place of $2\frac{P-1}{P} n$.
# - **Stochastic rounding** is unbiased: errors cancel. Rounding to nearest, signs and top-k are biased: errors
#   accumulate, and training can stand still.
# - **Error feedback** keeps what wasn't sent and adds it to the next gradient. On our small problem, 1 % of the entries
#   then reach the same losses as whole gradients, only later; without it they stay far above them.
# - **Top-k** has different indices on each rank, so it must be gathered. **Random-k** with a common seed and
#   **PowerSGD** can be all-reduced.
# - Compression pays below the **break-even bandwidth**. Inside an NVLink node it mostly costs: the bytes were hidden
#   already, and the codec isn't.
#
# **The library.** `model.register_comm_hook(state, hook)` of PyTorch's DDP, with `fp16_compress_hook`,
# `bf16_compress_hook` and `powerSGD_hook` in `torch.distributed.algorithms.ddp_comm_hooks`.
#
# **The papers.** Alistarh and others: *QSGD* (2017), stochastic rounding with scales. Bernstein and others: *signSGD*
# (2018). Karimireddy and others: *Error Feedback Fixes SignSGD* (2019). Vogels, Karimireddy, Jaggi: *PowerSGD* (2019).
# Douillard and others: *DiLoCo* (2023).

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## Training over a slow network
# Two GPUs are connected by a link of 1 MB/s. They train the student for 60 steps of plain SGD, at a learning rate of 1.
# You write the hook. Combine what you like: send little in the first steps and more later, or only every other time.
# At the end the replicas must be equal, and the loss over the rows of both ranks must be at most 0.25.
#
# The score is the virtual time of all 60 steps. Par is top 2 % with error feedback. The limit is the time of the
# computing alone.

# %%
TWO_HOUSES = Cluster(
    "two houses",
    nodes=2,
    gpus_per_node=1,
    gpu=h100,
    intra=node.intra,
    inter=Link(50e-6, 1e6),
)

def try_hook(make_hook):
    run = simulate(train_student, 2, make_hook, cluster=TWO_HOUSES, device="cpu")
    losses, weights = zip(*run.results)
    equal = torch.allclose(*weights, atol=1e-5)
    print(
        f"{run.elapsed * 1e3:6.1f} ms, loss {sum(losses) / 2:.3f}, replicas equal: "
        f"{equal}"
    )

try_hook(partial(hook_of, "whole"))
try_hook(partial(hook_of, "int8"))

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# `try_hook(slow_network_hook)` prints the time and the loss. Divide the time by 60: how much of a step is computing,
# how much is latency, and how much is bytes?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# `compressed_hook` with `compress_top` is almost there. It needs a residual that lives as long as the training, and a
# share of the entries. How small may the share be before the loss ends above 0.25?
# </details>
# <details><summary>Hint 3: beyond par</summary>
#
# Every message costs the latency, however small it is. A step in which nothing is sent costs none, and with error
# feedback nothing is lost: the gradient waits in the residual. Then what is sent may be larger.
# </details>

# %% exercise="slow-network-hook" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def slow_network_hook(rank: int, world_size: int):
    """A hook for DataParallel, made once on each rank, before the first step.

    hook(bucket): called once in each backward pass, with all gradients in one bucket,
    bucket.flat: (2128,), float32. Returns finish(), which leaves in bucket.flat what
    the optimizer is to use: the same numbers on every rank.
    """
    ### BEGIN SOLUTION
    residual = torch.zeros(1)

    def hook(bucket):
        nonlocal residual
        owed = bucket.flat + residual
        indices = owed.abs().topk(len(owed) // 100).indices
        residual = owed.index_fill(0, indices, 0)
        mine = owed[indices], indices.to(torch.int32)
        parts = [[torch.empty_like(tensor) for _ in range(world_size)] for tensor in mine]
        handles = [dist.all_gather(of_all, tensor, async_op=True) for of_all, tensor in zip(parts, mine)]

        def finish():
            for handle in handles:
                handle.wait()
            values, places = [torch.cat(of_all) for of_all in parts]
            bucket.flat.zero_().index_add_(0, places, values / world_size)

        return finish

    return hook
    ### END SOLUTION

# %% check="slow-network-hook" judges="score" points=3
check(slow_network_hook, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
