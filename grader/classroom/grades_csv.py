"""Grades as a CSV file: every check for a spreadsheet, or the totals in the form that Canvas or Moodle imports.

A student chooses the name of a folder, and perhaps the name in the gradebook. A spreadsheet takes a cell that begins
with one of STARTS for a formula, so such a text gets an apostrophe in front.
"""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from grader.classroom.grades import Grades, Person
from grader.classroom.notebook_file import printable

DIGITS = 4  # after the point
STARTS = ("=", "+", "-", "@")
Rows = Iterator[list[str]]


def write_csv(all_grades: list[Grades], path: Path, form: str = "csv") -> None:
    """Write the grades of these lessons. form: one of FORMS."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(FORMS[form](all_grades))


def spreadsheet(all_grades: list[Grades]) -> Rows:
    """A column per check (`lesson/check`); the points of a lesson, less its late penalty, add up to its total.

    A cell is empty where a person has not graded an answer yet.
    """
    header = ["student", "last name", "first name"]
    for grades in all_grades:
        columns = [*grades.points, "days late", "late penalty", "total"]
        header += [f"{grades.lesson}/{column}" for column in columns]
    yield [*header, "total"]
    for student in students_of(all_grades):
        person, overall = person_of(student, all_grades), 0.0
        row = [harmless(student), harmless(person.last_name), harmless(person.first_name)]
        for grades in all_grades:
            earned = grades.earned.get(student)
            exact = earned or dict.fromkeys(grades.points, 0.0)
            points = {check: round(value, DIGITS) for check, value in exact.items()}
            penalty = round(grades.taken_off(student), DIGITS) if earned else 0.0
            waiting, total = grades.waiting.get(student, set()), sum(points.values()) - penalty
            row += ["" if check in waiting else number(value) for check, value in points.items()]
            row += [number(grades.days_late.get(student, 0.0)), number(penalty), number(total)]
            overall += total
        yield [*row, number(overall)]


def canvas(all_grades: list[Grades]) -> Rows:
    """Canvas's gradebook: its own columns, then one per lesson; the second row has the points that are possible."""
    yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *(grades.lesson for grades in all_grades)]
    yield ["    Points Possible", "", "", "", "", *(number(sum(grades.points.values())) for grades in all_grades)]
    for student in students_of(all_grades):
        person = person_of(student, all_grades)
        name = ", ".join(filter(None, [person.last_name, person.first_name])) or student
        about = [name, person.lms_user_id, "", student, ""]
        yield [*map(harmless, about), *final_totals(student, all_grades)]


def moodle(all_grades: list[Grades]) -> Rows:
    """Moodle's CSV import: columns to recognise a student by, then one per lesson."""
    yield ["Username", "First name", "Last name", "Email address", *(grades.lesson for grades in all_grades)]
    for student in students_of(all_grades):
        person = person_of(student, all_grades)
        about = [student, person.first_name, person.last_name, person.email]
        yield [*map(harmless, about), *final_totals(student, all_grades)]


FORMS: dict[str, Callable[[list[Grades]], Rows]] = {"csv": spreadsheet, "canvas": canvas, "moodle": moodle}


def final_totals(student: str, all_grades: list[Grades]) -> list[str]:
    """A lesson's total, or "" if nothing was handed in or a person still has to grade: imports leave that as it is."""
    return [
        number(grades.total(student)) if student in grades.earned and not grades.waiting.get(student) else ""
        for grades in all_grades
    ]


def students_of(all_grades: list[Grades]) -> list[str]:
    return sorted({student for grades in all_grades for student in grades.earned})


def person_of(student: str, all_grades: list[Grades]) -> Person:
    return next((grades.people[student] for grades in all_grades if student in grades.people), Person())


def number(value: float) -> str:
    """Points in full, not as 1e+06, and without zeros at the end."""
    return f"{round(value, DIGITS) + 0.0:.{DIGITS}f}".rstrip("0").rstrip(".")  # + 0.0 makes 0 of -0


def harmless(text: str) -> str:
    """The text as something that no spreadsheet calculates, whichever separator it splits the file at."""
    text = printable(text).replace(";", ",")
    first = unicodedata.normalize("NFKC", text.lstrip())[:1]  # a full-width = counts, too
    return f"'{text}" if first in STARTS else text
