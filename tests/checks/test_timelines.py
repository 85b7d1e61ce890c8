"""utils/checks/timelines.py: a check of time that fails shows the run beside the solution's, once."""

import pytest
import torch
import torch.distributed as dist

from utils.checks import Case, CheckFailed, expect_time, oracle, registry, timelines
from utils.checks.progress import Progress
from utils.checks.registry import Checks
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


for function in (both_at_once, in_turn):
    function.__name__ = "there_and_back"


@pytest.fixture
def check(tmp_path, monkeypatch):
    checks = Checks("utils.checks", "02_all_reduce")
    [one] = there_and_back.checks()
    checks.checks, checks.progress = {(one.exercise, one.judges): one}, Progress({})
    monkeypatch.setattr(timelines, "FOLDER", tmp_path)
    monkeypatch.setenv(timelines.VARIABLE, str(tmp_path / "02_all_reduce.json"))
    return checks


def test_a_run_is_written_down_and_read_again(check, tmp_path):
    check(both_at_once, judges="time")
    runner = Runner(both_at_once)
    there_and_back.checks()[0](runner)
    [run] = runner.runs
    again = timelines.solutions_run("02_all_reduce", "there-and-back", like=run)
    assert [(event.op, event.rank, event.peer, event.start, event.end) for event in again.events] == [
        (event.op, event.rank, event.peer, event.start, pytest.approx(event.end)) for event in run.events
    ]
    assert {event.where for event in again.events} == {""}, "no line of the solution"
    assert again.timeline(beside=run)
    assert timelines.solutions_run("02_all_reduce", "another", like=run) is None


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
