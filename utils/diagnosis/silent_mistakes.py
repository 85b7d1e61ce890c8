"""Mistakes that raise no error: Gloo returns, with wrong values. They are found by comparing the ranks' records.

A correct program must never be accused. So calls are compared only where they must agree, groups and messages with a
call that raised are left out, and there is no guessing about what a program does with a tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from ..events.collectives import ALL, COLLECTIVES, fills
from ..events.event import Event
from ..events.matching import Matching, Rounds
from ..events.rank_state import RankState, TensorLayout
from ..text.source_lines import line_of, place
from .errors import SilentMistake
from .meshes import dimensions_swapped
from .mismatch import SAME_ORDER, difference, message_mismatch, mixed_gradients, unfit_splits
from .replicas import differing_replicas, step_without_reduction
from .why_stuck import groups_in_another_order
from .words import call_text, ranks_text, tensor_text

Finding = tuple[list[Event], str]  # calls to show, and what is wrong with them
NOTHING: Finding = ([], "")
OPERATOR = "torch.ops"  # the wrapper of a call that a line of the student's makes by one of torch's operators
AS_OPERATOR = (
    "torch.ops leaves the waiting to you: use torch.distributed._functional_collectives, whose tensors wait when they "
    "are used, or pass the result through torch.ops._c10d_functional.wait_tensor before you use"
)


def silent_mistake(states: list[RankState]) -> SilentMistake | None:
    """The error of a world in which every rank finished; None if there is no evidence against its values."""
    report = explain_silence(states)
    if not report:
        return None
    return SilentMistake(f"every rank finished, but the values can't be trusted.\n{report}")


def explain_silence(states: list[RankState]) -> str:
    """The report of a world in which every rank finished but one made a mistake; "" if there is no evidence of one."""
    matching = Matching(states)
    for find in (
        find_different_groups,
        find_different_meshes,
        find_parameters_in_another_order,
        mixed_gradients,
        find_swapped_calls,
        find_different_collectives,
        find_different_messages,
        find_unfit_splits,
        find_unfit_layouts,
        find_unused_handles,
        find_differing_replicas,
    ):
        calls, sentence = find(matching)
        if sentence:
            if not calls:
                return f"\n{sentence}"
            lines = [f"  rank {e.rank}  {call_text(e):<32}  {place(e.where)}".rstrip() for e in calls]
            return "\n".join([*lines, "", sentence])
    return ""


def find_different_groups(matching: Matching) -> Finding:
    sentence = groups_in_another_order(matching.states)
    return (
        ([event for state in matching.states.values() for event in state.groups_made], sentence)
        if sentence
        else NOTHING
    )


def find_different_meshes(matching: Matching) -> Finding:
    return dimensions_swapped(matching.states.values())


def find_parameters_in_another_order(matching: Matching) -> Finding:
    """Two ranks that send the same parameters by calls that look alike, in different orders."""
    for members, rounds in sound_groups(matching):
        first, *others = ([(e, moved_by(e, matching)) for e in rounds.of(rank)] for rank in members)
        for other in others:
            pairs = [(mine, its) for mine, its in zip(first, other, strict=False) if mine[1] and its[1]]
            span = swapped_span([mine[1] for mine, _ in pairs], [its[1] for _, its in pairs])
            if span is not None:
                (mine, one), (its, another) = pairs[span][0]
                return [mine, its], (
                    f"Rank {mine.rank}'s {mine.op} of {named(one, mine)} met rank {its.rank}'s of "
                    f"{named(another, its)}: both ranks send the same parameters, but in different orders, so their "
                    "values are mixed up. Go through the parameters in the same order on every rank, that of "
                    "model.named_parameters(), say."
                )
    return NOTHING


def moved_by(event: Event, matching: Matching) -> str:
    """What identifies the parameter that a call sends: its name, or the values that it had; "" if it sends none."""
    moved = matching.states[event.rank].moved.get(event.index)
    return "" if moved is None else moved.name or f"{moved.fingerprint}"


def named(parameter: str, event: Event) -> str:
    return f"a parameter of {tensor_text(event)}" if parameter.isdecimal() else f"`{parameter}`"


def find_unfit_splits(matching: Matching) -> Finding:
    for _, rounds in sound_groups(matching):
        for calls in rounds.calls.values():
            if sentence := unfit_splits(calls, matching.states):
                return list(calls.values()), sentence
    return NOTHING


def find_differing_replicas(matching: Matching) -> Finding:
    states = list(matching.states.values())
    return [], step_without_reduction(states) or differing_replicas(states)


def find_swapped_calls(matching: Matching) -> Finding:
    """Two ranks that make the same calls in different orders: it shows in their tensors, or in the lines of code."""
    for members, rounds in sound_groups(matching):
        first, *others = map(rounds.of, members)
        for other in others:
            span = swapped_span([contents(event) for event in first], [contents(event) for event in other])
            if span is not None:
                mine, its = first[span][0], other[span][0]
                return [mine, its], met_each_other(mine, contents_text(mine), its, contents_text(its))
            if [event.where for event in first] != [event.where for event in other]:
                span = swapped_span(
                    [line_of(event.where) for event in first], [line_of(event.where) for event in other]
                )
                if span is not None and written_apart(first[span], other[span]):
                    mine, its = first[span][0], other[span][0]
                    return [mine, its], met_each_other(mine, f"`{line_of(mine.where)}`", its, f"`{line_of(its.where)}`")
    return NOTHING


def find_different_collectives(matching: Matching) -> Finding:
    for members, rounds in sound_groups(matching):
        for partners in (rounds.partners(number, members) for number in rounds.calls):
            if len({event and contents(event) for event in partners.values()}) == 1:
                continue
            made = [event for event in partners.values() if event is not None]
            missing = [rank for rank, event in partners.items() if event is None]
            if not missing and (sentence := difference(partners)):
                return made, sentence
            if missing and any(event.end is not None for event in made):
                return (
                    made,
                    f"{ranks_text(missing)} never called this {made[0].op}, and the others didn't notice. {SAME_ORDER}",
                )
    return NOTHING


def find_different_messages(matching: Matching) -> Finding:
    failed = {(state.rank, index) for state in matching.states.values() for index in state.failed}
    for channel, sends in matching.sends.items():
        both = sends + matching.receives.get(channel, [])
        if failed and any((event.rank, event.index) in failed for event in both):
            continue
        for send in sends:
            receive = matching.other_end(send)
            if receive is not None and (sentence := message_mismatch(send, receive)):
                return [send, receive], sentence
    return NOTHING


def find_unfit_layouts(matching: Matching) -> Finding:
    for state in matching.states.values():
        if state.strides:
            by_index = {event.index: event for event in state.events}
            for index, (shape, strides) in state.strides.items():
                event = by_index[index]
                if len(event.members) == 1 or index in state.failed:
                    continue
                if has_gaps(shape, strides):
                    return [event], (
                        f"Rank {state.rank} handed {event.op} a view with gaps (shape {list(shape)}, strides "
                        f"{list(strides)}), but Gloo works on consecutive memory, so it used the wrong numbers. "
                        "Hand in x.contiguous(), and copy the result back into the view."
                    )
                if COLLECTIVES[event.op].in_place and (other := in_another_layout(event, matching)) is not None:
                    return [event, other], (
                        f"Rank {state.rank}'s tensor is laid out differently in memory from rank {other.rank}'s "
                        f"(is one a transpose?), and {event.op} goes by the order in memory. "
                        "Hand in x.contiguous() on every rank."
                    )
    return NOTHING


def find_unused_handles(matching: Matching) -> Finding:
    for state in matching.states.values():
        for event in state.events if state.unused_handles else ():
            if event.index in state.unused_handles and event.op == "send":  # recorded only where answers are judged
                return [event], (
                    f"Rank {state.rank} started an asynchronous send and never waited for it: its tensor may not have "
                    "been read yet when you change it or return. Keep the handle, and call its wait()."
                )
            if event.index in state.unused_handles and fills(event.op, event.rank == event.peer):
                how = (
                    AS_OPERATOR if event.wrapper == OPERATOR else "Keep the handle, and call its wait() before you use"
                )
                return [event], (
                    f"Rank {state.rank} started an asynchronous {event.op} and never waited for it: its result may not "
                    f"be there yet when you use it. {how} the tensor."
                )
    return NOTHING


# --- collectives


def sound_groups(matching: Matching) -> Iterator[tuple[tuple[int, ...], Rounds[Event]]]:
    """(members, their collectives) of each group in which no call raised, and whose members have called it.

    In a world that was started again ("world.2"), a rank may have a new number, or be in its third world already.
    """
    failed = {(state.rank, index) for state in matching.states.values() for index in state.failed}
    for (group, members), rounds in matching.collectives.by_key.items():
        if "." in group and rounds.made.keys() != set(members):
            continue
        calls = (event for calls in rounds.calls.values() for event in calls.values()) if failed else ()
        if not any((event.rank, event.index) in failed for event in calls):
            yield members, rounds


def contents(event: Event) -> Hashable:
    """What the ranks' calls of one collective have in common. Ranks may hand in different numbers of rows to an
    all-to-all, so its shape says nothing: sizes of [6] and [10] on one rank may be [10] and [6] on another."""
    shape = event.shape if COLLECTIVES[event.op].same_size else ()
    return event.op, event.peer, event.reduce_op, event.dtype, shape


def contents_text(event: Event) -> str:
    """ "all_reduce (max) of int32 [2]"."""
    call = f"{event.op} ({event.reduce_op})" if event.reduce_op else call_text(event)
    return f"{call} of {tensor_text(event)}" if event.dtype else call


def swapped_span(mine: Sequence[Hashable], its: Sequence[Hashable]) -> slice | None:
    """From the first to the last place where they differ, if both hold the same there in different orders."""
    places = [place for place, (one, other) in enumerate(zip(mine, its, strict=False)) if one != other]
    if not places:
        return None
    span = slice(places[0], places[-1] + 1)
    return span if Counter(mine[span]) == Counter(its[span]) else None


def written_apart(mine: list[Event], its: list[Event]) -> bool:
    """Whether two ranks run different lines whose calls differ only in the tensor: `all_reduce(a)`, `all_reduce(b)`.

    On a line that both run, ranks may be taking turns: `all_reduce(mine if rank == turn else zeros)`.
    """
    return (
        all(is_for_all(event.op) and event.where for event in mine + its)
        and len({contents(event) for event in mine + its}) == 1
        and not {event.where for event in mine} & {event.where for event in its}
    )


def is_for_all(op: str) -> bool:
    return COLLECTIVES[op].receives == ALL and not COLLECTIVES[op].rooted


def met_each_other(mine: Event, one: str, its: Event, other: str) -> str:
    return (
        f"Rank {mine.rank}'s {one} met rank {its.rank}'s {other}: both ranks make both calls, but in different orders. "
        + SAME_ORDER
    )


# --- memory


def has_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor's numbers have others between them in memory, or share a place."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != expected:
            return True
        expected *= size
    return False


def in_another_layout(event: Event, matching: Matching) -> Event | None:
    """Another rank's call whose tensor has the same shape but a different order in memory."""
    own = matching.states[event.rank].strides[event.index]
    for other in matching.partners(event).values():
        if other is None or other.shape != event.shape:
            continue
        its = matching.states[other.rank].strides.get(other.index)
        if its is None or real_strides(its) != real_strides(own):
            return other
    return None


def real_strides(layout: TensorLayout) -> list[int]:
    """Without those of dimensions of one element, which no step is ever taken along."""
    return [stride for size, stride in zip(*layout, strict=True) if size > 1]
