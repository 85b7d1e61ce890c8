"""What the numbers of a class say about its exercises, and when the work was handed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import StatisticsError, correlation, mean

from grader.classroom.grades import Grades

FEWEST = 5  # submissions, for a discrimination
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
STEPS = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY)
COLUMNS = 40  # upper limit
BEGIN = datetime(1, 1, 1)  # a Monday


def difficulty(grades: Grades, exercise: str) -> float | None:
    """The share of an exercise's points that the class lost, from 0 to 1; None if nothing of it is graded."""
    most = grades.worth(exercise)
    points = [grades.of_exercise(student, exercise) for student in graded(grades, exercise)]
    return 1 - mean(points) / most if points and most else None


def discrimination(grades: Grades, exercise: str) -> float | None:
    """The correlation of an exercise's points with those of the lesson's other exercises, from -1 to 1.

    The others' points are without extra credit and before any penalty. None if there are too few submissions, or if
    all have the same points.
    """
    students = graded(grades, exercise)
    points = [grades.of_exercise(student, exercise) for student in students]
    own = points if not grades.is_challenge(exercise) else [0.0] * len(points)
    others = [grades.regular(student) - part for student, part in zip(students, own, strict=True)]
    if len(students) < FEWEST:
        return None
    try:
        return correlation(points, others)
    except StatisticsError:
        return None


def graded(grades: Grades, exercise: str) -> list[str]:
    """The students whose answer does not wait for a person."""
    return [student for student in grades.earned if not grades.waits(student, exercise)]


@dataclass(frozen=True)
class Column:
    """How many handed in during one step of time."""

    start: datetime
    count: int
    late: bool  # it begins after the deadline


@dataclass(frozen=True)
class HandIns:
    """Hand-ins over time: columns that follow each other without a gap."""

    step: timedelta
    columns: list[Column]
    deadline: float | None  # columns from the left; None without a deadline

    @property
    def highest(self) -> int:
        return max(column.count for column in self.columns)


def hand_ins(times: Iterable[datetime], deadline: datetime | None) -> HandIns | None:
    """When the work was handed in (UTC); None if that is not known of anybody."""
    times = sorted(times)
    if not times:
        return None
    first, last = min(times[0], deadline or times[0]), max(times[-1], deadline or times[-1])
    step = step_for(last - first)
    start = (first - BEGIN) // step
    counts = Counter((time - BEGIN) // step for time in times)
    columns = [
        Column(BEGIN + number * step, counts[number], deadline is not None and BEGIN + number * step >= deadline)
        for number in range(start, (last - BEGIN) // step + 1)
    ]
    return HandIns(step, columns, (deadline - columns[0].start) / step if deadline else None)


def step_for(span: timedelta) -> timedelta:
    """The shortest step that covers the span in COLUMNS - 1 columns, and so never in more than COLUMNS."""
    weeks = -(-span // (STEPS[-1] * (COLUMNS - 1)))
    return next((step for step in STEPS if span <= step * (COLUMNS - 1)), STEPS[-1] * weeks)
