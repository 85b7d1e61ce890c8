"""Mistakes that a lesson's oracles name and that no wrong answer makes, so nothing proves that they are recognised."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from grader.authoring.workbench import Workbench
from utils.checks.frozen_cases import FrozenCases
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, Oracle

NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")  # inputs are drawn, so numbers may differ


def unproved_mistakes(bench: Workbench, messages: Iterable[str]) -> dict[str, list[str]]:
    """{mistake: the exercises whose oracles name it}, of those that none of these messages to students names."""
    said = without_numbers("\n".join(messages))
    found: dict[str, list[str]] = {}
    for oracle in oracles_of(bench):
        for words in dict.fromkeys(words for case in cases_of(oracle) for words in named_in(case)):
            if without_numbers(words) not in said and oracle.exercise not in found.setdefault(words, []):
                found[words].append(oracle.exercise)
    first = {without_numbers(words): words for words in reversed(found)}  # with the numbers of the first case
    return {
        words: exercises for words, exercises in found.items() if first[without_numbers(words)] == words and exercises
    }


def oracles_of(bench: Workbench) -> Iterator[Oracle]:
    for item in vars(bench.visible.module).values():
        if isinstance(item, Oracle | FrozenCases):
            oracle = item.oracle() if isinstance(item, FrozenCases) else item
            if oracle.exercise in bench.lesson.exercises:
                yield oracle


def cases_of(oracle: Oracle) -> Iterator[Case]:
    """Its cases; none if one of them fails, which judging has reported."""
    with contextlib.suppress(Exception):
        yield from [oracle.case(Draws(), arguments) for cases in oracle.cases.values() for arguments in cases]


def named_in(case: Case) -> Iterator[str]:
    for of_part in case.mistakes.values() if isinstance(case.right, dict) else [case.mistakes]:
        yield from of_part


def without_numbers(text: str) -> str:
    """The text on one line, without its numbers."""
    return NUMBER.sub("#", " ".join(text.split()))
