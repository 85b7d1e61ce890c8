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
from itertools import product

from utils import RankError, simulate
from utils.checks import checks_for
from utils.cluster import find_cluster
from utils.kit.plans import MODELS, Plan, alike, bytes_of, plans, problem_of, seconds_of, step
from utils.kit.predictions import how_predictions_went, predict, reveal

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
print(f"{plan}: {run.elapsed:.2f} s per step")
for stage in range(plan.pp):
    print(f"stage {stage}: {run.memory().peak[stage * 16] / 1e9:.1f} GB")

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
# # Part 1 · Rules
#
# ## A first guess
#
# **Predict** how much longer the plan of these rules takes than the best one, for Llama 3 8B on 64 GPUs.

# %% exercise="first-guess" difficulty=2 minutes=15
def first_guess(model, batch, cluster):
    """A Plan on all GPUs of the cluster that fits, by the rules above.

    batch: sequences per step. Microbatches of one sequence, no chunks, no cp.
    """
    ### BEGIN SOLUTION
    gpus, node = cluster.size, cluster.gpus_per_node
    shapes = [(tp, 1) for tp in range(1, node + 1)] + [(node, pp) for pp in range(2, model.layers + 1)]
    for recompute in ("none", "full"):
        for tp, pp in shapes:
            if gpus % (tp * pp):
                continue
            dp = gpus // (tp * pp)
            plan = Plan(dp=dp, tp=tp, pp=pp, ep=math.gcd(max(1, model.experts), dp), recompute=recompute)
            if not problem_of(plan, model, batch, cluster):
                return plan
    ### END SOLUTION

# %% check="first-guess" judges="values" points=3
check(first_guess, judges="values")

# %% [markdown]
# # Your progress
# What has passed since this kernel was started, and what is left.

# %% tags=["notebook-only"]
check.summary()
