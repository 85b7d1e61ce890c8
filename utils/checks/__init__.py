"""The checks of the lessons, and what checks are written with.

A notebook says `check = checks_for("01_collectives")`, then `check(broadcast_by_hand)`.

    checks_for                        all visible checks of a lesson
    oracle, Case, vary                a check that says what is right and what mistakes lead to (oracles.py)
    check                             marks a function as the check of an exercise (registration.py)
    CheckFailed                       what a check raises when an answer is wrong (answer.py)
    Draws                             the random inputs that a check hands to its ranks (inputs.py)
    expect, expect_unchanged, ...     compare what the ranks returned with what is right (compare.py)
    expect_traffic, expect_calls, ... compare what they sent, and how long it took (traffic.py)

A lesson's checks are in its room (rooms.py). gradients.py helps those that run a backward pass.
"""

from .answer import CheckFailed
from .compare import expect, expect_own_memory, expect_unchanged
from .inputs import Draws
from .oracles import Case, every, only_at, oracle, vary
from .registration import check
from .registry import Checks
from .rooms import room_of
from .traffic import (
    expect_all_waited,
    expect_calls,
    expect_each_sent,
    expect_only_messages,
    expect_time,
    expect_traffic,
)

__all__ = [
    "Case",
    "CheckFailed",
    "Checks",
    "Draws",
    "check",
    "checks_for",
    "every",
    "expect",
    "expect_all_waited",
    "expect_calls",
    "expect_each_sent",
    "expect_only_messages",
    "expect_own_memory",
    "expect_time",
    "expect_traffic",
    "expect_unchanged",
    "only_at",
    "oracle",
    "vary",
]


def checks_for(lesson: str) -> Checks:
    """The visible checks of a lesson, from its room. Raises ValueError if there is no such lesson."""
    return Checks(room_of(lesson))
