# %% [markdown] question="You have a model, a cluster and a budget: what do you start, and how sure are you?"
# # Planning
# *you need: lessons 04 (cost models), 09 (pipelines), 10 (recomputing) and 12 (grids). Lesson 11 (experts) helps.*
#
# In twelve lessons you have collected ways to spread a training step over GPUs: data, tensor, pipeline, context and
# expert parallelism, interleaving, recomputing. For a large model on a large cluster, these combine into thousands of
# plans. Most of them don't fit into memory. Of those that do, the slowest takes twenty times as long as the fastest,
# and a month on a thousand GPUs costs a million dollars and more.
#
# So before you start anything: which plan, how long will it take, what will it cost, and how sure are you? This lesson
# answers with a planner that you write yourself. Then it shows where planners lie: **the best plan that a model finds
# is the one about which the model is most likely to be wrong.**
#
# No GPU and no rank process is needed. Everything runs on the virtual cluster.

# %%
import math
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

from utils import RankError, figures, simulate
from utils.checks import checks_for
from utils.cluster import find_cluster
from utils.kit.plans import MODELS, Plan, alike, bytes_of, problem_of, seconds_of, step
from utils.kit.plans import plans as kit_plans
from utils.kit.plans.memory import of_layer, parameters_of
from utils.kit.plans.pieces import every_piece
from utils.kit.plans.plan import divisors, indivisible
from utils.kit.plans.seconds import replica_seconds
from utils.kit.predictions import predict, reveal

check = checks_for("14_planning")

# %% [markdown]
# ## Why: one number
# Nemotron-4 15B, a transformer of 32 layers with a vocabulary of 256,000, on 64 H100s, with 128 sequences of 4,096
# tokens per step. Four pipeline stages, 16 replicas, two sequences per microbatch. It runs. `simulate` carries out the
# whole step, at the speed that real GPUs have been measured to reach:

# %%
model, batch = MODELS["nemotron-4-15b"], 128
plan = Plan(dp=16, pp=4, micro=2)
run = simulate(step, plan.gpus, model, plan, batch, alike=alike(plan))
took, peaks = run.elapsed, run.memory().peak
print(f"{plan}: {took:.2f} s per step")
print("GB on each stage:", [round(peaks[16 * stage] / 1e9, 1) for stage in range(plan.pp)])

# %% [markdown]
# A third of that is the bubble. Lesson 09 has the cure: interleaving. If each GPU has 4 chunks of 2 layers in place of
# one block of 8, the bubble shrinks to a quarter. One number changes.

# %% tags=["notebook-only"]
interleaved = replace(plan, chunks=4)
try:
    run = simulate(step, plan.gpus, model, interleaved, batch, alike=alike(interleaved))
    print(f"{interleaved}: {run.elapsed:.2f} s per step")
except RankError as error:
    print(str(error).split("\n")[0])

# %% [markdown]
# Interleaving has made the plan die, in its first step, on its last stage, for want of 2 GB. The other stages had room:
# whoever looks at one GPU, or at the mean, starts this job, and reads about it in the log an hour later. And the plan
# that runs isn't good. Here is one that differs from it a little more:

# %% tags=["notebook-only"]
other = Plan(dp=32, tp=2)
quicker = simulate(step, other.gpus, model, other, batch, alike=alike(other))
print(f"{other}: {quicker.elapsed:.2f} s per step, {max(quicker.memory().peak) / 1e9:.1f} GB")
print(f"the plan above takes {took / quicker.elapsed:.2f} times as long")

# %% [markdown]
# So one plan costs nearly twice as much as it must, for weeks, and one that looks like an improvement doesn't run.
# There are hundreds more for these 64 GPUs. You can't try them all, so you have to compute them.

# %% [markdown]
# # Part 1 · Rules

# %% [markdown]
# ## A first guess
#
# Every guide to training has a decision tree. It asks what fits, and adds what costs least first:
#
# 1. **Data parallelism** alone, if the state of the whole model and the activations of a sequence fit on a GPU.
# 2. Else **tensor parallelism**: 2 ranks, then more, up to a node. It talks in the middle of every layer, so it stays
#    on the fast links.
# 3. Else **pipeline** stages, as few as possible, each with tp over a node.
# 4. **Experts** are spread over as many ranks of dp as divide both: `ep` of a Plan.
# 5. Microbatches of one sequence. **Recomputing** comes last, if nothing else fits: it costs a third more.
#
# The kit, `utils/kit/plans`, knows `Plan` and `Model`, and three things about a plan: `problem_of(plan, model, batch,
# cluster)` says in words which rule it breaks or how much memory is missing, or `""`; `bytes_of` and `seconds_of` say
# what it needs, by kind. You'll write the latter two yourself.
#
# **Predict** for GPT-3 on 1,024 H100s: how much longer does the tree's plan take than the best one? (0.5: half as long
# again.)

# %%
predict("GPT-3: tree's plan over the best, less 1", ...)

# %% exercise="first-guess" difficulty=2 minutes=15
def first_guess(model, batch, cluster):
    """The Plan that the tree leads to, on all GPUs of the cluster.

    batch: sequences per step. cluster.size: GPUs; cluster.gpus_per_node: of a node.
    """
    ### BEGIN SOLUTION
    gpus, node = cluster.size, cluster.gpus_per_node
    shapes = [(tp, 1) for tp in range(1, node + 1)]
    shapes += [(node, pp) for pp in range(2, model.layers + 1)]
    for recompute in ("none", "full"):
        for tp, pp in shapes:
            if gpus % (tp * pp):
                continue
            dp = gpus // (tp * pp)
            ep = math.gcd(max(1, model.experts), dp)
            plan = Plan(dp=dp, tp=tp, pp=pp, ep=ep, recompute=recompute)
            if not problem_of(plan, model, batch, cluster):
                return plan
    ### END SOLUTION

# %% check="first-guess" judges="values" points=3
check(first_guess, judges="values")

# %% [markdown]
# How good is the tree? To know that, one needs the best plan. The kit's formulas look at all of them, here with cp and
# microbatches up to 4:

# %%
def best_by_formula(model, batch, cluster):
    every = kit_plans(model, batch, cluster, most_micro=4, most_cp=4)
    fitting = [plan for plan in every if not problem_of(plan, model, batch, cluster)]
    return min(fitting, key=lambda plan: sum(seconds_of(plan, model, batch, cluster).values()))

behind = {}
for name, site, gpus, sequences in (
    ("llama-3-8b", "dgx-h100", 64, 256),
    ("gpt-3-175b", "dgx-h100", 1024, 2048),
    ("mt-nlg-530b", "dgx-a100", 2240, 1920),
    ("llama-3-405b", "dgx-h100", 576, 252),
):
    chosen, cluster = MODELS[name], find_cluster(site, gpus, rates="achieved")
    both = first_guess(chosen, sequences, cluster), best_by_formula(chosen, sequences, cluster)
    tree, least = (sum(seconds_of(each, chosen, sequences, cluster).values()) for each in both)
    behind[name] = tree / least - 1
    print(f"{name}, {gpus:,} GPUs")
    print(f"    tree: {tree:5.2f} s  {both[0]}, {behind[name]:.0%} behind")
    print(f"    best: {least:5.2f} s  {both[1]}")

# %%
reveal(
    "GPT-3: tree's plan over the best, less 1",
    behind["gpt-3-175b"],
    why="tp 8 is more than it needs, and stages without chunks have a large bubble.",
)

# %% [markdown]
# The tree is not bad, and it costs nothing. For a model that fits easily, it is within a few per cent. Its faults are
# that it knows no chunks and no cp, and that it takes all of tp before the first pipeline stage. For the large models,
# a fifth of the bill is worth some lines of Python.

# %% [markdown]
# # Part 2 · What there is, and what fits

# %% [markdown]
# ## Every plan
#
# Rules know one way through the choices. A planner looks at all of them. The list is shorter than it seems, because
# sizes must divide each other. A plan needs
#
# - **all GPUs**: dp x tp x cp x pp of them, with tp inside a node. `ep` takes none: experts are spread over ranks of
#   dp x cp, which have their own share of everything else. (Some descriptions list
#   ep as one more axis: their dp 8 x pp 8 x tp 8 x ep 8 on 4,096 GPUs is dp 64 with ep 8 here.)
# - **sizes that divide** what they cut. `indivisible(plan, model, batch)` from the kit names the first that doesn't:
#   heads, ffn, vocabulary, length, experts, batch. More tensor ranks than heads of keys are allowed, if they are a
#   multiple: keys are repeated then.
# - **chunks** that divide the layers of a stage, `plan.layers(model)`. More than one chunk needs a pipeline, and groups
#   of pp microbatches: pp must divide their number.
#
# Layers need not divide by pp. 126 layers on 16 stages are 7, 8, ..., 8, 7, because the first stage also has the
# embeddings, and the last one the output.
#
# **Predict** for GPT-3, with 2,048 sequences per step on 1,024 GPUs: how many plans are there with cp and micro up to
# 4, and which share of them fits into 80 GB?

# %%
predict("plans of GPT-3 on 1,024 GPUs", ...)
predict("share of them that fits", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# How many of the eight fields of a Plan can be chosen freely, and which one follows from the number of GPUs?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Two loops. The outer one is over tp, cp and pp; dp is what remains, if that is a whole number. The inner one is over
# ep, chunks, micro and recompute. What `indivisible` can say is dropped at the end, so the inner loop may offer too
# much.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `product(divisors(gpus), repeat=3)` for tp, cp and pp, then `product(divisors(max(1, model.experts)),
# divisors(math.ceil(model.layers / pp)), range(1, 5), ("none", "full"))`. Only one rule is left to write for chunks.
# </details>

# %% exercise="all-plans" difficulty=3 minutes=20
def all_plans(model, batch, cluster):
    """Every Plan that can be carried out on all GPUs of the cluster, each once: a list.

    batch: sequences per step. cp and micro up to 4; recompute "none" or "full". Whether
    a plan fits into memory is not asked here.
    """
    def works(plan):
        ends = plan.chunk_layers(model, 0) + plan.chunk_layers(model, plan.pp - 1)
        return not indivisible(plan, model, batch) and min(ends) >= 0

    gpus, found = cluster.size, []
    ### BEGIN SOLUTION
    for tp, cp, pp in product(divisors(gpus), repeat=3):
        ways = tp * cp * pp
        if tp > cluster.gpus_per_node or cp > 4 or gpus % ways:
            continue
        chunkings = divisors(math.ceil(model.layers / pp))
        experts = divisors(max(1, model.experts))
        rest = product(experts, chunkings, range(1, 5), ("none", "full"))
        for ep, chunks, micro, recompute in rest:
            plan = Plan(gpus // ways, tp, pp, cp, ep, chunks, micro, recompute)
            if chunks == 1 or (pp > 1 and plan.microbatches(batch) % pp == 0):
                found.append(plan)
    ### END SOLUTION
    return list(filter(works, found))

# %% check="all-plans" judges="values" points=4
check(all_plans, judges="values")

# %% tags=["notebook-only"]
gpt, thousand = MODELS["gpt-3-175b"], find_cluster("dgx-h100", 1024, rates="achieved")
every = all_plans(gpt, 2048, thousand)
fitting = [plan for plan in every if not problem_of(plan, gpt, 2048, thousand)]
print(f"{len(every):,} plans, {len(fitting):,} of which fit")

# %% tags=["notebook-only"]
reveal(
    "plans of GPT-3 on 1,024 GPUs",
    len(every),
    why="Sizes must divide each other, and 1,024 has few divisors.",
)
reveal(
    "share of them that fits",
    len(fitting) / len(every),
    why="The weights alone are 350 GB: without tp or a pipeline, nothing fits.",
)

# %% [markdown]
# ## Bytes of a stage
#
# *Will it fit?* comes before *how fast?*: it costs nothing to ask, and it removes half of the plans. Lesson 04 counted
# the bytes of a model, lesson 09 the microbatches that a stage keeps, lesson 10 what recomputing saves. Here they come
# together, on a rank of one stage. The kit has what a layer is made of:
#
# - `parameters_of(plan, model, stage)`: this rank's parameters as (dense, of experts). The dense ones are the same on
#   all dp x cp ranks of the stage, an expert's on only 1 / ep of these.
# - `of_layer(plan, model)`: bytes of a layer for one microbatch, as (what enters, all that is kept for backward, the
#   most that its backward needs besides).
#
# Weights are in 16 bits, gradients in 32, and Adam's 12 bytes per parameter are spread over the ranks that have the
# same parameter (ZeRO-1, lesson 07).
#
# How many layers are alive? Without chunks, stage s has begun at most pp - s microbatches that it has not finished, or
# all of them if there are fewer. With chunks, it has begun up to 2 (pp - s - 1) + (chunks - 1) pp + 1 pieces of work,
# each on one chunk of layers / chunks layers: on the first stage that is (pp - 1) / chunks stages more than without.
#
# **Predict** what the logits of Llama 3 8B take, for one microbatch of a sequence of 8,192 tokens without tp: 2 bytes
# each, and 4 for their gradient.

# %%
predict("GB of logits", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Five kinds: three depend on parameters alone. For the fourth, count live layers first. For the fifth, ask what is the
# largest thing that exists only for a moment.
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Adam's state is divided by `plan.replicas` for dense parameters, by `plan.replicas / plan.ep` for those of experts.
# Recomputing keeps only what enters each layer, and then needs one whole layer at a time.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `alive = min(count, pp - stage) * layers` without chunks; with chunks `min(count * chunks, 2 * (pp - stage - 1) +
# (chunks - 1) * pp + 1) * layers / chunks`. `working = besides`, more with recomputing, and on the last stage the
# maximum of that and the logits.
# </details>

# %% exercise="plan-bytes" difficulty=4 minutes=20
def plan_bytes(plan, model, batch, stage):
    """{"parameters", "gradients", "optimizer", "activations", "working"}: bytes.

    Of a rank of one stage.
    activations: of all layers alive at once.
    working: the most that exists for a moment. On most stages a layer's backward needs
    it: `besides`, and with recomputing (plan.recompute is "full") all that was not kept
    of this layer. On the last stage it may be the output instead: 2 x `entering`, and 6
    bytes for each of this rank's tokens x vocabulary / tp logits. With a pipeline, two
    messages of the size of `entering` come on top.
    With chunks, all stages have the same number of layers.
    """
    dense, of_experts = parameters_of(plan, model, stage)
    entering, kept, besides = of_layer(plan, model)
    layers, tokens = plan.stage_layers(model, stage), plan.tokens(model)
    count = plan.microbatches(batch)
    ### BEGIN SOLUTION
    behind = plan.pp - stage - 1
    if plan.chunks == 1:
        alive = layers * min(count, behind + 1)
    else:
        pieces = min(count * plan.chunks, 2 * behind + (plan.chunks - 1) * plan.pp + 1)
        alive = layers * pieces / plan.chunks
    again = plan.recompute == "full"
    working = besides + again * (kept - entering)
    if stage == plan.pp - 1:
        logits = tokens * model.vocabulary / plan.tp
        working = max(working, 2 * entering + 6 * logits)
    if plan.pp > 1:
        working += 2 * entering
    return {
        "parameters": 2 * (dense + of_experts),
        "gradients": 4 * (dense + of_experts),
        "optimizer": 12 * dense / plan.replicas + 12 * of_experts / (plan.replicas / plan.ep),
        "activations": alive * (entering if again else kept),
        "working": working,
    }
    ### END SOLUTION

# %% check="plan-bytes" judges="values" points=6
check(plan_bytes, judges="values")

# %%
reveal(
    "GB of logits",
    6 * 8192 * MODELS["llama-3-8b"].vocabulary / 1e9,
    why="8,192 tokens x 128,256 rows of the output matrix x 6 bytes.",
)

# %% [markdown]
# Does it say what really happens? The first plan of this lesson ran, with these peaks on its four stages, and the
# second one died on the last:

# %% tags=["notebook-only"]
print("stage  by run  by formula  with 4 chunks")
for stage in range(plan.pp):
    peak = peaks[stage * 16] / 1e9
    both = [plan_bytes(each, model, batch, stage) for each in (plan, interleaved)]
    mine, dead = (sum(kinds.values()) / 1e9 for kinds in both)
    print(f"{stage:>5} {peak:>7.1f} {mine:>11.1f} {dead:>14.1f}")

# %% tags=["notebook-only"]
figures.stage_bytes(
    {f"stage {s}": plan_bytes(interleaved, model, batch, s) for s in range(4)}, memory=80e9
)

# %% [markdown]
# Without chunks the first stage is the fullest: it keeps four microbatches, the last one keeps one. Interleaving evens
# that out, so the last stage now keeps nearly as much. But it also needs 12.6 GB for logits, because of a vocabulary of
# 256,000. A rule of thumb that looks at the mean, or at stage 0, says that this plan fits.

# %% [markdown]
# # Part 3 · How long it takes

# %% [markdown]
# ## Measured pieces
#
# A step of Llama 3 70B on 1,024 GPUs is too long to carry out for each of a thousand plans. But it is the same layer
# over and over again. So measure **pieces**, and compose steps of them: one layer, the embeddings and the output, each
# forward and backward on one microbatch. What does a layer's time depend on? On how it is cut (`tp`, `cp`, `ep`), and
# on how many sequences there are (`micro`). Not on dp, pp or chunks: these say how many such layers a rank has, how
# often it runs them, and who has the same ones. Nor on recomputing, which runs the same forward once more.
#
# So a plan's **key** is (tp, cp, ep, micro), and plans with the same key share a piece. The smallest plan with a key
# has pp 1, and just enough replicas: cp ranks share a sequence, ep ranks share the experts, and both are ranks of dp x
# cp. So cp x dp is the least common multiple of cp and ep.
#
# **Predict** how many pieces make up the plans of Llama 3 70B on 1,024 H100s that fit, with 2,048 sequences per step.

# %%
predict("pieces", ...)

# %% exercise="measure-pieces" difficulty=2 minutes=15
def measure_pieces(plans, measure):
    """{(tp, cp, ep, micro): its piece}, for all keys that `plans` have.

    measure(plan) runs the pieces of a plan on plan.gpus virtual GPUs, and returns a
    piece. That takes a while, so call it once per key, for the smallest plan with it.
    """
    pieces = {}
    for plan in plans:
        ### BEGIN SOLUTION
        key = plan.tp, plan.cp, plan.ep, plan.micro
        if key not in pieces:
            dp = math.lcm(plan.cp, plan.ep) // plan.cp
            pieces[key] = measure(Plan(dp=dp, tp=plan.tp, cp=plan.cp, ep=plan.ep, micro=plan.micro))
        ### END SOLUTION
    return pieces

# %% check="measure-pieces" judges="values" points=4
check(measure_pieces, judges="values")

# %% [markdown]
# Now for real. `every_piece` from the kit is a rank program that runs the embeddings, a layer and the output. The
# cluster is that of the plans, since ep 16 reaches over two nodes, and its GPUs have no limit of memory: whether a plan
# fits is a question that `plan_bytes` has answered.

# %%
class Piece(NamedTuple):
    """Seconds of one microbatch; embeddings and output: forward and backward together."""

    forward: float
    backward: float
    embeddings: float
    output: float

def measurer(model, cluster):
    endless = replace(cluster, gpu=replace(cluster.gpu, memory=math.inf))
    one = replace(model, layers=1)

    def measure(plan):
        run = simulate(every_piece, plan.gpus, one, [plan], cluster=endless, alike=alike(plan))
        embeddings, layer, output = run.results[0][0][:3]
        return Piece(*layer, sum(embeddings), sum(output))

    return measure

# %% tags=["notebook-only"]
llama = MODELS["llama-3-70b"]
tensor_cuts = [Plan(tp=tp) for tp in (1, 2, 4, 8)]
pieces = measure_pieces(tensor_cuts, measurer(llama, thousand))
for (tp, *_), piece in pieces.items():
    ms = 1e3 * (piece.forward + piece.backward)
    print(f"tp {tp}: {ms:5.2f} ms per layer, {ms * tp:6.2f} ms of all its GPUs together")

# %% [markdown]
# With tp 8, a layer costs more GPU time than on one GPU. This is what tp takes: communication that nothing hides, and
# products too small to be efficient. Every plan pays it on every layer.

# %% [markdown]
# ## A step of pieces
#
# A step has four parts here, and an optimizer that takes next to nothing:
#
# - **stages**: what the busiest stage computes, for all microbatches. The first stage has the embeddings besides its
#   layers, the last one the output. A pipeline is as fast as its slowest stage.
# - **bubble**: each of the other pp - 1 stages is filled and emptied once, with one chunk of one microbatch. Take its
#   layers alone.
# - **messages**: while the pipeline fills and empties, someone waits for each of pp x chunks - 1 messages, forward and
#   backward. In between, they travel beside the work on other chunks. With one chunk there is no such work, and each
#   microbatch waits for two messages more.
# - **exchange**: parameters are gathered layer by layer beside the first microbatch's forward, gradients scattered
#   beside the last one's backward. Seen is what exceeds it, among the layers of one chunk: the first layer's gather
#   hides behind nothing, and the others behind the forward of the layers before them. So of n layers either one gather
#   is seen, or all n less n - 1 times `forward`, whichever is longer. Gradients alike, with `backward`.
#
# **Predict** which share of a step the bubble is for GPT-3 on 8 stages with 12 chunks each, and 64 microbatches.

# %%
predict("share of the bubble", ...)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Which of the five sizes pp, chunks, number of microbatches, layers of a stage and replicas appear in each part?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# With full recomputing, backward starts with another forward. Make a list with the seconds of a microbatch on each
# stage; its maximum, times the number of microbatches, is the first part. The bubble doesn't depend on the number of
# microbatches.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `[plan.stage_layers(model, stage) * (forward + backward) for stage in range(plan.pp)]`, and then add the ends. The
# bubble is `(pp - 1) * layers / chunks * (forward + backward)` with `plan.layers(model)`. For the exchange:
# `max(gather, n * gather - (n - 1) * forward)`, and the same with `scatter` and `backward`.
# </details>

# %% exercise="compose" difficulty=4 minutes=20
def compose(plan, piece, model, batch, message, gather, scatter):
    """{"stages", "bubble", "messages", "exchange"}: seconds of a step.

    piece: a Piece, seconds of one microbatch. message: seconds of one message to the
    next stage. gather, scatter: seconds in which one layer's parameters are gathered
    over dp x cp, and its gradients scattered; 0 if nobody has the same ones.
    """
    count, layers, chunks = plan.microbatches(batch), plan.layers(model), plan.chunks
    ### BEGIN SOLUTION
    forward, backward = piece.forward, piece.backward
    if plan.recompute == "full":
        backward += forward
    both = forward + backward
    n = layers // chunks
    stages = [plan.stage_layers(model, stage) * both for stage in range(plan.pp)]
    stages[0] += piece.embeddings
    stages[-1] += piece.output
    seen = max(gather, n * gather - (n - 1) * forward)
    seen += max(scatter, n * scatter - (n - 1) * backward)
    waits = 2 * (plan.pp * chunks - 1) + (2 * count if chunks == 1 else 0)
    return {
        "stages": count * max(stages),
        "bubble": (plan.pp - 1) * layers / chunks * both,
        "messages": waits * message if plan.pp > 1 else 0.0,
        "exchange": seen,
    }
    ### END SOLUTION

# %% check="compose" judges="values" points=6
check(compose, judges="values")

# %% [markdown]
# `exchanged` asks the cluster for the other three numbers. Then: are steps of pieces as long as steps that are carried
# out? The plans are small here, so that both can be seen.

# %%
def exchanged(plan, model, cluster):
    """Seconds of a message to the next stage, and to gather and scatter a layer."""
    nbytes = 2 * plan.tokens(model) // plan.tp * model.width
    message = cluster.link(0, plan.tp * plan.replicas).seconds(nbytes) if plan.pp > 1 else 0.0
    gather, scatter = replica_seconds(model, plan.tp, plan.ep, plan.replicas, cluster)
    return message, gather[0], scatter[0]

def seconds_of_pieces(plan, pieces, model, batch, cluster):
    piece = pieces[plan.tp, plan.cp, plan.ep, plan.micro]
    return compose(plan, piece, model, batch, *exchanged(plan, model, cluster))

# %% tags=["notebook-only"]
small = replace(MODELS["llama-2-13b"], layers=8)
mixture = replace(MODELS["mixtral-8x7b"], layers=4)
cases = [
    (small, 16, Plan(dp=2, tp=4, pp=4, chunks=2)),
    (small, 16, Plan(dp=2, tp=2, pp=4, cp=2)),
    (mixture, 16, Plan(dp=4, tp=2, pp=2, ep=4, chunks=2)),
]
for its_model, its_batch, each in cases:
    site = find_cluster("dgx-h100", each.gpus, rates="achieved")
    run = simulate(step, each.gpus, its_model, each, its_batch, cluster=site, alike=alike(each))
    pieces = measure_pieces([each], measurer(its_model, site))
    seconds = sum(seconds_of_pieces(each, pieces, its_model, its_batch, site).values())
    error = seconds / run.elapsed - 1
    print(f"{each}: carried out {run.elapsed:.3f} s, composed {seconds:.3f} s, {error:+.1%}")

# %% tags=["notebook-only"]
published = Plan(dp=32, tp=4, pp=8, chunks=12)
pieces = measure_pieces([published], measurer(gpt, thousand))
parts = seconds_of_pieces(published, pieces, gpt, 2048, thousand)
print({part: round(seconds, 3) for part, seconds in parts.items()}, f"{sum(parts.values()):.2f} s")

# %% tags=["notebook-only"]
reveal(
    "share of the bubble",
    parts["bubble"] / sum(parts.values()),
    why="7 stages are filled by one chunk, a twelfth of a stage, once in 64: 7 / 12 / 64.",
)

# %% [markdown]
# NVIDIA, whose recipe this is, reports 8.45 s.

# %% [markdown]
# ## The search
#
# Everything is there. In which order?
#
# 1. **Does it fit?** Bytes are cheap, and a plan that doesn't fit needs no price.
# 2. **A formula** prices what fits, thousands of plans per second. `seconds_of` from the kit adds up every kernel and
#    message of a layer. Formulas have gaps, so it only prunes: plans more than `within` above its best are out.
# 3. **Measured pieces** decide among the rest.
#
# If two plans are equally fast, take the one that needs less memory: something always comes on top.
#
# Searching one axis after the other (the best tp, then the best pp for it, and so on) takes far fewer prices. Why not?
# Because the axes depend on each other: a pipeline is bad without chunks, and chunks are impossible without a pipeline.

# %% exercise="search" difficulty=3 minutes=15
def search(plans, memory, need, guess, measured, within, n):
    """The n best of these plans, best first: a list. Fewer if fewer are left.

    memory: bytes of a GPU. need(plan): bytes. guess(plan): seconds by formula, cheap.
    measured(plan): seconds of measured pieces, expensive: at most once per plan, and
    only if its guess is at most (1 + within) times the best one among those that fit.
    """
    ### BEGIN SOLUTION
    fitting = [plan for plan in plans if need(plan) <= memory]
    guesses = {plan: guess(plan) for plan in fitting}
    most = (1 + within) * min(guesses.values(), default=0)
    left = [plan for plan in fitting if guesses[plan] <= most]
    return sorted(left, key=lambda plan: (measured(plan), need(plan)))[:n]
    ### END SOLUTION

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Three functions tell you something about a plan. In which order does it pay to ask them?
# </details>
#
# <details><summary>Hint 2: the idea</summary>
#
# Three lists, each made from the one before: those that fit, those that the formula leaves in the race, and these in
# order.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `sorted(left, key=lambda plan: (measured(plan), need(plan)))[:n]`: Python calls a key once for each entry, and
# compares tuples from left to right.
# </details>

# %% check="search" judges="values" points=5
check(search, judges="values")

# %% [markdown]
# Llama 3 70B on 1,024 H100s, where NVIDIA's recipe takes 14.86 s, and GPT-3. Where are the published plans among all
# that fit?

# %%
def best_plans(model, batch, cluster, within=0.05, n=5):
    """(the best, {plan: seconds} of all that were composed, number of pieces measured)"""
    measure = cache(measurer(model, cluster))

    def need(plan):
        return sum(bytes_of(plan, model, batch).values())

    def guess(plan):
        return sum(seconds_of(plan, model, batch, cluster).values())

    @cache
    def measured(plan):
        pieces = measure_pieces([plan], measure)
        composed[plan] = sum(seconds_of_pieces(plan, pieces, model, batch, cluster).values())
        return composed[plan]

    composed, listed = {}, all_plans(model, batch, cluster)
    best = search(listed, cluster.gpu.memory, need, guess, measured, within, n)
    return best, composed, measure.cache_info().misses

def show_best(best, composed, published):
    for plan in best:
        print(f"{composed[plan]:7.3f} s  {plan}")
    rank = sorted(composed.values()).index(composed[published]) + 1
    gap = composed[published] / composed[best[0]] - 1
    print(f"published: {published}")
    print(f"{composed[published]:7.3f} s, number {rank} of {len(composed)}, {gap:.1%} behind the best")

# %% [markdown]
# The formula alone has most of them in the right order. What do the pieces say?

# %% tags=["notebook-only"]
best, composed, number = best_plans(gpt, 2048, thousand)
show_best(best, composed, published)

# %% tags=["notebook-only"]
of_llama = Plan(dp=32, tp=4, pp=4, cp=2, chunks=5)
best, composed, number = best_plans(llama, 2048, thousand)
show_best(best, composed, of_llama)

# %% tags=["notebook-only"]
reveal("pieces", number, why="Four sizes, few values of each, and the formula has pruned the rest.")

# %% tags=["notebook-only"]
gigabytes = {plan: sum(bytes_of(plan, llama, 2048).values()) / 1e9 for plan in composed}
figures.plan_cloud(
    {str(plan): (gigabytes[plan], seconds) for plan, seconds in composed.items()},
    marked={str(best[0]): "your best", str(of_llama): "published"},
    memory=80,
)

# %% [markdown]
# Each point is a plan that the formula couldn't rule out. They are within a few per cent of each other in time, and far
# apart in memory. For GPT-3, NVIDIA's engineers, who could try theirs out on real GPUs, chose a plan that the planner
# puts next to its best. For Llama 3 70B, it claims to know better ones.
#
# Don't believe it yet. A few per cent is what composed steps were off by, too, and a search picks the plans whose
# errors flatter them most.

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
