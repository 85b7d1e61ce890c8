# %% [markdown] question="How long will a training step take, how much memory will it need, and what limits it?"
# # Machines and cost models
# *you need: lesson 01, the eight collectives. Useful: the algorithms of lesson 02 and the fit of lesson 03. You do not
# need a GPU.*
#
# A training step computes, and it moves data: between memory and chip, between GPUs, between machines. In this lesson
# you write down what each of these costs, in formulas short enough for the back of an envelope. Then you check every
# formula against a run, most of them to the last digit.
#
# By the end you'll be able to tell, before you rent a cluster, whether a model fits on it, how fast it will train, and
# which wire or which memory is the limit.

# %%
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from statistics import median

import torch
import torch.distributed as dist
from torch import nn

from utils import figures, simulate, spawn
from utils.benchmark.machine import memory_hierarchy
from utils.benchmark.machine.probes import fit as fit_link
from utils.checks import checks_for
from utils.cluster import Cluster, Gpu, Link, find_cluster, quantity
from utils.kit import gpu_topology, split_mlp
from utils.kit.message_rounds import Round, play
from utils.kit.mlp import forward, loss_of
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.slow_memory import SlowMemory, unwritten

check = checks_for("04_cost_models")
# this lesson measures the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# peaks and bandwidths as promised: times can be computed by hand
simulate = partial(simulate, rates="datasheet")

# %% [markdown]
# ## Why: sixteen times the price
# Here is an MLP of 8 layers, 4,096 wide, in bfloat16, and a batch of 4,096 rows. One H100 takes a few milliseconds for
# a step. We rent more of them, in machines of 8 that are joined by Ethernet, and use plain data parallelism: each GPU
# computes its share of the rows, and then all of them all-reduce the gradients. `simulate` runs this program on a
# **virtual cluster**, whose clock follows a model of the hardware; its times are the same in every run.
#
# **Predict** how many times as fast 16 GPUs are as one: run the cell and type a number, or replace the `...` with it.
# Predictions earn no points, and you can skip them; but a guess that turns out wrong is what you'll remember.

# %%
predict("times as fast on 16 GPUs", ...)

# %% tags=["notebook-only"]
def data_parallel_step(rank, world_size, rows, dim, layers):
    weights = [
        torch.empty(dim, dim, dtype=torch.bfloat16).requires_grad_()
        for _ in range(layers)
    ]
    x = torch.empty(rows // world_size, dim, dtype=torch.bfloat16)
    loss_of(forward(weights, x)).backward()
    if world_size > 1:
        for weight in weights:
            dist.all_reduce(weight.grad)

def step_seconds(gpus, rows=4096):
    run = simulate(data_parallel_step, gpus, rows, 4096, 8, cluster="ethernet-cloud")
    return run.elapsed

first_page = {gpus: step_seconds(gpus) for gpus in (1, 8, 16, 32)}
for gpus, seconds in first_page.items():
    print(f"{gpus:2} GPUs: {seconds * 1e3:.2f} ms a step,", end=" ")
    print(f"{first_page[1] / seconds:.2f} times as fast")

# %%
reveal(
    "times as fast on 16 GPUs",
    first_page[1] / first_page[16],
    why="Each GPU has a sixteenth of the rows to compute, and all of the gradients to exchange. The exchange alone "
    "takes longer than one GPU needs for everything.",
)

# %% [markdown]
# Sixteen times the price, and slower than a single GPU. Nothing is broken: no GPU failed, and the network runs at full
# speed. The arithmetic was against us from the start, and it would have taken five minutes to see it. The rest of this
# lesson is that arithmetic.

# %% [markdown]
# # Part 1 · The memory hierarchy
# A processor computes only with what is right next to it. Everything else has to be fetched first: from a cache, from
# memory, from another GPU, from another machine. Each level is larger, farther away and slower than the one before. Let
# us measure how much slower, on your machine. One core copies arrays of 4 kB to 64 MB; small ones stay in a cache. The
# first copy, of a single number, shows what it costs merely to **start** one.

# %% tags=["nbval-ignore-output"]
sizes = [4, *memory_hierarchy.SIZES]  # bytes
_, seconds = memory_hierarchy.time_copies(sizes)
(one_number, *nbytes), (fixed, *seconds) = sizes, seconds
print(f"a copy of one number takes {quantity(fixed, 's')}")
figures.bandwidths(nbytes, seconds, memory_hierarchy.levels(), fixed)

# %% [markdown]
# Look at the grey line first. From right to left you see memory, then faster and faster caches; but at the far left it
# gets slow again, though nothing is nearer to the core. A copy there is over so soon that you see only the time that
# PyTorch takes to start one. A GPU has the same: the time to launch a kernel. Subtract that **fixed cost** from each
# time, and the blue line is left: now the nearest level is about as fast as the next one, or faster. (The smallest
# copies are the noisiest, since little of their time is left after the subtraction.) You'll meet both ends of the grey
# curve again with networks, where the fixed cost is called latency.

# %% [markdown]
# ## Bandwidth of each level
#
# Turn such measurements into one number for each level. **Bandwidth** is bytes moved per second. A copy of $n$ bytes
# reads $n$ and writes $n$: it moves, and touches, $2n$ bytes. It belongs to the first level that has room for all of
# them. Its time, less the fixed cost, is what the moving takes. Of several copies that belong to a level, take the
# **median**, which one disturbed copy can't change.
#
# **Predict** by hand: the fixed cost is 1 s, and the levels are `{"L1": 100, "memory": math.inf}` (bytes). Copies of
# 20, 50 and 60 bytes take 5, 6 and 61 seconds. What are the two bandwidths, as a list?

# %%
predict("bandwidths of L1 and memory", ...)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `levels` is ordered from small to large, so you want the first name whose size is at least `2 * n`:
# `next(name for name, size in ... if ...)`.
# </details>

# %% exercise="bandwidth-of-levels" difficulty=2 minutes=10
def bandwidth_of_levels(
    nbytes: list[int], seconds: list[float], fixed: float, levels: dict[str, float]
) -> dict[str, float]:
    """The bandwidth of each level of a memory hierarchy, in bytes/s.

    nbytes, seconds: copy i copied nbytes[i] bytes in seconds[i].
    fixed: seconds that starting a copy takes, part of each of the times. A copy that
        took less than 1.1 times that says little: leave it out.
    levels: {name: bytes that fit in it}, smallest first; the last has room for
        everything.
    Returns {name: median bandwidth of its copies}, without levels that have no copy.
    """
    rates = {name: [] for name in levels}
    for n, t in zip(nbytes, seconds):
        ### BEGIN SOLUTION
        if t < 1.1 * fixed:
            continue
        level = next(name for name, size in levels.items() if 2 * n <= size)
        rates[level].append(2 * n / (t - fixed))
        ### END SOLUTION
    return {name: median(found) for name, found in rates.items() if found}

# %%
by_hand = bandwidth_of_levels(
    [20, 50, 60], [5, 6, 61], 1, {"L1": 100, "memory": math.inf}
)

# %%
reveal(
    "bandwidths of L1 and memory",
    list(by_hand.values()),
    why="Without the fixed second they take 4, 5 and 60 s. 20 and 50 touch 40 and 100 bytes, which both fit in L1: "
    "their rates are 10 and 20 bytes/s, and the median is 15. 60 touches 120 bytes: memory, 120 / 60 = 2 bytes/s.",
)

# %% check="bandwidth-of-levels" judges="values" points=3
check(bandwidth_of_levels, judges="values")

# %% [markdown]
# Your machine, level by level, with your function. Then what lies beyond: **loopback** is the network inside one
# machine, through which two ranks talk here. With GPUs you also get their memory (**HBM**), their connection to
# the CPU (**PCIe**) and the link between two of them.

# %% tags=["nbval-ignore-output", "notebook-only"]
levels = memory_hierarchy.levels()
rates = bandwidth_of_levels(nbytes, seconds, fixed, levels) | memory_hierarchy.links()
for name, rate in rates.items():
    print(
        f"{name:>10}  {quantity(rate, 'B/s'):>12}   {rate / rates['loopback']:7.1f} "
        "times loopback"
    )

# %% [markdown]
# # Part 2 · The roofline
# Moving takes time and computing takes time. Which of the two decides? Count both. The **arithmetic intensity** of an
# operation is
#
# $$\text{FLOP that it computes} \;/\; \text{bytes that it moves}$$
#
# if each input is read from memory once and each output is written once. (A **FLOP** is one floating-point operation.)
# Adding two tensors of $n$ bfloat16 numbers, 2 bytes each, computes $n$ FLOP and moves $3n$ numbers, $6n$ bytes: $1/6$,
# whatever $n$ is.
#
# The product of an $(m, k)$ and a $(k, n)$ matrix has $m n$ numbers, each the sum of $k$ products: $k$ multiplications
# and $k$ additions. **Predict** the intensity for $m = k = n = 4096$ in bfloat16, in FLOP per byte.

# %%
predict("intensity of a 4096 x 4096 product", ...)

# %%
def matmul_work(m, k, n, element_size=2):
    """(FLOP, bytes) of a matrix product (m, k) @ (k, n)."""
    return 2 * m * k * n, (m * k + k * n + m * n) * element_size

def intensity(flops, moved):
    return flops / moved

for n in (1, 64, 256, 1024, 4096):
    print(f"n = {n:>4}: {intensity(*matmul_work(n, n, n)):8.1f} FLOP per byte")

# %%
reveal(
    "intensity of a 4096 x 4096 product",
    intensity(*matmul_work(4096, 4096, 4096)),
    why="$2n^3$ FLOP and $3n^2$ numbers of 2 bytes: $n / 3$. Work grows with $n^3$ and bytes with $n^2$, so a large "
    "product uses each number that it has read many times. A sum of two tensors uses it once and forgets it.",
)

# %% [markdown]
# ## Time under the roofline
#
# A GPU computes and moves data at the same time. So an operation takes as long as the **slower** of the two, plus the
# time to launch it:
#
# $$t = \max\left(\frac{\text{FLOP}}{\text{peak}}, \frac{\text{bytes}}{\text{bandwidth}}\right) + \text{launch}$$
#
# Both take equally long at an intensity of peak / bandwidth, the **ridge point**. Left of it an operation is
# **memory-bound**, right of it **compute-bound**. The model is called the **roofline**, after its picture:

# %%
h100 = find_cluster("dgx-h100", 1).gpu
points = {
    "x + y": 1 / 6,
    **{f"matmul {n}": intensity(*matmul_work(n, n, n)) for n in (128, 4096)},
}
figures.roofline(h100.peak("bfloat16"), h100.bandwidth, points, "bfloat16 on an H100")

# %% exercise="roofline-time" difficulty=2 minutes=8
def roofline_time(
    flops: float, moved: float, gpu: Gpu, dtype: str
) -> tuple[float, str]:
    """How long an operation takes on `gpu`, and what it is bound by.

    flops: FLOP that it computes; moved: bytes that it moves; dtype: such as "bfloat16".
    gpu: has gpu.peak(dtype) in FLOP/s, gpu.bandwidth in bytes/s, gpu.launch in seconds.
    Returns (seconds, "memory" if moving takes longer than computing, else "compute").
    """
    computing = flops / gpu.peak(dtype)
    ### BEGIN SOLUTION
    moving = moved / gpu.bandwidth
    seconds = max(computing, moving) + gpu.launch
    bound = "memory" if moving > computing else "compute"
    ### END SOLUTION
    return seconds, bound

# %% check="roofline-time" judges="values" points=2
check(roofline_time, judges="values")

# %% [markdown]
# The second check lets a virtual GPU run real PyTorch operations and compares its clock with your prediction.

# %% check="roofline-time" judges="time" points=2
check(roofline_time, judges="time")

# %% [markdown]
# How large must a product be to be compute-bound? For square products in bfloat16 the intensity is $n / 3$, so $n$ must
# be three times the ridge point. **Predict**: what share of its peak does an H100 reach just above that, at $n = 886$?

# %%
predict("share of the peak at n = 886", ...)

# %%
ridge = h100.peak("bfloat16") / h100.bandwidth
used = {}
for n in (64, 885, 886, 8192):
    took, bound = roofline_time(*matmul_work(n, n, n), h100, "bfloat16")
    used[n] = 2 * n**3 / took / h100.peak("bfloat16")
    print(
        f"n = {n:>4}: {quantity(took, 's'):>9}, bound by {bound:<8}{used[n]:6.1%} of "
        "peak"
    )
print(f"ridge point: {ridge:.0f} FLOP per byte, so n = {3 * ridge:.0f}")

# %%
reveal(
    "share of the peak at n = 886",
    used[886],
    why="Moving is no longer the bottleneck, but launching the kernel takes longer than the product itself. Small "
    "operations waste a GPU, whatever they do.",
)

# %% [markdown]
# ### Datasheet and achieved
# Does a real H100 reach 99 % of its peak at $n = 8192$? No. The roofline says what **can't be exceeded**. The best
# that a search over many shapes has found for a single product on an H100 is 794.5 of 989 TFLOP/s, 80 %; on an A100 it
# is 271 of 312, 87 % (Bekman, *Machine Learning Engineering*, "maximum achievable matmul FLOPS"). A chip lowers its
# clock when it gets hot, and the tiles at the edge of a matrix are partly empty. So keep two rooflines: the
# datasheet's, to compare with formulas, and the achieved one, to estimate times.

# %%
achieved = replace(h100, flops={"bf16": 794.5e12})
for name, gpu in (("datasheet", h100), ("achieved", achieved)):
    took, bound = roofline_time(*matmul_work(8192, 8192, 8192), gpu, "bfloat16")
    ridge_point = gpu.peak("bfloat16") / gpu.bandwidth
    print(
        f"{name:>9}: {quantity(took, 's')}, ridge point {ridge_point:.0f} FLOP per byte"
    )

# %% [markdown]
# And one core of your machine?

# %% tags=["nbval-ignore-output", "notebook-only"]
peak, bandwidth = memory_hierarchy.one_core()
of_h100 = h100.peak("float32") / h100.bandwidth
f"{peak / bandwidth:.1f} FLOP per byte in float32; an H100: {of_h100:.1f}"

# %% [markdown]
# # Part 3 · Moving less
# If an operation is memory-bound, a faster chip doesn't help. Moving less does. There are two ways to do that, and
# every GPU library relies on both: **fusion** and **tiling**.
#
# To count bytes exactly we use a memory that counts: a `SlowMemory` holds named arrays, far from the chip. `load`
# copies a part of an array to the chip, and `store` writes one back. Computing on the chip costs nothing, but the chip
# only has `room` for so many loaded numbers at a time.

# %%
memory = SlowMemory({"x": torch.arange(6.0), "y": unwritten(6)}, room=8)
part = memory.load("x", slice(0, 4))  # numbers 0 to 3: 16 bytes
memory.store("y", part * 10, slice(0, 4))
memory.arrays["y"], memory.loaded, memory.stored

# %% [markdown]
# ## Kernel fusion
#
# `torch.relu(x * scale + shift)` looks like one line, but it is **three** operations. Each reads its input from memory
# and writes its result back, and the next one reads that again. Here it is, block by block:

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

def unfused_memory(numel):
    empty = {name: unwritten(numel) for name in ("scaled", "shifted", "y")}
    return SlowMemory({"x": torch.arange(numel) - 500.0, **empty}, room=256)

unfused = unfused_memory(1000)
unfused_chain(unfused, 1000, 2.0, 3.0)
f"{unfused.moved:,} bytes moved for {1000 * 4:,} bytes of input"

# %% [markdown]
# A **fused** kernel does all three while a block is on the chip. **Predict** how many bytes it moves for these 1,000
# float32 numbers.

# %%
predict("bytes moved by the fused kernel", ...)

# %% exercise="fused-chain" difficulty=2 minutes=8
def fused_chain(
    memory: SlowMemory, numel: int, scale: float, shift: float
) -> SlowMemory:
    """Fill "y" with relu(x * scale + shift): load each number of "x" once, store each
    number of "y" once.

    memory: arrays "x" and "y", (numel,) each. Only parts fit on the chip: load blocks
        of `block` numbers; the last one may be shorter. memory.load("x", slice(a, b)),
        memory.store("y", values, slice(a, b)).
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

# %%
fused = fused_chain(unfused_memory(1000), 1000, 2.0, 3.0)

# %%
reveal(
    "bytes moved by the fused kernel",
    fused.moved,
    unit="B",
    why="One read and one write of each number, instead of three reads and three writes.",
)

# %% check="fused-chain" judges="values" points=2
check(fused_chain, judges="values")

# %% check="fused-chain" judges="traffic" points=2
check(fused_chain, judges="traffic")

# %% [markdown]
# Does it pay on this machine? One operation after another over 64 MB reads and writes memory three times. Block by
# block, with blocks that fit into a cache, only the first operation reads from memory and only the last writes there.
# To see this and nothing else, both write into tensors that already exist. The third way makes new tensors, as
# `torch.relu(x * 0.5 + 3)` does. If that takes even longer, the rest is the system handing out memory. The
# fourth has blocks but no fusion: it finishes one operation on all blocks before it starts the next.

# %% tags=["nbval-ignore-output"]
def compare(rank, world_size):
    from utils.benchmark.machine.probes import seconds_of

    x, y, scaled, shifted = (torch.ones(2**24) for _ in range(4))
    whole = [(x, scaled, shifted, y)]
    blocks = list(zip(*(tensor.split(2**16) for tensor in whole[0])))

    def unfused(parts):
        for x, scaled, _, _ in parts:
            torch.mul(x, 0.5, out=scaled)
        for _, scaled, shifted, _ in parts:
            torch.add(scaled, 3, out=shifted)
        for _, _, shifted, y in parts:
            torch.clamp(shifted, min=0, out=y)

    def fused():
        for x, _, _, y in blocks:
            torch.clamp(torch.mul(x, 0.5, out=y).add_(3), min=0, out=y)

    ways = {
        "one operation after another": lambda: unfused(whole),
        "block by block, fused": fused,
        "one after another, new tensors": lambda: torch.relu(x * 0.5 + 3),
        "one after another, each in blocks": lambda: unfused(blocks),
    }
    cpu = torch.device("cpu")
    return {
        name: min(seconds_of(way, 1, cpu) for _ in range(5))
        for name, way in ways.items()
    }

took = spawn(compare, 1).results[0]
for name, seconds_taken in took.items():
    print(f"{name:>33}: {seconds_taken * 1e3:6.1f} ms")
gain = took["one operation after another"] / took["block by block, fused"]
f"fusion gains a factor of {gain:.1f}; by the bytes alone it would be 3"

# %% [markdown]
# `torch.compile` finds such chains in your model and writes fused kernels for them. Three small operations also cost
# three launches; fused, one.

# %% [markdown]
# ## Tiled matrix multiplication
#
# The intensity of a matrix product assumed that each input is read once. But the matrices don't fit on the chip. The
# naive product computes the numbers of $C$ one at a time and reads a row of $A$ and a column of $B$ for each, so every
# number of $A$ is read $n$ times. Its intensity is hardly better than that of a sum.
#
# **Tiling** computes a whole tile of $C$ at a time, as a sum of products of tiles: of $A$ along a row, of $B$ down a
# column.

# %%
figures.tiles(tiles_a_side=4, row=1, column=2, step=0)

# %% [markdown]
# A tile of $t \times t$ numbers, once loaded, is used for $t$ rows or columns of the result. **Predict** for $n = 64$
# and $t = 16$, in float32: how many bytes are loaded for $A$ and $B$ together?

# %%
predict("bytes loaded with tiles of 16", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The two loops choose one tile of $C$. Inside them you need a third loop, along the inner dimension, of length `k`.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# The tile of $C$ is a running sum. Start with nothing; at each step load one tile of $A$ and one of $B$, multiply them,
# add. It goes back to memory only when the sum is complete.
# </details>
#
# <details><summary>Hint 3: a check by hand</summary>
#
# In matrices of 64 with tiles of 16, a tile of $C$ takes four steps. In the second, the tile of $A$ is in the rows of
# $C$'s tile and in columns 16 to 31, and the tile of $B$ in rows 16 to 31. So both share one slice, which moves.
# </details>

# %% exercise="tiled-matmul" difficulty=3 minutes=15
def tiled_matmul(memory: SlowMemory, m: int, k: int, n: int) -> SlowMemory:
    """Fill "c" with a @ b, tile by tile. Load each number of "a" ceil(n / tile) times
    and each of "b" ceil(m / tile) times at most; store each of "c" once.

    memory: "a" (m, k), "b" (k, n), "c" (m, n); sizes need not be divisible by `tile`.
        The chip has room for four tiles. memory.load("a", slice(...), slice(...)) takes
        rows and columns; a slice may reach over the end.
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

# %% check="tiled-matmul" judges="values" points=3
check(tiled_matmul, judges="values")

# %% check="tiled-matmul" judges="traffic" points=3
check(tiled_matmul, judges="traffic")

# %%
side = 64
a, b = torch.ones(side, side), torch.ones(side, side)
# bytes loaded: a row and a column for each of side * side numbers
naive = 2 * side**3 * 4
loaded = {}
for tile in (4, 16, 32):
    memory = SlowMemory(
        {"a": a, "b": b, "c": unwritten(side, side)}, room=4 * tile * tile
    )
    loaded[tile] = tiled_matmul(memory, side, side, side).loaded
    print(f"tiles of {tile:>2}: {loaded[tile]:>9,} bytes loaded,", end="")
    print(f" {naive // loaded[tile]:>2} times less than naive,", end="")
    print(f" {2 * side**3 / loaded[tile]:5.2f} FLOP per byte")

# %%
reveal(
    "bytes loaded with tiles of 16",
    loaded[16],
    unit="B",
    why="There are 4 tiles a side, so each number of $A$ and of $B$ is loaded 4 times: "
    "$2 \\cdot 4 \\cdot 64^2$ numbers of 4 bytes.",
)

# %% [markdown]
# The intensity is $t / 4$ in float32 and $t / 2$ in bfloat16: it depends on the tile, not on the matrix. How large must
# a tile be for the product to be compute-bound on an H100? And do three such tiles fit next to the arithmetic units, in
# 228 kB of **shared memory**?

# %%
t = 2 * ridge
print(
    f"tiles of {t:.0f} x {t:.0f}; three in bfloat16 take {quantity(3 * t * t * 2, 'B')}"
)

# %% [markdown]
# They don't. So GPU libraries tile **twice**: large tiles for the cache that all units share (L2, 50 MB), small ones
# for the shared memory of each unit. And if a matrix is too large for any GPU, the next level has one tile for each
# **rank**: that is tensor parallelism, lesson 08. It is the same idea all the way up.
#
# FlashAttention is both at once: it tiles the product $Q K^T$ and fuses the softmax and the product with $V$ into the
# same kernel, so that the scores never reach memory. You'll count what that saves in part 7.

# %% [markdown]
# # Part 4 · The wiring
# Inside a machine, not all GPUs are wired alike. NVIDIA's tool shows how: `nvidia-smi topo -m`. The course comes with
# recordings in its format, of typical machines:

# %%
print(gpu_topology.recorded("eight-cube-mesh").expandtabs(7))

# %% [markdown]
# There is a row for each GPU and each network card (**NIC**). `NV2` means two NVLinks side by side. The others go
# through PCIe, and the legend lists them from slow (`SYS`, across the link between two CPU sockets) to fast (`PIX`,
# through a single switch).

# %% [markdown]
# ## The link matrix
#
# Turn the text into a matrix whose entry $(i, j)$ is the link from GPU $i$ to GPU $j$. A few things are in the way:
#
# - rows and columns of NICs, columns of CPU affinity, the legend;
# - terminals underline the first line with invisible codes such as `\x1b[4m`, which may be in the text;
# - columns are separated by tabs or by spaces, depending on who copied the text.
#
# The first line begins with white space; the row of GPU 3 begins with `GPU3`.

# %%
gpu_topology.recorded("two-bridged")[:90]

# %% [markdown]
# <details><summary>Hint</summary>
#
# `text.splitlines()` gives the lines, and `line.split()` without arguments splits a line at any white space. Count the
# rows of GPUs: that many columns, right after the name, belong to GPUs.
# </details>

# %% exercise="read-topology" difficulty=2 minutes=10
def read_topology(text: str) -> list[list[str]]:
    """The links between the GPUs of a machine, from the text of `nvidia-smi topo -m`.

    Returns one list for each GPU, with one label for each GPU: "X" for itself,
    otherwise a label such as "NV4" or "SYS". No NICs.
    """
    ### BEGIN SOLUTION
    lines = [line for line in text.splitlines() if line.startswith("GPU")]
    gpus = len(lines)
    matrix = [line.split()[1 : gpus + 1] for line in lines]
    ### END SOLUTION
    return matrix

# %% check="read-topology" judges="values" points=4
check(read_topology, judges="values")

# %% [markdown]
# What is it good for? Many algorithms send data **around a ring**: each GPU to the next, the last to the first, all at
# once. The ring is only as fast as its **slowest** link. In rank order, this is the ring of the cube mesh:

# %%
cube_mesh = read_topology(gpu_topology.recorded("eight-cube-mesh"))
figures.topology(cube_mesh, "a ring in rank order", ring=list(range(8)))

# %% [markdown]
# **Predict**: if you may choose the order of the GPUs, how fast can the slowest link of the ring be?

# %%
predict("the slowest link of the best ring", ..., choices=["SYS", "NV1", "NV2"])

# %%
def slowest_link(ring):
    # ring[-1] comes before ring[0]
    labels = [cube_mesh[ring[at - 1]][ring[at]] for at in range(len(ring))]
    return min(labels, key=gpu_topology.speed)

rings = [[0, *others] for others in permutations(range(1, 8))]
best = max(rings, key=lambda ring: gpu_topology.speed(slowest_link(ring)))
figures.topology(cube_mesh, f"one of the best rings: {best}", ring=best)

# %%
reveal(
    "the slowest link of the best ring",
    slowest_link(best),
    why="Each GPU has two NV2 links, but those alone form two separate rings of four. To join them, the ring has to "
    "use some NV1.",
)

# %% [markdown]
# **NCCL** does this when it starts: it reads the wiring of the machine and of the NICs, and searches for rings and
# trees without slow links. (It doesn't try every order: for 8 GPUs there are 5,040, for 16 over a million million.) On
# newer machines there is nothing to search for: switches join every GPU with every other at full speed.

# %%
nvswitch = read_topology(gpu_topology.recorded("eight-nvlink"))
figures.topology(nvswitch, "eight-nvlink: NVSwitch joins all GPUs")

# %% [markdown]
# And this machine, if it has two GPUs or more:

# %% tags=["nbval-ignore-output"]
text = gpu_topology.of_this_machine()
here = read_topology(text) if text else []
nothing = f"{len(here)} GPUs to draw here"
figures.topology(here, "this machine") if len(here) > 1 else nothing

# %% [markdown]
# ### Tiers
# You'll meet these links throughout the course. Bandwidths are per GPU and in **one direction**: a rank sends and
# receives at the same time, but what it has to send goes out only one way. Datasheets like to add both directions.
#
# | tier | joins | one way | the datasheet says |
# |---|---|---|---|
# | HBM, on an H100 | a GPU and its own memory | 3,350 GB/s | 3.35 TB/s |
# | **NVLink 4** with **NVSwitch** | the 8 GPUs of a machine | 450 GB/s | "900 GB/s": both ways together |
# | **PCIe** 5, 16 lanes | GPU, CPU and NIC | 63 GB/s | "128 GB/s": both ways, before encoding |
# | **InfiniBand** NDR, one NIC per GPU | machines | 50 GB/s | "400 Gb/s": one way, in bits |
# | **Ethernet**, 4 NICs of 200 Gb/s for 8 GPUs | machines | 12.5 GB/s if all send | "200 Gb/s": one way, in bits |
#
# NVSwitch works within one NVLink domain. That used to be one machine; in an NVL72 rack it is 18 trays of 4 GPUs.
# Beyond the domain you need InfiniBand or Ethernet. How long does 1 GB take on each tier?

# %% tags=["notebook-only"]
def one_gigabyte(rank, world_size, receiver):
    x = torch.empty(250_000_000)  # float32
    began = time.perf_counter()  # the virtual clock of this rank
    if rank == receiver == 0:
        # reads half a GB from its own memory and writes it again
        x[:125_000_000].clone()
    elif rank == 0:
        dist.send(x, dst=receiver)
    elif rank == receiver:
        dist.recv(x, src=0)
    return time.perf_counter() - began

ways = {
    "own memory, HBM": (0, "dgx-h100"),
    "next GPU, NVLink": (1, "dgx-h100"),
    "next machine, InfiniBand": (8, "dgx-h100"),
    "next machine, Ethernet": (8, "ethernet-cloud"),
}
tiers = {
    name: simulate(one_gigabyte, 9, receiver, cluster=cluster).results[0]
    for name, (receiver, cluster) in ways.items()
}
for name, seconds in tiers.items():
    print(
        f"{name:>25}  {quantity(seconds, 's'):>9}  "
        f"{seconds / tiers['own memory, HBM']:6.1f} times"
    )

# %% [markdown]
# (Only one GPU sends here, so it has a whole 200 Gb/s NIC to itself. When all 8 send, two share each NIC.)
#
# ### TCP, RDMA and GPUDirect RDMA
# A wire's bandwidth is worth little if the data is copied on its way. Three ways lead from one GPU's memory to that of
# a GPU in another machine:
#
# - **TCP**: the GPU's tensor is copied to the CPU's memory, over PCIe. From there the operating system copies it into
#   buffers of its own, because TCP must be able to send a packet again if it gets lost, while your program may already
#   be overwriting the tensor. The NIC sends the buffers. On the other side the same happens in reverse. This is what
#   people mean when they say that Ethernet copies; but it is TCP that copies, not the cable.
# - **RDMA** (remote direct memory access): the NIC itself reads your program's memory and writes into that of the
#   program on the other machine. Neither operating system is involved, so the two copies into buffers are gone.
#   InfiniBand always works like this, and Ethernet can (**RoCE**). But the memory is the **CPU's**.
# - **GPUDirect RDMA**: the NIC reads the **GPU's** memory, over PCIe, ideally through a single switch (`PIX` or `PXB`
#   in the matrix). The detour through the CPU's memory is gone as well.
#
# If each leg waits for the one before it, their times add up:

# %%
# bytes/s: PCIe 5, the NIC, one core that copies (an estimate)
pcie, wire, copy = 63e9, 50e9, 20e9
n = 16e9  # bytes: the gradients of 8 billion parameters in bfloat16
legs = {
    "TCP": [pcie, copy, wire, copy, pcie],
    "RDMA": [pcie, wire, pcie],
    "GPUDirect RDMA": [wire],
}
for name, speeds in legs.items():
    one_by_one = sum(n / speed for speed in speeds)
    print(f"{name:>14}: {one_by_one:.2f} s;", end=" ")
    print(
        f"in a pipeline of small pieces {n / min(speeds):.2f} s, limited by the "
        "slowest leg"
    )

# %% [markdown]
# If the data is cut into small pieces, the legs overlap, and only the slowest counts. Then plain RDMA has the
# **bandwidth** of GPUDirect RDMA. What it costs is latency, bandwidth of the CPU's memory, and a PCIe link that carries
# everything twice.
#
# ### Chips with large SRAM
# Some chips attack the other end of the hierarchy: they have no HBM at all and keep everything in on-chip memory
# (SRAM). Cerebras' wafer-sized WSE-3 has 44 GB of it at 21 PB/s; Groq's first chip has 230 MB at 80 TB/s, for 188
# TFLOP/s in float16 (both makers' datasheets). The ridge point shows what that buys, and the capacity what it costs:

# %%
groq = 188e12 / 80e12
print(f"ridge point: H100 {ridge:.0f} FLOP per byte, Groq {groq:.2f}")
print(
    "chips that hold the weights of a 70B model in 16 bits: H100 "
    f"{math.ceil(140e9 / 80e9)},",
    end="",
)
print(f" Groq {math.ceil(140e9 / 230e6)}")

# %% [markdown]
# With such a ridge point, even the product of a matrix and a single vector, about 1 FLOP per byte, is nearly
# compute-bound. That is the work of generating text word by word, where such chips shine. In training, tiling already
# brings the intensity above an H100's ridge point, and capacity is what is short: part 7.
#
# # Part 5 · What a collective costs
# A message of $n$ bytes takes $\alpha + n\beta$: a latency $\alpha$, and $\beta$ seconds for each byte, where $1/\beta$
# is the link's bandwidth. If what arrives has to be added, that takes another $\gamma$ seconds per byte. A rank can
# send one message and receive one at the same time. That is the **alpha-beta-gamma model**, and it prices every
# algorithm:
#
# $$ t = (\text{messages one after another}) \cdot \alpha + (\text{bytes sent}) \cdot \beta
#      + (\text{bytes added}) \cdot \gamma $$
#
# counted along the **critical path**, the longest chain in which each step has to wait for the one before it. Steps
# that happen at the same time count once.

# %% [markdown]
# ## Counting along the critical path
#
# With $P$ ranks and a collective of $n$ bytes (the **whole**: all chunks together), the algorithms are:
#
# | algorithm | how it works |
# |---|---|
# | flat scatter, flat gather | the root exchanges a chunk of $n/P$ with each other rank, one after another |
# | tree broadcast | in each round, every rank that has the tensor sends all of it to one that doesn't |
# | tree reduce | the same rounds backwards: half of the ranks send all they have, the others add it |
# | ring all-gather | in each round, every rank passes a chunk of $n/P$ to its neighbour, until all have all |
# | ring reduce-scatter | the same rounds, and what arrives is added to a chunk of one's own |
# | pairwise all-to-all | in each round, every rank exchanges a chunk of $n/P$ with a different partner |
# | ring all-reduce | a ring reduce-scatter, then a ring all-gather |
# | tree all-reduce | a tree reduce, then a tree broadcast |
# | halving-doubling all-reduce | partners exchange and add $n/2$, then $n/4$, ... $n/P$; then back. $P$ is $2^k$ |
#
# **Predict** for a ring all-reduce on 8 ranks: how many messages, how many times $n$ sent, how many times $n$ added?
# Give a list of three numbers.

# %%
predict("messages, sent, added: ring all-reduce on 8", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Count the rounds of each algorithm first. A tree doubles the ranks that are done in each round; for $P$ that is not a
# power of two, the last round is only partly used. A ring needs one round fewer than there are ranks.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Messages are rounds. Multiply by what goes over a link in one round: $n$ in a tree, $n/P$ in a ring. Bytes are added
# only in the rounds that reduce. And the all-reduces are sums of two others, so add the triples.
# </details>
#
# <details><summary>Hint 3: a check by hand</summary>
#
# On 8 ranks, a ring all-gather is (7, 7/8, 0), and three other rows of the table are the same. A tree reduce is
# (3, 3, 3). Halving sends $1/2 + 1/4 + 1/8 = 7/8$ in 3 messages. For $\log_2 P$ rounded up, see `int.bit_length`.
# </details>

# %% exercise="collective-costs" difficulty=3 minutes=12
def collective_costs(algorithm: str, P: int) -> tuple[int, float, float]:
    """(messages, sent, added) on the critical path of an algorithm, for P >= 1 ranks.

    messages: how many alphas; sent: how many times n * beta; added: how many times
    n * gamma, where n is the whole in bytes.
    algorithm: "flat scatter", "flat gather", "tree broadcast", "tree reduce",
        "ring all-gather", "ring reduce-scatter", "pairwise all-to-all",
        "ring all-reduce", "tree all-reduce", "halving-doubling all-reduce".
    """
    ### BEGIN SOLUTION
    levels = (P - 1).bit_length()  # log2 P, rounded up
    others = (P - 1) / P
    costs = {
        "flat scatter": (P - 1, others, 0),
        "flat gather": (P - 1, others, 0),
        "tree broadcast": (levels, levels, 0),
        "tree reduce": (levels, levels, levels),
        "ring all-gather": (P - 1, others, 0),
        "ring reduce-scatter": (P - 1, others, others),
        "pairwise all-to-all": (P - 1, others, 0),
        "ring all-reduce": (2 * (P - 1), 2 * others, others),
        "tree all-reduce": (2 * levels, 2 * levels, levels),
        "halving-doubling all-reduce": (2 * levels, 2 * others, others),
    }
    ### END SOLUTION
    return costs[algorithm]

# %%
ring_on_8 = collective_costs("ring all-reduce", 8)

# %%
reveal(
    "messages, sent, added: ring all-reduce on 8",
    list(ring_on_8),
    why="7 rounds that add and 7 that don't, and an eighth of $n$ in each: $14/8$ sent, $7/8$ added.",
)

# %% check="collective-costs" judges="values" points=4
check(collective_costs, judges="values")

# %% [markdown]
# The next check runs programs that really send the messages, on virtual GPUs with an $\alpha$, a $\beta$ and a
# $\gamma$, and compares the clock with your prediction.

# %% check="collective-costs" judges="time" points=3
check(collective_costs, judges="time")

# %% [markdown]
# You can run such programs here, too. `play` sends the messages of an algorithm, round by round, and leaves out what is
# in them: a round says who sends to whom, what share of $n$, and whether the receiver adds it. Adding $m$ bytes reads
# two chunks and writes one, so on a GPU $\gamma$ is 3 divided by its memory bandwidth.

# %%
def ring(P, adds):
    return [Round([(rank, (rank + 1) % P) for rank in range(P)], 1 / P, adds)] * (P - 1)

def tree(P, adds):
    """From the leaves to rank 0 if it adds, else backwards. P is a power of two."""
    distances = [2**level for level in range(P.bit_length() - 1)]
    up = [[(rank, rank - d) for rank in range(d, P, 2 * d)] for d in distances]
    down = [[(to, source) for source, to in pairs] for pairs in reversed(up)]
    return [Round(pairs, 1, adds) for pairs in (up if adds else down)]

def halving(P, adds):
    """Partners exchange 1/2, 1/4, ... if they add, else backwards. P is a power of 2."""
    distances = [2**level for level in range(P.bit_length() - 1)]
    rounds = [
        Round([(rank, rank ^ d) for rank in range(P)], d / P, adds) for d in distances
    ]
    return rounds[::-1] if adds else rounds

def programs(P):
    return {
        "flat scatter": [Round([(0, rank)], 1 / P, False) for rank in range(1, P)],
        "flat gather": [Round([(rank, 0)], 1 / P, False) for rank in range(1, P)],
        "tree broadcast": tree(P, False),
        "tree reduce": tree(P, True),
        "ring all-gather": ring(P, False),
        "ring reduce-scatter": ring(P, True),
        "pairwise all-to-all": [
            Round([(r, (r + d) % P) for r in range(P)], 1 / P, False)
            for d in range(1, P)
        ],
        "ring all-reduce": ring(P, True) + ring(P, False),
        "tree all-reduce": tree(P, True) + tree(P, False),
        "halving-doubling all-reduce": halving(P, True) + halving(P, False),
    }

# %% tags=["notebook-only"]
link = Link(alpha=3e-6, bandwidth=450e9)
adder = Gpu(flops={"fp32": math.inf}, memory=80e9, bandwidth=3.35e12)
alpha, beta, gamma = link.alpha, 1 / link.bandwidth, 3 / adder.bandwidth

def line(algorithm, P):
    """(latency, seconds per byte) by the model."""
    messages, sent, added = collective_costs(algorithm, P)
    return messages * alpha, sent * beta + added * gamma

def measured(algorithm, P, nbytes):
    lab = Cluster("lab", nodes=1, gpus_per_node=P, gpu=adder, intra=link, inter=link)
    return simulate(play, P, programs(P)[algorithm], nbytes, cluster=lab).elapsed

for P in (2, 8):
    for name in programs(P):
        latency, per_byte = line(name, P)
        predicted = latency + 24_000_000 * per_byte
        found = measured(name, P, 24_000_000)
        print(
            f"{P} ranks, {name:27} {found * 1e6:10.6f} µs, predicted "
            f"{predicted * 1e6:10.6f} µs"
        )

# %% [markdown]
# Equal to the last digit, as they must be: the virtual cluster moves messages by this very model. If you call a
# collective through `dist`, the virtual cluster charges what the cheapest algorithm costs, without $\gamma$. NCCL adds
# while the next piece arrives, so its $\gamma$ is mostly hidden too:

# %% tags=["notebook-only"]
def native(rank, world_size):
    dist.all_reduce(torch.empty(6_000_000))  # float32: 24 MB

messages, sent, _ = collective_costs("ring all-reduce", 8)
took = simulate(native, 8, cluster="dgx-h100").elapsed
print(
    f"dist.all_reduce {took * 1e6:.3f} µs, predicted "
    f"{(messages * 3e-6 + 24e6 * sent / 450e9) * 1e6:.3f} µs"
)

# %% [markdown]
# ## Tuning tables
#
# With $n$ left open, each algorithm is a line: a latency, plus seconds per byte. For every size, the fastest algorithm
# is the lowest line. A library doesn't evaluate all of them in every call: it looks into a **tuning table**, made once,
# that says which algorithm to use, and from what size. Make it.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Draw three lines and look at the lowest one from left to right. It begins with the smallest latency. It changes where
# a line with fewer seconds per byte crosses it.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Stand on the current line. Every line that is less steep crosses it somewhere to the right. The one that crosses
# **first** is next; then stand on that one. A line that never gets to be lowest is skipped that way.
# </details>
#
# <details><summary>Hint 3: a check by hand</summary>
#
# Lines with latencies $a_1 < a_2$ and steepness $b_1 > b_2$ cross at $(a_2 - a_1) / (b_1 - b_2)$. Take (1, 4), (3, 3)
# and (4, 1). From the first, the second crosses at 2 and the third at 1, so the third is next, and the table is
# complete: no line is less steep than that one.
# </details>

# %% exercise="tuning-table" difficulty=3 minutes=15
def tuning_table(lines: dict[str, tuple[float, float]]) -> list[tuple[float, str]]:
    """Which algorithm is fastest, from what size: [(0, name), (bytes, name), ...].

    lines: {name: (latency in seconds, seconds per byte)}, one or more. Entry (x, name):
    name is the fastest for sizes between x and the next entry's. The first entry has x
    = 0, the others rising x, not rounded. An algorithm that is nowhere faster than all
    others has no entry. No two lines are equal, though two may have the same latency,
    and no three cross in one point.
    """
    ### BEGIN SOLUTION
    # the smallest latency, then slope
    at, name = 0.0, min(lines, key=lines.__getitem__)
    table = [(at, name)]
    while True:
        latency, slope = lines[name]
        crossings = [
            ((other_latency - latency) / (slope - other_slope), other)
            for other, (other_latency, other_slope) in lines.items()
            if other_slope < slope
        ]
        if not crossings:
            return table
        at, name = min(crossings)
        table.append((at, name))
    ### END SOLUTION

# %%
tuning_table({"a": (1, 4), "b": (3, 3), "c": (4, 1)})  # b is nowhere the lowest

# %% check="tuning-table" judges="values" points=4
check(tuning_table, judges="values")

# %% [markdown]
# ### The table against measurements
# Lesson 02 chose the fastest algorithm by running all of them. Here are both for 8 ranks: your table, made from the
# model alone, and at each size the winner of a run.

# %% tags=["notebook-only"]
algorithms = ["ring all-reduce", "tree all-reduce"]
table = tuning_table({name: line(name, 8) for name in algorithms})
print("table:", ", ".join(f"{name} from {size:,.0f} bytes" for size, name in table))
for nbytes in (8, 80_000, 240_000, 1_000_000, 8_000_000):
    from_table = [name for size, name in table if size <= nbytes][-1]
    winner = min(algorithms, key=lambda name: measured(name, 8, nbytes))
    print(f"{nbytes:9,} bytes: table {from_table}, measured {winner}")

# %% [markdown]
# They agree at every size. A table takes microseconds to make and needs no machine, but it is only as good as the
# model.

# %% [markdown]
# ## Fitting a published sweep
#
# How good is the model, then? Here are bus bandwidths that `nccl-tests` measured on 8 H200 GPUs in one machine, for
# all-reduces of 32 KiB to 16 GiB (Bekman, *Machine Learning Engineering*, network benchmarks, 2026). From them we get
# the times, and fit $\alpha$ and $\beta$ by relative errors, as in lesson 03.

# %%
# GB/s, of 32 KiB, 64 KiB, ... 16 GiB
h200_busbw = [
    *(3.20, 6.26, 12.40, 24.63, 48.30, 72.45, 91.48, 139.97, 182.03, 242.45),
    *(298.44, 369.82, 411.21, 442.27, 455.82, 464.00, 468.31, 473.10, 475.16, 480.70),
]
sweep_sizes = [2**power * 1024 for power in range(5, 25)]
sweep_times = [
    n * 2 * 7 / 8 / (busbw * 1e9) for n, busbw in zip(sweep_sizes, h200_busbw)
]

def fit(sizes, seconds):
    """(alpha, beta) with the smallest sum of squared relative errors."""
    found = fit_link(dict(zip(sizes, seconds)))
    return found.alpha, 1 / found.bandwidth

alpha_1, beta_1 = fit(sweep_sizes, sweep_times)
rates = [busbw * 1e9 for busbw in h200_busbw]
figures.sweep(
    sweep_sizes,
    sweep_times,
    rates,
    "all-reduce on 8 x H200, and one line",
    (alpha_1, beta_1),
)

# %%
misses = [(alpha_1 + n * beta_1) / t - 1 for n, t in zip(sweep_sizes, sweep_times)]
print(f"alpha {alpha_1 * 1e6:.1f} µs, off by {min(misses):+.0%} to {max(misses):+.0%}")

# %% [markdown]
# At both ends the line is good, and in the middle it is a third too low. NCCL isn't one algorithm: with the size it
# changes its protocol (for small messages, one that sends a flag with every few bytes: little latency, half the
# bandwidth), the number of channels, and ring for tree or for adding in the switch. Each has a line of its own, and
# what you measure is made of pieces of them. So fit **two** lines, and let the data say where to cut.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# You don't know the cut, but there are only a few candidates. What would you do with each of them?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Fit the sizes before the cut, fit the sizes from the cut on, and add up the squared relative errors of both parts.
# Keep the cut for which this sum is smallest.
# </details>
#
# <details><summary>Hint 3: a check by hand</summary>
#
# Of eight sizes, the first part can have 3, 4 or 5: three cuts, six fits. If a line says 12 µs and 10 were measured,
# the relative error is 0.2, and its square 0.04.
# </details>

# %% exercise="two-lines" difficulty=3 minutes=10
def two_lines(sizes: list[int], seconds: list[float], fit: Callable) -> tuple:
    """The two lines that fit a sweep best, and where the second one begins: (first size
    of the second part, (alpha, beta) of the first, (alpha, beta) of the second).

    sizes: rising, six or more; each part has three or more of them.
    fit(sizes, seconds): (alpha, beta) of a part. Both lists are left unchanged.
    Best: the smallest sum of squared relative errors over all sizes.
    """
    ### BEGIN SOLUTION
    found = []
    for cut in range(3, len(sizes) - 2):
        parts = [(sizes[:cut], seconds[:cut]), (sizes[cut:], seconds[cut:])]
        lines = [fit(*part) for part in parts]
        error = sum(
            ((alpha + n * beta) / t - 1) ** 2
            for (alpha, beta), part in zip(lines, parts)
            for n, t in zip(*part)
        )
        found.append((error, sizes[cut], *lines))
    _, first, left, right = min(found)
    ### END SOLUTION
    return first, left, right

# %% check="two-lines" judges="values" points=4
check(two_lines, judges="values")

# %%
first, left, right = two_lines(sweep_sizes, sweep_times, fit)
for name, (alpha_part, beta_part) in (
    (f"below {first >> 20} MiB", left),
    ("from there on", right),
):
    print(
        f"{name:>13}: alpha {alpha_part * 1e6:5.1f} µs, 1 / beta "
        f"{1 / beta_part / 1e9:5.1f} GB/s"
    )
lines = [left if n < first else right for n in sweep_sizes]
misses = [(a + n * b) / t - 1 for (a, b), n, t in zip(lines, sweep_sizes, sweep_times)]
print(f"off by {min(misses):+.0%} to {max(misses):+.0%}")

# %% [markdown]
# Four numbers instead of two, and the largest error falls from 34 % to 15 %. (The bandwidth is above what a ring
# could reach over links of 450 GB/s: $2 \cdot 7/8$ times it is more than 450. Here the switch adds.)
#
# No line can fit some sweeps. On 4 machines of 8 B200 each, the same source has these bus bandwidths for 4 to 64 MiB:

# %%
for mib, busbw in ((4, 31.63), (8, 50.61), (16, 71.80), (32, 142.90), (64, 197.77)):
    print(f"{mib:2} MiB: {mib * 2**20 * 2 * 31 / 32 / (busbw * 1e9) * 1e6:4.0f} µs")

# %% [markdown]
# From 16 to 32 MiB, twice the bytes take the same time: there, NCCL switched to something faster, and could have done
# so earlier. Two rules follow. Use a model between the sizes that it was fitted to, never far beyond them. And when a
# measurement is far above the model, it isn't always the model that is wrong.

# %% [markdown]
# ### Virtual clusters at achieved rates
# In its first cell, this lesson asks `simulate` for `rates="datasheet"`: times that you can compute by hand. Without
# that line you get `rates="achieved"` for machines that have been measured well enough: the model by which NCCL itself
# chooses its algorithms and protocols, and matrix products that lose time at the edges of their tiles. Formulas are for
# understanding; use the achieved rates when you want to know how long something will take. Here are both, next to the
# sweep (an H200 has the links of an H100) and for one matrix product.

# %% tags=["notebook-only"]
def reduced(rank, world_size, nbytes):
    dist.all_reduce(torch.empty(nbytes // 4))

def multiplied(rank, world_size):
    x = torch.empty(8192, 8192, dtype=torch.bfloat16)
    x @ x

def both(*program):
    """Virtual seconds at the datasheet's rates, and at those that are achieved."""
    ways = ("datasheet", "achieved")
    return [simulate(*program, cluster="dgx-h100", rates=way).elapsed for way in ways]

print("all-reduce of       measured   datasheet    achieved")
for n, t in list(zip(sweep_sizes, sweep_times))[::4]:
    promised, achieved = both(reduced, 8, n)
    print(
        f"{quantity(n, 'B'):>13} {t * 1e6:11.0f} µs {promised * 1e6:8.0f} µs "
        f"{achieved * 1e6:8.0f} µs"
    )
print(
    "8192 x 8192 times itself:",
    ", ".join(f"{seconds * 1e3:.2f} ms" for seconds in both(multiplied, 1)),
)

# %% [markdown]
# From 8 MB on, the achieved rates are within 5 %. At 0.5 MB both are a third to a half too slow: a model is as good as
# the measurements that it was made from, and this size was not among them.
#
# The product takes a third longer than in part 2, where 794.5 TFLOP/s were called achieved, too. Those are the best of
# many shapes, in a short run of nothing else. In training, a GPU under load for minutes lowers its clock: fitted to
# published training steps, an H100 keeps 79 % of that rate. A few more percent go to the last tiles, which don't fill
# the GPU. So there are three numbers for one product: what is promised, what a sprint achieves, and what a step can
# count on. Say which one you mean.

# %% [markdown]
# # Part 6 · The roofline of communication
# Now the question of the first page. A step computes and communicates. Which of the two takes longer? It is the
# roofline again, with a link in place of the memory. The **compute-to-communication ratio** (CCR) is the time for
# computing divided by the time for communicating. Above 1, communication can be hidden behind computing; below 1, the
# GPUs wait for the network, whatever you do.
#
# For data parallelism with $b$ tokens (or rows) on each of $P$ GPUs and $N$ parameters in bfloat16: a step computes
# $6Nb$ FLOP and sends $2 \frac{P-1}{P} \cdot 2N$ bytes. The size of the model cancels:
#
# $$ \text{FLOP per byte sent} = \frac{6 N b}{4 N (P-1)/P} \approx 1.5\, b $$
#
# The link's **ridge point** is peak / bandwidth, as before. Each network has a roofline of its own, and the peak is the
# roof of all three:

# %%
links = {
    "NVLink": Link(3e-6, 450e9),
    "InfiniBand": Link(10e-6, 50e9),
    "Ethernet": Link(50e-6, 12.5e9),
}
bandwidths = {name: link.bandwidth for name, link in links.items()}
peak = h100.peak("bfloat16")
points = {f"b = {b:,}": 1.5 * b for b in (256, 4096, 65536)}
figures.roofline(
    peak, bandwidths, points, "data parallelism on H100s, with three networks"
)

# %% [markdown]
# Read it from the left. With 256 rows per GPU, as on the first page, all three networks are the bottleneck. With 4,096,
# the GPUs compute at full speed over NVLink. A ring over InfiniBand, whose ridge point is 19,780 FLOP per byte, needs
# about 13,000 rows for that. And the regimes have names:
#
# | FLOP per byte sent | the step is |
# |---|---|
# | far below the ridge point | communication-bound: more GPUs for the same work make it slower |
# | around it | balanced: overlap gains up to a factor of 2 |
# | far above it | compute-bound: communication can be hidden |

# %% [markdown]
# ## The smallest batch per GPU
#
# Now make it exact. In the backward pass, which takes $4Nb$ of the $6Nb$ FLOP, some gradients can be all-reduced while
# others are still being computed. How many tokens does a GPU need for the backward pass to take at least as long as the
# all-reduce? The gradients may be bfloat16 or float32.
#
# Which all-reduce? A ring through all GPUs of several machines is as slow as its slowest link: it leaves each machine
# through one NIC, while the other seven sit idle. So libraries can work in two tiers. With $M$ nodes of $L$ GPUs, a
# **hierarchical** all-reduce of $n$ bytes, as in lesson 02, has three phases, one after another:
#
# 1. In each node, a ring reduce-scatter of $n$ bytes. Each GPU then has the node's sum of an $L$-th.
# 2. A ring all-reduce of this $L$-th, with the $M - 1$ GPUs at the same place in the other nodes. All $L$ rings run at
#    once, each over its own NICs.
# 3. In each node, a ring all-gather.
#
# **Predict** for 8 H100s over NVLink, a single node, bfloat16 gradients and a large model: about how many tokens per
# GPU?

# %%
predict("tokens per GPU over NVLink", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Two times have to be equal. The first is proportional to the tokens, the second doesn't depend on them.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Phases 1 and 3 together cost as much as a ring all-reduce of all gradients inside one node. Phase 2 is a ring
# all-reduce as well: of how many bytes, on how many GPUs, over which link? So write a function for a ring and call it
# twice. How many FLOP does the GPU compute in that time? One token needs $4N$ of them.
# </details>
#
# <details><summary>Hint 3: a check by hand</summary>
#
# A ring on $P$ GPUs sends $2 (P - 1)$ messages of a $P$-th each. So on 4 nodes of 8, phase 2 sends 6 messages of a 32nd
# of the gradients, and phases 1 and 3 send 14 messages of an 8th.
# </details>

# %% exercise="critical-batch" difficulty=3 minutes=14
def critical_batch(
    parameters: int, itemsize: int, peak: float, nodes: int, local: int,
    intra: tuple[float, float], inter: tuple[float, float],
) -> int:
    """The smallest number of tokens per GPU for which a hierarchical all-reduce of the
    gradients takes no longer than the backward pass; 0 for a single GPU, which has
    nothing to send.

    parameters: of the model; backward computes 4 FLOP for each of them and each token.
    itemsize: bytes of one gradient. peak: FLOP/s of one GPU.
    nodes, local: how many nodes there are, and how many GPUs in each.
    intra, inter: (alpha in seconds, bandwidth in bytes/s one way), of a link inside a
        node and of a NIC; each GPU has one of its own. Chunks are not rounded.
    """
    ### BEGIN SOLUTION
    def ring(P, nbytes, link):
        alpha, bandwidth = link
        return 2 * (P - 1) * (alpha + nbytes / P / bandwidth)

    gradients = parameters * itemsize
    communicating = ring(local, gradients, intra) + ring(nodes, gradients / local, inter)
    return math.ceil(communicating * peak / (4 * parameters))
    ### END SOLUTION

# %%
wires = {name: (link.alpha, link.bandwidth) for name, link in links.items()}
model_7b = (7_000_000_000, 2, peak)
nvlink = critical_batch(*model_7b, 1, 8, wires["NVLink"], wires["InfiniBand"])
both_ways = critical_batch(*model_7b, 1, 8, (3e-6, 900e9), wires["InfiniBand"])
print(
    f"with 900 GB/s, both directions together, it would be {both_ways:,}: wrong by a "
    "factor of 2"
)

# %%
reveal(
    "tokens per GPU over NVLink",
    nvlink,
    why="7/8 of peak / bandwidth, since backward computes $4N$ FLOP per token and $4N \\cdot 7/8$ bytes are sent; and "
    "one or two more for the latency.",
)

# %% check="critical-batch" judges="values" points=3
check(critical_batch, judges="values")

# %% [markdown]
# The second check lets virtual GPUs compute a backward pass during an all-reduce: with your number of tokens nobody
# waits; with one token fewer, they do.

# %% check="critical-batch" judges="time" points=2
check(critical_batch, judges="time")

# %% [markdown]
# ### How many GPUs are worth it?
# The hardware sets a **minimum**: so many tokens on each GPU. The mathematics sets a **maximum** for all GPUs together:
# beyond the **critical batch size** $B_{crit}$, a larger batch hardly saves steps, because the gradient is no longer
# noisy. To first order, a run needs $1 + B_{crit}/B$ times the fewest possible steps (McCandlish and others, 2018;
# lesson 05 measures it). Estimates for large language models are a few million tokens. Divide, and you have the
# number of GPUs that data parallelism alone can keep busy. First for one flat ring over the network, as if each of 128
# GPUs were alone in its machine; then for 16 machines of 8:

# %%
for tier in ("InfiniBand", "Ethernet"):
    for name, nodes, local in (("one ring", 128, 1), ("two tiers", 16, 8)):
        tokens = critical_batch(*model_7b, nodes, local, wires["NVLink"], wires[tier])
        print(f"{tier:>10}, {name:>9}: at least {tokens:6,} tokens per GPU,", end=" ")
        print(
            f"so at most {4_000_000 // tokens:3,} GPUs for a batch of 4 million tokens"
        )

# %% [markdown]
# Two tiers need far fewer tokens. `simulate` knows both ways and takes the faster one. Ask it how long the all-reduce
# of these gradients takes on each of two clusters with 16 machines of 8, and convert the time into tokens:

# %% tags=["notebook-only"]
def gradients_reduced(rank, world_size):
    dist.all_reduce(torch.empty(7_000_000_000, dtype=torch.bfloat16))

for cluster in ("dgx-h100", "ethernet-cloud"):
    run = simulate(gradients_reduced, 128, cluster=cluster, alike=lambda rank: 0)
    print(
        f"{cluster:>14}: {run.elapsed * 1e3:.1f} ms, "
        f"{math.ceil(run.elapsed * peak / 28e9):,} tokens"
    )

# %% [markdown]
# These are your numbers for two tiers. To use more GPUs, you need a different kind of parallelism, one that makes
# several of them work on the **same** tokens: lessons 08, 09 and everything after them.

# %% [markdown]
# ## Scaling efficiency
#
# How well does a program use its GPUs? With $T_P$ the time on $P$ of them, there are two honest questions.
#
# - **Strong scaling**: the work stays the same. $P$ GPUs should need a $P$-th of the time: $E = T_1 / (P \cdot T_P)$.
# - **Weak scaling**: the work grows with the GPUs. The time should stay the same: $E = T_1 / T_P$.
#
# An efficiency above 1 nearly always means that the fraction is upside down, or that the wrong one was used. And if a
# model doesn't fit on one GPU, there is no $T_1$: then compare with the smallest number that was measured. If that took
# $T_4$ on 4, the ideal time on 16 is $T_4 \cdot 4/16$.
#
# **Predict** the weak-scaling efficiency of the first page's step on 16 GPUs: with 4,096 rows on each of them.

# %%
predict("weak-scaling efficiency on 16 GPUs", ...)

# %% exercise="scaling-efficiency" difficulty=2 minutes=8
def scaling_efficiency(seconds: dict[int, float], work: str) -> dict[int, float]:
    """{GPUs: efficiency}, relative to the smallest number of GPUs, which has 1.

    seconds: {GPUs: seconds of a step}, in any order; 1 need not be among them.
    work: "the same" on any number of GPUs (strong scaling), or "per GPU" (weak scaling:
        twice the GPUs have twice the work).
    """
    fewest = min(seconds)
    ### BEGIN SOLUTION
    ideal = {
        gpus: seconds[fewest] * (fewest / gpus if work == "the same" else 1)
        for gpus in seconds
    }
    return {gpus: ideal[gpus] / took for gpus, took in seconds.items()}
    ### END SOLUTION

# %% tags=["notebook-only"]
more_rows = {gpus: step_seconds(gpus, rows=4096 * gpus) for gpus in (1, 8, 16, 32)}
strong = scaling_efficiency(first_page, "the same")
weak = scaling_efficiency(more_rows, "per GPU")
for gpus in strong:
    print(f"{gpus:2} GPUs: strong {strong[gpus]:4.0%}, weak {weak[gpus]:4.0%}")

# %%
reveal(
    "weak-scaling efficiency on 16 GPUs",
    weak[16],
    why="16 times the rows per GPU, and the same exchange: the CCR is 16 times higher.",
)

# %% check="scaling-efficiency" judges="values" points=3
check(scaling_efficiency, judges="values")

# %% [markdown]
# The same machine, the same program, and two very different verdicts. Weak scaling flatters: 16 times the batch is only
# worth something below the critical batch size. Strong scaling ends sooner or later for every program, because what
# can't be divided (here the exchange) stays. When you read "scales linearly", ask which.

# %% [markdown]
# # Part 7 · What training keeps in memory
# The other question before you rent: does it fit? Three things need memory: the **model state**, which grows with the
# parameters; the **activations**, which grow with the batch; and buffers, which this lesson leaves out.
#
# With Adam in mixed precision, the state is this for **each** parameter:
#
# | what | dtype | bytes |
# |---|---|---|
# | the parameter | bfloat16 | 2 |
# | its gradient | bfloat16 | 2 |
# | a precise copy of the parameter (the **master** weight) | float32 | 4 |
# | Adam's average of the gradient, $m$ | float32 | 4 |
# | Adam's average of its square, $v$ | float32 | 4 |
#
# That is $16N$ bytes for $N$ parameters. Other recipes are in use, and papers don't always say which one they count:

# %%
bf16, fp32, int8 = torch.bfloat16, torch.float32, torch.int8
adam = {"master": fp32, "m": fp32, "v": fp32}
recipes = {
    "bf16 gradients": {"parameters": bf16, "gradients": bf16, **adam},
    "fp32 gradients": {"parameters": bf16, "gradients": fp32, **adam},
    "8-bit m and v": {
        "parameters": bf16,
        "gradients": bf16,
        **adam,
        "m": int8,
        "v": int8,
    },
    "bf16 m and v": {
        "parameters": bf16,
        "gradients": bf16,
        **adam,
        "m": bf16,
        "v": bf16,
    },
    "all in fp32": {"parameters": fp32, "gradients": fp32, "m": fp32, "v": fp32},
}
for name, recipe in recipes.items():
    print(
        f"{name:>15}: {sum(dtype.itemsize for dtype in recipe.values()):2} bytes per "
        "parameter"
    )

# %% [markdown]
# ("4 + 2 + 12", which you may also find, counts the master weights twice.)
#
# **Predict**: how many H100s of 80 GB does the state of a model of 175 billion parameters need, at 16 bytes each?

# %%
predict("H100s for the state of 175 billion parameters", ...)

# %%
needed = {
    billions: math.ceil(16 * billions * 1e9 / 80e9)
    for billions in (7, 13, 70, 175, 530, 540)
}

# %%
reveal(
    "H100s for the state of 175 billion parameters",
    needed[175],
    why="2.8 TB. And not one of them has room for activations yet.",
)

# %% [markdown]
# ## A sharded state
#
# Data parallelism alone doesn't help: every rank keeps the same state. **ZeRO** shards it: each of $P$ ranks keeps only
# a $P$-th of the optimizer state (stage 1), of the gradients too (stage 2), and of the parameters too (stage 3). Lesson
# 07 makes it train. Here you make the tensors, so that they can be counted: all numbers of one kind in a row, in one
# flat tensor, cut into $P$ equal pieces. If $P$ doesn't divide them, the last piece is padded.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# For each name in the recipe decide one thing: is it sharded at this stage? Then make one tensor.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Parameters are sharded from stage 3 on, gradients from stage 2 on, and every other name from stage 1 on. A shard has a
# $P$-th of the numbers, rounded up.
# </details>
#
# <details><summary>Hint 3: a check by hand</summary>
#
# With 10 parameters on 4 ranks, stage 1 keeps 10 numbers of the parameters and of the gradients, and 3 of everything
# else. Make each tensor in its final size: a slice of a larger one keeps all of the larger one alive.
# </details>

# %% exercise="sharded-state" difficulty=3 minutes=10
def sharded_state(
    parameters: int, recipe: dict[str, torch.dtype], stage: int, world_size: int
) -> dict[str, torch.Tensor]:
    """The model state that each rank keeps under ZeRO: {name: a flat tensor}, its
    values not set (torch.empty).

    parameters: how many the model has.
    recipe: {name: dtype}; "parameters", "gradients", any other name is optimizer state.
    stage: 0 (nothing is sharded) to 3. A shard has parameters / world_size numbers,
        rounded up. Nothing larger than what is returned may be allocated on the way.
    """
    ### BEGIN SOLUTION
    sharded_from = {"parameters": 3, "gradients": 2}
    state = {}
    for name, dtype in recipe.items():
        pieces = world_size if stage >= sharded_from.get(name, 1) else 1
        state[name] = torch.empty(-(-parameters // pieces), dtype=dtype)
    ### END SOLUTION
    return state

# %% check="sharded-state" judges="values" points=3
check(sharded_state, judges="values")

# %% check="sharded-state" judges="memory" points=2
check(sharded_state, judges="memory")

# %% [markdown]
# Now for real models: 64 virtual ranks hold the state of each, and what is alive on them is counted. Tensors on a
# virtual GPU have sizes but no values, so 8.6 TB is no problem. The formulas are $16N$, $4N + 12N/P$, $2N + 14N/P$ and
# $16N/P$, and the counts should be equal to them.

# %% tags=["notebook-only"]
def hold_all(rank, world_size, sizes):
    from utils import track_memory

    held = {}
    with track_memory() as storages:
        for parameters in sizes:
            for stage in range(4):
                state = sharded_state(
                    parameters, recipes["bf16 gradients"], stage, world_size
                )
                held[parameters, stage] = storages.live
                del state
    return held

models = {
    "7B": 7,
    "13B": 13,
    "LLaMA 70B": 70,
    "GPT-3 175B": 175,
    "MT-NLG 530B": 530,
    "PaLM 540B": 540,
}
sizes = [billions * 10**9 for billions in models.values()]
large = replace(find_cluster("dgx-h100", 64), gpu=replace(h100, memory=math.inf))
held = simulate(hold_all, 64, sizes, cluster=large).results[0]

print(
    f"{'bytes per GPU':>14}  "
    + "".join(f"{f'stage {stage}':>12}" for stage in range(4))
)
equal, P = [], 64
for name, N in zip(models, sizes):
    formulas = [16 * N, 4 * N + 12 * N // P, 2 * N + 14 * N // P, 16 * N // P]
    equal.append([held[N, stage] for stage in range(4)] == formulas)
    print(
        f"{name:>14}  "
        + "".join(f"{quantity(held[N, stage], 'B'):>12}" for stage in range(4))
    )
print("equal to the formulas, to the byte:", all(equal))

# %% [markdown]
# ## Activations
#
# The forward pass keeps what the backward pass will need. In a transformer layer with batch $b$, sequence $s$, width
# $h$ and $a$ heads, in 16 bits, with dropout, these tensors stay alive:
#
# | kept for | bytes |
# |---|---|
# | the two LayerNorms: their inputs; and mean and 1/deviation of each token, twice two float32 | $4sbh + 16sb$ |
# | queries, keys and values: their common input, and all three | $2sbh + 6sbh$ |
# | softmax: its result, one score for each head and each pair of tokens | $2as^2b$ |
# | dropout of the scores: a mask of 1 byte each, and the result | $as^2b + 2as^2b$ |
# | the output projection: its input; a mask of dropout | $2sbh + sbh$ |
# | the MLP, $4h$ wide inside: its input, GELU's input, GELU's output; a mask of dropout | $2sbh + 8sbh + 8sbh + sbh$ |
#
# **FlashAttention** never stores the scores: backward computes them again, tile by tile, from queries, keys and values.
# It keeps no mask either (the random numbers can be drawn again). What it adds is one float32 per token and head, the
# logarithm of the softmax's denominator.
#
# **Predict** for GPT-3 ($s = 2048$, $b = 1$, $h = 12288$, $a = 96$, 96 layers): how many GB of activations without
# FlashAttention, and which share of them does it save?

# %%
predict("GB of activations of GPT-3", ...)
predict("share that FlashAttention saves", ...)

# %% exercise="activation-bytes" difficulty=2 minutes=10
def activation_bytes(s: int, b: int, h: int, a: int, flash: bool) -> int:
    """Bytes that one transformer layer keeps for backward, as in the table.

    s: tokens in a sequence; b: sequences; h: width; a: heads.
    flash: whether attention is computed by FlashAttention.
    """
    ### BEGIN SOLUTION
    linear = 34 * s * b * h + 16 * s * b
    scores = 4 * a * s * b if flash else 5 * a * s * s * b
    ### END SOLUTION
    return linear + scores

# %%
gpt3 = {
    flash: 96 * activation_bytes(2048, 1, 12288, 96, flash) for flash in (False, True)
}
print(
    f"stored scores {quantity(gpt3[False], 'B')}, FlashAttention "
    f"{quantity(gpt3[True], 'B')}"
)

# %%
reveal(
    "GB of activations of GPT-3",
    gpt3[False] / 1e9,
    why="$sbh(34 + 5as/h)$ per layer, and $5as/h$ is 80 here. In GiB it is 256.5; people mix the two up.",
)
reveal(
    "share that FlashAttention saves",
    1 - gpt3[True] / gpt3[False],
    why="80 of 114 parts are scores: they grow with $s^2$, and everything else with $s$.",
)

# %% check="activation-bytes" judges="values" points=3
check(activation_bytes, judges="values")

# %% [markdown]
# And a run? Here is one layer of GPT-3 on a virtual GPU, with torch's autograd deciding what to keep. First with stored
# scores; then with an attention that keeps what FlashAttention keeps. Every byte that is alive after the forward pass,
# beyond the weights, is counted:

# %%
class KeepsWhatFlashKeeps(torch.autograd.Function):
    """Attention's shapes, and what FlashAttention saves; on meta nothing is computed."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = torch.empty_like(q)  # (b, s, a, d)
        log_sum = torch.empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, log_sum)
        return out

def layer_with_dropout(x, norms, w_qkv, w_out, w_up, w_down, heads, flash):
    dropout = nn.functional.dropout
    normed = nn.functional.layer_norm(x, x.shape[-1:], *norms[:2])
    q, k, v = (
        part.unflatten(-1, (heads, -1)) for part in (normed @ w_qkv).chunk(3, -1)
    )
    if flash:
        out = KeepsWhatFlashKeeps.apply(q, k, v).flatten(2)
    else:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        out = (dropout(scores.softmax(-1), 0.1) @ v).transpose(1, 2).flatten(2)
    x = x + dropout(out @ w_out, 0.1)
    normed = nn.functional.layer_norm(x, x.shape[-1:], *norms[2:])
    return x + dropout(nn.functional.gelu(normed @ w_up) @ w_down, 0.1)

def activations_alive(rank, world_size, s, b, h, a, flash):
    from utils import track_memory

    def weight(*shape):
        return nn.Parameter(torch.empty(*shape, dtype=torch.bfloat16))

    norms = [weight(h) for _ in range(4)]
    matrices = weight(h, 3 * h), weight(h, h), weight(h, 4 * h), weight(4 * h, h)
    with track_memory() as storages:
        before = storages.live
        x = torch.empty(b, s, h, dtype=torch.bfloat16)
        y = layer_with_dropout(x, norms, *matrices, a, flash)
        return storages.live - before - y.nbytes  # y belongs to the next layer

# %% tags=["notebook-only"]
for flash in (False, True):
    arguments = (2048, 1, 12288, 96, flash)
    alive = simulate(activations_alive, 1, *arguments, cluster=large).results[0]
    print(
        f"FlashAttention {flash!s:>5}: {alive:13,} bytes alive, formula "
        f"{activation_bytes(*arguments):13,}"
    )

# %% [markdown]
# Equal to the byte again. How many of the 96 layers' activations would fill a GPU of 80 GB?

# %%
for flash in (False, True):
    layers = 80e9 / activation_bytes(2048, 1, 12288, 96, flash)
    print(f"FlashAttention {flash!s:>5}: {layers:.1f} layers")

# %% [markdown]
# There are two more ways to shrink them. **Activation checkpointing** keeps only the layers' inputs, $2sbh$ each, and
# computes the rest again in the backward pass. Or the layers themselves are cut, so that several GPUs hold a part each
# (lesson 08).

# %% [markdown]
# # Part 8 · One number for a training run

# %% [markdown]
# ## Model and hardware FLOPs utilization
# How good is a training run? **Model FLOPs utilization** (MFU) is the FLOP that the model needs, divided by those that
# the GPUs could have done in that time. It lumps all losses together: communication, memory-bound operations, waiting.
#
# - A model of $N$ parameters needs $6N$ FLOP for each token, 2 forward and 4 backward. Attention comes on top: with $L$
#   layers and heads that are together $w$ wide, each token meets $s$ others, $4Lws$ FLOP forward and so $12Lws$ in all.
#   (By convention, a causal mask doesn't halve it.)
# - **Hardware FLOPs utilization** (HFU) counts what was **computed**. If a share $r$ of the forward pass is computed
#   again in backward, to save memory, the hardware does another $r$ forward passes.
#
# **Predict** how HFU and MFU are related if everything is recomputed: HFU / MFU is?

# %%
predict("HFU / MFU with full recomputation", ...)

# %% exercise="mfu-and-hfu" difficulty=2 minutes=8
def mfu_and_hfu(
    tokens_per_second: float, parameters: float, layers: int, width: int, sequence: int,
    gpus: int, peak: float, recomputed: float = 0.0
) -> tuple[float, float]:
    """(MFU, HFU) of a training run, 1 being 100 %.

    width: of all heads of a layer together. sequence: tokens in a sequence.
    peak: FLOP/s of one GPU, dense. recomputed: the share of the forward pass that is
        computed again in backward, 0 to 1.
    """
    ### BEGIN SOLUTION
    forward = 2 * parameters + 4 * layers * width * sequence  # FLOP for each token
    forwards_per_second = tokens_per_second * forward / (gpus * peak)
    mfu, hfu = 3 * forwards_per_second, (3 + recomputed) * forwards_per_second
    ### END SOLUTION
    return mfu, hfu

# %% [markdown]
# PaLM's report has all the numbers: 540.35 billion parameters, 118 layers, 48 heads of 256, sequences of 2,048 tokens,
# 6,144 TPU v4 chips of 275 TFLOP/s, 238,300 tokens per second. It states an MFU of 46.2 %.

# %%
palm = (238.3e3, 540.35e9, 118, 48 * 256, 2048, 6144, 275e12)
print(f"PaLM: MFU {mfu_and_hfu(*palm)[0]:.1%}; with everything recomputed", end=" ")
full = mfu_and_hfu(*palm, recomputed=1.0)
print(f"HFU would be {full[1]:.1%}")

# %%
reveal(
    "HFU / MFU with full recomputation",
    full[1] / full[0],
    why="Forward 1, backward 2, forward again 1: four parts instead of three.",
)

# %% check="mfu-and-hfu" judges="values" points=3
check(mfu_and_hfu, judges="values")

# %% [markdown]
# PaLM states an HFU of 57.8 %, so it recomputed about three quarters of the forward pass. Usual values:
#
# | run | MFU | source |
# |---|---|---|
# | PaLM 540B, 6,144 TPU v4 | 46.2 % | Chowdhery and others, 2022 |
# | Megatron 1T, 3,072 A100 | 39 %: its 52 % are **HFU**, with everything recomputed | Narayanan and others, 2021 |
# | Megatron 530B, 2,240 A100 | 42.1 %; 54.2 % with selective recomputation | Korthikanti and others, 2022 |
# | Llama 3 405B, 8,192 to 16,384 H100 | 38 to 43 % | Llama team, 2024 |
#
# A single product of matrices reaches at most 80 % of an H100's peak (part 2), and everything else in a step comes on
# top. So 40 to 50 % is good. And the first page?

# %% tags=["notebook-only"]
for gpus, seconds in first_page.items():
    mfu, _ = mfu_and_hfu(4096 / seconds, 8 * 4096**2, 8, 0, 1, gpus, peak)
    print(f"{gpus:2} GPUs: MFU {mfu:.0%}")

# %% [markdown]
# Alone, a GPU computes most of the time (at the datasheet's rates, which no real one reaches). Of sixteen you pay for
# all and use 4 %.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - Time is the larger of computing and moving. The **ridge point**, peak / bandwidth, tells which, for a GPU's memory
#   and for every link. **Fusion** and **tiling** move less. Keep two rooflines: the datasheet's and the achieved one.
# - Compare one direction with one direction. Take out fixed costs before you quote a bandwidth.
# - A collective takes (messages) $\alpha$ + (bytes sent) $\beta$ + (bytes added) $\gamma$, along its critical path. The
#   lowest of several lines is a tuning table. Real sweeps consist of several lines.
# - Over several machines, don't price one flat ring: a **hierarchical** all-reduce sends only an $L$-th over each NIC.
# - Data parallelism needs a batch per GPU above the link's ridge point, and a batch in all below the critical one.
# - Efficiency is $T_1 / (P\,T_P)$ for the same work, $T_1 / T_P$ for work that grows.
# - Training state is 16 bytes per parameter, sharded by ZeRO; activations are $sbh(34 + 5as/h)$ per layer, and
#   $34sbh + 4asb$ with FlashAttention, plus a little for LayerNorm.
# - MFU counts what the model needs, HFU what was computed.
#
# **The library.** `torch.utils.flop_counter.FlopCounterMode` counts the FLOP of a step,
# `torch.cuda.max_memory_allocated` its memory, and `nccl-tests` your network. `torch.compile` fuses, cuBLAS tiles, NCCL
# reads the wiring and keeps the tuning tables.
#
# **The papers.** Williams, Waterman, Patterson: *Roofline: an insightful visual performance model for multicore
# architectures* (Communications of the ACM, 2009). Korthikanti and others: *Reducing activation recomputation in large
# transformer models* (MLSys 2023), for activations, MFU and HFU.

# %% [markdown]
# # Challenge

# %% [markdown]
# ## The best plan for a budget of GPUs
# You have machines of 8 H100s each, joined by InfiniBand, and an MLP of 16 layers, 16,384 wide: 4.3 billion parameters.
# Two decisions are yours.
#
# - **The split.** `dp` groups of `tp` GPUs. The GPUs of a group compute the same rows, each with a slice of every
#   weight (tensor parallelism, lesson 08). That takes an all-reduce of activations, a row of 16,384 numbers in bfloat16
#   for each row of the batch, in each pair of layers, forward and backward, and nothing else can be computed meanwhile.
#   The `dp` groups compute different rows (data parallelism): an all-reduce of the gradients, during the backward pass.
#   Ranks are numbered group by group, so a group of 8 or fewer stays within a machine.
# - **The batch.** `rows` in all. More rows keep the GPUs busier. But beyond the critical batch size they teach the
#   model less: in a batch of $B$ rows, a row is worth only $1 / (1 + B/B_{crit})$ of a row in a small batch.
#
# The score is the virtual time that a step takes, per row that counts; less is better. `step` in
# `utils/kit/split_mlp.py` is the program that is run. Weights, gradients and Adam's state need memory, and so do
# activations: a plan that doesn't fit into 80 GB fails. Par is the plan that the formulas of this lesson lead to. The
# limit is all GPUs at their peak with a batch so small that every row counts in full.

# %% [markdown]
# <details><summary>Hint 1: what to look at</summary>
#
# Three times: computing, all-reduces of activations, all-reduces of gradients. How does each depend on `dp`, `tp` and
# `rows`? Which of them overlap?
# </details>
#
# <details><summary>Hint 2: the idea of par</summary>
#
# Write the time of a step as a function of a plan, from the formulas of parts 5 and 6, and let Python try all plans:
# `tp` of 1, 2, 4 and 8, and batches up to a few times the critical one. Take the best by time per row that counts.
# </details>
#
# <details><summary>Hint 3: beyond par</summary>
#
# Formulas leave something out. Run your favourites with `simulate`, compare them with your formula, and look at
# `run.timeline()` and `run.costs()` to see what it was.
# </details>

# %% exercise="best-plan" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def best_plan(machines: int, critical: int) -> tuple[int, int, int]:
    """(dp, tp, rows): how to split the MLP and how many rows to take.

    machines: of 8 GPUs each; dp * tp is 8 * machines at most.
    critical: the critical batch size in rows.
    tp: a power of two. rows: a multiple of dp.
    """
    ### BEGIN SOLUTION
    weights = 16 * 16384**2

    def ring(P, nbytes, alpha, bandwidth):
        return 2 * (P - 1) * (alpha + nbytes / P / bandwidth)

    def seconds_per_row_that_counts(plan):
        dp, tp, rows = plan
        computing = 6 * weights * rows / (dp * tp * 989e12)
        activations = 16 * ring(tp, rows / dp * 16384 * 2, 3e-6, 450e9)
        # two tiers: 8 / tp ranks of a dp group are in the same machine
        nbytes, local = 2 * weights / tp, 8 // tp
        gradients = ring(local, nbytes, 3e-6, 450e9)
        gradients += ring(machines, nbytes / local, 10e-6, 50e9)
        forward = computing / 3 + activations / 2
        backward = computing * 2 / 3 + activations / 2
        return (forward + max(backward, gradients)) / rows * (1 + rows / critical)

    plans = [
        (8 * machines // tp, tp, rows)
        for tp in (1, 2, 4, 8)
        for rows in range(1024, 2 * critical + 1, 1024)
        if rows % (8 * machines // tp) == 0
    ]
    return min(plans, key=seconds_per_row_that_counts)
    ### END SOLUTION

# %% check="best-plan" judges="score" points=3
check(best_plan, judges="score", extra_credit=3)

# %% tags=["notebook-only"]
dp, tp, rows = plan = best_plan(2, 32768)
run = simulate(split_mlp.step, dp * tp, *plan, dim=16384, layers=16, cluster="dgx-h100")
print(
    f"{dp} groups of {tp} GPUs, {rows:,} rows: {max(run.results) * 1e3:.1f} ms a step"
)
run.timeline(ranks=[0, 8])

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
