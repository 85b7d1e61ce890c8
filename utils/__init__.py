"""What lessons import: `spawn` runs a function on real ranks, `simulate` on those of a virtual cluster.

Importing it starts the zygote in the background (see zygote.py), so that the first spawn is as quick as the others.
"""

from utils.calibrate import measure_this_machine
from utils.devices import get_device
from utils.errors import RankCrashed, RankError, RankFailed, RankTimeout, SilentMistake, WorldStuck
from utils.launcher import spawn
from utils.memory import track_memory
from utils.regions import region
from utils.run import Event, Region, Run
from utils.virtual import simulate
from utils.zygote_client import start_zygote

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
]

start_zygote()
