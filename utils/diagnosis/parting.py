"""Where ranks parted first: the n-th collective of a group that some of them called from another line than others.

Nobody need notice for a long time. As long as shapes fit, each call meets the wrong partner, values are wrong, and the
ranks get stuck only at the end, at a line that has nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..events.event import Event
from ..events.matching import Matching, Rounds
from ..text.source_lines import place
from .decided import is_one_choice, lines_to, parts_at, what_decides
from .words import call_text, group_text, op_text, ordinal, ranks_text

MOST_EXTRA = 64  # calls that one rank may have made where another made none, and still be seen to go on alike
ALIKE = 1  # calls after them that must be alike


class Parting(NamedTuple):
    """number: of the round, from 0. extra: what the first of `mine` called there and `its` ranks did not, if known."""

    number: int
    mine: list[Event]
    its: list[Event]
    extra: list[Event]


def earlier_parting(blocked: dict[int, Event], matching: Matching) -> tuple[str, bool]:
    """Sentences on where ranks parted before they got stuck, "" if they did only where they wait now; and whether that
    explains all the rest: but for some calls of one rank, the ranks went on alike. Nothing is said of a record that no
    longer holds the first calls.
    """
    if any(state.forgotten for state in matching.states.values()):
        return "", False
    partings = [
        found
        for key, rounds in matching.collectives.by_key.items()
        if any((event.group, event.members) == key for event in blocked.values())
        and (found := first_parting(rounds, blocked)) is not None
    ]
    if not partings:
        return "", False
    first = min(partings, key=lambda parting: parting.mine[0].start)
    return in_words(first, blocked, matching), bool(first.extra)


def first_parting(rounds: Rounds[Event], blocked: dict[int, Event]) -> Parting | None:
    ranks = sorted(rounds.made)
    for number in sorted(rounds.calls):
        calls = rounds.calls[number]
        if len(calls) < 2 or any(blocked.get(rank) is call for rank, call in calls.items()):
            return None
        sides = sides_of([calls[rank] for rank in ranks if rank in calls])
        if len(sides) < 2:
            continue
        its, mine = sides[0], sides[1]
        ahead, behind = rounds.of(mine[0].rank)[number:], rounds.of(its[0].rank)[number:]
        if extra := made_in_addition(ahead, behind):
            return Parting(number, mine, its, extra)
        if extra := made_in_addition(behind, ahead):
            return Parting(number, its, mine, extra)
        if any(is_alike(call, behind[0]) for call in ahead[1:]) or any(is_alike(c, ahead[0]) for c in behind[1:]):
            return Parting(number, mine, its, [])
    return None


def sides_of(calls: list[Event]) -> list[list[Event]]:
    """Calls of one round, those that are alike together; the most common first."""
    sides: list[list[Event]] = []
    for call in calls:
        side = next((side for side in sides if is_alike(call, side[0]) or is_one_choice(call, side[0])), None)
        if side is None:
            sides.append([call])
        else:
            side.append(call)
    return sorted(sides, key=len, reverse=True)


def is_alike(one: Event, other: Event) -> bool:
    return (one.where, one.op, one.part, one.callers) == (other.where, other.op, other.part, other.callers)


def made_in_addition(ahead: list[Event], behind: list[Event]) -> list[Event]:
    """The first calls of `ahead`, without which it goes on as `behind` does to the end; [] if there are none."""
    for count in range(1, min(MOST_EXTRA, len(ahead) - ALIKE) + 1):
        pairs = list(zip(ahead[count:], behind, strict=False))
        if len(pairs) >= ALIKE and all(is_alike(*pair) for pair in pairs):
            return ahead[:count]
    return []


def in_words(parting: Parting, blocked: dict[int, Event], matching: Matching) -> str:
    number, mine, its, extra = parting
    who = ranks_text(sorted(event.rank for event in mine))
    group = group_text(mine[0], matching.states[mine[0].rank])
    told = f"The ranks parted earlier, at the {ordinal(number + 1)} collective of {group}:"
    one, other = sorted((mine[0], its[0]), key=lambda event: event.rank)
    lines = [*rows(one, other), *rows(other, one)]
    decided = what_decides(mine[0], its[0], matching.states)
    if extra:
        this = f"this {op_text(mine[0])}"
        what = this if len(extra) == 1 else f"{len(extra)} calls, from {this} on,"
        verdict = (
            f"{who} made {what} in addition. From there on, each call met one that belongs to a different step, so the "
            f"values since then are wrong on all ranks.{decided} Every rank of a group must call the same collectives "
            "in the same order: all_reduce the decision first, and have all ranks follow it."
        )
    else:
        verdict = f"From there on, their calls need not belong together, and values may be wrong.{decided}"
        return "\n".join([told, *lines, verdict])
    if mine[0].wrapper == "DDP backward":
        verdict += " DDP does so in each backward pass outside of no_sync(): all ranks must leave it in the same steps."
    end = "; ".join(f"rank {rank} waits in {call_text(event)}" for rank, event in sorted(blocked.items())[:4])
    return "\n".join([told, *lines, f"{verdict} In the end {end}."])


def rows(event: Event, other: Event) -> Iterator[str]:
    """A line for a call, and one for each line that led to it, as far out as the other rank's lines differ."""
    part = f" ({event.part})" * bool(event.part)
    yield f"  rank {event.rank}  {call_text(event):<26}  {place(event.where)}{part}"
    for line in lines_to(event)[-2 : parts_at(event, other) - len(lines_to(event)) - 1 : -1]:
        yield f"{'':38}called from {place(line)}"
