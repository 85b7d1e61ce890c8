"""`python -m tests.bench [parts]`: measures, prints a table, saves build/bench/measured.json, which pyperf reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pyperf
import typer
from tqdm import tqdm

from tests.bench import Row

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "bench"
PARTS = [
    "launchers",
    "startup",
    "parallelisms",
    "recorder",
    "watch",
    "reports",
    "virtual_speed",
    "predictions",
    "grading",
    "one_class",
]
ONCE = {"predictions", "grading", "one_class"}  # they take minutes, and repeat what is short themselves

Chosen = Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(PARTS)} (default: all)")]
Quick = Annotated[bool, typer.Option("--quick", help="fewer repeats, in half the time")]
LessonName = Annotated[str, typer.Option("--lesson", help="of one_class: the lesson that is graded")]
Students = Annotated[int, typer.Option("--students", min=1, help="of one_class: how many have handed in")]
Workers = Annotated[list[int], typer.Option("--workers", min=1, help="of one_class: processes that judge; repeat it")]


def main(
    parts: Chosen = None,
    quick: Quick = False,
    lesson: LessonName = "01_collectives",
    students: Students = 10,
    workers: Workers = [1, 2, 4],  # noqa: B006
) -> None:
    """Measure what `spawn`, `simulate` and grading cost. Takes some minutes, half an hour with grading. Run nothing
    else meanwhile."""
    if not sys.platform.startswith("linux"):
        sys.exit("bench: needs Linux, because it reads /proc for the memory of processes.")
    if unknown := set(parts or ()) - set(PARTS):
        sys.exit(f"bench: there is no part {', '.join(sorted(unknown))}. Parts: {', '.join(PARTS)}")
    rows, failed = [], {}
    for part in parts or PARTS:
        cases = import_module(f"tests.bench.{part}").CASES
        if part == "one_class":
            cases = [f"{lesson} {students} {number}" for number in workers]
        turns = [(part, case) for _ in range(1 if part in ONCE else 2 if quick else 5) for case in cases]
        for turn in tqdm(turns, part, leave=False):
            try:
                rows += in_fresh_process(*turn, quick)
            except RuntimeError as error:
                failed[" ".join(turn)] = str(error)
    suite = suite_of(rows)
    print(table(suite, failed))
    if suite:
        print(saved(suite))


def in_fresh_process(part: str, case: str, quick: bool) -> list[Row]:
    """The rows of one case. Raises RuntimeError with the last line of the error if it fails."""
    code = f"import json; from tests.bench import {part} as part; rows = part.measure({case!r}, quick={quick}); "
    command = [sys.executable, "-c", code + "print(); print(json.dumps(rows))"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def suite_of(rows: Iterable[Row]) -> list[pyperf.Benchmark]:
    """One benchmark per name, with a run for each time it was measured."""
    runs: dict[str, list[pyperf.Run]] = {}
    for row in rows:
        about = {name: row[name] for name in ("name", "unit", "beside") if name in row}
        runs.setdefault(row["name"], []).append(pyperf.Run(row["values"], metadata={"unit": "second", **about}))
    return [pyperf.Benchmark(each) for each in runs.values()]


def table(suite: list[pyperf.Benchmark], failed: dict[str, str]) -> str:
    medians = {one.get_name(): one.median() for one in suite}
    lines = [["", "median", "least", "most", "values", "beside"]]
    for one in suite:
        values, beside = one.get_values(), one.get_metadata().get("beside", "")
        ratio = f"{one.median() / medians[beside]:.3g} x {beside}" if beside in medians else ""
        numbers = [one.format_value(value) for value in (one.median(), min(values), max(values))]
        lines.append([one.get_name(), *numbers, str(len(values)), ratio])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    pad: list[Callable[[str, int], str]] = [str.ljust, *[str.rjust] * 4, str.ljust]
    text = ["  ".join(f(cell, width) for f, cell, width in zip(pad, line, widths, strict=True)) for line in lines]
    return "\n".join([*(line.rstrip() for line in text), *(f"{case} failed: {why}" for case, why in failed.items())])


def saved(suite: list[pyperf.Benchmark]) -> str:
    """Save all values, beside those of the time before. Returns what to do with them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    now, before = FOLDER / "measured.json", FOLDER / "before.json"
    if now.exists():
        now.replace(before)
    pyperf.BenchmarkSuite(suite).dump(str(now))
    names = " ".join(str(path.relative_to(ROOT)) for path in (before, now) if path.exists())
    return f"\nsaved: {now.relative_to(ROOT)}. To compare: .venv/bin/python -m pyperf compare_to --table {names}"


if __name__ == "__main__":
    typer.run(main)
