"""What the kernel has measured of a process. No limit counts the time for which a busy machine made it wait for a core,
so load costs nobody a point.
"""

from __future__ import annotations

import os

NANOSECOND = 1e-9


def cpu_seconds(process: int, of_children: bool = True) -> float:
    """The computing of a process so far, including its threads; of the children that it has waited for, too.

    0 for a process that is gone, and where there is no /proc.
    """
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if of_children else 13])) / os.sysconf("SC_CLK_TCK")


def delay(process: int | str = "thread-self") -> float:
    """For how many seconds its main thread, or the calling one, was ready to compute and had no core.

    0 for a process that is gone, and where the kernel does not measure it.
    """
    try:
        with open(f"/proc/{process}/schedstat") as file:
            return int(file.read().split()[1]) * NANOSECOND
    except (OSError, IndexError):
        return 0.0
