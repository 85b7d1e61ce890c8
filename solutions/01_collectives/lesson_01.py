# %% [markdown] question="How do processes exchange tensors, and what happens when they disagree?"
# # Collectives
# *you need: lesson 00 (ranks, `spawn`, reading a report).*
#
# A model that is trained on many GPUs lives in many processes, and everything depends on how they exchange tensors.
# There are messages from one rank to another, and there are eight operations that a whole group of ranks performs
# together, the **collectives**. Pipelines are made of messages; nearly every other method in this course is made of
# collectives.
#
# By the end of this lesson you will know what each of the eight leaves on every rank, and what it is built from. You
# will have built some of them out of messages and some out of each other. And you will have broken their rules, and
# seen which violations stop the program and which ones only give wrong numbers.

# %%
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from utils import figures, region, simulate, spawn
from utils.checks import checks_for
from utils.kit.predictions import how_predictions_went, predict, reveal

check = checks_for("01_collectives")
spawn = partial(spawn, backend="gloo")  # this lesson computes on the CPU
# so that you can compute its times by hand
simulate = partial(simulate, rates="datasheet")

# %% [markdown]
# ## Why: the same sum, a thousand times slower
# A model of 8 billion parameters trains on 1,024 GPUs. Each GPU sees different data and so computes a different
# gradient, and at every step all of them need the **sum**. In bfloat16 one gradient is 16 GB. A fast network card moves
# 50 GB a second in each direction.
#
# The obvious way: every GPU sends its gradient to GPU 0, which adds them up and sends the sum back. GPU 0 then receives
# 1,023 gradients and sends 1,023 sums. In a good all-reduce every GPU sends about two gradients' worth of bytes,
# however many GPUs there are. **Predict** how long the obvious way takes, in seconds per training step.

# %%
predict("seconds through GPU 0", ...)

# %%
gpus, gradient, link = 1024, 8e9 * 2, 50e9  # GPUs, bytes, bytes per second one way
obvious = 2 * (gpus - 1) * gradient / link  # all in, all out, through one card
good = 2 * (gpus - 1) / gpus * gradient / link  # each sends 2 (P - 1) / P gradients

# %%
reveal("seconds through GPU 0", obvious, unit="s", why="Eleven minutes: 1,023 gradients of 0.32 s, in and then out.")

# %%
print(
    f"through GPU 0: {obvious:.0f} s a step     good all-reduce: {good:.2f} s",
    end="     ",
)
print(f"{obvious / good:.0f} times faster")

# %% [markdown]
# Eleven minutes or less than a second, for the same result. Lesson 02 builds the good one. First, though: what exactly
# do ranks exchange, and by which calls?

# %% [markdown]
# ## Messages
# `dist.send(x, dst=1)` sends the tensor `x` to rank 1. `dist.recv(x, src=0)` waits for a tensor from rank 0 and writes
# it **into** `x`, which must already have the right shape and dtype. Both take a tensor; neither returns one.

# %% tags=["notebook-only"]
def one_message(rank, world_size):
    x = torch.full((3,), float(rank))
    if rank == 0:
        dist.send(x + 7, dst=1)
    else:
        dist.recv(x, src=0)
    return x

spawn(one_message, 2).results

# %% [markdown]
# Each send needs one receive on the other side, and `send` **waits** until its partner receives. So the order matters.
# Below, two ranks want to swap their tensors, and both send first. **Predict** how it ends.

# %%
predict("both send first", ..., choices=["they swap", "an error", "a deadlock"])

# %% tags=["raises-exception"]
def swap(rank, world_size):
    mine, theirs = torch.full((3,), float(rank)), torch.empty(3)
    other = 1 - rank
    dist.send(mine, dst=other)
    dist.recv(theirs, src=other)
    return theirs

spawn(swap, 2)

# %%
reveal("both send first", "a deadlock", why="Each waits in `send` until the other receives, and neither gets there.")

# %% [markdown]
# The fix: let one of the two receive first, or start the send without waiting. `dist.isend` returns at once, with a
# **handle**; `handle.wait()` returns when the tensor has been sent.

# %% tags=["notebook-only"]
def swap(rank, world_size):
    mine, theirs = torch.full((3,), float(rank)), torch.empty(3)
    other = 1 - rank
    sending = dist.isend(mine, dst=other)  # starts, and returns
    dist.recv(theirs, src=other)
    sending.wait()  # before `mine` may change or vanish
    return theirs

spawn(swap, 2).results

# %% [markdown]
# # Part 1 · Rooted collectives
# In four of the eight collectives one rank, the **root**, has everything at the start or gets everything at the end.
#
# | collective | the root | the others |
# |---|---|---|
# | **broadcast** | gives everyone a copy of its tensor | get the copy |
# | **scatter** | cuts its tensor into $P$ chunks and gives one to each | rank $r$ gets chunk $r$ |
# | **gather** | gets the tensors of all ranks, in rank order | give theirs |
# | **reduce** | gets the sum of the tensors of all ranks | give theirs |
#
# In the pictures a column is a rank, and a colour says from which rank a value came. Here the root is rank 1. It takes
# part too: it keeps a copy, keeps a chunk, or adds its own tensor.

# %%
figures.collective("broadcast", world_size=4, root=1)

# %%
figures.collective("scatter", world_size=4, root=1)

# %%
figures.collective("gather", world_size=4, root=1)

# %%
figures.collective("reduce", world_size=4, root=1)

# %% [markdown]
# **Every** rank makes the call, and all name the same root: that is what makes it a collective. What differs is what
# each rank hands in. **Predict** for these four tensors and root 1: what does rank 2 hold after the scatter (a list of
# numbers)? And what does it hold after the reduce: its own tensor, the sum, or neither?

# %%
held = [[1, 2, 3, 4], [5, 6, 7, 8], [10, 20, 30, 40], [100, 200, 300, 400]]
predict("rank 2 after the scatter", ...)
predict("rank 2 after the reduce", ..., choices=["its own", "the sum", "neither"])

# %% tags=["notebook-only"]
def rooted(rank, world_size, root):
    x, got = torch.tensor(held[rank]), {}

    got["broadcast"] = x.clone()  # read on the root, overwritten on the others
    dist.broadcast(got["broadcast"], src=root)

    got["scatter"] = torch.empty(1, dtype=x.dtype)  # filled on every rank
    # on the root, P tensors of one size; None elsewhere
    chunks = list(x.chunk(world_size)) if rank == root else None
    dist.scatter(got["scatter"], chunks, src=root)

    # filled on the root; None elsewhere
    rows = [torch.empty_like(x) for _ in range(world_size)] if rank == root else None
    dist.gather(x, rows, dst=root)
    got["gather"] = rows and torch.cat(rows)

    got["reduce"] = x.clone()  # overwritten with the sum on the root
    dist.reduce(got["reduce"], dst=root)
    return {name: None if x is None else x.tolist() for name, x in got.items()}

after = spawn(rooted, 4, root=1).results
for name in after[0]:
    print(
        name.ljust(10),
        *(f"rank {rank}: {after[rank][name]}" for rank in (1, 2)),
        sep="   ",
    )

# %% tags=["notebook-only"]
kinds = {tuple(held[2]): "its own", tuple(after[1]["reduce"]): "the sum"}

# %% tags=["notebook-only"]
reveal("rank 2 after the scatter", after[2]["scatter"], why="Chunk 2 of the root's tensor. Its own plays no part.")
reveal(
    "rank 2 after the reduce",
    kinds.get(tuple(after[2]["reduce"]), "neither"),
    why="Only the root's result is promised. What the others are left with is whatever the algorithm had there: Gloo "
    "uses their tensors as scratch paper. Never read them.",
)

# %% [markdown]
# # Part 2 · Collectives from messages
# There is no magic in a library: inside, a collective is sends and receives. Now you write all four, for any root and
# any number of ranks. Two things trip everybody up once:
#
# - No rank sends to itself. With one rank there is no message at all.
# - Both sides must agree: for each `send` on one rank there is exactly one `recv` on the other.
#
# **Predict** for 4 ranks, root 1 and a tensor of 4,000 bytes: how many bytes does the root of your broadcast send?

# %%
predict("bytes that the root sends", ...)

# %% [markdown]
# ## Broadcast
#
# The root sends its tensor to each of the others; each of the others receives once.
#
# <details><summary>Hint</summary>
#
# Every rank runs the same function, so ask who you are: `if rank == root:` a loop of sends that leaves out the root,
# `else:` one receive.
# </details>

# %% exercise="broadcast-by-hand" difficulty=2 minutes=8
def broadcast_by_hand(x: Tensor, root: int, rank: int, world_size: int) -> Tensor:
    """Return the root's `x` on every rank; P - 1 messages in all, by send and recv
    alone.

    x: same shape and dtype on every rank, but only the root's values count. Left
        unchanged.
    """
    received = x.clone()
    ### BEGIN SOLUTION
    if rank == root:
        for other in range(world_size):
            if other != root:
                dist.send(x, dst=other)
    else:
        dist.recv(received, src=root)
    ### END SOLUTION
    return received

# %% check="broadcast-by-hand" judges="values" points=3
check(broadcast_by_hand, judges="values")

# %% check="broadcast-by-hand" judges="traffic" points=1
check(broadcast_by_hand, judges="traffic")

# %% [markdown]
# `spawn` records every call in `run.events`. Here are all the messages of your broadcast, as a table of source and
# destination:

# %%
def broadcast_program(rank, world_size):
    broadcast_by_hand(torch.zeros(1000), 1, rank, world_size)

broadcast_run = spawn(broadcast_program, 4)
figures.traffic(broadcast_run, "broadcast by hand")

# %% tags=["notebook-only"]
_, root_sends = broadcast_run.traffic().sent(rank=1)

# %% tags=["notebook-only"]
reveal("bytes that the root sends", root_sends, unit="B", why="$P - 1$ times the tensor, one after the other.")

# %% [markdown]
# Only the root's row is filled: it sends everything itself, like GPU 0 in the opening. This is why libraries use trees
# and rings.

# %% [markdown]
# ## Scatter
#
# Every rank brings an empty tensor for its chunk; only the root has the list of chunks. PyTorch's own scatter insists
# that all chunks have the same size. Yours must allow **different sizes**. What does the root do with its own chunk?

# %% exercise="scatter-by-hand" difficulty=2 minutes=7
def scatter_by_hand(
    mine: Tensor, chunks: list[Tensor] | None, root: int, rank: int, world_size: int
) -> Tensor:
    """Fill `mine` with the root's `chunks[rank]` and return it; P - 1 messages in all,
    by send and recv alone.

    mine: shape and dtype of this rank's chunk, to be overwritten.
    chunks: P tensors on the root, left unchanged; None on the other ranks.
    """
    ### BEGIN SOLUTION
    if rank == root:
        for other in range(world_size):
            if other != root:
                dist.send(chunks[other], dst=other)
        mine.copy_(chunks[root])
    else:
        dist.recv(mine, src=root)
    ### END SOLUTION
    return mine

# %% check="scatter-by-hand" judges="values" points=3
check(scatter_by_hand, judges="values")

# %% check="scatter-by-hand" judges="traffic" points=1
check(scatter_by_hand, judges="traffic")

# %% [markdown]
# ## Gather
#
# Now the messages go the other way: everyone sends to the root, and the root puts what comes from rank $r$ into
# row $r$. A row of a tensor is contiguous memory, so the root can receive straight into it.

# %% exercise="gather-by-hand" difficulty=2 minutes=7
def gather_by_hand(x: Tensor, root: int, rank: int, world_size: int) -> Tensor | None:
    """Return all ranks' `x` stacked in rank order on the root, None elsewhere; P - 1
    messages in all, by send and recv alone.

    x: same shape and dtype on every rank, left unchanged. Returns (P, *x.shape).
    """
    ### BEGIN SOLUTION
    if rank != root:
        dist.send(x, dst=root)
        return None
    rows = torch.zeros(world_size, *x.shape, dtype=x.dtype)
    for other in range(world_size):
        if other == root:
            rows[root] = x
        else:
            dist.recv(rows[other], src=other)
    return rows
    ### END SOLUTION

# %% check="gather-by-hand" judges="values" points=3
check(gather_by_hand, judges="values")

# %% check="gather-by-hand" judges="traffic" points=1
check(gather_by_hand, judges="traffic")

# %% [markdown]
# ## Reduce
#
# The root could gather and then add, but that takes room for $P$ tensors. Do it with room for two: the `total`, and the
# tensor that has just `arrived`. (The check doesn't measure memory.)

# %% exercise="reduce-by-hand" difficulty=2 minutes=7
def reduce_by_hand(x: Tensor, root: int, rank: int, world_size: int) -> Tensor | None:
    """Return the sum of all ranks' `x` on the root, None elsewhere; P - 1 messages in
    all, by send and recv alone.

    x: same shape and dtype on every rank, left unchanged. Returns that shape and dtype.
    """
    if rank != root:
        ### BEGIN SOLUTION
        dist.send(x, dst=root)
        ### END SOLUTION
        return None
    total, arrived = x.clone(), torch.empty_like(x)
    ### BEGIN SOLUTION
    for other in range(world_size):
        if other != root:
            dist.recv(arrived, src=other)
            total += arrived
    ### END SOLUTION
    return total

# %% check="reduce-by-hand" judges="values" points=3
check(reduce_by_hand, judges="values")

# %% check="reduce-by-hand" judges="traffic" points=1
check(reduce_by_hand, judges="traffic")

# %% [markdown]
# # Part 3 · Collectives without a root
# The other four have no root. Every rank gives and every rank gets.
#
# | collective | rank $r$ gets | where you will meet it |
# |---|---|---|
# | **all-gather** | everyone's tensors, in rank order | sharded weights (FSDP) |
# | **reduce-scatter** | chunk $r$ of the sum | sharded gradients (ZeRO) |
# | **all-reduce** | the whole sum | data parallelism |
# | **all-to-all** | chunk $r$ of everyone's tensor, in rank order | mixture of experts |
#
# The names say what happens: *all* means that every rank gets the result, *reduce* that values are added, *scatter*
# that each rank gets one chunk.

# %%
figures.collective("all_gather", world_size=4)

# %%
figures.collective("reduce_scatter", world_size=4)

# %%
figures.collective("all_reduce", world_size=4)

# %%
figures.collective("all_to_all", world_size=4)

# %% [markdown]
# **Predict** for the same four tensors as before: what does rank 2 hold after the all-to-all (a list of numbers)? And
# what does it hold if you do a second all-to-all on the results of the first?

# %%
predict("rank 2 after the all-to-all", ...)
predict("rank 2 after two of them", ...)

# %% tags=["notebook-only"]
def unrooted(rank, world_size):
    x, got = torch.tensor(held[rank]), {}

    parts = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(parts, x)  # the output comes first: a list of P tensors to fill
    got["all_gather"] = torch.cat(parts)

    got["reduce_scatter"] = torch.empty(1, dtype=x.dtype)
    chunks = list(x.chunk(world_size))  # P tensors, on every rank
    dist.reduce_scatter(got["reduce_scatter"], chunks)

    got["all_reduce"] = x.clone()
    dist.all_reduce(got["all_reduce"])  # overwritten with the sum

    got["all_to_all"], got["twice"] = torch.empty_like(x), torch.empty_like(x)
    # chunk d of x goes to rank d; chunk s of the output comes from rank s
    dist.all_to_all_single(got["all_to_all"], x)
    dist.all_to_all_single(got["twice"], got["all_to_all"])
    return {name: x.tolist() for name, x in got.items()}

after = spawn(unrooted, 4).results[2]
after

# %% tags=["notebook-only"]
reveal("rank 2 after the all-to-all", after["all_to_all"], why="Everyone's chunk 2. A reduce-scatter adds them up.")
reveal(
    "rank 2 after two of them",
    after["twice"],
    why="What it had at first: an all-to-all is a transpose, as Part 4 shows, and the second one undoes the first.",
)

# %% [markdown]
# In these calls the output comes first and the input second. If you swap them in `all_to_all_single`, where both are
# tensors, it runs all the same: the results are garbage, and your input is overwritten.

# %% [markdown]
# ## Process groups
# So far, a collective involved all ranks. Real programs have several kinds of parallelism at once, and each has its own
# ranks to talk to: eight GPUs of a node share a layer, and GPU 0 of every node sums gradients with GPU 0 of the others.
# Such a set of ranks is a **process group**, and every collective takes one:
#
# ```python
# evens = dist.new_group([0, 2, 4])          # EVERY rank calls this, even ranks 1, 3 and 5
# odds = dist.new_group([1, 3, 5])           # and in the same order
# dist.all_reduce(x, group=evens)            # only ranks 0, 2 and 4 call this
# dist.get_world_size(evens)                 # 3
# dist.get_rank(evens)                       # on rank 4: 2, its place in the group; on rank 1: -1
# ```
#
# `src=` and `dst=` remain ranks of the whole world; `group_src=` and `group_dst=` count within the group. Without
# `group=`, a call means everyone, so forgetting it gives wrong numbers or a deadlock. If a rank calls a collective of a
# group that it isn't in, PyTorch prints a warning and does nothing.
#
# Put the ranks into a grid, row by row: with 3 columns, ranks 0, 1 and 2 are the first row. **Predict** for 6 ranks
# in 3 columns: how many groups must each rank create, to have one for each row and each column?

# %%
predict("groups that each rank creates", ...)

# %% [markdown]
# ## Sums over a grid of ranks
#
# Create those groups, then sum `x` over your own row and over your own column.
#
# <details><summary>Hint 1: where to look</summary>
#
# Which ranks are in row 1 of 6 ranks in 3 columns? Ranks 3, 4, 5. In column 1? Ranks 1 and 4: every third, from 1 on.
# Write down both lists of lists first.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Every rank goes through all the lists and creates a group from each. It keeps the two groups that it is in. Then it
# calls all-reduce twice, each time on a fresh copy of `x`.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# `for members in rows:` make `group = dist.new_group(members)`, outside any `if`; then `if rank in members:` remember
# it. Do the same for the columns: column `c` is `list(range(c, world_size, columns))`.
# </details>

# %% exercise="grid-sums" difficulty=3 minutes=14
def grid_sums(
    x: Tensor, columns: int, rank: int, world_size: int
) -> tuple[Tensor, Tensor]:
    """Return the sum of `x` over this rank's row of a grid, and over its column.

    Rank r is in row r // columns and column r % columns; columns divides world_size.
    x: same shape and dtype on every rank, left unchanged.
    Two all_reduces on each rank, the first in its row and the second in its column.
    """
    ### BEGIN SOLUTION
    rows = [range(start, start + columns) for start in range(0, world_size, columns)]
    sums = []
    for teams in (rows, [range(c, world_size, columns) for c in range(columns)]):
        # every rank makes all of them
        groups = [dist.new_group(list(team)) for team in teams]
        mine = next(group for group, team in zip(groups, teams) if rank in team)
        total = x.clone()
        dist.all_reduce(total, group=mine)
        sums.append(total)
    return tuple(sums)
    ### END SOLUTION

# %% check="grid-sums" judges="values" points=3
check(grid_sums, judges="values")

# %% check="grid-sums" judges="traffic" points=1
check(grid_sums, judges="traffic")

# %%
rows, columns = 2, 3

# %%
reveal(
    "groups that each rank creates",
    rows + columns,
    why="Those of all rows and columns, not just its own two: `new_group` is a call that every rank must make.",
)

# %% [markdown]
# From here on, a function with an argument `group` must work in any group. In every call of `dist`, `None` stands for
# all ranks.

# %% [markdown]
# # Part 4 · How they fit together
# Eight names, but not eight unrelated things. Some are two others in a row, one is a matrix transpose, and each has a
# mirror image.
#
# First the easiest: **all-gather = gather + broadcast**. Below it is made of your own two functions, with rank 0 as the
# root. That is correct, but expensive. **Predict** for 8 ranks: how many times as many bytes does rank 0 send as it
# would if every rank simply sent its own tensor to each of the others?

# %%
predict("times as many bytes", ...)

# %% tags=["notebook-only"]
def gather_then_broadcast(rank, world_size):
    x = torch.zeros(1000)
    rows = gather_by_hand(x, 0, rank, world_size)
    everything = rows if rank == 0 else torch.empty(world_size, 1000)
    broadcast_by_hand(everything, 0, rank, world_size)

for world_size in (2, 4, 8):
    messages, sent = spawn(gather_then_broadcast, world_size).traffic().sent(rank=0)
    direct = (world_size - 1) * 4000
    print(
        f"{world_size} ranks: rank 0 sends {sent:7,} bytes; directly, {direct:6,} "
        "would do"
    )

# %% tags=["notebook-only"]
reveal("times as many bytes", sent // direct, why="To each of the others it sends all eight tensors, not just one.")

# %% [markdown]
# ## All-reduce from its halves
#
# The most important identity of this course:
#
# **all-reduce = reduce-scatter + all-gather**

# %%
figures.halves(world_size=3)

# %% [markdown]
# After the reduce-scatter each rank owns one finished chunk of the sum; the all-gather gives every chunk to everyone.
# Fast all-reduces are made this way, and ZeRO and FSDP do useful work between the two halves.
#
# Real tensors don't come in multiples of $P$. So: flatten, **pad** with zeros to the next multiple of $P$, cut into $P$
# chunks; at the end, cut off the padding and restore the shape.
#
# <details><summary>Hint 1: where to look</summary>
#
# The first half ends with one chunk of the sum on each rank. What does the second half start with?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Make a tensor of zeros, $P$ times the size of a chunk, and put the numbers of `x` in front. Its $P$ chunks go into the
# reduce-scatter, and what comes out goes into the all-gather.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# `padded[: x.numel()] = x.reshape(-1)`; `mine` and each of `chunks` are empty tensors of one chunk's size, with the
# dtype of `x`. The two calls are in Part 3; both take `group=group`.
# </details>

# %% exercise="all-reduce-from-halves" difficulty=3 minutes=15
def all_reduce_from_halves(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum of `x` over the ranks of the group, on each of them: one
    dist.reduce_scatter, then one dist.all_gather.

    x: same shape (1 element or more) and dtype on every rank, contiguous or not, left
        unchanged. Returns that shape and dtype.
    Chunks have ceil(x.numel() / P) elements; what is missing is filled up with zeros.
    """
    world_size = dist.get_world_size(group)
    size = -(-x.numel() // world_size)  # elements in a chunk, rounded up
    ### BEGIN SOLUTION
    padded = torch.zeros(world_size * size, dtype=x.dtype)
    padded[: x.numel()] = x.reshape(-1)
    mine = torch.empty(size, dtype=x.dtype)
    dist.reduce_scatter(mine, list(padded.chunk(world_size)), group=group)
    chunks = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(chunks, mine, group=group)
    return torch.cat(chunks)[: x.numel()].reshape(x.shape)
    ### END SOLUTION

# %% check="all-reduce-from-halves" judges="values" points=3
check(all_reduce_from_halves, judges="values")

# %% check="all-reduce-from-halves" judges="traffic" points=2
check(all_reduce_from_halves, judges="traffic")

# %% [markdown]
# ## Distributed transpose
#
# Look at the picture of the all-to-all again and read it as a matrix of chunks: what was in column $r$, row $d$ is
# afterwards in column $d$, row $r$. An all-to-all **is** a transpose, with chunks for entries.
#
# Now transpose a real matrix. Rank $r$ holds a band of rows of $A$; afterwards it must hold a band of rows of $A^T$,
# that is, a band of columns of $A$. No rank ever has the whole matrix. The all-to-all moves the blocks to the right
# rank; what is **inside** a block you have to transpose yourself.

# %%
figures.transpose(world_size=2, rows=2, columns=3)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Cut the band into $P$ blocks, side by side: block $d$ is for rank $d$. `all_to_all_single` cuts its input along
# dimension **0**, though.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Transpose each block, then stack them: `(P, ...)`. `torch.stack` also makes the memory contiguous, which a bare `.T`
# does not. Block $s$ of what arrives came from rank $s$, which held rows $s \cdot m$ to $(s+1) \cdot m$ of $A$. In
# $A^T$ these are columns.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Both tensors of the call have the shape $(P, c, m)$. The blocks that arrived go side by side: `torch.cat(...)` along
# `dim=1`.
# </details>

# %% exercise="distributed-transpose" difficulty=3 minutes=13
def distributed_transpose(band: Tensor, rank: int, world_size: int) -> Tensor:
    """Transpose a matrix whose rows are spread over the ranks, with one
    all_to_all_single.

    band: (m, P * c), rows r * m to (r + 1) * m of the matrix on rank r; contiguous or
        not, left unchanged.
    Returns (c, P * m): rows r * c to (r + 1) * c of the transposed matrix. Each rank
    hands in m * P * c elements.
    """
    ### BEGIN SOLUTION
    # P blocks of (m, c); blocks[d] is for rank d
    blocks = band.chunk(world_size, dim=1)
    outgoing = torch.stack([block.T for block in blocks])  # (P, c, m), contiguous
    arrived = torch.empty_like(outgoing)  # arrived[s] came from rank s
    dist.all_to_all_single(arrived, outgoing)
    return torch.cat(list(arrived), dim=1)  # (c, P * m)
    ### END SOLUTION

# %% check="distributed-transpose" judges="values" points=4
check(distributed_transpose, judges="values")

# %% check="distributed-transpose" judges="traffic" points=1
check(distributed_transpose, judges="traffic")

# %% [markdown]
# ## Dual collectives
#
# Write the tensors of all ranks one below the other, as one long vector: a collective is then a (huge) **matrix** that
# maps this vector to another. Its transpose is a collective again, its **dual**: run it backwards, and where a
# value was copied, add.
#
# Why care? Backpropagation multiplies by the transposed matrix. If a layer does a broadcast in the forward pass, its
# gradients need the dual of broadcast in the backward pass. Half of lesson 08 is this table.
#
# You can recognise a dual by inner products: $\langle C(x),\, y \rangle = \langle x,\, C^*(y) \rangle$ for all $x$ and
# $y$, where $\langle a, b \rangle$ adds up the products of everything on all ranks. So you needn't take a pair on
# trust: you can test it. Here are all eight, on plain lists: `held[rank]` is what that rank holds.

# %%
def on_lists(collective, held, root=1):
    ranks = range(len(held))
    everything = [number for numbers in held for number in numbers]
    total = [sum(column) for column in zip(*held)]

    def chunk(numbers, rank):
        size = len(numbers) // len(held)
        return numbers[rank * size : (rank + 1) * size]

    def chunks_of_all(rank):
        return [number for numbers in held for number in chunk(numbers, rank)]

    return {
        "broadcast": [held[root] for _ in ranks],
        "scatter": [chunk(held[root], rank) for rank in ranks],
        "gather": [everything if rank == root else None for rank in ranks],
        "reduce": [total if rank == root else None for rank in ranks],
        "all_gather": [everything for _ in ranks],
        "reduce_scatter": [chunk(total, rank) for rank in ranks],
        "all_reduce": [total for _ in ranks],
        "all_to_all": [chunks_of_all(rank) for rank in ranks],
    }[collective]

# %% [markdown]
# Look at the pictures again. Read one from *after* to *before*, and add up what was copied: which of the others is it?
# Two of the eight are their own duals.

# %% exercise="dual-of" difficulty=2 minutes=8
def dual_of(collective: str) -> str:
    """Return the dual of `collective`.

    Both are among "broadcast", "scatter", "gather", "reduce", "all_gather",
    "reduce_scatter", "all_reduce", "all_to_all".
    """
    ### BEGIN SOLUTION
    pairs = [("broadcast", "reduce"), ("scatter", "gather"), ("all_gather", "reduce_scatter")]
    both_ways = {**dict(pairs), **{right: left for left, right in pairs}}
    # all_reduce and all_to_all are their own
    return both_ways.get(collective, collective)
    ### END SOLUTION

# %% [markdown]
# Now test your pairs. Below, `inner` is the inner product over all ranks; a rank that holds nothing adds nothing. `x`
# and `y` are random whole numbers, so there are no rounding errors: the two products must be exactly equal.

# %%
def inner(left, right):
    both = [(a, b) for a, b in zip(left, right) if a is not None and b is not None]
    return sum(p * q for a, b in both for p, q in zip(a, b))

def random_numbers(numel):
    return torch.randint(1, 10, (4, numel)).tolist()  # four ranks

# %%
torch.manual_seed(0)
rooted_ones = ["broadcast", "scatter", "gather", "reduce"]
for name in [*rooted_ones, "all_gather", "reduce_scatter", "all_reduce", "all_to_all"]:
    x = random_numbers(2 if name in ("gather", "all_gather") else 8)
    y = random_numbers(2 if name in ("scatter", "reduce_scatter") else 8)
    forwards = inner(on_lists(name, x), y)
    dual = dual_of(name)
    backwards = inner(x, on_lists(dual, y))
    print(
        f"{name:14} dual {dual:14} <C(x), y> = {forwards:4}   <x, C*(y)> = "
        f"{backwards:4}"
    )

# %% check="dual-of" judges="values" points=2
check(dual_of, judges="values")

# %% [markdown]
# # Part 5 · Other operations, and asynchronous calls
# A reduction need not be a sum. `dist.all_reduce(x, op=dist.ReduceOp.MAX)` takes the largest value. Each operation
# works element by element:

# %%
def five_ways(rank, world_size):
    results = {}
    for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        x = torch.tensor([1.0 + rank, 10.0 - rank])
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        results[name] = x.tolist()
    return results

spawn(five_ways, 4).results[0]

# %% [markdown]
# ## Global statistics
#
# Each rank has a shard of the data, and the shards have **different lengths**. What is the mean of all the data? `AVG`
# gives the mean of the means, which is a different number. **Predict** this mean of the means for the shards
# `[0, 0, 0]` and `[12]`.

# %%
predict("the mean of the means", ...)

# %%
def mean_of_means(rank, world_size):
    shard = torch.tensor([0.0, 0.0, 0.0]) if rank == 0 else torch.tensor([12.0])
    mean = shard.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.item()

of_means = spawn(mean_of_means, 2).results[0]
of_all = torch.tensor([0.0, 0.0, 0.0, 12.0]).mean().item()

# %%
reveal(
    "the mean of the means",
    of_means,
    why=f"The one number counts as much as the three. The mean of all four numbers is {of_all:g}.",
)

# %% [markdown]
# In lesson 05 you'll see the same mistake as a wrong gradient, in an uneven batch. What must you sum instead?
#
# <details><summary>Hint</summary>
#
# The sum of all numbers, and how many there are. The length is a plain number: make a tensor of it before you sum it.
# </details>

# %% exercise="global-statistics" difficulty=2 minutes=10
def global_statistics(shard: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the tensor [mean, min, max, product] of all numbers of all ranks of the
    group, the same on each of them.

    shard: (k,), a floating point dtype, k >= 1 and not the same on every rank; left
        unchanged.
    Returns (4,) of the same dtype.
    """
    smallest, largest, product = shard.min(), shard.max(), shard.prod()
    ### BEGIN SOLUTION
    total, count = shard.sum(), torch.tensor(float(shard.numel()), dtype=shard.dtype)
    dist.all_reduce(total, group=group)
    dist.all_reduce(count, group=group)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN, group=group)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT, group=group)
    mean = total / count
    ### END SOLUTION
    return torch.stack([mean, smallest, largest, product])

# %% check="global-statistics" judges="values" points=3
check(global_statistics, judges="values")

# %% [markdown]
# ## Asynchronous collectives
#
# While a tensor is on its way, a rank need not stand and wait. With `async_op=True` a collective only **starts**; it
# returns a handle at once:
#
# ```python
# handle = dist.all_reduce(x, async_op=True)   # the tensor now belongs to the network
# ...                                          # compute something else
# handle.wait()                                # from here on x holds the sum
# ```
#
# Between the two, neither read nor write `x`: it may hold your numbers, the sum, or half of each. An ordinary test on a
# quiet machine won't show that mistake; the checks here do, because they fill tensors in flight with NaN. If you drop
# the handle, you will never know when the call is done. `handle.is_completed()` asks without waiting, but a loop around
# it doesn't replace `wait()`: it keeps the CPU busy, and it also ends if the call has **failed**. Only `wait()` raises
# the error.
#
# In this exercise, start all of the sums first, then do the local work, then wait for **each**. "Start one, wait for
# it, start the next" would be the slow program in disguise.
#
# <details><summary>Hint</summary>
#
# Three steps: one loop that starts the calls, the local work, one loop that waits. Let the calls sum copies: the local
# work can then read `tensors`.
# </details>

# %% exercise="launch-then-wait" difficulty=2 minutes=9
def launch_then_wait(
    tensors: list[Tensor], rank: int, world_size: int
) -> tuple[list[Tensor], Tensor]:
    """Sum each tensor over all ranks; while the sums are on their way, find this rank's
    largest number.

    tensors: the same shapes and dtypes on every rank, left unchanged.
    Returns ([sum of tensors[0], sum of tensors[1], ...], largest number in this rank's
    own tensors). One all_reduce per tensor: all are started before the first is
    waited for, and all have been waited for when you return.
    """
    ### BEGIN SOLUTION
    sums = [x.clone() for x in tensors]
    handles = [dist.all_reduce(x, async_op=True) for x in sums]
    largest = max(x.max() for x in tensors)  # local work: reads `tensors`, not `sums`
    for handle in handles:
        handle.wait()
    return sums, largest
    ### END SOLUTION

# %% check="launch-then-wait" judges="values" points=2
check(launch_then_wait, judges="values")

# %% check="launch-then-wait" judges="traffic" points=2
check(launch_then_wait, judges="traffic")

# %% check="launch-then-wait" judges="time" points=1
check(launch_then_wait, judges="time")

# %% [markdown]
# Do the two really overlap? `region` names a stretch of compute, and `timeline` draws who did what and when: each
# rank's compute in the upper half of its lane, and its calls to the network in the lower half. Here both go on at once.
# A *bubble* is time in which a rank computes nothing.

# %% tags=["nbval-ignore-output"]
def compute_meanwhile(rank, world_size):
    gradient, weights = torch.ones(2_000_000), torch.randn(500, 500)
    dist.barrier()
    with region("step"):
        handle = dist.all_reduce(gradient, async_op=True)
        with region("compute"):
            for _ in range(5):
                weights = torch.tanh(weights @ weights)
        handle.wait()

spawn(compute_meanwhile, 2).timeline(within="step")

# %% [markdown]
# # Part 6 · The rules, and what happens if you break them
# A collective is a promise between all ranks. There are four rules:
#
# 1. **Everyone calls.** Every rank of the group makes the call.
# 2. **Same order.** The first collective of one rank meets the first of all others, the second meets the second, and so
#    on.
# 3. **Same shape and dtype**, on every rank.
# 4. **Contiguous memory.** The numbers lie side by side, without gaps, in the same order on every rank.
#
# By default nobody checks them, since that would take one more collective before each of yours. (To have PyTorch do it,
# set the environment variable `TORCH_DISTRIBUTED_DEBUG=DETAIL`.) Break them here, where it is cheap. **Predict** how
# each of these four ends:
#
# - Rule 1: only rank 0 of 3 ranks calls `all_reduce`.
# - Rule 3: rank 2 brings 2 numbers, the others bring 5, since its last batch is shorter.
# - Rule 2: two ranks sum the same two tensors of one number each, but one of them starts with the second.
# - Rule 3 again: the shapes are equal, but one rank has float32 and the other int32.

# %%
ends = ["a deadlock", "an error on every rank", "wrong numbers"]
predict("only rank 0 calls", ..., choices=ends)
predict("a shorter tensor", ..., choices=ends)
predict("a different order", ..., choices=ends)
predict("a different dtype", ..., choices=ends)

# %% tags=["raises-exception"]
def not_everybody(rank, world_size):
    x = torch.ones(2)
    if rank == 0:
        dist.all_reduce(x)
    return x

spawn(not_everybody, 3)

# %% tags=["raises-exception"]
def different_shape(rank, world_size):
    x = torch.ones(2) if rank == 2 else torch.ones(5)
    dist.all_reduce(x)
    return x

spawn(different_shape, 3)

# %%
reveal("only rank 0 calls", "a deadlock", why="It waits for two ranks that have long finished.")
reveal(
    "a shorter tensor",
    "a deadlock",
    why="The others wait for numbers that rank 2 never had. It has finished, and believes all is well.",
)

# %% [markdown]
# Those were loud. Now the quiet ones. Rule 2: this may happen when gradients are sent "as soon as they are ready". The
# sum of `a` should be 4, and the sum of `b` should be 400.

# %%
def different_order(rank, world_size):
    a, b = torch.tensor([1.0 + 2 * rank]), torch.tensor([100.0 + 200 * rank])
    for x in (a, b) if rank == 0 else (b, a):
        dist.all_reduce(x)
    return {"a": a.item(), "b": b.item()}

spawn(different_order, 2).results

# %% [markdown]
# No error, no deadlock. Rank 0's `a` was added to rank 1's `b`: the network matches calls by their order and knows
# nothing of your variables. With tensors of different sizes it could have been a deadlock, and you would have been
# lucky. So make the same calls, in one fixed order, on every rank.
#
# Rule 3 again: here one rank has whole numbers. The sum should be 2 everywhere.

# %% tags=["raises-exception"]
def different_dtype(rank, world_size):
    x = torch.ones(2) if rank == 0 else torch.ones(2, dtype=torch.int32)
    dist.all_reduce(x)
    print(x.tolist())

spawn(different_dtype, 2)

# %%
reveal("a different order", "wrong numbers", why="Rank 0's `a` met rank 1's `b`.")
reveal(
    "a different dtype",
    "wrong numbers",
    why="Each rank takes the other's bytes for its own dtype. The error came afterwards, and not from PyTorch.",
)

# %% [markdown]
# PyTorch didn't object: each rank printed its "sum" and went on. The error comes from `spawn`, which compares the
# ranks' calls once all have finished. On a cluster, nobody does that for you.
#
# Both dtypes take 4 bytes per number, and the network moves bytes. 1065353216 is what you get if you read the four
# bytes of the float 1.0 as a whole number. With float64 on one side the sizes would differ, and a rank would crash or
# hang.

# %% [markdown]
# ## All-reduce of a view
#
# Rule 4. A column of a matrix, `x[:, 0]`, or every other number, `x[::2]`, is a **view** with gaps between its numbers.
# Here two ranks, with 8 ones each, sum every other number. That should give `[2, 1, 2, 1, 2, 1, 2, 1]`.

# %% tags=["raises-exception"]
def sum_a_view(rank, world_size):
    x = torch.ones(8)
    dist.all_reduce(x[::2])
    print(x.tolist())

spawn(sum_a_view, 2)

# %% [markdown]
# Again PyTorch didn't object, and only `spawn` noticed afterwards. Gloo was told "four numbers, starting here" and took
# the first four in memory, gaps and all. (NCCL, on GPUs, refuses such a view with an error.) The order in memory counts
# too: if one rank hands in a transposed matrix and the others don't, numbers of different places are added.
#
# Write an all-reduce that is right for any view. Remember that the caller looks at `view`, so the sum has to end up
# **in** it.

# %% exercise="all-reduce-any-view" difficulty=2 minutes=7
def all_reduce_any_view(view: Tensor, rank: int, world_size: int) -> Tensor:
    """Sum `view` over all ranks, in place, whatever its strides are; return it.

    view: same shape and dtype on every rank; its strides may differ from rank to rank.
        Overwritten with the sum. One all_reduce.
    """
    ### BEGIN SOLUTION
    packed = view.contiguous()  # a copy without gaps; `view` itself if it has none
    dist.all_reduce(packed)
    view.copy_(packed)
    ### END SOLUTION
    return view

# %% check="all-reduce-any-view" judges="values" points=3
check(all_reduce_any_view, judges="values")

# %% [markdown]
# ## Agreement before the call
#
# The last exercise turns a silent error into a loud one. Before the all-reduce, every rank learns everyone's shape and
# dtype; if they differ, **every** rank raises the same error. If only the odd one did, the others would wait for it
# forever.
#
# `dist.all_gather_object(everyone, mine)` gathers small Python objects: `everyone` is a list of length $P$ to fill. A
# rank is "odd" if it differs from rank 0. Name each odd rank and what it brought, and what rank 0 brought:
#
# ```
# rank 2 brought (3,) torch.float64, but rank 0 brought (4,) torch.float32
# ```
#
# <details><summary>Hint 1: where to look</summary>
#
# After `dist.all_gather_object(everyone, mine)` every rank holds the same list.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# If each rank works out the odd ranks from that list alone, all of them reach the same decision and build the same
# sentence.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# A list of `f"rank {r} brought {everyone[r]}"` for each odd `r`. If it isn't empty, join it with commas and raise.
# </details>

# %% exercise="agree-or-explain" difficulty=3 minutes=12
def agree_or_explain(x: Tensor, rank: int, world_size: int) -> Tensor:
    """Return the sum of all ranks' `x`, or raise the same ValueError on every rank if
    shapes or dtypes differ.

    x: any shape and dtype, left unchanged.
    Raises ValueError that names each rank that differs from rank 0 as "rank 2", with
    its shape and dtype, then "rank 0" with its own. Ranks that agree with rank 0 are
    not named.
    """
    mine = f"{tuple(x.shape)} {x.dtype}"  # such as "(3,) torch.float64"
    ### BEGIN SOLUTION
    everyone = [None] * world_size
    dist.all_gather_object(everyone, mine)
    odd_ranks = [r for r in range(world_size) if everyone[r] != everyone[0]]
    odd = [f"rank {r} brought {everyone[r]}" for r in odd_ranks]
    if odd:
        raise ValueError(f"{', '.join(odd)}, but rank 0 brought {everyone[0]}")
    ### END SOLUTION
    total = x.clone()
    dist.all_reduce(total)
    return total

# %% check="agree-or-explain" judges="values" points=4
check(agree_or_explain, judges="values")

# %% [markdown]
# Here it is in use, on the shorter tensor from above:

# %% tags=["raises-exception"]
def different_shape_again(rank, world_size):
    x = torch.ones(2) if rank == 2 else torch.ones(5)
    return agree_or_explain(x, rank, world_size)

spawn(different_shape_again, 3)

# %% [markdown]
# It costs one more small collective, every time. So do it in tests and while you develop, not in every training step.
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` does the same, and more, before every collective.

# %% [markdown]
# # Part 7 · The opening, on 1,024 GPUs
# This lesson began with a claim about 1,024 GPUs. Four processes can't confirm it, but a **virtual cluster** can:
# `simulate` runs a rank program, unchanged, with a thread for each rank, each with a clock of its own. Tensors have
# sizes but no values, and a message takes as long as it would on a link of that cluster. Nothing is measured, so the
# times are the same in every run.
#
# The obvious way, on one node of eight GPUs: all in, then all out, through GPU 0.

# %% tags=["notebook-only"]
def obvious(rank, world_size):
    gradient = torch.empty(8_000_000_000, dtype=torch.bfloat16)
    if rank == 0:
        arrived = torch.empty_like(gradient)
        for other in range(1, world_size):
            dist.recv(arrived, src=other)
            gradient += arrived
        for other in range(1, world_size):
            dist.send(gradient, dst=other)
    else:
        dist.send(gradient, dst=0)
        dist.recv(gradient, src=0)

simulate(obvious, 8, cluster="dgx-h100").timeline()

# %% [markdown]
# Seven of the eight GPUs wait nearly all the time. What about 1,024 of them, compared with PyTorch's own all-reduce?

# %% tags=["notebook-only"]
def good(rank, world_size):
    dist.all_reduce(torch.empty(8_000_000_000, dtype=torch.bfloat16))

through_one = simulate(obvious, 1024, cluster="dgx-h100")
all_reduce = simulate(good, 1024, cluster="dgx-h100")
print(f"through GPU 0: {through_one.elapsed:.0f} s a step", end="     ")
print(f"all-reduce: {all_reduce.elapsed:.2f} s")
all_reduce.costs()

# %% [markdown]
# Eleven minutes indeed, and some seconds for the additions, which the opening left out. The good one does better than
# promised: each node has eight network cards, and the algorithm that `costs` names uses all of them. Lesson 02 builds
# that one too.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - A **collective** is called by every rank of a group, in the same order, with the same shapes. What differs is what
#   each rank hands in and gets out.
# - With a root: **broadcast, scatter, gather, reduce**. Without: **all-gather, reduce-scatter, all-reduce,
#   all-to-all**.
# - By hand, each of those with a root takes $P - 1$ messages, all through the root: the bottleneck that lesson 02
#   removes.
# - Every rank creates every **process group**; only its members call its collectives.
# - **all-reduce = reduce-scatter + all-gather.** all-gather = gather + broadcast. all-to-all = transpose.
# - Duals, which is what the backward pass needs: broadcast and reduce, scatter and gather, all-gather and
#   reduce-scatter; all-reduce and all-to-all are their own.
# - Not every broken rule raises an error. A different order, or a view with gaps, can simply give wrong numbers.
#
# **The library.** You called `torch.distributed` throughout; the same program runs on GPUs when the backend is NCCL
# instead of Gloo. For one flat tensor in and one out it also has `all_gather_single` and `reduce_scatter_single`
# (before torch 2.13: `all_gather_into_tensor`, `reduce_scatter_tensor`), which are faster because nothing is copied
# into lists. For chunks of unequal size, give `all_to_all_single` its `input_split_sizes` and `output_split_sizes`.
#
# **The paper.** Chan, Heimlich, Purkayastha, van de Geijn: *Collective communication: theory, practice, and experience*
# (Concurrency and Computation, 2007). Its first sections draw the pictures of this lesson; the rest is lesson 02.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## All-gather of uneven tensors
#
# All-gather wants tensors of one size. Here each of eight GPUs has a tensor of its own length, some long and some
# short, as with sentences in a batch, or the tokens that each expert gets. All ranks know all the lengths. Bring
# everything to everyone, as fast as you can.
#
# Only messages take time: 10 µs each, and then they flow at 10 GB/s, in and out of each rank. You may use any call of
# `dist`, and `simulate` charges each collective the time of the best algorithm for it. Your function is also judged on
# other numbers of ranks and other lengths, all of them as uneven as these.
#
# Par is what this lesson's padding leads to: all tensors are padded to the longest. The limit is a bound that no
# algorithm can beat: the rank with the shortest tensor must receive all the others. Reach par, and you have the extra
# credit. How far beyond it can you get?

# %%
LENGTHS = [60_000, 500, 2_000, 8_000, 1, 30_000, 4_000, 1_500]  # float64, each rank

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# How many of the bytes in a padded all-gather are padding?
# </details>
# <details><summary>Hint 2: the idea of par</summary>
#
# Pad to the longest, all-gather, cut each row to its own length, and concatenate.
# </details>
# <details><summary>Hint 3: beyond par</summary>
#
# It is slow because one rank has so much. What if the long tensors were shared out first, so that all ranks had the
# same amount to contribute? `all_to_all_single` takes sizes for what it sends and for what it receives.
# </details>

# %% exercise="uneven-all-gather" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def uneven_all_gather(
    x: Tensor, lengths: list[int], rank: int, world_size: int
) -> Tensor:
    """Return the tensors of all ranks one after another, in rank order, on every rank:
    as fast as possible, by any calls of dist.

    x: (lengths[rank],), of one dtype on all ranks; left unchanged. A length may be 0.
    Returns (sum(lengths),).
    """
    ### BEGIN SOLUTION
    padded = x.new_zeros(max(lengths))
    padded[: len(x)] = x
    rows = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(rows, padded)
    return torch.cat([row[:length] for row, length in zip(rows, lengths)])
    ### END SOLUTION

# %% check="uneven-all-gather" judges="score" points=3
check(uneven_all_gather, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# The table shows what has passed since you started this kernel, and what is left.

# %% tags=["notebook-only"]
check.summary()
