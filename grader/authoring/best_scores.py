"""Write down the best known score of each challenge, the mark on the bar that students see (utils/checks/scores.py).

write_best_scores(lesson)    judge the solutions and right answers of challenges, and write best_scores.json
best_scores_drift(lesson)    whether all challenges are written down, without judging anything
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.authoring.lesson import Lesson

if TYPE_CHECKING:  # it imports torch
    from grader.authoring.workbench import Workbench

DIGITS = 7  # significant digits: the last ones of a sum may differ between machines


def file_of(lesson: Lesson) -> Path:
    from utils.checks.scores import FILE

    return lesson.room / FILE


def challenges_of(lesson: Lesson) -> list[str]:
    return [check.exercise for check in lesson.checks if check.is_extra_credit]


def write_best_scores(lesson: Lesson) -> bool:
    """The file has, for each challenge, the best score of the solution and all right answers in each visible case.

    Right answers that fail are passed over: `try` and the tests report them. Returns whether anything has changed.
    """
    from grader.authoring.workbench import Workbench
    from utils.checks import CheckFailed
    from utils.checks.scores import best_scores

    best: dict[str, list[float]] = {}
    challenges = challenges_of(lesson)
    if not challenges:
        file_of(lesson).unlink(missing_ok=True)
        return False
    bench = Workbench.load(lesson.name, lesson.root)
    for exercise in challenges:
        scores = [scores_of(bench, exercise, str)]
        for one in bench.answers.right:
            if one.exercise == exercise:
                with suppress(CheckFailed):
                    scores.append(scores_of(bench, exercise, one.apply))
        best[exercise] = [float(f"{min(of_case):.{DIGITS}g}") for of_case in zip(*scores, strict=True)]
    before = best_scores(lesson.room)
    file_of(lesson).write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8")
    return best != before


def scores_of(bench: Workbench, exercise: str, change: Callable[[str], str]) -> list[float]:
    """What an answer scores in each visible case. Raises CheckFailed if it doesn't pass."""
    from utils.checks.runner import Runner
    from utils.checks.scores import SCORE

    runs: list[Runner] = []

    def runner(function: Callable[..., Any], if_stuck: str, quiet: bool) -> Runner:
        runs.append(Runner(function, if_stuck, quiet=True))
        return runs[-1]

    bench.visible.judge(bench.answer(exercise, change), SCORE, runner)
    return [score.value for score in runs[-1].scores]


def best_scores_drift(lesson: Lesson) -> Iterator[str]:
    from utils.checks.scores import best_scores

    if sorted(best_scores(lesson.room)) != sorted(challenges_of(lesson)):
        yield f"{file_of(lesson).relative_to(lesson.root)} is out of date: run `make build`"
