# %% [markdown] question="Which all-reduce is the fastest for how many bytes, on which network, and why?"
# # All-reduce from scratch
# *you need: lesson 01.*
#
# In data parallelism every GPU computes a gradient, and at every step all of them need the sum. That is one all-reduce
# of all gradients, step after step, for weeks. So people have looked for good algorithms for decades.
#
# You write the important ones, from plain messages: through one rank, a tree, a ring, halving and doubling, and one for
# machines that are many nodes of many GPUs. By the end you can say which of them is fastest for how many bytes, and
# why, before you run it. Then you compare yours with the library's.

# %%
import math
import time
from collections import defaultdict
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from utils import figures, simulate, spawn
from utils.checks import checks_for
from utils.cluster import Cluster, Gpu, Layout, Link, cost
from utils.kit.predictions import how_predictions_went, predict, reveal

check = checks_for("02_all_reduce")
# this lesson computes on the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# peaks and bandwidths as promised: times can be computed by hand
simulate = partial(simulate, rates="datasheet")

# %% [markdown]
# ## Why: no single good way
# A message of $n$ bytes takes some time before its first byte arrives, however short it is: the **latency** $\alpha$.
# Then its bytes flow, $B$ of them a second: the **bandwidth**. So one message takes
#
# $$\alpha + \frac{n}{B}$$
#
# That is the **alpha-beta model** ($\beta = 1/B$). Take 1,024 GPUs with $\alpha$ = 5 µs and $B$ = 50 GB/s, and two
# all-reduces: the gradient of a model with 8 billion parameters (16 GB), and one number that says whether anybody's
# gradient has overflowed (4 bytes). The naive algorithm is lesson 01's: everything goes to one rank and comes back out.
# The times of a tree and a ring are the virtual cluster's; by the end you will have derived and checked them.

# %%
# only messages take time
free = Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=math.inf)
link = Link(alpha=5e-6, bandwidth=50e9)  # seconds; bytes a second, one way
machine = Cluster("1,024 GPUs", nodes=1, gpus_per_node=1024, gpu=free, intra=link, inter=link)
for what, nbytes in (("16 GB  ", 16e9), ("4 bytes", 4)):
    naive = 2 * 1023 * link.seconds(nbytes)
    prices = cost("all_reduce", nbytes, machine, Layout.of(machine, range(1024))).candidates
    print(f"{what}   naive {naive:10.6f} s   tree {prices['tree']:8.6f} s   ring {prices['ring']:8.6f} s")

# %% [markdown]
# For the gradient the ring takes less than a second, the tree ten times as long, the naive way eleven minutes. For the
# single number it is the other way round: the tree is a hundred times faster than the ring. There is no best
# all-reduce. There is a best one for $n$ bytes on $P$ ranks.

# %% [markdown]
# ## The rules of the game
# **A team.** Every function of this lesson gets a `team`, a list of ranks, and works among these ranks alone, in that
# order. A rank's position in the list is its **place**. Neighbours, roots and chunks go by place; messages go to ranks:
#
# ```python
# team = [5, 1, 3]            # three ranks of a world of six or more
# place = team.index(rank)    # on rank 5: 0. on rank 1: 1. on rank 3: 2
# size = len(team)            # 3. We write P for it in formulas
# team[place - 1]             # the rank on my left; place 0 gets team[-1], the last
# ```
#
# Most teams are simply all ranks, `list(range(world_size))`. Smaller ones come in Part 4, where one all-reduce is made
# of others among parts of the world.
#
# **Tensors** here are one-dimensional and contiguous, with any number of elements (even none) and any dtype. `x` is
# left unchanged; the result has memory of its own.
#
# **Everybody gets the same bits.** Floats don't add up to the same in every order: `(a + b) + c` and `a + (b + c)` may
# differ in the last digit. If each rank added in an order of its own, replicas of a model would drift apart. So each
# number is added up once, and the result is copied.
#
# **Only messages**: `send`, `recv`, `isend`, `irecv`. The checks look at three things:
#
# - **values**: every rank holds the right numbers,
# - **traffic**: how many messages each rank sent, and how many bytes,
# - **time** on a virtual cluster. There a rank can send one message and receive one at the same time, but not two in
#   the same direction. In the cluster below only messages take time: 10 µs each, and then 10 GB a second.

# %%
ALPHA, BANDWIDTH = 10e-6, 10e9  # seconds; bytes a second, one way

def textbook(gpus: int, nodes: int = 1, inter: Link = None) -> Cluster:
    """A cluster on which nothing takes time but messages. inter: the link between
    nodes, if it is a different one.
    """
    link = Link(ALPHA, BANDWIDTH)
    return Cluster("textbook", nodes, gpus, gpu=free, intra=link, inter=inter or link)

# %% [markdown]
# # Part 1 · Through one rank, and up a tree
# Two algorithms that send the whole tensor every time. They are short, and they are where everybody begins.

# %% [markdown]
# ## Naive all-reduce
#
# The first algorithm that comes to mind, and a good baseline. Everybody sends to place 0, which adds what arrives and
# sends the sum back to everybody.
#
# **Predict** for 8 ranks: how many messages does place 0 send and receive, together? And how many microseconds does all
# of it take, if each message takes 20 and place 0 handles one at a time? Predictions earn no points, and you can skip
# them; but a guess that turns out wrong is what you'll remember.

# %%
predict("messages of place 0", ...)
predict("microseconds, the naive way", ...)

# %% exercise="naive-all-reduce" difficulty=2 minutes=8
def naive_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
    """Return the sum of `x` over the team, on each of its ranks: all send to place 0,
    which sends the sum back.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    Place 0 sends P - 1 messages of n elements, every other place one.
    """
    total, arrived = x.clone(), torch.empty_like(x)
    root, others = team[0], team[1:]
    ### BEGIN SOLUTION
    if rank == root:
        for other in others:
            dist.recv(arrived, src=other)
            total += arrived
        for other in others:
            dist.send(total, dst=other)
    else:
        dist.send(x, dst=root)
        dist.recv(total, src=root)
    ### END SOLUTION
    return total

# %% check="naive-all-reduce" judges="values" points=3
check(naive_all_reduce, judges="values")

# %% check="naive-all-reduce" judges="traffic" points=2
check(naive_all_reduce, judges="traffic")

# %% [markdown]
# The same on the virtual cluster, for 8 ranks and 100 kB, which takes 10 µs of latency and 10 µs of bytes a message.

# %% tags=["notebook-only"]
def naive_program(rank, world_size):
    naive_all_reduce(torch.zeros(25_000), list(range(world_size)), rank)

run = simulate(naive_program, 8, cluster=textbook(8))
print(f"{run.elapsed * 1e6:.0f} µs, predicted {2 * 7 * (10 + 10)}")
run.timeline()

# %%
of_place_0 = sum(0 in (event.rank, event.peer) for event in run.events if event.op == "send")

# %%
reveal("messages of place 0", of_place_0, why="It receives P - 1, one after the other, and then sends P - 1.")
reveal(
    "microseconds, the naive way",
    round(run.elapsed * 1e6, 3),
    why="All wait for that one rank: $2 (P - 1)(\\alpha + n/B)$.",
)

# %% [markdown]
# ## Tree all-reduce
#
# While place 0 receives from place 1, places 2 and 3 stand idle: they could add their two tensors meanwhile. Then only
# half as many sums are left. Do that again, and again:

# %%
figures.tree(size=8)

# %% [markdown]
# This is a **binomial tree**. In the round with distance $d$ = 1, 2, 4, ... a place that is a multiple of $2d$ receives
# from the place $d$ further on, which is then done. After $\lceil \log_2 P \rceil$ rounds place 0 has the sum. Then the
# sum goes back down the same tree, with the distances in reverse order and the arrows reversed.
#
# The number of ranks need not be a power of two: in the picture for 6, a place without a partner does nothing in that
# round.

# %%
figures.tree(size=6)

# %% [markdown]
# **Predict** for $P = 8$: how many messages are there in all? And how many message times does it take, one after the
# other?

# %%
predict("messages of a tree of 8", ...)
predict("message times of a tree of 8", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Take 8 places and the round with $d = 2$. Who has to send, who has to receive, and who is done already? Divide each
# place by $2d = 4$ and look at the remainder.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Remainder $d$: this place has a parent, $d$ places before it. Remainder 0: it has a child $d$ places further on, if
# there is such a place. Any other remainder: nothing to do. On the way down the same pairs meet, and the arrow turns
# round.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Up: `if place % (2 * distance) == distance:` send to `team[place - distance]`; `elif` the remainder is 0 and
# `place + distance < size`: receive from `team[place + distance]`, then add. Down: the same two conditions, with
# `recv` and `send` exchanged, and nothing to add.
# </details>

# %% exercise="tree-all-reduce" difficulty=3 minutes=15
def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
    """Return the sum of `x` over the team, on each of its ranks: up a binomial tree to
    place 0, and down again.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    2 (P - 1) messages of n elements in all; at most ceil(log2 P) rounds up, and as many
    down. On the way down a place sends to the child furthest away first, and has waited
    for that before it begins to send to the next.
    """
    place, size = team.index(rank), len(team)
    total, arrived = x.clone(), torch.empty_like(x)
    # 1, 2, 4, ..., all below P
    distances = [2**level for level in range((size - 1).bit_length())]
    # here: up, where numbers are added; then down, where the sum is copied
    ### BEGIN SOLUTION
    for distance in distances:  # up: add
        if place % (2 * distance) == distance:
            dist.send(total, dst=team[place - distance])
        elif place % (2 * distance) == 0 and place + distance < size:
            dist.recv(arrived, src=team[place + distance])
            total += arrived
    for distance in reversed(distances):  # down: copy
        if place % (2 * distance) == distance:
            dist.recv(total, src=team[place - distance])
        elif place % (2 * distance) == 0 and place + distance < size:
            dist.send(total, dst=team[place + distance])
    ### END SOLUTION
    return total

# %% check="tree-all-reduce" judges="values" points=3
check(tree_all_reduce, judges="values")

# %% check="tree-all-reduce" judges="traffic" points=1
check(tree_all_reduce, judges="traffic")

# %% check="tree-all-reduce" judges="time" points=2
check(tree_all_reduce, judges="time")

# %% [markdown]
# ### Your tree, measured
# As many messages as the naive way, $2(P-1)$, but many at the same time. This stopwatch runs algorithms in turn and
# reads the clock of every rank; what counts is the slowest. On a virtual cluster that clock is virtual, so the cell
# shows the same on every machine. You'll use it for the rest of the lesson.

# %%
def stopwatch(rank, world_size, algorithms, sizes, repeats=1):
    """{(algorithm, bytes): [seconds, ...]} on this rank; the algorithms take turns, all
    ranks start together.
    """
    team, seconds = list(range(world_size)), defaultdict(list)
    for nbytes in sizes:
        x = torch.ones(nbytes // 4)
        for _ in range(repeats):
            for name, algorithm in algorithms.items():
                dist.barrier()
                start = time.perf_counter()
                algorithm(x, team, rank)
                seconds[name, nbytes].append(time.perf_counter() - start)
    return dict(seconds)

def slowest(run):
    """{(algorithm, bytes): [seconds of the slowest rank, ...]}"""
    return {key: [max(times) for times in zip(*(result[key] for result in run.results))] for key in run.results[0]}

# %% tags=["notebook-only"]
for size in (2, 4, 8, 16, 64):
    algorithms = {"naive": naive_all_reduce, "tree": tree_all_reduce}
    [naive], [tree] = slowest(simulate(stopwatch, size, algorithms, [4000], cluster=textbook(size))).values()
    print(f"{size:3} ranks, 4 kB: naive {naive * 1e6:6.0f} µs, tree {tree * 1e6:5.0f} µs: {naive / tree:4.1f} times")

# %%
def tree_program(rank, world_size):
    tree_all_reduce(torch.zeros(25_000), list(range(world_size)), rank)

run = simulate(tree_program, 8, cluster=textbook(8))

# %%
reveal("messages of a tree of 8", sum(map(sum, run.traffic().messages)), why="As many as the naive way.")
reveal(
    "message times of a tree of 8",
    round(run.elapsed / 20e-6, 6),
    why="3 rounds up and 3 down; the messages of a round travel at the same time.",
)

# %% [markdown]
# $P - 1$ against $\log_2 P$. But each message still carries all $n$ bytes, and most of the time most of the ranks have
# nothing to do. For 16 GB that is a waste.

# %% [markdown]
# # Part 2 · Around a ring
# The tree's waste is that half of the ranks fall silent after the first round, and place 0 does all the last work. Give
# every rank **its own chunk** of the sum to complete, and all are busy all the time. Lesson 01 showed that an
# all-reduce falls into two halves, and you build it that way: reduce-scatter, then all-gather.
#
# Any number of elements must work, so chunks may differ in length by one. `x.tensor_split(P)` cuts that way: 7 elements
# on 3 ranks become chunks of 3, 2 and 2; 2 elements become 1, 1 and 0. The chunks are **views**: they share memory with
# `x`.

# %%
[[chunk.tolist() for chunk in torch.arange(numel).tensor_split(3)] for numel in (7, 2)]

# %% [markdown]
# ## Ring reduce-scatter
#
# The ranks sit in a ring. In each of $P - 1$ steps every rank passes **one chunk** to its neighbour on the right, and
# adds the chunk that comes from the left to its own. Numbers pile up as they travel: a chunk that has gone all the way
# round has been added to by everybody. In the picture each row is one chunk; the letters say whose numbers are in it,
# and an arrow is a message. The last place's message leaves on the right and comes in on the left: it is a ring.

# %%
figures.ring(size=4, step=0)

# %%
figures.ring(size=4, step=1)

# %% [markdown]
# In step 0 place $p$ sends chunk $p - 1$. In the next step it sends what it has just added to, and so on.
# **Predict** for 4 ranks and 1 MB: how many kilobytes does one rank send in all? And in which step, from 0 on, does
# place 0 complete chunk 0? (The picture is of step 2.)

# %%
predict("kB that one rank of the ring sends", ...)
predict("the step in which chunk 0 is complete", ...)

# %%
figures.ring(size=4, step=2)

# %% [markdown]
# A thick frame means complete. All ranks send at the same time, so nobody may wait for its own send before it receives:
# lesson 01 had that deadlock. Both at once is what every algorithm from here on needs, so it has a name, `exchange`.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Write a table for 4 ranks with a row for each step: which chunk does place 0 send, which does it receive? Place 0
# sends chunks 3, 2, 1. What it receives in one step it sends in the next, so it receives 2, 1, 0.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# In step $s$ place $p$ sends chunk $p - 1 - s$, and its left neighbour, by the same rule, sends the chunk before that
# one. All numbers are modulo $P$. What arrives is as long as the chunk that it is added to, and chunks differ in
# length.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `outgoing = (place - 1 - step) % size` and `incoming = (outgoing - 1) % size`. Make `arrived` like
# `chunks[incoming]`, call `exchange(chunks[outgoing], right, arrived, left)`, and add `arrived` to
# `chunks[incoming]`.
# </details>

# %% exercise="ring-reduce-scatter" difficulty=3 minutes=20
def exchange(outgoing: Tensor, dst: int, incoming: Tensor, src: int) -> None:
    """Send `outgoing` to rank `dst` and, at the same time, fill `incoming` from rank
    `src`.
    """
    sending = dist.isend(outgoing, dst=dst)
    dist.recv(incoming, src=src)
    sending.wait()  # from here on `outgoing` may change

def ring_reduce_scatter(x: Tensor, team: list[int], rank: int) -> Tensor:
    """Return this place's chunk of the sum of `x` over the team,
    `sum.tensor_split(P)[place]`.

    x: (n,), the same n and dtype on every rank; left unchanged.
    Messages only from a place to the next one, P - 1 of them, each one chunk; sent and
    received at the same time.
    """
    place, size = team.index(rank), len(team)
    right, left = team[(place + 1) % size], team[place - 1]
    chunks = [chunk.clone() for chunk in x.tensor_split(size)]
    ### BEGIN SOLUTION
    for step in range(size - 1):
        outgoing = (place - 1 - step) % size  # what was added to in the step before
        incoming = (outgoing - 1) % size  # what the left neighbour sends
        arrived = torch.empty_like(chunks[incoming])
        exchange(chunks[outgoing], right, arrived, left)
        chunks[incoming] += arrived
    ### END SOLUTION
    return chunks[place]

# %% check="ring-reduce-scatter" judges="values" points=3
check(ring_reduce_scatter, judges="values")

# %% check="ring-reduce-scatter" judges="traffic" points=2
check(ring_reduce_scatter, judges="traffic")

# %% check="ring-reduce-scatter" judges="time" points=1
check(ring_reduce_scatter, judges="time")

# %%
def scatter_program(rank, world_size):
    ring_reduce_scatter(torch.zeros(250_000), list(range(world_size)), rank)

run = simulate(scatter_program, 4, cluster=textbook(4))
messages, nbytes = run.traffic().sent(0)

# %%
reveal("kB that one rank of the ring sends", nbytes / 1e3, why="3 messages of a quarter of 1 MB each.")
reveal("the step in which chunk 0 is complete", messages - 1, why="Every place completes its chunk in the last step.")

# %% [markdown]
# ## Ring all-gather
#
# Now place $p$ owns chunk $p$, complete. Once more around the ring: pass on what arrived last, but **copy**, don't add.
# In step 0 everybody sends its own chunk.
#
# The trap is the index: in the first half place $p$ began with chunk $p - 1$, now it begins with chunk $p$.
# Reduce-scatters that end with chunk $p + 1$ on place $p$ are common in other people's code. Both are fine, but the
# two halves have to agree; an index that is off by one sums everything and puts it in the wrong place.
#
# **Predict**: in which step, from 0 on, does place 0 of 4 receive chunk 1?

# %%
predict("the step in which chunk 1 arrives", ...)

# %% exercise="ring-all-gather" difficulty=2 minutes=10
def ring_all_gather(mine: Tensor, numel: int, team: list[int], rank: int) -> Tensor:
    """Return a tensor of `numel` elements, put together from the chunks of all places.

    mine: chunk `place` of a tensor that was cut by `tensor_split(P)`; left unchanged.
    Returns (numel,), the same on every rank.
    Messages only from a place to the next one, P - 1 of them, each one chunk; sent and
    received at the same time.
    """
    place, size = team.index(rank), len(team)
    right, left = team[(place + 1) % size], team[place - 1]
    whole = mine.new_zeros(numel)
    chunks = whole.tensor_split(size)  # views: what is written into them is in `whole`
    ### BEGIN SOLUTION
    chunks[place].copy_(mine)
    for step in range(size - 1):
        outgoing = (place - step) % size
        incoming = (outgoing - 1) % size
        exchange(chunks[outgoing], right, chunks[incoming], left)
    ### END SOLUTION
    return whole

# %% check="ring-all-gather" judges="values" points=2
check(ring_all_gather, judges="values")

# %% check="ring-all-gather" judges="traffic" points=2
check(ring_all_gather, judges="traffic")

# %% check="ring-all-gather" judges="time" points=1
check(ring_all_gather, judges="time")

# %%
reveal(
    "the step in which chunk 1 arrives",
    [(0 - step - 1) % 4 for step in range(3)].index(1),
    why="The last one: chunk 1 starts at place 1, the right-hand neighbour, and has to go nearly all the way round.",
)

# %% [markdown]
# ## Ring all-reduce
#
# Put the halves together. They are arguments, so that you can swap in others, and so that this exercise is judged on
# its own.
#
# **Predict** the bytes that one rank sends, as a multiple of $n$: with 4 ranks, and with 400.

# %%
predict("times n, 4 ranks", ...)
predict("times n, 400 ranks", ...)

# %% exercise="ring-all-reduce" difficulty=1 minutes=5
def ring_all_reduce(
    x: Tensor, team: list[int], rank: int, reduce_scatter=ring_reduce_scatter, all_gather=ring_all_gather
) -> Tensor:
    """Return the sum of `x` over the team, on each of its ranks: one `reduce_scatter`,
    one `all_gather`.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    """
    ### BEGIN SOLUTION
    mine = reduce_scatter(x, team, rank)
    total = all_gather(mine, x.numel(), team, rank)
    ### END SOLUTION
    return total

# %% check="ring-all-reduce" judges="values" points=2
check(ring_all_reduce, judges="values")

# %% check="ring-all-reduce" judges="traffic" points=1
check(ring_all_reduce, judges="traffic")

# %% check="ring-all-reduce" judges="time" points=1
check(ring_all_reduce, judges="time")

# %%
reveal("times n, 4 ranks", 2 * 3 / 4, why="$2 (P - 1) / P$: each half of the algorithm sends all chunks but one.")
reveal("times n, 400 ranks", 2 * 399 / 400, why="Always less than 2, however many ranks there are.")

# %% [markdown]
# As long as the ranks do the adding, no algorithm can make do with less. (A switch that adds can: each rank sends its
# $n$ bytes once and gets $n$ back. NVIDIA calls that SHARP, and NVLS between the GPUs of a node.)
#
# ### Your ring, measured
# $2(P-1)$ steps, and every rank sends and receives in each of them. Here for 4 ranks and 400 kB.

# %% tags=["notebook-only"]
def ring_program(rank, world_size):
    ring_all_reduce(torch.zeros(100_000), list(range(world_size)), rank)

run = simulate(ring_program, 4, cluster=textbook(4))
print(f"{run.elapsed * 1e6:.0f} µs, predicted {2 * 3 * (10 + 10)}")
run.timeline()

# %% [markdown]
# A step takes $\alpha + (n/P)/B$, so the whole ring $2(P-1)\left(\alpha + \frac{n}{PB}\right)$. For large $n$ that is
# $P$ times faster than the naive way. For small $n$ it gains nothing: as many steps, one after the other.

# %% tags=["notebook-only"]
algorithms = {"naive": naive_all_reduce, "ring": ring_all_reduce}
for size in (2, 4, 8, 16):
    seconds = slowest(simulate(stopwatch, size, algorithms, [64, 640_000_000], cluster=textbook(size)))
    gains = [seconds["naive", nbytes][0] / seconds["ring", nbytes][0] for nbytes in (64, 640_000_000)]
    print(f"{size:2} ranks: the ring is {gains[0]:.2f} times faster with 64 bytes, {gains[1]:5.2f} times with 640 MB")

# %% [markdown]
# # Part 3 · Halving and doubling
# The tree has few rounds, the ring has few bytes. Can you have both? Yes, if the tensor gets **smaller** in each round.
#
# Two ranks at a distance of $P/2$ exchange halves: one takes the lower half of the numbers and completes it, the other
# the upper half. Each then works on its half alone, with a partner at distance $P/4$, and so on. After $\log_2 P$
# rounds everybody has one $P$-th of the sum. That is a reduce-scatter. Run the same exchanges in reverse order and you
# get the all-gather.

# %%
figures.halving(size=8)

# %% [markdown]
# A bar is the tensor, cut in eight. Green is what a place keeps and completes in this round, orange what it gives to
# its partner; what it no longer works on is empty.

# %% [markdown]
# Partners are easy to find in binary: $d$ is a power of two, and `place ^ d` (exclusive or) flips the one bit that has
# the value $d$. So 2 = `010` and 6 = `110` are partners at distance 4, each the other's. `place & d` is not zero
# for the one that has the bit.

# %%
[(place, place ^ 4, bool(place & 4)) for place in range(8)]

# %% [markdown]
# ## Halving-doubling
#
# **Predict** for 8 ranks and 1 MB: how many kilobytes does a rank send in each of the 3 rounds of the first half, as a
# list?

# %%
predict("kB in each round", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Each round of the first half needs three things: `partner`, a rank; `keep`, the half to complete; `give`, the other
# half. The second half needs the same three again, in reverse order, so note them in a list. What a place works on
# begins as all of `total`; after each round it is what it has kept.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Partners differ in one bit of their places. One of them keeps `lower`, the other `upper`: `place & distance` tells
# which. On the way back you hold `keep`, complete, and your partner holds `give`, complete. Both are views of
# `total`, so change what is in them: a new tensor would be no part of it.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# The partner is the member of the team whose place differs in the bit `distance`. Exchange `give` for a buffer like
# `keep`, and add what arrives to `keep`. The second half is one line: an `exchange` that sends `keep` and receives
# into `give`.
# </details>

# %% exercise="halving-doubling" difficulty=4 minutes=20
def halving_doubling(x: Tensor, team: list[int], rank: int) -> Tensor:
    """Return the sum of `x` over a team of 1, 2, 4, 8, ... ranks, on each of them.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    2 log2 P messages a rank, half as many elements in each round as in the one before,
    then twice as many. Where n is a multiple of P that is 2 (P - 1) / P * n elements.
    Sent and received at the same time.
    """
    place, distance = team.index(rank), len(team) // 2
    total = x.clone()
    # here: halve, P/2, P/4, ..., 1 places apart; then undo it, with the same partners
    # in reverse order
    ### BEGIN SOLUTION
    part, rounds = total, []  # part: what this rank still works on, a view of `total`
    while distance:
        lower, upper = part.tensor_split(2)
        partner = team[place ^ distance]
        keep, give = (upper, lower) if place & distance else (lower, upper)
        arrived = torch.empty_like(keep)
        exchange(give, partner, arrived, partner)
        keep += arrived
        rounds.append((partner, keep, give))
        part, distance = keep, distance // 2
    for partner, keep, give in reversed(rounds):
        # `give` is no longer needed: the complete half goes there
        exchange(keep, partner, give, partner)
    ### END SOLUTION
    return total

# %% check="halving-doubling" judges="values" points=3
check(halving_doubling, judges="values")

# %% check="halving-doubling" judges="traffic" points=2
check(halving_doubling, judges="traffic")

# %% check="halving-doubling" judges="time" points=1
check(halving_doubling, judges="time")

# %%
def halving_program(rank, world_size):
    halving_doubling(torch.zeros(250_000), list(range(world_size)), rank)

run = simulate(halving_program, 8, cluster=textbook(8))
of_rank_0 = [event.bytes / 1e3 for event in run.events if event.rank == 0 and event.op == "send"]

# %%
reveal(
    "kB in each round",
    of_rank_0[:3],
    why="In all 7/8 of 1 MB, and once more as much on the way back. As few bytes as a ring, in 6 rounds instead of 14.",
)

# %% [markdown]
# ## Halving-doubling on any number of ranks
#
# 6 is not a power of two. MPICH, an MPI library, makes it one. The largest power of two that fits is 4, so 2 ranks are
# **extra**. Each extra rank hands its numbers to one of the first 4, which adds them to its own; these 4 do the
# all-reduce; then the extra ranks get the result.

# %%
figures.folding(size=6)

# %% [markdown]
# The fold costs two messages of **all** $n$ bytes. **Predict**: for 1 MB on 9 ranks, about how many times as long does
# it take as on 8?

# %%
predict("9 ranks take longer than 8, times", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Which ranks are extra, and which rank does each of them talk to? Draw it for 6: places 4 and 5 with places 0 and 1.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Three steps: the extra ranks hand in their numbers, the first $P'$ ranks all-reduce, the extra ranks get the result.
# Only the places below `extra` have a partner; the others go straight to the all-reduce, and all $P'$ of them must
# call it.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# An extra rank sends `x` to `team[place - power]` and then receives `total` from there. The others: `if place <
# extra`, receive from `team[place + power]` and add; then `total = all_reduce(total, team[:power], rank)`; then, `if
# place < extra`, send `total` back.
# </details>

# %% exercise="halving-doubling-any-size" difficulty=3 minutes=12
def halving_doubling_any_size(x: Tensor, team: list[int], rank: int, all_reduce=halving_doubling) -> Tensor:
    """Return the sum of `x` over a team of any size, on each of its ranks.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    all_reduce(x, team, rank): works for teams of 1, 2, 4, 8, ... ranks; all of its team
    must call it.
    With P' the largest power of two that is not above P, each of the P - P' extra ranks
    sends one message of n elements before and receives one after, and `all_reduce`
    works among P' ranks.
    """
    place, size = team.index(rank), len(team)
    power = 2 ** (size.bit_length() - 1)  # P'
    extra = size - power
    total = x.clone()
    ### BEGIN SOLUTION
    if place >= power:  # this rank is an extra one
        dist.send(x, dst=team[place - power])
        dist.recv(total, src=team[place - power])
    else:
        if place < extra:
            arrived = torch.empty_like(x)
            dist.recv(arrived, src=team[place + power])
            total += arrived
        total = all_reduce(total, team[:power], rank)
        if place < extra:
            dist.send(total, dst=team[place + power])
    ### END SOLUTION
    return total

# %% check="halving-doubling-any-size" judges="values" points=3
check(halving_doubling_any_size, judges="values")

# %% check="halving-doubling-any-size" judges="traffic" points=1
check(halving_doubling_any_size, judges="traffic")

# %% check="halving-doubling-any-size" judges="time" points=1
check(halving_doubling_any_size, judges="time")

# %% [markdown]
# The fold, beside your prediction:

# %% tags=["notebook-only"]
def folded(rank, world_size):
    halving_doubling_any_size(torch.zeros(250_000), list(range(world_size)), rank)

on_8, on_9 = (simulate(folded, size, cluster=textbook(size)).elapsed for size in (8, 9))
print(f"1 MB: {on_8 * 1e6:.0f} µs on 8 ranks, {on_9 * 1e6:.0f} µs on 9: {on_9 / on_8:.2f} times as long")

# %% tags=["notebook-only"]
reveal(
    "9 ranks take longer than 8, times",
    on_9 / on_8,
    why="The fold's two messages carry all bytes, and so do the 6 rounds on 8 ranks together, nearly twice.",
)

# %% [markdown]
# ### The four algorithms, measured
# Four algorithms from 64 bytes to 64 MB on 16 virtual ranks, then on 12. Both axes are logarithmic: a step to the right
# is ten times the bytes, a step up ten times the time.

# %%
ALGORITHMS = {
    "naive": naive_all_reduce,
    "tree": tree_all_reduce,
    "ring": ring_all_reduce,
    "halving-doubling": halving_doubling_any_size,
}

# %% tags=["notebook-only"]
sizes = [64 * 4**power for power in range(11)]

def curves(size):
    seconds = slowest(simulate(stopwatch, size, ALGORITHMS, sizes, cluster=textbook(size)))
    return {name: [(nbytes, seconds[name, nbytes][0]) for nbytes in sizes] for name in ALGORITHMS}

def beside(curves):
    """Print how many times as long as halving-doubling each takes for the most bytes.
    """
    times = {name: points[-1][1] for name, points in curves.items()}
    print("64 MB:", ", ".join(f"{name} {times[name] / times['halving-doubling']:.2f}" for name in times))

on_16 = curves(16)
beside(on_16)
figures.time_curves(on_16, "all-reduce on 16 ranks: α = 10 µs, 10 GB/s")

# %% tags=["notebook-only"]
on_12 = curves(12)
beside(on_12)
figures.time_curves(on_12, "all-reduce on 12 ranks: α = 10 µs, 10 GB/s")

# %% [markdown]
# On the left all curves are flat: latency dominates, so the number of rounds counts. On the right all rise with the
# same slope: bandwidth dominates, so bytes count. Where two curves cross, one algorithm stops being better than the
# other. On 16 ranks nothing beats halving-doubling. On 12 the fold costs it the lead for large tensors, and the ring
# wins there.
#
# Why, then, are rings everywhere? The model gives every pair of ranks a link of its own. In a real network the partner
# at distance $P/2$ is at the other end of the building, and everybody's messages meet in the same few cables. A ring
# talks to its neighbour only.

# %% [markdown]
# # Part 4 · Nodes
# GPUs live in nodes, 8 in each, say. Inside a node they are connected by something fast (NVLink: 450 GB/s), between
# nodes by something slow (a network card of 50 GB/s for each GPU). A flat ring over all of them is as slow as its
# slowest link: in every step somebody's chunk crosses from one node to the next, and all wait for it.
#
# Better: do as much as possible inside, so that little is left to send across. Call a rank's position within its node
# its **seat**, and let $L$ ranks be on each node:

# %%
figures.two_levels(nodes=2, local=4)

# %% [markdown]
# 1. Reduce-scatter **inside** each node: afterwards seat $s$ of each node has chunk $s$ of the node's sum.
# 2. All-reduce **across** the nodes, among the ranks of the same seat: $1/L$ of the bytes each, all seats at the same
#    time.
# 3. All-gather **inside** each node.
#
# This is where teams pay off: you call the functions that you already have on parts of the world.

# %% [markdown]
# ## Hierarchical all-reduce
#
# **Predict** for 2 nodes of 4 ranks and $n$ bytes, with rings everywhere: how many times $n$ bytes does a rank send
# inside its node, and how many to the other node?

# %%
predict("times n inside the node", ...)
predict("times n to the other node", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The three functions work on any team. So all you need are two teams: the ranks of your node, and the ranks of your
# seat.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Two slices of `team`. The node's ranks are `local` neighbours in the list. Those of the same seat are `local` apart.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `inside = team[node * local : (node + 1) * local]` and `across = team[seat::local]`. Then `reduce_scatter` inside,
# `all_reduce` of your chunk across, `all_gather` inside; the last one wants to know how many elements `x` has.
# </details>

# %% exercise="hierarchical-all-reduce" difficulty=3 minutes=12
def hierarchical_all_reduce(
    x: Tensor,
    team: list[int],
    rank: int,
    local: int,
    reduce_scatter=ring_reduce_scatter,
    all_reduce=ring_all_reduce,
    all_gather=ring_all_gather,
) -> Tensor:
    """Return the sum of `x` over the team, on each of its ranks: inside the nodes,
    across them, inside the nodes.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    team: the ranks of the first node, then those of the second, and so on; `local`
    ranks on each node.
    The three are called as you know them: reduce_scatter(x, team, rank), all_reduce(x,
    team, rank) and all_gather(mine, numel, team, rank). Between nodes goes 1 / local of
    the elements.
    """
    place = team.index(rank)
    node, seat = place // local, place % local
    ### BEGIN SOLUTION
    inside = team[node * local : (node + 1) * local]  # the ranks of my node
    across = team[seat::local]  # the ranks of my seat, one on each node
    mine = reduce_scatter(x, inside, rank)
    mine = all_reduce(mine, across, rank)
    total = all_gather(mine, x.numel(), inside, rank)
    ### END SOLUTION
    return total

# %% check="hierarchical-all-reduce" judges="values" points=3
check(hierarchical_all_reduce, judges="values")

# %% check="hierarchical-all-reduce" judges="traffic" points=1
check(hierarchical_all_reduce, judges="traffic")

# %% check="hierarchical-all-reduce" judges="time" points=2
check(hierarchical_all_reduce, judges="time")

# %%
def nodes_program(rank, world_size):
    hierarchical_all_reduce(torch.zeros(250_000), list(range(world_size)), rank, local=4)

sent = simulate(nodes_program, 8, cluster=textbook(8)).traffic().bytes[0]

# %%
reveal("times n inside the node", sum(sent[:4]) / 1e6, why="A ring of 4: 2 · 3/4.")
reveal("times n to the other node", sum(sent[4:]) / 1e6, why="A ring of 2, for a quarter of the bytes: 2 · 1/2 · 1/4.")

# %% [markdown]
# ### Across nodes, measured
# 4 nodes of 8 ranks. Between nodes the bandwidth is a tenth, the latency twice that inside. **Predict** for 8 MB: how
# many times more bytes does a whole **node** send to the others with a flat ring than with yours?

# %%
predict("a node sends with the flat ring, times", ...)

# %% tags=["notebook-only"]
slow = Link(2 * ALPHA, BANDWIDTH / 10)
candidates = {
    "flat ring": ring_all_reduce,
    "hierarchical": partial(hierarchical_all_reduce, local=8),
}

def between_nodes(rank, world_size, name):
    candidates[name](torch.ones(2_000_000), list(range(world_size)), rank)

of_node = {}
for name in candidates:
    run = simulate(between_nodes, 32, name, cluster=textbook(8, nodes=4, inter=slow))
    sent = run.traffic().bytes
    per_rank = [sum(sent[rank][other] for other in range(32) if other // 8 != rank // 8) for rank in range(32)]
    most, node = max(per_rank) / 1e6, sum(per_rank[:8]) / 1e6
    print(f"{name:13} {run.elapsed * 1e3:4.1f} ms; to other nodes at most ", end="")
    print(f"{most:5.2f} MB a rank, {node:5.2f} MB a node")
    of_node[name] = node

# %% tags=["notebook-only"]
reveal(
    "a node sends with the flat ring, times",
    of_node["flat ring"] / of_node["hierarchical"],
    why="The flat ring crosses each border with one chunk at a time, so a node doesn't send much more.",
)

# %% [markdown]
# Look at the last column. It is often said that a hierarchical all-reduce cuts the traffic between nodes by the number
# of GPUs in a node. For each **rank** it does. For a **node** hardly: the flat ring crosses each border with one
# message a step, and that is one rank of eight at work. The gain: eight network cards share the load that one had
# to carry, and the slow latency counts $2(M-1)$ times for $M$ nodes, instead of $2(P-1)$ times.

# %% [markdown]
# # Part 5 · All-to-all
# One more collective, because how you get there matters as much. In an all-to-all each rank has a different chunk for
# each of the others, so nothing can be added up or passed on: $P - 1$ messages per rank, and that is that.

# %% [markdown]
# ## Pairwise all-to-all
#
# $P - 1$ messages, but in which order? If all send to place 0 first, then all to place 1, there is a queue in front of
# one door and all other doors stand open. In a **pairwise** exchange, in step $s$ place $p$ sends to place $p + s$ and
# receives from place $p - s$: each rank has exactly one guest.

# %%
figures.pairwise(size=4)

# %% exercise="pairwise-all-to-all" difficulty=2 minutes=10
def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
    """Return chunk `place` of everybody's `x`, one after the other in the order of
    their places.

    x: (n,), the same n and dtype on every rank; left unchanged. Chunks are those of
    `tensor_split(P)`.
    Returns (P * elements in chunk `place`,).
    P - 1 messages a rank, one to each other place, in P - 1 steps: in each it sends one
    and receives one, then the next step begins.
    """
    place, size = team.index(rank), len(team)
    chunks = x.tensor_split(size)
    received = [torch.empty_like(chunks[place]) for _ in team]  # received[source]
    received[place].copy_(chunks[place])
    ### BEGIN SOLUTION
    for step in range(1, size):
        target, source = (place + step) % size, (place - step) % size
        exchange(chunks[target], team[target], received[source], team[source])
    ### END SOLUTION
    return torch.cat(received)

# %% check="pairwise-all-to-all" judges="values" points=3
check(pairwise_all_to_all, judges="values")

# %% check="pairwise-all-to-all" judges="traffic" points=1
check(pairwise_all_to_all, judges="traffic")

# %% check="pairwise-all-to-all" judges="time" points=1
check(pairwise_all_to_all, judges="time")

# %% [markdown]
# How much does the order matter? Here are both, with 8 ranks and 80 kB each.

# %% tags=["notebook-only"]
def in_rank_order(x, team, rank):
    """The same messages, all of them to place 0 first."""
    place, chunks = team.index(rank), x.tensor_split(len(team))
    received = [torch.empty_like(chunks[place]) for _ in team]
    for target in range(len(team)):
        if target == place:
            for source in range(len(team)):
                if source != place:
                    dist.recv(received[source], src=team[source])
        else:
            dist.send(chunks[target], dst=team[target])

orders = {"in rank order": in_rank_order, "pairwise": pairwise_all_to_all}
[queue], [doors] = slowest(simulate(stopwatch, 8, orders, [80_000], cluster=textbook(8))).values()
print(f"in rank order {queue * 1e6:.0f} µs, pairwise {doors * 1e6:.0f} µs: {queue / doors:.1f} times as long")

# %% [markdown]
# # Part 6 · Which one, when?
# A library has several algorithms and picks one for each call. It can't try them all, so it computes what each would
# take. You do that now.

# %% [markdown]
# ## The time of an all-reduce
#
# Count the rounds of each algorithm, and the bytes that go through the busiest rank in them. You have predicted and
# measured all of it; now write it down, for any $P$. Remember two things: a tree has a whole number of rounds, and
# halving-doubling folds when $P$ is not a power of two.

# %% exercise="all-reduce-seconds" difficulty=2 minutes=10
def all_reduce_seconds(algorithm: str, size: int, nbytes: int, alpha: float, bandwidth: float) -> float:
    """Seconds that an all-reduce of `nbytes` bytes takes among `size` ranks (1 or
    more), by the alpha-beta model.

    algorithm: "naive", "tree", "ring" or "halving-doubling".
    alpha: seconds that a message takes at least. bandwidth: bytes a second. Adding
    takes no time.
    Where chunks are needed, take them as nbytes / size, without rounding.
    """
    # the largest power of two that is not above `size`
    power = 2 ** (size.bit_length() - 1)
    whole = alpha + nbytes / bandwidth  # one message with everything in it
    # halving-doubling: what the extra ranks add
    fold = 2 * whole if size > power else 0
    ### BEGIN SOLUTION
    if algorithm == "naive":
        return 2 * (size - 1) * whole
    if algorithm == "tree":
        # the number of bits of P - 1 is log2 P, rounded up
        return 2 * (size - 1).bit_length() * whole
    if algorithm == "ring":
        return 2 * (size - 1) * (alpha + nbytes / size / bandwidth)
    if algorithm == "halving-doubling":
        return fold + 2 * math.log2(power) * alpha + 2 * (power - 1) / power * nbytes / bandwidth
    ### END SOLUTION
    raise ValueError(f"there is no algorithm {algorithm!r}")

# %% check="all-reduce-seconds" judges="values" points=4
check(all_reduce_seconds, judges="values")

# %% [markdown]
# Formula and virtual cluster should agree to the last digit. Do they, for your code?

# %% tags=["notebook-only"]
for size in (4, 6):
    measured = slowest(simulate(stopwatch, size, ALGORITHMS, [48, 4_800_000], cluster=textbook(size)))
    for (name, nbytes), [seconds] in measured.items():
        predicted = all_reduce_seconds(name, size, nbytes, ALPHA, BANDWIDTH)
        print(f"{size} ranks, {nbytes:9,} bytes, {name:17} measured / predicted = {seconds / predicted:.6f}")

# %% [markdown]
# ## The crossover size
#
# Tree or ring? Set their two times equal and solve for $n$:
#
# $$2 \lceil \log_2 P \rceil \left(\alpha + \frac{n}{B}\right) = 2 (P - 1) \left(\alpha + \frac{n}{P B}\right)$$
#
# On 2 and 3 ranks they have the same number of rounds, so the ring wins as soon as there is a byte: the crossover is
# at 0. Think before you compute: with twice the bandwidth, does the tree win more often, or less?

# %% exercise="crossover" difficulty=2 minutes=8
def crossover(size: int, alpha: float, bandwidth: float) -> float:
    """The number of bytes above which a ring all-reduce is faster than a tree among
    `size` ranks (2 or more).

    alpha: seconds. bandwidth: bytes a second. Not rounded.
    """
    rounds = (size - 1).bit_length()  # of the tree, one way: log2 P, rounded up
    ### BEGIN SOLUTION
    more_rounds = (size - 1) - rounds  # what the ring pays, in alphas
    fewer_bytes = rounds - (size - 1) / size  # what it saves, in n
    return more_rounds / fewer_bytes * alpha * bandwidth
    ### END SOLUTION

# %% check="crossover" judges="values" points=3
check(crossover, judges="values")

# %% tags=["notebook-only"]
for size in (4, 8, 64, 1024):
    print(f"{size:5} ranks: the ring wins above {crossover(size, ALPHA, BANDWIDTH) / 1e3:10,.0f} kB")

# %% [markdown]
# With twice the bandwidth the crossover is twice as high, so the tree wins more often: bytes have become cheaper, and
# saving them is what the ring is good at. Here are both for 12 ranks; the dotted line is found from the two curves.

# %% tags=["notebook-only"]
print(f"crossover(12): {crossover(12, ALPHA, BANDWIDTH) / 1e3:.1f} kB")
figures.time_curves({name: on_12[name] for name in ("tree", "ring")}, "tree and ring on 12 ranks")

# %% [markdown]
# A hundred kilobytes is the gradient of a small layer. Send such layers one by one over a ring, and latency is all
# you pay. So data parallelism packs them into large buckets first (lesson 05).

# %% [markdown]
# ## Choosing the algorithm
#
# Don't build on thresholds: they change with $P$, $\alpha$ and $B$. Compute and compare.

# %% exercise="choose-algorithm" difficulty=2 minutes=6
def choose_algorithm(
    nbytes: int,
    size: int,
    alpha: float,
    bandwidth: float,
    candidates=("naive", "tree", "ring", "halving-doubling"),
    seconds=all_reduce_seconds,
) -> str:
    """The name of the fastest of the candidates; of several that are equally fast, the
    one that stands first.

    seconds(algorithm, size, nbytes, alpha, bandwidth): what an algorithm takes.
    """
    ### BEGIN SOLUTION
    return min(candidates, key=lambda name: seconds(name, size, nbytes, alpha, bandwidth))
    ### END SOLUTION

# %% check="choose-algorithm" judges="values" points=3
check(choose_algorithm, judges="values")

# %% tags=["notebook-only"]
print("bytes          " + "".join(f"{size:>6} ranks      " for size in (4, 6, 12, 96)))
for nbytes in (400, 40_000, 4_000_000, 400_000_000):
    chosen = [choose_algorithm(nbytes, size, ALPHA, BANDWIDTH) for size in (4, 6, 12, 96)]
    print(f"{nbytes:11,}    " + "".join(f"{name:18}" for name in chosen))

# %% [markdown]
# ## An all-reduce for any tensor
#
# And this is the all-reduce that a library offers: any shape, any strides, and the caller need not know the algorithm.
# A tensor may be a column of a matrix, with gaps between its numbers, and messages know no gaps. So: flatten, choose,
# run, restore the shape.

# %% exercise="all-reduce" difficulty=2 minutes=10
def all_reduce(
    x: Tensor,
    team: list[int],
    rank: int,
    alpha: float,
    bandwidth: float,
    choose=choose_algorithm,
    algorithms: dict = None,
) -> Tensor:
    """Return the sum of `x` over the team, on each of its ranks, by the algorithm that
    is fastest for its bytes.

    x: the same shape (any) and dtype on every rank, contiguous or not; left unchanged.
    Returns x.shape.
    choose(nbytes, size, alpha, bandwidth): the name of the algorithm to use. nbytes
    counts bytes, not elements.
    algorithms: {name: function(x, team, rank)}, ALGORITHMS unless given; they want one
    dimension and no gaps.
    """
    algorithms = algorithms or ALGORITHMS
    ### BEGIN SOLUTION
    flat = x.reshape(-1).contiguous()
    name = choose(flat.numel() * flat.element_size(), len(team), alpha, bandwidth)
    total = algorithms[name](flat, team, rank)
    return total.reshape(x.shape)
    ### END SOLUTION

# %% check="all-reduce" judges="values" points=3
check(all_reduce, judges="values")

# %% check="all-reduce" judges="traffic" points=1
check(all_reduce, judges="traffic")

# %% [markdown]
# ### Your selector, measured
# 12 virtual ranks, as in the picture above. The dots of `all_reduce` should lie on the lowest curve everywhere.

# %% tags=["notebook-only"]
chosen = {"chosen": partial(all_reduce, alpha=ALPHA, bandwidth=BANDWIDTH)}
seconds = slowest(simulate(stopwatch, 12, chosen, sizes, cluster=textbook(12)))
dots = [(nbytes, seconds["chosen", nbytes][0]) for nbytes in sizes]
best = [min(points[at][1] for points in on_12.values()) for at in range(len(sizes))]
print("time beside the best:", *(f"{mine / least:.2f}" for (_, mine), least in zip(dots, best)))
figures.time_curves({**on_12, "chosen": dots}, "all-reduce on 12 ranks, and the one that is chosen", dots="chosen")

# %% [markdown]
# # Part 7 · In real time, beside the library
# The virtual cluster says what the model says. What does your machine say? Below, four real processes run your
# algorithms and Gloo's own `dist.all_reduce` in turn, and the table shows the time of each as a multiple of Gloo's.
# Below 1 yours is faster.
#
# **Predict**: for 16 MB, how many times faster than the naive way is your ring on this machine? The model says 4 times.

# %%
predict("the ring is faster than the naive way, times", ...)

# %% tags=["nbval-ignore-output"]
def gloo(x, team, rank):
    """The library's, on the whole world."""
    total = x.clone()
    dist.all_reduce(total)
    return total

def beside_gloo(seconds, nbytes, name):
    """Median of the ratios of what ran one after the other; the first two rounds only
    warm up.
    """
    pairs = list(zip(seconds[name, nbytes], seconds["gloo", nbytes]))
    return median(mine / library for mine, library in pairs[2:])

contest = {"gloo": gloo, **ALGORITHMS}
seconds = slowest(spawn(stopwatch, 4, contest, [4_000, 64_000, 1_000_000], repeats=15))
seconds |= slowest(spawn(stopwatch, 4, contest, [16_000_000], repeats=5))
print("bytes          " + "".join(f"{name:>18}" for name in ALGORITHMS))
for nbytes in (4_000, 64_000, 1_000_000, 16_000_000):
    print(f"{nbytes:11,}    " + "".join(f"{beside_gloo(seconds, nbytes, name):18.2f}" for name in ALGORITHMS))

# %% tags=["nbval-ignore-output"]
naive, ring = (median(seconds[name, 16_000_000][2:]) for name in ("naive", "ring"))

# %% tags=["nbval-ignore-output"]
reveal(
    "the ring is faster than the naive way, times",
    round(naive / ring, 2),
    why="Where all ranks share one memory, total bytes count, not the bytes of the busiest rank.",
)

# %% [markdown]
# The numbers differ from machine to machine, and a little from run to run: run the cell twice before you believe a
# difference. How to read them:
#
# - **Small messages.** Gloo's all-reduce is a ring at every size, unless it is told otherwise. With few bytes a ring
#   pays for $2(P-1)$ steps, one after the other. So an algorithm with fewer rounds can beat the library even in
#   Python: look for numbers below 1 in the first rows. Your own ring makes the same steps as Gloo's, but each of them
#   in Python.
# - **Large messages.** If you have no more cores than ranks, the ring is nowhere near 4 times as fast as the naive way,
#   and perhaps not faster at all. Is the model wrong? No: what it assumes does not hold here. It gives every rank a
#   link of its own. Your ranks are processes of one machine, and a message is a copy in its memory, made by one of its
#   cores. When all cores are busy copying, it does not matter who sends a byte, only how many bytes there are in all.
#   (On a machine with many idle cores several copies can go on at once, and the ring gains back a part.)
#
# So count the bytes of **all** ranks together:

# %% tags=["notebook-only"]
def once(rank, world_size, name):
    ALGORITHMS[name](torch.ones(4000), list(range(world_size)), rank)

for name in ALGORITHMS:
    traffic = spawn(once, 4, name).traffic()
    sent = [traffic.sent(rank)[1] for rank in range(4)]
    print(f"{name:17} busiest rank sends {max(sent):6,} bytes, all together {sum(sent):6,}")

# %% [markdown]
# All four send $2(P-1)n$ bytes in all. What differs is how they are spread over the ranks. On one shared memory the
# spread gains at most what idle cores can copy at the same time; on a cluster, where each rank has its own link, it is
# everything.
#
# Had you measured on a laptop only, you might have concluded that rings are useless. So measure a program where it will
# run, or count what will be scarce there.

# %% [markdown]
# # Part 8 · Sixteen gigabytes on 256 GPUs
# Lesson 01 began with a gradient of 16 GB on 1,024 GPUs, 128 nodes of 8: eleven minutes through GPU 0, and it promised
# that this lesson builds the good one. Here it is, on a quarter of that machine, 32 nodes, so that you don't wait long
# for this cell. Inside nodes your rings; across them your halving-doubling, as 32 is a power of two.

# %% tags=["notebook-only"]
def yours(rank, world_size):
    gradient = torch.empty(8_000_000_000, dtype=torch.bfloat16)
    hierarchical_all_reduce(gradient, list(range(world_size)), rank, local=8, all_reduce=halving_doubling)

def the_library(rank, world_size):
    dist.all_reduce(torch.empty(8_000_000_000, dtype=torch.bfloat16))

hand_written, library = (simulate(program, 256, cluster="dgx-h100") for program in (yours, the_library))
print(f"yours {hand_written.elapsed:.3f} s, torch's all-reduce on this cluster {library.elapsed:.3f} s")
print(f"through GPU 0: {2 * 255 * 16e9 / 50e9:.0f} s")

# %% [markdown]
# You are within a few hundredths of a second of the library, down from almost three minutes. All 1,024 GPUs would need
# two more rounds each way between nodes, and hardly more bytes per rank: about as long. (The difference: yours also
# pays for copying and adding, which the cluster's own all-reduce does for free.)

# %% [markdown]
# ### How your predictions went

# %% tags=["nbval-ignore-output"]
how_predictions_went()

# %% [markdown]
# # Recap
# For $P$ ranks and $n$ bytes:
#
# | algorithm | rounds, $\alpha$ each | time for the bytes, times $n/B$ | busiest rank sends |
# |---|---|---|---|
# | naive | $2(P-1)$ | $2(P-1)$ | $(P-1)\,n$ |
# | binomial tree | $2\lceil\log_2 P\rceil$ | $2\lceil\log_2 P\rceil$ | $\lceil\log_2 P\rceil\,n$ |
# | ring | $2(P-1)$ | $2(P-1)/P$ | $2(P-1)/P \cdot n$ |
# | halving-doubling, $P = 2^k$ | $2\log_2 P$ | $2(P-1)/P$ | $2(P-1)/P \cdot n$ |
#
# - Few rounds for small messages, few bytes for large ones; between them a **crossover**, some multiple of
#   $\alpha B$.
# - **Hierarchical**: as much as possible over the fast links; then all network cards of a node work at the same time.
# - Add each number once, then copy: all ranks hold the same bits.
# - The order of messages is part of an algorithm: the same all-to-all takes longer if all knock at one door.
# - A model holds where its assumptions hold. On one shared memory total bytes count, not the bytes of each rank.
#
# **The library.** NCCL has rings, and trees in pairs, cut in pieces that follow each other through the tree, so that
# it too keeps all links busy. It doesn't run one ring but several at once, its **channels**, each with its share of the
# bytes and an order of its own, so that every network card of a node is in use. On NVSwitch machines the switch itself
# can add. NCCL picks by message size and topology, much as you did; `NCCL_ALGO` forces one. Gloo uses a ring.
# `dist.new_group` makes a group of ranks, which was a `team` here.
#
# **The paper.** Thakur, Rabenseifner, Gropp: *Optimization of collective communication operations in MPICH*
# (International Journal of High Performance Computing Applications, 2005). Halving-doubling, the fold, and the
# selection by size, as in this lesson.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## Many tensors of mixed sizes
#
# A model doesn't have one gradient but one per layer, from a bias of a few numbers to a matrix of many. Here are
# sixteen of them, on three nodes of four GPUs. Sum them all, on every rank, as fast as you can.
#
# Only messages take time, and a rank sends one at a time. Inside a node a message takes 10 µs and flows at 10 GB/s;
# between nodes 20 µs and 2.5 GB/s. You may send whatever you like to whomever you like.
#
# Par is what this lesson's functions reach when you put them together well. The limit is a bound that no algorithm can
# beat: each rank's share of all bytes that must be sent, at the speed of the links, after a single latency. Reach par
# and you have the extra credit. How far beyond can you get?

# %%
LAYERS = [64, 16_384, 64, 16_384, 256, 24_576, 64, 9_216, 48, 12_288, 1, 18_432, 512, 16_384, 7, 5_320]

def three_nodes():
    """The cluster of the challenge."""
    return textbook(4, nodes=3, inter=Link(2 * ALPHA, BANDWIDTH / 4))

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Count the latencies. One all-reduce per tensor pays for each of its rounds sixteen times.
# </details>
#
# <details><summary>Hint 2: the idea of par</summary>
#
# Lesson 05 will call it a bucket: concatenate the tensors, all-reduce once, and split the sum. The nodes matter too:
# most bytes should stay inside one.
# </details>
#
# <details><summary>Hint 3: beyond par</summary>
#
# On four ranks halving takes two rounds where a ring takes three, with the same bytes. Across three nodes, is there a
# way with fewer rounds that sends more bytes? Put numbers in before you write it.
# </details>

# %% exercise="mixed-sizes" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def mixed_sizes(xs: list[Tensor], rank: int, world_size: int, local: int) -> list[Tensor]:
    """Return the sums of all tensors in `xs` over all ranks, on each of them: as fast
    as possible, by messages alone.

    xs: each of shape (n,), with an n of its own, the same on every rank; all of one
    dtype; left unchanged.
    local: the ranks on each node. Ranks 0 to local - 1 are on the first, and so on.
    Any order of additions will do, and ranks may differ in the last digit.
    """
    ### BEGIN SOLUTION
    flat = torch.cat(xs)  # one latency for all of them
    total = hierarchical_all_reduce(flat, list(range(world_size)), rank, local)
    return list(total.split([len(x) for x in xs]))
    ### END SOLUTION

# %% check="mixed-sizes" judges="score" points=3
check(mixed_sizes, judges="score", extra_credit=3)

# %% tags=["notebook-only"]
def all_layers(rank, world_size):
    mixed_sizes([torch.ones(n) for n in LAYERS], rank, world_size, local=4)

simulate(all_layers, 12, cluster=three_nodes()).timeline(ranks=[0, 1, 4])

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
