"""A judge that runs nothing: a comment in the submission says what it earns. For tests of what comes after judging.

# earns 2 1.5 0
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import nbformat
from nbformat.notebooknode import NotebookNode

from grader.judging.check_cells import extra_credit, is_check, worth
from grader.judging.verdict import PART, PASSED, WRONG, Judgement, Score, Verdict
from grader.judging.worker import JudgeSettings
from tests.tiny_course import LESSON, RIGHT


def earning(*points: float) -> dict[str, str]:
    """Answers that earn these points, in the order of the checks."""
    return {**RIGHT, "double": f"# earns {' '.join(map(str, points))}\n{RIGHT['double']}"}


def judge(nb: NotebookNode, **how: object) -> Judgement:
    said = next(
        (line for cell in nb.cells for line in cell.source.split("\n") if line.startswith("# earns")), "# earns"
    )
    points = [float(word) for word in said.split()[2:]]
    judgement = Judgement(LESSON, problems=["earns nothing"] if not any(points) else [])
    for cell in filter(is_check, nb.cells):
        name, most, earned = cell.metadata.nbgrader.grade_id, worth(cell), [*points, 0.0][0]
        points = points[1:]
        kind = PASSED if earned == most else PART if earned else WRONG
        score = Score(shown="100 µs", value=1e-4, share=0.5) if extra_credit(cell.source) and kind == PASSED else None
        judgement.verdicts.append(Verdict(name, earned, most, kind, f"{name} earns {earned:g}", score=score))
    return judgement


@dataclass(frozen=True)
class StandIn(JudgeSettings):
    """For workers of a cluster."""

    def judge(self, nb: NotebookNode, progress: object = None) -> Judgement:
        return judge(nb)


@dataclass(frozen=True)
class Odd(StandIn):
    """Raises, or kills the judging process, if a submission says so. Each such process imports this module."""

    def judge(self, nb: NotebookNode, progress: object = None) -> Judgement:
        text = nbformat.writes(nb)
        if "raise" in text:
            raise RuntimeError("the judge is at its wit's end")
        if "kill" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().judge(nb)


def judge_all(lesson: str, work: dict[str, str], *how: object) -> Iterator[tuple[str, Judgement, bool]]:
    """For the class, without a cluster."""
    for student, text in work.items():
        yield student, judge(nbformat.reads(text, as_version=4)), True
