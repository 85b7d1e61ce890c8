"""The score of a challenge: one number, less is better, compared with par and the limit.

    @oracle(score=[(4, 8)], par=frozen_par("06_sharding", "best-buckets"))
    def best_buckets(draws: Draws, world_size: int, layers: int) -> Case:
        ...
        return Case([...], right=..., clock=CLUSTER, score=VIRTUAL_TIME, limit=nbytes / BANDWIDTH)

An answer is scored once its values are right. It passes, and earns the extra credit, if it is at least as good as
par, which an answer reaches with what the lesson itself has taught. Nothing can be better than the limit: bytes that
must be sent at the speed of the links, say. Par would give an answer away, so the hidden file computes it:

    best_buckets = vary(visible.best_buckets, par=seconds_of_best_buckets, score=[(8, 12)])
    FROZEN = (vary(visible.best_buckets, par=seconds_of_best_buckets),)

`par` gets a case's arguments, as the oracle does after `draws`. `make build` writes down what it is in visible cases.
Where all of the oracle is hidden (frozen_cases.py), its cases say Case(par=..., limit=...), and the visible file says
`frozen_cases("06_sharding", "best-plan", score=Measure(...))`.

`make build` runs the solution and all right answers, and writes the best score in each visible case to best_scores.json
in the lesson's room: a mark on the bar, since a bound that nobody reaches says little about an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..text.units import quantity
from .answer import Answer, CheckFailed

FILE = "best_scores.json"  # in a lesson's room
SCORE = "score"  # the kind of a challenge's check
ROUNDING = 1e-5  # the relative error of a score, and of a par that was written down
WIDTH = 20  # columns of the bar


@dataclass(frozen=True)
class Measure:
    """What is scored: a number taken from the answer, its unit, and words to put behind it."""

    of: Callable[[Answer], float]
    unit: str
    words: str

    def show(self, value: float) -> str:
        return f"{quantity(value, self.unit)} {self.words}".strip()


VIRTUAL_TIME = Measure(lambda answer: answer.run.elapsed, "s", "of virtual time")


@dataclass(frozen=True)
class Score:
    """A score that a challenge has measured, with what it is compared to; all in the unit of `measure`.

    best   of the best answer that is known; None where that is not written down
    """

    value: float
    par: float
    limit: float
    measure: Measure
    best: float | None = None

    @property
    def reaches_par(self) -> bool:
        return self.value <= self.par * (1 + ROUNDING)

    @property
    def share(self) -> float:
        """How far from par to the best known score, or to the limit: from 0 to 1; negative if worse than par.

        A new best has more than 1.
        """
        if self.best is not None and abs(self.value - self.best) <= ROUNDING * self.best:
            return 1.0
        return self.part_of_way(self.value, self.limit if self.best is None else self.best)

    def part_of_way(self, value: float, end: float) -> float:
        """How far a score is on the way from par to a better one, as a part of it."""
        return (self.par - value) / (self.par - end) if value != self.par and self.par > end else 0.0

    def judge(self) -> str:
        """What a student reads who has reached par. Raises CheckFailed otherwise."""
        if self.value < self.limit * (1 - ROUNDING):
            raise CheckFailed(
                f"the score is {self.shown}",
                f"{quantity(self.limit, self.measure.unit)} at least",
                "No answer can be better than this limit: don't touch the clock or the record.",
                impossible=True,
            )
        if not self.reaches_par:
            raise CheckFailed(
                f"the values are right; the score is {self.shown}",
                f"par, {quantity(self.par, self.measure.unit)}, or less",
                f"That is {self.value / self.par:.3g} times par. The hints of the exercise lead to par.",
            )
        return f"{self.shown}\n  {self.bar()}"

    @property
    def shown(self) -> str:
        return self.measure.show(self.value)

    def bar(self) -> str:
        """`par 276 µs [████░░░░◆░░░░░░░░░░░] limit 146 µs, best known ◆ 224 µs: 50 % of the way to it`"""
        par, limit = (quantity(end, self.measure.unit) for end in (self.par, self.limit))
        filled = self.cells(self.value)
        bar = "█" * filled + "░" * (WIDTH - filled)
        if self.best is None:
            return f"par {par} [{bar}] limit {limit}: {self.reached}"
        mark = min(self.cells(self.best), WIDTH - 1)
        bar = f"{bar[:mark]}◆{bar[mark + 1 :]}"
        return (
            f"par {par} [{bar}] limit {limit}\n  best known ◆ {quantity(self.best, self.measure.unit)}: {self.reached}"
        )

    @property
    def reached(self) -> str:
        """How far it is on the way to the best known score, or to the limit, in words."""
        if self.best is not None and self.share >= 1:
            return "you have reached it" if self.share == 1 else "yours is better"
        return f"{int(100 * max(0.0, self.share) + 1e-9)} % of the way" + " to it" * (self.best is not None)

    def cells(self, value: float) -> int:
        return min(WIDTH, max(0, int(WIDTH * self.part_of_way(value, self.limit) + 1e-9)))


def best_scores(room: Path) -> dict[str, list[float]]:
    """{challenge: the best known score in each of its visible cases}; {} if nothing is written down."""
    path = room / FILE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
