"""A Run as Chrome's trace-event JSON, which https://ui.perfetto.dev and chrome://tracing open.

Each rank that ran is a process with one thread for compute and one for communication, or more where calls overlap. An
arrow leads from each send to its receive. Times are in microseconds, as the format requires.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ..events import bars
from ..events.event import Event, Region
from ..events.matching import Matching

if TYPE_CHECKING:
    from .run import Run

Entry = dict[str, Any]  # one event of the format
Threads = dict[tuple[int, int], int]  # (rank, index of the call) -> thread


def save(run: Run, path: str | os.PathLike[str]) -> None:
    with open(path, "w") as file:
        file.write(json.dumps(chrome_trace(run), allow_nan=False))  # json.dump takes five times as long


def chrome_trace(run: Run) -> dict[str, Any]:
    last = bars.last_moment(run.events, run.regions)
    regions_of, events_of = bars.by_rank(run.regions, run.world_size), bars.by_rank(run.events, run.world_size)
    names: list[Entry] = []
    slices: list[Entry] = []
    threads: Threads = {}
    compute = run.world_size  # Perfetto mistakes a thread with the number 0, or its process's, for another one
    for rank, (regions, events) in enumerate(zip(regions_of, events_of, strict=True)):
        if run.ran_as(rank) != rank:
            continue
        calls = bars.rows(events, last)
        rows = 1 + max((row for _, row in calls), default=0)
        threads |= {(rank, event.index): compute + 1 + row for event, row in calls}
        names += names_of(rank, compute, rows)
        slices += [slice_of_region(region, compute) for region in regions]
        slices += [slice_of_call(event, compute + 1 + row, last) for event, row in calls]
        compute += 1 + rows
    slices.sort(key=lambda entry: (entry["ts"], -entry["dur"]))
    messages = enumerate(Matching.of(run.events).pairs())
    arrows = [half for number, pair in messages for half in arrow(number, *pair, threads)]
    entries = sorted(slices + arrows, key=lambda entry: entry["ts"])  # stable: a slice comes before its arrow
    return {"traceEvents": names + entries, "displayTimeUnit": "ms", "otherData": {"run": repr(run)}}


def names_of(rank: int, compute: int, rows: int) -> list[Entry]:
    """Metadata: the names of a rank's process and threads, and their order on the screen."""
    process: Entry = {"ph": "M", "ts": 0, "pid": rank, "tid": compute}
    entries = [
        {**process, "name": "process_name", "args": {"name": f"rank {rank}"}},
        {**process, "name": "process_sort_index", "args": {"sort_index": rank}},
    ]
    threads = ["compute", "communication", *(f"communication {row}" for row in range(2, rows + 1))]
    for place, name in enumerate(threads):
        thread = {**process, "tid": compute + place}
        entries.append({**thread, "name": "thread_name", "args": {"name": name}})
        entries.append({**thread, "name": "thread_sort_index", "args": {"sort_index": place}})
    return entries


def slice_of_region(region: Region, thread: int) -> Entry:
    entry: Entry = {"ph": "X", "cat": "region", "name": region.name, "pid": region.rank, "tid": thread, "args": {}}
    return entry | times(region.start, region.end)


def slice_of_call(event: Event, thread: int, last: float) -> Entry:
    kind = "asynchronous" if event.is_async else "blocking"
    about = {name: getattr(event, name) for name in ("bytes", "dtype", "shape", "group", "peer", "where")}
    entry: Entry = {"ph": "X", "cat": kind, "name": event.op, "pid": event.rank, "tid": thread, "args": about}
    return entry | times(event.start, last if event.end is None else event.end)


def times(start: float, end: float) -> Entry:
    ts = microseconds(start)
    return {"ts": ts, "dur": max(0.0, round(microseconds(end) - ts, 3))}


def microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def arrow(number: int, send: Event, receive: Event, threads: Threads) -> list[Entry]:
    """From the start of the send to when both calls had begun, so that either end lies inside its slice."""
    arrives = max(send.start, receive.start)
    ends: list[tuple[str, Event, float, Entry]] = [("s", send, send.start, {}), ("f", receive, arrives, {"bp": "e"})]
    return [
        {"ph": phase, "cat": "message", "name": "message", "id": number, "pid": event.rank, "ts": microseconds(time)}
        | {"tid": threads[event.rank, event.index], **extra}
        for phase, event, time, extra in ends
    ]
