"""What recomputing saves in memory, and what it costs in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import FuncFormatter

from ..text.units import quantity
from .curves import INKS, MARKERS
from .picture import INK, Picture


def memory_and_time(curves: Mapping[str, Sequence[tuple[str, float, float]]], title: str) -> Picture:
    """A line for each of {name: [(label, bytes, time), ...]}; time: relative to a step without recomputing."""
    picture = Picture(7.2, 3.8, title)
    panel = picture.add_axes((0.11, 0.15, 0.86, 0.74))
    for number, (name, points) in enumerate(curves.items()):
        labels, nbytes, times = zip(*points, strict=True)
        panel.plot(nbytes, times, label=name, color=INKS[number], marker=MARKERS[number], markersize=5, linewidth=1.6)
        for place in zip(labels, nbytes, times, strict=True):
            above = 7 if number % 2 else -14  # so that the labels of two curves don't meet
            panel.annotate(
                place[0], place[1:], (0, above), textcoords="offset points", ha="center", fontsize=9, color=INK
            )
    panel.margins(x=0.06, y=0.16)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value, "B")))
    panel.set_xlabel("activations alive at the peak", fontsize=9, color=INK)
    panel.set_ylabel("step time, relative to no recomputing", fontsize=9, color=INK)
    panel.tick_params(labelsize=9)
    panel.grid(color="#DDDDDD", linewidth=0.6)
    panel.legend(frameon=False, fontsize=9)
    return picture
