"""What happened on every rank: the `Event` and the `Run` that every world returns. Imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Event:
    """One call that a rank made to the network.

    op     send, recv, broadcast, reduce, all_reduce, gather, scatter, all_gather, reduce_scatter, all_to_all, barrier
    group  name of the process group ("world" is the default one); members: its global ranks, in group order
    peer   send and recv: the other rank (None: any source, and nothing has come); rooted collectives: the root; else
           None. Global ranks.
    bytes  of the tensors that this rank hands in (for a recv: of its buffer)
    shape  of the first of them; dtype: its name, "float32"
    start  seconds since the world began; end: when its result was there, None if nobody waited for it
    where  "file:line" of the student's line that led to the call
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


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a rank's compute that the program has named: `with region("forward"): ...`. Seconds, as in Event."""

    rank: int
    name: str
    start: float
    end: float


@dataclass
class Run:
    """What `spawn` returns: one entry per rank in everything.

    results[r]  what rank r returned          output[r]  what rank r printed
    events      every Event of every rank, by rank, then in the order of the calls (on Gloo; NCCL is not recorded yet)
    regions     the stretches of compute that the program has named, by rank, in the order they ended
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

    def __repr__(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"Run({ranks}, {self.world}, {self.backend})"

    def traffic(self) -> Traffic:
        """Messages and bytes that the program sent itself, per rank and per (source, destination)."""
        return Traffic(self.world_size, [event for event in self.events if event.op == "send"])


class Traffic:
    """Counts of point-to-point messages: what each rank handed to `send` or `isend`, and to whom.

    messages[s][d] and bytes[s][d]: from rank s to rank d. Collectives are not in it: how many messages one of them
    becomes is its algorithm's business.
    """

    def __init__(self, world_size: int, sends: list[Event]):
        self.messages = [[0] * world_size for _ in range(world_size)]
        self.bytes = [[0] * world_size for _ in range(world_size)]
        for event in sends:
            self.messages[event.rank][event.peer] += 1
            self.bytes[event.rank][event.peer] += event.bytes

    def sent(self, rank: int) -> tuple[int, int]:
        """(messages, bytes) that `rank` sent."""
        return sum(self.messages[rank]), sum(self.bytes[rank])

    def received(self, rank: int) -> tuple[int, int]:
        """(messages, bytes) that were sent to `rank`."""
        return sum(row[rank] for row in self.messages), sum(row[rank] for row in self.bytes)

    def __repr__(self) -> str:
        lines = ["rank   sent: messages      bytes   received: messages      bytes"]
        for rank in range(len(self.messages)):
            (out, out_bytes), (into, into_bytes) = self.sent(rank), self.received(rank)
            lines.append(f"{rank:4}   {out:14,} {out_bytes:10,}   {into:18,} {into_bytes:10,}")
        return "\n".join(lines)
