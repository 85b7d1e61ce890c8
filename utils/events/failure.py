"""An exception that ended a rank, as plain data: reading it needs none of the student's classes."""

from __future__ import annotations

from dataclasses import dataclass

NEVER_SET = "in the store, and no rank sets them."  # how the message ends of a rank that waited for keys in vain


@dataclass(frozen=True)
class Frame:
    """One line of a traceback."""

    file: str
    line: int
    function: str
    source: str


@dataclass(frozen=True)
class Failure:
    """An exception that ended a rank."""

    kind: str
    message: str
    frames: tuple[Frame, ...]  # outermost first
    time: float  # seconds since the world began
