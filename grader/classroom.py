"""A class's way through nbgrader, from what was handed in to the table. `python -m grader grade` calls it.

    collect -> autograde -> feedback -> table, grades.csv

Each step is nbgrader's own command line, run in the course's folder; each submission is graded in a process of its own,
so that one which breaks its grader leaves the others alone.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory
from nbgrader.validator import Validator
from tqdm import tqdm
from traitlets.config import Config, PyFileConfigLoader

from grader import sandbox
from grader.autograde import CheckedValidator
from grader.submission import NotANotebook, read_notebook, troubles

CONFIG = "nbgrader_config.py"


class ClassroomError(Exception):
    """What a person has to change before this can be done, in one line."""


# ---- a course and nbgrader in it -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """A folder with an nbgrader_config.py, and what stands in that file."""

    root: Path
    config: Config

    @classmethod
    def at(cls, folder: str | Path) -> Course:
        """Open the course in `folder`. Raises ClassroomError when there is none."""
        root = Path(folder).resolve()
        if not (root / CONFIG).is_file():
            raise ClassroomError(f"{folder} is no course: there is no {CONFIG} in it; name another with --course")
        return cls(root, PyFileConfigLoader(CONFIG, path=str(root)).load_config())

    def without_sandbox(self) -> None:
        """Let submissions run with the rights of whoever calls this, because they said so."""
        self.config.RunCells.sandbox = False

    def require_sandbox(self) -> None:
        """Raises ClassroomError where submissions can't be run in a sandbox and nobody said that they may without."""
        reason = sandbox.why_not() if self.config.RunCells.get("sandbox", True) else None
        if reason:
            raise ClassroomError(f"{reason} To run submissions with all your rights instead, say --without-sandbox.")

    @property
    def directories(self) -> CourseDirectory:
        return CourseDirectory(config=self.config, root=str(self.root))

    def folder(self, step: str, student: str, lesson: str) -> Path:
        """Where a step ("source", "submitted", "autograded", "feedback") keeps a student's lesson."""
        directories = self.directories
        return Path(directories.format_path(getattr(directories, f"{step}_directory"), student, lesson))

    def gradebook(self) -> Gradebook:
        directories = self.directories
        return Gradebook(directories.db_url, directories.course_id)

    def lessons(self) -> list[str]:
        """The lessons that have an instructor's notebook."""
        return sorted(
            path.stem for path in self.folder("source", ".", "").glob("*/*.ipynb") if path.stem == path.parent.name
        )

    def students(self, lesson: str) -> list[str]:
        """Who has handed in something, whatever it is."""
        return sorted(path.parent.name for path in self.folder("submitted", "*", "").parent.glob(f"*/{lesson}"))

    def log_file(self, lesson: str, name: str) -> Path:
        return self.root / "logs" / lesson / f"{name}.log"

    def nbgrader(self, command: str, lesson: str, *args: str, log: str | None = None) -> bool:
        """Run `nbgrader command lesson args`; what it prints goes to a log file. Says whether it succeeded."""
        path = self.log_file(lesson, log or command)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Under pytest a kernel would not show what its child processes print.
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        with path.open("w") as output:
            line = [sys.executable, "-m", "nbgrader", command, lesson, *args]
            return subprocess.run(line, cwd=self.root, env=env, stdout=output, stderr=output).returncode == 0

    def must(self, command: str, lesson: str, *args: str) -> None:
        """Run a command without which nothing else makes sense; raises ClassroomError with its last error."""
        if not self.nbgrader(command, lesson, *args):
            path = self.log_file(lesson, command)
            lines = [line.strip() for line in path.read_text().splitlines()]
            first = next((line for line in lines if re.search(r"Error: |\| ERROR\] ", line)), "it says nothing")
            raise ClassroomError(f"nbgrader {command} {lesson} failed: {first} (all of it: {path})")


# ---- the steps -------------------------------------------------------------------------------------------------------


def grade_class(course: Course, lesson: str, jobs: int | None = None) -> Grades:
    """Grade everything that lies in submitted/ for a lesson, from scratch, and write the feedback pages.

    Raises ClassroomError when there is no such lesson or nothing was handed in. A submission that can't be graded is no
    error: it has its line in `Grades.troubles`.
    """
    find_lesson(course, lesson)
    course.require_sandbox()
    course.must("generate_assignment", lesson)
    students = course.students(lesson)
    if not students:
        expected = course.folder("submitted", "STUDENT", lesson) / f"{lesson}.ipynb"
        raise ClassroomError(f"nobody has handed in {lesson}: submissions are expected as {expected}")
    autograde(course, lesson, students, jobs)
    course.nbgrader("generate_feedback", lesson)
    return read_grades(course, lesson)


def find_lesson(course: Course, lesson: str) -> None:
    """Raises ClassroomError, which says what there is, when the course has no built lesson of this name."""
    lessons = course.lessons()
    source = course.folder("source", ".", lesson)
    if lesson in lessons:
        return
    if source.with_suffix(".py").is_file():
        raise ClassroomError(f"{lesson} is written but not built: run `python -m grader build {lesson}` first")
    there_are = f"there are: {', '.join(lessons)}" if lessons else f"{source.parent} holds none"
    raise ClassroomError(f"there is no lesson called {lesson!r}; {there_are}")


def collect(course: Course, lesson: str) -> None:
    """Fetch the newest submissions from the exchange, when the configuration names one (c.Exchange.root).

    Raises ClassroomError when there is no such lesson, or when nbgrader can't collect.
    """
    find_lesson(course, lesson)
    exchange = course.config.get("Exchange", {}).get("root")
    if exchange and (Path(exchange) / course.directories.course_id / "inbound").is_dir():
        course.must("collect", lesson, "--update")


def autograde(course: Course, lesson: str, students: list[str], jobs: int | None = None) -> None:
    """Grade submissions, `jobs` at a time (as many as there are cores), with a bar on a terminal."""

    options = ["--force", f"--RunCells.sandbox={course.config.RunCells.get('sandbox', True)}"]

    def grade_one(student: str) -> None:
        course.nbgrader("autograde", lesson, f"--student={student}", *options, log=student)

    handed_in = [one for one in students if (course.folder("submitted", one, lesson) / f"{lesson}.ipynb").is_file()]
    pool = ThreadPoolExecutor(jobs or os.cpu_count())
    try:
        running = [pool.submit(grade_one, student) for student in handed_in]
        for one in tqdm(as_completed(running), total=len(running), desc=lesson, unit="submission", disable=None):
            one.result()
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C no further one is started


def validate(notebook: Path, course: Course) -> bool:
    """Run a notebook's checks as grading will, print what fails; says whether all passed.

    Raises ClassroomError when the file is missing or is no notebook.
    """
    if not notebook.is_file():
        raise ClassroomError(f"there is no file {notebook}")
    course.require_sandbox()
    try:
        with notebook.open(encoding="utf-8") as file:
            read_notebook(file)
    except NotANotebook as reason:
        raise ClassroomError(f"{notebook}: {reason}") from None
    validator: Validator = CheckedValidator(config=course.config)
    results = validator.validate(str(notebook))
    validator.validate = lambda filename: results  # printing is nbgrader's own, and would run it again
    validator.validate_and_print(str(notebook))
    print()
    return not results


# ---- what came of it -------------------------------------------------------------------------------------------------


@dataclass
class Grades:
    """What a class has earned in one lesson. Points are after late penalties and a person's corrections."""

    lesson: str
    exercises: dict[str, list[str]]  # exercise -> its checks
    points: dict[str, float]  # check -> points that it can give
    earned: dict[str, dict[str, float]]  # student -> check -> points
    penalty: dict[str, float] = field(default_factory=dict)  # student -> points taken off for being late
    troubles: dict[str, list[str]] = field(default_factory=dict)  # student -> what went wrong, one line each

    def total(self, student: str) -> float:
        return max(0.0, sum(self.earned[student].values()) - self.penalty.get(student, 0.0))

    def of_exercise(self, student: str, exercise: str) -> float:
        return sum(self.earned[student][check] for check in self.exercises[exercise])


def read_grades(course: Course, lesson: str) -> Grades:
    """Read a lesson's grades from the gradebook; who handed in nothing that could be graded has 0."""
    with course.gradebook() as gradebook:
        notebook = gradebook.find_notebook(lesson, lesson)
        points = {cell.name: cell.max_score for cell in notebook.grade_cells}
        exercises = by_exercise([cell.name for cell in notebook.solution_cells], points)
        grades = Grades(lesson, exercises, points, earned={})
        for student in course.students(lesson):
            grades.earned[student] = dict.fromkeys(points, 0.0)
            grades.troubles[student] = find_troubles(course, lesson, student)
            try:
                submission = gradebook.find_submission_notebook(lesson, lesson, student)
            except MissingEntry:
                continue
            grades.earned[student].update((grade.name, grade.score) for grade in submission.grades)
            grades.penalty[student] = submission.late_submission_penalty or 0.0
    return grades


def by_exercise(exercises: Iterable[str], checks: Iterable[str]) -> dict[str, list[str]]:
    """Which checks belong to which exercise: `ring-all-reduce-values` to `ring-all-reduce`, not to `ring`."""
    found: dict[str, list[str]] = {}
    exercises = list(exercises)
    for check in checks:
        names = [name for name in exercises if check == name or check.startswith(f"{name}-")]
        found.setdefault(max(names, key=len, default=check), []).append(check)
    return found


def find_troubles(course: Course, lesson: str, student: str) -> list[str]:
    """What went wrong with one submission, one line each."""
    name = f"{lesson}.ipynb"
    handed_in = course.folder("submitted", student, lesson)
    if not (handed_in / name).is_file():
        others = sorted(path.name for path in handed_in.iterdir() if path.name != "timestamp.txt")
        return [f"no {name} was handed in; there is: {', '.join(others) or 'nothing'}"]
    graded = course.folder("autograded", student, lesson) / name
    if not graded.is_file():
        return [f"could not be graded: see {course.log_file(lesson, student)}"]
    found = troubles(nbformat.read(graded, as_version=4))
    if not (course.folder("feedback", student, lesson) / f"{lesson}.html").is_file():
        found.append(f"has no feedback page: see {course.log_file(lesson, 'generate_feedback')}")
    return found


def write_csv(all_grades: list[Grades], path: Path) -> None:
    """One row a student, one column a check (`lesson/check`), a total for each lesson and one for all."""
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
    """Students by exercise, exercises as numbers with their names below; broken into parts that fit `width`."""
    names = list(grades.exercises)
    maximum = {name: sum(grades.points[check] for check in checks) for name, checks in grades.exercises.items()}
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
            total = sum(maximum.values()) if student == "of" else grades.total(student)
            line = f"{student:{first}}" + "".join(f"{row[number]:>{wide}g}" for number in part)
            lines.append(line + (f"{total:>9g}" if last else ""))
        lines.append("")
    return "\n".join([*lines, *(f"{number:>3}  {name}" for number, name in enumerate(names, 1))])


def trouble_lines(grades: Grades) -> list[str]:
    """One line a submission that had trouble."""
    return [printable(f"{student}: {'; '.join(lines)}") for student, lines in grades.troubles.items() if lines]


def printable(text: str) -> str:
    """Without what a terminal obeys: names of files are a student's own."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
