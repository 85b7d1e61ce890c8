"""A class's way from what was handed in to the table. `python -m grader grade` calls it.

    collect -> judge -> gradebook and autograded/ -> feedback -> table, grades.csv

Judging is done on all cores, or elsewhere (cluster.py). The gradebook is written here alone, each submission as soon as
it is judged. What was judged is kept (kept.py), so that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader.api import MissingEntry
from nbgrader.auth import Authenticator
from nbgrader.converters import GenerateAssignment, GenerateFeedback
from nbgrader.exchange import ExchangeFactory
from tqdm import tqdm

from grader.autograde import clear, is_check
from grader.cluster import ClusterError, judge_all
from grader.course import ClassroomError, Course
from grader.kept import Kept, digest_of
from grader.one_submission import OneSubmission
from grader.submission import NotANotebook, grade_id, read_notebook, troubles
from grader.verdict import PASSED, Judgement

# ---- the steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """Which submissions to grade, and where.

    students   only these; all when empty
    new        only what has no grade yet; otherwise what has none, or has changed since
    regrade    judge again what was judged already
    jobs       processes on this machine; as many as there are cores when None
    scheduler  the address of a Dask scheduler instead of this machine
    """

    students: tuple[str, ...] = ()
    new: bool = False
    regrade: bool = False
    jobs: int | None = None
    scheduler: str | None = None


def grade_class(course: Course, lesson: str, wish: Wish = Wish()) -> Grades:
    """Grade what lies in submitted/ for a lesson, and write the feedback pages.

    Raises ClassroomError when there is no such lesson, nothing was handed in, or nothing can be judged. A submission
    that can't be graded is no error: it has its line in `Grades.troubles`.
    """
    find_lesson(course, lesson)
    if not wish.scheduler:
        course.require_sandbox()
    course.must(GenerateAssignment, lesson)
    students = course.students(lesson)
    if not students:
        expected = course.folder("submitted", "STUDENT", lesson) / f"{lesson}.ipynb"
        raise ClassroomError(f"nobody has handed in {lesson}: submissions are expected as {expected}")
    this = autograde(course, lesson, [one for one in students if one in wish.students or not wish.students], wish)
    print(f"{lesson}: {this}")
    if why := course.nbgrader(GenerateFeedback, lesson):
        print(why)
    grades = read_grades(course, lesson)
    for student, line in this.failed.items():
        grades.troubles[student].insert(0, line)
    return grades


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
        step = ExchangeFactory(config=course.config).collect
        course.must(step, lesson, update=True, authenticator=Authenticator(config=course.config))


# ---- a round of grading ----------------------------------------------------------------------------------------------


def autograde(course: Course, lesson: str, students: Iterable[str], wish: Wish = Wish()) -> Round:
    """Judge submissions and take the judgements over, with a bar on a terminal and a line for each that has trouble."""
    this = Round(course, lesson, wish)
    for student in tqdm(list(students), f"{lesson}: reading", unit="submission", disable=None, leave=False):
        this.read(student)
    texts = {student: nbformat.writes(nb) for student, (nb, _) in this.to_judge.items()}
    with tqdm(total=len(texts), desc=f"{lesson}: judging", unit="submission", disable=None) as bar:
        try:
            for student, judgement, sound in judge_all(lesson, texts, course.how, wish.jobs, wish.scheduler):
                this.judged(student, judgement, sound)
                bar.update()
        except ClusterError as error:
            raise ClassroomError(str(error)) from error
    return this


class Round:
    """What is done with each submission, and how many of each kind there were."""

    def __init__(self, course: Course, lesson: str, wish: Wish) -> None:
        self.course, self.lesson, self.wish = course, lesson, wish
        self.kept = Kept(course.root / "judgements" / lesson)
        self.to_judge: dict[str, tuple[NotebookNode, str]] = {}  # student -> the notebook, and its digest
        self.failed: dict[str, str] = {}  # student -> why it could not be graded, in a line
        self.counts = {"judged": 0, "judged before and taken over": 0, "unchanged": 0}

    def read(self, student: str) -> None:
        """See whether it has to be judged; if not, take over what was judged before."""
        one = OneSubmission(self.course, self.lesson, student)
        if not one.holds_a_notebook:
            tell(student, find_troubles(self.course, self.lesson, student))
        elif not (self.wish.new and one.is_graded()):
            self.safely(one, "w", lambda: self.take_over_or_wait(one))

    def take_over_or_wait(self, one: OneSubmission) -> bool:
        nb = one.read()
        digest = digest_of(nb, self.lesson, self.course.how)
        if self.wish.regrade:
            self.kept.drop(one.student)
        judgement = Judgement(self.lesson) if nb.metadata.get("not_run") else self.kept.find(one.student, digest)
        if not judgement:
            self.to_judge[one.student] = nb, digest
            return False
        with self.course.gradebook() as gradebook:
            unchanged = one.is_taken_over(gradebook, digest, judgement)
        if not unchanged:
            one.take_over(nb, digest, judgement)
        self.counts["unchanged" if unchanged else "judged before and taken over"] += 1
        return True

    def judged(self, student: str, judgement: Judgement, sound: bool) -> None:
        """Keep a judgement, unless it says that judging failed, and take it over."""
        one = OneSubmission(self.course, self.lesson, student)
        nb, digest = self.to_judge[student]

        def keep_and_take_over() -> bool:
            if sound:
                self.kept.keep(student, digest, judgement)
            one.take_over(nb, digest, judgement)
            return True

        self.safely(one, "a", keep_and_take_over)
        self.counts["judged"] += 1

    def safely(self, one: OneSubmission, mode: str, act: Callable[[], bool]) -> None:
        """Do something with one submission, which says whether it is done with it, and tell what trouble there was."""
        try:
            with self.course.log_to(self.course.log_file(self.lesson, one.student), mode):
                done = act()
        except Exception as error:
            log = self.course.log_file(self.lesson, one.student)
            self.failed[one.student] = f"could not be graded ({type(error).__name__}): see {log}"
            tell(one.student, [self.failed[one.student]])
        else:
            if done:
                tell(one.student, find_troubles(self.course, self.lesson, one.student))

    def __str__(self) -> str:
        """How many submissions were judged, and how many did not have to be."""
        return ", ".join(f"{number} {what}" for what, number in self.counts.items() if number) or "nothing to do"


def tell(student: str, lines: list[str]) -> None:
    """One line on the screen, above the bar, for a submission that had trouble."""
    if lines:
        tqdm.write(printable(f"{student}: {'; '.join(lines)}"))


# ---- a notebook by itself --------------------------------------------------------------------------------------------


def validate(notebook: Path, course: Course) -> bool:
    """Judge a notebook's checks as grading will, print what each says; says whether all passed.

    Raises ClassroomError when the file is missing, is no notebook or holds no check of the course.
    """
    if not notebook.is_file():
        raise ClassroomError(f"there is no file {notebook}")
    try:
        with notebook.open(encoding="utf-8") as file:
            nb = read_notebook(file)
    except NotANotebook as reason:
        raise ClassroomError(f"{notebook}: {reason}") from None
    if not put_official_checks(nb, course):
        raise ClassroomError(f"{notebook} holds no check of a lesson of this course")
    course.require_sandbox()
    clear(nb)
    judgement = course.how.judge(nb)
    for line in judgement.troubles:
        print(printable(line))
    for verdict in judgement.verdicts:
        print(printable(f"{verdict.check}: {verdict.kind}, {verdict.points:g} of {verdict.most:g} points"))
        if verdict.kind != PASSED:
            print("".join(f"    {printable(line)}\n" for line in verdict.said.splitlines()))
    return bool(judgement.verdicts) and all(verdict.kind == PASSED for verdict in judgement.verdicts)


def put_official_checks(nb: NotebookNode, course: Course) -> bool:
    """Put the checks of the instructor's notebook, hidden tests and all, in the place of those with the same names, and
    those that are missing at the end. Says whether the notebook had any.
    """
    mine = {grade_id(cell): cell for cell in nb.cells if is_check(cell)}
    for lesson in course.lessons():
        source = nbformat.read(course.folder("source", ".", lesson) / f"{lesson}.ipynb", as_version=4)
        official = {grade_id(cell): cell for cell in source.cells if is_check(cell)}
        if common := mine.keys() & official.keys():
            for name in common:
                mine[name].update(source=official[name].source, metadata=official[name].metadata)
            nb.cells += [cell for name, cell in official.items() if name not in mine]
            return True
    return False


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
    one = OneSubmission(course, lesson, student)
    if not one.holds_a_notebook:
        others = sorted(path.name for path in one.handed_in.parent.iterdir() if path.name != "timestamp.txt")
        return [f"no {lesson}.ipynb was handed in; there is: {', '.join(others) or 'nothing'}"]
    if not one.autograded.is_file():
        return [f"could not be graded: see {course.log_file(lesson, student)}"]
    try:
        return troubles(nbformat.read(one.autograded, as_version=4))
    except Exception as error:  # what nbformat raises for damaged files is not documented
        return [f"its graded notebook can't be read ({type(error).__name__}): grade it again"]


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


def printable(text: str) -> str:
    """Without what a terminal obeys: names of files are a student's own."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
