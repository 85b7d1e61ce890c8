"""The hidden tests: the same form as the visible checks, run when a submission is graded, never given to students."""

from utils.checks.registry import Checks


def hidden_tests_for(lesson: str) -> Checks:
    """The hidden tests of a lesson, from `grader/hidden/{lesson}.py`. Raises ValueError if there is no such lesson."""
    return Checks("grader.hidden", lesson, hidden=True)
