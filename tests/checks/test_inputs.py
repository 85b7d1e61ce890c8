"""utils/checks/inputs.py: what a check hands to ranks depends on its arguments and the salt, and on nothing else."""

from dataclasses import FrozenInstanceError
from hashlib import shake_256
from itertools import combinations
from types import ModuleType

import numpy
import pytest
import torch

from utils.checks import inputs
from utils.checks.inputs import Draws
from utils.checks.runner import Runner
from utils.kit.generators import WORDS, generator_of

# {kind of number: how to draw some}
KINDS = {
    "different integers": lambda draws, seed: torch.stack(draws.different_integers(3, (4, 5), seed=seed)),
    "integers": lambda draws, seed: draws.integers((4, 5), seed=seed),
    "a generator": lambda draws, seed: torch.randn(4, 5, generator=draws.generator(seed)),
}


@pytest.mark.parametrize("world_size, shape", [(1, 1), (4, 3), (8, 25), (3, (2, 3)), (2, ()), (2, 0)])
@pytest.mark.parametrize("salt", [0, 2**40])
def test_each_rank_has_a_decade_of_its_own(world_size, shape, salt):
    tensors = Draws(salt).different_integers(world_size, shape)
    assert len(tensors) == world_size
    for rank, x in enumerate(tensors):
        assert x.shape == torch.Size([shape] if isinstance(shape, int) else shape)
        assert {int(number) // 10 for number in x.reshape(-1)} <= {rank + 1}


def test_in_a_notebook_everyone_sees_the_numbers_that_lessons_quote():
    assert torch.stack(Draws().different_integers(2, 3)).tolist() == [[14, 11, 17], [25, 26, 21]]
    assert Draws().integers((2, 3), seed=1).tolist() == [[0, 1, -4], [1, 3, -3]]


def test_small_integers_are_from_minus_4_to_4():
    drawn = Draws(7).integers(1000, torch.int64)
    assert drawn.dtype == torch.int64 and set(drawn.tolist()) == set(range(-4, 5))
    assert Draws().integers(()).shape == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_a_dtype_holds_the_same_numbers(dtype):
    [x], [y] = (Draws().different_integers(1, 5, kind) for kind in (dtype, torch.float32))
    assert x.dtype == dtype and torch.equal(x.float(), y)
    assert torch.equal(Draws().integers(5, dtype).float(), Draws().integers(5))


@pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)
def test_numbers_follow_from_salt_and_seed(draw):
    assert torch.equal(draw(Draws(5), 1), draw(Draws(5), 1))
    assert not torch.equal(draw(Draws(5), 1), draw(Draws(5), 2))
    assert not torch.equal(draw(Draws(5), 1), draw(Draws(6), 1))
    assert not torch.equal(draw(Draws(), 1), draw(Draws(5), 1))


@pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)
def test_every_bit_of_a_salt_counts(draw):
    """torch's own generator on the CPU takes the lowest 32."""
    drawn = [draw(Draws(5 + (1 << bit)), 0) for bit in (32, 33, 63, 64, 200)]
    assert all(not torch.equal(one, other) for one, other in combinations([draw(Draws(5), 0), *drawn], 2))


def test_a_long_seed_fills_the_state_of_a_mersenne_twister():
    """numpy has the same generator, and lets one set its state."""
    twister = numpy.random.MT19937()
    key = numpy.frombuffer(shake_256(str(2**200).encode()).digest(4 * WORDS), dtype=numpy.uint32)
    twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": WORDS}}
    drawn = torch.randint(2**20, (2 * WORDS,), generator=generator_of(2**200))
    assert drawn.tolist() == (twister.random_raw(2 * WORDS) % 2**20).tolist()


@pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)
def test_draws_influence_neither_each_other_nor_themselves(draw):
    one, other = Draws(1), Draws(2)
    alone = draw(one, 0)
    for noise in KINDS.values():
        noise(one, 3)
        noise(other, 0)
    assert torch.equal(draw(one, 0), alone)


@pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)
def test_the_random_numbers_of_the_process_are_neither_used_nor_moved(draw):
    torch.manual_seed(1)
    first, state = draw(Draws(), 0), torch.get_rng_state()
    assert torch.equal(state, torch.manual_seed(1).get_state())
    torch.manual_seed(2)
    assert torch.equal(draw(Draws(), 0), first)


def test_the_salt_belongs_to_each_draws_alone():
    """No global that could be set for everyone, and none that can change once a check has it."""
    values = {name: one for name, one in vars(inputs).items() if not name.startswith("__") and name != "annotations"}
    assert [name for name, one in values.items() if not isinstance(one, ModuleType) and not callable(one)] == []
    with pytest.raises(FrozenInstanceError):
        Draws().salt = 1


def test_every_run_of_a_notebook_is_given_the_same_numbers():
    run = Runner(lambda x: x)
    first = run.draws.different_integers(1, 5)
    run(1, first)
    assert run.draws == Draws()
    assert torch.equal(run.draws.different_integers(1, 5)[0], first[0])
