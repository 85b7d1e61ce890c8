"""The ranks of a script, seen from the launcher: their lines as they come, no limit on time, and ends as torchrun's."""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from ...diagnosis.errors import RankError
from ...events.failure import Failure
from ...recording.call_table import COLUMNS, END, HEADER, KIND
from ...recording.notes import GroupBegun, GroupMade
from ...recording.reader import RecordReader, read_memory
from ...report.run import Run
from ...text.package import NAME
from ...text.wrapping import wrapped
from ..real.ordered_output import OrderedOutput
from ..real.placement import Placement
from ..real.world import RealWorld
from .script import Script

PATIENCE = 30  # seconds that ranks have for ending by themselves, once they have been asked to: torchrun's
RESTS = 20  # looking for a deadlock may take one part in so many of the launcher's time, however long the record is


class ScriptWorld(RealWorld):
    """The ranks that run one script."""

    entry = f"{__package__}.rank:perform"

    def __init__(
        self,
        script: Script,
        world_size: int,
        tracks_memory: bool,
        environment: dict[str, str],
        check_replicas: int = 0,
        tell_after: float = 60.0,
    ):
        self.script = script
        self.signal_to_end = signal.SIGTERM
        self.is_ending = False
        self.next_look = 0.0
        self.tell_after, self.moved = tell_after, time.monotonic()
        self.seen: list[Any] = []
        super().__init__(world_size, Placement("", environment), pickle.dumps((script, tracks_memory)), check_replicas)
        self.output = OutputAsItComes(world_size)

    def feed(self, rank: int, data: bytes) -> None:
        self.printed_bytes[rank] = 0  # nothing is kept, so there may be any number
        super().feed(rank, data)

    def raise_if_stuck(self) -> None:
        self.tell_if_quiet()
        if time.monotonic() < self.next_look or not self.all_may_wait():
            return
        began = time.monotonic()
        super().raise_if_stuck()
        now = time.monotonic()
        self.next_look = now + RESTS * (now - began)

    def tell_if_quiet(self) -> None:
        """Say what the ranks do if some have waited for others for long, which may be a deadlock or slow work.

        As long as a rank computes, it is said again each time that the wait has doubled; then once more, and no more.
        """
        progress, now = self.progress(), time.monotonic()
        if progress != self.seen:
            self.seen, self.moved = progress, now
        elif now - self.moved > self.tell_after:
            self.update_states()
            if all(state.blocked_in() is None for state in self.states):
                self.moved = now
            else:
                found = self.what_ranks_do()
                self.tell_after = math.inf if found.waiting else 2 * self.tell_after
                said = f"{NAME}: no rank has called or left torch.distributed for {now - self.moved:.0f} s."
                self.screen.flush()
                print(
                    *wrapped("\n".join([said, *("  " + line for line in found.lines), found.advice])),
                    sep="\n",
                    file=sys.stderr,
                )

    def all_may_wait(self) -> bool:
        """False if some rank is certainly at work: a quick look, since the record of a long run takes long to read."""
        return all(self.has_ended(record.rank) or may_wait(record) for record in self.records)

    def end(self) -> None:
        """Ask ranks that can still run Python to end by themselves; then kill those that are left."""
        try:
            if self.started and not self.is_ending and not self.is_over():
                self.is_ending = True
                self.signal(self.signal_to_end)
                patience = time.monotonic() + PATIENCE
                while self.any_running() and time.monotonic() < patience:
                    self.listen(0.1)
        except (OSError, RankError):  # the zygote is gone, and its processes with it
            pass
        super().end()

    def run_so_far(self, error: RankError) -> Run:
        """What is known of a run that failed."""
        notes = [read_memory(record.notes) for record in self.records] or [[] for _ in range(self.world_size)]
        empty = [""] * self.world_size
        return Run(
            self.world_size, "spawn", "", error.results, empty, error.events, self.seconds(), error.regions, notes
        )

    def exit_code(self, error: RankError) -> int:
        """That of the rank to look at first: `sys.exit(3)` is 3, a signal 128 and its number, all else 1."""
        if error.rank is None:
            return 1
        outcome, code = self.outcomes.get(error.rank), self.exit_codes.get(error.rank, 1)
        if isinstance(outcome, Failure):
            return exit_code(outcome)
        return code if code > 0 else 128 - code


def may_wait(record: RecordReader) -> bool:
    """Whether a call of the rank hasn't ended, or the rank makes a group."""
    import numpy  # only now, so that the command starts quickly

    record.news()
    file = record.calls_file.fileno()
    cells = numpy.frombuffer(os.pread(file, os.fstat(file).st_size, 0))[HEADER:]
    rows = cells[: len(cells) // COLUMNS * COLUMNS].reshape(-1, COLUMNS)
    makes = sum(isinstance(note, GroupBegun) - isinstance(note, GroupMade) for note in record.notes)
    return makes > 0 or bool(((rows[:, KIND] > 0) & (rows[:, END] == 0)).any())


def exit_code(failure: Failure) -> int:
    """What Python exits with after this exception."""
    return int(failure.message) % 256 if failure.kind == "SystemExit" and failure.message.isdecimal() else 1


class OutputAsItComes(OrderedOutput):
    """Passes each line on as soon as its rank has ended it, and keeps none."""

    def ready(self) -> Iterator[tuple[int, str]]:
        for rank, output in enumerate(self._ranks):
            while output.lines:
                yield rank, output.lines.popleft()[1]
