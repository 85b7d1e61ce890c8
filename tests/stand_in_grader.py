"""A course whose lesson is released, and `python -m grader` in this process, with a judge that runs nothing."""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from nbformat.notebooknode import NotebookNode
from nbgrader.converters import GenerateAssignment

from grader import commands
from grader.classroom import grade_class
from grader.classroom.course import Course
from grader.sandbox import bubblewrap
from tests import stand_in_judge
from tests.tiny_course import LESSON, make_course


def released_course(folder: Path, *more: NotebookNode, config: str = "") -> Course:
    """The tiny course, its lesson with `more` cells at the end, and `config` below the project's configuration."""
    if more:
        Course.at(make_course(folder, *more)).must(GenerateAssignment, LESSON)
    else:
        shutil.copytree(released_once().name, folder, dirs_exist_ok=True)
    with (folder / "nbgrader_config.py").open("a") as file:
        file.write(config)
    return Course.at(folder)


@cache
def released_once() -> tempfile.TemporaryDirectory:
    """To copy: nbgrader takes a second for it."""
    folder = tempfile.TemporaryDirectory()
    Course.at(make_course(Path(folder.name))).must(GenerateAssignment, LESSON)
    return folder


def grader(*args: object) -> None:
    """`python -m grader ...`, which must not fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grade_class, "judge_all", stand_in_judge.judge_all)
        patch.setattr(bubblewrap, "why_not", lambda: None)
        patch.setattr(sys, "argv", ["grader", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            commands.main()
    assert not stopped.value.code
