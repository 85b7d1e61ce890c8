"""Deadlines from the configuration, and more time for single students, as `--extension ada=2d` grants it.

nbgrader's gradebook keeps both.
"""

from __future__ import annotations

import re
from datetime import timedelta

from grader.classroom.course import ClassroomError, Course
from grader.classroom.late_days import read_deadline
from grader.classroom.nbgrader_plugins import SaveGrades

UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
LONGEST = timedelta(days=366)


def extension_of(text: str) -> tuple[str, timedelta]:
    """Who gets how much more time: `ada=2d`, `ada=36h`, `ada=1w`, `ada=0d` for none. Raises ClassroomError."""
    found = re.fullmatch(r"(.+)=(\d{1,4})([hdw])", text)
    if not found:
        raise ClassroomError(f"--extension {text}: expected a student and a time in hours, days or weeks, as in ada=2d")
    time = int(found[2]) * UNITS[found[3]]
    if time > LONGEST:
        raise ClassroomError(f"--extension {text}: that is more than a year")
    return found[1], time


def set_deadline(course: Course, lesson: str) -> None:
    """Write the deadline that the configuration sets, if it does, to the gradebook. Raises ClassroomError."""
    deadlines = SaveGrades(config=course.config).deadlines
    if unknown := sorted(set(deadlines) - set(course.lessons())):
        raise ClassroomError(f"c.SaveGrades.deadlines names lessons that the course doesn't have: {unknown}")
    if lesson not in deadlines:
        return
    try:
        with course.gradebook() as gradebook:
            gradebook.update_or_create_assignment(lesson, duedate=read_deadline(deadlines[lesson]))
    except ValueError as error:
        raise ClassroomError(f"c.SaveGrades.deadlines, {lesson}: {error}") from error


def grant(course: Course, lesson: str, extensions: dict[str, timedelta]) -> None:
    """Write extensions to the gradebook, in place of earlier ones. Raises ClassroomError if there is no deadline."""
    with course.gradebook() as gradebook:
        if extensions and gradebook.find_assignment(lesson).duedate is None:
            raise ClassroomError(
                f"{lesson} has no deadline to extend: set c.SaveGrades.deadlines in nbgrader_config.py, "
                "or one in formgrader, under Manage Assignments, Edit"
            )
        for student, time in extensions.items():
            gradebook.update_or_create_student(student)
            gradebook.update_or_create_submission(lesson, student)
            gradebook.grant_extension(lesson, student, hours=time / UNITS["h"])
