"""What compression does to a gradient, and what that does to training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from .curves import INKS
from .picture import COLOURS, GREY, INK, Picture


def compressed(gradient: Sequence[float], arrives: Mapping[str, Sequence[float]]) -> Picture:
    """The entries of a gradient as bars, and in front of them what arrives: a panel for each {compressor: entries}."""
    picture = Picture(7.2, 1.0 + 1.25 * len(arrives), "a gradient, and what arrives of it")
    panels = picture.subplots(len(arrives), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    places = range(len(gradient))
    for panel, (name, entries) in zip(panels, arrives.items(), strict=True):
        panel.bar(places, gradient, width=0.9, color=COLOURS[1], label="the gradient")
        panel.bar(places, entries, width=0.4, color=COLOURS[0], label="what arrives")
        panel.axhline(0, color=GREY, linewidth=0.8)
        panel.set_ylabel(name, fontsize=9, color=INK)
        panel.tick_params(labelsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=9, ncols=2, loc="lower right", bbox_to_anchor=(1, 0.96))
    panels[-1].set_xlabel("entry", fontsize=9, color=INK)
    picture.subplots_adjust(
        left=0.11, right=0.98, bottom=0.5 / picture.get_figheight(), top=1 - 0.6 / picture.get_figheight(), hspace=0.18
    )
    return picture


Curve = Sequence[float] | Mapping[int, float]  # one number per step, or {step: number}


def over_steps(curves: Mapping[str, Curve | Sequence[Curve]], title: str, what: str) -> Picture:
    """A line over the training steps for each {name: curve}, on a logarithmic axis.

    Several curves of a name, with the same steps, become their median, and a band from the lowest to the highest.
    what   the name of that axis, with its unit if it has one
    """
    picture = Picture(7.2, 3.6, title)
    panel = picture.add_axes((0.12, 0.14, 0.6, 0.74))
    for number, (name, values) in enumerate(curves.items()):
        colour = INKS[number % len(INKS)]
        style = ("-", "--", "-.")[number // len(INKS) % 3]
        many = [values] if isinstance(values, Mapping) or isinstance(values[0], float | int) else values
        runs = [each if isinstance(each, Mapping) else dict(enumerate(each)) for each in many]  # type: ignore[arg-type]
        steps, at_steps = [*runs[0]], [*zip(*(run.values() for run in runs), strict=True)]
        panel.plot(steps, [median(each) for each in at_steps], label=name, color=colour, linestyle=style, linewidth=1.7)
        if len(runs) > 1:
            lowest, highest = [min(each) for each in at_steps], [max(each) for each in at_steps]
            panel.fill_between(steps, lowest, highest, color=colour, alpha=0.2, linewidth=0)
    panel.set_yscale("log")
    few = FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "125" else "")
    low, high = panel.get_ylim()
    ticks = [*panel.get_yticks(), *panel.get_yticks(minor=True)]
    if sum(low <= tick <= high and few(tick, 0) != "" for tick in ticks) < 2:  # it shows only a part of a decade
        panel.yaxis.set_major_locator(MaxNLocator(5))
        panel.yaxis.set_minor_locator(NullLocator())
        few = FuncFormatter(lambda value, _: f"{value:g}")
    for numbers in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        numbers(few)
    panel.set_xlabel("step", fontsize=9, color=INK)
    panel.set_ylabel(what, fontsize=9, color=INK)
    panel.tick_params(labelsize=9, which="both")
    panel.grid(color="#DDDDDD", linewidth=0.6)
    panel.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return picture
