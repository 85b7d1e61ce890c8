"""What a failed check shows in a notebook: the timeline of a run that got stuck, or that of one that was too slow.

The latter is shown with the solution's, on the same time axis. `make build` writes the solution's down while it runs
the lesson: see `keep`. A timeline says when ranks computed and communicated, but not a line of code.
"""

from __future__ import annotations

import json
import os
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnosis.errors import RankError
from ..events.event import Event, Region
from ..report.run import Run
from .answer import CheckFailed

if TYPE_CHECKING:
    from ..figures import Timeline

TIMELINES = "timelines.json"  # in a lesson's room
VARIABLE = "RECORD_TIMELINES"  # environment variable: the file to write to, while the solution runs
DIGITS = 6  # significant digits of a time, in a file
MAX_EVENTS = 2000  # in a run that is written down


def to_look_at(failed: CheckFailed, room: Path, exercise: str) -> Timeline | None:
    """A picture of the run that failed a check, if it says more than the message."""
    if failed.deadlock is not None:
        return until_stuck(failed.deadlock)
    run = failed.run
    if run is None or not (run.events or run.regions):  # an answer that only computes has nothing to draw
        return None
    expected = solutions_run(room, exercise, like=run)
    if expected is None or run.elapsed < expected.elapsed * 1.00001:  # as quick, but something else is wrong
        return None
    return run.timeline(beside=expected, title=("Your run", "The solution's run"))


def until_stuck(error: RankError) -> Timeline:
    from .. import figures

    run = Run(len(error.output), "spawn", "", error.results, error.output, error.events, 0.0, error.regions)
    return figures.deadlock(run, error.waiting, "Your run, until no rank could move")


def keep(exercise: str, run: Run) -> None:
    """Write down the solution's run, if the build asks for it and it isn't too long."""
    path = Path(os.environ.get(VARIABLE, ""))
    if path.name and len(run.events) <= MAX_EVENTS:
        of_lesson = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        of_lesson[exercise] = as_data(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(of_lesson, separators=(",", ":")) + "\n", encoding="utf-8")


def solutions_run(room: Path, exercise: str, like: Run) -> Run | None:
    """The solution's run of this exercise's check; None if it isn't known, or has a different number of ranks."""
    path = room / TIMELINES
    of_lesson = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    run = from_data(of_lesson[exercise]) if exercise in of_lesson else None
    return run if run and run.world_size == like.world_size else None


def as_data(run: Run) -> dict[str, Any]:
    events = [[rounded(value) for value in astuple(replace(event, where="", callers=()))] for event in run.events]
    regions = [[rounded(value) for value in astuple(region)] for region in run.regions]
    return {"ranks": run.world_size, "cluster": run.backend, "events": events, "regions": regions}


def from_data(data: dict[str, Any]) -> Run:
    rows: list[list[Any]] = [[tuple(v) if isinstance(v, list) else v for v in row] for row in data["events"]]
    events = [Event(*row) for row in rows]
    regions = [Region(*row) for row in data["regions"]]
    ranks = data["ranks"]
    ends = [end for event in events if (end := event.end) is not None] + [region.end for region in regions]
    return Run(ranks, "virtual", data["cluster"], [None] * ranks, [""] * ranks, events, max(ends, default=0.0), regions)


def rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
