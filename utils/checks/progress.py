"""How far you are in a lesson: what `check.summary()` shows, and what stands next to a check that has passed.

It knows the checks that have run in this session, and the summary also those that the saved notebook shows. The
lesson's exercises and points are written down by `make build` (frozen_cases.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from html import escape

from ..text import tables
from ..text.svg import GREEN
from ..text.wrapping import wrapped
from .scores import SCORE

Points = Mapping[str, Mapping[str, float]]  # {exercise: {what is judged: its points}}, in the lesson's order


@dataclass
class Progress:
    """What has passed so far, and what has run without passing."""

    points: Points
    passed: set[tuple[str, str]] = field(default_factory=set)
    failed: set[tuple[str, str]] = field(default_factory=set)

    def note(self, exercise: str, judges: str, passed: bool) -> None:
        """Remember the outcome of a check; the last one counts."""
        now, before = (self.passed, self.failed) if passed else (self.failed, self.passed)
        now.add((exercise, judges))
        before.discard((exercise, judges))

    def earned(self, exercise: str) -> float:
        return sum(points for judges, points in self.points[exercise].items() if (exercise, judges) in self.passed)

    def of_lesson(self) -> tuple[float, float]:
        """(points earned, all points), without the challenge."""
        required = [exercise for exercise in self.points if not self.is_challenge(exercise)]
        return sum(map(self.earned, required)), sum(sum(self.points[exercise].values()) for exercise in required)

    @property
    def is_finished(self) -> bool:
        """Whether all of the lesson has passed, a challenge apart."""
        earned, most = self.of_lesson()
        return earned == most > 0

    def is_challenge(self, exercise: str) -> bool:
        return SCORE in self.points[exercise]

    def __str__(self) -> str:
        earned, most = self.of_lesson()
        return f"{earned:g} of {most:g} points"


class Passed:
    """What a check shows that has passed: green where there are colours, with the lesson's progress next to it."""

    def __init__(self, said: str, progress: Progress) -> None:
        self.said = said
        self.beside = str(progress) if progress.points else ""

    def __repr__(self) -> str:
        return self.said

    def _repr_html_(self) -> str:
        first, _, more = escape("\n".join(wrapped(self.said, 100)), quote=False).partition("\n")  # it has a border
        beside = f'<span style="float: right; opacity: 0.7">{self.beside}</span>' * bool(self.beside)
        return (
            f'<pre style="border-left: 3px solid {GREEN}; padding-left: 8px">{beside}'
            f'<span style="color: {GREEN}">✓ {first}</span>{chr(10) * bool(more)}{more}</pre>'
        )


class Summary:
    """`check.summary()`: the lesson's exercises, what has passed of each, what is left, and where to go on.

    picture   HTML below it, once the lesson is finished (finished.py)
    """

    picture = ""
    header = ("exercise", "points", "passed", "left")

    def __init__(self, progress: Progress, saved: Collection[tuple[str, str]] = ()) -> None:
        """saved: (exercise, judges) of what had passed when the notebook was saved, perhaps in an earlier session."""
        earlier = set(saved) - progress.passed - progress.failed
        self.progress = progress = Progress(progress.points, progress.passed | earlier, progress.failed)
        self.rows, self.next = [], ""
        for exercise, points in progress.points.items():
            left = [judges for judges in points if (exercise, judges) not in progress.passed]
            passed = [j + " (before)" * ((exercise, j) in earlier) for j in points if j not in left]
            extra = " extra credit" * progress.is_challenge(exercise)
            count = f"{progress.earned(exercise):g} of {sum(points.values()):g}{extra}"
            missing = [judges + " (not passed)" * ((exercise, judges) in progress.failed) for judges in left]
            self.rows.append((exercise, count, ", ".join(passed), ", ".join(missing)))
            if left and not self.next:
                self.next = f"Next: {exercise}, {left[0]}."
        done = sum(not left for *_, left in self.rows)
        self.caption = f"{done} of {len(self.rows)} exercises done, {progress}"
        self.next = self.next or "All of it is done."

    def __repr__(self) -> str:
        return f"{self.caption}\n\n{tables.text(self.header, self.rows)}\n\n{self.next}"

    def _repr_html_(self) -> str:
        return f"{tables.html(self.caption, self.header, self.rows)}<p>{escape(self.next)}</p>{self.picture}"
