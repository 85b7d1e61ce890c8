"""Plans: how a transformer's training step is spread over GPUs, what it keeps in memory, and how long it takes.

    model, plan = MODELS["llama-3-70b"], Plan(dp=32, tp=4, pp=4, cp=2, chunks=5)
    cluster = find_cluster("dgx-h100", plan.gpus, rates="achieved")
    problem_of(plan, model, 2048, cluster)     "" if it works and fits, with 2,048 sequences per step
    bytes_of(plan, model, 2048)                by kind, on the fullest rank
    seconds_of(plan, model, 2048, cluster)     by part, at the cluster's rates
    plans(model, 2048, cluster)                all there are
    simulate(step, plan.gpus, model, plan, 2048, cluster=cluster, alike=alike(plan))     the same carried out

The formulas (memory.py, seconds.py, work.py) and the program (step.py, layers.py) describe the same step; tests hold
one against the other.
"""

from .memory import bytes_of, problem_of
from .model import Model
from .plan import Plan, plans, rule_broken
from .published import MODELS, RUNS, Published
from .seconds import seconds_of
from .step import alike, step

__all__ = [
    "MODELS",
    "RUNS",
    "Model",
    "Plan",
    "Published",
    "alike",
    "bytes_of",
    "plans",
    "problem_of",
    "rule_broken",
    "seconds_of",
    "step",
]
