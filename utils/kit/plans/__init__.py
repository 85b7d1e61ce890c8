"""Plans: how a transformer's training step is spread over GPUs, what it keeps in memory, and how long it takes.

    model, plan = MODELS["llama-3-70b"], Plan(dp=32, tp=4, pp=4, cp=2, chunks=5)
    cluster = find_cluster("dgx-h100", plan.gpus, rates="achieved")
    problem_of(plan, model, 2048, cluster)     "" if it works and fits, with 2,048 sequences per step
    bytes_of(plan, model, 2048)                by kind, on the fullest rank
    seconds_of(plan, model, 2048, cluster)     by part, at the cluster's rates
    plans(model, 2048, cluster)                all there are
    search(model, 2048, cluster, n=10)         the best that fit, composed of measured pieces
    measure_pieces(model, keys, cluster)       those pieces, and compose(plan, pieces, ...): a step made of them
    simulate(step, plan.gpus, model, plan, 2048, cluster=cluster, alike=alike(plan))     the same carried out

The formulas (memory.py, seconds.py, work.py) and the program (step.py, layers.py) describe the same step; tests hold
one against the other.
"""

from .memory import bytes_of, problem_of
from .model import Model
from .pieces import Key, Piece, measure_pieces
from .plan import Plan, plans, rule_broken
from .published import MODELS, RUNS, Case, Published, published_plans
from .search import Candidate, search
from .seconds import compose, range_of, seconds_of
from .step import alike, step

__all__ = [
    "MODELS",
    "RUNS",
    "Candidate",
    "Case",
    "Key",
    "Model",
    "Piece",
    "Plan",
    "Published",
    "alike",
    "bytes_of",
    "compose",
    "measure_pieces",
    "plans",
    "problem_of",
    "published_plans",
    "range_of",
    "rule_broken",
    "search",
    "seconds_of",
    "step",
]
