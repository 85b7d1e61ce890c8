"""What `spawn` and `simulate` return: a `Run`, the record of what happened on every rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what a Run can be turned into is made when it is asked for
    from ..figures import Picture
    from .collective_charges import CollectiveCharges
    from .memory import Memory
    from .traffic import Traffic
from ..events.event import Event, Region


@dataclass
class Run:
    """What `spawn` and `simulate` return: one entry per rank in everything.

    results[r]  what rank r returned          output[r]  what rank r printed
    events      every Event of every rank, by rank, then in the order of the calls
    regions     the stretches of compute that the program has named, by rank, in the order they ended
    memory_notes[r]  what rank r noted of its memory: (device, samples, peak); see memory.py
    algorithms  of a virtual cluster: (op, bytes, layout of the group, how often, Cost) for each kind of collective
    elapsed     seconds from the start of the world to its end
    """

    world_size: int
    world: str
    backend: str
    results: list = field(repr=False)
    output: list[str] = field(repr=False)
    events: list[Event] = field(repr=False)
    elapsed: float = field(repr=False)
    regions: list[Region] = field(repr=False, default_factory=list)
    memory_notes: list[list[tuple]] = field(repr=False, default_factory=list)
    algorithms: list[tuple] = field(repr=False, default_factory=list)

    def __repr__(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"Run({ranks}, {self.world}, {self.backend})"

    def traffic(self) -> Traffic:
        """What each rank sent: messages of the program's own, per (source, destination), and its collectives."""
        from .traffic import Traffic

        return Traffic(self.world_size, self.events)

    def timeline(self, within: str | None = None, ranks: list[int] | None = None) -> Picture:
        """A picture of who did what when: one lane a rank, compute above communication.

        within   the name of a region: only the time from its first start on any rank to its last end
        ranks    only these; of more than 16, those that did the same at the same times share a lane
        """
        from .. import figures

        return figures.timeline(self, within, ranks)

    def memory(self) -> Memory:
        """Live bytes of each rank, their peak and over time: of the ranks that tracked it."""
        from .memory import Memory

        if not any(self.memory_notes):
            raise ValueError(
                "no rank of this run tracked its memory. Ask for it in the rank program, around what is to be seen: "
                "`with track_memory(model, optimizer): ...` (track_memory is imported like spawn)."
            )
        return Memory(self.memory_notes)

    def costs(self) -> CollectiveCharges:
        """What a virtual cluster has charged for each kind of collective, by which algorithm, and why."""

        from .collective_charges import CollectiveCharges

        if self.world != "virtual":
            raise ValueError("this run was real: its collectives took the time they took. See run.timeline().")
        return CollectiveCharges(self.algorithms)

    def save_trace(self, path) -> None:
        """Write Chrome trace JSON to `path`: open it at https://ui.perfetto.dev."""

        from . import perfetto

        perfetto.save(self, path)
