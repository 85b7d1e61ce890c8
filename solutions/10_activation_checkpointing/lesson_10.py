# %% [markdown] question="How can you train a model whose activations don't fit, and what does it cost?"
# # Activation checkpointing
# *you need: lesson 04 (training memory), lesson 08 (autograd functions); lesson 09 (1F1B) for part 6.*
#
# The backward pass needs what the forward pass has computed. ZeRO shards weights, gradients and optimizer state, but it
# leaves these **activations** alone, and for long sequences they are the largest part of all. There is a way out that
# needs no second GPU: throw them away, and compute them again when the backward pass asks for them.
#
# In this lesson you list what is kept, write `checkpoint` yourself, down to the dropout masks, and work out where to
# place checkpoints. The gradients stay the same to the last bit. What changes is memory and time, and you'll measure
# both.

# %%
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.flop_counter import FlopCounterMode

from utils import RankFailed, figures, region, simulate, track_memory
from utils.checks import checks_for
from utils.cluster import find_cluster
from utils.kit.chain import drawn_chain, peak_of_plan, seconds_of_plan, train_chain
from utils.kit.mlp import layer
from utils.kit.predictions import how_predictions_went, predict, reveal
from utils.kit.saved_tensors import saved_tensors
from utils.kit.transformer import NAMES, make_layer, transformer_layer

check = checks_for("10_activation_checkpointing")
# peaks and bandwidths as promised: times can be computed by hand
simulate = partial(simulate, rates="datasheet")
bf16 = torch.bfloat16

# %% [markdown]
# ## Why: sixteen thousand tokens are too many
# A transformer with 32 layers of width 4,096 has 6.4 billion parameters: 13 GB in bfloat16. Here are its forward and
# backward pass on one virtual H100 with 80 GB, for 4 sequences of 4,096 tokens. There are no gradients yet, and no
# optimizer. How far does it get?

# %%
WIDTH, HEADS = 4096, 32

def empty_layer():
    shapes = {
        "w_qkv": (WIDTH, 3 * WIDTH),
        "w_out": (WIDTH, WIDTH),
        "b_up": (4 * WIDTH,),
    }
    shapes |= {"w_up": (WIDTH, 4 * WIDTH), "w_down": (4 * WIDTH, WIDTH)}
    return {
        name: torch.empty(shapes.get(name, (WIDTH,)), dtype=bf16, requires_grad=True)
        for name in NAMES
    }

def train_transformer(rank, world_size, apply, layers=32, sequences=4, tokens=4096):
    """apply(function, *arguments) calls it, in the ordinary way or as a checkpoint."""
    weights = [empty_layer() for _ in range(layers)]
    x = torch.empty(sequences, tokens, WIDTH, dtype=bf16, requires_grad=True)
    for number, of_layer in enumerate(weights):
        with region(f"forward {number}"):
            x = apply(transformer_layer, x, of_layer, HEADS)
    with region("backward"):
        x.square().mean().backward()

def plainly(function, *arguments):
    return function(*arguments)

# %%
try:
    simulate(train_transformer, 1, plainly, cluster="dgx-h100")
except RankFailed as failure:
    print(str(failure).split("\n")[0])

# %% [markdown]
# Not even a third of the layers fit. (All 12.9 GB of weights are there from the start. The message counts a weight as a
# parameter only once a layer has used it, and until then under "other".) Now change one word: call each layer through
# PyTorch's `checkpoint`. The model, the batch and the GPU are the same.

# %%
run = simulate(
    train_transformer,
    1,
    partial(torch_checkpoint, use_reentrant=False),
    cluster="dgx-h100",
)
print(f"{max(run.memory().peak) / 1e9:.1f} GB at most")

# %% [markdown]
# # Part 1 · What the forward pass keeps
# An operation keeps what the formula of its gradient needs. For $y = x w$ the gradients are $x^T g$ and $g w^T$, so a
# matrix product keeps both its factors. An addition keeps nothing: its gradient is $g$, whatever the numbers were.
# `saved_tensors` walks through the graph behind a result and lists who keeps what.

# %%
x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
y = layer(x, w) + 1
for entry in saved_tensors(y):
    print(f"{entry.node:14} {entry.name:6} {str(entry.shape):8} {entry.nbytes:4} bytes")

# %% [markdown]
# The addition isn't in the list. The GELU keeps its argument, the product keeps `x` and `w`. But `w` is a parameter: it
# would be there anyway. And so would `x`, if something else holds it. What counts is the memory that is alive **only**
# because the backward pass needs it.
#
# Some operations keep their **result**. The softmax's gradient is a formula of its own output, and the next operation
# often keeps the same tensor as its argument. That is one memory with two names, and must be counted once.
#
# **Predict**: `exp(x).sin()` for 1,000 float32 numbers. The exponential keeps its result, the sine its argument. How
# many bytes are kept, besides `x`?

# %%
predict("bytes kept by exp(x).sin()", ...)

# %% [markdown]
# ## Listing what is kept
#
# Whenever an operation saves a tensor, PyTorch calls a hook, if there is one:
#
# ```python
# # pack(tensor) when it is saved; in backward, unpack(what pack returned)
# with saved_tensors_hooks(pack, unpack):
#     y = function(x)
# ```
#
# What `pack` returns is kept in the tensor's place. Today it returns the tensor itself, and takes notes.
#
# A **view** shares the memory of its base: a slice of a large tensor keeps all of it alive. So look at the memory
# behind a tensor, `tensor.untyped_storage()`, with its `.nbytes()` and its address, `.data_ptr()`.

# %% exercise="kept-for-backward" difficulty=2 minutes=8
def kept_for_backward(function, *inputs: Tensor) -> list[int]:
    """Bytes of each piece of memory that function(*inputs) keeps for its backward pass.

    In the order in which they are first saved. A piece of memory counts once, however
    many tensors lie in it, and as a whole. The memory of the inputs doesn't count.
    """
    ### BEGIN SOLUTION
    known = {x.untyped_storage().data_ptr() for x in inputs}
    kept = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            kept.append(storage.nbytes())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        # a name for it keeps the graph, so no address is used twice
        output = function(*inputs)
    del output
    return kept
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# A set of known addresses does both: it starts with those of the inputs, and each new one joins it. Hold on to the
# function's result until you are done, or memory is freed and its address is used again.
# </details>

# %% check="kept-for-backward" judges="values" points=3
check(kept_for_backward, judges="values")

# %%
kept = kept_for_backward(lambda x: x.exp().sin(), torch.randn(1000, requires_grad=True))

# %%
reveal(
    "bytes kept by exp(x).sin()",
    sum(kept),
    why="One tensor: exp's result is sin's argument.",
)

# %% [markdown]
# Now a whole transformer layer, at a small size: 32 tokens of width 16, 4 heads. Which of these are scores of
# attention, one number for each pair of tokens and each head?

# %%
weights = {name: value.requires_grad_() for name, value in make_layer(16, 64).items()}
x = torch.randn(1, 32, 16, requires_grad=True)
for entry in saved_tensors(transformer_layer(x, weights, 4)):
    if entry.first and entry.nbytes >= 32 * 16 * 4:
        print(
            f"{entry.node:24} {entry.name:12} {str(entry.shape):16} {entry.nbytes:6} "
            "bytes"
        )

# %% [markdown]
# The scores are the entry of shape (4, 32, 32), as the softmax left them. It is the only one that grows with the square
# of the number of tokens. (64, 16), (16, 64) and (16, 48) are weights, which would be there anyway. And the values, (4,
# 32, 4), are a view: they keep the memory of queries and keys alive, too, 6,144 bytes in all.
#
# In time, what is kept looks like a **staircase**: every layer of the forward pass adds a step, every layer of the
# backward pass takes one away. Here are six layers of that transformer on the virtual H100, with one sequence of 4,096
# tokens.

# %%
run = simulate(train_transformer, 1, plainly, 6, 1, 4096, cluster="dgx-h100")
run.memory().figure()

# %% [markdown]
# # Part 2 · A checkpoint by hand
# A **checkpoint** runs a piece of the forward pass without autograd, so nothing inside is kept. It keeps the piece's
# **inputs** alone. In the backward pass it runs the piece again, this time with autograd, and then goes backward
# through it. (The word is older than deep learning. It has nothing to do with saving a model to disk.)
#
# **Predict** for one layer of the MLP, `gelu(x @ w)`: how many times does a training step then compute `x @ w`, forward
# and backward together?

# %%
predict("times a step computes x @ w", ...)

# %% [markdown]
# ## Checkpoint as an autograd function
#
# An `autograd.Function` decides for itself what to keep, and what its backward pass does. Yours takes a function and
# its arguments, whatever they are:
#
# - Tensors, with or without gradient. Keep them with `ctx.save_for_backward(...)`, not as attributes of `ctx`: PyTorch
#   then notices if somebody changes one in place, and hooks see it.
# - Anything else: numbers, strings, `None`, a dictionary. Those go into `ctx` as they are.
# - One tensor or a tuple of them comes back. Some may need no gradient, such as a mask of booleans.
#
# In `backward`, autograd is off. Turn it on with `torch.enable_grad()` while you recompute. The recomputed piece must
# be a graph of **its own**, cut off from what came before: so give it `tensor.detach()`, which requires a gradient if
# the original does. Then `torch.autograd.backward(outputs, gradients)` goes through it and leaves gradients in the
# `.grad` of the detached inputs. Weights that the function uses without getting them as arguments receive theirs at the
# same time; `torch.autograd.grad` would leave those out.
#
# Checkpoints may be **nested**: the function may itself call `checkpoint`. If you've done the above, that works.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# In `forward`, remember which places of `args` hold tensors, and fill them again from `ctx.saved_tensors` in
# `backward`. Autograd is already off in `forward`.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# A detached tensor is a leaf of a new graph: after the inner backward pass its `.grad` is the gradient that you return.
# Only outputs that require a gradient may go into the inner backward pass, each with its own gradient.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Backward has four parts: put the arguments back together, with detached tensors; call the function with autograd on;
# run the inner backward pass from the outputs that have a gradient; return one entry for the function and one for each
# argument, which is `None` where it isn't a tensor.
# </details>

# %% exercise="checkpoint" difficulty=4 minutes=20
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *args):
        """Call the function; keep its arguments and nothing else."""
        ### BEGIN SOLUTION
        ctx.function = function
        ctx.places = [place for place, arg in enumerate(args) if isinstance(arg, Tensor)]
        ctx.args = [None if isinstance(arg, Tensor) else arg for arg in args]
        ctx.save_for_backward(*[args[place] for place in ctx.places])
        return function(*args)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, *gradients):
        """Return a gradient, or None, for the function and for each of its arguments."""
        ### BEGIN SOLUTION
        args = list(ctx.args)
        for place, tensor in zip(ctx.places, ctx.saved_tensors):
            args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        with torch.enable_grad():
            outputs = ctx.function(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(y, g) for y, g in zip(outputs, gradients) if y.requires_grad]
        torch.autograd.backward(*zip(*pairs))
        return None, *[arg.grad if isinstance(arg, Tensor) else None for arg in args]
        ### END SOLUTION

def checkpoint(function, *args):
    """Return function(*args), without keeping anything but the arguments for backward.

    At least one of args is a tensor that requires a gradient; the function returns a
    tensor or a tuple of tensors, and may use weights that aren't among args. The
    function runs once forward and once more backward. Gradients are equal to the last
    bit. Nothing of torch.utils.checkpoint is called.
    """
    return Checkpoint.apply(function, *args)

# %% check="checkpoint" judges="values" points=5
check(checkpoint, judges="values")

# %% check="checkpoint" judges="memory" points=3
check(checkpoint, judges="memory")

# %%
times = []

def counted_layer(x, w):
    times.append("x @ w")
    return layer(x, w)

x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
checkpoint(counted_layer, x, w).sum().backward()

# %%
reveal(
    "times a step computes x @ w",
    len(times),
    why="Once forward, and once more backward; then the gradients.",
)

# %% [markdown]
# If a matrix product takes one unit forward, it takes two backward: one for each factor's gradient. With a checkpoint
# that should give a round factor. **Predict** how many times as long a step takes, measured on the virtual H100.

# %%
predict("time of a step with checkpoints, times that without", ...)

# %%
def train_mlp(rank, world_size, apply, layers=24, dim=4096, rows=8192):
    weights = [
        torch.empty(dim, dim, dtype=bf16, requires_grad=True) for _ in range(layers)
    ]
    x = torch.empty(rows, dim, dtype=bf16, requires_grad=True)
    for weight in weights:
        x = apply(layer, x, weight)
    x.sum().backward()

plain, again = (
    simulate(train_mlp, 1, apply, cluster="dgx-h100") for apply in (plainly, checkpoint)
)
print(f"time {again.elapsed / plain.elapsed:.3f} times; 1 + 1/3 is {4 / 3:.3f}")
print(
    f"peak {max(plain.memory().peak) / 1e9:.2f} GB, with checkpoints "
    f"{max(again.memory().peak) / 1e9:.2f} GB"
)

# %%
reveal(
    "time of a step with checkpoints, times that without",
    round(again.elapsed / plain.elapsed, 2),
    why="1 + 1 + 2 units in place of 1 + 2. The rest is the GELUs, whose times are not quite 1 to 2.",
)

# %% [markdown]
# # Part 3 · The same numbers again
# Recomputing is only right if it gives the same numbers. Dropout draws a new mask each time it runs, so a checkpoint
# like the one above would go backward through a **different** mask than it went forward. Nothing fails; the gradient is
# just wrong. Here is the forward pass, and the pass that the gradient belongs to.

# %%
torch.manual_seed(0)
masks = []

def drop(x):
    y = nn.functional.dropout(x, 0.5)
    masks.append((y > 0).int().tolist())
    return y

checkpoint(drop, torch.ones(8, requires_grad=True)).sum().backward()
masks

# %% [markdown]
# There is a second thing that changes between the passes: **autocast**. In mixed precision, the forward pass runs
# inside `torch.autocast(...)`, and `loss.backward()` outside. So the recomputed piece would run in float32, and keep
# twice the bytes.
#
# **Predict**: PyTorch's `checkpoint` restores the random state for the recomputation. After the backward pass, does the
# next `torch.rand` give the number that it would give without a checkpoint?

# %%
predict(
    "the next random number is the same as without a checkpoint",
    ...,
    choices=["yes", "no"],
)

# %% [markdown]
# ## Replaying the random state
#
# Write it as a wrapper, so that `checkpoint(replayable(function), x)` does it all:
#
# ```python
# torch.get_rng_state(), torch.set_rng_state(state)                  # the CPU's generator
# with torch.random.fork_rng(): ...                                  # restores the state afterwards
# torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")  # the settings now
# with torch.autocast("cpu", dtype, enabled=True): ...
# ```
#
# Each GPU has a generator of its own, `torch.cuda.get_rng_state()`, and an autocast of its own, to be treated in the
# same way; `fork_rng` already covers all of them. Here, the CPU's are enough.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The inner function has to know whether it has been called before, and what the conditions were. A list that the
# wrapper creates, empty at first, will do.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Note the conditions **before** the first call runs the function, and not when the wrapper is made: between the two,
# other code may draw numbers.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# First call: note state, dtype and whether autocast is on, then call. Later calls: inside `fork_rng` and `autocast`,
# set the noted state, then call.
# </details>

# %% exercise="replayable" difficulty=3 minutes=10
def replayable(function):
    """Return again(*args), which repeats function(*args) under the same conditions.

    The first call is an ordinary one: it draws random numbers, and autocast is as it
    is. Every later call starts from the random state in which the first one started,
    with autocast on or off as it was then, and leaves the random state as it was before
    the call. Each wrapper has a first call of its own.
    """
    ### BEGIN SOLUTION
    noted = []

    def again(*args):
        if not noted:
            noted.append((torch.get_rng_state(), torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")))
            return function(*args)
        state, dtype, enabled = noted[0]
        with torch.random.fork_rng(), torch.autocast("cpu", dtype, enabled=enabled):
            torch.set_rng_state(state)
            return function(*args)

    return again
    ### END SOLUTION

# %% check="replayable" judges="values" points=4
check(replayable, judges="values")

# %%
masks.clear()
checkpoint(replayable(drop), torch.ones(8, requires_grad=True)).sum().backward()
print("the same mask:", masks[0] == masks[1])

# %%
def number_after_a_step(apply):
    torch.manual_seed(0)
    apply(nn.Dropout(0.5), torch.ones(8, requires_grad=True)).sum().backward()
    return torch.rand(1).item()

same = number_after_a_step(plainly) == number_after_a_step(
    partial(torch_checkpoint, use_reentrant=False)
)

# %%
reveal(
    "the next random number is the same as without a checkpoint",
    "yes" if same else "no",
    why="The recomputation puts the state back, so the run goes on as if nothing had happened.",
)

# %% [markdown]
# # Part 4 · Where to put checkpoints
# A checkpoint at every layer keeps the input of every layer. It could keep less: one checkpoint for $k$ layers keeps
# one input for all of them. But when the backward pass gets there, it recomputes $k$ layers, and everything inside them
# is alive at once. Few checkpoints or many: both extremes are bad.

# %% [markdown]
# ## Checkpoints every k layers
#
# `layers` is a list of functions. Call them in order, $k$ at a time, each such **segment** as one checkpoint. Beware of
# a classic trap: a function made in a loop looks up its variables when it is **called**, and this one is called once
# more when the loop has long ended.

# %% exercise="forward-in-segments" difficulty=2 minutes=8
def forward_in_segments(layers: list, x: Tensor, k: int, checkpoint) -> Tensor:
    """Return the output of all layers; every k consecutive ones are one checkpoint.

    layers: functions (b, D) -> (b, D). The last segment has fewer than k of them if k
    doesn't divide their number. checkpoint(function, x) as above; it is called once per
    segment.
    """

    ### BEGIN SOLUTION
    def run(segment, x):
        for one in segment:
            x = one(x)
        return x

    for start in range(0, len(layers), k):
        x = checkpoint(partial(run, layers[start : start + k]), x)
    return x
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# `partial(run, segment)` is a function of `x` that keeps its own segment, whatever happens to the variable later.
# </details>

# %% check="forward-in-segments" judges="values" points=2
check(forward_in_segments, judges="values")

# %% check="forward-in-segments" judges="memory" points=2
check(forward_in_segments, judges="memory")

# %% [markdown]
# ## Peak memory of a schedule
#
# Say each of $L$ layers keeps `keeps` bytes if autograd records it, and `boundary` of these are its input. When is most
# memory alive? Not at the end of the forward pass: there are only the segments' inputs then. It is in the middle of the
# backward pass, when a segment has just been recomputed. At that moment these are alive:
#
# - the inputs of all segments **before** it; those behind it are done, and freed
# - all that its own layers keep. Its first layer keeps the segment's input, so don't count that once more.
#
# The last segment has the most others before it, but it may be shorter than they are.
#
# **Predict** for 64 layers with `boundary` 1 and `keeps` 4, in the same unit: which $k$ has the smallest peak?

# %%
predict("the best k for 64 layers", ...)

# %% exercise="peak-bytes" difficulty=2 minutes=8
def peak_bytes(num_layers: int, k: int, boundary: int, keeps: int) -> int:
    """The most bytes alive for the backward pass at any time, with a checkpoint every k
    layers.

    boundary: bytes of a layer's input. keeps: bytes that a recorded layer keeps,
    including its input. Weights, gradients and the output of the last layer don't
    count.
    """
    ### BEGIN SOLUTION
    peak = 0
    for number, start in enumerate(range(0, num_layers, k)):
        length = min(k, num_layers - start)
        peak = max(peak, number * boundary + length * keeps)
    return peak
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# Compute the sum above for each segment, and take the largest. The segment's number is how many there are before it.
# </details>

# %% check="peak-bytes" judges="values" points=3
check(peak_bytes, judges="values")

# %%
peaks = {k: peak_bytes(64, k, 1, 4) for k in range(1, 65)}
best = min(peaks, key=peaks.get)
print({k: peaks[k] for k in (1, 2, 4, 8, 16, 32, 64)})

# %%
reveal(
    "the best k for 64 layers",
    best,
    why="The square root of 64 / 4: the two sums are then about equal.",
)

# %% [markdown]
# With $n = L / k$ segments the peak is about $n \cdot$ `boundary` $+ \; k \cdot$ `keeps`. The sum is smallest where
# both are equal, $k = \sqrt{L \cdot \text{boundary} / \text{keeps}}$, and then it grows with $\sqrt{L}$. So a model
# with four times as many layers needs only twice the memory. Time hardly depends on $k$: every layer runs once more,
# whatever the segments.
#
# Is the formula right to the byte? A layer of the MLP keeps its input and the GELU's argument, which have equal sizes.
# Run a small one here, and count the activations that are alive. The times are those of a large one, on the virtual
# H100.

# %%
def layer_with(weight, x):
    return layer(x, weight)

def most_activations(step, *arguments, rows=64, dim=32):
    """The most bytes that are alive in step(weights, x, *arguments) because backward
    needs them.
    """
    weights = nn.ParameterList(
        [nn.Parameter(torch.randn(dim, dim) / dim**0.5) for _ in range(24)]
    )
    x = torch.randn(rows, dim, requires_grad=True)
    with track_memory(weights, x) as memory:
        step(weights, x, *arguments)
    return max(nbytes for _, kind, nbytes in memory.samples() if kind == "activations")

def step_in_segments(weights, x, k):
    forward_in_segments(
        [partial(layer_with, weight) for weight in weights], x, k, checkpoint
    ).sum().backward()

def large(rank, world_size, step, *arguments, dim=4096, rows=8192):
    weights = [torch.empty(dim, dim, dtype=bf16, requires_grad=True) for _ in range(24)]
    step(weights, torch.empty(rows, dim, dtype=bf16, requires_grad=True), *arguments)

curve = {}
for k in (1, 2, 3, 4, 6, 8, 12, 24):
    run = simulate(large, 1, step_in_segments, k, cluster="dgx-h100")
    nbytes = most_activations(step_in_segments, k)
    formula = peak_bytes(24, k, 64 * 32 * 4, 2 * 64 * 32 * 4)
    curve[k] = nbytes, run.elapsed / plain.elapsed
    print(
        f"k = {k:2}: formula {formula:7,} bytes, counted {nbytes:7,}; "
        f"{curve[k][1]:.3f} times the time"
    )

# %% [markdown]
# Equal to the byte, and the time is the same for every $k$: one extra forward pass.
#
# Nothing forces you to recompute **every** layer. Below, only the first 4, 8, 12 ... of the 24 layers are checkpoints,
# one for each layer. That is the trade in full: each layer buys memory for time. Segments of several layers, the other
# curve, buy memory for almost nothing on top.

# %%
def step_in_part(weights, x, recomputed):
    for number, weight in enumerate(weights):
        x = checkpoint(layer, x, weight) if number < recomputed else layer(x, weight)
    x.sum().backward()

in_part = []
for recomputed in range(0, 25, 4):
    run = simulate(large, 1, step_in_part, recomputed, cluster="dgx-h100")
    in_part.append(
        (
            str(recomputed),
            most_activations(step_in_part, recomputed),
            run.elapsed / plain.elapsed,
        )
    )
curves = {
    "a checkpoint at each of the first n layers": in_part,
    "a checkpoint every k layers": [(f"k={k}", *curve[k]) for k in (1, 2, 4, 8)],
}
figures.memory_and_time(curves, "memory and time of a step of 24 layers")

# %% [markdown]
# ## Segments of an uneven chain
#
# Real chains are uneven: a vision model's first layers have large images and few features, an encoder hands a short
# summary to a decoder. A good place to cut is where the input is small, and equal lengths miss it.
#
# There are $2^{L-1}$ ways to cut. **Dynamic programming** needs about $L^2$ steps. Look at the layers from `start` to
# the end, as if the others didn't exist, and call the least peak that they can have `least[start]`. The first segment
# of these goes up to some `end`. What is the peak then? Either it comes **in** the first segment, which goes backward
# last, when all others are gone; or it comes later in the chain, where the first segment contributes its input alone.

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Fill `least` from the end of the chain to its beginning. `least[start]` needs only entries with larger numbers.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# For a given `end`, the peak is the larger of two numbers: what all layers of the first segment keep together, and the
# boundary of `start` plus the least peak from `end` on. The best `end` has the smallest such peak.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Besides `least[start]`, note the `end` that led to it. When the table is full, walk from layer 0 along those notes:
# the places where you stop are the starts.
# </details>

# %% exercise="best-segments" difficulty=4 minutes=15
def best_segments(boundaries: list[int], keeps: list[int]) -> list[int]:
    """Return the starts of segments with the least peak, for layers that differ.

    boundaries[i]: bytes of layer i's input; keeps[i]: bytes that layer i keeps if
    recorded, including its input. Both left unchanged. Every segment is a checkpoint.
    The first start is 0. If several cuts are equally good, any of them will do. It
    takes about L * L steps: at most 30 * L * L lines of Python may run.
    """
    ### BEGIN SOLUTION
    count = len(keeps)
    least, following = [0] * (count + 1), [count] * (count + 1)
    for start in reversed(range(count)):
        options = []
        for end in range(start + 1, count + 1):
            behind = boundaries[start] + least[end] if end < count else 0
            options.append((max(sum(keeps[start:end]), behind), end))
        least[start], following[start] = min(options)
    starts, start = [], 0
    while start < count:
        starts.append(start)
        start = following[start]
    return starts
    ### END SOLUTION

# %% check="best-segments" judges="values" points=5
check(best_segments, judges="values")

# %% [markdown]
# # Part 5 · Recompute what is cheap
# Not everything that is kept was equally expensive. The scores of attention take one number for each head and each
# **pair** of tokens, and each of them costs only $2d$ FLOPs, where $d$ is the size of a head. The result of $x w$ takes
# one number for each token and feature, at $2D$ FLOPs, with $D$ in the thousands. So keep what was expensive per byte,
# and recompute what was cheap: that is **selective** checkpointing.
#
# How much do the scores take? Lesson 04's formula for a layer was $sbh(34 + 5as/h)$ bytes. The second term is the
# scores, and selective checkpointing leaves $34 sbh$. For GPT-3, $5as/h$ is 80: 70 % of the memory goes, and almost no
# time. **FlashAttention** never writes scores to memory at all, and recomputes them inside its backward kernel. So with
# it, most of this gain is already yours.

# %% [markdown]
# ## A policy for matrix products
#
# PyTorch asks a **policy** about each operation inside a checkpoint, and caches the results that you want to keep:
#
# ```python
# contexts = partial(create_selective_checkpoint_contexts, policy)
# y = torch_checkpoint(function, x, use_reentrant=False, context_fn=contexts)
# ```
#
# `policy(ctx, op, *args, **kwargs)` gets the operation and its arguments, and returns `CheckpointPolicy.MUST_SAVE` or
# `CheckpointPolicy.PREFER_RECOMPUTE`. At this level there are three matrix products; all others have been turned into
# these:
#
# | `op` | arguments | computes |
# |---|---|---|
# | `torch.ops.aten.mm.default` | `x` (M, K), `w` (K, N) | `x @ w` |
# | `torch.ops.aten.addmm.default` | `bias` (N,), `x` (M, K), `w` (K, N) | `bias + x @ w` |
# | `torch.ops.aten.bmm.default` | `x` (B, M, K), `w` (B, K, N) | a product for each of B pairs |
#
# Each number of the result costs $2K$ FLOPs. `K` is the **inner dimension**.
#
# **Predict** for a layer with 512 tokens, $D = 256$ and 4 heads, so $d = 64$: of the six products (QKV, scores, scores
# times V, output, up, down), how many have an inner dimension of 128 or more?

# %%
predict("products with an inner dimension of 128 or more", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# The inner dimension is the last one of the left factor. Which argument is the left factor?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# In two of the three operations the left factor is the first argument, in `addmm` the second. Anything that isn't one
# of the three has no inner dimension, so ask for the operation before you look at its arguments.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# A dictionary from each of the three operations to the place of its left factor answers both questions: is it a
# product, and where is the left factor?
# </details>

# %% exercise="keep-expensive" difficulty=3 minutes=8
def keep_expensive(least: int):
    """Make the policy that keeps the result of each matrix product with an inner
    dimension >= least.

    Everything else is recomputed: products with a smaller one, and all other
    operations. Returns policy(ctx, op, *args, **kwargs) -> CheckpointPolicy.
    """
    ### BEGIN SOLUTION
    first = {torch.ops.aten.mm.default: 0, torch.ops.aten.bmm.default: 0, torch.ops.aten.addmm.default: 1}

    def policy(ctx, op, *args, **kwargs):
        if op in first and args[first[op]].shape[-1] >= least:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy
    ### END SOLUTION

# %% check="keep-expensive" judges="values" points=4
check(keep_expensive, judges="values")

# %% [markdown]
# One layer of that size, in four ways. A product counts each time it runs, in the forward and in the backward pass. The
# gradients need two products for each of the six. **Predict**: where everything is recomputed, a step takes at most
# $4/3$ of the FLOPs. What does the selective way take, as a multiple of a step that recomputes nothing?

# %%
predict("FLOPs of the selective way, times those of nothing recomputed", ...)

# %%
weights = {name: nn.Parameter(value) for name, value in make_layer(256, 1024).items()}
selective = partial(create_selective_checkpoint_contexts, keep_expensive(128))
ways = {
    "nothing recomputed": plainly,
    "everything": partial(torch_checkpoint, use_reentrant=False),
    "everything, reentrant": partial(torch_checkpoint, use_reentrant=True),
    "selective": partial(torch_checkpoint, use_reentrant=False, context_fn=selective),
}
flops = {}
for name, apply in ways.items():
    x = torch.randn(1, 512, 256, requires_grad=True)
    with (
        track_memory(nn.ParameterDict(weights), x) as memory,
        FlopCounterMode(display=False) as counter,
    ):
        before = memory.live
        y = apply(transformer_layer, x, weights, 4)
        kept = memory.live - before - y.nbytes
        y.sum().backward()
    flops[name] = counter.get_total_flops()
    print(
        f"{name:22} {kept / 1e6:5.2f} MB kept, "
        f"{flops[name] / flops['nothing recomputed']:.3f} times the FLOPs"
    )

# %%
inner = {
    "QKV": 256,
    "scores": 64,
    "scores times V": 512,
    "output": 256,
    "up": 256,
    "down": 1024,
}

# %%
reveal(
    "products with an inner dimension of 128 or more",
    sum(size >= 128 for size in inner.values()),
    why="All but the scores themselves. Scores times V sums over all 512 tokens, and its result is small.",
)

# %%
reveal(
    "FLOPs of the selective way, times those of nothing recomputed",
    round(flops["selective"] / flops["nothing recomputed"], 3),
    why="One product of six runs again, and it is a small one.",
)

# %% [markdown]
# The two kinds of PyTorch's own checkpoint keep the same, but the reentrant one computes more:
#
# - **Reentrant** (`use_reentrant=True`) is what you have written: an `autograd.Function` with a backward pass inside
#   the backward pass. At least one argument must require a gradient, `torch.autograd.grad` doesn't work with it, and it
#   always recomputes the whole piece.
# - **Non-reentrant** (`use_reentrant=False`), the one to use, is made of `saved_tensors_hooks`. It records the graph in
#   the forward pass, with `pack` keeping placeholders in place of tensors. The first `unpack` recomputes the piece and
#   stops as soon as the last tensor that is needed is there: the last product of the layer, whose result nobody needs,
#   doesn't run again. Keyword arguments, `torch.autograd.grad` and policies work.

# %% [markdown]
# # Part 6 · With other ranks
# With checkpoints, what is kept are the inputs. In a tensor-parallel group (lesson 08), the input of a layer is the
# **same** on all ranks: $t$ copies of the same numbers. So each rank can keep $1/t$ of it, and they gather it before
# they recompute. That is one all-gather per layer, and memory falls by a factor of $t$.

# %% [markdown]
# ## Partitioned activations
#
# Your `Checkpoint` keeps its inputs with `save_for_backward`, so hooks see them. Write the two hooks:
#
# ```python
# pack, unpack = pieces_over(tp_group)
# with saved_tensors_hooks(pack, unpack):
#     y = checkpoint(layer, x)
# ```
#
# The shape can be anything, and $t$ needn't divide the number of elements: lay them end to end, and pad. What `unpack`
# returns must have the shape and the dtype that `pack` got. The group may be a part of the world, and its ranks are
# counted from 0 within it: `dist.get_rank(group)`.
#
# `dist.all_gather_single(flat, piece, group=group)` fills `flat`, (t * n,), with each rank's `piece`, (n,).

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# It is lesson 07's flat shard, for one tensor. `pack` may return anything that a rank can send, such as a tuple of a
# shape and a piece. That is all that `unpack` has to go on.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# A slice is a view and keeps the whole tensor alive, so the piece needs memory of its own.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# Pack: flatten, pad to a multiple of the group's size, keep a clone of this rank's slice together with the shape.
# Unpack: gather all pieces, cut off the padding, give it the shape.
# </details>

# %% exercise="pieces-over" difficulty=3 minutes=10
def pieces_over(group):
    """Return (pack, unpack): hooks by which each rank keeps 1/t of a saved tensor.

    A saved tensor is equal on all t ranks of the group. pack(tensor) keeps ceil(n / t)
    of its n numbers and sends nothing; unpack(kept) returns the tensor, with one
    all_gather.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(group), dist.get_world_size(group)

    def pack(tensor):
        length = -(-tensor.numel() // size)
        flat = nn.functional.pad(tensor.detach().flatten(), (0, length * size - tensor.numel()))
        return tensor.shape, flat[rank * length : (rank + 1) * length].clone()

    def unpack(kept):
        shape, piece = kept
        flat = piece.new_empty(size * len(piece))
        dist.all_gather_single(flat, piece, group=group)
        return flat[: shape.numel()].view(shape)

    return pack, unpack
    ### END SOLUTION

# %% check="pieces-over" judges="values" points=3
check(pieces_over, judges="values")

# %% check="pieces-over" judges="memory" points=2
check(pieces_over, judges="memory")

# %% check="pieces-over" judges="traffic" points=1
check(pieces_over, judges="traffic")

# %% [markdown]
# ### Kept somewhere else
# Inputs can also be kept whole, but **elsewhere**: on a rank that has room, such as the last stage of a pipeline, or in
# the memory of the host. `pack` sends the input away and keeps nothing, `unpack` asks for it back. Both hooks below
# work in the background: a layer's input leaves while the layer computes, and with `ahead` the next input to be needed
# comes back while the current layer is recomputed.

# %%
def kept_on(peer, ahead):
    """Hooks that keep saved tensors on another rank. ahead: fetch each one before it is
    needed.
    """
    leaving, away, arriving = [], [], []

    def pack(x):
        for work in leaving:
            work.wait()  # the previous input, which left long ago
        leaving[:] = [dist.isend(x.detach(), peer)]
        away.append(x.shape)

    def fetch():
        if away:
            x = torch.empty(away.pop(), dtype=bf16)
            arriving.append((x, dist.irecv(x, peer)))

    def unpack(_):
        if not arriving:
            fetch()
        x, work = arriving.pop()
        if ahead:
            fetch()
        work.wait()
        return x

    return pack, unpack

# %% [markdown]
# Rank 0 trains 12 layers of the transformer at the top, and rank 1 is its shelf. Two GPUs of one node are connected by
# NVLink at 450 GB/s. The host's memory is the same program on a link of 64 GB/s: what is at the other end makes no
# difference.
#
# **Predict**: the inputs are on the host, and each is fetched only when it is needed. By how many percent is the step
# longer than with the inputs on the GPU?

# %%
predict("percent longer: inputs on the host, fetched when needed", ...)

# %%
def unchanged(x):
    return x

def train_with_shelf(rank, world_size, hooks, layers=12, shape=(4, 4096, WIDTH)):
    """hooks: (pack, unpack); None keeps inputs here. Returns the bytes rank 0 keeps for
    backward.
    """
    if rank == 1:
        shelf = [torch.empty(shape, dtype=bf16) for _ in range(layers if hooks else 0)]
        for x in shelf:
            dist.recv(x, 0)
        for x in reversed(shelf):
            dist.send(x, 0)
        return
    weights = [empty_layer() for _ in range(layers)]
    x = torch.empty(shape, dtype=bf16, requires_grad=True)
    before = torch.cuda.memory_allocated()
    for of_layer in weights:
        with saved_tensors_hooks(*hooks or (unchanged, unchanged)):
            x = checkpoint(transformer_layer, x, of_layer, HEADS)
    kept = torch.cuda.memory_allocated() - before
    x.square().mean().backward()
    return kept

nvlink = find_cluster("dgx-h100", 2)
to_host = replace(
    nvlink, name="a GPU and its host", intra=replace(nvlink.intra, bandwidth=64e9)
)
here = simulate(train_with_shelf, 2, None, cluster=nvlink)
print(f"inputs on the GPU: {here.results[0] / 1e9:.2f} GB are kept")
longer = {}
for name, cluster in {"another GPU": nvlink, "the host": to_host}.items():
    for ahead in (False, True):
        run = simulate(train_with_shelf, 2, kept_on(1, ahead), cluster=cluster)
        longer[name, ahead] = 100 * (run.elapsed / here.elapsed - 1)
        when = "fetched ahead" if ahead else "fetched when needed"
        print(
            f"on {name}, {when}: {run.results[0] / 1e9:.2f} GB, "
            f"{longer[name, ahead]:.1f} % longer"
        )

# %%
reveal(
    "percent longer: inputs on the host, fetched when needed",
    round(longer["the host", False], 1),
    why="Each layer waits 2 ms for its input. Fetched ahead, the copy hides behind recomputing.",
)

# %% [markdown]
# So inputs can go anywhere. Then why recompute at all, and not send **everything** away that a layer keeps? For one
# layer, with the same 64 GB/s and 60 % of an H100's 989 TFLOP/s:

# %%
tokens = 4 * 4096
seconds = tokens * (24 * WIDTH**2 + 4 * 4096 * WIDTH) / (0.6 * 989e12)
copied = {
    "the input alone": 2 * tokens * WIDTH,
    "all that it keeps": 34 * tokens * WIDTH,
    "the scores as well": (34 + 5 * HEADS * 4096 / WIDTH) * tokens * WIDTH,
}
for what, nbytes in copied.items():
    print(f"{what:18} {nbytes / 64e9 * 1e3:6.1f} ms one way")
print(f"one layer's forward pass takes {seconds * 1e3:.1f} ms")

# %% [markdown]
# A layer's input travels in less time than the layer computes. All that the layer keeps with FlashAttention, which
# never writes the scores, takes nearly three times as long as its forward pass, so little more than a third of it can
# leave in time. Repeating the forward pass costs less than waiting for the rest. With the scores as well, the copy
# would take nearly sixteen times as long as the forward pass. (PyTorch's hooks for the host are
# `torch.autograd.graph.save_on_cpu`. Keeping activations on a later stage of the pipeline, which has fewer microbatches
# in flight, is called BPipe.)

# %% [markdown]
# ## Peak memory of a pipeline stage
#
# In a pipeline (lesson 09), a stage holds what **several microbatches** keep. In 1F1B stage $p$ of $P$ has at most
# $\min(P - p, M)$ of $M$ microbatches in flight: it starts that many forward passes before its first backward pass.
# With a checkpoint at every layer, each of those holds the layers' inputs alone; the rest of **one** layer of **one**
# microbatch comes on top while it is recomputed.
#
# **Predict** for 4 stages with 8 microbatches, as many times as the last stage: how much does the first stage keep?

# %%
predict("the first stage keeps, times the last one", ...)

# %% exercise="stage-peak" difficulty=2 minutes=6
def stage_peak(
    stage: int,
    num_stages: int,
    microbatches: int,
    num_layers: int,
    boundary: int,
    keeps: int,
    recompute: bool,
) -> int:
    """The most bytes that a stage of a 1F1B pipeline keeps for the backward pass at any
    time.

    num_layers: of this stage. For one microbatch, boundary: bytes of a layer's input;
    keeps: bytes that a recorded layer keeps, including its input. recompute: whether
    every layer is a checkpoint; otherwise nothing is recomputed.
    """
    ### BEGIN SOLUTION
    live = min(num_stages - stage, microbatches)
    if recompute:
        return live * num_layers * boundary + keeps - boundary
    return live * num_layers * keeps
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint</summary>
#
# The recomputed layer's own input is already among the inputs that are kept.
# </details>

# %% check="stage-peak" judges="values" points=3
check(stage_peak, judges="values")

# %%
first, last = (stage_peak(stage, 4, 8, 6, 1, 4, recompute=False) for stage in (0, 3))

# %%
reveal(
    "the first stage keeps, times the last one",
    first / last,
    why="Four microbatches in flight, against one.",
)

# %%
# the first stage
[stage_peak(0, 4, 8, 6, 1, 4, recompute) for recompute in (False, True)]

# %% [markdown]
# ### How your predictions went

# %%
how_predictions_went()

# %% [markdown]
# # Recap
# - Autograd keeps what gradients need, operation by operation. Memory counts once, as a whole, and views keep all of
#   it.
# - A **checkpoint** keeps the inputs of a piece and runs it twice. With backward at twice the cost of forward, that is
#   $4/3$ of the time.
# - Same random state, same autocast: the same numbers. Otherwise the gradient belongs to another forward pass.
# - Every $k$ layers: the segments' inputs, plus all that one segment keeps. The best $k$ is about
#   $\sqrt{L \cdot \text{boundary} / \text{keeps}}$; for an uneven chain, dynamic programming.
# - **Selective**: keep what was expensive per byte. The scores of attention are cheap and large; FlashAttention doesn't
#   keep them in the first place.
# - Inputs that are equal on a tensor-parallel group can be partitioned over it, or go to the host. A stage of a
#   pipeline keeps inputs for each microbatch in flight.
#
# **The library.** `torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)`, `checkpoint_sequential`,
# `create_selective_checkpoint_contexts`, `torch.autograd.graph.save_on_cpu`. Megatron-LM calls the two ways "full" and
# "selective" recomputation; partitioned activations are DeepSpeed's.
#
# **The papers.** Chen and others: *Training Deep Nets with Sublinear Memory Cost* (2016), for $\sqrt{L}$. Korthikanti
# and others: *Reducing Activation Recomputation in Large Transformer Models* (MLSys 2023), for the selective way.
# Rajbhandari and others: *ZeRO* (SC 2020), for partitioned activations. Kim and others: *BPipe* (ICML 2023), for those
# on another stage. Dao and others: *FlashAttention* (NeurIPS 2022).

# %% [markdown]
# # Challenge
# An open task, beyond the lesson's points. It has a score, and there may be better answers than ours.

# %% [markdown]
# ## A given memory, the least time
# A chain of 24 uneven MLPs on one virtual H100, and memory for 40 % of what all of them keep. Which layers do you
# recompute, in which segments, and which do you leave alone? A plan is a list of segments `(start, end, recompute)`,
# which together are all layers in order. `peak_of_plan` says how much memory a plan needs, `seconds_of_plan` about how
# long it takes: three times each layer's forward pass, and once more for those that are recomputed.
#
# The score is the virtual time of a training step with your plan. Par treats each layer by itself. The limit is the
# time of a step that recomputes nothing.

# %%
chain = drawn_chain(24, seed=1)
memory = int(0.4 * sum(chain.keeps))

def try_plan(plan):
    run = simulate(train_chain, 1, chain, plan, cluster="dgx-h100")
    peak = peak_of_plan(plan, chain.boundaries, chain.keeps)
    estimate = seconds_of_plan(plan, chain.seconds)
    print(
        f"{run.elapsed * 1e3:.2f} ms (estimate {estimate * 1e3:.2f}), {peak / 1e6:.0f} "
        f"MB of {memory / 1e6:.0f} MB"
    )

try_plan([(0, 24, False)])
try_plan([(number, number + 1, True) for number in range(24)])

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# A layer that is left alone saves its seconds and costs `keeps - boundary` bytes. Which layers give most for a byte?
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# Start with a plan that recomputes everything. Then leave layers alone, the best bargain first, as long as the plan
# fits.
# </details>
# <details><summary>Hint 3: beyond par</summary>
#
# Recomputed neighbours in one segment need one boundary between them, so there is room for more layers. And the best
# bargain first is not always best: what fits together?
# </details>

# %% exercise="recompute-plan" difficulty=5 minutes=15
board_name = ""  # your name on the class's board; empty for none

def recompute_plan(boundaries: list, keeps: list, seconds: list, memory: int) -> list:
    """Return the fastest plan that fits, [(start, end, recompute), ...].

    For each layer: bytes of its input, bytes that it keeps if recorded, including its
    input, seconds of its forward pass; all left unchanged. memory: the most bytes alive
    at any time (peak_of_plan). Judged for this chain, and for others of the same kind.
    """
    ### BEGIN SOLUTION
    again = [True] * len(keeps)

    def plan():
        return [(number, number + 1, recompute) for number, recompute in enumerate(again)]

    def seconds_per_byte(number):
        return seconds[number] / (keeps[number] - boundaries[number])

    for number in sorted(range(len(keeps)), key=seconds_per_byte, reverse=True):
        again[number] = False
        if peak_of_plan(plan(), boundaries, keeps) > memory:
            again[number] = True
    return plan()
    ### END SOLUTION

# %%
try_plan(recompute_plan(chain.boundaries, chain.keeps, chain.seconds, memory))

# %% check="recompute-plan" judges="score" points=3
check(recompute_plan, judges="score", extra_credit=3)

# %%
check.summary()
