"""The outcome of grading a submission: a verdict on each check, and what a person should look at. Plain data, as JSON.

judge.py makes it; the gradebook, the feedback page and the report are made from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TypedDict

PASSED, PART, WRONG, BLANK, STUCK, NOT_RUN = "passed", "part", "wrong", "blank", "stuck", "not run"


class Score(TypedDict):
    """What the class's board shows of a challenge; less is better."""

    shown: str
    value: float
    share: float


@dataclass
class Verdict:
    """The verdict on one check cell.

    check    the cell's name, "ring-all-reduce-traffic"
    points   earned
    most     the points that the check can give
    kind     "passed", "part" (of the points), "wrong", "blank" (nothing written), "stuck" (stopped because it took too
             long or used too much), "not run"
    said     what was asked, seen and expected, in the words of the check; never a hidden test's source
    mistake  the usual mistake that the check has recognised; "" if none
    hidden   whether the words are those of a hidden test
    score    of a challenge that has reached par: what it measured, in words and as a number, and its share of the way
             from par to the limit
    """

    check: str
    points: float
    most: float
    kind: str
    said: str = ""
    mistake: str = ""
    hidden: bool = False
    score: Score | None = None


@dataclass
class Flag:
    """Something that a person should look at.

    what      "took too long", "damaged notebook", "tried to escape", ...
    evidence  what was seen, in a few lines; it may quote the submission, so don't trust it
    """

    what: str
    evidence: str


@dataclass
class Judgement:
    """The judgement of one submission.

    problems  for the student and the instructor, one line each: what was repaired, what could not be run
    flags     for the instructor only
    seconds   how long judging took
    """

    lesson: str
    verdicts: list[Verdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    seconds: float = 0.0

    def with_new(self, new: Judgement, checks: list[str]) -> Judgement:
        """This judgement after these checks were judged again, with the verdicts, problems and flags of `new`."""
        verdicts = {verdict.check: verdict for verdict in new.verdicts if verdict.check in checks}
        problems = [line for line in self.problems if not any(check in line for check in checks)]
        flags = [flag for flag in self.flags if not flag.evidence.startswith(tuple(f"{check}:" for check in checks))]
        return Judgement(
            self.lesson,
            [verdicts.get(verdict.check, verdict) for verdict in self.verdicts],
            list(dict.fromkeys([*problems, *new.problems])),
            [*flags, *(flag for flag in new.flags if flag not in flags)],
            self.seconds,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Judgement:
        """Raises ValueError or TypeError for anything that `to_json` does not write."""
        fields = json.loads(text)
        fields["verdicts"] = [Verdict(**one) for one in fields["verdicts"]]
        fields["flags"] = [Flag(**one) for one in fields["flags"]]
        return cls(**fields)
