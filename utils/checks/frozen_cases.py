"""Visible checks whose oracle the student must not see, because it is the answer: a formula, or a plan.

The oracle of such an exercise is hidden, with its visible cases in a tuple FROZEN:

    @oracle(values=[(8, 3, 0.4)])
    def hidden_bubble_shares(draws: Draws, ranks: int, microbatches: int, most: float) -> Case: ...

    FROZEN = (vary(hidden_bubble_shares, values=[(4, 4, 0.25), (4, 8, 0.11)]),)

`make build` writes down what it says of these cases, in frozen_cases.json beside the checks: inputs, right values, and
what usual mistakes lead to. What students get of the checks says `bubble_shares = frozen_cases(ROOM, "bubble-shares")`.

The par of a challenge (scores.py) is written down there too: FROZEN has `vary(best_buckets, par=...)`, and the
visible oracle `par=frozen_par(ROOM, "best-buckets")`.

Everything in such a case is plain data: numbers, strings, None, lists, tuples, dicts, and the Gpu of a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..cluster.hardware import Gpu
from ..text.units import nearest
from .inputs import Draws
from .oracles import Case, Every, OnlyAt, Oracle, called
from .registration import Check
from .scores import SCORE

FILE = "frozen_cases.json"  # in a lesson's room
# The fields of a Case that a recorded one has.
FIELDS = ("inputs", "for_all", "right", "mistakes", "rtol", "seen", "advice", "in_order", "world_size")
OF_CHALLENGES = ("limit", "par")
POINTS = "points of the lesson"  # no exercise can be called that
DIGITS = 7  # significant digits of a par: the last ones of a sum may differ between machines


@dataclass(frozen=True)
class FrozenCases:
    """The checks of an exercise on frozen cases. A lesson's module holds it; `frozen_cases` makes it."""

    room: Path
    exercise: str
    more: Mapping[str, Any] = field(default_factory=dict)  # fields of each Case

    def checks(self) -> list[Check]:
        """Raises ValueError if there is no recorded case of the exercise."""
        return self.oracle().checks()

    def oracle(self) -> Oracle:
        entry = entry_of(self.room, self.exercise)

        def draw(_: Draws, judges: str, number: int) -> Case:
            return Case(**{name: plain(value) for name, value in entry["cases"][judges][number].items()}, **self.more)

        cases = {judges: [(judges, number) for number in range(len(many))] for judges, many in entry["cases"].items()}
        return Oracle(self.exercise, draw, entry["if_stuck"], cases)


def frozen_cases(room: Path, exercise: str, **more: Any) -> FrozenCases:
    """The visible checks of an exercise whose oracle is hidden.

    room: the folder of the module that calls it
    more: what its cases have that is not plain data, such as `cluster` or `driver`
    """
    return FrozenCases(room, exercise, more)


def frozen_par(room: Path, exercise: str) -> Callable[..., float]:
    """The par of a challenge's visible cases, from their arguments. The function raises ValueError for any other."""

    def par(*arguments: Any, **named: Any) -> float:
        pars = entry_of(room, exercise)["par"]
        key = repr(named or arguments)
        if key not in pars:
            raise ValueError(f"par of {exercise!r} in the case {key} is not recorded: run `make build`")
        return float(pars[key])

    return par


def entry_of(room: Path, exercise: str) -> dict[str, Any]:
    path = room / FILE
    of_lesson = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if exercise not in of_lesson:
        origin = f"Its cases come from FROZEN in the checks of {room.name}, by `make build`."
        raise ValueError(f"{FILE} has no {exercise!r}{nearest(exercise, of_lesson)} {origin}")
    entry: dict[str, Any] = of_lesson[exercise]
    return entry


def points_of(room: Path) -> dict[str, dict[str, float]]:
    """{exercise: {what is judged: its points}} of a lesson, in its order; {} if nothing is written down."""
    path = room / FILE
    return dict(json.loads(path.read_text(encoding="utf-8")).get(POINTS, {})) if path.exists() else {}


def written_down(oracles: Sequence[Oracle], points: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """The text of frozen_cases.json for these oracles, and for the points of the lesson's checks.

    Raises TypeError if a case holds more than plain data.
    """
    of_lesson: dict[str, Any] = {POINTS: points} if points else {}
    of_lesson |= {one.exercise: pars_of(one) if one.par else cases_of(one) for one in oracles}
    return json.dumps(of_lesson, indent=1, ensure_ascii=False) + "\n"


def pars_of(one: Oracle) -> dict[str, Any]:
    """Of a challenge only its par: its inputs are drawn, and its visible oracle says what is right."""
    pars = {repr(arguments): called(one.par or float, arguments=arguments) for arguments in one.cases[SCORE]}
    return {"par": {case: float(f"{par:.{DIGITS}g}") for case, par in pars.items()}}


def cases_of(one: Oracle) -> dict[str, Any]:
    cases = {judges: [fields_of(one, arguments) for arguments in many] for judges, many in one.cases.items()}
    return {"if_stuck": one.if_stuck, "cases": cases}


def fields_of(one: Oracle, arguments: Any) -> dict[str, Any]:
    case = one.drawn(Draws(), arguments)
    try:
        return {name: tagged(getattr(case, name)) for name in FIELDS + OF_CHALLENGES * bool(case.par)}
    except TypeError as error:
        raise TypeError(f"{one.exercise} can't be recorded: {error}") from None


# ---- JSON knows no tuples, so everything but lists, numbers and strings is written as {its kind: ...}


def tagged(value: Any) -> Any:
    if isinstance(value, OnlyAt):
        return {"only_at": [tagged(item) for item in value]}
    if isinstance(value, Every):
        return {"every": tagged(value.value)}
    if isinstance(value, tuple):
        return {"tuple": [tagged(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[tagged(key), tagged(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [tagged(item) for item in value]
    if isinstance(value, Gpu):
        return {"gpu": tagged(asdict(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"it holds a {type(value).__name__}, which is not plain data")


def plain(value: Any) -> Any:
    """What `tagged` was given."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, inside)] = value.items()
    if kind == "dict":
        return {plain(key): plain(item) for key, item in inside}
    if kind == "every":
        return Every(plain(inside))
    if kind == "gpu":
        return Gpu(**plain(inside))
    items = [plain(item) for item in inside]
    return tuple(items) if kind == "tuple" else OnlyAt(*items)
