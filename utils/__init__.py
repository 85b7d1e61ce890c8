"""What lessons import: `spawn` runs a function on real ranks, `simulate` on the ranks of a virtual cluster. `watch`
watches over the ranks of a job that torchrun or SLURM has started.

Importing this package starts the zygote in the background (see worlds/real/zygote), so that the first spawn is as quick
as the rest.
"""

from __future__ import annotations

from .benchmark.machine import measure_this_machine
from .diagnosis import RankCrashed, RankError, RankFailed, RankTimeout, SilentMistake, WorldStuck
from .diagnosis.uncaught import show_reports_without_our_lines
from .events import Event, Region
from .recording import region, track_memory
from .report import Run
from .worlds.real import get_device, spawn
from .worlds.real.zygote.client import start_zygote
from .worlds.virtual import simulate
from .worlds.watch import watch

__all__ = [
    "Event",
    "RankCrashed",
    "RankError",
    "RankFailed",
    "RankTimeout",
    "Region",
    "Run",
    "SilentMistake",
    "WorldStuck",
    "get_device",
    "measure_this_machine",
    "region",
    "simulate",
    "spawn",
    "track_memory",
    "watch",
]

start_zygote()
show_reports_without_our_lines()
