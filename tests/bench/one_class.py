"""A class of solved submissions of one lesson, graded by several numbers of Dask workers.

make BENCH_ARGS="one_class --lesson 07_zero_fsdp --students 100 --workers 2" bench
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench import Row
from tests.bench.grading import OURS, make_class, seconds_of

CASES: list[str] = []  # __main__ makes them from its options


def measure(case: str, quick: bool = False) -> list[Row]:
    """case: lesson, students, workers"""
    lesson, students, workers = case.split()
    with TemporaryDirectory(prefix="bench-class-") as folder:
        course = make_class(Path(folder), OURS, {"solution": int(students)}, lesson)
        seconds = seconds_of(course, "grader", "grade", lesson, f"--jobs={workers}")
    name = f"{students} solutions of {lesson}, --workers"
    return [{"name": f"{name} {workers}", "values": [seconds], "beside": f"{name} 1"}]
