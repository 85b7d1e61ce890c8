"""How long a training step of a transformer takes on a grid of GPUs, by the costs that `simulate` charges.

    plan = {"dp": 16, "pp": 4, "tp": 8, "microbatches": 32, "recompute": False}
    step_costs(plan, model, batch, cluster)      {"seconds", "bytes", "compute", "tp", "pp", "bubble", "dp"}

A closed form instead of a run, so that thousands of grids can be tried: a matrix product takes its FLOPs at the peak or
its bytes at the memory's bandwidth, a collective what collective_costs.py says for where its ranks are. The axes are
dp, pp, tp, tp innermost. All communication counts in full except along dp: that is hidden behind the last microbatch's
backward pass as far as it goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .collective_costs import Layout, cost
from .hardware import Cluster

AXES = ("dp", "pp", "tp")


@dataclass(frozen=True)
class Model:
    """A transformer: `layers` of width `width` with `heads` heads, on sequences of `length` tokens."""

    layers: int
    width: int
    heads: int
    length: int

    @property
    def parameters(self) -> int:
        return 12 * self.layers * self.width**2

    @property
    def flops_per_token(self) -> float:
        """Forward and backward; attention among all pairs of tokens included."""
        return 6 * self.parameters + 12 * self.layers * self.width * self.length


def problem_of(plan: Mapping[str, Any], model: Model, batch: int, cluster: Cluster) -> str:
    """Why a plan can't be carried out, in words; "" if it can. batch: sequences per step."""
    sizes = {name: plan[name] for name in (*AXES, "microbatches")}
    if any(type(size) is not int or size < 1 for size in sizes.values()):
        return "dp, pp, tp and microbatches are whole numbers, 1 or more"
    ranks = cluster.nodes * cluster.gpus_per_node
    if plan["dp"] * plan["pp"] * plan["tp"] != ranks:
        return f"dp x pp x tp is {plan['dp'] * plan['pp'] * plan['tp']}, but there are {ranks} GPUs"
    for what, whole, parts in (
        ("pp must divide the layers", model.layers, plan["pp"]),
        ("tp must divide the heads", model.heads, plan["tp"]),
        ("dp times microbatches must divide the batch", batch, plan["dp"] * plan["microbatches"]),
    ):
        if whole % parts:
            return f"{what}: {whole} / {parts} is not a whole number"
    needed = bytes_of(plan, model, batch)
    if needed > cluster.gpu.memory:
        return f"a GPU would need {needed / 1e9:.1f} GB, and has {cluster.gpu.memory / 1e9:g} GB"
    return ""


def bytes_of(plan: Mapping[str, Any], model: Model, batch: int) -> float:
    """On the fullest GPU: 6 bytes per parameter, 12 more spread over dp (ZeRO-1), and the activations of stage 0.

    Of a layer, 34 bytes per token and feature stay for the backward pass, cut along tp (sequence parallelism, and
    attention as FlashAttention does it); with recompute, 2.
    """
    parameters = model.parameters / (plan["pp"] * plan["tp"])
    tokens = batch // (plan["dp"] * plan["microbatches"]) * model.length
    live = min(plan["microbatches"], plan["pp"]) * model.layers // plan["pp"]
    per_layer = tokens * model.width / plan["tp"]
    kept = 2 * live + 34 if plan.get("recompute") else 34 * live
    return float(parameters * (6 + 12 / plan["dp"]) + kept * per_layer)


def seconds_along(op: str, nbytes: float, axis: str, plan: Mapping[str, Any], cluster: Cluster) -> float:
    """The cheapest algorithm for one collective along an axis; 0 for a group of one."""
    stride = {"tp": 1, "pp": plan["tp"], "dp": plan["tp"] * plan["pp"]}[axis]
    if plan[axis] == 1:
        return 0.0
    return cost(op, nbytes, cluster, Layout.of(cluster, [stride * n for n in range(plan[axis])])).seconds


def step_costs(plan: Mapping[str, Any], model: Model, batch: int, cluster: Cluster) -> dict[str, float]:
    """{part: seconds of a step}, "bytes": on the fullest GPU. Raises ValueError for an impossible plan."""
    problem = problem_of(plan, model, batch, cluster)
    if problem:
        raise ValueError(problem)
    gpu, count = cluster.gpu, plan["microbatches"]
    tokens, layers = batch // (plan["dp"] * count) * model.length, model.layers // plan["pp"]
    passes = 4 if plan.get("recompute") else 3  # forward once or twice, and backward, which is two of them
    share = layers / model.layers / plan["tp"]
    at_peak = model.flops_per_token / 3 * tokens * share / gpu.peak("bfloat16")
    from_memory = 2 * model.parameters * share / gpu.bandwidth  # the weights are read once per pass
    compute = passes * max(at_peak, from_memory) + passes * 12 * layers * gpu.launch
    activations = 2.0 * tokens * model.width
    # a reduce-scatter and an all-gather, as sequence parallelism has them, for each of two regions and each pass
    along_tp = 4 * layers * seconds_along("all_reduce", activations, "tp", plan, cluster) * (1.5 if passes == 4 else 1)
    link = cluster.inter if plan["tp"] * 2 > cluster.gpus_per_node else cluster.intra
    along_pp = 2 * link.seconds(activations / plan["tp"]) if plan["pp"] > 1 else 0.0
    slot = compute + along_tp + along_pp
    gradients = 2.0 * model.parameters / (plan["pp"] * plan["tp"])
    along_dp = sum(seconds_along(op, gradients, "dp", plan, cluster) for op in ("reduce_scatter", "all_gather"))
    exposed = max(0.0, along_dp - (slot * 2 / 3 if count > 1 else 0.0))
    parts = {
        "compute": count * compute,
        "tp": count * along_tp,
        "pp": count * along_pp,
        "bubble": (plan["pp"] - 1) * slot,
        "dp": exposed,
    }
    return {"seconds": sum(parts.values()), **parts, "bytes": bytes_of(plan, model, batch)}
