"""What handing in late costs, by day, and the deadlines that a course's configuration sets. nbgrader's plug-in.

c.SaveGrades.deadlines = {"01_collectives": "2026-10-05 18:00 Europe/Berlin"}
c.LateByDay.percent_per_day = 10
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from nbgrader.plugins import LateSubmissionPlugin
from traitlets import Float

DAY, HOUR = 24 * 3600, 3600  # seconds


class LateByDay(LateSubmissionPlugin):
    """Takes off a part of what was earned for each day begun. nbgrader's `penalty_method` holds if that part is 0."""

    percent_per_day = Float(0, min=0, max=100, help="part of the earned points that each day costs").tag(config=True)
    grace_hours = Float(0, min=0, help="the first day begins after these").tag(config=True)
    most_percent = Float(100, min=0, max=100, help="being late never costs a larger part").tag(config=True)

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float | None:
        """The points to take off, None for none. score: with extra credit, since that was handed in late, too."""
        late = total_seconds_late - self.grace_hours * HOUR
        if late <= 0:
            return None
        if not self.percent_per_day:
            penalty: float | None = super().late_submission_penalty(student_id, score, total_seconds_late)
            return penalty
        return score * min(self.most_percent, self.percent_per_day * math.ceil(late / DAY)) / 100


def read_deadline(text: str) -> datetime:
    """A deadline as a configuration gives it, in UTC. Raises ValueError, with an example, for any other text."""
    try:
        day, time, zone = text.split()
        there = datetime.fromisoformat(f"{day} {time}").replace(tzinfo=ZoneInfo(zone))
    except (AttributeError, ValueError, LookupError, OSError):  # an unknown zone may be a folder of the system's
        raise ValueError(f"{text!r} is not a deadline, such as '2026-10-05 18:00 Europe/Berlin'") from None
    return there.astimezone(UTC).replace(tzinfo=None)
