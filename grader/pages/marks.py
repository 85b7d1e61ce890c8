"""The look of each kind of verdict on a page (sign, words, colour), and reading verdicts from a graded notebook."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from nbformat.notebooknode import NotebookNode

from grader.judging.check_cells import extra_credit, is_check
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Flag, Judgement, Score, Verdict


@dataclass(frozen=True)
class Mark:
    """sign: one character; words: for a line of its own; short: for use after a name; css: its class in page.css."""

    sign: str
    words: str
    short: str
    css: str


MARKS = {
    PASSED: Mark("✓", "passed", "", "passed"),
    PART: Mark("◐", "part of the points", "part", "part"),
    WRONG: Mark("✗", "not passed", "not passed", "wrong"),
    BLANK: Mark("○", "nothing written", "nothing written", "blank"),
    STUCK: Mark("■", "stopped", "stopped", "stuck"),
    NOT_RUN: Mark("–", "not run", "not run", "not-run"),
}
WAITS = Mark("⋯", "not graded yet", "not graded yet", "waits")


def verdict_of(cell: NotebookNode) -> Verdict:
    """The verdict that grading stored in a check cell; "not run" if there is none, or not a valid one."""
    about = cell.metadata.get("nbgrader", {})
    name, most = str(about.get("grade_id", "")), extra_credit(cell.source) or amount(about.get("points"))
    stored = cell.metadata.get("verdict")
    stored = stored if isinstance(stored, dict) else {}
    known = {field.name: stored[field.name] for field in fields(Verdict) if field.name in stored}
    found = Verdict(**{"check": name, "points": 0.0, "most": most, "kind": NOT_RUN, **known})
    found.check, found.points, found.most = name, amount(found.points), most
    found.kind = found.kind if isinstance(found.kind, str) and found.kind in MARKS else NOT_RUN
    found.said, found.mistake = (text if isinstance(text, str) else "" for text in (found.said, found.mistake))
    found.hidden = found.hidden is True
    found.score = score_of(stored.get("score"))
    return found


def score_of(stored: object) -> Score | None:
    """A challenge's score, if that is what was stored."""
    if not isinstance(stored, dict) or not isinstance(stored.get("shown"), str):
        return None
    return Score(shown=stored["shown"], value=amount(stored.get("value")), share=amount(stored.get("share")))


def judgement_of(nb: NotebookNode) -> Judgement:
    """The judgement that grading stored for the whole submission, with the verdicts of its cells."""
    stored = nb.metadata.get("judgement")
    stored = stored if isinstance(stored, dict) else {}
    problems = [*items_of(nb.metadata.get("problems")), *items_of(stored.get("problems"))]
    flags = [flag for flag in items_of(stored.get("flags"), dict) if isinstance(flag.get("what"), str)]
    return Judgement(
        lesson=str(stored.get("lesson", "")),
        verdicts=[verdict_of(cell) for cell in nb.cells if is_check(cell)],
        problems=list(dict.fromkeys(problems)),
        flags=[Flag(flag["what"], str(flag.get("evidence", ""))) for flag in flags],
        seconds=amount(stored.get("seconds")),
    )


def items_of(value: object, kind: type = str) -> list[Any]:
    """The items of this type, if the value is a list at all."""
    return [item for item in value if isinstance(item, kind)] if isinstance(value, list) else []


def amount(value: object) -> float:
    """A number of points or seconds; 0 for anything that isn't a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return 0.0
    return float(value)
