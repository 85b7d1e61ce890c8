"""utils/checks/kinds.py: what a kind of check needs, and what it sees."""

from types import SimpleNamespace

from utils.checks.kinds import KINDS, kind_of
from utils.checks.oracles import Case


def event(rank: int, op: str, nbytes: int) -> SimpleNamespace:
    return SimpleNamespace(rank=rank, op=op, bytes=nbytes)


def test_a_lesson_may_have_a_kind_of_its_own_that_needs_nothing():
    assert kind_of("time") is KINDS["time"]
    own = kind_of("types")
    assert own.name == "types" and not (own.of_values or own.on_clock or own.is_timed or own.is_score)


def test_a_kind_sees_what_tells_mistakes_apart():
    answer = SimpleNamespace(events=[event(1, "send", 8), event(0, "recv", 8), event(1, "recv", 4)], results=[1, 2])
    answer.run = SimpleNamespace(elapsed=0.25)
    assert kind_of("traffic").seen(answer) == {(1, ""): [("send", 8), ("recv", 4)], (0, ""): [("recv", 8)]}
    assert kind_of("time").seen(answer) == {(0, ""): 0.25}
    assert kind_of("values").seen(answer) == kind_of("memory").seen(answer) == {}


def test_a_case_has_a_field_for_every_kind():
    assert {"traffic", "time", "memory", "score"} == {name for name in KINDS if hasattr(Case(), name)}
