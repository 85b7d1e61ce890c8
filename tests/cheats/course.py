"""A notebook of many cheats, as nbgrader hands it to the judge: the official cells with these answers in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from tests.cheats.cheat import CHECKS, IMPORTS, Cheat

LESSON = "91_cheats"
WITH_HIDDEN = {("double", "values"), ("total", "values")}
HONEST = Cheat("honest", "nothing")  # its right answer comes before and after all others


def cell(source: str, name: str, **flags: object) -> nbformat.NotebookNode:
    kind = {"grade": False, "solution": False, "locked": False, "task": False, "schema_version": 3, **flags}
    return new_code_cell(source, id=name, metadata={"nbgrader": {"grade_id": name, "cell_type": "code", **kind}})


def notebook_of(answers: Iterable[tuple[Cheat, bool]], known: Mapping[str, object]) -> nbformat.NotebookNode:
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
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})
