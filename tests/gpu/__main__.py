"""`python -m tests.gpu`: runs what needs a GPU, one stage after the other, and writes build/gpu/summary.txt."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TOTAL = 9 * 60  # seconds
MAX_TEXT = 60_000  # characters of a stage's output in the summary
WORLDS = "tests/worlds/real/test_gpu.py"
# A phrase in the names of those tests that run after the notebook's own process has used CUDA, for pytest's -k.
AGAIN = "cuda-in-the-notebook-too"
MARKED = re.compile(r"^(?:@pytest\.mark\.gpu|pytestmark = .*mark\.gpu)", re.MULTILINE)
OUTCOME = re.compile(r"^(?!    ).*\b(PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)  # text of failures is indented
PYTEST = "-p no:cacheprovider -p tests.gpu.at_once --tb=short --no-summary --continue-on-collection-errors -m gpu"
# Rank programs of `__main__` would need cloudpickle.
PROBES = "import sys; from tests.gpu.probes import main; sys.exit(main(*sys.argv[1:]))"
# Columns: so that pytest shows why a test was skipped. No plug-ins: those of somebody else's machine.
SETTINGS = {
    **{"COLUMNS": "200", "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    "PYTHONWARNINGS": "ignore::FutureWarning",  # torch 2.13 has new names for two collectives
}


class Stage(NamedTuple):
    """The probes of this name, or pytest with these arguments. seconds: the limit."""

    name: str
    seconds: float
    pytest: tuple[str, ...] = ()

    @property
    def good_codes(self) -> tuple[int, ...]:
        """pytest: 1 if tests failed, 5 if there were none; probes: 5 if one didn't pass."""
        return (0, 1, 5) if self.pytest else (0, 5)

    def command(self, folder: Path, dry: bool) -> list[str]:
        if self.pytest:
            return ["-m", "pytest", *PYTEST.split(), *self.pytest, *(["--collect-only", "-qq"] if dry else ["-v"])]
        return ["-c", PROBES, self.name, str(folder), *(["--dry"] if dry else [])]


def other_tests() -> list[str]:
    """The files, except WORLDS, that hold a test marked `gpu`."""
    marked = (path for path in sorted(ROOT.glob("tests/**/test_*.py")) if MARKED.search(path.read_text()))
    return [name for path in marked if (name := str(path.relative_to(ROOT))) != WORLDS]


# The most informative first. The last two get what is left of the nine minutes.
STAGES = (
    Stage("machine", 40),
    Stage("ranks", 65, (WORLDS, "-k", f"not failure and not {AGAIN}")),
    Stage("world", 60),
    Stage("collectives", 60),
    Stage("failures", 95, (WORLDS, "-k", f"failure and not {AGAIN}")),
    Stage("memory", 30),
    Stage("kernels", 70),
    Stage("others", 90, tuple(other_tests())),
    Stage("again", 120, (WORLDS, "-k", AGAIN)),
)
# Nothing can crash or hang a GPU here, and so one process for all probes and one for all tests will do.
DRY = (Stage("all", TOTAL), Stage("tests", TOTAL, (WORLDS, *other_tests())))


def main(arguments: list[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Returns the exit code: 1 if anything failed."""
    names = [stage.name for stage in stages[1:]]
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="stage", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu", help="for what it writes (build/gpu)")
    parser.add_argument("--dry", action="store_true", help="on the CPU, at a small size: is everything in place?")
    given = parser.parse_args(arguments)
    if unknown := set(given.stages) - set(names):
        parser.error(f"there is no stage {', '.join(sorted(unknown))}")
    chosen = [stages[0], *(stage for stage in stages[1:] if not given.stages or stage.name in given.stages)]
    given.folder.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    with open(given.folder / "summary.txt", "w", buffering=1, encoding="utf-8") as summary:
        for text in run_all(DRY if given.dry else chosen, given.folder.resolve(), given.dry):
            counts.update(OUTCOME.findall(text))
            print(text, flush=True)
            print(text, file=summary)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), f"(see {summary.name})")
    return 1 if counts["FAILED"] or counts["ERROR"] else 0


def run_all(stages: Sequence[Stage], folder: Path, dry: bool) -> Iterator[str]:
    """What each stage printed, as soon as it has ended."""
    deadline = time.monotonic() + TOTAL
    if dry:
        yield "A DRY RUN, on the CPU: it shows that everything is in place, and nothing about GPUs."
    for stage in stages:
        limit = min(stage.seconds, deadline - time.monotonic())
        if limit < 5:
            yield f"\n## {stage.name}: not tried, the {TOTAL} s are up"
            continue
        began = time.monotonic()
        printed, problem = run(stage, folder, limit, dry)
        if len(printed) > MAX_TEXT:
            printed = f"{printed[: MAX_TEXT // 2]}\n...\n{printed[-MAX_TEXT // 2 :]}"
        took = f"{time.monotonic() - began:.1f} s of at most {limit:.0f}"
        yield f"\n## {stage.name} ({took})\n{without_names(printed.strip())}{problem}"
        if stage is STAGES[0] and "torch finds no GPU" in printed:
            yield "\nThe other stages need a GPU."
            return


def run(stage: Stage, folder: Path, seconds: float, dry: bool) -> tuple[str, str]:
    """Run a stage for at most `seconds`. Returns what it printed, and what went wrong with its process, or ""."""
    path, python_path = folder / "output.txt", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with open(path, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, *stage.command(folder, dry)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": python_path, **SETTINGS},
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
            problem = (
                signal.Signals(-code).name if code < 0 else "" if code in stage.good_codes else f"exit code {code}"
            )
        except subprocess.TimeoutExpired:
            kill_tree(process)
            problem = f"its {seconds:.0f} s were up"
    printed = path.read_text(errors="replace")
    path.unlink()
    return printed, problem and f"\nThe process of {stage.name} FAILED: {problem}."


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its descendants, including those with a session of their own, such as ranks. Reads /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    doomed = [process.pid]
    for pid in doomed:  # grows
        doomed += children.get(pid, [])
    for pid in doomed:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def without_names(text: str) -> str:
    """The text without the paths of the project and the home folder, and without this machine's name."""
    text = text.replace(str(ROOT), ".")
    if home := os.path.expanduser("~").rstrip("/"):
        text = text.replace(f"{home}/", "~/")
    host = socket.gethostname()
    return text if host in ("", "localhost") else re.sub(rf"\b{re.escape(host)}\b", "HOST", text)


if __name__ == "__main__":
    raise SystemExit(main())
