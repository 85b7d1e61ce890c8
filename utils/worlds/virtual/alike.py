"""Ranks that do the same: the first of each kind runs, and the others are taken to do what it does, at the same times.

    simulate(step, 16384, alike=lambda rank: rank // 8 % 16)     tensor 8 x pipeline 16 x data 128: 16 ranks run

A rank that doesn't run is present in each collective through the one that runs in its place, which must be in the same
group. Messages need both ends, so ranks that send to each other must both run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...cluster.layout import Layout
from ...events.collectives import POINT_TO_POINT
from ...text.rank_sets import format_ranks

if TYPE_CHECKING:
    from ...cluster.hardware import Cluster
    from ...events.event import Event
    from ...events.rank_state import RankState
    from .calls import VirtualCall

RunsAs = tuple[int, ...]  # for each rank, the rank that runs in its place


def runs_as(kind_of: Callable[[int], Hashable], world_size: int) -> RunsAs:
    """For each rank, the first of its kind. Raises TypeError if kind_of is not a function of a rank."""
    if not callable(kind_of):
        raise TypeError(
            f"alike is {kind_of!r}; it must be a function of a rank, such as `lambda rank: rank // 8 % 16`. Ranks for "
            "which it returns the same value are taken to do the same."
        )
    first: dict[Hashable, int] = {}
    try:
        return tuple(first.setdefault(kind_of(rank), rank) for rank in range(world_size))
    except TypeError as error:
        raise TypeError(f"alike must take a rank and return a number, a string or a tuple of these: {error}") from None


def why_not(cluster: Cluster, device: str) -> str:
    """Why ranks of this cluster can't stand for others; "" if they can."""
    if device != "meta":
        return 'alike= needs device="meta": ranks that compute with values get different ones, and must all run.'
    if cluster.jitter is not None:
        return "alike= and jitter= exclude each other: jitter makes each rank different, so all must run."
    return ""


class Representatives:
    """Which ranks run, and for whom.

    runs_as   None if all ranks run
    running   those that do, in order
    """

    def __init__(self, cluster: Cluster, size: int, runs_as: RunsAs | None = None) -> None:
        self.cluster, self.size, self.runs_as = cluster, size, runs_as
        self.running: Sequence[int] = range(size) if runs_as is None else sorted(set(runs_as))
        self.stand_for = Counter(runs_as or ())  # {a rank that runs: how many do what it does, itself included}
        self.placed: dict[tuple[tuple[int, int], ...], tuple[Layout, tuple[int, ...]]] = {}

    def present(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Those of a group's members that run."""
        return members if self.runs_as is None else tuple(rank for rank in members if self.runs_as[rank] == rank)

    def check_peer(self, event: Event) -> None:
        """Raises RuntimeError if the other end of a message, or the root of a collective, doesn't run."""
        peer = event.peer
        if self.runs_as is None or peer is None:
            return
        if self.runs_as[peer] == peer:
            if event.op in POINT_TO_POINT and self.cluster.node_of(peer) != self.cluster.node_of(event.rank):
                self.check_cards((event.rank, peer))
            return
        if event.op in POINT_TO_POINT:
            does = f"rank {event.rank} {'sends to' if event.op == 'send' else 'receives from'} rank {peer}, which"
            advice = "A message needs both ends: choose the kinds so that the first of each only talk to each other."
        else:
            does = f"rank {peer}, the root of {event.op},"
            advice = "A root does what no other rank does: give it a kind of its own."
        raise RuntimeError(f"{does} doesn't run: `alike` says it does what rank {self.runs_as[peer]} does. {advice}")

    def check_cards(self, members: tuple[int, ...]) -> None:
        """For ranks that send between nodes. Raises RuntimeError if one of them shares its network card with a rank
        that isn't among them and doesn't run: what that sends at the same time would slow the first down.
        """
        shared, there = self.cluster.gpus_per_nic, set(members)
        if self.runs_as is None or shared == 1:
            return
        for rank in self.present(members):
            first = rank - rank % shared
            for mate in range(first, min(first + shared, self.size)):
                if mate not in there and self.runs_as[mate] != mate:
                    raise RuntimeError(
                        f"rank {rank} shares a network card with rank {mate}, which isn't in the same group and "
                        f"doesn't run, though what it sends would slow rank {rank} down. Give rank {mate} a "
                        "different kind, or let all ranks run."
                    )

    def weights(self, members: tuple[int, ...]) -> dict[int, int]:
        """{rank that runs: how many members it stands for}. Raises RuntimeError for a member that nobody stands for."""
        if self.runs_as is None:
            return dict.fromkeys(members, 1)
        there, counts = set(members), Counter[int]()
        for rank in members:
            counts[self.runs_as[rank]] += 1
            if self.runs_as[rank] not in there:
                raise RuntimeError(
                    f"rank {rank} of the group {format_ranks(list(members))} doesn't run: `alike` says it does what "
                    f"rank {self.runs_as[rank]} does, which isn't in the group. A rank that doesn't run needs one of "
                    f"its kind in each of its groups: give rank {rank} a different kind."
                )
        return {rank: counts[rank] for rank in members if rank in counts}

    def groups_like(self, weights: dict[int, int]) -> int:
        """How many groups of the world one with these weights stands for.

        Raises RuntimeError if that depends on which member you ask.
        """
        if self.runs_as is None:
            return 1
        numbers = {rank: divmod(self.stand_for[rank], weight) for rank, weight in weights.items()}
        (first, of_first), *others = numbers.items()
        for rank, number in [(first, of_first), *others]:
            if number != of_first or number[1]:
                raise RuntimeError(
                    f"`alike` can't be right: {self.stand_for[first]} ranks do what rank {first} does, and "
                    f"{weights[first]} of them are in its group; {self.stand_for[rank]} do what rank {rank} does, and "
                    f"{weights[rank]} of them are in the same group. So there are not as many groups of one as of the "
                    "other."
                )
        return of_first[0]

    def check_placement(self, members: tuple[int, ...]) -> None:
        """Raises RuntimeError if a group lies on the nodes in another way than one of the same form that was made."""
        if self.runs_as is None:
            return
        form = tuple((self.runs_as[rank], rank - members[0]) for rank in members)
        layout = Layout.of(self.cluster, members)
        before, other = self.placed.setdefault(form, (layout, members))
        if before != layout:
            raise RuntimeError(
                f"`alike` can't be right: the groups {format_ranks(list(other))} and {format_ranks(list(members))} "
                f"would do the same, but the first is on {nodes_text(before)}, the second on {nodes_text(layout)}. "
                "Choose sizes that fit into the nodes, or different kinds."
            )

    def calls_of_all(self, calls: list[VirtualCall]) -> list[VirtualCall]:
        """A call for each member of a group, in the group's order: of those that don't run, their representative's."""
        members = calls[0].event.members
        if self.runs_as is None or len(calls) == len(members):
            return calls
        by_rank = {call.event.rank: call for call in calls}
        return [by_rank[self.runs_as[rank]] for rank in members]

    def among_themselves(self, states: list[RankState]) -> list[RankState]:
        """What the ranks that run have recorded, as if there were no others: for reports, which then name none."""
        if self.runs_as is None:
            return states
        known: dict[int, tuple[int, ...]] = {}  # by the id of all members, which events share

        def without_others(event: Event) -> Event:
            if id(event.members) not in known:
                known[id(event.members)] = self.present(event.members)
            return replace(event, members=known[id(event.members)])

        return [
            replace(
                state,
                events=[without_others(event) for event in state.events],
                groups_made=[made for each in state.groups_made if (made := without_others(each)).members],
            )
            for state in states
        ]

    def spread(self, of_running: Sequence[Any]) -> list[Any]:
        """For each rank what belongs to the one that runs in its place. of_running: one for each rank that runs."""
        if self.runs_as is None:
            return list(of_running)
        of_rank = dict(zip(self.running, of_running, strict=True))
        return [of_rank[rank] for rank in self.runs_as]


def nodes_text(layout: Layout) -> str:
    nodes = f"{layout.nodes} node{'s' * (layout.nodes > 1)}"
    return (
        f"{nodes} with {layout.most} ranks each"
        if layout.per_node
        else f"{nodes}, {layout.least} to {layout.most} each"
    )
