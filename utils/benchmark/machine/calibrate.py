"""This machine as a Cluster, measured in seconds, to compare what `simulate` predicts with what `spawn` takes.

    cluster = measure_this_machine()
    cluster.describe()                          # a table and a picture of it
    run = simulate(fn, 2, cluster=cluster)      # predicted; collectives take what Gloo's own algorithms take
    run = spawn(fn, 2)                          # measured

What is measured, and how, is in probes.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...worlds.common.call_checks import check_world_size
from ...worlds.jobs.in_place import already_a_rank
from ...worlds.real.installed_gpus import find_gpus
from ...worlds.real.launch import spawn

if TYPE_CHECKING:
    from ...cluster.hardware import Cluster


def measure_this_machine(world_size: int | None = None, backend: str | None = None, seconds: float = 4.0) -> Cluster:
    """This machine as `world_size` ranks of `spawn` find it: a Cluster. Run nothing else on it meanwhile.

    world_size   ranks that share the machine; by default one per free GPU if there are two or more, else one per core.
                 If there are more ranks than cores, they share the cores.
    backend      as for spawn: "gloo" (CPU) or "nccl" (GPUs); by default what spawn would choose
    seconds      roughly how long to measure; longer gives steadier numbers

    Raises what spawn raises for a world_size or backend that this machine can't provide, and RuntimeError on a rank of
    torchrun or SLURM, where spawn starts no ranks of its own. Raises ValueError if the machine was too busy to measure.
    """
    if already_a_rank():
        raise RuntimeError(
            "measure_this_machine was called on a rank of torchrun or SLURM, but it starts its own ranks. Call it in a "
            "notebook or a plain script on one machine."
        )
    from . import probes  # here, because it imports torch

    free = 0 if backend == "gloo" else sum(not gpu.is_busy for gpu in find_gpus())
    if world_size is None:
        world_size = free if free > 1 or (free and backend == "nccl") else probes.cores()
    world_size = check_world_size(world_size)
    backend = backend or ("nccl" if free >= world_size else "gloo")
    of_ranks = spawn(probes.measure_rank, world_size, probes.WINDOW * seconds / 4, backend=backend).results
    if backend == "nccl" and world_size == 1:
        return probes.as_cluster(of_ranks, None, backend)
    rounds = max(3, round(probes.ROUNDS * seconds / 4))
    one_way = spawn(probes.ping_pong, 2, rounds, backend=backend).results[0]
    several = backend == "gloo" and world_size > 1
    gloo = spawn(probes.gloo_samples, world_size, rounds, backend=backend).results if several else None
    return probes.as_cluster(of_ranks, one_way, backend, gloo)
