"""What a rank did: one `Event` per call to the network, one `Region` per named stretch of compute."""

from __future__ import annotations

from dataclasses import dataclass

DTENSORS_EXCHANGE = "DTensor all-to-all"  # the `wrapper` of one, which on a mesh of "cpu" is an all-gather


@dataclass(frozen=True, slots=True)
class Event:
    """One call that a rank made to the network.

    op     send, recv, broadcast, reduce, all_reduce, gather, scatter, all_gather, reduce_scatter, all_to_all, barrier
    group  name of the process group ("world" is the default one, and "world.2" the second, after a new start, in which
           ranks may be numbered differently); members: its global ranks, in group order
    peer   a global rank: the other end of a send or recv (None for a recv from any source that has received nothing
           yet), or the root of a collective that has one; None for the others
    bytes  size of the tensors this rank hands in (for a recv: of its buffer)
    shape  of the first of these tensors; dtype: of the same one, as in "float32"
    start  seconds since the world began; end: when the result was there, None if that is unknown
    where  "file:line" of the student's line that led to the call
    waited for an asynchronous call, when the rank began to wait for it; None if it never did
    wrapper what of torch made the call for that line, such as "DDP forward" or "all_gather_object"
           (recording/callers.py); "" if the line made it itself
    callers the student's lines that led to `where`, innermost first, as "file:line"; () if `where` is the outermost
    thread  the name of the thread that made the call, if it is not the rank's main thread
    part    what a wrapper's call is for: of FSDP's, the module whose parameters or gradients it moves; of a pipeline
            schedule's, "4 microbatches"; "" for others
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
    wrapper: str = ""
    callers: tuple[str, ...] = ()
    part: str = ""
    thread: str = ""


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a rank's compute named by the program: `with region("forward"): ...`. Times as in Event."""

    rank: int
    name: str
    start: float
    end: float
