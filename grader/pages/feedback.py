"""The feedback page for a student: each check's message says what it called, what it got and what it expected.

nbgrader_config.py plugs it into `nbgrader generate_feedback`. The page shows the student's own cells and the verdicts
that grading stored as metadata (`cell.metadata["verdict"]`, `nb.metadata["judgement"]`), but no check's source and no
output. Nothing on it is active, no matter who wrote it (sanitize.py and the policy in grader/pages/__init__.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from markupsafe import Markup
from nbconvert.exporters import Exporter
from nbformat.notebooknode import NotebookNode
from nbgrader import utils
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from grader.classroom.notebook_file import count
from grader.classroom.submission import grade_id
from grader.judging.check_cells import extra_credit, is_check
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG
from grader.pages import number, page, visible
from grader.pages.board import board_name, made_up_name
from grader.pages.marks import MARKS, WAITS, Mark, amount, judgement_of, verdict_of
from grader.pages.sanitize import CACHE_SIZE, LONGEST, PAGE_SECONDS, from_markdown
from grader.sandbox.bounded import TooMuch, call_in_child

ABOUT = ("student", "notebook", "score", "max_score", "late_penalty")  # nbgrader's own data about a submission
NO_ANSWER = "No response."  # nbgrader's own comment on an answer that is as it was released
# For verdicts without a message.
DEFAULT_MESSAGES = {
    BLANK: "You have not written anything in this exercise's cell yet.",
    STUCK: "It took too long or used too much memory, and was stopped. Is there a loop that never ends?",
    NOT_RUN: "This check was not run.",
}
# An absolute path, which is one on the grading machine unless the student wrote it.
PATH = re.compile(r"(?<![\w.:/~-])/(?:[\w.@+-]+/)+([\w.@+-]+)")


class FeedbackPage(Exporter):
    """A student's page for one graded notebook. nbgrader's GetGrades has put points and comments into its cells."""

    file_extension = ".html"
    output_mimetype = "text/html"

    def from_notebook_node(  # type: ignore[override]  # nbconvert's own exporters return text too
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        nb, resources = super().from_notebook_node(nb, resources, **kw)
        about = {name: resources["nbgrader"][name] for name in ABOUT}
        about["made_up_name"] = made_up_name(resources["nbgrader"].get("submission", ""))
        try:
            return call_in_child(PAGE_SECONDS, feedback, nb, about), resources  # Markdown can take long
        except TooMuch as reason:
            return feedback(nb, about, f"This notebook is shown as typed: laying it out {reason}."), resources


@dataclass(frozen=True)
class Judged:
    """One thing that can earn points: a check, or an answer that a person grades."""

    name: str
    what: str  # within its exercise: "values"
    points: float
    most: float
    mark: Mark
    said: str = ""
    changed: str = ""
    hidden: bool = False
    extra: bool = False  # extra credit: `most` is beyond the lesson's points

    @property
    def anchor(self) -> str:
        return f"check-{self.name}"

    @property
    def is_lost(self) -> bool:
        """Whether points are lost: not those that a person may still give, nor extra credit."""
        return self.points < self.most and self.mark is not WAITS and not self.extra


@dataclass(frozen=True)
class Exercise:
    """An exercise: what is judged in it, and a person's comment."""

    name: str
    judged: list[Judged]
    comment: Markup = Markup()

    @property
    def lost(self) -> list[Judged]:
        return [one for one in self.judged if one.is_lost]

    @property
    def waits(self) -> bool:
        return all(one.mark is WAITS for one in self.judged)

    @property
    def is_blank(self) -> bool:
        return all(one.mark is MARKS[BLANK] for one in self.judged) and not self.extra

    @property
    def points(self) -> float:
        return sum(one.points for one in self.judged)

    @property
    def most(self) -> float:
        return sum(one.most for one in self.judged)

    @property
    def extra(self) -> bool:
        return any(one.extra for one in self.judged)


def feedback(nb: NotebookNode, about: dict[str, Any], as_typed: str = "") -> str:
    """The page as HTML.

    about     the entries of ABOUT, and perhaps a made_up_name, for the board
    as_typed  why the cells are shown without any layout; "" if they are laid out
    """
    answers = [grade_id(cell) for cell in nb.cells if utils.is_solution(cell)]
    own = "\n".join(cell.source for cell in nb.cells if not is_check(cell))
    exercises: dict[str, list[Judged]] = {}
    for cell in nb.cells:
        if has_points(cell):
            exercises.setdefault(exercise_of(grade_id(cell), answers), []).append(judged(cell, answers, own))
    comments = {grade_id(cell): comment_on(cell) for cell in nb.cells if utils.is_solution(cell) or utils.is_task(cell)}
    found = [Exercise(name, ones, comments.pop(name, Markup())) for name, ones in exercises.items()]
    return page(
        "feedback.html",
        lesson=visible(about["notebook"], 80).replace("_", " "),
        student=visible(about["student"], 80),
        score=about["score"],
        most=about["max_score"],
        extra=sum(one.points for found in exercises.values() for one in found if one.extra),
        penalty=about["late_penalty"],
        on_board=name_on_board(nb, found, about),
        problems=[
            without_folders(visible(line, 500), own)
            for line in [*judgement_of(nb).problems, *([as_typed] if as_typed else [])]
        ],
        waiting=sum(one.most for exercise in found for one in exercise.judged if one.mark is WAITS),
        exercises=found,
        comments={name: comment for name, comment in comments.items() if comment},
        parts=list(parts(nb, answers, own, typed if as_typed else rendered)),
    )


def name_on_board(nb: NotebookNode, exercises: list[Exercise], about: dict[str, Any]) -> str:
    """The name under which the class's board has this student's score; "" if it has none."""
    passed = any(one.extra and one.mark is MARKS[PASSED] for exercise in exercises for one in exercise.judged)
    return (board_name(nb) or str(about.get("made_up_name", ""))) if passed else ""


def parts(
    nb: NotebookNode, answers: list[str], own: str, rendered: Callable[[NotebookNode], Markup]
) -> Iterator[dict[str, Any]]:
    """The notebook from top to bottom: answers, checks, and the cells between them, which are folded away."""
    for is_between, group in groupby(nb.cells, lambda cell: not has_points(cell) and not utils.is_solution(cell)):
        cells = list(group)
        if is_between:
            yield {"kind": "between", "summary": summary(cells), "cells": [rendered(cell) for cell in cells]}
            continue
        for cell in cells:
            if is_check(cell):
                yield {"kind": "check", "check": judged(cell, answers, own)}
            else:
                yield {
                    "kind": "answer",
                    "name": grade_id(cell),
                    "html": rendered(cell),
                    "by_hand": judged(cell, answers, own) if has_points(cell) else None,
                }


def comment_on(cell: NotebookNode) -> Markup:
    """What a person has written about an answer."""
    comment = cell.metadata.nbgrader.get("comment")
    return Markup(from_markdown(visible(comment))) if comment and comment != NO_ANSWER else Markup()


def judged(cell: NotebookNode, answers: list[str], own: str) -> Judged:
    """A cell's points, including a person's corrections, and the reason for them."""
    name, score, most = grade_id(cell), *(amount(cell.metadata.nbgrader.get(key)) for key in ("score", "points"))
    extra = is_check(cell) and extra_credit(cell.source)
    most = extra or most
    css = MARKS[PASSED if score >= most else PART if score > 0 else WRONG].css
    by_hand = Mark("✎", "graded by a person", f"{number(score)} of {number(most)}", css)
    if not is_check(cell):
        about = cell.metadata.nbgrader
        is_blank = about.get("comment") == NO_ANSWER and not score
        mark = WAITS if about.get("waits") is True else MARKS[BLANK] if is_blank else by_hand
        return Judged(name, "by hand", score, most, mark)
    verdict = verdict_of(cell)
    changed = score != verdict.points
    return Judged(
        name,
        name.removeprefix(exercise_of(name, answers)).strip("-") or name,
        score,
        most,
        by_hand if changed else MARKS[verdict.kind],
        without_folders(visible(verdict.said), own).strip("\n") or DEFAULT_MESSAGES.get(verdict.kind, ""),
        f"A person changed the points from {number(verdict.points)} to {number(score)}." if changed else "",
        verdict.hidden,
        bool(extra),
    )


def has_points(cell: NotebookNode) -> bool:
    return utils.is_grade(cell) or utils.is_task(cell)


def exercise_of(check: str, answers: list[str]) -> str:
    """The exercise of a check: `ring-all-reduce-values` belongs to `ring-all-reduce`, not to `ring`."""
    names = [name for name in answers if check == name or check.startswith(f"{name}-")]
    return max(names, key=len, default=check.rpartition("-")[0] or check)


def summary(cells: list[NotebookNode]) -> str:
    """A line for the folded cells: their first heading, and how many there are."""
    texts = (cell.source for cell in cells if cell.cell_type == "markdown")
    heading = next((found[1] for text in texts if (found := re.search(r"^#{1,4} +(.+)", text, re.MULTILINE))), "")
    return f"{visible(heading, 80) or 'In between'} · {count(len(cells), 'cell')}"


def rendered(cell: NotebookNode) -> Markup:
    """The cell's text as HTML, cut if it is very long."""
    source = visible(cell.source, LONGEST)
    if cell.cell_type == "code":
        return highlighted(source)
    if cell.cell_type == "markdown":
        return Markup('<div class="text">{}</div>').format(Markup(from_markdown(source)))
    return Markup("<pre>{}</pre>").format(source)


def typed(cell: NotebookNode) -> Markup:
    """The cell's text as it is."""
    return Markup("<pre>{}</pre>").format(visible(cell.source, LONGEST))


@lru_cache(CACHE_SIZE)
def highlighted(source: str) -> Markup:
    return Markup(highlight(source, PythonLexer(stripnl=False), HtmlFormatter(cssclass="code", nowrap=False)))


def without_folders(text: str, own: str) -> str:
    """The text with paths shortened to the file's name, except for paths in the student's own cells."""
    return PATH.sub(lambda path: path[0] if path[0] in own else path[1], text)
