"""What a rank did: one `Event` per call to the network, one `Region` per named stretch of compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what a Run can be turned into is made when it is asked for
    pass


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
