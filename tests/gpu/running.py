"""A part in a process of its own, which is ended with everything it has started when its time is up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.lines import FAILED, NOT_TRIED, PASSED, Check, lines_of, read
from tests.gpu.parts import Part

ROOT = Path(__file__).resolve().parent.parent.parent
LAST = 40  # lines of a part's output that the page shows if the part failed
SETTINGS = {
    "PYTHONUNBUFFERED": "1",  # what was printed before a crash
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # whatever is installed on somebody else's machine
}
PYTEST_ENDS = {0, 1, 5}  # pytest's exit codes if it got to its end: passed, some failed, no tests


@dataclass
class Result:
    """What came of a part."""

    part: Part
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0
    problem: str = ""  # why it ended before its end
    output: str = ""  # the last lines it printed

    @property
    def outcome(self) -> str:
        outcomes = {check.outcome for check in self.checks}
        if self.problem or FAILED in outcomes:
            return FAILED
        return PASSED if PASSED in outcomes else NOT_TRIED

    def count(self, outcome: str) -> int:
        return sum(check.outcome == outcome for check in self.checks)


def run(parts: Sequence[Part], folder: Path, seconds: float, dry: bool) -> list[Result]:
    """Run a part, or several probes in one process, for at most `seconds`. Never raises because of what they do."""
    first, *others = parts
    (folder / "output").mkdir(parents=True, exist_ok=True)
    output = folder / "output" / f"{first.name}.txt"
    for part in parts:
        lines_of(folder, part.name).unlink(missing_ok=True)
    environment = {**os.environ, "GPU_LINES": str(lines_of(folder, first.name)), "PYTHONPATH": str(ROOT), **SETTINGS}
    began = time.monotonic()
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, *first.command(folder, dry, *others)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        problem = wait(process, seconds, first)
    took = time.monotonic() - began
    results = []
    for part in parts:
        checks = read(lines_of(folder, part.name), problem)
        own = sum(check.seconds for check in checks) if others else took
        results.append(Result(part, checks, own, problem, last_lines(output)))
        lines_of(folder, part.name).unlink(missing_ok=True)
    return results


def last_lines(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-LAST:])


def wait(process: subprocess.Popen[bytes], seconds: float, part: Part) -> str:
    """Wait for it. Returns what went wrong with the process itself, or ""."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        end_all(process)
        return f"its {seconds:.0f} s were up"
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return "" if code == 0 or (part.is_pytest and code in PYTEST_ENDS) else f"its process ended with exit code {code}"


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and everything below it, also what has a session of its own, such as kernels and ranks."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> list[int]:
    """Pids of the living processes that it has started, and that these have started. Reads /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found
