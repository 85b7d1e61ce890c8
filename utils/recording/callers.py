"""Which line of the student's led to a call: found on the stack, at every call, so kept quick."""

from __future__ import annotations

import functools
import sys

from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d

from ..text import source_lines

ENTRANCES = (c10d.__file__, c10d_logger.__file__)  # where a call of `dist.something` arrives
is_students = functools.cache(source_lines.is_students)  # asked for every frame of every call


def who_called() -> tuple[str, str, bool]:
    """(where, function, directly): the innermost line of the stack that is neither torch's nor ours, as "file:line";
    which function of torch.distributed it called (from a process group `isend` and `send` look alike); and whether it
    called that one itself, not through DDP or the like. "", "" and False in a thread of torch's own.
    """
    frame, function, file = sys._getframe(1), "", ""
    while frame is not None:
        code = frame.f_code
        if is_students(code.co_filename):
            return line_of(frame, code), function, file in ENTRANCES
        file = code.co_filename
        if file == c10d.__file__:
            function = code.co_name
        frame = frame.f_back
    return "", function, False


def line_of(frame, code) -> str:
    """ "file:line" at which `frame` is. Kept, since Python counts to a line's number from the function's first."""
    place = id(code), frame.f_lasti
    known = LINES.get(place)
    if known is None:
        known = LINES[place] = f"{code.co_filename}:{frame.f_lineno}", code  # the code too: nobody else gets its id
    return known[0]


LINES: dict[tuple[int, int], tuple[str, object]] = {}
