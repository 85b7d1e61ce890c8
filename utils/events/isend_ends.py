"""When an asynchronous send ended: worked out from its receive, because Gloo does not say.

The handle of a Gloo message has no future, and its `is_completed()` stays False until `wait()` has returned. So only a
call of `wait()` can tell when an isend or irecv is done, and that call must stay the program's. If we waited too, we
would take the completion away from the program (the handle counts it down), and we would keep alive a message whose
handle the program has thrown away, which Gloo loses otherwise. A recorder that rescues lost messages would hide a
mistake.

That leaves the other side's record. A receive completes only after the send has handed over its last byte, so a send
ends no later than its receive, often long before the program waits for it. There is no such bound for a receive: the
bytes may have left long before they arrive. An irecv ends when `wait()` finds it done; if the program never waits for
it, it has no end.
"""

from __future__ import annotations

from dataclasses import replace

from .event import Event
from .matching import Matching
from .rank_state import RankState


def bound_by_receives(states: list[RankState]) -> None:
    """Make every asynchronous send of these ranks end no later than its receive, in place."""
    if any(event.op == "send" and event.is_async for state in states for event in state.events):
        matching = Matching(states)
        for state in states:
            state.events = [bounded(event, matching) for event in state.events]


def bounded(event: Event, matching: Matching) -> Event:
    receive = matching.other_end(event) if event.op == "send" and event.is_async else None
    if receive is None or receive.end is None or receive.index in matching.states[receive.rank].failed:
        return event
    if event.end is not None and event.end <= receive.end:
        return event
    return replace(event, end=max(receive.end, event.start))  # the clocks of two machines may differ slightly
