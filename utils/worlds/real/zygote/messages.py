"""What the kernel and the zygote send each other: a byte on the control socket, then the rest on that of the world."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...common.outcome import Refused

# The byte that comes with the socket of a world: whether its ranks may be made before all that they use is imported.
AT_ONCE, WHEN_LOADED = b"+", b"*"

# Names in programs that use what takes a second to import. A rank made without it would import it by itself, and all
# ranks at the same time. So this is only about speed.
SLOW_TO_IMPORT = re.compile(
    rb"optim|[Pp]arallel|checkpoint|compile|fsdp|fully_shard|pipelining|DTensor|distribute_|Shard|Replicate"
    rb"|torch\.distributed\.(tensor|nn)|functional_collectives|track_memory"
)


def when_to_make(program: bytes) -> bytes:
    """The byte for the world of this program, which is pickled with the function first."""
    return WHEN_LOADED if SLOW_TO_IMPORT.search(program, 0, 1 << 20) else AT_ONCE


class MakeWorld(NamedTuple):
    """To the zygote, once: start this many processes, which find their request in this folder."""

    size: int
    folder: str


class Signal(NamedTuple):
    """To the zygote: send this signal to all processes of the world."""

    number: int


class Started(NamedTuple):
    """From the zygote: all processes are there."""


class Exited(NamedTuple):
    """From the zygote: this process has ended. A negative code is the number of the signal that killed it."""

    rank: int
    code: int


class Note(NamedTuple):
    """From the zygote: something that the student should know."""

    text: str


FromZygote = Started | Exited | Note | Refused
