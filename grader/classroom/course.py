"""A course: a folder with an nbgrader_config.py, and nbgrader's commands in it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
    """What a person has to change before this can be done, in one line."""


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
        self.config.Judge.sandbox = False

    def require_sandbox(self) -> None:
        """Raises ClassroomError where submissions can't be run in a sandbox and nobody said that they may without."""
        reason = bubblewrap.why_not() if self.how.sandboxed else None
        if reason:
            raise ClassroomError(f"{reason} To run submissions with all your rights instead, say --without-sandbox.")

    @property
    def how(self) -> JudgeSettings:
        """How submissions are judged here."""
        return Judge(config=self.config).how

    @property
    def autograding(self) -> Autograde:
        """nbgrader's own, for what the configuration says of it."""
        return Autograde(coursedir=self.directories, config=self.config)

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

    def nbgrader(self, step: type, lesson: str, **options: object) -> str | None:
        """Take a step of nbgrader's, a converter or an exchange's; what it logs goes to a file. Says why it failed."""
        directories = CourseDirectory(config=self.config, root=str(self.root), assignment_id=lesson)
        try:
            with self.log_to(path := self.log_file(lesson, step.__name__)):
                step(coursedir=directories, config=self.config, **options).start()
        except (Exception, SystemExit) as error:
            lines = re.findall(r"\[ERROR\] (.*)", path.read_text(errors="replace"))
            first = lines[0] if lines else f"{type(error).__name__}: {error}"
            return f"nbgrader's {step.__name__} of {lesson} failed: {first} (all of it: {path})"
        return None

    def must(self, step: type, lesson: str, **options: object) -> None:
        """Take a step without which nothing else makes sense; raises ClassroomError if it fails."""
        if why := self.nbgrader(step, lesson, **options):
            raise ClassroomError(why)

    @contextmanager
    def log_to(self, path: Path, mode: str = "w") -> Iterator[None]:
        """What nbgrader logs meanwhile goes to this file, with the error that ends it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, mode, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
        logger: logging.Logger = get_logger()  # type: ignore[assignment]  # an adapter only inside of applications
        before = logger.propagate, logger.level
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)
        try:
            yield
        except BaseException:
            logger.exception("this could not be done")
            raise
        finally:
            logger.removeHandler(handler)
            handler.close()
            logger.propagate, logger.level = before
