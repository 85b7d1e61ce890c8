"""Grade a class, from what was handed in to the table of grades. `python -m grader grade` calls this.

    collect -> judge -> gradebook and autograded/ -> feedback -> table, grades.csv

Submissions are judged on all cores, or on other machines (dask_cluster.py). Only this process writes the gradebook, one
submission at a time, as soon as it has been judged. Judgements are cached (judgement_cache.py), so a run that was
interrupted continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader import utils
from nbgrader.api import Assignment, Notebook
from nbgrader.auth import Authenticator
from nbgrader.converters import GenerateAssignment, GenerateFeedback
from nbgrader.exchange import ExchangeFactory
from tqdm import tqdm

from grader.classroom.course import ClassroomError, Course
from grader.classroom.dask_cluster import judge_all
from grader.classroom.extensions import grant, set_deadline
from grader.classroom.gradebook import replace_file
from grader.classroom.grades import Grades, by_exercise, find_problems, read_grades
from grader.classroom.judgement_cache import JudgementCache, digest_of, digest_of_answers, digests_of_checks, stamp_of
from grader.classroom.long_runs import MINUTE, Pace, a_line_every
from grader.classroom.notebook_file import printable
from grader.classroom.one_submission import OneSubmission
from grader.classroom.submission import grade_id
from grader.judging.check_cells import is_check, names_its_lesson
from grader.judging.verdict import NOT_RUN, Judgement
from grader.judging.worker import JudgeSettings

PROJECT = Path(__file__).resolve().parents[2]
READ_BY = ("submission.py", "notebook_file.py")  # the makers of the official cells of a submission's files
HEAVY = 5 << 20  # bytes in a folder; a lesson has half a megabyte
MADE_FROM = ".made-from"  # beside a feedback page: feedback_keys of when it was written

# ---- the steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradeOptions:
    """Which submissions to grade, and where.

    students   only these students; everybody when empty
    new        only submissions without a grade; otherwise also those that have changed since they were graded
    regrade    judge again, even what has been judged already
    exercise   judge only this exercise again; the rest of an unchanged submission stays as it was judged before
    extensions more time for single students
    jobs       processes on this machine; one per core when None
    scheduler  the address of a Dask scheduler to use instead of this machine
    """

    students: tuple[str, ...] = ()
    new: bool = False
    regrade: bool = False
    exercise: str | None = None
    extensions: dict[str, timedelta] = field(default_factory=dict)
    jobs: int | None = None
    scheduler: str | None = None


def grade_class(course: Course, lesson: str, options: GradeOptions = GradeOptions()) -> Grades:
    """Grade everything in submitted/ for a lesson, and write the feedback pages.

    Raises ClassroomError if there is no such lesson, if nothing was handed in, or if nothing can be judged. A
    submission that can't be graded raises nothing: `Grades.problems` has a line about it.
    """
    find_lesson(course, lesson)
    if not options.scheduler:
        course.require_sandbox()
    release(course, lesson)
    students = course.students(lesson)
    if not students:
        expected = course.folder("submitted", "STUDENT", lesson) / f"{lesson}.ipynb"
        raise ClassroomError(f"nobody has handed in {lesson}: submissions are expected as {expected}")
    set_deadline(course, lesson)
    grant(course, lesson, options.extensions)
    this = autograde(
        course, lesson, [one for one in students if one in options.students or not options.students], options
    )
    print(f"{lesson}: {this}")
    write_feedback(course, lesson)
    grades = read_grades(course, lesson)
    for student, line in this.failed.items():
        grades.problems[student].insert(0, line)
    return grades


def release(course: Course, lesson: str) -> None:
    """Make the notebook for students and the gradebook's record of its cells, unless they are of this source."""
    made = course.root / "judgements" / lesson / "release.sha256"
    with course.gradebook() as gradebook:
        known = bool(gradebook.db.query(Notebook).join(Assignment).filter(Assignment.name == lesson).count())
    if known and made.is_file() and made.read_text() == release_digest(course, lesson):
        return
    course.must(GenerateAssignment, lesson)
    replace_file(made, release_digest(course, lesson).encode())


def release_digest(course: Course, lesson: str) -> str:
    """A hash of the instructor's notebook and of the students', whether they are there or not."""
    files = [course.folder(step, ".", lesson) / f"{lesson}.ipynb" for step in ("source", "release")]
    return hashlib.sha256(
        b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files if file.is_file())
    ).hexdigest()


def write_feedback(course: Course, lesson: str) -> None:
    """Write the pages of those whose notebook, grades or comments have changed since their page was written."""
    keys = feedback_keys(course, lesson)
    files = {student: course.folder("feedback", student, lesson) / MADE_FROM for student in keys}
    there = {student: file for student, file in files.items() if file.with_name(f"{lesson}.html").is_file()}
    done = {student for student, file in there.items() if file.is_file() and file.read_text() == keys[student]}
    if keys.keys() == done:
        return
    if why := course.nbgrader(
        GenerateFeedback, lesson, exclude=",".join(one for one in sorted(done) if "," not in one)
    ):
        print(why)
        return
    for student in keys.keys() - done:
        if files[student].parent.is_dir():
            replace_file(files[student], keys[student].encode())


def feedback_keys(course: Course, lesson: str) -> dict[str, str]:
    """student -> a hash of all that their page depends on."""
    pages = [file.read_text() for file in sorted((PROJECT / "grader" / "pages").glob("*.*"))]
    found = {}
    with course.gradebook() as gradebook:
        for one in gradebook.notebook_submissions(lesson, lesson):
            student = one.student.id
            grades = [(grade.cell_id, grade.auto_score, grade.manual_score, grade.extra_credit) for grade in one.grades]
            comments = [(comment.cell_id, comment.comment) for comment in one.comments]
            facts = [sorted(map(repr, grades)), sorted(map(repr, comments)), one.late_submission_penalty]
            folder = course.folder("autograded", student, lesson)
            if folder.is_dir():
                found[student] = stamp_of(folder, [json.dumps(facts), *pages])
    return found


def find_lesson(course: Course, lesson: str) -> None:
    """Raises ClassroomError, which lists the lessons there are, if the course has no built lesson of this name."""
    course.require_lessons()
    lessons = course.lessons()
    source = course.folder("source", ".", lesson)
    if lesson in lessons:
        return
    if source.with_suffix(".py").is_file():
        raise ClassroomError(f"{lesson} is written but not built: run `python -m grader build {lesson}` first")
    raise ClassroomError(f"there is no lesson called {lesson!r}; there are: {', '.join(lessons)}")


def exercises_in(nb: NotebookNode) -> dict[str, list[str]]:
    """The exercises of a lesson, each with its checks."""
    answers = [grade_id(cell) for cell in nb.cells if utils.is_solution(cell)]
    return by_exercise(answers, [grade_id(cell) for cell in nb.cells if is_check(cell)])


def collect(course: Course, lesson: str) -> None:
    """Fetch the newest submissions from the exchange, if the configuration names one (c.Exchange.root).

    Raises ClassroomError if there is no such lesson, or if nbgrader can't collect.
    """
    find_lesson(course, lesson)
    exchange = course.config.get("Exchange", {}).get("root")
    if exchange and (Path(exchange) / course.directories.course_id / "inbound").is_dir():
        step = ExchangeFactory(config=course.config).collect
        course.must(step, lesson, update=True, authenticator=Authenticator(config=course.config))


# ---- which lessons ---------------------------------------------------------------------------------------------------


def open_lessons(folder: Path, lessons: list[str] | None) -> tuple[Course, list[str]]:
    """The course in a folder, and these of its lessons, or those that somebody has handed in. Raises ClassroomError."""
    course = Course.at(folder)
    names = lessons or handed_in(course)
    for name in names:
        find_lesson(course, name)
    return course, names


def handed_in(course: Course) -> list[str]:
    """The lessons with at least one submission. Raises ClassroomError if there are none."""
    course.require_lessons()
    names = [name for name in course.lessons() if course.students(name)]
    if not names:
        expected = course.folder("submitted", "STUDENT", "LESSON") / "LESSON.ipynb"
        raise ClassroomError(f"nobody has handed in anything: submissions are expected as {expected}")
    return names


def lessons_to_grade(course: Course, lessons: list[str], options: GradeOptions) -> list[str]:
    """Those that the named students have handed in, and that have the exercise to judge again.

    Raises ClassroomError if an option fits none of them.
    """
    students = [*options.students, *options.extensions]
    for student in students:
        if not any(student in course.students(lesson) for lesson in lessons):
            raise ClassroomError(f"{student} has not handed in {' or '.join(lessons)}")
    lessons = [name for name in lessons if not students or set(students) & set(course.students(name))]
    if options.extensions and len(lessons) > 1:
        raise ClassroomError(f"name the lesson that --extension is for: {', '.join(lessons)}")
    if not options.exercise:
        return lessons
    there_are = {lesson: exercises_in(course.source(lesson)) for lesson in lessons}
    found = [lesson for lesson in lessons if options.exercise in there_are[lesson]]
    if not found:
        names = ", ".join(name for exercises in there_are.values() for name in exercises)
        raise ClassroomError(f"no exercise is called {options.exercise!r}; there are: {names}")
    return found


def require_one_of(options: dict[str, bool]) -> None:
    """Raises ClassroomError if more than one of these options is given."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise ClassroomError(f"{' and '.join(given)} contradict each other: choose one of them")


# ---- a round of grading ----------------------------------------------------------------------------------------------


def autograde(course: Course, lesson: str, students: Iterable[str], options: GradeOptions = GradeOptions()) -> Round:
    """Judge submissions and put the judgements into the gradebook. Folders that may take long to read come last.

    Shows a progress bar on a terminal, elsewhere a line every minute, and a line for each submission with a problem.
    """
    this = Round(course, lesson, options)
    light: list[str] = []
    heavy: list[str] = []
    for student in students:
        (heavy if OneSubmission(course, lesson, student).size > HEAVY else light).append(student)
    for part in filter(None, (light, heavy)):
        for student in tqdm(part, f"{lesson}: reading", unit="submission", disable=None, leave=False):
            this.read(student)
        texts = {one: nbformat.writes(this.part_to_judge(one)) for one in part if one in this.to_judge}
        judge_in_parallel(this, texts, replace(course.judge_settings, hasty=True), options.jobs)
    again = {student: nbformat.writes(this.part_to_judge(student)) for student in this.put_off}
    if again:
        print(f"{lesson}: {printable(', '.join(again))}: something took long, and is judged again, alone")
        judge_in_parallel(this, again, course.judge_settings, jobs=1)
    return this


def judge_in_parallel(this: Round, texts: dict[str, str], settings: JudgeSettings, jobs: int | None) -> None:
    """Judge these notebooks, and record each judgement as soon as it is there. Raises ClassroomError."""
    pace = Pace(f"{this.lesson}: judging", len(texts))
    with (
        tqdm(total=len(texts), desc=pace.what, unit="submission", disable=None) as bar,
        a_line_every(MINUTE, pace.__str__, wanted=bar.disable),
        closing(judge_all(this.lesson, texts, settings, jobs, this.options.scheduler)) as results,
    ):
        for student, judgement, sound in results:
            this.judged(student, judgement, sound, may_put_off=settings.hasty)
            pace.done += 1
            bar.update()


class Round:
    """One round of grading: what is done with each submission, and how many of each kind there were."""

    def __init__(self, course: Course, lesson: str, options: GradeOptions) -> None:
        self.course, self.lesson, self.options = course, lesson, options
        self.cache = JudgementCache(course.root / "judgements" / lesson)
        settings = course.judge_settings
        reading = [(PROJECT / "grader" / "classroom" / name).read_text() for name in READ_BY]
        self.inputs = [release_digest(course, lesson), repr(settings), *digests_of_checks(lesson, settings), *reading]
        self.stamps: dict[str, str] = {}  # student -> the stamp of the files as they were when they were read
        self.to_judge: dict[str, tuple[NotebookNode, str]] = {}  # student -> the notebook, and its digest
        self.kept: dict[str, tuple[Judgement, list[str]]] = {}  # student -> what is kept, all but these checks
        self.put_off: set[str] = set()  # students some of whose checks took long, and are judged again alone
        self.failed: dict[str, str] = {}  # student -> why it could not be graded, in a line
        self.counts = {"judged": 0, "judged before and taken over": 0, "unchanged": 0}

    def read(self, student: str) -> None:
        """Decide whether a submission must be judged; if not, use its cached judgement."""
        submission = OneSubmission(self.course, self.lesson, student)
        if not submission.holds_a_notebook:
            print_problems(student, find_problems(self.course, self.lesson, student))
        elif not (self.options.new and "judgement" in submission.read_autograded().metadata):
            self.safely(submission, "w", lambda: self.record_or_wait(submission))

    def record_or_wait(self, submission: OneSubmission) -> bool:
        """Whether the submission's grades are in the gradebook; if not, it has to be judged."""
        student, again = submission.student, self.options.regrade or self.options.exercise
        self.stamps[student] = stamp_of(submission.handed_in.parent, self.inputs)
        stamp = "" if again else self.stamps[student]
        known = self.cache.find(student, "stamp", stamp) if stamp else None
        if known and self.is_unchanged(submission, *known):
            return True
        nb = submission.read()
        digest = digest_of(nb, self.lesson, self.course.judge_settings)
        not_run = nb.metadata.get("not_run")
        exercise = "" if not_run else self.options.exercise
        before = self.cache.find(student, "answers", digest_of_answers(nb)) if exercise else None
        if exercise and before:
            self.kept[student] = before[0], exercises_in(nb).get(exercise, [])
        if self.options.regrade:
            self.cache.drop(student)
        found = (Judgement(self.lesson), digest) if not_run else self.cache.find(student, "digest", digest)
        if not found or exercise:
            self.to_judge[student] = nb, digest
            return False
        if not not_run:
            self.cache.store(student, digest, found[0], digest_of_answers(nb), self.stamps[student])
        if not self.is_unchanged(submission, *found):
            submission.record(nb, digest, found[0])
            self.counts["judged before and taken over"] += 1
        return True

    def is_unchanged(self, submission: OneSubmission, judgement: Judgement, digest: str) -> bool:
        """Whether all is as it was recorded. If so, only the late penalty is worked out again."""
        with self.course.gradebook() as gradebook:
            unchanged = submission.is_recorded(gradebook, digest, judgement)
            late = unchanged and submission.is_late(gradebook)
        if late:
            submission.update_penalty()
        self.counts["unchanged"] += unchanged
        return unchanged

    def part_to_judge(self, student: str) -> NotebookNode:
        """The notebook, with only the checks that are to be judged, or all if those don't name their lesson."""
        nb, _ = self.to_judge[student]
        if student not in self.kept:
            return nb
        _, wanted = self.kept[student]
        part = NotebookNode(
            {**nb, "cells": [cell for cell in nb.cells if not is_check(cell) or grade_id(cell) in wanted]}
        )
        return part if names_its_lesson(part) else nb

    def judged(self, student: str, judgement: Judgement, sound: bool, may_put_off: bool) -> None:
        """Cache a judgement, unless judging itself failed, and put it into the gradebook.

        may_put_off  whether checks that were not run, or all if judging has failed, are to be judged again, alone
        """
        submission = OneSubmission(self.course, self.lesson, student)
        nb, digest = self.to_judge[student]
        late = [verdict.check for verdict in judgement.verdicts if verdict.kind == NOT_RUN]
        if may_put_off and (late or not sound):
            self.put_off.add(student)
            if sound:
                self.kept.setdefault(student, (judgement, late))
            return
        if student in self.kept and sound:
            before, checks = self.kept[student]
            judgement = before.with_new(judgement, checks)
        elif student in self.kept and self.options.exercise:
            judgement, _ = self.kept[student]  # better than nothing
            self.failed[student] = f"{self.options.exercise} could not be judged again: its points are as before"
            print_problems(student, [self.failed[student]])
        elif student in self.kept:
            before, why = self.kept[student][0], judgement
            judgement = replace(before, problems=before.problems + why.problems, flags=before.flags + why.flags)

        def cache_and_record() -> bool:
            if sound:
                self.cache.store(student, digest, judgement, digest_of_answers(nb), self.stamps.get(student, ""))
            submission.record(nb, digest, judgement)
            return True

        self.safely(submission, "a", cache_and_record)
        self.counts["judged"] += 1

    def safely(self, submission: OneSubmission, mode: str, act: Callable[[], bool]) -> None:
        """Act on one submission, log nbgrader's messages, and print its problems. `act` returns whether it is done."""
        try:
            with self.course.log_to(self.course.log_file(self.lesson, submission.student), mode):
                done = act()
        except Exception as error:
            log = self.course.log_file(self.lesson, submission.student)
            self.failed[submission.student] = f"could not be graded ({type(error).__name__}): see {log}"
            print_problems(submission.student, [self.failed[submission.student]])
        else:
            if done:
                print_problems(submission.student, find_problems(self.course, self.lesson, submission.student))

    def __str__(self) -> str:
        """How many submissions were judged, and how many didn't need to be."""
        return ", ".join(f"{number} {what}" for what, number in self.counts.items() if number) or "nothing to do"


def print_problems(student: str, lines: list[str]) -> None:
    """Print one line, above the progress bar, for a submission with problems."""
    if lines:
        tqdm.write(printable(f"{student}: {'; '.join(lines)}"))
