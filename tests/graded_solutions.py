"""Which solutions have earned all points in the sandbox, so that `make test` doesn't grade again what has not changed.

    python -m tests.graded_solutions     grade the solutions that have changed since they were last graded (make graded)

tests/graded_solutions.json holds a hash for each lesson of everything that its grading depends on: its solution, checks
and hidden tests, all code of `utils` and `grader`, the versions of Python (3.11, say) and torch. `make test` grades the
lessons whose hash is another one now, and the first in any case; `make thorough` grades all.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path

import pytest

from grader.authoring.lesson import ROOT
from tests.all_lessons import LESSONS

RECORD = Path(__file__).with_suffix(".json")
TEST = "tests/grader/judging/test_judge.py::test_the_solution_gets_all_points"
CODE = (".py", ".txt", ".json")  # and the numbers and timelines that visible checks compare with
ALWAYS = list(LESSONS)[:1]


def can_be_skipped(name: str) -> bool:
    """Whether this very solution has earned all points, judged by the code that is here now."""
    return name not in ALWAYS and record().get(name) == key_of(name)


@functools.cache
def record() -> dict[str, str]:
    """{lesson: the key with which its solution was last graded}"""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


@functools.cache
def key_of(name: str) -> str:
    """Changes whenever something changes that grading this lesson's solution depends on."""
    room = LESSONS[name].room
    own = [file for pattern in ("lesson_*.py", "checks_*.py", "frozen_cases.json") for file in room.glob(pattern)]
    torch = importlib.metadata.version("torch").split("+")[0]
    parts = [torch, *platform.python_version_tuple()[:2]]
    for file in [*own, *code()]:
        parts += [str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def code() -> list[Path]:
    files = [file for folder in ("utils", "grader") for file in sorted((ROOT / folder).rglob("*"))]
    return [file for file in files if file.suffix in CODE]


def main() -> int:
    changed = [name for name in LESSONS if record().get(name) != key_of(name)]
    tests = [f"{TEST}[{name}-hidden tests]" for name in changed]
    failed = pytest.main(["-n", "2", "-m", "thorough or not thorough", *tests]) if tests else 0
    if not failed:
        RECORD.write_text(json.dumps({name: key_of(name) for name in LESSONS}, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
