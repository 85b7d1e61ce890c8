"""A world of real ranks, one process each, seen from the kernel: what they print, where they are, how they end."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import time
from typing import Any, NamedTuple

from ...diagnosis import deadlock
from ...diagnosis.data_remark import data_remark
from ...diagnosis.errors import Interrupted, RankFailed, RankTimeout, WorldStuck
from ...diagnosis.failure_report import GIVES_UP, LAST_WORDS, is_innocent, report_crash, report_failures
from ...diagnosis.nccl_order import nccl_remark
from ...diagnosis.own_timeout import own_timeout, timed_out
from ...diagnosis.replicas import frozen_remark
from ...diagnosis.silent_mistakes import silent_mistake
from ...diagnosis.words import ranks_text
from ...events.event import Event
from ...events.failure import Failure
from ...events.isend_ends import bound_by_receives
from ...recording.reader import RecordReader, read_memory
from ...report.run import Run
from ...text import source_lines
from ..common.outcome import Result
from ..common.protocol import path_in
from . import processor_time
from .placement import Placement
from .process_world import ProcessWorld

LOOK = 0.3  # seconds for which ranks are watched, to find out which compute
LOOKS = 5  # upper limit
MOST_STACKS = 32  # waiting ranks shown; the others wait in the same places, most likely


class Found(NamedTuple):
    """What the ranks do.

    unfinished   those that have not finished
    lines        one for each rank
    advice       what seems to hold them up; "" if they compute
    waiting      as in `RankError.waiting`
    """

    unfinished: list[int]
    lines: list[str]
    advice: str
    waiting: dict[int, Event]


class RealWorld(ProcessWorld):
    """The ranks of one call of `spawn`."""

    entry = f"{__package__}.rank_process:perform"

    def __init__(self, world_size: int, placement: Placement, program: bytes, check_replicas: int = 0):
        self.check_replicas = check_replicas
        super().__init__(world_size, world_size, placement, program)
        self.last_words: dict[int, list[str]] = {}  # {rank: lines}, where a library has given up
        self.records: list[RecordReader] = []  # one per rank; empty until all have begun to record

    def close(self) -> None:
        super().close()
        for record in self.records:
            record.close()

    # --- what they print

    def feed(self, rank: int, data: bytes) -> None:
        self.output.feed(rank, data)
        if self.output.is_closed(rank):
            self.take_outcome(rank)

    def close_output(self, rank: int) -> None:
        self.output.close(rank)
        self.take_outcome(rank)

    def take_outcome(self, rank: int) -> None:
        super().take_outcome(rank)
        self.states[rank].finished = rank in self.outcomes

    def show(self) -> None:
        lines = [(rank, self.without_last_words(rank, text)) for rank, text in self.output.ready()]
        self.screen.show(lines, self.output.bar())

    def without_last_words(self, rank: int, text: str) -> str:
        """`text` without what a library says when it gives up, which is kept for the report."""
        if rank not in self.last_words and "terminate called" not in text:
            return text
        lines = []
        for line in text.split("\n"):
            if GIVES_UP.match(line):
                self.last_words[rank] = []
            elif rank in self.last_words and (farewell := LAST_WORDS.match(line)):
                self.last_words[rank].append(farewell["said"])
            else:
                lines.append(line)
        return "\n".join(lines)

    # --- where they are

    def paths(self, name: str) -> list[str]:
        """Where each rank writes its file of this name."""
        return [path_in(self.folder, name, rank) for rank in range(self.world_size)]

    def progress(self) -> list[Any]:
        if not self.records and all(map(os.path.exists, self.paths("notes"))):  # made last
            files = zip(self.paths("calls"), self.paths("notes"), strict=True)
            self.records = [RecordReader(rank, *both) for rank, both in enumerate(files)]
        return [*(record.news() for record in self.records), *super().progress()]

    def update_states(self) -> None:
        self.progress()
        for record in self.records:
            state = record.state(self.states[record.rank].finished)
            outcome = self.outcomes.get(record.rank)
            state.failure = outcome if isinstance(outcome, Failure) else None
            self.states[record.rank] = state

    def any_running(self) -> bool:
        self.update_states()
        return any(not self.has_ended(state.rank) and state.blocked_in() is None for state in self.states)

    def raise_if_stuck(self) -> None:
        self.update_states()
        if deadlock.deadlock_report(self.states) is not None:
            self.look_at_stacks(seconds=2)
            report = deadlock.deadlock_report(self.states, now=self.seconds())
            error = WorldStuck(f"{deadlock.who_is_stuck(self.states)}\n{report}")
            error.waiting = deadlock.waiting_in(self.states, {})
            self.end()  # after it, all have finished
            raise error

    def timed_out(self, timeout: float) -> RankTimeout:
        found = self.what_ranks_do()
        # all of them, if they finished while they were being asked
        late = found.unfinished or [state.rank for state in self.states]
        longer = max(300, round(5 * timeout))
        advice = found.advice or f"If the work needs longer, say how long: spawn(..., timeout={longer})."
        at_work = [rank for rank in found.unfinished if self.states[rank].blocked_in() is None]
        self.end()
        verb = "has" if len(late) == 1 else "have"
        error = RankTimeout(
            f"{ranks_text(late).lower()} {verb} not finished after {timeout:g} s.\n"
            + "\n".join(["  " + line for line in found.lines] + ["", advice]),
            rank=next(iter(at_work or late)),
        )
        error.waiting = found.waiting
        return error

    def what_ranks_do(self) -> Found:
        computing = self.which_compute()
        running = self.ask_for_lines(seconds=1)
        unfinished = [state.rank for state in self.states if not state.finished]
        at_work = [rank for rank in unfinished if self.states[rank].blocked_in() is None]
        idle = [rank for rank in at_work if rank not in computing]
        advice = ""
        if idle and not computing:
            advice = deadlock.what_idle_ranks_wait_for(self.states, idle, running)
        elif not at_work:
            advice = deadlock.calls_of_threads(self.states)
        stuck = {rank: ("idle", running.get(rank, "")) for rank in idle}
        return Found(
            unfinished,
            deadlock.describe_ranks(self.states, running, idle, self.seconds()),
            advice,
            deadlock.waiting_in(self.states, stuck) if not computing else {},
        )

    def which_compute(self) -> list[int]:
        """The ranks that compute, or whose records grow, in the next moments.

        One that has just begun to wait in a call still computes for a moment, so if only such ranks do, look again.
        """
        for _ in range(LOOKS):
            computing = self.look()
            if not computing or any(self.states[rank].blocked_in() is None for rank in computing):
                break
        return computing

    def look(self) -> list[int]:
        before, until = [record.news() for record in self.records], time.monotonic() + LOOK

        def listen() -> None:
            while (left := until - time.monotonic()) > 0:
                self.listen(left)

        computing = processor_time.which_compute(dict(enumerate(self.pids)), listen)
        moved = [r.rank for r, news in zip(self.records, before, strict=False) if r.news() != news]
        self.update_states()
        return computing + moved

    def flooded(self, limit: int) -> RankFailed:
        rank = self.printed_bytes.index(max(self.printed_bytes))
        line = source_lines.place(self.ask_for_lines(seconds=0.1).get(rank, ""))
        self.end()
        return RankFailed(
            f"rank {rank} has printed more than {limit >> 20} MB. Is there a print in an endless loop?"
            + (f"\n  it was at {line}" if line else ""),
            rank=rank,
        )

    def interrupted(self) -> Interrupted:
        running = self.ask_for_lines(seconds=1) if self.started else {}
        self.update_states()
        lines = deadlock.describe_ranks(self.states, running) if self.started else []
        self.end()
        return Interrupted("\n".join(["the ranks were ended.", *("  " + line for line in lines)]))

    def ask_for_lines(self, seconds: float) -> dict[int, str]:
        """{rank: "file:line"} of the ranks that run. faulthandler answers even from a loop that holds the GIL."""
        self.signal(signal.SIGUSR1)
        give_up = time.monotonic() + seconds
        unfinished = [state.rank for state in self.states if not state.finished]
        whole = re.compile(r" in <module>$|^  \.\.\.$", re.MULTILINE)  # the end of a stack: its root, or a cut
        while time.monotonic() < give_up and not all(whole.search(self.stack(rank)) for rank in unfinished):
            self.listen(0.02)
        return {rank: self.students_line(rank) for rank in unfinished}

    def look_at_stacks(self, seconds: float) -> None:
        """Ask the ranks that wait for their stacks, with the values that their decisions read (rank_process.py)."""
        asked: dict[int, str] = {}
        for state in self.states:
            if not state.finished and len(asked) < MOST_STACKS:
                path = path_in(self.folder, "look", state.rank)
                with contextlib.suppress(OSError):  # it has not begun to listen
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                    asked[state.rank] = path + "-stack"
        give_up = time.monotonic() + seconds
        while asked and time.monotonic() < give_up:
            self.listen(0.01)
            for rank, path in list(asked.items()):
                if os.path.exists(path):
                    with open(path, "rb") as file:
                        self.states[rank].stack = pickle.load(file)
                    del asked[rank]

    def stack(self, rank: int) -> str:
        try:
            with open(path_in(self.folder, "stack", rank), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def students_line(self, rank: int) -> str:
        """The student's innermost line in the stack that the rank left, as "file:line"; "" if there is none."""
        frames = re.findall(r'^  File "(.*)", line (\d+)', self.stack(rank), re.MULTILINE)  # innermost first
        own = [(file, line) for file, line in frames[:-1] if source_lines.is_students(file)]  # the last is the zygote's
        return ":".join(own[0]) if own else ""

    # --- how they end

    def lines_if_late(self) -> dict[int, str]:
        """Where the ranks are that still run, if others have waited for them until their group's time-out."""
        failures = [outcome for outcome in self.outcomes.values() if isinstance(outcome, Failure)]
        return self.ask_for_lines(seconds=0.5) if any(map(timed_out, failures)) and not self.exit_codes else {}

    def results(self) -> list[Any]:
        outcomes = [self.outcomes.get(rank) for rank in range(self.world_size)]
        return [outcome.value if isinstance(outcome, Result) else None for outcome in outcomes]

    def collect(self) -> Run:
        self.update_states()
        running = self.lines_if_late()
        crashes = dict(self.exit_codes)  # we have ended none of them yet: a process that is gone went by itself
        self.end()
        failures = {rank: outcome for rank, outcome in self.outcomes.items() if isinstance(outcome, Failure)}
        calls = {s.rank: s.blocked_in() or s.last_raised() for s in self.states if s.rank not in crashes}
        waiting = {rank: event for rank, event in calls.items() if event is not None}
        crashes = {rank: code for rank, code in crashes.items() if rank not in self.outcomes}
        if crashes and all(map(is_innocent, failures.values())):
            rank, code = next(iter(crashes.items()))  # the first that was seen
            hint = deadlock.difference_at_the_end(self.states)
            place = source_lines.place(self.students_line(rank))
            others = deadlock.where_others_are(self.states, rank)
            words = self.last_words.get(rank, [])
            raise report_crash(rank, code, place, self.states[rank].events, words, hint, others)
        if failures:
            cause = deadlock.mixed_up_before(self.states) or own_timeout(failures, self.states, running)
            raise report_failures(failures, waiting, crashes, cause)
        bound_by_receives(self.states)
        if error := silent_mistake(self.states):
            raise error
        events = [event for state in self.states for event in state.events]
        if self.placement.backend == "gloo" and (remark := nccl_remark(events)):
            print(remark)
        if remark := data_remark(self.states) or frozen_remark(self.states):
            print(remark)
        return Run(
            world_size=self.world_size,
            world="spawn",
            backend=self.placement.backend,
            results=self.results(),
            output=self.printed(),
            events=events,
            elapsed=self.seconds(),
            regions=[region for state in self.states for region in state.regions],
            memory_notes=[read_memory(record.notes) for record in self.records],
        )
