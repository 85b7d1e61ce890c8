"""Finding deadlocks: from the events of all ranks, who waits for whom, and whether any rank can still move.

A rank is blocked while it is inside a send, a receive, a collective, a `wait()` or `new_group`. It can move on if the
others have done their part: every member has made the same call at the same place in the group's order, or the other
end of the message is there. A world is stuck when every rank that has not finished is blocked and none can move.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..events.collectives import POINT_TO_POINT
from ..events.event import Event
from ..events.matching import Matching, group_key
from ..events.rank_state import RankState
from ..text.decisions import place_of
from ..text.rank_sets import FEW, group_alike
from ..text.source_lines import line_of, place
from .failure_report import students_frames
from .mismatch import IN_THREADS, difference, message_mismatch, mixed_gradients, mixed_objects, unfit_splits
from .pipelines import different_microbatches
from .why_stuck import is_one_group, likely_mistake, lost_receives
from .words import call_text, ranks_text, spoken
from .wrappers import what_they_do

WAITS_FOR_STORE = re.compile(r"store\w*(\(\))?\.(wait|get)\(")  # in a line of code
LONG = 5  # seconds; shorter waits are not worth reporting, since they are found in every stuck world


def deadlock_report(states: list[RankState], now: float = 0.0) -> str | None:
    """The report of a stuck world; None as long as a rank can still move. now: seconds since the world began."""
    unfinished = [state for state in states if not state.finished]
    blocked = {state.rank: event for state in unfinished if (event := state.blocked_in()) is not None}
    if not blocked or len(blocked) < len(unfinished):
        return None
    matching = Matching(states)
    if any(can_move(event, matching) for event in blocked.values()):
        return None
    lines = ["  " + line for line in describe_ranks(states, now=now)]
    return "\n".join([*lines, *ways_here(blocked), "", likely_mistake(blocked, matching)])


def ways_here(blocked: dict[int, Event]) -> list[str]:
    """The lines that led to where ranks wait, for those that came by different ones: as far out as they differ."""
    ways: dict[tuple[str, ...], list[int]] = {}
    for rank, event in blocked.items():
        ways.setdefault((event.where, *event.callers), []).append(rank)
    common = 0
    while len(ways) > 1 and len({way[::-1][common : common + 1] for way in ways}) == 1:
        common += 1
    lines = []
    for way, ranks in ways.items():
        for line in way[1 : len(way) - common] if len(ways) > 1 else ():
            lines.append(f"  {ranks_text(ranks).lower()} came there from {place(line)}")
    return lines if len(lines) <= FEW else []


def waiting_in(states: list[RankState], elsewhere: dict[int, tuple[str, str]]) -> dict[int, Event]:
    """{rank: the call that it is inside}, as in RankError.waiting.

    elsewhere   {rank: ("store" or "idle", the line as "file:line")} of ranks that wait for anything else
    """
    found = {}
    for state in states:
        event = state.blocked_in()
        if state.rank in elsewhere:
            op, where = elsewhere[state.rank]
            since = max((end for e in state.events if (end := e.end) is not None), default=0.0)
            me, index = (state.rank,), len(state.events)
            found[state.rank] = Event(state.rank, index, op, op, me, None, 0, 0, "", (), "", False, since, None, where)
        elif event is not None and (event.op == "new_group" or event.index not in state.waits):
            found[state.rank] = event
        elif event is not None:
            found[state.rank] = replace(event, where=state.waits[event.index])
    return found


def who_is_stuck(states: list[RankState]) -> str:
    """The first line of the report of a stuck world."""
    stuck = [state.rank for state in states if not state.finished]
    if len(stuck) == len(states):
        return "no rank can move any more: each waits for another."
    others = "other has" if len(states) - len(stuck) == 1 else "others have"
    return f"{ranks_text(stuck).lower()} can't move any more, and the {others} finished."


def can_move(event: Event, matching: Matching) -> bool:
    """Whether the other ranks have done what `event`, a call that its rank is inside, needs from them."""
    if not is_one_group(event, matching.states):
        return False
    if event.op == "new_group":
        return all(
            any(group_key(made) == group_key(event) for made in matching.states[r].groups_made) for r in event.members
        )
    if lost_receives(event, matching.states):
        return False
    if event.op in POINT_TO_POINT:
        other_end = matching.other_end(event)
        return other_end is not None and not matching.states[other_end.rank].has_dropped(other_end)
    partners = matching.partners(event)
    return None not in partners.values() and not difference(partners)


def describe_ranks(
    states: list[RankState], running: dict[int, str] | None = None, idle: Sequence[int] = (), now: float = 0.0
) -> list[str]:
    """One line per rank: finished, waiting for what and where, running or idle.

    running   {rank: the line of Python that it runs, as "file:line"}
    idle      ranks that do not compute, though no call to the network holds them up
    now       seconds since the world began

    With more than FEW ranks, those that are alike share a line; of more than FEW lines, some are left out.
    """
    doing = {state.rank: doing_of(state, running or {}, idle, now) for state in states}
    lines = []
    for ranks in group_alike(list(doing), doing.values()):
        does = doing[ranks[0]]
        verb = does.verb if len(ranks) == 1 else does.plural_verb
        lines.append(f"{ranks_text(ranks).lower()}  {f'{verb} {does.what}':<32}  {does.where}".rstrip())
    if len(states) > FEW and len(lines) > FEW:
        lines[FEW - 2 : -1] = [f"... {len(lines) - FEW + 1} lines like these ..."]
    return lines


class Doing(NamedTuple):
    """What a rank does: "waits" (several ranks: "wait") and "in barrier", and where in the student's code."""

    verb: str
    plural_verb: str
    what: str
    where: str


def doing_of(state: RankState, running: dict[int, str], idle: Sequence[int], now: float) -> Doing:
    event = state.blocked_in()
    if state.failure:
        frame = students_frames(state.failure.frames)[-1:]
        return Doing("raised", "raised", state.failure.kind, place(f"{frame[0].file}:{frame[0].line}") if frame else "")
    if state.finished:
        return Doing("has", "have", "finished", "")
    if event is None:
        line, is_idle = running.get(state.rank, ""), state.rank in idle
        loop = "" if is_idle else loop_around(line)
        return Doing("is", "are", "idle" if is_idle else "running", place(line) + f"  (in {loop})" * bool(loop))
    is_wait = event.op != "new_group" and event.index in state.waits
    seconds = now - (event.start if event.waited is None else event.waited)
    where = place(state.waits[event.index] if is_wait else event.where)
    how_long = f" for {seconds:.0f} s" if seconds > LONG else ""
    return Doing("waits", "wait", f"in {call_text(event)}{how_long}", where)


def what_idle_ranks_wait_for(states: list[RankState], idle: Sequence[int], running: dict[int, str]) -> str:
    """What holds up ranks that don't compute: calls in flight, perhaps of their threads, or something unknown here.

    running   {rank: the line of Python that it runs, as "file:line"}
    """
    matching = Matching(states)
    held: dict[int, Event] = {}
    for state in states:
        if not state.finished and (event := state.blocked_in() or next(iter(state.in_flight()), None)) is not None:
            held[state.rank] = event
    if all(state.finished or state.rank in held for state in states) and not any(
        can_move(event, matching) for event in held.values()
    ):
        started = "; ".join(f"rank {r} started {call_text(held[r])} at {place(held[r].where)}" for r in idle)
        return f"{started[0].upper()}{started[1:]}. {likely_mistake(held, matching)}"
    they, are = ranks_text(idle).lower(), "is" if len(idle) == 1 else "are"
    line = running.get(idle[0], "")
    loop = loop_around(line)
    ends = "ends only when something else changes its condition: ranks that wait can't."
    polls = f" {loop[0].upper()}{loop[1:]} {ends}" if loop else ""
    if WAITS_FOR_STORE.search(line_of(line)):
        polls = " It waits for a key of the store that nobody has set, and ranks that wait can't set it."
    return f"No rank is computing, so more time is unlikely to help. What {are} {they} waiting for?{polls}"


def loop_around(where: str) -> str:
    """The innermost `while` around the line "file:line", as "the loop `while busy` of line 3"; "" if there is none."""
    loops = [decision for decision in place_of(where).decisions if decision.text.startswith("while ")]
    return f"the loop `{loops[-1].text}` of line {loops[-1].line}" if loops else ""


def calls_of_threads(states: list[RankState]) -> str:
    """Sentences about a call that a thread has under way, which may have overtaken one of the main thread's; or ""."""
    for state in states:
        for event in state.in_flight():
            if event.thread:
                called = f"Rank {state.rank} called {spoken(event)} at {place(event.where)}, beside its main thread."
                return f"{called}{IN_THREADS}"
    return ""


def mixed_up_before(states: list[RankState]) -> str:
    """What calls that were completed say about an exception, as sentences: lengths of objects taken for numbers, or a
    pipeline's microbatches.
    """
    return mixed_objects(Matching(states)) or different_microbatches(states)


def where_others_are(states: list[RankState], rank: int) -> list[str]:
    """A line for each rank but this one, which has crashed."""
    return describe_ranks([state for state in states if state.rank != rank])


def report_of_a_lock(states: list[RankState], lines: dict[int, str], held_up: list[int]) -> str:
    """The report of a rank that waits for a lock that nobody will release (queues and events have one, too)."""
    described = describe_ranks(states, lines, held_up)
    return "\n".join(
        [
            f"{ranks_text(held_up).lower()} {'waits' if len(held_up) == 1 else 'wait'} for a lock, a queue, an event "
            "or a thread, and nobody is left to end that wait.",
            *("  " + line for line in described),
            "",
            "Ranks don't share locks: whatever a rank waits for, one of its own threads must do.",
        ]
    )


def difference_at_the_end(states: list[RankState]) -> str:
    """How the calls differ that were in flight when the world broke, as sentences; "" if they don't."""
    matching = Matching(states)
    if said := mixed_gradients(matching)[1]:
        return said
    for event in [event for state in states for event in (state.blocked_in(), *state.in_flight()) if event is not None]:
        if event.op in POINT_TO_POINT:
            other_end = matching.other_end(event)
            said = message_mismatch(event, other_end) if other_end is not None else ""
        elif event.op != "new_group":
            partners = matching.partners(event)
            calls_made = {rank: call for rank, call in partners.items() if call is not None}
            said = difference(partners, matching.states) or unfit_splits(calls_made, matching.states)
        else:
            said = ""
        if said:
            calls = matching.partners(event).values() if event.op not in POINT_TO_POINT else ()
            return " ".join([said, *what_they_do(call for call in calls if call is not None)])
    return ""
