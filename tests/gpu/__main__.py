"""`python -m tests.gpu`: tries everything that needs a GPU and writes one folder about it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.gpu import page, places, running
from tests.gpu.lines import FAILED, NOT_TRIED, PASSED, Check
from tests.gpu.parts import MINUTES, PARTS, Part
from tests.gpu.running import ROOT, Result

NUMBERS = "numbers.json"
AT_ONCE = 4  # parts of a dry run
TOO_LITTLE = 5  # seconds in which no part can do anything


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 if nothing failed, 1 if something did."""
    given = make_parser().parse_args(arguments)
    folder = emptied(given.folder)
    unknown = set(given.parts) - {part.name for part in PARTS}
    if unknown:
        sys.exit(f"gpu: there is no part {', '.join(sorted(unknown))}. There are {', '.join(p.name for p in PARTS)}.")
    chosen = [part for part in PARTS if not given.parts or part.name in given.parts]
    results = run_all(chosen, folder, given.seconds, given.dry)
    write(results, folder, given.dry)
    report(results, given.folder)
    return 1 if any(result.outcome == FAILED for result in results) else 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description="Try everything that needs a GPU, for at most nine minutes, and write a page about it. "
        "Needs Python, torch, numpy and pytest.",
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"default: all of {', '.join(p.name for p in PARTS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu", help="is emptied first (build/gpu)")
    parser.add_argument("--dry", action="store_true", help="without a GPU: see that every part is in place")
    parser.add_argument("--seconds", type=float, default=60 * MINUTES, help="for everything (default: %(default)s)")
    return parser


def emptied(folder: Path) -> Path:
    """The folder, with nothing in it. Exits rather than delete what this command has not made."""
    if folder.exists() and any(folder.iterdir()) and not (folder / NUMBERS).exists():
        sys.exit(f"gpu: {folder} holds something else than an earlier result. Choose another folder with --folder.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / NUMBERS).write_text("[]\n", encoding="utf-8")  # so that the next run may empty it after an interrupt
    return folder.resolve()


def run_all(parts: list[Part], folder: Path, seconds: float, dry: bool) -> list[Result]:
    """One part after the other, each in a process of its own. A dry run, in which nothing can crash a GPU or disturb a
    measurement, runs all probes in one process, beside one for each part that is pytest: it is quicker by far.
    """
    end = time.monotonic() + seconds
    has_gpu = True

    def run(group: list[Part]) -> list[Result]:
        left = end - time.monotonic()
        if left < TOO_LITTLE:
            return [not_tried(part, f"the {seconds:.0f} s for everything were up before it began") for part in group]
        if group[0].needs_gpu and not (has_gpu or dry):
            return [not_tried(part, "torch finds no GPU here") for part in group]
        print(f"{', '.join(part.title for part in group)} ...", flush=True)
        found = running.run(group, folder, left if dry else min(group[0].seconds, left), dry)
        for result in found:
            print(f"({result.part.number}) {result.part.title}: {line_about(result)}", flush=True)
        return found

    if dry:
        groups = [[part for part in parts if part.probe], *([part] for part in parts if not part.probe)]
        with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
            results = sum(pool.map(run, filter(None, groups)), [])
        return sorted(results, key=lambda result: parts.index(result.part))
    results = []
    for part in parts:
        results += run([part])
        if part.name == "machine":
            has_gpu = any(check.numbers.get("GPUs") for check in results[-1].checks)
    return results


def not_tried(part: Part, why: str) -> Result:
    return Result(part, [Check("all of it", NOT_TRIED, why)])


def line_about(result: Result) -> str:
    counts = ", ".join(
        f"{count} {outcome}" for outcome in (PASSED, FAILED, NOT_TRIED) if (count := result.count(outcome))
    )
    problem = f"; {result.problem}" if result.problem else ""
    return f"{result.outcome} in {result.seconds:.1f} s ({counts or 'nothing found'}{problem})"


def write(results: list[Result], folder: Path, dry: bool) -> None:
    """numbers.json, page.md and page.html, without paths and names, and with everything under 16 MB."""
    took = sum(result.seconds for result in results)
    head = [
        "Made by `python -m tests.gpu`; docs/gpu.md says how to read it.",
        "A DRY RUN, without a GPU: it shows that every part is in place, and nothing about GPUs." if dry else "",
        f"Python {'.'.join(map(str, sys.version_info[:3]))}; all parts together took {took:.0f} s.",
    ]
    numbers = [
        asdict(result.part) | {name: value for name, value in vars(result).items() if name not in ("part", "checks")}
        | {"outcome": result.outcome, "checks": [vars(check) for check in result.checks]}
        for result in results
    ]  # fmt: skip
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    left_out = make_room(folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    about = page.make_page(results, [sentence for sentence in head if sentence], files, left_out)
    (folder / "page.md").write_text(about.markdown(), encoding="utf-8")
    (folder / "page.html").write_text(about.html(), encoding="utf-8")
    places.clean(folder)


def make_room(folder: Path) -> list[str]:
    """Delete the largest files until the rest, and a page, is small enough. Returns what was deleted."""
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    total, deleted = sum(path.stat().st_size for path in files), []
    while files and total > page.MOST * 3 / 4:
        largest = files.pop()
        total -= largest.stat().st_size
        deleted.append(str(largest.relative_to(folder)))
        largest.unlink()
    return deleted


def report(results: list[Result], folder: Path) -> None:
    failed = [result.part.title for result in results if result.outcome == FAILED]
    print(f"failed: {'; '.join(failed)}" if failed else "nothing failed")
    shown = folder.resolve()
    print("see", shown.relative_to(ROOT) if shown.is_relative_to(ROOT) else shown, "(page.html)")


if __name__ == "__main__":
    raise SystemExit(main())
