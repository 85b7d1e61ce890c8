"""What judges one notebook, here or on a worker of a cluster (dask_cluster.py), which needs nothing else of the course.

It imports little: each process that judges pays for it.
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
    """How submissions are judged: what c.Judge of the configuration says."""

    checks: str
    hidden: str
    sandboxed: bool
    seconds: float

    def judge(self, nb: NotebookNode, progress: Callable | None = None) -> Judgement:
        """Judge a notebook whose cells are official."""
        from grader.judging.judge import judge  # it imports torch, which who only writes a gradebook can do without

        return judge(nb, **asdict(self), progress=progress)


def judge_text(text: str, how: JudgeSettings) -> str:
    """Notebook and judgement as text."""
    return how.judge(nbformat.reads(text, as_version=4)).to_json()


def why_not(how: JudgeSettings) -> str | None:
    """Why there can be no judging here; None when there can."""
    return bubblewrap.why_not() if how.sandboxed else None
