"""Which line of the student's led to a call. The stack is searched at every call, so this must be quick."""

from __future__ import annotations

import functools
import sys
from types import CodeType, FrameType

from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d

from ..text import source_lines

ENTRANCES = (c10d.__file__, c10d_logger.__file__)  # where a call of `dist.something` arrives
is_students = functools.cache(source_lines.is_students)  # called for every frame of every call


def who_called() -> tuple[str, str, bool]:
    """(where, function, directly), or ("", "", False) in one of torch's own threads.

    where      the student's innermost line on the stack, as "file:line"
    function   the function of torch.distributed that led here: to a process group, `isend` and `send` look alike
    directly   whether that line called the function itself, not through DDP or the like
    """
    frame: FrameType | None = sys._getframe(1)
    function = file = ""
    while frame is not None:
        code = frame.f_code
        if is_students(code.co_filename):
            return line_of(frame, code), function, file in ENTRANCES
        file = code.co_filename
        if file == c10d.__file__:
            function = code.co_name
        frame = frame.f_back
    return "", function, False


def line_of(frame: FrameType, code: CodeType) -> str:
    """The "file:line" where `frame` is. Cached, since Python finds the number by counting from the function's start."""
    place = id(code), frame.f_lasti
    known = LINES.get(place)
    if known is None:
        known = LINES[place] = f"{code.co_filename}:{frame.f_lineno}", code  # the code too, so that its id stays taken
    return known[0]


LINES: dict[tuple[int, int], tuple[str, CodeType]] = {}
