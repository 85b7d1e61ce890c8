"""Which gradients two ranks may add up."""

from utils.diagnosis.mismatch import first_difference
from utils.events.rank_state import Gradient


def test_different_parameters_are_told_apart_by_their_values():
    a, b = Gradient(1, "first"), Gradient(2, "second")
    assert first_difference([a, a], [a, b]) == (a, b)
    assert first_difference([a], [a]) is None
    assert first_difference([Gradient(1, "")], [Gradient(2, "")]) is not None


def test_replicas_whose_values_differ_have_the_same_parameters():
    assert first_difference([Gradient(1, "first")], [Gradient(2, "first")]) is None
