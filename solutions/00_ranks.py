# %% [markdown] question="How do processes find each other, and why is training about moving data?"
# # Processes and ranks
# *you need: PyTorch tensors. You do not need: a GPU, or any experience with a second
# process.*
#
# This is the first lesson. At its end you have started processes that find each other, made them wait for each other,
# broken them in two ways and read what the machine says about it. And you can say, with numbers of your own machine,
# why nearly everything in this course is about **moving data**.
#
# Run each cell with Shift+Enter, from top to bottom.

# %%
import math
import os
import tempfile
import time
from functools import partial
from itertools import permutations
from statistics import median

import torch
import torch.distributed as dist

from utils import figures, get_device, simulate, spawn
from utils.benchmark.machine import memory_hierarchy
from utils.checks import checks_for
from utils.cluster import Gpu, find_cluster, quantity
from utils.kit import gpu_topology
from utils.kit.shared_file import SharedFile
from utils.kit.slow_memory import SlowMemory, unwritten

check = checks_for("00_ranks")
spawn_anywhere = spawn
spawn = partial(spawn, backend="gloo")  # this lesson computes on the CPU, with or without GPUs

# %% [markdown]
# ## Why: five hundred years
# Training costs about 6 floating point operations (**FLOP**) for each parameter and each **token** (word piece) that
# the model reads: 2 on the way forward, 4 on the way back. Take 70 billion parameters and 15 trillion tokens, and one
# of the fastest GPUs. It may reach 40 % of its peak:

# %%
work = 6 * 70e9 * 15e12  # FLOP
one_gpu = 0.40 * 989e12  # FLOP/s: an H100 in bfloat16
years = work / one_gpu / (365 * 24 * 3600)
print(f"one GPU: {years:.0f} years     4,096 GPUs, if they shared the work perfectly: {years * 365 / 4096:.0f} days")

# %% [markdown]
# The word "perfectly" is what this course is about. First we need more than one process.

# %% [markdown]
# # Part 1 · One program, many processes
# Each GPU gets a process of its own, and all processes run **the same program**. Three words are enough to begin:
#
# - **rank**: the number of a process, from 0. People also call the process itself "rank 2".
# - **world size**: how many processes there are. We write $P$ for it.
# - **rank program**: the function that all of them run. It gets its `rank` and the `world_size`.
#
# `spawn` starts the processes, runs the function in each, and brings back what each returned:

# %%
def hello(rank, world_size):
    print(f"Hello, I am {rank} of {world_size}")
    return 10 * rank

run = spawn(hello, 4)
run.results

# %% [markdown]
# You have just run four processes. The program is the same for all; what makes them do different things is one number,
# the rank. **Predict** what the next cell returns before you run it.

# %%
def my_part(rank, world_size):
    numbers = list(range(12))
    return numbers[rank::world_size]

spawn(my_part, 4).results

# %% [markdown]
# Every rank built the same list and took every fourth number, from its own rank on. Nobody handed out work: each rank
# knows its part from `rank` and `world_size` alone. That is how the data of a training run is shared out, too.

# %% [markdown]
# ## Hello ranks
#
# Code deep inside a library gets no `rank` argument. It asks PyTorch's `torch.distributed`, here `dist`, which knows:
# `dist.get_rank()` and `dist.get_world_size()`. And a rank needs to know **where** to put its tensors: `get_device()`
# from `utils` says `cpu` here, and `cuda:2` on rank 2 of a machine with GPUs.
#
# In an exercise your lines take the place of `raise NotImplementedError()`. Run the cell, then the check below it: it
# starts ranks that call your function, and says what it saw. Change, and run both again, as often as you like.

# %% exercise="hello-ranks" difficulty=1 minutes=5
def hello_ranks() -> dict:
    """Say who this process is. The function gets no arguments: ask the library.

    Returns {"process": its number in the operating system, "rank": ..., "world_size": ..., "device": its device's
    name, a string such as "cpu" or "cuda:2"}.
    """
    me = {"process": os.getpid()}
    ### BEGIN SOLUTION
    me["rank"] = dist.get_rank()
    me["world_size"] = dist.get_world_size()
    me["device"] = str(get_device())
    ### END SOLUTION
    return me

# %% [markdown]
# <details><summary>Hint</summary>
#
# Three more entries: two numbers from `dist`, and `str(...)` of the device.
# </details>

# %% check="hello-ranks" judges="values" points=2
check(hello_ranks, judges="values")

# %% [markdown]
# The process numbers differ from rank to rank, and from that of this notebook: these are separate programs to the
# operating system. They share no variables. What one knows and another needs must be **sent**.
#
# ### Backends and devices
# The sending is done by a library below PyTorch, the **backend**:
#
# - **Gloo** moves tensors between CPUs, over ordinary network sockets. It runs on any laptop.
# - **NCCL** moves tensors between NVIDIA GPUs. It looks at the wiring of the machine and the network, chooses the paths
#   and the algorithm, and runs a small program on each GPU (a **kernel**) that does the copying and adding.
#
# Your program calls the same `dist` functions for both. `spawn` takes NCCL where each rank can have a GPU of its own,
# else Gloo; this lesson asks for Gloo everywhere. What would it choose on this machine, for two ranks?

# %% tags=["nbval-ignore-output", "notebook-only"]
def where_am_i(rank, world_size):
    return f"{dist.get_backend()} on {get_device()}"

print("GPUs here:", torch.cuda.device_count())
spawn_anywhere(where_am_i, 2).results

# %% [markdown]
# ## Rendezvous by hand
#
# Four processes have been started. How do they find each other? Each opens a socket and has an address, but nobody
# knows the addresses of the others. So they need one place that all know beforehand: a **store**, in which each writes
# its address and reads those of the others. This meeting is called the **rendezvous**.
#
# ```python
# store = dist.FileStore(path, world_size)                 # the place is a file, the same path on every rank; or
# store = dist.TCPStore(host, port, world_size, is_master=rank == 0)     # a small server in rank 0
#
# dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)      # returns when ALL have come
# ...                                                                                 # now dist.all_gather etc. work
# dist.destroy_process_group()                                                        # say good-bye, free everything
# ```
#
# `init_process_group` waits: the last one to come lets all of them go on. And every rank must come with a `rank` of its
# own and the same `world_size`. Until now `spawn` did all this before your function began. Now you do it.
#
# **Predict**: with Gloo every rank connects to every other one. How many connections do 4 ranks need? And 1,024?

# %%
figures.rendezvous(world_size=4)

# %%
{ranks: ranks * (ranks - 1) // 2 for ranks in (4, 1024)}

# %% [markdown]
# In the exercise the ranks meet, tell each other a number and part, several times. For each meeting there is a fresh
# path, where no file is yet. `dist.all_gather(everyone, mine)` fills the list `everyone` with the tensor `mine` of each
# rank, in the order of the ranks.

# %% exercise="rendezvous-by-hand" difficulty=2 minutes=10
def rendezvous_by_hand(number: int, paths: list[str], rank: int, world_size: int) -> tuple[list, bool]:
    """Meet all other ranks at each path, gather everybody's number, and part again.

    paths: the same on every rank; a file store for each, no file is there yet. Backend "gloo".
    Returns (the numbers gathered at each meeting, whether there still is a group afterwards).
    """
    dist.destroy_process_group()  # spawn had joined the ranks: from here on they are strangers
    gathered = []
    for path in paths:
        ### BEGIN SOLUTION
        store = dist.FileStore(path, world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        ### END SOLUTION
        everyone = [torch.empty(1) for _ in range(world_size)]
        dist.all_gather(everyone, torch.tensor([float(number)]))
        gathered.append([int(one) for one in everyone])
        ### BEGIN SOLUTION
        dist.destroy_process_group()
        ### END SOLUTION
    return gathered, dist.is_initialized()

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two lines before the gathering, make the store and join; one line after it. All three are in the box above.
# </details>

# %% check="rendezvous-by-hand" judges="values" points=4
check(rendezvous_by_hand, judges="values")

# %% [markdown]
# A file works where all ranks see the same disk. Across machines one uses the other store: rank 0 runs a small server,
# and everybody needs to know its host and port. Here rank 0 lets the system choose a free port, and tells it.

# %% tags=["notebook-only"]
def meet_over_tcp(rank, world_size):
    port = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)  # 0: any free port
        port[0] = store.port
    dist.broadcast(port, src=0)  # all get rank 0's; through the group of spawn, since they are not strangers yet
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
# ### Who starts the processes in real life
# Somebody has to start them and tell each who it is, by **environment variables**. Those of torchrun are the ones that
# `dist.init_process_group()` reads when you give it no store; SLURM's have other names, so a program translates them.
#
# | started by | starts | the rank is in | the meeting place is in |
# |---|---|---|---|
# | `torchrun` | the processes of the machine you call it on | `RANK`, `LOCAL_RANK` | `MASTER_ADDR`, `MASTER_PORT` |
# | SLURM's `srun` | all of them, on machines that it chooses | `SLURM_PROCID`, `SLURM_LOCALID` | nowhere: name a host |
# | `spawn`, here | all of them, on this machine | `RANK`, `LOCAL_RANK` | a file |
#
# ```
# # on machine 0, and with --node-rank 1 on machine 1:
# torchrun --nnodes 2 --node-rank 0 --nproc-per-node 8 --master-addr 10.0.0.1 --master-port 29500 train.py
# # once, from anywhere in the cluster:
# srun --nodes 2 --ntasks-per-node 8 python train.py
# ```
#
# With 2 machines of 8, rank 11 is `LOCAL_RANK` 3 of the second machine: `11 = 1 * 8 + 3`. It takes GPU 3 there. The
# programs of this course run under all three; `README.md` says how.

# %% [markdown]
# ## Take turns
#
# Ranks run at the same time, and nobody knows who is faster. If all write to one file, the lines come in any order. To
# order them you need a **barrier**: `dist.barrier()` returns on any rank only when **every** rank has called it.
#
# So what a rank did **before** its first barrier comes before whatever another rank does **after** its first barrier.
# It is the only order you get.

# %% tags=["nbval-ignore-output", "notebook-only"]
def no_order(rank, world_size, path):
    file = SharedFile(path)
    file.append(f"rank {rank}")
    dist.barrier()
    return file.lines()

spawn(no_order, 4, tempfile.mkdtemp() + "/lines").results[0]

# %% [markdown]
# `SharedFile(path)` has two methods: `append(line)` writes one line at once, `lines()` reads all that are there. Run
# that cell again a few times: the order changes. (With luck it does not, and that is the worst kind of bug.)
#
# Now let the ranks write in a **given order**, and let all read when everything is written. Do not sleep and hope.

# %% exercise="take-turns" difficulty=2 minutes=8
def take_turns(path: str, order: list[int], rank: int, world_size: int) -> list[str]:
    """Append "rank 0", "rank 1", ... to one file, one line by each rank, in the given order; then read the file.

    path: of the file, the same on every rank; not there yet.
    order: all ranks, in the order in which they write, the same list on every rank.
    Returns all lines, on every rank. Of dist only dist.barrier() may be called.
    """
    file = SharedFile(path)
    for turn in range(world_size):
        ### BEGIN SOLUTION
        if order[turn] == rank:
            file.append(f"rank {rank}")
        dist.barrier()  # the next turn begins when this one is over
        ### END SOLUTION
    return file.lines()

# %% [markdown]
# <details><summary>Hint</summary>
#
# All ranks go through all turns together. In each turn one of them writes, and **all** of them call the barrier: it
# must not stand inside the `if`.
# </details>

# %% check="take-turns" judges="values" points=2
check(take_turns, judges="values")

# %% check="take-turns" judges="traffic" points=2
check(take_turns, judges="traffic")

# %% [markdown]
# The second check does not trust luck: it looks at the record of the run and asks whether a barrier lies between each
# turn and the next. You can look, too: a lane for each rank, what it does above, what it waits for below. (A
# **bubble** is time in which a rank has nothing to do.)

# %% tags=["nbval-ignore-output", "notebook-only"]
def backwards(rank, world_size, path):
    return take_turns(path, [3, 2, 1, 0], rank, world_size)

spawn(backwards, 4, tempfile.mkdtemp() + "/lines").timeline()

# %% [markdown]
# Real programs do this when rank 0 downloads the data and the others must not read before it is there.

# %% [markdown]
# # Part 2 · Break it, and read the report
# Distributed programs fail in two ways: loudly, when a rank raises an error, and silently, when ranks wait for each
# other for ever. You will meet both often. Here are one of each, and reading the report is the exercise.

# %% [markdown]
# ## One failing rank
#
# Each rank has a list of numbers, and they want the average of **all** numbers. `dist.all_reduce(x)` replaces `x` on
# every rank by the sum of all ranks' `x`. Run the cell, and read the report from the top.

# %% tags=["raises-exception"]
def average_of_all(rank, world_size, lists):
    mine = lists[rank]
    average = torch.tensor([sum(mine) / len(mine)])
    dist.all_reduce(average)
    return average.item() / world_size

spawn(average_of_all, 4, [[10, 20], [30], [], [40, 50, 60]])

# %% [markdown]
# The first line says which rank raised what; below it the line of your program; at the end what the others were doing.
# They are innocent: they waited for a rank that will never come.
#
# **Without such a report** you would get one traceback from each rank, most of them of innocent ones: "Connection
# closed by peer". Under torchrun look for the **earliest** error, its summary calls it the root cause.
#
# Mend the program. The obvious mending, "an empty list has average 0", raises nothing and gives a wrong number. The
# average of the ranks' averages, and the average of all numbers:

# %%
(15 + 30 + 0 + 50) / 4, (10 + 20 + 30 + 40 + 50 + 60) / 6

# %% [markdown]
# In the first, `[30]` counts as much as `[10, 20]`, and nothing counts as a number. What must be summed instead?

# %% exercise="one-failing-rank" difficulty=2 minutes=8
def one_failing_rank(mine: list[float], rank: int, world_size: int) -> tuple[float, dict]:
    """Return the average of all numbers of all ranks, the same on every rank; and what the report above said.

    mine: this rank's numbers, whole or not. Their count differs from rank to rank and may be 0, but not on all ranks.
    Returns (average, reading). The reading has three entries: "raised", the rank that raised; "error", the name of its
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

# %% [markdown]
# <details><summary>Hint</summary>
#
# Sum two things over the ranks, and divide once, at the end. A rank with an empty list has something to contribute to
# both: 0. It must make every call that the others make. (A tensor made of whole numbers alone is one of integers, and
# `sum([])` is the whole number 0: say `dtype=torch.float64`.)
# </details>

# %% check="one-failing-rank" judges="values" points=3
check(one_failing_rank, judges="values")

# %% check="one-failing-rank" judges="reading" points=1
check(one_failing_rank, judges="reading")

# %% [markdown]
# ## One deadlock
#
# Now the silent kind. Three ranks train. At each step they average their losses, and when the loss is small enough they
# leave the loop and meet at a barrier, to save the model together. **Predict** what happens.

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

spawn(train, 3, [[6.0, 4.0, 2.0, 0.9], [5.0, 0.5, 1.0, 0.3], [7.0, 3.0, 0.6, 0.3]])

# %% [markdown]
# `spawn` saw within moments that no rank can move any more. On a cluster you would see nothing at all until PyTorch's
# time-out, 10 minutes with NCCL and 30 with Gloo, times the price of all those GPUs.
#
# Read it: who waits where? Which rank is the odd one, and what made it leave? The last sentence names the rule that was
# broken: **every rank calls the same collectives in the same order**. (A **collective** is a call that all ranks make
# together, such as `all_reduce` and `barrier`; the next lesson is about them.)
#
# The mending: a decision that all ranks must share has to be made from something that all ranks share.

# %% exercise="one-deadlock" difficulty=2 minutes=8
def one_deadlock(losses: list[float], rank: int, world_size: int) -> tuple[list[float], dict]:
    """Average the ranks' losses step by step; stop after the first step whose AVERAGE is below 1; meet at a barrier.

    losses: this rank's own, one a step; as many on every rank, at least one. If no average is below 1, all steps run.
    Returns (the averages of all steps that ran, reading). The reading of the report above has three entries:
    "in all_reduce", the list of the ranks that waited there; "in barrier", the same; "steps", how many all_reduce
    calls had been completed by all ranks before.
    """
    averages = []
    for loss in losses:
        average = torch.tensor([loss], dtype=torch.float64)
        dist.all_reduce(average)
        averages.append(average.item() / world_size)
        ### BEGIN SOLUTION
        if averages[-1] < 1:  # the same number on every rank, so the same decision
            break
        ### END SOLUTION
    dist.barrier()
    reading = {"in all_reduce": [], "in barrier": [], "steps": None}
    ### BEGIN SOLUTION
    reading = {"in all_reduce": [0, 2], "in barrier": [1], "steps": 2}
    ### END SOLUTION
    return averages, reading

# %% [markdown]
# <details><summary>Hint</summary>
#
# For "steps": rank 1 left the loop after the step in which its own loss was below 1. That step was complete on all
# ranks, and the one before it.
# </details>

# %% check="one-deadlock" judges="values" points=3
check(one_deadlock, judges="values")

# %% check="one-deadlock" judges="reading" points=1
check(one_deadlock, judges="reading")

# %% [markdown]
# # Part 3 · Why distribute at all
# You can start ranks, join them and read their reports. Back to the first page: the years were one reason. There is a
# second wall, and a model hits it long before: **memory**.

# %% [markdown]
# ## Memory wall
#
# Training with the Adam optimizer in mixed precision keeps for **each** parameter:
#
# | what | bytes |
# |---|---|
# | the parameter, in bfloat16 | 2 |
# | its gradient, in bfloat16 | 2 |
# | a precise copy of the parameter, in float32 | 4 |
# | Adam's average of the gradient, in float32 | 4 |
# | Adam's average of its square, in float32 | 4 |
#
# That is 16 bytes, and the values that layers keep for the way back come on top. **Predict**: does a model of 7 billion
# parameters fit on a GPU of 80 GB? (GB are $10^9$ bytes everywhere in this course.)

# %% exercise="memory-wall" difficulty=1 minutes=6
def memory_wall(parameters: float, gpu_memory: float, bytes_per_parameter: float = 16) -> tuple[float, int]:
    """How much memory the state of a model takes in training, and how many GPUs that needs at least.

    gpu_memory: bytes of one GPU.
    Returns (bytes of the state, number of GPUs). A state that fits exactly needs no further GPU.
    """
    ### BEGIN SOLUTION
    state = parameters * bytes_per_parameter
    gpus = math.ceil(state / gpu_memory)
    ### END SOLUTION
    return state, gpus

# %% check="memory-wall" judges="values" points=2
check(memory_wall, judges="values")

# %%
for billions in (1, 7, 13, 65, 70, 175, 405, 1000):
    state, gpus = memory_wall(billions * 1e9, gpu_memory=80e9)
    print(f"{billions:>5,} billion parameters   {quantity(state, 'B'):>8}   {gpus:>3} GPUs of 80 GB")

# %% [markdown]
# Only the first fits. All others must be cut into pieces, and then the pieces have to talk to each other.
#
# And why such large models? Because of a **scaling law**: over many sizes, the loss of language models falls with the
# number $N$ of parameters as $N^{-0.076}$ (Kaplan et al., 2020). **Predict**: how many times larger must a model be so
# that its loss halves? In $2 = k^{0.076}$, find $k$.

# %%
f"{2 ** (1 / 0.076):.0f} times larger; for 10 % less loss: {(1 / 0.9) ** (1 / 0.076):.1f} times"

# %% [markdown]
# You may find "8,000 times" in print; it is 9,139. A steady exponent and a steep price: each step down costs a multiple
# of everything. That is where the thousands of GPUs come from.

# %% [markdown]
# # Part 4 · Computing is moving data
# A processor computes only with what lies right beside it. Everything else must come first: from a cache, from memory,
# from another GPU, from another machine. Each level is larger, farther and slower than the one before. Let us measure
# how much slower, on your machine: one core copies arrays from 4 kB to 64 MB. Small ones stay in a cache.

# %% tags=["nbval-ignore-output"]
nbytes, seconds = memory_hierarchy.time_copies()
figures.bandwidths(nbytes, seconds, memory_hierarchy.levels())

# %% [markdown]
# From right to left: memory, then faster and faster caches. At the far left it gets slow again, though nothing is
# nearer: there a copy is over so soon that what you see is the time that PyTorch takes to **begin** one, about a
# microsecond. A GPU has the same: the time to launch a kernel. Remember both ends of this curve; you will see it again
# for networks.

# %% [markdown]
# ## Bandwidth of levels
#
# Turn such measurements into one number for each level. **Bandwidth** is bytes moved per second. A copy of $n$ bytes
# reads $n$ and writes $n$: it **moves and touches** $2n$ bytes. It belongs to the first level that has room for all of
# these $2n$ bytes. Of several copies that belong to a level, take the **median**: one that was disturbed by something
# else then does no harm.
#
# **Predict** by hand, for levels `{"L1": 100, "memory": math.inf}` (bytes): copies of 20, 50 and 60 bytes take 4, 5 and
# 60 seconds. Which belong to L1, and what are the two bandwidths?

# %% exercise="bandwidth-of-levels" difficulty=2 minutes=10
def bandwidth_of_levels(nbytes: list[int], seconds: list[float], levels: dict[str, float]) -> dict[str, float]:
    """The bandwidth of each level of a memory hierarchy, in bytes/s.

    nbytes, seconds: copy i copied nbytes[i] bytes in seconds[i].
    levels: {name: bytes that fit in it}, the smallest first; the last has room for everything.
    Returns {name: median bandwidth of the copies that belong to it}, without levels to which no copy belongs.
    """
    rates = {name: [] for name in levels}
    for n, t in zip(nbytes, seconds):
        ### BEGIN SOLUTION
        level = next(name for name, size in levels.items() if 2 * n <= size)
        rates[level].append(2 * n / t)
        ### END SOLUTION
    return {name: median(found) for name, found in rates.items() if found}

# %% [markdown]
# <details><summary>Check your prediction</summary>
#
# 20 and 50 touch 40 and 100 bytes: both fit in L1. 60 touches 120: memory. L1: the rates are 10 and 20 bytes/s, their
# median 15. Memory: 120 / 60 = 2 bytes/s.
# </details>

# %% check="bandwidth-of-levels" judges="values" points=3
check(bandwidth_of_levels, judges="values")

# %% [markdown]
# Your machine, level by level, with your function. Then what lies beyond: **loopback** is the network inside one
# machine, by which two ranks talk here. With GPUs you also get their memory (**HBM**), the way from the CPU to them
# (**PCIe**) and the link between two of them. If L1 looks slow, it is the beginning of the copies that you see.

# %% tags=["nbval-ignore-output", "notebook-only"]
rates = bandwidth_of_levels(nbytes, seconds, memory_hierarchy.levels()) | memory_hierarchy.links()
for name, rate in rates.items():
    print(f"{name:>10}  {quantity(rate, 'B/s'):>12}   {rate / rates['loopback']:7.1f} times loopback")

# %% [markdown]
# And on machines made for training? Nobody has one at hand, so we use a **virtual cluster**: `simulate` runs a rank
# program with a clock that a model drives, from the numbers of datasheets. The times are the same in every run. Here is
# how long 1 GB takes to each level:

# %% tags=["notebook-only"]
def one_gigabyte(rank, world_size, receivers):
    x, seconds = torch.empty(1_000_000_000, dtype=torch.uint8), []
    for receiver in receivers:
        began = time.perf_counter()  # the virtual clock of this rank
        if rank == receiver == 0:
            x[:500_000_000].clone()  # reads half a GB from the GPU's own memory and writes it there again: 1 GB moved
        elif rank == 0:
            dist.send(x, dst=receiver)
        elif rank == receiver:
            dist.recv(x, src=0)
        seconds.append(time.perf_counter() - began)
    return seconds

seconds = simulate(one_gigabyte, 9, [0, 1, 8]).results[0]  # of cluster "dgx-h100": ranks 0 to 7 are in one machine
seconds += simulate(one_gigabyte, 9, [8], cluster="ethernet-cloud").results[0]
for name, took in zip(["own memory, HBM", "GPU 1, NVLink", "machine 1, InfiniBand", "machine 1, Ethernet"], seconds):
    print(f"{name:>22}  {quantity(took, 's'):>9}  {took / seconds[0]:6.1f} times")

# %% [markdown]
# These are the tiers that the whole course lives with:
#
# - **NVLink** joins GPUs inside a machine; **NVSwitch** chips between them join all 8 with each other at full speed.
#   The "900 GB/s" of its datasheet are both ways together: 450 each way.
# - **InfiniBand** joins machines: here one network card (**NIC**) of 400 Gbit/s, 50 GB/s, beside each GPU.
# - **Ethernet** joins machines that are cheaper, or farther apart.
#
# The slow tiers suffer most from **copying**. Without help a tensor goes from the GPU to the CPU's memory, is copied
# into the system's buffers, goes out through the card, and all of it backwards on the other side. With **RDMA** the
# card reads the GPU's memory by itself, and no CPU touches the data. If each copy waits for the one before:

# %%
pcie, wire, ram = 63e9, 50e9, 20e9  # bytes/s: PCIe 5 with 16 lanes, the card, and (an estimate) a core that copies
n = 16e9  # bytes: one gradient of 8 billion parameters
copied = n / pcie + n / ram + n / wire + n / ram + n / pcie
print(f"copied: {copied:.1f} s = {quantity(n / copied, 'B/s')}     RDMA: {n / wire:.2f} s = {quantity(wire, 'B/s')}")

# %% [markdown]
# ## Arithmetic intensity
#
# Moving takes time, computing takes time. Which of the two decides? Count both. The **arithmetic intensity** of an
# operation is
#
# $$\text{FLOP that it computes} \;/\; \text{bytes that it moves}$$
#
# if each input is read from memory once and each output written once. Adding two tensors of $n$ bfloat16 numbers (2
# bytes each) computes $n$ FLOP and moves $3n$ numbers, $6n$ bytes: $1/6$, whatever $n$ is.
#
# A matrix product of $(m, k)$ and $(k, n)$ makes $m n$ numbers. Each is a sum of $k$ products: $k$ multiplications and
# $k$ additions. **Predict**: does the intensity grow with the size?

# %% exercise="arithmetic-intensity" difficulty=2 minutes=7
def arithmetic_intensity(m: int, k: int, n: int, element_size: int) -> float:
    """FLOP for each byte moved of a matrix product (m, k) @ (k, n); element_size: bytes of one number.

    Each number of the inputs is read once, each of the output is written once.
    """
    ### BEGIN SOLUTION
    flops = 2 * m * k * n
    moved = (m * k + k * n + m * n) * element_size
    intensity = flops / moved
    ### END SOLUTION
    return intensity

# %% check="arithmetic-intensity" judges="values" points=2
check(arithmetic_intensity, judges="values")

# %%
{n: round(arithmetic_intensity(n, n, n, element_size=2), 1) for n in (1, 64, 256, 1024, 4096)}

# %% [markdown]
# For square matrices it is $n / 3$ in bfloat16: work grows with $n^3$, bytes with $n^2$. A large product reuses what it
# has read; a sum of two tensors uses every number once and forgets it.

# %% [markdown]
# ## Roofline time
#
# A GPU computes and moves data at the same time. So an operation takes as long as the **slower** of the two, plus the
# time to launch it:
#
# $$t = \max\left(\frac{\text{FLOP}}{\text{peak}}, \frac{\text{bytes}}{\text{bandwidth}}\right) + \text{launch}$$
#
# Both are equally long at an intensity of peak / bandwidth, the **ridge point**. Left of it an operation is **bound by
# memory**, right of it by **compute**. The name of the model comes from its picture:

# %%
h100 = find_cluster("dgx-h100", 1).gpu
points = {"x + y": 1 / 6, **{f"matmul {n}": arithmetic_intensity(n, n, n, 2) for n in (128, 4096)}}
figures.roofline(h100.peak("bfloat16"), h100.bandwidth, points, "bfloat16 on an H100")

# %% exercise="roofline-time" difficulty=2 minutes=8
def roofline_time(flops: float, moved: float, gpu: Gpu, dtype: str) -> tuple[float, str]:
    """How long an operation takes on `gpu`, and what binds it.

    flops: FLOP that it computes; moved: bytes that it moves; dtype: such as "bfloat16".
    gpu: has gpu.peak(dtype) in FLOP/s, gpu.bandwidth in bytes/s, and gpu.launch in seconds.
    Returns (seconds, "memory" if moving takes longer than computing, else "compute").
    """
    computing = flops / gpu.peak(dtype)
    ### BEGIN SOLUTION
    moving = moved / gpu.bandwidth
    seconds = max(computing, moving) + gpu.launch
    bound = "memory" if moving > computing else "compute"
    ### END SOLUTION
    return seconds, bound

# %% [markdown]
# <details><summary>Hint</summary>
#
# `moving` is like `computing`, with bytes and the bandwidth. The launch comes on top of the longer one.
# </details>

# %% check="roofline-time" judges="values" points=2
check(roofline_time, judges="values")

# %% [markdown]
# The second check lets a virtual GPU run real PyTorch operations and holds its clock against your prediction.

# %% check="roofline-time" judges="time" points=2
check(roofline_time, judges="time")

# %% [markdown]
# Where does computing begin to bind? For square products in bfloat16 the intensity is $n / 3$, so from three times the
# ridge point on:

# %%
ridge = h100.peak("bfloat16") / h100.bandwidth
for n in (64, 885, 886, 8192):
    took, bound = roofline_time(2 * n**3, 3 * n * n * 2, h100, "bfloat16")
    used = 2 * n**3 / took / h100.peak("bfloat16")
    print(f"n = {n:>4}: {quantity(took, 's'):>9}, bound by {bound:<8}{used:6.1%} of peak")
print(f"ridge point: {ridge:.0f} FLOP a byte, so n = {3 * ridge:.0f}")

# %% [markdown]
# At $n = 886$ moving is no longer what binds, and still most of the peak is lost: launching takes longer than the
# product itself. Small operations waste a GPU, whatever they do.
#
# And one core of your machine? Its ridge point, measured:

# %% tags=["nbval-ignore-output", "notebook-only"]
peak, bandwidth = memory_hierarchy.one_core()
f"{peak / bandwidth:.1f} FLOP a byte in float32; an H100: {h100.peak('float32') / h100.bandwidth:.1f}"

# %% [markdown]
# The same picture holds for a link between GPUs, with its bandwidth in place of the memory's. It decides later which
# parallelism pays off where.

# %% [markdown]
# # Part 5 · Move less
# If an operation is bound by memory, a faster chip does not help, and moving less does. There are two ways, and every
# GPU library lives by them: **fusion** and **tiling**.
#
# To count bytes exactly we use a memory that counts: a `SlowMemory` holds named arrays, far from the chip. `load`
# copies a part of an array to the chip, `store` writes one back. What is computed on the chip costs nothing. The chip
# has `room` for so many loaded numbers at a time.

# %%
memory = SlowMemory({"x": torch.arange(6.0), "y": unwritten(6)}, room=8)
part = memory.load("x", slice(0, 4))  # numbers 0 to 3: 16 bytes
memory.store("y", part * 10, slice(0, 4))
memory.arrays["y"], memory.loaded, memory.stored

# %% [markdown]
# ## Fused chain
#
# `torch.relu(x * scale + shift)` looks like one line and is **three** operations. Each reads its input from memory and
# writes its output there, and what it writes the next one reads again. Here is that, block by block:

# %%
def unfused_chain(memory, numel, scale, shift):
    block = memory.room // 4

    def one_operation(source, target, operation):
        for start in range(0, numel, block):
            here = slice(start, start + block)
            memory.store(target, operation(memory.load(source, here)), here)

    one_operation("x", "scaled", lambda x: x * scale)
    one_operation("scaled", "shifted", lambda x: x + shift)
    one_operation("shifted", "y", torch.relu)

names = ("scaled", "shifted", "y")
memory = SlowMemory({"x": torch.arange(-500.0, 500.0), **{name: unwritten(1000) for name in names}}, room=256)
unfused_chain(memory, 1000, 2.0, 3.0)
f"{memory.moved:,} bytes moved for {1000 * 4:,} bytes of input"

# %% [markdown]
# A **fused** kernel does all three while a block is on the chip. **Predict**: how many bytes does it move?

# %% exercise="fused-chain" difficulty=3 minutes=10
def fused_chain(memory: SlowMemory, numel: int, scale: float, shift: float) -> SlowMemory:
    """Fill "y" with relu(x * scale + shift); load each number of "x" once, store each of "y" once.

    memory: arrays "x" and "y", (numel,) each. Only parts fit on the chip: load blocks of `block` numbers, the last one
        may be shorter. memory.load("x", slice(a, b)), memory.store("y", values, slice(a, b)).
    Returns the memory.
    """
    block = memory.room // 4  # leaves room for what is computed
    for start in range(0, numel, block):
        ### BEGIN SOLUTION
        here = slice(start, start + block)
        x = memory.load("x", here)
        memory.store("y", torch.relu(x * scale + shift), here)
        ### END SOLUTION
    return memory

# %% [markdown]
# <details><summary>Hint</summary>
#
# One load, all three operations on what was loaded, one store. Both name the same `slice(start, start + block)`.
# </details>

# %% check="fused-chain" judges="values" points=2
check(fused_chain, judges="values")

# %% check="fused-chain" judges="traffic" points=2
check(fused_chain, judges="traffic")

# %% [markdown]
# Does it pay on this machine? One operation after the other over 64 MB reads and writes memory three times, and needs
# new memory for what lies in between. Block by block, with blocks that fit into a cache, only the first operation reads
# from memory and only the last writes there.

# %% tags=["nbval-ignore-output"]
def compare(rank, world_size):
    from utils.benchmark.machine.probes import seconds_of

    def whole():
        return torch.relu(x * 0.5 + 3)

    def in_blocks():
        for part, result in zip(x.split(2**16), y.split(2**16)):
            result.copy_(torch.relu(part * 0.5 + 3))

    x, y, cpu = torch.ones(2**24), torch.ones(2**24), torch.device("cpu")
    return [min(seconds_of(work, 1, cpu) for _ in range(5)) for work in (whole, in_blocks)]

whole, in_blocks = spawn(compare, 1).results[0]
f"in blocks: {whole / in_blocks:.1f} times as fast; by the bytes alone it would be 3"

# %% [markdown]
# `torch.compile` finds such chains in your model and writes fused kernels for them. Three operations of a few bytes
# each also cost three launches; fused, one.

# %% [markdown]
# ## Tiled matmul
#
# "Each input is read once", said the intensity of a matrix product. But the matrices don't fit on the chip. The naive
# product makes one number of $C$ after the other and reads a row of $A$ and a column of $B$ for each: every number of
# $A$ is read $n$ times. Its intensity is hardly more than that of a sum.
#
# **Tiling** makes a whole tile of $C$ at a time. It is a sum too, of products of tiles: of $A$ along a row, of $B$ down
# a column.

# %%
figures.tiles(tiles_a_side=4, row=1, column=2, step=0)

# %% [markdown]
# A tile of $t \times t$ numbers, once loaded, is used for $t$ rows or columns of the result. **Predict** for $n = 64$
# and $t = 16$: how many times is each number of $A$ loaded, and how many bytes are that for $A$ and $B$ in float32?

# %% exercise="tiled-matmul" difficulty=4 minutes=18
def tiled_matmul(memory: SlowMemory, m: int, k: int, n: int) -> SlowMemory:
    """Fill "c" with a @ b, tile by tile: load each number of "a" ceil(n / tile) times and each of "b" ceil(m / tile)
    times at most, store each of "c" once.

    memory: "a" (m, k), "b" (k, n), "c" (m, n); sizes need not be divisible by `tile`. The chip has room for four tiles.
        memory.load("a", slice(...), slice(...)) takes rows and columns; a slice may reach over the end.
    Returns the memory.
    """
    tile = math.isqrt(memory.room // 4)
    for i in range(0, m, tile):
        for j in range(0, n, tile):
            rows, columns = slice(i, i + tile), slice(j, j + tile)
            ### BEGIN SOLUTION
            total = 0
            for step in range(0, k, tile):
                inner = slice(step, step + tile)
                total = total + memory.load("a", rows, inner) @ memory.load("b", inner, columns)
            memory.store("c", total, rows, columns)
            ### END SOLUTION
    return memory

# %% [markdown]
# <details><summary>Hint</summary>
#
# Inside the two loops one tile of C is made: start with nothing, go along the inner dimension in steps of `tile`, load
# one tile of A and one of B, multiply (`@`), add. Store once, after that loop.
# </details>

# %% check="tiled-matmul" judges="values" points=3
check(tiled_matmul, judges="values")

# %% check="tiled-matmul" judges="traffic" points=3
check(tiled_matmul, judges="traffic")

# %%
side = 64
a, b = torch.ones(side, side), torch.ones(side, side)
naive = 2 * side**3 * 4  # bytes loaded: a row and a column for each of side * side numbers
for tile in (4, 16, 32):
    memory = SlowMemory({"a": a, "b": b, "c": unwritten(side, side)}, room=4 * tile * tile)
    loaded = tiled_matmul(memory, side, side, side).loaded
    print(f"tiles of {tile:>2}: {loaded:>9,} bytes loaded, {naive // loaded:>2} times less than naive,", end="")
    print(f" {2 * side**3 / loaded:5.2f} FLOP a byte")

# %% [markdown]
# Intensity $t / 4$ in float32, $t / 2$ in bfloat16: the tile decides, not the matrix. How large must it be, so that an
# H100 is bound by compute? And do three such tiles fit beside the arithmetic units, in 228 kB of **shared memory**?

# %%
t = 2 * ridge
print(f"tiles of {t:.0f} x {t:.0f}; three of them in bfloat16: {quantity(3 * t * t * 2, 'B')}")

# %% [markdown]
# They don't. So GPU libraries tile **twice**: large tiles for the cache that all units share (L2, 50 MB), small ones
# for the shared memory of each. And for a matrix that fits on no GPU, the next level of tiles is one for each **rank**:
# that is tensor parallelism, lesson 08. It is the same idea all the way up.

# %% [markdown]
# # Part 6 · Read the wiring
# Inside a machine not all GPUs are wired alike. NVIDIA's tool tells: `nvidia-smi topo -m`. Recordings in its form, of
# typical machines, come with the course:

# %%
print(gpu_topology.recorded("eight-cube-mesh"))

# %% [markdown]
# A row for each GPU and each NIC. `NV2`: two NVLinks side by side. The others go through PCIe, and the legend lists
# them from slow (`SYS`, over the link between two CPU sockets) to fast (`PIX`, through one switch).

# %% [markdown]
# ## Read topology
#
# Make a matrix of it: entry $(i, j)$ is the link from GPU $i$ to GPU $j$. Mind what is in the way:
#
# - rows and columns of NICs, columns of CPU affinity, the legend;
# - terminals underline the first line by invisible codes such as `\x1b[4m`, which may be in the text;
# - columns are separated by tabs or by spaces, depending on who copied it.
#
# The first line begins with white space; the row of GPU 3 begins with `GPU3`.

# %%
gpu_topology.recorded("two-bridged")[:90]

# %% exercise="read-topology" difficulty=3 minutes=12
def read_topology(text: str) -> list[list[str]]:
    """The links between the GPUs of a machine, from the text of `nvidia-smi topo -m`.

    Returns one list for each GPU, with one label for each GPU: "X" for itself, else such as "NV4" or "SYS". No NICs.
    """
    ### BEGIN SOLUTION
    lines = [line for line in text.splitlines() if line.startswith("GPU")]
    gpus = len(lines)
    matrix = [line.split()[1 : gpus + 1] for line in lines]
    ### END SOLUTION
    return matrix

# %% [markdown]
# <details><summary>Hint</summary>
#
# `text.splitlines()` gives the lines, and `line.split()` without arguments cuts one at any white space. How many rows
# of GPUs are there? So many columns belong to GPUs, right after the name.
# </details>

# %% check="read-topology" judges="values" points=4
check(read_topology, judges="values")

# %%
cube_mesh = read_topology(gpu_topology.recorded("eight-cube-mesh"))
figures.topology(cube_mesh, "eight-cube-mesh")

# %%
figures.topology(read_topology(gpu_topology.recorded("eight-nvlink")), "eight-nvlink: an NVSwitch joins all")

# %%
figures.topology(read_topology(gpu_topology.recorded("four-pcie")), "four-pcie: no NVLink, two CPU sockets")

# %% [markdown]
# And this machine, if it has two GPUs or more:

# %% tags=["nbval-ignore-output"]
text = gpu_topology.of_this_machine()
here = read_topology(text) if text else []
figures.topology(here, "this machine") if len(here) > 1 else f"this machine has {len(here)} GPUs to draw"

# %% [markdown]
# ## Best ring
#
# Many algorithms send data **around a ring**: each GPU to the next, the last to the first, all at once. So the ring is
# as fast as its **slowest** link. In which order should the GPUs stand? In rank order, this is the cube mesh:

# %%
figures.topology(cube_mesh, "in rank order", ring=list(range(8)))

# %% [markdown]
# `topology.speed(label)` gives a link's place from slow to fast: more is better. **Predict**: which link is the slowest
# of that ring? Can a ring use `NV2` only? Follow the wide lines.

# %% exercise="best-ring" difficulty=3 minutes=10
def best_ring(matrix: list[list[str]]) -> list[int]:
    """An order of all GPUs, beginning with GPU 0, such that the slowest link of the ring is as fast as possible.

    matrix: as read_topology returns it, of 2 to 8 GPUs, the same in both directions. If several orders are equally
    good, any of them. topology.speed(label) says which link is faster.
    """
    def slowest(ring: list[int]) -> int:
        ### BEGIN SOLUTION
        joints = [matrix[ring[at - 1]][ring[at]] for at in range(len(ring))]  # ring[-1] is the last, so it is closed
        return min(gpu_topology.speed(label) for label in joints)
        ### END SOLUTION

    rings = [[0, *others] for others in permutations(range(1, len(matrix)))]
    ### BEGIN SOLUTION
    return max(rings, key=slowest)
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# In Python `ring[-1]` is the last one, so `ring[at - 1]` comes before `ring[at]` for every `at`, 0 included. Of all
# `rings` you want the one whose `slowest` is largest: `max` takes a `key`.
# </details>

# %% check="best-ring" judges="values" points=3
check(best_ring, judges="values")

# %%
figures.topology(cube_mesh, "a best ring", ring=best_ring(cube_mesh))

# %% [markdown]
# Every link of it is an NVLink, and some are `NV1`: the `NV2` links alone make two rings of four. This is what
# **NCCL** does when it starts: it reads the wiring, of the machine and of the NICs, and searches for rings and trees
# without slow links. (It does not try all orders: of 8 GPUs there are 5,040, of 16 over a million million.) Gloo does
# no such thing: between CPUs it sends in rank order.

# %%
math.factorial(8 - 1), math.factorial(16 - 1)

# %% [markdown]
# # Recap
# - A **rank** is a process; all ranks run one program, and differ by their number.
# - They meet at a **store**: `init_process_group` returns when all have come, `destroy_process_group` parts them.
#   `torchrun` and SLURM start the processes and tell each who it is.
# - The only order between ranks is one that you make: a **barrier**, or a message.
# - One failing rank stops all, and the others are innocent. One rank that decides by itself is a deadlock.
# - State in training: 16 bytes a parameter. Only models of a few billion fit on one GPU.
# - Time is the larger of computing and moving. The **ridge point** says which; **fusion** and **tiling** move less.
# - Wires differ by factors of ten. Know them, and put what talks most on the fastest.
#
# **The library.** `torch.distributed.init_process_group`, with `torchrun`, is what you will write in a real program;
# all of Part 1 is then in its first line. `torch.compile` fuses, cuBLAS tiles, NCCL reads the wiring.
#
# **The paper.** Williams, Waterman, Patterson: *Roofline: an insightful visual performance model for multicore
# architectures* (Communications of the ACM, 2009).

# %% [markdown]
# # Challenge (optional, no points)
# How does a barrier work? Build one from the store alone. `store.add(key, 1)` adds 1 to a counter that all ranks share
# and returns its new value; `store.set(key, "x")` writes a key; `store.wait([key])` returns when somebody has written
# it. When it is right, the cell shows `[4, 4, 4, 4]`: after the barrier each rank sees that all four had come.
#
# <details><summary>Hint</summary>
#
# The one who comes last finds the counter at `world_size`, and opens the door for all.
# </details>

# %% tags=["nbval-ignore-output", "notebook-only"]
def barrier_by_hand(store, world_size):
    """Return when all ranks have called this."""
    store.add("came", 1)  # and then? Wait for the others

def challenge(rank, world_size, path):
    store = dist.FileStore(path, world_size)
    dist.barrier()
    barrier_by_hand(store, world_size)
    return store.add("came", 0)

spawn(challenge, 4, tempfile.mkdtemp() + "/store").results
