"""The instructor's page: how a class did, which mistakes were common, and which submissions need attention.

The points come from the gradebook, including a person's corrections; the reasons come from the verdicts stored in the
autograded notebooks. If a notebook is missing or damaged, only its own reasons are missing from the page.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count as count_from
from pathlib import Path
from statistics import mean, median
from typing import Any
from urllib.parse import quote

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader import utils

from grader.classroom.course import Course
from grader.classroom.grades import Grades, read_grades
from grader.classroom.notebook_file import count
from grader.classroom.one_submission import read_graded
from grader.classroom.similarity import OFFICIAL, Pair, similar_answers
from grader.classroom.submission import NO_ANSWER, Lesson, grade_id, is_copy, modified, notebooks_beside
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Judgement, Verdict
from grader.pages import number, page, visible
from grader.pages.board import Row, board, board_name, how_far, made_up_name
from grader.pages.class_statistics import difficulty, discrimination, graded, hand_ins
from grader.pages.marks import MARKS, WAITS, Mark, judgement_of

FILE = "report.html"
KINDS = (PASSED, PART, WRONG, BLANK, STUCK, NOT_RUN)
WAITING = "waiting"
LOOKS = {**MARKS, WAITING: WAITS}
SHARES = {PASSED: "all points", PART: "some", WRONG: "none", WAITING: WAITS.words}
BINS = 10
MAX_PAIRS, MAX_EXERCISES = 30, 20  # similar answers shown
NUMBERS = re.compile(r"\[[^\[\]]*\]|(?<!\w)[-+]?\d[\d.,]*(?:e[-+]?\d+)?")  # [1 2 3], 4.5e-6
Segment = tuple[float, str, str]  # segment of a bar: share, CSS class of its colour, label


def write_report(course: Course, lessons: list[str]) -> Path:
    """Write report.html into the course's folder, and return its path."""
    path = course.root / FILE
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(report([read_class(course, lesson) for lesson in lessons]), encoding="utf-8")
    os.replace(unfinished, path)
    return path


@dataclass
class Class:
    """A lesson's grades, and the judgement of each submission."""

    grades: Grades
    judgements: dict[str, Judgement] = field(default_factory=dict)  # {student: judgement}, for autograded notebooks
    links: dict[str, dict[str, str]] = field(default_factory=dict)  # student -> {what: relative URL}
    names: dict[str, str] = field(default_factory=dict)  # student -> the name for the board, if there is one
    enrolled: int = 0
    answers: dict[str, dict[str, str]] = field(default_factory=dict)  # student -> exercise -> code
    similar: list[Pair] = field(default_factory=list)
    files: dict[str, list[Path]] = field(default_factory=dict)  # student -> the notebooks in their folder
    rubrics: dict[str, str] = field(default_factory=dict)  # answer for a person to grade -> what to look for
    folder: Path = Path()  # the course's


def read_class(course: Course, lesson: str) -> Class:
    grades = read_grades(course, lesson)
    found = Class(grades, folder=course.root)
    with course.gradebook() as gradebook:
        found.enrolled = len(gradebook.students)
        made_up = {one.student_id: made_up_name(one.id) for one in gradebook.assignment_submissions(lesson)}
        cells = Lesson(gradebook.find_notebook(lesson, lesson)).cells
        given = {name: official.given for name, official in cells.items() if official.is_answer}
    for student in grades.earned:
        notebook = course.folder("autograded", student, lesson) / f"{lesson}.ipynb"
        page_ = course.folder("feedback", student, lesson) / f"{lesson}.html"
        submitted = course.folder("submitted", student, lesson) / f"{lesson}.ipynb"
        found.files[student] = [
            *([submitted] if submitted.is_file() and not submitted.is_symlink() else []),
            *notebooks_beside(submitted),
        ]
        files = {"feedback": page_, "notebook": notebook}
        found.links[student] = {what: link(file, course.root) for what, file in files.items() if file.is_file()}
        try:
            nb = read_graded(notebook)
            found.judgements[student] = judgement_of(nb)
            found.names[student] = board_name(nb) or made_up.get(student, "")
            found.answers[student] = answers_in(nb)
        except Exception:  # `grades.problems` says why
            continue
    source, earlier = course.source(lesson), earlier_answers(course, lesson)
    official = answers_in(source)
    by_hand = [cell for cell in source.cells if utils.is_grade(cell) and utils.is_solution(cell)]
    found.rubrics = {grade_id(cell): plain(cell.source) for cell in by_hand}
    found.similar = similar_answers(found.answers, given, official, earlier)
    found.answers |= {OFFICIAL: official, **earlier}
    return found


def earlier_answers(course: Course, lesson: str) -> dict[str, dict[str, str]]:
    """The answers of earlier terms, by course and student, if c.Similarity.earlier names any. Raises ClassroomError."""
    found = {}
    for folder in course.config.get("Similarity", {}).get("earlier", []):
        other = Course.at(course.root / folder)
        for path in sorted(other.folder("autograded", "*", lesson).parent.parent.glob(f"*/{lesson}/{lesson}.ipynb")):
            with suppress(Exception):  # nbformat's errors for damaged files are not documented
                found[f"{other.root.name}: {path.parts[-3]}"] = answers_in(nbformat.read(path, as_version=4))
    return found


def answers_in(nb: NotebookNode) -> dict[str, str]:
    """The code of each answer."""
    return {grade_id(cell): cell.source for cell in nb.cells if utils.is_solution(cell) and cell.cell_type == "code"}


def plain(source: str) -> str:
    """An answer of the instructor's without the marks around it."""
    return "\n".join(line for line in source.split("\n") if not line.lstrip().startswith("### ")).strip()


def link(path: Path, root: Path) -> str:
    return quote(Path(os.path.relpath(path, root)).as_posix())


# ---- the page --------------------------------------------------------------------------------------------------------


def report(classes: list[Class]) -> str:
    return page(
        "report.html",
        lessons=[lesson_values(lesson) for lesson in classes],
        waiting=[row for lesson in classes for row in waiting_rows(lesson)],
        rubrics=[row for lesson in classes for row in rubric_rows(lesson)],
        marks=MARKS,
        waits=WAITS,
        kinds=KINDS,
    )


def waiting_rows(lesson: Class) -> list[dict[str, Any]]:
    """The students with answers that a person still has to grade, and which these are."""
    return [
        {"lesson": visible(lesson.grades.lesson, 80), "student": visible(student, 80), "links": lesson.links[student],
         "answers": [visible(name, 80) for name in sorted(names)]}
        for student, names in lesson.grades.waiting.items() if names
    ]  # fmt: skip


def rubric_rows(lesson: Class) -> list[tuple[str, str]]:
    """The answers that wait for a person, each once, and what to look for in them."""
    waiting = set().union(*lesson.grades.waiting.values())
    return [(visible(name, 80), visible(text)) for name, text in lesson.rubrics.items() if name in waiting]


def lesson_values(lesson: Class) -> dict[str, Any]:
    """The values of the template for one lesson."""
    grades = lesson.grades
    totals = {student: grades.total(student) for student in grades.earned}
    regular = {student: grades.regular(student) for student in grades.earned}
    most = sum(grades.points.values())
    facts = [(f"{len(totals)}", "handed in")]
    if lesson.enrolled > len(totals):
        facts[0] = (f"{len(totals)} of {lesson.enrolled}", "handed in")
    if regular:
        facts += [
            (number(median(regular.values())), f"median, of {number(most)} points"),
            (number(mean(regular.values())), "mean"),
            (f"{number(min(regular.values()))} to {number(max(regular.values()))}", "lowest to highest"),
        ]
    for of_student, words in (
        (grades.extra_credit, "with extra credit"),
        (grades.taken_off, "lost points by being late"),
    ):
        if some := [points for student in totals if (points := of_student(student))]:
            facts.append((f"{len(some)}", f"{words}, {number(mean(some))} in the mean"))
    flagged = flagged_submissions(lesson)
    facts.append((f"{len(flagged)}", "need attention"))
    rows = board_of(lesson)
    return {
        "name": visible(grades.lesson, 80),
        "facts": facts,
        "histogram": histogram(regular, most),
        "hand_ins": hand_ins(grades.handed_in.values(), grades.deadline),
        "untimed": len(totals) - len(grades.handed_in),
        "exercises": [exercise_row(lesson, name) for name in grades.exercises],
        "board": rows,
        "how_far": how_far(rows, len(totals)) if rows else "",
        "mistakes": common_mistakes(lesson),
        "flagged": flagged,
        "similar": similar_pairs(lesson),
        "students": student_rows(lesson, totals),
        "numbers": list(enumerate(map(visible, grades.exercises), 1)),
        "most": most,
    }


def board_of(lesson: Class) -> list[Row]:
    scores = [
        (lesson.names.get(student, ""), verdict.score)
        for student, judgement in lesson.judgements.items()
        for verdict in judgement.verdicts
        if verdict.score and verdict.kind == PASSED
    ]
    return board(scores)


def exercise_row(lesson: Class, name: str) -> dict[str, Any]:
    """An exercise's points across the class, and how each of its checks went."""
    grades = lesson.grades
    most = grades.worth(name)
    points = [grades.of_exercise(student, name) for student in graded(grades, name)]
    how_many = shares(points, most, len(grades.earned) - len(points))
    return {
        "name": visible(name, 80),
        "mean": mean(points) if points else 0.0,
        "most": most,
        "difficulty": two_digits(difficulty(grades, name)),
        "discrimination": two_digits(discrimination(grades, name)),
        "extra": grades.is_challenge(name),
        "bar": bar(how_many, SHARES),
        "counts": counts_text(how_many, SHARES),
        "checks": [check_row(lesson, name, check) for check in grades.exercises[name]],
    }


def check_row(lesson: Class, exercise: str, check: str) -> dict[str, Any]:
    waiting = {student for student, names in lesson.grades.waiting.items() if check in names}
    points = [earned[check] for student, earned in lesson.grades.earned.items() if student not in waiting]
    most = lesson.grades.points[check] or lesson.grades.extra.get(check, 0.0)
    name = check.removeprefix(exercise).strip("-") or check
    kinds, words = kinds_of(lesson, check), {kind: mark.words for kind, mark in MARKS.items()}
    if lesson.judgements and set(kinds) == {NOT_RUN}:  # no verdicts at all: a person grades these
        kinds, words = shares(points, most, len(waiting)), SHARES
    return {
        "name": visible(name, 80),
        "mean": mean(points) if points else 0.0,
        "most": most,
        "bar": bar(kinds, words),
        "counts": counts_text(kinds, words),
    }


def kinds_of(lesson: Class, check: str) -> Counter[str]:
    """How often each kind of verdict occurs. Submissions without a verdict on this check count as "not run"."""
    found = (next((v.kind for v in each.verdicts if v.check == check), NOT_RUN) for each in lesson.judgements.values())
    return Counter({NOT_RUN: len(lesson.grades.earned) - len(lesson.judgements)}) + Counter(found)


def shares(points: list[float], most: float, waiting: int = 0) -> Counter[str]:
    """How many submissions have all of the points, some of them, and none, and how many are not graded yet."""
    kinds = [PASSED if earned >= most else PART if earned > 0 else WRONG for earned in points]
    return Counter([*kinds, *[WAITING] * waiting])


def two_digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def bar(how_many: Counter[str], words: dict[str, str]) -> list[Segment]:
    whole = sum(how_many.values()) or 1
    return [(how_many[kind] / whole, LOOKS[kind].css, f"{words[kind]}: {how_many[kind]}") for kind in words]


def counts_text(how_many: Counter[str], words: dict[str, str]) -> str:
    return ", ".join(f"{how_many[kind]} {words[kind]}" for kind in words if how_many[kind])


# ---- totals ----------------------------------------------------------------------------------------------------------


def histogram(totals: dict[str, float], most: float) -> dict[str, Any]:
    """One column for each tenth of the points, with one square per student."""
    columns: list[list[str]] = [[] for _ in range(BINS)]
    for student, total in sorted(totals.items(), key=lambda item: item[1]):
        place = int(BINS * total / most) if most else 0
        columns[max(0, min(place, BINS - 1))].append(f"{visible(student, 80)}: {number(total)}")
    highest = max(map(len, columns), default=0)
    unit = min(16.0, 160 / max(highest, 1))
    return {
        "columns": columns,
        "unit": unit,
        "height": max(unit * highest, 16) + 34,
        "edges": [number(most * edge / BINS) for edge in range(BINS + 1)],
    }


# ---- mistakes --------------------------------------------------------------------------------------------------------


@dataclass
class Mistake:
    """A mistake that students share: in which exercise, what it was, who made it, and one of the checks' messages."""

    exercise: str
    what: str
    mark: Mark
    students: list[tuple[str, str]]  # and the link to the feedback
    checks: list[str]
    example: str


def common_mistakes(lesson: Class) -> list[Mistake]:
    """Failed checks grouped by exercise and mistake, the most frequent mistake first.

    An answer that isn't there is no mistake of each of its checks: it needs attention, where it is listed once.
    """
    exercise_of = {check: name for name, checks in lesson.grades.exercises.items() for check in checks}
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for student, judgement in lesson.judgements.items():
        missing = missing_answers(judgement)
        for verdict in judgement.verdicts:
            exercise = exercise_of.get(verdict.check)
            if verdict.kind not in (PASSED, NOT_RUN) and exercise and exercise not in missing:
                what = what_happened(verdict) if verdict.kind in (WRONG, PART) else MARKS[verdict.kind].words
                groups[exercise, what, verdict.kind].append((student, verdict))
    found = []
    for (exercise, what, kind), cases in groups.items():
        students = {student: lesson.links[student].get("feedback", "") for student, _ in cases}
        found.append(
            Mistake(
                visible(exercise, 80),
                visible(what, 300),
                MARKS[kind],
                [(visible(student, 80), where) for student, where in students.items()],
                [visible(check, 80) for check in dict.fromkeys(verdict.check for _, verdict in cases)],
                visible(next((verdict.said for _, verdict in cases if verdict.said), ""), 2000).strip("\n"),
            )
        )
    return sorted(found, key=lambda mistake: -len(mistake.students))


def missing_answers(judgement: Judgement) -> set[str]:
    """The exercises without an answer, as one of the submission's problems lists them."""
    lists = [line.removeprefix(NO_ANSWER) for line in judgement.problems if line.startswith(NO_ANSWER)]
    return {name for names in lists for name in names.partition(":")[0].split(", ")}


def what_happened(verdict: Verdict) -> str:
    """The mistake that was recognised, or else the result without its numbers, so that similar ones form one group."""
    if verdict.mistake.strip():
        return " ".join(verdict.mistake.split())
    lines = [line.strip() for line in verdict.said.splitlines() if line.strip()]
    seen = lines[1] if len(lines) > 1 else "".join(lines)  # the first line is the call
    return NUMBERS.sub("…", seen[:300]) or "no known mistake"


# ---- submissions that need attention ---------------------------------------------------------------------------------


def flagged_submissions(lesson: Class) -> list[dict[str, Any]]:
    """Submissions that a person should look at, each with the reasons."""
    found = []
    for student in lesson.grades.earned:
        judgement = lesson.judgements.get(student, Judgement(lesson.grades.lesson))
        reasons = [(visible(flag.what, 80), visible(flag.evidence, 3000)) for flag in judgement.flags]
        stuck = [verdict.check for verdict in judgement.verdicts if verdict.kind == STUCK]
        if stuck and not any("too long" in what or "stopped" in what for what, _ in reasons):
            reasons.append((f"stopped in {count(len(stuck), 'check')}", visible("\n".join(stuck))))
        problems = dict.fromkeys([*judgement.problems, *lesson.grades.problems.get(student, [])])
        if problems:
            first, *more = problems
            reasons.append((visible(first, 300), visible("\n".join(more), 3000)))
        if files := how_to_choose(lesson, student):
            reasons.append(
                ("several notebooks: to grade a different one, type its command and grade again", visible(files))
            )
        if reasons:
            found.append({"student": visible(student, 80), "links": lesson.links[student], "reasons": reasons})
    return found


def how_to_choose(lesson: Class, student: str) -> str:
    """If there are several notebooks: when each was changed, and what to type to have it graded. "" otherwise."""
    files = lesson.files.get(student, [])
    official = next((path.with_name(f"{lesson.grades.lesson}.ipynb") for path in files), Path())
    taken = {path.name for path in files}
    free = next(name for number in count_from(1) if (name := f"{official.stem}-{number}.ipynb") not in taken)
    lines = []
    for path in sorted(files, key=modified):
        place = os.path.relpath(path, lesson.folder)
        is_official = path == official or is_copy(path, official)
        copy = os.path.relpath(path.with_name(free), lesson.folder)
        command = ["touch", place] if is_official else ["cp", place, copy]
        when = datetime.fromtimestamp(modified(path), UTC)
        lines.append(f"{when:%Y-%m-%d %H:%M} UTC  {path.name}\n    {shlex.join(command)}")
    return "\n".join(lines) if len(lines) > 1 else ""


# ---- similar answers -------------------------------------------------------------------------------------------------


def similar_pairs(lesson: Class) -> dict[str, Any]:
    """Pairs of students with similar answers, each with both texts; the pairs with the most exercises first."""
    by_students: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in lesson.similar:
        by_students[pair.students].append(pair)
    ranked = sorted(by_students.items(), key=lambda item: -sum(pair.share for pair in item[1]))
    shown = [
        {
            "students": [(visible(student, 80), lesson.links.get(student, {})) for student in students],
            "exercises": [
                {
                    "name": visible(pair.exercise, 80),
                    "percent": round(100 * pair.share),
                    "of": "both answers together" if OFFICIAL in students else "the unusual part of the shorter answer",
                    "texts": [visible(lesson.answers[student][pair.exercise], 4000) for student in students],
                }
                for pair in pairs[:MAX_EXERCISES]
            ],
            "count": len(pairs),
        }
        for students, pairs in ranked[:MAX_PAIRS]
    ]
    return {"pairs": shown, "more": len(ranked) - len(shown)}


# ---- all students ----------------------------------------------------------------------------------------------------


def student_rows(lesson: Class, totals: dict[str, float]) -> list[dict[str, Any]]:
    """One row per student, best first: the points of each exercise, coloured, and links to more."""
    rows = []
    for student in sorted(totals, key=lambda name: (-totals[name], name)):
        cells = []
        for name in lesson.grades.exercises:
            earned, most = lesson.grades.of_exercise(student, name), lesson.grades.worth(name)
            colour = "full" if earned >= most else "some" if earned > 0 else "none"
            waits = lesson.grades.waits(student, name)
            cells.append((WAITS.sign if waits and not earned else number(earned), WAITS.css if waits else colour))
        rows.append(
            {
                "name": visible(student, 80),
                "links": lesson.links[student],
                "cells": cells,
                "late": lesson.grades.taken_off(student),
                "total": totals[student],
            }
        )
    return rows
