"""tied_mlp.py: which parameters are tied, frozen or unused, and in which order gradients become ready."""

import pytest
import torch

from utils.kit.mlp import layer, loss_of, make_batch, make_weights
from utils.kit.tied_mlp import AwkwardMLP


def model_with(order, **options):
    return AwkwardMLP(make_weights(5, 3, dtype=torch.float64), order, **options)


def test_the_output_layer_shares_the_input_layers_weight():
    model = model_with([0])
    assert model.last is model.first
    assert [name for name, _ in model.named_parameters()] == [
        "first",
        "frozen",
        "branches.0",
        "branches.1",
        "branches.2",
    ]


def test_it_computes_what_its_docstring_says():
    tied, frozen, _, _, branch = make_weights(5, 3, dtype=torch.float64)
    x = make_batch(4, 3, dtype=torch.float64)
    inside = layer(layer(x, tied), frozen)
    assert torch.allclose(model_with([2])(x), (inside + layer(inside, branch)) @ tied.T)
    assert torch.allclose(model_with([])(x), inside @ tied.T)


@pytest.mark.parametrize("freeze", [True, False])
def test_frozen_and_unused_parameters_get_no_gradient(freeze):
    model = model_with([2, 0], freeze=freeze)
    loss_of(model(make_batch(4, 3, dtype=torch.float64))).backward()
    has = {name: parameter.grad is not None for name, parameter in model.named_parameters()}
    assert has == {"first": True, "frozen": not freeze, "branches.0": True, "branches.1": False, "branches.2": True}


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_gradients_become_ready_in_reverse_order_of_use(order):
    model, ready = model_with(order), []
    for number, branch in enumerate(model.branches):
        branch.register_post_accumulate_grad_hook(lambda _, number=number: ready.append(number))
    loss_of(model(make_batch(4, 3, dtype=torch.float64))).backward()
    assert ready == order[::-1]
