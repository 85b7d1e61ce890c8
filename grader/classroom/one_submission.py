"""One submission: read it with nbgrader's steps before judging, and record its judgement with the steps after it.

Recording (`record`) writes to the gradebook in one transaction, then replaces the file in autograded/. If it is
interrupted between the two, `is_recorded` is false and the next run does both again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader.api import Grade, Gradebook, MissingEntry
from sqlalchemy.orm import joinedload

from grader.classroom.course import Course
from grader.classroom.gradebook import replace_file
from grader.classroom.nbgrader_plugins import SaveGrades, points_of
from grader.classroom.notebook_file import is_link, names_in, small_file, time_stamp
from grader.judging.verdict import Judgement


@dataclass(frozen=True)
class OneSubmission:
    """What one student handed in for one lesson."""

    course: Course
    lesson: str
    student: str

    @property
    def handed_in(self) -> Path:
        return self.course.folder("submitted", self.student, self.lesson) / f"{self.lesson}.ipynb"

    @property
    def holds_a_notebook(self) -> bool:
        """Whether there is a notebook under any name. `read` finds the right one."""
        return not is_link(self.handed_in.parent) and any(
            name.endswith(".ipynb") for name in names_in(self.handed_in.parent)
        )

    @property
    def size(self) -> int:
        """Bytes of all files beside the notebook and itself, links not followed."""
        folder = self.handed_in.parent
        return 0 if is_link(folder) else sum((folder / name).lstat().st_size for name in names_in(folder))

    @property
    def autograded(self) -> Path:
        return self.course.folder("autograded", self.student, self.lesson) / f"{self.lesson}.ipynb"

    @property
    def timestamp(self) -> datetime | None:
        """When it was handed in, if that is known."""
        return time_stamp(self.handed_in.parent)

    def read(self) -> NotebookNode:
        """The student's text in the official cells."""
        exporter = self.exporter(self.course.autograding.sanitize_preprocessors)
        text, _ = exporter.from_filename(str(self.handed_in), resources=self.resources())
        return nbformat.reads(text, as_version=4)

    def record(self, nb: NotebookNode, digest: str, judgement: Judgement) -> None:
        """Write what `read` returned, and its judgement, to the gradebook and to autograded/."""
        exporter = self.exporter(self.course.autograding.autograde_preprocessors)
        text, _ = exporter.from_notebook_node(
            nb, resources={**self.resources(), "judgement": judgement, "digest": digest}
        )
        for name in ("timestamp.txt", "submission_secret.txt"):  # nbgrader wants them next to the notebook
            if content := small_file(self.handed_in.with_name(name)):
                replace_file(self.autograded.with_name(name), content)
        replace_file(self.autograded, text.encode())
        self.course.autograding.set_permissions(self.lesson, self.student)

    def update_penalty(self) -> None:
        """Work out the late penalty again, and leave all else as it is recorded."""
        SaveGrades(config=self.course.config).update_penalty(self.resources()["nbgrader"])

    def is_recorded(self, gradebook: Gradebook, digest: str, judgement: Judgement) -> bool:
        """Whether autograded/ and the gradebook already hold this judgement of this text, and its time stamp."""
        nb = self.read_autograded()
        if nb.metadata.get("judgement") != asdict(judgement) or nb.metadata.get("digest") != digest:
            return False
        try:
            submission = gradebook.find_submission(self.lesson, self.student)
            notebook = gradebook.find_submission_notebook(self.lesson, self.lesson, self.student)
        except MissingEntry:
            return False
        of_notebook = gradebook.db.query(Grade).filter(Grade.notebook_id == notebook.id)
        grades = of_notebook.options(joinedload(Grade.cell))  # otherwise each name is a query
        written = {grade.name: grade.auto_score if grade.max_score else grade.extra_credit for grade in grades}
        same = all(written.get(name) == points for name, points in points_of(nb, judged=True).items())
        return same and (not self.timestamp or submission.timestamp == self.timestamp)

    def is_late(self, gradebook: Gradebook) -> bool:
        """Whether it has a late penalty, or may need one."""
        submission = gradebook.find_submission(self.lesson, self.student)
        return submission.total_seconds_late > 0 or bool(submission.late_submission_penalty)

    def read_autograded(self) -> NotebookNode:
        """The notebook in autograded/, or an empty one if it is missing or can't be read. It must not be changed."""
        try:
            return read_graded(self.autograded)
        except Exception:  # nbformat's errors for damaged files are not documented
            return nbformat.v4.new_notebook()

    def resources(self) -> dict[str, Any]:
        ids = {"student": self.student, "assignment": self.lesson, "notebook": self.lesson}
        more = {"db_url": self.course.directories.db_url, "timestamp": self.timestamp}
        return {"unique_key": self.lesson, "nbgrader": {**ids, **more}}

    def exporter(self, preprocessors: list[Any]) -> Any:  # nbconvert has no types
        autograding = self.course.autograding
        exporter = autograding.exporter_class(config=autograding.config)
        for preprocessor in preprocessors:
            exporter.register_preprocessor(preprocessor)
        return exporter


def read_graded(path: Path) -> NotebookNode:
    """A notebook of ours, read once as long as the file stays the same; so it must not be changed. Raises anything."""
    at = path.stat()
    return read_version(path, (at.st_ino, at.st_size, at.st_mtime_ns))


@lru_cache(maxsize=64)
def read_version(path: Path, version: tuple[int, ...]) -> NotebookNode:
    return nbformat.read(path, as_version=4)
