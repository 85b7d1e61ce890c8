"""Wrong answers that people really give, one file a lesson, each with the check that catches it and what that says.

    mutant("reduce-by-hand", "forgets-itself", caught_by="values", says="the sum of the others", replace=(old, new))
    mutant("reduce-by-hand", "averages", caught_by="values", says="the mean", body="...")

`tests/test_lessons.py` proves that each is caught; the sample class for `make grade` is made from some of them.

Right answers in another form than the solution's are kept beside them, in a list ALSO_RIGHT: nothing may reject them.

    also_right("reduce-by-hand", "receives-from-anybody", body="...")
"""

import importlib
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from grader.authoring.markers import replace_solution, solution_lines


@dataclass(frozen=True)
class Variant:
    """An answer to one exercise that is not the solution; one of the three says how it differs.

    replace: (old, new), or several such pairs: text of the solution and what stands there instead.
    body: what stands in each of the solution's regions.
    cell: the exercise's whole cell.
    """

    exercise: str
    name: str
    replace: tuple | None = None
    body: str | None = None
    cell: str | None = None

    def apply(self, source: str) -> str:
        """The exercise's cell with this answer in it. Raises ValueError if the solution has no such text to replace."""
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
    """A wrong answer. `hidden`: only the hidden test catches it, the visible check passes it."""

    caught_by: str = "values"
    says: str = ""
    hidden: bool = False


def answers() -> tuple[list[Mutant], list[Variant], Callable, Callable]:
    """What a lesson's file begins with: two empty lists, `mutant` adds to the first, `also_right` to the second."""
    wrong: list[Mutant] = []
    right: list[Variant] = []

    def mutant(exercise: str, name: str, caught_by: str = "values", *, says: str, hidden: bool = False, **answer):
        wrong.append(Mutant(exercise, name, caught_by=caught_by, says=says, hidden=hidden, **answer))

    def also_right(exercise: str, name: str, **answer):
        right.append(Variant(exercise, name, **answer))

    return wrong, right, mutant, also_right


def mutants_of(lesson: str) -> list[Mutant]:
    """The wrong answers kept for a lesson, from `tests/mutants/{lesson}.py`."""
    return importlib.import_module(f"tests.mutants.{lesson}").MUTANTS


def also_right(lesson: str) -> list[Variant]:
    """Right answers in another form that are kept for a lesson."""
    return getattr(importlib.import_module(f"tests.mutants.{lesson}"), "ALSO_RIGHT", [])
