"""What ranks record about themselves while they run: calls, regions, memory.

A rank program uses the two names exported here. The worlds install the recorder itself, from modules that need torch.
"""

from .regions import region
from .track_memory import track_memory

__all__ = ["region", "track_memory"]
