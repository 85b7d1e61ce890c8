"""grader/judging/program_packing.py: nothing reaches a rank from which it could learn the other ranks' inputs."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import partial

import cloudpickle
import pytest

from grader.judging.program_packing import NotForRanks, pack_program
from utils.checks.inputs import Draws
from utils.checks.runner import Runner

SALT = 0xD1CE_0FF1CE
DRAWS = Draws(SALT)


def answer(x):
    raise TypeError("a check may call the student's function only through `run`")


def packed(*held) -> bytes:
    return pack_program((answer, list(held), {}, ()), answer, [])


def uses(it) -> Callable:
    return lambda function, x: function(x, it)


def salted(run_or_draws) -> Callable:
    """What a check might write without thinking: the function draws when it is called, so it needs the draws."""

    def driver(function, x):
        return function(x, run_or_draws.different_integers(2, 3))

    return driver


class Holder:
    def __init__(self, draws: Draws):
        self.draws = draws


def global_of_a_check(function, x):
    """From a module that is pickled by value, like those of the hidden tests."""
    return function(x, DRAWS.integers(3))


def own_run() -> Runner:
    run = Runner(answer)
    run.draws = DRAWS
    return run


@pytest.mark.parametrize(
    "held",
    [
        DRAWS,
        [DRAWS],
        {"draws": DRAWS},
        Holder(DRAWS),
        DRAWS.integers,
        partial(uses(None), DRAWS),
        salted(DRAWS),
        uses([DRAWS]),
        own_run(),
        own_run().virtual,
        uses(own_run()),
        DRAWS.generator(),
        uses(DRAWS.generator(3)),
        global_of_a_check,
    ],
    ids=lambda held: getattr(held, "__qualname__", type(held).__name__),
)
@pytest.mark.parametrize("where", ["input", "driver"])
def test_what_inputs_are_drawn_from_stays_with_the_check(held, where, by_value):
    program = (answer, [held], {}, ()) if where == "input" else (partial(uses(held), answer), [], {}, ())
    with pytest.raises(NotForRanks, match="the check of answer hands a (Draws|Runner|Generator) to its ranks"):
        pack_program(program, answer, [])


@pytest.fixture
def by_value():
    """Pickle this module as those of checks are pickled: see judge.pickle_by_value."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_what_was_drawn_may_go_and_so_may_a_class_without_a_salt():
    xs = DRAWS.different_integers(2, 3)
    program = packed(xs[1], DRAWS.integers((2, 2)), lambda function, x: function(x, Draws))
    assert SALT.to_bytes(5, "little") not in program and str(SALT).encode() not in program


def test_the_salt_would_be_found_in_a_program():
    """Otherwise the test above proves nothing: this is what a number looks like in a pickle."""
    assert SALT.to_bytes(5, "little") in pickle.dumps(Draws(SALT))
    assert SALT.to_bytes(5, "little") in packed(SALT)
