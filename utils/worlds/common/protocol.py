"""What the launcher and a rank say to each other. Imports nothing heavy: the kernel reads it before torch is there.

Everything lies in the folder of the world: `request` and `program` (what to run), `store` (the rendezvous), and for
each rank `notes-R` and `calls-R` (what it asked of the network, see recording/call_table.py), `stack-R` (its line, when it crashed or
was asked) and `outcome-R`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

# What a rank says inside its own output, in bytes that no text contains: that it has called one more collective on the
# whole world; that its function is over and its outcome is there. It then waits to be ended, because a process that
# leaves takes its connections with it, and the ranks that still need them would be blamed.
SYNCHRONISED = b"\xff\x00synchronised\x00\xff"
FINISHED = b"\xff\x00finished\x00\xff"
# The one process of a virtual cluster says whose text follows; and how far it is: virtual seconds, calls, ranks done.
SPEAKS = b"\xff\x00rank %d\x00\xff"
NEWS_IS = b"\xff\x00news %s\x00\xff"


@dataclass(frozen=True)
class Request:
    """What the launcher asks of each rank."""

    world_size: int
    backend: str
    folder: str
    zero: float  # time.monotonic() at which the world began
    environment: dict[str, str]
    working_directory: str
    sys_path: list[str]
    sources: dict  # linecache entries of the notebook's cells, so that a traceback inside a rank shows their lines
    entry: str = ""  # "module:function" of what the process does: (rank, request) -> its outcome, pickled
    cluster: object = None  # a Cluster if the ranks are virtual: threads of one process
    device: str = "cpu"  # theirs: "cpu", or "meta" for sizes without values


def path_in(folder: str, name: str, rank: int) -> str:
    return os.path.join(folder, f"{name}-{rank}")
