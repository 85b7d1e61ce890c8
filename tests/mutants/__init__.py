"""Wrong answers that people really give, and right answers that differ from the solution, one file per lesson.

`grader/authoring/variants.py` says how to write them. `tests/lessons/test_lessons.py` proves that each wrong answer is
caught by the check and with the words that it names, and that no check rejects a right one. The sample class for
`make grade` is made from some of them.
"""

import functools
from pathlib import Path

from grader.authoring.variants import Answers, Mutant, Variant, read_answers


@functools.cache
def answers_to(lesson: str) -> Answers:
    """The answers in `tests/mutants/{lesson}.py`."""
    return read_answers(Path(__file__).with_name(f"{lesson}.py"))


def mutants_of(lesson: str) -> list[Mutant]:
    """The wrong answers to a lesson."""
    return answers_to(lesson).wrong


def also_right(lesson: str) -> list[Variant]:
    """A lesson's right answers that differ from the solution."""
    return answers_to(lesson).right
