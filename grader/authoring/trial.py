"""What each answer to an exercise gets, beside what it should get.

for case in cases_of(bench):      the solution, the blank, each wrong answer, each right one, exercise by exercise
    result = judge(bench, case)   result.problem is "" if all is as it should be
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from grader.authoring.lesson import BuildError
from grader.authoring.markers import clear_solution
from grader.authoring.workbench import AnswerError, Function, Way, Workbench

NOT_WRITTEN = "Not written yet"
GIVES_AWAY = re.compile(r"expected [\[\d(-]")  # a value, in the message of a hidden test, which students read too


@dataclass(frozen=True)
class Case:
    """An answer to judge. `variant`: the wrong or the right answer; None for the solution and the blank."""

    exercise: str
    kind: Literal["solution", "blank", "wrong", "right"]
    variant: Any = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.variant.name}" if self.variant else self.kind

    def change(self, source: str) -> str:
        """The exercise's cell with this answer in it. Raises ValueError if the solution doesn't allow that."""
        if self.variant:
            return self.variant.apply(source)
        return clear_solution(source) if self.kind == "blank" else source


@dataclass(frozen=True)
class Result:
    """What an answer got.

    words    exactly what a student reads; "" if the answer passes, as it should
    problem  what is not as it should be; "" if nothing
    advice   what to do about that
    seconds  how long it took to judge
    """

    words: str = ""
    problem: str = ""
    advice: str = ""
    seconds: float = field(default=0, compare=False)


def cases_of(bench: Workbench, exercises: Iterable[str] | None = None) -> list[Case]:
    """All answers to these exercises, or to all exercises of the lesson."""
    cases = []
    for name in bench.lesson.exercises if exercises is None else exercises:
        cases += [Case(name, "solution"), Case(name, "blank")]
        cases += [Case(name, "wrong", one) for one in bench.answers.wrong if one.exercise == name]
        cases += [Case(name, "right", one) for one in bench.answers.right if one.exercise == name]
    return cases


def judge(bench: Workbench, case: Case, ways: Sequence[Way] | None = None) -> Result:
    """Judge an answer in these ways; by default, in all ways in which its exercise is judged.

    A wrong answer is only judged by the check that must catch it, unless that check lets it through.
    """
    start = time.monotonic()
    should = {"blank": say_unwritten, "wrong": catch}.get(case.kind, accept)
    try:
        answer = bench.answer(case.exercise, case.change)
        result = should(bench, case, answer, bench.ways(case.exercise) if ways is None else ways)
    except AnswerError as error:
        result = Result("", f"it can't be judged: {error}", "Correct this answer.")
    except BuildError as error:
        result = Result("", f"the check itself fails: {error}", "Correct that line.")
    return replace(result, seconds=time.monotonic() - start)


def accept(bench: Workbench, case: Case, answer: Function, ways: Iterable[Way]) -> Result:
    """The solution, or a right answer in another form: nothing may refuse it."""
    for way in ways:
        judged = bench.judge(answer, case.exercise, way)
        if not judged.passed:
            either = "the solution" if case.kind == "solution" else "this answer, if it is wrong after all"
            return Result(judged.words, f"{way} refuses it", f"Correct the check, or {either}.")
    return Result()


def say_unwritten(bench: Workbench, case: Case, answer: Function, ways: Iterable[Way]) -> Result:
    """The blank: everything must say that nothing is written."""
    words = ""
    for way in ways:
        judged = bench.judge(answer, case.exercise, way)
        words = words or judged.words
        if judged.passed:
            return Result("", f"{way} passes it", "Draw inputs for which doing nothing is wrong.")
        if NOT_WRITTEN not in judged.words or "Traceback" in judged.words:
            return Result(
                judged.words,
                f"{way} does not say {NOT_WRITTEN!r}",
                "Does the check catch every exception? Let it catch only the one that it expects.",
            )
    return Result(words)


def catch(bench: Workbench, case: Case, answer: Function, ways: Sequence[Way]) -> Result:
    """A wrong answer: the check that it names must catch it, in the words that it expects."""
    named = Way(case.variant.caught_by, case.variant.hidden)
    if named not in ways:
        there_are = " and ".join(map(str, ways))
        return Result("", f"it names {named}, but there is only {there_are}", "Name one of these.")
    if named.hidden:
        seen = bench.judge(answer, case.exercise, Way(named.judges))
        if not seen.passed:
            return Result(seen.words, f"{Way(named.judges)} catches it already", "Drop hidden=True.")
    judged = bench.judge(answer, case.exercise, named)
    if judged.passed:
        return caught_elsewhere(bench, case, answer, [way for way in ways if way != named])
    return Result(judged.words, *misworded(case, named, judged.words))


def caught_elsewhere(bench: Workbench, case: Case, answer: Function, ways: Iterable[Way]) -> Result:
    """What to say of a wrong answer that the named check lets through."""
    named = Way(case.variant.caught_by, case.variant.hidden)
    for way in ways:
        judged = bench.judge(answer, case.exercise, way)
        if not judged.passed:
            write = f'caught_by="{way.judges}"' + ", hidden=True" * way.hidden
            return Result(judged.words, f"{way} catches it, not {named}", f"Write {write}, or let {named} catch it.")
    return Result("", "nothing catches it", "Write a check that does. If the answer is correct, list it with `right`.")


def misworded(case: Case, way: Way, words: str) -> tuple[str, str]:
    """What is wrong with a message, and what to do about it; two empty texts if nothing is."""
    first = words.splitlines()[0]
    if case.variant.says not in words:
        return f"the message does not say {case.variant.says!r}", "Correct the check, or the words that you expect."
    if not (first.startswith(f"{case.exercise} · {way.judges} ") and first.endswith("not passed")):
        return f"the message starts with {first!r}", "Let the check raise CheckFailed: its first line is added later."
    if way.hidden and ("hidden test" not in first or GIVES_AWAY.search(words)):
        return (
            "the hidden test's message gives away what is expected",
            "Say it in CheckFailed's `expected`, not in `saw`.",
        )
    return "", ""
