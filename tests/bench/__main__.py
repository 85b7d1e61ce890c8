"""`python -m tests.bench`: measures, prints tables and goals, saves numbers and figures in build/bench/."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from tests.bench import environment, figure, grading, imports, one_class, schedules, show, side_by_side, virtual, worlds
from tests.bench.kernel import ROOT

FOLDER = ROOT / "build" / "bench"


class Benchmark(StrEnum):
    LAUNCHERS = "launchers"
    PROGRAMS = "programs"
    MEMORY = "memory"
    IMPORT = "import"
    RECORDER = "recorder"
    VIRTUAL = "virtual"
    GRADING = "grading"
    CLASS = "class"


Chosen = Annotated[list[Benchmark] | None, typer.Argument(help="which to run (default: all)")]
Quick = Annotated[bool, typer.Option("--quick", help="fewer repeats, in half the time")]
LessonName = Annotated[str, typer.Option("--lesson", help="of `class`: the lesson that is graded")]
Students = Annotated[int, typer.Option("--students", min=1, help="of `class`: how many have handed in")]
Workers = Annotated[list[int], typer.Option("--workers", min=1, help="of `class`: processes that judge; repeat it")]


def main(
    benchmarks: Chosen = None,
    quick: Quick = False,
    lesson: LessonName = one_class.LESSON,
    students: Students = one_class.STUDENTS,
    workers: Workers = list(one_class.WORKERS),  # noqa: B006
) -> None:
    """Compare `spawn` with other launchers, the virtual cluster with the real machine, and grading a class with plain
    nbgrader; measure the time and memory of ranks.

    Takes some minutes, half an hour with the class. Run nothing else meanwhile.
    """
    if not sys.platform.startswith("linux"):
        sys.exit("bench: needs Linux, because it reads /proc to find processes and their memory.")
    chosen = benchmarks or list(Benchmark)
    rounds = 2 if quick else 5
    measured: dict = {"machine": environment.describe()}
    if Benchmark.LAUNCHERS in chosen:
        python, refused = environment.make()
        measured["launchers"] = side_by_side.measure(side_by_side.all_launchers(), python, refused, rounds)
    if Benchmark.PROGRAMS in chosen:
        measured["programs"] = worlds.measure_time(rounds)
    if Benchmark.MEMORY in chosen:
        measured["memory"] = worlds.measure_memory()
    if Benchmark.IMPORT in chosen:
        measured["import"] = imports.measure(2 * rounds + 1)
    if Benchmark.RECORDER in chosen:
        measured["recorder"] = worlds.measure_recording()
    if Benchmark.VIRTUAL in chosen:
        measured["virtual"] = {**virtual.measure_predictions(), **virtual.measure_speed(rounds)}
    if Benchmark.GRADING in chosen:
        measured["grading"] = grading.measure(quick)
    if Benchmark.CLASS in chosen:
        measured["class"] = one_class.measure(lesson, students, tuple(workers))
    print(show.report(measured))
    save(measured)


def save(measured: dict) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    numbers, picture = FOLDER / "measured.json", FOLDER / "launchers.png"
    numbers.write_text(json.dumps(measured, indent=1) + "\n")
    saved = [numbers, *(schedules.draw(FOLDER) if "virtual" in measured else [])]
    if not all(row["failed"] for row in measured.get("launchers", {}).values()):
        figure.draw(measured, picture)
        saved.append(picture)
    print("\nsaved:", *(path.relative_to(ROOT) for path in saved))


if __name__ == "__main__":
    typer.run(main)
