"""A published row, simulated: what runs on virtual ranks, and what is derived from it.

Simulated: the ranks of one tensor-parallel group run one layer, the embedding, the head and the optimizer, each forward
and backward for one microbatch (programs.py). An all-reduce runs on all its ranks.

Derived: a pipeline of P ranks with V chunks and M microbatches takes M + (P-1)/V times a rank's forward and backward,
with the head on its last rank, and M V messages each way, where they don't run beside computing: the closed form that
tests hold `simulate` to. Communication between data-parallel groups costs what `simulate` would charge their
collective (`cost`), since their other ranks do the same as those that ran.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import torch
import torch.distributed as dist

from tests.accuracy import fsdp_step
from tests.accuracy.programs import optimizer, pieces
from tests.accuracy.rows import Model, Row, Setting
from utils import Run, simulate
from utils.cluster import Cluster, Layout, cost, find_cluster
from utils.cluster.presets import site_factor
from utils.kit import plans

FEW = (4, 6)  # layers of the runs from which those of an FSDP model are extended


def simulated(row: Row, rates: str) -> float:
    """Seconds, of what the row is about."""
    if row.what == "all_reduce":
        return simulate(one_all_reduce, row.ranks, row.nbytes, cluster=row.cluster, rates=rates).elapsed
    assert row.model is not None and row.setting is not None
    if row.what == "layer":
        parts = group_pieces(row.model, row.setting, rates)
        return parts["forward"] + parts["backward"]
    if row.setting.fsdp:
        return fsdp_seconds(row.model, row.setting, rates)
    return step_seconds(row.model, row.setting, rates)


def fsdp_seconds(model: Model, setting: Setting, rates: str) -> float:
    """Of a step: two microbatches with the optimizer, and each other as long as the second."""
    few = [fsdp_run(replace(model, layers=layers), setting, rates).results[0] for layers in FEW]
    first, second, end = (extended(short, long, model.layers) for short, long in zip(*few, strict=True))
    return end + (setting.microbatches - 2) * (second - first)


def extended(short: float, long: float, layers: int) -> float:
    """What this many layers take, if each takes as long as those that make the difference between FEW."""
    return short + (layers - FEW[0]) / (FEW[1] - FEW[0]) * (long - short)


@cache
def fsdp_run(model: Model, setting: Setting, rates: str) -> Run:
    """Two microbatches of a model."""
    same = replace(setting, batch=setting.data * setting.micro)
    cluster = machine(setting, setting.gpus)
    program = fsdp_step.step
    return simulate(program, setting.gpus, model, same, 2, cluster=cluster, rates=rates, alike=the_same)


def the_same(rank: int) -> int:
    return 0


def carried_out(row: Row, rates: str) -> Run:
    """The whole step as one program, without closed forms, on all GPUs of the row (utils/kit/plans/step.py)."""
    assert row.model is not None and row.setting is not None
    model, setting = row.model, row.setting
    same = plans.Model(
        *(model.layers, model.hidden, model.heads, model.sequence, model.vocabulary, model.kv_heads),
        ffn=model.mlp_width,
        gated=model.gated,
        tied=not model.gated,
    )
    plan = plans.Plan(setting.data, setting.tensor, setting.pipeline, chunks=setting.chunks, micro=setting.micro)
    cluster, alike = machine(setting, setting.gpus), plans.alike(plan)
    return simulate(plans.step, plan.gpus, same, plan, setting.batch, cluster=cluster, rates=rates, alike=alike)


def one_all_reduce(rank: int, world_size: int, nbytes: int) -> None:
    dist.all_reduce(torch.empty(nbytes // 4))


@cache
def pieces_of(model: Model, setting: Setting, rates: str) -> dict[str, float]:
    ranks = setting.tensor * setting.experts
    return simulate(pieces, ranks, model, setting, cluster=machine(setting), rates=rates, alike=the_same).results[0]


def optimizer_seconds(model: Model, setting: Setting, rates: str) -> float:
    mine = math.ceil(parameters_of_rank(model, setting) / (setting.data if setting.sharded else 1))
    return simulate(optimizer, 1, mine, cluster=endless(setting.cluster), rates=rates).results[0]


def machine(setting: Setting, gpus: int = 8) -> Cluster:
    """The setting's cluster, with memory without end."""
    cluster = endless(setting.cluster, gpus)
    if setting.bandwidth:
        cluster = replace(cluster, gpu=replace(cluster.gpu, bandwidth=setting.bandwidth))
    if cluster.gpu.achieved is not None:
        rates = replace(cluster.gpu.achieved, flash=setting.generation)
        cluster = replace(cluster, gpu=replace(cluster.gpu, achieved=rates))
    if setting.network:
        cluster = replace(cluster, inter=replace(cluster.inter, bandwidth=setting.network))
    return replace(cluster, site=site_factor(setting.site))


def endless(name: str, gpus: int = 8) -> Cluster:
    """Memory without end: what these programs hold at once is not what a training step holds."""
    cluster = find_cluster(name, gpus)
    return replace(cluster, gpu=replace(cluster.gpu, memory=math.inf))


def group_pieces(model: Model, setting: Setting, rates: str) -> dict[str, float]:
    """{piece: seconds}, simulated once for settings that differ only in what a tensor-parallel group doesn't see."""
    same = replace(setting, gpus=8, batch=setting.micro, pipeline=1, chunks=1)
    return pieces_of(model, replace(same, sharded=False, overlap=False, buckets=False), rates)


def parameters_of_rank(model: Model, setting: Setting) -> int:
    return model.parameters // (setting.tensor * setting.pipeline)


def step_seconds(model: Model, setting: Setting, rates: str) -> float:
    parts = group_pieces(model, setting, rates)
    cluster = replace(find_cluster(setting.cluster, setting.gpus), rates=rates)
    layer = parts["forward"] + parts["backward"]
    most = math.ceil(model.layers / setting.pipeline)
    fewer = int(most * setting.pipeline > model.layers)  # then the first and the last rank have one layer less
    last = (most - fewer) * layer + parts["head"] + (parts["embedding"] if setting.pipeline == 1 else 0.0)
    bubble = (setting.pipeline - 1) / setting.chunks * most * layer
    computing = setting.microbatches * max(most * layer, last) + bubble
    messages = 0.0
    if setting.pipeline > 1:
        rounds = 0 if setting.overlap else setting.microbatches * setting.chunks
        messages = 2 * (rounds + setting.pipeline - 1) * hop_seconds(model, setting, cluster)
    backward = most * parts["backward"]
    return computing + messages + exposed(model, setting, cluster, backward) + optimizer_seconds(model, setting, rates)


def hop_seconds(model: Model, setting: Setting, cluster: Cluster) -> float:
    """A microbatch's activations from one stage to the next: each rank sends its part, and the part is gathered."""
    nbytes = 2 * setting.micro * model.sequence * model.hidden
    seconds = cluster.link(0, setting.tensor).seconds(nbytes / setting.tensor)
    if not setting.sequence:
        group = Layout.of(cluster, range(setting.tensor))
        seconds += cost("all_gather", nbytes, cluster, group).seconds
    return seconds


def exposed(model: Model, setting: Setting, cluster: Cluster, backward: float) -> float:
    """What gradients and parameters cost that are exchanged between data-parallel ranks, beyond what computing hides.

    If they travel beside computing, what remains is the gradients of the last chunk and the parameters of the first.
    """
    if setting.data == 1:
        return 0.0
    peers = range(0, setting.gpus, setting.tensor)[: setting.data]  # each on a node of its own if tensor is 8
    layout = Layout.of(cluster, peers)
    parameters = parameters_of_rank(model, setting)
    if setting.sharded:
        scatter = cost("reduce_scatter", 4 * parameters, cluster, layout).seconds
        gather = cost("all_gather", 2 * parameters, cluster, layout).seconds
        return (scatter + gather) / (setting.chunks if setting.overlap else 1)
    seconds = cost("all_reduce", 2 * parameters, cluster, layout).seconds
    return max(0.0, seconds - backward) if setting.buckets else seconds


def forget() -> None:
    """Simulate everything anew, since rates have changed."""
    pieces_of.cache_clear()
    fsdp_run.cache_clear()
