"""What each answer to an exercise gets, beside what it should get.

    for candidate in candidates(bench):     the solution, the blank, each wrong answer, each right one
        judge(bench, candidate)             -> Result; its `problem` is "" if all is as it should be

Every problem says what is different, and comes with advice on what to do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from grader.authoring.lesson import BuildError
from grader.authoring.markers import clear_solution
from grader.authoring.variants import Mutant, Variant
from grader.authoring.workbench import AnswerError, Function, Way, Workbench
from utils.checks.answer import Outcome
from utils.checks.known_mistakes import KnownOutcome

NOT_WRITTEN = "Not written yet"
GIVES_AWAY = re.compile(r"expected [\[\d(-]")  # a value in a hidden test's message, which students read too
NOT_SAID = (
    "A check says a sentence of what it compares, if that is the same in each run and is not the right value in "
    "another type. Of an exception, a deadlock or anything else, give words of the check's message, not a sentence."
)


@dataclass(frozen=True)
class Candidate:
    """An answer to judge. `variant`: the wrong or the right answer; None for the solution and the blank."""

    exercise: str
    kind: Literal["solution", "blank", "wrong", "right"]
    variant: Variant | None = None

    @property
    def name(self) -> str:
        return self.variant.name if self.variant else self.kind

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}" if self.variant else self.kind

    def write_into(self, source: str) -> str:
        """The exercise's cell, `source`, with this answer in it. Raises ValueError if it doesn't fit."""
        if self.variant:
            return self.variant.apply(source)
        return clear_solution(source) if self.kind == "blank" else source


@dataclass(frozen=True)
class Result:
    """What an answer got.

    words    exactly what a student reads; "" if the answer passes, as it should
    outcome  all that was wrong with a wrong answer, if the check that must catch it could judge what came back
    confirmed  of its outcome in an earlier run: what this run has repeated
    problem  what is not as it should be; "" if nothing
    advice   what to do about that
    seconds  how long it took to judge
    """

    words: str = ""
    problem: str = ""
    advice: str = ""
    outcome: Outcome | None = field(default=None, compare=False)
    confirmed: KnownOutcome | None = field(default=None, compare=False)
    seconds: float = field(default=0, compare=False)


def candidates(bench: Workbench, exercises: Iterable[str] | None = None) -> list[Candidate]:
    """All answers to these exercises; by default, to all of the lesson."""
    found = []
    for name in bench.lesson.exercises if exercises is None else exercises:
        found += [Candidate(name, "solution"), Candidate(name, "blank")]
        found += [Candidate(name, "wrong", one) for one in bench.answers.wrong if one.exercise == name]
        found += [Candidate(name, "right", one) for one in bench.answers.right if one.exercise == name]
    return found


def judge(bench: Workbench, candidate: Candidate, ways: Sequence[Way] | None = None) -> Result:
    """Judge an answer in these ways; by default, in all ways in which its exercise is judged.

    A wrong answer is judged by the check that must catch it, and by others only if that lets it through.
    """
    start = time.monotonic()
    ways = bench.ways(candidate.exercise) if ways is None else ways
    try:
        answer = bench.answer(candidate.exercise, candidate.write_into)
        if isinstance(candidate.variant, Mutant):
            result = must_be_caught(bench, candidate.variant, answer, ways)
        elif candidate.kind == "blank":
            result = must_be_called_unwritten(bench, candidate.exercise, answer, ways)
        else:
            result = must_pass(bench, candidate.exercise, answer, ways)
    except AnswerError as error:
        result = Result("", f"it can't be judged: {error}", "Correct this answer.")
    except BuildError as error:
        result = Result("", f"the check itself fails: {error}", "Correct that line.")
    return replace(result, seconds=time.monotonic() - start)


def must_pass(bench: Workbench, exercise: str, answer: Function, ways: Iterable[Way]) -> Result:
    """The solution, or a right answer in a different form."""
    for way in ways:
        judged = bench.judge(answer, exercise, way)
        if not judged.passed:
            return Result(judged.words, f"{way} refuses it", "Correct the check; or this answer, if it is wrong.")
    return Result()


def must_be_called_unwritten(bench: Workbench, exercise: str, answer: Function, ways: Iterable[Way]) -> Result:
    """The blank."""
    words = ""
    for way in ways:
        judged = bench.judge(answer, exercise, way)
        words = words or judged.words
        if judged.passed:
            return Result("", f"{way} passes it", "Draw inputs for which doing nothing is wrong.")
        if NOT_WRITTEN not in judged.words or "Traceback" in judged.words:
            what = f"{way} does not say {NOT_WRITTEN!r}"
            return Result(judged.words, what, "If the check catches every exception, name the one that it expects.")
    return Result(words)


def must_be_caught(bench: Workbench, mutant: Mutant, answer: Function, ways: Sequence[Way]) -> Result:
    """A wrong answer: the check that it names must catch it, in the words that it expects."""
    visible, named = Way(mutant.caught_by), Way(mutant.caught_by, mutant.hidden)
    if named not in ways:
        there_are = " and ".join(map(str, ways)) or "no check at all"
        return Result("", f"it names {named}, but there is {there_are}", "Name a check that there is, or write this.")
    if mutant.hidden:
        judged = bench.judge(answer, mutant.exercise, visible)
        if not judged.passed:
            return Result(judged.words, f"{visible} catches it already", "Drop hidden=True.")
    judged = bench.judge(answer, mutant.exercise, named)
    if judged.passed:
        return caught_by_another(bench, mutant, answer, ways)
    return Result(judged.words, *misworded(mutant, named, judged.words), judged.outcome)


def caught_by_another(bench: Workbench, mutant: Mutant, answer: Function, ways: Iterable[Way]) -> Result:
    """What to say of a wrong answer that the check lets through which must catch it."""
    named = Way(mutant.caught_by, mutant.hidden)
    for way in ways:
        judged = bench.judge(answer, mutant.exercise, way) if way != named else None
        if judged and not judged.passed:
            that = f'caught_by="{way.judges}"' + ", hidden=True" * way.hidden
            return Result(judged.words, f"{way} catches it, not {named}", f"Write {that}, or let {named} catch it.")
    return Result("", "nothing catches it", "Write a check that does; or list it with `right`, if it is correct.")


def misworded(mutant: Mutant, way: Way, words: str) -> tuple[str, str]:
    """What is wrong with a message, and what to do about it; two empty texts if nothing is."""
    first = words.splitlines()[0]
    if mutant.sentence and mutant.sentence not in words:
        return f"the message does not say {mutant.sentence!r}", NOT_SAID
    if mutant.says not in words:
        return f"the message does not say {mutant.says!r}", "Correct the check, or the words that this answer expects."
    if not (first.startswith(f"{mutant.exercise} · {way.judges} ") and first.endswith("not passed")):
        return f"the message starts with {first!r}", "Let the check raise CheckFailed: its first line is added later."
    if way.hidden and ("hidden test" not in first or GIVES_AWAY.search(words)):
        return "its message gives away what is expected", "Give that to CheckFailed as `expected`, which is left out."
    return "", ""
