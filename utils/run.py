"""What happened on every rank: the `Event` and the `Run` that every world returns. Imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what a Run can be turned into is made when it is asked for
    from utils.figures import Picture
    from utils.memory import Memory
    from utils.traffic import Traffic
    from utils.virtual.costs import Costs


@dataclass(frozen=True, slots=True)
class Event:
    """One call that a rank made to the network.

    op     send, recv, broadcast, reduce, all_reduce, gather, scatter, all_gather, reduce_scatter, all_to_all, barrier
    group  name of the process group ("world" is the default one); members: its global ranks, in group order
    peer   send and recv: the other rank (None: any source, and nothing has come); rooted collectives: the root; else
           None. Global ranks.
    bytes  of the tensors that this rank hands in (for a recv: of its buffer)
    shape  of the first of them; dtype: its name, "float32"
    start  seconds since the world began; end: when its result was there, None if nobody could tell
    where  "file:line" of the student's line that led to the call
    waited when the rank began to wait for it, if it is asynchronous; None if it never did
    """

    rank: int
    index: int
    op: str
    group: str
    members: tuple[int, ...]
    peer: int | None
    tag: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    reduce_op: str
    is_async: bool
    start: float
    end: float | None
    where: str
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a rank's compute that the program has named: `with region("forward"): ...`. Seconds, as in Event."""

    rank: int
    name: str
    start: float
    end: float


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
        from utils.traffic import Traffic

        return Traffic(self.world_size, self.events)

    def timeline(self, within: str | None = None, ranks: list[int] | None = None) -> Picture:
        """A picture of who did what when: one lane a rank, compute above communication.

        within   the name of a region: only the time from its first start on any rank to its last end
        ranks    only these; of more than 16, those that did the same at the same times share a lane
        """
        from utils import figures

        return figures.timeline(self, within, ranks)

    def memory(self) -> Memory:
        """Live bytes of each rank, their peak and over time: of the ranks that tracked it."""
        from utils.memory import Memory

        if not any(self.memory_notes):
            raise ValueError(
                "no rank of this run tracked its memory. Ask for it in the rank program, around what is to be seen: "
                "`with track_memory(model, optimizer): ...` (from utils import track_memory)."
            )
        return Memory(self.memory_notes)

    def costs(self) -> Costs:
        """What a virtual cluster has charged for each kind of collective, by which algorithm, and why."""
        from utils.virtual.costs import Costs

        if self.world != "virtual":
            raise ValueError("this run was real: its collectives took the time they took. See run.timeline().")
        return Costs(self.algorithms)

    def save_trace(self, path) -> None:
        """Write Chrome trace JSON to `path`: open it at https://ui.perfetto.dev."""
        from utils import trace

        trace.save(self, path)
