"""Which line of the student's led to a call, and through which of torch's wrappers.

The stack is searched at every call, so this must be quick.
"""

from __future__ import annotations

import functools
import os
import sys
from types import CodeType, FrameType
from typing import NamedTuple

import torch
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d

from ..events.event import DTENSORS_EXCHANGE
from ..text import source_lines
from ..text.package import FOLDER
from .torch_private import microbatches_of, module_of_fsdp

ENTRANCES = (c10d.__file__, c10d_logger.__file__)  # where a call of `dist.something` arrives
# What of torch calls the network on its own: {its file or folder: {the function to look for, "" for any: its name}}.
WRAPPERS = {
    "nn/parallel/distributed.py": {"__init__": "DDP", "_sync_buffers": "DDP buffers", "forward": "DDP forward"},
    "distributed/algorithms/ddp_comm_hooks/": {"": "DDP"},
    "nn/modules/_functions.py": {"": "SyncBatchNorm"},
    "distributed/fsdp/": {"": "FSDP"},
    "distributed/checkpoint/": {"": "checkpoint"},
    "distributed/tensor/_collective_utils.py": {"shard_dim_alltoall": DTENSORS_EXCHANGE, "": "DTensor"},
    "distributed/tensor/": {"": "DTensor"},
    "distributed/_state_dict_utils.py": {"": "state dict"},
    "distributed/pipelining/": {"": "pipeline"},
    "distributed/optim/zero_redundancy_optimizer.py": {"": "ZeroRedundancyOptimizer"},
}
PART_OF = {"FSDP": module_of_fsdp, "pipeline": microbatches_of}  # a note on a wrapper's call
OBJECTS = ("_object", "_object_list")  # how the names of functions end that pickle objects, and make several calls
ENGINE = os.path.join(os.path.dirname(torch.__file__), "autograd", "graph.py")  # calls C++, which runs backward passes
HOME = os.path.join(os.path.dirname(torch.__file__), "")
OURS, STUDENTS, LIBRARY = "ours", "the student's", "a library's"
OPERATOR = "torch.ops"  # the wrapper of a call that a line makes by such an operator
OPERATORS = os.path.join(HOME, "_ops.py")


class Caller(NamedTuple):
    """Who made a call. All fields are empty in one of torch's own threads.

    where      the student's innermost line on the stack, as "file:line"
    function   the function of torch.distributed that led here: to a process group, `isend` and `send` look alike
    directly   whether that line called the function itself, not through DDP or the like
    wrapper    the innermost of WRAPPERS in between; "FSDP backward" if a backward pass led to it. Only DDP has C++ call
               us in the middle of one, with no Python in between. A function for objects counts as one, by its name,
               and so does an operator (OPERATOR)
    callers    the student's lines that led to `where`, innermost first; looked for only on request
    part       the module for which FSDP made the call, or a pipeline's number of microbatches; likewise
    """

    where: str
    function: str
    directly: bool
    wrapper: str
    callers: tuple[str, ...] = ()
    part: str = ""


class Kind(NamedTuple):
    """What is known of a file of code."""

    is_students: bool
    wrappers: dict[str, str]  # {function, or "": wrapper}


@functools.cache  # asked for every frame of every call
def kind_of(file: str) -> Kind:
    inside = file.removeprefix(HOME).replace(os.sep, "/")
    wrappers = next((names for place, names in WRAPPERS.items() if inside.startswith(place)), {})
    return Kind(source_lines.is_students(file), wrappers)


def who_called(in_full: bool = False) -> Caller:
    frame: FrameType | None = sys._getframe(1)
    function = file = wrapper = part = ""
    while frame is not None:
        code = frame.f_code
        is_students, wrappers = kind_of(code.co_filename)
        if is_students:
            callers = lines_above(frame) if in_full else ()
            if file == OPERATORS:
                wrapper = wrapper or OPERATOR
            elif function.endswith(OBJECTS):
                wrapper = wrapper or function
            return Caller(line_of(frame, code), function, file in ENTRANCES, wrapper, callers, part)
        if code.co_filename == ENGINE and (wrapper or file.startswith(FOLDER)):
            wrapper = f"{wrapper or 'DDP'} backward"
        file = code.co_filename
        if file == c10d.__file__:
            function = code.co_name
        elif wrappers and wrapper in ("", "DTensor"):  # the one that others are made of
            wrapper = wrappers.get(code.co_name) or wrappers.get("") or wrapper
        if in_full and wrappers and wrapper in PART_OF and not part:
            part = PART_OF[wrapper](frame)
        frame = frame.f_back
    return Caller("", function, False, "")


def lines_above(frame: FrameType) -> tuple[str, ...]:
    """The student's lines that led to this frame, innermost first: as far as the next frame of ours.

    Like line_of, cached: a stack is known by its students' code objects and where each of them is.
    """
    places, above = [id(frame.f_code), frame.f_lasti], frame.f_back
    while above is not None:
        code = above.f_code
        part = PARTS.get(code.co_filename) or part_of(code.co_filename)
        if part is OURS:
            break
        if part is STUDENTS:
            places += id(code), above.f_lasti
        above = above.f_back
    known = CHAINS.get(tuple(places))
    if known is None:
        known = CHAINS[tuple(places)] = find_lines_above(frame)
    return known


def find_lines_above(frame: FrameType) -> tuple[str, ...]:
    lines, above = [line_of(frame, frame.f_code)], frame.f_back
    while above is not None and (part := part_of(above.f_code.co_filename)) is not OURS:
        if part is STUDENTS and (line := line_of(above, above.f_code)) != lines[-1]:  # a comprehension has its own
            lines.append(line)
        above = above.f_back
    return tuple(lines[1:])


def part_of(file: str) -> str:
    part = OURS if file.startswith(FOLDER) else STUDENTS if kind_of(file).is_students else LIBRARY
    return PARTS.setdefault(file, part)


def line_of(frame: FrameType, code: CodeType) -> str:
    """The "file:line" where `frame` is. Cached, since Python finds the number by counting from the function's start."""
    place = id(code), frame.f_lasti
    known = LINES.get(place)
    if known is None:
        known = LINES[place] = f"{code.co_filename}:{frame.f_lineno}", code  # the code too, so that its id stays taken
    return known[0]


LINES: dict[tuple[int, int], tuple[str, CodeType]] = {}
CHAINS: dict[tuple[int, ...], tuple[str, ...]] = {}
PARTS: dict[str, str] = {}  # {file: which part of a stack it is}
