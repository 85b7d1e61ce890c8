"""The class's board of a challenge: who has reached par, best score first, under a name of each student's choice.

A student signs with a line `board_name = "..."` in the challenge's cell. Without one, the score has a made-up name that
only its own student is told, on the feedback page. So the board can be shown to the class, unlike the rest of the
report.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from statistics import median

from nbformat.notebooknode import NotebookNode
from nbgrader import utils

from grader.judging.verdict import Score
from grader.pages import visible

LONGEST = 40  # characters of a name
NAME = re.compile(r"""^board_name\s*=\s*(?P<quote>["'])(?P<name>[^"'\\\n]*)(?P=quote)[ \t]*(#.*)?$""", re.MULTILINE)
ANONYMOUS = "anonymous"
COLOURS = ("amber", "brown", "coral", "golden", "green", "grey", "ivory", "olive", "silver", "teal")
BIRDS = ("crane", "duck", "finch", "heron", "lark", "owl", "raven", "robin", "swan", "wren")


@dataclass(frozen=True)
class Row:
    """One line of the board. place: from 1; equal scores share one."""

    place: int
    name: str
    score: str
    share: float  # position between par (0) and the limit (1)


def how_far(rows: list[Row], handed_in: int) -> str:
    """What the board says of the class, in a sentence or two."""
    half = median(row.share for row in rows)
    return f"{len(rows)} of {handed_in} have reached par; half of them came {100 * half:.0f} % of the way to the limit."


def board_name(nb: NotebookNode) -> str:
    """The name that a submission is signed with; "" if it isn't."""
    answers = (cell.source for cell in nb.cells if utils.is_solution(cell))
    signed = [found["name"].strip() for source in answers if (found := NAME.search(source))]
    return visible(signed[-1], LONGEST) if signed else ""


def made_up_name(submission: str) -> str:
    """The name of an unsigned score, such as "teal heron 37". submission: the gradebook's id, which is not public."""
    number = int.from_bytes(sha256(submission.encode()).digest())
    number, colour = divmod(number, len(COLOURS))
    number, bird = divmod(number, len(BIRDS))
    return f"{COLOURS[colour]} {BIRDS[bird]} {number % 100}"


def board(scores: list[tuple[str, Score]]) -> list[Row]:
    """The lines of the board, from (name, score) pairs. Digits that are not shown make no difference."""
    in_order = sorted(scores, key=lambda pair: (pair[1]["value"], pair[0] or ANONYMOUS))
    rows: list[Row] = []
    for _, equal in groupby(in_order, key=lambda pair: pair[1]["shown"]):
        place = len(rows) + 1
        rows += [
            Row(place, name or ANONYMOUS, visible(score["shown"], 80), min(1.0, max(0.0, score["share"])))
            for name, score in equal
        ]
    return rows
