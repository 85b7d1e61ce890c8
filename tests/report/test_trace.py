"""run.save_trace() writes Chrome's trace-event format; the bars behind it, which timelines use too."""

import dataclasses
import json
import random
from collections import Counter, defaultdict

import pytest
import torch
import torch.distributed as dist

from utils import region, spawn
from utils.events import bars
from utils.events.event import Event, Region
from utils.events.matching import Matching
from utils.report.perfetto import chrome_trace
from utils.report.run import Run

# The fields an entry must have, by phase: from the document "Trace Event Format", and from Perfetto's importer.
REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}
METADATA = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}


def validate(trace: dict) -> None:
    """Raise AssertionError if chrome://tracing or Perfetto could not read the trace."""
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData"} and trace["displayTimeUnit"] in ("ms", "ns")
    slices, flows, named = defaultdict(list), defaultdict(dict), {}
    for entry in trace["traceEvents"]:
        assert entry["ph"] in REQUIRED and entry.keys() >= REQUIRED[entry["ph"]], entry
        assert isinstance(entry["pid"], int) and isinstance(entry["tid"], int)
        if entry["ph"] == "M":
            [value] = entry["args"].values()
            assert isinstance(value, METADATA[entry["name"]])
            if entry["name"] == "thread_name":
                assert entry["tid"] not in (0, entry["pid"], *named), "Perfetto would mistake it for another thread"
                named[entry["tid"]] = entry["pid"]
            continue
        assert isinstance(entry["ts"], (int, float)) and entry["ts"] >= 0
        assert named.get(entry["tid"]) == entry["pid"], "a thread without a name"
        if entry["ph"] == "X":
            assert entry["dur"] >= 0
            slices[entry["pid"], entry["tid"]].append((entry["ts"], entry["ts"] + entry["dur"]))
        else:
            assert entry["ph"] not in flows[entry["id"]], "an arrow begins or ends twice"
            flows[entry["id"]][entry["ph"]] = entry
    times = [entry["ts"] for entry in trace["traceEvents"] if entry["ph"] != "M"]
    assert times == sorted(times)
    for ends in flows.values():
        assert set(ends) == {"s", "f"} and ends["s"]["ts"] <= ends["f"]["ts"] and ends["f"]["bp"] == "e"
        for end in ends.values():
            of_thread = slices[end["pid"], end["tid"]]
            assert any(start <= end["ts"] <= stop for start, stop in of_thread), "an arrow hangs in the air"
    for of_thread in slices.values():  # slices of a thread nest or follow each other
        open_until = []
        for start, stop in of_thread:
            open_until = [end for end in open_until if end > start + 2e-3]  # times are rounded to a nanosecond
            assert all(stop <= end + 2e-3 for end in open_until), "two slices of a thread cross"
            open_until.append(stop)


def call(rank, index, op, start, end, peer=None, is_async=False, tag=0):
    members = (0, 1, 2)
    return Event(rank, index, op, "world", members, peer, tag, 8, "float32", (2,), "", is_async, start, end, "cell:1")


def run_of(events=(), regions=(), world_size=3):
    return Run(world_size, "spawn", "gloo", [], [], list(events), 9.0, list(regions))


def ring(rank, world_size):
    x, y = torch.ones(1000), torch.empty(1000)
    with region("step"):
        for step in range(3):
            with region(f"turn {step}"):
                work = dist.isend(x, (rank + 1) % world_size)
                dist.recv(y, (rank - 1) % world_size)
                work.wait()
    for work in [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(4)]:
        work.wait()


def pipeline(rank, world_size):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(torch.nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    x = torch.ones(8, 4)
    schedule.step(x) if rank == 0 else schedule.step(target=x)


@pytest.mark.parametrize("program, world_size", [(ring, 4), (pipeline, 3), (lambda rank, world_size: None, 2)])
def test_a_real_run_is_a_valid_trace_with_an_arrow_for_each_message(program, world_size, tmp_path):
    run = spawn(program, world_size)
    path = tmp_path / "trace.json"
    run.save_trace(path)
    trace = json.loads(path.read_text(), parse_constant=pytest.fail)
    validate(trace)
    entries = trace["traceEvents"]
    phases = Counter(entry["ph"] for entry in entries)
    sends = sum(event.op == "send" for event in run.events)
    assert phases["s"] == phases["f"] == sends
    assert phases["X"] == len(run.events) + len(run.regions)
    names = {e["pid"]: e["args"]["name"] for e in entries if e["name"] == "process_name"}
    assert names == {rank: f"rank {rank}" for rank in range(world_size)}
    compute = {e["tid"] for e in entries if e["name"] == "thread_name" and e["args"]["name"] == "compute"}
    assert {e["tid"] for e in entries if e.get("cat") == "region"} == (compute if run.regions else set())


def test_times_are_in_microseconds_and_overlapping_calls_get_separate_threads():
    regions = [Region(0, "inner", 0.002, 0.003), Region(0, "outer", 0.001, 0.004)]
    calls = [
        call(0, 0, "all_reduce", 0.001, 0.003, is_async=True),
        call(0, 1, "all_reduce", 0.002, None, is_async=True),
        call(0, 2, "barrier", 0.0035, 0.0036),
    ]
    trace = chrome_trace(run_of(calls, regions, world_size=1))
    validate(trace)
    slices = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    assert sorted(slices) == [
        ("all_reduce", 2, 1000, 2000),
        ("all_reduce", 3, 2000, 2000),
        ("barrier", 2, 3500, 100),
        ("inner", 1, 2000, 1000),
        ("outer", 1, 1000, 3000),
    ]
    threads = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert threads == ["compute", "communication", "communication 2"]


def test_messages_are_matched_in_order_per_pair_and_tag_without_guessing():
    first, second, other_tag = (call(0, i, "send", i, i + 5, peer=1, tag=tag) for i, tag in enumerate((0, 0, 7)))
    later, earlier = call(1, 0, "recv", 0, 9, peer=0, tag=7), call(1, 1, "recv", 3, 9, peer=0)
    sure = Matching.of([first, second, other_tag, later, earlier]).pairs()
    assert list(sure) == [(first, earlier), (other_tag, later)]
    from_anywhere = call(1, 2, "recv", 4, 9)
    assert list(Matching.of([first, second, earlier, from_anywhere]).pairs()) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda entries: entries.pop(next(i for i, e in enumerate(entries) if e["ph"] == "f")),
        lambda entries: entries.reverse(),
        lambda entries: next(e for e in entries if e["ph"] == "X").pop("dur"),
        lambda entries: next(e for e in entries if e["ph"] == "s").update(tid=3),
    ],
)
def test_the_validation_can_fail(spoil):
    trace = chrome_trace(run_of([call(0, 0, "send", 1, 2, peer=1), call(1, 0, "recv", 1.5, 2, peer=0)]))
    validate(trace)
    spoil(trace["traceEvents"])
    with pytest.raises(AssertionError):
        validate(trace)


def test_a_bubble_is_time_outside_regions_between_the_first_and_the_last_of_any_rank():
    regions = [Region(0, "a", 2, 3), Region(0, "b", 2.5, 5), Region(0, "c", 7, 8)]
    assert bars.bubbles(regions, 1, 9) == [(1, 2), (5, 7), (8, 9)]
    assert bars.bubbles(regions[:2], 2, 5) == []
    assert bars.bubbles([], 1, 9) == []


def test_if_regions_start_together_the_longer_one_is_the_outer_one():
    inner, outer, after = Region(0, "inner", 1, 2), Region(0, "outer", 1, 3), Region(0, "after", 3, 4)
    assert bars.depths([inner, outer, after]) == [(outer, 0), (inner, 1), (after, 0)]


def test_a_call_is_drawn_in_the_first_row_that_is_free_when_it_starts():
    luck = random.Random(1)
    starts = [luck.randrange(100) for _ in range(200)]
    calls = [call(0, i, "isend", t, luck.choice([t, t + luck.randrange(9), None])) for i, t in enumerate(starts)]
    free_from = []
    for event, row in bars.rows(calls, last=120):
        assert row == next((r for r, time in enumerate(free_from) if time <= event.start), len(free_from))
        free_from[row : row + 1] = [120 if event.end is None else event.end]
    assert len(free_from) > 10


def test_a_rank_waits_in_a_blocking_call_and_from_its_wait_in_another():
    calls = [call(0, i, "recv", *span) for i, span in enumerate([(0, 1), (3, 6), (7, 7)])]
    calls += [call(0, 4, "isend", 1, 9, is_async=True), call(0, 5, "recv", 1, None)]
    assert bars.waiting(calls) == [(0, 1), (3, 6)]
    waited = [
        dataclasses.replace(call(0, i, "all_reduce", 0, end, is_async=True), waited=3.5)
        for i, end in ((0, 5.5), (1, 3))
    ]
    assert bars.waiting(waited) == [(3.5, 5.5)] and bars.waiting([]) == []


def test_regions_of_the_same_kind_differ_only_in_numbers():
    assert bars.stem("forward 3") == bars.stem("forward 12") == "forward"
    assert bars.stem("layer 2 backward 3") == bars.stem("layer 1 backward 7")
    assert bars.stem("3") == "3"
