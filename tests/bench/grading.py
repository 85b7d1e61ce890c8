"""A class graded by plain nbgrader and by this grader: submissions per minute, the cost of hangs, and agreement.

Plain: nbgrader's own steps in its own kernel, one submission after the other, 30 s per cell. It grades a sample of each
kind of submission, since all would take most of an hour; its time for the class is extrapolated by kind.
Ours: the whole class, by `python -m grader grade` from start to end, including release and feedback pages.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import nbformat

from grader.authoring.build import bytes_of, notebook_of
from grader.authoring.lesson import find_lessons, read_lesson
from tests.all_lessons import mutants_of
from tests.bench.cpu_time import Counter
from tests.bench.kernel import ROOT
from tests.sample_class import as_student

LESSON = "01_collectives"
KINDS = {"solution": 10, "blank": 4, "mutant": 22, "hang": 4}  # a class of 40
SAMPLE = {"solution": 2, "blank": 1, "mutant": 4, "hang": 2}  # that plain nbgrader grades
QUICK = {"solution": 3, "blank": 1, "mutant": 4, "hang": 2}
QUICK_SAMPLE = {"solution": 1, "blank": 1, "mutant": 1, "hang": 1}
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
OURS = "load_subconfig('nbgrader_config.py', path={root!r})"


def measure(quick: bool = False) -> dict:
    kinds, sample = (QUICK, QUICK_SAMPLE) if quick else (KINDS, SAMPLE)
    with TemporaryDirectory(prefix="bench-grading-") as folder:
        ours = make_class(Path(folder) / "ours", OURS.format(root=str(ROOT)), kinds)
        plain = make_class(Path(folder) / "plain", PLAIN, sample)
        seconds, cpu = timed(ours, "grader", "grade", LESSON)
        # Without submissions: the start-up time, which a class pays once.
        start, start_cpu = timed(plain, "nbgrader", "autograde", LESSON, "--student=nobody", fails=True)
        by_kind, cpu_by_kind = {}, {}
        for kind, number in sample.items():
            taken = timed(plain, "nbgrader", "autograde", LESSON, f"--student={kind}-*", fails=None)
            by_kind[kind], cpu_by_kind[kind] = (taken[0] - start) / number, (taken[1] - start_cpu) / number
        return {
            "kinds": kinds,
            "sample": sample,
            "seconds": seconds,
            "cpu": cpu,
            "plain_start": start,
            "plain_by_kind": by_kind,
            "plain_cpu_by_kind": cpu_by_kind,
            "by_kind": {kind: judging_of(ours, kind) for kind in kinds},
            "verdicts": compare(points_in(plain), points_in(ours)),
        }


def make_class(folder: Path, config: str, kinds: dict[str, int], lesson_name: str = LESSON) -> Path:
    """A course with submissions named by their kind; the first ones of a kind are the same in every class."""
    lesson = read_lesson(find_lessons([lesson_name])[0])
    source = folder / "solutions" / lesson_name / f"{lesson_name}.ipynb"
    source.parent.mkdir(parents=True)
    source.write_bytes(bytes_of(notebook_of(lesson)))
    (folder / "nbgrader_config.py").write_text(config)
    run(folder, "nbgrader", "generate_assignment", lesson_name)
    solution = {name: as_student(exercise.source) for name, exercise in lesson.exercises.items()}
    mutants = [
        {one.exercise: as_student(one.apply(lesson.exercises[one.exercise].source))}
        for one in mutants_of(lesson_name)[::3]  # some of every exercise
    ]
    answers = {
        "solution": [solution],
        "blank": [{}],
        "mutant": [solution | mutant for mutant in mutants],
        "hang": [solution | hang for hang in HANGS],
    }
    for kind, number in kinds.items():
        for place, work in enumerate(islice(cycle(answers[kind]), number)):
            nb = nbformat.read(folder / "notebooks" / lesson_name / f"{lesson_name}.ipynb", as_version=4)
            for cell in nb.cells:
                cell.source = work.get(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
            path = folder / "submitted" / f"{kind}-{place:02}" / lesson_name / f"{lesson_name}.ipynb"
            path.parent.mkdir(parents=True)
            nbformat.write(nb, path)
    return folder


def run(folder: Path, module: str, *args: str, fails: bool | None = False, counter: Counter | None = None) -> None:
    """Run a command in the folder of a class. fails: whether it must exit with an error; None: it may."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    command = [sys.executable, "-m", module, *args]
    join = counter.join if counter else None
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, preexec_fn=join)
    if fails is not None and bool(done.returncode) != fails:
        raise RuntimeError(f"{module} {' '.join(args)} exited with {done.returncode}: {done.stderr[-2000:]}")


def timed(folder: Path, *command: str, **how: bool | None) -> tuple[float, float]:
    """(seconds, CPU seconds of all its processes); the latter hardly depend on how busy the machine is."""
    with Counter() as counter:
        began = perf_counter()
        run(folder, *command, counter=counter, **how)
        taken = perf_counter() - began
    return taken, counter.seconds


def judging_of(folder: Path, kind: str) -> float:
    """Mean seconds for judging one submission."""
    files = list((folder / "judgements" / LESSON).glob(f"{kind}-*.json"))
    return sum(json.loads(file.read_text())["judgement"]["seconds"] for file in files) / len(files)


def points_in(folder: Path) -> dict[tuple[str, str], float]:
    """{(student, check): points} for everything that nbgrader has graded."""
    query = """select student_id, base_cell.name, grade.auto_score from grade
        join submitted_notebook on submitted_notebook.id = grade.notebook_id
        join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id
        join base_cell on base_cell.id = grade.cell_id where grade.auto_score is not null"""
    with closing(sqlite3.connect(folder / "gradebook.db")) as db:
        return {(student, check): points for student, check, points in db.execute(query)}


def compare(plain: dict, ours: dict) -> dict:
    """How many verdicts both have, and which of them differ."""
    both = sorted(plain.keys() & ours.keys())
    differ = [(*key, plain[key], ours[key]) for key in both if plain[key] != ours[key]]
    return {"both": len(both), "differ": differ}


# ---- results


def plain_seconds(measured: dict, by_kind: str = "plain_by_kind") -> float:
    """Seconds for the whole class, extrapolated by kind."""
    return sum(measured[by_kind][kind] * number for kind, number in measured["kinds"].items())


def times_as_fast(measured: dict) -> float:
    return plain_seconds(measured) / measured["seconds"]


def table(measured: dict) -> str:
    size, seconds = sum(measured["kinds"].values()), {"plain": plain_seconds(measured), "ours": measured["seconds"]}
    counts = ", ".join(f"{number} {kind}" for kind, number in measured["kinds"].items())
    sampled = ", ".join(f"{number} {kind}" for kind, number in measured["sample"].items())
    lines = [
        f"a class of {size} submissions of {LESSON} ({counts}); plain nbgrader graded {sampled}",
        f"{'':34}{'plain nbgrader':>16}{'this':>10}",
        f"{'submissions per minute':34}{60 * size / seconds['plain']:16.2f}{60 * size / seconds['ours']:10.2f}",
        f"{'seconds for the class':34}{seconds['plain']:16.0f}{seconds['ours']:10.0f}",
        f"{'  CPU seconds':34}{plain_seconds(measured, 'plain_cpu_by_kind'):16.0f}{measured['cpu']:10.0f}",
    ]
    for kind, mean in measured["plain_by_kind"].items():
        lines.append(f"{f'seconds for one {kind}':34}{mean:16.1f}{measured['by_kind'][kind]:10.1f}")
    verdicts = measured["verdicts"]
    lines.append(f"verdicts of both: {verdicts['both']}, of which {len(verdicts['differ'])} differ")
    lines += [
        f"  {student} {check}: plain {plain:g}, this {ours:g}" for student, check, plain, ours in verdicts["differ"]
    ]
    return "\n".join(lines)
