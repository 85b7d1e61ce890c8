"""What the watchers of two ranks say to each other, and what rank 0 concludes: no process, no thread, no waiting."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from tests.recording.test_last_calls import Rank
from utils.recording.last_calls import LAST
from utils.worlds.watch import decision, watcher
from utils.worlds.watch.beat import Beat
from utils.worlds.watch.decision import Decision
from utils.worlds.watch.meeting import Meeting
from utils.worlds.watch.watcher import Watcher


class Job:
    """The watchers of a job with so many ranks, whose calls are made by hand."""

    def __init__(self, size=2, save=None):
        program = dist.HashStore()
        self.ranks = [Rank(size) for _ in range(size)]
        self.watchers = [Watcher(False, save) for _ in range(size)]
        for number, (one, rank) in enumerate(zip(self.watchers, self.ranks, strict=True)):
            one.recorder, one.meeting = rank.recorder, Meeting.find(program, number, size)
        self.watchers[0].decision = Decision(self.watchers[0].meeting, False, save)

    @property
    def decision(self):
        return self.watchers[0].decision

    @property
    def states(self):
        return [one.beat.state for one in self.watchers]

    def tick(self, times=1):
        for _ in range(times):
            left = [one.tick() for one in reversed(self.watchers)]
        return left

    def ask(self):
        return self.decision.asked


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(decision, "GRACE", 0.0)
    monkeypatch.setattr(watcher, "time_out_of", lambda group: float("inf"))
    return Job()


def test_a_deadlock_is_told_once_in_the_words_of_spawn(job, capsys):
    job.ranks[0].call("all_reduce", ends=False)
    job.ranks[1].call("barrier", ends=False)
    job.tick(5)
    said = capsys.readouterr().err
    assert said.startswith(
        "WorldStuck: no rank can move any more: each waits for another.\n  rank 0  waits in all_reduce"
    )
    assert "rank 0 called all_reduce, rank 1 called barrier." in said
    job.tick(20)
    assert not capsys.readouterr().err and job.ask() == 1


def test_a_rank_that_computes_is_never_accused_and_nobody_is_asked(job, capsys):
    job.ranks[0].call("all_reduce", ends=False)
    job.ranks[1].call("barrier")
    job.tick(50)
    assert job.states == ["waiting", "running"]
    assert job.ask() == 0 and not capsys.readouterr().err


def test_a_large_transfer_in_which_all_wait_is_judged_once_and_is_no_deadlock(job, capsys):
    for rank in job.ranks:
        rank.call("all_reduce", ends=False)
    job.tick(20)
    assert job.states == ["waiting", "waiting"]
    assert job.ask() == 1 and not capsys.readouterr().err


def test_a_rank_that_moves_between_question_and_answer_is_believed(job, capsys):
    job.ranks[0].call("all_reduce", ends=False)
    job.ranks[1].call("barrier", ends=False)
    job.tick(2)
    assert job.decision.why == "stuck"
    job.ranks[1].recorder.end(0)
    job.tick(5)
    assert not capsys.readouterr().err


def test_a_debugger_that_stops_a_whole_rank_leads_to_no_report(job, capsys, monkeypatch):
    """It gives no beats: what it last said is no proof."""
    monkeypatch.setattr(decision, "SILENT", 0.0)
    job.ranks[0].call("all_reduce", ends=False)
    job.ranks[1].call("barrier", ends=False)
    job.tick(2)
    for _ in range(5):
        job.watchers[0].tick()
    assert not capsys.readouterr().err


def test_a_rank_that_finished_early_is_named_and_all_leave_when_all_have_finished(job, capsys):
    job.ranks[0].call("all_reduce", ends=False)
    job.watchers[1].finished = True
    job.tick(5)
    assert "rank 0 can't move any more, and the other has finished." in capsys.readouterr().err
    job.ranks[0].recorder.end(0)
    job.watchers[0].finished = True
    assert job.tick(2) == [False, False]


def test_near_the_time_out_of_a_group_the_report_says_what_the_slow_rank_does(job, capsys, monkeypatch):
    monkeypatch.setattr(watcher, "time_out_of", lambda group: 0.0)
    monkeypatch.setattr(Watcher, "line", lambda self: f"{__file__}:1")
    job.ranks[0].call("all_reduce", ends=False)
    job.tick(6)
    said = capsys.readouterr().err
    assert said.startswith(
        "RankTimeout: rank 0 has waited in all_reduce for 0 s, and the time-out of its group is about"
    )
    assert "  rank 1  is running" in said
    assert (
        "Rank 1 has called nothing on the network for 0 s, and is at" in said
        and "Nothing says that it is stuck" in said
    )
    assert said.count("RankTimeout") == 1 and not job.decision.ending


def test_an_exception_is_reported_with_what_the_others_were_in(job, capsys):
    job.ranks[0].call("barrier", ends=False)
    try:
        raise ValueError("boom")
    except ValueError as error:
        job.watchers[1].fail(error)
    job.tick(5)
    said = capsys.readouterr().err
    assert said.startswith("RankFailed: rank 1 raised ValueError: boom\n")
    assert "(Rank 0 was waiting in barrier.)" in said


def test_calls_left_to_a_gpu_accuse_nobody_unless_they_differ(job, capsys):
    """NCCL's calls return at once, so a rank that waits for its GPU may go on calling. Made by hand: untried on one."""
    for rank in job.ranks:
        rank.recorder.left_to_the_gpu = lambda: [0]
    job.ranks[0].call("all_reduce")
    job.ranks[1].recorder.left_to_the_gpu = lambda: []
    job.ranks[1].call("send", peer=0, ends=False)
    job.tick(5)
    assert job.states == ["waiting", "waiting"] and job.ask() == 1 and not capsys.readouterr().err
    other = Job()
    for rank in other.ranks:
        rank.recorder.left_to_the_gpu = lambda: [0]
    other.ranks[0].call("all_reduce")
    other.ranks[1].call("broadcast", peer=0)
    other.tick(5)
    assert "rank 0 called all_reduce, rank 1 called broadcast." in capsys.readouterr().err


def test_the_store_does_not_grow_with_the_steps(job):
    def bytes_in_store():
        return sum(len(text) for text in job.watchers[0].meeting.beats())

    job.tick(2)
    store = job.watchers[0].meeting.store
    keys, size = store.num_keys(), bytes_in_store()
    for _ in range(50):
        for rank in job.ranks:
            rank.call("all_reduce", LAST // 10)
        job.tick()
    assert store.num_keys() == keys
    assert bytes_in_store() <= size + 20  # the numbers have more digits
    assert [len(record) for record in job.watchers[0].meeting.records()] == [0, 0]  # nothing was asked for


def test_a_watcher_ends_quietly_when_rank_0_is_gone(job):
    """Its store is in rank 0's process."""
    lost = job.watchers[1]
    job.watchers[0].meeting = job.watchers[0].decision = None

    class Gone:
        def __getattr__(self, name):
            raise dist.DistNetworkError("Connection reset by peer")

    lost.meeting.store = Gone()
    with pytest.raises(RuntimeError):  # the end, to `run`
        lost.tick()


def test_a_beat_survives_the_wire():
    beat = Beat("waiting", 3, "2", 77)
    assert Beat.read(beat.text()) == beat and Beat.read("") is None
    assert len(Beat("expiring", 10**9, "1000", 2**32 - 1).text()) < 50
