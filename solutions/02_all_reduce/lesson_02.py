# %% [markdown] question="Which all-reduce is the fastest for how many bytes, on which network, and why?"
# # All-reduce from scratch
# *you need: lesson 01.*
#
# In data parallelism every GPU computes a gradient, and every GPU needs the sum of them all: one all-reduce in every
# step, for weeks. People have been looking for good algorithms since long before there were GPUs.
#
# You will write the important ones, from plain messages: through a single rank, up and down a tree, around a ring, by
# halving and doubling, and one for clusters of many nodes with many GPUs each. By the end you will be able to say which
# of them is fastest for how many bytes, and why, before you run it. You will also compare yours with the library's.

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
# ## Why: no single best algorithm
# However short a message is, some time passes before its first byte arrives: the **latency** $\alpha$. From then on its
# bytes flow at $B$ bytes per second: the **bandwidth**. So a message of $n$ bytes takes
#
# $$\alpha + \frac{n}{B}$$
#
# That is the **alpha-beta model** ($\beta = 1/B$). Take 1,024 GPUs with $\alpha$ = 5 µs and $B$ = 50 GB/s, and two
# all-reduces: the gradient of a model with 8 billion parameters (16 GB), and one number that says whether any rank's
# gradient has overflowed (4 bytes). The naive algorithm is lesson 01's: everything goes to one rank and comes back out.
# The times of the tree and the ring come from the virtual cluster's formulas; by the end you will have derived them
# yourself and checked them.

# %%
# only messages take time
free = Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=math.inf)
link = Link(alpha=5e-6, bandwidth=50e9)  # seconds; bytes a second, one way
machine = Cluster(
    "1,024 GPUs", nodes=1, gpus_per_node=1024, gpu=free, intra=link, inter=link
)
for what, nbytes in (("16 GB  ", 16e9), ("4 bytes", 4)):
    naive = 2 * 1023 * link.seconds(nbytes)
    prices = cost(
        "all_reduce", nbytes, machine, Layout.of(machine, range(1024))
    ).candidates
    tree, ring = prices["tree"], prices["ring"]
    print(f"{what}   naive {naive:10.6f} s   tree {tree:8.6f} s   ring {ring:8.6f} s")

# %% [markdown]
# For the gradient, the ring takes less than a second, the tree ten times as long, and the naive way eleven minutes. For
# the single number it is the other way round: the tree is a hundred times faster than the ring. There is no best
# all-reduce, only a best one for $n$ bytes on $P$ ranks.

# %% [markdown]
# ## The rules of the game
# **A team.** Every function in this lesson gets a `team`, a list of ranks, and works among these ranks alone, in that
# order. A rank's position in the list is its **place**. Neighbours, roots and chunks go by place; messages go to ranks:
#
# ```python
# team = [5, 1, 3]            # three ranks of a world of six or more
# place = team.index(rank)    # on rank 5: 0. on rank 1: 1. on rank 3: 2
# size = len(team)            # 3. We write P for it in formulas
# team[place - 1]             # the rank on my left; place 0 gets team[-1], the last
# ```
#
# Most teams are simply all ranks, `list(range(world_size))`. Smaller ones come in Part 4, where you build one
# all-reduce from others that work among parts of the world.
#
# **Tensors** here are one-dimensional and contiguous, with any number of elements (even none) and any dtype. `x` is
# left unchanged; the result has memory of its own.
#
# **Everybody gets the same bits.** The sum of floats depends on the order of the additions: `(a + b) + c` and
# `a + (b + c)` may differ in the last digit. If each rank added in an order of its own, the replicas of a model would
# drift apart. So each number is added up once, on one rank, and the result is copied.
#
# **Only messages**: use `send`, `recv`, `isend` and `irecv` alone. The checks look at three things:
#
# - **values**: every rank holds the right numbers,
# - **traffic**: how many messages each rank sent, and how many bytes,
# - **time** on a virtual cluster. There a rank can send one message and receive one at the same time, but not two in
#   the same direction. On the cluster below only messages take time: 10 µs each, plus their bytes at 10 GB/s.

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
# Two algorithms in which every message carries the whole tensor. They are short, and they are where everybody begins.

# %% [markdown]
# ## Naive all-reduce
#
# This is the first algorithm that comes to mind, and a good baseline. Everybody sends to place 0, which adds up what
# arrives and sends the sum back to everybody.
#
# **Predict** for 8 ranks: how many messages does place 0 send and receive, together? And how many microseconds does the
# whole all-reduce take, if a message takes 20 µs and place 0 handles one at a time? Predictions earn no points and you
# can skip them, but a guess that turns out wrong is what you'll remember.

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
# Here it is on the virtual cluster, for 8 ranks and 100 kB: each message takes 10 µs of latency and 10 µs for its
# bytes. In the timeline, each rank has a lane for the messages that it sends and receives.

# %% tags=["notebook-only"]
def naive_program(rank, world_size):
    naive_all_reduce(torch.zeros(25_000), list(range(world_size)), rank)

run = simulate(naive_program, 8, cluster=textbook(8))
print(f"{run.elapsed * 1e6:.0f} µs, predicted {2 * 7 * (10 + 10)}")
run.timeline()

# %%
of_place_0 = sum(
    0 in (event.rank, event.peer) for event in run.events if event.op == "send"
)

# %%
reveal("messages of place 0", of_place_0, why="It receives P - 1 messages, one after the other, and then sends P - 1.")
reveal(
    "microseconds, the naive way",
    round(run.elapsed * 1e6, 3),
    why="Everybody waits for that one rank: $2 (P - 1)(\\alpha + n/B)$.",
)

# %% [markdown]
# ## Tree all-reduce
#
# While place 0 receives from place 1, places 2 and 3 are idle, yet they could be adding their two tensors. If all
# places pair up like that, only half as many tensors are left to add. Then pair up again, and again:

# %%
figures.tree(size=8)

# %% [markdown]
# This is a **binomial tree**. In the round with distance $d$ (1, then 2, 4, ...) each place that is a multiple of $2d$
# receives from the place $d$ further on, whose part is then done. After the last round place 0 has the sum, which goes
# back down the same tree, with the distances in reverse order and the arrows turned round.
#
# The number of ranks need not be a power of two: in the picture for 6, a place without a partner does nothing in that
# round.

# %%
figures.tree(size=6)

# %% [markdown]
# **Predict** for $P = 8$, up and down together: how many messages are sent in all? And how long does it take, as a
# multiple of the time of one message?

# %%
predict("messages of a tree of 8", ...)
predict("message times of a tree of 8", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Take 8 places and the round with $d = 2$. Which of them must send, which must receive, and which are already done?
# Divide each place by $2d = 4$ and look at the remainder.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Remainder $d$: this place has a parent, $d$ places before it. Remainder 0: it has a child $d$ places further on, if
# there is such a place. Any other remainder: it has nothing to do in this round. On the way down the same pairs meet,
# and the message goes the other way.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Up: if the place modulo twice the distance is the distance itself, send to the place one distance below. If it is 0,
# and there is a place one distance above, receive from there, then add. Down: the same two conditions, with `recv` and
# `send` exchanged, and nothing to add.
# </details>

# %% exercise="tree-all-reduce" difficulty=3 minutes=15
def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
    """Return the sum of `x` over the team, on each of its ranks: up a binomial tree to
    place 0, and down again.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    2 (P - 1) messages of n elements in all, in ceil(log2 P) rounds up and as many down.
    On the way down a place sends to the child furthest away first.
    """
    place, size = team.index(rank), len(team)
    total, arrived = x.clone(), torch.empty_like(x)
    # 1, 2, 4, ..., all below P
    distances = [2**level for level in range((size - 1).bit_length())]
    # first up the tree, where numbers are added, then down, where the sum is copied
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
# The tree sends as many messages as the naive way, $2(P-1)$, but many of them at the same time. The stopwatch below
# runs several algorithms in turn and reads the clock on every rank; the slowest rank is the one that counts. On a
# virtual cluster the clock is virtual too, so the numbers are the same on every machine. You'll use it for the rest of
# the lesson.

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
    of_ranks = {
        key: zip(*(result[key] for result in run.results)) for key in run.results[0]
    }
    return {key: [max(times) for times in repeats] for key, repeats in of_ranks.items()}

# %% tags=["notebook-only"]
for size in (2, 4, 8, 16, 64):
    algorithms = {"naive": naive_all_reduce, "tree": tree_all_reduce}
    run = simulate(stopwatch, size, algorithms, [4000], cluster=textbook(size))
    [naive], [tree] = slowest(run).values()
    print(f"{size:3} ranks, 4 kB: naive {naive * 1e6:6.0f} µs, ", end="")
    print(f"tree {tree * 1e6:5.0f} µs, naive / tree = {naive / tree:4.1f}")


# %%
def tree_program(rank, world_size):
    tree_all_reduce(torch.zeros(25_000), list(range(world_size)), rank)

run = simulate(tree_program, 8, cluster=textbook(8))

# %%
reveal(
    "messages of a tree of 8",
    sum(map(sum, run.traffic().messages)),
    why="As many as the naive way: every place but 0 sends its sum up once, and gets the total once.",
)
reveal(
    "message times of a tree of 8",
    round(run.elapsed / 20e-6, 6),
    why="3 rounds up and 3 down; the messages of a round travel at the same time.",
)

# %% [markdown]
# So the tree takes $2\lceil \log_2 P \rceil$ rounds instead of $2(P-1)$. But each message still carries all $n$ bytes,
# and most ranks are idle most of the time. For 16 GB that is a waste.

# %% [markdown]
# # Part 2 · Around a ring
# In the tree, half of the ranks have nothing more to do after the first round, and place 0 is on its own in the last.
# Give every rank **its own chunk** of the sum to complete, and all of them are busy all the time. Lesson 01 showed that
# an all-reduce is a reduce-scatter followed by an all-gather, and that is how you will build it.
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
# adds the chunk that comes from the left to its own. The sums grow as they travel: once a chunk has gone all the way
# round, everybody has added to it. In the picture each row is one chunk, the letters say whose numbers are in it, and
# an arrow is a message. The last place's message leaves on the right and comes in on the left, because it is a ring.

# %%
figures.ring(size=4, step=0)

# %%
figures.ring(size=4, step=1)

# %% [markdown]
# In step 0 place $p$ sends chunk $p - 1$. In the next step it sends the chunk that it has just added to, and so on.
# **Predict** for 4 ranks and 1 MB: how many kilobytes does one rank send in all? And in which step, counting from 0,
# does place 0 complete chunk 0?

# %%
predict("kB that one rank of the ring sends", ...)
predict("the step in which chunk 0 is complete", ...)

# %%
figures.ring(size=4, step=2)

# %% [markdown]
# A thick frame means that a chunk is complete. All ranks send at the same time, so no rank may wait for its send to
# finish before it starts to receive: that was a deadlock in lesson 01. Every algorithm from here on needs to do both at
# once, so the next cell begins with a function for it, `exchange`.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Write a table for 4 ranks with a row for each step: which chunk does place 0 send, which does it receive? Place 0
# sends chunks 3, 2, 1. What it receives in one step it sends in the next, so it receives 2, 1, 0.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# In step $s$ place $p$ sends chunk $p - 1 - s$. By the same rule its left neighbour sends the chunk before that one.
# All these numbers are modulo $P$. The chunk that arrives is as long as the chunk that it is added to, which may not be
# as long as the one you send.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Your own chunk must come last, so in step 0 you send the chunk before it, and in each further step the one before
# that: the number falls by 1, modulo P. What comes in is one before what goes out. Receive it in a new tensor of that
# chunk's size with `exchange`, then add it to your copy of the chunk.
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

    x: (n,), the same n and dtype on every rank; left unchanged. Each place sends P - 1
    messages of one chunk each, all to the next place, and receives at the same time as
    it sends.
    """
    place, size = team.index(rank), len(team)
    right, left = team[(place + 1) % size], team[place - 1]
    chunks = [chunk.clone() for chunk in x.tensor_split(size)]
    ### BEGIN SOLUTION
    for step in range(size - 1):
        outgoing = (place - 1 - step) % size  # the chunk added to in the step before
        incoming = (outgoing - 1) % size  # the chunk that the left neighbour sends
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
# Now place $p$ owns chunk $p$, complete. Go round the ring once more: each place passes on what it received last, but
# **copies** what arrives instead of adding it. In step 0 everybody sends its own chunk.
#
# Watch the index. In the first half place $p$ began with chunk $p - 1$; now it begins with chunk $p$. In other people's
# code you will often find a reduce-scatter that ends with chunk $p + 1$ on place $p$. Either is fine as long as the two
# halves agree: if they are off by one, every sum is right and in the wrong position.
#
# **Predict**: in which step, counting from 0, does place 0 of 4 receive chunk 1?

# %%
predict("the step in which chunk 1 arrives", ...)

# %% exercise="ring-all-gather" difficulty=2 minutes=10
def ring_all_gather(mine: Tensor, numel: int, team: list[int], rank: int) -> Tensor:
    """Return a tensor of `numel` elements, put together from the chunks of all places.

    mine: chunk `place` of a tensor that was cut by `tensor_split(P)`; left unchanged.
    Returns (numel,), the same on every rank. Each place sends P - 1 messages of one
    chunk each, all to the next place, and receives at the same time as it sends.
    """
    place, size = team.index(rank), len(team)
    right, left = team[(place + 1) % size], team[place - 1]
    whole = mine.new_zeros(numel)
    chunks = whole.tensor_split(size)  # views: what you write into them is in `whole`
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
# Put the two halves together. They are arguments, so that you can swap in others, and so that this exercise is judged
# on its own.
#
# **Predict** the bytes that one rank sends, as a multiple of $n$: with 4 ranks, and with 100.

# %%
predict("times n, 4 ranks", ...)
predict("times n, 100 ranks", ...)

# %% exercise="ring-all-reduce" difficulty=1 minutes=5
def ring_all_reduce(
    x: Tensor,
    team: list[int],
    rank: int,
    reduce_scatter=ring_reduce_scatter,
    all_gather=ring_all_gather,
) -> Tensor:
    """Return the sum of `x` over the team, on each of its ranks: one `reduce_scatter`,
    one `all_gather`.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    reduce_scatter(x, team, rank) and all_gather(mine, numel, team, rank): as above.
    They are called once each; each rank sends 2 (P - 1) messages, one chunk in each.
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
reveal("times n, 100 ranks", 2 * 99 / 100, why="Always less than 2, however many ranks there are.")

# %% [markdown]
# As long as the ranks do the adding, no algorithm can make the busiest rank send less than $2(P-1)/P \cdot n$. A switch
# that adds breaks this bound: each rank sends its $n$ bytes into the network once and gets the sum back once, so for
# many ranks it sends about half of what it sends in a ring. NVIDIA calls this SHARP on InfiniBand switches, and NVLink
# SHARP (NVLS) between the GPUs of a node.
#
# ### Your ring, measured
# In each of the $2(P-1)$ steps every rank sends and receives. Here it is for 4 ranks and 400 kB.

# %% tags=["notebook-only"]
def ring_program(rank, world_size):
    ring_all_reduce(torch.zeros(100_000), list(range(world_size)), rank)

run = simulate(ring_program, 4, cluster=textbook(4))
print(f"{run.elapsed * 1e6:.0f} µs, predicted {2 * 3 * (10 + 10)}")
run.timeline()

# %% [markdown]
# A step takes $\alpha + (n/P)/B$, so the whole ring takes $2(P-1)\left(\alpha + \frac{n}{PB}\right)$. For large $n$
# that is $P$ times faster than the naive way. For small $n$ the ring gains nothing, because it has just as many steps.

# %% tags=["notebook-only"]
algorithms = {"naive": naive_all_reduce, "ring": ring_all_reduce}
for size in (2, 4, 8, 16):
    run = simulate(
        stopwatch, size, algorithms, [64, 640_000_000], cluster=textbook(size)
    )
    seconds = {key: times[0] for key, times in slowest(run).items()}
    few, many = (seconds["naive", n] / seconds["ring", n] for n in (64, 640_000_000))
    print(
        f"{size:2} ranks: naive / ring = {few:.2f} for 64 bytes, {many:5.2f} for 640 MB"
    )

# %% [markdown]
# # Part 3 · Halving and doubling
# The tree has few rounds, the ring sends few bytes. Can you have both? Yes, if messages get **smaller** from round to
# round.
#
# Two ranks at a distance of $P/2$ exchange halves: one keeps the lower half of the tensor and adds its partner's lower
# half, the other does the same with the upper half. From then on each works on its half alone, with a partner at
# distance $P/4$, and so on. After $\log_2 P$ rounds everybody has one $P$-th of the sum. That is a reduce-scatter. Run
# the same exchanges in reverse order and you get the all-gather.

# %%
figures.halving(size=8)

# %% [markdown]
# A bar is the tensor, cut into eight. Green is the part that a place keeps and adds to in this round, orange is the
# part that it gives to its partner, and the part that it no longer works on is empty.

# %% [markdown]
# Partners are easy to find in binary. $d$ is a power of two, and `place ^ d` (exclusive or) flips the bit whose value
# is $d$. So 2 = `010` and 6 = `110` are each other's partners at distance 4. `place & d` tells the two apart: it is
# zero for the one without the bit, and not for the other. As (place, partner, has the bit):

# %%
[(place, place ^ 4, bool(place & 4)) for place in range(8)]

# %% [markdown]
# ## Halving-doubling
#
# **Predict** for 8 ranks and 1 MB: how many kilobytes does a rank send in each of the 3 rounds of the first half? Give
# a list of three numbers.

# %%
predict("kB in each round", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Each round of the first half needs three things: `partner`, a rank; `keep`, the half that stays; `give`, the other
# half. The second half needs the same three again, in reverse order, so note them in a list. A place begins with all of
# `total`; in each later round it works on what it kept in the one before.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Partners differ in one bit of their places. One of them keeps `lower`, the other `upper`: `place & distance` tells
# which. On the way back you hold `keep`, complete, and your partner holds `give`, complete. Both are views of
# `total`, so write into them: a new tensor would not be part of `total`.
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

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,). Each rank
    sends 2 log2 P messages: in the first half, each has half as many elements as the
    message before it, in the second half, twice as many. Where n is a multiple of P,
    that is 2 (P - 1) / P * n elements in all. A rank receives at the same time as it
    sends.
    """
    place, distance = team.index(rank), len(team) // 2
    total = x.clone()
    # first halve, with partners P/2, P/4, ..., 1 places away; then double, with the
    # same partners in reverse order
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
sends = [event for event in run.events if event.op == "send"]
of_rank_0 = [event.bytes / 1e3 for event in sends if event.rank == 0]

# %%
reveal(
    "kB in each round",
    of_rank_0[:3],
    why="That is 7/8 of 1 MB in all, and as much again on the way back: as few bytes as a ring, in 6 rounds, not 14.",
)

# %% [markdown]
# ## Halving-doubling on any number of ranks
#
# 6 is not a power of two, but there is a way to reduce it to one, which MPICH, an MPI library, uses too. The largest
# power of two that fits is 4, so 2 ranks are **extra**. Each extra rank hands its numbers to a partner of its own among
# the first 4, which adds them to its own numbers. These 4 do the all-reduce, and then the partners send the result
# back.

# %%
figures.folding(size=6)

# %% [markdown]
# The fold costs two more messages, each with **all** $n$ bytes. **Predict**: about how many times as long does an
# all-reduce of 1 MB take on 9 ranks as on 8?

# %%
predict("9 ranks take longer than 8, times", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Which ranks are extra, and which rank does each of them talk to? Draw it for 6, where places 4 and 5 talk to places 0
# and 1.
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
# An extra rank makes two calls: it sends `x` to the place P' below its own, and receives the sum from there. Each of
# the others first receives and adds, if it is one of the first `extra`; then calls `all_reduce` with the first P' ranks
# of the team; then sends the sum back, if it has received.
# </details>

# %% exercise="halving-doubling-any-size" difficulty=3 minutes=12
def halving_doubling_any_size(
    x: Tensor,
    team: list[int],
    rank: int,
    all_reduce=halving_doubling,
) -> Tensor:
    """Return the sum of `x` over a team of any size, on each of its ranks.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    all_reduce(x, team, rank): returns the sum over a team of 1, 2, 4, 8, ... ranks, all
    of which must call it. P' is the largest power of two that is not above P. Each of
    the P - P' extra ranks has a partner of its own, to which it sends n elements before
    `all_reduce` and from which it receives n after; `all_reduce` works among the other
    P' ranks.
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
# Here is what the fold costs:

# %% tags=["notebook-only"]
def folded(rank, world_size):
    halving_doubling_any_size(torch.zeros(250_000), list(range(world_size)), rank)

on_8, on_9 = (simulate(folded, size, cluster=textbook(size)).elapsed for size in (8, 9))
print(f"1 MB: {on_8 * 1e6:.0f} µs on 8 ranks, {on_9 * 1e6:.0f} µs on 9")

# %% tags=["notebook-only"]
reveal(
    "9 ranks take longer than 8, times",
    on_9 / on_8,
    why="The 6 rounds on 8 ranks carry nearly $2n$ bytes in all, and the two messages of the fold carry another $2n$.",
)

# %% [markdown]
# ### The four algorithms, measured
# Here are all four, from 64 bytes to 64 MB, on 16 virtual ranks and then on 12. Both axes are logarithmic: equal
# distances are equal factors.

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
    seconds = slowest(
        simulate(stopwatch, size, ALGORITHMS, sizes, cluster=textbook(size))
    )
    return {name: [(n, seconds[name, n][0]) for n in sizes] for name in ALGORITHMS}

def beside(curves):
    """Print each one's time for the most bytes, as a multiple of halving-doubling's."""
    times = {name: points[-1][1] for name, points in curves.items()}
    unit = times["halving-doubling"]
    print(
        "64 MB:", *(f"{name} {seconds / unit:.2f}  " for name, seconds in times.items())
    )

on_16 = curves(16)
beside(on_16)
figures.time_curves(on_16, "all-reduce on 16 ranks: α = 10 µs, 10 GB/s")

# %% tags=["notebook-only"]
on_12 = curves(12)
beside(on_12)
figures.time_curves(on_12, "all-reduce on 12 ranks: α = 10 µs, 10 GB/s")

# %% [markdown]
# On the left all curves are flat: latency dominates, so the number of rounds counts. On the right they all rise with
# the same slope: bandwidth dominates, so bytes count. Where two curves cross, one algorithm stops being the faster of
# the two. On 16 ranks nothing beats halving-doubling. On 12 the fold costs it the lead for large tensors: to the right
# of the dotted line the ring wins.
#
# Why, then, are rings everywhere? In the model every pair of ranks has a link of its own. In a real network the partner
# at distance $P/2$ is at the other end of the building, and everybody's messages share the same few cables. In a ring,
# each rank only ever sends to its neighbour.

# %% [markdown]
# # Part 4 · Nodes
# GPUs come in nodes of 8, say. Inside a node they are connected by something fast (on an H100, NVLink: 450 GB/s each
# way), between nodes by something slow (a network card of 50 GB/s for each GPU). A flat ring over all of them is as
# slow as its slowest link: in every step some rank's chunk crosses from one node to the next, and everybody waits for
# it.
#
# It is better to do as much as possible inside the nodes, so that little is left to send across. Let there be $L$ ranks
# on each node, and call a rank's position within its node its **seat**:

# %%
figures.two_levels(nodes=2, local=4)

# %% [markdown]
# 1. Reduce-scatter **inside** each node: afterwards seat $s$ of each node has chunk $s$ of the node's sum.
# 2. All-reduce **across** the nodes, among the ranks with the same seat: each has $1/L$ of the bytes, and all seats
#    work at the same time.
# 3. All-gather **inside** each node.
#
# This is where teams pay off: you call the functions that you already have, on parts of the world.

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
# The three functions work on any team. So all you need is two teams: the ranks on your node, and the ranks with your
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
# Both teams are slices: the ranks of a node are `local` neighbours, and those of a seat are `local` apart. Then
# `reduce_scatter` inside, `all_reduce` your chunk across, and `all_gather` inside; the last one needs to know how many
# elements `x` has.
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
    """Return the sum of `x` over the team, on each of its ranks: reduce-scatter inside
    the nodes, all-reduce across them, all-gather inside.

    x: (n,), the same n and dtype on every rank; left unchanged. Returns (n,).
    team: the ranks of the first node, then those of the second, and so on; `local`
    ranks on each node.
    Call the functions that you are given: reduce_scatter(x, team, rank), all_reduce(x,
    team, rank) and all_gather(mine, numel, team, rank). What is all-reduced across is
    1 / local of the elements.
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
    hierarchical_all_reduce(
        torch.zeros(250_000), list(range(world_size)), rank, local=4
    )

sent = simulate(nodes_program, 8, cluster=textbook(8)).traffic().bytes[0]

# %%
reveal("times n inside the node", sum(sent[:4]) / 1e6, why="A ring of 4: 2 · 3/4.")
reveal(
    "times n to the other node",
    sum(sent[4:]) / 1e6,
    why="A ring of 2 with a quarter of the bytes: 2 · 1/2 · 1/4.",
)

# %% [markdown]
# ### Across nodes, measured
# Now 4 nodes of 8 ranks. Between nodes the bandwidth is a tenth of that inside, and the latency twice as high.
# **Predict** for 8 MB: the flat ring makes a whole **node** send how many times the bytes to other nodes that your
# hierarchical all-reduce does?

# %%
predict("bytes a node sends out, flat ring / yours", ...)

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
    per_rank = [
        sum(nbytes for other, nbytes in enumerate(of_rank) if other // 8 != rank // 8)
        for rank, of_rank in enumerate(sent)
    ]
    most, node = max(per_rank) / 1e6, sum(per_rank[:8]) / 1e6
    print(f"{name:13} {run.elapsed * 1e3:4.1f} ms; sent to other nodes: ", end="")
    print(f"busiest rank {most:5.2f} MB, whole node {node:5.2f} MB")
    of_node[name] = node

# %% tags=["notebook-only"]
reveal(
    "bytes a node sends out, flat ring / yours",
    of_node["flat ring"] / of_node["hierarchical"],
    why="In the flat ring a single rank of each node sends to other nodes, one small chunk per step: hardly more.",
)

# %% [markdown]
# Look at the last column. It is often said that a hierarchical all-reduce divides the traffic between nodes by the
# number of GPUs in a node. For the busiest **rank** it does, roughly. For a whole **node** it hardly changes anything:
# the flat ring sends one chunk per step from each node to the next, and it is always the same one of the eight ranks
# that sends it. There are two gains. Eight network cards share the load that one had to carry, and the slow latency is
# paid $2(M-1)$ times for $M$ nodes, instead of $2(P-1)$ times.
#
# NCCL gets the first gain without leaving the ring. It runs several rings at once, its **channels**, each with a share
# of the bytes and an order of its own, so that each leaves the node through a different network card. The second gain
# remains: across many nodes a flat ring has too many steps unless tensors are very large. There NCCL prefers its trees,
# or switches that add.

# %% [markdown]
# # Part 5 · All-to-all
# One more collective, in which the **order** of the messages is everything. In an all-to-all each rank has a different
# chunk for each of the others. There is nothing to add up, and passing chunks on through others would only send them
# more than once, so each rank sends $P - 1$ messages.

# %% [markdown]
# ## Pairwise all-to-all
#
# If everybody sends to place 0 first, then to place 1, and so on, there is a long queue at one rank while all the
# others have nothing to receive. In a **pairwise** exchange, place $p$ sends to place $p + s$ in step $s$ and receives
# from place $p - s$ (modulo $P$). So in every step each rank receives exactly one message.

# %%
figures.pairwise(size=4)

# %% exercise="pairwise-all-to-all" difficulty=2 minutes=10
def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
    """Return chunk `place` of everybody's `x`, one after the other, in the order of the
    places that they come from.

    x: (n,), the same n and dtype on every rank; left unchanged. Chunks are those of
    `tensor_split(P)`. Returns (P * elements in chunk `place`,). Each rank sends one
    message to each other place. There are P - 1 steps: in each, every rank sends one
    message and receives one.
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
# How much does the order matter? Here are both orders, on 8 ranks with 80 kB each.

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
run = simulate(stopwatch, 8, orders, [80_000], cluster=textbook(8))
[queue], [pairs] = slowest(run).values()
print(f"in rank order {queue * 1e6:.0f} µs, pairwise {pairs * 1e6:.0f} µs")
print(f"the queue takes {queue / pairs:.1f} times as long")

# %% [markdown]
# # Part 6 · Which one, when?
# A library has several algorithms and picks one for each call. It can't try them all, so it computes how long each
# would take. Now you do the same.

# %% [markdown]
# ## The time of an all-reduce
#
# Count the rounds of each algorithm, and the bytes that the busiest rank sends in them. You have predicted and measured
# all of this; now write it down for any $P$. Remember that a tree has a whole number of rounds, and that
# halving-doubling folds when $P$ is not a power of two.

# %% exercise="all-reduce-seconds" difficulty=2 minutes=10
def all_reduce_seconds(
    algorithm: str,
    size: int,
    nbytes: int,
    alpha: float,
    bandwidth: float,
) -> float:
    """Seconds that an all-reduce of `nbytes` bytes takes among `size` ranks (1 or
    more), by the alpha-beta model.

    algorithm: "naive", "tree", "ring" or "halving-doubling".
    alpha: seconds that a message takes at least. bandwidth: bytes a second. Adding
    takes no time.
    Parts of a tensor are fractions of nbytes, such as nbytes / size, without rounding.
    """
    # the largest power of two that is not above `size`
    power = 2 ** (size.bit_length() - 1)
    whole = alpha + nbytes / bandwidth  # one message with everything in it
    # halving-doubling: what the two messages of the extra ranks take
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
# Your formulas and the virtual cluster should agree to the last digit that is printed. Do they?

# %% tags=["notebook-only"]
for size in (4, 6):
    run = simulate(stopwatch, size, ALGORITHMS, [48, 4_800_000], cluster=textbook(size))
    for (name, nbytes), [seconds] in slowest(run).items():
        ratio = seconds / all_reduce_seconds(name, size, nbytes, ALPHA, BANDWIDTH)
        print(
            f"{size} ranks, {nbytes:9,} bytes, {name:17} measured / predicted = "
            f"{ratio:.6f}"
        )

# %% [markdown]
# ## The crossover size
#
# Tree or ring? Set their two times equal and solve for $n$:
#
# $$2 \lceil \log_2 P \rceil \left(\alpha + \frac{n}{B}\right) = 2 (P - 1) \left(\alpha + \frac{n}{P B}\right)$$
#
# On 2 and 3 ranks both have the same number of rounds, so the ring wins from the first byte, and the crossover is at 0.
# Think before you compute: with twice the bandwidth, does the tree win more often, or less often?

# %% exercise="crossover" difficulty=2 minutes=8
def crossover(size: int, alpha: float, bandwidth: float) -> float:
    """Return the number of bytes above which a ring all-reduce is faster than a tree,
    among `size` ranks (2 or more).

    alpha: seconds. bandwidth: bytes a second. The result is not rounded.
    """
    rounds = (size - 1).bit_length()  # the tree's, one way: log2 P, rounded up
    ### BEGIN SOLUTION
    more_rounds = (size - 1) - rounds  # the ring's extra cost, in alphas
    fewer_bytes = rounds - (size - 1) / size  # its saving, in n
    return more_rounds / fewer_bytes * alpha * bandwidth
    ### END SOLUTION

# %% check="crossover" judges="values" points=3
check(crossover, judges="values")

# %% tags=["notebook-only"]
for size in (4, 8, 64, 1024):
    kilobytes = crossover(size, ALPHA, BANDWIDTH) / 1e3
    print(f"{size:5} ranks: the ring wins above {kilobytes:10,.0f} kB")

# %% [markdown]
# With twice the bandwidth the crossover is twice as high, so the tree wins more often: bytes have become cheaper, and
# saving bytes is what the ring is good at. Here are both on 12 ranks. The dotted line is where the two measured curves
# cross; your formula should give the same number.

# %% tags=["notebook-only"]
print(f"crossover(12): {crossover(12, ALPHA, BANDWIDTH) / 1e3:.1f} kB")
both = {name: on_12[name] for name in ("tree", "ring")}
figures.time_curves(both, "tree and ring on 12 ranks")

# %% [markdown]
# A hundred kilobytes is the gradient of a small layer. If you send such layers around a ring one by one, nearly all of
# the time is latency. So data parallelism packs them into large buckets first (lesson 05).

# %% [markdown]
# ### Tree or ring, by sliders
# The lines are what the virtual cluster charges; the circles are your `all_reduce_seconds`. Double $\alpha$, then halve
# $\beta$, which is to double the bandwidth: which way does the crossover move? Then compare 4 ranks with 1,024.
#
# **Predict** first, then look it up: a bucket of 16 MB on 256 ranks, with links of 50 GB/s. What is the highest
# $\alpha$ on the slider, in microseconds, at which the ring is still the faster of the two?

# %%
predict("the highest alpha at which the ring wins", ...)

# %%
def tree_or_ring(P, nbytes, alpha, bandwidth):
    link = Link(alpha, bandwidth)
    machine = Cluster("P GPUs", 1, P, gpu=free, intra=link, inter=link)
    layout = Layout.of(machine, range(P))
    forms = {}

    def charged(n):
        return cost("all_reduce", n, machine, layout).candidates

    for name, seconds in charged(nbytes).items():
        yours = partial(all_reduce_seconds, name, P, nbytes, alpha, bandwidth)
        forms[name] = seconds, yours, "s"

    def draw(right):
        sizes = (1e3, 1e5, 1e7, 1e9)
        curves = {name: [(n, charged(n)[name]) for n in sizes] for name in forms}
        if right:
            curves["yours"] = [(nbytes, seconds) for seconds in right.values()]
        title = f"all-reduce among {P:,} ranks"
        picture = figures.time_curves(curves, title, dots="yours" if right else "")
        picture.axes[0].set_ylim(1e-6, 100)
        return picture

    return forms, draw

alphas = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4)
figures.explore(
    tree_or_ring,
    units={"nbytes": "B", "alpha": "s", "bandwidth": "B/s"},
    P=(2, 4, 8, 64, 256, 1024),
    nbytes=(1e3, 1e4, 1e5, 1e6, 16e6, 1e9),
    alpha=alphas,
    bandwidth=(1e9, 5e9, 10e9, 50e9, 100e9),
)

# %%
reveal(
    "the highest alpha at which the ring wins",
    max(round(alpha * 1e6) for alpha in alphas if crossover(256, alpha, 50e9) < 16e6),
    why="The crossover is a fixed multiple of $\\alpha B$, here about 35 times: both sliders move it alike.",
)

# %% [markdown]
# ## Choosing the algorithm
#
# Don't rely on fixed thresholds: they change with $P$, $\alpha$ and $B$. Compute each candidate's time and compare.

# %% exercise="choose-algorithm" difficulty=2 minutes=6
def choose_algorithm(
    nbytes: int,
    size: int,
    alpha: float,
    bandwidth: float,
    candidates=("naive", "tree", "ring", "halving-doubling"),
    seconds=all_reduce_seconds,
) -> str:
    """Return the name of the fastest of the candidates; of several that are equally
    fast, the one that comes first.

    seconds(algorithm, size, nbytes, alpha, bandwidth): how long an algorithm takes.
    """
    ### BEGIN SOLUTION
    return min(candidates, key=lambda name: seconds(name, size, nbytes, alpha, bandwidth))
    ### END SOLUTION

# %% check="choose-algorithm" judges="values" points=3
check(choose_algorithm, judges="values")

# %% tags=["notebook-only"]
print("bytes          " + "".join(f"{size:>6} ranks      " for size in (4, 6, 12, 96)))
for nbytes in (400, 40_000, 4_000_000, 400_000_000):
    chosen = [
        choose_algorithm(nbytes, size, ALPHA, BANDWIDTH) for size in (4, 6, 12, 96)
    ]
    print(f"{nbytes:11,}    " + "".join(f"{name:18}" for name in chosen))

# %% [markdown]
# ## An all-reduce for any tensor
#
# This is the all-reduce that a library offers: it takes any shape and any strides, and the caller need not know the
# algorithm. A tensor may be a column of a matrix, with gaps between its numbers in memory, but a message can't have
# gaps. So: flatten, choose, run, restore the shape.

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
    `choose` names for its bytes.

    x: the same shape (any) and dtype on every rank, contiguous or not; left unchanged.
    Returns x.shape.
    choose(nbytes, size, alpha, bandwidth): the name of the algorithm to use. nbytes
    counts bytes, not elements.
    algorithms: {name: function(x, team, rank)}, ALGORITHMS unless given. Each takes a
    one-dimensional, contiguous tensor.
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
# Here it is on 12 virtual ranks, as in the picture above. The dots of your `all_reduce` should lie on the lowest curve
# everywhere.

# %% tags=["notebook-only"]
chosen = {"chosen": partial(all_reduce, alpha=ALPHA, bandwidth=BANDWIDTH)}
seconds = slowest(simulate(stopwatch, 12, chosen, sizes, cluster=textbook(12)))
dots = [(nbytes, seconds["chosen", nbytes][0]) for nbytes in sizes]
best = [min(points[at][1] for points in on_12.values()) for at in range(len(sizes))]
print(
    "time / best time:",
    *(f"{mine / least:.2f}" for (_, mine), least in zip(dots, best)),
)
figures.time_curves({**on_12, "chosen": dots}, "all-reduce on 12 ranks", dots="chosen")

# %% [markdown]
# # Part 7 · Your machine, and the library
# The virtual cluster says what the model says. What does your machine say? Below, four real processes run your
# algorithms and Gloo's own `dist.all_reduce` in turn, and the table shows each one's time as a multiple of Gloo's.
# Where a number is below 1, yours is faster.
#
# **Predict**: for 16 MB, how many times as fast as the naive way is your ring on this machine? The model says 4 times.

# %%
predict("the ring is faster than the naive way, times", ...)

# %% tags=["nbval-ignore-output"]
def gloo(x, team, rank):
    """The library's all-reduce, over all ranks."""
    total = x.clone()
    dist.all_reduce(total)
    return total

def beside_gloo(seconds, nbytes, name):
    """The median ratio of two runs, one right after the other. The first two rounds are
    warm-up.
    """
    pairs = list(zip(seconds[name, nbytes], seconds["gloo", nbytes]))
    return median(mine / library for mine, library in pairs[2:])

contest = {"gloo": gloo, **ALGORITHMS}
seconds = slowest(spawn(stopwatch, 4, contest, [4_000, 64_000, 1_000_000], repeats=15))
seconds |= slowest(spawn(stopwatch, 4, contest, [16_000_000], repeats=5))
print("bytes          " + "".join(f"{name:>18}" for name in ALGORITHMS))
for nbytes in (4_000, 64_000, 1_000_000, 16_000_000):
    ratios = [beside_gloo(seconds, nbytes, name) for name in ALGORITHMS]
    print(f"{nbytes:11,}    " + "".join(f"{ratio:18.2f}" for ratio in ratios))

# %% tags=["nbval-ignore-output"]
naive, ring = (median(seconds[name, 16_000_000][2:]) for name in ("naive", "ring"))

# %% tags=["nbval-ignore-output"]
reveal(
    "the ring is faster than the naive way, times",
    round(naive / ring, 2),
    why="Where all ranks share one memory, it is the total number of bytes that counts, not the busiest rank's.",
)

# %% [markdown]
# The numbers differ from machine to machine, and somewhat from run to run: run the cell twice before you believe a
# difference. Here is how to read them.
#
# - **Small messages.** Gloo's all-reduce is a ring at every size, unless it is told otherwise. With few bytes a ring
#   pays for $2(P-1)$ steps, one after the other. So an algorithm with fewer rounds can beat the library even in
#   Python: look for numbers below 1 in the first rows. Your own ring takes the same steps as Gloo's, but in Python.
# - **Large messages.** If you have no more cores than ranks, the ring is nowhere near 4 times as fast as the naive way,
#   and perhaps no faster at all. Is the model wrong? No, but an assumption of it doesn't hold here: that every rank has
#   a link of its own. Your ranks are processes on one machine, and a message is a copy in its memory, made by one of
#   its cores. When all cores are busy copying, it doesn't matter which rank sends a byte, only how many bytes there are
#   in all. (On a machine with many idle cores several copies can go on at once, and the ring wins back part of its
#   lead.)
#
# So count the bytes of **all** ranks together:

# %% tags=["notebook-only"]
def once(rank, world_size, name):
    ALGORITHMS[name](torch.ones(4000), list(range(world_size)), rank)

for name in ALGORITHMS:
    traffic = spawn(once, 4, name).traffic()
    sent = [traffic.sent(rank)[1] for rank in range(4)]
    print(
        f"{name:17} busiest rank sends {max(sent):6,} bytes, all together "
        f"{sum(sent):6,}"
    )

# %% [markdown]
# All four send $2(P-1)n$ bytes in all. They differ in how these bytes are spread over the ranks. With one shared
# memory, spreading them gains at most what idle cores can copy at the same time. On a cluster, where each rank has a
# link of its own, it makes all the difference.
#
# Had you only measured on a laptop, you might have concluded that rings are useless. So measure a program where it will
# run, or count what will be scarce there.

# %% [markdown]
# # Part 8 · Sixteen gigabytes on 256 GPUs
# Lesson 01 began with a gradient of 16 GB on 1,024 GPUs, 128 nodes of 8. Through GPU 0 it took eleven minutes, and the
# lesson promised that you would build something better here. This is it, on a quarter of that machine, 32 nodes, so
# that you don't have to wait long for the cell. It uses your rings inside the nodes, and your halving-doubling across
# them, since 32 is a power of two.

# %% tags=["notebook-only"]
def yours(rank, world_size):
    gradient = torch.empty(8_000_000_000, dtype=torch.bfloat16)
    team = list(range(world_size))
    hierarchical_all_reduce(gradient, team, rank, local=8, all_reduce=halving_doubling)

def the_library(rank, world_size):
    dist.all_reduce(torch.empty(8_000_000_000, dtype=torch.bfloat16))

for what, program in (("yours", yours), ("the library", the_library)):
    print(f"{what:12} {simulate(program, 256, cluster='dgx-h100').elapsed:8.3f} s")
print(f"through GPU 0 {2 * 255 * 16e9 / 50e9:7.3f} s")

# %% [markdown]
# You are within a few hundredths of a second of the library, down from almost three minutes. On all 1,024 GPUs it would
# take about as long: two more rounds each way between nodes, and hardly more bytes per rank. (Yours takes longer than
# the library's because it also pays for copying and adding, which the virtual cluster's own all-reduce does for free.)

# %% [markdown]
# ## In words: one measurement, one rule
# A colleague has timed an all-reduce of 4 kB on 64 GPUs. The tree was several times as fast as the ring, so the team
# has decided: "We use the tree, for everything."
#
# In about six sentences: why did the tree win, why is the rule wrong for the gradient, and what would you measure
# before you write down a rule of your own? No function checks this one. A person reads it.

# %% [markdown] essay="one-measurement-one-rule" points=4 minutes=8
# ### BEGIN SOLUTION
# With 4 kB, nearly all of the time is latency: the tree takes $2 \log_2 64 = 12$ steps one after the other, the ring
# $2 (64 - 1) = 126$. With a gradient of gigabytes the bytes decide, and there the tree is the slow one: in each of
# its 12 steps the whole tensor crosses a link, while a rank of the ring sends a 64th of it at a time, about twice the
# tensor in all. So for the gradient the ring is about six times as fast. Where the two meet depends on $\alpha B$:
# here at about eleven times that many bytes. I would measure both from a few bytes to the largest gradient, at the
# number of ranks that we use, find the crossover and let the size choose. Between nodes I would measure again,
# because the links there have another latency and bandwidth.
#
# **Rubric**
#
# - 1 point: for few bytes the number of steps decides (latency), and the tree has far fewer than the ring
# - 1 point: for many bytes the bytes per link decide, and the tree sends the whole tensor in every step
# - 1 point: there is a crossover, and it depends on latency, bandwidth and the number of ranks
# - 1 point: a measurement that would settle it: both algorithms, over sizes, at the real number of ranks
# ### END SOLUTION

# %% [markdown]
# ### How your predictions went

# %% tags=["nbval-ignore-output"]
how_predictions_went()

# %% [markdown]
# # Recap
# For $P$ ranks and $n$ bytes:
#
# | algorithm | rounds, each costs $\alpha$ | time for the bytes, in $n/B$ | busiest rank sends |
# |---|---|---|---|
# | naive | $2(P-1)$ | $2(P-1)$ | $(P-1)\,n$ |
# | binomial tree | $2\lceil\log_2 P\rceil$ | $2\lceil\log_2 P\rceil$ | $\lceil\log_2 P\rceil\,n$ |
# | ring | $2(P-1)$ | $2(P-1)/P$ | $2(P-1)/P \cdot n$ |
# | halving-doubling, $P = 2^k$ | $2\log_2 P$ | $2(P-1)/P$ | $2(P-1)/P \cdot n$ |
#
# - Small messages need few rounds, large ones few bytes; between them lies a **crossover**, some multiple of $\alpha
#   B$.
# - A **hierarchical** all-reduce does as much as possible over the fast links, and keeps all network cards of a node
#   busy at the same time.
# - Add each number once, then copy it: all ranks hold the same bits.
# - The order of the messages is part of an algorithm: the same all-to-all takes longer if everybody sends to the same
#   rank first.
# - A model holds where its assumptions hold. With one shared memory the total number of bytes counts, not each rank's.
#
# **The library.** NCCL has rings and double binary trees: two trees, each with half of the data, cut into pieces that
# follow one another up and down, so that all links stay busy. Both run in several channels at once, over all network
# cards of a node. Where switches can add (NVLS inside a node, SHARP between nodes), a rank sends less than
# $2(P-1)/P \cdot n$. NCCL picks by message size and topology, much as you did; `NCCL_ALGO` forces one. Gloo uses a
# ring. `dist.new_group` makes a group of ranks, which you have met here as a `team`.
#
# **The paper.** Thakur, Rabenseifner, Gropp: *Optimization of collective communication operations in MPICH*
# (International Journal of High Performance Computing Applications, 2005). It has halving-doubling, the fold, and the
# selection by size, as in this lesson.

# %% [markdown]
# # Challenge
# This is an open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## Many tensors of mixed sizes
#
# A model has not one gradient but one for each parameter, from a bias of a few numbers to a large matrix. Here are
# sixteen of them, on three nodes of four GPUs. Sum them all, on every rank, as fast as you can.
#
# Only messages take time, and a rank sends one at a time. Inside a node a message takes 10 µs, plus its bytes at
# 10 GB/s; between nodes it takes 20 µs, plus its bytes at 2.5 GB/s. You may send any rank whatever you like.
#
# Par is what this lesson's functions reach when you combine them well. The limit is a bound that no algorithm can beat:
# each rank's share of all bytes that must be sent, at the speed of the links, after a single latency. If you reach par,
# you get the extra credit. How far beyond can you go?

# %%
LAYERS = [64, 16_384, 64, 16_384, 256, 24_576, 64, 9_216]
LAYERS += [48, 12_288, 1, 18_432, 512, 16_384, 7, 5_320]

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
# Concatenate the tensors, all-reduce once, and split the sum. (Lesson 05 calls this a bucket.) The nodes matter too:
# most bytes should stay inside one.
# </details>
#
# <details><summary>Hint 3: beyond par</summary>
#
# On four ranks halving takes two rounds where a ring takes three, with the same bytes. And across three nodes, would it
# pay to send more bytes in fewer rounds? Work it out in numbers before you write it.
# </details>

# %% exercise="mixed-sizes" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def mixed_sizes(
    xs: list[Tensor], rank: int, world_size: int, local: int
) -> list[Tensor]:
    """Return the sums of all tensors in `xs` over all ranks, on each of them: as fast
    as possible, by messages alone.

    xs: each of shape (n,), with an n of its own, the same on every rank; all of one
    dtype; left unchanged.
    local: how many ranks are on each node. Ranks 0 to local - 1 are on the first, and
    so on.
    Any order of additions will do, and ranks may differ in the last digit, but what is
    sent must not be rounded to a shorter dtype.
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
