"""The grades of a class, read from the gradebook: by exercise, and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from nbgrader.api import Gradebook, MissingEntry

from grader.classroom.course import Course
from grader.classroom.gradebook import waits_for_a_person
from grader.classroom.notebook_file import LINKED, is_link, names_in, printable
from grader.classroom.one_submission import OneSubmission, read_graded
from grader.classroom.submission import problems
from grader.judging.check_cells import extra_credit

DAY = 24 * 3600  # seconds
MAX_NAME, MAX_NAMES = 40, 500  # characters of a student's name in the table, of the names of files


@dataclass(frozen=True)
class Person:
    """What the gradebook knows of a student, "" where it knows nothing."""

    first_name: str = ""
    last_name: str = ""
    email: str = ""
    lms_user_id: str = ""


@dataclass
class Grades:
    """What a class has earned in one lesson, with the corrections that a person made."""

    lesson: str
    exercises: dict[str, list[str]]  # exercise -> its checks
    points: dict[str, float]  # check -> its maximum; 0 for a challenge, whose points are extra credit
    earned: dict[str, dict[str, float]]  # student -> check -> points
    penalty: dict[str, float] = field(default_factory=dict)  # student -> points to take off for being late
    problems: dict[str, list[str]] = field(default_factory=dict)  # student -> what went wrong, one line each
    waiting: dict[str, set[str]] = field(default_factory=dict)  # student -> what a person still has to grade
    handed_in: dict[str, datetime] = field(default_factory=dict)  # student -> when (UTC), if that is known
    days_late: dict[str, float] = field(default_factory=dict)  # student -> days after the deadline, if any
    people: dict[str, Person] = field(default_factory=dict)  # student -> who that is
    deadline: datetime | None = None  # UTC
    extra: dict[str, float] = field(default_factory=dict)  # check of a challenge -> the extra credit that it can give

    def total(self, student: str) -> float:
        return sum(self.earned[student].values()) - self.taken_off(student)

    def taken_off(self, student: str) -> float:
        """The points that being late costs; never more than were earned."""
        return min(self.penalty.get(student, 0.0), max(0.0, sum(self.earned[student].values())))

    def regular(self, student: str) -> float:
        """What the lesson's own points earned, without extra credit and before any penalty: for statistics."""
        return sum(points for check, points in self.earned[student].items() if check not in self.extra)

    def extra_credit(self, student: str) -> float:
        return sum(points for check, points in self.earned[student].items() if check in self.extra)

    def worth(self, exercise: str) -> float:
        """The most points that it can give, extra credit included."""
        return sum(self.points[check] + self.extra.get(check, 0.0) for check in self.exercises[exercise])

    def is_challenge(self, exercise: str) -> bool:
        return any(check in self.extra for check in self.exercises[exercise])

    def of_exercise(self, student: str, exercise: str) -> float:
        return sum(self.earned[student][check] for check in self.exercises[exercise])

    def waits(self, student: str, exercise: str) -> bool:
        """Whether a person still has to grade something of this exercise."""
        return bool(self.waiting.get(student, set()) & set(self.exercises[exercise]))


def read_grades(course: Course, lesson: str) -> Grades:
    """Read a lesson's grades from the gradebook. Submissions that could not be graded get 0."""
    with course.gradebook() as gradebook:
        notebook = gradebook.find_notebook(lesson, lesson)
        points = {cell.name: cell.max_score for cell in [*notebook.grade_cells, *notebook.task_cells]}
        exercises = by_exercise([cell.name for cell in notebook.solution_cells], points)
        offered = {cell.name: extra_credit(cell.source) for cell in notebook.source_cells if cell.name in points}
        extra = {check: credit for check, credit in offered.items() if credit}
        grades = Grades(lesson, exercises, points, earned={}, extra=extra, deadline=notebook.assignment.duedate)
        for student in course.students(lesson):
            grades.earned[student] = dict.fromkeys(points, 0.0)
            grades.problems[student] = find_problems(course, lesson, student)
            read_submission(gradebook, grades, student)
    return grades


def read_submission(gradebook: Gradebook, grades: Grades, student: str) -> None:
    """Add what the gradebook holds of one student's submission, if it holds any."""
    try:
        notebook = gradebook.find_submission_notebook(grades.lesson, grades.lesson, student)
    except MissingEntry:
        return
    grades.earned[student].update((grade.name, grade.score) for grade in notebook.grades)
    grades.waiting[student] = {grade.name for grade in notebook.grades if waits_for_a_person(grade)}
    grades.penalty[student] = notebook.late_submission_penalty or 0.0
    submission = notebook.assignment
    grades.days_late[student] = submission.total_seconds_late / DAY
    if submission.timestamp:
        grades.handed_in[student] = submission.timestamp
    who = submission.student
    grades.people[student] = Person(who.first_name or "", who.last_name or "", who.email or "", who.lms_user_id or "")


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
    submission = OneSubmission(course, lesson, student)
    if is_link(submission.handed_in.parent):
        return [LINKED]
    if not submission.holds_a_notebook:
        others = [name for name in names_in(submission.handed_in.parent) if name != "timestamp.txt"]
        return [f"no {lesson}.ipynb was handed in, only: {shortened(', '.join(others), MAX_NAMES) or 'nothing'}"]
    if not submission.autograded.is_file():
        return [f"could not be graded: see {course.log_file(lesson, student)}"]
    try:
        return problems(read_graded(submission.autograded))
    except Exception as error:  # nbformat's errors for damaged files are not documented
        return [f"the graded notebook can't be read ({type(error).__name__}): grade it again"]


def table(grades: Grades, width: int = 100) -> str:
    """A row per student and a numbered column per exercise, their names below; in parts no wider than `width`."""
    names = list(grades.exercises)
    titles = [name + " (extra credit, not in the total's maximum)" * grades.is_challenge(name) for name in names]
    rows = {student: [cell(grades, student, name) for name in names] for student in grades.earned}
    rows["of"] = [f"{grades.worth(name):g}" for name in names]
    if any(map(grades.taken_off, grades.earned)):
        titles.append("taken off for handing in late")
        taken = {student: f"{0 - grades.taken_off(student):g}" for student in grades.earned}
        rows = {student: [*row, taken.get(student, "")] for student, row in rows.items()}
    totals = {student: f"{grades.total(student):g}" for student in grades.earned}
    totals["of"] = f"{sum(grades.points.values()):g}"
    shown = {student: shortened(printable(student), MAX_NAME) for student in rows}
    first = max(map(len, ["student", *shown.values()])) + 1
    wide = max(map(len, [*(text for row in rows.values() for text in row), f"{len(titles)}"])) + 2
    at_once = max(1, (width - first - 9) // wide)
    lines = []
    for start in range(0, len(titles), at_once):
        part = range(start, min(start + at_once, len(titles)))
        last = part.stop == len(titles)
        line = f"{'student':{first}}" + "".join(f"{number + 1:>{wide}}" for number in part)
        lines += [line + ("    total" if last else ""), "-" * (len(line) + 9 * last)]
        for student, row in rows.items():
            line = f"{shown[student]:{first}}" + "".join(f"{row[number]:>{wide}}" for number in part)
            lines.append(line + (f"{totals[student]:>9}" if last else ""))
        lines.append("")
    lines += [f"{number:>3}  {title}" for number, title in enumerate(titles, 1)]
    waiting = sum(map(len, grades.waiting.values()))
    return "\n".join([*lines, *([f"  ?  not graded yet: a person has to ({waiting} answers)"] if waiting else [])])


def cell(grades: Grades, student: str, exercise: str) -> str:
    """The points of an exercise; with a question mark if a person still has to grade some of it."""
    points = f"{grades.of_exercise(student, exercise):g}"
    return points if not grades.waits(student, exercise) else "?" if points == "0" else f"{points}?"


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
