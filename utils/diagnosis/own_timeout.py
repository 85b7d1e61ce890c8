"""A group's own time-out: who waited, for how long, and where the rank was that had not come.

Most time-outs of real jobs are this: nothing is wrong with the calls, but one rank is slow, or stuck elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..events.failure import Failure
from ..events.matching import Matching
from ..events.rank_state import RankState
from ..text.source_lines import place
from .words import call_text, group_text, ranks_text

TIMED_OUT = re.compile(r"(?:Timed out waiting |Timeout\(ms\)=)(\d+)", re.IGNORECASE)
ADVICE = (
    "If that takes long for a good reason, let all ranks wait for it in a group with a longer time-out "
    "(init_process_group and new_group take timeout=), or have every rank do the same work between two calls."
)


def timed_out(failure: Failure) -> bool:
    return TIMED_OUT.search(failure.message) is not None


def own_timeout(failures: Mapping[int, Failure], states: list[RankState], running: Mapping[int, str]) -> str:
    """Sentences about the first call that ran into its group's time-out, because a rank was missing; "" if none did.

    running   {rank: the line of Python that it runs, as "file:line"}
    """
    matching = Matching(states)
    for rank, failure in sorted(failures.items(), key=lambda item: item[1].time):
        event = matching.states[rank].last_raised()
        if (
            not (found := TIMED_OUT.search(failure.message))
            or event is None
            or (rank, event.index) not in matching.places
        ):
            continue
        late = [other for other, call in matching.partners(event).items() if call is None]
        if late:
            state = matching.states[rank]
            waited = f"{int(found[1]) / 1000:g} s, the time-out of {group_text(event, state)}"
            return (
                f"Rank {rank} waited in {call_text(event)} for {waited} ({place(event.where)}). {ranks_text(late)} had "
                f"not called it{where_they_were(late, matching, running)}. {ADVICE}"
            )
    return ""


def where_they_were(late: list[int], matching: Matching, running: Mapping[int, str]) -> str:
    parts = []
    for rank in late:
        state = matching.states[rank]
        if (event := state.blocked_in() or state.last_raised()) is not None:
            parts.append(f"rank {rank} was in {call_text(event)} ({place(event.where)})")
        elif state.finished:
            parts.append(f"rank {rank} had finished")
        elif line := running.get(rank):
            parts.append(f"rank {rank} was at {place(line)}")
    return f": {'; '.join(parts)}" if parts else ""
