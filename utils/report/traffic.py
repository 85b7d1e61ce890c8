"""What the ranks of a Run sent: the program's own messages and, counted separately, what its collectives imply."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from ..events.collectives import COLLECTIVES, NOBODY, POINT_TO_POINT, ROOT
from ..events.event import DTENSORS_EXCHANGE, Event
from ..text import tables
from ..text.rank_sets import format_ranks, group_alike
from ..text.source_lines import place

if TYPE_CHECKING:
    from ..figures import Picture


class Collective(NamedTuple):
    """All calls of one collective on one rank.

    calls, handed_in   how many, and the bytes of the tensors the rank handed in: both counted
    implied            the bytes the rank sends if the usual algorithm is used: computed
    """

    calls: int = 0
    handed_in: int = 0
    implied: int = 0


def implied_bytes(op: str, nbytes: int, position: int, size: int, root: int | None) -> int:
    """Bytes that one rank sends for one collective of `size` ranks; `position` and `root` are places in the group.

    With n ranks and S bytes handed in, each rank sends:

        all_reduce       2 (n-1)/n S    reduce-scatter, then all-gather (Patarasu and Yuan 2009)
        reduce_scatter     (n-1)/n S
        all_gather         (n-1)   S    S is one n-th of the result
        all_to_all         (n-1)/n S    1/n of S to each of the others
        broadcast                  S    a chain that starts at the root; its last rank sends nothing
        reduce                     S    the same chain towards the root, which sends nothing
        gather                     S    straight to the root, which sends nothing
        scatter            (n-1)/n S    from the root, straight to the others, which send nothing
        barrier                    0

    These are the factors by which nccl-tests turns time into bus bandwidth (see its doc/PERFORMANCE.md). A library may
    use another algorithm, and often does for small tensors, or where a switch adds.
    """
    one, at_root = COLLECTIVES[op], position == root
    if one.gives == NOBODY or (at_root and one.receives == ROOT):
        return 0
    pieces = 1 if one.input_is_chunk else size  # in what a rank hands in
    if not one.rooted:
        return round(one.laps * (size - 1) * nbytes / pieces)
    if one.in_chunks and one.gives == ROOT:
        return round((size - 1) * nbytes / pieces) if at_root else 0
    is_last = one.gives == ROOT and root is not None and (position + 1) % size == root
    return 0 if is_last else nbytes


def implied_receivers(op: str, position: int, size: int, root: int | None) -> list[int]:
    """To which places of the group these bytes go, in equal parts."""
    one = COLLECTIVES[op]
    if one.in_parts and not one.reduces:
        return [place for place in range(size) if place != position]
    if one.in_chunks and one.receives == ROOT:
        return [] if root is None else [root]
    return [(position + (-1 if one.receives == ROOT else 1)) % size]  # a ring, or a chain


def gathered_exchanges(events: list[Event]) -> str:
    """A remark on the all-gathers by which DTensor replaces all-to-alls; "" if there are none."""
    found = [event for event in events if event.op == "all_gather" and event.wrapper.startswith(DTENSORS_EXCHANGE)]
    if not found:
        return ""
    lines = sorted({place(event.where).partition(":  ")[0] for event in found if event.where})
    sizes = sorted({len(event.members) for event in found})
    where = f" ({', '.join(lines[:3])}{', ...' if len(lines) > 3 else ''})" if lines else ""
    times = " or ".join(map(str, sizes))
    return (
        f'{len(found)} of these all-gathers{where} stand for all-to-alls: on a mesh of "cpu", DTensor gathers the '
        f'whole tensor and each rank cuts out its part, which sends {times} times the bytes. On a mesh of "cuda" it '
        "calls all_to_all."
    )


class Traffic:
    """What each rank sent, in the program's own messages and in collectives. No times, so every run gives the same.

    messages[s][d], bytes[s][d]   from rank s to rank d, by `send` and `isend`
    implied_bytes[s][d]           from rank s to rank d, by the usual algorithms of the collectives: computed
    collectives[r][op]            a Collective: calls, bytes handed in, bytes that the usual algorithm implies
    remark                        what the bytes alone don't tell; "" if there is nothing
    """

    def __init__(self, world_size: int, events: list[Event]) -> None:
        self.messages = [[0] * world_size for _ in range(world_size)]
        self.bytes = [[0] * world_size for _ in range(world_size)]
        self.implied_bytes = [[0] * world_size for _ in range(world_size)]
        self.collectives: list[dict[str, Collective]] = [{} for _ in range(world_size)]
        same = defaultdict[tuple[object, ...], list[Event]](list)  # ranks repeat calls: compute for each kind once
        for event in events:
            if event.op == "send" and event.peer is not None:
                self.messages[event.rank][event.peer] += 1
                self.bytes[event.rank][event.peer] += event.bytes
            elif (
                event.op not in POINT_TO_POINT and event.members
            ):  # stores have no group. By the members' id: to hash 1,024 of them at each call is slow
                same[event.rank, event.op, event.bytes, event.peer, id(event.members)].append(event)
        for calls in same.values():
            self.add_collective(calls[0], len(calls))
        self.remark = gathered_exchanges(events)

    def add_collective(self, event: Event, times: int) -> None:
        calls, handed_in, implied = self.collectives[event.rank].get(event.op, Collective())
        root = None if event.peer is None else event.members.index(event.peer)
        place, size = event.members.index(event.rank), len(event.members)
        sent = implied_bytes(event.op, event.bytes, place, size, root)
        receivers = implied_receivers(event.op, place, size, root) if sent else []
        for receiver in receivers:
            self.implied_bytes[event.rank][event.members[receiver]] += times * sent // len(receivers)
        collective = Collective(calls + times, handed_in + times * event.bytes, implied + times * sent)
        self.collectives[event.rank][event.op] = collective

    def sent(self, rank: int) -> tuple[int, int]:
        """(messages, bytes) of the program's own that `rank` sent."""
        return sum(self.messages[rank]), sum(self.bytes[rank])

    def received(self, rank: int) -> tuple[int, int]:
        """(messages, bytes) of the program's own that were sent to `rank`."""
        return sum(row[rank] for row in self.messages), sum(row[rank] for row in self.bytes)

    def implied(self, rank: int) -> int:
        """Bytes that all collectives of `rank` imply together."""
        return sum(collective.implied for collective in self.collectives[rank].values())

    def heatmap(self, implied: bool = False) -> Picture:
        """A picture of the program's own messages: one row per source, one column per destination.

        implied   of what its collectives imply instead, those of DDP and FSDP included
        """
        from .. import figures

        title = "bytes that its collectives imply" if implied else "bytes that the program sent itself"
        return figures.heatmap(self, title, implied)

    def collective_rows(self) -> list[tuple[str, str, int, int, int]]:
        """Collectives in the order of their first call; ranks with equal numbers share a row."""
        alike: dict[tuple[str, Collective], list[int]] = {}
        for rank, collectives in enumerate(self.collectives):
            for row in collectives.items():
                alike.setdefault(row, []).append(rank)
        order = list(dict.fromkeys(op for op, _ in alike))
        rows = [(format_ranks(ranks), op, *numbers) for (op, numbers), ranks in alike.items()]
        return sorted(rows, key=lambda row: order.index(row[1]))

    OWN = ["rank", "messages sent", "bytes sent", "messages received", "bytes received"]
    COLLECTIVES = ["rank", "collective", "calls", "bytes handed in", "bytes a ring would send"]

    def own_rows(self) -> list[tuple[str, int, int, int, int]]:
        """One row per rank or, in a large world, for all ranks with equal numbers; [] if no rank sent anything."""
        ranks = range(len(self.messages))
        numbers = [(*self.sent(rank), *self.received(rank)) for rank in ranks]
        rows = [(format_ranks(same), *numbers[same[0]]) for same in group_alike(ranks, numbers)]
        return rows if any(messages for messages, *_ in numbers) else []

    def __repr__(self) -> str:
        own, collectives = self.own_rows(), self.collective_rows()
        both = [tables.text(self.OWN, own) if own else "The program sent no messages itself."]
        both += [tables.text(self.COLLECTIVES, collectives)] if collectives else []
        both += [self.remark] if self.remark else []
        return "\n\n".join(both)

    def _repr_html_(self) -> str:
        own, collectives = self.own_rows(), self.collective_rows()
        html = "<p>The program sent no messages itself.</p>"
        if own:
            html = tables.html("Messages that the program sent itself", self.OWN, own)
        if collectives:
            caption = "Collectives: what each rank handed in, and what a ring would make it send"
            html += tables.html(caption, self.COLLECTIVES, collectives)
        return html + (f"<p>{escape(self.remark)}</p>" if self.remark else "")
