"""How long a collective takes, and how many bytes per second that is, over the sizes of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from matplotlib.axes import Axes

from .picture import GREY, INK, KINDS, WIDEST, Look, Picture

LegendPlace: TypeAlias = Literal["upper left", "lower right"]
Units: TypeAlias = tuple[tuple[float, str], ...]  # (factor, name), largest first
TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
RATES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s"))
DASHES = ("--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))


def sweep(
    sizes: Sequence[float],
    seconds: Sequence[float],
    bandwidths: Sequence[float],
    title: str,
    model: tuple[float, float] | None = None,
    limits: dict[str, float] | None = None,
) -> Picture:
    """Two panels with logarithmic axes: times with the fitted line, and bus bandwidths with what bounds them.

    sizes       bytes; seconds and bandwidths (bytes/s): one per size
    model       (alpha, beta): seconds, seconds per byte
    limits      {what it is: bytes/s}
    """
    picture = Picture(WIDEST, 4.0, title)
    times, rates = picture.subplots(1, 2)
    measured: Look = {"color": KINDS[0], "marker": "o", "markersize": 5, "markeredgecolor": INK, "markeredgewidth": 0.4}
    times.plot(sizes, seconds, label="measured", **measured)
    if model is not None:
        draw_model(times, sizes, *model)
    rates.plot(sizes, [rate or None for rate in bandwidths], label="bus bandwidth", **measured)
    for (name, rate), dashes, colour in zip((limits or {}).items(), DASHES, KINDS[1:], strict=False):
        rates.axhline(rate, color=colour, linestyle=dashes, linewidth=1.6, label=f"{name}: {words(rate, RATES)}")
    dress(times, "time", TIMES, sizes, "upper left")
    dress(rates, "bytes per second", RATES, sizes, "lower right")
    picture.subplots_adjust(left=0.085, right=0.985, bottom=0.13, top=0.86, wspace=0.22)
    return picture


def draw_model(panel: Axes, sizes: Sequence[float], alpha: float, beta: float) -> None:
    """The line alpha + n beta, and the size at which both terms are equal."""
    smallest, largest = min(sizes), max(sizes)
    points = [smallest * (largest / smallest) ** (step / 100) for step in range(101)]
    line = [alpha + beta * size for size in points]
    shown = [(size, time) for size, time in zip(points, line, strict=True) if time > 0]
    panel.plot(*zip(*shown, strict=True), color=INK, linewidth=1.2, linestyle="--", label="alpha + n beta")
    half = alpha / beta if beta > 0 else 0
    if smallest < half < largest:
        panel.axvline(half, color=GREY, linewidth=1, linestyle=":", label=f"alpha / beta: {words(half, SIZES)}")


def dress(panel: Axes, what: str, units: Units, sizes: Sequence[float], legend: LegendPlace) -> None:
    panel.set(xscale="log", yscale="log")
    panel.set_xlabel("size", color=INK)
    panel.set_ylabel(what, color=INK)
    every = max(1, -(-len(set(sizes)) // 7))
    marked = sorted(set(sizes))[::every]
    panel.set_xticks(marked, [words(size, SIZES) for size in marked], fontsize=9)
    panel.set_xticks([], minor=True)
    panel.yaxis.set_major_formatter(lambda value, _: words(value, units))
    panel.yaxis.set_minor_formatter(lambda *_: "")
    panel.tick_params(colors=INK, labelsize=9)
    panel.grid(color="#E4E4E4", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(loc=legend, fontsize=9, frameon=True, framealpha=0.9, edgecolor="none", labelcolor=INK)


def words(amount: float, units: Units) -> str:
    """With three digits, in the largest unit that fits."""
    factor, unit = next((pair for pair in units if amount >= pair[0] * 0.9995), units[-1])
    return f"{amount / factor:.3g} {unit}"
