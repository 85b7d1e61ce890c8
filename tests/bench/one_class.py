"""A class of solved submissions of one lesson, graded by several numbers of Dask workers: time and CPU time of each.

    make BENCH_ARGS="class --lesson 07_zero_fsdp --students 100 --workers 2" bench

CPU time is that of all processes (cpu_time.py), and depends far less than time on how busy the machine is.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.cpu_time import Counter
from tests.bench.grading import OURS, make_class, points_in, timed
from tests.bench.kernel import ROOT

LESSON = "01_collectives"
STUDENTS = 10
WORKERS = (1, 2, 4)


def measure(lesson: str = LESSON, students: int = STUDENTS, workers: tuple[int, ...] = WORKERS) -> dict:
    rows = {}
    with Counter() as counter, TemporaryDirectory(prefix="bench-class-") as folder:
        course = make_class(Path(folder), OURS.format(root=str(ROOT)), {"solution": students}, lesson)
        for number in workers:
            seconds, cpu = timed(course, "grader", "grade", lesson, "--regrade", f"--jobs={number}")
            rows[number] = {"seconds": seconds, "cpu": cpu, "points": sum(points_in(course).values())}
    return {"lesson": lesson, "students": students, "workers": rows, "counts_all": counter.counts_all}


def cpu_each(measured: dict, workers: int) -> float:
    """CPU seconds for one submission."""
    return measured["workers"][workers]["cpu"] / measured["students"]


def growth(measured: dict) -> float:
    """CPU seconds with the most workers, as a multiple of those with the fewest."""
    return cpu_each(measured, max(measured["workers"])) / cpu_each(measured, min(measured["workers"]))


def dearest(measured: dict) -> float:
    return max(cpu_each(measured, number) for number in measured["workers"])


def table(measured: dict) -> str:
    lines = [
        "{students} solved submissions of {lesson}, from start to end".format(**measured)
        + ("" if measured["counts_all"] else " (CPU: without what ran in sandboxes)"),
        f"{'workers':10}{'seconds':>10}{'per minute':>12}{'CPU seconds':>14}{'for each':>10}{'points':>10}",
    ]
    for number, row in measured["workers"].items():
        each, per_minute = cpu_each(measured, number), 60 * measured["students"] / row["seconds"]
        lines.append(
            f"{number:<10}{row['seconds']:10.0f}{per_minute:12.2f}{row['cpu']:14.0f}{each:10.1f}{row['points']:10g}"
        )
    return "\n".join(lines)
