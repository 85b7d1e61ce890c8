"""What is kept of a script's run, where the command line asks for it: pictures, tables, a trace, the report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ...events.event import Event
from ...report.run import Run

PICTURES = (".html", ".svg")


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to keep of the run")
    group.add_argument("--timeline", metavar="FILE", type=Path, help=f"a picture of who did what when: {listed()}")
    group.add_argument("--trace", metavar="FILE", type=Path, help="a trace (JSON) for https://ui.perfetto.dev")
    group.add_argument("--traffic", action="store_true", help="a table of what each rank sent")
    group.add_argument("--memory", action="store_true", help="a table of the most bytes that tensors took on each rank")
    group.add_argument("--report", metavar="FILE", type=Path, help="write the report to FILE as well")


def listed() -> str:
    return " or ".join(PICTURES)


def check(options: argparse.Namespace) -> None:
    """Raises ValueError for a file that can't be written, before the run rather than after it."""
    for path in filter(None, (options.timeline, options.trace, options.report)):
        if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{path} can't be written: name a file in a folder that exists and is yours to write to.")
    if options.timeline and options.timeline.suffix.lower() not in PICTURES:
        raise ValueError(f"--timeline {options.timeline} is not a format for pictures: use {listed()}.")


def keep(
    options: argparse.Namespace, run: Run | None, report: str = "", waiting: Mapping[int, Event] | None = None
) -> None:
    """Print the report of a run that failed and the tables that were asked for; write the files.

    run      what is known of the run, or None
    report   why it failed; "" if it went well
    waiting  RankError.waiting, if it got stuck
    """
    sys.stdout.flush()
    if report:
        print(report, file=sys.stderr)
    if options.report:
        options.report.write_text((report or f"All {run.world_size if run else ''} ranks finished.") + "\n", "utf-8")
    if run is None:
        return
    if options.traffic:
        print(run.traffic())
    if options.memory:
        print(run.memory() if any(run.memory_notes) else "No rank lived to tell what its tensors took.")
    if options.trace:
        run.save_trace(options.trace)
    if options.timeline:
        from ... import figures  # only now, so that the command starts quickly

        (figures.deadlock(run, waiting) if waiting else run.timeline()).save(options.timeline)
