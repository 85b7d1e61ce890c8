"""The watcher of one rank: a thread that says once a second how its rank is, and does what rank 0 asks for."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from ...events.failure import Failure
from ...recording.last_calls import LastCalls
from ...recording.torch_private import time_out_of
from ...recording.wrapped_group import install_in_job
from ...text.source_lines import is_students
from ..common.rank_environment import failure, flush
from .beat import Beat
from .decision import Decision
from .meeting import Meeting

INTERVAL = 1.0  # seconds between two beats
SHORT = 0.25  # the same while the rank waits, or is over: then nothing is slowed down
EARLY = 5.0  # seconds before a group's time-out at which that is said, or a quarter of it if that is less
PATIENCE = 3.0  # seconds for all ranks to hear that the job ends
LINGERS = 10.0  # seconds for which a rank stays that has failed, or whose partners don't watch


class Watcher:
    """Watches over this process, a rank of a job, from `start` to its end."""

    def __init__(self, end: bool, save: Path | None) -> None:
        self.end, self.save = end, save
        self.zero = time.monotonic()
        self.recorder = LastCalls(self.zero)
        self.process = os.getpid()
        self.failure: Failure | None = None
        self.finished = False
        self.beat = Beat("running")
        self.last_progress: object = None
        self.last_change = self.zero
        self.processor_seconds = 0.0  # the thread's own use
        self.program: tuple[dist.Store, int, int] | None = None  # the job's store, this rank, the number of ranks
        self.meeting: Meeting | None = None
        self.decision: Decision | None = None  # on rank 0
        self.wakes = threading.Event()
        self.thread = threading.Thread(target=self.run, name="watch", daemon=True)

    def start(self) -> None:
        install_in_job(self.recorder, self.joined)
        atexit.register(self.leave)
        sys.excepthook = self.noting_failure(sys.excepthook)

    def joined(self, store: dist.Store, rank: int, size: int) -> None:
        """The program has made its default group, for the first time or once more."""
        if size > 1 and not self.thread.ident:
            self.program = store, rank, size
            self.thread.start()

    def run(self) -> None:
        with contextlib.suppress(RuntimeError):  # rank 0's process is gone, and with it whatever could be said
            assert self.program is not None
            self.meeting = Meeting.find(*self.program)
            if self.meeting.rank > 0:
                self.program = None  # whether its store lives on is the program's business
            if self.meeting.rank == 0:
                self.decision = Decision(self.meeting, self.end, self.save)
            while self.tick():
                self.wakes.wait(INTERVAL if self.beat.state == "running" else SHORT)
                self.processor_seconds = time.thread_time()

    def tick(self) -> bool:
        """One beat. Returns whether there is anything left to do."""
        assert self.meeting is not None
        self.beat = self.beat.next(self.state(), repr(self.last_progress))
        self.meeting.tell(self.beat.text())
        order, _, number = self.meeting.order().partition(" ")
        if order == "ask" and number != self.beat.answered:
            self.meeting.hand_in(zlib.compress(json.dumps(self.record()).encode()))
            self.beat = self.beat._replace(answered=number)
            self.meeting.tell(self.beat.text())
        if self.decision is not None:
            self.decision.look()
            if self.decision.beats:  # all have found their way here
                self.program = None
        if order in ("end", "leave"):
            self.end_process()
        return order not in ("end", "leave", "over")

    def state(self) -> str:
        progress = self.recorder.progress()
        if self.failure is not None:
            return "failed"
        if self.finished:
            return "finished"
        if progress != self.last_progress:
            self.last_progress, self.last_change = progress, time.monotonic()
            return "running"
        waits = self.recorder.waiting()
        if waits is None:
            return "running"
        group, since = waits
        limit = time_out_of(group)
        return "expiring" if self.recorder.now() - since > limit - min(EARLY, limit / 4) else "waiting"

    def record(self) -> dict[str, Any]:
        """What rank 0 gets to see: see LastCalls.record."""
        failed = self.failure
        return {
            **self.recorder.record(),
            "finished": self.finished,
            "failure": failed and dataclasses.astuple(failed),
            "line": self.line(),
            "quiet": time.monotonic() - self.last_change,
        }

    def line(self) -> str:
        """The line of the program that the main thread is in, as "file:line"; "" if it is in none."""
        frame = sys._current_frames().get(self.recorder.main_thread)
        while frame is not None and not is_students(frame.f_code.co_filename):
            frame = frame.f_back
        return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"

    # --- the end

    def noting_failure(self, show: Callable[..., object]) -> Callable[..., None]:
        """An excepthook that notes what ends the program."""

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            show(kind, error, trace)
            self.fail(error)

        return hook

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, KeyboardInterrupt):
            self.failure = failure(error, self.zero)

    def leave(self) -> None:
        """At the exit of the process: stay until nobody needs this rank any more, or the report is there.

        Its connections would close, and ranks that still wait for it would fail without saying what they waited for.
        """
        if os.getpid() != self.process or not self.thread.is_alive():  # forked off by the program, or never in a group
            return
        flush()
        self.finished = True
        self.wakes.set()
        all_are_here = self.meeting is not None and (self.decision is None or self.decision.beats)
        self.thread.join(None if all_are_here and self.failure is None else LINGERS)

    def end_process(self) -> None:
        """End this process, whatever its other threads are in. One that has failed ends by itself, with its own code.

        As soon as the first is gone, others lose their connections to it: none leaves before all have heard.
        """
        assert self.meeting is not None
        if self.failure is not None:
            return
        sys.excepthook = lambda *_: os._exit(1)
        with contextlib.suppress(RuntimeError):  # rank 0 has left
            self.meeting.tell(self.beat._replace(state="ended").text())
            give_up = time.monotonic() + PATIENCE
            while time.monotonic() < give_up and not self.may_leave():
                time.sleep(0.05)
            if self.decision is not None:
                self.meeting.give_order("leave")
                time.sleep(0.2)
        flush()
        os._exit(1)

    def may_leave(self) -> bool:
        assert self.meeting is not None
        if self.decision is not None:
            return self.decision.all_have_ended()
        return self.meeting.order() == "leave"
