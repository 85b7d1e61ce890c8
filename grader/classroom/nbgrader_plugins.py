"""The preprocessors that grade inside nbgrader. Points come from the judge's verdicts and from nothing else.

    Submission (reads the file) -> OfficialCells -> Judge -> SaveGrades

with nbgrader's own steps in between (nbgrader_config.py lists them all). `nbgrader autograde` and formgrader's button
run these steps. So does grading a whole class (grade_class.py), which passes in judgements it already has. The pages
for students begin with ReadGrades.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nbconvert.preprocessors import Preprocessor
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import AssignLatePenalties, GetGrades, NbGraderPreprocessor, SaveAutoGrades
from traitlets import Bool, Dict, Float, Unicode

from grader.classroom.gradebook import one_transaction, waits_for_a_person
from grader.classroom.late_days import read_deadline
from grader.classroom.submission import add_problem, grade_id, problems
from grader.judging.check_cells import extra_credit, is_check, worth
from grader.judging.verdict import NOT_RUN, PASSED, Judgement, Verdict
from grader.judging.worker import JudgeSettings

MAX_MESSAGE = 20_000  # characters
CUT = "\n... the rest was cut off ..."
NOT_JUDGED = "This check was not run: 0 points."


class Judge(NbGraderPreprocessor):
    """Puts a verdict into each check cell, from the judgement in `resources` or, without one, from the judge.

    Removes every output and all metadata that came with the submission.
    """

    lessons = Unicode("solutions", help="folder with the lessons' checks, relative to the project").tag(config=True)
    sandbox = Bool(
        True, help="run submissions in a sandbox; without one they run with all rights of the person who grades"
    ).tag(config=True)
    seconds = Float(
        600, help="for one submission: waiting for its ranks, and judging; checks not reached are not run"
    ).tag(config=True)
    audit = Bool(False, help="run each rank once more, alone, and flag answers that then do something else").tag(
        config=True
    )

    @property
    def settings(self) -> JudgeSettings:
        return JudgeSettings(self.lessons, self.sandbox, self.seconds, self.audit)

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        before, not_run = problems(nb), nb.metadata.get("not_run", False)
        clear(nb)
        judgement = resources.pop("judgement", None)
        if not judgement:
            judgement = Judgement(resources["nbgrader"]["assignment"]) if not_run else self.settings.judge(nb)
        verdicts = {verdict.check: verdict for verdict in judgement.verdicts}
        for cell in filter(is_check, nb.cells):
            missing = Verdict(grade_id(cell), 0.0, worth(cell), NOT_RUN, NOT_JUDGED)
            show(verdicts.get(grade_id(cell), missing), cell)
        nb.metadata["judgement"] = asdict(judgement)
        nb.metadata["problems"] = [*before, *judgement.problems]
        nb.metadata["digest"] = resources.pop("digest", "")  # digest of the inputs: see judgement_cache.py
        resources["judged"] = True
        return nb, resources


def clear(nb: NotebookNode) -> None:
    """Remove everything but the cells' text, nbgrader's metadata, and the kernel that nbgrader has set."""
    nb.metadata = NotebookNode({name: nb.metadata[name] for name in ("kernelspec",) if name in nb.metadata})
    for cell in nb.cells:
        cell.metadata = NotebookNode({name: cell.metadata[name] for name in ("nbgrader",) if name in cell.metadata})
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def show(verdict: Verdict, cell: NotebookNode) -> None:
    """Put a verdict into its check cell, both as metadata and as an output that formgrader shows."""
    cell.metadata["verdict"] = asdict(verdict)
    text = verdict.said or verdict.kind
    text = text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + CUT
    if verdict.kind == PASSED:
        cell.outputs = [new_output("stream", name="stdout", text=text)]
    else:
        cell.outputs = [new_output("error", ename="CheckFailed", evalue=text, traceback=[text])]


class SaveGrades(SaveAutoGrades, AssignLatePenalties):
    """Writes the verdicts' points, the comments and the late penalty to the gradebook in one transaction.

    nbgrader handles cells that a person grades, and anything a person has entered, as it always does.
    """

    deadlines = Dict(help="lesson -> '2026-10-05 18:00 Europe/Berlin', in place of what formgrader says").tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        ids = resources["nbgrader"]
        self.notebook_id, self.assignment_id, self.student_id = ids["notebook"], ids["assignment"], ids["student"]
        self.points = points_of(nb, judged=resources.get("judged", False))
        self.init_plugin()
        with one_transaction(ids["db_url"]) as self.gradebook:
            if "timestamp" in ids:  # nbgrader's own Autograde has added the submission already
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
        points = self.points[grade_id(cell)]
        if not extra_credit(cell.source):
            grade.auto_score = points
        elif grade.manual_score is None:  # otherwise a person has decided about both
            grade.auto_score, grade.extra_credit = 0.0, points
        grade.needs_manual_grade = grade.manual_score is not None  # a person overrode it and should check again

    def update_penalty(self, ids: dict[str, Any]) -> None:
        """Work out the late penalty again: since grading, a person may have given points, or more time."""
        self.notebook_id, self.assignment_id, self.student_id = ids["notebook"], ids["assignment"], ids["student"]
        self.init_plugin()
        with one_transaction(ids["db_url"]) as self.gradebook:
            self._add_late_penalty()

    def _add_late_penalty(self) -> None:
        self.gradebook.db.flush()
        submission = self.gradebook.find_submission(self.assignment_id, self.student_id)
        if self.assignment_id in self.deadlines:
            submission.assignment.duedate = read_deadline(self.deadlines[self.assignment_id])
        notebook = self.gradebook.find_submission_notebook(self.notebook_id, self.assignment_id, self.student_id)
        self.gradebook.db.refresh(notebook)
        notebook.late_submission_penalty, late, score = None, submission.total_seconds_late, notebook.score
        penalty = self.plugin_inst.late_submission_penalty(self.student_id, score, late) if late > 0 else None
        if penalty is not None:
            notebook.late_submission_penalty = self._check_late_penalty(notebook, penalty)


class ReadGrades(GetGrades):
    """Puts points and comments into the cells, and whether a person still has to grade them (`waits`)."""

    def _get_score(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        super()._get_score(cell, resources)
        grade = self.gradebook.find_grade(grade_id(cell), self.notebook_id, self.assignment_id, self.student_id)
        cell.metadata.nbgrader["waits"] = waits_for_a_person(grade)
        resources["nbgrader"]["submission"] = grade.notebook.assignment_id  # the gradebook's name for it


def points_of(nb: NotebookNode, judged: bool) -> dict[str, float]:
    """The points of each check, from the verdict that Judge has put there; 0 if those aren't valid points.

    judged: whether Judge has run. If not, any verdict is one the submission brought along, and counts for nothing.
    """
    found = {}
    for cell in filter(is_check, nb.cells):
        verdict, most = cell.metadata.get("verdict", {}), worth(cell)
        points = verdict.get("points") if judged else None
        if not isinstance(points, int | float) or points is True or points is False or not 0 <= points <= most:
            add_problem(nb, f"check {grade_id(cell)} has no valid verdict (0 to {most:g} points), so it earns 0 points")
            points = 0.0
        found[grade_id(cell)] = float(points)
    return found
