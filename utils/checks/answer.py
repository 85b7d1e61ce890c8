"""What a check gets, an `Answer`, and what it raises, `CheckFailed`."""

from dataclasses import dataclass, field

from ..events.event import Event
from ..report.run import Run


@dataclass
class Answer:
    """What came back from the ranks: what each returned, its inputs after the call, and the record of the run.

    shared: for each rank, whether what it returned shares memory with one of its inputs.
    """

    results: list
    inputs_after: list
    run: Run
    shared: list = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        return self.run.events


class CheckFailed(AssertionError):
    """An answer that is not right yet: what was seen, what was expected, and the usual mistake if it is known.

    share: of the check's points that it earns all the same, from 0 to 1
    """

    def __init__(self, saw: str, expected: str = "", mistake: str = "", share: float = 0.0):
        self.header, self.saw, self.expected, self.mistake, self.share = "", saw, expected, mistake, share
        super().__init__(saw)

    def __str__(self):
        seen = self.saw + (f", expected {self.expected}" if self.expected else "")
        return "\n".join([self.header] * bool(self.header) + indented(seen) + indented(self.mistake))

    def _render_traceback_(self):  # IPython asks for this: a notebook shows the message alone
        return str(self).splitlines()


def indented(text: str) -> list[str]:
    return ["  " + line for line in text.splitlines()]
