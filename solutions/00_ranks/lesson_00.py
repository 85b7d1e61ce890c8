# %% [markdown] question="How do processes find each other, stay together and fail, and why train on many at all?"
# # Processes and ranks
# *you need: PyTorch tensors and `backward()`, but no GPU and no experience with more than one process.*
#
# A large model is trained by thousands of processes that behave like one. In this lesson you start a few, watch two of
# them drift apart, and bring them back together. You let them find each other by hand, make them take turns, and break
# them in two ways. By the end you will be able to read the report when it happens to you, and it will.
#
# Run each cell with Shift+Enter, from top to bottom.

# %%
import math
import os
import tempfile
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from utils import figures, get_device, spawn
from utils.checks import checks_for
from utils.kit import mlp
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.shared_file import SharedFile

check = checks_for("00_ranks")
spawn_anywhere = spawn
spawn = partial(spawn, backend="gloo")  # this lesson computes on the CPU

# %% [markdown]
# ## Why: two replicas that drift apart
# The most common way to train on several GPUs is this: several processes each hold a copy of the model, a **replica**.
# All replicas start out equal. Each process takes its share of every batch, computes a gradient and updates its
# replica.
#
# Here are two processes that train the course's small model, an MLP, each on half of every batch. Something is missing
# from the program. After 100 steps, how far apart are their weights, as a percentage of their size? **Predict**:
# run the cell and type a number into its field, or replace `...` with it. Predictions earn no points, and you can skip
# them, but a guess that turns out wrong is what you'll remember.

# %%
predict("distance between the replicas, in %", ...)

# %%
def train_alone(rank, world_size, steps):
    weights = [
        weight.requires_grad_() for weight in mlp.make_weights(num_layers=4, num_dim=16)
    ]
    optimizer = torch.optim.AdamW(weights, lr=0.01)
    history = []
    for step in range(steps):
        batch = mlp.make_batch(batch_size=16, num_dim=16, seed=step)
        mine = batch.chunk(world_size)[rank]  # its share of the rows
        optimizer.zero_grad()
        loss = mlp.loss_of(mlp.forward(weights, mine))
        loss.backward()
        optimizer.step()
        history.append(
            (loss.item(), torch.cat([weight.detach().flatten() for weight in weights]))
        )
    return history

def percent_apart(one, other):
    return 100 * ((one - other).norm() / one.norm()).item()

# %% tags=["notebook-only"]
run = spawn(train_alone, 2, steps=100)
print("step   loss of rank 0   loss of rank 1   apart")
for step in (1, 2, 10, 100):
    (loss_0, weights_0), (loss_1, weights_1) = (
        history[step - 1] for history in run.results
    )
    print(
        f"{step:>4}   {loss_0:14.6f}   {loss_1:14.6f}   "
        f"{percent_apart(weights_0, weights_1):4.1f} %"
    )

# %% tags=["notebook-only"]
reveal(
    "distance between the replicas, in %",
    percent_apart(weights_0, weights_1),
    why="Each replica follows the gradient of its own half, so after one step they are two different models. From then "
    "on, each computes its gradients from different weights, and nothing ever pulls the two together.",
)

# %% [markdown]
# No error, no warning, and both losses fall as they should. Yet these are two models, each trained on half of the data.
# Little more than one line is missing. To write it, you need to know what these processes are.

# %% [markdown]
# # Part 1 · One program, many processes
# Each GPU gets a process of its own, and all processes run **the same program**. Three words are enough to begin:
#
# - **rank**: the number of a process, counting from 0. People also call the process itself "rank 2".
# - **world size**: how many processes there are. We write $P$ for it.
# - **rank program**: the function that all of them run. It gets its `rank` and the `world_size`.
#
# `spawn` starts the processes, runs the function in each, and brings back what each one returned:

# %%
def hello(rank, world_size):
    print(f"Hello, I am {rank} of {world_size}")
    return 10 * rank

run = spawn(hello, 4)
run.results

# %% [markdown]
# You have just run four processes. They share **nothing**. Each has its own variables, and so does this notebook, which
# is a process too. **Predict** for 4 ranks: what does rank 3 return below, and what is `counter` in the notebook
# afterwards?

# %%
predict("what rank 3 returns", ...)
predict("counter in the notebook", ...)

# %%
counter = 0

def count(rank, world_size):
    global counter
    for number in range(12)[rank::world_size]:  # every fourth number, from `rank` on
        counter += number
    return counter

counted = spawn(count, 4).results
counted

# %% tags=["notebook-only"]
reveal("what rank 3 returns", counted[3], why="3 + 7 + 11: its counter started at 0, and no other rank added to it.")
reveal("counter in the notebook", counter, why="Each rank added to a copy of its own.")

# %% [markdown]
# Nobody handed out the work: each rank knew its part from `rank` and `world_size` alone. The opening program divides
# its rows in the same way. But whatever one rank **has** and another one needs must be **sent**.

# %% [markdown]
# ## The identity of a rank
#
# Code deep inside a library gets no `rank` argument. It asks `torch.distributed`, which we import as `dist`:
# `dist.get_rank()` and `dist.get_world_size()`. A rank also needs to know **where** to put its tensors: `get_device()`
# from `utils` returns `cpu` here, and `cuda:2` on rank 2 of a machine with GPUs.
#
# In an exercise, your lines take the place of `raise NotImplementedError()`. Run the cell, then the check below it,
# which starts ranks that call your function and tells you what it saw. Change your code and run both again as often as
# you like.
#
# <details><summary>Hint</summary>
#
# Three more entries: two numbers from `dist`, and `str(...)` of the device.
# </details>

# %% exercise="hello-ranks" difficulty=1 minutes=5
def hello_ranks() -> dict:
    """Say who this process is. The function gets no arguments: ask the library.

    Returns {"process": its number in the operating system, "rank": an int,
    "world_size": an int, "device": a string such as "cpu" or "cuda:2"}.
    """
    me = {"process": os.getpid()}
    ### BEGIN SOLUTION
    me["rank"] = dist.get_rank()
    me["world_size"] = dist.get_world_size()
    me["device"] = str(get_device())
    ### END SOLUTION
    return me

# %% check="hello-ranks" judges="values" points=2
check(hello_ranks, judges="values")

# %% [markdown]
# ### Backends and devices
# A library below PyTorch, the **backend**, does the sending:
#
# - **Gloo** moves tensors between CPUs, over ordinary network sockets. It runs on any laptop.
# - **NCCL** moves tensors between NVIDIA GPUs. It looks at the wiring of the machine and the network, chooses the paths
#   and the algorithm, and runs a small program on each GPU (a **kernel**) that copies and adds.
#
# Your program calls the same `dist` functions for both. `spawn` uses NCCL if each rank can have a GPU of its own, and
# Gloo otherwise; this lesson always asks for Gloo. What would `spawn` choose on this machine, for two ranks?

# %% tags=["nbval-ignore-output", "notebook-only"]
def where_am_i(rank, world_size):
    return f"{dist.get_backend()} on {get_device()}"

print("GPUs here:", torch.cuda.device_count())
spawn_anywhere(where_am_i, 2).results

# %% [markdown]
# ## Replicas in step
#
# Now for the missing line. `dist.all_reduce(x)` replaces `x`, on every rank, with the **sum** of all ranks' `x`. All
# ranks call it together. It is one of eight such operations, the **collectives**, which the next lesson is about.
#
# The loss is a mean over rows. Each of the $P$ ranks computes the mean over its own rows, and all have the same number
# of them. So the gradient of the whole batch is the **mean** of the ranks' gradients. If every rank updates its replica
# with that mean, the replicas stay equal, and each is what one process would have computed from the whole batch.
#
# Here the optimizer is plain gradient descent. AdamW scales each update by the gradient's own size, which would hide a
# wrong factor.
#
# <details><summary>Hint 1: where to look</summary>
#
# Start from the loop of `train_alone`. Between which two of its lines are the gradients there, but not yet used?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# After `loss.backward()`, each `weight.grad` is the mean over this rank's rows. Sum it over the ranks and divide by
# $P$, for each weight. `all_reduce` changes its tensor in place: give it `weight.grad` itself, which the optimizer
# reads.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Zero the gradients; compute the loss; backward; then a loop over `weights` with one all-reduce and one division each;
# then the step.
# </details>

# %% exercise="replicas-in-step" difficulty=3 minutes=14
def replicas_in_step(
    weights: list[Tensor], batches: list[Tensor], lr: float, world_size: int
) -> list[Tensor]:
    """Train this rank's replica of the MLP together with those of the other ranks.

    weights: (D, D) each, the same on every rank; left unchanged.
    batches: this rank's share of the batch of each step, (B / P, D).
    Each step goes down the gradient of the mean loss over the rows of ALL ranks:
    weight -= lr * gradient. Returns the weights after the last step.
    """
    weights = [weight.clone().requires_grad_() for weight in weights]
    optimizer = torch.optim.SGD(weights, lr=lr)
    for mine in batches:
        ### BEGIN SOLUTION
        optimizer.zero_grad()
        loss = mlp.loss_of(mlp.forward(weights, mine))
        loss.backward()
        for weight in weights:
            dist.all_reduce(weight.grad)  # in place: the sum over the ranks
            weight.grad /= world_size
        optimizer.step()
        ### END SOLUTION
    return [weight.detach() for weight in weights]

# %% check="replicas-in-step" judges="values" points=4
check(replicas_in_step, judges="values")

# %% [markdown]
# The two replicas of the opening once more, now with plain gradient descent, and one process that has the whole batch:

# %% tags=["notebook-only"]
def train_together(rank, world_size, steps):
    batches = [
        mlp.make_batch(16, 16, seed=step).chunk(world_size)[rank]
        for step in range(steps)
    ]
    weights = replicas_in_step(
        mlp.make_weights(4, 16), batches, 1.0, world_size=world_size
    )
    return torch.cat([weight.flatten() for weight in weights])

one, other = spawn(train_together, 2, steps=100).results
[serial] = spawn(train_together, 1, steps=100).results
print(f"the replicas are {percent_apart(one, other):.0f} % apart,", end=" ")
print("and agree with one process:", torch.allclose(one, serial, atol=1e-5))

# %% [markdown]
# That is all of **data parallelism**: one all-reduce and one division for each weight. Lesson 05 makes it fast.

# %% [markdown]
# ## Rendezvous by hand
#
# So far `spawn` has done something for you before your function began: it let the processes find each other. Each
# process opens a socket and has an address, but it doesn't know the others' addresses. So they need one place that all
# of them know beforehand: a **store**, where each writes its own address and reads the others'. This meeting is called
# the **rendezvous**.
#
# ```python
# store = dist.FileStore(path, world_size)      # the place is a file: all ranks name the same path
# store = dist.TCPStore(host, port, world_size, is_master=rank == 0)   # or a small server, in rank 0
#
# # join: returns when ALL are there; then dist.all_reduce and the rest work
# dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
# ...
# dist.destroy_process_group()                  # leave the group, close all connections
# ```
#
# With Gloo, `init_process_group` waits until the last rank has arrived. (NCCL connects the ranks later, usually in
# their first collective.) Every rank must come with a `rank` of its own and the same `world_size`.
#
# **Predict**: with Gloo, every rank connects to every other rank. How many connections do 4 ranks need? And 1,024?

# %%
predict("connections among 4 ranks", ...)
predict("connections among 1,024 ranks", ...)

# %%
figures.rendezvous(world_size=4)

# %%
connections = {ranks: ranks * (ranks - 1) // 2 for ranks in (4, 1024)}

# %%
reveal("connections among 4 ranks", connections[4], why="One for each pair: the lines on the right of the picture.")
reveal("connections among 1,024 ranks", connections[1024], why="$P (P - 1) / 2$: one for each pair.")

# %% [markdown]
# In the exercise, four processes meet several times, each time in different company: first in pairs, say, and later
# all together. For each meeting a process is told the path of a file, its rank **in that meeting**, and how many come.
# Two pairs that meet at the same time use two paths. The files don't exist yet.
#
# To gather the numbers, use `dist.all_gather(everyone, mine)`. Here `everyone` is a list of as many tensors as there
# are ranks, all shaped like `mine`; the call fills them with the `mine` of each rank, in the order of the ranks.
#
# <details><summary>Hint</summary>
#
# Two lines before the gathering: make the store, join the group. One line after it: leave the group. All three are in
# the box above, and `path`, `rank` and `world_size` are all that they need.
# </details>

# %% exercise="rendezvous-by-hand" difficulty=2 minutes=12
def rendezvous_by_hand(
    number: int, meetings: list[tuple[str, int, int]]
) -> tuple[list, bool]:
    """Go to each meeting, gather the numbers of all who come, and leave again.

    meetings: (path, rank, world size) of each: where it is, this process's rank in it,
        and how many come. Meet at a file store at that path, with backend "gloo".
    Returns (gathered, whether there still is a process group). `gathered` has one list
    for each meeting: the numbers, not tensors, in the order of the ranks there. At the
    end, no process group may be left.
    """
    dist.destroy_process_group()  # spawn has joined the ranks; now they are strangers
    gathered = []
    for path, rank, world_size in meetings:
        ### BEGIN SOLUTION
        store = dist.FileStore(path, world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        everyone = [torch.empty(1) for _ in range(world_size)]
        dist.all_gather(everyone, torch.tensor([float(number)]))
        gathered.append([int(one) for one in everyone])
        dist.destroy_process_group()
        ### END SOLUTION
    return gathered, dist.is_initialized()

# %% check="rendezvous-by-hand" judges="values" points=4
check(rendezvous_by_hand, judges="values")

# %% [markdown]
# A file works where all ranks see the same disk. Across machines you use the other store: rank 0 runs a small server,
# and all ranks need to know its host and port. Here rank 0 lets the system choose a free port and tells the others.

# %% tags=["notebook-only"]
def meet_over_tcp(rank, world_size):
    port = torch.zeros(1, dtype=torch.int64)
    if rank == 0:  # port 0: let the system choose a free one
        store = dist.TCPStore(
            "127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False
        )
        port[0] = store.port
    dist.all_reduce(port)  # the others hold 0; the group of spawn is still there
    if rank > 0:
        store = dist.TCPStore("127.0.0.1", port.item(), world_size)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    everyone = [None] * world_size
    dist.all_gather_object(everyone, f"rank {rank}")
    dist.destroy_process_group()
    return everyone

spawn(meet_over_tcp, 3).results[0]

# %% [markdown]
# ### Launchers in real life
# Something has to start the processes and tell each one who it is, through **environment variables**.
# `dist.init_process_group()` reads those of torchrun if you give it no store. SLURM uses different names, which a
# program has to translate.
#
# | started by | starts | the rank is in | the meeting place is in |
# |---|---|---|---|
# | `torchrun` | the processes of the machine you call it on | `RANK`, `LOCAL_RANK` | `MASTER_ADDR`, `MASTER_PORT` |
# | SLURM's `srun` | all of them, on machines that it chooses | `SLURM_PROCID`, `SLURM_LOCALID` | nowhere: name a host |
# | `spawn`, here | all of them, on this machine | `RANK`, `LOCAL_RANK` | a file |
#
# ```
# # on machine 0, and with --node-rank 1 on machine 1:
# torchrun --nnodes 2 --node-rank 0 --nproc-per-node 8 \
#     --master-addr 10.0.0.1 --master-port 29500 train.py
# # once, from anywhere in the cluster:
# srun --nodes 2 --ntasks-per-node 8 python train.py
# ```
#
# With 2 machines of 8 GPUs, rank 11 has `LOCAL_RANK` 3 on the second machine, since 11 = 1 · 8 + 3, and takes GPU 3
# there. The programs of this course run under all three; `README.md` says how.

# %% [markdown]
# ## Barriers and ordered side effects
#
# Ranks run at the same time, and you can't know which is faster. If all of them write to one file, the lines come in
# any order. To put them in order you need a **barrier**: on every rank, `dist.barrier()` returns only when **every**
# rank has called it.
#
# So whatever any rank does **before** the barrier comes before whatever any rank does **after** it. A barrier promises
# nothing else about order.

# %% tags=["nbval-ignore-output", "notebook-only"]
def no_order(rank, world_size, path):
    file = SharedFile(path)
    file.append(f"rank {rank}")
    dist.barrier()
    return file.lines()

spawn(no_order, 4, tempfile.mkdtemp() + "/lines").results[0]

# %% [markdown]
# `SharedFile(path)` has two methods: `append(line)` writes a line in one piece, and `lines()` reads all lines written
# so far. Run that cell a few more times: the order changes. (If it happens to stay the same, that is worse: a bug that
# hides.)
#
# Now let the ranks write in a **given order**, and let all of them read once everything is written. Don't sleep and
# hope. **Predict** for 4 ranks: how many barriers does each rank need, at least?

# %%
predict("barriers on each rank", ...)

# %% [markdown]
# ### Taking turns
#
# <details><summary>Hint</summary>
#
# All ranks go through all turns together. In each turn one of them writes, and **all** of them call the barrier: it
# must not stand inside the `if`.
# </details>

# %% exercise="take-turns" difficulty=2 minutes=8
def take_turns(path: str, order: list[int], rank: int, world_size: int) -> list[str]:
    """Append "rank 0", "rank 1", ... to one file, one line by each rank, in the given
    order; then read the file.

    path: of the file, the same on every rank; not there yet.
    order: all ranks, in the order in which they write; the same list on every rank.
    Returns all lines, on every rank. Of dist only dist.barrier() may be called.
    """
    file = SharedFile(path)
    ### BEGIN SOLUTION
    for turn in range(world_size):
        if order[turn] == rank:
            file.append(f"rank {rank}")
        dist.barrier()  # the next turn begins when this one is over
    ### END SOLUTION
    return file.lines()

# %% check="take-turns" judges="values" points=2
check(take_turns, judges="values")

# %% check="take-turns" judges="traffic" points=2
check(take_turns, judges="traffic")

# %% [markdown]
# The second check doesn't rely on luck: it looks in the record of the run for a barrier between each turn and the next.
# You can look at the record too. Each rank has a lane: above, what it does; below, what it waits for. (A **bubble** is
# time in which a rank has nothing to do. Appending a line takes little time: often you see only a thin green line.)

# %% tags=["nbval-ignore-output", "notebook-only"]
def backwards(rank, world_size, path):
    return take_turns(path, [3, 2, 1, 0], rank, world_size)

in_turns = spawn(backwards, 4, tempfile.mkdtemp() + "/lines")
in_turns.timeline()

# %%
reveal(
    "barriers on each rank",
    4,
    why="One between each turn and the next makes three, and one more keeps ranks from reading before the last line is "
    "written.",
)

# %% [markdown]
# Real programs need a barrier when rank 0 downloads the data, for example: the others must not read it before it has
# arrived.

# %% [markdown]
# # Part 2 · Failures and their reports
# A distributed program can compute the wrong thing, as the opening one did. It can also stop, in two ways: loudly, when
# a rank raises an error, and silently, when ranks wait for each other forever. You will meet both often. Here is one of
# each, and reading the report is part of the exercise.

# %% [markdown]
# ## A failing rank
#
# Each rank has a list of numbers, and together they want the average of **all** numbers. Run the cell, and read the
# report from the top.

# %% tags=["raises-exception"]
def average_of_all(rank, world_size, lists):
    mine = lists[rank]
    average = torch.tensor([sum(mine) / len(mine)])
    dist.all_reduce(average)
    return average.item() / world_size

spawn(average_of_all, 4, [[10, 20], [30], [], [40, 50, 60]])

# %% [markdown]
# The first line says which rank raised what, the lines below it say where, and the last line says what the others were
# doing. They are innocent: they waited for a rank that would never come.
#
# **Without such a report** you would get one traceback from each rank, and most of them would come from innocent ranks:
# "Connection closed by peer". Under torchrun, look for the **earliest** error; its summary calls it the root cause.
#
# Fix the program. The obvious fix, "an empty list has average 0", raises no error. **Predict** what it returns, and
# what it should return:

# %%
predict("what the obvious fix returns", ...)
predict("the average of all numbers", ...)

# %%
averages, numbers = [15, 30, 0, 50], [10, 20, 30, 40, 50, 60]

# %%
reveal(
    "what the obvious fix returns",
    sum(averages) / len(averages),
    why="The average of the ranks' averages: 15, 30, 0 and 50. There, `[30]` counts as much as `[10, 20]`, and the "
    "empty list counts as a 0.",
)
reveal("the average of all numbers", sum(numbers) / len(numbers), why="210 divided by 6.")

# %% [markdown]
# ### The average of all numbers
# What must be summed over the ranks instead?
#
# <details><summary>Hint</summary>
#
# Sum two things over the ranks, and divide once, at the end. A rank with an empty list adds 0 to both, and it must make
# every call that the others make. (`torch.tensor` makes integers from whole numbers, and `sum([])` is the whole number
# 0, so say `dtype=torch.float64`.)
# </details>

# %% exercise="one-failing-rank" difficulty=2 minutes=8
def one_failing_rank(
    mine: list[float], rank: int, world_size: int
) -> tuple[float, dict]:
    """Return the average of all numbers of all ranks, and what the report above said.

    mine: this rank's numbers, whole or not. Their count differs from rank to rank and
        may be 0, but not on all ranks.
    Returns (average, reading). The average is a float, the same on every rank. The
    reading has three entries: "raised", the rank that raised; "error", the name of its
    error, a string; "waited", the list of the ranks that were waiting for it.
    """
    reading = {"raised": None, "error": None, "waited": None}
    ### BEGIN SOLUTION
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}
    sum_and_count = torch.tensor([sum(mine), len(mine)], dtype=torch.float64)
    dist.all_reduce(sum_and_count)
    average = (sum_and_count[0] / sum_and_count[1]).item()
    ### END SOLUTION
    return average, reading

# %% check="one-failing-rank" judges="values" points=3
check(one_failing_rank, judges="values")

# %% check="one-failing-rank" judges="reading" points=1
check(one_failing_rank, judges="reading")

# %% [markdown]
# ## A deadlock
#
# Now the silent kind. Three ranks train, and at each step they average their losses. When the loss is small enough,
# they are meant to leave the loop and meet at a barrier, to save the model together. **Predict** from the losses of
# each rank, step by step, and from the program below, how it ends and how many steps all ranks complete:

# %%
losses = [[6.0, 4.0, 2.0, 0.9], [5.0, 0.5, 1.0, 0.3], [7.0, 3.0, 0.6, 0.3]]
predict("how it ends", ..., choices=["all return", "an error", "a deadlock"])
predict("steps that all ranks complete", ...)

# %% tags=["raises-exception"]
def train(rank, world_size, losses):
    averages = []
    for loss in losses[rank]:
        average = torch.tensor([loss])
        dist.all_reduce(average)
        averages.append(average.item() / world_size)
        if loss < 1:
            break
    dist.barrier()
    return averages

spawn(train, 3, losses)

# %%
steps_of_each = [[loss < 1 for loss in mine].index(True) + 1 for mine in losses]

# %%
reveal("how it ends", "a deadlock", why="One rank waits at the barrier, the others in `all_reduce`.")
reveal("steps that all ranks complete", min(steps_of_each), why="Then the first rank to see a loss below 1 leaves.")

# %% [markdown]
# `spawn` saw within moments that no rank could move any more. On a cluster you would see nothing until PyTorch's
# timeout, by default 10 minutes with NCCL and 30 with Gloo, and pay for all those GPUs meanwhile.
#
# Read the report: who waits where? Which rank is the odd one out, and what made it leave? The last sentence names the
# rule that was broken: **every rank calls the same collectives in the same order**.
#
# ### A decision that all ranks share
# The fix: if all ranks must decide the same, they have to decide from the same number.
#
# <details><summary>Hint</summary>
#
# For "steps": rank 1 left the loop after the step in which its own loss was below 1. All ranks completed that step and
# the one before it.
# </details>

# %% exercise="one-deadlock" difficulty=2 minutes=8
def one_deadlock(
    losses: list[float], rank: int, world_size: int
) -> tuple[list[float], dict]:
    """Average the ranks' losses step by step; stop after the first step whose AVERAGE
    is below 1; then meet at a barrier.

    losses: this rank's own, one per step; equally many on every rank, at least one. If
        no average is below 1, all steps run.
    Returns (the averages of all steps that ran, reading). The reading of the report
    above has three entries: "in all_reduce", the list of the ranks that waited there;
    "in barrier", the same; "steps", how many all_reduce calls all ranks had completed.
    """
    averages = []
    ### BEGIN SOLUTION
    for loss in losses:
        average = torch.tensor([loss], dtype=torch.float64)
        dist.all_reduce(average)
        averages.append(average.item() / world_size)
        if averages[-1] < 1:  # the same number on every rank, so the same decision
            break
    dist.barrier()
    ### END SOLUTION
    reading = {"in all_reduce": [], "in barrier": [], "steps": None}
    ### BEGIN SOLUTION
    reading = {"in all_reduce": [0, 2], "in barrier": [1], "steps": 2}
    ### END SOLUTION
    return averages, reading

# %% check="one-deadlock" judges="values" points=3
check(one_deadlock, judges="values")

# %% check="one-deadlock" judges="reading" points=1
check(one_deadlock, judges="reading")

# %% [markdown]
# # Part 3 · Why distribute at all
# Why go to all this trouble? There are two walls, and every large model hits both of them.
#
# **Memory.** Training with the Adam optimizer in mixed precision keeps for **each** parameter:
#
# | what | bytes |
# |---|---|
# | the parameter, in bfloat16 | 2 |
# | its gradient, in bfloat16 | 2 |
# | a precise copy of the parameter, in float32 | 4 |
# | Adam's average of the gradient, in float32 | 4 |
# | Adam's average of its square, in float32 | 4 |
#
# That is 16 bytes per parameter. The values that layers keep for the backward pass come on top.
#
# **Time.** Training takes about 6 floating point operations (**FLOP**) for each parameter and each **token** (word
# piece) that the model reads: 2 in the forward pass, 4 in the backward pass. In training, a GPU reaches perhaps 40 % of
# its peak.
#
# **Predict**: does the state of a model of 7 billion parameters fit on a GPU of 80 GB? (In this course, a GB is always
# $10^9$ bytes.) And how many years would a single H100, with a peak of 989 TFLOP/s in bfloat16, take to train 70
# billion parameters on 15 trillion tokens?

# %%
predict("7 billion parameters fit", ..., choices=["yes", "no"])
predict("years on one GPU", ...)

# %%
state, memory = 7e9 * 16, 80e9  # bytes
years = 6 * 70e9 * 15e12 / (0.40 * 989e12) / (365 * 24 * 3600)

# %%
reveal("7 billion parameters fit", "yes" if state <= memory else "no", why=f"The state is {state / 1e9:.0f} GB.")
reveal("years on one GPU", years, why="6 · 70e9 · 15e12 FLOP, at 0.4 · 989e12 FLOP per second.")

# %% [markdown]
# ## The smallest cluster
#
# Which wall comes first? The state, cut into equal pieces, must fit on the GPUs. And the work, shared perfectly, must
# be done in the days that you have.
#
# <details><summary>Hint</summary>
#
# Both are a quotient, rounded up (`math.ceil`). For the second one: FLOP in all, divided by the FLOP that **one** GPU
# does in that many days.
# </details>

# %% exercise="smallest-cluster" difficulty=2 minutes=10
def smallest_cluster(
    parameters: float, tokens: float, days: float, gpu_memory: float, gpu_flops: float
) -> tuple[int, int]:
    """Return (the least number of GPUs that can hold a model's training state, the
    least number that can train it in `days` days, whatever their memory): two whole
    numbers, both at least 1.

    gpu_memory: bytes of one GPU; a state that fits exactly needs no further GPU.
    gpu_flops: FLOP per second that one GPU reaches (not its peak).
    Count 16 bytes per parameter, and 6 FLOP per parameter and token.
    """
    ### BEGIN SOLUTION
    by_memory = math.ceil(16 * parameters / gpu_memory)
    by_time = math.ceil(6 * parameters * tokens / (gpu_flops * days * 24 * 3600))
    return by_memory, by_time
    ### END SOLUTION

# %% check="smallest-cluster" judges="values" points=3
check(smallest_cluster, judges="values")

# %% [markdown]
# What would some published models need, to be trained within 60 days on GPUs of 80 GB that reach 40 % of 989 TFLOP/s?
# Their authors report these numbers of parameters and tokens:

# %%
models = {
    "LLaMA 7B": (7e9, 1e12),
    "LLaMA 65B": (65e9, 1.4e12),
    "GPT-3": (175e9, 0.3e12),
    "Llama 3.1": (405e9, 15.6e12),
}
print("model         GPUs for its state   GPUs for 60 days")
for name, (parameters, tokens) in models.items():
    by_memory, by_time = smallest_cluster(parameters, tokens, 60, 80e9, 0.40 * 989e12)
    print(f"{name:<12} {by_memory:>19,} {by_time:>18,}")

# %% [markdown]
# Even the state of the smallest doesn't fit on one GPU. But it is the second column that fills data centres: for time,
# each of these models needs several times as many GPUs as for memory, and the last one more than 200 times. Both
# columns assume that the work is shared **perfectly**. Making that nearly true, by sending as little as possible at the
# right moment, is what the rest of this course is about.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - A **rank** is a process. All ranks run one program, differ only in their number, and share nothing that isn't sent.
# - **Replicas** that don't average their gradients drift apart, and nothing raises an error.
# - Ranks meet at a **store**. With Gloo, `init_process_group` returns when all have come; `destroy_process_group`
#   leaves. `torchrun` and SLURM start the processes and tell each one who it is.
# - The only order between ranks is the one that you make, by a **barrier** or a message.
# - One failing rank stops all of them, and the others are innocent. A rank that makes a shared decision by itself
#   causes a deadlock.
# - The state of training takes 16 bytes per parameter, and the work 6 FLOP per parameter and token. Large models need
#   many GPUs for their memory, and many more to finish in time.
#
# **The library.** A real program has `torch.distributed.init_process_group()` in its first lines and is started by
# `torchrun`; that is all of the rendezvous. `DistributedDataParallel` averages the gradients.
#
# **The papers.** Touvron and others: *LLaMA: Open and Efficient Foundation Language Models* (2023). Brown and others:
# *Language Models are Few-Shot Learners* (2020), which is GPT-3. Grattafiori and others: *The Llama 3 Herd of Models*
# (2024), section 3.3.4, for what 16,384 GPUs do when one of them fails.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## A barrier of your own
#
# How does a barrier work? Build one from messages. `dist.send(tensor, dst=3)` sends a tensor to rank 3, and
# `dist.recv(tensor, src=0)` fills `tensor` with what rank 0 has sent; each waits for the other side. What is in the
# tensor doesn't matter here: a message says "I am here", or "all are here".
#
# No rank may return before it knows that all others have called the function: from a message of theirs, or from a rank
# that already knew. The score is the time from the moment when all call the function until all have returned, on a
# virtual cluster of 6 ranks, where a message takes 10 µs and a rank sends one at a time. But the function must work for
# any number of ranks.
#
# **Par**: every rank tells rank 0, and rank 0 tells every rank. **The limit**: every 10 µs, the number of ranks that
# know about a given rank can at most double.

# %% exercise="barrier-by-hand" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def barrier_by_hand(rank: int, world_size: int) -> None:
    """Return when all ranks have called this. Of dist, use send, recv, isend and irecv
    only.
    """
    word = torch.zeros(1)
    ### BEGIN SOLUTION
    if rank == 0:
        for other in range(1, world_size):
            dist.recv(word, src=other)
        for other in range(1, world_size):
            dist.send(word, dst=other)
    else:
        dist.send(word, dst=0)
        dist.recv(word, src=0)
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint 1: what to look at</summary>
#
# Rank 0 is busy all the time, and the others wait for it. Which of them could tell others meanwhile?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Let the ranks that know tell others, which then tell others in turn.
# </details>
# <details><summary>Hint 3: beyond that</summary>
#
# First all to one, then one to all: does one have to come after the other? After an exchange with a neighbour, you know
# about two ranks. With which rank do you exchange next, to know about four? (`handle = dist.isend(...)` sends without
# waiting; `handle.wait()` waits.)
# </details>

# %% check="barrier-by-hand" judges="score" points=3
check(barrier_by_hand, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
