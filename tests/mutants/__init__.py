"""Wrong answers that people really give, one file per lesson, each with the check that catches it and its message.

    mutant("reduce-by-hand", "forgets-itself", caught_by="values", says="the sum of the others", replace=(old, new))
    mutant("reduce-by-hand", "averages", caught_by="values", says="the mean", body="...")

`tests/lessons/test_lessons.py` proves that each is caught. The sample class for `make grade` is made from some of them.

Right answers that differ from the solution are in a list ALSO_RIGHT: no check may reject them.

    also_right("reduce-by-hand", "receives-from-anybody", body="...")
"""

import importlib
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from grader.authoring.markers import replace_solution, solution_lines


@dataclass(frozen=True)
class Variant:
    """An answer to one exercise other than the solution, given in one of three ways.

    replace: (old, new), or several such pairs: text of the solution and its replacement.
    body: the contents of each of the solution's regions.
    cell: the exercise's whole cell.
    """

    exercise: str
    name: str
    replace: tuple | None = None
    body: str | None = None
    cell: str | None = None

    def apply(self, source: str) -> str:
        """The exercise's cell with this answer in it. Raises ValueError if the solution lacks the text to replace."""
        if self.cell is not None:
            return textwrap.dedent(self.cell)
        if self.body is not None:
            return replace_solution(source, self.body)
        for old, new in self.replace if isinstance(self.replace[0], tuple) else (self.replace,):
            if old not in "\n".join(line for _, line in solution_lines(source)):
                raise ValueError(f"{self}: {old!r} is not in the solution")
            source = source.replace(old, new)
        return source

    def __str__(self) -> str:
        return f"{self.exercise}/{self.name}"


@dataclass(frozen=True)
class Mutant(Variant):
    """A wrong answer. `hidden`: it passes the visible check, and only the hidden test catches it."""

    caught_by: str = "values"
    says: str = ""
    hidden: bool = False


def answers() -> tuple[list[Mutant], list[Variant], Callable, Callable]:
    """Two empty lists, a function `mutant` that adds to the first, and `also_right` that adds to the second."""
    wrong: list[Mutant] = []
    right: list[Variant] = []

    def mutant(exercise: str, name: str, caught_by: str = "values", *, says: str, hidden: bool = False, **answer):
        wrong.append(Mutant(exercise, name, caught_by=caught_by, says=says, hidden=hidden, **answer))

    def also_right(exercise: str, name: str, **answer):
        right.append(Variant(exercise, name, **answer))

    return wrong, right, mutant, also_right


def mutants_of(lesson: str) -> list[Mutant]:
    """The wrong answers to a lesson, from `tests/mutants/{lesson}.py`."""
    return importlib.import_module(f"tests.mutants.{lesson}").MUTANTS


def also_right(lesson: str) -> list[Variant]:
    """A lesson's right answers that differ from the solution."""
    return getattr(importlib.import_module(f"tests.mutants.{lesson}"), "ALSO_RIGHT", [])
