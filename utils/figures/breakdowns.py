"""Where the ranks' time went: a bar for the mean and for each rank, in parts that add up to the elapsed time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.patches import Patch

from ..text import rank_sets
from .picture import GREY, INK, PAPER, SECONDS, Look, Picture, fitting, margin
from .work import WORK

if TYPE_CHECKING:
    from ..report.breakdown import Breakdown

WIDTH, TALL, ABOVE, BELOW, RIGHT = 9, 0.34, 0.45, 0.62, 0.2  # inches
MAX_BARS = 24
COLUMNS = 4  # legend columns
SOLID = {
    "matmul": "#85C285",
    "memory-bound": "#A394FF",
    "launch": "#D1F066",
    "computing and the rest": "#85C285",
    "messages": WORK["send"],
}
GROUPS = ("#D55E00", "#C2A357", "#6675D1", "#F01A57")
HATCHED = {
    "waits for messages": "//////",
    "waits for slower ranks": "\\\\\\\\\\\\",
    "other": "++",
    "idle at the end": "....",
}


def breakdown(parts: Breakdown) -> Picture:
    groups = parts.equal_ranks()
    places = rank_sets.spread(len(groups), MAX_BARS, ())
    bars = {"mean": parts.mean}
    bars |= {rank_sets.lane_name(groups[i]).replace("\n", " "): parts.parts[groups[i][0]] for i in places}
    lines = -(-len(parts.names) // COLUMNS)
    left, height = margin(list(bars), 9) + 0.1, ABOVE + TALL * len(bars) + BELOW + 0.2 * lines
    picture = Picture(WIDTH, height, parts.summary())
    below = BELOW + 0.2 * lines
    picture.subplots_adjust(left / WIDTH, below / height, 1 - RIGHT / WIDTH, 1 - ABOVE / height)
    panel = picture.subplots()
    unit, seconds = fitting(SECONDS, parts.elapsed)
    looks = looks_of(parts.names)
    for place, bar in enumerate(bars.values()):
        start = 0.0
        for name in parts.names:
            panel.barh(place, bar.get(name, 0.0) / seconds, 0.8 if place else 0.92, start, **looks[name])
            start += bar.get(name, 0.0) / seconds
    panel.set(xlim=(0, (parts.elapsed or 1) / seconds), ylim=(len(bars) - 0.4, -0.6))
    panel.set_yticks(range(len(bars)), list(bars))
    panel.set_xlabel(f"{unit} in each part, not in the order of time", color=INK, fontsize=9)
    panel.tick_params(colors=INK, labelsize=9, length=0)
    panel.spines[:].set_visible(False)
    look: Look = {"frameon": False, "fontsize": 9, "labelcolor": INK, "ncols": COLUMNS, "borderaxespad": 0}
    handles = [Patch(label=name, **looks[name]) for name in parts.names]
    picture.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 0.08 / height), **look)
    return picture


def looks_of(names: list[str]) -> dict[str, Look]:
    """Solid colours for computing and communicating, stripes for waiting, dots for the rest."""
    groups = [name for name in names if name not in (*SOLID, *HATCHED)]
    colours = {**SOLID, **{name: GROUPS[number % len(GROUPS)] for number, name in enumerate(groups)}}
    looks: dict[str, Look] = {
        name: {"facecolor": colour, "edgecolor": PAPER, "linewidth": 0.5} for name, colour in colours.items()
    }
    for name, hatch in HATCHED.items():
        looks[name] = {"facecolor": PAPER, "edgecolor": GREY, "hatch": hatch, "linewidth": 0}
    return looks
