"""What happened, as plain data: events, regions, failures, and which calls belong together.

Nothing here needs torch, so every other package may use it.
"""

from .event import Event, Region
from .failure import Failure, Frame
from .matching import Matching
from .rank_state import RankState

__all__ = ["Event", "Failure", "Frame", "Matching", "RankState", "Region"]
