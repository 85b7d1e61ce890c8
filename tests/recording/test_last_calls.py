"""The record of a rank that runs for weeks: bounded, and still telling which calls belong together."""

from __future__ import annotations

import json
import time

from utils.diagnosis.deadlock import deadlock_report
from utils.recording.last_calls import LAST, MOST, LastCalls, states_of
from utils.recording.notes import CallKind, GroupMembers, MessageSource


class Rank:
    """Calls made by hand: `call` makes one that ends, unless it is the last."""

    def __init__(self, size=2):
        self.recorder = LastCalls(time.monotonic())
        self.recorder.write(GroupMembers("world", tuple(range(size))))
        self.kinds = {}

    def call(self, op, times=1, ends=True, peer=None, tag=0, line=1, shape=(3,)):
        key = op, peer, tag, line, shape
        if key not in self.kinds:
            self.kinds[key] = len(self.kinds) + 1
            where = f"/train.py:{line}"
            kind = CallKind(
                self.kinds[key], op, "world", peer, tag, 12, "float32", shape, "", False, where, "", (), "", ""
            )
            self.recorder.write(kind)
        for _ in range(times):
            index = self.recorder.start(self.kinds[key])
            if ends:
                self.recorder.end(index)
        return index

    def record(self, finished=False):
        return json.loads(json.dumps(self.recorder.record() | {"finished": finished}))


def report(*records):
    return deadlock_report(list(states_of(dict(enumerate(records))).values()))


def test_the_record_stops_growing_and_counts_what_it_has_forgotten():
    rank = Rank()
    rank.call("all_reduce", 2 * LAST)
    before = len(json.dumps(rank.record()))
    rank.call("all_reduce", 5 * LAST)
    record = rank.record()
    assert len(record["rows"]) == LAST and record["counted"] == [["world", 6 * LAST]]
    assert len(json.dumps(record)) < 1.05 * before
    assert len(rank.recorder.ring.tobytes()) < 100_000


def test_shapes_that_never_come_again_and_a_tag_for_each_message_do_not_fill_the_memory():
    rank = Rank()
    for n in range(2 * MOST):
        rank.call("all_reduce", shape=(n,))
        rank.call("send", peer=1, tag=n)
    assert len(rank.recorder.kinds) <= MOST and len(rank.recorder.keys) <= MOST and len(rank.recorder.counted) <= MOST
    assert len(states_of({0: rank.record()})[0].events) == LAST
    assert not rank.recorder.is_exact  # so nothing is concluded from it


def test_calls_meet_their_partners_though_the_ranks_have_forgotten_different_numbers():
    zero, one = Rank(), Rank()
    for rank, messages in ((zero, 10), (one, 900)):
        rank.call("all_reduce", 2500)
        rank.call("send" if rank is zero else "recv", 10, peer=1 - (rank is one))
        rank.call("send", messages, peer=7)
        rank.call("broadcast", 100, peer=0)
    zero.call("all_reduce", ends=False, line=8)
    one.call("all_reduce", ends=False, line=9)
    states = states_of({0: zero.record(), 1: one.record()})
    assert [sum(event.op == "all_reduce" for event in state.events) for state in states.values()] == [990, 990]
    assert deadlock_report(list(states.values())) is None  # the two belong together
    other = Rank()
    other.call("all_reduce", 2500)
    other.call("recv", 10, peer=0)
    other.call("broadcast", 100, peer=0)
    other.call("barrier", ends=False)
    assert "rank 0 called all_reduce, rank 1 called barrier." in report(zero.record(), other.record())


def test_what_a_report_counts_includes_what_is_forgotten():
    zero, one = Rank(), Rank()
    zero.call("all_reduce", 2500)
    zero.call("all_reduce", ends=False)
    one.call("all_reduce", 2500)
    assert "Rank 1 has finished after 2,500 calls of this all_reduce; rank 0 is in its 2501" in report(
        zero.record(), one.record(finished=True)
    )


def test_messages_are_counted_for_each_channel_also_from_any_source():
    zero, one = Rank(), Rank()
    for n in range(2 * LAST + 1):
        index = one.call("recv", peer=None)
        one.recorder.write(MessageSource(index, 0))
        if n < 2 * LAST:
            zero.call("send", peer=1)
    zero.call("send", peer=1, ends=False)
    assert report(zero.record(), one.record(finished=True)) is None  # the last receive is there
    assert ["recv", 0, "world", 0, LAST + 1] in one.record()["counted"]
    zero.recorder.end(2 * LAST)
    zero.call("send", peer=1, ends=False)
    assert "sends a message to rank 1, which has finished without receiving it" in report(
        zero.record(), one.record(finished=True)
    )


def test_a_call_that_ends_long_after_it_was_forgotten_changes_no_other():
    rank = Rank()
    first = rank.call("all_reduce", ends=False)
    rank.call("all_reduce", LAST - 1)
    last = rank.call("barrier", ends=False)
    rank.recorder.end(first)
    assert rank.recorder.waiting() is not None
    rank.recorder.end(last)
    assert rank.recorder.waiting() is None


def test_times_of_ranks_that_began_at_different_times_are_comparable():
    zero, one = Rank(), Rank()
    zero.call("barrier", ends=False)
    one.call("barrier", ends=False)
    early, late = zero.record(), one.record()
    late["now"] -= 100  # rank 1's clock began 100 s later
    states = states_of({0: early, 1: late})
    assert states[1].events[0].start - states[0].events[0].start > 99
    assert states[0].events[0].start == early["rows"][0][1]
