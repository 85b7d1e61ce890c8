"""Finding deadlocks from events: the cases that real ranks reach only by luck, made by hand."""

import sys

import pytest

from utils.diagnosis.deadlock import deadlock_report, describe_ranks, who_is_stuck
from utils.diagnosis.silent_mistakes import explain_silence
from utils.events.event import Event
from utils.events.failure import Failure, Frame
from utils.events.rank_state import RankState


def event(rank, index, op, peer, *, is_async=False, end=None, group="world", shape=(2,), members=(0, 1), waited=None):
    return Event(rank, index, op, group, members, peer, 0, 8, "float32", shape, "", is_async, 0.0, end, "", waited)


def test_a_send_that_was_started_and_dropped():
    receiver = RankState(0, [event(0, 0, "recv", 1)])
    sender = RankState(1, [event(1, 0, "send", 0, is_async=True)], finished=True)
    assert "has finished without waiting for what it had started" in deadlock_report([receiver, sender])


@pytest.mark.parametrize(
    ("finished", "says"),
    [
        ((), "no rank can move any more: each waits for another."),
        ((0,), "ranks 1 and 2 can't move any more, and the other has finished."),
        ((0, 2), "rank 1 can't move any more, and the others have finished."),
    ],
)
def test_the_first_line_says_who_is_stuck(finished, says):
    assert who_is_stuck([RankState(rank, [], finished=rank in finished) for rank in range(3)]) == says


def test_a_world_is_not_stuck_while_a_send_is_on_its_way():
    receiver = RankState(0, [event(0, 0, "recv", 1)])
    sender = RankState(1, [event(1, 0, "send", 0, is_async=True)], waits={0: ""})
    assert deadlock_report([receiver, sender]) is None


def test_shapes_with_equal_numbers_of_elements_do_not_stop_a_collective():
    states = [RankState(0, [event(0, 0, "all_reduce", None, shape=(4,))])]
    states += [RankState(1, [event(1, 0, "all_reduce", None, shape=(2, 2))])]
    assert deadlock_report(states) is None


def test_a_recv_waits_for_a_message_on_its_own_group():
    receiver = RankState(0, [event(0, 0, "recv", 1)])
    sender = RankState(1, [event(1, 0, "send", 0, group="pair")])
    assert "from rank 1 on the whole world, which sends on the group of ranks 0 and 1" in deadlock_report(
        [receiver, sender]
    )


def test_a_rank_made_the_call_in_another_group():
    waits = RankState(0, [event(0, 0, "all_reduce", None, group="first", members=(0, 1))])
    other = RankState(1, [event(1, 0, "all_reduce", None, group="second", members=(1, 2), end=1.0)], finished=True)
    assert "but rank 1 made this call in the group of ranks 1 and 2" in deadlock_report([waits, other])
    before = RankState(3, [event(3, 0, "all_reduce", None, group="third", members=(0, 3))])
    assert "but rank 1 made this call" in deadlock_report([waits, other, RankState(2, [], finished=True), before])


def test_a_world_is_not_stuck_while_a_message_to_a_recv_from_any_source_is_on_its_way():
    """Rank 2's message has been received; the one from rank 1 is still on its way."""
    root = RankState(0, [event(0, 0, "recv", 2, end=1.0), event(0, 1, "recv", None)])
    others = [RankState(rank, [event(rank, 0, "send", 0)]) for rank in (1, 2)]
    assert deadlock_report([root, *others]) is None
    assert "rank 0  waits in recv from anybody" in deadlock_report(
        [root, *(RankState(r, finished=True) for r in (1, 2))]
    )


def test_long_waits_are_reported_with_their_length():
    states = [RankState(0, [event(0, 0, "recv", 1)]), RankState(1, finished=True)]
    assert "for" not in deadlock_report(states, now=4.0).splitlines()[0]
    assert "waits in recv from 1 for 12 s" in deadlock_report(states, now=12.2)
    states[0] = RankState(0, [event(0, 0, "recv", 1, is_async=True, waited=5.2)], waits={0: ""})
    assert "waits in recv from 1 for 7 s" in deadlock_report(states, now=12.2)


def test_a_rank_that_has_failed_is_described_by_its_exception_and_line():
    frames = (Frame("lesson.py", 3, "train", "train(x)"), Frame("lesson.py", 7, "step", "raise ValueError"))
    failed = RankState(0, finished=True, failure=Failure("ValueError", "no luck", frames, time=1.0))
    first, second = describe_ranks([failed, RankState(1, finished=True)])
    assert first.split() == ["rank", "0", "raised", "ValueError", "lesson.py,", "line", "7"]
    assert second == "rank 1  has finished"


def test_a_cycle_that_a_rank_outside_it_waits_for():
    peers = {0: 2, 1: 2, 2: 3, 3: 1}
    states = [RankState(rank, [event(rank, 0, "send", peer)]) for rank, peer in peers.items()]
    assert "1 → 2 → 3 → 1" in deadlock_report(states)


def test_a_lost_message_is_blamed_even_if_other_ranks_wait_elsewhere():
    receiver = RankState(0, [event(0, 0, "recv", 1)])
    sender = RankState(1, [event(1, 0, "send", 0, is_async=True), event(1, 1, "barrier", None)], lost={0})
    assert "Rank 1 has thrown away the handle of its isend to 0." in deadlock_report([receiver, sender])


def test_a_group_whose_name_means_different_ranks_elsewhere():
    def state(rank, members, **more):
        making = event(rank, 0, "new_group", None, group="1", members=members, end=1.0)
        return RankState(rank, groups_made=[making], **more)

    call = [event(rank, 0, "all_reduce", None, group="1") for rank in (0, 1)]
    states = [state(0, (0, 1), events=[call[0]]), state(1, (0, 1), events=[call[1]]), state(2, (1, 2), finished=True)]
    assert "Rank 2 skipped the group of ranks 0 and 1, which it is not in." in deadlock_report(states)


@pytest.mark.parametrize("look", [deadlock_report, explain_silence])
def test_the_time_it_takes_is_proportional_to_the_number_of_calls(look):
    """Counted in lines run, a number that is the same each time."""

    def took(calls):
        states = [
            RankState(rank, [event(rank, i, "send" if rank else "recv", 1 - rank, end=1.0) for i in range(calls)])
            for rank in (0, 1)
        ]
        for state in states:
            state.events.append(event(state.rank, calls, "recv", 1 - state.rank))
        return lines_run_by(lambda: look(states))

    few, many = took(500), took(4_000)
    assert few > 500 and many < 12 * few  # 8 if linear, 64 if quadratic


def lines_run_by(call) -> int:
    count = 0

    def trace(frame, what, _):
        nonlocal count
        count += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
