"""One submission of each kind, by plain nbgrader and by this grader: a solution, a blank, a wrong answer, a hang.

Plain: nbgrader's own steps in its own kernel, 30 s per cell, without its start. Ours: what the judgement says of its
time, in a class graded by `python -m grader grade`, whose time from start to end stands in a row of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import cycle, islice
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import perf_counter

import nbformat

from grader.authoring.build import bytes_of, notebook_of
from grader.authoring.lesson import Lesson, find_lessons, read_lesson
from tests.all_lessons import mutants_of
from tests.bench import Row
from tests.sample_class import as_student

ROOT = Path(__file__).resolve().parents[2]
LESSON = "01_collectives"
KINDS = {"solution": 2, "blank": 1, "mutant": 4, "hang": 2}
# One loops when it is called, the other as soon as its cell runs.
HANGS = [
    {"broadcast-by-hand": "def broadcast_by_hand(x, rank, world_size, root):\n    while True:\n        pass"},
    {"scatter-by-hand": "while True:\n    pass"},
]
PLAIN = """
c = get_config()
c.CourseDirectory.course_id = "plain"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
"""
OURS = f"load_subconfig('nbgrader_config.py', path={str(ROOT)!r})"
CASES = ["all"]


def measure(case: str, quick: bool = False) -> list[Row]:
    kinds = dict.fromkeys(KINDS, 1) if quick else KINDS
    rows: list[Row] = []
    with TemporaryDirectory(prefix="bench-grading-") as folder:
        ours, plain = make_class(Path(folder, "ours"), OURS, kinds), make_class(Path(folder, "plain"), PLAIN, kinds)
        whole = seconds_of(ours, "grader", "grade", LESSON)
        start = seconds_of(plain, "nbgrader", "autograde", LESSON, "--student=nobody", fails=True)
        for kind, number in kinds.items():
            taken = seconds_of(plain, "nbgrader", "autograde", LESSON, f"--student={kind}-*", fails=None)
            names = f"grading a {kind}: plain nbgrader", f"grading a {kind}: this grader"
            rows.append({"name": names[0], "values": [(taken - start) / number]})
            rows.append({"name": names[1], "values": [judging_of(ours, kind)], "beside": names[0]})
    name = f"grading these {sum(kinds.values())}"
    plain_seconds = sum(row["values"][0] * kinds[kind] for kind, row in zip(kinds, rows[::2], strict=True))
    rows.append({"name": f"{name}: plain nbgrader", "values": [plain_seconds]})
    return [*rows, {"name": f"{name}: this grader", "values": [whole], "beside": f"{name}: plain nbgrader"}]


def make_class(folder: Path, config: str, kinds: dict[str, int], lesson_name: str = LESSON) -> Path:
    """A course with submissions named by their kind; the first ones of a kind are the same in every class."""
    lesson = read_lesson(find_lessons([lesson_name])[0])
    source = folder / "solutions" / lesson_name / f"{lesson_name}.ipynb"
    source.parent.mkdir(parents=True)
    source.write_bytes(bytes_of(notebook_of(lesson)))
    (folder / "nbgrader_config.py").write_text(config)
    run(folder, "nbgrader", "generate_assignment", lesson_name)
    answers = answers_of(lesson, lesson_name)
    for kind, number in kinds.items():
        for place, work in enumerate(islice(cycle(answers[kind]), number)):
            nb = nbformat.read(folder / "notebooks" / lesson_name / f"{lesson_name}.ipynb", as_version=4)
            for cell in nb.cells:
                cell.source = work.get(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
            path = folder / "submitted" / f"{kind}-{place:02}" / lesson_name / f"{lesson_name}.ipynb"
            path.parent.mkdir(parents=True)
            nbformat.write(nb, path)
    return folder


def answers_of(lesson: Lesson, lesson_name: str) -> dict[str, list[dict[str, str]]]:
    """{kind: its submissions, each {exercise: its cell}}"""
    solution = {name: as_student(exercise.source) for name, exercise in lesson.exercises.items()}
    mutants = [
        {one.exercise: as_student(one.apply(lesson.exercises[one.exercise].source))}
        for one in mutants_of(lesson_name)[::3]  # some of every exercise
    ]
    return {
        "solution": [solution],
        "blank": [{}],
        "mutant": [solution | mutant for mutant in mutants],
        "hang": [solution | hang for hang in HANGS],
    }


def run(folder: Path, module: str, *args: str, fails: bool | None = False) -> None:
    """Run a command in the folder of a class. fails: whether it must exit with an error; None: it may."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run([sys.executable, "-m", module, *args], cwd=folder, env=env, text=True, capture_output=True)
    if fails is not None and bool(done.returncode) != fails:
        raise RuntimeError(f"{module} {' '.join(args)} exited with {done.returncode}: {done.stderr[-2000:]}")


def seconds_of(folder: Path, *command: str, fails: bool | None = False) -> float:
    began = perf_counter()
    run(folder, *command, fails=fails)
    return perf_counter() - began


def judging_of(folder: Path, kind: str) -> float:
    files = (folder / "judgements" / LESSON).glob(f"{kind}-*.json")
    return mean(json.loads(file.read_text())["judgement"]["seconds"] for file in files)
