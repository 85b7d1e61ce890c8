"""What lessons import: `spawn` runs a function on real ranks, `get_device` says where a rank computes.

Importing it starts the zygote in the background (see zygote.py), so that the first spawn is as quick as the others.
"""

from utils.devices import get_device
from utils.errors import RankCrashed, RankError, RankFailed, RankTimeout, WorldStuck
from utils.launcher import spawn
from utils.memory import track_memory
from utils.regions import region
from utils.run import Event, Region, Run
from utils.zygote_client import start_zygote

__all__ = [
    "Event",
    "RankCrashed",
    "RankError",
    "RankFailed",
    "RankTimeout",
    "Region",
    "Run",
    "WorldStuck",
    "get_device",
    "region",
    "spawn",
    "track_memory",
]

start_zygote()
