"""How a verdict looks on a page: a sign, words and a colour for each kind. And how one is read from a notebook."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from nbformat.notebooknode import NotebookNode

from grader.classroom.nbgrader_plugins import is_check
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Flag, Judgement, Verdict


@dataclass(frozen=True)
class Mark:
    """sign: one character; words: for a line of its own; short: behind a name; css: its class in page.css."""

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


def verdict_of(cell: NotebookNode) -> Verdict:
    """What grading kept in a check cell; "not run" when it kept nothing, or something odd."""
    about = cell.metadata.get("nbgrader", {})
    name, most = str(about.get("grade_id", "")), amount(about.get("points"))
    kept = cell.metadata.get("verdict")
    kept = kept if isinstance(kept, dict) else {}
    known = {field.name: kept[field.name] for field in fields(Verdict) if field.name in kept}
    found = Verdict(**{"check": name, "points": 0.0, "most": most, "kind": NOT_RUN, **known})
    found.check, found.points, found.most = name, amount(found.points), most
    found.kind = found.kind if isinstance(found.kind, str) and found.kind in MARKS else NOT_RUN
    found.said, found.mistake = (text if isinstance(text, str) else "" for text in (found.said, found.mistake))
    found.hidden = found.hidden is True
    return found


def judgement_of(nb: NotebookNode) -> Judgement:
    """What grading kept of the whole submission, and the verdicts of its cells."""
    kept = nb.metadata.get("judgement")
    kept = kept if isinstance(kept, dict) else {}
    lines = [*listed(nb.metadata.get("troubles")), *listed(kept.get("troubles"))]
    looks = [one for one in listed(kept.get("looks"), dict) if isinstance(one.get("what"), str)]
    return Judgement(
        lesson=str(kept.get("lesson", "")),
        verdicts=[verdict_of(cell) for cell in nb.cells if is_check(cell)],
        troubles=list(dict.fromkeys(lines)),
        looks=[Flag(one["what"], str(one.get("evidence", ""))) for one in looks],
        seconds=amount(kept.get("seconds")),
    )


def listed(value: object, kind: type = str) -> list[Any]:
    return [one for one in value if isinstance(one, kind)] if isinstance(value, list) else []


def amount(value: object) -> float:
    """A number of points or seconds; 0 for what is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return 0.0
    return float(value)
