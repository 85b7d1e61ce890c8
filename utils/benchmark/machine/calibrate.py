"""This machine as a Cluster, measured in seconds: what `simulate` predicts can be held against what `spawn` takes.

    cluster = measure_this_machine()
    cluster.describe()                          # what was found: a table and a picture
    run = simulate(fn, 2, cluster=cluster)      # predicted
    run = spawn(fn, 2)                          # measured

What is measured, and how: probes.py.
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
    """A Cluster of what `world_size` ranks of `spawn` find on this machine, measured now: leave it alone meanwhile.

    world_size   ranks that share the machine; unless given, one for each free GPU if there are two or more, else one
                 for each core. There may be more ranks than cores: each then has its part of one.
    backend      as of spawn: "gloo" (CPU), "nccl" (GPUs), or what spawn would choose
    seconds      how long it takes, more or less; longer is steadier

    Raises what spawn raises for a world_size or a backend that this machine can't serve, and RuntimeError on a rank of
    torchrun or SLURM, where spawn starts none of its own.
    """
    if already_a_rank():
        raise RuntimeError(
            "measure_this_machine was called on a rank of torchrun or SLURM. It starts ranks of its own: call it in a "
            "notebook or a plain script, on one machine."
        )
    from . import probes  # only now, so that `import utils` is quick

    free = 0 if backend == "gloo" else sum(not gpu.is_busy for gpu in find_gpus())
    if world_size is None:
        world_size = free if free > 1 or (free and backend == "nccl") else probes.cores()
    world_size = check_world_size(world_size)
    backend = backend or ("nccl" if free >= world_size else "gloo")
    of_ranks = spawn(probes.measure_rank, world_size, probes.WINDOW * seconds / 4, backend=backend).results
    if backend == "nccl" and world_size == 1:
        return probes.as_cluster(of_ranks, None, backend)
    rounds = max(3, round(probes.ROUNDS * seconds / 4))
    return probes.as_cluster(of_ranks, spawn(probes.ping_pong, 2, rounds, backend=backend).results[0], backend)
