"""The reports of a watched job, made of the same parts as those of `spawn`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from typing import Any

from ...diagnosis.deadlock import deadlock_report, describe_ranks, who_is_stuck
from ...diagnosis.failure_report import is_innocent, report_failures
from ...diagnosis.mismatch import difference
from ...diagnosis.words import call_text
from ...events.collectives import POINT_TO_POINT
from ...events.event import Event
from ...events.matching import Matching
from ...events.rank_state import RankState
from ...text.source_lines import place

LONGER = (
    "Nothing says that it is stuck. If the work takes that long, give the group more time: "
    "init_process_group(timeout=timedelta(minutes=60)). If not, look at that line."
)
Records = Mapping[int, Mapping[str, Any]]


def stuck_report(states: dict[int, RankState], records: Records) -> str:
    """Why no rank can move; "" as long as one can, or if that isn't certain."""
    if not all(record["is_exact"] for record in records.values()):
        return ""
    listed = list(states.values())
    if any(record["on_gpu"] for record in records.values()) and not is_certain(listed):
        return ""
    now = max(record["now"] for record in records.values())
    report = deadlock_report(listed, now)
    return f"WorldStuck: {who_is_stuck(listed)}\n{report}" if report is not None else ""


def is_certain(states: list[RankState]) -> bool:
    """Whether a call that a rank waits in can never end, though ranks that wait for their GPU may go on calling."""
    matching = Matching(states)
    for event in filter(None, (state.blocked_in() for state in states)):
        if event.op not in POINT_TO_POINT and event.op != "new_group":
            partners = matching.partners(event)
            missing = [rank for rank, partner in partners.items() if partner is None]
            if difference(partners) or any(matching.states[rank].finished for rank in missing):
                return True
    return False


def time_out_report(states: dict[int, RankState], records: Records, silent: dict[int, float]) -> str:
    """A group's time-out is near: who waits, and what the ranks do that they wait for."""
    now = max(record["now"] for record in records.values())
    blocked: dict[int, Event] = {r: event for r, state in states.items() if (event := state.blocked_in()) is not None}
    if not blocked:
        return ""
    first = min(blocked.values(), key=lambda event: event.start)
    running = {rank: str(records[rank]["line"]) for rank in states}
    lines = ["  " + line for line in describe_ranks(list(states.values()), running, now=now)]
    said = [
        f"Rank {rank} has called nothing on the network for {records[rank]['quiet']:.0f} s, and is at "
        f"{place(running[rank]) or 'a line that is not of the script'}."
        for rank, state in states.items()
        if rank not in blocked and not state.finished
    ]
    if said:
        said.append(LONGER)
    said += [no_sign(rank, seconds) for rank, seconds in silent.items()]
    head = (
        f"RankTimeout: rank {first.rank} has waited in {call_text(first)} for {now - first.start:.0f} s, and the "
        "time-out of its group is about to end that."
    )
    return "\n".join([head, *lines, "", "\n".join(said)]).rstrip()


def no_sign(rank: int, seconds: float) -> str:
    return f"Rank {rank} has given no sign of life for {seconds:.0f} s: its process may be gone, or stopped."


def crash_report(states: dict[int, RankState], silent: dict[int, float]) -> str:
    """A rank has raised an exception: that, and what the others were in. Or it lost one whose process is gone."""
    failures = {rank: state.failure for rank, state in states.items() if state.failure is not None}
    if not failures:
        return ""
    if silent and all(map(is_innocent, failures.values())):
        lines = ["  " + line for line in describe_ranks(list(states.values()))]
        return "\n".join([f"RankCrashed: {' '.join(starmap(no_sign, silent.items())).lower()}", *lines])
    calls = {rank: state.blocked_in() or state.last_raised() for rank, state in states.items()}
    waiting = {rank: event for rank, event in calls.items() if event is not None}
    error = report_failures(failures, waiting, {})
    return "\n\n".join([f"RankFailed: {error}", *(no_sign(rank, seconds) for rank, seconds in silent.items())])
