"""Fields of messages from ranks, which may hold anything. Each function raises Breach for a value that does not fit.

Other exceptions are fine too: the hub turns any that a handler raises into a Breach.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sized
from typing import Any

from grader.inside.codec import Breach
from utils.diagnosis.wrappers import NAMES

CELL_LINE = re.compile(r"cell (\d+|of [\w-]+):\d{1,6}")  # as inside/slices.py names cells

Message = dict[str, Any]  # as it arrived: fields may be missing, or be anything


def text(value: Any, most: int = 1000) -> str:
    """A text, cut off after `most` characters."""
    if type(value) is not str:
        raise Breach("something that is not text")
    return value[:most]


def whole(value: Any) -> int:
    """A whole number, also one of numpy's: a program may pass its rank as that."""
    return operator.index(value)


def index_into(items: Sized, value: Any) -> int:
    if type(value) is not int or not 0 <= value < len(items):
        raise Breach("the number of something that does not exist")
    return value


def cell_line(value: Any) -> str:
    """Where a call stands, if that is a cell of the notebook; else "".

    The report of a deadlock opens the file that is named here, so it must not be any other file.
    """
    where = text(value)
    return where if CELL_LINE.fullmatch(where) else ""


def wrapper_name(value: Any) -> str:
    """Which of torch's wrappers made a call, if that is one that reports know; else ""."""
    name = text(value)
    return name if name in NAMES else ""
