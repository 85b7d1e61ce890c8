"""The hidden tests: other cases of the visible checks, run when a submission is graded, never given to students."""

from utils.checks.registry import Checks
from utils.checks.rooms import room_of


def hidden_tests_for(lesson: str) -> Checks:
    """The hidden tests of a lesson, from its room in `solutions`. Raises ValueError if there is no such lesson."""
    return Checks(room_of(lesson), hidden=True)
