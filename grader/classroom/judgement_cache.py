"""A cache of judgements in the course's folder, judgements/LESSON/STUDENT.json, so that nothing is judged twice.

An entry is valid until one of its inputs changes: the student's text, the lesson, the checks or the limits. When one
exercise is judged again, the rest of the judgement is still good as long as the student's text is the same.

To find out whether the text has changed, a submission has to be read. That takes half a second, so an entry also has a
stamp of the files as they were: while it stays the same, nothing is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from nbformat.notebooknode import NotebookNode

from grader.classroom.gradebook import replace_file
from grader.judging.check_cells import is_check
from grader.judging.verdict import Judgement
from grader.judging.worker import JudgeSettings
from grader.sandbox.bubblewrap import ROOT


@dataclass(frozen=True)
class JudgementCache:
    """The cached judgements of one lesson."""

    folder: Path

    def find(self, student: str, field: str, value: str) -> tuple[Judgement, str] | None:
        """The student's judgement and its digest, if there is one to be read and this field of it has this value.

        field  "digest": of what it was made from; "answers": of the student's own text alone; "stamp": of the files
        """
        try:
            entry = json.loads(self.file(student).read_text(encoding="utf-8"))
            same = entry[field] == value
            return (Judgement.from_json(json.dumps(entry["judgement"])), str(entry["digest"])) if same else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def store(self, student: str, digest: str, judgement: Judgement, answers: str = "", stamp: str = "") -> None:
        """answers: the digest of the student's own text. stamp: of the files that it was read from."""
        entry = {"digest": digest, "answers": answers, "stamp": stamp, "judgement": asdict(judgement)}
        text = json.dumps(entry, indent=1)
        replace_file(self.file(student), text.encode())

    def drop(self, student: str) -> None:
        self.file(student).unlink(missing_ok=True)

    def file(self, student: str) -> Path:
        return self.folder / f"{student}.json"


MAX_FILES = 1000  # in a folder that has a stamp


def stamp_of(folder: Path, more: Iterable[str] = ()) -> str:
    """A hash that changes when a file in the folder does, of what the system notes about each. "" for too many files.

    more: texts that are part of it.
    """
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in islice(entries, MAX_FILES + 1)]
    if len(found) > MAX_FILES:
        return ""
    facts = sorted((name, at.st_ino, at.st_mode, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in found)
    return hashlib.sha256(json.dumps([facts, *more]).encode()).hexdigest()


def digest_of(nb: NotebookNode, lesson: str, settings: JudgeSettings) -> str:
    """A hash of everything that the points of this notebook depend on; an audit earns and costs none."""
    cells = [(cell.cell_type, cell.source, cell.metadata.get("nbgrader")) for cell in nb.cells]
    text = json.dumps([cells, asdict(replace(settings, audit=False, hasty=False))], sort_keys=True)
    return hashlib.sha256(f"{text}\n{digests_of_checks(lesson, settings)}".encode()).hexdigest()


def digest_of_answers(nb: NotebookNode) -> str:
    """A hash of what the student wrote."""
    text = json.dumps([(cell.cell_type, cell.source) for cell in nb.cells if not is_check(cell)])
    return hashlib.sha256(text.encode()).hexdigest()


def digests_of_checks(lesson: str, settings: JudgeSettings) -> list[str]:
    """A digest of each file that holds this lesson's checks, or code that the checks of all lessons share."""
    room = ROOT / settings.lessons / lesson
    shared = [ROOT / "utils" / "checks", ROOT / "utils" / "kit" / "drivers"]
    files = [*room.glob("checks_*.py"), *sorted(room.glob("*.json"))]
    files += [file for folder in shared for file in sorted(folder.glob("*.py"))]
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
