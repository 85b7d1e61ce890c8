"""`simulate`: run a function of a notebook on the ranks of a virtual cluster, and bring back a Run in virtual time.

check the call -> pickle the program by value -> a process of the zygote's runs all ranks (world.py) -> Run, or raise
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...report.run import Run
from ..common.call_checks import check_program, check_world_size
from ..common.program import pickle_program
from ..real.zygote.client import zygote

if TYPE_CHECKING:
    from ...cluster.hardware import Cluster

MAX_RANKS = 16384
DEVICES = ("meta", "cpu")
zygote.preload.append(f"{__package__}.engine")


def simulate(fn, world_size: int, *args, cluster: str | Cluster = "dgx-h100", device: str = "meta", **kwargs) -> Run:
    """Run `fn(rank, world_size, *args, **kwargs)`, the rank program that `spawn` runs, on virtual GPUs.

    cluster   a name ("dgx-h100", ...; it gets as many nodes as the ranks need) or a Cluster of your own
    device    "meta": tensors have sizes and no values, and nothing is computed, so that a thousand ranks and models of
              any size are quick; "cpu": values too, as with spawn

    The ranks are threads that take turns; each has a clock. Computing takes what the roofline model says of the GPU,
    messages what the links between the ranks take, collectives what the best algorithm takes: seconds of the virtual
    cluster, the same in every run. `run.elapsed` and all times of events are in them; `run.costs()` says what was
    charged for the collectives, and why. `time.perf_counter()` in the program reads the rank's own clock, `time.sleep`
    lets it pass: a benchmark measures the cluster.

    Returns a Run. Raises ValueError or TypeError for a call that can't work; RankFailed when a rank raises (out of
    memory, say), WorldStuck when nobody can move, SilentMistake when the calls do not fit together.
    """
    check_program(fn, args, kwargs, "simulate")
    world_size = check_world_size(world_size, most=MAX_RANKS, who="simulate")
    if device not in DEVICES:
        raise ValueError(f'device is "meta" (sizes only) or "cpu" (values too); got {device!r}.')
    from ...cluster.presets import find_cluster  # only now, so that importing the package is quick
    from .world import run_virtually

    cluster = find_cluster(cluster, world_size)
    return run_virtually(world_size, cluster, device, pickle_program(fn, args, kwargs, world_size))
