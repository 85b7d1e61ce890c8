"""Who computed and who communicated when: a lane per rank, with its regions above its calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from ..diagnosis.words import call_text, op_text, ranks_text
from ..events import bars
from ..events.collectives import POINT_TO_POINT
from ..events.event import Event, Region
from ..events.matching import Matching
from ..text import rank_sets
from ..text.source_lines import place
from .living import Bar, Kind, Lane, Look, Timeline
from .work import colours_of_work

if TYPE_CHECKING:
    from ..report.run import Run

MAX_LANES = 64
WAITS, BUBBLE = Look("blocked", order=2), Look("bubble")
NESTED = 0.34  # part of the band by which an inner region is lower than its outer one


@dataclass
class Alike:
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
    run: Run,
    within: str | None = None,
    ranks: Sequence[int] | None = None,
    beside: Run | None = None,
    title: str | tuple[str, str] = "",
) -> Timeline:
    """A whole run, or the time from the first start of the region `within` on any rank to its last end.

    Stripes show when a rank waits for a call. Calls in flight at the same time are stacked. A bubble is time between
    the first region of any rank and the last in which a rank that has regions is in none of them.

    ranks   which to show, with the times and colours of the full picture; -1 is the last. If there are more than
            rank_sets.FEW, those that do the same at the same time share a lane, whatever their peers; at most
            MAX_LANES lanes are shown.
    beside  another Run, below this one on the same time axis
    title   what is shown; by default the name of the program and the number of ranks. A title for each of two runs

    Raises ValueError if there is nothing to draw, no such region, or no such rank.
    """
    titles = (title, title) if isinstance(title, str) else title
    parts = [Part(one, within, ranks) for one in (run, beside) if one is not None]
    names = [given or title_of(part) for given, part in zip(titles, parts, strict=False)]
    lanes, drawn, first = [], [], 0
    tall = height_of(sum(len(part.drawn) for part in parts))
    for part, name in zip(parts, names, strict=True):
        lanes += [Lane(rank_sets.lane_name(alike.ranks), alike.ranks, tall) for alike in part.drawn]
        lanes[first].heading, lanes[first].note = name * (len(parts) > 1), part.note
        drawn += part.bars(first, link=bool(first))
        first = len(lanes)
    about = "the first bar" if within is None else f"the first {within!r}"
    both = " and ".join(dict.fromkeys(names))
    return Timeline(both, about, max(part.end - part.start for part in parts), lanes, drawn, legend_of(parts))


def title_of(part: Part) -> str:
    """ "one f one b on 4 virtual ranks", or what part of it is shown."""
    run, some = part.run, len({rank for alike in part.every for rank in alike.ranks})
    virtual = "virtual " * (run.world in ("virtual", "graded"))
    of = f"{some:,} of " * (some < run.world_size)
    who = f"{of}{run.world_size:,} {virtual}rank{'s' * (run.world_size > 1)}"
    what = ": ".join(filter(None, (run.program.replace("_", " ").strip(), part.within)))
    return f"{what} on {who}" if what else f"What {who} did"


class Part:
    """What a figure shows of one run."""

    def __init__(self, run: Run, within: str | None, ranks: Sequence[int] | None) -> None:
        self.run, self.within = run, within
        self.start, self.end = span_of(run, within)
        self.every = lanes_of(run, shown(run, ranks), self.start, self.end)
        self.drawn, self.note = chosen(self.every, self.start, self.end)
        self.last, self.colours = bars.last_moment(run.events, run.regions), colours_of(run)
        self.meetings = Meetings(run)

    def bars(self, first: int, link: bool) -> list[Bar]:
        """Regions above calls; if the run has only one of the two, it fills the lane. first: the number of a lane."""
        compute = (0.08, 0.48 if self.run.events else 0.84)  # (top, height), as parts of a lane
        calls = (0.6, 0.32) if self.run.regions else (0.1, 0.8)
        drawn: list[Bar] = []
        for lane, alike in enumerate(self.drawn, first):
            drawn += self.regions(lane, alike.regions, *compute)
            for span in alike.bubbles:
                drawn.append(Bar("bubble", lane, *span, *compute, BUBBLE, tells=("bubble", "in no region")))
            drawn += self.waits(lane, alike, *compute) if self.run.regions else []
            drawn += self.calls(lane, alike.events, *calls)
        inside = [bar for bar in drawn if bar.start <= self.end and bar.end >= self.start]
        for bar in inside:
            bar.start, bar.end = max(bar.start, self.start) - self.start, min(bar.end, self.end) - self.start
            bar.link = -bar.link if link else bar.link  # two runs have no calls in common
        return inside

    def regions(self, lane: int, regions: list[Region], y: float, height: float) -> list[Bar]:
        nested = bars.depths(regions)
        deepest = max((depth for _, depth in nested), default=0)
        step, drawn = height * min(NESTED, 0.8 / max(1, deepest)), []
        for (region, depth), (_, next_depth) in zip(nested, [*nested[1:], (None, 0)], strict=False):
            top, tall, kind = y + depth * step, height - depth * step, bars.stem(region.name)
            look = Look("solid", self.colours[kind], 1 + depth / 100)
            room, span = step if next_depth > depth else tall, (region.start, region.end)
            tells = (region.name, "")
            drawn.append(Bar(f"compute: {kind}", lane, *span, top, tall, look, region.name, tells, room=room))
        return drawn

    def waits(self, lane: int, alike: Alike, y: float, height: float) -> list[Bar]:
        """When a rank waits for a call: in a region, or in none."""
        nested, drawn = bars.depths(alike.regions), []
        starts = [region.start for region, _ in nested]
        for event in alike.events:
            for start, end in bars.waiting([event]):
                around = (region for region, _ in reversed(nested[: bisect_right(starts, start)]) if region.end > start)
                name = next((region.name for region in around), call_text(event))
                tells, link = (name, self.meetings.remark(event)), self.meetings.number(event)
                drawn.append(Bar("waits", lane, start, end, y, height, WAITS, tells=tells, link=link))
        return drawn

    def calls(self, lane: int, events: list[Event], y: float, height: float) -> list[Bar]:
        """Solid: the rank can go on meanwhile. Striped: it waits. Dotted outline: it never waited for its end."""
        placed = bars.rows(events, self.last)
        tall, drawn = height / max((row + 1 for _, row in placed), default=1), []
        for event, row in placed:
            end = self.last if event.end is None else event.end
            kind: Kind = "waits" if not event.is_async else "open" if event.end is None else "solid"
            what = f"{'asynchronous' if event.is_async else 'blocking'}: {event.op}"
            top, bar = y + row * tall, tall * 0.88
            tells, link = (call_text(event), self.meetings.remark(event)), self.meetings.number(event)
            look = Look(kind, self.colours[event.op])
            drawn.append(Bar(what, lane, event.start, end, top, bar, look, event.op, tells, link, room=bar))
        return drawn


class Meetings:
    """Which calls of a run belong together, in words."""

    def __init__(self, run: Run) -> None:
        self.is_whole = run.runs_as is None  # else the calls of other ranks aren't known
        self.events, self.numbers = run.events, dict[object, int]()
        self.rounds: dict[tuple[Any, ...], tuple[list[int], Event]] = {}

    @cached_property
    def matching(self) -> Matching:
        return Matching.of(self.events)

    def key(self, event: Event) -> tuple[Any, ...]:
        """The same for calls that belong together, and for no others."""
        if event.op not in POINT_TO_POINT:
            return event.group, event.members, self.matching.places[event.rank, event.index]
        other = self.matching.other_end(event)
        ends = [(e.rank, e.index) for e in (event, other) if e is not None]
        return (min(ends),)

    def number(self, event: Event) -> int:
        """The same for calls that belong together; from 1, or 0 if the others aren't known."""
        return self.numbers.setdefault(self.key(event), len(self.numbers) + 1) if self.is_whole else 0

    def remark(self, event: Event) -> str:
        """Whom it waits for, and its line."""
        line = line_of(event.where)
        waits = self.waits_for(event) if self.is_whole else ""
        return " · ".join(filter(None, (waits, f"called at {line}" if line and not waits.endswith(line) else "")))

    def waits_for(self, event: Event) -> str:
        if event.op in POINT_TO_POINT:
            other = self.matching.other_end(event)
            verb = {"send": "receives", "recv": "sends"}[event.op]
            return said_of(other, other.op) if other is not None else f"nobody {verb} it"
        missing, last = self.latest(self.key(event), event)
        if missing:
            return f"never called by {ranks_text(missing).lower()}"
        return said_of(last, op_text(event)) if last.start > event.start else "no rank calls it later"

    def latest(self, key: tuple[Any, ...], one: Event) -> tuple[list[int], Event]:
        """(the ranks that never made this collective, the last call of it). one: of its calls"""
        if key not in self.rounds:
            name, members, number = key
            calls = self.matching.collectives.by_key[name, members].partners(number, members)
            made = [call for call in calls.values() if call is not None]
            missing = [rank for rank, call in calls.items() if call is None]
            self.rounds[key] = missing, max(made or [one], key=lambda call: (call.start, call.rank))
        return self.rounds[key]


def said_of(other: Event, what: str) -> str:
    """That a rank waits for another's call, and where that is."""
    line = line_of(other.where)
    return f"waits for rank {other.rank}'s {what}" + f", {line}" * bool(line)


@cache
def line_of(where: str) -> str:
    return place(where).partition(":  ")[0]


def height_of(number: int) -> float:
    """Pixels of each of so many lanes: 16 fit on a screen, and in four there is room for calls in several rows."""
    heights = ((4, 72), (8, 52), (16, 36), (32, 24), (2 * MAX_LANES, 14))
    return next(tall for most, tall in heights if number <= most)


def shown(run: Run, ranks: Sequence[int] | None) -> list[int]:
    """The requested ranks, without duplicates. Raises ValueError if there are none, or if one does not exist."""
    size = run.world_size
    asked = list(range(size)) if ranks is None else list(dict.fromkeys(ranks))
    unknown = [rank for rank in asked if rank not in range(-size, size)]
    if unknown or not asked:
        raise ValueError(
            f"timeline(ranks=...) takes some of the ranks 0 to {size - 1}; "
            + (f"there is no rank {unknown[0]}." if unknown else "it got none.")
        )
    return list(dict.fromkeys(rank % size for rank in asked))


def lanes_of(run: Run, ranks: list[int], start: float, end: float) -> list[Alike]:
    """Ranks whose bars look alike share a lane; their peers and groups may differ."""
    first, last = bars.first_moment([], run.regions), bars.last_moment([], run.regions)
    until = bars.last_moment(run.events, run.regions)
    size, runs_as = run.world_size, run.runs_as
    all_regions = bars.by_rank(run.regions, size, runs_as)
    regions_of = bars.by_rank([r for r in run.regions if seen(r, start, end, until)], size, runs_as)
    events_of = bars.by_rank([e for e in run.events if seen(e, start, end, until)], size, runs_as)

    @cache
    def looks(rank: int) -> tuple[object, ...]:
        regions = tuple((r.name, r.start, r.end) for r in regions_of[rank])
        calls = tuple((e.op, e.start, e.end, e.waited, e.is_async, e.bytes) for e in events_of[rank])
        return bool(all_regions[rank]), regions, calls  # a rank without regions has no bubbles

    return [
        Alike(same, regions_of[same[0]], events_of[same[0]], bars.bubbles(all_regions[same[0]], first, last))
        for same in rank_sets.group_alike(ranks, (looks(run.ran_as(rank)) for rank in ranks))
    ]


def seen(bar: Region | Event, start: float, end: float, until: float) -> bool:
    """Whether part of it lies between `start` and `end`; if it has no end, it lasts until `until`."""
    stop = until if bar.end is None else bar.end
    return (bar.start < end and stop > start) or start <= bar.start == stop <= end


def chosen(every: list[Alike], start: float, end: float) -> tuple[list[Alike], str]:
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


def legend_of(parts: list[Part]) -> dict[str, Look]:
    """What occurs in these lanes."""
    lanes = [lane for part in parts for lane in part.drawn]
    regions = [region for lane in lanes for region in lane.regions]
    events = [event for lane in lanes for event in lane.events]
    there = {bars.stem(region.name) for region in regions} | {event.op for event in events}
    colours = {kind: colour for part in parts for kind, colour in part.colours.items() if kind in there}
    legend = {kind: Look("solid", colour) for kind, colour in colours.items()}
    if any(not event.is_async or event.waited is not None for event in events):
        legend["the rank waits"] = WAITS
    if any(lane.bubbles for lane in lanes):
        legend["bubble"] = BUBBLE
    return legend
