"""The exceptions that `spawn` and `simulate` raise. Each one's text is the whole report; notebooks show nothing else."""

from __future__ import annotations

from ..events.event import Event


class RankError(RuntimeError):
    """Something went wrong on the ranks.

    rank     the rank to look at first, None where no single one is to blame
    results  what each rank returned, None for those that returned nothing
    output   what each rank had printed
    events   what each rank had recorded
    """

    def __init__(self, report: str, rank: int | None = None):
        super().__init__(report)
        self.rank = rank
        self.results: list = []
        self.output: list[str] = []
        self.events: list[Event] = []

    def _render_traceback_(self) -> list[str]:
        """IPython shows these lines instead of a traceback through the launcher."""
        return [f"{type(self).__name__}: {self}"]


class RankFailed(RankError):
    """A rank raised an exception."""


class RankCrashed(RankError):
    """A rank's process died: killed by a signal, or left without saying why."""


class WorldStuck(RankError):
    """No rank could move any more: each waited for another."""


class SilentMistake(RankError):
    """All ranks have finished, and the values they hold can't be what was meant; `results` holds them all the same."""


class RankTimeout(RankError):
    """The ranks had not finished when the time was up."""


class Interrupted(KeyboardInterrupt):
    """The student interrupted the kernel; its text says where the ranks were. Notebooks show it without a traceback."""

    _render_traceback_ = RankError._render_traceback_


Interrupted.__name__ = "KeyboardInterrupt"  # what everybody knows it by
