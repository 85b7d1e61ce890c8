"""From events to "who waits for whom": the cases that real ranks reach only by luck, made by hand."""

from utils.matching import RankState
from utils.run import Event
from utils.stuck import explain


def event(rank, index, op, peer, *, is_async=False, end=None, group="world", shape=(2,)):
    return Event(rank, index, op, group, (0, 1), peer, 0, 8, "float32", shape, "", is_async, 0.0, end, "")


def test_a_send_that_was_started_and_dropped():
    receiver = RankState(0, [event(0, 0, "recv", 1)])
    sender = RankState(1, [event(1, 0, "send", 0, is_async=True)], finished=True)
    assert "has finished without waiting for what it had started" in explain([receiver, sender])


def test_a_send_that_is_on_its_way_is_no_stuck_world():
    receiver = RankState(0, [event(0, 0, "recv", 1)])
    sender = RankState(1, [event(1, 0, "send", 0, is_async=True)], waits={0: ""})
    assert explain([receiver, sender]) is None


def test_a_large_collective_with_equal_numbers_of_elements_is_no_stuck_world():
    states = [RankState(0, [event(0, 0, "all_reduce", None, shape=(4,))])]
    states += [RankState(1, [event(1, 0, "all_reduce", None, shape=(2, 2))])]
    assert explain(states) is None


def test_a_message_on_another_group_is_not_the_one_that_is_waited_for():
    receiver = RankState(0, [event(0, 0, "recv", 1)])
    sender = RankState(1, [event(1, 0, "send", 0, group="pair")])
    assert "from rank 1 on the whole world, which sends on the group of ranks 0 and 1" in explain([receiver, sender])
