"""Who computed and who communicated when: a lane for each rank, its regions above its calls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from ..events import bars
from ..events.event import Event, Region
from ..text import rank_sets
from .pen import Pen
from .picture import GREY, INK, KINDS, PAPER, SECONDS, Picture, fitting, margin

WIDTH, LEFT, RIGHT = 11, 0.77, 0.165  # inches: of the picture, and beside its panel at least
COLUMNS = 8  # of the legend
MOST_LANES = 64
STRIPES, DOTS = "//////", "...."
BUBBLE = {"facecolor": "#F4F4F4", "edgecolor": "#C8C8C8", "hatch": DOTS, "linewidth": 0}
DENSE = 100  # regions in a lane; with outlines, of that many the neighbours would be painted over
NESTED = 0.34  # by how much of the band an inner region is lower than the outer one


@dataclass
class Lane:
    """The ranks that share it, and what one of them did in the time that is drawn."""

    ranks: list[int]
    regions: list[Region]
    events: list[Event]
    bubbles: list[tuple[float, float]]

    def idle(self, start: float, end: float) -> float:
        """Seconds that they sat in blocking calls or in no region."""
        spans = bars.busy(self.bubbles + bars.waiting(self.events))
        return sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)


def timeline(run, within: str | None = None, ranks: Sequence[int] | None = None) -> Picture:
    """All of a run, or what happened from the first start of the region `within` on any rank to its last end.

    A region is pale while its rank sits in a blocking call. Calls in flight at the same time lie above each other.
    A bubble is time, from the first region of any rank to the last, in which a rank that has regions is in none.

    ranks   which to show; the times and the colours stay those of all. Of more than alike.FEW those share a lane that
            do the same at the same time, whoever with; of more than MOST_LANES lanes some are shown.
    """
    start, end = span_of(run, within)
    every = lanes_of(run, shown(run, ranks), start, end)
    drawn, note = chosen(every, start, end)
    kinds = kinds_of(run, drawn)
    above, below = 0.45 + (0.24 if note else 0), 0.62 + 0.2 * math.ceil(len(kinds) / COLUMNS)
    tall, fontsize = size_of(len(drawn))
    names = [rank_sets.lane_name(lane.ranks) for lane in drawn]
    names = names if tall > 0.4 else [name.replace("\n", " ") for name in names]
    left, height = max(LEFT, margin(names, fontsize)), above + tall * len(drawn) + below
    picture = Picture(WIDTH, height, f"{repr(run)[4:-1]}: compute above communication")
    picture.subplots_adjust(left / WIDTH, below / height, 1 - RIGHT / WIDTH, 1 - above / height)
    look = {"frameon": False, "fontsize": 9, "labelcolor": INK, "ncols": COLUMNS, "borderaxespad": 0}
    picture.legend(handles=kinds, loc="upper center", bbox_to_anchor=(0.5, (below - 0.5) / height), **look)
    unit, seconds = fitting(SECONDS, end - start)
    panel = picture.subplots()
    panel.set(xlim=(0, (end - start) / seconds), ylim=(len(drawn), 0))
    panel.set_title(note, color=INK, fontsize=9)
    panel.set_yticks([place + 0.5 for place in range(len(drawn))], names)
    panel.set_xlabel(f"{unit} since the first " + ("bar" if within is None else repr(within)), color=INK, fontsize=9)
    panel.tick_params(axis="y", length=0, colors=INK, labelsize=fontsize)
    panel.tick_params(axis="x", colors=INK, labelsize=9)
    panel.spines[:].set_visible(False)
    draw_lanes(Pen(panel, start, end, seconds, WIDTH - left - RIGHT, tall), run, drawn)
    return picture


def size_of(number: int) -> tuple[float, float]:
    """(inches of a lane, points of its name), so that 16 lanes, and 64, fit on a screen."""
    sizes = ((4, 0.88, 9), (8, 0.58, 9), (16, 0.44, 9), (32, 0.25, 8), (MOST_LANES, 0.155, 7))
    return next((tall, fontsize) for most, tall, fontsize in sizes if number <= most)


def shown(run, ranks: Sequence[int] | None) -> list[int]:
    """The ranks that were asked for; ValueError if there are none, or not such ones."""
    asked = list(range(run.world_size)) if ranks is None else list(dict.fromkeys(ranks))
    strangers = [rank for rank in asked if rank not in range(run.world_size)]
    if strangers or not asked:
        raise ValueError(
            f"timeline(ranks=...) takes some of the ranks 0 to {run.world_size - 1}; "
            + (f"there is no rank {strangers[0]}." if strangers else "it got none.")
        )
    return asked


def lanes_of(run, ranks: list[int], start: float, end: float) -> list[Lane]:
    """Ranks whose bars look alike share a lane; their peers and groups may be others."""
    first, last = bars.first_moment([], run.regions), bars.last_moment([], run.regions)
    until = bars.last_moment(run.events, run.regions)
    all_regions = bars.by_rank(run.regions, run.world_size)
    regions_of = bars.by_rank([r for r in run.regions if seen(r, start, end, until)], run.world_size)
    events_of = bars.by_rank([e for e in run.events if seen(e, start, end, until)], run.world_size)

    def looks(rank: int) -> tuple:
        regions = tuple((r.name, r.start, r.end) for r in regions_of[rank])
        calls = tuple((e.op, e.start, e.end, e.is_async, e.bytes) for e in events_of[rank])
        return bool(all_regions[rank]), regions, calls  # without any region there is no bubble either

    return [
        Lane(same, regions_of[same[0]], events_of[same[0]], bars.bubbles(all_regions[same[0]], first, last))
        for same in rank_sets.group_alike(ranks, map(looks, ranks))
    ]


def seen(bar: Region | Event, start: float, end: float, until: float) -> bool:
    """Whether anything of it lies between `start` and `end`; without an end of its own it lasts `until` then."""
    stop = until if bar.end is None else bar.end
    return (bar.start < end and stop > start) or start <= bar.start == stop <= end


def chosen(every: list[Lane], start: float, end: float) -> tuple[list[Lane], str]:
    """(the lanes to draw, what to say of the others)."""
    if len(every) <= MOST_LANES:
        return every, ""
    latest = max(range(len(every)), key=lambda i: bars.last_moment(every[i].events, every[i].regions))
    idlest = max(range(len(every)), key=lambda i: every[i].idle(start, end))
    places = rank_sets.spread(len(every), MOST_LANES, (latest, idlest))
    note = (
        f"{len(places)} of {len(every):,} different lanes, evenly spread; the last to finish, rank "
        f"{every[latest].ranks[0]}, and the one that waits most, rank {every[idlest].ranks[0]}, are among them"
    )
    return [every[place] for place in places], note + ". Others: timeline(ranks=[...])"


def span_of(run, within: str | None) -> tuple[float, float]:
    """(start, end) of what is drawn."""
    chosen = [*run.regions, *run.events] if within is None else [r for r in run.regions if r.name == within]
    if not chosen:
        names = ", ".join(dict.fromkeys(repr(region.name) for region in run.regions))
        raise ValueError(
            f"no rank was in a region {within!r}; the regions of this run: {names or 'none'}."
            if within is not None
            else "there is nothing to draw: no rank called the network or named what it computes. "
            'In the rank program: `with region("forward"): ...` (region is imported like spawn).'
        )
    regions, events = (run.regions, run.events) if within is None else (chosen, [])
    first, last = bars.first_moment(events, regions), bars.last_moment(events, regions)
    return first, max(last, first + 1e-9)


def colours_of(run) -> dict[str, str]:
    """{kind of region or name of operation: colour}, the same in every run of a program."""
    kinds = [bars.stem(region.name) for region in run.regions] + [event.op for event in run.events]
    return {kind: KINDS[number % len(KINDS)] for number, kind in enumerate(dict.fromkeys(kinds))}


def kinds_of(run, drawn: list[Lane]) -> list[Patch]:
    """The legend: what there is in these lanes."""
    regions = [region for lane in drawn for region in lane.regions]
    events = [event for lane in drawn for event in lane.events]
    there = {bars.stem(region.name) for region in regions} | {event.op for event in events}
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in colours_of(run).items() if kind in there]
    if any(not event.is_async for event in events):
        patches.append(
            Patch(facecolor=PAPER, edgecolor=INK, hatch=STRIPES, linewidth=0, label="blocking: the rank waits")
        )
    if regions:
        patches.append(Patch(**BUBBLE, label="bubble"))
    return patches


def draw_lanes(pen: Pen, run, drawn: list[Lane]) -> None:
    """In a run without regions, or without calls, the whole lane is for what there is."""
    compute = (0.08, 0.48 if run.events else 0.84)  # from where in the lane, and how much of it
    calls = (0.6, 0.32) if run.regions else (0.1, 0.8)
    end, colours = bars.last_moment(run.events, run.regions), colours_of(run)
    for place, lane in enumerate(drawn):
        pen.panel.axhline(place, color=GREY, linewidth=0.5, zorder=0)
        top, height = place + compute[0], compute[1]
        draw_compute(pen, lane.regions, top, height, colours)
        for span in lane.bubbles:
            pen.bar(*span, top, height, "bubble", **BUBBLE)
        for span in bars.blocked(lane.regions, lane.events):
            pen.bar(*span, top, height, "blocked", facecolor=PAPER, alpha=0.6, linewidth=0, zorder=3)
        draw_calls(pen, lane.events, place + calls[0], calls[1], colours, end)
    pen.finish()


def draw_compute(pen: Pen, regions: list[Region], y: float, height: float, colours: dict[str, str]) -> None:
    nested = bars.depths(regions)
    deepest = max((depth for _, depth in nested), default=0)
    step = height * min(NESTED, 0.8 / max(1, deepest))
    outline = 0.5 if len(regions) <= DENSE else 0
    for (region, depth), (_, next_depth) in zip(nested, [*nested[1:], (None, 0)], strict=False):
        top, tall, kind = y + depth * step, height - depth * step, bars.stem(region.name)
        look = {"facecolor": colours[kind], "edgecolor": PAPER if depth else colours[kind], "linewidth": outline}
        pen.bar(region.start, region.end, top, tall, f"compute: {kind}", zorder=1 + depth / 100, **look)
        pen.label(region.start, region.end, top, step if next_depth > depth else tall, region.name)


def draw_calls(pen: Pen, events: list[Event], y: float, height: float, colours: dict[str, str], last: float) -> None:
    """Full: the rank can go on meanwhile. Stripes: it sits and waits. Dotted outline: nobody waited for the end."""
    placed = bars.rows(events, last)
    tall = height / max((row + 1 for _, row in placed), default=1)
    for event, row in placed:
        colour, end = colours[event.op], last if event.end is None else event.end
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
