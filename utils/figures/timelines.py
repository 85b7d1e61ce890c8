"""Who computed and who communicated when: a lane for each rank, its regions above its calls."""

import math
import re
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch, Rectangle

from utils import lanes
from utils.figures.picture import GREY, INK, KINDS, PAPER, SECONDS, Picture, fitting

WIDTH, LEFT, RIGHT = 11, 0.07, 0.985  # of the picture, in inches; of its panel, as parts of that
COLUMNS = 8  # of the legend
STRIPES, DOTS = "//////", "...."
BUBBLE = {"facecolor": "#F4F4F4", "edgecolor": "#C8C8C8", "hatch": DOTS, "linewidth": 0}
NESTED = 0.34  # by how much of the band an inner region is lower than the outer one


def timeline(run, within: str | None = None) -> Picture:
    """All of a run, or what happened from the first start of the region `within` on any rank to its last end.

    A region is pale while its rank sits in a blocking call. Calls in flight at the same time lie above each other.
    A bubble is time, from the first region of any rank to the last, in which a rank that has regions is in none.
    """
    start, end = span_of(run, within)
    kinds, size = kinds_of(run, start, end), run.world_size
    inches = 0.88 if size <= 4 else 0.58 if size <= 8 else 0.44  # of a lane
    below = 0.62 + 0.2 * math.ceil(len(kinds) / COLUMNS)
    height = 0.45 + inches * size + below
    picture = Picture(WIDTH, height, f"{repr(run)[4:-1]}: compute above communication")
    picture.subplots_adjust(left=LEFT, right=RIGHT, bottom=below / height, top=1 - 0.45 / height)
    look = {"frameon": False, "fontsize": 9, "labelcolor": INK, "ncols": COLUMNS, "borderaxespad": 0}
    picture.legend(handles=kinds, loc="upper center", bbox_to_anchor=(0.5, (below - 0.5) / height), **look)
    unit, seconds = fitting(SECONDS, end - start)
    panel = picture.subplots()
    panel.set(xlim=(0, (end - start) / seconds), ylim=(size, 0))
    panel.set_yticks([rank + 0.5 for rank in range(size)], [f"rank {rank}" for rank in range(size)])
    panel.set_xlabel(f"{unit} since the first " + ("bar" if within is None else repr(within)), color=INK, fontsize=9)
    panel.tick_params(axis="y", length=0, colors=INK, labelsize=9)
    panel.tick_params(axis="x", colors=INK, labelsize=9)
    panel.spines[:].set_visible(False)
    draw_lanes(Pen(panel, start, end, seconds, inches, colours_of(run)), run)
    return picture


def span_of(run, within: str | None) -> tuple[float, float]:
    """(start, end) of what is drawn."""
    bars = [*run.regions, *run.events] if within is None else [r for r in run.regions if r.name == within]
    if not bars:
        names = ", ".join(dict.fromkeys(repr(region.name) for region in run.regions))
        raise ValueError(
            f"no rank was in a region {within!r}; the regions of this run: {names or 'none'}."
            if within is not None
            else "there is nothing to draw: no rank called the network or named what it computes. "
            'In the rank program: `with region("forward"): ...` (from utils import region).'
        )
    regions, events = (run.regions, run.events) if within is None else (bars, [])
    first, last = lanes.first_moment(events, regions), lanes.last_moment(events, regions)
    return first, max(last, first + 1e-9)


def colours_of(run) -> dict[str, str]:
    """{kind of region or name of operation: colour}, the same in every run of a program."""
    kinds = [lanes.stem(region.name) for region in run.regions] + [event.op for event in run.events]
    return {kind: KINDS[number % len(KINDS)] for number, kind in enumerate(dict.fromkeys(kinds))}


def kinds_of(run, start: float, end: float) -> list[Patch]:
    """The legend: what there is between `start` and `end`."""
    last = lanes.last_moment(run.events, run.regions)
    regions = [r for r in run.regions if r.start < end and r.end > start]
    events = [e for e in run.events if e.start < end and (last if e.end is None else e.end) > start]
    seen = {lanes.stem(region.name) for region in regions} | {event.op for event in events}
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in colours_of(run).items() if kind in seen]
    if any(not event.is_async for event in events):
        patches.append(
            Patch(facecolor=PAPER, edgecolor=INK, hatch=STRIPES, linewidth=0, label="blocking: the rank waits")
        )
    if regions:
        patches.append(Patch(**BUBBLE, label="bubble"))
    return patches


@dataclass
class Pen:
    """Draws bars on a panel, from seconds of the run and heights in lanes."""

    panel: Axes
    start: float
    end: float
    seconds: float  # that one unit of the panel is
    inches: float  # of a lane
    colours: dict[str, str]

    def bar(self, start: float, end: float, y: float, height: float, what: str, **look) -> None:
        """`what` says what it is, "compute: forward 3" say; nothing is drawn of what lies outside of the picture."""
        start, end = max(start, self.start), min(end, self.end)
        if start <= end:
            x, width = (start - self.start) / self.seconds, (end - start) / self.seconds
            self.panel.add_patch(Rectangle((x, y), width, height, gid=what, **look))

    def label(self, start: float, end: float, y: float, height: float, name: str, on_stripes=False) -> None:
        """The name in the middle of a bar, or its number alone, or nothing: what there is room for."""
        start, end = max(start, self.start), min(end, self.end)
        room = (end - start) / (self.end - self.start) * WIDTH * (RIGHT - LEFT) * 72  # points
        size = min(8.5, height * self.inches * 72 * 0.8)
        texts = [name, "".join(re.findall(r"\d+$", name))]
        fits = [text for text in texts if text and len(text) * 0.62 * size + 2 <= room]
        if fits and size >= 6:
            x = ((start + end) / 2 - self.start) / self.seconds
            ground = {"facecolor": PAPER, "alpha": 0.7, "linewidth": 0, "pad": 0.4} if on_stripes else None
            look = {"ha": "center", "va": "center_baseline", "color": "black", "fontsize": size, "zorder": 5}
            self.panel.text(x, y + height / 2, fits[0], bbox=ground, **look)


def draw_lanes(pen: Pen, run) -> None:
    """All ranks; in a run without regions, or without calls, the whole lane is for what there is."""
    compute = (0.08, 0.48 if run.events else 0.84)  # from where in the lane, and how much of it
    calls = (0.6, 0.32) if run.regions else (0.1, 0.8)
    first, last = lanes.first_moment([], run.regions), lanes.last_moment([], run.regions)
    end = lanes.last_moment(run.events, run.regions)
    regions_of, events_of = lanes.by_rank(run.regions, run.world_size), lanes.by_rank(run.events, run.world_size)
    for rank, (regions, events) in enumerate(zip(regions_of, events_of, strict=True)):
        pen.panel.axhline(rank, color=GREY, linewidth=0.5, zorder=0)
        top, height = rank + compute[0], compute[1]
        draw_compute(pen, regions, top, height)
        for span in lanes.bubbles(regions, first, last):
            pen.bar(*span, top, height, "bubble", **BUBBLE)
        for span in lanes.blocked(regions, events):
            pen.bar(*span, top, height, "blocked", facecolor=PAPER, alpha=0.6, linewidth=0, zorder=3)
        draw_calls(pen, events, rank + calls[0], calls[1], end)


def draw_compute(pen: Pen, regions: list, y: float, height: float) -> None:
    nested = lanes.depths(regions)
    deepest = max((depth for _, depth in nested), default=0)
    step = height * min(NESTED, 0.8 / max(1, deepest))
    for (region, depth), (_, next_depth) in zip(nested, [*nested[1:], (None, 0)], strict=False):
        top, tall = y + depth * step, height - depth * step
        colour = pen.colours[lanes.stem(region.name)]
        look = {"facecolor": colour, "edgecolor": PAPER if depth else colour, "linewidth": 0.5}
        pen.bar(region.start, region.end, top, tall, f"compute: {region.name}", zorder=1 + depth / 100, **look)
        pen.label(region.start, region.end, top, step if next_depth > depth else tall, region.name)


def draw_calls(pen: Pen, events: list, y: float, height: float, last: float) -> None:
    """Full: the rank can go on meanwhile. Stripes: it sits and waits. Dotted outline: nobody waited for the end."""
    placed = lanes.rows(events, last)
    tall = height / max((row + 1 for _, row in placed), default=1)
    for event, row in placed:
        colour, end = pen.colours[event.op], last if event.end is None else event.end
        look = {"facecolor": colour, "edgecolor": colour, "linewidth": 0.6}
        if not event.is_async:
            look |= {"facecolor": to_rgba(colour, 0.25), "edgecolor": darker(colour), "hatch": STRIPES}
        elif event.end is None:
            look |= {"facecolor": to_rgba(colour, 0.25), "edgecolor": INK, "linestyle": ":"}
        kind = "asynchronous" if event.is_async else "blocking"
        pen.bar(event.start, end, y + row * tall, tall * 0.88, f"{kind}: {event.op}", **look)
        pen.label(event.start, end, y + row * tall, tall * 0.88, event.op, on_stripes=not event.is_async)


def darker(colour: str) -> tuple[float, ...]:
    """Stripes of it can be seen on white paper, also if it is yellow."""
    return tuple(0.75 * part for part in to_rgba(colour)[:3])
