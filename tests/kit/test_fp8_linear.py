"""fp8_linear.py: its values, its gradients, and what it costs on a virtual GPU."""

import time

import pytest
import torch
from torch import nn

from utils import simulate, track_memory
from utils.kit.fp8_linear import Fp8Linear, quantized


def whole_numbers(*shape, seed):
    """From -7 to 7, with 7 among them: the scale is a power of two, so 8 bits hold them exactly."""
    drawn = torch.randint(-7, 8, shape, generator=torch.Generator().manual_seed(seed)).float()
    drawn.view(-1)[0] = 7
    return drawn


def results(layer):
    x = whole_numbers(2, 16, 32, seed=1).requires_grad_()
    y = layer(x)
    y.backward(whole_numbers(2, 16, 48, seed=2))
    return [y.detach(), x.grad, layer.weight.grad, *([] if layer.bias is None else [layer.bias.grad])]


@pytest.mark.parametrize("bias", [True, False])
def test_numbers_that_8_bits_hold_give_exact_values_and_gradients(bias):
    plain = nn.Linear(32, 48, bias=bias)
    plain.weight.data.copy_(whole_numbers(48, 32, seed=3))
    right = results(plain)
    plain.zero_grad()
    for found, expected in zip(results(Fp8Linear.of(plain)), right, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


def test_other_numbers_are_rounded_to_the_format_of_their_direction():
    x = torch.randn(1000)
    for dtype, bits in ((torch.float8_e4m3fn, 3), (torch.float8_e5m2, 2)):
        low, scale = quantized(x, dtype)
        large = x.abs() > 0.1
        worst = (low.float() * scale / x - 1)[large].abs().max()
        assert 0.5 * 2.0 ** -(bits + 1) < worst <= 2.0 ** -(bits + 1) * 1.001
    low, scale = quantized(torch.zeros(16), torch.float8_e4m3fn)
    assert not (low.float() * scale).any()


def test_sizes_that_the_kernel_does_not_take_are_refused():
    with pytest.raises(ValueError, match="a layer from 32 to 50 features: .* multiples of 16"):
        Fp8Linear(32, 50)
    with pytest.raises(ValueError, match="an input of 15 rows"):
        Fp8Linear(32, 48)(torch.ones(15, 32))


def step(layer, rows, width):
    x = torch.empty(rows, width, dtype=torch.bfloat16, requires_grad=True)
    with track_memory(layer) as storages:
        begin = time.perf_counter()
        y = (layer(x * 2)).sum()
        kept = storages.by_kind()["activations"]
        y.backward()
        return time.perf_counter() - begin, kept


def test_on_a_virtual_gpu_products_take_half_the_time_and_inputs_half_the_memory():
    def program(rank, world_size, width):
        options = {"bias": False, "dtype": torch.bfloat16}
        return [step(kind(width, width, **options), 8192, width) for kind in (nn.Linear, Fp8Linear)]

    plain, low = simulate(program, 1, 16384, cluster="dgx-h100").results[0]
    assert 0.5 < low[0] / plain[0] < 0.7
    rows, weights = 8192 * 16384, 16384**2
    assert (plain[1], low[1]) == (2 * rows, pytest.approx(rows + weights, abs=100))
    narrow, of_low = (took for took, _ in simulate(program, 1, 1024, cluster="dgx-h100").results[0])
    assert of_low > narrow, "scaling costs more than small products save"
    plain, low = (took for took, _ in simulate(program, 1, 16384, cluster="dgx-a100").results[0])
    assert low > plain, "an A100 has no products in 8 bits"
