"""What the kernel and a rank tell each other. Imports nothing heavy, because the kernel imports it before torch.

The files are in the folder of the world: `request` and `program` (what to run), `store` (the rendezvous), and for each
rank R `notes-R` and `calls-R` (what it asked of the network, see recording/call_table.py), `stack-R` (where it was when
it crashed or was asked) and `outcome-R` (outcome.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

# Marks that a rank writes into its own output, in bytes that no text contains: it has called one more collective on the
# whole world; its function has returned and its outcome is there. It then waits to be ended: if its process exited, its
# connections would close, and the ranks that still need them would fail and be blamed.
SYNCHRONISED = b"\xff\x00synchronised\x00\xff"
FINISHED = b"\xff\x00finished\x00\xff"
# Marks of the one process of a virtual cluster: whose text follows; how far it is (virtual seconds, calls, ranks done).
SPEAKS = b"\xff\x00rank %d\x00\xff"
NEWS_IS = b"\xff\x00news %s\x00\xff"


@dataclass(frozen=True)
class Request:
    """What the kernel asks of each process of a world."""

    world_size: int
    backend: str
    folder: str
    zero: float  # time.monotonic() at which the world began
    environment: dict[str, str]
    working_directory: str
    sys_path: list[str]
    sources: dict[str, Any]  # linecache entries of the notebook's cells: tracebacks on the ranks show their lines
    check_replicas: int = 0  # after how many steps of optimizers each time; 0: never
    entry: str = ""  # "module:function" that the process runs: (rank, request) -> pickled outcome
    cluster: Any = None  # a Cluster if the ranks are virtual, that is, threads of one process
    device: str = "cpu"  # virtual ranks: "cpu", or "meta" for sizes without values
    alike: tuple[int, ...] | None = None  # virtual ranks: for each, the one that runs in its place; None: all run
    item_as_nan: bool = False  # whether a program without values that asks for one gets nan, rather than an error


def path_in(folder: str, name: str, rank: int) -> str:
    return os.path.join(folder, f"{name}-{rank}")
