"""Explorers: sliders, what a closed form says of their values, beside it the student's own answer, and a picture.

    def show(P, nbytes):
        forms = {"time of the ring": (closed_form(P, nbytes), lambda: my_ring_seconds(P, nbytes), "s")}
        return forms, lambda yours: time_curves(...)

    explore(show, {"nbytes": "B"}, P=[2, 4, 8], nbytes=[1e3, 1e6, 1e9])

Sliders need someone who moves them. Where nobody can, a table of a few cases and a picture take their place: the same
bytes each time, and nothing of widgets. What the sliders lead to is a plain output, which stays in a saved notebook.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ..kit.front_end import someone_is_there
from ..kit.predictions import is_number, shown
from ..text import tables
from .picture import Picture

# (by the closed form, by the student's function, unit); None for what isn't there
Form: TypeAlias = tuple[float | None, Callable[[], Any] | None, str]
Show: TypeAlias = Callable[..., tuple[Mapping[str, Form], Callable[[dict[str, float]], Picture]]]
Place: TypeAlias = dict[str, float]

ABOVE = '<div style="display: flex; flex-wrap: wrap; align-items: center; gap: 0 2em">{}<div>{}</div></div>'
AGAIN = "Run this cell again to move its sliders."
STILL = "Some cases. " + AGAIN.replace(" again", "")
NOT_YET = "not there yet"


def explore(show: Show, units: Mapping[str, str] | None = None, **axes: Sequence[float]) -> Explorer:
    """A slider for each axis, what `show` says of the values they are at, and the picture that it draws.

    show    called with a value for each axis, it returns ({name: (closed form, own, unit)}, draw). own() is what the
            student's function says; it counts if it equals the closed form, or if there is none. draw({name: a value
            of the student's that counts}) is a Picture.
    units   {axis: unit of its values}
    axes    {name: its values, in order}; sliders start at the one in the middle
    """
    return Explorer(show, axes, units or {})


class Line(NamedTuple):
    """What there is to say of a Form. value: the student's, if it counts."""

    closed: str
    yours: str
    value: float | None


class Explorer:
    """What `explore` returns. A notebook shows it."""

    def __init__(self, show: Show, axes: Mapping[str, Sequence[float]], units: Mapping[str, str]) -> None:
        self.show, self.axes, self.units = show, axes, units
        self.start = {name: values[len(values) // 2] for name, values in axes.items()}

    def at(self, place: Place) -> tuple[dict[str, Line], Callable[[], Picture]]:
        """(a line for each closed form, the picture once it is drawn)"""
        forms, draw = self.show(**place)
        lines = {name: judged(*form) for name, form in forms.items()}
        return lines, partial(draw, {name: line.value for name, line in lines.items() if line.value is not None})

    def label(self, axis: str, value: float) -> str:
        return shown(value, self.units.get(axis, ""))

    def cases(self) -> tuple[list[str], list[list[str]]]:
        """(header, rows): where the sliders start, and from there the first and the last value of each axis."""
        ends = [self.start | {axis: values[end]} for axis, values in self.axes.items() for end in (0, -1)]
        rows, last = list[list[str]](), list[str]()
        for place in (self.start, *(end for end in ends if end != self.start)):
            lines, _ = self.at(place)
            compared = [line for line in lines.values() if line.closed and line.yours]
            right = all(line.value is not None for line in compared)
            last = ["the same" if right else NOT_YET] if compared else []
            numbers = [line.closed or line.yours for line in lines.values()]
            rows.append([*map(self.label, place, place.values()), *numbers, *last])
        return [*map(in_words, self.axes), *self.at(self.start)[0], *["yours"] * len(last)], rows

    def __repr__(self) -> str:
        return f"{STILL}\n\n{tables.text(*self.cases())}"

    def _repr_html_(self) -> str:
        _, picture = self.at(self.start)
        return tables.html(STILL, *self.cases()) + picture()._repr_html_()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if not (someone_is_there() and self.with_sliders()):
            display({"text/plain": repr(self), "text/html": self._repr_html_()}, raw=True)

    def with_sliders(self) -> bool:
        """Show sliders, and below them what they lead to. Returns False if there are no widgets."""
        try:
            from ipywidgets import Box, SelectionSlider
        except ModuleNotFoundError:
            return False
        from IPython.display import HTML, display

        sliders = {
            axis: SelectionSlider(
                options=[(self.label(axis, value), value) for value in values],
                value=self.start[axis],
                description=in_words(axis),
                style={"description_width": "initial"},
            )
            for axis, values in self.axes.items()
        }
        box = Box(list(sliders.values()), layout={"flex_flow": "row wrap"})
        display(box._repr_mimebundle_() | {"text/plain": AGAIN, "text/html": f"<p>{AGAIN}</p>"}, raw=True)
        below = display(HTML(self.page(self.start)), display_id=True)

        def redraw(_: object) -> None:
            below.update(HTML(self.page({axis: slider.value for axis, slider in sliders.items()})))

        for slider in sliders.values():
            slider.observe(redraw, "value")
        return True

    def page(self, place: Place) -> str:
        """What is below the sliders."""
        lines, picture = self.at(place)
        rows = [(name, line.closed, line.yours) for name, line in lines.items()]
        return ABOVE.format(tables.html("", ("", "closed form", "yours"), rows), picture()._repr_html_())


def judged(closed: float | None, own: Callable[[], Any] | None, unit: str) -> Line:
    known = "" if closed is None else shown(closed, unit)
    if own is None:
        return Line(known, "", None)
    try:
        value = own()
    except Exception:  # whatever a function does that is not finished
        value = None
    if not is_number(value):
        return Line(known, NOT_YET, None)
    if closed is None or math.isclose(value, closed, rel_tol=1e-6):
        return Line(known, shown(value, unit), float(value))
    return Line(known, f"{shown(value, unit)}: not right yet", None)


def in_words(axis: str) -> str:
    return axis.replace("_", " ")
