"""A course: a folder with an nbgrader_config.py, in which nbgrader's commands run."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader
from traitlets.log import get_logger

from grader.classroom.nbgrader_plugins import Judge
from grader.judging.worker import JudgeSettings
from grader.sandbox import bubblewrap

CONFIG = "nbgrader_config.py"


class ClassroomError(Exception):
    """This can't be done until somebody changes what this one line says."""


@dataclass(frozen=True)
class Course:
    """A folder with an nbgrader_config.py, and the configuration in that file."""

    root: Path
    config: Config

    @classmethod
    def at(cls, folder: str | Path) -> Course:
        """Open the course in `folder`. Raises ClassroomError, which says what the folder lacks, if there isn't one."""
        root = Path(folder).resolve()
        if not root.is_dir():
            raise ClassroomError(f"there is no folder {folder}; `python -m grader new-course {folder}` makes a course")
        if not (root / CONFIG).is_file():
            raise ClassroomError(
                f"{folder} is not a course: it has no {CONFIG}; name a different folder with --course, "
                "or make one with `python -m grader new-course FOLDER`"
            )
        try:
            return cls(root, PyFileConfigLoader(CONFIG, path=str(root)).load_config())
        except Exception as error:  # whatever an instructor may have typed there
            raise ClassroomError(f"{root / CONFIG} can't be read: {type(error).__name__}: {error}") from error

    def require_sandbox(self) -> None:
        """Raises ClassroomError if a sandbox is required but this machine can't make one."""
        reason = bubblewrap.why_not() if self.judge_settings.sandboxed else None
        if reason:
            raise ClassroomError(f"{reason} To run submissions with all your rights instead, add --without-sandbox.")

    @property
    def judge_settings(self) -> JudgeSettings:
        return Judge(config=self.config).settings

    @property
    def autograding(self) -> Autograde:
        """nbgrader's own converter, for its configured steps."""
        return Autograde(coursedir=self.directories, config=self.config)

    @property
    def directories(self) -> CourseDirectory:
        return CourseDirectory(config=self.config, root=str(self.root))

    def folder(self, step: str, student: str, lesson: str) -> Path:
        """Where a step ("source", "submitted", "autograded", "feedback") keeps a student's lesson."""
        directories = self.directories
        return Path(directories.format_path(getattr(directories, f"{step}_directory"), student, lesson))

    def source(self, lesson: str) -> NotebookNode:
        """The instructor's notebook."""
        return nbformat.read(self.folder("source", ".", lesson) / f"{lesson}.ipynb", as_version=4)

    def gradebook(self) -> Gradebook:
        directories = self.directories
        return Gradebook(directories.db_url, directories.course_id)

    def lessons(self) -> list[str]:
        """The lessons that have an instructor's notebook."""
        return sorted(
            path.stem for path in self.folder("source", ".", "").glob("*/*.ipynb") if path.stem == path.parent.name
        )

    def require_lessons(self) -> None:
        """Raises ClassroomError, which says what is missing, if the course has no built lesson."""
        source = self.folder("source", ".", "")
        if self.lessons():
            return
        if source.is_symlink() and not source.exists():
            raise ClassroomError(f"{source} leads to {source.readlink()}, which isn't there: link it again")
        if not source.is_dir():
            raise ClassroomError(f"the course has no folder {source}: its lessons are expected there")
        raise ClassroomError(f"{source} holds no built lesson, such as {source / '01_topic' / '01_topic.ipynb'}")

    def students(self, lesson: str) -> list[str]:
        """Everyone who has handed in something, even if it isn't a notebook."""
        return sorted(path.parent.name for path in self.folder("submitted", "*", "").parent.glob(f"*/{lesson}"))

    def log_file(self, lesson: str, name: str) -> Path:
        return self.root / "logs" / lesson / f"{name}.log"

    def nbgrader(self, step: type, lesson: str, exclude: str = "", **options: object) -> str | None:
        """Run one of nbgrader's steps (a converter, or one of the exchange's) and log to a file.

        exclude: students to leave out, with commas between.
        Returns None if it worked, otherwise one line about the failure.
        """
        directories = CourseDirectory(
            config=self.config, root=str(self.root), assignment_id=lesson, student_id_exclude=exclude
        )
        try:
            with self.log_to(path := self.log_file(lesson, step.__name__)):
                step(coursedir=directories, config=self.config, **options).start()
        except (Exception, SystemExit) as error:
            lines = re.findall(r"\[ERROR\] (.*)", path.read_text(errors="replace"))
            first = lines[0] if lines else f"{type(error).__name__}: {error}"
            return f"nbgrader's {step.__name__} of {lesson} failed: {first} (the full log: {path})"
        return None

    def must(self, step: type, lesson: str, exclude: str = "", **options: object) -> None:
        """Run a step that everything after it depends on. Raises ClassroomError if it fails."""
        if why := self.nbgrader(step, lesson, exclude, **options):
            raise ClassroomError(why)

    @contextmanager
    def log_to(self, path: Path, mode: str = "w") -> Iterator[None]:
        """Send what nbgrader logs in the `with` block to this file, along with the error that ends the block."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, mode, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
        logger: logging.Logger = get_logger()  # type: ignore[assignment]  # an adapter only inside applications
        before = logger.propagate, logger.level
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)
        try:
            yield
        except BaseException:
            logger.exception("this step failed")
            raise
        finally:
            logger.removeHandler(handler)
            handler.close()
            logger.propagate, logger.level = before
