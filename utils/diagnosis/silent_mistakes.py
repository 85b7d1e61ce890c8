"""Mistakes that raise nothing: Gloo returns, with wrong values. Found by comparing what all ranks have recorded.

A right program must never be accused: calls are compared only in what must agree, groups and messages with a call that
raised are left out, and what a program does with a tensor is not guessed at.
"""

from __future__ import annotations

import linecache
from collections import Counter

from ..events.event import Event
from ..events.matching import Matching
from ..events.rank_state import RankState
from ..text.source_lines import place
from .errors import SilentMistake
from .mismatch import SAME_ORDER, difference, message_mismatch
from .why_stuck import groups_in_another_order
from .words import call_text, ranks_text, tensor_text

# Who gets values from a call, and so must wait before it uses them: every rank, or the root only, or all but the root.
FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "recv")
FOR_THE_ROOT = ("reduce", "gather")
FOR_THE_OTHERS = ("broadcast", "scatter")
IN_PLACE = ("all_reduce", "broadcast", "reduce")  # their tensors are read and written in the order of memory


Finding = tuple[list[Event], str]  # calls to show, and what is wrong with them
NOTHING: Finding = ([], "")


def silent_mistake(states: list[RankState]) -> SilentMistake | None:
    """The error of a world that ran to its end; None if nothing speaks against its values."""
    report = explain_silence(states)
    if not report:
        return None
    return SilentMistake(f"every rank ran to its end, but its values can't be trusted.\n{report}")


def explain_silence(states: list[RankState]) -> str:
    """The report of a world that ran to its end and can't have done what was meant; "" if nothing speaks against it."""
    matching = Matching(states)
    for look_at in (groups, orders, collectives, messages, memory, handles):
        calls, sentence = look_at(matching)
        if sentence:
            lines = [f"  rank {e.rank}  {call_text(e):<32}  {place(e.where)}".rstrip() for e in calls]
            return "\n".join([*lines, "", sentence])
    return ""


def groups(matching: Matching) -> Finding:
    said = groups_in_another_order(matching.states)
    return [event for state in matching.states for event in state.groups_made] if said else [], said


def orders(matching: Matching) -> Finding:
    """Two ranks that make the same calls in another order: as they differ in what is handed in, or in their lines."""
    for calls in sound_groups(matching):
        first, *others = calls.values()
        for other in others:
            span = swapped([contents(event) for event in first], [contents(event) for event in other])
            if first[span]:
                mine, its = first[span][0], other[span][0]
                return [mine, its], met_each_other(mine, what(mine), its, what(its))
            if [event.where for event in first] != [event.where for event in other]:
                span = swapped([text(event) for event in first], [text(event) for event in other])
                if first[span] and written_apart(first[span], other[span]):
                    mine, its = first[span][0], other[span][0]
                    return [mine, its], met_each_other(mine, f"`{text(mine)}`", its, f"`{text(its)}`")
    return NOTHING


def collectives(matching: Matching) -> Finding:
    for calls in sound_groups(matching):
        for partners in columns(calls):
            made = [event for event in partners.values() if event is not None]
            missing = [rank for rank, event in partners.items() if event is None]
            if not missing and (said := difference(partners)):
                return made, said
            if missing and any(event.end is not None for event in made):
                return (
                    made,
                    f"{ranks_text(missing)} never called this {made[0].op}; the others did not notice. {SAME_ORDER}",
                )
    return NOTHING


def messages(matching: Matching) -> Finding:
    failed = {(state.rank, index) for state in matching.states for index in state.failed}
    for channel, sends in matching.sends.items():
        both = sends + matching.receives.get(channel, [])
        if failed and any((event.rank, event.index) in failed for event in both):
            continue
        for send in sends:
            receive = matching.other_end(send)
            if receive is not None and (said := message_mismatch(send, receive)):
                return [send, receive], said
    return NOTHING


def memory(matching: Matching) -> Finding:
    for state in matching.states:
        if state.strides:
            by_index = {event.index: event for event in state.events}
            for index, (shape, strides) in state.strides.items():
                event = by_index[index]
                if len(event.members) == 1 or index in state.failed:
                    continue
                if has_gaps(shape, strides):
                    return [event], (
                        f"Rank {state.rank} handed {event.op} a view with gaps (shape {list(shape)}, strides "
                        f"{list(strides)}): Gloo takes numbers that lie side by side in memory, and took others. "
                        "Hand in x.contiguous(), and copy what comes out back into the view."
                    )
                if event.op in IN_PLACE and (other := in_another_layout(event, matching)) is not None:
                    return [event, other], (
                        f"The numbers of rank {state.rank}'s tensor lie in another order in memory than those of "
                        f"rank {other.rank}'s (is one a transpose?), and {event.op} goes by memory. "
                        "Hand in x.contiguous() on every rank."
                    )
    return NOTHING


def handles(matching: Matching) -> Finding:
    for state in matching.states:
        for event in state.events if state.dropped else ():
            if event.index in state.dropped and gets_values(event):
                return [event], (
                    f"Rank {state.rank} started an asynchronous {event.op} and never waited for it: its result may not "
                    "be there yet when it is used. Keep the handle, and call its wait() before you use the tensor."
                )
    return NOTHING


# --- collectives


def sound_groups(matching: Matching):
    """{rank: its collectives} of each group in which every call went well."""
    failed = {(state.rank, index) for state in matching.states for index in state.failed}
    for (_, members), calls in matching.collectives.items():
        if not any((event.rank, event.index) in failed for events in calls.values() for event in events):
            yield {rank: calls.get(rank, []) for rank in members}


def columns(calls: dict[int, list[Event]]):
    """{rank: its call, or None} for each place in the order of a group's calls at which they are not all alike."""
    for number in range(max(map(len, calls.values()))):
        partners = {rank: events[number] if number < len(events) else None for rank, events in calls.items()}
        if len({event and contents(event) for event in partners.values()}) > 1:
            yield partners


def contents(event: Event) -> tuple:
    return event.op, event.peer, event.reduce_op, event.dtype, event.shape


def text(event: Event) -> str:
    file, _, line = event.where.rpartition(":")
    return linecache.getline(file, int(line)).strip() if file else ""


def what(event: Event) -> str:
    """ "all_reduce (max) of int32 [2]"."""
    asked = f"{event.op} ({event.reduce_op})" if event.reduce_op else call_text(event)
    return f"{asked} of {tensor_text(event)}" if event.dtype else asked


def swapped(mine: list, its: list) -> slice:
    """From the first to the last place at which they differ, if both hold the same there in another order."""
    places = [place for place, (one, other) in enumerate(zip(mine, its, strict=False)) if one != other]
    span = slice(places[0], places[-1] + 1) if places else slice(0)
    return span if Counter(mine[span]) == Counter(its[span]) else slice(0)


def written_apart(mine: list[Event], its: list[Event]) -> bool:
    """Whether two ranks have taken ways of their own, whose calls differ in the tensor only: `all_reduce(a)`, `(b)`.

    Not on lines that both ranks pass: there it may be somebody's turn, `all_reduce(mine if rank == turn else zeros)`.
    """
    return (
        all(event.op in FOR_ALL and event.where for event in mine + its)
        and len({contents(event) for event in mine + its}) == 1
        and not {event.where for event in mine} & {event.where for event in its}
    )


def met_each_other(mine: Event, one: str, its: Event, other: str) -> str:
    return (
        f"Rank {mine.rank}'s {one} met rank {its.rank}'s {other}: both ranks make both calls, but in another order. "
        + SAME_ORDER
    )


# --- memory


def has_gaps(shape: tuple, strides: tuple) -> bool:
    """Whether other numbers lie between those of a tensor, or some of its numbers are the same one."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != expected:
            return True
        expected *= size
    return False


def in_another_layout(event: Event, matching: Matching) -> Event | None:
    """The call of another rank whose tensor has the same shape and lies in memory in another order."""
    own = matching.states[event.rank].strides[event.index]
    for other in matching.partners(event).values():
        same_shape = other is not None and other.shape == event.shape
        if same_shape and matching.states[other.rank].strides.get(other.index) != own:
            return other
    return None


def gets_values(event: Event) -> bool:
    """Whether this rank's tensors are changed by the call."""
    if event.op in FOR_THE_ROOT:
        return event.rank == event.peer
    if event.op in FOR_THE_OTHERS:
        return event.op == "scatter" or event.rank != event.peer
    return event.op in FOR_ALL
