"""Where the ranks' time went: `run.breakdown()`, and `run.compare(other)`.

Every second of a rank is in one part, so that its parts add up to the run's elapsed time:

    matmul                  operations that FLOPs limit            | on real ranks these three are one part,
    memory-bound            operations that memory limits          | "computing and the rest": all the time
    launch                  starting them                          | in which the rank waits for no call
    groups like 0-7         exposed communication: the rank waits for a call on a group of this form, and all members
                            have made theirs; or, "messages", for one whose other end has been called too
    waits for messages      the other end has not been called yet; in a pipeline, this is the bubble
    waits for slower ranks  a member of the group has not called the collective yet
    other                   sleep, and making process groups
    idle at the end         the rank has finished, and others have not
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..events import bars
from ..events.collectives import POINT_TO_POINT
from ..events.event import Event
from ..events.matching import Matching
from ..text import rank_sets, tables
from ..text.units import quantity

if TYPE_CHECKING:
    from ..figures import Picture
    from .run import Run

COMPUTING = ("matmul", "memory-bound", "launch")
THE_REST = "computing and the rest"
MESSAGES, FOR_MESSAGES, FOR_RANKS = "messages", "waits for messages", "waits for slower ranks"
OTHER, IDLE = "other", "idle at the end"
ROUNDING = 1e-9  # the share of the elapsed time below which a part counts as none
MAX_ROWS = 16

Parts = dict[str, float]


class Breakdown:
    """Where each rank's time went.

    parts[r]           {part: seconds} of rank r; they add up to `elapsed`
    mean               {part: seconds}, averaged over the ranks
    elapsed            seconds of the whole run
    range              (shortest, longest): see `Run.range`; None if that isn't known
    tokens_per_second  if the tokens are known, else None
    mfu                model FLOPs utilisation, from 0 to 1: the model's FLOPs, as a part of those that the GPUs could
                       do in `elapsed` at the peak for the dtypes that were used; None if it isn't known
    hfu                hardware FLOPs utilisation: the same for all FLOPs that were done, recomputation included; None
                       for a real run
    """

    def __init__(self, run: Run, tokens: float | None = None, model_flops: float | None = None) -> None:
        """tokens, model_flops: see `Run.breakdown`. Raises ValueError for model_flops of a run without FLOPs."""
        self.elapsed = run.elapsed
        self.parts = parts_of(run)
        self.names = names_in_order(self.parts)
        self.range: tuple[float, float] | None = None
        size = max(1, run.world_size)
        self.mean: Parts = {name: sum(parts.get(name, 0.0) for parts in self.parts) / size for name in self.names}
        at_peak, flops = sum(c.at_peak for c in run.computed), sum(c.flops for c in run.computed)
        available = self.elapsed * size  # seconds of all GPUs
        self.hfu = at_peak / available if run.computed and available else None
        if model_flops is not None and not flops:
            raise ValueError(
                "model_flops is only of use where FLOPs were counted: in a run of simulate that multiplies matrices."
            )
        self.mfu = model_flops * (at_peak / flops) / available if model_flops is not None else None
        if run.uncertainty is not None:
            self.range = run.uncertainty.between(by_uncertainty(self.mean))
        self.tokens_per_second = tokens / self.elapsed if tokens is not None and self.elapsed else None

    def picture(self) -> Picture:
        """A bar for the mean and for each rank; ranks whose parts are equal share one."""
        from .. import figures

        return figures.breakdown(self)

    def equal_ranks(self) -> list[list[int]]:
        """Ranks whose parts are equal, up to rounding."""
        looks = [
            tuple(round(parts.get(name, 0.0) / (self.elapsed or 1), 6) for name in self.names) for parts in self.parts
        ]
        return rank_sets.group_alike(list(range(len(self.parts))), looks)

    def rows(self) -> list[tables.Row]:
        """The mean, then each rank or group of equal ranks, MAX_ROWS of them at most, evenly spread."""
        groups = self.equal_ranks()
        rows: list[tables.Row] = [("mean", *self.percentages(self.mean))]
        for place in rank_sets.spread(len(groups), MAX_ROWS, ()):
            ranks = groups[place]
            rows.append((rank_sets.format_ranks(ranks, most=3), *self.percentages(self.parts[ranks[0]])))
        return rows

    def percentages(self, parts: Parts) -> list[str]:
        return [f"{100 * parts.get(name, 0.0) / (self.elapsed or 1):.1f} %" for name in self.names]

    def summary(self) -> str:
        """`20.3 ms, between 17.9 ms and 23.8 ms: 12,300 tokens/s, MFU 41.2 %, HFU 54.9 %`"""
        known = [f"{self.tokens_per_second:,.0f} tokens/s"] if self.tokens_per_second is not None else []
        for name, value in (("MFU", self.mfu), ("HFU", self.hfu)):
            known += [f"{name} {100 * value:.1f} %"] if value else []
        seconds = quantity(self.elapsed, "s")
        if self.range is not None:
            seconds += f", between {quantity(self.range[0], 's')} and {quantity(self.range[1], 's')}"
        return ": ".join([seconds, *[", ".join(known)][: len(known)]])

    def header(self) -> list[str]:
        return ["rank", *self.names]

    def __repr__(self) -> str:
        return f"{self.summary()}\n{tables.text(self.header(), self.rows())}"

    def _repr_html_(self) -> str:
        return tables.html(self.summary(), self.header(), self.rows())


class Comparison:
    """Two runs' breakdowns, averaged over the ranks, with the differences. `rows` has the numbers."""

    def __init__(self, this: Breakdown, other: Breakdown) -> None:
        self.this, self.other = this, other

    def rows(self) -> list[tables.Row]:
        names = names_in_order([self.this.mean, self.other.mean])
        pairs = [(name, self.this.mean.get(name, 0.0), self.other.mean.get(name, 0.0)) for name in names]
        return [
            (name, quantity(this, "s"), quantity(other, "s"), signed(this - other))
            for name, this, other in [*pairs, ("elapsed", self.this.elapsed, self.other.elapsed)]
        ]

    HEADER = ["mean over the ranks", "this run", "the other", "difference"]

    def __repr__(self) -> str:
        return tables.text(self.HEADER, self.rows())

    def _repr_html_(self) -> str:
        return tables.html("Where the time went", self.HEADER, self.rows())


def signed(seconds: float) -> str:
    return quantity(0, "s") if not seconds else ("+" if seconds > 0 else "-") + quantity(abs(seconds), "s")


def names_in_order(ranks: Iterable[Parts]) -> list[str]:
    """Every part that some rank has: computing, communication, waiting, idle."""
    there = list(dict.fromkeys(name for parts in ranks for name in parts))
    first = [name for name in (*COMPUTING, THE_REST) if name in there]
    last = [name for name in (MESSAGES, FOR_MESSAGES, FOR_RANKS, OTHER, IDLE) if name in there]
    groups = sorted(name for name in there if name not in (*first, *last))
    return [*first, *groups, *last]


def parts_of(run: Run) -> list[Parts]:
    """{part: seconds} of each rank. Parts that take no time are left out."""
    begun = when_complete(run.events)
    forms = FormsOfGroups()
    every: list[Parts] = []
    for rank, events in enumerate(bars.by_rank(run.events, run.world_size)):
        if run.ran_as(rank) != rank:
            every.append(every[run.ran_as(rank)])  # the first of its kind, so it is there already
            continue
        parts: Parts = defaultdict(float)
        if run.computed:
            computed = run.computed[rank]
            parts.update(zip(COMPUTING, (computed.matmul, computed.memory_bound, computed.launch), strict=True))
        add_waits(parts, events, begun, forms)
        if run.computed:
            parts[OTHER] = run.computed[rank].finished - sum(parts.values())
            parts[IDLE] = run.elapsed - run.computed[rank].finished
        else:
            parts[THE_REST] = run.elapsed - sum(parts.values())
        every.append({name: seconds for name, seconds in parts.items() if seconds > ROUNDING * run.elapsed})
    return every


def by_uncertainty(parts: Parts) -> Parts:
    """{field of Uncertainty: seconds}. Waiting for others takes as long as what these do, so it is shared out."""
    names = dict(zip(COMPUTING, ("computing", "memory", "launch"), strict=True))
    seconds: Parts = defaultdict(float)
    for name, took in parts.items():
        if name not in (FOR_MESSAGES, FOR_RANKS, OTHER, IDLE):
            seconds[names.get(name, "communication")] += took
    busy, certain = sum(seconds.values()), parts.get(OTHER, 0.0)
    waited = sum(parts.values()) - busy - certain
    shared = {name: took * (1 + waited / busy) for name, took in seconds.items()} if busy else {}
    return {**shared, "certain": certain if busy else certain + waited}


def add_waits(parts: Parts, events: list[Event], begun: dict[int, float], forms: FormsOfGroups) -> None:
    """Sort one rank's waits into `parts`: first for others to come, then for what they do together."""
    until = 0.0  # waits for several calls at once count once
    waits = [(e.waited if e.is_async else e.start, e) for e in events]
    for start, event in sorted(((w, e) for w, e in waits if w is not None), key=lambda pair: (pair[0], pair[1].index)):
        start = max(start, until)
        if event.end is None or event.end <= start:
            continue
        until = event.end
        together = min(max(begun.get(id(event), start), start), event.end)
        message = event.op in POINT_TO_POINT
        parts[FOR_MESSAGES if message else FOR_RANKS] += together - start
        parts[MESSAGES if message else forms.name(event)] += event.end - together


def when_complete(events: list[Event]) -> dict[int, float]:
    """{id of a call: when the last of those that belong to it was made}, without messages that lack their other end."""
    matching = Matching.of(events)
    begun: dict[int, float] = {}
    for rounds in matching.collectives.by_key.values():
        for calls in rounds.calls.values():
            last = max(call.start for call in calls.values())
            begun.update((id(call), last) for call in calls.values())
    for send, receive in matching.pairs():
        begun[id(send)] = begun[id(receive)] = max(send.start, receive.start)
    return begun


class FormsOfGroups:
    """Names groups that have as many members at the same distance alike: all tensor-parallel groups of a grid, say."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, ...], str] = {}  # (size, distances): name
        self.known: dict[int, str] = {}  # id of a tuple of members

    def name(self, event: Event) -> str:
        key = id(event.members)
        if key not in self.known:
            members = event.members
            form = (len(members), *sorted({b - a for a, b in zip(members, members[1:], strict=False)}))
            mine = (
                "all ranks"
                if event.group.startswith("world")
                else f"groups like {rank_sets.format_ranks(list(members), 3)}"
            )
            self.known[key] = self.names.setdefault(form, mine)
        return self.known[key]
