"""Formgrader's lists with the points that count: less the late penalty, as in the table, the pages and the exports.

nbgrader keeps penalties beside the scores. Its export takes them off, its formgrader's lists don't.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nbgrader.api import Gradebook, SubmittedAssignment, SubmittedNotebook

Rows = list[dict[str, Any]]


class GradebookLessPenalties(Gradebook):
    """The gradebook as formgrader's lists read it; nbgrader_config.py puts it there."""

    def submission_dicts(self, assignment_id: str) -> Rows:
        return self.less_penalties(super().submission_dicts(assignment_id))

    def notebook_submission_dicts(self, notebook_id: str, assignment_id: str) -> Rows:
        return self.less_penalties(super().notebook_submission_dicts(notebook_id, assignment_id))

    def student_dicts(self) -> Rows:
        return self.less_penalties(super().student_dicts())

    def find_submission(self, assignment: str, student: str) -> SubmittedAssignment:
        """Its `to_dict` and its notebooks' are formgrader's lists of one student."""
        found = super().find_submission(assignment, student)
        for one in (found, *found.notebooks):
            [row] = self.less_penalties([one.to_dict()])
            one.to_dict = lambda row=row: row
        return found

    def average_assignment_score(self, assignment_id: str) -> float:
        rows = self.submission_dicts(assignment_id)
        return sum(row["score"] for row in rows) / len(rows) if rows else 0.0

    def average_notebook_score(self, notebook_id: str, assignment_id: str) -> float:
        rows = self.notebook_submission_dicts(notebook_id, assignment_id)
        return sum(row["score"] for row in rows) / len(rows) if rows else 0.0

    def less_penalties(self, rows: Rows) -> Rows:
        """The rows of students, submissions or notebooks, each with its penalties taken off its score."""
        taken: Counter[str] = Counter()
        penalty = SubmittedNotebook.late_submission_penalty
        columns = (SubmittedNotebook.id, SubmittedAssignment.id, SubmittedAssignment.student_id, penalty)
        for *ids, points in self.db.query(*columns).join(SubmittedAssignment).filter(penalty > 0):
            taken.update(dict.fromkeys(ids, points))
        return [{**row, "score": row["score"] - taken[row["id"]]} for row in rows]
