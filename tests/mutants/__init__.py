"""Wrong answers that people really give, one file a lesson, each with the check that catches it and what that says.

    mutant("reduce-by-hand", "forgets-itself", caught_by="values", says="the sum of the others", replace=(old, new))
    mutant("reduce-by-hand", "averages", caught_by="values", says="the mean", body="...")

`tests/test_lessons.py` proves that each is caught; the sample class for `make grade` is made from some of them.
"""

import importlib
from dataclasses import dataclass

from grader.lesson import replace_solution, solution_lines


@dataclass(frozen=True)
class Mutant:
    """One wrong answer to one exercise. `hidden`: only the hidden test catches it, the visible check passes it."""

    exercise: str
    name: str
    caught_by: str
    says: str
    replace: tuple[str, str] | None = None
    body: str | None = None
    hidden: bool = False

    def apply(self, source: str) -> str:
        """The exercise's cell with this answer in it. Raises ValueError if the solution has no such text to replace."""
        if self.body is not None:
            return replace_solution(source, self.body)
        old, new = self.replace
        if old not in "\n".join(line for _, line in solution_lines(source)):
            raise ValueError(f"mutant {self.exercise}/{self.name}: {old!r} is not in the solution")
        return source.replace(old, new)

    def __str__(self) -> str:
        return f"{self.exercise}/{self.name}"


def mutants_of(lesson: str) -> list[Mutant]:
    """The wrong answers kept for a lesson, from `tests/mutants/{lesson}.py`."""
    return importlib.import_module(f"tests.mutants.{lesson}").MUTANTS
