"""From the events of all ranks to "who waits for whom": can anybody still move? If not, a report.

A rank is blocked while it is inside a send, a receive, a collective, a `wait()` or `new_group`. It can move on if the
others have done their part: every member has made the same call at the same place in the group's order, or the other
end of the message is there. A world is stuck when every rank that has not finished is blocked and none can move.
"""

from __future__ import annotations

from ..events.event import Event
from ..events.matching import POINT_TO_POINT, Matching, group_key
from ..events.rank_state import RankState
from ..text.rank_sets import FEW, group_alike
from ..text.source_lines import place
from .mismatch import difference, message_mismatch
from .why_stuck import is_one_group, likely_mistake, lost_receives
from .words import call_text, ranks_text

LONG = 5  # seconds of waiting that are worth telling; below that every rank of every stuck world has just begun to


def deadlock_report(states: list[RankState], now: float = 0.0) -> str | None:
    """The report of a stuck world, or None while somebody can still move. now: seconds since the world began."""
    blocked = {state.rank: state.blocked_in() for state in states if not state.finished}
    if not blocked or any(event is None for event in blocked.values()):
        return None
    matching = Matching(states)
    if any(can_move(event, matching) for event in blocked.values()):
        return None
    return "\n".join(
        [*("  " + line for line in describe_ranks(states, now=now)), "", likely_mistake(blocked, matching)]
    )


def can_move(event: Event, matching: Matching) -> bool:
    """Whether the others have done what `event`, a call that `event.rank` is inside of, needs from them."""
    if not is_one_group(event, matching.states):
        return False
    if event.op == "new_group":
        return all(
            any(group_key(made) == group_key(event) for made in matching.states[r].groups_made) for r in event.members
        )
    if event.op in POINT_TO_POINT:
        other_end = matching.other_end(event)
        return other_end is not None and not matching.states[other_end.rank].has_dropped(other_end)
    if lost_receives(event, matching.states):
        return False
    partners = matching.partners(event)
    return None not in partners.values() and not difference(partners)


def describe_ranks(states: list[RankState], running: dict[int, str] | None = None, now: float = 0.0) -> list[str]:
    """A line for each rank: finished, waiting where for what, or (from `running`) at which line of Python. Of more than
    a FEW ranks those that are alike share a line, and of too many lines some are left out.
    """
    said = {state.rank: what_it_does(state, running or {}, now) for state in states}
    lines = []
    for who in group_alike(list(said), said.values()):
        (one, several), what, where = said[who[0]]
        lines.append(f"{ranks_text(who).lower()}  {(one if len(who) == 1 else several) + what:<32}  {where}".rstrip())
    if len(states) > FEW and len(lines) > FEW:
        lines[FEW - 2 : -1] = [f"... {len(lines) - FEW + 1} lines like these ..."]
    return lines


def what_it_does(state: RankState, running: dict[int, str], now: float) -> tuple[tuple[str, str], str, str]:
    """(the verb, of one rank and of several), what, and the place in the student's code."""
    event = state.blocked_in()
    if state.finished:
        return ("has", "have"), " finished", ""
    if event is None:
        return ("is", "are"), " running", place(running.get(state.rank, ""))
    is_wait = event.op != "new_group" and event.index in state.waits
    seconds = now - (event.start if event.waited is None else event.waited)
    where = place(state.waits[event.index] if is_wait else event.where)
    return ("waits", "wait"), f" in {call_text(event)}" + (f" for {seconds:.0f} s" if seconds > LONG else ""), where


def difference_at_the_end(states: list[RankState]) -> str:
    """In what the calls differ that ranks were inside of when the world broke, as a sentence; "" if in nothing."""
    matching = Matching(states)
    for event in filter(None, (state.blocked_in() for state in states)):
        if event.op in POINT_TO_POINT:
            other_end = matching.other_end(event)
            said = message_mismatch(event, other_end) if other_end is not None else ""
        elif event.op != "new_group":
            said = difference(matching.partners(event))
        else:
            said = ""
        if said:
            return said
    return ""
