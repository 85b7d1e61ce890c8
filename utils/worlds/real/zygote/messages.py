"""What the kernel and the zygote send each other on the socket of a world, pickled.

The socket itself arrives on the control socket, with a byte that says when to make the world (needs.py).
"""

from __future__ import annotations

from typing import NamedTuple

from ...common.outcome import Refused


class MakeWorld(NamedTuple):
    """To the zygote, once: import these modules, then start this many processes. Their request is in this folder."""

    size: int
    folder: str
    modules: list[str]


class Signal(NamedTuple):
    """To the zygote: send this signal to all processes of the world."""

    number: int


class Started(NamedTuple):
    """From the zygote: all processes are there, in the order of their ranks."""

    pids: tuple[int, ...]


class Exited(NamedTuple):
    """From the zygote: this process has ended. A negative code is the number of the signal that killed it."""

    rank: int
    code: int


class Note(NamedTuple):
    """From the zygote: something that the student should know."""

    text: str


FromZygote = Started | Exited | Note | Refused
