"""mixture.py, the oracle of lesson 11, and expert_placement.py, which its challenge scores."""

import torch

from utils import simulate
from utils.kit.expert_placement import placed_layer, routing_statistic
from utils.kit.mixture import expert_mlp, make_experts, mixture


def test_a_token_gets_its_own_experts_outputs_times_their_gates():
    x = torch.randn(3, 4, dtype=torch.float64)
    w_up, w_down = make_experts(3, 4, 5)
    gates = torch.tensor([[0.0, 1.0, 0.0], [0.25, 0.0, 0.75], [0.0, 0.0, 0.0]], dtype=torch.float64)
    y = mixture(x, gates, w_up, w_down)
    first, second, third = (expert_mlp(x, *weights) for weights in zip(w_up, w_down, strict=True))
    assert torch.allclose(y[0], second[0])
    assert torch.allclose(y[1], 0.25 * first[1] + 0.75 * third[1])
    assert y[2].count_nonzero() == 0


def test_experts_are_the_same_in_every_call_and_differ_from_each_other():
    w_up, w_down = make_experts(3, 4, 5)
    assert all(map(torch.equal, make_experts(3, 4, 5), (w_up, w_down)))
    assert not torch.equal(w_up[0], w_up[1])
    assert not torch.equal(make_experts(3, 4, 5, seed=1)[0], w_up)
    assert expert_mlp(torch.empty(0, 4, dtype=w_up.dtype), w_up[0], w_down[0]).shape == (0, 4)


def test_a_placed_layer_sends_what_the_placement_says():
    routing = [[10, 5, 3, 2], [1, 4, 6, 8], [7, 7, 7, 7], [2, 2, 2, 2]]
    places = [3, 2, 1, 0]
    traffic = simulate(placed_layer, 4, routing, places, cluster="dgx-h100").traffic()
    row = 4096 * 2
    for node in range(4):
        mine = places.index(node)
        leave = sum(routing[node]) - routing[node][mine]
        come = sum(counts[mine] for counts in routing) - routing[node][mine]
        assert traffic.sent(node) == (6, (leave + come) * row)


def test_a_routing_statistic_has_about_the_tokens_of_each_node_and_prefers_some_experts():
    routing = routing_statistic(nodes=4, experts=64, tokens=8192)
    assert all(abs(sum(counts) - 8192) <= 32 for counts in routing)
    assert all(max(counts) > 3 * min(counts) for counts in routing)
    assert routing == routing_statistic(4, 64, 8192) != routing_statistic(4, 64, 8192, seed=1)
