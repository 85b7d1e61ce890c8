"""Mark a function of a lesson's module as the check of an exercise.

    @check("agree-or-explain", if_stuck="a rank went on to all_reduce although shapes differ.")
    def agree_or_explain_values(run: Runner) -> None:
        answer = run(3, run.draws.different_integers(3, 4), catch=ValueError)
        ...                                              # raise CheckFailed if the answer is wrong

A check never touches the student's function: it gets `run`, which calls the function on real ranks, and judges what
`run` returns. So the ranks can live elsewhere, as they do in grading, and no check needs rewriting. Where a check can
say what is right and what usual mistakes lead to, write it as an oracle (oracles.py), which is shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .runner import Runner

CheckFunction = Callable[[Runner], str | None]


@dataclass(frozen=True)
class Check:
    """What a lesson's module holds in place of a function that `check` marks; calling it calls the function."""

    exercise: str
    judges: str
    if_stuck: str
    function: CheckFunction

    def __call__(self, run: Runner) -> str | None:
        return self.function(run)


def check(exercise: str, judges: str = "values", if_stuck: str = "") -> Callable[[CheckFunction], Check]:
    """Mark a function `f(run)` as the check of `exercise`. `if_stuck`: what is worth checking in a
    deadlock whose cause the report can't name.

    What `f` returns, if anything, is shown to the student when the check passes.
    """
    return lambda function: Check(exercise, judges, if_stuck, function)


def exercise_of(function_name: str) -> str:
    """The exercise that a function of this name solves: "ring_all_reduce" -> "ring-all-reduce"."""
    return function_name.replace("_", "-")
