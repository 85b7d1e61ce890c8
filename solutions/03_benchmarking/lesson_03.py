# %% [markdown] question="How fast is a collective, and would your number survive a reviewer?"
# # Benchmarks that survive review
# *you need: lesson 01, the eight collectives. Useful: the ring of lesson 02.*
#
# How long does a collective take? Finding out looks like four lines of code. Yet most benchmarks of collectives are
# wrong: they time the wrong thing, count the wrong bytes, or fit the wrong line, and nothing raises an error. A wrong
# number simply gets printed, and somebody buys hardware because of it.
#
# By the end of this lesson you will have a benchmark of your own that you can defend against a reviewer who wants to
# see it fail. You will also have been that reviewer, for two figures from a lecture.

# %%
import math
import time
from collections.abc import Callable, Collection
from functools import partial
from itertools import combinations
from statistics import linear_regression, median

import torch
import torch.distributed as dist
from tqdm import tqdm

from utils import figures, get_device, simulate, spawn
from utils.benchmark import benchmark
from utils.benchmark.machine.limits import machine_limits
from utils.checks import checks_for
from utils.cluster import Cluster, Gpu, Link
from utils.kit.predictions import how_predictions_went, predict, reveal

check = checks_for("03_benchmarking")
# this lesson measures the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")

# %% [markdown]
# ## Why: two figures from a lecture
# A lecture on distributed training (Stanford's CS336, spring 2025, lecture 8) measured two collectives on four H100
# GPUs, with 100 Mi float32 numbers (1 Mi is 1024 · 1024), and showed these bandwidths:

# %%
shown = {"all_reduce": 277, "reduce_scatter": 75}  # "GB/s"
times = shown["all_reduce"] / shown["reduce_scatter"]
print(f"all-reduce is {times:.1f} times as fast as reduce-scatter")

# %% [markdown]
# That is strange. An all-reduce **is** a reduce-scatter followed by an all-gather (lesson 01). How can the whole be
# almost four times as fast as its first half? The lecture looked for the reason in the hardware. Should we avoid
# reduce-scatter, and with it all of ZeRO and FSDP?
#
# No. Both times were measured well. But both figures are wrong, by arithmetic alone, and the second one badly. In part
# 2 you'll find out how, and work out the right ones.

# %% [markdown]
# ## A network that we know completely
# How do you test a benchmark? On a machine whose speed you already know. Here is one: a virtual cluster on which
# computing is free and each message of $n$ bytes takes $\alpha + n\beta$ seconds, with a **latency** $\alpha$ of 10 µs
# and a bandwidth of 10 GB/s, so that $\beta$ is 0.1 ns per byte.

# %%
wire = Link(alpha=10e-6, bandwidth=10e9)
free = Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=math.inf)
lab = Cluster("lab", nodes=1, gpus_per_node=8, gpu=free, intra=wire, inter=wire)

# %% [markdown]
# `simulate` runs a rank program on it, and every rank has a clock. There `time.perf_counter()` reads **the rank's own
# virtual clock**, and `time.sleep` advances it. So any benchmark runs there unchanged, with the same times in every
# run.
#
# On 4 ranks an all-reduce takes 6 messages, one after another, each a quarter of the tensor (the ring of lesson 02).
# For 4 MB: $6 \cdot (10\,\mu s + 1\,\text{MB} / 10\,\text{GB/s})$ = 0.66 ms. That is **the truth**. Below is the
# benchmark that everybody writes first. Rank 3 is 10 ms late, because it had to wait for its data.
#
# **Predict** what the benchmark says, in milliseconds: run the cell and type your numbers, or replace each `...` with
# one. Predictions earn no points, and you can skip them; but a guess that turns out wrong is what you'll remember.

# %%
predict("milliseconds on rank 0", ...)
predict("milliseconds on rank 3", ...)

# %% tags=["notebook-only"]
def first_try(rank, world_size):
    x = torch.zeros(1_000_000)  # 4 MB
    if rank == 3:
        time.sleep(0.010)  # reads its data
    before = time.perf_counter()
    dist.all_reduce(x)
    return time.perf_counter() - before

first = [1e3 * seconds for seconds in simulate(first_try, 4, cluster=lab).results]

# %%
reveal("milliseconds on rank 0", first[0], why="It waits 10 ms for rank 3, and counts that as communication.")
reveal("milliseconds on rank 3", first[3], why="It starts its clock last, when the others are ready: it is right.")

# %% [markdown]
# Rank 0 measured 16 times the truth. Only the rank that was late got it right. And this is what the same lines say
# about a collective that is merely **started**:

# %% tags=["notebook-only"]
def second_try(rank, world_size):
    x = torch.zeros(1_000_000)
    before = time.perf_counter()
    handle = dist.all_reduce(x, async_op=True)
    seconds = time.perf_counter() - before
    handle.wait()
    return seconds

[f"{seconds * 1e3:.2f} ms" for seconds in simulate(second_try, 4, cluster=lab).results]

# %% [markdown]
# No time at all, and so an infinite bandwidth. On a GPU **every** collective is like that, even without `async_op`: the
# CPU only puts it into the GPU's queue and carries on.

# %% [markdown]
# # Part 1 · One honest time

# %% [markdown]
# ## Timing one call
#
# A time is the difference between two moments, and both need care.
#
# - **The start**: all ranks should begin together. `dist.barrier()` lets nobody through until everybody is there.
# - **Old work**: a GPU may still have something in its queue. `torch.cuda.synchronize()` waits until the queue is
#   empty. If you don't wait before the start, you time the old work too. Which should come first, this or the barrier?
# - **The end**: the result has to be there. If the collective returned a handle, call `handle.wait()`. On a GPU that is
#   not enough: there `wait()` doesn't stop the CPU, it only puts the GPU's next work behind the collective. So
#   synchronize once more.
#
# Here `synchronize` is an argument: on a GPU it is `torch.cuda.synchronize`, and on a CPU it does nothing. The check
# passes in one for a virtual device that has a queue.
#
# **Predict**: rank 1 still has half a second of work in its queue. How many seconds too much do the other ranks measure
# if you call the barrier first and `synchronize` after it?

# %%
predict("seconds too much", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Two things must be true when the clock starts: this rank's device has nothing left to do, and every other rank has
# got just as far. Which of the two has to come first?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Before the clock starts, two calls: each rank empties its own queue, and then they all meet. After the collective
# has been started, two again: wait for it, then for the device. Nobody has to meet at the end: another barrier would
# only be timed as well.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `synchronize()`, then `dist.barrier()`. After the operation: `handle.wait()`, but only if there is a handle, then
# `synchronize()`.
# </details>

# %% exercise="time-once" difficulty=3 minutes=12
def time_once(operation: Callable, synchronize: Callable) -> float:
    """Seconds that `operation` takes on this rank, counted from the moment when all
    ranks are ready for it.

    operation(): starts one collective. Returns None, or a handle: then the collective
    is over after handle.wait().
    synchronize(): returns when this rank's device has done all its work so far.
    Work that any rank's device was given earlier doesn't count; what `operation` gives
    it does. Call `operation` once, and dist.barrier() once.
    """
    ### BEGIN SOLUTION
    synchronize()
    dist.barrier()  # a rank that synchronized only after it would be late
    ### END SOLUTION
    start = time.perf_counter()
    handle = operation()
    ### BEGIN SOLUTION
    if handle is not None:
        handle.wait()
    synchronize()
    ### END SOLUTION
    return time.perf_counter() - start

# %% check="time-once" judges="values" points=5
check(time_once, judges="values")

# %% check="time-once" judges="traffic" points=1
check(time_once, judges="traffic")

# %% tags=["notebook-only"]
def barrier_first(rank, world_size):
    queue = 0.5 * (rank == 1)  # seconds of old work
    dist.barrier()
    start = time.perf_counter()
    time.sleep(queue)  # synchronize
    dist.all_reduce(torch.zeros(1_000_000))
    return time.perf_counter() - start

late = simulate(barrier_first, 4, cluster=lab).results[0] - 0.66e-3

# %%
reveal(
    "seconds too much",
    late,
    why="They pass the barrier together with rank 1 and start their clocks. Rank 1 still has to empty its queue, and "
    "they wait for it in the collective.",
)

# %% [markdown]
# Both attempts again, timed by you: rank 3 is late, and the all-reduce is only started. All four ranks should say
# 0.66 ms.

# %% tags=["notebook-only"]
def third_try(rank, world_size):
    x = torch.zeros(1_000_000)
    if rank == 3:
        time.sleep(0.010)
    return time_once(
        lambda: dist.all_reduce(x, async_op=True), synchronize=lambda: None
    )

[f"{seconds * 1e3:.2f} ms" for seconds in simulate(third_try, 4, cluster=lab).results]

# %% [markdown]
# ## Time of the slowest rank
#
# A single time is not a measurement. Here are 25 calls of the same all-reduce of 40 kB, on real processes of this
# machine:

# %% tags=["nbval-ignore-output"]
def again_and_again(rank, world_size):
    x = torch.zeros(10_000)
    return [time_once(lambda: dist.all_reduce(x), lambda: None) for _ in range(25)]

# calls[c]: the times of all ranks
calls = list(zip(*spawn(again_and_again, 4).results))
slowest = [max(times) for times in calls]
usual, apart = median(slowest), median(max(times) / min(times) for times in calls)
first_call, longest = slowest[0] / usual, max(slowest) / usual
print(f"first call {first_call:.1f} times the median, longest call {longest:.1f} times")
print(
    f"in a typical call the slowest rank took {apart:.1f} times as long as the fastest"
)

# %% [markdown]
# The first calls often take longer. Connections, buffers and caches have to be set up; on a GPU, kernels have to be
# loaded, and the first call takes by far the longest. In a training run of several weeks that happens once. So make a
# few calls that don't count (**warm-up**), and only then repeat and keep the times.
#
# And whose time counts? The collective is over when the **slowest** rank has its result, since the others need that
# rank for their next step. So for each repeat we take the maximum over the ranks: for the first, for the second, and so
# on. `dist.all_reduce` with `op=dist.ReduceOp.MAX` does that for all repeats in one call. Do it once, at the end: a
# collective between the repeats would disturb what you measure.
#
# **Predict** the result for rank 0's times `[3, 1, 1]` and rank 1's `[1, 1, 2]`, as a list:

# %%
predict("the times of the slowest", ...)

# %% exercise="times-of-the-slowest" difficulty=2 minutes=10
def times_of_the_slowest(time_one: Callable, warmup: int, repeats: int) -> list[float]:
    """Seconds of each repeat, on whichever rank was slowest in that repeat, in the
    order of the repeats; the same list on every rank.

    time_one(): makes one call and returns the seconds that it took on this rank; all
    ranks call it equally often.
    Call it `warmup` times and drop those times, then `repeats` times more. Use one
    all_reduce in all, of the repeats alone, in float64: float32 has only seven digits.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        time_one()
    mine = [time_one() for _ in range(repeats)]
    ### END SOLUTION
    slowest = torch.tensor(mine, dtype=torch.float64, device=get_device())
    ### BEGIN SOLUTION
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    ### END SOLUTION
    return slowest.tolist()

# %% check="times-of-the-slowest" judges="values" points=4
check(times_of_the_slowest, judges="values")

# %% check="times-of-the-slowest" judges="traffic" points=1
check(times_of_the_slowest, judges="traffic")

# %% tags=["notebook-only"]
def two_ranks(rank, world_size):
    times = iter([[3, 1, 1], [1, 1, 2]][rank])
    return times_of_the_slowest(lambda: next(times), warmup=0, repeats=3)

slowest = spawn(two_ranks, 2).results[0]

# %%
reveal("the times of the slowest", slowest, why="Each repeat has its own slowest rank.")

# %% [markdown]
# ## Median and spread
#
# You have repeated the call, and now need one number. During one repeat the machine was doing something else, and it
# took a hundred times as long. **Predict** for `[1, 1, 2, 2, 100]`: which of these is the answer that you want?

# %%
predict("the answer that you want", ..., choices=["mean", "minimum", "median"])

# %%
reveal(
    "the answer that you want",
    "median",
    why="The mean, 21.2, is a time that never occurred. The minimum is the luckiest time, which nobody will get in "
    "training. The median, 2, is the time in the middle, however large the outlier is.",
)

# %% [markdown]
# The **median** is the time in the middle; for an even number of times, halfway between the two in the middle.
#
# A number without its spread can't be compared with another. The standard deviation would follow the outlier, like the
# mean. So take the median once more, of the **distances** from the median: here they are `[1, 1, 0, 0, 98]`, and their
# median is 1. As a share of the median time that is 0.5, or 50 %. If two benchmarks differ by less than their spreads,
# you can't say which is faster.

# %% exercise="median-and-spread" difficulty=2 minutes=7
def median_and_spread(seconds: list[float]) -> tuple[float, float]:
    """(median, spread): the median of the times in seconds, and the median of their
    distances from it, divided by it.

    seconds: one or more, all above 0, in any order; left unchanged.
    """
    ### BEGIN SOLUTION
    middle = median(seconds)
    distance = median(abs(each - middle) for each in seconds)
    ### END SOLUTION
    return middle, distance / middle

# %% [markdown]
# <details><summary>Hint</summary>
#
# `median` is imported at the top of the notebook. It sorts, and it handles an even number of times.
# </details>

# %%
median_and_spread([1, 1, 2, 2, 100])

# %% check="median-and-spread" judges="values" points=3
check(median_and_spread, judges="values")

# %% [markdown]
# ### Your benchmark, examined
# Put together, this is the benchmark for the rest of the lesson:

# %%
def synchronize():
    if get_device().type == "cuda":
        torch.cuda.synchronize()

def measure(operation, warmup=5, repeats=20):
    """(seconds, spread) of one collective after a warm-up: the median over the repeats,
    each timed on its slowest rank.
    """
    times = times_of_the_slowest(
        lambda: time_once(operation, synchronize), warmup, repeats
    )
    return median_and_spread(times)

# %% [markdown]
# Now make its life hard. On the lab cluster the first three calls are slow, one repeat in seven is disturbed, and
# before each call a different rank is late. The truth is still 0.66 ms.

# %% tags=["notebook-only"]
def examine(rank, world_size):
    x, calls = torch.zeros(1_000_000), 0

    def operation():
        nonlocal calls
        calls += 1
        if calls <= 3 or calls % 7 == 0:
            time.sleep(0.050)
        dist.all_reduce(x)

    def time_one():
        if calls % world_size == rank:
            time.sleep(0.020)  # a different rank each time
        return time_once(operation, synchronize)

    return times_of_the_slowest(time_one, warmup=5, repeats=20)

times = simulate(examine, 4, cluster=lab, device="cpu").results[0]
middle, spread = median_and_spread(times)
mean = sum(times) / len(times)
print(f"mean {mean * 1e3:.2f} ms     median {middle * 1e3:.2f} ms, spread {spread:.0%}")

# %% [markdown]
# # Part 2 · Bytes and bandwidths
# A time says little about a network; a bandwidth says more. But "bytes divided by time" leaves open **which** bytes,
# and the wrong ones can put you off by a factor of the world size. So there is a convention, from NVIDIA's
# `nccl-tests`, which everybody's tables follow. Yours should too, or they can't be compared.

# %% [markdown]
# ## Size of a collective
#
# The **size** $S$ of a collective is the size of the **whole**:
#
# | collective | the whole is | what one rank hands in |
# |---|---|---|
# | all-reduce, broadcast, reduce | the tensor that all ranks, or the root, hold in the end | the whole |
# | reduce-scatter, all-to-all | all $P$ chunks that a rank hands in | the whole |
# | scatter | all $P$ chunks on the root | the root: the whole |
# | all-gather, gather | all $P$ tensors, one after another | its own: one chunk of $P$ |
#
# **Predict** the sizes $S$ in bytes. First, 4 ranks call `dist.reduce_scatter` with 4 chunks of 100 MB each, so that
# each gets 100 MB. Then 4 ranks call `dist.all_gather` with 100 MB each, so that each gets 400 MB. (Write 100 MB as
# `100e6`.)

# %%
predict("S of the reduce-scatter", ...)
predict("S of the all-gather", ...)

# %%
figures.collective("all_gather", world_size=4)

# %% exercise="counted-bytes" difficulty=2 minutes=7
def counted_bytes(collective: str, handed_in: int, world_size: int) -> int:
    """The size S of a collective in bytes, as nccl-tests count it.

    collective: "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter",
    "all_to_all", "gather", "scatter".
    handed_in: bytes of all tensors that one rank (for scatter, the root) hands in.
    """
    ### BEGIN SOLUTION
    if collective in ("all_gather", "gather"):
        return world_size * handed_in
    return handed_in
    ### END SOLUTION

# %%
both = (
    counted_bytes("reduce_scatter", 4 * 100_000_000, 4),
    counted_bytes("all_gather", 100_000_000, 4),
)

# %%
reveal("S of the reduce-scatter", both[0], unit="B", why="Each rank hands in the whole.")
reveal("S of the all-gather", both[1], unit="B", why="Each rank hands in one chunk of four.")

# %% check="counted-bytes" judges="values" points=3
check(counted_bytes, judges="values")

# %% [markdown]
# ## Algorithm bandwidth and bus bandwidth
#
# The **algorithm bandwidth**, `algbw`, is $S$ divided by the time. It tells you how soon you have your result. But it
# falls as ranks are added, even if every link is as busy as it can be: each rank then sends more for the same $S$.
#
# The **bus bandwidth** corrects for that: `busbw` is the least that each rank **must send**, divided by the time. It
# can be compared with the link itself, whatever the collective and however many ranks there are. For $P$ ranks:
#
# - **all-gather**: each rank's chunk, $S/P$, has to get to $P - 1$ others. In a ring each rank passes on $P - 1$
#   chunks: it sends $\frac{P-1}{P} S$.
# - **reduce-scatter**: the same, in reverse. **All-to-all**: each rank keeps one of $P$ chunks and sends the others.
# - **gather, scatter**: the root receives, or sends, all chunks but its own.
# - **all-reduce**: a reduce-scatter, then an all-gather.
# - **broadcast, reduce**: each rank except the last passes the whole on once.
#
# The 2 of the all-reduce stands for its two phases. It doesn't stand for "send and receive": received bytes are never
# counted. A link has a bandwidth in each direction; compare `busbw` with that of **one** direction. (The 900 GB/s of
# NVLink in an H100's datasheet are the sum of both, so compare with 450.) And GB are $10^9$ bytes: a number in GiB, of
# $2^{30}$ bytes, is 7 % smaller.
#
# **Predict**, in GB/s, for 8 ranks that all-reduce 1 GB in 10 ms:

# %%
predict("algbw", ...)
predict("busbw", ...)

# %% exercise="bandwidths" difficulty=2 minutes=10
def bandwidths(
    collective: str, nbytes: int, seconds: float, world_size: int
) -> tuple[float, float]:
    """(algbw, busbw) in GB/s, 1 GB being 1e9 bytes, as nccl-tests count them.

    collective: one of the eight names of counted_bytes. nbytes: the size S.
    """
    algbw = nbytes / seconds / 1e9
    ### BEGIN SOLUTION
    others = (world_size - 1) / world_size
    if collective in ("broadcast", "reduce"):
        factor = 1
    elif collective == "all_reduce":
        factor = 2 * others
    else:
        factor = others
    ### END SOLUTION
    return algbw, algbw * factor

# %%
eight = bandwidths("all_reduce", 1_000_000_000, 0.010, 8)

# %%
reveal("algbw", eight[0], why="1 GB / 10 ms.")
reveal("busbw", eight[1], why="Each rank sends $2 \\cdot 7 / 8$ GB in that time.")

# %% check="bandwidths" judges="values" points=4
check(bandwidths, judges="values")

# %% [markdown]
# ### Does it measure the link?
# Take the lab's link without its latency: $\alpha = 0$. Then a good algorithm keeps it busy all the time, and `busbw`
# should be the link's own 10 GB/s, for every collective and any number of ranks.

# %% tags=["notebook-only"]
no_latency = Link(alpha=0, bandwidth=10e9)
pure = Cluster(
    "no latency", nodes=1, gpus_per_node=8, gpu=free, intra=no_latency, inter=no_latency
)

def bus_bandwidths(rank, world_size):
    chunk, whole = torch.zeros(500_000), torch.zeros(500_000 * world_size)
    chunks = [chunk.clone() for _ in range(world_size)]
    calls = {
        "all_reduce": (lambda: dist.all_reduce(whole), whole),
        "reduce_scatter": (lambda: dist.reduce_scatter(chunk, chunks), whole),
        "all_gather": (lambda: dist.all_gather(chunks, chunk), chunk),
        "all_to_all": (
            lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
            whole,
        ),
        "broadcast": (lambda: dist.broadcast(whole, src=0), whole),
    }
    found = {}
    for name, (call, tensor) in calls.items():
        size = counted_bytes(name, tensor.nbytes, world_size)
        seconds, spread = measure(call, warmup=0, repeats=1)
        algbw, busbw = bandwidths(name, size, seconds, world_size)
        found[name] = f"algbw {algbw:5.2f}   busbw {busbw:5.2f}"
    return found

for ranks in (2, 8):
    print(f"{ranks} ranks")
    found = simulate(bus_bandwidths, ranks, cluster=pure, device="cpu").results[0]
    for name, words in found.items():
        print(f"   {name:15} {words} GB/s")

# %% [markdown]
# Four of the five reach exactly 10, with 2 ranks and with 8, though `algbw` differs. Broadcast falls short on 8 ranks:
# here it scatters and then gathers, so the root's link carries more than one whole. A broadcast that sends the tensor
# down a chain in many small pieces would come close to 10. So a `busbw` below the link's bandwidth means that the
# algorithm, the latency or the machine costs something.
#
# Can it be above? Yes: if the **switch** does the adding, ranks send less than the factor says. On eight H200 GPUs,
# `nccl-tests` measured a `busbw` of 481 GB/s over links of 450 (Bekman, *Machine Learning Engineering*, network
# benchmarks, 2026; lesson 04 fits a model to these numbers).

# %% [markdown]
# ## Reviewing a bandwidth
#
# Now you are the reviewer. Somebody claims a bandwidth; you know the collective, the size, the time and the number of
# ranks. You work out the right `busbw`, and if the claim differs, you look for the mistake. These are the usual ones,
# and each multiplies the right number by a factor:
#
# | mistake | what was done |
# |---|---|
# | `"GiB"` | divided by $2^{30}$ instead of $10^9$ |
# | `"one chunk"` | counted one of $P$ chunks instead of the whole |
# | `"both ways"` | counted what was received, too: twice as much |
# | `"algbw"` | showed `algbw` instead of `busbw` |
#
# People make several at once. So try all subsets, the small ones first: no mistake, each alone, each pair. A claim is
# explained if it is within 1 % of the right number times the factors of the subset.
#
# **Predict** the four factors for a reduce-scatter on 4 ranks, as a list in the order of the table:

# %%
predict("the four factors", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Each mistake multiplies the right number by a factor that you can write down without knowing the claim. Which of the
# four depend on the collective, and which on the number of ranks?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# `factors` is a dict of four numbers, in the order of the table. A subset of mistakes multiplies the right number by
# the product of its factors; `math.prod` of nothing is 1, so the empty subset needs no special case.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `"GiB"` gives `1e9 / 2**30`, `"one chunk"` gives `1 / world_size`, `"algbw"` gives `algbw / busbw`. In the loop:
# `wrong = busbw * math.prod(...)`, and if it differs from `claim` by no more than 1 % of `claim`, return `busbw` and
# the list of mistakes.
# </details>

# %% exercise="find-the-mistakes" difficulty=3 minutes=12
def find_the_mistakes(
    claim: float, collective: str, nbytes: int, seconds: float, world_size: int,
    bandwidths: Callable,
) -> tuple[float, Collection[str] | None]:
    """The right busbw in GB/s, and the fewest mistakes that turn it into `claim`, as a
    list, a tuple or a set; None if no subset does.

    claim: in "GB/s". nbytes: the size S. bandwidths: the function above.
    world_size: 2 or more.
    Mistakes are "GiB", "one chunk", "both ways", "algbw", tried in this order; none of
    them ([], say) if the claim is right, to 1 % of it.
    """
    algbw, busbw = bandwidths(collective, nbytes, seconds, world_size)
    ### BEGIN SOLUTION
    factors = {"GiB": 1e9 / 2**30, "one chunk": 1 / world_size, "both ways": 2}
    factors["algbw"] = algbw / busbw
    ### END SOLUTION
    for how_many in range(len(factors) + 1):
        for mistakes in combinations(factors, how_many):
            ### BEGIN SOLUTION
            wrong = busbw * math.prod(factors[mistake] for mistake in mistakes)
            if abs(wrong - claim) <= 0.01 * claim:
                return busbw, list(mistakes)
            ### END SOLUTION
    return busbw, None

# %% check="find-the-mistakes" judges="values" points=4
check(find_the_mistakes, judges="values")

# %%
algbw, busbw = bandwidths("reduce_scatter", 1_000_000_000, 1.0, 4)
factors = [1e9 / 2**30, 1 / 4, 2, algbw / busbw]

# %%
reveal("the four factors", factors, why="The last one is 4/3, since `busbw` is 3/4 of `algbw` here.")

# %% [markdown]
# Now the two figures from the lecture, with the times that it measured. All-reduce: a tensor of 100 Mi numbers, 2.11
# ms. Reduce-scatter: every rank hands in four such tensors and gets one, 3.92 ms. **Predict** the sizes $S$ in bytes:

# %%
predict("S of the lecture's all-reduce", ...)
predict("S of the lecture's reduce-scatter", ...)

# %%
one = 100 * 1024**2 * 4  # bytes of 100 Mi float32 numbers

# %%
reveal("S of the lecture's all-reduce", one, unit="B", why="The tensor that every rank holds: 100 Mi numbers.")
reveal("S of the lecture's reduce-scatter", 4 * one, unit="B", why="All four chunks that a rank hands in.")

# %%
for claim, collective, size, seconds in (
    (277, "all_reduce", one, 2.11e-3),
    (75, "reduce_scatter", 4 * one, 3.92e-3),
):
    busbw, mistakes = find_the_mistakes(claim, collective, size, seconds, 4, bandwidths)
    print(
        f"{collective:15} claimed {claim:3}, right {busbw:.0f} GB/s; mistakes: "
        f"{mistakes}"
    )

# %% [markdown]
# The first figure is right, but its unit is GiB/s: it is 298 GB/s. The second has the same unit, and it counted what a
# rank **gets** out of the reduce-scatter, one chunk of four: it is 321 GB/s. So reduce-scatter isn't four times slower
# than all-reduce; byte for byte it is slightly faster. Both reach about two thirds of NVLink's 450 GB/s:

# %%
print(f"all-reduce {298 / 450:.0%} of the link, reduce-scatter {321 / 450:.0%}")

# %% [markdown]
# # Part 3 · From 1 KB to 64 MB
# One size says little: at 1 KB you see nothing but latency, at 64 MB nothing but bandwidth. A benchmark **sweeps** over
# sizes, each several times the one before, and shows time and bandwidth with both axes logarithmic. (In a sweep, sizes
# are multiples of 1024: 1 KB is 1024 bytes. Bandwidths are not: 1 GB/s is still $10^9$ bytes per second.)

# %% [markdown]
# ## Sizes of a sweep
#
# Sizes grow by a factor, since nothing new happens between 64 MB and 64 MB + 1 KB. And they must be possible: a
# reduce-scatter of $S$ bytes needs $P$ equal chunks, each of whole elements. So each size is **rounded down** to a
# multiple of $P$ times the bytes of one element. If nothing is left, the size is dropped.
#
# **Predict** the sizes from 10 to 200 bytes, each 4 times the one before, for 3 ranks and elements of 4 bytes, as a
# list:

# %%
predict("the sizes", ...)

# %% exercise="sweep-sizes" difficulty=2 minutes=8
def sweep_sizes(
    smallest: int, largest: int, step: int, itemsize: int, world_size: int
) -> list[int]:
    """The sizes of a sweep in bytes: smallest, step * smallest, step ** 2 * smallest,
    ... while at most `largest`.

    Each is then rounded down to a multiple of world_size * itemsize; 0 is left out.
    smallest: 1 or more; step: 2 or more; itemsize: bytes of one element.
    Returns whole numbers in rising order.
    """
    sizes, nbytes = [], smallest
    while nbytes <= largest:
        ### BEGIN SOLUTION
        possible = nbytes - nbytes % (world_size * itemsize)
        if possible > 0:
            sizes.append(possible)
        ### END SOLUTION
        nbytes *= step
    return sizes

# %% check="sweep-sizes" judges="values" points=3
check(sweep_sizes, judges="values")

# %%
possible = sweep_sizes(10, 200, 4, itemsize=4, world_size=3)

# %%
reveal("the sizes", possible, why="10, 40 and 160, rounded down to multiples of 12: 0, 36 and 156. The 0 is dropped.")

# %% [markdown]
# ### Your sweep, on this machine
# Four real ranks, nine sizes. Rank 0 draws a progress bar with `tqdm`, because a benchmark that says nothing for a
# minute gets interrupted. It is drawn between the sizes, never while something is being timed.

# %% tags=["nbval-ignore-output"]
def sweep(rank, world_size, sizes, warmup, repeats):
    found = []
    for nbytes in tqdm(sizes, desc="all_reduce", unit="size", disable=rank > 0):
        x = torch.zeros(nbytes // 4, device=get_device())
        found.append(measure(partial(dist.all_reduce, x), warmup, repeats))
    return found

sizes = sweep_sizes(1024, 64 * 1024**2, 4, itemsize=4, world_size=4)
run = spawn(sweep, 4, sizes, warmup=2, repeats=5)
times = [seconds for seconds, spread in run.results[0]]
buses = [
    bandwidths("all_reduce", n, t, run.world_size)[1] for n, t in zip(sizes, times)
]
for nbytes, (seconds, spread), busbw in zip(sizes, run.results[0], buses):
    took = f"{seconds * 1e3:9.3f} ms ± {spread:4.0%}"
    print(f"{nbytes:12,} bytes   {took}   busbw {busbw:7.3f} GB/s")

# %% [markdown]
# How good is that? Ask the machine: how fast does it copy memory when four ranks do so at once, and how fast does one
# large message get from one rank to another? Gloo's messages go through the operating system ("loopback"), which copies
# them as well. Don't expect a collective to be faster than that.

# %% tags=["nbval-ignore-output"]
limits, rates = machine_limits(4, "gloo"), [busbw * 1e9 for busbw in buses]
title = f"all-reduce of {run.world_size} ranks, this machine"
figures.sweep(sizes, times, rates, title, limits=limits)

# %% tags=["nbval-ignore-output"]
for name, rate in limits.items():
    print(f"best bus bandwidth: {max(buses) * 1e9 / rate:.0%} of {name}")

# %% [markdown]
# Usually an all-reduce stays well below both: four ranks share the cores, and each byte is copied and added several
# times along the way. More than 100 % means that something else kept the machine busy while a limit was measured: run
# both cells again. On a GPU cluster the same picture tells you whether the network was set up properly.

# %% [markdown]
# # Part 4 · Two numbers instead of a table
# Look at the times again. Small sizes all take about as long; for large ones, the time grows in proportion to the size.
# So it is roughly
#
# $$ t(n) = \alpha + n \beta $$
#
# with a latency $\alpha$ in seconds and $\beta$ in seconds per byte. These two numbers predict every size, including
# those that nobody has measured. They come from a fit.

# %% [markdown]
# ## Fitting the line
#
# The usual fit, least squares, chooses the line for which the sum of $(\alpha + n_i \beta - t_i)^2$ is smallest. The
# times of a sweep range from microseconds to a second. Below is a made-up machine with $\alpha$ = 40 µs and 5 GB/s. Its
# times are disturbed by 10 %, alternately up and down. **Predict** the $\alpha$ that the usual fit finds, in
# microseconds:

# %%
predict("alpha by the usual fit", ...)

# %%
given_sizes = [4**power * 1024 for power in range(9)]
off = [1.1, 0.9] * 4 + [1.1]  # alternately 10 % too long and too short
given_times = [(40e-6 + n / 5e9) * factor for n, factor in zip(given_sizes, off)]

usual_beta, usual_alpha = linear_regression(given_sizes, given_times)

# %%
reveal(
    "alpha by the usual fit",
    usual_alpha * 1e6,
    why="The largest time is 15 ms, and 10 % of that is many times 40 µs. In squares of absolute errors it decides "
    "almost alone, and the small sizes, the only ones that tell anything about alpha, have no say.",
)

# %% [markdown]
# A collective that is over before it has begun! So count **relative** errors: 10 % off is 10 % off, at any size. Choose
# $\alpha$ and $\beta$ so that
#
# $$ \sum_i \left( \frac{\alpha + n_i \beta - t_i}{t_i} \right)^2 $$
#
# is smallest. Divided by $t_i$, this is an ordinary least-squares problem again: in each row, $\frac{1}{t_i} \alpha +
# \frac{n_i}{t_i} \beta$ should come as close as possible to 1. `torch.linalg.lstsq(rows, ones).solution` solves it.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Look at one row of the sum: what multiplies $\alpha$, what multiplies $\beta$, and what should come out?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Every row has two numbers, $1/t_i$ and $n_i/t_i$, and the right-hand side is 1 everywhere. `torch.stack([first,
# second], dim=1)` makes two columns of two vectors; the right-hand side is one column of ones, of shape (sizes, 1).
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Stack `1 / t` and `n / t` as two columns, make a column of ones in float64 too, and give both to `torch.linalg.lstsq`.
# Its solution has shape (2, 1): flatten it and turn it into two plain numbers.
# </details>

# %% exercise="fit" difficulty=3 minutes=12
def fit(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """(alpha, beta): the line alpha + n * beta with the smallest sum of squared
    RELATIVE errors, computed in float64.

    sizes: two different ones or more, in bytes; seconds: one above 0 for each.
    alpha in seconds, as it comes out, even if it is below 0; beta in seconds per byte.
    Both are plain numbers.
    """
    n = torch.tensor(sizes, dtype=torch.float64)
    t = torch.tensor(seconds, dtype=torch.float64)
    ### BEGIN SOLUTION
    rows = torch.stack([1 / t, n / t], dim=1)  # (sizes, 2)
    ones = torch.ones(len(t), 1, dtype=torch.float64)
    alpha, beta = torch.linalg.lstsq(rows, ones).solution.flatten().tolist()
    ### END SOLUTION
    return alpha, beta

# %% check="fit" judges="values" points=4
check(fit, judges="values")

# %%
alpha, beta = fit(given_sizes, given_times)
print(
    f"by relative errors: alpha {alpha * 1e6:.1f} µs, 1 / beta {1 / beta / 1e9:.2f} "
    "GB/s"
)

# %% [markdown]
# And your sweep of this machine?

# %% tags=["nbval-ignore-output"]
alpha, beta = fit(sizes, times)
print(f"alpha {alpha * 1e6:.0f} µs, 1 / beta {1 / beta / 1e9:.2f} GB/s")
title = f"all-reduce of {run.world_size} ranks, and the fitted line"
figures.sweep(sizes, times, rates, title, (alpha, beta), limits)

# %% [markdown]
# Even so, a noisy machine can give an $\alpha$ below 0. Don't correct it, and don't hide it: it tells you that your
# times don't lie on a line, or that the small sizes were disturbed. Measure again with more repeats, or give up the
# model for small sizes. (Programs that must go on, such as `measure_this_machine`, then take 0 and fit $\beta$ alone.)

# %% [markdown]
# ## Size for a share of the peak
#
# How large must a message be to be worth its latency? At size $n$ the bandwidth is $n / (\alpha + n\beta)$; it grows
# with $n$ and never quite reaches its peak, $1/\beta$. Half the peak is reached where latency and bytes take equally
# long: at $n = \alpha / \beta$, the **half-bandwidth size**.
#
# **Predict**: how many times larger is the size for 90 % of the peak?

# %%
predict("times the half-bandwidth size", ...)

# %% [markdown]
# Find the size for any share $s$: solve $\frac{n}{\alpha + n\beta} = s \cdot \frac{1}{\beta}$ for $n$.

# %% exercise="size-for-share" difficulty=2 minutes=6
def size_for_share(share: float, alpha: float, beta: float) -> float:
    """The size n in bytes at which n / (alpha + n * beta) is `share` of its peak,
    1 / beta.

    share: above 0 and below 1. alpha: seconds, 0 or more.
    beta: seconds per byte, above 0.
    """
    ### BEGIN SOLUTION
    return share / (1 - share) * alpha / beta
    ### END SOLUTION

# %%
for share in (0.5, 0.9, 0.99):  # one message: 1 µs, and NVLink's 450 GB/s
    size = size_for_share(share, 1e-6, 1 / 450e9)
    print(f"{share:.0%} of the peak from {size / 1e3:,.0f} kB on")

# %% check="size-for-share" judges="values" points=2
check(size_for_share, judges="values")

# %%
reveal(
    "times the half-bandwidth size",
    size_for_share(0.9, 1e-6, 1 / 450e9) / size_for_share(0.5, 1e-6, 1 / 450e9),
    why="At 90 % the bytes must take nine times as long as the latency; at 99 %, 99 times.",
)

# %% [markdown]
# Even with a latency of only 1 µs, half the peak takes 450 kB. And that was one message. A ring all-reduce on 8 ranks
# sends 14 of them, each an eighth of the tensor, so it needs 8 times the size.

# %% [markdown]
# ## Crossover of two algorithms
#
# Two algorithms, two lines: one with less latency, one with more bandwidth. Below the **crossover** the first is
# faster, above it the second. A library that knows the crossover can choose (in lesson 02 you write one that does).
#
# **Predict** for `(alpha, beta)` of (10 µs, 0.3 ns) and (50 µs, 0.1 ns): at which size, in bytes, do the two meet? And
# with a $\beta$ of 0.3 ns for both, do they ever meet at a size above 0?

# %%
predict("the crossover", ...)
predict("with equal betas they meet", ..., choices=["at one size", "at no size"])

# %% exercise="crossover" difficulty=2 minutes=8
def crossover(one: tuple[float, float], other: tuple[float, float]) -> float | None:
    """The size in bytes, above 0, at which two algorithms take equally long; None if
    there is no such size, or if they do at every size.

    one, other: (alpha, beta) of each, in either order; alpha in seconds, 0 or more,
    beta in seconds per byte, above 0. The betas of fast links are below 1e-10 and may
    differ by less than 1 %: such a difference counts.
    """
    (alpha_one, beta_one), (alpha_other, beta_other) = one, other
    ### BEGIN SOLUTION
    if beta_one == beta_other:
        return None  # parallel lines
    size = (alpha_other - alpha_one) / (beta_one - beta_other)
    return size if size > 0 else None
    ### END SOLUTION

# %% check="crossover" judges="values" points=3
check(crossover, judges="values")

# %%
meeting = crossover((10e-6, 0.3e-9), (50e-6, 0.1e-9))
parallel = crossover((10e-6, 0.3e-9), (50e-6, 0.3e-9))

# %%
reveal("the crossover", meeting, unit="B", why="Per byte the second gains 0.2 ns, and it has 40 µs to catch up.")
reveal(
    "with equal betas they meet",
    "at no size" if parallel is None else "at one size",
    why="The lines are parallel. Nor do they meet above 0 if one of them is better in both numbers.",
)

# %% [markdown]
# For an all-reduce on 4 ranks, a ring has a latency of $6\alpha$ and moves $\frac{6}{4} n$ bytes; a tree has $4\alpha$
# and moves $4n$. Where do they meet on the lab's links? And which does the virtual cluster take just below that size,
# and just above it?

# %% tags=["notebook-only"]
ring = (6 * wire.alpha, 6 / 4 / wire.bandwidth)
tree = (4 * wire.alpha, 4 / wire.bandwidth)
meet = crossover(ring, tree)
print(f"they meet at {meet:,.0f} bytes")

def all_reduce_of(rank, world_size, nbytes):
    dist.all_reduce(torch.empty(nbytes // 4))

for nbytes in (72_000, 88_000):
    run = simulate(all_reduce_of, 4, nbytes, cluster=lab)
    [(op, size, layout, times_called, cost)] = run.algorithms
    print(f"{nbytes:,} bytes: {cost.algorithm}")

# %% [markdown]
# ## Held-out errors
#
# A line that passes close to the points it was fitted to proves little. The test of a model is a size that it has
# **not** seen: leave one out, fit the line to the others, predict the one, and compare. Then leave out the next. The
# error is relative and has a sign: +0.2 is a prediction that is 20 % too long.
#
# **Predict** for the made-up machine, whose times are alternately 10 % too long and 10 % too short: where a time was
# too long, is the prediction too long or too short?

# %%
predict(
    "where a time was too long, the prediction is",
    ...,
    choices=["too long", "too short"],
)

# %% exercise="held-out-errors" difficulty=2 minutes=8
def held_out_errors(
    sizes: list[int], seconds: list[float], fit: Callable
) -> list[float]:
    """For each size: predicted / measured - 1, predicted by a fit to all the others.

    sizes: three or more; a size or a time can occur twice. fit(sizes, seconds) takes
    two lists and returns (alpha, beta), as above. Leave both lists unchanged.
    """
    errors = []
    for held_out in range(len(sizes)):
        ### BEGIN SOLUTION
        others = [index for index in range(len(sizes)) if index != held_out]
        their_sizes = [sizes[index] for index in others]
        alpha, beta = fit(their_sizes, [seconds[index] for index in others])
        errors.append((alpha + sizes[held_out] * beta) / seconds[held_out] - 1)
        ### END SOLUTION
    return errors

# %%
errors = held_out_errors(given_sizes, given_times, fit)
too_long = [error for error, factor in zip(errors, off) if factor > 1]
[f"{error:+.0%}" for error in errors]

# %%
reveal(
    "where a time was too long, the prediction is",
    "too short" if max(too_long) < 0 else "too long",
    why="The fit to the others is close to the true line, and the time in question is above it.",
)

# %% check="held-out-errors" judges="values" points=3
check(held_out_errors, judges="values")

# %% [markdown]
# The times were disturbed by 10 %, and each prediction is off by a little more. And for your machine:

# %% tags=["nbval-ignore-output"]
for nbytes, error in zip(sizes, held_out_errors(sizes, times, fit)):
    print(f"{nbytes:12,} bytes: {error:+.0%}")

# %% [markdown]
# Real machines are less regular. Where the tensor no longer fits into a cache, or the library switches to a different
# algorithm, the curve bends, and a single line can miss by tens of percent. State the error together with the model,
# and the model is useful.

# %% [markdown]
# ## Latency and bandwidth of the link
#
# The last step goes from what you measure, a collective, to what you want to know: the link beneath it. If the
# all-reduce is a ring of $P$ ranks, each of its $2(P-1)$ steps sends one chunk of $n/P$ bytes:
#
# $$ t(n) = 2(P-1) \left( \alpha_{\text{link}} + \frac{n}{P \cdot B} \right) $$
#
# with the link's latency $\alpha_{\text{link}}$ and its bandwidth $B$ in bytes/s. Your fit gives
# $t(n) = \alpha + n\beta$. Compare the two expressions.
#
# **Predict**: what share of the link's $B$ is the fitted $1/\beta$ for 2 ranks, and for 1,000 ranks?

# %%
predict("1 / beta as a share of B, 2 ranks", ...)
predict("1 / beta as a share of B, 1,000 ranks", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Two expressions for the same time, as functions of $n$: the ring's formula and your fitted line. What is the part
# without $n$ in each?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# The part of $t(n)$ that doesn't depend on $n$ is the fitted $\alpha$; the factor of $n$ is the fitted $\beta$. Solve
# each for the link's number.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# With `steps = 2 * (world_size - 1)`, the fitted `alpha` is `steps` latencies, and the fitted `beta` is `steps /
# world_size` divided by the bandwidth. `seconds_of` wants a function without arguments: `partial(dist.all_reduce,
# x)`.
# </details>

# %% exercise="recover-the-link" difficulty=3 minutes=12
def recover_the_link(
    sizes: list[int], seconds_of: Callable, fit: Callable, rank: int, world_size: int
) -> tuple[float, float]:
    """(alpha, bandwidth) of one link, in seconds and bytes/s, from ring all-reduces of
    the given sizes.

    sizes: in bytes, three or more. fit(sizes, seconds) returns (alpha, beta). At least
    2 ranks, all of which call this.
    seconds_of(operation): how long one collective takes, the same on every rank.
    operation() calls dist.all_reduce once, and may return its handle. Call seconds_of
    once for each size.
    """
    seconds = []
    for nbytes in sizes:
        x = torch.zeros(nbytes // 4, device=get_device())  # float32
        ### BEGIN SOLUTION
        seconds.append(seconds_of(partial(dist.all_reduce, x)))
        ### END SOLUTION
    alpha, beta = fit(sizes, seconds)
    ### BEGIN SOLUTION
    steps = 2 * (world_size - 1)
    return alpha / steps, steps / world_size / beta
    ### END SOLUTION

# %% check="recover-the-link" judges="values" points=4
check(recover_the_link, judges="values")

# %% [markdown]
# Now put together everything that you have written, on the lab cluster: your clock, your slowest rank, your median,
# your fit. The truth is 10 µs and 10 GB/s.

# %% tags=["notebook-only"]
def everything(rank, world_size):
    sizes = sweep_sizes(
        256 * 1024, 16 * 1024**2, step=4, itemsize=4, world_size=world_size
    )

    def seconds_of(operation):
        return measure(operation, warmup=1, repeats=3)[0]

    return recover_the_link(sizes, seconds_of, fit, rank, world_size)

for ranks in (2, 5, 8):
    alpha, bandwidth = simulate(everything, ranks, cluster=lab, device="cpu").results[0]
    print(f"{ranks} ranks: alpha {alpha * 1e6:.3f} µs, {bandwidth / 1e9:.3f} GB/s")

# %%
shares = {ranks: ranks / (2 * (ranks - 1)) for ranks in (2, 1000)}

# %%
reveal("1 / beta as a share of B, 2 ranks", shares[2], why="The line's $1/\\beta$ is $\\frac{P}{2(P-1)} B$.")
reveal(
    "1 / beta as a share of B, 1,000 ranks",
    shares[1000],
    why="It is the `algbw` of large tensors, and tends to half of $B$. Their `busbw` is $B$ for any number of ranks.",
)

# %% [markdown]
# For that, every detail of the benchmark had to be right. The same functions, unchanged, measure a real cluster.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - **Synchronize, meet, start the clock, call, wait, synchronize, stop the clock.** An asynchronous call that nobody
#   waits for takes no time and has infinite bandwidth.
# - Warm up. Take the **slowest rank** of each repeat, the **median** of the repeats, and state the spread.
# - $S$ is the size of the **whole**. `algbw` is $S/t$, in $10^9$ bytes per second; `busbw` is that times $2(P-1)/P$ for
#   all-reduce, $(P-1)/P$ where there are chunks, 1 for broadcast and reduce. Compare `busbw` with one direction of a
#   link.
# - 277 and 75 "GB/s" were really 298 and 321 GB/s.
# - Fit $\alpha$ and $\beta$ by **relative** errors. $\alpha/\beta$ is the half-bandwidth size; where two lines cross,
#   the other algorithm becomes the faster one. Test a model on sizes that it has not seen.
#
# **The library.** The course has a benchmark that does all this, for all eight collectives, on real and virtual ranks,
# with the columns of nccl-tests. In a terminal: `python -m utils.benchmark all_reduce --sizes 1K..64M`, or
# `--cluster dgx-h100`. In a notebook:

# %% tags=["notebook-only"]
table = benchmark("all_reduce", "1K..256M", world_size=8, cluster="dgx-h100", step=8)
table

# %% tags=["notebook-only"]
table.figure()

# %% [markdown]
# (PyTorch's all-reduce works in place, so the out-of-place columns say N/A.) The dashed line misses the middle,
# since a library such as NCCL has several algorithms and takes the fastest for each size: here a ring of low latency up
# to 512 KiB, a ring of more bandwidth at 4 MiB, and from 32 MiB on, addition inside the switch. One line can't describe
# all three.
#
# On GPUs, use `nccl-tests` itself. For anything in one process, `torch.utils.benchmark.Timer` warms up, repeats and
# synchronizes for you.
#
# **The paper.** Hoefler, Belli: *Scientific benchmarking of parallel computing systems: twelve ways to tell the masses
# when reporting performance results* (SC 2015). Why the mean is not enough, and what a benchmark must state.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## The shortest benchmark
# A sweep over many sizes takes time, and on a large cluster every second is expensive. How little can you get away
# with?
#
# `seconds_of(nbytes)` times one call, which takes $\alpha + \beta n$ seconds. Each reading is up to 2 % too long or too
# short. The same size gives the same reading again, so repeating doesn't help; different sizes are off by different
# amounts. Find both $\alpha$ and $\beta$ to within 5 %. You don't know what kind of link it is.
#
# The score is the time spent in all calls, as a multiple of $\alpha$, on average over many links. Par doubles the size
# until a call takes ten times as long as the smallest one. The limit is two calls: two numbers can't be found from one,
# and each call takes at least $\alpha$.

# %% exercise="shortest-benchmark" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def shortest_benchmark(seconds_of: Callable[[int], float]) -> tuple[float, float]:
    """(alpha, beta) of a link in seconds and seconds per byte, each to within 5 %.

    seconds_of: (bytes, a whole number from 1 on) -> seconds of a call, to within 2 %.
    alpha: 0.1 µs to 10 ms. beta: 1e-13 to 1e-8 s per byte, and always less than
    alpha / 1000.
    """
    ### BEGIN SOLUTION
    smallest = took = seconds_of(1)
    nbytes = 1
    while took < 10 * smallest:
        nbytes *= 2
        took = seconds_of(nbytes)
    return smallest, (took - smallest) / nbytes
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint 1: what to look at</summary>
#
# Most of par's calls are at sizes where nothing but $\alpha$ shows. And its last calls are long.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Take larger steps. But a step that goes too far costs a very long call. How large must $\beta n$ be, compared with
# $\alpha$, for two readings that are off by 2 % to give $\beta$ within 5 %?
# </details>
# <details><summary>Hint 3: beyond that</summary>
#
# As soon as a reading is a little longer than the smallest one, it says roughly what $\beta$ is. Then you know where
# the last reading should be.
# </details>

# %% check="shortest-benchmark" judges="score" points=3
check(shortest_benchmark, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
