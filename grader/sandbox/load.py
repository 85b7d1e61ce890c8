"""How busy this machine is: limits on time grow with it, so that nobody's answer is stopped for what others do."""

from __future__ import annotations

import os

MAX_FACTOR = 10.0


def patience() -> float:
    """By how much to multiply a limit that was chosen on a quiet machine: processes that want to run, per core."""
    return min(MAX_FACTOR, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
