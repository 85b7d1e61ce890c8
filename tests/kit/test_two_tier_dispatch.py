"""two_tier_dispatch.py: the routing that is drawn, and what travels on which tier."""

import pytest

from utils import simulate
from utils.kit.two_tier_dispatch import draw_routing, exchange, hops


def test_each_token_has_different_experts_on_few_enough_nodes():
    for most in (0, 2):
        chosen = draw_routing(50, 64, 6, nodes=8, most_nodes=most, seed=3)
        assert [len(set(token)) for token in chosen] == [6] * 50
        reached = {len({expert // 8 for expert in token}) for token in chosen}
        assert max(reached) == 2 if most else max(reached) > 2


def test_nodes_with_too_few_experts_are_refused():
    with pytest.raises(ValueError, match="2 nodes have 4 experts, but a token needs 5"):
        draw_routing(1, 16, 5, nodes=8, most_nodes=2)


def test_a_token_crosses_to_a_node_once_and_is_passed_on_there():
    everyone = [[[0, 9, 10, 11]], *([[]] * 15)]  # rank 0's token: at home, and ranks 9, 10, 11 of the other node
    crossing, passed_on = hops(everyone, 1, 8)
    assert crossing == {(0, 8): 1}
    assert passed_on == {(8, 9): 1, (8, 10): 1, (8, 11): 1}


def test_results_come_back_and_backward_does_both_again():
    everyone = [[[0, 9, 10, 11]], *([[]] * 15)]
    run = simulate(exchange, 16, everyone, 1, 8, 100, cluster="dgx-h100")
    sent = [(event.rank, event.peer, event.bytes) for event in run.events if event.op == "send"]
    assert len(sent) == 16 and {nbytes for *_, nbytes in sent} == {100}
    assert sorted((a, b) for a, b, _ in sent if a // 8 != b // 8) == [(0, 8), (0, 8), (8, 0), (8, 0)]
