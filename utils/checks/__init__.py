"""The visible checks. A notebook says `check = checks_for("01_collectives")`, then `check(broadcast_by_hand)`."""

from .answer import CheckFailed
from .registry import Checks

__all__ = ["CheckFailed", "Checks", "checks_for"]


def checks_for(lesson: str) -> Checks:
    """The visible checks of a lesson, from the module of its name in this package. Raises ValueError if there is no such lesson."""
    return Checks(__package__, lesson)
