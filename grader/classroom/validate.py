"""`grader validate`: judge one notebook without a gradebook."""

from __future__ import annotations

from pathlib import Path

from nbformat.notebooknode import NotebookNode

from grader.classroom.course import ClassroomError, Course
from grader.classroom.nbgrader_plugins import clear
from grader.classroom.notebook_file import NotANotebook, printable, read_file
from grader.classroom.submission import grade_id
from grader.judging.check_cells import is_check
from grader.judging.verdict import PASSED


def validate(notebook: Path, course: Course) -> bool:
    """Judge a notebook's checks as grading will and print what each says. Returns whether all of them passed.

    Raises ClassroomError if the file is missing, isn't a notebook, or holds no check of this course.
    """
    if not notebook.is_file():
        raise ClassroomError(f"there is no file {notebook}")
    try:
        nb, _ = read_file(notebook.resolve())
    except NotANotebook as reason:
        raise ClassroomError(f"{notebook}: {reason}") from None
    if not put_official_checks(nb, course):
        raise ClassroomError(f"{notebook} holds no check of a lesson of this course")
    course.require_sandbox()
    clear(nb)
    judgement = course.judge_settings.judge(nb)
    for line in judgement.problems:
        print(printable(line))
    for verdict in judgement.verdicts:
        print(printable(f"{verdict.check}: {verdict.kind}, {verdict.points:g} of {verdict.most:g} points"))
        if verdict.kind != PASSED:
            print("".join(f"    {printable(line)}\n" for line in verdict.said.splitlines()))
    return bool(judgement.verdicts) and all(verdict.kind == PASSED for verdict in judgement.verdicts)


def put_official_checks(nb: NotebookNode, course: Course) -> bool:
    """Replace the notebook's checks by the instructor's, hidden tests included, and append the missing ones.

    Returns whether the notebook had any checks.
    """
    own_checks = {grade_id(cell): cell for cell in nb.cells if is_check(cell)}
    best: dict[str, NotebookNode] = {}  # the lesson with the most matches: two lessons may share a name
    for lesson in course.lessons():
        official = {grade_id(cell): cell for cell in course.source(lesson).cells if is_check(cell)}
        if len(own_checks.keys() & official.keys()) > len(own_checks.keys() & best.keys()):
            best = official
    for name in own_checks.keys() & best.keys():
        own_checks[name].update(source=best[name].source, metadata=best[name].metadata)
    nb.cells += [cell for name, cell in best.items() if name not in own_checks]
    return bool(best)
