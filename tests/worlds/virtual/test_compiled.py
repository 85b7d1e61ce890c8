"""torch.compile under simulate: chains of operations that memory limits cost one kernel, forward and backward."""

import time

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.worlds.virtual.test_achieved_rates import CLUSTER, lasts
from utils import simulate

PASS = 4 * 2**20 / 2.0**39  # seconds to read or write N numbers
N = 2**20


def one(program, **options):
    return simulate(lambda rank, world_size: program(), 1, cluster=CLUSTER, **options).results[0]


def chain(x, bias):
    return (x * 2 + bias).relu().square()


def test_a_chain_is_one_pass_over_its_inputs_and_outputs():
    def program():
        x, bias = torch.empty(N), torch.empty(N)
        return lasts(lambda: chain(x, bias)), lasts(lambda: torch.compile(chain)(x, bias))

    assert one(program) == (9 * PASS, 3 * PASS)


def test_backward_is_one_pass_too_and_computes_again_what_was_not_written():
    def program(compiled):
        x, bias = torch.empty(N, requires_grad=True), torch.empty(N)
        out = (torch.compile(chain) if compiled else chain)(x, bias)
        grad = torch.empty(N)
        return lasts(lambda: out.backward(grad))

    eager, compiled = one(lambda: (program(False), program(True)))
    assert compiled < eager / 2
    assert compiled == 4 * PASS  # reads x, bias and the gradient, writes that of x


def test_a_product_ends_a_chain():
    def program():
        x, w = torch.empty(1024, 1024), torch.empty(1024, 1024)

        def both(x):
            return ((x + 1) * 2) @ w

        product = lasts(lambda: x @ w)
        return lasts(lambda: both(x)) - product, lasts(lambda: torch.compile(both)(x)) - product

    assert one(program) == pytest.approx((4 * PASS, 2 * PASS))


def test_norms_and_reductions_are_in_the_chain():
    def normed(x, residual, scale):
        x = x + residual
        return x, functional.rms_norm(x, (1024,), scale)

    def program():
        tensors = torch.empty(1024, 1024), torch.empty(1024, 1024), torch.empty(1024)
        return lasts(lambda: torch.compile(normed)(*tensors)), lasts(lambda: torch.compile(torch.sum)(tensors[0]))

    both, total = one(program)
    assert both == pytest.approx(3 * PASS, rel=0.01)  # the sum is charged once somebody needs it
    assert total == pytest.approx(PASS, rel=0.01)


def test_what_a_later_operation_needs_is_written_after_all():
    def program():
        x, w = torch.empty(1024, 1024), torch.empty(1024, 1024)

        @torch.compile
        def twice(x):
            y = x + 1
            return y, y * 2

        first, second = twice(x)
        return lasts(lambda: first @ w) - lasts(lambda: second @ w)

    assert one(program) == pytest.approx(PASS)


def test_launches_fall_likewise():
    def program():
        x, bias = torch.empty(1), torch.empty(1)
        return lasts(lambda: chain(x, bias)), lasts(lambda: torch.compile(chain)(x, bias))

    eager, compiled = simulate(lambda *_: program(), 1, cluster="dgx-h100").results[0]
    assert eager == pytest.approx(4 * compiled, rel=0.15)  # the last one ends after the host has issued it


def test_code_outside_and_other_backends_are_eager():
    def program():
        x, bias = torch.empty(N), torch.empty(N)
        torch.compile(chain)(x, bias)
        outside = lasts(lambda: chain(x, bias))
        options = {"backend": "eager"}, {"backend": "aot_eager"}, {"disable": True}
        return [outside, *(lasts(lambda o=o: torch.compile(chain, **o)(x, bias)) for o in options)]

    assert one(program) == [9 * PASS] * 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.silu(self.up(self.norm(x))))


def model(width):
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(2)))


def in_place(made):
    for block in made:
        block.compile()
    return made


def sharded(made, compile_first):
    for block in made:
        if compile_first:
            block.compile()
        fully_shard(block)
    fully_shard(made)
    return made if compile_first else torch.compile(made)


WRAPPED = {
    "eager": lambda made: made,
    "compiled": torch.compile,
    "in place": in_place,
    "inside DDP": lambda made: DDP(torch.compile(made)),
    "around DDP": lambda made: torch.compile(DDP(made)),
    "inside FSDP": lambda made: sharded(made, True),
    "around FSDP": lambda made: sharded(made, False),
}


def train(wrap, width, rows, dtype=torch.float32):
    wrapped = wrap(model(width).to(dtype))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    torch.manual_seed(1)
    x = torch.randn(rows, width, dtype=dtype)
    before = time.perf_counter()
    for _ in range(2):
        optimizer.zero_grad()
        loss = wrapped(x).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach(), time.perf_counter() - before


def wrapping(name):
    if name == "compiled":
        return lambda made: torch.compile(made)  # looked up on the rank
    return WRAPPED[name]


def test_values_are_those_of_eager_torch_however_it_is_wrapped():
    def program(rank, world_size):
        return {name: train(wrapping(name), 8, 4)[0] for name in WRAPPED}

    for losses in simulate(program, 2, cluster=CLUSTER, device="cpu").results:
        assert {name: torch.equal(loss, losses["eager"]) for name, loss in losses.items()} == dict.fromkeys(
            WRAPPED, True
        )


def test_a_wrapped_model_is_faster_compiled():
    def program(rank, world_size):
        return {name: train(wrapping(name), 1024, 8192, torch.bfloat16)[1] for name in WRAPPED}

    [took, _] = simulate(program, 2, cluster="dgx-h100").results
    assert took["compiled"] == pytest.approx(took["in place"], rel=0.05)
    assert took["compiled"] < 0.8 * took["eager"]
    assert all(took[name] > took["compiled"] for name in ("inside DDP", "around DDP", "inside FSDP", "around FSDP"))


def test_a_compiled_module_looks_like_torchs():
    def program(rank, world_size):
        made = model(8)
        compiled = torch.compile(made)
        compiled.extra = 3
        compiled.eval()
        names = [name for name, _ in compiled.named_parameters()]
        same = compiled._orig_mod is made and made.extra == compiled.extra == 3 and not made.training
        return same, len(compiled) == 2, names[0], len(list(compiled.parameters())) == len(list(made.parameters()))

    assert simulate(program, 1).results == [(True, True, "_orig_mod.0.norm.weight", True)]
