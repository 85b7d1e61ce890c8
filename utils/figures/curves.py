"""Time against size on logarithmic axes: which algorithm is fastest for how many bytes."""

from __future__ import annotations

import math

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..text.units import quantity
from .picture import GREY, INK, KINDS, Look, Picture

MARKERS = "osD^vPX"
INKS = [KINDS[number] for number in (0, 1, 2, 4, 5, 6)]  # without yellow: too light for a thin line


def time_curves(
    curves: dict[str, list[tuple[float, float]]],
    title: str,
    dots: str = "",
    labels: tuple[str, str] = ("bytes", "time"),
    units: tuple[str, str] = ("B", "s"),
) -> Picture:
    """A line for each of {name: [(bytes, seconds), ...]}, except for the one named `dots`, which gets only dots.

    All curves have the same sizes. A dotted vertical line marks each size at which the fastest changes. For other
    things than bytes and seconds: their labels and units.
    """
    picture = Picture(7.2, 4.2, title)
    panel = picture.add_axes((0.13, 0.13, 0.84, 0.76))
    lines = {name: points for name, points in curves.items() if name != dots}
    for number, (name, points) in enumerate(lines.items()):
        style: Look = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4.5, "linewidth": 1.6}
        panel.plot(*zip(*points, strict=True), label=name, color=INKS[number % len(INKS)], **style)
    if dots:
        style = {"linestyle": "", "marker": "o", "markersize": 11, "markerfacecolor": "none", "color": INK}
        panel.plot(*zip(*curves[dots], strict=True), label=dots, **style)
    panel.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1])
    for x, left, right in crossings(lines):
        panel.axvline(x, color=GREY, linestyle=":", linewidth=1.2)
        words = f"{left} | {right}\n{quantity(x, units[0])}"
        panel.annotate(words, (x, 0.03), (4, 0), ("data", "axes fraction"), "offset points", color=INK, fontsize=9)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value, units[0])))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value, units[1])))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(numticks=20))
        axis.set_minor_locator(NullLocator())
    panel.grid(color="#DDDDDD", linewidth=0.6)
    panel.legend(frameon=False, fontsize=9)
    return picture


def crossings(curves: dict[str, list[tuple[float, float]]]) -> list[tuple[float, str, str]]:
    """[(bytes, the fastest below, the fastest above), ...], between the sizes at which the curves are known.

    Between two sizes a curve is taken as a straight line, like alpha + n / B.
    """
    found = []
    points = list(zip(*curves.values(), strict=True))  # one tuple per size, with every curve's point
    names = list(curves)
    for before, after in zip(points, points[1:], strict=False):
        first, last = fastest(names, before), fastest(names, after)
        if first != last:
            gaps = [row[names.index(last)][1] - row[names.index(first)][1] for row in (before, after)]
            part = gaps[0] / (gaps[0] - gaps[1])
            found.append((before[0][0] + part * (after[0][0] - before[0][0]), first, last))
    return found


def fastest(names: list[str], row: tuple[tuple[float, float], ...]) -> str:
    """The name with the least time; if several are equal up to rounding, the last."""
    least = min(seconds for _, seconds in row)
    return [name for name, (_, seconds) in zip(names, row, strict=True) if math.isclose(seconds, least)][-1]
