"""A Dask worker that judges without running anything: `dask worker --preload tests.stand_in_worker`.

If its environment has DOOMED, the path of a named pipe, it writes there that it has begun a notebook, and never ends.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

from nbformat.notebooknode import NotebookNode

from grader.judging.verdict import Judgement
from tests import stand_in_judge


def judge(nb: NotebookNode, **how: object) -> Judgement:
    if "DOOMED" in os.environ:
        with open(os.environ["DOOMED"], "w") as pipe:
            pipe.write("begun")
        os.read(os.pipe()[0], 1)
    return stand_in_judge.judge(nb)


def dask_setup(worker: object) -> None:
    sys.modules["grader.judging.judge"] = SimpleNamespace(judge=judge)
