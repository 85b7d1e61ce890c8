"""A remark on messages that Gloo and a virtual cluster deliver, and NCCL would not, or not to the same tensors.

NCCL carries out what two ranks send each other in the order of their calls, as if on a stream of their own: an irecv
holds up the isend after it (pytorch issue 109401). It also ignores tags. What is in one batch_isend_irecv counts as one
step. A send counts as done at once, as small ones are, so nothing is said of two ranks that both send first. Calls of
one line that follow each other are taken for a batch, since they may be one: a correct program is never accused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby

from ..events.collectives import POINT_TO_POINT
from ..events.event import Event
from ..events.matching import GroupKey, group_key
from ..text.source_lines import place

Pair = tuple[GroupKey, tuple[int, int]]  # a group, and two of its ranks


def nccl_remark(events: Iterable[Event]) -> str:
    """What would go wrong on GPUs, for the first two ranks of which that is true; "" if nothing is known to."""
    pairs: dict[Pair, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.op in POINT_TO_POINT and event.peer is not None and not event.wrapper:
            low, high = sorted((event.rank, event.peer))
            pairs[group_key(event), (low, high)][event.rank].append(event)
    for (_, (low, high)), calls in pairs.items():
        mine, its = calls[low], calls[high]
        remark = who_holds_up_whom(mine, its) or reordered_by_tags(mine, its) or reordered_by_tags(its, mine)
        if remark:
            return remark
    return ""


def who_holds_up_whom(mine: list[Event], its: list[Event]) -> str:
    """Two ranks' calls in order: whether each would come to a receive whose message the other sends only later."""
    steps = [[list(step) for _, step in groupby(calls, lambda event: event.where)] for calls in (mine, its)]
    at, sent, received = [0, 0], [0, 0], [0, 0]
    posted = [-1, -1]  # the step whose sends have been counted
    moved = True
    while moved:
        moved = False
        for me in (0, 1):
            while at[me] < len(steps[me]):
                step = steps[me][at[me]]
                if posted[me] < at[me]:
                    posted[me], moved = at[me], True
                    sent[me] += sum(event.op == "send" for event in step)
                wanted = received[me] + sum(event.op == "recv" for event in step)
                if wanted > sent[1 - me]:
                    break
                received[me], moved = wanted, True
                at[me] += 1
    if any(at[me] == len(steps[me]) for me in (0, 1)):
        return ""
    stuck = [next(event for event in steps[me][at[me]] if event.op == "recv") for me in (0, 1)]
    return (
        f"On GPUs this program would hang. Ranks {stuck[0].rank} and {stuck[1].rank} each wait for a message that the "
        f"other sends only after its own receive ({line_of(stuck[0])}; {line_of(stuck[1])}). NCCL carries out what two "
        "ranks send each other in the order of their calls; Gloo and a virtual cluster do not. Let one of the two send "
        "first, or hand both calls to one batch_isend_irecv."
    )


def reordered_by_tags(mine: list[Event], its: list[Event]) -> str:
    """Whether one rank's sends are received in a different order, which only their tags allow."""
    sends = [event for event in mine if event.op == "send"]
    receives = [event for event in its if event.op == "recv"]
    if sorted(event.tag for event in sends) != sorted(event.tag for event in receives):
        return ""
    for send, receive in zip(sends, receives, strict=True):
        if send.tag != receive.tag:
            return (
                f"On GPUs this program would mix up messages. Rank {receive.rank} receives what rank {send.rank} sends "
                f"in a different order ({line_of(send)}; {line_of(receive)}), and goes by tags. NCCL ignores tags: the "
                "first send goes to the first receive. Call both in the same order."
            )
    return ""


def line_of(event: Event) -> str:
    return place(event.where).partition(":  ")[0] or f"a {event.op} of rank {event.rank}"
