"""Judging one notebook, here or on a worker of a cluster (dask_cluster.py), which needs nothing else of the course.

It imports little, because every process that judges pays for the imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import nbformat
from nbformat.notebooknode import NotebookNode

from grader.judging.verdict import Judgement
from grader.sandbox import bubblewrap


@dataclass(frozen=True)
class JudgeSettings:
    """How submissions are judged: the settings in c.Judge of the configuration.

    hasty  put off what takes long, which a busy machine may have caused
    """

    lessons: str
    sandboxed: bool
    seconds: float
    audit: bool = False
    hasty: bool = False

    def judge(self, nb: NotebookNode, progress: Callable[[int, int], None] | None = None) -> Judgement:
        """Judge a notebook whose check cells are official, in a child process with limits."""
        from grader.judging.judge import judge  # imports torch, which writing a gradebook does not need

        return judge(nb, **asdict(self), limited=True, progress=progress)


def judge_text(text: str, how: JudgeSettings) -> str:
    """The same, with notebook and judgement as text."""
    return how.judge(nbformat.reads(text, as_version=4)).to_json()


def why_not(how: JudgeSettings) -> str | None:
    """Why this machine can't judge; None if it can."""
    return bubblewrap.why_not() if how.sandboxed else None
