"""Find the checks of a lesson, run a student's function on ranks, and report the outcome.

A check never touches the student's function: it gets `run`, which calls the function on real ranks, and judges what
`run` returns. So the ranks can live elsewhere, as they do in grading, and no check needs rewriting.

    @check("reduce-by-hand")
    def reduce_by_hand_values(run: Runner) -> None:
        xs = run.draws.different_integers(4, 3)          # one tensor per rank
        answer = run(4, xs, root=1)                      # rank r gets xs[r]; every rank gets root=1
        expect(answer.results[1], torch.stack(xs).sum(0), rank=1)

    @check("reduce-by-hand", judges="time")
    def reduce_by_hand_time(run: Runner) -> str:
        answer = run.virtual(8, [torch.empty(1000)] * 8, root=1, cluster=links(8, alpha=1e-6, bandwidth=1e9))
        return expect_time(answer, 7 * (1e-6 + 4000 / 1e9))
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .answer import CheckFailed
from .runner import Runner

WIDTH = 78  # columns of a message's first line


# ---- registering and finding checks

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
    """Mark a function `f(run)` as the check of `exercise`. `if_stuck`: what a deadlock usually means here.

    What `f` returns, if anything, is shown to the student when the check passes.
    """
    return lambda function: Check(exercise, judges, if_stuck, function)


def exercise_of(function_name: str) -> str:
    """The exercise that a function of this name solves: "ring_all_reduce" -> "ring-all-reduce"."""
    return function_name.replace("_", "-")


class Checks:
    """All checks of one lesson. Calling it judges a function: `check(broadcast_by_hand, judges="values")`."""

    def __init__(self, package: str, lesson: str, hidden: bool = False) -> None:
        folder = Path(importlib.import_module(package).__path__[0])
        lessons = sorted(path.stem for path in folder.glob("[0-9]*.py"))
        if lesson not in lessons:
            raise ValueError(f"there is no lesson {lesson!r}: choose one of {', '.join(lessons)}")
        module = importlib.import_module(f"{package}.{lesson}")
        found = [item for item in vars(module).values() if isinstance(item, Check)]
        self.checks = {(one.exercise, one.judges): one for one in found}
        self.hidden = hidden

    @property
    def registered(self) -> set[tuple[str, str]]:
        """The (exercise, judges) pairs that have a check."""
        return set(self.checks)

    @property
    def functions(self) -> dict[tuple[str, str], CheckFunction]:
        """{(exercise, judges): the function that judges it}"""
        return {pair: one.function for pair, one in self.checks.items()}

    def __call__(self, function: Callable[..., Any], judges: str = "values") -> None:
        """Judge a student's function and print one line if it is right. Raises CheckFailed if it is not."""
        print(self.judge(function, judges, Runner))

    def judge(
        self, function: Callable[..., Any], judges: str, runner: Callable[[Callable[..., Any], str, bool], Runner]
    ) -> str:
        """Judge a function on the ranks of runner(function, if_stuck, quiet).

        Returns the line that says that it is right. Raises CheckFailed if it is not, ValueError if nothing judges it.
        """
        exercise = exercise_of(getattr(function, "__name__", repr(function)))
        if (exercise, judges) not in self.checks:
            raise ValueError(f"nothing judges the {judges} of {exercise}: does the function still have its given name?")
        one = self.checks[exercise, judges]
        run = runner(function, one.if_stuck, self.hidden)
        try:
            remark = one(run)
        except CheckFailed as failed:
            words = [exercise, judges] + ["hidden test"] * self.hidden + [run.situation] * bool(run.situation)
            failed.header = " · ".join(words).ljust(WIDTH - len("not passed")) + "  not passed"
            failed.expected = "something else" if failed.expected and self.hidden else failed.expected
            raise failed from None
        return f"{exercise} · {judges} · {'hidden test · ' * self.hidden}passed" + (f"\n  {remark}" if remark else "")
