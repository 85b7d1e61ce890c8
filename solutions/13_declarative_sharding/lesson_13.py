# %% [markdown] question="If you only say where each tensor lies, who decides what is sent, and could it be less?"
# # Declarative sharding
# *you need: lessons 07 (FSDP) and 08 (tensor parallelism). Lesson 12's groups help.*
#
# In every lesson so far, you wrote down what to send: an all-reduce here, an all-gather there. Today's libraries let
# you say something else instead: where each tensor **lies**. They work out what to send. PyTorch's DTensor does that,
# and so does JAX, and data parallelism, FSDP and tensor parallelism become a few lines each.
#
# That is convenient until it is slow or wrong, and then you have to know what was decided on your behalf. So in this
# lesson you write the part that decides. Then you compare it with both libraries, byte by byte.

# %%
import heapq
import logging
import math
import re
import warnings
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from utils import figures, region, simulate, spawn
from utils.checks import checks_for
from utils.kit.block_plans import cost_of_plan, uniform_plan
from utils.kit.functional_collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from utils.kit.placements import (
    USES,
    both_passes,
    chunks,
    converter,
    cut_dim,
    local_shape,
    moved,
    pad_to,
)
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.stored_jax import from_jax
from utils.report.traffic import Traffic, implied_bytes

check = checks_for("13_declarative_sharding")
# this lesson computes on the CPU, with or without GPUs
spawn = partial(spawn, backend="gloo")
# peaks and bandwidths as promised: times can be computed by hand
simulate = partial(simulate, rates="datasheet")
double = torch.float64

# %% [markdown]
# ## Why: one innocent line
# A matrix of 65,536 x 65,536 numbers in bfloat16 lies on 64 GPUs, an 8 x 8 mesh. Along the first axis, all GPUs have
# the same. Along the second, it is cut by rows. So a GPU holds an eighth of it, 1,074 MB. We would like it cut by
# columns instead, along both axes, into 64 pieces of 134 MB. In DTensor that is one line:

# %% tags=["notebook-only"]
def move(rank, world_size):
    mesh = init_device_mesh("cuda", (8, 8))
    mine = torch.empty(8192, 65536, dtype=torch.bfloat16)
    x = DTensor.from_local(mine, mesh, [Replicate(), Shard(0)])
    y = x.redistribute(placements=[Shard(1), Shard(1)])
    return tuple(y.to_local().shape)

by_torch = simulate(move, 64)
sent, peak = by_torch.traffic().implied(0), max(by_torch.memory().peak)
print(
    f"each GPU has {by_torch.results[0]} at the end, "
    f"{2 * math.prod(by_torch.results[0]) / 1e6:,.0f} MB"
)
print(
    f"it sent {sent / 1e6:,.0f} MB, held {peak / 1e6:,.0f} MB, and took "
    f"{by_torch.elapsed * 1e3:.1f} ms"
)

# %% [markdown]
# The values are right, and there is no warning. But to end up with 134 MB, each GPU has sent 7.5 GB, and for a moment
# it held the whole matrix. By the end of part 3, your own program will get the same result for a fraction of that.
#
# The second surprise is worse. Two ranks, a vector that is cut in two, and its sum for the training log:

# %%
def log(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    mine = torch.arange(4.0) + 4 * rank  # 0 1 2 3 on rank 0, 4 5 6 7 on rank 1
    x = DTensor.from_local(mine, mesh, [Shard(0)])
    return x.sum().item()

# %% [markdown]
# **Predict** what rank 0 returns.

# %%
predict("rank 0's sum", ...)

# %% tags=["notebook-only"]
sums = spawn(log, 2).results
print(sums)

# %%
reveal(
    "rank 0's sum",
    sums[0],
    why="x.sum() is a DTensor that lies as a partial sum: each rank has a summand. item() returns only this rank's, "
    "without a warning. x.sum().full_tensor().item() is 28 on both.",
)

# %% [markdown]
# You can ask a library that decides for you what it has decided: both surprises can be read off the **placements** of
# a tensor. We start there.

# %% [markdown]
# # Part 1 · Where a tensor lies
# Ranks form a **mesh**, a grid as in lesson 12. A **placement** says how a tensor lies along one axis of the mesh. In
# this lesson it is a short string:
#
# - `"R"`, **replicated**: each rank has all of it
# - `"S0"`, `"S1"`, ..., **sharded**: it is cut along this dimension
# - `"P"`, a **partial sum**: each rank has a summand of the same shape, and the tensor is their sum
#
# A **layout** is a tuple with one placement for each axis. On a mesh of 2 x 3 ranks, a matrix as `("S0", "S1")` is cut
# into two bands of rows along the first axis and into three of columns along the second. DTensor writes
# `[Shard(0), Shard(1)]`. JAX writes `P("x", "y")`: for each dimension, the name of the axis that cuts it.

# %%
figures.layouts(["R", "S0", "S1"], mesh=(3,))

# %%
figures.summands([[3, -1, 0, 2], [-4, 5, 1, 0], [2, -3, 6, -7]])

# %% [markdown]
# That is a `"P"`. It isn't cut: each rank has as many numbers as the tensor has. Summands may have any sign, so a
# rank's own number doesn't even tell whether the sum is positive. Now two axes:

# %%
figures.layouts(["S0 R", "S0 S1", "S1 S0", "S0 S0"], mesh=(2, 3))

# %% [markdown]
# In the last picture, both axes cut the same dimension. Then the **first axis cuts first**: the rows are cut in two,
# and each half in three. Both libraries agree on that. The other order would give most ranks different rows.

# %% [markdown]
# ## A rank's part
#
# Which part of a tensor is yours? Lengths need not divide evenly. The rule is that of `torch.chunk`, which DTensor also
# follows: with n ranks, each part has `ceil(length / n)` rows until there are none left. So the last parts may be
# shorter, or empty: 5 rows on 4 ranks become 2, 2, 1 and 0.

# %% exercise="my-part" difficulty=2 minutes=10
def my_part(
    shape: tuple[int, ...],
    layout: tuple[str, ...],
    mesh: tuple[int, ...],
    coordinates: tuple[int, ...],
) -> tuple[slice, ...]:
    """The slice of each dimension that the rank at these coordinates of the mesh has.

    layout: one placement for each axis of the mesh; "R" and "P" don't cut. Where
    several axes cut one dimension, the first of them cuts first, and the next ones cut
    what is left. A part may be empty.
    """
    first, end = [0] * len(shape), list(shape)
    ### BEGIN SOLUTION
    for placement, n, place in zip(layout, mesh, coordinates):
        if placement[0] == "S":
            dim = int(placement[1:])
            each = math.ceil((end[dim] - first[dim]) / n)
            first[dim] = min(first[dim] + place * each, end[dim])
            end[dim] = min(first[dim] + each, end[dim])
    ### END SOLUTION
    return tuple(map(slice, first, end))

# %% [markdown]
# <details><summary>Hint</summary>
#
# Take one axis after the other. Each of them narrows the range of one dimension: from `first[dim]` to `end[dim]`, cut
# into parts of `ceil` of its length by n. The minimum with the old end takes care of short and empty parts.
# </details>

# %% check="my-part" judges="values" points=4
check(my_part, judges="values")

# %%
for place in product(range(2), range(3)):
    print(place, my_part((7, 4), ("S0", "S0"), (2, 3), place))

# %% [markdown]
# The first axis gives rows 0 to 3 to its first half. Three ranks share those: 2, 2 and none. Had the second axis cut
# first, rank (0, 2) would have row 6.

# %% [markdown]
# # Part 2 · From one placement to another
# Taking a tensor from one placement to another along one axis is a **conversion**. There are only a few, and you have
# known the collective for each of them since lesson 01:
#
# | from | to | how |
# | --- | --- | --- |
# | `S` | `R` | all-gather |
# | `P` | `R` | all-reduce |
# | `P` | `S` | reduce-scatter |
# | `S0` | `S1` | all-to-all |
# | `R` | `S` | nothing is sent: take your part |
#
# Nobody asks for `P`. It is what a computation leaves behind.

# %% [markdown]
# ## What a conversion costs
#
# Each of n ranks has `nbytes` bytes **before** the conversion. How many bytes must each of them send? Count as in
# lesson 02, for the best algorithms: the ring's all-reduce, say. **Predict** first, for a partial sum on 8 ranks: how
# many times as many bytes does P to R take as P to S?

# %%
predict("P to R over P to S", ...)

# %% exercise="conversion-bytes" difficulty=2 minutes=10
def conversion_bytes(nbytes: int, src: str, dst: str, n: int) -> tuple[str, int]:
    """(collective, bytes that each rank sends) of a conversion along one axis.

    nbytes: of what a rank has before. src: "R", "P", "S0", ...; dst: "R", "S0", ...
    They may be the same.
    Names as in torch.distributed: "all_gather", "all_reduce", "reduce_scatter",
    "all_to_all"; "" if nothing needs to be sent. All parts are equal.
    """
    ### BEGIN SOLUTION
    if src == dst or src == "R":
        return "", 0
    if src == "P":
        each = nbytes // n * (n - 1)
        return ("all_reduce", 2 * each) if dst == "R" else ("reduce_scatter", each)
    return ("all_gather", nbytes * (n - 1)) if dst == "R" else ("all_to_all", nbytes // n * (n - 1))
    ### END SOLUTION

# %% check="conversion-bytes" judges="values" points=4
check(conversion_bytes, judges="values")

# %%
reveal(
    "P to R over P to S",
    conversion_bytes(800, "P", "R", 8)[1] / conversion_bytes(800, "P", "S0", 8)[1],
    why="An all-reduce is a reduce-scatter and an all-gather of what that leaves.",
)

# %% [markdown]
# ## One conversion, even parts
#
# Now carry them out. The lesson imports three collectives from the kit that return new tensors:
#
# ```python
# all_reduce(x, group)
# all_gather(x_local, group, dim)          # concatenated along dim
# reduce_scatter(x_partial, group, dim)    # this rank's part of the sum along dim
# ```
# For the fourth, `dist.all_to_all(arrived, pieces, group=group)` takes two lists of tensors, all of the same shape.
#
# <details><summary>Hint 1: where to look</summary>
#
# The table above has five rows. One of them needs more than a line.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# From S0 to S1, a rank cuts what it has along dimension 1, one piece for each rank. The pieces that arrive are parts
# along dimension 0.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Cut with `chunk` along the dimension of `dst`; such pieces aren't contiguous, and messages must be. What arrives from
# each rank is as large as one piece. Join what arrived along the dimension that `src` cuts.
# </details>

# %% exercise="convert" difficulty=3 minutes=20
def convert(x_local: Tensor, src: str, dst: str, group: dist.ProcessGroup) -> Tensor:
    """What this rank has once the tensor lies as `dst` along the ranks of `group`.

    src: "R", "P", "S0", ...; dst: "R", "S0", ...; they may be the same. All parts are
    equal. x_local is left unchanged. At most one collective, the one that sends the
    least.
    """
    n, me = dist.get_world_size(group), dist.get_rank(group)
    ### BEGIN SOLUTION
    if src == dst:
        return x_local
    if dst == "R":
        return all_reduce(x_local, group) if src == "P" else all_gather(x_local, group, int(src[1:]))
    to = int(dst[1:])
    if src == "P":
        return reduce_scatter(x_local, group, to)
    if src == "R":
        return x_local.chunk(n, to)[me]
    pieces = [piece.contiguous() for piece in x_local.chunk(n, to)]
    arrived = [torch.empty_like(piece) for piece in pieces]
    dist.all_to_all(arrived, pieces, group=group)
    return torch.cat(arrived, int(src[1:]))
    ### END SOLUTION

# %% check="convert" judges="values" points=4
check(convert, judges="values")

# %% check="convert" judges="traffic" points=2
check(convert, judges="traffic")

# %% [markdown]
# Is it the least? Here is every conversion of a 16 x 16 matrix on 4 ranks, with the bytes that your formula gives, that
# your program sends, and that DTensor sends. The run's record counts them all, those of DTensor's own calls included.

# %% tags=["notebook-only"]
def placement_of(text):
    return {"R": Replicate(), "P": Partial()}.get(text) or Shard(int(text[1:]))

def sent_in(run, name):
    """Bytes that rank 0 sent within a region, as its collectives imply."""
    [part] = [part for part in run.regions if part.rank == 0 and part.name == name]
    inside = [
        event
        for event in run.events
        if event.rank == 0 and part.start <= event.start < part.end
    ]
    return Traffic(run.world_size, inside).implied(0)

pairs = [(a, b) for a in ("P", "S0", "S1", "R") for b in ("R", "S0", "S1") if a != b]

def all_pairs(rank, world_size):
    # DTensor warns of what you'll see below, on each rank
    logging.disable(logging.WARNING)
    mesh = init_device_mesh("cpu", (world_size,))
    for src, dst in pairs:
        mine = torch.ones(
            16 // (world_size if src == "S0" else 1),
            16 // (world_size if src == "S1" else 1),
        )
        with region(f"{src} {dst}"):
            convert(mine, src, dst, dist.group.WORLD)
        x = DTensor.from_local(mine, mesh, [placement_of(src)])
        with region(f"{src} {dst} by DTensor"):
            x.redistribute(placements=[placement_of(dst)])

run = spawn(all_pairs, 4)
print("          formula  yours  DTensor")
for src, dst in pairs:
    nbytes = 4 * 256 // (4 if src[0] == "S" else 1)
    formula = conversion_bytes(nbytes, src, dst, 4)[1]
    yours = sent_in(run, f"{src} {dst}")
    theirs = sent_in(run, f"{src} {dst} by DTensor")
    print(f"{src:>2} to {dst:<2} {formula:9} {yours:6} {theirs:8}")

# %% [markdown]
# Yours always sends what the formula says. So does DTensor, except from S0 to S1 and back, where it sends four times as
# much. On a CPU it gathers everything and throws most of it away, because it thinks that Gloo has no all-to-all. (Gloo
# has had one since torch 2.12, and you have just used it. DTensor prints a warning, which is switched off above.) On
# GPUs, DTensor does use an all-to-all.

# %% [markdown]
# ## Uneven parts
#
# 7 rows on 4 ranks become 2, 2, 2 and 1; 5 rows become 2, 2, 1 and 0. In earlier lessons such cases were forbidden, or
# padded. Here, values must come out right for any length, even where a rank has nothing at all. The collectives differ
# in what they need:
#
# - all-gather and reduce-scatter need parts of **equal** size: pad them with zeros to `ceil(length / n)`, and cut the
#   rest off at the end.
# - all-to-all takes pieces of **any** size, so there is nothing to pad. But each rank must know how much arrives from
#   each rank. The kit's `all_to_all(rows, send, receive, group)` does that for a flat tensor: it sends `send[k]` of its
#   numbers to rank k, those for rank 0 first, and returns `receive[k]` numbers from each.
#
# <details><summary>Hint 1: where to look</summary>
#
# `x_local.chunk(n, dim)` may give you fewer than n chunks, and `shape` says what all ranks have together.
# `chunks(x, n, dim)` from the kit always gives n of them, and `pad_to(x, length, dim)` pads.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Along a padded dimension, all zeros are at the end: the short parts are the last ones. So after an all-gather a single
# `narrow` removes them. For a reduce-scatter, pad **before** you cut into equal parts, then remove the zeros of your
# own part.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# From S0 to S1, what arrives from rank k has as many rows as rank k had, and as many columns as this rank gets. Cut
# something of the length `shape[0]` into n chunks to learn the first, and something of the length `shape[1]` to learn
# the second. The product is the count for rank k, and the two are the shape that you view its numbers in afterwards.
# </details>

# %% exercise="convert-uneven" difficulty=4 minutes=20
def convert_uneven(
    x_local: Tensor,
    src: str,
    dst: str,
    shape: tuple[int, ...],
    group: dist.ProcessGroup,
) -> Tensor:
    """As `convert`, for any length of the dimensions that are cut.

    shape: of the tensor that all ranks of the group have together. Parts are as
    torch.chunk cuts; some may be empty. An all-gather or a reduce-scatter sends parts
    that are padded to the length of the longest one, an all-to-all sends no padding.
    """
    n, me = dist.get_world_size(group), dist.get_rank(group)
    # dimensions; None where it isn't cut
    before, after = cut_dim(src), cut_dim(dst)
    if src == dst:
        return x_local
    if before is None and after is None:
        return all_reduce(x_local, group)
    ### BEGIN SOLUTION
    if src == "R":
        return chunks(x_local, n, after)[me]
    if after is None:
        each = math.ceil(shape[before] / n)
        return all_gather(pad_to(x_local, each, before), group, before).narrow(before, 0, shape[before])
    mine = chunks(torch.empty(shape[after]), n, 0)[me].numel()
    if src == "P":
        each = math.ceil(shape[after] / n)
        return reduce_scatter(pad_to(x_local, n * each, after), group, after).narrow(after, 0, mine)
    pieces, sizes = chunks(x_local, n, after), []
    for rows in chunks(torch.empty(shape[before]), n, 0):
        sizes.append(list(x_local.shape))
        sizes[-1][before], sizes[-1][after] = rows.numel(), mine
    counts = [math.prod(size) for size in sizes]
    flat = all_to_all(torch.cat([x.flatten() for x in pieces]), [x.numel() for x in pieces], counts, group)
    return torch.cat([x.view(size) for x, size in zip(flat.split(counts), sizes)], before)
    ### END SOLUTION

# %% check="convert-uneven" judges="values" points=4
check(convert_uneven, judges="values")

# %% check="convert-uneven" judges="traffic" points=2
check(convert_uneven, judges="traffic")

# %% [markdown]
# What if you forget to pad? Then ranks hand tensors of different shapes to one all-gather. With plain torch that hangs
# or returns garbage; `spawn` says which rank brought what.

# %% tags=["notebook-only", "nbval-ignore-output"]
def without_padding(rank, world_size):
    return all_gather(
        chunks(torch.ones(7, 3), world_size, 0)[rank], dist.group.WORLD, 0
    )

try:
    spawn(without_padding, 4)
except RuntimeError as error:
    print(str(error)[:700])

# %% [markdown]
# # Part 3 · Several axes
# On a mesh of two axes, a conversion changes **one** placement of the layout, and all ranks along that axis do it
# together. The other axes decide what there is to convert.

# %% [markdown]
# ## A list of steps
#
# Carry out a list of steps `(axis, old, new)`. You get a correct `convert` for uneven parts, like the one that you have
# just written. The question is which `shape` to give it: the ranks along one axis don't have the whole tensor together.
# They have what the **other** axes leave them.
#
# <details><summary>Hint 1: where to look</summary>
#
# `local_shape(shape, layout, mesh, coordinates)` from the kit is the shape of what a rank has. For which layout is it
# the shape of what this rank's group has together?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# If this axis didn't cut at all, then each rank of the group would have what they now have together.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# For each step: a copy of the layout with "R" at `axis`, its local shape, `convert`, and the new placement goes into
# the layout for the next step.
# </details>

# %% exercise="redistribute" difficulty=3 minutes=15
def redistribute(
    x_local: Tensor,
    shape: tuple[int, ...],
    src: tuple[str, ...],
    steps: list[tuple[int, str, str]],
    mesh: tuple[int, ...],
    coordinates: tuple[int, ...],
    groups: list[dist.ProcessGroup],
    convert,
) -> Tensor:
    """What this rank has after these steps (axis, old placement, new placement).

    shape: of the whole tensor, which lies as `src` at first. groups: this rank's group
    along each axis of the mesh. convert(x, old, new, shape, group) is one conversion;
    its shape is that of what the group has together.
    """
    ### BEGIN SOLUTION
    layout = list(src)
    for axis, old, new in steps:
        layout[axis] = "R"
        together = local_shape(shape, layout, mesh, coordinates)
        x_local = convert(x_local, old, new, together, groups[axis])
        layout[axis] = new
    ### END SOLUTION
    return x_local

# %% check="redistribute" judges="values" points=4
check(redistribute, judges="values")

# %% [markdown]
# ## Which steps?
# From `("S0", "S0")` to `("R", "S0")`, one step seems to be enough: undo the cut along the first axis. Let's try it on
# 8 rows and 2 x 2 ranks. Rank (0, 0) has rows 0 and 1, rank (0, 1) rows 2 and 3, and so on.

# %% tags=["notebook-only"]
def undo_the_outer(rank, world_size):
    mesh = init_device_mesh("cpu", (2, 2))
    mine = my_part((8,), ("S0", "S0"), (2, 2), mesh.get_coordinate())
    return convert(torch.arange(8)[mine], "S0", "R", mesh.get_group(0)).tolist()

spawn(undo_the_outer, 4).results

# %% [markdown]
# Rank (0, 0) now has rows 0, 1, 4 and 5. No layout describes that: as `("R", "S0")`, it would have rows 0 to 3. So:
#
# > Only the **innermost** cut of a dimension can be undone or added: a step may cut or join a dimension only if no
# > later axis cuts it.
#
# That is why DTensor's default plan is so expensive. To get to a layout in which two axes cut one dimension,
# it first undoes the inner axis, with a gather of everything. Often there is a cheaper way round.

# %% [markdown]
# ## The cheapest steps
#
# Find the way with the fewest bytes: a shortest path. The nodes are layouts, the edges are possible steps, and an
# edge's length is what a rank sends. `moved(size, old, new, n)` from the kit is your formula from exercise 2, but for
# the size of what the n ranks have **together**: the whole tensor's size, divided by the number of ranks along each
# other axis that cuts it.
#
# **Predict** for the matrix at the start of this lesson, from `("R", "S0")` to `("S1", "S1")` on 8 x 8 GPUs: how many
# times as many bytes does DTensor's way send as the cheapest one?

# %%
predict("DTensor's bytes over the fewest", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Dijkstra's algorithm: a heap of (cost, layout, steps). The layout that comes off first is final. There are only
# `(dimensions + 1) ** axes` layouts, and some more if `src` has a "P".
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# From a layout, try each axis with each new placement. Skip a step that changes nothing, one to "P", and one in which a
# later axis cuts the dimension that `old` cuts, or the one that `new` cuts. Each of the others has a cost.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# A step's price is `moved` of what the ranks along this axis have together: all numbers of the tensor, divided by the
# size of each **other** axis that cuts. Push the total price, the layout with `new` at this axis, and a new list of
# steps with this one at its end. Tuples are compared from left to right, so the price comes first.
# </details>

# %% exercise="cheapest-steps" difficulty=4 minutes=20
def cheapest_steps(
    shape: tuple[int, ...],
    src: tuple[str, ...],
    dst: tuple[str, ...],
    mesh: tuple[int, ...],
) -> list[tuple[int, str, str]]:
    """Steps (axis, old placement, new placement) from src to dst that send the least.

    src may have "P", dst doesn't. All parts are even, in all layouts. A step may cut or
    join a dimension only if no later axis cuts that dimension at this moment.
    """
    placements = ["R"] + [f"S{dim}" for dim in range(len(shape))]
    ### BEGIN SOLUTION
    heap, done = [(0, src, [])], set()
    while heap:
        cost, layout, steps = heapq.heappop(heap)
        if layout == dst:
            return steps
        if layout in done:
            continue
        done.add(layout)
        for axis, new in product(range(len(mesh)), placements):
            old, later = layout[axis], {cut_dim(p) for p in layout[axis + 1 :]} - {None}
            if new == old or cut_dim(old) in later or cut_dim(new) in later:
                continue
            others = [n for k, n in enumerate(mesh) if k != axis and cut_dim(layout[k]) is not None]
            more = moved(math.prod(shape) // math.prod(others), old, new, mesh[axis])
            heapq.heappush(heap, (cost + more, layout[:axis] + (new,) + layout[axis + 1 :], steps + [(axis, old, new)]))
    ### END SOLUTION

# %% check="cheapest-steps" judges="values" points=5
check(cheapest_steps, judges="values")

# %% [markdown]
# And now the 64 GPUs again, with your steps and your conversions.

# %% tags=["notebook-only"]
def one_shape(x, old, new, shape, group):
    return convert(x, old, new, group)

def move_cheaply(
    rank, world_size, shape=(65536, 65536), src=("R", "S0"), dst=("S1", "S1")
):
    mesh = init_device_mesh("cuda", (8, 8))
    mine = torch.empty(8192, 65536, dtype=torch.bfloat16)
    steps = cheapest_steps(shape, src, dst, (8, 8))
    groups = [mesh.get_group(axis) for axis in range(2)]
    x = redistribute(
        mine, shape, src, steps, (8, 8), mesh.get_coordinate(), groups, one_shape
    )
    return tuple(x.shape), steps

by_us = simulate(move_cheaply, 64)
sent_by_us, peak_by_us = by_us.traffic().implied(0), max(by_us.memory().peak)
print("steps:", by_us.results[0][1])
print(f"each GPU sent {sent_by_us / 1e6:,.0f} MB, held {peak_by_us / 1e6:,.0f} MB")
print(f"and took {by_us.elapsed * 1e3:.2f} ms")

# %%
reveal(
    "DTensor's bytes over the fewest",
    sent / sent_by_us,
    why="R to S1 along the first axis is free and leaves a GPU an eighth of its part. S0 to S1 along the second axis "
    "sends seven eighths of that. DTensor's gather sends the whole part seven times: 64 times as much.",
)

# %% [markdown]
# Here are the two ways on the map of all layouts, with the first axis's placement down the side and the second's along
# the top. The numbers say which part of the whole matrix a GPU sends.

# %%
figures.layout_ways(
    ("R", "S0"),
    {
        "DTensor's default": [(1, "S0", "R"), (0, "R", "S1"), (1, "R", "S1")],
        "the cheapest": [(0, "R", "S1"), (1, "S0", "S1")],
    },
    mesh=(8, 8),
)

# %% [markdown]
# How often is the default that expensive? Its rule fits into a few lines: from the last axis to the first, change what
# can be changed and gather what is in the way; then from the first to the last, cut what is still to be cut. (The bytes
# of these steps were compared with DTensor's recorded ones for 279 pairs of layouts, and were the same.)

# %%
def default_steps(src, dst):
    now, steps = list(src), []
    for axis in reversed(range(len(src))):
        old, new = now[axis], dst[axis]
        if new[0] == "S" and [k for k in range(axis) if now[k] == new] != [
            k for k in range(axis) if dst[k] == new
        ]:
            new = "R"  # the axes before this one don't cut the dimension as they will
        if old != new and any(p[0] == "S" for p in src):
            steps.append((axis, old, new))
            now[axis] = new
    return steps + [
        (axis, now[axis], dst[axis])
        for axis in range(len(src))
        if now[axis] != dst[axis]
    ]

def numbers_sent(shape, src, steps, mesh):
    layout, total = list(src), 0
    for axis, old, new in steps:
        layout[axis] = "R"
        cut = [n for placement, n in zip(layout, mesh) if placement[0] == "S"]
        total += moved(math.prod(shape) // math.prod(cut), old, new, mesh[axis])
        layout[axis] = new
    return total

mesh, shape = (8, 8), (64, 64)
layouts = list(product(("R", "S0", "S1"), repeat=2))
ways = [
    (
        numbers_sent(shape, a, default_steps(a, b), mesh),
        numbers_sent(shape, a, cheapest_steps(shape, a, b, mesh), mesh),
    )
    for a, b in product(layouts, repeat=2)
]
more = sum(default > least for default, least in ways)
print(f"{more} of {len(ways) - len(layouts)} pairs: more than the fewest bytes")
times = sum(default for default, _ in ways) / sum(least for _, least in ways)
print(f"in all, {times:.2f} times as many")

# %% [markdown]
# torch has a better planner (`use_min_cost_redistribution_plan`, private so far), and you can always name the stops
# yourself, one `redistribute` after the other. To know where that pays, you need the map. Here is all of it: every
# step that there is between two layouts, with what it sends, in thousandths of the matrix.

# %%
def one_step(a, b):
    """What a single step from layout a to layout b sends; "" if there is none."""
    changed = [axis for axis in range(2) if a[axis] != b[axis]]
    if len(changed) != 1:
        return ""
    [axis] = changed
    if {a[axis], b[axis]} & set(a[axis + 1 :]) - {"R"}:
        return ""  # a later axis cuts the same dimension
    sent = numbers_sent(shape, a, [(axis, a[axis], b[axis])], mesh)
    return f"{1000 * sent / math.prod(shape):.0f}"

print("from \\ to" + "".join(f"{' '.join(b):>7}" for b in layouts))
for a in layouts:
    print(f"{' '.join(a):9}" + "".join(f"{one_step(a, b):>7}" for b in layouts))

# %% [markdown]
# # Part 4 · Operations and placements
# So far, we have only moved tensors. Now we compute with them. Each rank applies the operation to what it has, and
# nothing is sent. Is the result right, and how does it lie?
#
# Take `y = x @ w`, in the notation of einsum `bd,df->bf`, along one axis of the mesh. Say b is cut: each rank has some
# rows of x and all of w, and gets the same rows of y. Say d is cut, in x and in w: each rank multiplies some columns of
# x by the matching rows of w. That gives a summand of every number in y. So y is a partial sum.
#
# **Predict** how y lies if x is `"S1"` and w is `"S0"`, then if x is `"S1"` and w is `"R"`; "convert" if an input must
# be converted first.

# %%
predict("S1 @ S0", ..., choices=["R", "S0", "S1", "P", "convert"])
predict("S1 @ R", ..., choices=["R", "S0", "S1", "P", "convert"])

# %% [markdown]
# ## The einsum rule
#
# An einsum multiplies, and sums over the labels that don't occur in its output. That is all that you need to know.
# Which placements of the inputs fit together, and how does the output lie?
#
# <details><summary>Hint 1: where to look</summary>
#
# Which labels are cut? `term[int(placement[1:])]` is the label that a placement cuts in this input.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# If a label is cut, it must be cut in each input that has it, or the sizes don't match. Inputs without it must be
# whole. And a product is linear in each of its inputs, but (a + b)(c + d) isn't ac + bd.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Take the set of cut labels and the number of "P". No label and at most one "P" is easy. More than one label, a label
# and a "P", or two "P" need a conversion. Otherwise compare the placements with those that the one label would give
# each input, and look for the label in the output.
# </details>

# %% exercise="einsum-rule" difficulty=3 minutes=15
def einsum_rule(equation: str, *placements: str) -> str:
    """How the result lies along one axis if each rank computes with what it has.

    equation: as for torch.einsum, such as "bd,df->bf"; no label twice in one input.
    placements: of the inputs, "R", "P", "S0", ... Returns "R", "P" or "S0", ...; or
    "convert" if the result isn't right whatever the numbers are.
    """
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    ### BEGIN SOLUTION
    labels = {term[int(p[1:])] for term, p in zip(terms, placements) if p[0] == "S"}
    partial_sums = placements.count("P")
    if not labels:
        return "convert" if partial_sums > 1 else "P" if partial_sums else "R"
    if partial_sums or len(labels) > 1:
        return "convert"
    label = labels.pop()
    if list(placements) != [f"S{term.index(label)}" if label in term else "R" for term in terms]:
        return "convert"
    return f"S{output.index(label)}" if label in output else "P"
    ### END SOLUTION

# %% check="einsum-rule" judges="values" points=4
check(einsum_rule, judges="values")

# %%
print("x     w     y = x @ w")
for pair in product(("R", "S0", "S1", "P"), repeat=2):
    result = einsum_rule("bd,df->bf", *pair)
    if result != "convert":
        print(f"{pair[0]:5} {pair[1]:5} {result}")

# %%
reveal("S1 @ S0", einsum_rule("bd,df->bf", "S1", "S0"), why="d is cut in both, and summed over.")
reveal(
    "S1 @ R",
    einsum_rule("bd,df->bf", "S1", "R"),
    why="Some columns of x don't fit all rows of w. But R to S0 costs nothing, and then it is the case above. "
    "DTensor does that.",
)

# %% [markdown]
# Attention is an einsum too. Cut by heads, queries and keys give scores that are cut by heads:

# %%
einsum_rule("bshd,bthd->bhst", "S2", "S2")

# %% [markdown]
# ### Partial sums and other functions
# A partial sum stays one under any **linear** function: twice the sum is the sum of twice the summands. What
# about the rest? `x` is a partial sum on two ranks. Which of these make DTensor send something first: `x * 2`, `x + x`,
# `x + 1`, `x.relu()`? **Predict** a list of four, True where something is sent.

# %%
predict("x * 2, x + x, x + 1, x.relu() send something", ...)

# %% tags=["notebook-only"]
operations = {
    "x * 2": lambda x: x * 2,
    "x + x": lambda x: x + x,
    "x + 1": lambda x: x + 1,
    "x.relu()": lambda x: x.relu(),
}

def on_partial_sums(rank, world_size):
    x = DTensor.from_local(
        torch.ones(4) - 2 * rank, init_device_mesh("cpu", (world_size,)), [Partial()]
    )
    placements = {}
    for name, operation in operations.items():
        with region(name):
            placements[name] = operation(x).placements[0]
    return placements

run = spawn(on_partial_sums, 2)
for name, placement in run.results[0].items():
    print(
        f"{name:10} sends {sent_in(run, name):2} bytes, and the result is {placement}"
    )

# %%
reveal(
    "x * 2, x + x, x + 1, x.relu() send something",
    [sent_in(run, name) > 0 for name in operations],
    why="If each rank added 1, the sum would grow by 2. And relu of a sum is not the sum of relus. DTensor sums first.",
)

# %% [markdown]
# DTensor has learned these rules the hard way. In earlier versions, `x + 10` really added 10 on every rank (pytorch
# issue 163193), and `abs` let a partial sum through (174536). The test had not noticed, since in its data all summands
# had the same sign. The checks of this lesson draw mixed signs.

# %% [markdown]
# # Part 5 · Backward passes
# If you know how a value lies, how does its **gradient** lie? Say x is replicated, and each rank does something
# different with it, such as multiplying it by its own columns of w. Then each rank knows only its own contribution to
# the gradient of x: a partial sum. So the gradient of `"R"` is `"P"`.
#
# The other way round: if y is a partial sum, each summand goes into y with factor 1, so each rank needs the whole
# gradient of y. The gradient of `"P"` is `"R"`. And a part of a tensor has the matching part of the gradient: `"S0"`
# goes with `"S0"`.
#
# Sometimes each rank has all of a tensor, and they all do the **same** with it, as with the weights of a layer norm on
# replicated activations. Then each rank already has the whole gradient. That is a placement of its own, called `"I"`
# here, for invariant. Forward, it is just like `"R"`; its gradient is `"I"` again.
#
# | value | `R` | `P` | `S0` | `I` |
# | --- | --- | --- | --- | --- |
# | gradient | `P` | `R` | `S0` | `I` |
#
# This map is called **duality**.

# %% [markdown]
# ## The gradient of a conversion
#
# A conversion takes a value from `src` to `dst`. In the backward pass, the gradient arrives as the dual of one of them
# and must become the dual of the other. So which conversion is the backward pass of a conversion? (In the backward
# pass, a conversion to `"P"` is possible, too: a part becomes a summand that is zero everywhere else.)

# %% exercise="gradient-conversion" difficulty=2 minutes=8
def gradient_conversion(src: str, dst: str) -> tuple[str, str]:
    """(from, to): how the gradient is converted if the value goes from src to dst.

    src, dst: "R", "P", "I", "S0", ...
    """
    ### BEGIN SOLUTION
    dual = {"R": "P", "P": "R"}
    return dual.get(dst, dst), dual.get(src, src)
    ### END SOLUTION

# %% check="gradient-conversion" judges="values" points=3
check(gradient_conversion, judges="values")

# %% [markdown]
# With that, what you wrote in lessons 05, 07 and 08 takes one row each:

# %%
rows = {
    "f of tensor parallelism; weights in data parallelism": ("I", "R"),
    "g of tensor parallelism": ("P", "I"),
    "weights in FSDP; entering a sequence-parallel region": ("S0", "R"),
    "leaving a sequence-parallel region": ("P", "S0"),
    "gathering shards at the end": ("S1", "I"),
}
calls = {
    "S R": "all_gather",
    "S I": "all_gather",
    "P R": "all_reduce",
    "P I": "all_reduce",
    "P S": "reduce_scatter",
}
for name, pair in rows.items():
    back = gradient_conversion(*pair)
    forward, backward = (
        calls.get(f"{a[0]} {b[0]}", "nothing") for a, b in (pair, back)
    )
    print(
        f"{name:52} {pair[0]:2} to {pair[1]:2} {forward:14}  back: {back[0]:2} to "
        f"{back[1]:2} {backward}"
    )

# %% [markdown]
# So an all-reduce in the forward pass doesn't say what happens in the backward pass. If its result is `"I"`, that is
# nothing; if it is `"R"`, it is an all-reduce as well. Where lesson 08's gradients came out P times too large, these
# two had been mixed up.

# %% [markdown]
# ## An MLP, four times
#
# Now write one MLP, `relu(x @ w1) @ w2`, that is data-parallel, FSDP, Megatron's, or Megatron's with sequence
# parallelism, depending on two things:
#
# - `stored`: how x, w1 and w2 lie. The result must lie as x does.
# - `labels`: the label that is cut in each of the two products, with `USES` from the kit:
#
# | label | x | w | y = x @ w |
# | --- | --- | --- | --- |
# | `b`, the rows of x | `S0` | `R` | `S0` |
# | `f`, the columns of w | `R` | `S1` | `S1` |
# | `d`, which is summed over | `S1` | `S0` | `P` |
#
# `to(x, old, new)` converts a tensor, and autograd can differentiate it: in the backward pass it uses the duals. So all
# communication in both passes follows from where you call it.
#
# **Predict** for data parallelism with labels b and b, weights stored as `"I"` and used as `"R"`: what is sent in the
# forward pass, and what in the backward pass, for each weight?

# %%
collectives = ["nothing", "all_reduce", "all_gather", "reduce_scatter"]
predict("a weight, forward", ..., choices=collectives)
predict("a weight, backward", ..., choices=collectives)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# For each product: which placements does its label want, and how do x and w lie now?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Keep a variable for the placement of the activations. After a product it is the third entry of `USES[label]`; a
# conversion in front of the next product changes it to the first one.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Per product: convert x, convert w, multiply, note what was made. Where does relu go? After the first product x may be
# a partial sum, and relu of a sum isn't the sum of relus; so convert first. At the end, x must lie as it came.
# </details>

# %% exercise="sharded-mlp" difficulty=3 minutes=15
def sharded_mlp(
    x_local: Tensor,
    w1_local: Tensor,
    w2_local: Tensor,
    stored: dict[str, str],
    labels: tuple[str, str],
    to,
) -> Tensor:
    """relu(x @ w1) @ w2, where each rank has a part. The result lies as x does.

    stored: the placements of "x", "w1" and "w2". labels: what is cut in the two
    products, "b", "f" or "d" each. to(x, old, new) converts. Nothing else is sent.
    """
    ### BEGIN SOLUTION
    x, now = x_local, stored["x"]
    for name, w, label in zip(("w1", "w2"), (w1_local, w2_local), labels):
        use_x, use_w, made = USES[label]
        x = to(x, now, use_x)
        if name == "w2":
            x = x.relu()
        x, now = x @ to(w, stored[name], use_w), made
    return to(x, now, stored["x"])
    ### END SOLUTION

# %% check="sharded-mlp" judges="values" points=4
check(sharded_mlp, judges="values")

# %% check="sharded-mlp" judges="traffic" points=2
check(sharded_mlp, judges="traffic")

# %%
WAYS = {
    "data parallel": ({"x": "S0", "w1": "I", "w2": "I"}, ("b", "b")),
    "FSDP": ({"x": "S0", "w1": "S0", "w2": "S0"}, ("b", "b")),
    "Megatron": ({"x": "I", "w1": "S1", "w2": "S0"}, ("f", "d")),
    "Megatron, sequence parallel": ({"x": "S0", "w1": "S1", "w2": "S0"}, ("f", "d")),
}
SIZES = {"x": (32, 16), "w1": (16, 64), "w2": (64, 16)}

def local_zeros(stored, n):
    """A tensor of zeros for each name, of the shape that a rank has."""
    return [
        torch.zeros(local_shape(SIZES[name], (p,), (n,), (0,)), requires_grad=True)
        for name, p in stored.items()
    ]

# %%
def calls_in(run, name):
    [part] = [part for part in run.regions if part.rank == 0 and part.name == name]
    return [
        event.op
        for event in run.events
        if event.rank == 0 and part.start <= event.start < part.end
    ]

# %% tags=["notebook-only"]
def run_mlp(rank, world_size, stored, labels):
    x, w1, w2 = local_zeros(stored, world_size)
    with region("forward"):
        y = sharded_mlp(x, w1, w2, stored, labels, converter())
    with region("backward"):
        y.backward(torch.zeros_like(y))

by_hand = {name: spawn(run_mlp, 4, *way) for name, way in WAYS.items()}
for name, run in by_hand.items():
    there, back = (
        ", ".join(calls_in(run, part)) or "nothing" for part in ("forward", "backward")
    )
    print(
        f"{name}: {run.traffic().implied(0):,} bytes from each rank\n   forward "
        f"{there}; backward {back}"
    )

# %%
reveal(
    "a weight, forward",
    (calls_in(by_hand["data parallel"], "forward") or ["nothing"])[0],
    why="I to R: each rank already has all of it.",
)

# %%
reveal(
    "a weight, backward",
    calls_in(by_hand["data parallel"], "backward")[0],
    why="The dual of R is P, and that of I is I: P to I.",
)

# %% [markdown]
# One function, four strategies. Data parallelism and FSDP send the same number of bytes: an all-reduce is an all-gather
# and a reduce-scatter. (This FSDP keeps a gathered weight until the backward pass. Lesson 07's frees it, and gathers a
# second time: 3 instead of 2.)

# %% [markdown]
# # Part 6 · Choosing
# If every strategy is a choice of labels and placements, a program can choose. For that it needs prices.

# %% [markdown]
# ## The price of a layer
#
# One layer, `y = x @ w`, without anything before or after it. x arrives cut by tokens, `"S0"`, and y must leave
# the same way. What is sent depends on the label that is cut, and on how the weight is stored.
#
# <details><summary>Hint 1: where to look</summary>
#
# Three tensors are converted: x to what the label uses, w likewise, and y from what the product makes to `"S0"`.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# In the backward pass there are three conversions again, of gradients of the same sizes, between duals.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# Each of the three has a size, an old and a new placement, and its price is `moved`. Backward goes the other way: from
# the dual of the new placement to the dual of the old one. A dictionary can hold the five duals.
# </details>

# %% exercise="layer-bytes" difficulty=3 minutes=12
def layer_bytes(
    tokens: int, fan_in: int, fan_out: int, label: str, stored: str, n: int
) -> tuple[int, int]:
    """Numbers that each of n ranks sends for y = x @ w: (forward, backward).

    x: (tokens, fan_in), lies as "S0" before; y: (tokens, fan_out), as "S0" after.
    label: "b", "f" or "d", the one that is cut in the product, as in USES. stored: how
    w lies, "I", "S0" or "S1". Gradients lie as the duals of values. All parts are even.
    """
    x, w, y = tokens * fan_in, fan_in * fan_out, tokens * fan_out
    ### BEGIN SOLUTION
    dual = {"R": "P", "P": "R", "I": "I", "S0": "S0", "S1": "S1"}
    use_x, use_w, made = USES[label]
    forward = backward = 0
    for size, old, new in ((x, "S0", use_x), (w, stored, use_w), (y, made, "S0")):
        forward += moved(size, old, new, n)
        backward += moved(size, dual[new], dual[old], n)
    return forward, backward
    ### END SOLUTION

# %% check="layer-bytes" judges="values" points=4
check(layer_bytes, judges="values")

# %%
print(
    "1,024 tokens, a layer of 4,096 x 16,384, 8 ranks: millions of numbers forward, "
    "backward"
)
for label, stored in (("b", "I"), ("b", "S0"), ("f", "S1"), ("d", "S0")):
    forward, backward = layer_bytes(1024, 4096, 16384, label, stored, 8)
    print(
        f"label {label}, w stored as {stored:2} {forward / 1e6:8.1f} "
        f"{backward / 1e6:8.1f}"
    )

# %% [markdown]
# ## A model, sharded
#
# A model is a stack of such layers, with relu in between. Now conversions between layers may be left out: after a layer
# with label f, y is cut by columns, which is just what label d wants of its x. So choosing the cheapest way for
# each layer doesn't always give the cheapest model.
#
# There is a limit as well. On each rank, the stored weights of all layers together may have no more than `budget`
# numbers; `"I"` stores all of a weight, `"S0"` and `"S1"` an n-th. The activations come in as `"S0"` and leave as
# `"S0"`. Every layer must use one of the three labels, so that each rank does an n-th of the work.
#
# `both_passes(size, old, new, n)` from the kit is what a conversion sends forward and backward together.
#
# **Predict** what a search finds for two layers, 4,096 to 16,384 and back (F = 16,384), on 8 ranks, if weights must be
# cut: with 1,024 tokens, and with 65,536. From how many tokens on does the answer change?

# %%
predict("1,024 tokens", ..., choices=["FSDP", "Megatron"])
predict("65,536 tokens", ..., choices=["FSDP", "Megatron"])
predict("tokens from which on it changes", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Nine choices for each layer: a label and a placement. For four layers that are 6,561 models, which a program can try.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Go through a model layer by layer, with the placement of the activations in a variable, as in the exercise before
# last; here, add up prices. relu doesn't matter: no label wants its x as a partial sum, so a conversion comes before
# relu.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `itertools.product` of the labels and the placements gives the nine choices; `product` of those, with `repeat=`, gives
# the models. For each layer add up the prices of two conversions, x and the weight, and what is stored. After the last
# layer comes the way back to "S0". Skip what is over budget, and keep the best.
# </details>

# %% exercise="shard-model" difficulty=4 minutes=20
def shard_model(
    widths: list[int], tokens: int, n: int, budget: int
) -> list[tuple[str, str]]:
    """(label, placement of the stored weight) for each layer, so that the ranks send
    the least in both passes together.

    widths: layer k has a weight of shape (widths[k], widths[k + 1]); at most 4 layers.
    tokens: of the batch. budget: how many numbers a rank may store, for all weights
    together. There is an answer; if there are several, any will do. n divides all
    sizes.
    """
    ### BEGIN SOLUTION
    best, least = None, math.inf
    for choice in product(product("bfd", ("I", "S0", "S1")), repeat=len(widths) - 1):
        held = sent = 0
        now = "S0"
        for (label, stored), rows, columns in zip(choice, widths, widths[1:]):
            use_x, use_w, made = USES[label]
            held += rows * columns // (1 if stored == "I" else n)
            sent += both_passes(tokens * rows, now, use_x, n) + both_passes(rows * columns, stored, use_w, n)
            now = made
        sent += both_passes(tokens * widths[-1], now, "S0", n)
        if held <= budget and sent < least:
            best, least = list(choice), sent
    return best
    ### END SOLUTION

# %% check="shard-model" judges="values" points=5
check(shard_model, judges="values")

# %%
D, F_, n = 4096, 16384, 8
weights = 2 * D * F_
for tokens in (1024, 8192, 16383, 16384, 65536):
    cut, whole = (
        shard_model([D, F_, D], tokens, n, budget) for budget in (weights // n, weights)
    )
    print(f"{tokens:6,} tokens. Weights cut: {cut}; if there is room: {whole}")

# %%
reveal("1,024 tokens", "Megatron" if shard_model([D, F_, D], 1024, n, weights // n)[0][0] == "f" else "FSDP")

# %%
reveal("65,536 tokens", "Megatron" if shard_model([D, F_, D], 65536, n, weights // n)[0][0] == "f" else "FSDP")

# %%
reveal(
    "tokens from which on it changes",
    next(t for t in range(16000, 17000) if shard_model([D, F_, D], t, n, weights // n)[0][0] == "b"),
    why="In both passes, Megatron's layers send 4 tokens x D x (n - 1) / n, FSDP's 4 D x F x (n - 1) / n.",
)

# %% [markdown]
# Nobody told the search about FSDP or Megatron. It found f then d with the weights cut as `S1` and `S0`, with
# sequence parallelism around: Megatron. From F tokens on it found b and b, with cut weights: FSDP. If there is
# room for whole ones, data parallelism sends exactly as much as FSDP. Your search then prints the one that it tries
# first. Either you move the activations, or you move the weights, whichever is less.

# %%
figures.time_curves(
    {name: [(t, 2 * 4 * 7 / 8 * size(t)) for t in (1024, 4096, 16384, 65536, 262144)]
     for name, size in {"Megatron": lambda t: t * D, "FSDP": lambda t: D * F_}.items()},
    "what a GPU sends for two layers in bfloat16",
    labels=("tokens", "bytes"),
    units=("", "B"),
)

# %% [markdown]
# Alpa (2022) searches whole models that way, with time in place of bytes. PyTorch's autoparallel project does so for
# DTensor.

# %% [markdown]
# # Part 7 · DTensor
# `torch.distributed.tensor` does in a library what you have written: a `DTensor` has a local tensor, a mesh and
# placements. Every operation has a rule, as your einsum does. If the inputs don't fit, DTensor converts them, by its
# own prices. That is convenient, and it happens silently.
#
# | here | DTensor |
# | --- | --- |
# | `my_part` | `distribute_tensor(x, mesh, [Shard(0)])`: rank 0 sends everyone their part |
# | the local tensor with a placement | `DTensor.from_local(x_local, mesh, [Shard(0)])` |
# | `redistribute` | `x.redistribute(placements=[...])`, through which autograd goes |
# | `"R"`, `"S0"`, `"P"` | `Replicate()`, `Shard(0)`, `Partial()`; there is no `"I"` |
#
# ## What DTensor decides
# Two matrices, in all placements, multiplied on 4 ranks. For each pair: how the result lies, and the bytes that were
# sent to get there. Dots stand for "nothing".

# %% tags=["notebook-only"]
names = ("R", "S0", "S1", "P")

def all_products(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    found = {}
    for a, b in product(names, repeat=2):
        local = [torch.ones(local_shape((8, 8), (p,), (4,), (rank,))) for p in (a, b)]
        x, w = (
            DTensor.from_local(v, mesh, [placement_of(p)])
            for v, p in zip(local, (a, b))
        )
        with region(f"{a} @ {b}"):
            found[a, b] = str((x @ w).placements[0])
    return found

run = spawn(all_products, 4)
print("x @ w" + "".join(f"{'w: ' + b:>16}" for b in names))
for a in names:
    cells = [
        f"{run.results[0][a, b].replace('(sum)', '')} "
        f"{sent_in(run, f'{a} @ {b}') or '...'}"
        for b in names
    ]
    print(f"x: {a:3}" + "".join(f"{cell:>16}" for cell in cells))

# %% [markdown]
# Where your rule says "convert", it sends something. (R, S0) is free: each rank takes its columns of x. If both are
# cut by the same dimension, one of them is gathered. If both are partial sums, one of them is added up.
#
# That is what happened to many who cut their weights with `distribute_tensor(w, mesh, [Shard(0)])` and hoped for FSDP.
# The values are right. But which input is moved is decided by a price list, operation by operation. It is better to say
# which.

# %% [markdown]
# ## The MLP in DTensor
#
# Write the MLP from part 5 with DTensors: again one function for all four ways. Each rank's own local tensors come in,
# and a local tensor goes out. Convert with `redistribute` wherever a label asks for it, so that nothing is left for
# DTensor to decide. For `"I"`, use `Replicate()`: `from_local` remembers how a tensor lay, and converts its gradient
# back to that.
#
# <details><summary>Hint 1: where to look</summary>
#
# `DTensor.from_local(x_local, mesh, [placement])`, then as in your `sharded_mlp`, with `redistribute` for `to`.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# `redistribute` doesn't need the old placement: a DTensor knows it. If it lies as asked already, nothing is sent.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# For each product, redistribute both factors to what the label uses, and multiply them as if they were whole. The
# local tensor of the result counts only once it lies as x did.
# </details>

# %% exercise="dtensor-mlp" difficulty=3 minutes=12
def dtensor_mlp(
    x_local: Tensor,
    w1_local: Tensor,
    w2_local: Tensor,
    stored: dict[str, str],
    labels: tuple[str, str],
    mesh,
) -> Tensor:
    """As sharded_mlp, by DTensor on a DeviceMesh of one axis. Returns a local tensor.

    Gradients of the local tensors must come out as in sharded_mlp, and nothing is sent
    besides what the labels need.
    """
    def at(placement):
        return Shard(int(placement[1:])) if placement[0] == "S" else Replicate()

    ### BEGIN SOLUTION
    x = DTensor.from_local(x_local, mesh, [at(stored["x"])])
    for name, w_local, label in zip(("w1", "w2"), (w1_local, w2_local), labels):
        w = DTensor.from_local(w_local, mesh, [at(stored[name])])
        x = x.redistribute(placements=[at(USES[label][0])])
        if name == "w2":
            x = x.relu()
        x = x @ w.redistribute(placements=[at(USES[label][1])])
    return x.redistribute(placements=[at(stored["x"])]).to_local()
    ### END SOLUTION

# %% check="dtensor-mlp" judges="values" points=3
check(dtensor_mlp, judges="values")

# %% check="dtensor-mlp" judges="traffic" points=2
check(dtensor_mlp, judges="traffic")

# %% [markdown]
# What do you save by saying so? The same four ways, by your `sharded_mlp`, by your `dtensor_mlp`, and by DTensor when
# nothing is said: three tensors that are cut as before, and `(x @ w1).relu() @ w2`.

# %% tags=["notebook-only"]
def nothing_said(x, w1, w2, stored, labels, mesh):
    places = [placement_of(p.replace("I", "R")) for p in stored.values()]
    x, w1, w2 = (
        DTensor.from_local(v, mesh, [place]) for v, place in zip((x, w1, w2), places)
    )
    return ((x @ w1).relu() @ w2).redistribute(placements=x.placements).to_local()

def run_dtensor(rank, world_size, function, stored, labels):
    logging.disable(logging.WARNING)
    y = function(
        *local_zeros(stored, world_size),
        stored,
        labels,
        init_device_mesh("cpu", (world_size,)),
    )
    y.backward(torch.zeros_like(y))

print("bytes from each rank:       by hand  DTensor, told  DTensor, not told")
for name, way in WAYS.items():
    told, not_told = (
        spawn(run_dtensor, 4, f, *way).traffic().implied(0)
        for f in (dtensor_mlp, nothing_said)
    )
    print(
        f"{name:27} {by_hand[name].traffic().implied(0):7,} {told:14,} {not_told:18,}"
    )

# %% [markdown]
# Told, DTensor sends exactly what you do. Not told, it gathers activations where gathering weights would take fewer
# bytes, and the other way round. Only two of the four ways come out by themselves.

# %% [markdown]
# ## Stumbling blocks
# What people run into, most of them more than once, each with torch's own words:

# %% tags=["notebook-only"]
def words_of(action):
    try:
        return str(action())
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"

def stumbles(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(1)])
    rows = distribute_tensor(torch.ones(7, 8), mesh, [Shard(0)])
    bias = nn.Parameter(torch.ones(4))
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    weight.grad, bias.grad = weight.detach().clone(), bias.detach().clone()
    return {
        "a mask that is a plain tensor": words_of(lambda: x * torch.ones(8, 8)),
        "2 heads on 4 ranks": words_of(lambda: x.view(8, 2, 4)),
        "7 rows on 4 ranks, flattened": words_of(lambda: rows.view(56)),
        "asking for a partial sum": words_of(
            lambda: x.redistribute(placements=[Partial()])
        ),
        "clipping mixed gradients": words_of(
            lambda: nn.utils.clip_grad_norm_([weight, bias], 1.0)
        ),
    }

for what, words in spawn(stumbles, 4).results[0].items():
    print(f"{what}\n    {words}")

# %% [markdown]
# These raise errors, at least. This one doesn't: a replicated weight, `to_local()` to use it in a function that
# doesn't know about DTensors, and a part of the batch on each rank.

# %% tags=["notebook-only"]
def local_trap(rank, world_size):
    mesh, gradients = init_device_mesh("cpu", (world_size,)), []
    for options in ({}, {"grad_placements": [Partial()]}):
        w = DTensor.from_local(torch.ones(2), mesh, [Replicate()]).requires_grad_()
        x = torch.arange(2.0) + 10 * rank  # different tokens on each rank
        (w.to_local(**options) * x).sum().backward()
        gradients.append(f"{w.grad.placements[0]} {w.grad.to_local().tolist()}")
    return gradients

for rank, (plain, said) in enumerate(spawn(local_trap, 2).results):
    print(f"rank {rank}: {plain}. With grad_placements: {said}")

# %% [markdown]
# The gradient says `Replicate`, and yet it differs from rank to rank: nobody has added it up. `to_local` has left the
# world of placements, and with it the duals. You have to say what your use of the tensor makes of its gradient, here
# `Partial()`. More, without a cell of their own:
#
# - `DTensor.from_local` of uneven parts assumes that the others have as much as this rank. Pass `shape=` and `stride=`.
# - Softmax and layer norm along a cut dimension, and `x[0]` of a tensor cut along 0, gather everything, silently.
# - DTensor's prices are those of NVLink, and an all-to-all has the price of a gather (pytorch issue 178175). So what it
#   chooses need not be the least.
# - On a CPU, `scaled_dot_product_attention` of DTensors cut by heads ran for more than 300 s without a result (torch
#   2.13): it searches for a placement of everything inside. Use products and softmax, or `local_map`.
# - `use_min_cost_redistribution_plan`, `ExplicitRedistributionContext` and `DebugMode` are useful, and in torch's
#   private modules. The second raises an error for each conversion that you haven't asked for: `Implicit redistribution
#   occurred for aten.mm.default while ExplicitRedistributionContext was active`. The third prints all of them.

# %% [markdown]
# ## Two libraries on one mesh
# `parallelize_module` cuts a module's weights for tensor parallelism, `fully_shard` for FSDP, both by making DTensors
# of them. So both fit on one mesh of two axes. How do the rows of the first weight lie then?

# %% tags=["notebook-only"]
def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64, bias=False), nn.ReLU(), nn.Linear(64, 16, bias=False)
    ).double()

batch = torch.randn(8, 16, dtype=double, generator=torch.Generator().manual_seed(1))

def two_axes(rank, world_size):
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = make_model()
    parallelize_module(
        model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    fully_shard(model, mesh=mesh["dp"])
    with region("step"):
        model(batch.chunk(2)[mesh.get_coordinate()[0]]).square().mean().backward()
    return model[0].weight.placements, model[0].weight.grad.to_local()

run, whole = spawn(two_axes, 4), make_model()
whole(batch).square().mean().backward()
placements, gradient = run.results[1]  # dp 0, tp 1
print(placements, calls_in(run, "step"))
rows = [
    n
    for n, row in enumerate(whole[0].weight.grad)
    if any(torch.allclose(row, mine) for mine in gradient)
]
print("rows of rank 1:", rows)

# %% [markdown]
# On the mesh, dp is the first axis, so dp should cut first. But tp was applied first: rank (0, 1) has rows 32 to 47,
# the first half of tp's second half. As `("S0", "S0")` it would have rows 16 to 31. So DTensor has a placement of its
# own for that, `_StridedShard`. Take care with any code that looks at placements and doesn't know this one.

# %% [markdown]
# # Part 8 · JAX
# JAX was built around this idea. An array has a **sharding**, `jit` compiles the program for all devices at once, and
# XLA's partitioner inserts the collectives, for the whole program instead of operation by operation.
#
# JAX is not among the packages of this course: `make jax` adds it. Without it, the four cells below show what it
# gave when the lesson was built; nothing else depends on it. They run on 8 virtual devices of the CPU, in this kernel.
#
# | here | JAX |
# | --- | --- |
# | mesh | `jax.make_mesh((2, 4), ("x", "y"))` |
# | `("S0", "S1")` | `P("x", "y")`: for each **dimension**, the axis that cuts it |
# | `("S0", "S0")` | `P(("x", "y"), None)` |
# | `("R", "R")` | `P(None, None)` |
# | `redistribute` | `jax.reshard`, `out_shardings=`, or `with_sharding_constraint` |
# | `"P"`, and its dual | `P(..., unreduced={"x"})` and `P(..., reduced={"x"})`, in new versions |
#
# Here is this lesson's first line again, on 2 x 4 devices: from `("R", "S0")` to `("S1", "S1")`. We don't run it; we
# look at what XLA has compiled.

# %% tags=["notebook-only", "nbval-ignore-output"]
def collective_lines(compiled):
    """The lines of a compiled program that hold a collective, shortened."""
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    lines = [
        line.strip()
        for line in compiled.as_text().splitlines()
        if re.search(rf" ({kinds})\(", line)
    ]
    return [
        re.sub(
            r", (metadata=\{.*?\}|use_global_device_ids=true|channel_id=\d+)", "", line
        )
        for line in lines
    ]

def opening(jax):
    mesh = jax.make_mesh((2, 4), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2)
    rows, columns = (
        jax.NamedSharding(mesh, spec)
        for spec in (jax.P("y", None), jax.P(None, ("x", "y")))
    )
    move = jax.jit(lambda x: x, in_shardings=rows, out_shardings=columns)
    return collective_lines(
        move.lower(jax.ShapeDtypeStruct((64, 64), "float32")).compile()
    )

from_jax(opening)

# %% [markdown]
# One all-to-all among groups of four: XLA took the cheap way at once. But to know how many bytes that is, you have to
# read this.

# %% [markdown]
# ## Reading XLA's program
#
# Each line of a compiled program has a result with its type, an operation, and the operands. `f32[16,8]{1,0}` is an
# array of 16 x 8 numbers of 4 bytes, `f32[]` a single number. If there are several arrays, the type is a tuple in
# parentheses. That is the **result**: an all-gather's is n times as large as what a device hands in, a reduce-scatter's
# the n-th part.
#
# `replica_groups` says who takes part, in one of three forms:
#
# - `{{0,1,2,3},{4,5,6,7}}`: all groups, one by one
# - `[2,4]<=[8]`: 2 groups of 4
# - `mesh['x'=2,'y'=4] {'y'}`: a mesh, and the axes along which the groups lie. Between the two there may be something
#   like `, device_ids=([2,4]T(1,0))`.
#
# <details><summary>Hint 1: where to look</summary>
#
# A regular expression for each of three things: type and operation, arrays in a type, groups. Lines may also name a
# collective among their operands, as in `fusion(%all-reduce.1)`; behind the name of an operation there is a `(`.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# `re.search(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all)\(", line)` has the type and the operation.
# `re.findall(r"(bf16|f32|f64)\[([\d,]*)\]", type)` has all its arrays.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# The text behind `replica_groups=` begins with `{`, `[` or `m`. Count the numbers of the first group; or take the
# second number in `[2,4]`; or look up the names in the last `{...}` among the sizes in `mesh[...]`, and multiply.
# </details>

# %% exercise="read-hlo" difficulty=3 minutes=15
def read_hlo(text: str) -> list[tuple[str, int, int]]:
    """(op, bytes that a device hands in, devices in a group) of each collective.

    text: a compiled program. Collectives are all-gather, all-reduce, reduce-scatter and
    all-to-all, in the order of the text; numbers are bf16, f32 or f64.
    """
    sizes, found = {"bf16": 2, "f32": 4, "f64": 8}, []
    ### BEGIN SOLUTION
    for line in text.splitlines():
        call = re.search(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all)\(", line)
        if not call:
            continue
        arrays = re.findall(r"(bf16|f32|f64)\[([\d,]*)\]", call[1])
        nbytes = sum(sizes[kind] * math.prod(int(n) for n in dims.split(",") if n) for kind, dims in arrays)
        groups = line.split("replica_groups=")[1]
        if groups[0] == "{":
            n = groups.split("}")[0].count(",") + 1
        elif groups[0] == "[":
            n = int(re.match(r"\[\d+,(\d+)\]", groups)[1])
        else:
            of_axis = dict(re.findall(r"'(\w+)'=(\d+)", groups))
            n = math.prod(int(of_axis[name]) for name in re.findall(r"'(\w+)'", re.search(r"\{(.*?)\}", groups)[1]))
        found.append((call[2], {"all-gather": nbytes // n, "reduce-scatter": nbytes * n}.get(call[2], nbytes), n))
    ### END SOLUTION
    return found

# %% check="read-hlo" judges="values" points=4
check(read_hlo, judges="values")

# %% [markdown]
# With that, you can compare JAX's conversions with yours. A 16 x 16 matrix on 4 devices, as in part 2, and the partial
# sum comes from a sum over a cut dimension.

# %% tags=["notebook-only", "nbval-ignore-output"]
def bytes_sent(lines):
    """Bytes that a device sends, by these lines."""
    calls = read_hlo("\n".join(lines))
    return sum(
        implied_bytes(op.replace("-", "_"), nbytes, 0, n, None)
        for op, nbytes, n in calls
    )

def conversions(jax):
    mesh = jax.make_mesh(
        (4,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4]
    )
    specs = {
        "R": (None, None),
        "S0": ("x", None),
        "S1": (None, "x"),
        "P": ("x", None, None),
    }
    lines = {}
    for src, dst in pairs:
        before, after = (jax.NamedSharding(mesh, jax.P(*specs[p])) for p in (src, dst))
        program = jax.jit(
            lambda x: x.sum(0) if x.ndim == 3 else x,
            in_shardings=before,
            out_shardings=after,
        )
        x = jax.ShapeDtypeStruct((4,) * (src == "P") + (16, 16), "float32")
        lines[f"{src} {dst}"] = collective_lines(program.lower(x).compile())
    return lines

compiled = from_jax(conversions)
for src, dst in pairs:
    formula = conversion_bytes(4 * 256 // (4 if src[0] == "S" else 1), src, dst, 4)
    calls = (
        ", ".join(op for op, _, _ in read_hlo("\n".join(compiled[f"{src} {dst}"])))
        or "nothing"
    )
    print(
        f"{src:>2} to {dst:<2} formula {formula[1]:5}  JAX "
        f"{bytes_sent(compiled[f'{src} {dst}']):5}  {calls}"
    )

# %% [markdown]
# Equal, except from P to S: JAX has an all-reduce, twice the bytes, instead of a reduce-scatter. That is the compiler
# for **CPUs**, which makes an all-reduce and a slice; compilers for GPUs and TPUs turn such pairs into a
# reduce-scatter. So on a CPU, an all-reduce whose result is only sliced counts as twice what it would be.

# %% [markdown]
# ## FSDP and tensor parallelism in JAX
# By default, the axes of `make_mesh` are **explicit**: the sharding belongs to the type of an array, and each operation
# checks it, like your `einsum_rule`. If it would say "convert", or if there is a choice, JAX doesn't guess. It asks.
# The MLP of part 5 then becomes:
#
# ```python
# def data_parallel(x, w1, w2):     # x: P("t", None); w1, w2: P(None, None)
#     return relu(x @ w1) @ w2
#
# def fsdp(x, w1, w2):              # x, w1, w2: P("t", None)
#     return relu(x @ reshard(w1, P(None, None))) @ reshard(w2, P(None, None))
#
# def megatron(x, w1, w2):          # x: P(None, None), w1: P(None, "t"), w2: P("t", None)
#     return jnp.matmul(relu(x @ w1), w2, out_sharding=P(None, None))
# ```
#
# **Predict** how many collectives JAX compiles for data parallelism, both passes together. There are two weights.

# %%
predict("collectives in JAX's data parallelism", ...)

# %% tags=["notebook-only", "nbval-ignore-output"]
def strategies(jax):
    P, relu, matmul = jax.P, jax.nn.relu, jax.numpy.matmul
    cut, whole = P("t", None), P(None, None)
    ways = {
        "data parallel": (lambda x, w1, w2: relu(x @ w1) @ w2, (cut, whole, whole)),
        "FSDP": (
            lambda x, w1, w2: relu(x @ jax.reshard(w1, whole)) @ jax.reshard(w2, whole),
            (cut, cut, cut),
        ),
        "Megatron": (
            lambda x, w1, w2: matmul(relu(x @ w1), w2, out_sharding=whole),
            (whole, P(None, "t"), cut),
        ),
        "Megatron, sequence parallel": (
            lambda x, w1, w2: matmul(
                relu(jax.reshard(x, whole) @ w1), w2, out_sharding=cut
            ),
            (cut, P(None, "t"), cut),
        ),
    }
    lines = {}
    mesh = jax.make_mesh((4,), ("t",), devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        for name, (mlp, specs) in ways.items():
            def both_ways(x, w1, w2, grad, mlp=mlp):
                y, backward = jax.vjp(mlp, x, w1, w2)
                return y, *backward(grad)

            arrays = [
                jax.ShapeDtypeStruct(
                    shape, "float32", sharding=jax.NamedSharding(mesh, spec)
                )
                for shape, spec in zip(
                    (*SIZES.values(), SIZES["x"]), (*specs, specs[0])
                )
            ]
            lines[name] = collective_lines(jax.jit(both_ways).lower(*arrays).compile())
    return lines

in_jax = from_jax(strategies)
print("bytes from each rank          torch    JAX")
for name, run in by_hand.items():
    calls = ", ".join(op for op, _, _ in read_hlo("\n".join(in_jax[name])))
    print(
        f"{name:27} {run.traffic().implied(0):7,} {bytes_sent(in_jax[name]):6,}  "
        f"{calls}"
    )

# %%
reveal(
    "collectives in JAX's data parallelism",
    len(read_hlo("\n".join(in_jax["data parallel"]))),
    why="XLA combines both gradients into one all-reduce, as DDP's buckets do: fewer calls, the same bytes.",
)

# %% [markdown]
# Data parallelism and Megatron send the same bytes as yours. In the other two, the CPU's compiler has all-reduces again
# where you have reduce-scatters. Count those at half, and these two are equal as well.
#
# If you do want a reduce-scatter on a CPU, you can write it: in `shard_map`, a function sees local arrays, and calls
# collectives itself, as in all other lessons. The last cell shows that, and what the types of explicit mode say
# about partial sums and their gradients.

# %% tags=["notebook-only", "nbval-ignore-output"]
def types_and_errors(jax):
    P, jnp, put = jax.P, jax.numpy, jax.device_put
    said = {}
    with jax.set_mesh(jax.make_mesh((8,), ("t",))):
        a, b = put(jnp.ones((8, 8)), P(None, "t")), put(jnp.ones((8, 8)), P("t", None))
        partial_sum = P(None, None, unreduced={"t"})
        summands = jax.jit(lambda a, b: jnp.matmul(a, b, out_sharding=partial_sum))(
            a, b
        )
        weight = jax.jit(lambda w: jax.reshard(w, P(None, None, reduced={"t"})))(
            put(jnp.ones((8, 8)), P(None, None))
        )
        _, backward = jax.vjp(lambda w: b @ w, weight)
        added = jax.shard_map(
            lambda a, b: jax.lax.psum_scatter(a @ b, "t", tiled=True),
            in_specs=(P(None, "t"), P("t", None)),
            out_specs=P("t", None),
        )
        said["S1 and S0"] = f"{jax.typeof(a)} and {jax.typeof(b)}"
        said["a @ b"] = words_of(lambda: a @ b)
        said["asked for a partial sum"] = str(jax.typeof(summands))
        said["its relu"] = words_of(lambda: jax.nn.relu(summands))
        said["a weight, and its gradient"] = (
            f"{jax.typeof(weight)} and {backward(b)[0].aval}"
        )
        said["7 rows on 8 devices"] = words_of(
            lambda: put(jnp.ones((7, 8)), P("t", None))
        )
        said["psum_scatter in shard_map"] = collective_lines(
            jax.jit(added).lower(a, b).compile()
        )[0]
    return {name: words.split(". Got shape")[0] for name, words in said.items()}

for name, words in from_jax(types_and_errors).items():
    print(f"{name}:\n    {words}")

# %% [markdown]
# `{U:t}` is a partial sum (unreduced) along t, and `{R:t}` is its dual, "reduced": a replicated weight whose gradient
# will be a partial sum. So duality is a rule of JAX's types. Some stumbling blocks:
#
# - `a @ b` with the contracted label cut in both is refused: is the result to be partial, cut or whole? `out_sharding=`
#   says it.
# - There are no uneven parts: sizes must be multiples of the axis.
# - In auto mode, XLA may choose something other than you meant. If it warns of "involuntary full rematerialization", it
#   has gathered everything to get from one layout to another: part 3's expensive way.
# - A loop's collectives appear once in the text, but run in each iteration.
# - A donated buffer is only reused if the result has the same sharding. If XLA has inferred a different one, it isn't.
# - Counts of calls mean little, as XLA combines collectives. Compare bytes.

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - A **layout** says how a tensor lies: replicated, cut, or a partial sum, along each axis of the mesh. The first axis
#   cuts first, and only the innermost cut can be undone.
# - **Conversions** are the collectives: all-gather, all-reduce, reduce-scatter, all-to-all, and two that are free. On
#   several axes, the order of steps can change the bytes by a factor as large as the number of GPUs.
# - An operation on what each rank has is right if one label is cut wherever it occurs. A sum over it leaves a partial
#   sum. Linear operations keep it one, and no others do.
# - A gradient's placement is the **dual** of its value's: R and P change places, S and I stay. All backward
#   communication follows.
# - Data parallelism, FSDP and Megatron are choices of one label for each layer, and of how weights are stored. A search
#   finds them. With fewer tokens than F, move activations; with more, weights.
# - DTensor and JAX decide what you don't say. Read what they decided, in the record or in the compiled program.
#
# **The libraries.** `torch.distributed.tensor` (`DTensor`, `distribute_tensor`, `parallelize_module`); in JAX `jax.P`,
# `jax.NamedSharding`, `jax.reshard`, `jax.shard_map`. *How to Scale Your Model*, an online book, writes `A[I_X, J]`
# for rows that are cut along X, and `{U_X}` for a partial sum.
#
# **The papers.** Xu and others: *GSPMD: General and Scalable Parallelization for ML Computation Graphs* (2021). Zheng
# and others: *Alpa* (2022), for the search. Shazeer and others: *Mesh-TensorFlow* (2018). Rink and others:
# *Memory-efficient array redistribution through portable collective communication* (2021), for part 3.

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## A block, a mesh, a limit
# Part 6 chose one label for each layer, along one axis. Now a transformer block on 4 x 8 GPUs: the products `qkv` (for
# queries, keys and values together), `out`, `up` and `down`. For each of them, a **plan** says three things: the label
# that each axis cuts, the layout of the stored weight, and which operands are kept for the backward pass. Whatever is
# converted and not kept must be converted again there: that is FSDP's second gather, and Megatron's of activations.
#
# `cost_of_plan` from the kit says what a GPU sends in both passes, and what it holds in between. Attention needs whole
# heads or whole sequences, so `qkv` can be cut by `f` or `b`, and by `b` no more often than there are sequences. In
# front of `qkv` and `up`, and behind `out` and `down`, activations are cut by tokens. Three plans:

# %%
BLOCK = (65536, 32, 8192, 28672, (4, 8))  # tokens, sequences, width, hidden, mesh
BUDGET = 1_000_000_000

for what, way in {
    "data parallel x Megatron": ("bt", "I", "x"),
    "FSDP on both axes": ("bb", "S0", "x"),
    "FSDP x Megatron": ("bt", "S0", "x"),
}.items():
    gone, held = cost_of_plan(uniform_plan(*way), *BLOCK)
    print(f"{what:25} sends {gone / 1e6:6,.0f} MB, holds {held / 1e6:6,.0f} MB")

# %% [markdown]
# With 1,000 MB for a block, only one of these fits, and it sends the most. Which plan sends the fewest bytes of those
# that fit? Par tries all that `uniform_plan` can make. The limit is the sum of what each product would take by itself,
# with nothing to convert in between and any amount of memory.
#
# <details><summary>Hint 1: where to look</summary>
#
# A plan doesn't have to be uniform. An operand that fits can be kept, and another one not. And look at where each
# weight is stored: does it get to its use in one step (part 3)?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Start from par, and change a single entry of a single product, as long as that helps. That gets stuck before it is
# done: some changes pay only in pairs.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# All plans are too many. But `qkv` and `out` don't see what `up` and `down` do, except through the budget. For each
# half, list all plans, and keep those for which no other sends less and holds less. Then combine the two lists.
# </details>

# %% exercise="block-plan" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def block_plan(
    tokens: int, sequences: int, width: int, hidden: int, mesh: tuple, budget: int
) -> dict:
    """{"qkv": (labels, stored, kept), "out": ..., "up": ..., "down": ...}: the fewest
    bytes, with at most `budget` bytes held.

    labels: "b", "f" or "d" for each axis of the mesh, such as "bf". stored: a tuple of
    "I", "S0" and "S1". kept: "", "x", "w" or "xw". Judged for the block above, and for
    others on two axes; a uniform plan fits. Sizes divide evenly.
    """
    ### BEGIN SOLUTION
    block, fitting = (tokens, sequences, width, hidden, mesh), []
    for axes, kept in product(product("bt", repeat=len(mesh)), ("", "x", "w", "xw")):
        plan = uniform_plan("".join(axes), "S0", kept)
        try:
            gone, held = cost_of_plan(plan, *block)
        except ValueError:
            continue  # attention has less than a sequence on a rank
        if held <= budget:
            fitting.append((gone, plan))
    return min(fitting, key=lambda pair: pair[0])[1]
    ### END SOLUTION

# %% tags=["notebook-only"]
plan = block_plan(*BLOCK, BUDGET)
gone, held = cost_of_plan(plan, *BLOCK)
print(f"sends {gone / 1e6:,.0f} MB, holds {held / 1e6:,.0f} of {BUDGET / 1e6:,.0f} MB")
print(plan)

# %% check="block-plan" judges="score" points=3
check(block_plan, judges="score", extra_credit=3)

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
