"""A report that nobody catches ends a plain script. What the script prints then: its own lines, and the report.

Python would show every function of ours on the way as well. Notebooks don't need this: IPython asks the exceptions
themselves (`_render_traceback_` in errors.py).
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from ..text.source_lines import is_students
from .errors import Interrupted, RankError


def show_reports_without_our_lines() -> None:
    """From now on, in this process. Every other exception is left to whoever handled it so far."""
    others = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if isinstance(error, RankError | Interrupted):
            print(report_text(error, where), file=sys.stderr)
        else:
            others(kind, error, where)

    sys.excepthook = show


def report_text(error: RankError | Interrupted, where: TracebackType | None) -> str:
    """The traceback as far as it is the script's own, then the report."""
    frames = [frame for frame in traceback.extract_tb(where) if is_students(frame.filename)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return f"{''.join(lines)}{type(error).__name__}: {error}"
