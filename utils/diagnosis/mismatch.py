"""Forbidden differences between calls that belong together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from ..events.collectives import COLLECTIVES
from ..events.event import Event
from ..events.matching import Matching
from ..events.rank_state import Gradient, RankState
from ..text.rank_sets import FEW
from ..text.source_lines import place
from ..text.units import plural
from .decided import is_one_choice, lines_to, parts_at, what_decides
from .words import op_text, ranks_text, spoken, tensor_text

ORDER_MAY_NOT_MATTER = ("min", "max")  # a program may want the largest of all gradients, and no more
ONE_BY_ONE = (
    "Go through the parameters in the same order on every rank: a set has no order, and if `if p.grad is not None` "
    "skips a parameter on one rank only, all that follow meet the wrong partner."
)
IN_ONE_TENSOR = (
    "Both ranks put several gradients into one tensor, so they must put them there in the same order: a set, for "
    "example, has no order."
)
LIST_OF_OBJECTS = "broadcast_object_list"
OF_OBJECTS = (
    "{} first tells the other ranks how long the pickled object is, as a tensor of one number. A rank that meets it "
    "with a different call takes that call's numbers for lengths, and these for its own result."
)
IN_THREADS = (
    " Two threads of a rank come in any order, a different one on each rank. Give the thread a group of its own, made "
    "with new_group by all ranks, or let only the main thread communicate."
)
SAME_ORDER = "Every rank of a group must call the same collectives in the same order."


def difference(partners: Mapping[int, Event | None], states: Mapping[int, RankState] | None = None) -> str:
    """How the ranks' calls of one collective differ where they must not, as sentences; "" if they don't.

    partners   {rank: its call, or None if it has not made one}
    states     if they are given, what decided between the calls is said, too
    """
    made = {rank: event for rank, event in partners.items() if event is not None}
    op = next(iter(made.values())).op
    if len({op_text(e) for e in made.values()}) > 1:
        first, *others = made.values()
        other = next(event for event in others if op_text(event) != op_text(first))
        decided = what_decides(first, other, states) if states and lines_to(first) != lines_to(other) else ""
        return f"{each(made, 'called', spoken)}. {SAME_ORDER}{IN_THREADS if in_threads(made) else decided}"
    if len({e.peer for e in made.values()}) > 1:
        return told(made, "named root", root_text, "All ranks must name the same root.", states)
    if len({e.reduce_op for e in made.values()}) > 1:
        return told(made, "asked for", reduce_op_text, f"{op} needs the same reduce op on every rank.", states)
    if COLLECTIVES[op].same_size and len({(e.dtype, math.prod(e.shape)) for e in made.values()}) > 1:
        if all(op_text(e) == LIST_OF_OBJECTS for e in made.values()):
            rule = f"{LIST_OF_OBJECTS} needs a list of the same length on every rank."
            return told(made, "brought", length_text, rule, states)
        rule = f"{op} needs the same shape and dtype on every rank.{new_tensors(*made.values())}"
        return told(made, "brought", tensor_text, rule, states)
    return ""


def told(
    made: Mapping[int, Event],
    verb: str,
    text: Callable[[Event], str],
    rule: str,
    states: Mapping[int, RankState] | None,
) -> str:
    """How calls of one collective differ in `text`, and the rule for that; if they come from different lines, and not
    from the branches of one `if`, their lines and what decided between them.
    """
    first, *others = made.values()
    other = next((event for event in others if text(event) != text(first)), others[0])
    if lines_to(first) == lines_to(other) or is_one_choice(first, other, exits=True):
        return f"{each(made, verb, text)}. {rule}"
    line = where_it_parts(first, other)
    different = each(made, verb, lambda event: f"{text(event)} ({line(event)})")
    decided = what_decides(first, other, states) if states else ""
    return f"{different}: these calls don't belong together. {SAME_ORDER}{decided}"


def where_it_parts(one: Event, other: Event) -> Callable[[Event], str]:
    """A function that gives the line of a call, or if these two are from the same line, the one that led to it."""
    at = None if one.where != other.where else parts_at(one, other)

    def line(event: Event) -> str:
        lines = lines_to(event)
        return place(lines[-1 if at is None or at >= len(lines) else at]).partition(":  ")[0]

    return line


def root_text(event: Event) -> str:
    return f"{event.peer}"


def reduce_op_text(event: Event) -> str:
    return event.reduce_op


def length_text(event: Event) -> str:
    """Of a call that tells how long the pickled objects of a list are."""
    return f"a list of {plural(math.prod(event.shape), 'object')}"


def in_threads(made: Mapping[int, Event]) -> bool:
    return any(event.thread for event in made.values())


def mixed_objects(matching: Matching) -> str:
    """Sentences about a function for objects that has met the same collective made by another; "" if none has."""
    for rounds in matching.collectives.by_key.values():
        for calls in rounds.calls.values():
            if len({op_text(e) for e in calls.values()}) > 1 and len({e.op for e in calls.values()}) == 1:
                first, *others = sorted(calls.values(), key=is_object, reverse=True)
                other = next(event for event in others if op_text(event) != op_text(first))
                return (
                    f"{each(calls, 'called', op_text)}. {OF_OBJECTS.format(op_text(first))} {SAME_ORDER}"
                    f"{what_decides(first, other, matching.states)}"
                )
    return ""


def is_object(event: Event) -> bool:
    return op_text(event) != event.op


def unfit_splits(calls: Mapping[int, Event], states: Mapping[int, RankState]) -> str:
    """How an all-to-all's sizes differ between a sender and its receiver, as sentences; "" if they don't.

    calls   {rank: its call}, of all that have made it
    """
    splits = {rank: states[rank].splits[e.index] for rank, e in calls.items() if e.index in states[rank].splits}
    for sender, (_, sent, mine) in splits.items():
        for receiver, (received, _, its) in splits.items():
            members = calls[sender].members
            gives, takes = sent[members.index(receiver)], received[members.index(sender)]
            if gives * mine != takes * its:
                size = f" of {mine} elements" if mine != its else ""
                other_size = f" of {its}" if mine != its else ""
                return (
                    f"Rank {sender} sends {plural(gives, 'row')}{size} to rank {receiver}, which expects "
                    f"{takes}{other_size} from it. In an "
                    "all_to_all, input_split_sizes[j] on rank i must equal output_split_sizes[i] on rank j: exchange "
                    "the sizes first, with an all_to_all of one number per rank."
                )
    return ""


def new_tensors(*events: Event) -> str:
    """What a student may not know about dtypes, where those of the events differ and it fits."""
    dtypes = {event.dtype for event in events}
    is_default = "float32" in dtypes and len(dtypes) > 1
    return " A new tensor, such as torch.zeros(3), is float32 unless you say otherwise." * is_default


def mixed_gradients(matching: Matching) -> tuple[list[Event], str]:
    """Calls of two ranks that add up the gradients of different parameters, and sentences about them; ([], "") if none.

    Each rank must have both parameters, as replicas in data parallelism: then no program can want this sum.
    """
    for rounds in matching.collectives.by_key.values():
        for calls in rounds.calls.values():
            if len(calls) < len(rounds.made):
                break  # from here on a rank is missing
            known = [
                (e, g) for e in calls.values() if (g := matching.states[e.rank].gradients.get(e.index)) is not None
            ]
            for (one, mine), (other, its) in itertools.pairwise(known):
                different = first_difference(mine, its)
                if different is None or one.reduce_op in ORDER_MAY_NOT_MATTER:
                    continue
                a, b = different
                if all({a.fingerprint, b.fingerprint} <= matching.states[e.rank].parameters for e in (one, other)):
                    return [one, other], (
                        f"Rank {one.rank} reduced the gradient of {whose(a, one)} when rank {other.rank} reduced "
                        f"that of {whose(b, other)}. {IN_ONE_TENSOR if len(mine) > 1 else ONE_BY_ONE}"
                    )
    return [], ""


def first_difference(mine: list[Gradient], its: list[Gradient]) -> tuple[Gradient, Gradient] | None:
    """The first gradients at the same place of two tensors, if they are of different parameters somewhere."""
    for a, b in zip(mine, its, strict=False):
        same_name = a.name and a.name == b.name  # replicas whose values differ
        if a.fingerprint != b.fingerprint and not same_name:
            return a, b
    return None


def whose(gradient: Gradient, event: Event) -> str:
    return gradient.name or f"a parameter of {tensor_text(event)}"


def each(made: Mapping[int, Event], verb: str, what: Callable[[Event], object]) -> str:
    """ "rank 0 called all_reduce, rank 1 called barrier"."""
    alike: dict[str, list[int]] = {}
    for rank, event in made.items():
        text = str(what(event))
        alike.setdefault(text if len(made) > FEW else f"{rank} {text}", []).append(rank)
    parts = [f"{ranks_text(who).lower()} {verb} {what(made[who[0]])}" for who in alike.values()]
    return ", ".join(parts if len(parts) <= FEW else [*parts[:4], "...", parts[-1]])


def message_mismatch(one: Event, other: Event) -> str:
    """How a send and its receive differ where they must not, as sentences; "" if they don't."""
    send, receive = (one, other) if one.op == "send" else (other, one)
    if send.bytes > receive.bytes:
        what = f"whose recv only has room for {tensor_text(receive)}"
    elif send.bytes < receive.bytes:
        what = f"which received it into {tensor_text(receive)}: the rest of that tensor stays as it was"
    elif send.dtype != receive.dtype and "uint8" not in (send.dtype, receive.dtype):  # raw bytes fit any dtype
        what = f"which received it into {tensor_text(receive)}, where the same bytes mean different numbers"
    else:
        return ""
    return (
        f"Rank {send.rank} sent {tensor_text(send)} to rank {receive.rank}, {what}. "
        f"A send and its recv need the same shape and dtype.{new_tensors(send, receive)}"
    )
