"""message_rounds.py: rounds of messages take the time that the alpha-beta-gamma model gives them."""

import math

import pytest

from utils import simulate
from utils.cluster import Cluster, Gpu, Link
from utils.kit.message_rounds import Round, play

LINK = Link(alpha=1e-3, bandwidth=1e6)
GPU = Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=3e6)  # adding m bytes moves 3 m, so gamma is 1e-6


def seconds(ranks: int, rounds: list[Round], nbytes: int) -> float:
    return simulate(play, ranks, rounds, nbytes, cluster=Cluster("lab", 1, ranks, GPU, LINK, LINK)).elapsed


def test_messages_of_a_round_are_sent_at_the_same_time_and_rounds_one_after_another():
    around = Round([(0, 1), (1, 2), (2, 0)], share=1 / 3, adds=False)
    assert seconds(3, [around], 3000) == pytest.approx(1e-3 + 1e-3, rel=1e-12)
    assert seconds(3, [around] * 2, 3000) == pytest.approx(2 * (1e-3 + 1e-3), rel=1e-12)


def test_only_a_receiver_adds_and_only_if_the_round_says_so():
    [passes, adds] = [Round([(1, 0)], share=1, adds=adds) for adds in (False, True)]
    assert seconds(2, [passes], 4000) == pytest.approx(1e-3 + 4e-3, rel=1e-12)
    assert seconds(2, [adds], 4000) == pytest.approx(1e-3 + 4e-3 + 4e-3, rel=1e-12)
    assert seconds(4, [Round([(0, 1), (2, 3)], 1 / 2, True)], 4000) == pytest.approx(1e-3 + 2e-3 + 2e-3, rel=1e-12)
