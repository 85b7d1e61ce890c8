"""A class whose grades are known: `python -m tests.sample_class` makes it, `make grade` and test_grading.py grade it.

It is a course of its own in build/sample-class/, so that a teacher's submissions and gradebook are never touched. Its
students take the real road: the lesson is released to an exchange, each fetches it, edits it and submits it.
Who is what, and what each has to get, is in roster.json.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import nbformat
import typer
from nbgrader.auth import Authenticator
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeFetchAssignment, ExchangeReleaseAssignment, ExchangeSubmit
from traitlets.config import Config

from grader.authoring.build import bytes_of, notebook_of, write
from grader.authoring.lesson import BuildError, Lesson, find_lessons, read_lesson
from grader.classroom.course import ClassroomError, Course
from tests.all_lessons import mutants_of

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "build" / "sample-class"
LESSON = "01_collectives"
# What the mutant students hand in: a wrong answer, and which of its exercise's checks must fail.
MUTANT_STUDENTS: list[dict[str, str]] = [
    {
        "broadcast-by-hand/forgets-to-receive": "values",
        "scatter-by-hand/wrong-dtype": "values",
        "gather-by-hand/sends-to-rank-0": "values",
        "reduce-by-hand/averages": "values",
        "grid-sums/sums-over-all-first": "traffic",
        "all-reduce-from-halves/averages": "values",
        "distributed-transpose/gathers-everything": "traffic",
        "dual-of/one-way-only": "values",
        "global-statistics/mean-of-means": "values",
        "launch-then-wait/waits-at-once": "traffic time",
        "agree-or-explain/only-the-odd-one-raises": "values",
        "uneven-all-gather/keeps-the-padding": "score",
    },
    {
        "broadcast-by-hand/four-ranks": "values",
        "scatter-by-hand/off-by-one": "values",
        "gather-by-hand/returns-a-list": "values",
        "reduce-by-hand/counts-to-four": "values",
        "grid-sums/forgets-the-group": "values",
        "launch-then-wait/three-tensors": "values",
        "all-reduce-any-view/flattens-wrong": "values",
        "agree-or-explain/never-asks": "values",
    },
]
ROSTER = "roster.json"
CONFIG = '''"""The sample class: the course's own configuration, with an exchange in this folder."""

load_subconfig("nbgrader_config.py", path={project!r})  # noqa: F821
c = get_config()  # noqa: F821
c.Exchange.root = {exchange!r}
c.ExchangeCollect.check_owner = False  # one person plays all the students
'''
NOISE = '''
import functools, logging, subprocess, sys, warnings

def noisily(function):
    """Correct answers, from a student whose machine warns about everything."""
    @functools.wraps(function)
    def noisy(*args, **kwargs):
        warnings.warn("a warning")
        logging.warning("a line of a log")
        print("a line on stderr", file=sys.stderr)
        print("a line on stdout")
        return function(*args, **kwargs)
    return noisy

subprocess.run([sys.executable, "-c", "import os; os.write(2, b'a child process complains')"])
print("and so does the kernel", file=sys.stderr)
'''


@dataclass(frozen=True)
class Student:
    """A member of the class: what they hand in, and the points that each check must give them."""

    name: str
    who: str
    points: dict[str, float]
    work: dict[str, str] | bytes  # exercise -> the text of its cell; or a file that is handed in as it is


def students_of(lesson: Lesson) -> list[Student]:
    """The class: the solution, a blank notebook, a noisy correct one, mutants, a file that is not a notebook."""
    solution = {name: as_student(exercise.source) for name, exercise in lesson.exercises.items()}
    full = {check.id: check.points for check in lesson.checks}
    nothing = dict.fromkeys(full, 0)
    noisy = {name: f"{source}\n{NOISE}\n{call('noisily', name)}" for name, source in solution.items()}
    class_ = [
        ("the solution", full, solution),
        ("nothing written", nothing, {}),
        ("right, with warnings and lines on stderr", full, noisy),
    ]
    kept = {str(mutant): mutant for mutant in mutants_of(lesson.name)}
    for hand in MUTANT_STUDENTS:
        answers, points = dict(solution), dict(full)
        for name, checks in hand.items():
            mutant = kept[name]
            answers[mutant.exercise] = as_student(mutant.apply(lesson.exercises[mutant.exercise].source))
            lost = [f"{mutant.exercise}-{judges}" for judges in checks.split()]
            if "values" in checks:  # the others wait for them
                lost = [check.id for check in lesson.checks if check.exercise == mutant.exercise]
            points.update(dict.fromkeys(lost, 0))
        class_.append((", ".join(hand), points, answers))
    class_.append(("a PDF with the name of the notebook", nothing, b"%PDF-1.7\n%\xe2\xe3\xcf\xd3"))
    return [Student(f"student-{number:02}", *one) for number, one in enumerate(class_, 1)]


def as_student(source: str) -> str:
    """An answer without the marks around it."""
    return "\n".join(line for line in source.split("\n") if "### BEGIN" not in line and "### END" not in line)


def call(wrapper: str, exercise: str) -> str:
    name = exercise.replace("-", "_")
    return f"{name} = {wrapper}({name})"


# ---- the exchange ----------------------------------------------------------------------------------------------------


def make_class(folder: Path = FOLDER, name: str = LESSON, only: Collection[str] = ()) -> list[Student]:
    """Make a new class, of all students or of those called `only`. Their submissions wait in the exchange."""
    lesson = read_lesson(find_lessons([name])[0])
    empty(folder)
    write(folder / "solutions" / name / f"{name}.ipynb", bytes_of(notebook_of(lesson)))
    exchange = folder / "exchange"
    exchange.mkdir(mode=0o777)
    exchange.chmod(0o777)
    (folder / "nbgrader_config.py").write_text(CONFIG.format(project=str(PROJECT), exchange=str(exchange)))
    course = Course.at(folder)
    course.must(GenerateAssignment, name)
    students = [student for student in students_of(lesson) if not only or student.name in only]
    roster = {student.name: {"who": student.who, "points": student.points} for student in students}
    (folder / ROSTER).write_text(json.dumps(roster, indent=2) + "\n")
    travel(ExchangeReleaseAssignment, course, folder, name)
    for student in students:
        hand_in(student, course, name)
    return students


def empty(folder: Path) -> None:
    """Remove a class made earlier, but never any other folder."""
    if folder.exists() and any(folder.iterdir()) and not (folder / ROSTER).exists():
        raise ClassroomError(f"{folder} is not empty and holds no sample class: name an empty folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def hand_in(student: Student, course: Course, lesson: str) -> None:
    """Do what a student does: fetch, edit and submit, in a folder of their own."""
    home = course.root / "students" / student.name
    home.mkdir(parents=True)
    travel(ExchangeFetchAssignment, course, home, lesson, student.name)
    path = home / lesson / f"{lesson}.ipynb"
    path.write_bytes(student.work if isinstance(student.work, bytes) else edited(path, student.work))
    travel(ExchangeSubmit, course, home, lesson, student.name)


def edited(path: Path, answers: dict[str, str]) -> bytes:
    """The notebook at `path` with answers in their cells."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = answers.get(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
    return nbformat.writes(notebook).encode()


def travel(step: Callable, course: Course, folder: Path, lesson: str, student: str = "*") -> None:
    """Run a step of nbgrader's exchange, as its command would in `folder`."""
    config = Config(course.config)
    config.Exchange.assignment_dir = str(folder)
    config.Exchange.cache = str(folder / "cache")
    coursedir = CourseDirectory(config=config, root=str(course.root), assignment_id=lesson, student_id=student)
    step(coursedir=coursedir, authenticator=Authenticator(config=config), config=config).start()


def main(folder: Path = FOLDER, lesson: str = LESSON) -> None:
    """Make the sample class, ready to be graded."""
    try:
        students = make_class(folder, lesson)
    except (BuildError, ClassroomError) as error:
        sys.exit(str(error))
    print(f"{len(students)} students have handed in {lesson} ({folder / ROSTER} says who is what)")


if __name__ == "__main__":
    typer.run(main)
