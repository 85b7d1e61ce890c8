"""A Run as Chrome's trace-event JSON, which https://ui.perfetto.dev and chrome://tracing open.

A process for each rank, in it one thread for compute and one for communication, or more where calls overlap; an arrow
from each send to its receive. Times are in microseconds, as the format wants.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..events import bars
from ..events.event import Event, Region

if TYPE_CHECKING:
    from .run import Run


def save(run: Run, path) -> None:
    with open(path, "w") as file:
        file.write(json.dumps(chrome_trace(run), allow_nan=False))  # json.dump takes five times as long


def chrome_trace(run: Run) -> dict:
    last = bars.last_moment(run.events, run.regions)
    regions_of, events_of = bars.by_rank(run.regions, run.world_size), bars.by_rank(run.events, run.world_size)
    names, slices, threads = [], [], {}
    compute = run.world_size  # a thread that has its process's number, or 0, Perfetto would take for another one
    for rank, (regions, events) in enumerate(zip(regions_of, events_of, strict=True)):
        calls = bars.rows(events, last)
        rows = 1 + max((row for _, row in calls), default=0)
        threads |= {(rank, event.index): compute + 1 + row for event, row in calls}
        names += names_of(rank, compute, rows)
        slices += [slice_of_region(region, compute) for region in regions]
        slices += [slice_of_call(event, compute + 1 + row, last) for event, row in calls]
        compute += 1 + rows
    slices.sort(key=lambda entry: (entry["ts"], -entry["dur"]))
    arrows = [half for number, pair in enumerate(bars.messages(run.events)) for half in arrow(number, *pair, threads)]
    entries = sorted(slices + arrows, key=lambda entry: entry["ts"])  # a slice before the arrow that starts with it
    return {"traceEvents": names + entries, "displayTimeUnit": "ms", "otherData": {"run": repr(run)}}


def names_of(rank: int, compute: int, rows: int) -> list[dict]:
    """Metadata: what the process of a rank and its threads are called, and in which order they are shown."""
    process = {"ph": "M", "ts": 0, "pid": rank, "tid": compute}
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


def slice_of_region(region: Region, thread: int) -> dict:
    entry = {"ph": "X", "cat": "region", "name": region.name, "pid": region.rank, "tid": thread, "args": {}}
    return entry | times(region.start, region.end)


def slice_of_call(event: Event, thread: int, last: float) -> dict:
    kind = "asynchronous" if event.is_async else "blocking"
    about = {name: getattr(event, name) for name in ("bytes", "dtype", "shape", "group", "peer", "where")}
    entry = {"ph": "X", "cat": kind, "name": event.op, "pid": event.rank, "tid": thread, "args": about}
    return entry | times(event.start, last if event.end is None else event.end)


def times(start: float, end: float) -> dict:
    ts = microseconds(start)
    return {"ts": ts, "dur": max(0.0, round(microseconds(end) - ts, 3))}


def microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def arrow(number: int, send: Event, receive: Event, threads: dict) -> list[dict]:
    """From the start of the send into the receive: when both had begun, so that both ends lie inside their slices."""
    arrives = max(send.start, receive.start)
    ends = [("s", send, send.start, {}), ("f", receive, arrives, {"bp": "e"})]
    return [
        {"ph": phase, "cat": "message", "name": "message", "id": number, "pid": event.rank, "ts": microseconds(time)}
        | {"tid": threads[event.rank, event.index], **extra}
        for phase, event, time, extra in ends
    ]
