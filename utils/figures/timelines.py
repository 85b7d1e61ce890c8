"""Who computed and who communicated when: a lane per rank, with its regions above its calls."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from ..events import bars
from ..events.event import Event, Region
from ..text import rank_sets
from .pen import Pen
from .picture import GREY, INK, PAPER, SECONDS, TYPE, WIDEST, Look, Picture, fitting, ground, margin
from .work import colours_of_work

if TYPE_CHECKING:
    from ..report.run import Run

LEFT, RIGHT = 0.77, 0.165  # inches: the least margins beside the panel
COLUMNS = 7  # legend columns
MAX_LANES = 64
STRIPES, DOTS = "//////", "...."
BUBBLE: Look = {"facecolor": "#F4F4F4", "edgecolor": "#C8C8C8", "hatch": DOTS, "linewidth": 0}
WAITS: Look = {"facecolor": (1, 1, 1, 0.75), "edgecolor": GREY, "hatch": STRIPES, "linewidth": 0, "zorder": 3}
DENSE = 100  # regions in a lane; from there on, outlines would paint over the neighbours
NESTED = 0.34  # part of the band by which an inner region is lower than its outer one


@dataclass
class Lane:
    """The ranks that share a lane, and what each of them did in the time shown."""

    ranks: list[int]
    regions: list[Region]
    events: list[Event]
    bubbles: list[tuple[float, float]]

    def idle(self, start: float, end: float) -> float:
        """Seconds that they waited for calls or were outside all regions."""
        spans = bars.busy(self.bubbles + bars.waiting(self.events))
        return sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)


def timeline(
    run: Run, within: str | None = None, ranks: Sequence[int] | None = None, beside: Run | None = None
) -> Picture:
    """A whole run, or the time from the first start of the region `within` on any rank to its last end.

    A region is pale and striped while its rank waits for a call. Calls in flight at the same time are stacked. A bubble
    is time between the first region of any rank and the last in which a rank that has regions is in none of them.

    beside  another Run, to compare with: the time axis is as long as the longer of the two needs
    ranks   which to show, with the times and colours of the full picture. If there are more than rank_sets.FEW, those
            that do the same at the same time share a lane, whatever their peers; at most MAX_LANES lanes are shown.

    Raises ValueError if there is nothing to draw, no such region, or no such rank.
    """
    start, end = span_of(run, within)
    if beside is not None:
        other_start, other_end = span_of(beside, within)
        end = max(end, start + other_end - other_start)
    every = lanes_of(run, shown(run, ranks), start, end)
    drawn, note = chosen(every, start, end)
    kinds = kinds_of(run, drawn)
    above, below = 0.45 + (0.24 if note else 0), 0.62 + 0.2 * math.ceil(len(kinds) / COLUMNS)
    tall = height_of(len(drawn))
    names = [rank_sets.lane_name(lane.ranks) for lane in drawn]
    names = names if tall > 0.4 else [name.replace("\n", " ") for name in names]
    left, height = max(LEFT, margin(names, TYPE)), above + tall * len(drawn) + below
    rows = [row for row, bars_of in (("compute", run.regions), ("communication", run.events)) if bars_of]
    picture = Picture(WIDEST, height, f"{repr(run)[4:-1]}: {' above '.join(rows)}")
    picture.subplots_adjust(left / WIDEST, below / height, 1 - RIGHT / WIDEST, 1 - above / height)
    look: Look = {"frameon": False, "fontsize": 9, "labelcolor": INK, "ncols": COLUMNS, "borderaxespad": 0}
    picture.legend(handles=kinds, loc="upper center", bbox_to_anchor=(0.5, (below - 0.5) / height), **look)
    unit, seconds = fitting(SECONDS, end - start)
    panel = picture.subplots()
    panel.set(xlim=(0, (end - start) / seconds), ylim=(len(drawn), 0))
    panel.set_title(note, color=INK, fontsize=9)
    panel.set_yticks([place + 0.5 for place in range(len(drawn))], names)
    panel.set_xlabel(f"{unit} since the first " + ("bar" if within is None else repr(within)), color=INK, fontsize=9)
    panel.tick_params(axis="y", length=0, colors=INK, labelsize=TYPE)
    panel.tick_params(axis="x", colors=INK, labelsize=9)
    panel.spines[:].set_visible(False)
    draw_lanes(Pen(panel, start, end, seconds, WIDEST - left - RIGHT, tall), run, drawn)
    return picture


def height_of(number: int) -> float:
    """Inches of each of so many lanes: 16 fit on a screen, and in four there is room for names in two rows."""
    heights = ((4, 1.0), (8, 0.56), (16, 0.38), (32, 0.25), (MAX_LANES, 0.14))
    return next(tall for most, tall in heights if number <= most)


def shown(run: Run, ranks: Sequence[int] | None) -> list[int]:
    """The requested ranks, without duplicates. Raises ValueError if there are none, or if one does not exist."""
    asked = list(range(run.world_size)) if ranks is None else list(dict.fromkeys(ranks))
    unknown = [rank for rank in asked if rank not in range(run.world_size)]
    if unknown or not asked:
        raise ValueError(
            f"timeline(ranks=...) takes some of the ranks 0 to {run.world_size - 1}; "
            + (f"there is no rank {unknown[0]}." if unknown else "it got none.")
        )
    return asked


def lanes_of(run: Run, ranks: list[int], start: float, end: float) -> list[Lane]:
    """Ranks whose bars look alike share a lane; their peers and groups may differ."""
    first, last = bars.first_moment([], run.regions), bars.last_moment([], run.regions)
    until = bars.last_moment(run.events, run.regions)
    size, runs_as = run.world_size, run.runs_as
    all_regions = bars.by_rank(run.regions, size, runs_as)
    regions_of = bars.by_rank([r for r in run.regions if seen(r, start, end, until)], size, runs_as)
    events_of = bars.by_rank([e for e in run.events if seen(e, start, end, until)], size, runs_as)

    @functools.cache
    def looks(rank: int) -> tuple[object, ...]:
        regions = tuple((r.name, r.start, r.end) for r in regions_of[rank])
        calls = tuple((e.op, e.start, e.end, e.waited, e.is_async, e.bytes) for e in events_of[rank])
        return bool(all_regions[rank]), regions, calls  # a rank without regions has no bubbles

    return [
        Lane(same, regions_of[same[0]], events_of[same[0]], bars.bubbles(all_regions[same[0]], first, last))
        for same in rank_sets.group_alike(ranks, (looks(run.ran_as(rank)) for rank in ranks))
    ]


def seen(bar: Region | Event, start: float, end: float, until: float) -> bool:
    """Whether part of it lies between `start` and `end`; if it has no end, it lasts until `until`."""
    stop = until if bar.end is None else bar.end
    return (bar.start < end and stop > start) or start <= bar.start == stop <= end


def chosen(every: list[Lane], start: float, end: float) -> tuple[list[Lane], str]:
    """(the lanes to draw, a note about the others)."""
    if len(every) <= MAX_LANES:
        return every, ""
    latest = max(range(len(every)), key=lambda i: bars.last_moment(every[i].events, every[i].regions))
    idlest = max(range(len(every)), key=lambda i: every[i].idle(start, end))
    places = rank_sets.spread(len(every), MAX_LANES, (latest, idlest))
    note = (
        f"{len(places)} of {len(every):,} different lanes, among them the last to finish (rank "
        f"{every[latest].ranks[0]}) and the one that waits most (rank {every[idlest].ranks[0]})"
    )
    return [every[place] for place in places], note + "; others: timeline(ranks=[...])"


def span_of(run: Run, within: str | None) -> tuple[float, float]:
    """(start, end) of the time shown."""
    regions = [region for region in run.regions if within in (None, region.name)]
    events = run.events if within is None else []
    if not regions and not events:
        names = ", ".join(dict.fromkeys(repr(region.name) for region in run.regions))
        raise ValueError(
            f"no rank entered a region {within!r}; the regions of this run: {names or 'none'}."
            if within is not None
            else "there is nothing to draw: no rank communicated or entered a region. Mark regions in the rank "
            'program: `with region("forward"): ...` (region is imported like spawn).'
        )
    first, last = bars.first_moment(events, regions), bars.last_moment(events, regions)
    return first, max(last, first + 1e-9)


def colours_of(run: Run) -> dict[str, str]:
    """{kind of region or operation: colour}, the same in every picture."""
    kinds = [bars.stem(region.name) for region in run.regions] + [event.op for event in run.events]
    return colours_of_work(dict.fromkeys(kinds))


def kinds_of(run: Run, drawn: list[Lane]) -> list[Patch]:
    """The legend of what occurs in these lanes."""
    regions = [region for lane in drawn for region in lane.regions]
    events = [event for lane in drawn for event in lane.events]
    there = {bars.stem(region.name) for region in regions} | {event.op for event in events}
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in colours_of(run).items() if kind in there]
    if any(not event.is_async or event.waited is not None for event in events):
        patches.append(Patch(facecolor=PAPER, edgecolor=INK, hatch=STRIPES, linewidth=0, label="the rank waits"))
    if any(lane.bubbles for lane in drawn):
        patches.append(Patch(**BUBBLE, label="bubble"))
    return patches


def draw_lanes(pen: Pen, run: Run, drawn: list[Lane]) -> None:
    """Regions above calls; if the run has only one of the two, it fills the lane."""
    compute = (0.08, 0.48 if run.events else 0.84)  # (top, height), as parts of a lane
    calls = (0.6, 0.32) if run.regions else (0.1, 0.8)
    end, colours = bars.last_moment(run.events, run.regions), colours_of(run)
    for place, lane in enumerate(drawn):
        pen.panel.axhline(place, color=GREY, linewidth=0.5, zorder=0)
        top, height = place + compute[0], compute[1]
        draw_compute(pen, lane.regions, top, height, colours)
        for span in lane.bubbles:
            pen.bar(*span, top, height, "bubble", **BUBBLE)
        for span in bars.blocked(lane.regions, lane.events):
            pen.bar(*span, top, height, "blocked", **WAITS)
        draw_calls(pen, lane.events, place + calls[0], calls[1], colours, end)
    pen.finish()


def draw_compute(pen: Pen, regions: list[Region], y: float, height: float, colours: dict[str, str]) -> None:
    nested = bars.depths(regions)
    deepest = max((depth for _, depth in nested), default=0)
    step = height * min(NESTED, 0.8 / max(1, deepest))
    outline = 0.5 if len(regions) <= DENSE else 0
    for (region, depth), (_, next_depth) in zip(nested, [*nested[1:], (None, 0)], strict=False):
        top, tall, kind = y + depth * step, height - depth * step, bars.stem(region.name)
        edge = PAPER if depth else darker(colours[kind])
        look: Look = {"facecolor": colours[kind], "edgecolor": edge, "linewidth": outline}
        pen.bar(region.start, region.end, top, tall, f"compute: {kind}", zorder=1 + depth / 100, **look)
        pen.label(
            region.start, region.end, top, step if next_depth > depth else tall, region.name, ground(colours[kind])
        )


def draw_calls(pen: Pen, events: list[Event], y: float, height: float, colours: dict[str, str], last: float) -> None:
    """Solid: the rank can go on meanwhile. Striped: it waits. Dotted outline: it never waited for the call to end."""
    placed = bars.rows(events, last)
    tall = height / max((row + 1 for _, row in placed), default=1)
    for event, row in placed:
        colour, end = colours[event.op], last if event.end is None else event.end
        look: Look = {"facecolor": colour, "edgecolor": darker(colour), "linewidth": 0.6}
        if not event.is_async:
            look |= {"facecolor": to_rgba(colour, 0.25), "edgecolor": darker(colour), "hatch": STRIPES}
        elif event.end is None:
            look |= {"facecolor": to_rgba(colour, 0.25), "edgecolor": INK, "linestyle": ":"}
        kind = "asynchronous" if event.is_async else "blocking"
        pen.bar(event.start, end, y + row * tall, tall * 0.88, f"{kind}: {event.op}", **look)
        pen.label(
            event.start, end, y + row * tall, tall * 0.88, event.op, ground(colour, on_stripes=not event.is_async)
        )


def darker(colour: str) -> tuple[float, ...]:
    """A shade whose stripes are visible on white, even for yellow, and whose edge parts equal neighbours."""
    return tuple(0.75 * part for part in to_rgba(colour)[:3])
