"""What an instructor does from the command line: `python -m grader`; the Makefile's verbs call it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from grader.authoring import build as building
from grader.authoring import release as releasing
from grader.classroom import grade_class, grades
from grader.classroom.course import ClassroomError, Course
from grader.classroom.grade_class import GradeOptions
from grader.classroom.validate import validate as judge_one
from grader.pages.report import write_report

app = typer.Typer(
    help="Build lessons, grade a class, release the students' bundle.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Lessons = Annotated[list[str] | None, typer.Argument(help="names such as 01_collectives; all without names")]
CourseFolder = Annotated[Path, typer.Option("--course", help="the course's folder, with its nbgrader_config.py")]
Jobs = Annotated[int | None, typer.Option(min=1, help="submissions judged at a time; as many as there are cores")]
Students = Annotated[list[str] | None, typer.Option("--student", help="only this one; may be said more than once")]
New = Annotated[bool, typer.Option("--new", help="only what has no grade yet")]
Regrade = Annotated[bool, typer.Option("--regrade", help="judge again what was judged already")]
Scheduler = Annotated[str | None, typer.Option(help="address of a Dask scheduler, whose workers judge instead of us")]
WithoutSandbox = Annotated[bool, typer.Option("--without-sandbox", help="submissions get all rights that you have")]
Notebook = Annotated[Path, typer.Argument(help="a notebook, a student's or the solution")]


@app.command()
def build(
    lessons: Lessons = None,
    force: Annotated[bool, typer.Option(help="run lessons again that have not changed")] = False,
    check: Annotated[bool, typer.Option(help="build nothing, fail when a notebook differs from its source")] = False,
) -> None:
    """Make both notebooks of each lesson from solutions/*.py."""
    raise typer.Exit(building.command(lessons or [], force=force, check=check))


@app.command()
def grade(
    lessons: Lessons = None,
    student: Students = None,
    new: New = False,
    regrade: Regrade = False,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    course: CourseFolder = Path(),
    without_sandbox: WithoutSandbox = False,
) -> None:
    """Grade what was handed in and is new or has changed: table, grades.csv, feedback pages, a report.

    What was judged is kept: after Ctrl-C, or a crash, the same command goes on where it stopped.
    """
    if new and regrade:
        raise ClassroomError("--new and --regrade contradict each other: say one of them")
    opened = open_course(course, without_sandbox)
    for name in lessons or opened.lessons():
        grade_class.collect(opened, name)
    names = of_students(opened, lessons or handed_in(opened), student or [])
    options = GradeOptions(tuple(student or ()), new, regrade, jobs, scheduler)
    graded = [grade_class.grade_class(opened, name, options) for name in names]
    for one in graded:
        print(f"\n{one.lesson}\n\n{grades.table(one)}")
    csv = opened.root / "grades.csv"
    grades.write_csv(graded, csv)
    print(f"\ngrades:   {csv}")
    for name in names:
        print(f"feedback: {opened.folder('feedback', 'STUDENT', name) / name}.html")
    print(f"report:   {write_report(opened, names)}")


@app.command()
def report(lessons: Lessons = None, course: CourseFolder = Path()) -> None:
    """Write the instructor's page about what is graded already; nothing is run."""
    opened = Course.at(course)
    names = lessons or handed_in(opened)
    for name in names:
        grade_class.find_lesson(opened, name)
    print(write_report(opened, names))


@app.command()
def table(lessons: Lessons = None, course: CourseFolder = Path()) -> None:
    """Print the table of what is graded already; nothing is run."""
    opened = Course.at(course)
    for name in lessons or handed_in(opened):
        grade_class.find_lesson(opened, name)
        print(f"\n{name}\n\n{grades.table(grades.read_grades(opened, name))}")


@app.command()
def validate(notebook: Notebook, course: CourseFolder = Path(), without_sandbox: WithoutSandbox = False) -> None:
    """Judge a notebook's checks as grading will; exits with 1 unless all pass (`nbgrader validate` exits with 0)."""
    if not judge_one(notebook, open_course(course, without_sandbox)):
        raise typer.Exit(1)


@app.command()
def release() -> None:
    """Make the students' bundle, dist/distributed-training.zip."""
    raise typer.Exit(releasing.command())


def open_course(folder: Path, without_sandbox: bool) -> Course:
    course = Course.at(folder)
    if without_sandbox:
        course.without_sandbox()
    return course


def handed_in(course: Course) -> list[str]:
    """The lessons of which somebody has handed in something."""
    names = [name for name in course.lessons() if course.students(name)]
    if not names:
        expected = course.folder("submitted", "STUDENT", "LESSON") / "LESSON.ipynb"
        raise ClassroomError(f"nobody has handed in anything: submissions are expected as {expected}")
    return names


def of_students(course: Course, lessons: list[str], students: list[str]) -> list[str]:
    """Of the lessons, those that one of the students has handed in; all, when none are named."""
    for student in students:
        if not any(student in course.students(lesson) for lesson in lessons):
            raise ClassroomError(f"{student} has not handed in {' or '.join(lessons)}")
    return [name for name in lessons if not students or set(students) & set(course.students(name))]


def main() -> None:
    try:
        app()
    except ClassroomError as error:
        sys.exit(f"{error}")
