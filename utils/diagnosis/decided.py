"""What decided that one rank came to a call and another did not: the condition, and what it reads on both ranks.

The lines that led to two ranks' calls are compared from the outermost inwards. Where they part, or further in, there
is an `if`, a loop, a handler or an early return that let one of them come there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..events.event import Event
from ..events.rank_state import RankState
from ..text import source_lines
from ..text.decisions import Decision, Place, place_of
from .words import op_text, ordinal

ON_SOME_RANKS = ("rank", "main", "master")  # in the names of decorators that skip a function on other ranks


class Fork(NamedTuple):
    """A decision that lets `event` be called, and that `other`, if there is one, does not depend on."""

    event: Event
    other: Event | None
    decision: Decision
    place: Place
    file: str


def lines_to(event: Event) -> list[str]:
    """The student's lines that led to a call, outermost first."""
    return [*reversed(event.callers), event.where]


def parts_at(mine: Event, its: Event) -> int:
    """At which of the lines that led to two calls they part, counted from the outermost."""
    pairs = zip(lines_to(mine), lines_to(its), strict=False)
    fallback = min(len(lines_to(mine)), len(lines_to(its)))
    return next((i for i, (one, other) in enumerate(pairs) if one != other), fallback)


def is_one_choice(one: Event, other: Event, exits: bool = False) -> bool:
    """Whether the two are the branches of one `if`, each rank's way to make the same call.

    exits   or the one is inside an `if` that leaves, and the other is what follows
    """
    at = parts_at(one, other)
    mine, its = lines_to(one)[at : at + 1], lines_to(other)[at : at + 1]
    if one.op != other.op or not mine or not its:
        return False
    places = [{decision.key[:2]: decision.kind for decision in place_of(line).decisions} for line in (*mine, *its)]
    pairs = [{places[0][key], places[1][key]} for key in places[0].keys() & places[1].keys()]
    return {"if", "else"} in pairs or exits and {"if", "exit"} in pairs


def what_decides(one: Event, other: Event | None, states: Mapping[int, RankState]) -> str:
    """A sentence or two with a space in front about what decided; "" if that can't be told from the source.

    Of calls before a rank's last one, only the source is asked: what names hold now says nothing about them.
    """
    events = [event for event in (one, other) if event is not None]
    if any(event not in (states[event.rank].blocked_in(), *states[event.rank].events[-1:]) for event in events):
        states = {rank: RankState(rank) for rank in states}
    for event in events:
        if signals := [frame.handles for frame in states[event.rank].stack if frame.handles]:
            return (
                f" Rank {event.rank} is in its handler of {signals[0]}. A signal reaches each rank by itself, in the "
                "middle of anything: let the handler only set a flag, all_reduce the flag in the loop, and have all "
                "ranks act on it together."
            )
        if caught := in_the_middle_of(event, other if event is one else one, states):
            return caught
    forks = [*forks_of(one, other), *(forks_of(other, one) if other is not None else ())]
    if not forks:
        return ""
    return in_words(max(forks, key=lambda fork: weight(fork, states)), states)


def in_the_middle_of(event: Event, other: Event | None, states: Mapping[int, RankState]) -> str:
    """Sentences with a space in front about an exception that led this rank alone to its call; "" if none did."""
    its = {frame.caught[0] for frame in states[other.rank].stack} if other is not None else set()
    for frame in states[event.rank].stack:
        error, where = frame.caught
        if error and error not in its:
            return (
                f" Rank {event.rank} came there because of {error} ({source_lines.place(where)}). An `except` or a "
                "`finally` that makes a call waits for ranks on which nothing was raised, and the error is not shown."
            )
    return ""


def condition_around(event: Event, states: Mapping[int, RankState]) -> str:
    """The `if` on which the call depends, as "`if rank == 0`" or "`if done` (line 3)"; "" if there is none."""
    forks = [fork for fork in forks_of(event, None) if fork.decision.kind in ("if", "else")]
    if not forks:
        return ""
    return named(max(reversed(forks), key=lambda fork: weight(fork, states)).decision)


def exit_around(event: Event) -> str:
    """The last `if` that may leave before the call is reached, as "`if done` (line 3)"; "" if there is none."""
    exits = [fork.decision for fork in forks_of(event, None) if fork.decision.kind == "exit"]
    return named(exits[-1]) if exits else ""


def loops_around(event: Event) -> list[str]:
    """The innermost loops around a call whose rounds may differ between ranks, as "`for x in loader` (line 3)"."""
    loops = [fork.decision for fork in forks_of(event, None) if fork.decision.kind == "loop"]
    return [named(loop) for loop in reversed(loops) if loop.names or loop.exits][:2]


def skipped_by(event: Event) -> str:
    """A sentence with a space in front on how a rank may skip the call in one round of a loop; "" if none is seen."""
    if exit_before := exit_around(event):
        return f" Look at {exit_before}, which leaves before it."
    around = [fork.decision for fork in forks_of(event, None) if fork.decision.kind == "try"]
    return f" It is inside {swallowing(around[-1])}." if around else ""


def swallowing(decision: Decision) -> str:
    """Of a "try"."""
    return (
        f"the `try` of line {decision.line}, whose `{decision.text}` goes on: a rank on which an exception is caught "
        "there skips what the others wait in"
    )


def named(decision: Decision) -> str:
    """ "`if rank == 0`"; of what isn't about the rank, which may be far from the call, with its line."""
    return inside(decision) + f" (line {decision.line})" * (not decision.is_about_rank)


def forks_of(event: Event, other: Event | None) -> Iterator[Fork]:
    lines = lines_to(event)
    first = parts_at(event, other) if other is not None else 0
    its = lines_to(other)[first : first + 1] if other is not None else []
    shared = {decision.key for line in its for decision in place_of(line).decisions}
    if other is not None and not shared and not is_comparable(lines[first : first + 1], its):
        first, shared = len(lines) - 1, set()
    for line in lines[first:]:
        place = place_of(line)
        for decision in place.decisions:
            if decision.key not in shared:
                yield Fork(event, other, decision, place, line.rpartition(":")[0])


def is_comparable(mine: list[str], its: list[str]) -> bool:
    """Whether these lines, of which each list has one or none, are in the same file."""
    return not mine or not its or mine[0].rpartition(":")[0] == its[0].rpartition(":")[0]


def weight(fork: Fork, states: Mapping[int, RankState]) -> int:
    """How likely it is that this decision made the difference. Of equals, the first counts: the outermost."""
    decision = fork.decision
    if decision.kind == "decorator":
        return 5 if any(word in decision.text for word in ON_SOME_RANKS) else -1
    if decision.kind == "loop":
        return 0 if fork.other is not None else -1
    if decision.kind == "except":
        return 4
    if decision.kind == "try":
        return 2
    mine, its = known(fork, states)
    differ = any(mine[name] != its[name] for name in mine.keys() & its.keys())
    return 3 if decision.is_about_rank else 2 if differ else 1


def known(fork: Fork, states: Mapping[int, RankState]) -> tuple[dict[str, str], dict[str, str]]:
    """What the decision's names hold on the two ranks, as far as that was seen."""

    def of(event: Event | None) -> dict[str, str]:
        for frame in states[event.rank].stack if event is not None else ():
            if (frame.file, frame.function) == (fork.file, fork.place.function or "<module>"):
                return {name: frame.values[name] for name in fork.decision.names if name in frame.values}
        return {}

    return of(fork.event), of(fork.other)


def in_words(fork: Fork, states: Mapping[int, RankState]) -> str:
    event, other, decision, place, _ = fork
    what, at = op_text(event), f"line {decision.line}"
    match decision.kind:
        case "if" | "else" if decision.is_about_rank:
            said = f" The {what} is inside {inside(decision)}."
        case "if" | "else":
            said = f" The {what} is inside {inside(decision)} ({at})."
        case "except":
            said = f" The {what} is inside `{decision.text}` ({at}): only a rank on which that was raised comes there."
        case "try":
            said = f" The {what} is inside {swallowing(decision)}."
        case "exit":
            said = f" The {what} is not reached {inside(decision)}: `{place.function}` leaves before it ({at})."
        case "decorator" if weight(fork, states) > 0:
            said = f" The {what} is inside `{place.function}`, which `{decision.text}` may skip on some ranks."
        case "loop" if other is not None:
            said = f" Rank {event.rank}'s call is in the loop `{decision.text}` ({at}), and rank {other.rank}'s is not"
            said += f"{more_often(event, states[other.rank], states[event.rank])}."
            said += f" The loop may end early, by {' or '.join(decision.exits[:2])}." if decision.exits else ""
        case _:
            return ""
    return said if decision.is_about_rank else said + values_in_words(fork, states)


def more_often(event: Event, its: RankState, mine: RankState) -> str:
    """ ": rank 0 is in its 3rd all_reduce there, and rank 1 has made 2"; "" if rank 0 hasn't made it more often."""

    def made(state: RankState) -> int:
        known = sum((e.where, e.op, e.wrapper) == (event.where, event.op, event.wrapper) for e in state.events)
        return known + state.forgotten[event.where, event.op, event.wrapper]

    if made(mine) <= made(its):
        return ""
    return (
        f": rank {mine.rank} is in its {ordinal(made(mine))} {op_text(event)} there, and rank {its.rank} has made "
        f"{made(its)}"
    )


def inside(decision: Decision) -> str:
    return f"`else` of `{decision.text}`" if decision.kind == "else" else f"`{decision.text}`"


def values_in_words(fork: Fork, states: Mapping[int, RankState]) -> str:
    mine, its = known(fork, states)
    parts = []
    for name, value in mine.items():
        if fork.other is not None and name in its and its[name] != value:
            parts.append(f"`{name}` is {value} on rank {fork.event.rank} and {its[name]} on rank {fork.other.rank}")
        elif name not in its:
            parts.append(f"`{name}` is {value} on rank {fork.event.rank}")
    return f" Now {', '.join(parts)}." if parts else ""
