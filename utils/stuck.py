"""From the events of all ranks to "who waits for whom, and what mistake is it".

A rank is blocked while it is inside a send, a receive, a collective or a `wait()`. It can move on if the others have
done their part: every member has made the same call at the same place in the group's order, or the other end of the
message is there. A world is stuck when every rank that has not finished is blocked and none can move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from utils.run import Event, Region
from utils.source_lines import place

POINT_TO_POINT = ("send", "recv")
EVERYONE_FIRST = {
    "send": ("sends", "Let one rank of each pair receive first, or use isend and wait after the receive."),
    "recv": ("receives", "A message must be sent before it can arrive: let somebody send first."),
}
# Collectives whose ranks must all hand in the same number of elements of the same dtype.
SAME_SIZE = ("broadcast", "reduce", "all_reduce", "gather", "all_gather", "reduce_scatter")


@dataclass
class RankState:
    """What is known of one rank while the world runs."""

    rank: int
    events: list[Event] = field(default_factory=list)
    waits: dict[int, str] = field(default_factory=dict)  # asynchronous calls it has begun to wait for: index -> where
    regions: list[Region] = field(default_factory=list)
    finished: bool = False

    def blocked_in(self) -> Event | None:
        """The call that this rank is inside of, if it is inside one."""
        if self.finished:
            return None
        for event in reversed(self.events):
            if event.end is None and (not event.is_async or event.index in self.waits):
                return event
        return None

    def has_dropped(self, event: Event) -> bool:
        """Whether it only started this call and then finished: its tensor is gone, and the message may be too."""
        return self.finished and event.is_async and event.index not in self.waits

    def collectives(self, group: str) -> list[Event]:
        return [event for event in self.events if event.group == group and event.op not in POINT_TO_POINT]

    def messages(self, op: str, peer: int | None, like: Event) -> list[Event]:
        """Its sends to, or receives from, `peer` (a receive from any source fits), with the group and tag of `like`."""
        alike = [e for e in self.events if (e.op, e.group, e.tag) == (op, like.group, like.tag)]
        return [e for e in alike if e.peer == peer or e.peer is None]


def explain(states: list[RankState]) -> str | None:
    """The report of a stuck world, or None while somebody can still move."""
    blocked = {state.rank: state.blocked_in() for state in states if not state.finished}
    if not blocked or any(event is None for event in blocked.values()):
        return None
    if any(can_move(event, states) for event in blocked.values()):
        return None
    return "\n".join([*("  " + line for line in describe(states)), "", mistake(blocked, states)])


def can_move(event: Event, states: list[RankState]) -> bool:
    """Whether the others have done what `event`, a call that `event.rank` is inside of, needs from them."""
    if event.op in POINT_TO_POINT:
        return message_is_met(event, states)
    partners = partners_of(event, states)
    return all(partner is not None for partner in partners.values()) and not differences(event, partners)


def message_is_met(event: Event, states: list[RankState]) -> bool:
    mine = states[event.rank].messages(event.op, event.peer, event)
    number = [e.index for e in mine].index(event.index) + 1
    other_end = "recv" if event.op == "send" else "send"
    peers = [s for s in states if s.rank != event.rank] if event.peer is None else [states[event.peer]]
    made = [e for peer in peers for e in peer.messages(other_end, event.rank, event) if not peer.has_dropped(e)]
    return len(made) >= number


def partners_of(event: Event, states: list[RankState]) -> dict[int, Event | None]:
    """For each member of the group: its call at the same place in the group's order, or None if it has not made one."""
    position = [e.index for e in states[event.rank].collectives(event.group)].index(event.index)
    calls = {rank: states[rank].collectives(event.group) for rank in event.members}
    return {rank: made[position] if position < len(made) else None for rank, made in calls.items()}


def differences(event: Event, partners: dict[int, Event | None]) -> str:
    """In what the calls of the group's ranks at this place differ, though they must not; "" if in nothing."""
    made = [partner for partner in partners.values() if partner is not None]
    if len({e.op for e in made}) > 1:
        return "different collectives"
    if len({e.peer for e in made}) > 1:
        return "different roots"
    if event.op in SAME_SIZE and len({(e.dtype, math.prod(e.shape)) for e in made}) > 1:
        return "different shapes" if len({e.dtype for e in made}) == 1 else "different dtypes"
    return ""


def describe(states: list[RankState], running: dict[int, str] | None = None) -> list[str]:
    """A line for each rank: finished, waiting where for what, or (from `running`) at which line of Python."""
    lines = []
    for state in states:
        event = state.blocked_in()
        if state.finished:
            what, where = "has finished", ""
        elif event is None:
            what, where = "is running", place((running or {}).get(state.rank, ""))
        else:
            what, where = "waits in " + call(event), place(state.waits.get(event.index, event.where))
        lines.append(f"rank {state.rank}  {what:<32}  {where}".rstrip())
    return lines


def call(event: Event) -> str:
    """The call in short: `recv from 1`, `broadcast (root 0)`, `all_reduce`."""
    if event.op == "send":
        return f"send to {event.peer}"
    if event.op == "recv":
        return "recv from anybody" if event.peer is None else f"recv from {event.peer}"
    return event.op if event.peer is None else f"{event.op} (root {event.peer})"


def mistake(blocked: dict[int, Event], states: list[RankState]) -> str:
    """One or two sentences: what kind of mistake this is, and how it is usually mended."""
    for event in blocked.values():
        if event.op not in POINT_TO_POINT:
            partners = partners_of(event, states)
            missing = [rank for rank, partner in partners.items() if partner is None]
            if missing:
                return missing_rank(event, missing, blocked, states)
            if kind := differences(event, partners):
                return mismatch(kind, partners)
    return unmet_messages(blocked, states)


def difference_at_the_end(states: list[RankState]) -> str:
    """In what the calls differ that ranks were inside of when the world broke, as a sentence; "" if in nothing."""
    for state in states:
        event = state.blocked_in()
        if event is not None and event.op not in POINT_TO_POINT:
            partners = {rank: e for rank, e in partners_of(event, states).items() if e is not None}
            if kind := differences(event, partners):
                return mismatch(kind, partners)
    return ""


def missing_rank(event: Event, missing: list[int], blocked: dict[int, Event], states: list[RankState]) -> str:
    finished = [rank for rank in missing if states[rank].finished]
    if finished:
        who = ranks(finished)
        return (
            f"{who} never called this {event.op} and {'has' if len(finished) == 1 else 'have'} finished. A collective "
            "returns only when every rank of its group has called it: look for an `if rank == ...` or an early return "
            "around it."
        )
    elsewhere = "; ".join(f"rank {rank} is in {call(blocked[rank])}" for rank in missing)
    return (
        f"{ranks(event.members)} must all call {event.op}, but {elsewhere}. "
        "Every rank must make the calls that belong together, in the same order."
    )


def mismatch(kind: str, partners: dict[int, Event]) -> str:
    if kind == "different collectives":
        seen = ", ".join(f"rank {rank} called {e.op}" for rank, e in partners.items())
        return f"{seen}. Every rank of a group must call the same collectives in the same order."
    if kind == "different roots":
        seen = ", ".join(f"rank {rank} named root {e.peer}" for rank, e in partners.items())
        return f"{seen}. All ranks must name the same root."
    seen = ", ".join(f"rank {rank} brought {e.dtype} {list(e.shape)}" for rank, e in partners.items())
    op = next(iter(partners.values())).op
    return f"{seen}. {op} needs the same shape and dtype on every rank."


def unmet_messages(blocked: dict[int, Event], states: list[RankState]) -> str:
    for op, (verb, remedy) in EVERYONE_FIRST.items():
        cycle = find_cycle({rank: event.peer for rank, event in blocked.items() if event.op == op})
        if cycle:
            path = " → ".join(str(rank) for rank in [*cycle, cycle[0]])
            return f"Everyone {verb} first, and waits for the next: {path}. {remedy}"
    for event in blocked.values():
        if event.op in POINT_TO_POINT and event.peer is not None and states[event.peer].finished:
            waits_for = "waits for a message from" if event.op == "recv" else "sends a message to"
            dropped = any(states[event.peer].has_dropped(e) for e in states[event.peer].events)
            but = "without sending it" if event.op == "recv" else "without receiving it"
            but = "without waiting for what it had started: keep each handle and call its wait()" if dropped else but
            return (
                f"Rank {event.rank} {waits_for} rank {event.peer}, which has finished {but}. "
                "Count the sends and the receives of each pair: they must match one to one, tags too."
            )
    seen = "; ".join(f"rank {rank} is in {call(event)}" for rank, event in blocked.items())
    return (
        f"No send meets its receive: {seen}. For each send there must be a recv on the other rank, with the same tag."
    )


def find_cycle(waits_for: dict[int, int | None]) -> list[int]:
    """A circle in who waits for whom, beginning at its smallest rank; [] if there is none."""
    for start in sorted(waits_for):
        path, rank = [], start
        while rank in waits_for and rank not in path:
            path.append(rank)
            rank = waits_for[rank]
        if path and rank == start:
            return path
    return []


def ranks(numbers) -> str:
    """ "Rank 2", "Ranks 0 and 3", "Ranks 0, 1 and 3"."""
    *first, last = [str(number) for number in numbers]
    return f"Ranks {', '.join(first)} and {last}" if first else f"Rank {last}"
