"""The list of students, from a CSV file: a learning platform's export, or one with nbgrader's own columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from grader.classroom.course import ClassroomError, Course

# The gradebook's fields, each with the columns that may hold it, the first that is there counts.
COLUMNS = {
    "id": ("sis login id", "username", "user name", "login", "student", "id", "email address", "email"),
    "first_name": ("first_name", "first name", "given name"),
    "last_name": ("last_name", "last name", "surname", "family name"),
    "email": ("email", "email address", "e-mail"),
    "lms_user_id": ("lms_user_id", "lms user id"),
}
CANVAS = "sis login id"  # its gradebook; there, "Student" is "Lovelace, Ada", and "ID" a number of its own
A_FOLDER = re.compile(r"\w[\w.@+-]*")  # a possible student's id: their folders have this name


def import_roster(course: Course, file: Path) -> tuple[int, int]:
    """Add the students in a CSV file to the gradebook, or update them. Returns how many are new, and how many in all.

    Raises ClassroomError, and changes nothing, if the file can't be read or an id can't be a folder's name.
    """
    students = list(read_roster(file))
    with course.gradebook() as gradebook:
        before = {student.id for student in gradebook.students}
        for student in students:
            gradebook.update_or_create_student(student.pop("id"), **student)
        return len({student.id for student in gradebook.students} - before), len(students)


def read_roster(file: Path) -> Iterator[dict[str, str]]:
    """The students as the gradebook's fields; what a file doesn't say is left out. Raises ClassroomError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ClassroomError(f"{file} can't be read: {error}") from None
    first = text.split("\n", 1)[0]
    rows = csv.DictReader(text.splitlines(), delimiter=max(",;\t", key=first.count))
    names = {name.strip().lower(): name for name in rows.fieldnames or () if name}
    found = {field: next((names[one] for one in some if one in names), "") for field, some in COLUMNS.items()}
    if not found["id"]:
        raise ClassroomError(f"{file} has no column for students' ids, such as id, Username or SIS Login ID: {first}")
    for row in rows:
        student = {field: (row[name] or "").strip() for field, name in found.items() if name}
        if CANVAS in names:
            last, _, given = (row[names["student"]] or "").partition(",")
            student |= {"last_name": last.strip(), "first_name": given.strip(), "lms_user_id": row[names["id"]] or ""}
            if last.strip() == "Points Possible":
                continue
        if not A_FOLDER.fullmatch(student["id"]):
            raise ClassroomError(f"{file}, line {rows.line_num}: {student['id']!r} can't be a student's id")
        yield student
