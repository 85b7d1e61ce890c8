"""The visible checks. A notebook says `check = checks_for("01_collectives")`, then `check(broadcast_by_hand)`."""

from utils.checks.expect import CheckFailed
from utils.checks.judge import Checks

__all__ = ["CheckFailed", "Checks", "checks_for"]


def checks_for(lesson: str) -> Checks:
    """The visible checks of a lesson, from `utils/checks/{lesson}.py`. Raises ValueError if there is no such lesson."""
    return Checks("utils.checks", lesson)
