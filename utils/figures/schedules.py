"""A pipeline: its stages and what travels between them, and its schedule, with a row per rank and a box per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from ..kit.pipeline_schedule import Schedules, Step, costs_of, read, run_through
from .picture import GREY, INK, PAPER, TYPE, WIDEST, Look, Picture, ground
from .work import SHADES

NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}
COLOURS = {kind: SHADES[name] for kind, name in NAMES.items()}
DEADLOCK = "#CC2222"


def pipeline(layers: list[str]) -> Picture:
    """The stages side by side, and what crosses their boundaries. layers[r]: the text in rank r's box."""
    picture = Picture(WIDEST, 1.9, "activations go forward, the gradient of each stage's input comes back")
    panel = picture.bare_panel((0.01, 0.02, 0.98, 0.78), (-0.35, 2 * len(layers) - 0.65), (-0.1, 1.1))
    for rank, words in enumerate(layers):
        left = 2 * rank
        panel.add_patch(Rectangle((left, 0.1), 1, 0.8, facecolor=COLOURS["F"][1], edgecolor=INK, linewidth=0.9))
        panel.text(left + 0.5, 0.5, f"rank {rank}\n{words}", ha="center", va="center", color="black", fontsize=9)
        if rank + 1 < len(layers):
            arrow(panel, left + 1.08, left + 1.92, 0.68, "y", COLOURS["F"][2])
            arrow(panel, left + 1.92, left + 1.08, 0.26, "gradient of y", COLOURS["B"][2])
    return picture


def arrow(panel: Axes, start: float, end: float, height: float, words: str, colour: str) -> None:
    look: Look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8}
    panel.annotate("", (end, height), (start, height), arrowprops=look)
    panel.text((start + end) / 2, height + 0.06, words, ha="center", va="bottom", color=INK, fontsize=9)


def schedule(
    schedules: Schedules, title: str = "", costs: Mapping[str, float] | None = None, beside: Schedules | None = None
) -> Picture:
    """Each rank's steps over time, if messages take no time. The number in a box is the microbatch; white is idle.

    If the schedule deadlocks: the steps that can be taken and, in red, the one that each rank waits to take.
    costs   seconds per step of each kind; by default F 1 and B 2, or F, B and W 1 each
    beside  another schedule, to compare with: the time axis is as long as the longer of the two needs

    Raises ValueError for a malformed step.
    """
    steps, given = read(schedules), costs
    costs = costs or costs_of(steps)
    slots, waiting = run_through(steps, costs)
    waits_from = {rank: max([slot.end for slot in slots if slot.rank == rank], default=0.0) for rank in waiting}
    ends = [slot.end for slot in slots] + [start + costs[waiting[rank][0].kind] for rank, start in waits_from.items()]
    if beside is not None:
        others = read(beside)
        ends += [slot.end for slot in run_through(others, costs_of(others) if given is None else given)[0]]
    end, ranks = max(ends, default=1.0), len(steps)
    picture = Picture(WIDEST, 1.4 + 0.4 * ranks, title or "schedule")
    panel = picture.subplots()
    picture.subplots_adjust(0.07, 0.87 / picture.get_figheight(), 0.985, 1 - 0.42 / picture.get_figheight())
    end = max(end, 4 * max(costs.values()))  # keeps the picture readable if nothing can run
    panel.set(xlim=(-0.003 * end, 1.003 * end), ylim=(ranks, 0))
    panel.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    panel.set_xlabel("seconds", color=INK, fontsize=9)
    panel.tick_params(length=0, colors=INK, labelsize=9)
    panel.spines[:].set_visible(False)
    room = 0.9 * WIDEST / end  # inches per second
    for rank, step, start, stop in slots:
        colours = COLOURS[step.kind]
        box(panel, rank, start, stop, str(step.microbatch), room, facecolor=colours[step.chunk % len(colours)])
    for rank, start in waits_from.items():
        step = waiting[rank][0]
        look: Look = {"facecolor": PAPER, "edgecolor": DEADLOCK, "linestyle": "--"}
        box(panel, rank, start, start + costs[step.kind], f"{step.kind}{step.microbatch}", room, **look)
    picture.legend(handles=legend(steps, bool(waiting)), loc="lower center", ncols=8, frameon=False, fontsize=9)
    return picture


def box(panel: Axes, rank: int, start: float, end: float, text: str, room: float, **look: Any) -> None:
    style: Look = {"edgecolor": INK, "linewidth": 0.7, **look}
    panel.add_patch(Rectangle((start, rank + 0.06), end - start, 0.88, **style))
    if 0.65 * len(text) * TYPE <= (end - start) * room * 72:
        letters: Look = {"ha": "center", "va": "center_baseline", "color": "black", "fontsize": TYPE}
        panel.text((start + end) / 2, rank + 0.5, text, bbox=ground(style["facecolor"]), **letters)


def legend(schedules: list[list[Step]], deadlocked: bool) -> list[Patch]:
    """A patch for each kind of step and chunk in the schedules."""
    there = sorted(
        {(step.kind, step.chunk) for steps in schedules for step in steps}, key=lambda k: ("FBW".index(k[0]), k)
    )
    chunks = any(chunk for _, chunk in there)
    handles = [
        Patch(
            facecolor=COLOURS[kind][chunk % 4],
            edgecolor=INK,
            linewidth=0.7,
            label=NAMES[kind] + (f", chunk {chunk}" if chunks else ""),
        )
        for kind, chunk in there
    ]
    if deadlocked:
        handles.append(Patch(facecolor=PAPER, edgecolor=DEADLOCK, linestyle="--", label="waits forever"))
    return [*handles, Patch(facecolor=PAPER, edgecolor=GREY, linewidth=0.4, label="idle")]
