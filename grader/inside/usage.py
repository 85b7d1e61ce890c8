"""What the kernel has measured of a process. No limit counts the time for which a busy machine made it wait for a core,
so load costs nobody a point.
"""

from __future__ import annotations

import os
from contextlib import suppress

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


def work_of(process: int, but: bytes) -> float:
    """The computing of a process and of all that it has started, except of children whose command holds `but`."""
    others = (child for child in children_of(process) if but not in command_of(child))
    return cpu_seconds(process, of_children=False) + sum(map(family_seconds, others))


def family_seconds(process: int) -> float:
    return cpu_seconds(process) + sum(map(family_seconds, children_of(process)))


def children_of(process: int) -> list[int]:
    found = set[int]()
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                found.update(map(int, file.read().split()))
    return sorted(found)


def command_of(process: int) -> bytes:
    with suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as file:
        return file.read()
    return b""


def delay(process: int | str = "thread-self") -> float:
    """For how many seconds its main thread, or the calling one, was ready to compute and had no core.

    0 for a process that is gone, and where the kernel does not measure it.
    """
    try:
        with open(f"/proc/{process}/schedstat") as file:
            return int(file.read().split()[1]) * NANOSECOND
    except (OSError, IndexError):
        return 0.0
