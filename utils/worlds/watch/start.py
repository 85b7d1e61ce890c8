"""`watch()`: one line in a script, or what `-m PACKAGE.watch` does for it. Imports nothing heavy until it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..common import this_rank
from ..common.torchrun_variables import NAME_OF_JOB, OURS

if TYPE_CHECKING:
    from .watcher import Watcher

watcher: Watcher | None = None  # this process's only one


def watch(*, end: bool = True, save: str | Path | None = None) -> None:
    """From now on, have the ranks of this job watched: if none can move any more, rank 0 prints why, and the job ends.

    Every rank calls it once, at the same place: before `init_process_group`, or right after it and before anything is
    built on the group (DDP, a mesh, further groups), because only calls on recorded groups are seen. Nothing is sent
    before the group is there. Ranks of `spawn` and `simulate` are watched anyway.

    end    whether the job ends with the report: every rank then exits with 1. If not, the report is printed, and the
           ranks go on waiting until a time-out of torch's
    save   a folder for the last calls of all ranks and the report, written by rank 0 when there is a report

    Raises OSError if rank 0 can't make the folder.
    """
    global watcher
    if watcher is not None or this_rank.number is not None or os.environ.get(NAME_OF_JOB) == OURS:
        return
    if save is not None:
        Path(save).mkdir(parents=True, exist_ok=True)
    from .watcher import Watcher

    watcher = Watcher(end, None if save is None else Path(save))
    watcher.start()
