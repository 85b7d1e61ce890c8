"""The grades of a class, read from the gradebook: by exercise, as a table for the terminal, and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbgrader.api import MissingEntry

from grader.classroom.course import Course
from grader.classroom.one_submission import OneSubmission
from grader.classroom.submission import problems
from grader.judging.check_cells import extra_credit


@dataclass
class Grades:
    """What a class has earned in one lesson, with the corrections that a person made."""

    lesson: str
    exercises: dict[str, list[str]]  # exercise -> its checks
    points: dict[str, float]  # check -> its maximum; 0 for a challenge, whose points are extra credit
    earned: dict[str, dict[str, float]]  # student -> check -> points
    penalty: dict[str, float] = field(default_factory=dict)  # student -> points taken off for being late
    problems: dict[str, list[str]] = field(default_factory=dict)  # student -> what went wrong, one line each
    extra: dict[str, float] = field(default_factory=dict)  # check of a challenge -> the extra credit that it can give

    def total(self, student: str) -> float:
        return max(0.0, sum(self.earned[student].values()) - self.penalty.get(student, 0.0))

    def worth(self, exercise: str) -> float:
        """The most points that it can give, extra credit included."""
        return sum(self.points[check] + self.extra.get(check, 0.0) for check in self.exercises[exercise])

    def is_challenge(self, exercise: str) -> bool:
        return any(check in self.extra for check in self.exercises[exercise])

    def of_exercise(self, student: str, exercise: str) -> float:
        return sum(self.earned[student][check] for check in self.exercises[exercise])


def read_grades(course: Course, lesson: str) -> Grades:
    """Read a lesson's grades from the gradebook. Submissions that could not be graded get 0."""
    with course.gradebook() as gradebook:
        notebook = gradebook.find_notebook(lesson, lesson)
        points = {cell.name: cell.max_score for cell in notebook.grade_cells}
        exercises = by_exercise([cell.name for cell in notebook.solution_cells], points)
        offered = {cell.name: extra_credit(cell.source) for cell in notebook.source_cells if cell.name in points}
        extra = {check: credit for check, credit in offered.items() if credit}
        grades = Grades(lesson, exercises, points, earned={}, extra=extra)
        for student in course.students(lesson):
            grades.earned[student] = dict.fromkeys(points, 0.0)
            grades.problems[student] = find_problems(course, lesson, student)
            try:
                submission = gradebook.find_submission_notebook(lesson, lesson, student)
            except MissingEntry:
                continue
            grades.earned[student].update((grade.name, grade.score) for grade in submission.grades)
            grades.penalty[student] = submission.late_submission_penalty or 0.0
    return grades


def by_exercise(exercises: Iterable[str], checks: Iterable[str]) -> dict[str, list[str]]:
    """The checks of each exercise: `ring-all-reduce-values` belongs to `ring-all-reduce`, not to `ring`."""
    found: dict[str, list[str]] = {}
    exercises = list(exercises)
    for check in checks:
        names = [name for name in exercises if check == name or check.startswith(f"{name}-")]
        found.setdefault(max(names, key=len, default=check), []).append(check)
    return found


def find_problems(course: Course, lesson: str, student: str) -> list[str]:
    """What went wrong with one submission, one line each."""
    one = OneSubmission(course, lesson, student)
    if not one.holds_a_notebook:
        others = sorted(path.name for path in one.handed_in.parent.iterdir() if path.name != "timestamp.txt")
        return [f"no {lesson}.ipynb was handed in, only: {', '.join(others) or 'nothing'}"]
    if not one.autograded.is_file():
        return [f"could not be graded: see {course.log_file(lesson, student)}"]
    try:
        return problems(nbformat.read(one.autograded, as_version=4))
    except Exception as error:  # what nbformat raises for damaged files is not documented
        return [f"the graded notebook can't be read ({type(error).__name__}): grade it again"]


def write_csv(all_grades: list[Grades], path: Path) -> None:
    """Write one row per student, with a column per check (`lesson/check`), a total per lesson and an overall total."""
    students = sorted({student for grades in all_grades for student in grades.earned})
    with path.open("w", newline="", encoding="utf-8") as file:
        names = [[*(f"{one.lesson}/{check}" for check in one.points), f"{one.lesson}/total"] for one in all_grades]
        writer = csv.writer(file)
        writer.writerow(["student", *(name for lesson in names for name in lesson), "total"])
        for student in students:
            row: list[float] = []
            for grades in all_grades:
                earned = grades.earned.get(student)
                row += [*earned.values(), grades.total(student)] if earned else [0.0] * (len(grades.points) + 1)
            total = sum(grades.total(student) for grades in all_grades if student in grades.earned)
            writer.writerow([student, *(f"{points:g}" for points in row), f"{total:g}"])


def table(grades: Grades, width: int = 100) -> str:
    """A row per student and a numbered column per exercise, their names below; in parts no wider than `width`."""
    names = list(grades.exercises)
    maximum = {name: grades.worth(name) for name in names}
    in_all = sum(grades.points.values())
    rows = {student: [grades.of_exercise(student, name) for name in names] for student in grades.earned}
    first = max(map(len, ["student", *rows])) + 1
    cells = [f"{points:g}" for row in [*rows.values(), list(maximum.values())] for points in row]
    wide = max(map(len, [*cells, f"{len(names)}"])) + 2
    at_once = max(1, (width - first - 9) // wide)
    lines = []
    for start in range(0, len(names), at_once):
        part = range(start, min(start + at_once, len(names)))
        last = part.stop == len(names)
        line = f"{'student':{first}}" + "".join(f"{number + 1:>{wide}}" for number in part)
        lines += [line + ("    total" if last else ""), "-" * (len(line) + 9 * last)]
        for student, row in [*rows.items(), ("of", list(maximum.values()))]:
            total = in_all if student == "of" else grades.total(student)
            line = f"{student:{first}}" + "".join(f"{row[number]:>{wide}g}" for number in part)
            lines.append(line + (f"{total:>9g}" if last else ""))
        lines.append("")
    titles = [name + " (extra credit, not in the total's maximum)" * grades.is_challenge(name) for name in names]
    return "\n".join([*lines, *(f"{number:>3}  {title}" for number, title in enumerate(titles, 1))])


def printable(text: str) -> str:
    """The text without control characters: a file name chosen by a student could hold some."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
