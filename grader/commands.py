"""The instructor's command line, `python -m grader`. The Makefile's verbs call it.

Each command imports what it needs: torch, or nbgrader and dask, would keep the others waiting for a second or two.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from grader.classroom.course import Course
    from grader.classroom.grade_class import GradeOptions

app = typer.Typer(
    help="Write and build lessons, grade a class, release the students' bundle.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Lessons = Annotated[list[str] | None, typer.Argument(help="names such as 01_collectives; without names, all lessons")]
CourseFolder = Annotated[Path, typer.Option("--course", help="the course's folder, which holds nbgrader_config.py")]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="how many submissions to judge at a time; by default one per core")
]
Students = Annotated[list[str] | None, typer.Option("--student", help="grade only this student; can be repeated")]
New = Annotated[bool, typer.Option("--new", help="only submissions that have no grade yet")]
Regrade = Annotated[bool, typer.Option("--regrade", help="judge again, even what was judged already")]
Audit = Annotated[
    bool, typer.Option("--audit", help="judge again, and flag answers whose ranks do something else when run alone")
]
RegradeExercise = Annotated[
    str | None, typer.Option("--exercise", help="judge only this exercise again, and keep the rest")
]
Extension = Annotated[
    list[str] | None,
    typer.Option("--extension", help="more time for a student, ada=2d or ada=36h; can be repeated; ada=0d ends it"),
]
Scheduler = Annotated[str | None, typer.Option(help="address of a Dask scheduler whose workers do the judging")]
WithoutSandbox = Annotated[bool, typer.Option("--without-sandbox", help="run submissions with all your rights")]
NewLesson = Annotated[str, typer.Argument(help="its name: a number and a topic, such as 06_compression")]
Lesson = Annotated[str, typer.Argument(help="its name, or its number: 05")]
Exercise = Annotated[str | None, typer.Argument(help="its name, or how it begins; without it, all exercises")]
Watch = Annotated[bool, typer.Option("--watch", help="judge again at each save of one of the lesson's files")]
OpenNotebook = Annotated[
    bool, typer.Option("--notebook", help="judge nothing; open the lesson as it is now in JupyterLab")
]
Notebook = Annotated[Path, typer.Argument(help="a student's notebook, or the solution")]


@app.command()
def build(
    lessons: Lessons = None,
    force: Annotated[bool, typer.Option(help="run all lessons again, even if they have not changed")] = False,
    check: Annotated[bool, typer.Option(help="build nothing; fail if a notebook differs from its source")] = False,
) -> None:
    """Build what is made from the lessons: notebooks, frozen cases, stored messages, README.md's table."""
    from grader.authoring import build as building

    raise typer.Exit(building.command(lessons or [], force=force, check=check))


@app.command()
def book(
    repository: Annotated[str, typer.Option(help="the course's address on the web, for links to its files")] = "",
    hub: Annotated[str, typer.Option(help="address of a JupyterHub with nbgitpuller, to open lessons there")] = "",
    students: Annotated[str, typer.Option(help="the repository for students that the hub copies: no answers")] = "",
    branch: Annotated[str, typer.Option(help="of both repositories")] = "main",
) -> None:
    """Build the site of all lessons, of docs/ and of the functions' docstrings in build/book. Executes nothing."""
    from grader.authoring.lesson import BuildError
    from grader.book import site

    try:
        options = site.Options(repository.rstrip("/"), hub.rstrip("/"), students.rstrip("/"), branch)
    except BuildError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(site.command(options))


@app.command()
def grade(
    lessons: Lessons = None,
    student: Students = None,
    new: New = False,
    regrade: Regrade = False,
    audit: Audit = False,
    exercise: RegradeExercise = None,
    extension: Extension = None,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    course: CourseFolder = Path(),
    without_sandbox: WithoutSandbox = False,
) -> None:
    """Grade all submissions that are new or have changed: table, grades.csv, feedback pages, a report.

    Judgements are cached: after Ctrl-C or a crash, the same command continues where it stopped.
    """
    from grader.classroom.long_runs import ends_in_a_sentence

    with ends_in_a_sentence():
        from grader.classroom.extensions import extension_of
        from grader.classroom.grade_class import GradeOptions, require_one_of

        require_one_of({"--new": new, "--regrade": regrade, "--audit": audit, "--exercise": bool(exercise)})
        more_time = dict(map(extension_of, extension or []))
        options = GradeOptions(tuple(student or ()), new, regrade or audit, exercise, more_time, jobs, scheduler)
        opened = open_course(course, without_sandbox)
        if audit:
            opened.config.Judge.audit = True
        grade_lessons(opened, lessons or [], options)


def grade_lessons(opened: Course, lessons: list[str], options: GradeOptions) -> None:
    from grader.classroom import grade_class, grades, grades_csv
    from grader.pages.report import write_report

    for name in lessons or opened.lessons():
        grade_class.collect(opened, name)
    names = grade_class.lessons_to_grade(opened, lessons or grade_class.handed_in(opened), options)
    graded = [grade_class.grade_class(opened, name, options) for name in names]
    for one in graded:
        print(f"\n{one.lesson}\n\n{grades.table(one)}")
    csv = opened.root / "grades.csv"
    grades_csv.write_csv(graded, csv)
    print(f"\ngrades:   {csv}")
    for name in names:
        print(f"feedback: {opened.folder('feedback', 'STUDENT', name) / name}.html")
    print(f"report:   {write_report(opened, names)}")


@app.command()
def report(lessons: Lessons = None, course: CourseFolder = Path()) -> None:
    """Write the instructor's page from the existing grades, without running anything."""
    from grader.classroom.grade_class import open_lessons
    from grader.pages.report import write_report

    print(write_report(*open_lessons(course, lessons)))


@app.command()
def table(lessons: Lessons = None, course: CourseFolder = Path()) -> None:
    """Print the table of the existing grades, without running anything."""
    from grader.classroom import grade_class, grades

    opened, names = grade_class.open_lessons(course, lessons)
    for name in names:
        print(f"\n{name}\n\n{grades.table(grades.read_grades(opened, name))}")


@app.command()
def export(
    lessons: Lessons = None,
    form: Annotated[Literal["csv", "canvas", "moodle"], typer.Option("--format", help="who is to read it")] = "csv",
    to: Annotated[
        Path | None, typer.Option(help="the file; by default grades-FORMAT.csv in the course's folder")
    ] = None,
    course: CourseFolder = Path(),
) -> None:
    """Write the existing grades to a file: each check's points, or each lesson's total for Canvas or Moodle."""
    from grader.classroom import grade_class, grades_csv
    from grader.classroom.grades import read_grades

    opened, names = grade_class.open_lessons(course, lessons)
    path = to or opened.root / f"grades-{form}.csv"
    all_grades = [read_grades(opened, name) for name in names]
    grades_csv.write_csv(all_grades, path, form)
    waiting = {student for one in all_grades for student, checks in one.waiting.items() if checks}
    if waiting:
        print(f"{len(waiting)} of the students have an answer that nobody has graded yet, so the file leaves a blank")
    print(path)


@app.command()
def roster(
    file: Annotated[Path, typer.Argument(help="a CSV file: a platform's list, or id,first_name,last_name,email")],
    course: CourseFolder = Path(),
) -> None:
    """Add a list of students to the gradebook, or update it: from Canvas, Moodle, or with nbgrader's columns."""
    from grader.classroom.course import Course
    from grader.classroom.roster import import_roster

    new, known = import_roster(Course.at(course), file)
    print(f"{known} students, {new} of them new")


@app.command()
def collect(
    lesson: Annotated[str, typer.Argument(help="its name, such as 01_collectives")],
    file: Annotated[Path, typer.Argument(help="the zip of all submissions that the platform gives you")],
    platform: Annotated[
        Literal["canvas", "moodle", "other"],
        typer.Option("--from", help="who made the zip; other: c.FileNameCollectorPlugin.named_regexp says how"),
    ],
    times: Annotated[
        bool, typer.Option("--times", help="the files' dates in the zip are when they were handed in")
    ] = False,
    course: CourseFolder = Path(),
) -> None:
    """Put a learning platform's zip of submissions into submitted/. The gradebook has to know the students: roster."""
    from grader.classroom import grade_class, lms

    opened, _ = grade_class.open_lessons(course, [lesson])
    print(lms.collect_zip(opened, lesson, file, platform, times))


@app.command(name="hand-back")
def hand_back(lessons: Lessons = None, course: CourseFolder = Path()) -> None:
    """Write each lesson's feedback to a zip for the platform, and release it to nbgrader's exchange if there is one."""
    from grader.classroom import grade_class, lms

    opened, names = grade_class.open_lessons(course, lessons)
    for name in names:
        print(lms.hand_back(opened, name))


@app.command()
def validate(notebook: Notebook, course: CourseFolder = Path(), without_sandbox: WithoutSandbox = False) -> None:
    """Judge a notebook's checks as grading will. Exits with 1 unless all pass (`nbgrader validate` exits with 0)."""
    from grader.classroom.long_runs import ends_in_a_sentence

    with ends_in_a_sentence("stopped: nothing was changed"):
        from grader.classroom.validate import validate as judge_one

        if not judge_one(notebook, open_course(course, without_sandbox)):
            raise typer.Exit(1)


@app.command(name="new-course")
def new_course(folder: Annotated[Path, typer.Argument(help="a folder that is new, or holds no course")]) -> None:
    """Make a course's folder: its configuration, a link to the lessons, a place for what students hand in."""
    from grader.classroom import new_course as making

    root = making.new_course(folder)
    print(f"{root} is a course. Next:")
    print(f"  put submissions into {root}/submitted/STUDENT/LESSON/LESSON.ipynb")
    print(f"  make COURSE={shlex.quote(str(root))} grade")


@app.command()
def new(
    lesson: NewLesson,
    exercises: Annotated[str, typer.Option(help="their names, with commas or spaces between: top-k,error-feedback")],
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,  # what follows a space
) -> None:
    """Write the three files of a new lesson, with exercises that work, for you to replace."""
    from grader.authoring import new as creating

    raise typer.Exit(creating.command(lesson, " ".join([exercises, *(more or [])]).replace(",", " ").split()))


@app.command(name="try")
def try_(lesson: Lesson, exercise: Exercise = None, watch: Watch = False, notebook: OpenNotebook = False) -> None:
    """Judge the solution, the blank, and all wrong and right answers; show what a student reads.

    Exits with 1 unless each gets what it should. What does not comes last, with what to do about it.
    With --watch, changes in utils/ and grader/ other than the lesson's own files need a restart.
    """
    from grader.authoring import try_out

    raise typer.Exit(try_out.command(lesson, exercise, watch, notebook))


@app.command()
def release(
    solutions: Annotated[
        bool, typer.Option("--solutions", help="for self-study, not for a class: with each answer, folded")
    ] = False,
) -> None:
    """Make the students' bundle, dist/distributed-training.zip; with --solutions, the one for self-study."""
    from grader.authoring import release as releasing

    raise typer.Exit(releasing.command(solutions=solutions))


def open_course(folder: Path, without_sandbox: bool) -> Course:
    from grader.classroom.course import Course

    course = Course.at(folder)
    if without_sandbox:
        course.config.Judge.sandbox = False  # they run with all rights of the person grading, who has asked for this
    return course


def main() -> None:
    try:
        app()
    except Exception as error:
        from grader.classroom.course import ClassroomError

        if not isinstance(error, ClassroomError):
            raise
        sys.exit(f"{error}")
