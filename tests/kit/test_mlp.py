"""mlp.py: the model and its serial oracle, against plain autograd and torch's own module."""

import torch

from utils.kit import mlp


def test_weights_differ_between_layers_but_not_between_calls():
    first, again, other = (mlp.make_weights(3, 5, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], other[0])
    wide = mlp.make_weights(2, 300)
    assert all(abs(weight.std().item() * 300**0.5 - 1) < 0.02 for weight in wide)
    half = mlp.make_weights(1, 5, dtype=torch.bfloat16)[0]
    assert torch.allclose(half.float(), first[0], rtol=2**-8)


def test_serial_gradients_are_those_of_the_module():
    weights, batch = mlp.make_weights(3, 5, dtype=torch.float64), mlp.make_batch(4, 5, dtype=torch.float64)
    loss, gradients = mlp.serial_gradients(weights, batch)
    model = mlp.MLP(weights)
    mlp.loss_of(model(batch)).backward()
    assert torch.equal(loss, mlp.loss_of(model(batch)).detach())
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        assert torch.allclose(ours, parameter.grad, rtol=1e-12)
    assert not any(weight.requires_grad for weight in weights)


def test_the_gradient_agrees_with_finite_differences():
    weights, batch = mlp.make_weights(2, 3, dtype=torch.float64), mlp.make_batch(4, 3, dtype=torch.float64)
    _, gradients = mlp.serial_gradients(weights, batch)
    nudged = [weight.clone() for weight in weights]
    nudged[0][1, 2] += 1e-6
    rise = mlp.loss_of(mlp.forward(nudged, batch)) - mlp.loss_of(mlp.forward(weights, batch))
    assert torch.allclose(rise / 1e-6, gradients[0][1, 2], rtol=1e-4)


def test_training_reduces_the_loss_and_leaves_plain_tensors():
    weights, batch = mlp.make_weights(3, 8), mlp.make_batch(16, 8)
    losses = mlp.train_serially(weights, [batch] * 20, lr=0.01)
    assert losses[-1] < 0.5 * losses[0]
    assert not any(weight.requires_grad or weight.grad is not None for weight in weights)
    model, fresh = mlp.MLP(mlp.make_weights(3, 8)), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        loss = mlp.loss_of(model(batch))
        loss.backward()
        optimizer.step()
        fresh.append(loss.item())
    assert fresh == losses


def test_the_loss_is_the_mean_over_equal_shards():
    weights, batch = mlp.make_weights(2, 4, dtype=torch.float64), mlp.make_batch(6, 4, dtype=torch.float64)
    whole, gradients = mlp.serial_gradients(weights, batch)
    parts = [mlp.serial_gradients(weights, shard) for shard in batch.chunk(3)]
    assert torch.allclose(torch.stack([loss for loss, _ in parts]).mean(), whole)
    for index, gradient in enumerate(gradients):
        assert torch.allclose(torch.stack([grads[index] for _, grads in parts]).mean(0), gradient)
