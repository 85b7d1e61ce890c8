"""The lessons, with their wrong and right answers, read once for all test files."""

import functools

from grader.authoring.check_files import answers
from grader.authoring.lesson import find_lessons, read_lesson
from grader.authoring.variants import Answers, Mutant, Variant

LESSONS = {path.parent.name: read_lesson(path) for path in find_lessons()}


@functools.cache
def answers_to(lesson: str) -> Answers:
    return answers(LESSONS[lesson])


def mutants_of(lesson: str) -> list[Mutant]:
    """The wrong answers to a lesson."""
    return answers_to(lesson).wrong


def also_right(lesson: str) -> list[Variant]:
    """A lesson's right answers that differ from the solution."""
    return answers_to(lesson).right
