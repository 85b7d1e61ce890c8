"""What rank 0 makes of the beats: when it asks for records, and what it concludes from them.

Records are asked for when every rank waits or is over, when one has failed, or when a time-out is near. A rank that
computes, loads, saves or sits in a debugger is in no call, so it counts as able to move, however long that takes.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Literal

from ...recording.last_calls import states_of
from ...text.wrapping import wrapped
from .beat import ENDED, Beat
from .meeting import Meeting
from .reports import crash_report, stuck_report, time_out_report

GRACE = 1.0  # seconds that the other ranks have to say what happened to them, once one has failed
SILENT = 3.0  # seconds after which a report is written without a rank that doesn't answer
GONE = 60.0  # seconds without a beat, after which a rank is not waited for at the end

Why = Literal["stuck", "failed", "expiring"]


class Decision:
    """`look` is called at each beat of rank 0."""

    def __init__(self, meeting: Meeting, end: bool, save: Path | None) -> None:
        self.meeting, self.end, self.save = meeting, end, save
        self.ending = False  # there is a report, and it ends the job
        self.beats: list[Beat] = []
        self.heard: dict[int, tuple[int, float]] = {}  # {rank: (number of its last beat, when that came)}
        self.asked = 0
        self.why: Why | None = None  # it has asked, and waits for the records
        self.asked_at = 0.0
        self.failed_at: float | None = None
        self.judged: set[tuple[str, object]] = set()

    def look(self) -> None:
        beats = [Beat.read(text) for text in self.meeting.beats()]
        known = [beat for beat in beats if beat is not None]
        if len(known) < self.meeting.size:
            return
        self.beats, now = known, time.monotonic()
        for rank, beat in enumerate(known):
            if self.heard.get(rank, (0, 0.0))[0] != beat.number:
                self.heard[rank] = beat.number, now
        if self.ending:
            return
        if self.why is not None:
            self.collect(now)
        elif (why := self.reason(now)) is not None:
            self.why, self.asked, self.asked_at = why, self.asked + 1, now
            self.meeting.give_order(f"ask {self.asked}")
        elif all(beat.state in ENDED or self.silence(rank, now) > GONE for rank, beat in enumerate(known)):
            self.meeting.give_order("over")

    def silence(self, rank: int, now: float) -> float:
        return now - self.heard[rank][1]

    def reason(self, now: float) -> Why | None:
        """Why to ask now, if there is a reason that hasn't been judged yet."""
        states = [beat.state for beat in self.beats]
        if "failed" in states:
            self.failed_at = self.failed_at or now
            if now - self.failed_at >= GRACE and self.is_new("failed"):
                return "failed"
            return None
        if all(state == "finished" for state in states):
            return None
        if all(state in ("waiting", "expiring", "finished") for state in states) and self.is_new("stuck"):
            return "stuck"
        return "expiring" if "expiring" in states and self.is_new("expiring") else None

    def is_new(self, why: Why) -> bool:
        return (why, self.signature(why)) not in self.judged

    def signature(self, why: Why) -> object:
        """What must change before the same question makes sense again."""
        if why == "failed":
            return None
        return tuple((beat.state, beat.digest) for beat in self.beats if why == "stuck" or beat.state == "expiring")

    def collect(self, now: float) -> None:
        """Judge, once the records are there."""
        here = {rank for rank, beat in enumerate(self.beats) if beat.answered == str(self.asked)}
        late = now - self.asked_at > SILENT
        if len(here) < self.meeting.size and not (late and self.why != "stuck"):
            if late:  # a rank can't answer: it may be about to move
                self.why = None
            return
        records = {rank: read(data) for rank, data in enumerate(self.meeting.records()) if rank in here}
        why, self.why = self.why, None
        assert why is not None
        self.judged.add((why, self.signature(why)))
        report = self.report(why, records, now)
        if not report:
            return
        report = "\n".join(wrapped(report))
        print(report, file=sys.stderr, flush=True)
        if self.save is not None:
            keep(self.save, records, report, self.meeting.size)
        if self.end and why != "expiring":
            self.ending = True
            self.meeting.give_order("end")

    def report(self, why: Why, records: dict[int, dict[str, Any]], now: float) -> str:
        states = states_of(records)
        silent = {rank: self.silence(rank, now) for rank in range(self.meeting.size) if rank not in records}
        if why == "failed":
            return crash_report(states, silent)
        if why == "expiring":
            return time_out_report(states, records, silent)
        return stuck_report(states, records)

    def all_have_ended(self) -> bool:
        beats = [Beat.read(text) for text in self.meeting.beats()]
        return all(beat is not None and beat.state in ("ended", "failed") for beat in beats)


def read(data: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(zlib.decompress(data))
    return record


def keep(folder: Path, records: dict[int, dict[str, Any]], report: str, size: int) -> None:
    """Write the report, and for each rank a file that `explain` reads."""
    ranks = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))}}
    try:
        (folder / "report.txt").write_text(report + "\n", "utf-8")
        for rank, record in records.items():
            (folder / f"rank_{rank}.json").write_text(json.dumps({"pg_config": ranks, "watch": record}), "utf-8")
    except OSError as error:
        print(f"The last calls could not be saved in {folder}: {error}", file=sys.stderr, flush=True)
