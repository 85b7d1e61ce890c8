"""Write down what wrong answers with a sentence lead to, so that checks name them (utils/checks/known_mistakes.py).

outcome_of(bench, mutant)      what the check that catches an answer finds wrong
learn(bench, outcomes)         let the checks know these outcomes
write_mistakes(lesson, ...)    write them down, beside the visible checks or, of hidden tests, beside these
not_told_apart(*known)         sentences of answers with the same outcome: a student reads all of them
mistakes_drift(lesson)         whether all sentences are written down, without judging anything
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from grader.authoring.check_files import answers
from grader.authoring.lesson import BuildError, Lesson
from grader.authoring.variants import Mutant

if TYPE_CHECKING:  # they import torch
    from grader.authoring.workbench import Workbench
    from utils.checks.known_mistakes import KnownMistakes, KnownOutcome

    Outcomes = Iterable[tuple[Mutant, KnownOutcome | None]]


def outcome_of(bench: Workbench, mutant: Mutant) -> KnownOutcome | None:
    """None if the check passes, or can't judge what came back: both are reported when the answer is judged."""
    from grader.authoring.workbench import AnswerError, Way
    from utils.checks.known_mistakes import written_down

    try:
        answer = bench.answer(mutant.exercise, mutant.apply)
        outcome = bench.judge(answer, mutant.exercise, Way(mutant.caught_by, mutant.hidden)).outcome
    except (AnswerError, BuildError):
        return None
    return written_down(outcome) if outcome else None


def known_from(outcomes: Outcomes, hidden: bool) -> KnownMistakes:
    """What the visible checks or the hidden tests know from these answers."""
    from utils.checks.known_mistakes import KnownMistakes

    known = KnownMistakes()
    for mutant, outcome in outcomes:
        if mutant.sentence and outcome and mutant.hidden == hidden:
            known.add(mutant.exercise, mutant.caught_by, mutant.sentence, outcome)
    return known


def learn(bench: Workbench, outcomes: Outcomes) -> None:
    outcomes = list(outcomes)
    bench.visible.known = known_from(outcomes, hidden=False)
    bench.hidden.known = known_from(outcomes, hidden=True)


def read_mistakes(bench: Workbench) -> None:
    """Let the checks know what is written down now."""
    bench.visible.known, bench.hidden.known = known_of(bench.lesson)


def known_of(lesson: Lesson) -> list[KnownMistakes]:
    """What is written down for the visible checks, and for the hidden tests."""
    from utils.checks.known_mistakes import KnownMistakes

    return [KnownMistakes.read(file_of(lesson, hidden)) for hidden in (False, True)]


def file_of(lesson: Lesson, hidden: bool) -> Path:
    from utils.checks.known_mistakes import mistakes_file

    return mistakes_file(lesson.room, hidden)


def write_mistakes(lesson: Lesson, outcomes: Outcomes) -> None:
    outcomes = list(outcomes)
    for hidden in (False, True):
        path, text = file_of(lesson, hidden), known_from(outcomes, hidden).text()
        if text:
            path.write_text(text, encoding="utf-8")
        else:
            path.unlink(missing_ok=True)


def not_told_apart(*known: KnownMistakes) -> Iterator[str]:
    for exercise, one, other in (three for each in known for three in each.not_told_apart()):
        yield (
            f"{exercise}: answers with these sentences lead to the same result, so students read both. Add a case that "
            f"tells them apart, or give them one sentence:\n  - {one}\n  - {other}"
        )


def mistakes_drift(lesson: Lesson) -> Iterator[str]:
    from utils.checks.known_mistakes import KnownMistakes

    wrong = answers(lesson).wrong
    for hidden in (False, True):
        path = file_of(lesson, hidden)
        have = KnownMistakes.read(path).sentences
        want = {(one.exercise, one.sentence) for one in wrong if one.sentence and one.hidden == hidden}
        for exercise, sentence in sorted(have ^ want)[:1]:
            what = "it lacks" if (exercise, sentence) in want else "no wrong answer has"
            yield f"{path.relative_to(lesson.root)} is out of date, {what} {sentence!r} of {exercise}: run `make build`"
