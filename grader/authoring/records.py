"""Write down what a lesson's checks need and a notebook's kernel can't know (utils/checks/frozen_cases.py): the points
of each check, and what hidden oracles say of the cases that visible checks use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grader.authoring.check_files import checks_file, located
from grader.authoring.lesson import Lesson


def record_file(lesson: Lesson) -> Path:
    return lesson.room / "frozen_cases.json"  # frozen_cases.FILE


def write_record(lesson: Lesson) -> bool:
    """Write down a lesson's points and its frozen cases. Returns whether anything has changed.

    Raises BuildError if the checks can't be loaded, or if a case can't be written down.
    """
    path, text = record_file(lesson), record_of(lesson)
    if text == record_on_disk(lesson):
        return False
    path.write_text(text, encoding="utf-8")
    return True


def record_drift(lesson: Lesson) -> Iterator[str]:
    """A line if a lesson's frozen cases are out of date."""
    if record_of(lesson) != record_on_disk(lesson):
        name = record_file(lesson).relative_to(lesson.root)
        yield f"{name} is not what {lesson.file} and {checks_file(lesson).name} say: run `make build`"


def record_on_disk(lesson: Lesson) -> str:
    path = record_file(lesson)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def record_of(lesson: Lesson) -> str:
    from utils.checks.frozen_cases import written_down  # imports torch, so only when needed
    from utils.checks.rooms import load_checks

    points = dict[str, dict[str, float]]()
    for check in lesson.checks:
        points.setdefault(check.exercise, {})[check.judges] = check.points
    with located(lesson, checks_file(lesson)):
        return written_down(getattr(load_checks(lesson.room), "FROZEN", ()), points)
