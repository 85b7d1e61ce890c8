"""utils/checks/timelines.py: a failed check shows a slow run beside the solution's, or a deadlock, once."""

from collections import defaultdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from utils import Run, region
from utils.checks import Case, CheckFailed, checks_for, expect_time, oracle, registry, timelines
from utils.checks.progress import Progress
from utils.checks.runner import Runner
from utils.cluster.hardware import links

CLOCK = links(2, 1e-3, 1e6)


@oracle(time=[(2,)])
def there_and_back(draws, world_size: int) -> Case:
    xs = draws.different_integers(world_size, 3)
    return Case([xs], clock=CLOCK, time=lambda answer: expect_time(answer, CLOCK.intra.seconds(12)))


def both_at_once(x, rank, world_size):
    other = torch.empty_like(x)
    sending = dist.isend(x, dst=1 - rank)
    dist.recv(other, src=1 - rank)
    sending.wait()
    return other


def in_turn(x, rank, world_size):
    other = torch.empty_like(x)
    for turn in range(world_size):
        if turn == rank:
            dist.send(x, dst=1 - rank)
        else:
            dist.recv(other, src=1 - rank)
    return other


def both_receive_first(x, rank, world_size):
    other = torch.empty_like(x)
    with region("turn round"):
        x = x.flip(0)
    dist.broadcast(other, src=0)
    dist.recv(other, src=1 - rank)
    dist.send(x, dst=1 - rank)
    return other


def receives_in_flight(x, rank, world_size):
    other, never = torch.empty_like(x), torch.empty_like(x)
    dist.irecv(never, src=1 - rank)
    dist.irecv(other, src=1 - rank).wait()
    return other


for function in (both_at_once, in_turn, both_receive_first):
    function.__name__ = "there_and_back"


@pytest.fixture
def check(tmp_path, monkeypatch):
    checks = checks_for("02_all_reduce")
    [one] = there_and_back.checks()
    checks.checks, checks.progress = {(one.exercise, one.judges): one}, Progress({})
    checks.room = tmp_path
    monkeypatch.setenv(timelines.VARIABLE, str(tmp_path / timelines.TIMELINES))
    return checks


def test_a_run_is_written_down_and_read_again(check, tmp_path):
    check(both_at_once, judges="time")
    runner = Runner(both_at_once)
    there_and_back.checks()[0](runner)
    [run] = runner.runs
    again = timelines.solutions_run(tmp_path, "there-and-back", like=run)
    assert [(event.op, event.rank, event.peer, event.start, event.end) for event in again.events] == [
        (event.op, event.rank, event.peer, event.start, pytest.approx(event.end)) for event in run.events
    ]
    assert {event.where for event in again.events} == {""}, "no line of the solution"
    assert again.timeline(beside=run)
    assert timelines.solutions_run(tmp_path, "another", like=run) is None


def test_it_is_shown_beside_a_slow_run_once_and_only_in_a_notebook(check, monkeypatch):
    shown = []
    monkeypatch.setattr(registry, "display", shown.append)
    check(both_at_once, judges="time")
    shown.clear()
    monkeypatch.delenv(timelines.VARIABLE)
    monkeypatch.setattr(registry, "in_notebook", lambda: False)
    with pytest.raises(CheckFailed):
        check(in_turn, judges="time")
    assert shown == []
    monkeypatch.setattr(registry, "in_notebook", lambda: True)
    for _ in range(2):
        with pytest.raises(CheckFailed):
            check(in_turn, judges="time")
    mine, its = shown
    assert mine.get_suptitle() == "Your run" and "solution" in its.get_suptitle()
    assert mine.axes[0].get_xlim() == its.axes[0].get_xlim(), "the same time axis"


def test_nothing_is_written_down_unless_the_build_asks(check, tmp_path, monkeypatch):
    monkeypatch.delenv(timelines.VARIABLE)
    check(both_at_once, judges="time")
    assert list(tmp_path.iterdir()) == []


def bars_at(picture) -> dict[str, list[tuple[float, float]]]:
    """{kind of bar: where its copies start and end, as parts of the panel's width}"""
    [panel] = picture.axes
    spans = defaultdict(list)
    for artist in panel.artists + panel.patches:
        for left, _, right, *_ in artist.get_path().vertices.reshape(-1, 5, 2)[:, :, 0] / panel.get_xlim()[1]:
            spans[artist.get_gid()].append((float(left), float(right)))
    return spans


def never_return(spans) -> bool:
    """Whether these bars reach the right edge, and can be seen even if the call was the run's last event."""
    return all(right == pytest.approx(1) and left < 0.81 for left, right in spans)


@pytest.mark.parametrize("world", [{"clock": CLOCK}, {}])
def test_a_deadlock_is_shown_once_with_the_calls_that_never_return(check, world, monkeypatch):
    shown = []
    monkeypatch.setattr(registry, "display", shown.append)
    monkeypatch.setattr(registry, "in_notebook", lambda: True)

    @oracle("there-and-back", values=[(2,)])
    def there_and_back(draws, world_size: int) -> Case:
        return Case([draws.different_integers(world_size, 3)], cluster=world.get("clock"))

    [one] = there_and_back.checks()
    check.checks[one.exercise, one.judges] = one
    for _ in range(2):
        with pytest.raises(CheckFailed) as failed:
            check(both_receive_first)
    assert failed.value.deadlock is not None
    [picture] = shown
    assert "never return" in picture.get_suptitle()
    bars = bars_at(picture)
    assert len(bars["blocking: recv"]) == 2 and never_return(bars["blocking: recv"])
    assert all(end < 0.81 for _, end in bars["blocking: broadcast"] + bars["compute: turn round"])


def test_asynchronous_calls_that_never_end_are_drawn_to_the_end():
    failed = pytest.raises(CheckFailed, Runner(receives_in_flight), 2, [torch.ones(3), torch.ones(3)]).value
    receives = bars_at(timelines.until_stuck(failed.deadlock))["asynchronous: recv"]
    assert len(receives) == 4 and never_return(receives)
    failed.deadlock.events.clear()
    assert timelines.to_look_at(failed, Path(), "there-and-back") == []


def test_a_run_in_which_no_rank_communicated_has_nothing_to_show(check):
    """As that of an answer which only computes: what went wrong is in the message."""
    check(both_at_once, judges="time")
    failed = CheckFailed("it took 3 s")
    failed.run = Run(2, "virtual", "", [None] * 2, [""] * 2, [], 3.0)
    assert timelines.to_look_at(failed, check.room, "there-and-back") == []


def test_a_run_as_quick_as_the_solutions_has_nothing_to_show(check):
    """It failed because its values are wrong."""
    check(both_at_once, judges="time")
    failed, runner = CheckFailed("rank 1 returned 3"), Runner(both_at_once)
    there_and_back.checks()[0](runner)
    [failed.run] = runner.runs
    assert timelines.to_look_at(failed, check.room, "there-and-back") == []
