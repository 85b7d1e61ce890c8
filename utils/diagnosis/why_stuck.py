"""Why no rank can move: the likely mistake in a sentence or two that name the ranks, the calls and the usual fix."""

from __future__ import annotations

from ..events.collectives import COLLECTIVES, POINT_TO_POINT, ROOT
from ..events.event import Event
from ..events.matching import Matching, group_key
from ..events.rank_state import RankState
from ..text.rank_sets import FEW
from ..text.source_lines import place
from ..text.units import plural
from .decided import condition_around, exit_around, loops_around, skipped_by, what_decides
from .fsdp import skipped_module
from .meshes import dimensions_swapped
from .mismatch import difference, mixed_gradients, mixed_objects
from .parting import earlier_parting
from .pipelines import different_microbatches
from .words import call_text, group_text, op_text, ordinal, ranks_text
from .wrappers import what_it_does, what_they_do

EVERYONE_FIRST = {
    "send": ("sends", "Let one rank of each pair receive first, or use isend and wait after the receive."),
    "recv": ("receives", "A message must be sent before it can arrive: let one rank send first."),
}
MORE_ROUNDS = (
    "give all ranks the same number of batches. No rank may skip a batch or stop early on its own: all_reduce the "
    "decision first, and have all ranks follow it."
)
NO_CAUSE = "No send matches a receive"  # how a report begins that describes the deadlock and can't say more
ALL_GROUPS = "Every rank must call new_group for every group in the same order, even for groups that it is not in."


def likely_mistake(blocked: dict[int, Event], matching: Matching) -> str:
    """Why no rank can move. blocked: {rank: the call it is inside}."""
    parted, explains_all = earlier_parting(blocked, matching)
    if explains_all:
        return parted
    said = why(blocked, matching)
    if skipped := skipped_module(blocked, matching):
        said = f"{skipped}\n{said}"
    else:
        said = " ".join([said, *(what for what in what_they_do(blocked.values()) if what not in said)])
    return f"{parted}\n\n{said}" if parted else said


def why(blocked: dict[int, Event], matching: Matching) -> str:
    if any(event.op == "new_group" or not is_one_group(event, matching.states) for event in blocked.values()):
        return unmade_group(blocked, matching.states)
    states = matching.states.values()
    if sentence := dimensions_swapped(states)[1] or mixed_gradients(matching)[1]:
        return sentence
    if sentence := mixed_objects(matching) or different_microbatches(states):
        return sentence
    collectives = [event for event in blocked.values() if event.op not in POINT_TO_POINT]
    for event in collectives:
        if sentence := difference(matching.partners(event), matching.states):
            return sentence
    if sentence := lost_message(blocked, matching):
        return sentence
    for event in collectives:
        if missing := missing_from(event, matching):
            return missing_rank(event, missing, blocked, matching)
    return unmet_messages(blocked, matching)


def missing_rank(event: Event, missing: list[int], blocked: dict[int, Event], matching: Matching) -> str:
    states = matching.states
    finished = [rank for rank in missing if states[rank].finished]
    if finished:
        return finished_without(event, finished, states)
    for rank in missing:
        if for_others := called_for_others(event, states[rank]):
            return for_others
        other = blocked[rank]
        awaited = missing_from(other, matching) if other.op not in POINT_TO_POINT else []
        if other.members != event.members and (finished := [r for r in awaited if states[r].finished]):
            return finished_without(other, finished, states)
        called = [member for member in (event.rank, *awaited) if member in awaited and member not in missing]
        if called and called[0] in event.members:
            mine, its = group_text(event, states[event.rank]), group_text(other, states[rank])
            return (
                f"Rank {called[0]} uses {mine} first, rank {rank} uses {its} first: each waits for the other. "
                "Ranks that share several groups must use them in the same order."
            )
    elsewhere = "; ".join(f"rank {rank} is in {call_text(blocked[rank])}" for rank in missing)
    every = "both" if len(event.members) == 2 else "all"
    rule = next(filter(None, (message_instead(event, blocked[rank], blocked, matching) for rank in missing)), "")
    hint = "" if rule else what_decides(event, blocked[missing[0]], states)
    rule = rule or "The calls that they share must come in the same order on all of them."
    return f"{ranks_text(event.members)} must {every} call {event.op}, but {elsewhere}. {rule}{hint}"


def message_instead(event: Event, message: Event, blocked: dict[int, Event], matching: Matching) -> str:
    """Sentences about a rank that waits for a message and so never reaches the collective; "" if they explain nothing.

    event     the collective
    message   what the rank waits in
    """
    other = blocked.get(-1 if message.peer is None else message.peer)
    if message.op not in POINT_TO_POINT or other is None or other.op in POINT_TO_POINT:
        return ""
    if message.op == "recv" and COLLECTIVES[event.op].gives == ROOT and message.peer == event.peer:
        return f"A {event.op} is not received with recv: every rank calls {event.op} itself."
    if matching.other_end(message) is not None:
        return ""
    if message.op == "recv":
        who, verb = f"Rank {message.rank} waits for a message from rank {other.rank}", "send"
    else:
        who, verb = f"Rank {message.rank} waits for its message to be received by rank {other.rank}", "receive"
    return (
        f"{who}, which is in {call_text(other)} and could {verb} it only afterwards, if at all: is a call missing, or "
        "are two in the wrong order?"
    )


def finished_without(event: Event, finished: list[int], states: dict[int, RankState]) -> str:
    """Sentences about a collective for which a rank waits, while these have finished without it."""
    have = "has" if len(finished) == 1 else "have"
    calls = [calls_like(event, states[rank]) for rank in finished]
    numbers = [number_like(event, states[rank]) for rank in finished]
    again, before = all(numbers), number_like(event, states[event.rank])
    elsewhere = [
        c[-1] for c, n in zip(calls, numbers, strict=True) if c and n >= before and c[-1].members != event.members
    ]
    group, is_world = group_text(event, states[event.rank]), len(event.members) == len(states)
    if for_others := next((said for rank in finished if (said := called_for_others(event, states[rank]))), ""):
        return for_others
    if elsewhere and not event.wrapper:
        [other, *_] = elsewhere
        return (
            f"Rank {event.rank} waits in {group}, but rank {other.rank} made this call in "
            f"{group_text(other, states[other.rank])} and has finished. A collective returns only when every rank of "
            "its group has called it. Is a group wrong, or does a rank use the wrong one?"
        )
    fix = more_rounds(event, finished) if again else skipped(event, is_world, states)
    if what := what_it_does(event):
        return (
            f"{what} {ranks_text(finished)} {have} finished {'after fewer of them' if again else 'without it'}: {fix}"
        )
    none = f"never called this {op_text(event)}{f' in {group}' * (not is_world)} and {have} finished"
    if any(in_group(event, states[rank]) for rank in finished):
        none = f"{have} finished, and called {op_text(event)} in {group} only from other lines"
    fewer = f"{have} finished after fewer calls of {op_text(event)} than rank {event.rank}"
    if len(counts := set(numbers)) == 1 and (count := counts.pop()) < before:
        done = f"{have} finished after {plural(count, 'call')} of this {op_text(event)}"
        fewer = f"{done}; rank {event.rank} is in its {ordinal(before)}"
    rule = "A collective returns only when every rank of its group has called it"
    return f"{ranks_text(finished)} {fewer if again else none}. {rule}: {fix}{who_left(finished, states)}"


def who_left(finished: list[int], states: dict[int, RankState]) -> str:
    """That ranks have destroyed the process group, as a sentence with a space in front; "" if none has."""
    left = [rank for rank in finished if states[rank].left]
    if not left:
        return ""
    return f" {ranks_text(left)} called destroy_process_group before: {place(states[left[0]].left)}"


def called_for_others(event: Event, state: RankState) -> str:
    """Sentences about a rank that made this call for a group that it is not in; "" if it did not."""
    where = [where for function, where in state.skipped if where == event.where or function == op_text(event)]
    if not where:
        return ""
    return (
        f"Rank {state.rank} called it as well, but for a group that it is not in ({place(where[-1])}). torch skips "
        f"such a call with a warning, so rank {event.rank} waits in vain: each rank must pass the group that it is in."
    )


def in_group(event: Event, state: RankState) -> list[Event]:
    """The calls of the same kind that the rank has made in the same group, from whichever line."""
    return [e for e in state.events if (op_text(e), e.members) == (op_text(event), event.members)]


def more_rounds(event: Event, finished: list[int]) -> str:
    """What to look at where a rank has made a call more often than others."""
    if event.wrapper:
        return f"{MORE_ROUNDS}{skipped_by(event)}"
    them, loops = ranks_text(finished).lower(), " or ".join(loops_around(event)) or "the loop"
    return f"does {loops} have more rounds on rank {event.rank}, or does an `if` skip the call on {them}?"


def skipped(event: Event, is_world: bool, states: dict[int, RankState]) -> str:
    """What to look at where others have never made the call of a group, which may be the whole world."""
    condition = condition_around(event, states)
    if not condition and (exit_before := exit_around(event)):
        return f"look at {exit_before}, which leaves before it."
    if is_world:
        return f"take it out of the {condition}." if condition else "look for an early return, or an `if` around it."
    around = f"the {condition} around it" if condition else "an `if` around it, an early return"
    return f"look for {around}, or a wrong rank in the group."


def calls_like(event: Event, state: RankState) -> list[Event]:
    """The calls that the rank has made of the same kind from the same line."""
    return [e for e in state.events if (e.where, e.op, e.wrapper) == (event.where, event.op, event.wrapper)]


def number_like(event: Event, state: RankState) -> int:
    """How many of these calls the rank has made, those that its record no longer holds included."""
    return len(calls_like(event, state)) + state.forgotten[event.where, event.op, event.wrapper]


def missing_from(collective: Event, matching: Matching) -> list[int]:
    """The members of its group that have not called it yet."""
    return [rank for rank, partner in matching.partners(collective).items() if partner is None]


def lost_message(blocked: dict[int, Event], matching: Matching) -> str:
    """A sentence about a message that can't arrive because its handle was thrown away; "" if there is none."""
    for event in blocked.values():
        other_ends = [matching.other_end(event)] if event.op in POINT_TO_POINT else []
        thrown_away = [e for e in other_ends if e is not None and e.index in matching.states[e.rank].lost]
        for lost in [*thrown_away, *lost_receives(event, matching.states)][:1]:
            return (
                f"Rank {lost.rank} has thrown away the handle of its i{call_text(lost)}. The message may never arrive, "
                "and everything after it gets stuck too: keep each handle, and call its wait()."
            )
    return ""


def lost_receives(event: Event, states: dict[int, RankState]) -> list[Event]:
    """Receives whose handle was thrown away by a member of the group, or by one end of a message for what the other end
    sends: Gloo's connection never recovers from that.
    """
    ends = {event.rank, event.peer} if event.op in POINT_TO_POINT else set()
    losers = [states[rank] for rank in ends or event.members if rank is not None and states[rank].lost]
    return [e for state in losers for e in state.events if is_lost(e, state) and (not ends or e.peer in ends)]


def is_lost(event: Event, state: RankState) -> bool:
    return event.op == "recv" and event.index in state.lost


def unmet_messages(blocked: dict[int, Event], matching: Matching) -> str:
    states = matching.states
    sends = [send for queue in matching.sends.values() for send in queue if matching.other_end(send) is None]
    messages = [event for event in blocked.values() if event.op in POINT_TO_POINT]
    for event in messages:
        for send in sends:
            if event.op == "recv" and send.peer == event.rank and event.peer in (None, send.rank):
                if send.group == event.group and send.tag != event.tag:
                    return (
                        f"Rank {event.rank} waits for a message with tag {event.tag} from rank {send.rank}, which "
                        f"sends with tag {send.tag}. A send and its recv must use the same tag."
                    )
                if send.group != event.group:
                    return (
                        f"Rank {event.rank} waits for a message from rank {send.rank} on "
                        f"{group_text(event, states[event.rank])}, "
                        f"which sends on {group_text(send, states[send.rank])}. "
                        "A send and its recv must use the same group."
                    )
    hint = wrong_way(messages, sends)
    for op, (verb, remedy) in EVERYONE_FIRST.items():
        cycle = find_cycle({event.rank: event.peer for event in messages if event.op == op})
        if cycle and not (op == "recv" and hint):
            way = [str(rank) for rank in [*cycle, cycle[0]]]
            path = " → ".join(way if len(way) <= FEW else [*way[:5], "...", *way[-2:]])
            return f"Everyone {verb} first, and waits for the next: {path}. {remedy}"
    for event in messages:
        if event.peer is not None and states[event.peer].finished:
            return left_alone(event, states[event.rank], states[event.peer]) + hint
    return mixed_cycle(messages) or no_cause(blocked, sends) + hint


def mixed_cycle(messages: list[Event]) -> str:
    """Sentences about ranks of which some send and some receive, each to or from the next; "" if there are none."""
    verbs, blocked = {"send": "sends to", "recv": "receives from"}, {event.rank: event for event in messages}
    cycle = find_cycle({event.rank: event.peer for event in messages})
    if len({blocked[rank].op for rank in cycle}) < 2:
        return ""
    steps = [f"rank {rank} {verbs[blocked[rank].op]} rank {blocked[rank].peer}" for rank in cycle]
    shown = steps if len(steps) <= FEW else [*steps[:4], "...", steps[-1]]
    return (
        f"Each waits for the next: {', '.join(shown)}. Let one of them make its calls in a different order, or start "
        "its send with isend and wait for it later. Or is a src or a dst wrong?"
    )


def no_cause(blocked: dict[int, Event], sends: list[Event]) -> str:
    """What can be said when nothing else can."""
    if all(event.op == "recv" for event in blocked.values()):
        return f"{NO_CAUSE}: nobody has sent what these ranks wait for."
    same_tag = ", with the same tag" if any(event.tag for event in (*blocked.values(), *sends)) else ""
    return f"{NO_CAUSE}: each send needs a recv on the other rank{same_tag}."


def left_alone(event: Event, waiting: RankState, finished: RankState) -> str:
    """A sentence about a message whose other end has finished."""
    other_op = {"send": "recv", "recv": "send"}[event.op]
    mine = sum((e.op, e.peer, e.group) == (event.op, event.peer, event.group) for e in waiting.events)
    its = sum((e.op, e.peer, e.group) == (other_op, event.rank, event.group) for e in finished.events)
    counts = f" Rank {event.rank} is in its {ordinal(mine)} {event.op}; rank {event.peer} made {plural(its, other_op)}."
    dropped = any(e.op in POINT_TO_POINT and finished.has_dropped(e) and e.peer == event.rank for e in finished.events)
    waits_for = "waits for a message from" if event.op == "recv" else "sends a message to"
    without = "without sending it" if event.op == "recv" else "without receiving it"
    if dropped:
        without = "without waiting for what it had started: keep each handle and call its wait()"
    return (
        f"Rank {event.rank} {waits_for} rank {event.peer}, which has finished {without}. "
        "Count the sends and receives of each pair: they must match one to one, including their tags."
    ) + counts * (its > 0)


def wrong_way(messages: list[Event], sends: list[Event]) -> str:
    """A hint, if a rank sends to one that waits for a different rank; else ""."""
    for event in messages:
        for send in sends:
            if event.op == "recv" and send.peer == event.rank and send.rank != event.peer is not None:
                return (
                    f" Rank {event.rank} waits for rank {event.peer}, but it is rank {send.rank} that sends to rank "
                    f"{event.rank}: is a src or a dst wrong?"
                )
    return ""


def find_cycle(waits_for: dict[int, int | None]) -> list[int]:
    """The ranks of a cycle in `waits_for`, beginning at the smallest; [] if there is none."""
    seen: set[int] = set()
    for start in sorted(waits_for):
        path: list[int] = []
        rank: int | None = start
        while rank is not None and rank in waits_for and rank not in seen:
            seen.add(rank)
            path.append(rank)
            rank = waits_for[rank]
        if rank in path:
            cycle = path[path.index(rank) :]
            first = cycle.index(min(cycle))
            return cycle[first:] + cycle[:first]
    return []


# --- groups


def unmade_group(blocked: dict[int, Event], states: dict[int, RankState]) -> str:
    """Why a rank waits in new_group, or for members who mean a different group."""
    if sentence := groups_in_another_order(states):
        return sentence
    for event in blocked.values():
        if event.op == "new_group":
            missing = [
                rank
                for rank in event.members
                if all((made.group, made.members) != group_key(event) for made in states[rank].groups_made)
            ]
            if missing:
                return (
                    f"{ranks_text(missing)} never made the group of {ranks_text(event.members).lower()}. {ALL_GROUPS}"
                )
    return f"Not all ranks made the same groups. {ALL_GROUPS}"


def is_one_group(event: Event, states: dict[int, RankState]) -> bool:
    """Whether all ranks that made a group of this name mean the same group: torch names groups by numbering them.

    After `destroy_process_group` and a new start it counts from 1 again, so only the last of a name matters.
    """
    made = [{made.group: made.members for made in state.groups_made} for state in states.values()]
    return all(members.get(event.group, event.members) == event.members for members in made)


def groups_in_another_order(states: dict[int, RankState]) -> str:
    """Sentences about the first place at which ranks make different groups; "" if there is none.

    Groups made with use_local_synchronization don't count: only their members make them. Their names are not numbers.
    """
    made = {
        state.rank: [e for e in state.groups_made if e.group.partition(".")[0].isdigit()] for state in states.values()
    }
    for at in range(max(map(len, made.values()), default=0)):
        here = {rank: events[at].members for rank, events in made.items() if at < len(events)}
        first = next(iter(here))
        if len(set(here.values())) == 1:
            absent = [state.rank for state in states.values() if state.finished and state.rank not in here]
            if skipped := [rank for rank in absent if rank not in here[first]]:
                return skipped_group(skipped, here[first])
            continue
        others = [rank for rank, members in here.items() if members != here[first]]
        later = {rank: [event.members for event in made[rank][at:]] for rank in others}
        skipped = [rank for rank in others if rank not in here[first] and here[first] not in later[rank]]
        if skipped:
            return skipped_group(skipped, here[first])
        mine, its = ranks_text(here[first]).lower(), ranks_text(here[others[0]]).lower()
        return (
            f"The {ordinal(at + 1)} group that rank {first} makes is that of {mine}; on rank {others[0]} it is that "
            f"of {its}. Every rank must make all groups in the same order."
        )
    return ""


def skipped_group(ranks: list[int], members: tuple[int, ...]) -> str:
    them = "which it is not in" if len(ranks) == 1 else "which they are not in"
    return f"{ranks_text(ranks)} skipped the group of {ranks_text(members).lower()}, {them}. {ALL_GROUPS}"
