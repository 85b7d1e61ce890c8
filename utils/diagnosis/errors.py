"""The exceptions that `spawn` and `simulate` raise. The text of each is a whole report, and all that notebooks show."""

from __future__ import annotations

from typing import Any

from ..events.event import Event, Region
from ..text.wrapping import wrapped


class RankError(RuntimeError):
    """Something went wrong on the ranks.

    rank     the rank to look at first; None if no single rank is to blame
    results  what each rank returned; None for those that did not return
    output   what each rank printed
    events   every Event of every rank
    regions  every Region that a rank has left
    waiting  {rank: the call that it is inside} where nobody could move; a wait for anything else is one with the op
             "store", or "idle". For an asynchronous call, `where` is the line that waits for it
    """

    def __init__(self, report: str, rank: int | None = None) -> None:
        super().__init__(report)
        self.rank = rank
        self.results: list[Any] = []
        self.output: list[str] = []
        self.events: list[Event] = []
        self.regions: list[Region] = []
        self.waiting: dict[int, Event] = {}

    def _render_traceback_(self) -> list[str]:
        """IPython shows these lines instead of a traceback through the launcher."""
        return wrapped(f"{type(self).__name__}: {self}")


class RankFailed(RankError):
    """A rank raised an exception."""


class RankCrashed(RankError):
    """A rank's process died: a signal killed it, or it exited without an exception."""


class WorldStuck(RankError):
    """A deadlock: no rank could move any more, because each waited for another."""


class SilentMistake(RankError):
    """All ranks finished, but their values can't be what was meant. `results` holds them all the same."""


class RankTimeout(RankError):
    """The time was up before the ranks had finished."""


class Interrupted(KeyboardInterrupt):
    """The student interrupted the kernel. The text says where the ranks were; notebooks show it without a traceback."""

    _render_traceback_ = RankError._render_traceback_


Interrupted.__name__ = "KeyboardInterrupt"  # the name everybody knows
