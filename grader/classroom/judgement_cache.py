"""Judgements kept in the course's folder, so that nothing is judged twice: judgements/LESSON/STUDENT.json.

One is good as long as nothing that it was made from has changed: the student's text, the lesson, checks and limits.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from nbformat.notebooknode import NotebookNode

from grader.classroom.gradebook import replace_file
from grader.judging.verdict import Judgement
from grader.judging.worker import JudgeSettings


@dataclass(frozen=True)
class JudgementCache:
    """The judgements of one lesson."""

    folder: Path

    def find(self, student: str, digest: str) -> Judgement | None:
        """The judgement of what has this digest; None when there is none, or it can't be read."""
        try:
            kept = json.loads(self.file(student).read_text(encoding="utf-8"))
            return Judgement.from_json(json.dumps(kept["judgement"])) if kept["digest"] == digest else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, student: str, digest: str, judgement: Judgement) -> None:
        text = json.dumps({"digest": digest, "judgement": asdict(judgement)}, indent=1)
        replace_file(self.file(student), text.encode())

    def drop(self, student: str) -> None:
        self.file(student).unlink(missing_ok=True)

    def file(self, student: str) -> Path:
        return self.folder / f"{student}.json"


def digest_of(nb: NotebookNode, lesson: str, how: JudgeSettings) -> str:
    """A number for all that a judgement of this notebook is made from."""
    cells = [(cell.cell_type, cell.source, cell.metadata.get("nbgrader")) for cell in nb.cells]
    text = json.dumps([cells, asdict(how)], sort_keys=True)
    return hashlib.sha256(f"{text}\n{sources_of(lesson, how)}".encode()).hexdigest()


def sources_of(lesson: str, how: JudgeSettings) -> list[str]:
    """A digest of each file with checks of this lesson, or with what all lessons' checks are made of."""
    files = []
    for package in sorted({how.checks, how.hidden, "utils.checks"}):
        spec = find_spec(package)
        folders = [Path(one) for one in spec.submodule_search_locations or []] if spec else []
        files += [file for one in folders for file in sorted(one.glob("*.py")) if is_of(file.stem, lesson)]
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def is_of(module: str, lesson: str) -> bool:
    """Whether a module of checks matters to a lesson: lessons' own begin with their number, 01_collectives."""
    return module == lesson or not module[:1].isdigit()
