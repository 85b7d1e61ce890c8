"""What `spawn` and `simulate` return: a `Run`, the record of what happened on every rank."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..events.computed import Computed
from ..events.event import Event, Region
from ..events.memory_samples import MemoryNote

if TYPE_CHECKING:  # imported by the methods below, when they are called
    from ..cluster.achieved import Uncertainty
    from ..figures import Timeline
    from .breakdown import Breakdown, Comparison
    from .collective_charges import Charge, CollectiveCharges
    from .memory import Memory
    from .traffic import Traffic

WorldName = Literal["spawn", "virtual", "graded", "torchrun", "slurm"]


@dataclass
class Run:
    """What `spawn` and `simulate` return: the record of what happened on every rank.

    world       "spawn": processes on this machine; "virtual": by `simulate`; "graded": by the grader, outside the
                ranks; "torchrun" or "slurm": ranks that one of these launchers started
    backend     "gloo" or "nccl"; the name of the cluster if the ranks are virtual
    results[r]  what rank r returned
    output[r]   what rank r printed
    events      every Event, by rank, then in the order of the calls
    elapsed     seconds from the start of the world to its end
    regions     stretches of compute that the program named, by rank, then in the order they ended
    memory_notes[r]  what rank r noted about its memory
    algorithms  on a virtual cluster: a Charge for each kind of collective
    computed[r] on a virtual cluster: what rank r's GPU computed in all
    rates       on a virtual cluster: the rates that its times follow, "datasheet" or "achieved"; "" if the run was real
    uncertainty on a virtual cluster: how far its times may be off, if its rates say so; see `range`
    program     the name of the function that the ranks ran; "" if it has none
    runs_as[r]  the rank that ran in rank r's place, if `simulate` ran one of each kind (`alike`); else None. Then
                results, memory and the rest are there for each rank, but events and regions only for those that ran
    """

    world_size: int
    world: WorldName
    backend: str
    results: list[Any] = field(repr=False)
    output: list[str] = field(repr=False)
    events: list[Event] = field(repr=False)
    elapsed: float = field(repr=False)
    regions: list[Region] = field(repr=False, default_factory=list)
    memory_notes: list[list[MemoryNote]] = field(repr=False, default_factory=list)
    algorithms: list[Charge] = field(repr=False, default_factory=list)
    computed: list[Computed] = field(repr=False, default_factory=list)
    rates: str = field(repr=False, default="")
    runs_as: tuple[int, ...] | None = field(repr=False, default=None)
    uncertainty: Uncertainty | None = field(repr=False, default=None)
    program: str = field(repr=False, default="")

    def __repr__(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        ran = f", of which {len(set(self.runs_as)):,} ran" if self.runs_as else ""
        rates = f"{self.rates} rates" if self.rates else ""
        known = [f"{ranks}{ran}", self.world, self.backend, rates]  # the backend isn't where ranks never met
        return f"Run({', '.join(filter(None, known))})"

    def ran_as(self, rank: int) -> int:
        """The rank that ran in place of `rank`: itself, unless `simulate` ran only one of each kind."""
        return rank if self.runs_as is None else self.runs_as[rank]

    @property
    def range(self) -> tuple[float, float]:
        """(shortest, longest) seconds between which a real cluster would need, in 8 of 10 cases; `elapsed` is between.

        It follows from the run's parts: computing, memory-bound operations, exposed communication, launches. How far
        each may be off comes from published runs that the rates were not fitted to (docs/simulator.md). ValueError at a
        datasheet's rates, for a real run, and where the rates don't say.
        """
        between = self.breakdown().range
        if between is None:
            raise ValueError(
                "how sure a time is, is only known at achieved rates, and only if they say so. Those of the presets "
                'dgx-a100, dgx-h100 and others do: simulate(..., rates="achieved").'
            )
        return between

    def traffic(self) -> Traffic:
        """What each rank sent: the program's own messages, per source and destination, and its collectives.

        ValueError if one rank of each kind ran: to whom the others would have sent isn't known.
        """
        from .traffic import Traffic

        if self.runs_as is not None:
            raise ValueError(
                "with alike=, only one rank of each kind ran, and to whom the others would have sent isn't known. "
                "run.costs() has all collectives, run.breakdown() the time that they took."
            )

        return Traffic(self.world_size, self.events)

    def timeline(
        self,
        within: str | None = None,
        ranks: list[int] | None = None,
        beside: Run | None = None,
        title: str | tuple[str, str] = "",
    ) -> Timeline:
        """A picture of what each rank did when: one lane per rank, compute above communication.

        within   the name of a region: show only the time from its first start on any rank to its last end
        ranks    show only these, -1 being the last; with more than 16, those that did the same at the same times share
                 a lane
        beside   another run, to compare with: it is drawn below, on the same time axis
        title    what is shown, if the program's name doesn't say it. For two runs: one for each

        Where scripts run, bars say what they are and whom they waited for, the wheel zooms, a drag measures, and a
        click on a rank folds its lane.
        """
        from .. import figures

        return figures.timeline(self, within, ranks, beside, title)

    def memory(self) -> Memory:
        """Live bytes over time and their peak, for the ranks that tracked it. ValueError if none did."""
        from .memory import Memory

        if not any(self.memory_notes):
            raise ValueError(
                "no rank of this run tracked its memory. In the rank program, put the part to measure inside "
                "`with track_memory(model, optimizer): ...` (track_memory is imported like spawn)."
            )
        return Memory(self.memory_notes)

    def breakdown(self, tokens: float | None = None, model_flops: float | None = None) -> Breakdown:
        """Where each rank's time went: computing, communication by group, waiting for other ranks, idle.

        tokens       how many the run trained on, over all ranks: gives tokens/s
        model_flops  FLOPs that the model needs for them, over all ranks, such as 6 x parameters x tokens: gives MFU,
                     on a virtual cluster
        """
        from .breakdown import Breakdown

        return Breakdown(self, tokens, model_flops)

    def compare(self, other: Run) -> Comparison:
        """This run's breakdown next to another's, averaged over the ranks, with the differences."""
        from .breakdown import Comparison

        return Comparison(self.breakdown(), other.breakdown())

    def costs(self) -> CollectiveCharges:
        """What a virtual cluster charged for each kind of collective, and why. ValueError if the run was a real one."""
        from .collective_charges import CollectiveCharges

        if self.world != "virtual":
            raise ValueError("this run was real: its collectives took the time they took. See run.timeline().")
        return CollectiveCharges(self.algorithms)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome's trace JSON to `path`; open it at https://ui.perfetto.dev."""
        from . import perfetto

        perfetto.save(self, path)
