"""What a check gets from its ranks, an `Answer`, and what it raises, `CheckFailed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..diagnosis.errors import RankError
from ..events.event import Event
from ..report.run import Run
from ..text.wrapping import wrapped

ONE_LINE = 80  # characters of what was seen and what was expected; longer ones take a line each
MAX_LEAD = 40  # characters in front of a value
Place = tuple[int, str]  # a rank, and the part of what it returns; "" where that is one value


@dataclass
class Answer:
    """What came back from the ranks; each list has one entry per rank, except `names`.

    results       what the rank returned
    inputs_after  its inputs, as they were after the call
    shared        whether its result shares memory with one of its inputs
    run           the record of the run
    names         of its inputs, as the function calls them; "" if it doesn't
    first         what came back from the first act, where there were two
    """

    results: list[Any]
    inputs_after: list[list[Any]]
    run: Run
    shared: list[bool] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    first: Answer | None = None

    @property
    def events(self) -> list[Event]:
        return [*(self.first.events if self.first else ()), *self.run.events]


@dataclass(frozen=True)
class Outcome:
    """All that a check found wrong in the case that failed.

    case    its number
    inputs  of the case, for all ranks
    wrong   {place: (what is there, what would be right)}
    place   the one that the check's message is about; None if it is about something else
    rtol    the relative error that the check allows
    """

    case: int
    inputs: Any
    wrong: Mapping[Place, tuple[Any, Any]]
    place: Place | None = None
    rtol: float = 0


class CheckFailed(AssertionError):
    """An answer that is not right yet: what was seen, what was expected, and the usual mistake if it is known.

    lead        where in `saw` the value begins that `expected` is compared with; 0 if there is no such value
    share       the part of the check's points that the answer still earns, from 0 to 1
    impossible  whether no honest answer can lead to what was seen, so that a person should look at this one
    place       the rank and the part of its result that `saw` is about; None if it is about anything else
    outcome     all that the check found wrong (known_mistakes.py); None if it could not judge what came back
    waits       whether what was judged is right, and waits for the values to be right
    is_known    whether that is the outcome of a known wrong answer, so that `mistake` is its sentence
    """

    def __init__(
        self,
        saw: str,
        expected: str = "",
        mistake: str = "",
        share: float = 0.0,
        impossible: bool = False,
        lead: int = 0,
    ) -> None:
        self.header, self.saw, self.expected, self.mistake, self.share = "", saw, expected, mistake, share
        self.impossible, self.lead = impossible, lead
        self.place: Place | None = None
        self.outcome: Outcome | None = None
        self.waits = self.is_known = False
        self.run: Run | None = None  # the run that was too slow, if it has ended
        self.deadlock: RankError | None = None  # the deadlock that ended the run, if any
        super().__init__(saw)

    def __str__(self) -> str:
        seen = f"{self.saw}, expected {self.expected}" if self.expected else self.saw
        if self.expected and len(seen) > ONE_LINE:  # then on two lines, the values one above the other
            words = "expected".ljust(self.lead - 1 if self.lead <= MAX_LEAD else 0)
            seen = f"{self.saw}\n{words} {self.expected}"
        return "\n".join([self.header] * bool(self.header) + indented(seen) + indented(self.mistake))

    def _render_traceback_(self) -> list[str]:  # IPython asks for this: a notebook shows the message alone
        return wrapped(str(self))


def indented(text: str) -> list[str]:
    return ["  " + line for line in text.splitlines()]
