# %% [markdown] question="How do processes exchange tensors, and what happens when they disagree?"
# # Collectives
# *you need: PyTorch tensors. You do not need: any experience with a second process.*
#
# One GPU is not enough for a large model. So we take many, each with a process of its own, and from then on everything
# depends on how these processes exchange tensors. They do it with eight operations, the **collectives**. Every method
# of this course, from data parallelism to pipelines, is built from them.
#
# At the end of this lesson you can say for each of the eight what every process holds before and after, call it in
# PyTorch, build it from plain messages, and read what goes wrong when two processes disagree.

# %%
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from utils import figures, region, simulate, spawn
from utils.checks import checks_for

check = checks_for("01_collectives")
spawn = partial(spawn, backend="gloo")  # this lesson computes on the CPU, with or without GPUs

# %% [markdown]
# ## Why: the same sum, a thousand times slower
# A model of 8 billion parameters trains on 1,024 GPUs. Each GPU sees other data, so each computes another gradient, and
# at every step all of them need the **sum**. In bfloat16 one gradient is 16 GB. A fast network card moves 50 GB a
# second in each direction.
#
# The obvious way: everybody sends its gradient to GPU 0, which adds them up and sends the sum back. GPU 0 then takes
# in 1,023 gradients and gives out 1,023 sums. A good all-reduce lets every GPU send about two gradients' worth of
# bytes in all, whatever their number. How much does that matter?

# %%
gpus, gradient, link = 1024, 8e9 * 2, 50e9  # bytes of one gradient; bytes per second, one way
obvious = 2 * (gpus - 1) * gradient / link  # all in, then all out, through one network card
good = 2 * (gpus - 1) / gpus * gradient / link  # each rank sends 2 (P - 1) / P gradients
print(f"through GPU 0: {obvious:.0f} s a step     good all-reduce: {good:.2f} s     {obvious / good:.0f} times faster")

# %% [markdown]
# Eleven minutes or less than a second, for the same numbers at the end. (Lesson 02 builds the good one.) First we need
# to know what is exchanged, and that is this lesson.

# %% [markdown]
# ## Your first four processes
# Three words, and they are all you need:
#
# - **rank**: the number of a process, from 0. People also call the process itself "rank 2".
# - **world size**: how many processes there are. We write $P$ for it.
# - **rank program**: one function that every process runs. It gets its `rank` and the `world_size`.
#
# `spawn` starts the processes, runs the function in each, and brings back what each returned. Inside, PyTorch's
# `torch.distributed` (here `dist`) lets them talk. It leaves the work to a library: **NCCL** between GPUs, **Gloo**
# between CPUs. In this lesson it is Gloo, so it runs on any laptop.

# %%
def hello(rank, world_size):
    print(f"I am one of {world_size}")
    return rank * 100

run = spawn(hello, 4)
run.results

# %% [markdown]
# The same function ran four times, in four processes. They share **nothing**: each has its own variables.

# %%
counter = 0

def count(rank, world_size):
    global counter
    counter += rank
    return counter

spawn(count, 4).results, counter

# %% [markdown]
# Every rank added to its own copy, and the notebook's `counter` is still 0: the notebook is a process too. What one
# rank needs from another must be **sent**.

# %% [markdown]
# ## One message
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
# Each send needs one receive on the other side. `send` **waits** until its partner receives, so the order matters.
# Below, two ranks want to swap their tensors. **Predict** what happens when both send first.

# %% tags=["raises-exception"]
def swap(rank, world_size):
    mine, theirs = torch.full((3,), float(rank)), torch.empty(3)
    other = 1 - rank
    dist.send(mine, dst=other)
    dist.recv(theirs, src=other)
    return theirs

spawn(swap, 2)

# %% [markdown]
# A **deadlock**: each waits for the other, for ever. `spawn` sees it, stops both ranks and tells you who waits for whom
# and at which line. On a cluster you would see nothing at all: 1,024 GPUs, perfectly silent, until a timeout after
# many minutes. You will meet such reports in this lesson; read them from the top, they are meant to be read.
#
# The cure: let one of the two receive first, or start the send without waiting. `dist.isend` returns at once, with a
# **handle**; `handle.wait()` waits.

# %% tags=["notebook-only"]
def swap(rank, world_size):
    mine, theirs = torch.full((3,), float(rank)), torch.empty(3)
    other = 1 - rank
    sending = dist.isend(mine, dst=other)  # starts, and goes on
    dist.recv(theirs, src=other)
    sending.wait()  # before `mine` may change or vanish
    return theirs

spawn(swap, 2).results

# %% [markdown]
# # Part 1 · One rank is special
# In four of the eight collectives one rank, the **root**, has everything or gets everything.
#
# | collective | the root | the others |
# |---|---|---|
# | **broadcast** | gives everybody a copy of its tensor | get the copy |
# | **scatter** | cuts its tensor in $P$ chunks, gives one to each | rank $r$ gets chunk $r$ |
# | **gather** | gets the tensors of all ranks, in rank order | give theirs |
# | **reduce** | gets the sum of the tensors of all ranks | give theirs |
#
# In the pictures a column is a rank, and a colour says from which rank a value came. Here the root is rank 1.

# %%
figures.collective("broadcast", world_size=4, root=1)

# %%
figures.collective("scatter", world_size=4, root=1)

# %%
figures.collective("gather", world_size=4, root=1)

# %%
figures.collective("reduce", world_size=4, root=1)

# %% [markdown]
# The root takes part too: it keeps a copy, a chunk, or adds its own tensor.

# %% [markdown]
# ## Predict rooted
#
# Before we send anything: say what should come out. Here `held[rank]` is a plain list, "what that rank holds", and you
# return what each rank holds afterwards. One process, no `torch`.
#
# **Predict** for `held = [[1, 2], [3, 4]]` and root 0: what are the four results?

# %% exercise="predict-rooted" difficulty=1 minutes=6
def predict_rooted(collective: str, held: list[list], root: int) -> list:
    """What each rank gets out of a rooted collective, with plain lists.

    collective: "broadcast", "scatter", "gather" or "reduce".
    held: held[rank] is the list of numbers that this rank starts with. Broadcast and scatter only look at held[root];
        scatter cuts it into as many equal chunks as there are ranks.
    Returns one entry a rank: a list of plain Python numbers, or None for a rank that gets nothing.
    """
    world_size = len(held)
    after = [None] * world_size
    if collective == "broadcast":
        ### BEGIN SOLUTION
        after = [list(held[root]) for _ in range(world_size)]
        ### END SOLUTION
    elif collective == "scatter":
        size = len(held[root]) // world_size  # numbers in one chunk
        ### BEGIN SOLUTION
        after = [held[root][rank * size : (rank + 1) * size] for rank in range(world_size)]
        ### END SOLUTION
    elif collective == "gather":
        ### BEGIN SOLUTION
        after[root] = [number for numbers in held for number in numbers]
        ### END SOLUTION
    elif collective == "reduce":
        ### BEGIN SOLUTION
        after[root] = [sum(column) for column in zip(*held)]
        ### END SOLUTION
    return after

# %% [markdown]
# <details><summary>Hint for reduce</summary>
#
# `zip(*held)` gives the first numbers of all ranks, then the second numbers of all ranks, and so on.
# </details>

# %%
held = [[1, 2], [3, 4]]
{name: predict_rooted(name, held, root=0) for name in ("broadcast", "scatter", "gather", "reduce")}

# %% check="predict-rooted" judges="values" points=2
check(predict_rooted, judges="values")

# %% [markdown]
# ## Call rooted
#
# Now the real calls. **Every** rank makes the call, and all name the same root: that is what makes it a collective.
# What differs is who hands in what:
#
# ```python
# dist.broadcast(x, src=root)              # x: read on the root, overwritten on the others
# dist.scatter(out, chunks, src=root)      # out: filled everywhere; chunks: a list of P tensors on the root, else None
# dist.gather(x, parts, dst=root)          # parts: a list of P tensors to fill on the root, else None
# dist.reduce(x, dst=root)                 # x: overwritten with the sum on the root; a trap on the others, see below
# ```
#
# **Predict**: after `dist.reduce`, what does `x` hold on a rank that is not the root? Run this first.

# %%
def reduce_everywhere(rank, world_size):
    x = torch.ones(1)
    dist.reduce(x, dst=0)
    return x.item()

spawn(reduce_everywhere, 4).results

# %% [markdown]
# Only the root's result is promised. What the others are left with is whatever the algorithm had there: the Gloo
# library uses their tensors as scratch paper. Never read them; here, return `None` instead.

# %% exercise="call-rooted" difficulty=1 minutes=7
def call_rooted(x: Tensor, collective: str, root: int, rank: int, world_size: int) -> Tensor | None:
    """Make one rooted collective call on torch.distributed; `x` is left unchanged.

    broadcast   x: (n,), of which the root's counts      -> (n,) on every rank
    scatter     x: (P * n,), of which the root's counts  -> (n,) on every rank
    gather      x: (n,)                                  -> (P * n,) on the root, None elsewhere
    reduce      x: (n,)                                  -> (n,), the sum, on the root, None elsewhere
    """
    if collective == "broadcast":
        received = x.clone()  # a copy: the call writes into it
        ### BEGIN SOLUTION
        dist.broadcast(received, src=root)
        ### END SOLUTION
    elif collective == "scatter":
        received = torch.empty_like(x.chunk(world_size)[0])
        ### BEGIN SOLUTION
        chunks = list(x.chunk(world_size)) if rank == root else None
        dist.scatter(received, chunks, src=root)
        ### END SOLUTION
    elif collective == "gather":
        parts = [torch.empty_like(x) for _ in range(world_size)] if rank == root else None
        ### BEGIN SOLUTION
        dist.gather(x, parts, dst=root)
        ### END SOLUTION
        received = torch.cat(parts) if rank == root else None
    elif collective == "reduce":
        received = x.clone()
        ### BEGIN SOLUTION
        dist.reduce(received, dst=root)
        received = received if rank == root else None
        ### END SOLUTION
    return received

# %% check="call-rooted" judges="values" points=3
check(call_rooted, judges="values")

# %% check="call-rooted" judges="traffic" points=1
check(call_rooted, judges="traffic")

# %% [markdown]
# # Part 2 · Build them from messages
# A library has no magic: inside, a collective is sends and receives. Now you write all four, for any root and any
# number of ranks. **Predict** the cost first, for $P$ ranks:
#
# - how many messages are sent in all?
# - who sends them?
# - how many bytes does each carry, if a rank's tensor has $n$ bytes?
#
# <details><summary>Check your prediction</summary>
#
# $P - 1$ messages each time: every rank but the root has to get (or give) something once. In broadcast and scatter the
# root sends all of them; in gather and reduce each of the others sends one. A message carries $n$ bytes, in scatter
# one chunk. The checks below count.
# </details>
#
# Two things that trip everybody once:
#
# - Nobody sends to itself. With one rank there is no message at all.
# - Both sides must agree: for each `send` on one rank there is exactly one `recv` on the other.

# %% [markdown]
# ## Broadcast by hand
#
# The root sends its tensor to each of the others; each of the others receives once.

# %% exercise="broadcast-by-hand" difficulty=2 minutes=7
def broadcast_by_hand(x: Tensor, root: int, rank: int, world_size: int) -> Tensor:
    """Return the root's `x` on every rank, by send and recv alone; P - 1 messages in all.

    x: same shape and dtype on every rank, but only the root's values count. Left unchanged.
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

# %% [markdown]
# <details><summary>Hint</summary>
#
# Every rank runs the same function, so ask who you are: `if rank == root:` a loop of sends that leaves out the root,
# `else:` one receive.
# </details>

# %% check="broadcast-by-hand" judges="values" points=3
check(broadcast_by_hand, judges="values")

# %% check="broadcast-by-hand" judges="traffic" points=1
check(broadcast_by_hand, judges="traffic")

# %% [markdown]
# ## Scatter by hand
#
# Like PyTorch's own scatter: every rank brings an empty tensor for its chunk, only the root has the list of chunks. The
# chunks may have different sizes. What does the root do with its own?

# %% exercise="scatter-by-hand" difficulty=2 minutes=6
def scatter_by_hand(mine: Tensor, chunks: list[Tensor] | None, root: int, rank: int, world_size: int) -> Tensor:
    """Fill `mine` with the root's `chunks[rank]` and return it, by send and recv alone; P - 1 messages in all.

    mine: shape and dtype of this rank's chunk, to be overwritten.
    chunks: P tensors on the root, left unchanged; None on the other ranks.
    """
    if rank == root:
        ### BEGIN SOLUTION
        for other in range(world_size):
            if other != root:
                dist.send(chunks[other], dst=other)
        mine.copy_(chunks[root])
        ### END SOLUTION
    else:
        ### BEGIN SOLUTION
        dist.recv(mine, src=root)
        ### END SOLUTION
    return mine

# %% check="scatter-by-hand" judges="values" points=3
check(scatter_by_hand, judges="values")

# %% check="scatter-by-hand" judges="traffic" points=1
check(scatter_by_hand, judges="traffic")

# %% [markdown]
# ## Gather by hand
#
# Now the arrows turn round: everybody sends to the root, and the root puts what comes from rank $r$ into row $r$. It
# receives into `rows[r]` directly.

# %% exercise="gather-by-hand" difficulty=2 minutes=5
def gather_by_hand(x: Tensor, root: int, rank: int, world_size: int) -> Tensor | None:
    """Return all ranks' `x` stacked in rank order on the root, None elsewhere; send and recv alone, P - 1 messages.

    x: same shape and dtype on every rank, left unchanged. Returns (P, *x.shape).
    """
    if rank != root:
        ### BEGIN SOLUTION
        dist.send(x, dst=root)
        ### END SOLUTION
        return None
    rows = torch.zeros(world_size, *x.shape, dtype=x.dtype)
    ### BEGIN SOLUTION
    for other in range(world_size):
        if other == root:
            rows[root] = x
        else:
            dist.recv(rows[other], src=other)
    ### END SOLUTION
    return rows

# %% check="gather-by-hand" judges="values" points=3
check(gather_by_hand, judges="values")

# %% check="gather-by-hand" judges="traffic" points=1
check(gather_by_hand, judges="traffic")

# %% [markdown]
# ## Reduce by hand
#
# The root could gather and then add. But that needs room for $P$ tensors. Do it with room for two: the `total`, and one
# tensor that has just `arrived`.

# %% exercise="reduce-by-hand" difficulty=2 minutes=5
def reduce_by_hand(x: Tensor, root: int, rank: int, world_size: int) -> Tensor | None:
    """Return the sum of all ranks' `x` on the root, None elsewhere; send and recv alone, P - 1 messages in all.

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
# ### Counted, beside your prediction
# `spawn` notes every call in `run.events`. Here are all messages of your broadcast of 1,000 numbers (4 bytes each) from
# root 1, as a table of source and destination, then those of your gather.

# %%
def broadcast_program(rank, world_size):
    broadcast_by_hand(torch.zeros(1000), 1, rank, world_size)

figures.traffic(spawn(broadcast_program, 4), "broadcast by hand")

# %%
def gather_program(rank, world_size):
    gather_by_hand(torch.zeros(1000), 1, rank, world_size)

figures.traffic(spawn(gather_program, 4), "gather by hand")

# %% [markdown]
# A full row: the root sends $P - 1$ times 4,000 bytes, one after the other. A full column: the root receives them. That
# is GPU 0 of the first cell, and why libraries use trees and rings instead. What each rank holds at the end is equal.

# %% [markdown]
# # Part 3 · Everybody gets something
# The other four have no root. Every rank gives and every rank gets.
#
# | collective | rank $r$ gets | where you will meet it |
# |---|---|---|
# | **all-gather** | everybody's tensors, in rank order | sharded weights (FSDP) |
# | **reduce-scatter** | chunk $r$ of the sum | sharded gradients (ZeRO) |
# | **all-reduce** | the whole sum | data parallelism |
# | **all-to-all** | chunk $r$ of everybody's tensor, in rank order | mixture of experts |
#
# The names can be read: *all* says that everybody gets the result, *reduce* that values are added, *scatter* that each
# rank gets one chunk.

# %%
figures.collective("all_gather", world_size=4)

# %%
figures.collective("reduce_scatter", world_size=4)

# %%
figures.collective("all_reduce", world_size=4)

# %%
figures.collective("all_to_all", world_size=4)

# %% [markdown]
# ## Predict unrooted
#
# Again with plain lists. `cut(numbers, P)` is given: it cuts a list into $P$ equal chunks. **Predict** for
# `held = [[1, 2], [3, 4]]`. Which two of the four give every rank the same?

# %% exercise="predict-unrooted" difficulty=2 minutes=7
def cut(numbers: list, parts: int) -> list[list]:
    size = len(numbers) // parts
    return [numbers[part * size : (part + 1) * size] for part in range(parts)]

def predict_unrooted(collective: str, held: list[list]) -> list[list]:
    """What each rank gets out of an unrooted collective, with plain lists.

    collective: "all_gather", "reduce_scatter", "all_reduce" or "all_to_all".
    held: held[rank] is the list of numbers that this rank starts with; its length is divisible by len(held), except
        for all_gather and all_reduce, where it need not be.
    Returns one list of plain Python numbers a rank.
    """
    world_size = len(held)
    total = [sum(column) for column in zip(*held)]  # the sum over ranks, number by number
    if collective == "all_gather":
        ### BEGIN SOLUTION
        after = [[number for numbers in held for number in numbers] for _ in range(world_size)]
        ### END SOLUTION
    elif collective == "reduce_scatter":
        ### BEGIN SOLUTION
        after = cut(total, world_size)
        ### END SOLUTION
    elif collective == "all_reduce":
        ### BEGIN SOLUTION
        after = [list(total) for _ in range(world_size)]
        ### END SOLUTION
    elif collective == "all_to_all":
        ### BEGIN SOLUTION
        chunks = [cut(numbers, world_size) for numbers in held]
        after = [[number for source in chunks for number in source[rank]] for rank in range(world_size)]
        ### END SOLUTION
    return after

# %%
held = [[1, 2], [3, 4]]
{name: predict_unrooted(name, held) for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")}

# %% check="predict-unrooted" judges="values" points=2
check(predict_unrooted, judges="values")

# %% [markdown]
# ## Call unrooted
#
# ```python
# dist.all_gather(parts, x)                # parts: a list of P tensors to fill
# dist.reduce_scatter(out, chunks)         # out: filled; chunks: a list of P tensors, on every rank
# dist.all_reduce(x)                       # x: overwritten with the sum
# dist.all_to_all_single(out, x)           # x: chunk d of it goes to rank d; out: chunk s of it came from rank s
# ```
#
# The output comes first, the input second. Turned round, many of these calls run and return rubbish.

# %% exercise="call-unrooted" difficulty=2 minutes=6
def call_unrooted(x: Tensor, collective: str, rank: int, world_size: int) -> Tensor:
    """Make one unrooted collective call on torch.distributed; `x` is left unchanged.

    all_gather       x: (n,)      -> (P * n,)
    reduce_scatter   x: (P * n,)  -> (n,)
    all_reduce       x: (n,)      -> (n,)
    all_to_all       x: (P * n,)  -> (P * n,)
    """
    if collective == "all_gather":
        parts = [torch.empty_like(x) for _ in range(world_size)]
        ### BEGIN SOLUTION
        dist.all_gather(parts, x)
        ### END SOLUTION
        received = torch.cat(parts)
    elif collective == "reduce_scatter":
        chunks = list(x.chunk(world_size))
        received = torch.empty_like(chunks[0])
        ### BEGIN SOLUTION
        dist.reduce_scatter(received, chunks)
        ### END SOLUTION
    elif collective == "all_reduce":
        ### BEGIN SOLUTION
        received = x.clone()
        dist.all_reduce(received)
        ### END SOLUTION
    elif collective == "all_to_all":
        received = torch.empty_like(x)
        ### BEGIN SOLUTION
        dist.all_to_all_single(received, x)
        ### END SOLUTION
    return received

# %% check="call-unrooted" judges="values" points=3
check(call_unrooted, judges="values")

# %% check="call-unrooted" judges="traffic" points=1
check(call_unrooted, judges="traffic")

# %% [markdown]
# # Part 4 · How they fit together
# Eight names, but not eight unrelated things. Some are two others in a row, one is a matrix transpose, and each has a
# mirror image.

# %% [markdown]
# ## All-gather from rooted
#
# First gather, then broadcast: everybody has everything. The root does not matter; take rank 0. Mind that
# `dist.broadcast` needs a tensor of the right size on every rank **before** it is called.

# %% exercise="all-gather-from-rooted" difficulty=2 minutes=5
def all_gather_from_rooted(x: Tensor, rank: int, world_size: int) -> Tensor:
    """Return all ranks' `x` stacked in rank order, on every rank: one dist.gather, then one dist.broadcast.

    x: same shape and dtype on every rank, left unchanged. Returns (P, *x.shape).
    """
    everything = torch.zeros(world_size, *x.shape, dtype=x.dtype)
    ### BEGIN SOLUTION
    rows = list(everything) if rank == 0 else None  # views: what arrives in them is in `everything`
    dist.gather(x, rows, dst=0)
    dist.broadcast(everything, src=0)
    ### END SOLUTION
    return everything

# %% check="all-gather-from-rooted" judges="values" points=2
check(all_gather_from_rooted, judges="values")

# %% check="all-gather-from-rooted" judges="traffic" points=1
check(all_gather_from_rooted, judges="traffic")

# %% [markdown]
# Right, but dear. **Predict**: with your hand-written gather and broadcast, how many bytes does rank 0 send, and how
# many would each rank send if everybody sent its own tensor once to each of the others?

# %% tags=["notebook-only"]
def gather_then_broadcast(rank, world_size):
    x = torch.zeros(1000)
    rows = gather_by_hand(x, 0, rank, world_size)
    everything = rows if rank == 0 else torch.empty(world_size, 1000)
    broadcast_by_hand(everything, 0, rank, world_size)

for world_size in (2, 4, 8):
    traffic = spawn(gather_then_broadcast, world_size).traffic()
    messages, sent = traffic.sent(rank=0)
    direct = (world_size - 1) * 4000
    print(f"{world_size} ranks: rank 0 sends {sent:7,} bytes; sending directly, {direct:6,} a rank: 1/{sent // direct}")

# %% [markdown]
# ## All-reduce from halves
#
# The most important identity of this course:
#
# **all-reduce = reduce-scatter + all-gather**

# %%
figures.halves(world_size=4)

# %% [markdown]
# After the reduce-scatter each rank owns one finished chunk of the sum; the all-gather hands the chunks round. Fast
# all-reduces are made like this, and ZeRO and FSDP do useful work between the two halves.
#
# Real tensors don't come in multiples of $P$. So: flatten, **pad** with zeros to the next multiple of $P$, cut in $P$
# chunks; at the end cut the padding off and restore the shape. **Predict**: how long is a chunk for 10 numbers on 4
# ranks?

# %% exercise="all-reduce-from-halves" difficulty=3 minutes=14
def all_reduce_from_halves(x: Tensor, rank: int, world_size: int) -> Tensor:
    """Return the sum of all ranks' `x`, on every rank: one dist.reduce_scatter, then one dist.all_gather.

    x: same shape (1 element or more) and dtype on every rank, contiguous or not, left unchanged. Returns x.shape.
    Chunks have ceil(x.numel() / P) elements; the last ones are padded with zeros.
    """
    size = -(-x.numel() // world_size)  # elements in a chunk, rounded up
    padded = torch.zeros(world_size * size, dtype=x.dtype)
    ### BEGIN SOLUTION
    padded[: x.numel()] = x.reshape(-1)
    mine = torch.empty(size, dtype=x.dtype)
    dist.reduce_scatter(mine, list(padded.chunk(world_size)))
    chunks = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(chunks, mine)
    ### END SOLUTION
    return torch.cat(chunks)[: x.numel()].reshape(x.shape)

# %% [markdown]
# <details><summary>Hint</summary>
#
# The last line, which is given, tells you what the missing part has to leave behind: `chunks`, a list of $P$ tensors
# of `size` elements. Only the all-gather can fill it. What does it send? The output of the reduce-scatter.
# </details>

# %% check="all-reduce-from-halves" judges="values" points=3
check(all_reduce_from_halves, judges="values")

# %% check="all-reduce-from-halves" judges="traffic" points=2
check(all_reduce_from_halves, judges="traffic")

# %% [markdown]
# ## Distributed transpose
#
# Look at the picture of the all-to-all again and read it as a matrix of chunks: what was in column $r$, row $d$ is
# afterwards in column $d$, row $r$. An all-to-all **is** a transpose, of chunks.
#
# Now transpose a real matrix. Rank $r$ holds a band of rows of $A$; afterwards it shall hold a band of rows of $A^T$,
# that is, a band of columns of $A$. No rank ever has the whole matrix. The all-to-all moves the blocks to the right
# rank; **inside** a block you have to transpose yourself.

# %%
figures.transpose(world_size=2, rows=2, columns=3)

# %% exercise="distributed-transpose" difficulty=3 minutes=12
def distributed_transpose(band: Tensor, rank: int, world_size: int) -> Tensor:
    """Transpose a matrix whose rows are spread over the ranks, with one all_to_all_single.

    band: (m, P * c), rows r * m to (r + 1) * m of the matrix on rank r; contiguous or not, left unchanged.
    Returns (c, P * m): rows r * c to (r + 1) * c of the transposed matrix. Each rank hands in m * P * c elements.
    """
    blocks = band.chunk(world_size, dim=1)  # P blocks of (m, c); blocks[d] is for rank d
    ### BEGIN SOLUTION
    outgoing = torch.stack([block.T for block in blocks])  # (P, c, m), contiguous
    arrived = torch.empty_like(outgoing)  # arrived[s] came from rank s
    dist.all_to_all_single(arrived, outgoing)
    return torch.cat(list(arrived), dim=1)  # (c, P * m)
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint 1: what to send</summary>
#
# `all_to_all_single` cuts its input along dimension 0. So stack the blocks: `(P, ...)`. `torch.stack` also makes the
# memory contiguous, which a bare `.T` does not.
# </details>
# <details><summary>Hint 2: what arrived</summary>
#
# Block $s$ came from rank $s$, which held rows $s \cdot m$ to $(s+1) \cdot m$ of $A$. In $A^T$ these are columns. So
# the blocks go side by side.
# </details>

# %% check="distributed-transpose" judges="values" points=4
check(distributed_transpose, judges="values")

# %% check="distributed-transpose" judges="traffic" points=1
check(distributed_transpose, judges="traffic")

# %% [markdown]
# ## Dual of
#
# Write the tensors of all ranks one under the other: a collective is then a (huge) **matrix** that maps this vector to
# another. Its transpose is again a collective, its **dual**: play it backwards, and where a value was copied, add.
#
# Why care? Backpropagation multiplies by the transposed matrix. If a layer does a broadcast in the forward pass, its
# gradients need the dual of broadcast in the backward pass. Half of lesson 08 is this table.
#
# A dual is known by its inner products: $\langle C(x),\, y \rangle = \langle x,\, C^*(y) \rangle$ for all $x$ and $y$,
# where $\langle a, b \rangle$ adds up the products of everything on all ranks. **Predict** the pairs from the pictures:
# for which do the arrows turn round? Two are their own dual.

# %% exercise="dual-of" difficulty=2 minutes=6
def dual_of(collective: str) -> str:
    """The collective that goes backwards when `collective` goes forwards.

    Both are among "broadcast", "scatter", "gather", "reduce", "all_gather", "reduce_scatter", "all_reduce",
    "all_to_all".
    """
    ### BEGIN SOLUTION
    pairs = [("broadcast", "reduce"), ("scatter", "gather"), ("all_gather", "reduce_scatter")]
    both_ways = {**dict(pairs), **{right: left for left, right in pairs}}
    return both_ways.get(collective, collective)  # all_reduce and all_to_all are their own
    ### END SOLUTION

# %% [markdown]
# Don't believe your pairs: test them, with your own two predictions. Below, `inner` is the inner product over all
# ranks; a rank that holds nothing adds nothing. `x` and `y` are random whole numbers, so equal means equal.

# %%
def inner(left, right):
    both = [(a, b) for a, b in zip(left, right) if a is not None and b is not None]
    return sum(p * q for a, b in both for p, q in zip(a, b))

def predict(collective, held):
    rooted = collective in ("broadcast", "scatter", "gather", "reduce")
    return predict_rooted(collective, held, root=1) if rooted else predict_unrooted(collective, held)

def random_numbers(numel):
    return torch.randint(1, 10, (4, numel)).tolist()  # four ranks

long_input, long_output = ("scatter", "reduce_scatter"), ("gather", "all_gather")

# %%
torch.manual_seed(0)
for name in ("broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
    x = random_numbers(2 if name in long_output else 8)
    y = random_numbers(2 if name in long_input else 8)
    forwards = inner(predict(name, x), y)
    backwards = inner(x, predict(dual_of(name), y))
    print(f"{name:15} dual {dual_of(name):15} <C(x), y> = {forwards:5}   <x, C*(y)> = {backwards:5}")

# %% check="dual-of" judges="values" points=2
check(dual_of, judges="values")

# %% [markdown]
# # Part 5 · Not only sums, and not only now
# A reduction need not be a sum. `dist.all_reduce(x, op=dist.ReduceOp.MAX)` takes the largest. Each of these is
# computed for each position of the tensor by itself:

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
# Each rank has a shard of the data, and the shards have **different lengths**. What is the mean of all of it? `AVG`
# gives the mean of the means, and that is another number. **Predict** both for the shards `[0, 0, 0]` and `[12]`.

# %%
def mean_of_means(rank, world_size):
    shard = torch.tensor([0.0, 0.0, 0.0]) if rank == 0 else torch.tensor([12.0])
    mean = shard.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.item()

spawn(mean_of_means, 2).results, torch.tensor([0.0, 0.0, 0.0, 12.0]).mean().item()

# %% [markdown]
# The mean of means treats the short shard as if it were long. Later you'll see the same mistake as a wrong gradient, in
# the last batch of an epoch. Which two numbers must be summed instead?

# %% exercise="global-statistics" difficulty=2 minutes=7
def global_statistics(shard: Tensor, rank: int, world_size: int) -> Tensor:
    """Return the tensor [mean, min, max, product] of all numbers of all ranks, the same on every rank.

    shard: (k,), a floating point dtype, k >= 1 and not the same on every rank; left unchanged.
    Returns (4,) of the same dtype.
    """
    smallest, largest, product = shard.min(), shard.max(), shard.prod()
    ### BEGIN SOLUTION
    total, count = shard.sum(), torch.tensor(float(shard.numel()), dtype=shard.dtype)
    dist.all_reduce(total)
    dist.all_reduce(count)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)
    mean = total / count
    ### END SOLUTION
    return torch.stack([mean, smallest, largest, product])

# %% [markdown]
# <details><summary>Hint</summary>
#
# The sum of all numbers, and how many there are. The length is a plain number: make a tensor of it before you sum it.
# </details>

# %% check="global-statistics" judges="values" points=3
check(global_statistics, judges="values")

# %% [markdown]
# ## Launch, then wait
#
# While a tensor is on its way a rank need not stand and wait. With `async_op=True` a collective only **starts**; it
# returns a handle at once:
#
# ```python
# handle = dist.all_reduce(x, async_op=True)   # the tensor now belongs to the network
# ...                                          # compute something else
# handle.wait()                                # from here on x holds the sum
# ```
#
# Between the two, neither read nor write `x`: it may hold your numbers, the sum, or half of each, and a test on a quiet
# machine will not show it. If you drop the handle, nobody tells you when it is done.
#
# Start all of them first, then do the local work, then wait for **each**. "Start one, wait for it, start the next" is
# the slow program in new clothes.

# %% exercise="launch-then-wait" difficulty=2 minutes=7
def launch_then_wait(tensors: list[Tensor], rank: int, world_size: int) -> tuple[list[Tensor], Tensor]:
    """Sum each tensor over all ranks; while the sums are on their way, find this rank's largest number.

    tensors: the same shapes and dtypes on every rank, left unchanged.
    Returns ([sum of tensors[0], sum of tensors[1], ...], largest number in this rank's own tensors).
    Every all_reduce is started before the first is waited for; each handle's wait() is called.
    """
    sums = [x.clone() for x in tensors]
    ### BEGIN SOLUTION
    handles = [dist.all_reduce(x, async_op=True) for x in sums]
    ### END SOLUTION
    largest = max(x.max() for x in tensors)  # local work: reads `tensors`, not `sums`
    ### BEGIN SOLUTION
    for handle in handles:
        handle.wait()
    ### END SOLUTION
    return sums, largest

# %% check="launch-then-wait" judges="values" points=2
check(launch_then_wait, judges="values")

# %% check="launch-then-wait" judges="traffic" points=2
check(launch_then_wait, judges="traffic")

# %% [markdown]
# Is the waiting time really used? `region` names a stretch of compute, and `timeline` draws who did what when: each
# rank's compute in the upper half of its lane, what it had on the network in the lower half. Here both go on at once.

# %% tags=["nbval-ignore-output"]
def compute_meanwhile(rank, world_size):
    gradient, weights = torch.ones(4_000_000), torch.randn(500, 500)
    dist.barrier()
    with region("step"):
        handle = dist.all_reduce(gradient, async_op=True)
        with region("compute"):
            for _ in range(10):
                weights = torch.tanh(weights @ weights)
        handle.wait()

spawn(compute_meanwhile, 2).timeline(within="step")

# %% [markdown]
# # Part 6 · The rules, and what happens if you break them
# A collective is a promise between all ranks. There are four rules:
#
# 1. **Everybody calls.** Every rank of the group makes the call.
# 2. **Same order.** The first collective of one rank meets the first of all others, the second the second, and so on.
# 3. **Same shape and dtype**, on every rank.
# 4. **Contiguous memory.** The numbers lie side by side, without gaps.
#
# Nobody checks them for you: at a thousand ranks checking would cost more than the collective. Break them here, where
# it is cheap. For each cell, **predict** before you run it: error, deadlock, or a wrong number?
#
# Rule 1. Rank 0 thinks that the others need not be there.

# %% tags=["raises-exception"]
def not_everybody(rank, world_size):
    x = torch.ones(2)
    if rank == 0:
        dist.all_reduce(x)
    return x

spawn(not_everybody, 3)

# %% [markdown]
# Rule 3. One rank has a last batch that is shorter.

# %% tags=["raises-exception"]
def another_shape(rank, world_size):
    x = torch.ones(2) if rank == 2 else torch.ones(5)
    dist.all_reduce(x)
    return x

spawn(another_shape, 3)

# %% [markdown]
# Look at rank 2 in the last report: it has finished, and believes that all went well.
#
# Those were loud. Now the quiet ones. Rule 2: two ranks sum the same two tensors, but in another order, as may happen
# when gradients are sent "as soon as they are ready". The sum of `a` should be 4 and that of `b` 400.

# %%
def another_order(rank, world_size):
    a, b = torch.tensor([1.0 + 2 * rank]), torch.tensor([100.0 + 200 * rank])
    for x in (a, b) if rank == 0 else (b, a):
        dist.all_reduce(x)
    return {"a": a.item(), "b": b.item()}

spawn(another_order, 2).results

# %% [markdown]
# No error, no deadlock. Rank 0's `a` was added to rank 1's `b`: the network matches calls by their order and knows
# nothing of your variables. Had the two tensors been of different sizes, it would have been a deadlock, and that
# would have been luck. So: the same calls, in one fixed order, on every rank.
#
# Rule 3 again: the shape is right, but one rank counts in whole numbers. The sum should be 2 everywhere.

# %% tags=["raises-exception"]
def another_dtype(rank, world_size):
    x = torch.ones(2) if rank == 0 else torch.ones(2, dtype=torch.int32)
    dist.all_reduce(x)
    print(x.tolist())

spawn(another_dtype, 2)

# %% [markdown]
# PyTorch said nothing: each rank printed its "sum" and went on. The error comes from `spawn`, which compares what the
# ranks have called once all are through. On a cluster nobody does that for you.
#
# Both dtypes take 4 bytes a number, and the network moves bytes. 1065353216 is what the four bytes of the float 1.0
# mean to somebody who reads them as a whole number. With float64 on one side the sizes differ, and a rank crashes or
# hangs.

# %% [markdown]
# ## All-reduce any view
#
# Rule 4. A column of a matrix, `x[:, 0]`, or every other number, `x[::2]`, is a **view**: its numbers have gaps between
# them. Here each rank sums every other number of a tensor of ones. Expected, on 2 ranks: `[2, 1, 2, 1, 2, 1, 2, 1]`.

# %% tags=["raises-exception"]
def sum_a_view(rank, world_size):
    x = torch.ones(8)
    dist.all_reduce(x[::2])
    print(x.tolist())

spawn(sum_a_view, 2)

# %% [markdown]
# Again PyTorch said nothing, and only `spawn` noticed afterwards. Gloo was told "four numbers, starting here" and took
# the first four in memory, gaps and all. (NCCL, on GPUs, refuses such a view with an error.) Write an all-reduce that
# is right for any view. Remember that the caller looks at `view`, so the sum has to end up **in** it.

# %% exercise="all-reduce-any-view" difficulty=2 minutes=5
def all_reduce_any_view(view: Tensor, rank: int, world_size: int) -> Tensor:
    """Sum `view` over all ranks, in place, whatever its strides are; return it.

    view: same shape and dtype on every rank, contiguous or not; overwritten with the sum. One all_reduce.
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
# ## Agree or explain
#
# The last exercise makes a loud error out of a silent one. Before the all-reduce every rank learns everybody's shape
# and dtype; if they differ, **every** rank raises the same error. Every rank, because if only the odd one raised, the
# others would wait for it for ever.
#
# `dist.all_gather_object(everyone, mine)` gathers small Python objects: `everyone` is a list of length $P$ to fill.
# "Odd" is a rank that differs from rank 0. Name each odd rank and what it brought, and what rank 0 brought:
#
# ```
# rank 2 brought (3,) torch.float64, but rank 0 brought (4,) torch.float32
# ```

# %% exercise="agree-or-explain" difficulty=3 minutes=10
def agree_or_explain(x: Tensor, rank: int, world_size: int) -> Tensor:
    """Return the sum of all ranks' `x`, or raise the same ValueError on every rank if shapes or dtypes differ.

    x: any shape and dtype, left unchanged.
    Raises ValueError that names each rank that differs from rank 0 as "rank 2", with its shape and dtype, then
    "rank 0" with its own. Ranks that agree with rank 0 are not named.
    """
    mine = f"{tuple(x.shape)} {x.dtype}"  # such as "(3,) torch.float64"
    everyone = [None] * world_size
    ### BEGIN SOLUTION
    dist.all_gather_object(everyone, mine)
    odd = [f"rank {r} brought {everyone[r]}" for r in range(world_size) if everyone[r] != everyone[0]]
    if odd:
        raise ValueError(f"{', '.join(odd)}, but rank 0 brought {everyone[0]}")
    ### END SOLUTION
    total = x.clone()
    dist.all_reduce(total)
    return total

# %% [markdown]
# <details><summary>Hint</summary>
#
# After `dist.all_gather_object(everyone, mine)` every rank holds the same list. If each computes the odd ranks from
# that list, and from nothing else, all come to the same decision and the same sentence.
# </details>

# %% check="agree-or-explain" judges="values" points=4
check(agree_or_explain, judges="values")

# %% [markdown]
# Here it is in use: the mistake of rule 3 once more, but now it says what is wrong.

# %% tags=["raises-exception"]
def another_shape_again(rank, world_size):
    x = torch.ones(2) if rank == 2 else torch.ones(5)
    return agree_or_explain(x, rank, world_size)

spawn(another_shape_again, 3)

# %% [markdown]
# It costs one more small collective, every time. So do it in tests and while you develop, not in every training step.

# %% [markdown]
# # Part 7 · The first page, on 1,024 GPUs
# This lesson began with a claim about 1,024 GPUs. Four processes can't confirm it, but a **virtual cluster** can:
# `simulate` runs a rank program, unchanged, with a thread for each rank, each with a clock of its own. Tensors have
# sizes and no values, and a message takes what it would take on a link of that cluster. Nothing is measured, so the
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
# Seven of eight wait nearly all the time. And with 1,024, beside PyTorch's own all-reduce?

# %% tags=["notebook-only"]
def good(rank, world_size):
    dist.all_reduce(torch.empty(8_000_000_000, dtype=torch.bfloat16))

through_one, all_reduce = (simulate(program, 1024, cluster="dgx-h100") for program in (obvious, good))
print(f"through GPU 0: {through_one.elapsed:.0f} s a step     all-reduce: {all_reduce.elapsed:.2f} s")
all_reduce.costs()

# %% [markdown]
# Eleven minutes indeed; adding up takes some seconds more than the first page had counted. The good one is better than
# promised: such a node has eight network cards, and `costs` says how all of them are used. Lesson 02 builds that.

# %% [markdown]
# # Recap
# - A **collective** is called by every rank of a group, in the same order, with the same shapes. What differs is what
#   each rank hands in and gets out.
# - Rooted: **broadcast, scatter, gather, reduce**. Unrooted: **all-gather, reduce-scatter, all-reduce, all-to-all**.
# - By hand each rooted one takes $P - 1$ messages, all through the root: the bottleneck which lesson 02 removes.
# - **all-reduce = reduce-scatter + all-gather.** all-gather = gather + broadcast. all-to-all = transpose.
# - Duals, which is what the backward pass needs: broadcast and reduce, scatter and gather, all-gather and
#   reduce-scatter; all-reduce and all-to-all are their own.
# - Broken rules are not always loud. Another order or a view with gaps can simply give wrong numbers.
#
# **The library.** You called `torch.distributed` throughout; the same program runs on GPUs when the backend is NCCL
# instead of Gloo. For one flat tensor in and one out it also has `all_gather_single` and `reduce_scatter_single`
# (before torch 2.13: `all_gather_into_tensor`, `reduce_scatter_tensor`): faster, as nothing is copied into lists.
# For chunks of unequal size, give `all_to_all_single` its `input_split_sizes` and `output_split_sizes`.
#
# **The paper.** Chan, Heimlich, Purkayastha, van de Geijn: *Collective communication: theory, practice, and experience*
# (Concurrency and Computation, 2007). Its first sections draw the pictures of this lesson; the rest is lesson 02.

# %% [markdown]
# # Challenge (optional, no points)
# `dist.all_gather_object` took strings of any length, but a collective needs the same shape everywhere. How does it do
# that? Write `all_gather_text` with two calls of `dist.all_gather` and no object collective. When it is right, the cell
# shows True four times.
#
# <details><summary>Hint</summary>
#
# First all-gather the lengths. Then everybody pads its bytes to the longest and all-gathers those. Cut each to its
# length at the end. From text to tensor: `torch.tensor(list(text.encode()), dtype=torch.uint8)`; back:
# `bytes(tensor.tolist()).decode()`.
# </details>

# %% tags=["notebook-only"]
def all_gather_text(text, rank, world_size):
    """Return the texts of all ranks, in rank order, on every rank."""
    return [text]  # replace this

def challenge(rank, world_size):
    words = ["one", "", "fourteen", "ñandú"]
    return all_gather_text(words[rank], rank, world_size) == words

spawn(challenge, 4).results
