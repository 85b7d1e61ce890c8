"""When an asynchronous send was over: told by its receive, because Gloo does not tell.

The handle of a Gloo message has no future, and its `is_completed()` stays False until `wait()` has returned. So nobody
learns when an isend or irecv is done but whoever waits for it, and that is the program: a second one who waits would
take the completion away from it (the handle counts it down), and would keep alive a message whose handle the program
has thrown away, which Gloo loses without us. A recorder that changed what is lost would hide a mistake.

What is left is the other side's record. A receive has its message only after the send has handed over the last byte, so
a send is over when its receive is, at the latest; often long before the program waits for it. For a receive there is no
such bound: that all bytes have left says nothing about when they are there. An irecv ends when `wait()` finds it done,
or, if nobody waits for it, never.
"""

from __future__ import annotations

from dataclasses import replace

from .event import Event
from .matching import Matching
from .rank_state import RankState


def bound_by_receives(states: list[RankState]) -> None:
    """Let no asynchronous send of these ranks end later than its receive."""
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
    return replace(event, end=max(receive.end, event.start))  # the clocks of two machines may differ a little
