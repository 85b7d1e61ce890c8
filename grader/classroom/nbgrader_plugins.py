"""Autograding, plugged into nbgrader by `nbgrader_config.py`: what earns points is what the judge said, nothing else.

A submission goes   Submission (reads the file) -> OfficialCells -> Judge -> SaveGrades
with nbgrader's own steps in between; grader/pages/feedback.py has the way back. `nbgrader autograde` and formgrader's button
take this road, and so does a whole class (grader/classroom.py), which brings the judgements along.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nbconvert.preprocessors import Preprocessor
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.preprocessors import AssignLatePenalties, NbGraderPreprocessor, SaveAutoGrades
from traitlets import Bool, Float, Unicode

from grader.classroom.gradebook import one_transaction
from grader.classroom.submission import add_problem, grade_id, problems
from grader.judging.verdict import NOT_RUN, PASSED, Judgement, Verdict
from grader.judging.worker import JudgeSettings

MOST_WORDS = 20_000  # characters of what a check says
CUT = "\n... the rest of this was cut off ..."
NOT_JUDGED = "This check was not run: 0 points."


class Judge(NbGraderPreprocessor):
    """Puts a verdict into each check cell: the judge's, or those of a judgement that `resources` bring along.

    Nothing that a submission has in its outputs or metadata is left.
    """

    checks = Unicode("utils.checks", help="the package with the visible checks, one module a lesson").tag(config=True)
    hidden = Unicode("grader.hidden", help="the package with the hidden tests, one module a lesson").tag(config=True)
    sandbox = Bool(
        True, help="run submissions in a sandbox; without one they have the rights of the person who grades"
    ).tag(config=True)
    seconds = Float(600, help="seconds for a submission; what is not judged by then is not run").tag(config=True)

    @property
    def how(self) -> JudgeSettings:
        return JudgeSettings(self.checks, self.hidden, self.sandbox, self.seconds)

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        before, not_run = problems(nb), nb.metadata.get("not_run", False)
        clear(nb)
        judgement = resources.pop("judgement", None)
        if not judgement:
            judgement = Judgement(resources["nbgrader"]["assignment"]) if not_run else self.how.judge(nb)
        said = {verdict.check: verdict for verdict in judgement.verdicts}
        for cell in filter(is_check, nb.cells):
            points = float(cell.metadata.nbgrader["points"])
            show(said.get(grade_id(cell), Verdict(grade_id(cell), 0.0, points, NOT_RUN, NOT_JUDGED)), cell)
        nb.metadata["judgement"] = asdict(judgement)
        nb.metadata["troubles"] = [*before, *judgement.troubles]
        nb.metadata["digest"] = resources.pop("digest", "")  # of what was judged: see judgement_cache.py
        resources["judged"] = True
        return nb, resources


def is_check(cell: NotebookNode) -> bool:
    """A code cell with points that a person does not grade."""
    return cell.cell_type == "code" and utils.is_grade(cell) and not utils.is_solution(cell)


def clear(nb: NotebookNode) -> None:
    """Leave the text of the cells, what nbgrader knows of them, and the kernel that nbgrader has set."""
    nb.metadata = NotebookNode({name: nb.metadata[name] for name in ("kernelspec",) if name in nb.metadata})
    for cell in nb.cells:
        cell.metadata = NotebookNode({name: cell.metadata[name] for name in ("nbgrader",) if name in cell.metadata})
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def show(verdict: Verdict, cell: NotebookNode) -> None:
    """Put a verdict into its check cell: as data for whoever reads it, as an output for formgrader."""
    cell.metadata["verdict"] = asdict(verdict)
    words = verdict.said or verdict.kind
    words = words if len(words) <= MOST_WORDS else words[:MOST_WORDS] + CUT
    if verdict.kind == PASSED:
        cell.outputs = [new_output("stream", name="stdout", text=words)]
    else:
        cell.outputs = [new_output("error", ename="CheckFailed", evalue=words, traceback=[words])]


class SaveGrades(SaveAutoGrades, AssignLatePenalties):
    """Writes the points of the verdicts, comments and the late penalty into the gradebook, all at once.

    Cells that a person grades, and what a person has written, are nbgrader's own affair, as ever.
    """

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        ids = resources["nbgrader"]
        self.notebook_id, self.assignment_id, self.student_id = ids["notebook"], ids["assignment"], ids["student"]
        self.points = points_of(nb, judged=resources.get("judged", False))
        self.init_plugin()
        with one_transaction(ids["db_url"]) as self.gradebook:
            if "timestamp" in ids:  # who comes through nbgrader's own Autograde is in the gradebook by now
                self._add_submission(ids["timestamp"])
            nb, resources = Preprocessor.preprocess(self, nb, resources)
            self._add_late_penalty()
        return nb, resources

    def _add_submission(self, timestamp: Any) -> None:
        self.gradebook.update_or_create_student(self.student_id)
        when = {"timestamp": timestamp} if timestamp else {}
        self.gradebook.update_or_create_submission(self.assignment_id, self.student_id, **when)

    def _add_score(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        if not is_check(cell):
            super()._add_score(cell, resources)
            return
        grade = self.gradebook.find_grade(grade_id(cell), self.notebook_id, self.assignment_id, self.student_id)
        grade.auto_score = self.points[grade_id(cell)]
        grade.needs_manual_grade = grade.manual_score is not None  # a person has said otherwise: may they look again

    def _add_late_penalty(self) -> None:
        self.gradebook.db.flush()
        submission = self.gradebook.find_submission(self.assignment_id, self.student_id)
        notebook = self.gradebook.find_submission_notebook(self.notebook_id, self.assignment_id, self.student_id)
        self.gradebook.db.refresh(notebook)
        notebook.late_submission_penalty, late, score = None, submission.total_seconds_late, notebook.score
        penalty = self.plugin_inst.late_submission_penalty(self.student_id, score, late) if late > 0 else None
        if penalty is not None:
            notebook.late_submission_penalty = self._check_late_penalty(notebook, penalty)


def points_of(nb: NotebookNode, judged: bool) -> dict[str, float]:
    """The points of each check: those of the verdict that Judge has just put there, when they are points at all.

    judged: whether Judge was here. Without it a verdict is the submission's own, and worth nothing.
    """
    found = {}
    for cell in filter(is_check, nb.cells):
        verdict, most = cell.metadata.get("verdict", {}), float(cell.metadata.nbgrader["points"])
        points = verdict.get("points") if judged else None
        if not isinstance(points, int | float) or isinstance(points, bool) or not 0 <= points <= most:  # nan is not
            add_problem(nb, f"check {grade_id(cell)} has no verdict with 0 to {most:g} points: 0 points")
            points = 0.0
        found[grade_id(cell)] = float(points)
    return found
