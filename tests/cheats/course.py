"""A notebook of many cheats, as nbgrader hands it to the judge: the official cells with these answers in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_notebook

from tests.cheats.cheat import CHECKS, IMPORTS, Cheat
from tests.tiny_course import cell

LESSON = "91_cheats"
WITH_HIDDEN = {("double", "values"), ("total", "values")}
HONEST = Cheat("honest", "nothing")  # its right answer comes before and after all others


def notebook_of(answers: Iterable[tuple[Cheat, bool]], known: Mapping[str, object]) -> NotebookNode:
    """One exercise for each (cheat, beside a right answer?); the check cells of number 7 are `double-7-values` and so on.

    known: constants that the cheats name, such as where the course lies.
    """
    first = "\n".join([IMPORTS, *(f"{name} = {value!r}" for name, value in known.items())])
    cells = [cell(first, "imports", locked=True)]
    for number, (cheat, right) in enumerate(answers):
        exercise = f"{cheat.exercise}_{number}".replace("_", "-")
        cells.append(cell(cheat.source(number, right), exercise, solution=True))
        for judges in CHECKS[cheat.exercise]:
            source = f'check({cheat.function(number)}, judges="{judges}")'
            if (cheat.exercise, judges) in WITH_HIDDEN:
                source += f'\nhidden_tests_for("{LESSON}")({cheat.function(number)}, judges="{judges}")'
            cells.append(cell(source, f"{exercise}-{judges}", grade=True, locked=True, points=1))
    return new_notebook(cells=cells)
